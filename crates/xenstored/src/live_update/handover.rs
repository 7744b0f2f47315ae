//! The old daemon's part of an update: it starts its successor, sends the state, and exits.

use std::os::fd::BorrowedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use xenstore::server::{Progress, Save, Server};

use crate::live_update::Session;
use crate::live_update::channel::{BYTES_MAX, Channel, DESCRIPTORS_MAX, Kind, Sent};
use crate::options::SUCCESSOR_ARGUMENT;

/// How long a successor may take while no client is served. It takes milliseconds, also with
/// thousands of guests; whoever waits for a store does not give up within this.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to load the nodes, while clients are served, if nobody says otherwise.
const LOADING: Duration = Duration::from_secs(60);

/// Time for a failed successor to exit.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Bytes of nodes per turn: a few hundred, in less than a tenth of a millisecond.
const SLICE_BYTES: usize = 32 * 1024;

/// A successor that is receiving the state.
pub(crate) struct Handover {
    channel: Channel,
    successor: Process,
    save: Save,
    /// A slice that did not fit.
    slice: Vec<u8>,
    progress: Progress,
    deadline: Instant,
}

/// Whether the successor has all the nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    Loading,
    Loaded,
}

impl Handover {
    /// Starts the successor, with a snapshot of the nodes.
    pub(crate) fn start(session: &Session, server: &Server) -> anyhow::Result<Self> {
        let (channel, other) = Channel::pair()?;
        let mut command = Command::new(&session.program);
        command.args(session.arguments()).arg(SUCCESSOR_ARGUMENT).stdin(other);
        let timeout = session.start.map_or(LOADING, |start| start.timeout);
        Ok(Self {
            channel,
            successor: Process::start(session.program.clone(), command)?,
            save: server.save_nodes(),
            slice: Vec::new(),
            progress: Progress::More,
            deadline: Instant::now() + timeout,
        })
    }

    /// The process that takes over.
    pub(crate) fn process_id(&self) -> u32 {
        match &self.successor {
            Process::Starting { .. } => 0,
            Process::Runs(child) => child.id(),
        }
    }

    /// One turn's work.
    pub(crate) fn step(&mut self) -> anyhow::Result<Stage> {
        if Instant::now() > self.deadline {
            bail!("the new program did not load the store in time");
        }
        if !self.successor.has_started()? {
            return Ok(Stage::Loading);
        }
        if let Some(message) = self.channel.try_receive()? {
            if message.kind != Kind::Loaded {
                bail!("the new program says {:?} too early", message.kind);
            }
            return Ok(Stage::Loaded);
        }
        if self.slice.is_empty() {
            if self.progress == Progress::Done {
                return Ok(Stage::Loading);
            }
            self.progress = self.save.fill(&mut self.slice, SLICE_BYTES);
        }
        let length = self.slice.len().min(BYTES_MAX);
        if self.channel.try_send(Kind::State, &self.slice[..length])? == Sent::Yes {
            self.slice.drain(..length);
            if self.slice.is_empty() && self.progress == Progress::Done {
                self.channel.send(Kind::NodesEnd, &[], &[], PATIENCE)?;
            }
        }
        Ok(Stage::Loading)
    }

    /// The nodes that the successor knows.
    pub(crate) fn save(&self) -> &Save {
        &self.save
    }

    /// Hands everything over and waits for the successor's first answer, within [`PATIENCE`]. No
    /// client is served meanwhile.
    pub(crate) fn finish(
        &mut self,
        rest: &[u8],
        descriptors: &[BorrowedFd<'_>],
        devices: &[BorrowedFd<'_>],
        journal: Option<BorrowedFd<'_>>,
        status: BorrowedFd<'_>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        let left = || end.saturating_duration_since(Instant::now());
        for group in descriptors.chunks(DESCRIPTORS_MAX) {
            self.channel.send(Kind::Descriptors, &[], group, left())?;
        }
        self.channel.send(Kind::Devices, &[], devices, left())?;
        if let Some(journal) = journal {
            self.channel.send(Kind::Journal, &[], &[journal], left())?;
        }
        self.channel.send(Kind::Status, &[], &[status], left())?;
        for piece in rest.chunks(BYTES_MAX) {
            self.channel.send(Kind::State, piece, &[], left())?;
        }
        self.channel.expect(Kind::Ready, left())?;
        self.channel.send(Kind::Go, &[], &[], left())?;
        self.channel.expect(Kind::Answered, left())
    }

    /// Kills a failed successor.
    pub(crate) fn give_up(self, server: &mut Server) {
        self.successor.end();
        server.end_save(self.save);
    }
}

/// A successor's process. It is started by a thread of its own, since starting it waits until the
/// file is executed, which can take as long as its file system likes.
enum Process {
    Starting { program: std::path::PathBuf, started: Receiver<std::io::Result<Child>> },
    Runs(Child),
}

impl Process {
    fn start(program: std::path::PathBuf, command: Command) -> anyhow::Result<Self> {
        let (sender, started) = sync_channel(0);
        std::thread::Builder::new()
            .name("live update".to_owned())
            .spawn(move || start(command, &sender))
            .context("cannot start a thread")?;
        Ok(Self::Starting { program, started })
    }

    fn has_started(&mut self) -> anyhow::Result<bool> {
        let Self::Starting { program, started } = self else { return Ok(true) };
        let child = match started.try_recv() {
            Ok(child) => child.with_context(|| format!("cannot start {}", program.display()))?,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => bail!("cannot start {}", program.display()),
        };
        *self = Self::Runs(child);
        Ok(true)
    }

    /// Ends it. One that has not started yet is ended as soon as it has.
    fn end(self) {
        let Self::Runs(mut child) = self else { return };
        // Most exit by themselves after reporting the reason.
        let end = Instant::now() + LAST_WORDS;
        while Instant::now() < end && !matches!(child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ended = child.kill();
        let _gone = child.wait();
    }
}

/// Starts the command, and ends it again if nobody wants it by then.
fn start(mut command: Command, wanted: &SyncSender<std::io::Result<Child>>) {
    let started = command.spawn();
    if let Err(unwanted) = wanted.send(started)
        && let Ok(mut child) = unwanted.0
    {
        let _ended = child.kill();
        let _gone = child.wait();
    }
}
