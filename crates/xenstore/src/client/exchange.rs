//! How a [`Client`] sends requests: one by one, pipelined, or as batch messages; and recovery from
//! a broken connection.

use alloc::format;
use alloc::vec::Vec;

use xen::Errno;

use crate::Error;
use crate::client::batch::{Action, BatchRequest, describe};
use crate::client::{Batch, Client, ClientError, ClientMachine, ProtocolError, Replies, Transport};
use crate::wire::batch::{self, Refusal};
use crate::wire::{MessageType, PAYLOAD_BYTES_MAX};

/// Requests sent before the first reply is read. Bounds what either side must buffer while the
/// other does not read.
const IN_FLIGHT_MAX: usize = 64;

/// How many successive connections may break immediately before the store counts as gone.
const RECONNECTS_MAX: u32 = 100;

/// How many broken connections one call survives.
pub(super) const LOSSES_MAX: u32 = 5;

/// Whether the store supports batch messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ServesBatches {
    /// Not tried yet.
    Unknown,
    Yes,
    No,
    /// Never used.
    Never,
}

/// Result of a batch sent as one message.
pub(super) enum Committed {
    Done(Replies),
    /// It cannot be one message, or not with this store. Nothing took effect.
    NotSent,
}

impl<T: Transport> Client<T> {
    // Single requests

