//! The old daemon's part of an update: it starts its successor, sends the state, and exits.

use std::os::fd::BorrowedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use xenstore::server::{Progress, Save, Server};

use crate::live_update::Session;
use crate::live_update::channel::{BYTES_MAX, Channel, DESCRIPTORS_MAX, Kind, Sent};
use crate::options::SUCCESSOR_ARGUMENT;

/// Timeout of a successor while no client is served.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for a failed successor to exit.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Bytes of nodes per turn: a few hundred, in less than a tenth of a millisecond.
const SLICE_BYTES: usize = 32 * 1024;

/// A successor that is receiving the state.
pub(crate) struct Handover {
    channel: Channel,
    child: Child,
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
        let child = Command::new(&session.program)
            .args(session.arguments())
            .arg(SUCCESSOR_ARGUMENT)
            .stdin(other)
            .spawn()
            .with_context(|| format!("cannot start {}", session.program.display()))?;
        let timeout = session.start.map_or(PATIENCE, |start| start.timeout.max(PATIENCE));
        Ok(Self {
            channel,
            child,
            save: server.save_nodes(),
            slice: Vec::new(),
            progress: Progress::More,
            deadline: Instant::now() + timeout,
        })
    }

    /// The process that takes over.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// One turn's work.
    pub(crate) fn step(&mut self) -> anyhow::Result<Stage> {
        if Instant::now() > self.deadline {
            bail!("the new program did not load the store in time");
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

    /// Hands everything over and waits for the successor's first answer. No client is served
    /// meanwhile.
    pub(crate) fn finish(
        &mut self,
        rest: &[u8],
        descriptors: &[BorrowedFd<'_>],
        devices: &[BorrowedFd<'_>],
        journal: Option<BorrowedFd<'_>>,
        status: BorrowedFd<'_>,
    ) -> anyhow::Result<()> {
        for group in descriptors.chunks(DESCRIPTORS_MAX) {
            self.channel.send(Kind::Descriptors, &[], group, PATIENCE)?;
        }
        self.channel.send(Kind::Devices, &[], devices, PATIENCE)?;
        if let Some(journal) = journal {
            self.channel.send(Kind::Journal, &[], &[journal], PATIENCE)?;
        }
        self.channel.send(Kind::Status, &[], &[status], PATIENCE)?;
        for piece in rest.chunks(BYTES_MAX) {
            self.channel.send(Kind::State, piece, &[], PATIENCE)?;
        }
        self.channel.expect(Kind::Ready, PATIENCE)?;
        self.channel.send(Kind::Go, &[], &[], PATIENCE)?;
        self.channel.expect(Kind::Answered, PATIENCE)
    }

    /// Kills a failed successor.
    pub(crate) fn give_up(mut self, server: &mut Server) {
        // Most exit by themselves after reporting the reason.
        let end = Instant::now() + LAST_WORDS;
        while Instant::now() < end && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ended = self.child.kill();
        let _gone = self.child.wait();
        server.end_save(self.save);
    }
}
