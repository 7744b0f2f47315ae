//! Defined VMs, and state changes of VMs.

use serde::{Deserialize, Serialize};

/// A VM to be defined.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Define {
    /// As in [`Create`](crate::Create).
    pub file: String,
    pub config_text: String,
    #[serde(default)]
    pub overrides: Vec<String>,
    pub cwd: String,
    /// As in [`Create`](crate::Create).
    #[serde(default, skip_serializing_if = "crate::request::is_unset")]
    pub strict: bool,
    /// As in [`Create`](crate::Create).
    #[serde(default, skip_serializing_if = "crate::request::is_unset")]
    pub warnings: bool,
    /// Starts with the host, after VMs with smaller numbers.
    #[serde(default)]
    pub autostart: Option<u32>,
    /// Only in place of this, which [`ConfigText`](crate::Request::ConfigText) has told of the VM that the configuration
    /// names by its UUID: refused with [`REPLACED`] if its definition is another one by now. Its `autostart` stays as it is
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// In an error: what was to be replaced has been replaced by somebody else.
pub const REPLACED: &str = "its definition is another one by now";

/// A VM, defined or only running.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VmRow {
    pub name: String,
    pub uuid: String,
    /// `starting`, `running`, `paused`, `stopping`, `preserved`, `stuck` or `down`.
    pub state: String,
    /// Why it is stuck; empty otherwise.
    #[serde(default)]
    pub reason: String,
    pub domid: Option<u16>,
    pub defined: bool,
    pub autostart: Option<u32>,
}

/// Result of a bulk start.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartedAll {
    pub started: u64,
    /// They were running or starting already.
    pub running: u64,
    pub failed: Vec<StartFailure>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartFailure {
    pub vm: String,
    pub why: String,
}

/// State changes after a revision.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateChanges {
    /// The revision to continue from.
    pub revision: u64,
    /// The given revision is no longer kept, or is another daemon's.
    pub too_old: bool,
    /// The states, if no revision was given or it was too old.
    pub snapshot: Option<Vec<VmStatus>>,
    pub changes: Vec<StateChange>,
}

/// A VM's state.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VmStatus {
    pub name: String,
    pub uuid: String,
    pub domid: Option<u16>,
    pub state: String,
    /// Of its last change.
    pub revision: u64,
}

/// A change of a VM's state. `gone` is the state of a VM that does not exist.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateChange {
    pub revision: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    pub vm: String,
    pub uuid: String,
    pub domid: Option<u16>,
    pub before: String,
    pub after: String,
    /// Empty if the states are enough.
    pub reason: String,
}
