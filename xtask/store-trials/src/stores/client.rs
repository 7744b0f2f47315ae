//! A client on a server's socket.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xenstore::wire::{self, MessageType};

use super::message::{Answer, Event, Inbox, Message};

/// A server that says nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Space offered to one read.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    inbox: Inbox,
    last_request: u32,
}

impl Connection {
    /// # Errors
    /// Nobody listens there.
    pub fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, inbox: Inbox::default(), last_request: 0 })
    }

    /// How long to wait for the server before it counts as stuck.
    pub fn set_patience(&self, patience: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(patience))?)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("the server closed the connection")
    }

    /// One read; the messages are then taken with [`next_message`](Self::next_message).
    pub fn receive(&mut self) -> Result<()> {
        let stream = &mut self.stream;
        let bytes = self
            .inbox
            .fill(READ_BYTES, |into| stream.read(into))
            .context("the server does not answer")?;
        ensure!(bytes > 0, "the server closed the connection");
        Ok(())
    }

    pub fn next_message(&mut self) -> Result<Option<Message<'_>>> {
        self.inbox.next_message()
    }

    /// The next message, waited for.
    pub fn wait_message(&mut self) -> Result<(u32, Vec<u8>)> {
        loop {
            if let Some(message) = self.inbox.next_message()? {
                return Ok((message.code, message.payload.to_vec()));
            }
            self.receive()?;
        }
    }

    /// Sends a request and waits for its reply. Any type may be sent, also unknown ones.
    ///
    /// # Errors
    /// The connection broke, or the server is stuck.
    pub fn call_raw(&mut self, code: u32, transaction: u32, payload: &[u8]) -> Result<Answer> {
        self.last_request += 1;
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, code, self.last_request, transaction, &[payload]);
        self.send(&bytes)?;
        loop {
            if let Some(answer) = self.inbox.next_reply(self.last_request)? {
                return Ok(answer);
            }
            self.receive()?;
        }
    }

    /// As [`call_raw`](Self::call_raw), for a request that has to succeed.
    pub fn call(&mut self, kind: MessageType, transaction: u32, payload: &[u8]) -> Result<Vec<u8>> {
        let answer = self.call_raw(kind.code(), transaction, payload)?;
        let shown = || format!("{} {}", kind.label(), String::from_utf8_lossy(payload));
        answer.map_err(|error| anyhow::anyhow!("{}: {error}", shown()))
    }

    /// Sends many requests, 64 in flight; each has to succeed.
    pub fn call_all(
        &mut self,
        kind: MessageType,
        payloads: impl Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        let mut in_flight = 0;
        let mut bytes = Vec::new();
        for payload in payloads {
            wire::encode(&mut bytes, kind.code(), 0, 0, &[&payload]);
            in_flight += 1;
            if in_flight == 64 {
                self.send(&bytes)?;
                bytes.clear();
                self.expect_replies(&mut in_flight)?;
            }
        }
        self.send(&bytes)?;
        self.expect_replies(&mut in_flight)
    }

    fn expect_replies(&mut self, in_flight: &mut u32) -> Result<()> {
        while *in_flight > 0 {
            match self.inbox.next_reply(0)? {
                Some(Ok(_)) => *in_flight -= 1,
                Some(Err(error)) => anyhow::bail!("a request that has to succeed: {error}"),
                None => self.receive()?,
            }
        }
        Ok(())
    }

    /// Events that came before the last reply.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.inbox.take_events()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
