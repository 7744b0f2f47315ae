//! A client that waits for its replies, over any [`Transport`].

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use xen::{DomId, Errno, EvtchnPort, Gfn};

use crate::client::exchange::ServesBatches;
use crate::client::follow::Following;
use crate::client::{Batch, ClientError, ClientMachine, Nodes, Replies, Transport, WatchEvent};
use crate::wire::MessageType;

/// Counters of a client since their last reset.
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
    /// Messages about domains received.
    pub pushes: u64,
    /// Reconnections.
    pub reconnects: u64,
}

/// A connection to a store.
///
/// If the connection breaks and the [`Transport`] can reconnect, the client continues with the new
/// one: it registers its watches again, whose first events cause a new read of everything, and
/// repeats requests without a reply if that is safe. If the outcome is unknown, the error is
/// [`ClientError::OutcomeUnknown`].
#[derive(Debug)]
pub struct Client<T> {
    pub(super) transport: T,
    pub(super) machine: ClientMachine,
    pub(super) events: VecDeque<WatchEvent>,
    /// Path and token of every watch, with its depth, to register them again.
    pub(super) watches: BTreeMap<(String, String), Option<u32>>,
    pub(super) serves_batches: ServesBatches,
    pub(super) following: Following,
    /// How many connections came before this one: a transaction ends with its own.
    pub(super) connection: u64,
    /// The connection is broken and not replaced yet.
    pub(super) is_lost: bool,
    /// The last request was sent completely. If not, it was not executed.
    pub(super) was_sent: bool,
    /// Take or reset them at any time.
    pub counters: ClientCounters,
}

impl<T: Transport> Client<T> {
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            machine: ClientMachine::new(),
            events: VecDeque::new(),
            watches: BTreeMap::new(),
            serves_batches: ServesBatches::Unknown,
            following: Following::default(),
            connection: 0,
            is_lost: false,
            was_sent: false,
            counters: ClientCounters::default(),
        }
    }

    /// A client that sends no [batch messages](crate::wire::batch), as with another store.
    pub fn without_batches(transport: T) -> Self {
        Self { serves_batches: ServesBatches::Never, ..Self::new(transport) }
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
        self.call(MessageType::Watch, path, &[token.as_bytes(), b"\0"])?;
        self.watches.insert((path.to_owned(), token.to_owned()), None);
        Ok(())
    }

    /// Registers a watch that ignores changes more than `depth` levels below `path`.
    ///
    /// # Errors
    /// `EINVAL` from a store that does not support depths (before 4.22).
    pub fn watch_depth(&mut self, path: &str, token: &str, depth: u32) -> Result<(), ClientError> {
        let text = depth.to_string();
        let rest = [token.as_bytes(), b"\0", text.as_bytes(), b"\0"];
        self.call(MessageType::Watch, path, &rest)?;
        self.watches.insert((path.to_owned(), token.to_owned()), Some(depth));
        Ok(())
    }

    /// Removes a watch. Events of it that are queued already stay queued.
    ///
    /// # Errors
    /// `ENOENT` if there is no such watch.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), ClientError> {
        self.watches.remove(&(path.to_owned(), token.to_owned()));
        self.call(MessageType::Unwatch, path, &[token.as_bytes(), b"\0"]).map(|_| ())
    }

    /// Removes all watches and transactions of this connection.
    ///
    /// # Errors
    /// As every request.
    pub fn reset_watches(&mut self) -> Result<(), ClientError> {
        self.watches.clear();
        self.request(MessageType::ResetWatches, 0, "", &[]).map(|_| ())
    }

    /// An event that has arrived already; never blocks.
    pub fn poll_event(&mut self) -> Option<WatchEvent> {
        self.events.pop_front()
    }

    /// The next event, waiting for one if none has arrived.
    ///
    /// # Errors
    /// An error that ends the connection.
    pub fn next_event(&mut self) -> Result<WatchEvent, ClientError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.receive_or_reconnect()?;
        }
    }

    /// Reads once from the transport: for an event loop that saw it readable. Returns whether an
    /// event can be [polled](Self::poll_event).
    ///
    /// # Errors
    /// An error that ends the connection. `EAGAIN` of the transport is not one.
    pub fn receive(&mut self) -> Result<bool, ClientError> {
        match self.receive_or_reconnect() {
            Ok(()) | Err(ClientError::Transport(Errno::EAGAIN)) => Ok(!self.events.is_empty()),
            Err(error) => Err(error),
        }
    }

    // Domains

    /// Introduces a domain. `gfn` is the frame of its ring page.
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

    /// Marks a domain as running again after a cancelled suspend.
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

    /// Sets one limit of one domain.
    ///
    /// # Errors
    /// `EINVAL` if the store does not know the limit, `ENOSYS` if it has no limits per domain.
    pub fn set_quota(&mut self, domid: DomId, name: &str, value: u32) -> Result<(), ClientError> {
        let rest = format!("\0{name}\0{value}\0");
        let rest = rest.as_bytes();
        self.request(MessageType::SetQuota, 0, &domid.to_string(), &[rest]).map(|_| ())
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
