//! Disks of a VM and their other users: all attaches and checks.

use std::collections::{BTreeMap, BTreeSet};

use storage::{
    AttachError, Attachment, DETACH_THERE, DeviceNumber, DiskId, DiskUse, Mode, System, Wanted,
};
use xen::DomId;
use xenstore::client::{Batch, Client, ClientError, Nodes as _, Transport};

use super::failure;
use super::store::{children, names};
use crate::config::{DiskConfig, VmConfig};
use crate::domains::DomainSet;
use crate::work::Failure;

/// Attaches a VM's disk, unless it is in use. `own` are the domains of our VMs.
pub(crate) fn attach<T: Transport>(
    system: &mut dyn System,
    store: &mut Client<T>,
    config: &VmConfig,
    index: usize,
    owner: &str,
    own: &DomainSet,
) -> Result<Attachment, Failure> {
    let disk = &config.disks[index];
    let others = others(system, store, disk, own)?;
    let who = disk.user(&config.name);
    storage::attach(system, &wanted(disk, owner, &who, &others), disk.format).map_err(told)
}

/// Attaches a disk of a VM that comes from another host before that has let go of it, if such a disk allows that.
pub(crate) fn attach_early<T: Transport>(
    system: &mut dyn System,
    store: &mut Client<T>,
    config: &VmConfig,
    index: usize,
    owner: &str,
    own: &DomainSet,
) -> Result<Option<Attachment>, Failure> {
    let disk = &config.disks[index];
    if !storage::takes_two_hosts(system, &disk.target, disk.format).map_err(told)? {
        return Ok(None);
    }
    let place = format!("{}: {}", config.name, disk.vdev.name);
    let attached = attach(system, store, config, index, owner, own);
    attached.map(Some).map_err(|error| failure(place, error.0))
}

/// Detaches a disk that another host is to have. Returns what stays attached: with its backend closed nobody uses a disk
/// that two hosts may have, and detaching it can wait.
pub(crate) fn let_go(
    system: &mut dyn System,
    config: &VmConfig,
    index: usize,
    attachment: Attachment,
    owner: &str,
) -> Result<Option<Attachment>, Failure> {
    let disk = &config.disks[index];
    if storage::takes_two_hosts(system, &disk.target, disk.format).unwrap_or(false) {
        return Ok(Some(attachment));
    }
    let detached = storage::detach(system, &attachment, owner);
    detached.map(|()| None).map_err(|error| Failure(error.to_string()))
}

/// Finds errors of [`attach`] after which `earlier` would be in use too. Returns the use that the attach would make, if
/// the disk is known before it is attached.
pub(crate) fn check<T: Transport>(
    system: &mut dyn System,
    store: &mut Client<T>,
    config: &VmConfig,
    index: usize,
    owner: &str,
    own: &DomainSet,
    earlier: &[DiskUse],
) -> Result<Option<DiskUse>, Failure> {
    let disk = &config.disks[index];
    if disk.is_empty() {
        return Ok(None);
    }
    let mut others = others(system, store, disk, own)?;
    others.extend_from_slice(earlier);
    let who = disk.user(&config.name);
    let id = storage::check(system, &wanted(disk, owner, &who, &others), disk.format);
    let id = id.map_err(told)?;
    Ok(id.map(|disk_id| DiskUse {
        disk: disk_id,
        mode: disk.mode,
        who,
        advice: DETACH_THERE.to_owned(),
    }))
}

// A function by value, for `map_err`.
#[expect(clippy::needless_pass_by_value, reason = "map_err gives it")]
fn told(error: AttachError) -> Failure {
    Failure(error.to_string())
}

fn wanted<'a>(
    disk: &'a DiskConfig,
    owner: &'a str,
    who: &'a str,
    others: &'a [DiskUse],
) -> Wanted<'a> {
    Wanted { target: &disk.target, mode: disk.mode, owner, who, others }
}

/// A disk's backend.
pub(super) struct Backend {
    pub(super) domid: DomId,
    pub(super) path: String,
    pub(super) devid: String,
}

