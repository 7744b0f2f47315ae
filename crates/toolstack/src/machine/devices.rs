//! Hotplug: plug and unplug while the domain runs.
//!
//! Each device has its own operation, so any number run concurrently; changes of the record are
//! serialised. Before the VM as a whole goes down or restarts, these are ended.

use std::sync::Arc;

use xen::{DomId, DomainKind, Uuid};

use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Instant, MediumChange, Purpose, Reply, Toolstack, Vm};
use crate::config::{
    DiskConfig, KeyboardConfig, Passthrough, PciDevice, PciName, VifConfig, VmConfig, place_problem,
};
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::plan::{
    ConnectedBy, Plan, Unplug, plan_change, plan_eject, plan_finish_plug, plan_insert, plan_plug,
    plan_swap, plan_undo_insert, plan_undo_plug, plan_unplug,
};
use crate::steps::devices::pending_nodes;
use crate::work::DeviceWork;
use crate::xlcfg;

/// Most disks of a VM: xvda to xvdiv.
const DISKS_MAX: usize = 255;

/// A device to plug.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Device {
    Disk(DiskConfig),
    Vif(VifConfig),
    /// With its number, the next one of its VM.
    Keyboard(u32, KeyboardConfig),
    /// With its place among the entries of `pci`, which is after the last.
    Pci(u32, PciDevice),
}

impl Device {
    #[must_use]
    pub fn id(&self) -> DeviceRef {
        match self {
            Self::Disk(disk) => DeviceRef { kind: DeviceKind::Vbd, devid: disk.vdev.number },
            Self::Vif(vif) => DeviceRef { kind: DeviceKind::Vif, devid: vif.devid },
            Self::Keyboard(devid, _) => DeviceRef { kind: DeviceKind::Vkbd, devid: *devid },
            Self::Pci(devid, _) => DeviceRef { kind: DeviceKind::Pci, devid: *devid },
        }
    }

    /// An interface, a disk or an entry of `pci` of a VM.
    fn of(config: &VmConfig, id: DeviceRef) -> Option<Self> {
        match id.kind {
            DeviceKind::Vif => {
                config.vifs.iter().find(|it| it.devid == id.devid).cloned().map(Self::Vif)
            }
            DeviceKind::Vbd => {
                config.disks.iter().find(|it| it.vdev.number == id.devid).cloned().map(Self::Disk)
            }
            DeviceKind::Pci => {
                pci_entry(config, id.devid).cloned().map(|entry| Self::Pci(id.devid, entry))
            }
            DeviceKind::Console | DeviceKind::Vfb | DeviceKind::Vkbd | DeviceKind::NinePfs => None,
        }
    }

    /// Who connects it.
    #[must_use]
    pub fn connected_by(&self) -> ConnectedBy {
        match self {
            Self::Vif(vif) => ConnectedBy::of_vif(vif),
            Self::Disk(disk) => ConnectedBy::of_disk(disk),
            Self::Keyboard(..) | Self::Pci(..) => ConnectedBy::Us,
        }
    }

    pub(crate) fn add_to(&self, config: &mut VmConfig) {
        match self {
            Self::Disk(disk) => {
                let number = disk.vdev.number;
                match config.disks.iter_mut().find(|it| it.vdev.number == number) {
                    // A medium in its drive.
                    Some(drive) => *drive = disk.clone(),
                    None => config.disks.push(disk.clone()),
                }
            }
            Self::Vif(vif) => config.vifs.push(vif.clone()),
            Self::Keyboard(devid, keyboard) => {
                let devid = (*devid != config.served.next_keyboard()).then_some(*devid);
                let keyboard = KeyboardConfig { devid, ..keyboard.clone() };
                config.served.keyboards.push(keyboard);
            }
            Self::Pci(_, entry) => config.options.pci.push(entry.clone()),
        }
    }
}

fn pci_entry(config: &VmConfig, place: u32) -> Option<&PciDevice> {
    config.options.pci.get(usize::try_from(place).ok()?)
}

