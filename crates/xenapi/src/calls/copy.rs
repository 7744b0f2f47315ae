//! VMs that are made from others.
//!
//! A copy is defined from the configuration of a VM that is down, with clones of its disks. A template is such a VM with
//! a label, which clients set; it is not started.

use api::{DeviceObject, Request, StorageRequest};
use xen::Uuid;

use super::define::{Change, escaped, list, text_of};
use super::vm::plain_name;
use super::{Ctx, generic};
use crate::facade::{Facade, Redefine, Step, Then};
use crate::failure::Failure;
use crate::mirror::Dirty;
use crate::model::Class;
use crate::refs::{derived, opaque};
use crate::settle::Settled;
use crate::spec::Spec;
use crate::value::{NULL, Value};

/// Longest name of a copy.
const NAME_MAX: usize = 60;

/// A configuration and the disks in it.
struct Copied {
    lines: Vec<String>,
    clones: Vec<Request>,
}

/// What differs in a copied line, key by key.
fn without(line: &str, key: &str) -> String {
    let start = format!("{key}=");
    line.split(',').filter(|part| !part.starts_with(&start)).collect::<Vec<_>>().join(",")
}

impl Facade {
    /// The disks of a VM, those that are written as clones.
    fn copied_disks(&self, ctx: &Ctx<'_>, vm: Uuid, name: &str) -> Result<Copied, Failure> {
        let devices = self.mirror.live.devices.get(&vm).into_iter().flat_map(|it| it.values());
        let mut copied = Copied { lines: Vec::new(), clones: Vec::new() };
        for disk in devices.filter(|it| it.kind == "vbd") {
            let line = self.copied_disk(ctx, disk, name, &mut copied.clones)?;
            copied.lines.push(line);
        }
        Ok(copied)
    }

    fn copied_disk(
        &self,
        ctx: &Ctx<'_>,
        disk: &DeviceObject,
        name: &str,
        clones: &mut Vec<Request>,
    ) -> Result<String, Failure> {
        let spec = Spec(&disk.config);
        // Many may read a disk.
        if spec.get("access") == Some("r") {
            return Ok(disk.config.clone());
        }
        let target = spec.get("target").unwrap_or_default();
        let vdi = target.split_once(':').filter(|(sr, vdi)| self.mirror.vdi(sr, vdi).is_some());
        let Some((sr, vdi)) = vdi else {
            return Err(Failure::not_allowed("the VM writes a disk that is no VDI"));
        };
        let device = disk.name.as_deref().unwrap_or("disk");
        let to = self.free_name(sr, &format!("{name}-{device}"), ctx);
        let line = disk.config.replace(&format!("target={sr}:{vdi}"), &format!("target={sr}:{to}"));
        let clone = StorageRequest::VdiClone { vdi: target.to_owned(), to };
        clones.push(Request::Storage(clone));
        Ok(line)
    }

    /// A name that no VM has, like this one.
    fn free_vm_name(&self, wanted: &str, ctx: &Ctx<'_>) -> String {
        let name = plain_name(wanted, NAME_MAX);
        let is_taken = self.mirror.live.vms.values().any(|it| it.name == name);
        if !name.is_empty() && !is_taken {
            return name;
        }
        let mark: String = ctx.moment.fresh.to_string().chars().take(8).collect();
        if name.is_empty() { format!("vm-{mark}") } else { format!("{name}-{mark}") }
    }
}

fn copied(facade: &mut Facade, ctx: &Ctx<'_>, vm: Uuid) -> Result<Step, Failure> {
    if !facade.is_on_paper(vm) {
        return Err(Failure::not_allowed("only a VM that is defined is copied"));
    }
    let name = facade.free_vm_name(ctx.text(1)?, ctx);
    let uuid = derived(ctx.moment.fresh, "vm", "");
    let Copied { lines, clones } = facade.copied_disks(ctx, vm, &name)?;
    let devices = facade.mirror.live.devices.get(&vm).into_iter().flat_map(|it| it.values());
    let vifs = devices.filter(|it| it.kind == "vif").map(|it| without(&it.config, "mac"));
    let vifs: Vec<String> = vifs.map(|it| escaped(&it)).collect();
    let lines: Vec<String> = lines.iter().map(|it| escaped(it)).collect();
    let overrides = vec![
        format!("name='{name}'"),
        format!("uuid='{uuid}'"),
        list("disk", &lines),
        list("vif", &vifs),
    ];
    let key = (Class::Vm, uuid);
    for field in ["name_description", "tags", "other_config", "is_a_template"] {
        if let Some((field, _)) = Class::Vm.def().label(field)
            && let Some(value) = facade.labels.get((Class::Vm, vm), field).cloned()
        {
            facade.labels.set(key, field, value)?;
        }
    }
    let srs: Vec<String> = facade.mirror.live.srs.keys().cloned().collect();
    let seen = Request::Storage(StorageRequest::VdiList { srs });
    let text = text_of(vm);
    let requests = if clones.is_empty() { vec![text] } else { [clones, vec![seen, text]].concat() };
    let then = Then::Settle(Settled::There(key), opaque(uuid).into());
    let changes = overrides.into_iter().map(Change::Set).collect();
    Ok(Step::Ask(requests, Then::Define(Redefine::new(uuid, changes), Box::new(then))))
}

pub(super) fn clone_vm(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "clone")?;
    copied(facade, ctx, vm)
}

pub(super) fn copy_vm(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "copy")?;
    let sr = ctx.text(2).unwrap_or(NULL);
    let is_elsewhere = |it: &DeviceObject| {
        let of = Spec(&it.config).get("target").and_then(|it| it.split_once(':'));
        it.kind == "vbd" && of.is_some_and(|(name, _)| opaque(facade.view().sr(name)) != sr)
    };
    let devices = facade.mirror.live.devices.get(&vm).into_iter().flat_map(|it| it.values());
    if sr != NULL && devices.clone().any(is_elsewhere) {
        return Err(Failure::not_allowed("disks are copied within their SR"));
    }
    copied(facade, ctx, vm)
}

fn set_template(facade: &mut Facade, vm: Uuid, is: bool) -> Result<Step, Failure> {
    let key = (Class::Vm, vm);
    generic::put_label(facade, key, "is_a_template", Value::Bool(is))?;
    facade.refresh(Dirty::vm(facade.vm_of_snapshot(vm)));
    Step::void()
}

pub(super) fn provision(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "provision")?;
    let config = facade.objects.field((Class::Vm, vm), "other_config").and_then(Value::as_map);
    let disks = config.and_then(|it| it.get("disks")).and_then(Value::as_str);
    if disks.is_some_and(|it| it.contains("<disk ")) {
        return Err(Failure::not_allowed("disks are made with VDI.create and VBD.create"));
    }
    set_template(facade, vm, false)
}

pub(super) fn set_is_a_template(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    let is = ctx.flag(1)?;
    if facade.objects.field((Class::Vm, vm), "is_a_template") == Some(&Value::Bool(is)) {
        return Step::void();
    }
    // A snapshot is one for XAPI, and no VM is made from it here.
    if facade.checkpoint(vm).is_none() && !facade.is_on_paper(vm) {
        return Err(Failure::not_allowed("only a VM that is defined and down is a template"));
    }
    set_template(facade, vm, is)
}
