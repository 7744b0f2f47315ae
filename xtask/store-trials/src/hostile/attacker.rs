//! A guest that breaks rules: it sends what it likes, and reads its replies or does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use file_host::Guest;
use xenstore::ring::RING_BYTES;
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType as M};

/// A guest that is served after longer than this is not served.
const PATIENCE: Duration = Duration::from_secs(15);

/// What attackers got, by the name of the answer.
#[derive(Debug, Default)]
pub(super) struct Tally {
    answers: BTreeMap<String, u64>,
    pub(super) sent: u64,
}

impl Tally {
    pub(super) fn add(&mut self, what: &str, count: u64) {
        *self.answers.entry(what.to_owned()).or_default() += count;
    }

    /// In one line, as the table has it.
    pub(super) fn line(&self) -> String {
        let answers: Vec<String> =
            self.answers.iter().map(|(what, count)| format!("{count} {what}")).collect();
        answers.join(", ")
    }
}

pub(super) type SharedTally = Rc<RefCell<Tally>>;

/// A reply's payload, or the name of its error.
pub(super) type Answer = std::result::Result<Vec<u8>, String>;

pub(super) fn message(kind: M, transaction: u32, payload: &[u8]) -> Vec<u8> {
    raw(kind.code(), 1, transaction, payload)
}

pub(super) fn raw(code: u32, request_id: u32, transaction: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, code, request_id, transaction, &[payload]);
    bytes
}

pub(super) struct Attacker {
    pub(super) guest: Guest,
    /// What came and is no whole message yet.
    received: Vec<u8>,
    tally: SharedTally,
    last_request: u32,
    /// The reply to the last request that waits for one.
    reply: Option<Answer>,
}

impl Attacker {
    pub(super) fn new(guest: Guest, tally: SharedTally) -> Self {
        Self { guest, received: Vec::new(), tally, last_request: 1000, reply: None }
    }

    /// Sends a whole message, and reads meanwhile.
    ///
    /// # Errors
    /// The ring is out of service, or the store forgot it.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.tally.borrow_mut().sent += 1;
        let begun = Instant::now();
        while !bytes.is_empty() {
            let sent = self.guest.try_send(bytes)?;
            bytes = &bytes[sent..];
            if self.take(|_, _| ())? + sent == 0 {
                self.wait(begun)?;
            }
        }
        Ok(())
    }

    /// Sends what the ring has room for, and reads nothing. Says how many bytes that were.
    pub(super) fn stuff(&mut self, bytes: &[u8]) -> Result<usize> {
        let sent = self.guest.try_send(bytes)?;
        self.tally.borrow_mut().sent += u64::from(sent == bytes.len());
        if sent == 0 {
            self.guest.wait(Duration::from_millis(5))?;
        }
        Ok(sent)
    }

    /// Asks, and waits for the reply to that.
    pub(super) fn ask(&mut self, kind: M, transaction: u32, payload: &[u8]) -> Result<Answer> {
        self.ask_raw(kind.code(), transaction, payload)
    }

    pub(super) fn ask_raw(
        &mut self,
        code: u32,
        transaction: u32,
        payload: &[u8],
    ) -> Result<Answer> {
        self.last_request += 1;
        self.reply = None;
        self.send(&raw(code, self.last_request, transaction, payload))?;
        let begun = Instant::now();
        loop {
            if let Some(answer) = self.reply.take() {
                return Ok(answer);
            }
            if self.take(|_, _| ())? == 0 {
                self.wait(begun)?;
            }
        }
    }

    /// As [`ask`](Self::ask), for what has to succeed.
    pub(super) fn must(&mut self, kind: M, transaction: u32, payload: &[u8]) -> Result<Vec<u8>> {
        let answer = self.ask(kind, transaction, payload)?;
        let shown = || format!("{} {}", kind.label(), String::from_utf8_lossy(payload));
        answer.map_err(|error| anyhow::anyhow!("{}: {error}", shown()))
    }

    /// As [`ask`](Self::ask), for what has to be refused so.
    pub(super) fn refused(&mut self, kind: M, payload: &[u8], errors: &[&str]) -> Result<()> {
        let answer = self.ask(kind, 0, payload)?;
        let shown = String::from_utf8_lossy(payload);
        ensure!(
            answer.as_ref().is_err_and(|error| errors.contains(&error.as_str())),
            "{} {shown:?} was answered {answer:?}, not {errors:?}",
            kind.label()
        );
        Ok(())
    }

    pub(super) fn begin_transaction(&mut self) -> Result<u32> {
        let number = self.must(M::TransactionStart, 0, b"\0")?;
        Ok(std::str::from_utf8(&number)?.trim_end_matches('\0').parse()?)
    }

    /// Takes whatever is in the ring, and says how many bytes that were.
    pub(super) fn take(&mut self, mut each: impl FnMut(Header, &[u8])) -> Result<usize> {
        let mut bytes = [0; RING_BYTES];
        let taken = self.guest.try_recv(&mut bytes)?;
        self.received.extend_from_slice(&bytes[..taken]);
        let mut at = 0;
        while let Some(header) =
            Header::decode(&self.received[at..]).context("the store sends nonsense")?
        {
            let end = at + HEADER_BYTES + header.payload_bytes();
            let Some(payload) = self.received.get(at + HEADER_BYTES..end) else { break };
            let what = match answer(header, payload) {
                _ if header.code == M::WatchEvent.code() => "event".to_owned(),
                Ok(_) => "OK".to_owned(),
                Err(name) => name,
            };
            self.tally.borrow_mut().add(&what, 1);
            if header.request_id == self.last_request && header.code != M::WatchEvent.code() {
                self.reply = Some(answer(header, payload));
            }
            each(header, payload);
            at = end;
        }
        self.received.drain(..at);
        Ok(taken)
    }

    /// Reads until nothing comes for a while, or for a second: others may cause events without end.
    pub(super) fn drain(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1)
            && (self.take(|_, _| ())? > 0 || self.guest.wait(Duration::from_millis(30))?)
        {}
        Ok(())
    }

    fn wait(&self, since: Instant) -> Result<()> {
        let error = self.guest.ring().error();
        ensure!(error == 0, "the ring is out of service: error {error}");
        ensure!(since.elapsed() < PATIENCE, "no reply within {PATIENCE:?}");
        self.guest.wait(Duration::from_millis(100))?;
        Ok(())
    }
}

fn answer(header: Header, payload: &[u8]) -> Answer {
    if header.code != M::Error.code() {
        return Ok(payload.to_vec());
    }
    let name = payload.strip_suffix(b"\0").unwrap_or(payload);
    Err(String::from_utf8_lossy(name).into_owned())
}
