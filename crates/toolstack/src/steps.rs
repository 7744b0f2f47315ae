//! Steps: what plans are made of, each declared once.
//!
//! A step belongs to a group, and the group's file has all there is to say about it: its description
//! ([`StepInfo`]), the work that it becomes once everything known of the VM is filled in (`prepare`), how a performer
//! carries that work out (`perform`), and what the result changes (`complete`). None of their matches has a default, so
//! a new variant is one file's matter and the compiler names what is missing.

pub mod create;
pub mod devices;
pub mod teardown;
pub mod wait;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use create::CreateStep;
pub use devices::DeviceStep;
pub use teardown::TeardownStep;
pub use wait::Wait;

use xen::DomId;

use crate::config::VmConfig;
use crate::layout::DeviceRef;
use crate::machine::{Action, Device, DomainUsers, Vm};
use crate::scheduler::{Class, Track};
use crate::work::{Output, Work};

/// One thing to do for a VM, or to wait for. Devices go by the number that the guest knows them by.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Step {
    /// On the way to a running domain.
    Create(CreateStep),
    /// About single devices, at a create, a teardown or in between.
    Device(DeviceStep),
    /// On the way back to nothing.
    Teardown(TeardownStep),
    /// Something that a guest, a backend or a device model does.
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

impl From<Wait> for Step {
    fn from(wait: Wait) -> Self {
        Self::Await(wait)
    }
}

/// Everything about a step that is known before it is begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StepInfo {
    /// The stage of an operation that it belongs to, for tables of where time goes.
    pub stage: &'static str,
    /// What it is called; `{}` stands for its device, `{number}` for the device's number.
    pub text: &'static str,
    /// The device that it is about, if it is about one.
    pub device: Option<DeviceRef>,
    /// What takes it back, if it leaves something behind.
    pub undo: Option<Step>,
    pub if_failed: IfFailed,
    pub if_cancelled: IfCancelled,
    /// What it has to be granted before it begins; `None` for waits, which use nothing of the host.
    pub permit: Option<Permit>,
}

/// What the failure of a step means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IfFailed {
    /// Nothing may follow it, not even on a way down. A domain that cannot be destroyed keeps its record, so that it
    /// stays ours and can be tried again.
    Halt,
    /// The operation fails.
    Fail,
    /// The operation fails, unless it is a reboot: the domain stopped by itself and goes all the same, and the next one
    /// shall come.
    FailUnlessReboot,
}

/// What becomes of a step that is under way when its operation is cancelled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IfCancelled {
    /// It ends soon by itself; what follows waits for that.
    Finish,
    /// It may take long: nobody waits for it, and what it brings back is released when it ends.
    Abandon,
}

/// The storage that a step keeps busy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StorageOf {
    Nothing,
    Disk(u32),
    /// Kernel and ramdisk, or firmware.
    Images,
}

/// The limits that a step falls under.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Permit {
    pub track: Track,
    pub class: Class,
    pub storage: StorageOf,
    /// Whether it gives backends something to do: it makes, joins or ends their devices.
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
    const RECORD: Self = Self { class: Class::Record, ..Self::SHORT };
    /// Part of making a domain.
    const BUILD: Self = Self { track: Track::Build, class: Class::Domain, ..Self::SHORT };
    /// Part of ending one.
    const TEARDOWN: Self = Self { track: Track::Teardown, class: Class::Domain, ..Self::SHORT };

    /// The reading of images.
    const LOAD: Self =
        Self { track: Track::Load, class: Class::Image, storage: StorageOf::Images, ..Self::SHORT };

    /// The attach or detach of a disk.
    const fn storage(track: Track, devid: u32) -> Self {
        Self { track, class: Class::Storage, storage: StorageOf::Disk(devid), ..Self::SHORT }
    }

    /// The same, and backends have something to do because of it.
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
            Self::Await(wait) => wait.info(),
        }
    }

    /// The stage of an operation that it belongs to.
    #[must_use]
    pub fn stage(self) -> &'static str {
        self.info().stage
    }

    /// Whether nothing may follow where this step has failed.
    #[must_use]
    pub fn is_essential(self) -> bool {
        self.info().if_failed == IfFailed::Halt
    }

    /// The work of this step, with everything it needs filled in.
    ///
    /// # Panics
    /// For a wait, or if a step is missing that has to come before it.
    pub(crate) fn prepare(self, with: Preparation<'_>) -> Work {
        match self {
            Self::Create(step) => Work::Create(step.prepare(with)),
            Self::Device(step) => Work::Device(step.prepare(with)),
            Self::Teardown(step) => Work::Teardown(step.prepare(with)),
            Self::Await(wait) => unreachable!("{} needs no work", Self::Await(wait)),
        }
    }

    /// Takes in what its work brought back.
    pub(crate) fn complete(self, output: Output, with: Completing<'_>) {
        match self {
            Self::Create(step) => step.complete(output, with),
            Self::Device(step) => step.complete(output, with),
            Self::Teardown(step) => step.complete(&output, with),
            Self::Await(wait) => unreachable!("{} has no work to end", Self::Await(wait)),
        }
    }
}

/// What a step's work is made of.
#[derive(Debug)]
pub(crate) struct Preparation<'a> {
    pub(crate) vm: &'a mut Vm,
    /// With a device that is being plugged, which is not yet the VM's.
    pub(crate) config: Arc<VmConfig>,
    /// That device.
    pub(crate) plugged: Option<&'a Device>,
    /// For a disk that is attached: the domains of our VMs.
    pub(crate) own: BTreeSet<DomId>,
    /// No other domain that this machine speaks of has it.
    pub(crate) generation: u64,
    pub(crate) users: &'a mut DomainUsers,
}

/// What the result of a step may change.
#[derive(Debug)]
pub(crate) struct Completing<'a> {
    pub(crate) vm: &'a mut Vm,
    /// Devices that were told to close before their backend had looked at them.
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
