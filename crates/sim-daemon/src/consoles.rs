//! Consoles of simulated guests: what a guest has printed, and an echo of what is typed. Simulated guests do not listen.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use local_door::{ChannelEnds, Relays};
use service::{Outlet, Place};
use toolstack::channel::ChannelId;
use xen::DomId;

use crate::world::Deed;

/// How often it is looked what a guest has printed.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that are kept for their requests.
const KEPT_MAX: usize = 64;
/// The simulated host numbers its own from 1.
const FIRST: u64 = 1 << 32;

#[derive(Clone, Debug)]
pub(crate) struct Consoles {
    deeds: Sender<Deed>,
    kept: Arc<Mutex<BTreeMap<ChannelId, ChannelEnds>>>,
    relays: Relays,
    /// The server of all screens.
    pub(crate) screen: Option<String>,
}

impl Consoles {
    pub(crate) fn new(deeds: Sender<Deed>) -> Self {
        Self { deeds, kept: Arc::default(), relays: Relays::default(), screen: None }
    }

    /// Keeps a connection that came with a request.
    pub(crate) fn keep(&self, ends: ChannelEnds) -> ChannelId {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let id = kept.last_key_value().map_or(ChannelId(FIRST), |(last, _)| ChannelId(last.0 + 1));
        kept.insert(id, ends);
        if kept.len() > KEPT_MAX {
            // Of a request that has no use for it.
            kept.pop_first();
        }
        id
    }

    pub(crate) fn take(&self, id: ChannelId) -> Option<ChannelEnds> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    pub(crate) fn relay(&self, channel: ChannelId, to: &Outlet) -> Result<(), String> {
        let gone = "the connection that came with the request is gone";
        let ends = self.take(channel).ok_or(gone)?;
        match to.place {
            // Whatever has this path on the real host is none of it.
            Place::Terminal(_) => self.relays.begin(to, ends, || self.open(DomId(to.domid))),
            Place::Server(_) => {
                let screen = self.screen.clone().ok_or("a simulated host has no screens")?;
                let to = Outlet { place: Place::Server(screen), ..to.clone() };
                self.relays.begin(&to, ends, || local_door::open_place(&to))
            }
        }
    }

    fn open(&self, domid: DomId) -> Result<OwnedFd, String> {
        let open = || {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_read_timeout(Some(LOOK))?;
            let deeds = self.deeds.clone();
            let serve = move || drop(serve(domid, ours, &deeds));
            thread::Builder::new().name("console".to_owned()).spawn(serve)?;
            Ok(theirs.into())
        };
        open().map_err(|error: io::Error| format!("no console of domain {domid}: {error}"))
    }
}

/// Until the client or the domain is gone.
fn serve(domid: DomId, mut client: UnixStream, deeds: &Sender<Deed>) -> io::Result<()> {
    let (mut shown, mut typed) = (0, [0; 4096]);
    loop {
        let (answer, answered) = mpsc::channel();
        let _ended = deeds.send(Deed::Printed(domid, answer));
        let Ok(Some(printed)) = answered.recv() else { return Ok(()) };
        let news = printed.get(shown..).unwrap_or_default();
        client.write_all(for_terminal(news.as_bytes()).as_slice())?;
        shown = printed.len();
        match client.read(&mut typed) {
            Ok(0) => return Ok(()),
            Ok(count) => client.write_all(&for_terminal(&typed[..count]))?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Ends of lines as a terminal wants them.
fn for_terminal(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\n' | b'\r' => shown.extend(b"\r\n"),
            byte => shown.push(byte),
        }
    }
    shown
}
