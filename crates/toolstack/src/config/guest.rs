//! What few guests have otherwise than most.

use xen_build::{CpuidOverride, MsrOverride};

/// Limits of Xen's tables, how memory is translated, and what is seen of the CPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GuestOptions {
    /// Highest event channel port.
    pub evtchn_port_max: Option<u32>,
    /// Frames of the table of grants that it maps.
    pub maptrack_frames_max: Option<u32>,
    /// Highest version of grant tables, 1 or 2; `None`: the highest that Xen has.
    pub grant_version_max: Option<u8>,
    /// A translated guest may run guests of its own.
    pub nested_virt: bool,
    /// Memory of a translated guest is translated by Xen's own shadow tables instead of the CPU.
    pub shadow_paging: bool,
    pub cpuid: Option<Box<CpuidConfig>>,
}

/// Bits of CPUID leaves and model specific registers that the guest is to see, whatever its policy would be.
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
