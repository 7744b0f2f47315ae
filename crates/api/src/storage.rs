//! Storage repositories (SRs) and their virtual disk images (VDIs).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Requests on storage. A VDI is written `sr:vdi`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum StorageRequest {
    /// Creates an SR. Answered by [`Reply::Done`](crate::Reply::Done), like all changes.
    SrCreate {
        name: String,
        kind: String,
        #[serde(default)]
        config: BTreeMap<String, String>,
    },
    /// Introduces an existing SR.
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
    /// Destroys an SR without VDIs.
    SrDestroy {
        name: String,
    },
    /// Answered by [`Reply::Srs`](crate::Reply::Srs), without accessing any SR.
    SrList,
    /// Answered by [`Reply::Srs`](crate::Reply::Srs) with one row including its space.
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
    /// Lends a VDI to the client, until that closes the connection that comes with the request. The path of its block
    /// device is a line there. Answered by [`Reply::Done`](crate::Reply::Done) when it is detached.
    VdiLend {
        vdi: String,
        /// Otherwise it is only read.
        #[serde(default)]
        write: bool,
    },
    /// Passes the bytes of a VDI over the connection that comes with the request, in pieces: a place (8 bytes, little endian), a
    /// count (4 bytes), and so many bytes. A piece of none ends. What is in no piece is zeros, or as it was. A client
    /// that is to send them is sent a byte first. Answered by [`Reply::Done`](crate::Reply::Done) when all was passed.
    VdiPass {
        vdi: String,
        /// From the client to the VDI, not from it.
        #[serde(default)]
        write: bool,
    },
    /// Answered by [`Reply::Images`](crate::Reply::Images).
    ImageList,
    /// Makes the VDI `image-NAME` that the client has filled an image. Answered by [`Reply::Done`](crate::Reply::Done).
    ImageAdd(ImageRow),
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    ImageRemove {
        name: String,
    },
}

/// An image that VMs are made from.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ImageRow {
    pub name: String,
    pub sr: String,
    /// Of the disk.
    pub bytes: u64,
    /// Of the file that it came from.
    pub format: String,
    /// A path or URL.
    pub origin: String,
    /// Of that file: `sha256:` and its digits.
    pub checksum: String,
}

/// A line of `sr-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SrRow {
    pub name: String,
    pub kind: String,
    pub config: BTreeMap<String, String>,
    /// VDIs in use.
    pub in_use: u64,
    /// `None` if the SR was not accessed.
    pub vdis: Option<u64>,
    pub bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Why nothing is known of it but its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The lines of `vdi-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VdiList {
    pub vdis: Vec<VdiRow>,
    /// SRs that could not be accessed, and why.
    pub problems: Vec<String>,
}

/// A line of `vdi-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VdiRow {
    pub sr: String,
    pub name: String,
    /// Virtual size.
    pub bytes: u64,
    /// Space used in its SR, if known.
    pub used_bytes: Option<u64>,
    /// The VDI that this is a snapshot of; it is read-only then.
    pub snapshot_of: Option<String>,
    pub users: Vec<VdiUser>,
}

/// A user of a VDI.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VdiUser {
    /// `xylem/UUID/VDEV` for a disk of a VM.
    pub owner: String,
    /// `r` or `w`.
    pub access: String,
    /// Whether it has a block device.
    pub active: bool,
    pub device: Option<String>,
}
