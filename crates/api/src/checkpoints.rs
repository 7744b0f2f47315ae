//! Checkpoints of VMs, and copies of saved VMs.

use serde::{Deserialize, Serialize};

use crate::Target;

/// A request about checkpoints and saved VMs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum CheckpointRequest {
    /// Keeps a guest's memory and disks as they are at one moment; it goes on. Answered by
    /// [`Reply::Checkpointed`](crate::Reply::Checkpointed). A client that hangs up before cancels it.
    Checkpoint(MakeCheckpoint),
    /// Answered by [`Reply::Checkpoints`](crate::Reply::Checkpoints): those of these VMs, or all.
    CheckpointList {
        #[serde(default)]
        vms: Vec<Target>,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    CheckpointDestroy { vm: Target, name: String },
    /// Answered by [`Reply::Created`](crate::Reply::Created).
    Revert(Revert),
    /// Creates copies of a saved VM, with an [`Answer::Progress`](crate::Answer::Progress) for each.
    /// Answered by [`Reply::StartedAll`](crate::Reply::StartedAll).
    Clone(MakeCopies),
}

/// A checkpoint to be made.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MakeCheckpoint {
    pub target: Target,
    /// Without one it gets the next number.
    #[serde(default)]
    pub name: Option<String>,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// A VM that is to go back to a checkpoint.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Revert {
    /// Its name or UUID; it need not exist any more.
    pub vm: Target,
    pub name: String,
    /// Leave the domain paused.
    #[serde(default)]
    pub paused: bool,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// Copies to be made of a saved VM.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MakeCopies {
    /// `VM:NAME`, the only checkpoint of that name, or the path of a saved VM's file.
    pub of: String,
    /// The client's working directory.
    pub cwd: String,
    pub count: u32,
    /// Their names; `%d` in it is replaced by a number.
    #[serde(default)]
    pub pattern: Option<String>,
}

/// A checkpoint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckpointRow {
    pub vm: String,
    pub uuid: String,
    pub name: String,
    /// In seconds since 1970.
    pub created: u64,
    /// Of the file with the memory.
    pub bytes: u64,
    /// The snapshots of its disks.
    pub disks: Vec<CheckpointDisk>,
    /// Why it cannot be used; empty otherwise.
    #[serde(default)]
    pub fault: String,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckpointDisk {
    pub vdi: String,
    pub snapshot: String,
}
