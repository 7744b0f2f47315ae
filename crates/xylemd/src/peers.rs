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
use local_door::Answered;
use peer_link::dial::Distance;
use peer_link::listen::{Call, Gate, Limits};
use peer_link::peers::PeersError;
use peer_link::{Address, Fingerprint, Identity, Link, Peer, Peers, Scissors, Service, dial};
use service::{Ask, Daemon as _, Progress};
use toolstack::Request;
use toolstack::lanes::LANES_MAX;
use toolstack::moves::{Arrival, ReceiveRequest, Speaks};

use xen::Uuid;

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
    /// Further connections of moves that come here, by transfer.
    lanes: Mutex<BTreeMap<Uuid, Expected>>,
}

/// Who may open further connections for a transfer, and those that have come.
#[derive(Debug)]
struct Expected {
    key: Fingerprint,
    token: [u8; 16],
    come: BTreeMap<u8, Link>,
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Directory {
    /// With its files in this folder.
    pub(crate) fn in_folder(folder: &Path, listens: Option<Address>) -> Self {
        let [key, file] = ["peer-key", "peers"].map(|name| folder.join(name));
        Self(Arc::new(Inner { key, file, listens, ..Inner::default() }))
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
    pub(crate) fn dial(
        &self,
        name: &str,
        service: &Service,
    ) -> Result<(Link, Fingerprint), String> {
        let peer = self.named(name)?;
        let (link, _) = dial(&self.identity()?, &peer, service).map_err(told)?;
        self.note(peer.key, &link);
        Ok((link, peer.key))
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<Uuid, Expected>> {
        self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer with this key may open further connections.
    pub(crate) fn expect_lanes(&self, key: Fingerprint, transfer: Uuid, token: [u8; 16]) {
        self.lanes().insert(transfer, Expected { key, token, come: BTreeMap::new() });
    }

    pub(crate) fn take_lane(&self, transfer: Uuid, number: u8) -> Option<(Link, Fingerprint)> {
        let mut lanes = self.lanes();
        let expected = lanes.get_mut(&transfer)?;
        expected.come.remove(&number).map(|link| (link, expected.key))
    }

    pub(crate) fn forget_lanes(&self, transfer: Uuid) {
        self.lanes().remove(&transfer);
    }

    /// A further connection has come. Its caller is answered once it can be taken.
    fn lane_came(&self, call: Call, lane: &peer_link::Lane) {
        let mut lanes = self.lanes();
        let key = call.from.key;
        let expected = lanes.get_mut(&Uuid(lane.transfer)).filter(|expected| {
            let is_free = lane.number < LANES_MAX && !expected.come.contains_key(&lane.number);
            is_free && expected.key == key && expected.token == lane.token
        });
        let Some(expected) = expected else { return call.refuse("it knows no such transfer") };
        // Its caller has noticed, too.
        let Ok(link) = call.accept() else { return };
        self.note(key, &link);
        expected.come.insert(lane.number, link);
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
            Service::Lane(lane) => self.directory.lane_came(call, &lane),
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
        let name = call.from.name.clone();
        let transfer = match self.daemon.fresh_uuid() {
            Ok(transfer) => transfer,
            Err(why) => return call.refuse(&why),
        };
        // Its caller has noticed, too.
        let Ok(link) = call.accept() else { return };
        self.directory.note(key, &link);
        crate::log(format_args!("peer {name} has called, to move a VM here or to ask about one"));
        let channel = self.daemon.channels.put_link(link, key);
        let (speaks, arrival) = (Speaks::Own, Arrival::Runs);
        let request = Request::Receive(ReceiveRequest { channel, speaks, arrival, transfer });
        let ask = Ask { asker: None, request, progress: Progress::Unwanted };
        let answered = self.daemon.core.begin(ask);
        // As long as this lasts, it counts as one of the peer's connections.
        while let Ok(Answered::News(_)) = answered.recv() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use toolstack::channel::Received;
    use toolstack::lanes::{LaneCall, LaneItem, LaneJob};

    use super::*;
    use crate::channels::Channels;

    /// A host, with a listener but without a machine.
    struct Host {
        folder: PathBuf,
        channels: Channels,
        address: String,
        calls: std::sync::mpsc::Receiver<Call>,
    }

    struct Listening(Directory, Mutex<Sender<Call>>);

    impl Gate for Listening {
        fn peers(&self) -> Result<Peers, PeersError> {
            self.0.peers()
        }

        fn release(&self) -> String {
            "1.2.3".to_owned()
        }

        fn serve(&self, call: Call) {
            match call.service {
                Service::Lane(lane) => self.0.lane_came(call, &lane),
                _ => self.1.lock().unwrap().send(call).unwrap(),
            }
        }

        fn log(&self, _: &str) {}
    }

    impl Host {
        fn start(name: &str) -> Self {
            let folder = format!("xylemd-peers-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            let directory = Directory::in_folder(&folder, None);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let (sender, calls) = channel();
            let gate = Listening(directory.clone(), Mutex::new(sender));
            let identity = directory.identity().unwrap();
            peer_link::listen::listen(listener, identity, Limits::default(), Arc::new(gate))
                .unwrap();
            Self { folder, channels: Channels::new(directory), address, calls }
        }

        fn key(&self) -> String {
            match self.channels.directory().answer(PeerRequest::Key) {
                Ok(Reply::PeerKey(PeerKey { key, .. })) => key,
                other => panic!("{other:?}"),
            }
        }

        fn knows(&self, name: &str, other: &Self) {
            let (address, key) = (other.address.clone(), other.key());
            let add = PeerRequest::Add { name: name.to_owned(), address, key };
            assert_eq!(self.channels.directory().answer(add), Ok(Reply::Done));
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    fn pair(name: &str) -> [Host; 2] {
        let hosts = ["a", "b"].map(|side| Host::start(&format!("{name}-{side}")));
        hosts[0].knows("b", &hosts[1]);
        hosts[1].knows("a", &hosts[0]);
        hosts
    }

    #[test]
    fn a_connection_to_a_peer_is_a_channel_until_the_peer_is_removed() {
        let [a, b] = pair("channel");
        let calling = {
            let channels = a.channels.clone();
            std::thread::spawn(move || channels.call("b").unwrap())
        };
        let call = b.calls.recv().unwrap();
        let key = call.from.key;
        let link = call.accept().unwrap();
        b.channels.directory().note(key, &link);
        let come = b.channels.put_link(link, key);
        let mut near = a.channels.get(calling.join().unwrap()).unwrap();
        let mut far = b.channels.get(come).unwrap();
        let second = 1_000_000_000;
        assert_eq!(near.send(b"hello", second), Ok(5));
        let mut bytes = vec![0; 1 << 18];
        assert_eq!(far.receive(&mut bytes, second), Ok(Received::Bytes(5)));
        assert_eq!(far.receive(&mut bytes, 0), Ok(Received::Nothing));
        // What is not taken is sent later.
        let much = vec![7; 64 << 20];
        assert_eq!(near.send(&much[..1 << 18], second), Ok(1 << 18));
        let mut sent = 0;
        while let Ok(count @ 1..) = near.send(&much[sent..], 100_000_000) {
            sent += count;
        }
        assert!(sent < much.len());
        let remove = PeerRequest::Remove { name: "a".to_owned() };
        assert_eq!(b.channels.directory().answer(remove), Ok(Reply::Done));
        // Whoever works on it there notices, and then the other end does.
        while let Ok(Received::Bytes(_)) = far.receive(&mut bytes, second) {}
        drop(far);
        b.channels.close(come);
        // The kernel may take some more before it has heard.
        let mut sends = (0..100).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            near.send(&much[sent..], second)
        });
        assert!(sends.any(|sent| sent.is_err()));
        let refused = a.channels.call("b").unwrap_err();
        assert!(refused.contains("does not let this one in"), "{refused}");
    }

    #[test]
    fn further_connections_come_from_the_same_peer_and_with_the_token() {
        let [a, b] = pair("lanes");
        let transfer = Uuid([7; 16]);
        let all = migrate_lanes(3);
        let call = |token| LaneCall { transfer, lane: all[1], token };
        let peer = toolstack::moves::Reach::Peer("b".to_owned());
        let refused = |token| match a.channels.open_lane(&peer, &call(token)) {
            Ok(_) => panic!("it is taken"),
            Err(error) => error.to_string(),
        };
        assert!(refused([1; 16]).contains("it knows no such transfer"));
        let key_of_a = a.key().parse().unwrap();
        b.channels.directory().expect_lanes(key_of_a, transfer, [1; 16]);
        assert!(refused([2; 16]).contains("it knows no such transfer"));
        let mut out = a.channels.open_lane(&peer, &call([1; 16])).unwrap();
        // There is one of each number.
        assert!(refused([1; 16]).contains("it knows no such transfer"));
        let mut come = b.channels.take_lane(transfer, 1).unwrap();
        for job in [LaneJob::EndOfRound, LaneJob::End] {
            assert!(out.give(job, 1_000_000_000).unwrap().is_none());
        }
        let mut items = Vec::new();
        while items.last() != Some(&LaneItem::End) {
            items.extend(come.next(1_000_000_000).unwrap());
        }
        assert_eq!(items, [LaneItem::EndOfRound(0), LaneItem::End]);
        // Another peer with the same token.
        let key_of_b = b.key().parse().unwrap();
        b.channels.directory().expect_lanes(key_of_b, transfer, [1; 16]);
        assert!(refused([1; 16]).contains("it knows no such transfer"));
        b.channels.directory().forget_lanes(transfer);
        assert!(b.channels.take_lane(transfer, 1).is_err());
    }

    fn migrate_lanes(count: u8) -> Vec<toolstack::lanes::Lane> {
        toolstack::lanes::Lanes::new(count).unwrap().iter().collect()
    }
}
