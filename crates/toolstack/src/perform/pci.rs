//! Work on PCI devices of the host.

mod plug;

use storage::HostError;
use xen::{
    Assignment, DomId, Errno, Hypervisor, PAGE_BYTES, PAGE_SHIFT, PciAddress, Permission,
    ReservedMemory, Uuid,
};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::machine::NO_IOMMU;
use super::{Performer, failure, refused, store};
use crate::config::{PciDevice, PciName, RdmPolicy, VmConfig};
use crate::host::Host;
use crate::layout;
use crate::pci::{self, Assigned, DRIVERS, PCIBACK, PciAsk, PciRegion, PciRow, Wanted};
use crate::work::Failure;
use crate::xen_host::HostTold;

/// More than a PCI bus has room for.
const DEVICES_MAX: usize = 256;

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn pci_work(&mut self, ask: PciAsk) -> Result<HostTold, Failure> {
        match ask {
            PciAsk::Assignable => self.assignable().map(HostTold::Pci),
            PciAsk::MakeAssignable { device, name } => {
                self.make_assignable(device, name.as_deref()).map(HostTold::Warnings)
            }
            PciAsk::Return { device, rebind } => {
                self.return_device(&device, rebind).map(HostTold::Warnings)
            }
            PciAsk::Named { name } => {
                let address = self.named(&Wanted { text: name.clone(), address: None })?;
                Ok(HostTold::Pci(vec![PciRow { address, name: Some(name), guest_slot: 0 }]))
            }
            PciAsk::OfDomain { domid } => self.devices_of(domid).map(HostTold::Pci),
        }
    }

    fn assignable(&mut self) -> Result<Vec<PciRow>, Failure> {
        let mut devices = self.host.pci().of_pciback().map_err(not_loaded)?;
        devices.sort_unstable();
        let mut look = Batch::new();
        let asked: Vec<_> = devices
            .iter()
            .map(|&device| {
                let path = pci::path(device);
                (look.read(&format!("{path}/domid")), look.read(&format!("{path}/name")))
            })
            .collect();
        let found = self.store.run(&look)?;
        let mut rows = Vec::new();
        for (address, (domid, name)) in devices.into_iter().zip(asked) {
            if found.get_optional(domid)?.is_none() || self.owner(address)?.is_none() {
                let name = found.get_optional(name)?.map(store::text);
                rows.push(PciRow { address, name, guest_slot: 0 });
            }
        }
        Ok(rows)
    }

    /// What a killed daemon leaves half done is done by the same request again: the driver is remembered before the device is
    /// taken from it.
    fn make_assignable(
        &mut self,
        device: PciAddress,
        name: Option<&str>,
    ) -> Result<Vec<String>, Failure> {
        let physical = self.xen.phys_info().map_err(|errno| failure("the host", errno))?;
        if !physical.has_iommu() {
            return Err(failure(device, NO_IOMMU));
        }
        let driver = self.host.pci().driver(device).map_err(|error| unreadable(device, error))?;
        self.host.pci().of_pciback().map_err(not_loaded)?;
        self.check_unassigned(device)?;
        let mut warnings = Vec::new();
        if driver.as_deref() == Some(PCIBACK) {
            warnings.push(format!("{device}: is assignable already"));
        } else {
            warnings.extend(self.give_to_pciback(device, driver.as_deref())?);
        }
        let path = format!("{}/name", pci::path(device));
        match name {
            Some(name) => store::write_one(&mut self.store, &path, name)?,
            None => store::remove_tree(&mut self.store, &path)?,
        }
        // It has no memory that could be in the way.
        let assignment = Assignment::Assign(ReservedMemory::Ignore);
        self.xen.assign_device(DomId::IO, device, assignment).map_err(|errno| {
            Failure(format!(
                "{device}: {PCIBACK} has it, but Xen does not take it into quarantine: {errno}"
            ))
        })?;
        Ok(warnings)
    }

    /// It has its driver again if pciback does not take it.
    fn give_to_pciback(
        &mut self,
        device: PciAddress,
        driver: Option<&str>,
    ) -> Result<Option<String>, Failure> {
        let path = format!("{}/driver_path", pci::path(device));
        let mut warning = None;
        match driver {
            Some(driver) => {
                store::write_one(&mut self.store, &path, &format!("{DRIVERS}{driver}"))?;
                let unbound = self.host.pci().unbind(device, driver);
                unbound.map_err(|error| {
                    Failure(format!("{device}: cannot be taken from {driver}: {error}"))
                })?;
            }
            None if self.store.read_optional(&path)?.is_none() => {
                warning = Some(format!(
                    "{device}: had no driver: pci-assignable-remove will not give it to one"
                ));
            }
            None => {}
        }
        let bus = self.host.pci();
        let bound = bus.set_slot(device, true).and_then(|()| bus.bind(device, PCIBACK));
        let Err(error) = bound else { return Ok(warning) };
        // Whatever of this fails is what was wrong before.
        let _slot = bus.set_slot(device, false);
        let again = driver.map(|driver| (driver, bus.bind(device, driver)));
        let left = match again {
            Some((driver, Ok(()))) => format!("; {driver} has it again"),
            Some((driver, Err(error))) => format!("; nor does {driver}: {error}"),
            None => String::new(),
        };
        Err(Failure(format!("{device}: {PCIBACK} does not take it: {error}{left}")))
    }

    fn return_device(&mut self, wanted: &Wanted, rebind: bool) -> Result<Vec<String>, Failure> {
        let device = self.named(wanted)?;
        let driver = self.host.pci().driver(device).map_err(|error| unreadable(device, error))?;
        self.check_unassigned(device)?;
        self.xen.assign_device(DomId::IO, device, Assignment::Deassign).map_err(|errno| {
            Failure(match errno {
                Errno::ENODEV | Errno::EINVAL => format!(
                    "{device}: is not in quarantine; was it made assignable by pci-assignable-add?"
                ),
                Errno::EOPNOTSUPP | Errno::ENOSYS => format!("{device}: {NO_IOMMU}"),
                errno => format!("{device}: cannot leave its quarantine: Xen returned {errno}"),
            })
        })?;
        let mut warnings = Vec::new();
        let bus = self.host.pci();
        if driver.as_deref() == Some(PCIBACK) {
            let taken = bus.unbind(device, PCIBACK).and_then(|()| bus.set_slot(device, false));
            taken.map_err(|error| {
                Failure(format!("{device}: cannot be taken from {PCIBACK}: {error}"))
            })?;
        } else {
            warnings.push(format!("{device}: {PCIBACK} did not have it"));
        }
        if rebind {
            warnings.extend(self.rebind(device)?);
        }
        store::remove_tree(&mut self.store, &format!("{}/name", pci::path(device)))?;
        Ok(warnings)
    }

    /// To the driver that it had before.
    fn rebind(&mut self, device: PciAddress) -> Result<Option<String>, Failure> {
        let path = format!("{}/driver_path", pci::path(device));
        let Some(before) = self.store.read_optional(&path)?.as_deref().map(store::text) else {
            return Ok(Some(format!("{device}: has no driver now: it is not known which it had")));
        };
        let driver = before.strip_prefix(DRIVERS).filter(|it| !it.is_empty() && !it.contains('/'));
        let driver = driver.ok_or_else(|| {
            Failure(format!("{device}: has no driver now: {path} is {before:?}, which is none"))
        })?;
        let bound = self.host.pci().bind(device, driver);
        bound.map_err(|error| {
            Failure(format!("{device}: has no driver now: {driver} does not take it: {error}"))
        })?;
        store::remove_tree(&mut self.store, &path)?;
        Ok(None)
    }

    /// The first that has this name, otherwise the one with this address.
    fn named(&mut self, wanted: &Wanted) -> Result<PciAddress, Failure> {
        let mut devices = self.noted_devices()?;
        devices.sort_unstable();
        for device in devices {
            let name = self.store.read_optional(&format!("{}/name", pci::path(device)))?;
            if name.is_some_and(|name| name == wanted.text.as_bytes()) {
                return Ok(device);
            }
        }
        wanted.address.ok_or_else(|| {
            Failure(format!(
                "{:?}: no device has this name; `xy pci-assignable-list -n` shows them all",
                wanted.text
            ))
        })
    }

    /// The domain that is said to have a device. One that is gone has not: Xen took the device back, whatever its toolstack
    /// came to say of it.
    fn owner(&mut self, device: PciAddress) -> Result<Option<DomId>, Failure> {
        let said = self.store.read_optional(&format!("{}/domid", pci::path(device)))?;
        let said = said.and_then(|domid| store::text(&domid).parse().ok()).map(DomId);
        let Some(domid) = said else { return Ok(None) };
        let found = self.xen.domain(domid).map_err(refused("look at", domid))?;
        Ok(found.map(|_| domid))
    }

    fn check_unassigned(&mut self, device: PciAddress) -> Result<(), Failure> {
        match self.owner(device)? {
            None => Ok(()),
            Some(domid) => {
                Err(Failure(format!("{device}: domain {domid} has it; shut it down first")))
            }
        }
    }

    /// The functions that a configuration names: what each is, and which device has named it.
    fn wanted_devices(
        &mut self,
        config: &VmConfig,
        vm: Option<Uuid>,
    ) -> Result<Vec<Assigned>, Failure> {
        let mut all: Vec<Assigned> = Vec::new();
        for index in 0..config.options.pci.len() {
            let place = config.origin.at(&format!("pci[{index}]"));
            for wanted in self.wanted_of(&config.options.pci[index], &place, vm)? {
                let address = wanted.address;
                if all.iter().any(|it| it.address == address) {
                    return Err(failure(place, format!("{address}: is named twice")));
                }
                all.push(wanted);
            }
        }
        Ok(all)
    }

    /// Those of one entry.
    fn wanted_of(
        &mut self,
        device: &PciDevice,
        place: &str,
        vm: Option<Uuid>,
    ) -> Result<Vec<Assigned>, Failure> {
        let at = |Failure(why): Failure| Failure(format!("{place}: {why}"));
        let wanted = self.functions_of(device).map_err(at)?;
        for Assigned { address, .. } in &wanted {
            self.check_assignable(device, *address, vm).map_err(at)?;
        }
        Ok(wanted)
    }

    /// Checks that a running domain can have the devices of one more entry.
    pub(crate) fn check_more_devices(
        &mut self,
        config: &VmConfig,
        entry: usize,
    ) -> Result<(), Failure> {
        self.wanted_of(&config.options.pci[entry], &config.name, None).map(drop)
    }

    fn functions_of(&mut self, device: &PciDevice) -> Result<Vec<Assigned>, Failure> {
        let of_all = |address: PciAddress| Assigned::of(device, address, true);
        let place = match &device.name {
            PciName::Named(name) => {
                let wanted = Wanted { text: name.clone(), address: None };
                return Ok(vec![Assigned::of(device, self.named(&wanted)?, false)]);
            }
            PciName::Address(place) => place,
        };
        let first = place.first_function();
        if place.function.is_some() {
            return Ok(vec![Assigned::of(device, first, false)]);
        }
        if device.slot.is_none() {
            let problem =
                "all functions of a device need a slot on the guest's bus: @SLOT or vslot";
            return Err(failure(place, problem));
        }
        let mut functions =
            self.host.pci().functions(first).map_err(|error| unreadable(first, error))?;
        if functions.is_empty() {
            return Err(unreadable(first, HostError::Missing));
        }
        functions.sort_unstable();
        Ok(functions.into_iter().map(of_all).collect())
    }

    fn check_assignable(
        &mut self,
        device: &PciDevice,
        address: PciAddress,
        vm: Option<Uuid>,
    ) -> Result<(), Failure> {
        let driver = self.host.pci().driver(address).map_err(|error| unreadable(address, error))?;
        self.host.pci().of_pciback().map_err(not_loaded)?;
        if driver.as_deref() != Some(PCIBACK) && !device.seize {
            let has =
                driver.map_or("no driver".to_owned(), |driver| format!("the driver {driver}"));
            return Err(Failure(format!(
                "{address}: is not assignable, it has {has}; `xy pci-assignable-add {address}` makes it so"
            )));
        }
        if let (Some(owner), Some(vm)) = (self.owner(address)?, vm) {
            let link = layout::vm_link(owner);
            if self
                .store
                .read_optional(&link)?
                .is_some_and(|it| it == layout::vm_path(vm).as_bytes())
            {
                return Ok(());
            }
        }
        self.check_unassigned(address)
    }

    /// Checks that a VM can have the devices that it is to have, some of which this one may have already.
    pub(crate) fn check_devices(
        &mut self,
        config: &VmConfig,
        vm: Option<Uuid>,
    ) -> Result<(), Failure> {
        self.wanted_devices(config, vm).map(drop)
    }

    /// Gives them to its domain. If that fails its domain is destroyed, and with that Xen has all of them in quarantine again.
    pub(crate) fn assign_devices(
        &mut self,
        domid: DomId,
        config: &VmConfig,
    ) -> Result<Vec<Assigned>, Failure> {
        let devices = self.wanted_devices(config, None)?;
        for device in &devices {
            self.seize(device)?;
            self.assign(domid, device)?;
        }
        Ok(devices)
    }

    /// It was checked that this may be done, or that pciback has it.
    fn seize(&mut self, device: &Assigned) -> Result<(), Failure> {
        let Assigned { address: device, ref name, .. } = *device;
        let driver = self.host.pci().driver(device).map_err(|error| unreadable(device, error))?;
        if driver.as_deref() != Some(PCIBACK) {
            self.make_assignable(device, name.as_deref())?;
        }
        Ok(())
    }

    fn assign(&mut self, domid: DomId, device: &Assigned) -> Result<(), Failure> {
        let Assigned { address: device, is_permissive, rdm_policy, .. } = *device;
        let reserved = match rdm_policy {
            RdmPolicy::Strict => ReservedMemory::Refuse,
            RdmPolicy::Relaxed => ReservedMemory::Ignore,
        };
        let assignment = Assignment::Assign(reserved);
        self.xen.assign_device(domid, device, assignment).map_err(|errno| match errno {
            Errno::EBUSY => failure(device, "another domain has it"),
            Errno::EPERM => failure(
                device,
                "its firmware has reserved memory for it and other devices; rdm_policy=relaxed risks it",
            ),
            errno => Failure(format!("{device}: cannot be assigned: Xen returned {errno}")),
        })?;
        // Nobody else has it from here on. One that cannot be reset is given as it is, as libxl does.
        let _reset = self.host.pci().reset(device);
        let regions = self.host.pci().regions(device).map_err(|error| unreadable(device, error))?;
        for region in regions {
            self.allow_region(domid, device, region, Permission::Allow)?;
        }
        let interrupt =
            self.host.pci().interrupt(device).map_err(|error| unreadable(device, error))?;
        if let Some(gsi) = interrupt {
            self.allow_interrupt(domid, gsi).map_err(|errno| {
                Failure(format!("{device}: interrupt {gsi}: Xen returned {errno}"))
            })?;
        }
        if is_permissive {
            self.host.pci().set_permissive(device).map_err(|error| {
                Failure(format!("{device}: cannot be made permissive: {error}"))
            })?;
        }
        Ok(())
    }

    fn allow_region(
        &mut self,
        domid: DomId,
        device: PciAddress,
        region: PciRegion,
        permission: Permission,
    ) -> Result<(), Failure> {
        let PciRegion { first, bytes, is_ports } = region;
        let allowed = match (is_ports, u32::try_from(first), u32::try_from(bytes)) {
            (true, Ok(first), Ok(count)) => {
                self.xen.ioport_permission(domid, first, count, permission)
            }
            (true, ..) => Err(Errno::EINVAL),
            (false, ..) => {
                let frames = bytes.div_ceil(PAGE_BYTES as u64);
                self.xen.iomem_permission(domid, first >> PAGE_SHIFT, frames, permission)
            }
        };
        let what = if is_ports { "ports" } else { "memory" };
        allowed.map_err(|errno| {
            Failure(format!("{device}: {what} at {first:#x}: Xen returned {errno}"))
        })
    }

    /// Resets what a domain that is gone had, and forgets that it had it.
    pub(crate) fn return_devices(&mut self, domid: DomId) -> Result<(), Failure> {
        let mut devices: Vec<_> = self.devices_of(domid)?.iter().map(|row| row.address).collect();
        // With those that it was about to get.
        devices.extend(self.said_to_be_of(domid)?);
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            let _reset = self.host.pci().reset(device);
            self.forget_owner(domid, device)?;
        }
        Ok(())
    }

    fn forget_owner(&mut self, domid: DomId, device: PciAddress) -> Result<(), Failure> {
        let path = format!("{}/domid", pci::path(device));
        let owner = self.store.read_optional(&path)?;
        if owner.is_some_and(|owner| owner == domid.to_string().as_bytes()) {
            store::remove_tree(&mut self.store, &path)?;
        }
        Ok(())
    }

    /// Those of which the store has something.
    fn noted_devices(&mut self) -> Result<Vec<PciAddress>, Failure> {
        let nodes = match self.store.directory(pci::PATH) {
            Ok(nodes) => nodes,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(nodes.iter().filter_map(|node| pci::of_node(node)).collect())
    }

    /// Those that the store says a domain has.
    fn said_to_be_of(&mut self, domid: DomId) -> Result<Vec<PciAddress>, Failure> {
        let mut look = Batch::new();
        let asked: Vec<_> = self
            .noted_devices()?
            .into_iter()
            .map(|device| (device, look.read(&format!("{}/domid", pci::path(device)))))
            .collect();
        let found = self.store.run(&look)?;
        let mut devices = Vec::new();
        for (device, index) in asked {
            let owner = found.get_optional(index)?;
            if owner.is_some_and(|owner| owner == domid.to_string().as_bytes()) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// How many devices a domain's backend has; `None` if there is none.
    fn device_count(&mut self, domid: DomId) -> Result<Option<usize>, Failure> {
        let count = format!("{}/num_devs", layout::pci_backend(domid));
        let count = self.store.read_optional(&count)?;
        let number = |count: Vec<u8>| store::text(&count).parse::<usize>().unwrap_or_default();
        Ok(count.map(|count| number(count).min(DEVICES_MAX)))
    }

    pub(super) fn devices_of(&mut self, domid: DomId) -> Result<Vec<PciRow>, Failure> {
        let backend = layout::pci_backend(domid);
        let Some(count) = self.device_count(domid)? else { return Ok(Vec::new()) };
        let mut look = Batch::new();
        let asked: Vec<_> = (0..count)
            .map(|index| {
                let mut read = |node: &str| look.read(&format!("{backend}/{node}-{index}"));
                [read("dev"), read("name"), read("vdevfn")]
            })
            .collect();
        let found = self.store.run(&look)?;
        let mut rows = Vec::new();
        for indices in asked {
            let mut texts = Vec::new();
            for index in indices {
                texts.push(found.get_optional(index)?.map(store::text));
            }
            let [address, name, slot] = texts.try_into().expect("as many as were asked for");
            let Some(address) = address.as_deref().and_then(pci::parse_address) else { continue };
            let slot = slot.and_then(|slot| u8::from_str_radix(&slot, 16).ok());
            rows.push(PciRow { address, name, guest_slot: slot.unwrap_or_default() });
        }
        Ok(rows)
    }
}

fn not_loaded(error: HostError) -> Failure {
    match error {
        HostError::Missing => {
            failure("the driver xen-pciback is not loaded", "`modprobe xen-pciback` loads it")
        }
        error => failure(PCIBACK, error),
    }
}

fn unreadable(device: PciAddress, error: HostError) -> Failure {
    match error {
        HostError::Missing => failure(device, "this host has no such PCI device"),
        error => failure(device, error),
    }
}
