//! Everything else about VMs.

use api::{CheckpointRequest, MakeCheckpoint, Request, Revert, Trigger, TuneRequest};
use xen::Uuid;

use super::define::{resize, vcpus};
use super::{Ctx, ask, generic, target};
use crate::facade::{Facade, Step, Then};
use crate::failure::Failure;
use crate::mirror::Dirty;
use crate::model::Class;
use crate::records::{checkpoint_uuid, power_state};
use crate::refs::opaque;
use crate::settle::Settled;
use crate::spec::disk_place;
use crate::value::Value;

/// Places of disks that clients are offered; Xylem has as many.
const DISKS_MAX: u32 = 255;
/// Numbers of interfaces that clients are offered.
const VIFS_MAX: u32 = 16;
/// Longest name of a checkpoint, before a mark that tells it from others.
const NAME_MAX: usize = 40;
/// Digits of a fresh UUID behind a name that is not free.
const MARK_LEN: usize = 8;

fn settled(settled: Settled) -> Then {
    Then::Settle(settled, Value::void())
}

/// What clients call something, as a name that Xylem takes: other characters become dashes.
pub(super) fn plain_name(label: &str, len_max: usize) -> String {
    let plain = |it: char| if it.is_ascii_alphanumeric() || "._-".contains(it) { it } else { '-' };
    let name: String = label.chars().map(plain).take(len_max).collect();
    name.trim_matches(['-', '.']).to_owned()
}

impl Facade {
    /// The VM of a checkpoint; any other VM is its own.
    pub(crate) fn vm_of_snapshot(&self, vm: Uuid) -> Uuid {
        self.checkpoint(vm).map_or(vm, |(of, _)| of)
    }

    /// The VM and the name of a checkpoint.
    pub(crate) fn checkpoint(&self, uuid: Uuid) -> Option<(Uuid, String)> {
        let all = self.mirror.checkpoints.iter();
        let mut all = all.flat_map(|(vm, rows)| rows.iter().map(|row| (*vm, &row.name)));
        let found = all.find(|(vm, name)| checkpoint_uuid(*vm, name) == uuid);
        found.map(|(vm, name)| (vm, name.clone()))
    }

    /// A task has come or gone; one of a VM shows there.
    pub(crate) fn tasks_changed(&mut self, vm: Option<Uuid>) {
        let vms = vm.into_iter().collect();
        self.refresh(Dirty { tasks: true, vms, ..Dirty::default() });
    }
}

fn list_of(vm: Uuid) -> Request {
    Request::Checkpoint(CheckpointRequest::CheckpointList { vms: vec![target(vm)] })
}

pub(super) fn checkpoint(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    keep(facade, ctx, "checkpoint")
}

/// With the guest's memory, so of a VM that runs.
pub(super) fn snapshot(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    keep(facade, ctx, "snapshot")
}

/// Clients may call many snapshots the same; the daemon tells checkpoints of a VM apart by name.
fn keep(facade: &Facade, ctx: &Ctx<'_>, operation: &str) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, operation)?;
    let label = ctx.text(1)?;
    let mut name = Some(plain_name(label, NAME_MAX)).filter(|it| !it.is_empty());
    let mut rows = facade.mirror.checkpoints.get(&vm).into_iter().flatten();
    if let Some(name) = name.as_mut()
        && rows.any(|row| row.name == *name)
    {
        let mark: String = ctx.moment.fresh.to_string().chars().take(MARK_LEN).collect();
        *name = format!("{name}-{mark}");
    }
    let make = MakeCheckpoint { target: target(vm), name, progress: false };
    let request = Request::Checkpoint(CheckpointRequest::Checkpoint(make));
    Ok(Step::Ask(vec![request, list_of(vm)], Then::Checkpointed(vm, label.to_owned())))
}

pub(super) fn revert(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let snapshot = facade.vm_for(ctx, "revert")?;
    let Some((vm, name)) = facade.checkpoint(snapshot) else {
        return Err(Failure::no_handle(Class::Vm, &opaque(snapshot)));
    };
    let revert = Revert { vm: target(vm), name, paused: false, progress: false };
    let request = Request::Checkpoint(CheckpointRequest::Revert(revert));
    let domid = facade.mirror.live.vms.get(&vm).and_then(|it| it.domid);
    ask(request, settled(Settled::Rebooted(vm, domid)))
}

pub(super) fn destroy(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "destroy")?;
    let then = settled(Settled::Gone((Class::Vm, vm)));
    match facade.checkpoint(vm) {
        Some((of, name)) => {
            let destroy = CheckpointRequest::CheckpointDestroy { vm: target(of), name };
            Ok(Step::Ask(vec![Request::Checkpoint(destroy), list_of(of)], then))
        }
        None => ask(Request::Undefine { target: target(vm) }, then),
    }
}

pub(super) fn migrate(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Vm, 0)?;
    Err(Failure::not_allowed("there is no other host in the pool; xy migrate moves VMs"))
}