pub(crate) fn remove_from(config: &mut VmConfig, device: DeviceRef) {
    // Lines are recorded by index in the list, and indexes shift.
    match device.kind {
        DeviceKind::Vbd => {
            config.disks.retain(|disk| disk.vdev.number != device.devid);
            config.origin.lines.retain(|key, _| !key.starts_with("disk["));
        }
        DeviceKind::Vif => {
            config.vifs.retain(|vif| vif.devid != device.devid);
            config.origin.lines.retain(|key, _| !key.starts_with("vif["));
        }
        DeviceKind::Vkbd => {
            config.served.remove_keyboard(device.devid);
            config.origin.lines.retain(|key, _| !key.starts_with("vkb["));
        }
        DeviceKind::Pci => {
            if let Ok(place) = usize::try_from(device.devid)
                && place < config.options.pci.len()
            {
                config.options.pci.remove(place);
            }
            config.origin.lines.retain(|key, _| !key.starts_with("pci["));
            let passthrough = &mut config.options.machine.passthrough;
            if config.options.pci.is_empty() && *passthrough == Passthrough::Default {
                // What its domain was made for without these words.
                *passthrough = Passthrough::Synchronised;
            }
        }
        // They stay for as long as the VM runs.
        DeviceKind::Console | DeviceKind::Vfb | DeviceKind::NinePfs => {}
    }
}

/// Empties a CD drive.
pub(crate) fn empty_drive(config: &mut VmConfig, device: DeviceRef) {
    if let Some(drive) = config.disks.iter_mut().find(|it| it.vdev.number == device.devid) {
        drive.target.clear();
    }
}

/// A pending operation on a device, as in the record.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Pending {
    Plug,
    Unplug(Unplug),
    /// The drive stays.
    Eject(Unplug),
}

impl Pending {
    const ALL: [Self; 5] = [
        Self::Plug,
        Self::Unplug(Unplug::Clean),
        Self::Unplug(Unplug::Forced),
        Self::Eject(Unplug::Clean),
        Self::Eject(Unplug::Forced),
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Plug => "plug",
            Self::Unplug(Unplug::Clean) => "unplug",
            Self::Unplug(Unplug::Forced) => "take",
            Self::Eject(Unplug::Clean) => "eject",
            Self::Eject(Unplug::Forced) => "eject-take",
        }
    }

    pub(crate) fn encode_all<'a>(
        all: impl IntoIterator<Item = (&'a DeviceRef, &'a Self)>,
    ) -> String {
        let word = |(device, it): (&DeviceRef, &Self)| {
            format!("{} {} {};", it.as_str(), device.kind.as_str(), device.devid)
        };
        all.into_iter().map(word).collect()
    }

    pub(super) fn decode_all(text: &str) -> Vec<(DeviceRef, Self)> {
        let one = |text: &str| {
            let mut words = text.split(' ');
            let (what, kind, devid) = (words.next()?, words.next()?, words.next()?);
            let what = Self::ALL.into_iter().find(|it| it.as_str() == what)?;
            let kind = DeviceKind::ALL.into_iter().find(|it| it.as_str() == kind)?;
            Some((DeviceRef { kind, devid: devid.parse().ok()? }, what))
        };
        text.split(';').filter_map(one).collect()
    }
}

impl Vm {
    fn has(&self, device: DeviceRef) -> bool {
        match device.kind {
            DeviceKind::Vkbd => layout::served_devices(&self.config).contains(&device),
            DeviceKind::Pci => pci_entry(&self.config, device.devid).is_some(),
            _ => layout::devices(&self.config).contains(&device),
        }
    }

    /// Why a keyboard can be neither added nor removed now. A new one has the number after the last.
    fn keyboards_problem(&self, keyboard: DeviceRef) -> Option<String> {
        let name = &self.config.name;
        let others = self.plugs.keys().filter(|it| it.kind == DeviceKind::Vkbd);
        if others.count() > 0 {
            Some(format!("{name}: another keyboard is being attached or detached; try again"))
        } else if self.facts.incarnation.model.is_none() {
            Some(format!(
                "{name}: no QEMU runs for it, which serves keyboards; name one with vkb= and start it anew"
            ))
        } else if self.has(keyboard) && self.config.served.screen.is_some() && keyboard.devid == 0 {
            Some(format!("{name}: keyboard 0 is its screen's"))
        } else {
            None
        }
    }