/// Disks in use by domains of other toolstacks. Not needed for `w!`.
fn others<T: Transport>(
    system: &mut dyn System,
    store: &mut Client<T>,
    disk: &DiskConfig,
    own: &DomainSet,
) -> Result<Vec<DiskUse>, Failure> {
    if disk.mode == Mode::Shared {
        return Ok(Vec::new());
    }
    let backends = backends(store, own)?;
    if backends.is_empty() {
        return Ok(Vec::new());
    }
    let domids: BTreeSet<DomId> = backends.iter().map(|it| it.domid).collect();
    let names = names(store, &domids.into_iter().collect::<Vec<_>>())?;
    uses(system, store, &backends, &names)
}

/// The disks' backends in dom0, the kernel's and QEMU's, of domains that are not ours.
fn backends<T: Transport>(store: &mut Client<T>, own: &DomainSet) -> Result<Vec<Backend>, Failure> {
    let mut found = Vec::new();
    for kind in ["vbd", "qdisk"] {
        let folder = format!("/local/domain/0/backend/{kind}");
        found.extend(backends_in(store, &folder, |domid| !own.contains(domid))?);
    }
    Ok(found)
}

/// The backends in a folder of one kind, of domains that are wanted.
pub(super) fn backends_in<T: Transport>(
    store: &mut Client<T>,
    folder: &str,
    is_wanted: impl Fn(DomId) -> bool,
) -> Result<Vec<Backend>, Failure> {
    let domids = children(store, folder)?;
    let domids = domids.iter().filter_map(|name| name.parse().ok().map(DomId));
    let domids: Vec<DomId> = domids.filter(|domid| is_wanted(*domid)).collect();
    let mut look = Batch::new();
    for domid in &domids {
        look.directory(&format!("{folder}/{domid}"));
    }
    let replies = store.run(&look)?;
    let mut found = Vec::new();
    for (index, domid) in domids.into_iter().enumerate() {
        for devid in replies.get_optional(index)?.map(child_names).unwrap_or_default() {
            found.push(Backend { domid, path: format!("{folder}/{domid}/{devid}"), devid });
        }
    }
    Ok(found)
}

/// Names of a directory's reply.
fn child_names(bytes: &[u8]) -> Vec<String> {
    let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn uses<T: Transport>(
    system: &mut dyn System,
    store: &mut Client<T>,
    backends: &[Backend],
    names: &BTreeMap<DomId, String>,
) -> Result<Vec<DiskUse>, Failure> {
    const KEYS: [&str; 4] = ["physical-device", "params", "mode", "dev"];
    let mut look = Batch::new();
    for backend in backends {
        for key in KEYS {
            look.read(&format!("{}/{key}", backend.path));
        }
    }
    let replies = store.run(&look)?;
    let mut uses = Vec::new();
    for (index, backend) in backends.iter().enumerate() {
        let value = |key: usize| -> Result<String, ClientError> {
            let bytes = replies.get_optional(index * KEYS.len() + key)?;
            Ok(bytes.map(|it| String::from_utf8_lossy(it).into_owned()).unwrap_or_default())
        };
        let (number, params, mode, dev) = (value(0)?, value(1)?, value(2)?, value(3)?);
        let Some(disk) = identify(system, &number, &params) else { continue };
        let mode = match mode {
            shared if shared.contains('!') => Mode::Shared,
            written if written.starts_with('w') => Mode::ReadWrite,
            _ => Mode::ReadOnly,
        };
        let domid = backend.domid;
        let name = names.get(&domid).map(|name| format!(" ({name})")).unwrap_or_default();
        let dev = if dev.is_empty() { &backend.devid } else { &dev };
        let who = format!("domain {domid}{name} of another toolstack (vbd {dev})");
        uses.push(DiskUse { disk, mode, who, advice: DETACH_THERE.to_owned() });
    }
    Ok(uses)
}

/// What a backend serves: a device by number, or a path prefixed with its format.
fn identify(system: &mut dyn System, number: &str, params: &str) -> Option<DiskId> {
    if let Some(number) = DeviceNumber::parse(number) {
        return Some(DiskId::Device(number));
    }
    let path = &params[params.find('/')?..];
    // A deleted file has no other user.
    system.identify(path).ok()
}
