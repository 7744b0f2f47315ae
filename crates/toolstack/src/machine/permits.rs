//! Requests to the scheduler: permits for steps, and for clients' own work on SRs.

use std::sync::Arc;

use storage::VdiName;
use xen::Uuid;

use super::{Action, ClientId, Instant, OperationId, Reply, Toolstack};
use crate::config::{DiskConfig, VmConfig};
use crate::scheduler::{Ask, Priority, SrRequest, Ticket};
use crate::steps::{Permit, StorageOf};

/// What the scheduler grants permits to.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Step(OperationId, usize),
    /// Work of a client.
    Own(ClientId),
    /// Reading what an SR holds.
    Read(Arc<str>),
    /// A change of a VM's record, for a client.
    Tune(ClientId),
}

/// A client's request for a permit.
#[derive(Clone, Debug)]
pub enum PermitRequest {
    /// For work on an SR. Answered by [`Reply::Permit`] when granted. What changes something is
    /// logged once the permit is given back.
    Sr { sr: String, what: SrRequest, deed: Option<Deed> },
    /// To give it back, with what came of it. Answered by [`Reply::GivenBack`].
    GiveBack { permit: Ticket, outcome: Result<(), String>, change: Option<SrChange> },
}

/// What became of an SR.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SrChange {
    /// It is there now.
    Come(String),
    /// It, or something in it, may have changed.
    Changed(String),
    /// It is not known any more.
    Gone(String),
}

/// Something that a client does itself, for the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Deed {
    pub verb: &'static str,
    /// What it is done to.
    pub subject: String,
}

impl Toolstack {
    pub(super) fn permit(
        &mut self,
        now: Instant,
        client: ClientId,
        request: PermitRequest,
        out: &mut Vec<Action>,
    ) {
        match request {
            PermitRequest::Sr { sr, what, deed: _ } => {
                self.scheduler.put(Ask::for_sr(&sr, what), Item::Own(client));
            }
            PermitRequest::GiveBack { permit, outcome: _, change } => {
                self.scheduler.done(permit);
                change.into_iter().for_each(|change| self.sr_changed(change));
                out.push(Action::Reply { client, reply: Reply::GivenBack });
            }
        }
        self.dispatch(now, out);
    }
}

/// The backend domain of all devices; only dom0 is supported.
const BACKEND: &str = "domain 0";

/// What all bootloaders share, in place of a storage; no storage has such a name.
const BOOTLOADERS: &str = "bootloaders";

/// The scheduler request of a VM's step.
pub(super) fn ask_for(vm: Uuid, config: &VmConfig, permit: Permit, priority: Priority) -> Ask {
    let Permit { track, class, storage, backend } = permit;
    let sr = match storage {
        StorageOf::Nothing => None,
        StorageOf::Disk(devid) => storage_of_disk(config, devid),
        StorageOf::Bootloaders => Some(Arc::from(BOOTLOADERS)),
        StorageOf::Images => config.kernel.as_deref().and_then(folder),
    };
    let backend = backend.then(|| Arc::from(BACKEND));
    Ask { vm, track, priority, class, sr, backend }
}

/// The storage of a disk, for its limit: its SR, or the folder or volume group of its path.
fn storage_of_disk(config: &VmConfig, devid: u32) -> Option<Arc<str>> {
    let disk = disk_at(config, devid)?;
    match vdi_of(disk) {
        Some(vdi) => Some(Arc::from(vdi.sr())),
        None => folder(&disk.target),
    }
}

/// The VDI of a disk that is one of an SR.
pub(super) fn vdi_of_disk(config: &VmConfig, devid: u32) -> Option<VdiName> {
    vdi_of(disk_at(config, devid)?)
}

fn disk_at(config: &VmConfig, devid: u32) -> Option<&DiskConfig> {
    config.disks.iter().find(|disk| disk.vdev.number == devid)
}

fn vdi_of(disk: &DiskConfig) -> Option<VdiName> {
    VdiName::parse(&disk.target).filter(|_| disk.is_attached_first())
}

fn folder(path: &str) -> Option<Arc<str>> {
    Some(Arc::from(path.rsplit_once('/')?.0))
}