pub(super) fn rename(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    let name = ctx.text(1)?.to_owned();
    if facade.checkpoint(vm).is_some() {
        return generic::put_label(facade, (Class::Vm, vm), "name_label", name.into());
    }
    if !facade.mirror.live.vms.contains_key(&vm) {
        return Err(Failure::not_allowed("this is no VM of Xylem's"));
    }
    let then = settled(Settled::Named(vm, name.clone()));
    ask(Request::Tune(TuneRequest::Rename { target: target(vm), name }), then)
}

fn mem_set(facade: &Facade, vm: Uuid, bytes: u64) -> Result<Step, Failure> {
    let sizes = facade.mirror.live.vms.get(&vm).and_then(|it| it.config.as_ref());
    let max = sizes.map_or(0, |it| it.memory_max_mib << 20);
    if bytes > max || bytes == 0 {
        let about = [format!("memory has to be at most {max} bytes, the maximum of its file")];
        return Err(Failure::new("MEMORY_CONSTRAINT_VIOLATION", about));
    }
    let tune = TuneRequest::MemSet { target: target(vm), kib: bytes >> 10 };
    ask(Request::Tune(tune), settled(Settled::Now))
}

/// A VM that is down is defined with this memory; one that runs gets it.
fn set_memory_to(
    facade: &Facade,
    ctx: &Ctx<'_>,
    bytes: u64,
    is_all: bool,
) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    if facade.is_on_paper(vm) {
        let mib = bytes >> 20;
        return resize(facade, vm, |it| {
            it.memory_mib = mib;
            it.memory_max_mib = if is_all { mib } else { it.memory_max_mib };
        });
    }
    facade.check(vm, "changing_memory_live")?;
    mem_set(facade, vm, bytes)
}

pub(super) fn set_memory(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    set_memory_to(facade, ctx, ctx.size(1)?, true)
}

pub(super) fn set_memory_dynamic(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    set_memory_to(facade, ctx, ctx.size(1)?, false)
}

pub(super) fn set_memory_range(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    set_memory_to(facade, ctx, ctx.size(2)?, false)
}

pub(super) fn set_vcpus(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "changing_VCPUs_live")?;
    let vcpus = vcpus(ctx)?;
    let tune = TuneRequest::VcpuSet { target: target(vm), vcpus, ignore_host: false };
    ask(Request::Tune(tune), settled(Settled::Now))
}

/// Clients that change a VM that runs set this first, and then its vCPUs.
pub(super) fn set_vcpus_at_startup(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    if facade.mirror.live.vms.get(&vm).is_some_and(|it| power_state(it) == "Running") {
        return set_vcpus(facade, ctx);
    }
    let count = vcpus(ctx)?;
    resize(facade, vm, |it| it.vcpus = count)
}

fn free(taken: &[u32], count: u32) -> Step {
    let free = (0..count).filter(|place| !taken.contains(place));
    Step::Value(free.map(|place| place.to_string()).collect())
}

impl Facade {
    /// Numbers that devices of a VM have: places of disks, numbers of interfaces.
    pub(crate) fn taken(&self, vm: Uuid, kind: &str) -> Vec<u32> {
        let view = self.view();
        let all = view.devices_of(vm).filter(|it| it.kind == kind);
        let place = |it: &api::DeviceObject| match kind {
            "vbd" => it.name.as_deref().and_then(disk_place).unwrap_or(it.devid),
            _ => it.devid,
        };
        all.map(place).collect()
    }
}

pub(super) fn free_vbds(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    Ok(free(&facade.taken(vm, "vbd"), DISKS_MAX))
}

pub(super) fn free_vifs(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    Ok(free(&facade.taken(vm, "vif"), VIFS_MAX))
}

pub(super) fn assert_valid(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    facade.vm_for(ctx, ctx.text(1)?)?;
    Step::void()
}

pub(super) fn assert_can_boot(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    facade.vm_for(ctx, "start")?;
    ctx.handle(facade, Class::Host, 1)?;
    Step::void()
}

pub(super) fn not_agile(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Vm, 0)?;
    Err(Failure::not_allowed("there is no other host in the pool"))
}

pub(super) fn possible_hosts(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Vm, 0)?;
    Ok(Step::Value([opaque(facade.identity.host)].into_iter().collect()))
}

pub(super) fn is_cooperative(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Vm, 0)?;
    Ok(Step::Value(Value::Bool(true)))
}

pub(super) fn void_of_vm(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Vm, 0)?;
    Step::void()
}

pub(super) fn no_sources(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(Value::Array(Vec::new())))
}

pub(super) fn sysrq(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    let mut keys = ctx.text(1)?.chars();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(Failure::wrong_type("key"));
    };
    ask(Request::Tune(TuneRequest::Sysrq { target: target(vm), key }), settled(Settled::Now))
}

pub(super) fn trigger(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    let trigger = match ctx.text(1)? {
        "nmi" => Trigger::Nmi,
        "reset" => Trigger::Reset,
        "init" => Trigger::Init,
        "power" => Trigger::Power,
        "sleep" => Trigger::Sleep,
        "s3resume" => Trigger::S3resume,
        _ => return Err(Failure::wrong_type("trigger")),
    };
    let tune = TuneRequest::Trigger { target: target(vm), trigger, vcpu: 0 };
    ask(Request::Tune(tune), settled(Settled::Now))
}
