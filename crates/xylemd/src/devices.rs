//! Devices and limits as clients name them.

use std::path::Path;

use toolstack::config::{Mac, VmConfig};
use toolstack::layout::{self, DeviceKind, DeviceRef};
use toolstack::scheduler::{Class, Limits};
use toolstack::{Device, xlcfg};
use xen::Uuid;

use crate::host;

/// A disk as in `disk=`; a relative path begins at `cwd`, `sr:vdi` is none.
pub(crate) fn disk(spec: &str, cwd: &Path) -> Result<Device, String> {
    let mut disk = xlcfg::parse_disk(spec).map_err(|problem| format!("disk: {problem}"))?;
    if !disk.is_empty() && storage::VdiName::parse(&disk.target).is_none() {
        disk.target = host::absolute(cwd, &disk.target);
    }
    Ok(Device::Disk(disk))
}

/// A disk by name or number: `xvdb`, `51728`.
pub(crate) fn disk_ref(name: &str) -> Result<DeviceRef, String> {
    let devid = xlcfg::parse_vdev(name).map_err(|error| format!("{name}: {error}"))?;
    Ok(DeviceRef { kind: DeviceKind::Vbd, devid })
}

/// An interface as in `vif=`, with the first free number unless it says one.
pub(crate) fn vif(spec: &str, config: &VmConfig) -> Result<Device, String> {
    let is_free = |devid: &u32| config.vifs.iter().all(|vif| vif.devid != *devid);
    let free = (0..=u32::MAX).find(is_free).expect("numbers abound");
    let vif = xlcfg::parse_vif(spec, free).map_err(|problem| format!("vif: {problem}"))?;
    Ok(Device::Vif(vif))
}

/// An interface by number or address.
pub(crate) fn vif_ref(name: &str, config: &VmConfig, uuid: Uuid) -> Result<DeviceRef, String> {
    let mac: Option<Mac> = name.parse().ok();
    let of_mac = config
        .vifs
        .iter()
        .find(|vif| mac == Some(vif.mac.unwrap_or_else(|| layout::default_mac(uuid, vif.devid))));
    let devid = of_mac.map(|vif| vif.devid).or_else(|| name.parse().ok());
    let devid = devid.ok_or_else(|| {
        format!("{name}: no interface of {}; `xy network-list` shows them", config.name)
    })?;
    Ok(DeviceRef { kind: DeviceKind::Vif, devid })
}

/// Puts the limits that are given in the place of the old.
pub(crate) fn change(limits: &mut Limits, changes: api::LimitChanges) {
    for (limit, change) in [
        (&mut limits.host, changes.host),
        (&mut limits.vm, changes.vm),
        (&mut limits.sr, changes.sr),
        (&mut limits.backend, changes.backend),
    ] {
        *limit = change.unwrap_or(*limit);
    }
    for (class, change) in [
        (Class::Storage, changes.storage),
        (Class::Domain, changes.domain),
        (Class::Scan, changes.scan),
        (Class::Change, changes.change),
    ] {
        if let Some(limit) = change {
            limits.classes.insert(class, limit);
        }
    }
}
