//! Watches, on their own store connection, so that no request waits behind an event.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use toolstack::Event;
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};
use xenstore::wire::changes::DomainIdentity;
use xenstore_socket::StoreSocket;

use crate::core::Core;
use crate::store;

/// Tokens of the two permanent watches. Tokens of all others are their paths.
const INTRODUCED: &str = "@introduced";
const RELEASED: &str = "@released";

enum Order {
    Watch(String),
    Unwatch(String),
    Release(Vec<DomainIdentity>),
}

/// Handle to request watches.
pub(crate) struct Orders {
    orders: Sender<Order>,
    /// Written to after an order was sent.
    bell: UnixStream,
}

impl Orders {
    pub(crate) fn watch(&self, path: String) {
        self.give(Order::Watch(path));
    }

    pub(crate) fn unwatch(&self, path: String) {
        self.give(Order::Unwatch(path));
    }

    /// The machine must be woken earlier than scheduled.
    pub(crate) fn wake(&self) {
        let _full = (&self.bell).write(b"!");
    }

    pub(crate) fn release(&self, domains: Vec<DomainIdentity>) {
        self.give(Order::Release(domains));
    }

    fn give(&self, order: Order) {
        // If the watcher has ended, the daemon is exiting.
        let _ended = self.orders.send(order);
        let _full = (&self.bell).write(b"!");
    }
}

/// The watcher. It also wakes the machine at its deadlines.
pub(crate) struct Watcher {
    store: Client<StoreSocket>,
    orders: Receiver<Order>,
    heard: UnixStream,
    turns: Arc<AtomicU64>,
}

/// The two ends.
pub(crate) fn connect(store_socket: &Path) -> Result<(Orders, Watcher)> {
    let mut store = store::connect(store_socket)?;
    watch_domains(&mut store, "@introduceDomain", INTRODUCED)?;
    match store.follow_domains() {
        Ok(()) => {}
        // Another store only reports that some domain changed: all domains are polled.
        Err(ClientError::Refused { .. }) => watch_domains(&mut store, "@releaseDomain", RELEASED)?,
        Err(error) => return Err(error.into()),
    }
    let (bell, heard) = UnixStream::pair().context("no socket pair")?;
    for end in [&bell, &heard] {
        end.set_nonblocking(true)?;
    }
    let (sender, orders) = mpsc::channel();
    Ok((Orders { orders: sender, bell }, Watcher { store, orders, heard, turns: Arc::default() }))
}

impl Watcher {
    /// How often it has gone round: see [`supervision`](crate::supervision).
    pub(crate) fn turns(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.turns)
    }

    /// Runs until the store is lost, and returns the error.
    pub(crate) fn run(mut self, core: &Core) -> anyhow::Error {
        loop {
            if let Err(error) = self.turn(core) {
                return error;
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn turn(&mut self, core: &Core) -> Result<()> {
        loop {
            if let Some(update) = self.store.poll_domain_update() {
                core.happened(Event::Domains(update));
            } else if let Some(event) = self.store.poll_event() {
                tell(&mut self.store, &event, core)?;
            } else {
                break;
            }
        }
        // An order is signalled after the machine has set its deadline.
        let patience = core.until_wakeup();
        // A constant stream of events must not delay deadlines.
        if patience.is_some_and(|patience| patience.is_zero()) {
            core.happened(Event::Tick);
        }
        let readable = {
            let mut fds = [
                PollFd::new(self.store.transport(), PollFlags::IN),
                PollFd::new(&self.heard, PollFlags::IN),
            ];
            let patience = patience.map(|patience| Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: patience.subsec_nanos().into(),
            });
            match rustix::event::poll(&mut fds, patience.as_ref()) {
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Ok(0) => {
                    core.happened(Event::Tick);
                    return Ok(());
                }
                other => drop(other.context("cannot wait for the store")?),
            }
            !fds[0].revents().is_empty()
        };
        let mut rings = [0; 64];
        while (&self.heard).read(&mut rings).is_ok_and(|n| n == rings.len()) {}
        for order in self.orders.try_iter() {
            match order {
                Order::Watch(path) => self.store.watch(&path, &path)?,
                Order::Unwatch(path) => match self.store.unwatch(&path, &path) {
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
                Order::Release(domains) => match self.store.release_domains(&domains) {
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
        // The orders' replies may have consumed all input; only wait again if no event arrived with
        // them.
        if readable && has_input(&self.store) {
            self.store.receive()?;
        }
        Ok(())
    }
}

/// With the domid in the event if the store supports that.
fn watch_domains(store: &mut Client<StoreSocket>, path: &str, token: &str) -> Result<()> {
    match store.watch_depth(path, token, 1) {
        Ok(()) => Ok(()),
        Err(ClientError::Refused { .. }) => Ok(store.watch(path, token)?),
        Err(error) => Err(error.into()),
    }
}

fn has_input(store: &Client<StoreSocket>) -> bool {
    let mut fds = [PollFd::new(store.transport(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Passes an event on; for a node with its current value.
fn tell(store: &mut Client<StoreSocket>, event: &WatchEvent, core: &Core) -> Result<()> {
    core.happened(match event.token.as_str() {
        RELEASED => Event::DomainsChanged,
        INTRODUCED => {
            let domid = event.path.strip_prefix("@introduceDomain/");
            let domid = domid.and_then(|text| text.parse().ok()).map(xen::DomId);
            // Ignore the initial event of a new watch.
            Event::Introduced { domid }
        }
        path => {
            let value = store.read_optional(path)?;
            Event::Node { path: path.to_owned(), value }
        }
    });
    Ok(())
}
