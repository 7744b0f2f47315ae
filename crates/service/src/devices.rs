//! Requests about devices of running domains; devices and limits as clients name them.

use std::path::Path;
use std::sync::Arc;

use api::Target;
use toolstack::config::{DiskConfig, Mac, VmConfig};
use toolstack::layout::{self, DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::scheduler::{Class, Limits};
use toolstack::xlcfg::{self, HostDefaults};
use toolstack::{Device, MediumChange, Request};
use xen::Uuid;

use crate::configs::absolute;
use crate::{Failed, Progress, Service};

impl Service<'_> {
    pub(crate) fn block_attach(
        &self,
        target: &str,
        spec: &str,
        cwd: &str,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        let disk = disk(spec, Path::new(cwd)).map_err(Failed::Told)?;
        self.plug(target, Device::Disk(disk), progress)
    }

    pub(crate) fn block_detach(
        &self,
        target: &str,
        name: &str,
        force: bool,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        self.unplug(target, disk_ref(name).map_err(Failed::Told)?, force, progress)
    }

    pub(crate) fn cd_insert(
        &self,
        target: String,
        drive: &str,
        path: &str,
        cwd: &str,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        let device = disk_ref(drive).map_err(Failed::Told)?;
        let spec = format!("format=raw,vdev={drive},access=r,devtype=cdrom,target={path}");
        let medium = disk(&spec, Path::new(cwd)).map_err(Failed::Told)?;
        self.change_medium(target, device, Some(medium), force)
    }

    pub(crate) fn cd_eject(
        &self,
        Target(target): Target,
        drive: &str,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        self.change_medium(target, disk_ref(drive).map_err(Failed::Told)?, None, force)
    }

    fn change_medium(
        &self,
        target: String,
        drive: DeviceRef,
        medium: Option<DiskConfig>,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        let change = Box::new(MediumChange { drive, medium, how: unplug(force) });
        self.done(Request::ChangeMedium { target, change })
    }

    pub(crate) fn network_attach(&self, target: &Target, spec: &str) -> Result<api::Reply, Failed> {
        let (config, uuid) = self.config_and_uuid(target)?;
        let defaults = self.host_defaults()?;
        let device = vif(spec, &config, &defaults).map_err(Failed::Told)?;
        // Whoever has the name by now is not meant.
        self.plug(&uuid.to_string(), device, Progress::Unwanted)
    }

    pub(crate) fn network_detach(
        &self,
        target: &Target,
        name: &str,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        let (config, uuid) = self.config_and_uuid(target)?;
        let device = vif_ref(name, &config, uuid).map_err(Failed::Told)?;
        self.unplug(&uuid.to_string(), device, force, Progress::Unwanted)
    }

    pub(crate) fn keyboard_attach(
        &self,
        target: &Target,
        spec: &str,
    ) -> Result<api::Reply, Failed> {
        let (config, uuid) = self.config_and_uuid(target)?;
        let keyboard = xlcfg::parse_keyboard(spec);
        let keyboard = keyboard.map_err(|problem| Failed::Told(format!("vkb: {problem}")))?;
        let device = Device::Keyboard(config.served.next_keyboard(), keyboard);
        self.plug(&uuid.to_string(), device, Progress::Unwanted)
    }

    pub(crate) fn keyboard_detach(
        &self,
        Target(target): &Target,
        number: &str,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        let devid = number.parse().map_err(|_| {
            Failed::Told(format!("{number}: no number of a keyboard; `xy vkb-list` shows them"))
        })?;
        let device = DeviceRef { kind: DeviceKind::Vkbd, devid };
        self.unplug(target, device, force, Progress::Unwanted)
    }

    pub(crate) fn config_and_uuid(&self, target: &Target) -> Result<(Arc<VmConfig>, Uuid), Failed> {
        let row = self.rows(std::slice::from_ref(target))?.pop();
        let found = row.and_then(|row| Some((row.config?, row.info.handle)));
        found.ok_or_else(|| Failed::Told(format!("{}: not managed by Xylem", target.0)))
    }

    pub(crate) fn plug(
        &self,
        target: &str,
        device: Device,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        let request = Request::Plug { target: target.to_owned(), device: Box::new(device) };
        self.ask_telling(target, request, progress).map(|_| api::Reply::Done)
    }

    fn unplug(
        &self,
        target: &str,
        device: DeviceRef,
        force: bool,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        let request = Request::Unplug { target: target.to_owned(), device, how: unplug(force) };
        self.ask_telling(target, request, progress).map(|_| api::Reply::Done)
    }
}

pub(crate) fn unplug(force: bool) -> Unplug {
    if force { Unplug::Forced } else { Unplug::Clean }
}

/// A disk as in `disk=`; a relative path is relative to `cwd`, `sr:vdi` is not a path.
pub(crate) fn disk(spec: &str, cwd: &Path) -> Result<DiskConfig, String> {
    let mut disk = xlcfg::parse_disk(spec).map_err(|problem| format!("disk: {problem}"))?;
    if disk.is_attached_first() && ::storage::VdiName::parse(&disk.target).is_none() {
        disk.target = absolute(cwd, &disk.target);
    }
    Ok(disk)
}

/// A disk by name or number: `xvdb`, `51728`.
pub(crate) fn disk_ref(name: &str) -> Result<DeviceRef, String> {
    let devid = xlcfg::parse_vdev(name).map_err(|error| format!("{name}: {error}"))?;
    Ok(DeviceRef { kind: DeviceKind::Vbd, devid })
}

/// An interface as in `vif=`, with the first free number unless one is given.
pub(crate) fn vif(
    spec: &str,
    config: &VmConfig,
    defaults: &HostDefaults,
) -> Result<Device, String> {
    let is_free = |devid: &u32| config.vifs.iter().all(|vif| vif.devid != *devid);
    let free = (0..=u32::MAX).find(is_free).expect("numbers abound");
    let vif =
        xlcfg::parse_vif_on(defaults, spec, free).map_err(|problem| format!("vif: {problem}"))?;
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

/// Replaces the given limits.
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
        (Class::Memory, changes.memory),
        (Class::Send, changes.send),
        (Class::Receive, changes.receive),
    ] {
        if let Some(limit) = change {
            limits.classes.insert(class, limit);
        }
    }
}
