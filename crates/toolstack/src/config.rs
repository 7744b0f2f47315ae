//! The configuration of a VM, in Xylem's own types. `xlcfg` reads it from a configuration file.

mod guest;
mod hvm;
mod machine;
mod pci;
mod served;
mod spice;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use guest::{
    AffinityConfig, Bootloader, ClockOffset, CpuLists, CpuidConfig, CpuidText, GuestOptions,
    HardwareAccess, IoMemory, IoPorts, OnHostShutdown, Shim,
};
pub use hvm::{
    Bios, DiskBus, DiskPlace, HvmSettings, ModelUser, SmbiosText, SoundCard, UsbVersion, Vga, Vnc,
    place_problem,
};
pub use machine::{Altp2m, MachineOptions, Passthrough, TimerMode};
pub use pci::{PciDevice, PciName, PciPlace, Rdm, RdmPolicy};
pub use served::{
    ChannelConfig, Connection, FolderConfig, KeyboardConfig, ScreenConfig, SecurityModel,
    ServedDevices, numbered,
};

pub use spice::Spice;
pub use storage::{Access, ImageFormat, Mode};
use xen::{DomainKind, Uuid};
pub use xen_build::TscMode;

/// Where a configuration came from, so that an error can name file, line and key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Origin {
    /// The file's name as the user gave it.
    pub file: String,
    /// Line of each key (`kernel`, `disk[1]`), counted from 1. Keys set on the command line have none.
    pub lines: BTreeMap<String, u32>,
}

impl Origin {
    /// `FILE:LINE: KEY` for an error message, as far as known.
    #[must_use]
    pub fn at(&self, key: &str) -> String {
        match self.lines.get(key) {
            Some(line) => format!("{}:{line}: {key}", self.file),
            None => format!("{}: {key}", self.file),
        }
    }
}

/// What to do when a domain stops by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShutdownAction {
    Destroy,
    Restart,
    /// As `Restart`, but the old domain is kept under another name for inspection.
    RenameRestart,
    /// The dead domain is kept for inspection.
    Preserve,
    CoredumpDestroy,
    CoredumpRestart,
    SoftReset,
}

impl ShutdownAction {
    pub const ALL: [Self; 7] = [
        Self::Destroy,
        Self::Restart,
        Self::RenameRestart,
        Self::Preserve,
        Self::CoredumpDestroy,
        Self::CoredumpRestart,
        Self::SoftReset,
    ];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Destroy => "destroy",
            Self::Restart => "restart",
            Self::RenameRestart => "rename-restart",
            Self::Preserve => "preserve",
            Self::CoredumpDestroy => "coredump-destroy",
            Self::CoredumpRestart => "coredump-restart",
            Self::SoftReset => "soft-reset",
        }
    }
}

/// The action for each shutdown reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShutdownPolicy {
    pub poweroff: ShutdownAction,
    pub reboot: ShutdownAction,
    pub crash: ShutdownAction,
    pub watchdog: ShutdownAction,
    pub soft_reset: ShutdownAction,
}

impl Default for ShutdownPolicy {
    fn default() -> Self {
        Self {
            poweroff: ShutdownAction::Destroy,
            reboot: ShutdownAction::Restart,
            crash: ShutdownAction::Destroy,
            watchdog: ShutdownAction::Destroy,
            soft_reset: ShutdownAction::SoftReset,
        }
    }
}

/// A virtual disk's name and number.
///
/// Numbers as Linux's blkfront reads them (`docs/man/xen-vbd-interface`): `xvd` up to 16 disks of
/// 15 partitions is major 202, beyond that bit 28 marks the extended form; `hd` and `sd` have their
/// own numbers.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Vdev {
    pub name: String,
    /// `virtual-device`, which is also the device's id in the store.
    pub number: u32,
}

/// A disk of a VM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskConfig {
    pub vdev: Vdev,
    /// Path of a file or block device, or a VDI written `sr:vdi`. An empty CD drive has none: "". With a script, whatever that
    /// understands.
    pub target: String,
    pub format: ImageFormat,
    pub mode: Mode,
    pub cdrom: bool,
    /// Whether the guest may discard blocks.
    pub discard: bool,
    /// The hotplug script that connects it, as the configuration names it; `None` for what needs none.
    pub script: Option<String>,
    /// What its frontend is told of its backend.
    pub trust: Trust,
    /// Name or domid of the driver domain that serves it; `None` for domain 0.
    pub backend: Option<String>,
}

impl DiskConfig {
    #[must_use]
    pub fn access(&self) -> Access {
        self.mode.access()
    }