    /// Why no PCI device can be added or removed now. All of them are one split device.
    fn pci_problem(&self, entry: DeviceRef) -> Option<String> {
        let name = &self.config.name;
        let mut plugs = self.plugs.keys();
        if plugs.any(|it| it.kind == DeviceKind::Pci && *it != entry) {
            return Some(format!(
                "{name}: another PCI device is being attached or detached; try again"
            ));
        }
        let options = &self.config.options;
        let problem = match self.config.kind {
            DomainKind::Pvh => "PVH domains get no devices of the host: Xen gives them none yet",
            DomainKind::Hvm => {
                "HVM domains have their devices of the host from their start to their end"
            }
            DomainKind::Pv if !options.pci.is_empty() => return None,
            DomainKind::Pv => match options.machine.passthrough {
                Passthrough::Default | Passthrough::Disabled => {
                    "was started without passthrough; set passthrough = \"enabled\" and start it anew"
                }
                Passthrough::Enabled | Passthrough::Synchronised | Passthrough::Shared => {
                    return None;
                }
            },
        };
        Some(format!("{name}: {problem}"))
    }

    /// The place of the entry that names these devices.
    fn pci_place(&self, wanted: &PciName) -> Result<DeviceRef, String> {
        let entries = &self.config.options.pci;
        let place = entries.iter().position(|entry| entry.name == *wanted);
        if let Some(devid) = place.and_then(|place| u32::try_from(place).ok()) {
            return Ok(DeviceRef { kind: DeviceKind::Pci, devid });
        }
        let name = &self.config.name;
        let whole = entries.iter().find(|entry| entry.name.is_around(wanted));
        Err(match whole {
            Some(entry) => format!(
                "{name}: has {wanted} as a part of {}, which is detached as a whole",
                entry.name
            ),
            None => format!("{name}: has no PCI device {wanted}; `xy pci-list {name}` shows them"),
        })
    }

    /// Handles a removed device.
    pub(crate) fn device_removed(&mut self, device: DeviceRef) {
        self.pending.remove(&device);
        self.facts.backends.remove(device);
        let config = Arc::make_mut(&mut self.config);
        match self.ejecting.remove(&device) {
            true => empty_drive(config, device),
            false => remove_from(config, device),
        }
    }

    /// The pending entry of an unplug.
    pub(crate) fn unplugging(&self, device: DeviceRef, how: Unplug) -> Pending {
        match self.ejecting.contains(&device) {
            true => Pending::Eject(how),
            false => Pending::Unplug(how),
        }
    }

    /// Whether a device is a disk that its storage has attached.
    fn is_attached(&self, device: DeviceRef) -> bool {
        device.kind == DeviceKind::Vbd && self.facts.disks.contains_key(&device.devid)
    }

    /// Whether a device is an emulated drive, whose CD is its device model's to change.
    fn emulates(&self, device: DeviceRef) -> bool {
        let mut drives = self.config.emulated_disks().filter(|(_, disk)| disk.cdrom);
        device.kind == DeviceKind::Vbd && drives.any(|(_, disk)| disk.vdev.number == device.devid)
    }

    /// The steps that take a device from the running domain.
    fn plan_unplug(&self, device: DeviceRef, how: Unplug) -> Plan {
        let is_attached = self.is_attached(device);
        match self.emulates(device) {
            true => plan_eject(device, how, is_attached),
            false => plan_unplug(device, how, is_attached, ConnectedBy::of(&self.config, device)),
        }
    }

    /// Those that undo a failed plug.
    fn plan_undo_plug(&self, device: DeviceRef) -> Plan {
        let is_attached = self.is_attached(device);
        match self.emulates(device) {
            true => plan_undo_insert(device, self.has(device), is_attached),
            false => {
                let by = ConnectedBy::of(&self.config, device);
                plan_undo_plug(device, self.has(device), is_attached, by)
            }
        }
    }

