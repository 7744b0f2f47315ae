//! What domains have read, written, received and sent by this host's backends: the answer to `traffic`.
//!
//! All of them count from when the device was plugged, so a number that is less than before has begun anew.

use serde::{Deserialize, Serialize};

use crate::request::is_unset;

/// A disk, since its backend has it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DiskTraffic {
    pub domid: u16,
    /// As the guest has it: `xvda`.
    pub device: String,
    /// Requests.
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Times that a request had to wait because too many were in progress.
    #[serde(skip_serializing_if = "is_unset")]
    pub out_of_requests: u64,
}

/// A network interface, as its guest sees it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VifTraffic {
    pub domid: u16,
    pub devid: u32,
    pub received_bytes: u64,
    pub received_packets: u64,
    /// Packets for the guest that it did not take.
    #[serde(skip_serializing_if = "is_unset")]
    pub received_dropped: u64,
    pub sent_bytes: u64,
    pub sent_packets: u64,
    #[serde(skip_serializing_if = "is_unset")]
    pub sent_dropped: u64,
}

/// By domain and device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Traffic {
    /// How long ago that was so, in nanoseconds.
    pub age_ns: u64,
    pub disks: Vec<DiskTraffic>,
    pub vifs: Vec<VifTraffic>,
}
