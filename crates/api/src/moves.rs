//! Moves of domains between hosts.

use serde::{Deserialize, Serialize};

use crate::Target;
use crate::request::is_unset;

/// Whether the guest runs while most of its memory is sent.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    #[default]
    Live,
    /// It is suspended first.
    Stopped,
}

/// What the guest does once it is there.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    #[default]
    Runs,
    StaysPaused,
}

/// Whose protocol is spoken on a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Speaks {
    /// Ours.
    Own,
    /// That of `xl migrate`.
    Xl,
}

/// Where a domain runs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Runs {
    Here,
    There,
}

/// How the other host is reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// By the connection that comes with the request. Later, if that breaks at a bad moment, the daemon uses this command
    /// of the shell.
    Command(String),
    /// The daemon connects to the peer with this name.
    Peer(String),
}

/// A domain that is to go to another host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Migrate {
    pub target: Target,
    /// The other host, for messages.
    pub to: String,
    pub by: Reach,
    #[serde(default)]
    pub pace: Pace,
    /// The wanted pause of the guest.
    #[serde(default)]
    pub downtime_ms: Option<u64>,
    #[serde(default)]
    pub arrival: Arrival,
    /// The configuration's file, for error messages, and the client's working directory.
    #[serde(default)]
    pub file: String,
    #[serde(default)]
    pub cwd: String,
    /// A configuration for the other host, instead of the domain's own.
    #[serde(default)]
    pub config_text: Option<String>,
    /// Its domain has the same number there, or it stays here.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub same_domid: bool,
    /// Connections, if not as many as usual.
    #[serde(default)]
    pub connections: Option<u8>,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}
