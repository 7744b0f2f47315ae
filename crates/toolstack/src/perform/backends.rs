//! Driver domains: which domain a name stands for now, and who uses a disk there.

use xen::{DomId, DomainInfo, DomainRef, Hypervisor};
use xenstore::client::{Batch, Client, Nodes as _, Transport};

use super::disks::{Backend, backends_in};
use super::{Performer, failure, refused, store};
use crate::config::{Access, DiskConfig, Mode, VmConfig};
use crate::host::Host;
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::work::Failure;

/// A device that is to be served by a driver domain.
#[derive(Clone, Copy)]
pub(crate) struct WantedBackend<'a> {
    pub(crate) config: &'a VmConfig,
    pub(crate) device: DeviceRef,
    /// Whether it is one of those that the configuration's file names.
    pub(crate) is_in_file: bool,
}

impl WantedBackend<'_> {
    /// As in messages: the line of the file, or the VM and the device.
    fn place(&self) -> String {
        let Self { config, device, is_in_file } = self;
        let key = match device.kind {
            DeviceKind::Vbd => {
                let place = config.disks.iter().position(|it| it.vdev.number == device.devid);
                place.map(|index| format!("disk[{index}]"))
            }
            _ => {
                let place = config.vifs.iter().position(|it| it.devid == device.devid);
                place.map(|index| format!("vif[{index}]"))
            }
        };
        match key.filter(|_| *is_in_file) {
            Some(key) => config.origin.at(&key),
            None => format!("{}: {}", config.name, device.spoken()),
        }
    }

    fn disk(&self) -> Option<&DiskConfig> {
        let is_disk = self.device.kind == DeviceKind::Vbd;
        let mut disks = self.config.disks.iter().filter(|_| is_disk);
        disks.find(|it| it.vdev.number == self.device.devid)
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Finds the driver domain of a device, and that the device may be used there. `known` had its name when last seen;
    /// `domain` is the one to be served, if it exists.
    pub(crate) fn find_backend(
        &mut self,
        wanted: WantedBackend<'_>,
        known: Option<DomId>,
        domain: Option<DomainRef>,
    ) -> Result<DomId, Failure> {
        let name = layout::wanted_backend(wanted.config, wanted.device);
        let name = name.expect("planned for a device of a driver domain");
        let place = format!("{}: backend={name}", wanted.place());
        // As xl has it, digits are a domid.
        let info = match name.parse() {
            Ok(number) => self.living(DomId(number))?,
            Err(_) => self.domain_called(name, known)?,
        };
        let info = info.ok_or_else(|| {
            Failure(format!("{place}: there is no such domain; start the driver domain first"))
        })?;
        if info.flags.shutdown().is_some() {
            return Err(Failure(format!("{place}: domain {} has stopped", info.domid)));
        }
        if domain.is_some_and(|it| it.domid == info.domid) {
            return Err(Failure(format!("{place}: a VM cannot serve its own devices")));
        }
        if let Some(disk) = wanted.disk() {
            check_disk(&mut self.store, info.domid, disk, domain.map(|it| it.domid))
                .map_err(|error| failure(&place, error.0))?;
        }
        Ok(info.domid)
    }

    /// The domain with this number, unless it is being destroyed.
    fn living(&mut self, domid: DomId) -> Result<Option<DomainInfo>, Failure> {
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        Ok(info.filter(|info| !info.flags.dying()))
    }

    /// The domain with this name. Only if it is not the one that had it, all are listed.
    fn domain_called(
        &mut self,
        name: &str,
        known: Option<DomId>,
    ) -> Result<Option<DomainInfo>, Failure> {
        if let Some(domid) = known
            && let Some(info) = self.living(domid)?
            && store::names(&mut self.store, &[domid])?.get(&domid).is_some_and(|it| it == name)
        {
            return Ok(Some(info));
        }
        let domains = self.xen.domains().map_err(|errno| failure("the list of domains", errno))?;
        let living: Vec<DomainInfo> =
            domains.into_iter().filter(|info| !info.flags.dying()).collect();
        let domids: Vec<DomId> = living.iter().map(|info| info.domid).collect();
        let names = store::names(&mut self.store, &domids)?;
        let mut living = living.into_iter();
        Ok(living.find(|info| names.get(&info.domid).is_some_and(|it| it == name)))
    }
}

/// Refuses a disk of a driver domain that another domain has there, if one of them writes it. Its script may know more.
fn check_disk<T: Transport>(
    store: &mut Client<T>,
    backend: DomId,
    disk: &DiskConfig,
    own: Option<DomId>,
) -> Result<(), Failure> {
    if disk.mode == Mode::Shared {
        return Ok(());
    }
    let folder = format!("/local/domain/{backend}/backend/vbd");
    let disks = backends_in(store, &folder, |domid| own != Some(domid))?;
    let mut look = Batch::new();
    for Backend { domid, path, devid } in &disks {
        look.read(&format!("{path}/params"));
        look.read(&format!("{path}/mode"));
        look.read(&format!("/libxl/{domid}/device/vbd/{devid}/dev"));
    }
    let replies = store.run(&look)?;
    for (index, Backend { domid, devid, .. }) in disks.into_iter().enumerate() {
        let value = |at: usize| replies.get_optional(3 * index + at);
        let (target, mode, dev) = (value(0)?, value(1)?, value(2)?);
        let is_written = disk.access() == Access::ReadWrite || mode != Some(b"r");
        if target != Some(disk.target.as_bytes()) || !is_written || mode == Some(b"w!") {
            continue;
        }
        let dev = dev.map_or(devid, store::text);
        return Err(Failure(format!(
            "{} is in use by domain {domid} (vbd {dev}); detach it there, or share it with access w! on both",
            disk.target
        )));
    }
    Ok(())
}
