//! Hosts that operators have made known to this one: calls to them, and theirs.
//!
//! The file of peers is read for each call, so a change of it needs no restart. What a peer may do is what
//! `xy migrate-receive --own` does: it goes the same way into the machine.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use api::{PeerCheck, PeerKey, PeerRequest, PeerRow, Reply};
use peer_link::dial::Distance;
use peer_link::listen::{Call, Gate, Limits};
use peer_link::peers::PeersError;
use peer_link::{Address, Fingerprint, Identity, Link, Peer, Peers, Scissors, Service, dial};
use service::{Ask, Daemon as _, Progress};
use toolstack::Request;
use toolstack::moves::{Arrival, ReceiveRequest, Speaks};

use crate::core::Answered;
use crate::daemon::Running;

/// This host's key, and the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    key: PathBuf,
    file: PathBuf,
    /// Where peers can call, if they can.
    listens: Option<Address>,
    /// Connections, by the key of the other end.
    open: Mutex<BTreeMap<Fingerprint, Vec<Scissors>>>,
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Directory {
    /// With its files in this folder.
    pub(crate) fn in_folder(folder: &Path, listens: Option<Address>) -> Self {
        let [key, file] = ["peer-key", "peers"].map(|name| folder.join(name));
        Self(Arc::new(Inner { key, file, listens, open: Mutex::default() }))
    }

    fn identity(&self) -> Result<Identity, String> {
        Identity::load_or_make(&self.0.key).map_err(told)
    }

    fn peers(&self) -> Result<Peers, PeersError> {
        Peers::load(&self.0.file)
    }

    fn named(&self, name: &str) -> Result<Peer, String> {
        self.peers().map_err(told)?.named(name).cloned()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, Vec<Scissors>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a connection, in case its peer is removed.
    fn note(&self, key: Fingerprint, link: &Link) {
        let mut open = self.open();
        let of_peer = open.entry(key).or_default();
        of_peer.retain(Scissors::is_of_use);
        of_peer.push(link.scissors());
    }

    /// Calls a peer.
    pub(crate) fn dial(&self, name: &str, service: &Service) -> Result<Link, String> {
        let peer = self.named(name)?;
        let (link, _) = dial(&self.identity()?, &peer, service).map_err(told)?;
        self.note(peer.key, &link);
        Ok(link)
    }

    /// Nobody has this key any more: what is open with it ends.
    fn remove(&self, name: &str) -> Result<(), String> {
        let key = self.named(name)?.key;
        Peers::remove(&self.0.file, name).map_err(told)?;
        for scissors in self.open().remove(&key).unwrap_or_default() {
            scissors.cut();
        }
        Ok(())
    }

    fn check(&self, name: &str) -> Result<PeerCheck, String> {
        let peer = self.named(name)?;
        let checked = peer_link::dial::check(&self.identity()?, &peer).map_err(told)?;
        let Distance { welcome, handshake, round_trip } = checked;
        let us = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Ok(PeerCheck {
            name: peer.name,
            address: peer.address.to_string(),
            key: peer.key.to_string(),
            release: welcome.release,
            known_as: welcome.known_as,
            handshake_us: us(handshake),
            round_trip_us: us(round_trip),
            refuses: Vec::new(),
        })
    }

    /// Answers an operator.
    pub(crate) fn answer(&self, request: PeerRequest) -> Result<Reply, String> {
        Ok(match request {
            PeerRequest::Key => {
                let key = self.identity()?.fingerprint().to_string();
                let listens = self.0.listens.as_ref().map(ToString::to_string);
                Reply::PeerKey(PeerKey { key, listens })
            }
            PeerRequest::Add { name, address, key } => {
                let peer = Peer::parse(&name, &address, &key)?;
                if peer.key == self.identity()?.fingerprint() {
                    return Err(format!("{name} would have the key of this host"));
                }
                Peers::add(&self.0.file, peer).map_err(told)?;
                Reply::Done
            }
            PeerRequest::Remove { name } => {
                self.remove(&name)?;
                Reply::Done
            }
            PeerRequest::List => {
                let row = |peer: &Peer| PeerRow {
                    name: peer.name.clone(),
                    address: peer.address.to_string(),
                    key: peer.key.to_string(),
                };
                Reply::Peers(self.peers().map_err(told)?.iter().map(row).collect())
            }
            PeerRequest::Check { name } => Reply::PeerCheck(self.check(&name)?),
        })
    }
}

/// Where peers are to call.
pub(crate) fn bind(address: &Address) -> Result<TcpListener> {
    TcpListener::bind((&*address.host, address.port))
        .with_context(|| format!("cannot listen for peers on {address}"))
}

/// Lets peers in from now on.
pub(crate) fn serve(listener: TcpListener, directory: &Directory, daemon: Running) -> Result<()> {
    let identity = directory.identity().map_err(anyhow::Error::msg)?;
    let gate = Door { directory: directory.clone(), daemon };
    peer_link::listen::listen(listener, identity, Limits::default(), Arc::new(gate))?;
    Ok(())
}

/// The door for peers.
struct Door {
    directory: Directory,
    daemon: Running,
}

impl Gate for Door {
    fn peers(&self) -> Result<Peers, PeersError> {
        self.directory.peers()
    }

    fn release(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn serve(&self, call: Call) {
        match call.service {
            Service::Receive | Service::Question => self.receive(call),
            Service::Lane(_) => call.refuse("it knows no such transfer"),
            Service::Check => unreachable!("the listener answers these"),
        }
    }

    fn log(&self, line: &str) {
        crate::log(line);
    }
}

impl Door {
    /// As a client with such a connection would ask for it.
    fn receive(&self, call: Call) {
        let key = call.from.key;
        let transfer = match self.daemon.fresh_uuid() {
            Ok(transfer) => transfer,
            Err(why) => return call.refuse(&why),
        };
        // Its caller has noticed, too.
        let Ok(link) = call.accept() else { return };
        self.directory.note(key, &link);
        let channel = self.daemon.channels.put_link(link);
        let (speaks, arrival) = (Speaks::Own, Arrival::Runs);
        let request = Request::Receive(ReceiveRequest { channel, speaks, arrival, transfer });
        let ask = Ask { asker: None, request, progress: Progress::Unwanted };
        let answered = self.daemon.core.begin(ask);
        // As long as this lasts, it counts as one of the peer's connections.
        while let Ok(Answered::News(_)) = answered.recv() {}
    }
}
