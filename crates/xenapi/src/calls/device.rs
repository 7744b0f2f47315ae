//! Disks and interfaces of VMs.
//!
//! In XenAPI a device is made first and plugged later; in Xylem a device of a VM that runs is plugged. So one that is not
//! plugged is kept here, and the daemon hears of it when it is.

use std::collections::BTreeMap;

use api::{DeviceObject, Request};
use xen::Uuid;

use super::{Ctx, ask, target};
use crate::facade::{Facade, SETTLE_MS, Step, Then};
use crate::failure::Failure;
use crate::labels::{DeviceKey, checked};
use crate::mirror::Dirty;
use crate::model::Class;
use crate::records::{device_key, device_uuid, is_cd, power_state};
use crate::refs::{derived, opaque};
use crate::settle::{Plugged, Settled};
use crate::spec::{Spec, disk_name, disk_number};
use crate::value::{NULL, Value};

/// A record that a client has written.
struct Given<'a>(&'a BTreeMap<String, Value>);

impl<'a> Given<'a> {
    fn of(ctx: &'a Ctx<'_>) -> Result<Self, Failure> {
        let map = ctx.args.first().and_then(Value::as_map);
        map.map(Self).ok_or_else(|| Failure::wrong_type("record"))
    }

    fn text(&self, field: &str) -> &'a str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn handle(&self, facade: &Facade, class: Class, field: &str) -> Result<Uuid, Failure> {
        facade.find(class, self.text(field))
    }
}

/// A device, known or not plugged.
struct Device {
    uuid: Uuid,
    key: DeviceKey,
    object: DeviceObject,
}

impl Facade {
    fn device(&self, ctx: &Ctx<'_>, class: Class) -> Result<Device, Failure> {
        let uuid = ctx.handle(self, class, 0)?;
        let vm = self.objects.field((class, uuid), "VM").and_then(Value::as_str);
        let vm = vm.and_then(crate::refs::uuid_in).unwrap_or_default();
        let view = self.view();
        let found = view.devices_of(vm).find(|it| device_uuid(vm, &it.kind, it.devid) == uuid);
        let found = found.and_then(|it| Some((device_key(it)?, it.clone())));
        let (key, object) = found.ok_or_else(|| Failure::no_handle(class, &opaque(uuid)))?;
        Ok(Device { uuid, key, object })
    }

    /// A VM must run for its devices to come and go.
    fn check_runs(&self, vm: Uuid) -> Result<(), Failure> {
        let Some(object) = self.mirror.live.vms.get(&vm) else {
            return Err(Failure::not_allowed("this is no VM of Xylem's"));
        };
        match power_state(object) {
            "Running" => Ok(()),
            state => Err(Failure::power_state(vm, "Running", state)),
        }
    }

    fn keep(&mut self, key: DeviceKey, object: DeviceObject) -> Result<(), Failure> {
        let dirty = Dirty::device(key.0, &object);
        self.labels.put_device(key, object)?;
        self.refresh(dirty);
        Ok(())
    }
}

impl Device {
    fn is_attached(&self) -> bool {
        matches!(self.object.state.as_str(), "attached" | "detaching")
    }

    fn check_attached(&self, class: Class, wanted: Plugged) -> Result<(), Failure> {
        let about = opaque(self.uuid);
        if self.object.operation.is_some() {
            return Err(Failure::other_operation(class, self.uuid));
        }
        match (wanted, self.is_attached()) {
            (Plugged::No, true) => Err(Failure::new("DEVICE_ALREADY_ATTACHED", [about])),
            (Plugged::Yes, false) => Err(Failure::new("DEVICE_ALREADY_DETACHED", [about])),
            _ => Ok(()),
        }
    }

    fn settled(self, plugged: Plugged) -> Then {
        Then::Settle(Settled::Device(self.key, plugged), Value::void())
    }
}

