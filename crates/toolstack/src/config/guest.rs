//! Options that few guests set.

use xen_build::{CpuidOverride, MsrOverride};

/// Limits of Xen's tables, memory translation, and CPU features.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GuestOptions {
    /// Highest event channel port.
    pub evtchn_port_max: Option<u32>,
    /// Frames of its maptrack table.
    pub maptrack_frames_max: Option<u32>,
    /// Highest grant table version, 1 or 2; `None`: the highest that Xen supports.
    pub grant_version_max: Option<u8>,
    /// Nested virtualisation for a translated guest.
    pub nested_virt: bool,
    /// Shadow paging instead of HAP for a translated guest.
    pub shadow_paging: bool,
    pub cpuid: Option<Box<CpuidConfig>>,
}

/// Overrides of CPUID leaves and model specific registers in the guest's policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuidConfig {
    pub text: CpuidText,
    pub registers: Vec<CpuidOverride>,
    pub msrs: Vec<MsrOverride>,
}

/// The value as the user wrote it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CpuidText {
    /// `"host,NAME=VALUE,..."`
    Words(String),
    /// xend's list of `LEAF:REGISTER=BITS`.
    Leaves(Vec<String>),
}
