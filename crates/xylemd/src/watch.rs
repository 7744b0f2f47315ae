//! Watches, on a store connection of their own, so that no request waits behind an event.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};
use xenstore_socket::StoreSocket;

use crate::core::Input;
use crate::store;

/// Tokens of the two watches that are always there. All others are their own path.
const INTRODUCED: &str = "@introduced";
const RELEASED: &str = "@released";

enum Command {
    Watch(String),
    Unwatch(String),
}

/// The watching thread.
pub(crate) struct Watcher {
    commands: Sender<Command>,
    /// Written to after a command was sent.
    bell: UnixStream,
}

impl Watcher {
    pub(crate) fn start(store_socket: &Path, inputs: &Sender<Input>) -> Result<Self> {
        let mut store = store::connect(store_socket)?;
        watch_domains(&mut store, "@introduceDomain", INTRODUCED)?;
        watch_domains(&mut store, "@releaseDomain", RELEASED)?;
        let (bell, heard) = UnixStream::pair().context("no socket pair")?;
        for end in [&bell, &heard] {
            end.set_nonblocking(true)?;
        }
        let (commands, orders) = mpsc::channel();
        let inputs = inputs.clone();
        thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let error = watch(&mut store, &heard, &orders, &inputs);
            let _ended = inputs.send(Input::Lost { what: format!("the watches ended: {error:#}") });
        })?;
        Ok(Self { commands, bell })
    }

    pub(crate) fn watch(&self, path: String) {
        self.command(Command::Watch(path));
    }

    pub(crate) fn unwatch(&self, path: String) {
        self.command(Command::Unwatch(path));
    }

    fn command(&self, command: Command) {
        // If the thread has ended, the daemon is about to be told so.
        let _ended = self.commands.send(command);
        let _full = (&self.bell).write(b"!");
    }
}

/// With the domain's number in the event where the store can do that, else without.
fn watch_domains(store: &mut Client<StoreSocket>, path: &str, token: &str) -> Result<()> {
    match store.watch_depth(path, token, 1) {
        Ok(()) => Ok(()),
        Err(ClientError::Refused { .. }) => Ok(store.watch(path, token)?),
        Err(error) => Err(error.into()),
    }
}

/// Returns only with an error.
fn watch(
    store: &mut Client<StoreSocket>,
    heard: &UnixStream,
    orders: &Receiver<Command>,
    inputs: &Sender<Input>,
) -> anyhow::Error {
    loop {
        if let Err(error) = turn(store, heard, orders, inputs) {
            return error;
        }
    }
}

fn turn(
    store: &mut Client<StoreSocket>,
    heard: &UnixStream,
    orders: &Receiver<Command>,
    inputs: &Sender<Input>,
) -> Result<()> {
    while let Some(event) = store.poll_event() {
        tell(store, &event, inputs)?;
    }
    let readable = {
        let mut fds =
            [PollFd::new(store.transport(), PollFlags::IN), PollFd::new(heard, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            other => other.context("cannot wait for the store")?,
        };
        !fds[0].revents().is_empty()
    };
    let mut rings = [0; 64];
    while (&*heard).read(&mut rings).is_ok_and(|n| n > 0) {}
    for order in orders.try_iter() {
        match order {
            Command::Watch(path) => store.watch(&path, &path)?,
            Command::Unwatch(path) => match store.unwatch(&path, &path) {
                Ok(()) | Err(ClientError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    // The orders' replies may have come with everything that made the socket readable; only if no
    // event arrived with them is there something left to wait for.
    if readable && has_input(store) {
        store.receive()?;
    }
    Ok(())
}

fn has_input(store: &Client<StoreSocket>) -> bool {
    let mut fds = [PollFd::new(store.transport(), PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Passes an event on; a node's event with its value now.
fn tell(store: &mut Client<StoreSocket>, event: &WatchEvent, inputs: &Sender<Input>) -> Result<()> {
    let input = match event.token.as_str() {
        RELEASED => Input::DomainsChanged,
        INTRODUCED => {
            let domid = event.path.strip_prefix("@introduceDomain/");
            let domid = domid.and_then(|text| text.parse().ok()).map(xen::DomId);
            // The event that a new watch begins with is no news.
            Input::Introduced { domid }
        }
        path => {
            let value = store.read_optional(path)?;
            Input::Node { path: path.to_owned(), value }
        }
    };
    let _ended = inputs.send(input);
    Ok(())
}
