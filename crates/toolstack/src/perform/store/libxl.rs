//! Nodes as libxl has them: of domains that come from it, and of those that go to it.

use std::collections::BTreeMap;

use xen::{DomId, DomainInfo, DomainRef, Uuid};
use xenstore::client::{Batch, Client, ClientError, Nodes as _, Transport};

use super::{check_link, commit_for, guarded, put_all, remove, text};
use crate::foreign::{ForeignDevice, ForeignReading, VBD_KEYS, VIF_KEYS};
use crate::layout::{
    DeviceKind, DeviceRef, Ends, Nodes, Removal, record_path, record_removal, vm_link, vm_path,
};
use crate::work::Failure;

/// The store's data on a domain of libxl, except the files of its disks.
pub(crate) fn foreign<T: Transport>(
    store: &mut Client<T>,
    domain: DomainRef,
    info: DomainInfo,
) -> Result<ForeignReading, Failure> {
    let domid = domain.domid;
    let (path, libxl) = (format!("/local/domain/{domid}"), format!("/libxl/{domid}"));
    let mut look = Batch::new();
    let mut read = |path: String| look.read(&path);
    let (link, name) = (read(vm_link(domid)), read(format!("{path}/name")));
    let kind = read(format!("{libxl}/type"));
    let static_max = read(format!("{path}/memory/static-max"));
    let target = read(format!("{path}/memory/target"));
    let (port, gfn) = (read(format!("{path}/store/port")), read(format!("{path}/store/ring-ref")));
    let replies = store.run(&look)?;
    check_link(&replies, link, domid, info.handle)?;
    let value =
        |index| -> Result<Option<String>, Failure> { Ok(replies.get_optional(index)?.map(text)) };
    let mut reading = ForeignReading {
        domain,
        info,
        name: value(name)?.unwrap_or_default(),
        kind: value(kind)?.unwrap_or_default(),
        static_max_kib: value(static_max)?.and_then(|text| text.parse().ok()),
        target_kib: value(target)?.and_then(|text| text.parse().ok()),
        store_port: value(port)?.and_then(|text| text.parse().ok()),
        store_gfn: value(gfn)?.and_then(|text| text.parse().ok()),
        other_devices: Vec::new(),
        devices: Vec::new(),
    };
    let (devices, others) = libxl_devices(store, domid)?;
    reading.other_devices = others;
    reading.devices = foreign_devices(store, domid, &devices)?;
    reading.devices.sort_by_key(|it| it.device);
    Ok(reading)
}

/// The devices in libxl's directory of a domain: those of supported kinds, and the names of other
/// kinds.
fn libxl_devices<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
) -> Result<(Vec<DeviceRef>, Vec<String>), ClientError> {
    let path = format!("/libxl/{domid}/device");
    let (mut devices, mut others) = (Vec::new(), Vec::new());
    for word in children(store, &path)? {
        let ids = children(store, &format!("{path}/{word}"))?;
        let kind = [DeviceKind::Vbd, DeviceKind::Vif].into_iter().find(|it| it.as_str() == word);
        match kind {
            Some(kind) => {
                let device = |id: &String| Some(DeviceRef { kind, devid: id.parse().ok()? });
                devices.extend(ids.iter().filter_map(device));
            }
            // The first console only needs xenconsoled.
            None if word == "console" && ids.iter().all(|id| id == "0") => {}
            None => others.push(word),
        }
    }
    Ok((devices, others))
}

/// The devices of a VM of ours with an unreadable record; none if the nodes do not belong to the
/// VM.
pub(crate) fn devices_left<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<Vec<DeviceRef>, Failure> {
    match store.read_optional(&vm_link(domid))? {
        Some(vm) if vm == vm_path(uuid).as_bytes() => Ok(libxl_devices(store, domid)?.0),
        _ => Ok(Vec::new()),
    }
}

/// Names below a node, none if there is no such node.
pub(crate) fn children<T: Transport>(
    store: &mut Client<T>,
    path: &str,
) -> Result<Vec<String>, ClientError> {
    match store.directory(path) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}

fn foreign_devices<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    devices: &[DeviceRef],
) -> Result<Vec<ForeignDevice>, ClientError> {
    let mut look = Batch::new();
    for device in devices {
        look.read(&format!("{}/backend", device.libxl(domid)));
    }
    let replies = store.run(&look)?;
    let backends = (0..devices.len())
        .map(|index| Ok(replies.get_optional(index)?.map(text).unwrap_or_default()));
    let backends = backends.collect::<Result<Vec<String>, ClientError>>()?;
    let mut look = Batch::new();
    let mut places = Vec::with_capacity(devices.len());
    for (device, backend) in devices.iter().zip(backends) {
        let keys: &[&'static str] = match device.kind {
            DeviceKind::Vbd => &VBD_KEYS,
            DeviceKind::Vif => &VIF_KEYS,
            DeviceKind::Console
            | DeviceKind::Vfb
            | DeviceKind::Vkbd
            | DeviceKind::NinePfs
            | DeviceKind::Pci => &[],
        };
        // What is a driver domain's it may have written; libxl has a copy of its own.
        let folder = match Ends::of_backend(*device, domid, &backend) {
            Some(ends) if !ends.is_in_domain_0() => device.libxl(domid),
            _ => device.in_domain_0(domid).backend_path(),
        };
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push((*key, look.read(&format!("{folder}/{key}"))));
        }
        places.push((*device, backend, values));
    }
    let replies = store.run(&look)?;
    let mut found = Vec::with_capacity(devices.len());
    for (device, backend, values) in places {
        let mut keys = BTreeMap::new();
        for (key, index) in values {
            keys.extend(replies.get_optional(index)?.map(|value| (key, text(value))));
        }
        found.push(ForeignDevice { device, backend, keys, file: None });
    }
    Ok(found)
}

/// Writes what another toolstack needs of a domain, and removes its record with it.
pub(crate) fn disown<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    nodes: &Nodes,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    put_all(&mut batch, nodes);
    batch.rm(&record_path(uuid));
    commit_for(store, domid, &batch)?;
    // It is given; what is empty above is left to whoever comes next.
    let _left = remove(store, None, uuid, &[record_removal(uuid)]);
    Ok(())
}

/// Removes unneeded nodes and writes the record, if the domain's nodes still belong to the VM.
pub(crate) fn adopt<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    nodes: &Nodes,
    removals: &[Removal],
) -> Result<(), Failure> {
    remove(store, Some(domid), uuid, removals)?;
    let mut batch = guarded(domid, uuid);
    // An unreadable record is removed completely.
    let record = record_path(uuid);
    if store.read_optional(&record)?.is_some() {
        batch.rm(&record);
    }
    put_all(&mut batch, nodes);
    commit_for(store, domid, &batch)
}
