//! Options that few guests set.

use xen_build::{CpuidOverride, MsrOverride};

use super::{MachineOptions, PciDevice, Rdm};
use crate::tuning::CpuList;

/// The host's own hardware that a guest may use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HardwareAccess {
    pub ports: Vec<IoPorts>,
    pub interrupts: Vec<u32>,
    pub memory: Vec<IoMemory>,
}

/// A range of I/O ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IoPorts {
    pub first: u32,
    pub last: u32,
}

/// A range of a device's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IoMemory {
    /// The first frame of the machine.
    pub first: u64,
    /// At least one.
    pub frames: u64,
    /// Where a translated guest sees it; `None`: at the machine's own place.
    pub gfn: Option<u64>,
}

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
    /// Its share of the CPUs against others', of 1 to 65535; `None`: Xen's default.
    pub cpu_weight: Option<u16>,
    /// The most that it may use, in percent of one CPU; `None`: no limit.
    pub cpu_cap: Option<u16>,
    pub affinity: Option<Box<AffinityConfig>>,
    /// It is neither saved nor moved, and may have an invariant time stamp counter for that.
    pub never_moves: bool,
    /// How far its clock is from UTC when it is created.
    pub clock: ClockOffset,
    /// `None`: what the daemon does by default.
    pub on_host_shutdown: Option<OnHostShutdown>,
    /// The number or name of the CPU pool that it runs in; `None`: the first one.
    pub pool: Option<String>,
    /// The memory for a translated guest's second page tables, in MiB; `None`: by its memory and vCPUs.
    pub paging_pool_mib: Option<u32>,
    /// Reads of unknown model specific registers give 0 instead of a fault.
    pub msr_relaxed: bool,
    pub hardware: Option<Box<HardwareAccess>>,
    pub machine: MachineOptions,
    /// Devices of the host's that it is to have for itself.
    pub pci: Vec<PciDevice>,
    pub rdm: Option<Rdm>,
    /// Whether a PV guest's memory map has what is reserved on the host.
    pub host_map: bool,
    /// Whether it may serve other guests' devices.
    pub is_driver_domain: bool,
    /// Xen's shim, in which a PVH guest's kernel runs as a PV one.
    pub shim: Option<Box<Shim>>,
    /// What finds its kernel, unless it is HVM.
    pub bootloader: Option<Box<Bootloader>>,
}

/// A Xen of a guest's own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shim {
    /// `None`: the host's.
    pub path: Option<String>,
    pub cmdline: String,
}

impl Shim {
    /// As libxl's.
    pub const CMDLINE: &'static str = "pv-shim console=xen,pv";
}

/// A program that finds the kernel on the guest's first disk, at each of its starts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bootloader {
    /// A path, or the name of one of Xen's programs.
    pub program: String,
    pub arguments: Vec<String>,
    /// The user that it runs as; `None`: one of its own.
    pub user: Option<String>,
}

/// How far a guest's clock is from UTC.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClockOffset {
    pub seconds: i32,
    /// In addition, as far as the host's time zone is.
    pub is_local: bool,
}

/// Where its vCPUs may run, and where they run best.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AffinityConfig {
    pub hard: Option<CpuLists>,
    pub soft: Option<CpuLists>,
}

/// Lists of CPUs for vCPUs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CpuLists {
    /// The same for all.
    Common(CpuList),
    /// One for each, from vCPU 0; those beyond the last may run everywhere.
    Each(Vec<CpuList>),
}

impl CpuLists {
    #[must_use]
    pub fn of(&self, vcpu: u32) -> Option<&CpuList> {
        match self {
            Self::Common(list) => Some(list),
            Self::Each(lists) => lists.get(usize::try_from(vcpu).ok()?),
        }
    }
}

/// What becomes of a VM when its host is shut down. xl has no key for it; its script `xendomains` has one
/// answer for all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnHostShutdown {
    /// Its guest is asked to shut down.
    #[default]
    Shutdown,
    /// It is saved, and restored when the host is up again.
    Save,
    /// Nothing: it ends as if its host had lost power.
    Ignore,
}

impl OnHostShutdown {
    pub const ALL: [Self; 3] = [Self::Shutdown, Self::Save, Self::Ignore];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Save => "save",
            Self::Ignore => "ignore",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }
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
