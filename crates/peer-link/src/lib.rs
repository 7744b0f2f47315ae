//! Connections between daemons on different hosts: TLS 1.3 on TCP, both ends known by their keys.
//!
//! There is no authority that vouches for hosts: an operator tells each of two hosts the other's key (`xy peer add`),
//! and nobody else gets past the handshake. So a host shows no certificate but its bare key (RFC 7250), and nothing of
//! X.509 is parsed from a stranger's bytes.
//!
//! ```text
//!   caller                                     listener
//!   TCP, TLS 1.3 handshake: each proves to have its key, and checks the other's against its file of peers
//!   xylem-peer 1 receive\n                -->                       which service is wanted (`hello`)
//!                                         <--  yes 0.1.0 a\n        or: no REASON\n
//!   ...
//! ```
//! [`Identity`] is this host's key, [`Peers`] the file of others; [`dial`] calls one of them, [`listen`] hears their
//! calls, and both yield a [`Link`]. Nothing here knows what is said on it.

pub mod dial;
mod files;
pub mod fingerprint;
mod handshake;
mod hello;
pub mod identity;
pub mod link;
pub mod listen;
pub mod peers;
mod socket;

pub use dial::{DialError, dial};
pub use fingerprint::Fingerprint;
pub use hello::{Lane, Service};
pub use identity::Identity;
pub use link::{Come, Link, LinkError, Scissors};
pub use peers::{Address, Peer, Peers};

/// Where peers listen unless told otherwise: the port on which Xen's first toolstack received domains by TLS.
pub const PORT: u16 = 8003;
