//! Clients in the middle of something while the store changes hands.

use anyhow::{Context, Result, ensure};
use xenstore::wire::MessageType as M;

use crate::stores::{Connection, Daemon, request};

/// Events that one who does not read is sent before each update: more than its socket holds.
const EVENTS: u32 = 1000;

fn node(number: u32) -> String {
    format!("/told/{}/{number}", number / 100)
}

pub(super) struct Bystanders {
    /// Has sent half a request.
    talker: Connection,
    rest: Vec<u8>,
    /// Reads nothing.
    deaf: Connection,
    written: u32,
    /// Has a transaction open.
    holder: Connection,
    transaction: u32,
    commits: u32,
}

impl Bystanders {
    pub(super) fn new(daemon: &Daemon) -> Result<Self> {
        let (talker, mut deaf) = (daemon.connect()?, daemon.connect()?);
        deaf.call(M::Watch, 0, b"/told\0to the deaf\0")?;
        let holder = daemon.connect()?;
        let rest = Vec::new();
        Ok(Self { talker, rest, deaf, written: 0, holder, transaction: 0, commits: 0 })
    }

    /// All begin something; `half` bytes of a request are sent.
    pub(super) fn begin(&mut self, operator: &mut Connection, half: usize) -> Result<()> {
        let range = self.written..self.written + EVENTS;
        operator.call_all(M::Write, range.map(|i| format!("{}\0{i}", node(i)).into_bytes()))?;
        self.written += EVENTS;

        let id = self.holder.call(M::TransactionStart, 0, b"\0")?;
        let id = String::from_utf8(id)?;
        self.transaction = id.trim_end_matches('\0').parse().context("no transaction")?;
        self.holder.call(M::Read, self.transaction, b"/told/0/0\0")?;
        self.commits += 1;
        let payload = format!("/commits\0{}", self.commits);
        self.holder.call(M::Write, self.transaction, payload.as_bytes())?;

        let mut bytes = Vec::new();
        request(&mut bytes, M::Read, self.commits, 0, &[b"/told/0/0\0"]);
        self.rest = bytes.split_off(half);
        self.talker.send(&bytes)
    }

    /// The transaction ends; nothing that it read has changed.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.holder.call(M::TransactionEnd, self.transaction, b"T\0").context("the open one")?;
        let value = self.holder.call(M::Read, 0, b"/commits\0")?;
        ensure!(value == self.commits.to_string().as_bytes(), "a commit was lost");
        Ok(())
    }

    /// The rest of the request that was cut.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.talker.send(&std::mem::take(&mut self.rest))?;
        let (code, payload) = self.talker.wait_message()?;
        ensure!((code, &payload[..]) == (M::Read.code(), b"0"), "half a request: {payload:?}");
        Ok(())
    }

    /// Reads what was never read.
    pub(super) fn check_end(&mut self) -> Result<()> {
        let mut expected = (0..self.written).map(|i| format!("{}\0to the deaf\0", node(i)));
        let mut next = Some("/told\0to the deaf\0".to_owned());
        for event in self.deaf.take_events() {
            let found = format!("{}\0{}\0", event.path, event.token);
            ensure!(Some(&found) == next.as_ref(), "an event is {found}, not {next:?}");
            next = expected.next();
        }
        while let Some(event) = next {
            let (code, payload) = self.deaf.wait_message().with_context(|| event.clone())?;
            let found = String::from_utf8_lossy(&payload).into_owned();
            ensure!(code == M::WatchEvent.code(), "message {code} instead of an event");
            ensure!(found == event, "an event is {found:?}, not {event:?}");
            next = expected.next();
        }
        // And nothing else.
        self.deaf.call(M::Read, 0, b"/told/0/0\0")?;
        ensure!(self.deaf.take_events().is_empty(), "events came twice");
        Ok(())
    }

    pub(super) fn events(&self) -> u64 {
        u64::from(self.written)
    }
}