    /// Why a CD cannot be put into this drive, or taken from it.
    fn drive(&self, drive: DeviceRef) -> Result<&DiskConfig, String> {
        let name = &self.config.name;
        let number = drive.devid;
        match self.config.disks.iter().find(|it| it.vdev.number == number) {
            Some(disk) if disk.cdrom => Ok(disk),
            Some(disk) => Err(format!("{name}: {} is not a CD drive", disk.vdev.name)),
            None => Err(format!("{name}: has no CD drive {}", xlcfg::vdev_name(number))),
        }
    }
}

impl Toolstack {
    /// The domain with the name of the driver domain that a configuration wants, as far as is known.
    pub(super) fn driver_domain(&self, config: &VmConfig, device: DeviceRef) -> Option<DomId> {
        let wanted = layout::wanted_backend(config, device)?;
        let ours = self.vms.named(wanted).and_then(|vm| vm.facts.domid());
        ours.or_else(|| self.foreign.named(wanted))
    }

    pub(super) fn plug(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        mut device: Device,
        out: &mut Vec<Action>,
    ) {
        if let Device::Pci(place, _) = &mut device {
            let entries = self.vms[&uuid].config.options.pci.len();
            *place = u32::try_from(entries).expect("a list of a file");
        }
        let id = device.id();
        match self.plug_refusal(uuid, &device) {
            Some(message) => fail(client, message, out),
            None => {
                let plan = plan_plug(id, device.connected_by());
                let outcome = Outcome::Plugged { client: Some(client), device };
                self.begin(now, uuid, plan, outcome, out);
            }
        }
    }

    /// Inserts a CD into a drive, replacing the current one, or ejects it. If the new one fails,
    /// the drive is as before, or empty.
    pub(super) fn change_medium(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        change: MediumChange,
        out: &mut Vec<Action>,
    ) {
        let MediumChange { drive, medium, how } = change;
        let vm = &self.vms[&uuid];
        let is_empty = match (self.busy(uuid, drive), vm.drive(drive)) {
            (Some(message), _) | (None, Err(message)) => return fail(client, message, out),
            (None, Ok(disk)) if disk.backend.is_some() => {
                let (name, disk) = (&vm.config.name, &disk.vdev.name);
                let message =
                    format!("{name}: a driver domain serves {disk}; detach it, and attach another");
                return fail(client, message, out);
            }
            (None, Ok(disk)) if disk.script.is_some() => {
                let (name, disk) = (&vm.config.name, &disk.vdev.name);
                let message =
                    format!("{name}: a script connects {disk}; detach it, and attach another");
                return fail(client, message, out);
            }
            (None, Ok(disk)) => disk.is_empty(),
        };
        let domid = vm.facts.domid().unwrap_or_default();
        let is_attached = vm.is_attached(drive);
        let is_emulated = vm.emulates(drive);
        let (plan, outcome) = match medium {
            None if is_empty => {
                return out.push(Action::Reply { client, reply: Reply::Done { domid } });
            }
            None => {
                let outcome = Outcome::Unplugged { client: Some(client), device: drive, how };
                (vm.plan_unplug(drive, how), outcome)
            }
            Some(medium) => {
                let device = Device::Disk(medium);
                let outcome = Outcome::Plugged { client: Some(client), device };
                let plan = match (is_empty, is_emulated) {
                    (true, false) => plan_plug(drive, ConnectedBy::Us),
                    (false, false) => plan_swap(drive, how, is_attached),
                    (true, true) => plan_insert(drive),
                    (false, true) => plan_change(drive, how, is_attached),
                };
                (plan, outcome)
            }
        };
        if !is_empty {
            self.vms.change(uuid, |vm| vm.ejecting.insert(drive));
        }
        self.begin(now, uuid, plan, outcome, out);
    }

