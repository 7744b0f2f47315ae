//! What hotplug scripts leave in the store, and how far they are.

use storage::BlockDevice;
use xen::{DomId, Uuid};
use xenstore::client::{Batch, Client, ClientError, Nodes as _, Transport};

use super::{commit_for, guarded, text};
use crate::hotplug::{self, Mark};
use crate::layout::{DeviceRef, vm_link, vm_path};
use crate::work::Failure;

/// How far the script of a device is; `None` if there is no such device of the VM.
pub(crate) fn script_mark<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    device: DeviceRef,
) -> Result<Option<Option<Mark>>, ClientError> {
    let mut look = Batch::new();
    let link = look.read(&vm_link(domid));
    let script = look.read(&format!("{}/script", device.in_domain_0(domid).backend_path()));
    let mark = look.read(&device.script_mark(domid));
    let seen = store.run(&look)?;
    let is_ours = seen.get_optional(link)?.is_some_and(|vm| vm == vm_path(uuid).as_bytes());
    if !is_ours || seen.get_optional(script)?.is_none() {
        return Ok(None);
    }
    Ok(Some(seen.get_optional(mark)?.and_then(Mark::decode)))
}

/// Notes how far it is.
pub(crate) fn mark_script<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    device: DeviceRef,
    mark: Mark,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    batch.guard_present(&format!("{}/script", device.in_domain_0(domid).backend_path()));
    batch.write(&device.script_mark(domid), mark.as_str());
    commit_for(store, domid, &batch)
}

/// What a script has written for the operator; empty if nothing.
pub(crate) fn script_error<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    device: DeviceRef,
) -> Result<String, ClientError> {
    let words = store
        .read_optional(&format!("{}/hotplug-error", device.in_domain_0(domid).backend_path()))?;
    Ok(words.as_deref().map(text).unwrap_or_default())
}

/// The block device that a script has written there.
pub(crate) fn connected_disk<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    device: DeviceRef,
) -> Result<Option<BlockDevice>, ClientError> {
    let backend = device.in_domain_0(domid).backend_path();
    let mut look = Batch::new();
    let number = look.read(&format!("{backend}/physical-device"));
    let path = look.read(&format!("{backend}/physical-device-path"));
    let seen = store.run(&look)?;
    let word = |index| -> Result<String, ClientError> {
        Ok(seen.get_optional(index)?.map(text).unwrap_or_default())
    };
    Ok(hotplug::connected_device(&word(number)?, &word(path)?))
}
