//! Steps, the elements of plans, each declared once.
//!
//! A step belongs to a group, whose file defines it completely: its description ([`StepInfo`]), its
//! work, filled in from the VM's facts (`prepare`), how a performer does it (`perform`), and what
//! the result changes (`complete`). No match has a default, so a new variant needs changes in one
//! file only, and the compiler names what is missing.

pub mod create;
pub mod devices;
pub mod moves;
pub mod pci;
pub mod save;
pub mod suspend;
pub mod teardown;
pub mod wait;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use create::CreateStep;
pub use devices::DeviceStep;
pub use moves::{GoOn, MoveStep};
pub use save::SaveStep;
pub use suspend::SuspendStep;
pub use teardown::TeardownStep;
pub use wait::Wait;

use xen::DomId;

use crate::config::VmConfig;
use crate::domains::DomainSet;
use crate::layout::DeviceRef;
use crate::machine::{Action, Device, DomainUsers, Vm};
use crate::moves::MigrateRequest;
use crate::saved::{DumpTo, Save};
use crate::scheduler::{Class, Track};
use crate::work::{Output, Work};

/// One action or wait for a VM. Devices are identified by the guest's device id.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Step {
    /// On the way to a running domain.
    Create(CreateStep),
    /// For single devices, at a create, a teardown or in between.
    Device(DeviceStep),
    /// On the way back to nothing.
    Teardown(TeardownStep),
    /// Stops a guest and keeps its domain.
    Suspend(SuspendStep),
    /// Writes a guest's state to a file.
    Save(SaveStep),
    /// Moves a guest to another host, or from one.
    Move(MoveStep),
    /// Waits for a guest, a backend or a device model.
    Await(Wait),
}

impl From<CreateStep> for Step {
    fn from(step: CreateStep) -> Self {
        Self::Create(step)
    }
}

impl From<DeviceStep> for Step {
    fn from(step: DeviceStep) -> Self {
        Self::Device(step)
    }
}

impl From<TeardownStep> for Step {
    fn from(step: TeardownStep) -> Self {
        Self::Teardown(step)
    }
}

impl From<SuspendStep> for Step {
    fn from(step: SuspendStep) -> Self {
        Self::Suspend(step)
    }
}

impl From<MoveStep> for Step {
    fn from(step: MoveStep) -> Self {
        Self::Move(step)
    }
}

impl From<SaveStep> for Step {
    fn from(step: SaveStep) -> Self {
        Self::Save(step)
    }
}

impl From<Wait> for Step {
    fn from(wait: Wait) -> Self {
        Self::Await(wait)
    }
}

/// Static description of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StepInfo {
    /// Its stage in an operation, for timing tables.
    pub stage: &'static str,
    /// Its name; `{}` stands for its device, `{number}` for the device's number.
    pub text: &'static str,
    /// Its device, if it has one.
    pub device: Option<DeviceRef>,
    /// The step that undoes it, if it leaves something behind.
    pub undo: Option<Step>,
    pub if_failed: IfFailed,
    pub if_cancelled: IfCancelled,
    /// The permit that it needs; `None` for waits, which use no resources of the host.
    pub permit: Option<Permit>,
}

impl StepInfo {
    /// A step of the VM as a whole that leaves nothing behind.
    const fn plain(name: &'static str, permit: Permit, if_cancelled: IfCancelled) -> Self {
        Self {
            stage: name,
            text: name,
            device: None,
            undo: None,
            if_failed: IfFailed::Fail,
            if_cancelled,
            permit: Some(permit),
        }
    }
}

/// Consequence of a step's failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IfFailed {
    /// Nothing may follow it, not even in a teardown. A domain that cannot be destroyed keeps its
    /// record, so that the destroy can be repeated.
    Halt,
    /// The operation fails.
    Fail,
    /// The operation fails, unless it is a reboot: the stopped domain is destroyed anyway, and the
    /// next one starts.
    FailUnlessReboot,
    /// The operation fails, unless it is a reboot or a move, which goes on.
    FailUnlessItGoesOn,
}

/// What happens to a step in progress when its operation is cancelled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IfCancelled {
    /// It ends soon by itself; later steps wait for that.
    Finish,
    /// It may take long, but ends early when it is told to; later steps wait for that.
    Interrupt,
    /// It may take long: it is abandoned, and its result is released when it ends.
    Abandon,
}

/// The storage that a step uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StorageOf {
    Nothing,
    Disk(u32),
    /// Kernel and ramdisk, or firmware.
    Images,
    /// Bootloaders, which may take as long as they are let: some of them at a time.
    Bootloaders,
}

/// The limits of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Permit {
    pub track: Track,
    pub class: Class,
    pub storage: StorageOf,
    /// Whether it causes work for backends: it creates, connects or removes their devices.
    pub backend: bool,
}

impl Permit {
    /// A short call or write.
    const SHORT: Self = Self {
        track: Track::Short,
        class: Class::Short,
        storage: StorageOf::Nothing,
        backend: false,
    };
    /// A change of the VM's record.
    pub(crate) const RECORD: Self = Self { class: Class::Record, ..Self::SHORT };
    /// Part of creating a domain.
    const BUILD: Self = Self { track: Track::Build, class: Class::Domain, ..Self::SHORT };
    /// Part of destroying one.
    const TEARDOWN: Self = Self { track: Track::Teardown, class: Class::Domain, ..Self::SHORT };

    /// Waiting for a guest to suspend.
    const SUSPEND: Self = Self { track: Track::Suspend, class: Class::Suspend, ..Self::SHORT };

    /// Copying a domain's memory.
    const MEMORY: Self = Self { track: Track::Memory, class: Class::Memory, ..Self::SHORT };