    /// Why a device cannot be plugged now.
    fn plug_refusal(&self, uuid: Uuid, device: &Device) -> Option<String> {
        let id = device.id();
        let vm = &self.vms[&uuid];
        let name = &vm.config.name;
        let plugged = |kind| vm.plugs.keys().filter(|it| it.kind == kind).count();
        let is_disk = id.kind == DeviceKind::Vbd;
        if let Some(busy) = self.busy(uuid, id) {
            Some(busy)
        } else if id.kind == DeviceKind::Vkbd {
            match vm.has(id) {
                true => Some(format!("{name}: has a {} already", id.spoken())),
                false => vm.keyboards_problem(id),
            }
        } else if id.kind == DeviceKind::Pci {
            vm.pci_problem(id)
        } else if vm.has(id) || is_disk && vm.drive(id).is_ok() {
            let device = id.spoken();
            Some(format!("{name}: has a {device} already; use another or detach it first"))
        } else if is_disk && vm.config.disks.len() + plugged(id.kind) >= DISKS_MAX {
            Some(format!("{name}: a VM has at most {DISKS_MAX} disks; detach one first"))
        } else if let Device::Disk(disk) = device
            && let Some(problem) = disk.drive_problem(vm.config.kind)
        {
            Some(format!("{name}: {}: {problem}", disk.vdev.name))
        } else if vm.config.hvm.is_some() {
            // It will be emulated from the next start on.
            let mut config = VmConfig::clone(&vm.config);
            device.add_to(&mut config);
            let bus = vm.config.hvm.as_deref().map(|hvm| hvm.disk_bus).unwrap_or_default();
            place_problem(&config.disks, bus).map(|(_, problem)| format!("{name}: {problem}"))
        } else {
            None
        }
    }

    /// Why a device is busy.
    fn busy(&self, uuid: Uuid, id: DeviceRef) -> Option<String> {
        if let Some(message) = self.doubt_about(uuid) {
            return Some(message);
        }
        let vm = &self.vms[&uuid];
        let name = &vm.config.name;
        if vm.operation.is_some() || vm.after_plugs.is_some() {
            Some(format!("{name}: is being started or taken down; try again when that has ended"))
        } else if vm.plugs.contains_key(&id) || self.abandoned.contains(&(uuid, id)) {
            let device = id.spoken();
            Some(format!("{name}: {device} is being attached or detached; `xy explain` shows it"))
        } else {
            None
        }
    }

    /// A PCI device, by what its entry names.
    pub(super) fn unplug_pci(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        (wanted, how): (&PciName, Unplug),
        out: &mut Vec<Action>,
    ) {
        match self.vms[&uuid].pci_place(wanted) {
            Ok(entry) => self.unplug(now, client, uuid, entry, how, out),
            Err(message) => fail(client, message, out),
        }
    }

    /// A forced unplug overtakes a clean one in progress.
    pub(super) fn unplug(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        id: DeviceRef,
        how: Unplug,
        out: &mut Vec<Action>,
    ) {
        if how == Unplug::Forced
            && let Some(operation) = self.vms[&uuid].plugs.get(&id).copied()
        {
            self.cancel(now, operation, "somebody else forced it", out);
        }
        if let Some(message) = self.busy(uuid, id) {
            return fail(client, message, out);
        }
        let vm = &self.vms[&uuid];
        if !vm.has(id) {
            let is_drive = id.kind == DeviceKind::Vbd && vm.drive(id).is_ok();
            let (name, device) = (&vm.config.name, id.spoken());
            let what = if is_drive { ", but an empty CD drive" } else { "" };
            return fail(client, format!("{name}: has no {device}{what}"), out);
        }
        if id.kind == DeviceKind::Vkbd
            && let Some(problem) = vm.keyboards_problem(id)
        {
            return fail(client, problem, out);
        }
        if id.kind == DeviceKind::Pci
            && let Some(problem) = vm.pci_problem(id)
        {
            return fail(client, problem, out);
        }
        self.vms.change(uuid, |vm| vm.ejecting.remove(&id));
        let plan = self.vms[&uuid].plan_unplug(id, how);
        self.begin(
            now,
            uuid,
            plan,
            Outcome::Unplugged { client: Some(client), device: id, how },
            out,
        );
    }

