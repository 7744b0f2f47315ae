//! VMs that outlive their domains, and how VMs change.

use serde::{Deserialize, Serialize};

/// A VM to be kept until it is undefined.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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
    /// It starts with the host, after those with smaller numbers.
    #[serde(default)]
    pub autostart: Option<u32>,
}

/// A VM, defined or only running.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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

/// How the start of many came out.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StartedAll {
    pub started: u64,
    /// They ran already, or were about to.
    pub running: u64,
    pub failed: Vec<StartFailure>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StartFailure {
    pub vm: String,
    pub why: String,
}

/// What happened after a revision.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateChanges {
    /// Where to go on from.
    pub revision: u64,
    /// The revision that was named is not kept any more, or is another daemon's.
    pub too_old: bool,
    /// The states, if no revision was named or it was too old.
    pub snapshot: Option<Vec<VmStatus>>,
    pub changes: Vec<StateChange>,
}

/// A VM's state.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct VmStatus {
    pub name: String,
    pub uuid: String,
    pub domid: Option<u16>,
    pub state: String,
    /// Of its last change.
    pub revision: u64,
}

/// A change of a VM's state. `gone` is the state of one that is not known.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateChange {
    pub revision: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    pub vm: String,
    pub uuid: String,
    pub domid: Option<u16>,
    pub before: String,
    pub after: String,
    /// Empty if the states say it all.
    pub reason: String,
}