/// Places that were chosen for devices which the model does not show yet.
#[derive(Debug, Default)]
pub(crate) struct Chosen(Vec<(u64, Uuid, &'static str, u32)>);

impl Chosen {
    /// The first place that is free, which is nobody else's for a while.
    fn take(
        &mut self,
        now_unix_ms: u64,
        vm: Uuid,
        kind: &'static str,
        is_taken: impl Fn(&u32) -> bool,
    ) -> u32 {
        self.0.retain(|(until, ..)| now_unix_ms < *until);
        let is_chosen = |it: &u32| {
            self.0.iter().any(|(_, of, what, place)| (*of, *what, place) == (vm, kind, it))
        };
        let free = (0..).find(|it| !is_taken(it) && !is_chosen(it)).unwrap_or_default();
        self.0.push((now_unix_ms + SETTLE_MS, vm, kind, free));
        free
    }
}

/// What a client says the device is to be, as a number; the first free one if it says nothing.
fn place(
    facade: &mut Facade,
    ctx: &Ctx<'_>,
    vm: Uuid,
    kind: &'static str,
    word: &str,
) -> Result<u32, Failure> {
    let taken = facade.taken(vm, kind);
    if matches!(word, "" | "autodetect") {
        let free = facade.chosen.take(ctx.moment.unix_ms, vm, kind, |it| taken.contains(it));
        return Ok(free);
    }
    let place = word.parse().ok().or_else(|| crate::spec::disk_place(word));
    let place: u32 =
        place.filter(|it| *it < 255).ok_or_else(|| Failure::new("INVALID_DEVICE", [word]))?;
    if taken.contains(&place) {
        return Err(Failure::new("DEVICE_ALREADY_EXISTS", [word]));
    }
    Ok(place)
}

pub(super) fn create_vbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let given = Given::of(ctx)?;
    let vm = given.handle(facade, Class::Vm, "VM")?;
    let is_cd = given.text("type") == "CD";
    if !facade.is_on_paper(vm) {
        facade.check_runs(vm)?;
        if is_cd {
            return Err(Failure::not_allowed("a VM gets a drive while it is down"));
        }
    }
    let place = place(facade, ctx, vm, "vbd", given.text("userdevice"))?;
    let (name, devid) = (disk_name(place), disk_number(place));
    let config = disk_line(facade, &given, &name, is_cd)?;
    let object = DeviceObject {
        vm: vm.to_string(),
        kind: "vbd".to_owned(),
        devid,
        name: Some(name),
        config,
        state: "detached".to_owned(),
        network: None,
        operation: None,
    };
    create(facade, &given, vm, (Class::Vbd, device_uuid(vm, "vbd", devid)), object)
}

/// The line of a disk or drive.
fn disk_line(
    facade: &Facade,
    given: &Given<'_>,
    name: &str,
    is_cd: bool,
) -> Result<String, Failure> {
    let drive = if is_cd { ",devtype=cdrom" } else { "" };
    if is_cd && given.text("VDI") == NULL {
        return Ok(format!("format=empty,vdev={name},access=r{drive}"));
    }
    let vdi = given.handle(facade, Class::Vdi, "VDI")?;
    let Some((sr, vdi)) = facade.view().vdi_name(vdi) else {
        return Err(Failure::no_handle(Class::Vdi, given.text("VDI")));
    };
    let access = if is_cd || given.text("mode") == "RO" { "r" } else { "w" };
    Ok(format!("format=raw,vdev={name},access={access}{drive},target={sr}:{vdi}"))
}

/// The new object, with the label that the record has for it.
fn create(
    facade: &mut Facade,
    given: &Given<'_>,
    vm: Uuid,
    key: crate::objects::Key,
    object: DeviceObject,
) -> Result<Step, Failure> {
    let value = given.0.get("other_config");
    if let Some((value, (field, kind))) = value.zip(key.0.def().label("other_config")) {
        let value = checked(field, kind, value)?;
        if value.as_map().is_some_and(|it| !it.is_empty()) {
            facade.labels.set(key, field, value)?;
        }
    }
    let reference = Value::from(opaque(key.1));
    if facade.is_on_paper(vm) {
        return facade.with_device(vm, &object, Then::Settle(Settled::There(key), reference));
    }
    facade.keep((vm, object.kind.clone(), object.devid), object)?;
    Ok(Step::Value(reference))
}

pub(super) fn create_vif(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let given = Given::of(ctx)?;
    let vm = given.handle(facade, Class::Vm, "VM")?;
    if !facade.is_on_paper(vm) {
        facade.check_runs(vm)?;
    }
    let network = given.handle(facade, Class::Network, "network")?;
    let Some(bridge) = facade.view().bridge(network) else {
        return Err(Failure::no_handle(Class::Network, given.text("network")));
    };
    let devid = place(facade, ctx, vm, "vif", given.text("device"))?;
    let mac = mac(given.text("MAC"), vm, ctx)?;
    let config = format!("devid={devid},bridge={bridge},mac={mac}");
    let object = DeviceObject {
        vm: vm.to_string(),
        kind: "vif".to_owned(),
        devid,
        name: None,
        config,
        state: "detached".to_owned(),
        network: None,
        operation: None,
    };
    create(facade, &given, vm, (Class::Vif, device_uuid(vm, "vif", devid)), object)
}

/// A client's address, or one of Xen's range.
fn mac(given: &str, vm: Uuid, ctx: &Ctx<'_>) -> Result<String, Failure> {
    if given.is_empty() {
        let of = derived(ctx.moment.fresh, "mac", &vm.to_string()).0;
        return Ok(format!("00:16:3e:{:02x}:{:02x}:{:02x}", of[0] & 0x7f, of[1], of[2]));
    }
    let parts: Vec<&str> = given.split(':').collect();
    let is_byte = |it: &&str| it.len() == 2 && it.bytes().all(|it| it.is_ascii_hexdigit());
    if parts.len() == 6 && parts.iter().all(is_byte) {
        Ok(given.to_ascii_lowercase())
    } else {
        Err(Failure::new("MAC_INVALID", [given]))
    }
}

fn destroy(facade: &mut Facade, ctx: &Ctx<'_>, class: Class) -> Result<Step, Failure> {
    let device = facade.device(ctx, class)?;
    let vm = device.key.0;
    let is_planned = facade.labels.device(&device.key).is_some();
    if facade.is_on_paper(vm) && !device.is_attached() {
        facade.labels.remove_device(&device.key);
        let known = facade.mirror.live.devices.get(&vm);
        if known.is_some_and(|it| it.contains_key(&(device.key.1.clone(), device.key.2))) {
            let gone = Settled::Gone((class, device.uuid));
            return facade.without_device(vm, &device.object, Then::Settle(gone, Value::void()));
        }
    } else if device.is_attached() || !is_planned {
        let name = class.name();
        let why = format!("{name} '{}' is part of its VM: unplug it first", opaque(device.uuid));
        return Err(Failure::not_allowed(&why));
    }
    facade.labels.remove_device(&device.key);
    facade.refresh(Dirty::device(device.key.0, &device.object));
    Step::void()
}

pub(super) fn destroy_vbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    destroy(facade, ctx, Class::Vbd)
}

