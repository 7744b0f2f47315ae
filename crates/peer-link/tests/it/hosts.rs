//! Hosts for tests.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peer_link::listen::{Call, Gate, Limits, listen};
use peer_link::peers::PeersError;
use peer_link::{Come, Identity, Link, Peer, Peers};

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("peer-link-it-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A host that listens.
pub(crate) struct Host {
    pub(crate) folder: Folder,
    pub(crate) identity: Identity,
    pub(crate) address: SocketAddr,
    /// What peers have called for.
    calls: Mutex<Receiver<Call>>,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

struct Door {
    peers: PathBuf,
    calls: Mutex<Sender<Call>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Gate for Door {
    fn peers(&self) -> Result<Peers, PeersError> {
        Peers::load(&self.peers)
    }

    fn release(&self) -> String {
        "1.2.3".to_owned()
    }

    fn serve(&self, call: Call) {
        self.calls.lock().unwrap().send(call).unwrap();
    }

    fn log(&self, line: &str) {
        self.log.lock().unwrap().push(line.to_owned());
    }
}

/// Soon enough for a test.
pub(crate) fn hasty() -> Limits {
    Limits { patience: Duration::from_millis(300), ..Limits::default() }
}

impl Host {
    pub(crate) fn start(name: &str, limits: Limits) -> Self {
        let folder = Folder::new(name);
        let identity = Identity::load_or_make(&folder.0.join("key")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = channel();
        let log = Arc::default();
        let gate = Door {
            peers: folder.0.join("peers"),
            calls: Mutex::new(sender),
            log: Arc::clone(&log),
        };
        listen(listener, identity.clone(), limits, Arc::new(gate)).unwrap();
        Self { folder, identity, address, calls: Mutex::new(calls), log }
    }

    /// The next call of a peer.
    pub(crate) fn call(&self) -> Call {
        self.calls.lock().unwrap().recv_timeout(PATIENCE).unwrap()
    }

    /// It, for another host.
    pub(crate) fn as_peer(&self, name: &str) -> Peer {
        self.with_key_of(name, self)
    }

    /// Its address with the key of another.
    pub(crate) fn with_key_of(&self, name: &str, other: &Self) -> Peer {
        let (address, key) = (self.address.to_string(), other.identity.fingerprint().to_string());
        Peer::parse(name, &address, &key).unwrap()
    }

    /// Makes a peer known to this host.
    pub(crate) fn add(&self, peer: Peer) {
        Peers::add(&self.folder.0.join("peers"), peer).unwrap();
    }

    /// The first line of the log, as soon as there is one.
    pub(crate) fn logged(&self) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let mut log = self.log.lock().unwrap();
            if !log.is_empty() {
                return log.remove(0);
            }
            drop(log);
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("nothing was logged");
    }
}

/// Two hosts that know each other as `a` and `b`.
pub(crate) fn acquainted(name: &str) -> [Host; 2] {
    let [a, b] = ["a", "b"].map(|host| Host::start(&format!("{name}-{host}"), Limits::default()));
    a.add(b.as_peer("b"));
    b.add(a.as_peer("a"));
    [a, b]
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Receives as many bytes.
pub(crate) fn receive(link: &mut Link, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut at = 0;
    while at < count {
        match link.receive(&mut bytes[at..], PATIENCE).unwrap() {
            Come::Bytes(more) => at += more,
            other => panic!("{other:?} after {at} bytes"),
        }
    }
    bytes
}
