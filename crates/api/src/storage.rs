//! Storage repositories (SRs) and their virtual disk images (VDIs).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What can be asked about storage. A VDI is written `sr:vdi`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum StorageRequest {
    /// Makes an SR. Answered by [`Reply::Done`](crate::Reply::Done), like all that changes something.
    SrCreate {
        name: String,
        kind: String,
        #[serde(default)]
        config: BTreeMap<String, String>,
    },
    /// Takes over an SR that was made before.
    SrIntroduce {
        name: String,
        kind: String,
        #[serde(default)]
        config: BTreeMap<String, String>,
    },
    /// Forgets an SR; its VDIs stay.
    SrForget {
        name: String,
    },
    /// Takes away an SR without VDIs.
    SrDestroy {
        name: String,
    },
    /// Answered by [`Reply::Srs`](crate::Reply::Srs), without asking any SR.
    SrList,
    /// Answered by [`Reply::Srs`](crate::Reply::Srs) with one row that has its room.
    SrInfo {
        name: String,
    },
    /// Answered by [`Reply::Vdis`](crate::Reply::Vdis): those of the SRs named, or of all.
    VdiList {
        #[serde(default)]
        srs: Vec<String>,
    },
    VdiCreate {
        vdi: String,
        bytes: u64,
    },
    VdiDestroy {
        vdi: String,
    },
    VdiResize {
        vdi: String,
        bytes: u64,
    },
    VdiSnapshot {
        vdi: String,
        to: String,
    },
    VdiClone {
        vdi: String,
        to: String,
    },
}

/// A line of `sr-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SrRow {
    pub name: String,
    pub kind: String,
    pub config: BTreeMap<String, String>,
    /// VDIs that somebody uses.
    pub in_use: u64,
    /// `None` where the SR was not asked.
    pub vdis: Option<u64>,
    pub bytes: Option<u64>,
    pub free_bytes: Option<u64>,
}

/// The lines of `vdi-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct VdiList {
    pub vdis: Vec<VdiRow>,
    /// SRs that could not be asked, and why.
    pub problems: Vec<String>,
}

/// A line of `vdi-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct VdiRow {
    pub sr: String,
    pub name: String,
    /// What a guest sees.
    pub bytes: u64,
    /// What it takes in its SR, where that can be told.
    pub used_bytes: Option<u64>,
    /// The VDI it is a snapshot of, and read-only for that.
    pub snapshot_of: Option<String>,
    pub users: Vec<VdiUser>,
}

/// Who uses a VDI.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct VdiUser {
    /// `xylem/UUID/VDEV` for a disk of a VM.
    pub owner: String,
    /// `r` or `w`.
    pub access: String,
    /// Whether there is a block device for it.
    pub active: bool,
    pub device: Option<String>,
}