pub(super) fn destroy_vif(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    destroy(facade, ctx, Class::Vif)
}

fn plug(facade: &Facade, ctx: &Ctx<'_>, class: Class) -> Result<Device, Failure> {
    let device = facade.device(ctx, class)?;
    facade.check_runs(device.key.0)?;
    device.check_attached(class, Plugged::No)?;
    Ok(device)
}

pub(super) fn assert_attachable(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    plug(facade, ctx, Class::Vbd)?;
    Step::void()
}

pub(super) fn plug_vbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let device = plug(facade, ctx, Class::Vbd)?;
    let request = Request::BlockAttach {
        target: target(device.key.0),
        disk: device.object.config.clone(),
        cwd: "/".to_owned(),
        progress: false,
    };
    ask(request, device.settled(Plugged::Yes))
}

pub(super) fn plug_vif(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let device = plug(facade, ctx, Class::Vif)?;
    let (target, vif) = (target(device.key.0), device.object.config.clone());
    ask(Request::NetworkAttach { target, vif }, device.settled(Plugged::Yes))
}

/// A device that goes stays here, so that it can be plugged again.
fn unplug(facade: &mut Facade, ctx: &Ctx<'_>, class: Class) -> Result<Device, Failure> {
    let device = facade.device(ctx, class)?;
    facade.check_runs(device.key.0)?;
    device.check_attached(class, Plugged::Yes)?;
    if is_cd(&device.object) {
        return Err(Failure::not_allowed("a drive stays; its medium can be ejected"));
    }
    let state = "detached".to_owned();
    let object = DeviceObject { state, operation: None, ..device.object.clone() };
    facade.labels.put_device(device.key.clone(), object)?;
    Ok(device)
}

