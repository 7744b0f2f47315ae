//! Calls of other hosts: who is let in, and that nobody else costs much.
//!
//! A connection has its own thread, so that a slow one delays nobody. Before its key is known to be a peer's it may send
//! few bytes for few seconds, and there are few such connections: some for addresses where no peer is, others for each
//! peer's. A stranger is not told why the connection closes; the log is.

mod places;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{Error as TlsError, PeerIncompatible, ServerConnection};

use crate::dial::PING;
use crate::fingerprint::Fingerprint;
use crate::handshake::{self, Accepts, Check};
use crate::hello::{Answer, LINE_BYTES_MAX, Service, Welcome};
use crate::identity::Identity;
use crate::link::{Bounds, Link, LinkError};
use crate::peers::{Peer, Peers, PeersError};
use places::{Lines, Places};

/// Bounds on what strangers can do. The defaults are for production.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the handshake, and again for the first line.
    pub patience: Duration,
    /// Most bytes of a handshake: a peer's takes less than one KiB.
    pub bytes_max: usize,
    /// Handshakes at a time with addresses where no peer is.
    pub strangers_max: usize,
    /// With one of these addresses.
    pub stranger_max: usize,
    /// With one address where a peer is.
    pub expected_max: usize,
    /// Connections of one peer that are let in.
    pub peer_max: usize,
    /// Lines in the log about refusals, each minute.
    pub lines_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(5),
            bytes_max: 4 << 10,
            strangers_max: 16,
            stranger_max: 4,
            expected_max: 16,
            peer_max: 64,
            lines_max: 20,
        }
    }
}

/// The daemon behind the listener.
pub trait Gate: Send + Sync {
    /// Who is let in now.
    ///
    /// # Errors
    /// Nobody is.
    fn peers(&self) -> Result<Peers, PeersError>;

    /// The daemon's release, for the caller.
    fn release(&self) -> String;

    /// Serves a peer, on the connection's own thread.
    fn serve(&self, call: Call);

    /// Writes a line to the log.
    fn log(&self, line: &str);
}

/// A peer that has called.
#[derive(Debug)]
pub struct Call {
    pub from: Peer,
    pub service: Service,
    link: Link,
    release: String,
}

impl Call {
    /// Lets the caller go on.
    ///
    /// # Errors
    /// The connection has broken.
    pub fn accept(mut self) -> Result<Link, LinkError> {
        let known_as = self.from.name;
        let answer = Answer::Yes(Welcome { release: self.release, known_as });
        self.link.send(answer.line().as_bytes())?;
        Ok(self.link)
    }

    /// Tells the caller why it cannot.
    pub fn refuse(mut self, why: &str) {
        // It has gone.
        let _broken = self.link.send(Answer::No(why.to_owned()).line().as_bytes());
    }
}

