//! Load on a server: requests over several connections from one thread, and what they cost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::epoll;
use xenstore::wire::MessageType;

use store_trials::stores::{Connection, Daemon, Message, request};

/// A server that has nothing to do sleeps after this long; only then its accounting is complete.
const SETTLE: Duration = Duration::from_millis(10);

/// What one connection asks, request by request.
pub(super) trait Load {
    /// Appends the next request.
    fn request(&mut self, out: &mut Vec<u8>);

    /// Takes its reply; true if that was the last of an operation.
    ///
    /// # Errors
    /// The server does not do what it was asked.
    fn reply(&mut self, message: &Message<'_>) -> Result<bool>;
}

/// What a load did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub per_second: f64,
    /// CPU time of the server, in microseconds for each operation.
    pub cpu_us: f64,
}

/// Runs a load on each connection for `duration`, each with `in_flight` requests at a time, and
/// reads the server's accounting before and after.
pub(super) fn measure(
    daemon: &Daemon,
    connections: &mut [Connection],
    loads: &mut [impl Load],
    in_flight: usize,
    duration: Duration,
) -> Result<Done> {
    std::thread::sleep(SETTLE);
    let before = daemon.cpu()?;
    let started = Instant::now();
    let operations = drive(connections, loads, in_flight, started + duration)?;
    let elapsed = started.elapsed();
    std::thread::sleep(SETTLE);
    let used = daemon.cpu()?.saturating_sub(before);
    ensure!(operations > 0, "no operation was finished");
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 operations")]
    let operations = operations as f64;
    Ok(Done {
        per_second: operations / elapsed.as_secs_f64(),
        cpu_us: used.as_secs_f64() * 1e6 / operations,
    })
}

/// Counts the operations finished until `deadline`; one that was begun is finished.
fn drive(
    connections: &mut [Connection],
    loads: &mut [impl Load],
    in_flight: usize,
    deadline: Instant,
) -> Result<u64> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut out = Vec::new();
    let mut unanswered = vec![in_flight; connections.len()];
    let mut operations = 0;
    let mut busy = connections.len();
    for (index, (connection, load)) in connections.iter_mut().zip(loads.iter_mut()).enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&epoll, &*connection, data, epoll::EventFlags::IN)?;
        out.clear();
        for _ in 0..in_flight {
            load.request(&mut out);
        }
        connection.send(&out)?;
    }
    let mut events = Vec::with_capacity(64);
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    while busy > 0 {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience))?;
        ensure!(!events.is_empty(), "the server does not answer");
        let is_late = Instant::now() >= deadline;
        for event in &events {
            let index = usize::try_from(event.data.u64()).context("not our number")?;
            let (connection, load) = (&mut connections[index], &mut loads[index]);
            connection.receive()?;
            out.clear();
            while let Some(message) = connection.next_message()? {
                if message.is_event() {
                    continue;
                }
                let is_finished = load.reply(&message)?;
                operations += u64::from(is_finished);
                if is_finished && is_late {
                    unanswered[index] -= 1;
                } else {
                    load.request(&mut out);
                }
            }
            if !out.is_empty() {
                connection.send(&out)?;
            }
            if unanswered[index] == 0 {
                busy -= 1;
            }
        }
    }
    Ok(operations)
}

/// The same request again and again.
pub(super) struct Same {
    bytes: Vec<u8>,
}

impl Same {
    pub(super) fn new(kind: MessageType, payload: &[u8]) -> Self {
        let mut bytes = Vec::new();
        request(&mut bytes, kind, 0, 0, &[payload]);
        Self { bytes }
    }
}

impl Load for Same {
    fn request(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
    }

    fn reply(&mut self, message: &Message<'_>) -> Result<bool> {
        ensure!(message.code != MessageType::Error.code(), "{:?}", message.answer());
        Ok(true)
    }
}

/// Requests of one operation, some of them in transactions.
pub(super) struct Sequence {
    steps: Vec<Step>,
    at: usize,
    transaction: u32,
}

/// One request of a [`Sequence`].
pub(super) enum Step {
    Start,
    /// A request inside the transaction.
    Inside(MessageType, Vec<u8>),
    Commit,
}

impl Sequence {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self { steps, at: 0, transaction: 0 }
    }
}

impl Load for Sequence {
    fn request(&mut self, out: &mut Vec<u8>) {
        let transaction = self.transaction;
        match &self.steps[self.at] {
            Step::Start => request(out, MessageType::TransactionStart, 0, 0, &[b"\0"]),
            Step::Inside(kind, payload) => request(out, *kind, 0, transaction, &[payload]),
            Step::Commit => request(out, MessageType::TransactionEnd, 0, transaction, &[b"T\0"]),
        }
    }

    fn reply(&mut self, message: &Message<'_>) -> Result<bool> {
        ensure!(message.code != MessageType::Error.code(), "{:?}", message.answer());
        if matches!(self.steps[self.at], Step::Start) {
            let text = std::str::from_utf8(message.payload)?;
            self.transaction = text.trim_end_matches('\0').parse()?;
        }
        self.at = (self.at + 1) % self.steps.len();
        Ok(self.at == 0)
    }
}
