//! PCI devices for a domain that runs, and from it.
//!
//! The backend is told what to do with each device by the device's own state, and the guest by the backend's: it lets go of
//! those that are Closing, and looks for new ones.
//!
//! Source: Linux `drivers/pci/xen-pcifront.c`, `drivers/xen/xen-pciback/xenbus.c`; xen `tools/libs/light/libxl_pci.c`.

use std::collections::BTreeSet;

use xen::{
    Assignment, DomId, DomainRef, Errno, Hypervisor, PciAddress, Permission, Uuid, XenbusState,
};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::super::{Performer, failure, store};
use super::unreadable;
use crate::config::{PciDevice, VmConfig};
use crate::host::Host;
use crate::layout::{self, DeviceKind, DeviceRef, Nodes};
use crate::pci::{Assigned, PciRow};
use crate::work::Failure;

fn means(entry: &PciDevice, row: &PciRow) -> bool {
    entry.name.means(row.address, row.name.as_deref())
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Gives a domain the devices of one more entry. What an earlier daemon began is completed.
    pub(crate) fn plug_devices(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        config: &VmConfig,
        entry: usize,
    ) -> Result<(), Failure> {
        let domid = domain.domid;
        let mut devices = self.wanted_of(&config.options.pci[entry], &config.name, Some(uuid))?;
        let has: BTreeSet<PciAddress> =
            self.devices_of(domid)?.into_iter().map(|row| row.address).collect();
        devices.retain(|device| !has.contains(&device.address));
        if devices.is_empty() {
            return Ok(());
        }
        for device in &devices {
            self.seize(device)?;
            if self.owner(device.address)? == Some(domid) {
                // An earlier daemon may have got as far as Xen.
                let _assigned = self.xen.assign_device(domid, device.address, Assignment::Deassign);
            }
        }
        // A later daemon finds by this what to take back.
        store::add_device(&mut self.store, domid, uuid, &layout::pci_owner_nodes(domid, &devices))?;
        for device in &devices {
            self.assign(domid, device)?;
        }
        let nodes = self.plugged_nodes(domid, config, &devices)?;
        store::add_device(&mut self.store, domid, uuid, &nodes)
    }

    fn plugged_nodes(
        &mut self,
        domid: DomId,
        config: &VmConfig,
        devices: &[Assigned],
    ) -> Result<Nodes, Failure> {
        Ok(match self.device_count(domid)? {
            None => layout::pci_nodes(domid, &config.name, devices),
            Some(first) => layout::more_pci_nodes(domid, first, devices),
        })
    }

    /// Asks the guest to let go of an entry's devices, after `nodes` were written.
    pub(crate) fn ask_for_devices(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        entry: &PciDevice,
        nodes: &Nodes,
    ) -> Result<(), Failure> {
        let domid = domain.domid;
        let backend = layout::pci_backend(domid);
        let mut nodes = nodes.clone();
        let rows = self.devices_of(domid)?;
        let mut any = false;
        for (index, _) in rows.iter().enumerate().filter(|(_, row)| means(entry, row)) {
            nodes.put(format!("{backend}/state-{index}"), XenbusState::Closing.as_str());
            any = true;
        }
        if any {
            nodes.put(format!("{backend}/state"), XenbusState::Reconfiguring.as_str());
        }
        store::add_device(&mut self.store, domid, uuid, &nodes)
    }

    /// Takes an entry's devices from a domain, and writes `nodes` with that.
    pub(crate) fn unplug_devices(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        entry: &PciDevice,
        nodes: &Nodes,
    ) -> Result<(), Failure> {
        let domid = domain.domid;
        let rows = self.devices_of(domid)?;
        let (gone, kept): (Vec<_>, Vec<_>) = rows.iter().partition(|row| means(entry, row));
        let kept: BTreeSet<PciAddress> = kept.iter().map(|row| row.address).collect();
        let mut gone: BTreeSet<PciAddress> = gone.iter().map(|row| row.address).collect();
        // Those that it was about to get are in no row yet.
        gone.extend(self.said_to_be_of(domid)?.into_iter().filter(|it| !kept.contains(it)));
        for device in &gone {
            self.take_device(domid, *device, &kept)?;
        }
        self.remove_rows(domid, uuid, &rows, &gone, nodes)?;
        for device in gone {
            self.forget_owner(domid, device)?;
        }
        Ok(())
    }

    /// The guest may do nothing with it any more, and Xen has it in quarantine.
    fn take_device(
        &mut self,
        domid: DomId,
        device: PciAddress,
        kept: &BTreeSet<PciAddress>,
    ) -> Result<(), Failure> {
        let regions = self.host.pci().regions(device).map_err(|error| unreadable(device, error))?;
        for region in regions {
            self.allow_region(domid, device, region, Permission::Deny)?;
        }
        let mut interrupt =
            |device| self.host.pci().interrupt(device).map_err(|error| unreadable(device, error));
        if let Some(gsi) = interrupt(device)? {
            let mut is_shared = false;
            for other in kept {
                is_shared |= interrupt(*other)? == Some(gsi);
            }
            if !is_shared {
                self.deny_interrupt(domid, gsi).map_err(|errno| {
                    Failure(format!("{device}: interrupt {gsi}: Xen returned {errno}"))
                })?;
            }
        }
        match self.xen.assign_device(domid, device, Assignment::Deassign) {
            Ok(()) => {
                let _reset = self.host.pci().reset(device);
                Ok(())
            }
            // It never got it, or an earlier daemon has taken it. Another domain may have it by now.
            Err(Errno::ENODEV | Errno::EINVAL) => Ok(()),
            Err(errno) => {
                Err(failure(device, format!("cannot be taken back: Xen returned {errno}")))
            }
        }
    }

    /// The devices that are kept move up; with the last one the split device goes.
    fn remove_rows(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        rows: &[PciRow],
        gone: &BTreeSet<PciAddress>,
        nodes: &Nodes,
    ) -> Result<(), Failure> {
        if rows.iter().all(|row| gone.contains(&row.address)) {
            // Paths of all entries are the same.
            let bus = DeviceRef { kind: DeviceKind::Pci, devid: 0 };
            let removals = layout::removed_device_paths(bus.in_domain_0(domid));
            store::remove(&mut self.store, Some(domid), uuid, &removals)?;
            return store::add_device(&mut self.store, domid, uuid, nodes);
        }
        let backend = layout::pci_backend(domid);
        let path = |node: &str, index: usize| format!("{backend}/{node}-{index}");
        let mut look = Batch::new();
        for index in 0..rows.len() {
            for node in layout::PCI_ENTRY_NODES {
                look.read(&path(node, index));
            }
        }
        let found = self.store.run(&look)?;
        let width = layout::PCI_ENTRY_NODES.len();
        let kept: Vec<usize> =
            (0..rows.len()).filter(|index| !gone.contains(&rows[*index].address)).collect();
        let mut batch = store::guarded(domid, uuid);
        for to in 0..rows.len() {
            for (at, node) in layout::PCI_ENTRY_NODES.into_iter().enumerate() {
                let moved = kept.get(to).map(|from| found.get_optional(from * width + at));
                let moved = moved.transpose()?.flatten();
                let stale = found.get_optional(to * width + at)?;
                match moved {
                    Some(value) if stale != Some(value) => {
                        batch.write(&path(node, to), value);
                    }
                    None if stale.is_some() => {
                        batch.rm(&path(node, to));
                    }
                    _ => {}
                }
            }
        }
        batch.write(&format!("{backend}/num_devs"), kept.len().to_string());
        store::put_all(&mut batch, nodes);
        store::commit_for(&mut self.store, domid, &batch)
    }
}