/// Listens for peers on a thread of its own.
///
/// # Errors
/// The thread cannot be started.
pub fn listen(
    listener: TcpListener,
    identity: Identity,
    limits: Limits,
    gate: Arc<dyn Gate>,
) -> io::Result<()> {
    let (places, lines) = (Mutex::default(), Mutex::default());
    let listening = Arc::new(Listening { identity, limits, gate, places, lines });
    let accept = move || {
        loop {
            match listener.accept() {
                Ok((socket, from)) => listening.welcome(socket, from),
                // Out of descriptors: wait for a connection to end.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new().name("peers".to_owned()).spawn(accept).map(drop)
}

struct Listening {
    identity: Identity,
    limits: Limits,
    gate: Arc<dyn Gate>,
    places: Mutex<Places>,
    lines: Mutex<Lines>,
}

/// Why a connection was closed before its service was known.
enum Refusal {
    Unfinished(LinkError),
    /// A key that no peer has.
    Unknown(Fingerprint),
    /// What was answered.
    Told(String),
    TooMany(String),
    Nobody(PeersError),
    Gone,
}

impl From<LinkError> for Refusal {
    fn from(error: LinkError) -> Self {
        Self::Unfinished(error)
    }
}

/// A place among connections; it is free again at the end.
struct Place<'a> {
    listening: &'a Listening,
    leave: Box<dyn Fn(&mut Places) + 'a>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        (self.leave)(&mut self.listening.places());
    }
}

impl Listening {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection a thread, if there is room.
    fn welcome(self: &Arc<Self>, socket: TcpStream, from: SocketAddr) {
        let from = from.ip().to_canonical();
        let peers = match self.gate.peers() {
            Ok(peers) => peers,
            Err(error) => return self.log(from, &Refusal::Nobody(error), None),
        };
        let is_expected = peers.addresses().contains(&from);
        if !self.places().enter(from, is_expected, &self.limits) {
            let why = "too many handshakes at a time".to_owned();
            return self.log(from, &Refusal::TooMany(why), None);
        }
        let listening = Arc::clone(self);
        let run = move || {
            let leave = Box::new(move |places: &mut Places| places.leave(from));
            let place = Place { listening: &listening, leave };
            listening.run(socket, from, &peers, place);
        };
        if let Err(error) = thread::Builder::new().name("peer".to_owned()).spawn(run) {
            self.places().leave(from);
            self.log(from, &Refusal::TooMany(error.to_string()), None);
        }
    }

    fn run(&self, socket: TcpStream, from: IpAddr, peers: &Peers, place: Place<'_>) {
        let (mut link, peer) = match self.let_in(socket, peers) {
            Ok(let_in) => let_in,
            Err(refusal) => return self.log(from, &refusal, Some(peers)),
        };
        drop(place);
        let name = peer.name.clone();
        if !self.places().let_in(&name, self.limits.peer_max) {
            let why = format!("it has {} connections already", self.limits.peer_max);
            let _broken = link.send(Answer::No(why.clone()).line().as_bytes());
            return self.log(from, &Refusal::TooMany(why), None);
        }
        let leave = Box::new(|places: &mut Places| places.let_out(&name));
        let _place = Place { listening: self, leave };
        match self.hear(&mut link) {
            Ok(Service::Check) => {
                if let Err(error) = self.answer_pings(link, &peer) {
                    self.log(from, &error.into(), None);
                }
            }
            Ok(service) => {
                let release = self.gate.release();
                self.gate.serve(Call { from: peer, service, link, release });
            }
            Err(refusal) => {
                if let Refusal::Told(why) = &refusal {
                    let _broken = link.send(Answer::No(why.clone()).line().as_bytes());
                }
                self.log(from, &refusal, None);
            }
        }
    }

    /// The handshake.
    fn let_in(&self, socket: TcpStream, peers: &Peers) -> Result<(Link, Peer), Refusal> {
        let Limits { patience, bytes_max, .. } = self.limits;
        let deadline = Instant::now() + patience;
        let check = Check::new(Accepts::Any(peers.clone()));
        let config = handshake::server(&self.identity, &check).map_err(LinkError::from)?;
        let tls = ServerConnection::new(Arc::new(config)).map_err(LinkError::from)?;
        let mut link = Link::new(socket, tls.into()).map_err(LinkError::from)?;
        let shaken = link.shake_hands(Bounds { patience, deadline, bytes_max });
        match (shaken, check.shown()) {
            (Ok(()), Some(key)) => {
                let peer = peers.by_key(key).cloned().ok_or(Refusal::Unknown(key))?;
                Ok((link, peer))
            }
            (Ok(()), None) => Err(LinkError::HungUp.into()),
            (Err(_), Some(key)) if peers.by_key(key).is_none() => Err(Refusal::Unknown(key)),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Which service is wanted.
    fn hear(&self, link: &mut Link) -> Result<Service, Refusal> {
        let deadline = Instant::now() + self.limits.patience;
        let line = match link.receive_line(LINE_BYTES_MAX, deadline) {
            Ok(Some(line)) => line,
            Ok(None) => return Err(LinkError::TooSlow(self.limits.patience).into()),
            // It has found another key here than it expected, or was only looking.
            Err(LinkError::HungUp | LinkError::CutOff) => return Err(Refusal::Gone),
            Err(error) => return Err(error.into()),
        };
        Service::parse(&line).map_err(Refusal::Told)
    }

    fn answer_pings(&self, mut link: Link, peer: &Peer) -> Result<(), LinkError> {
        let release = self.gate.release();
        let answer = Answer::Yes(Welcome { release, known_as: peer.name.clone() });
        link.send(answer.line().as_bytes())?;
        // A handful; who asks for ever is cut off.
        for _ in 0..100 {
            let deadline = Instant::now() + self.limits.patience;
            match link.receive_line(PING.len(), deadline) {
                Ok(Some(_)) => link.send(PING.as_bytes())?,
                Ok(None) | Err(LinkError::HungUp | LinkError::CutOff) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One line, unless there were many.
    fn log(&self, from: IpAddr, refusal: &Refusal, peers: Option<&Peers>) {
        let why = match refusal {
            Refusal::Gone => return,
            Refusal::Unfinished(error) => unfinished(error),
            Refusal::Unknown(key) => match peers.and_then(|peers| at(peers, from)) {
                Some(Peer { name, key: known, .. }) => format!(
                    "it shows the key {key}, and {name}, which is there, has {known}: another host, or {name} was \
                     installed anew ('xy peer remove {name}', then 'xy peer add')"
                ),
                None => format!("it shows the key {key}, which no peer has"),
            },
            Refusal::Told(why) | Refusal::TooMany(why) => why.clone(),
            Refusal::Nobody(error) => format!("nobody is let in: {error}"),
        };
        let line = format!("peers: {from} was refused: {why}");
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines.allow(line, Instant::now(), self.limits.lines_max) {
            self.gate.log(&line);
        }
    }
}

fn at(peers: &Peers, address: IpAddr) -> Option<&Peer> {
    peers.iter().find(|peer| peer.address.host.parse() == Ok(address))
}

fn unfinished(error: &LinkError) -> String {
    match error {
        LinkError::Tls(TlsError::InvalidMessage(_)) => "it does not speak TLS".to_owned(),
        LinkError::Tls(TlsError::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired,
        )) => "it does not speak TLS 1.3".to_owned(),
        LinkError::Tls(TlsError::AlertReceived(_)) => {
            "it does not accept this host's key, or the handshake".to_owned()
        }
        other => other.to_string(),
    }
}