    /// Continues operations of an earlier daemon.
    pub(super) fn resume_pending(
        &mut self,
        now: Instant,
        uuid: Uuid,
        id: DeviceRef,
        pending: Pending,
        out: &mut Vec<Action>,
    ) {
        let Some(vm) = self.vms.get_mut(&uuid).filter(|vm| vm.has(id)) else { return };
        vm.pending.insert(id, pending);
        match pending {
            Pending::Plug => {
                let Some(device) = Device::of(&vm.config, id) else { return };
                let plan = plan_finish_plug(id, device.connected_by());
                let outcome = Outcome::Plugged { client: None, device };
                self.begin(now, uuid, plan, outcome, out);
            }
            Pending::Unplug(how) | Pending::Eject(how) => {
                if matches!(pending, Pending::Eject(_)) {
                    vm.ejecting.insert(id);
                }
                let plan = vm.plan_unplug(id, how);
                self.begin(
                    now,
                    uuid,
                    plan,
                    Outcome::Unplugged { client: None, device: id, how },
                    out,
                );
            }
        }
    }

    /// Handles the end of an operation on a device.
    pub(super) fn plug_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        outcome: Outcome,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        let ends = vm.after_plugs.is_some();
        let (client, reply) = match (outcome, failure) {
            (Outcome::Plugged { client, device }, Some(message))
                if !ends && vm.ejecting.contains(&device.id()) =>
            {
                // The CD that was in the drive is still there.
                let id = device.id();
                let is_taken = vm.pending.get(&id) == Some(&Pending::Eject(Unplug::Forced));
                if is_taken {
                    let plan = vm.plan_unplug(id, Unplug::Forced);
                    let outcome = Outcome::PlugFailed { client, device: id, message };
                    return self.begin(now, uuid, plan, outcome, out);
                }
                let is_pending = self.vms.change(uuid, |vm| {
                    vm.ejecting.remove(&id);
                    vm.pending.remove(&id).is_some()
                });
                if is_pending {
                    let work = DeviceWork::Settle { nodes: pending_nodes(&self.vms[&uuid]) };
                    self.give_out(Purpose::Aside, work, out);
                }
                (client, Reply::Failed(message))
            }
            (Outcome::Plugged { client, device }, Some(message)) if !ends => {
                let id = device.id();
                let plan = vm.plan_undo_plug(id);
                let outcome = Outcome::PlugFailed { client, device: id, message };
                return self.begin(now, uuid, plan, outcome, out);
            }
            (Outcome::PlugFailed { client, message, .. }, None) => (client, Reply::Failed(message)),
            (Outcome::PlugFailed { client, message, .. }, Some(trouble)) => {
                (client, Reply::Failed(format!("{message}; and then: {trouble}")))
            }
            (Outcome::Unplugged { client, device, .. }, Some(message)) if !vm.has(device) => {
                let name = &vm.config.name;
                let told = format!("{name}: {} was detached, but: {message}", device.spoken());
                (client, Reply::Failed(told))
            }
            (Outcome::Unplugged { client, device, how: Unplug::Clean }, Some(message)) => {
                // It stays; a later daemon need not ask again.
                if vm.pending.remove(&device).is_some() && !ends {
                    let work = DeviceWork::Settle { nodes: pending_nodes(vm) };
                    self.give_out(Purpose::Aside, work, out);
                }
                (client, Reply::Failed(message))
            }
            (outcome, Some(message)) => (client_of(&outcome), Reply::Failed(message)),
            (outcome, None) => (client_of(&outcome), Reply::Done { domid }),
        };
        if let Some(client) = client {
            out.push(Action::Reply { client, reply });
        }
        self.take_over_if_waiting(now, uuid, out);
    }
}

fn client_of(outcome: &Outcome) -> Option<ClientId> {
    match outcome {
        Outcome::Plugged { client, .. }
        | Outcome::PlugFailed { client, .. }
        | Outcome::Unplugged { client, .. } => *client,
        _ => None,
    }
}