fn block_detach(facade: &mut Facade, ctx: &Ctx<'_>, force: bool) -> Result<Step, Failure> {
    let device = unplug(facade, ctx, Class::Vbd)?;
    let name = device.object.name.clone();
    let disk = name.unwrap_or_else(|| device.object.devid.to_string());
    let target = target(device.key.0);
    let request = Request::BlockDetach { target, disk, force, progress: false };
    ask(request, device.settled(Plugged::No))
}

pub(super) fn unplug_vbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    block_detach(facade, ctx, false)
}

pub(super) fn unplug_force_vbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    block_detach(facade, ctx, true)
}

fn network_detach(facade: &mut Facade, ctx: &Ctx<'_>, force: bool) -> Result<Step, Failure> {
    let device = unplug(facade, ctx, Class::Vif)?;
    let (target, vif) = (target(device.key.0), device.object.devid.to_string());
    ask(Request::NetworkDetach { target, vif, force }, device.settled(Plugged::No))
}

pub(super) fn unplug_vif(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    network_detach(facade, ctx, false)
}

pub(super) fn unplug_force_vif(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    network_detach(facade, ctx, true)
}

fn drive(facade: &Facade, ctx: &Ctx<'_>) -> Result<Device, Failure> {
    let device = facade.device(ctx, Class::Vbd)?;
    if is_cd(&device.object) {
        Ok(device)
    } else {
        Err(Failure::new("VBD_NOT_REMOVABLE_MEDIA", [opaque(device.uuid)]))
    }
}

impl Device {
    fn is_empty(&self) -> bool {
        Spec(&self.object.config).get("format") == Some("empty")
    }

    fn drive_name(&self) -> String {
        self.object.name.clone().unwrap_or_default()
    }
}

pub(super) fn insert(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let device = drive(facade, ctx)?;
    if !device.is_empty() {
        return Err(Failure::new("VBD_NOT_EMPTY", [opaque(device.uuid)]));
    }
    facade.check_runs(device.key.0)?;
    let vdi = ctx.handle(facade, Class::Vdi, 1)?;
    let Some((sr, vdi)) = facade.view().vdi_name(vdi) else {
        return Err(Failure::no_handle(Class::Vdi, ctx.text(1)?));
    };
    let request = Request::CdInsert {
        target: target(device.key.0),
        drive: device.drive_name(),
        path: format!("{sr}:{vdi}"),
        cwd: "/".to_owned(),
        force: false,
    };
    ask(request, Then::Settle(Settled::Now, Value::void()))
}

pub(super) fn eject(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let device = drive(facade, ctx)?;
    if device.is_empty() {
        return Err(Failure::new("VBD_IS_EMPTY", [opaque(device.uuid)]));
    }
    facade.check_runs(device.key.0)?;
    let (target, drive) = (target(device.key.0), device.drive_name());
    let request = Request::CdEject { target, drive, force: false };
    ask(request, Then::Settle(Settled::Now, Value::void()))
}
