//! Calls of other hosts.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::fingerprint::Fingerprint;
use crate::handshake::{self, Accepts, Check};
use crate::hello::{Answer, LINE_BYTES_MAX, Service, Welcome};
use crate::identity::Identity;
use crate::link::{Bounds, Link, LinkError};
use crate::peers::{Address, Peer};

/// For each address of a name.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// For all that comes before the service.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Questions of a [`check`]; the fastest answer counts.
const PINGS: u32 = 5;
pub(crate) const PING: &str = "ping\n";

/// Why a peer cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot resolve {0}: {1}")]
    Resolve(String, io::Error),
    #[error("cannot connect to {0}: {1}; does xylemd listen there (--peer-listen)?")]
    Connect(Address, io::Error),
    /// It is another host, or has a new key.
    #[error(
        "the host at {address} is not {name} as it was made known: its key is {shown}, not {expected}. If it was \
             installed anew, compare with 'xy peer key' there, then 'xy peer remove {name}' and 'xy peer add' here"
    )]
    OtherKey { name: String, address: Address, expected: Fingerprint, shown: Fingerprint },
    /// It says nothing, as to any stranger.
    #[error(
        "the host at {address} does not let this one in: 'xy peer add NAME ADDRESS {own}' there makes it known"
    )]
    NotKnownThere { address: Address, own: Fingerprint },
    #[error("{0}: {1}")]
    Handshake(Address, LinkError),
    #[error("{0}: {1}")]
    Broken(Address, LinkError),
    #[error("{0} has not answered for {1} s")]
    Silent(Address, u64),
    #[error("{0} says '{1}': that is no answer of xylemd")]
    Nonsense(Address, String),
    /// A peer that lets this host in has a reason.
    #[error("{0}")]
    Refused(String),
}

/// How far away a peer is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Distance {
    pub welcome: Welcome,
    /// Connecting and both checks of keys.
    pub handshake: Duration,
    pub round_trip: Duration,
}

/// Calls a peer for a service.
///
/// # Errors
/// [`DialError`], a sentence for the operator.
pub fn dial(
    identity: &Identity,
    peer: &Peer,
    service: &Service,
) -> Result<(Link, Welcome), DialError> {
    let socket = connect(&peer.address)?;
    let deadline = Instant::now() + HANDSHAKE_PATIENCE;
    let mut link = shake_hands(identity, peer, socket, deadline)?;
    let address = || peer.address.clone();
    let broken = |error| match error {
        // The handshake is over for the caller before the other end has checked its key.
        LinkError::HungUp | LinkError::CutOff => not_known(identity, peer),
        LinkError::Socket(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            not_known(identity, peer)
        }
        error => DialError::Broken(address(), error),
    };
    link.send_with(HANDSHAKE_PATIENCE, service.line().as_bytes()).map_err(broken)?;
    let line = link.receive_line(LINE_BYTES_MAX, deadline).map_err(broken)?;
    let Some(line) = line else {
        return Err(DialError::Silent(address(), HANDSHAKE_PATIENCE.as_secs()));
    };
    match Answer::parse(&line) {
        Some(Answer::Yes(welcome)) => Ok((link, welcome)),
        Some(Answer::No(why)) => Err(DialError::Refused(format!("{}: {why}", peer.name))),
        None => {
            let start = line.chars().take(40).collect::<String>().escape_debug().to_string();
            Err(DialError::Nonsense(address(), start))
        }
    }
}

/// Whether a peer lets this host in, and how far away it is.
///
/// # Errors
/// As [`dial`].
pub fn check(identity: &Identity, peer: &Peer) -> Result<Distance, DialError> {
    let started = Instant::now();
    let (mut link, welcome) = dial(identity, peer, &Service::Check)?;
    let handshake = started.elapsed();
    let broken = |error| DialError::Broken(peer.address.clone(), error);
    let mut round_trip = Duration::MAX;
    for _ in 0..PINGS {
        let asked = Instant::now();
        link.send_with(HANDSHAKE_PATIENCE, PING.as_bytes()).map_err(broken)?;
        let answer = link.receive_line(PING.len(), asked + HANDSHAKE_PATIENCE).map_err(broken)?;
        if answer.is_none() {
            let seconds = HANDSHAKE_PATIENCE.as_secs();
            return Err(DialError::Silent(peer.address.clone(), seconds));
        }
        round_trip = round_trip.min(asked.elapsed());
    }
    Ok(Distance { welcome, handshake, round_trip })
}

/// Name resolution may take longest here.
fn connect(address: &Address) -> Result<TcpStream, DialError> {
    let resolve = |error| DialError::Resolve(address.host.clone(), error);
    let mut last = io::Error::other("it has no address");
    for socket in (&*address.host, address.port).to_socket_addrs().map_err(resolve)? {
        match TcpStream::connect_timeout(&socket, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(DialError::Connect(address.clone(), last))
}

fn not_known(identity: &Identity, peer: &Peer) -> DialError {
    DialError::NotKnownThere { address: peer.address.clone(), own: identity.fingerprint() }
}

fn shake_hands(
    identity: &Identity,
    peer: &Peer,
    socket: TcpStream,
    deadline: Instant,
) -> Result<Link, DialError> {
    let failed = |error| DialError::Handshake(peer.address.clone(), error);
    let tls = |error| failed(LinkError::Tls(error));
    let check = Check::new(Accepts::One(peer.key));
    let config = Arc::new(handshake::client(identity, &check).map_err(tls)?);
    // A bare key has no name in it; none is sent either.
    let unused = ServerName::try_from("xylem").expect("a name");
    let connection = ClientConnection::new(config, unused).map_err(tls)?;
    let mut link = Link::new(socket, connection.into()).map_err(|error| failed(error.into()))?;
    let bytes_max = HANDSHAKE_BYTES_MAX;
    let bounds = Bounds { patience: HANDSHAKE_PATIENCE, deadline, bytes_max };
    match (link.shake_hands(bounds), check.shown()) {
        (Ok(()), _) => Ok(link),
        (Err(_), Some(shown)) if shown != peer.key => Err(DialError::OtherKey {
            name: peer.name.clone(),
            address: peer.address.clone(),
            expected: peer.key,
            shown,
        }),
        (Err(error), _) => Err(failed(error)),
    }
}