    /// Sending a domain to another host.
    const SEND: Self = Self { track: Track::Send, class: Class::Send, ..Self::SHORT };
    /// Receiving one.
    const RECEIVE: Self = Self { track: Track::Receive, class: Class::Receive, ..Self::SHORT };
    /// A word with another host.
    const TALK: Self = Self { track: Track::Talk, ..Self::SHORT };
    /// Waiting for one.
    const LISTEN: Self = Self { track: Track::Listen, ..Self::SHORT };

    /// Reading of images.
    const LOAD: Self =
        Self { track: Track::Load, class: Class::Image, storage: StorageOf::Images, ..Self::SHORT };

    /// Running a bootloader, which reads a guest's disk.
    const BOOTLOADER: Self = Self { storage: StorageOf::Bootloaders, ..Self::LOAD };

    /// Running a hotplug script.
    const fn script(track: Track) -> Self {
        Self { track, class: Class::Script, backend: true, ..Self::SHORT }
    }

    /// Making disks of a VM.
    const DISKS: Self = Self { track: Track::Attach, class: Class::Storage, ..Self::SHORT };

    /// The attach or detach of a disk.
    const fn storage(track: Track, devid: u32) -> Self {
        Self { track, class: Class::Storage, storage: StorageOf::Disk(devid), ..Self::SHORT }
    }

    /// The same, causing work for backends.
    const fn with_backend(self) -> Self {
        Self { backend: true, ..self }
    }
}

impl Step {
    #[must_use]
    pub fn info(self) -> StepInfo {
        match self {
            Self::Create(step) => step.info(),
            Self::Device(step) => step.info(),
            Self::Teardown(step) => step.info(),
            Self::Suspend(step) => step.info(),
            Self::Save(step) => step.info(),
            Self::Move(step) => step.info(),
            Self::Await(wait) => wait.info(),
        }
    }

    /// Whether it may make or destroy VDIs: copies of disks, or their snapshots.
    pub(crate) fn changes_vdis(self) -> bool {
        matches!(
            self,
            Self::Create(CreateStep::MakeDisks)
                | Self::Teardown(TeardownStep::DropDisks)
                | Self::Save(SaveStep::Save | SaveStep::Settle)
        )
    }

    /// Its stage in an operation.
    #[must_use]
    pub fn stage(self) -> &'static str {
        self.info().stage
    }

    /// Whether nothing may follow after this step has failed.
    #[must_use]
    pub fn is_essential(self) -> bool {
        self.info().if_failed == IfFailed::Halt
    }

    /// The work of this step, with everything it needs filled in.
    ///
    /// # Panics
    /// For a wait, or if an earlier step is missing.
    pub(crate) fn prepare(self, with: Preparation<'_>) -> Work {
        match self {
            Self::Create(step) => Work::Create(step.prepare(with)),
            Self::Device(step) => Work::Device(step.prepare(with)),
            Self::Teardown(step) => Work::Teardown(step.prepare(with)),
            Self::Suspend(step) => Work::Suspend(step.prepare(with)),
            Self::Save(step) => Work::Save(step.prepare(with)),
            Self::Move(step) => Work::Move(step.prepare(with)),
            Self::Await(wait) => unreachable!("{} needs no work", Self::Await(wait)),
        }
    }

    /// Completes the step with the result of its work.
    pub(crate) fn complete(self, output: Output, with: Completing<'_>) {
        match self {
            Self::Create(step) => step.complete(output, with),
            Self::Device(step) => step.complete(output, with),
            Self::Teardown(step) => step.complete(&output, with),
            Self::Suspend(step) => step.complete(&output, with),
            Self::Save(step) => step.complete(&output, with),
            Self::Move(step) => step.complete(output, with),
            Self::Await(wait) => unreachable!("{} has no work to end", Self::Await(wait)),
        }
    }
}

/// Input of `prepare`.
#[derive(Debug)]
pub(crate) struct Preparation<'a> {
    pub(crate) vm: &'a mut Vm,
    /// Including a device that is being plugged and is not yet part of the VM.
    pub(crate) config: Arc<VmConfig>,
    /// That device.
    pub(crate) plugged: Option<&'a Device>,
    /// A save that was asked for, or that a killed daemon began.
    pub(crate) save: Option<&'a Save>,
    /// A core file that is to be written.
    pub(crate) dump: Option<&'a DumpTo>,
    /// A move to another host that was asked for.
    pub(crate) moving: Option<&'a MigrateRequest>,
    /// The VM is defined, and starts with the host in this place.
    pub(crate) defined: Option<Option<u32>>,
    /// For an attach: the domains of our VMs.
    pub(crate) own: DomainSet,
    /// Whose domain has the name of the driver domain that is to be found, as far as is known.
    pub(crate) named: Option<DomId>,
    /// Unique among the domain identities of this machine.
    pub(crate) generation: u64,
    pub(crate) users: &'a mut DomainUsers,
}

/// What `complete` may change.
#[derive(Debug)]
pub(crate) struct Completing<'a> {
    pub(crate) vm: &'a mut Vm,
    /// Devices that were closed before their backend had probed them.
    pub(crate) unseen: &'a mut BTreeSet<DeviceRef>,
    pub(crate) out: &'a mut Vec<Action>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepInfo { text, device, .. } = self.info();
        let Some(device) = device else { return f.write_str(text) };
        if let Some((before, after)) = text.split_once("{number}") {
            write!(f, "{before}{}{after}", device.devid)
        } else if let Some((before, after)) = text.split_once("{}") {
            write!(f, "{before}{device}{after}")
        } else {
            f.write_str(text)
        }
    }
}
