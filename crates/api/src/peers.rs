//! Other hosts that were made known.

use serde::{Deserialize, Serialize};

/// Requests about them.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum PeerRequest {
    /// Answered by [`Reply::PeerKey`](crate::Reply::PeerKey).
    Key,
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    Add { name: String, address: String, key: String },
    /// Its connections are closed. Answered by [`Reply::Done`](crate::Reply::Done).
    Remove { name: String },
    /// Answered by [`Reply::Peers`](crate::Reply::Peers).
    List,
    /// Calls it. Answered by [`Reply::PeerCheck`](crate::Reply::PeerCheck).
    Check { name: String },
}

/// This host, as others know it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerKey {
    pub key: String,
    /// Where it can be called, if it can.
    pub listens: Option<String>,
}

/// A line of `peer list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PeerRow {
    pub name: String,
    pub address: String,
    pub key: String,
}

/// A peer that was called.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PeerCheck {
    pub name: String,
    pub address: String,
    pub key: String,
    /// Of its daemon.
    pub release: String,
    /// The name that this host has there.
    pub known_as: String,
    /// Connecting, and both checks of keys.
    pub handshake_us: u64,
    pub round_trip_us: u64,
}
