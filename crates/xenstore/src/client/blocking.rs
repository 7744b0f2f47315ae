//! A client that waits for its replies, over any [`Transport`].

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use xen::{DomId, Errno, EvtchnPort, Gfn};

use crate::Error;
use crate::client::batch::describe;
use crate::client::{
    Batch, ClientError, ClientMachine, Nodes, ProtocolError, Replies, Transport, WatchEvent,
};
use crate::wire::MessageType;

/// Requests sent before the first reply is read. Bounds what either side must hold while the other
/// does not read.
const IN_FLIGHT_MAX: usize = 64;

/// How often a transaction is tried before its conflict is reported.
const ATTEMPTS_MAX: u32 = 1000;

/// What a client has done since the counters were last set to their default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClientCounters {
    /// Requests sent.
    pub messages: u64,
    /// Times the client waited for the store.
    pub round_trips: u64,
    /// Transactions started, each attempt counted.
    pub transactions: u64,
    /// Commits that the store refused with `EAGAIN`.
    pub conflicts: u64,
    /// Watch events received.
    pub events: u64,
}

/// A connection to a store.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    machine: ClientMachine,
    events: alloc::collections::VecDeque<WatchEvent>,
    /// Take or reset them at any time.
    pub counters: ClientCounters,
}

impl<T: Transport> Client<T> {
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            machine: ClientMachine::new(),
            events: alloc::collections::VecDeque::new(),
            counters: ClientCounters::default(),
        }
    }

    /// The transport, for instance to wait on its descriptor.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    // Watches

    /// Registers a watch; its first event comes at once. Needs no transaction.
    ///
    /// # Errors
    /// `EEXIST` if the same path and token are watched already.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), ClientError> {
        self.call(MessageType::Watch, path, &[token.as_bytes(), b"\0"]).map(|_| ())
    }

    /// Registers a watch that ignores changes more than `depth` levels below `path`.
    ///
    /// # Errors
    /// `EINVAL` from a store that does not know depths (before 4.22).
    pub fn watch_depth(&mut self, path: &str, token: &str, depth: u32) -> Result<(), ClientError> {
        let depth = depth.to_string();
        let rest = [token.as_bytes(), b"\0", depth.as_bytes(), b"\0"];
        self.call(MessageType::Watch, path, &rest).map(|_| ())
    }

    /// Removes a watch. Events of it that are queued already stay queued.
    ///
    /// # Errors
    /// `ENOENT` if there is no such watch.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), ClientError> {
        self.call(MessageType::Unwatch, path, &[token.as_bytes(), b"\0"]).map(|_| ())
    }

    /// Removes all watches and transactions of this connection.
    ///
    /// # Errors
    /// As every request.
    pub fn reset_watches(&mut self) -> Result<(), ClientError> {
        self.request(MessageType::ResetWatches, 0, "", &[]).map(|_| ())
    }

    /// An event that has arrived already; never waits.
    pub fn poll_event(&mut self) -> Option<WatchEvent> {
        self.events.pop_front()
    }

    /// The next event, waiting for one if none has arrived.
    ///
    /// # Errors
    /// What ends the connection.
    pub fn next_event(&mut self) -> Result<WatchEvent, ClientError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.receive_bytes()?;
        }
    }

    /// Reads once from the transport: for an event loop that saw it readable. Says whether an event
    /// is there to be [polled](Self::poll_event).
    ///
    /// # Errors
    /// What ends the connection. `EAGAIN` of the transport is not one.
    pub fn receive(&mut self) -> Result<bool, ClientError> {
        match self.receive_bytes() {
            Ok(()) | Err(ClientError::Transport(Errno::EAGAIN)) => Ok(!self.events.is_empty()),
            Err(error) => Err(error),
        }
    }

    // Transactions

    /// Runs `body` inside a transaction, again and again until no other change got in its way.
    ///
    /// An error of `body` ends the transaction without effect. The body may run several times, so it
    /// should do nothing but use the transaction.
    ///
    /// # Errors
    /// The body's error, or [`ClientError`] of start and commit.
    pub fn transaction<R, E: From<ClientError>>(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'_, T>) -> Result<R, E>,
    ) -> Result<R, E> {
        for _ in 0..ATTEMPTS_MAX {
            let id = self.start()?;
            let mut transaction = Transaction { client: self, id };
            match body(&mut transaction) {
                Ok(value) => {
                    if self.end(id, "T")? == Ended::Done {
                        return Ok(value);
                    }
                }
                Err(error) => {
                    // The body's error is the one to tell; this one is about the same connection.
                    let _aborted = self.end(id, "F");
                    return Err(error);
                }
            }
        }
        Err(ClientError::Conflict { attempts: ATTEMPTS_MAX }.into())
    }

    /// Runs `batch` as one transaction, again and again until no other change got in its way.
    ///
    /// If a request is refused nothing takes effect, and its refusal is returned.
    ///
    /// # Errors
    /// The first refusal, or what ends the connection.
    pub fn commit(&mut self, batch: &Batch) -> Result<Replies, ClientError> {
        self.transaction(|transaction| {
            let replies = transaction.run(batch)?;
            replies.all_ok()?;
            Ok(replies)
        })
    }

    fn start(&mut self) -> Result<u32, ClientError> {
        let reply = self.request(MessageType::TransactionStart, 0, "", &[b"\0"])?;
        self.counters.transactions += 1;
        number(&reply).ok_or_else(|| ProtocolError::BadReply(MessageType::TransactionStart).into())
    }

    fn end(&mut self, id: u32, verdict: &str) -> Result<Ended, ClientError> {
        match self.request(MessageType::TransactionEnd, id, verdict, &[b"\0"]) {
            Ok(_) => Ok(Ended::Done),
            Err(error) if error.refusal() == Some(Error::EAGAIN) => {
                self.counters.conflicts += 1;
                Ok(Ended::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    // Domains

    /// Tells the store that a domain's ring page is ready. `gfn` is its frame.
    ///
    /// # Errors
    /// `EINVAL` if the ring cannot be mapped.
    pub fn introduce(
        &mut self,
        domid: DomId,
        gfn: Gfn,
        port: EvtchnPort,
    ) -> Result<(), ClientError> {
        let rest = format!("\0{}\0{port}\0", gfn.0);
        self.request(MessageType::Introduce, 0, &domid.to_string(), &[rest.as_bytes()]).map(|_| ())
    }

    /// Ends the store's service to a domain.
    ///
    /// # Errors
    /// `ENOENT` if the domain was not introduced.
    pub fn release(&mut self, domid: DomId) -> Result<(), ClientError> {
        self.domain_request(MessageType::Release, domid).map(|_| ())
    }

    /// Says that a domain goes on after a shutdown (suspend that was cancelled).
    ///
    /// # Errors
    /// `ENOENT` if the domain was not introduced.
    pub fn resume(&mut self, domid: DomId) -> Result<(), ClientError> {
        self.domain_request(MessageType::Resume, domid).map(|_| ())
    }

    /// Whether the store serves this domain's ring.
    ///
    /// # Errors
    /// As every request.
    pub fn is_introduced(&mut self, domid: DomId) -> Result<bool, ClientError> {
        Ok(self.domain_request(MessageType::IsDomainIntroduced, domid)?.starts_with(b"T"))
    }

    /// The domain's home, `/local/domain/N`.
    ///
    /// # Errors
    /// As every request.
    pub fn get_domain_path(&mut self, domid: DomId) -> Result<String, ClientError> {
        let reply = self.domain_request(MessageType::GetDomainPath, domid)?;
        let path = reply.strip_suffix(b"\0").unwrap_or(&reply);
        Ok(String::from_utf8_lossy(path).into_owned())
    }

    /// Gives `domid` every right that `target` has.
    ///
    /// # Errors
    /// `ENOENT` if either was not introduced.
    pub fn set_target(&mut self, domid: DomId, target: DomId) -> Result<(), ClientError> {
        let rest = format!("\0{target}\0");
        self.request(MessageType::SetTarget, 0, &domid.to_string(), &[rest.as_bytes()]).map(|_| ())
    }

    /// A command to the daemon, such as `["print", "text"]`; returns its answer.
    ///
    /// # Errors
    /// `EINVAL` if the daemon does not know the command.
    pub fn control(&mut self, words: &[&str]) -> Result<String, ClientError> {
        let payload: String = words.iter().map(|word| format!("{word}\0")).collect();
        let reply = self.request(MessageType::Control, 0, "", &[payload.as_bytes()])?;
        let text = reply.strip_suffix(b"\0").unwrap_or(&reply);
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn domain_request(&mut self, kind: MessageType, domid: DomId) -> Result<Vec<u8>, ClientError> {
        self.request(kind, 0, &domid.to_string(), &[b"\0"])
    }

    // Messages

    /// Sends `subject` and `rest` as one payload and waits for the reply.
    fn request(
        &mut self,
        kind: MessageType,
        transaction_id: u32,
        subject: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        let refused = |error| {
            let request = describe(kind, subject.as_bytes());
            ClientError::Refused { request, error }
        };
        let mut parts: Vec<&[u8]> = Vec::with_capacity(rest.len() + 1);
        parts.push(subject.as_bytes());
        parts.extend_from_slice(rest);
        self.machine.request(kind, transaction_id, &parts).map_err(refused)?;
        self.counters.messages += 1;
        self.send()?;
        self.counters.round_trips += 1;
        self.wait_reply()?.map_err(refused)
    }

    fn run_in(&mut self, transaction_id: u32, batch: &Batch) -> Result<Replies, ClientError> {
        let mut results = Vec::with_capacity(batch.len());
        for window in batch.requests.chunks(IN_FLIGHT_MAX) {
            // A request that fits into no message has its result without being sent.
            let mut queued = Vec::with_capacity(window.len());
            for request in window {
                queued.push(self.machine.request(
                    request.kind,
                    transaction_id,
                    &[&request.payload],
                ));
            }
            self.counters.messages += queued.iter().filter(|sent| sent.is_ok()).count() as u64;
            self.send()?;
            self.counters.round_trips += 1;
            for sent in queued {
                results.push(match sent {
                    Ok(()) => self.wait_reply()?,
                    Err(error) => Err(error),
                });
            }
        }
        let requests = batch.requests.iter().map(super::batch::BatchRequest::describe).collect();
        Ok(Replies { requests, results })
    }

    fn send(&mut self) -> Result<(), ClientError> {
        let outgoing = self.machine.outgoing();
        let length = outgoing.len();
        self.transport.send(outgoing).map_err(ClientError::Transport)?;
        self.machine.sent(length);
        Ok(())
    }

    fn wait_reply(&mut self) -> Result<Result<Vec<u8>, Error>, ClientError> {
        loop {
            if let Some(reply) = self.machine.poll_reply() {
                return Ok(reply);
            }
            self.receive_bytes()?;
        }
    }

    fn receive_bytes(&mut self) -> Result<(), ClientError> {
        let mut bytes = [0; 8192];
        let length = self.transport.recv(&mut bytes).map_err(ClientError::Transport)?;
        if length == 0 {
            return Err(ClientError::Closed);
        }
        self.machine.handle_bytes(&bytes[..length])?;
        while let Some(event) = self.machine.poll_event() {
            self.counters.events += 1;
            self.events.push_back(event);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ended {
    Done,
    Conflict,
}

fn number(reply: &[u8]) -> Option<u32> {
    core::str::from_utf8(reply.strip_suffix(b"\0")?).ok()?.parse().ok()
}

impl<T: Transport> Nodes for Client<T> {
    fn call(
        &mut self,
        kind: MessageType,
        path: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        self.call_in(kind, 0, path, rest)
    }

    fn run(&mut self, batch: &Batch) -> Result<Replies, ClientError> {
        self.run_in(0, batch)
    }
}

impl<T: Transport> Client<T> {
    /// A request whose payload begins with a path and a NUL.
    fn call_in(
        &mut self,
        kind: MessageType,
        transaction_id: u32,
        path: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        let mut parts: Vec<&[u8]> = Vec::with_capacity(rest.len() + 1);
        parts.push(b"\0");
        parts.extend_from_slice(rest);
        self.request(kind, transaction_id, path, &parts)
    }
}

/// A transaction that is open; [`Client::transaction`] ends it.
#[derive(Debug)]
pub struct Transaction<'a, T> {
    client: &'a mut Client<T>,
    id: u32,
}

impl<T: Transport> Nodes for Transaction<'_, T> {
    fn call(
        &mut self,
        kind: MessageType,
        path: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        self.client.call_in(kind, self.id, path, rest)
    }

    fn run(&mut self, batch: &Batch) -> Result<Replies, ClientError> {
        self.client.run_in(self.id, batch)
    }
}
