//! Transactions of a [`Client`]: retried after a conflict and after a lost connection.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::client::exchange::{Committed, LOSSES_MAX};
use crate::client::{Batch, Client, ClientError, Nodes, ProtocolError, Replies, Transport};
use crate::wire::MessageType;

/// Attempts of a transaction before a conflict is reported.
const ATTEMPTS_MAX: u32 = 1000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ended {
    Done,
    Conflict,
}

impl<T: Transport> Client<T> {
    /// Runs `body` inside a transaction, and repeats it after conflicts.
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
        let mut losses = 0;
        for _ in 0..ATTEMPTS_MAX {
            let id = self.start()?;
            let mut transaction = Transaction { client: self, id };
            let result = body(&mut transaction);
            if self.is_lost {
                // The transaction is lost with the connection, whatever the body returned.
                losses += 1;
                if losses < LOSSES_MAX && self.reconnect().is_ok() {
                    continue;
                }
                return Err(result.err().unwrap_or_else(|| ClientError::Closed.into()));
            }
            match result {
                Ok(value) => {
                    if self.end(id, "T")? == Ended::Done {
                        return Ok(value);
                    }
                }
                Err(error) => {
                    // Report the body's error; this one is of the same connection.
                    let _aborted = self.end(id, "F");
                    return Err(error);
                }
            }
        }
        Err(ClientError::Conflict { attempts: ATTEMPTS_MAX }.into())
    }

    /// Commits all of `batch` atomically: in one message if the store serves
    /// [batches](crate::wire::batch), otherwise as a transaction, repeated after conflicts.
    ///
    /// If a request or a guard fails, nothing takes effect.
    ///
    /// # Errors
    /// The first error, or one that ends the connection.
    pub fn commit(&mut self, batch: &Batch) -> Result<Replies, ClientError> {
        match self.commit_as_message(batch)? {
            Committed::Done(replies) => return Ok(replies),
            Committed::NotSent => {}
        }
        self.transaction(|transaction| {
            let replies = transaction.run(batch)?;
            replies.all_ok()?;
            Ok(replies)
        })
    }

    /// Runs all reads of `batch` on one state of the store.
    ///
    /// # Errors
    /// An error that ends the connection. A failed read is a value in [`Replies`].
    pub fn run_at_once(&mut self, batch: &Batch) -> Result<Replies, ClientError> {
        if batch.len() <= 1 {
            return self.run(batch);
        }
        match self.run_as_message(batch)? {
            Committed::Done(replies) => Ok(replies),
            Committed::NotSent => self.transaction(|transaction| transaction.run(batch)),
        }
    }

    /// Does all of a commit that can be done before the moment at which it is to take effect. With a
    /// store that serves no batches that is a transaction up to its end, so do not keep it for long.
    ///
    /// # Errors
    /// As of [`commit`](Self::commit). Where the store serves batches, guards are only evaluated
    /// when it takes effect.
    pub fn prepare_commit(&mut self, batch: Batch) -> Result<PreparedCommit, ClientError> {
        let mut losses = 0;
        loop {
            let connection = self.connection;
            match self.try_to_prepare(&batch) {
                Ok(transaction) => {
                    let transaction = transaction.map(|id| OpenTransaction { connection, id });
                    return Ok(PreparedCommit { batch, transaction });
                }
                Err(error) if self.is_lost => {
                    losses += 1;
                    if losses >= LOSSES_MAX || self.reconnect().is_err() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn try_to_prepare(&mut self, batch: &Batch) -> Result<Option<u32>, ClientError> {
        if self.serves_batches()? {
            return Ok(None);
        }
        let id = self.start()?;
        let done = Transaction { client: self, id }.run(batch).and_then(|replies| replies.all_ok());
        if let Err(error) = done {
            // Report this error; the other is of the same connection.
            let _aborted = self.end(id, "F");
            return Err(error);
        }
        Ok(Some(id))
    }

    /// Lets it take effect: one message to the store, unless something that it reads or changes has
    /// changed meanwhile or the connection is another one.
    ///
    /// # Errors
    /// As of [`commit`](Self::commit).
    pub fn commit_prepared(&mut self, prepared: PreparedCommit) -> Result<(), ClientError> {
        let PreparedCommit { batch, transaction } = prepared;
        if let Some(OpenTransaction { connection, id }) = transaction
            && connection == self.connection
            && !self.is_lost
            && self.end(id, "T")? == Ended::Done
        {
            return Ok(());
        }
        self.commit(&batch).map(drop)
    }

    /// Drops it without effect.
    pub fn discard(&mut self, prepared: PreparedCommit) {
        let PreparedCommit { batch, transaction } = prepared;
        drop(batch);
        if let Some(OpenTransaction { connection, id }) = transaction
            && connection == self.connection
            && !self.is_lost
        {
            // If the connection breaks now, the transaction ends with it.
            let _aborted = self.end(id, "F");
        }
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
            Err(error) if self.is_lost => Err(match self.reconnect() {
                Ok(()) => ClientError::OutcomeUnknown { request: String::from("transaction_end") },
                Err(_) => error,
            }),
            Err(error) => Err(error),
        }
    }
}

/// A commit that takes effect by one more message; [`Client::prepare_commit`] makes it.
#[derive(Debug)]
#[must_use = "commit or discard it"]
pub struct PreparedCommit {
    batch: Batch,
    /// `None` where the store serves batches.
    transaction: Option<OpenTransaction>,
}

/// A transaction of which only the end is missing.
#[derive(Clone, Copy, Debug)]
struct OpenTransaction {
    connection: u64,
    id: u32,
}

fn number(reply: &[u8]) -> Option<u32> {
    core::str::from_utf8(reply.strip_suffix(b"\0")?).ok()?.parse().ok()
}

/// An open transaction; [`Client::transaction`] ends it.
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