    /// Whether this is an empty CD drive, which is a device only with a medium.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.target.is_empty()
    }

    /// Why it can have neither a script nor a backend elsewhere in a domain of this kind: as libxl has it, QEMU serves the
    /// CD drives of HVM domains.
    #[must_use]
    pub fn drive_problem(&self, kind: DomainKind) -> Option<&'static str> {
        if !self.cdrom || kind != DomainKind::Hvm {
            None
        } else if self.backend.is_some() {
            Some("backend: a CD drive of an HVM domain is QEMU's, which runs in domain 0")
        } else if self.script.is_some() {
            Some("script: a CD drive of an HVM domain is QEMU's, which runs no script")
        } else {
            None
        }
    }

    /// Whether it is attached to the host before its domain has it: it has a medium, no script, and no driver domain.
    #[must_use]
    pub fn is_attached_first(&self) -> bool {
        !self.is_empty() && self.script.is_none() && self.backend.is_none()
    }

    /// Whether its hotplug script is run here.
    #[must_use]
    pub fn has_own_script(&self) -> bool {
        self.script.is_some() && self.backend.is_none()
    }

    /// Whose disk this is, as in "in use by ...".
    #[must_use]
    pub fn user(&self, vm: &str) -> String {
        format!("VM {vm} (vbd {})", self.vdev.name)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Not an Ethernet address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not an Ethernet address: expected six pairs of hexadecimal digits as in 00:16:3e:01:02:03"
)]
pub struct ParseMacError;

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            // from_str_radix would take a sign for a digit.
            let two_digits =
                |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(two_digits).ok_or(ParseMacError)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_none() { Ok(Self(bytes)) } else { Err(ParseMacError) }
    }
}

/// What a frontend is told of its backend. Linux's bounce what they share with one that is not trusted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Trust {
    #[default]
    Trusted,
    Untrusted,
}

impl Trust {
    /// As libxl writes it to the store.
    #[must_use]
    pub fn as_node(self) -> &'static str {
        match self {
            Self::Trusted => "1",
            Self::Untrusted => "0",
        }
    }
}

/// A network interface of a VM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VifConfig {
    /// Index in the VM.
    pub devid: u32,
    /// `None`: derived from the VM's UUID, so that it is the same at every start.
    pub mac: Option<Mac>,
    pub bridge: String,
    /// `vifname`: the host's end's name instead of `vifDOMID.DEVID`.
    pub name: Option<String>,
    /// Addresses of the guest, separated by spaces, for readers of the store.
    pub ip: Option<String>,
    pub mtu: Option<u32>,
    /// Given by the user as `rate=`; the backend's form is `bytes,usec`.
    pub rate: Option<Rate>,
    /// The emulated card of an HVM domain, used until its PV drivers take over.
    pub model: Option<String>,
    /// The hotplug script that connects it, as the configuration names it; `None` for a bridge of Linux, which needs none.
    pub script: Option<String>,
    /// `gatewaydev`, for scripts.
    pub gateway: Option<String>,
    /// What its frontend is told of its backend.
    pub trust: Trust,
    /// Name or domid of the driver domain that serves it; `None` for domain 0.
    pub backend: Option<String>,
    /// Whether what it sends is dropped unless it has its own addresses.
    pub antispoof: bool,
}

/// A transmit limit: bytes per interval.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    pub bytes: u64,
    pub interval_us: u64,
}

/// A VM's configuration.
///
/// Invariant, kept by `xlcfg`: names and numbers are in range, vdevs and vif ids are unique,
/// `memory_mib <= memory_max_mib`, `1 <= vcpus <= vcpus_max`, no two disks are emulated at the same
/// IDE index.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VmConfig {
    pub origin: Origin,
    pub name: String,
    /// `None`: the daemon generates one.
    pub uuid: Option<Uuid>,
    pub kind: DomainKind,
    /// Path of the kernel image. Only an HVM domain, which boots from a disk, and one with a bootloader can omit it.
    pub kernel: Option<String>,
    pub ramdisk: Option<String>,
    pub cmdline: String,
    pub memory_mib: u64,
    pub memory_max_mib: u64,
    /// vCPUs online at the start.
    pub vcpus: u32,
    pub vcpus_max: u32,
    pub disks: Vec<DiskConfig>,
    pub vifs: Vec<VifConfig>,
    pub served: ServedDevices,
    pub policy: ShutdownPolicy,
    pub tsc_mode: TscMode,
    pub grant_frames_max: Option<u16>,
    pub options: GuestOptions,
    /// Present for HVM domains only.
    pub hvm: Option<Box<HvmSettings>>,
}

impl VmConfig {
    /// The emulated disks and where they are. A read-only disk can only be emulated as a CD or by SCSI, and none that is in
    /// a driver domain.
    pub fn emulated_disks(&self) -> impl Iterator<Item = (DiskPlace, &DiskConfig)> {
        let bus = self.hvm.as_deref().map(|hvm| hvm.disk_bus);
        self.disks.iter().filter(|disk| disk.backend.is_none()).filter_map(move |disk| {
            let place = DiskPlace::of(disk.vdev.number, disk.cdrom, bus?)?;
            let can_be = disk.cdrom
                || disk.access() == Access::ReadWrite
                || matches!(place, DiskPlace::Scsi(_));
            can_be.then_some((place, disk))
        })
    }

    /// Whether it has a process of QEMU, which emulates hardware or serves devices.
    #[must_use]
    pub fn has_model(&self) -> bool {
        self.hvm.is_some() || self.served.any()
    }

    /// The interfaces that the device model emulates.
    pub fn emulated_vifs(&self) -> impl Iterator<Item = (&str, &VifConfig)> {
        self.vifs.iter().filter_map(|vif| Some((vif.model.as_deref()?, vif)))
    }
}

/// How a new domain begins.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Start {
    Running,
    Paused,
}

impl Start {
    /// The word for it in a record.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }

    pub(crate) fn decode(word: &str) -> Option<Self> {
        [Self::Running, Self::Paused].into_iter().find(|start| start.as_str() == word)
    }
}
