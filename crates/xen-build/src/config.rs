//! Input and result of a build.

use xen::{DomId, DomainKind, EvtchnPort};

use crate::memory::mib_of;
use crate::{BuildError, KernelImage, pv, pvh};

/// How a domain sees the time stamp counter (`XEN_CPUID_TSC_MODE_*`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TscMode {
    /// Xen chooses: native where that is safe, else emulated.
    #[default]
    Default,
    AlwaysEmulate,
    Native,
}

impl TscMode {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::AlwaysEmulate => 1,
            Self::Native => 2,
        }
    }
}

/// A kernel that is loaded unchanged, for another one to run.
#[derive(Clone, Copy, Debug)]
pub struct Shimmed<'a> {
    pub image: &'a [u8],
    pub cmdline: &'a str,
}

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct BuildConfig<'a> {
    /// [`DomainKind::Hvm`] cannot be built.
    pub kind: DomainKind,
    /// Parsed once, shared by any number of domains.
    pub kernel: &'a KernelImage,
    /// Loaded unchanged.
    pub ramdisk: Option<&'a [u8]>,
    pub cmdline: &'a str,
    /// PVH only: the PV kernel that `kernel`, Xen's shim, runs.
    pub shimmed: Option<Shimmed<'a>>,
    /// Memory the domain starts with.
    pub memory_pages: u64,
    /// Memory the domain may grow to; at least `memory_pages`.
    pub memory_pages_max: u64,
    /// As given to createdomain and max_vcpus.
    pub vcpus: u32,
    pub tsc_mode: TscMode,
}

impl BuildConfig<'_> {
    /// Whether the guest finds more frames than it has memory for: all that it may have.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.kind != DomainKind::Pv && self.memory_pages < self.memory_pages_max
    }

    /// Checks that do not depend on the kernel.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let (vcpus_max, cmdline_bytes_max) = match self.kind {
            DomainKind::Pv => (pv::VCPUS_MAX, pv::CMDLINE_BYTES_MAX - 1),
            DomainKind::Pvh => (pvh::VCPUS_MAX, pvh::CMDLINE_BYTES_MAX - 1),
            DomainKind::Hvm => return Err(BuildError::Kind(self.kind)),
        };
        if !(1..=vcpus_max).contains(&self.vcpus) {
            return Err(BuildError::Vcpus { vcpus: self.vcpus, max: vcpus_max });
        }
        if self.cmdline.len() > cmdline_bytes_max {
            let bytes = self.cmdline.len();
            return Err(BuildError::CmdlineTooLong { bytes, max: cmdline_bytes_max });
        }
        if self.cmdline.contains('\0') {
            return Err(BuildError::CmdlineNul);
        }
        if self.memory_pages > self.memory_pages_max {
            return Err(BuildError::MemoryAboveMax {
                memory_mib: mib_of(self.memory_pages),
                max_mib: mib_of(self.memory_pages_max),
            });
        }
        Ok(())
    }
}

/// An unbound event channel port of the new domain, and the domain that will bind to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Channel {
    pub port: EvtchnPort,
    pub backend: DomId,
}

/// The two channels that every domain has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Channels {
    pub store: Channel,
    pub console: Channel,
}

/// What a configuration requires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Needs {
    /// Least memory that the domain can be built with.
    pub memory_pages_min: u64,
    /// Host memory that building takes: the domain's, and Xen's paging pool for it.
    pub host_pages: u64,
}

/// What the store and the operator need to know of a built domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Built {
    /// Frame of the store ring, for `store/ring-ref` and XS_INTRODUCE: an mfn of a PV domain, a gfn
    /// of a PVH domain.
    pub store_frame: u64,
    /// Frame of the console ring, for `console/ring-ref`.
    pub console_frame: u64,
    /// Where vCPU 0 starts.
    pub entry: u64,
    /// Pages allocated to the domain.
    pub pages: u64,
    pub tables: Tables,
}

/// Where an HVM domain's loader finds tables for the guest: address and bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tables {
    pub acpi: Option<(u64, u64)>,
    pub smbios: Option<(u64, u64)>,
}