    /// A request whose payload begins with a path and a NUL.
    pub(super) fn call_in(
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

    /// Sends `subject` and `rest` as one payload and waits for the reply.
    pub(super) fn request(
        &mut self,
        kind: MessageType,
        transaction_id: u32,
        subject: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        let mut parts: Vec<&[u8]> = Vec::with_capacity(rest.len() + 1);
        parts.push(subject.as_bytes());
        parts.extend_from_slice(rest);
        let describe = || describe(kind.label(), subject.as_bytes());
        let refused = |error| ClientError::Refused { request: describe(), error };
        let mut losses = 0;
        loop {
            match self.exchange(kind, transaction_id, &parts) {
                Ok(reply) => return reply.map_err(refused),
                Err(error) => {
                    let was_sent = self.was_sent;
                    self.recover(error, transaction_id, &mut losses)?;
                    if was_sent && !kind.traits().is_repeatable {
                        return Err(ClientError::OutcomeUnknown { request: describe() });
                    }
                }
            }
        }
    }

    pub(super) fn exchange(
        &mut self,
        kind: MessageType,
        transaction_id: u32,
        parts: &[&[u8]],
    ) -> Result<Result<Vec<u8>, Error>, ClientError> {
        self.was_sent = false;
        if self.is_lost {
            return Err(ClientError::Closed);
        }
        if let Err(error) = self.machine.request(kind, transaction_id, parts) {
            return Ok(Err(error));
        }
        self.counters.messages += 1;
        self.send()?;
        self.was_sent = true;
        self.counters.round_trips += 1;
        self.wait_reply()
    }

    // Many requests

    pub(super) fn run_in(
        &mut self,
        transaction_id: u32,
        batch: &Batch,
    ) -> Result<Replies, ClientError> {
        let requests = &batch.requests[..];
        let as_messages = fits_messages(requests);
        let mut results = Vec::with_capacity(requests.len());
        let mut losses = 0;
        while results.len() < requests.len() {
            let rest = &requests[results.len()..];
            let sent = if as_messages && self.may_serve_batches() {
                self.run_message(transaction_id, rest, &mut results)
            } else {
                let window = &rest[..rest.len().min(IN_FLIGHT_MAX)];
                self.run_pipelined(transaction_id, window, &mut results)
            };
            if let Err(error) = sent {
                self.recover(error, transaction_id, &mut losses)?;
            }
        }
        for (request, result) in requests.iter().zip(&results) {
            self.note_watch(request, result.is_ok());
        }
        let requests = requests.iter().map(BatchRequest::describe).collect();
        Ok(Replies { requests, results })
    }

    fn may_serve_batches(&self) -> bool {
        matches!(self.serves_batches, ServesBatches::Unknown | ServesBatches::Yes)
    }

    /// Sends all of `window`, then collects the replies.
    fn run_pipelined(
        &mut self,
        transaction_id: u32,
        window: &[BatchRequest],
        results: &mut Vec<Result<Vec<u8>, Error>>,
    ) -> Result<(), ClientError> {
        if self.is_lost {
            return Err(ClientError::Closed);
        }
        // A request that fits into no message fails without being sent.
        let mut queued = Vec::with_capacity(window.len());
        for request in window {
            let kind = request.action.message();
            queued.push(self.machine.request(kind, transaction_id, &request.message_payload()));
        }
        self.counters.messages += queued.iter().filter(|sent| sent.is_ok()).count() as u64;
        self.send()?;
        self.counters.round_trips += 1;
        for (request, sent) in window.iter().zip(queued) {
            let reply = match sent {
                Ok(()) => self.wait_reply()?,
                Err(error) => Err(error),
            };
            results.push(request.judge(reply));
        }
        Ok(())
    }

    /// Sends as many of `requests` as fit into one batch message, each with its own result.
    fn run_message(
        &mut self,
        transaction_id: u32,
        requests: &[BatchRequest],
        results: &mut Vec<Result<Vec<u8>, Error>>,
    ) -> Result<(), ClientError> {
        let mut message = batch::Request::default();
        for request in requests {
            let kind = request.action.entry().expect("only entries are batched");
            if message.push(kind, Refusal::OfItself, &request.payload).is_err() {
                break;
            }
        }
        if message.is_empty() {
            // It fits into no message.
            results.push(Err(Error::E2BIG));
            return Ok(());
        }
        match self.exchange_batch(transaction_id, &message)? {
            None => {}
            Some(Ok(reply)) => match decode(&reply)? {
                batch::Reply::Done(some) if !some.is_empty() => {
                    let owned = |result: Result<&[u8], Error>| result.map(<[u8]>::to_vec);
                    results.extend(some.into_iter().take(message.len()).map(owned));
                }
                batch::Reply::Done(_) => return Err(bad_reply()),
                batch::Reply::Refused { error, .. } => {
                    results.extend((0..message.len()).map(|_| Err(error)));
                }
            },
            Some(Err(error)) => results.extend((0..message.len()).map(|_| Err(error))),
        }
        Ok(())
    }

    /// Runs all of `batch` as one message, if possible.
    pub(super) fn run_as_message(&mut self, batch: &Batch) -> Result<Committed, ClientError> {
        let requests = &batch.requests[..];
        let mut losses = 0;
        while fits_messages(requests) && self.may_serve_batches() {
            let mut results = Vec::with_capacity(requests.len());
            match self.run_message(0, requests, &mut results) {
                Ok(()) if results.len() == requests.len() => {
                    let requests = requests.iter().map(BatchRequest::describe).collect();
                    return Ok(Committed::Done(Replies { requests, results }));
                }
                Ok(()) => break,
                Err(error) => self.recover(error, 0, &mut losses)?,
            }
        }
        Ok(Committed::NotSent)
    }

    /// Commits all of `batch` as one message, if possible.
    pub(super) fn commit_as_message(&mut self, batch: &Batch) -> Result<Committed, ClientError> {
        let requests = &batch.requests[..];
        let mut message = batch::Request::default();
        for request in requests {
            let Some(kind) = request.action.entry() else { return Ok(Committed::NotSent) };
            if message.push(kind, Refusal::OfAll, &request.payload).is_err() {
                return Ok(Committed::NotSent);
            }
        }
        let mut losses = 0;
        let reply = loop {
            if !self.may_serve_batches() {
                return Ok(Committed::NotSent);
            }
            match self.exchange_batch(0, &message) {
                Ok(Some(Ok(reply))) => break reply,
                Ok(Some(Err(error))) => {
                    return Err(ClientError::Refused {
                        request: MessageType::Batch.label().into(),
                        error,
                    });
                }
                Ok(None) => return Ok(Committed::NotSent),
                Err(error) => {
                    let was_sent = self.was_sent;
                    self.recover(error, 0, &mut losses)?;
                    if was_sent && requests.iter().any(|request| request.action.is_guard()) {
                        // If it took effect, its guards might fail the second time.
                        let request = format!("batch of {} requests", requests.len());
                        return Err(ClientError::OutcomeUnknown { request });
                    }
                }
            }
        };
        match decode(&reply)? {
            batch::Reply::Done(results) if results.len() == requests.len() => {
                let requests = requests.iter().map(BatchRequest::describe).collect();
                let owned = |result: Result<&[u8], Error>| result.map(<[u8]>::to_vec);
                let results = results.into_iter().map(owned).collect();
                Ok(Committed::Done(Replies { requests, results }))
            }
            // Its replies are too long for one message, or a single one is too long for any.
            batch::Reply::Done(_) | batch::Reply::Refused { error: Error::E2BIG, .. } => {
                Ok(Committed::NotSent)
            }
            batch::Reply::Refused { entry, error } => {
                let request = requests.get(entry).map_or_else(
                    || format!("commit of {} requests", requests.len()),
                    BatchRequest::describe,
                );
                Err(ClientError::Refused { request, error })
            }
        }
    }

    /// Sends a batch message; `None` if the store does not serve them.
    fn exchange_batch(
        &mut self,
        transaction_id: u32,
        message: &batch::Request,
    ) -> Result<Option<Result<Vec<u8>, Error>>, ClientError> {
        // Another store closes the connection if a message is longer than the protocol's.
        let is_long = message.payload().len() > PAYLOAD_BYTES_MAX;
        if is_long && !self.serves_batches()? {
            return Ok(None);
        }
        self.ask_batch(transaction_id, message)
    }

    /// Whether the store serves batch messages; it is asked at most once for a connection.
    pub(super) fn serves_batches(&mut self) -> Result<bool, ClientError> {
        if self.serves_batches == ServesBatches::Unknown {
            let nothing = batch::Request::default();
            self.ask_batch(0, &nothing)?;
        }
        Ok(self.serves_batches == ServesBatches::Yes)
    }

    fn ask_batch(
        &mut self,
        transaction_id: u32,
        message: &batch::Request,
    ) -> Result<Option<Result<Vec<u8>, Error>>, ClientError> {
        let reply = self.exchange(MessageType::Batch, transaction_id, &[message.payload()])?;
        match (&reply, self.serves_batches) {
            (Err(_), ServesBatches::Unknown) => {
                self.serves_batches = ServesBatches::No;
                return Ok(None);
            }
            (Ok(_), ServesBatches::Unknown) => self.serves_batches = ServesBatches::Yes,
            _ => {}
        }
        Ok(Some(reply))
    }

    // Bytes

    fn send(&mut self) -> Result<(), ClientError> {
        let outgoing = self.machine.outgoing();
        let length = outgoing.len();
        if let Err(errno) = self.transport.send(outgoing) {
            self.is_lost = true;
            return Err(ClientError::Transport(errno));
        }
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
        let received = match self.transport.recv(&mut bytes) {
            Ok(0) => Err(ClientError::Closed),
            Ok(length) => self.machine.handle_bytes(&bytes[..length]).map_err(ClientError::from),
            // Nothing is lost: a non-blocking transport has no data now.
            Err(Errno::EAGAIN) => return Err(ClientError::Transport(Errno::EAGAIN)),
            Err(errno) => Err(ClientError::Transport(errno)),
        };
        self.is_lost |= received.is_err();
        while let Some(event) = self.machine.poll_event() {
            self.counters.events += 1;
            self.events.push_back(event);
        }
        while let Some(push) = self.machine.poll_push() {
            self.counters.pushes += 1;
            if let Err(error) = self.following.take_in(push) {
                self.is_lost = true;
                return Err(error.into());
            }
        }
        received
    }

    /// Reads once; if the connection is broken, reconnects, which fires all watches.
    pub(super) fn receive_or_reconnect(&mut self) -> Result<(), ClientError> {
        let received = if self.is_lost { Err(ClientError::Closed) } else { self.receive_bytes() };
        match received {
            Err(error) if self.is_lost => self.recover(error, 0, &mut 0),
            other => other,
        }
    }

    // A new connection

    /// Recovers from `error` with a new connection. Requests in a transaction cannot be recovered.
    fn recover(
        &mut self,
        error: ClientError,
        transaction_id: u32,
        losses: &mut u32,
    ) -> Result<(), ClientError> {
        *losses += 1;
        if !self.is_lost || transaction_id != 0 || *losses >= LOSSES_MAX {
            return Err(error);
        }
        self.reconnect().map_err(|later| match later {
            // It exists, but hangs.
            ClientError::Transport(Errno::ETIMEDOUT) => later,
            _ => error,
        })
    }

    /// Reconnects and registers the watches again.
    ///
    /// A killed daemon closes its listening socket last: a new connection may still be to it, and
    /// break at once. So a connection counts only after an answer.
    pub(super) fn reconnect(&mut self) -> Result<(), ClientError> {
        let mut attempt = 1;
        loop {
            self.transport.reconnect().map_err(ClientError::Transport)?;
            self.machine = ClientMachine::new();
            self.connection += 1;
            if self.serves_batches != ServesBatches::Never {
                // It may be another program.
                self.serves_batches = ServesBatches::Unknown;
            }
            self.is_lost = false;
            match self.begin_anew() {
                Ok(()) => {
                    self.counters.reconnects += 1;
                    return Ok(());
                }
                Err(_) if self.is_lost && attempt < RECONNECTS_MAX => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_anew(&mut self) -> Result<(), ClientError> {
        // Any answer shows that the store is running.
        self.exchange(MessageType::Read, 0, &[b"/\0"])?.ok();
        let watches: Vec<_> =
            self.watches.iter().map(|(key, depth)| (key.clone(), *depth)).collect();
        for ((path, token), depth) in watches {
            let depth = depth.map(|depth| format!("{depth}\0")).unwrap_or_default();
            let parts: [&[u8]; 5] =
                [path.as_bytes(), b"\0", token.as_bytes(), b"\0", depth.as_bytes()];
            let reply = self.exchange(MessageType::Watch, 0, &parts)?;
            reply.map_err(|error| {
                let request = describe(MessageType::Watch.label(), path.as_bytes());
                ClientError::Refused { request, error }
            })?;
        }
        self.follow_anew()
    }

    /// Records a watch that a batch registered.
    fn note_watch(&mut self, request: &BatchRequest, is_done: bool) {
        let watch = request.watch();
        match request.action {
            Action::Watch if is_done => {
                self.watches.insert(watch, None);
            }
            Action::Unwatch => {
                self.watches.remove(&watch);
            }
            _ => {}
        }
    }
}

/// Whether batch messages do the same as one message each, and better: reads alone, or changes alone,
/// because a reply that is too long undoes a change.
fn fits_messages(requests: &[BatchRequest]) -> bool {
    let Some(first) = requests.first() else { return false };
    let is_alike = |request: &BatchRequest| {
        request.action.entry().is_some() && request.action.changes() == first.action.changes()
    };
    requests.len() > 1 && requests.iter().all(is_alike)
}

fn decode(reply: &[u8]) -> Result<batch::Reply<'_>, ClientError> {
    batch::decode_reply(reply).ok_or_else(bad_reply)
}

fn bad_reply() -> ClientError {
    ProtocolError::BadReply(MessageType::Batch).into()
}
