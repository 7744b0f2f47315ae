//! VMs that are down: what they are made of is changed in their definitions.
//!
//! The daemon tells a VM's configuration as a file has it; it is defined again from that, with other settings in place of
//! some.

use api::{Define, DeviceObject, Request, VmSizes};
use xen::Uuid;

use super::{Ctx, target};
use crate::facade::{Facade, Step, Then};
use crate::failure::Failure;
use crate::model::Class;
use crate::records::{View, power_state};
use crate::settle::Settled;
use crate::spec::Spec;
use crate::value::Value;

const MIB: u64 = 1 << 20;

/// A list of a file, with a device in each line.
pub(super) fn list(key: &str, lines: &[String]) -> Result<String, Failure> {
    let quoted = lines.iter().map(|line| match (line.contains('\''), line.contains('"')) {
        (false, _) => Ok(format!("'{line}'")),
        (true, false) => Ok(format!("\"{line}\"")),
        (true, true) => Err(Failure::not_allowed("a device of the VM has both sorts of quotes")),
    });
    let quoted = quoted.collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{key}=[{}]", quoted.join(",")))
}

/// The key of a file for this kind of device.
fn key_of(kind: &str) -> &'static str {
    if kind == "vbd" { "disk" } else { "vif" }
}

impl View<'_> {
    /// The lines of a VM's devices of this kind, as its definition has them.
    fn lines(&self, vm: Uuid, kind: &str, but: Option<u32>) -> Vec<String> {
        let known = self.mirror.live.devices.get(&vm).into_iter().flat_map(|it| it.values());
        let of_kind = known.filter(|it| it.kind == kind && Some(it.devid) != but);
        of_kind.map(|it| it.config.clone()).collect()
    }
}

impl Facade {
    /// Whether a VM is defined and down, so that its definition is all there is of it.
    pub(crate) fn is_on_paper(&self, vm: Uuid) -> bool {
        let vm = self.mirror.live.vms.get(&vm);
        vm.is_some_and(|it| it.defined && power_state(it) == "Halted" && it.state == "down")
    }

    /// The request that defines a VM from this text.
    pub(crate) fn define(&self, vm: Uuid, text: String, overrides: Vec<String>) -> Request {
        let object = self.mirror.live.vms.get(&vm);
        Request::Define(Define {
            file: object.map(|it| format!("{}.cfg", it.name)).unwrap_or_default(),
            config_text: text,
            overrides,
            cwd: "/".to_owned(),
            autostart: object.and_then(|it| it.autostart),
            ..Define::default()
        })
    }

    /// With one more device.
    pub(crate) fn with_device(
        &self,
        vm: Uuid,
        device: &DeviceObject,
        then: Then,
    ) -> Result<Step, Failure> {
        let mut lines = self.view().lines(vm, &device.kind, None);
        lines.push(device.config.clone());
        redefine(vm, vec![list(key_of(&device.kind), &lines)?], then)
    }

    /// Without one of its devices.
    pub(crate) fn without_device(
        &self,
        vm: Uuid,
        device: &DeviceObject,
        then: Then,
    ) -> Result<Step, Failure> {
        let lines = self.view().lines(vm, &device.kind, Some(device.devid));
        redefine(vm, vec![list(key_of(&device.kind), &lines)?], then)
    }
}

fn redefine(vm: Uuid, overrides: Vec<String>, then: Then) -> Result<Step, Failure> {
    let request = Request::ConfigText { target: target(vm) };
    Ok(Step::Ask(vec![request], Then::Define(vm, overrides, Box::new(then))))
}

/// VMs that are down without a disk that is there no more: what is asked for after `first`, and what follows.
pub(super) fn without_vdi(
    facade: &Facade,
    vdi: &str,
    first: Vec<Request>,
) -> Result<Step, Failure> {
    let uses = |it: &DeviceObject| it.kind == "vbd" && Spec(&it.config).get("target") == Some(vdi);
    let mut users = Vec::new();
    for (vm, devices) in &facade.mirror.live.devices {
        if facade.is_on_paper(*vm) && devices.values().any(uses) {
            let others = devices.values().filter(|it| it.kind == "vbd" && !uses(it));
            let lines: Vec<String> = others.map(|it| it.config.clone()).collect();
            users.push((*vm, list("disk", &lines)?));
        }
    }
    let last = (Vec::new(), Then::Settle(Settled::Now, Value::void()));
    let (next, then) = users.into_iter().fold(last, |(next, then), (vm, disks)| {
        let then = if next.is_empty() { then } else { Then::Ask(next, Box::new(then)) };
        let text = vec![Request::ConfigText { target: target(vm) }];
        (text, Then::Define(vm, vec![disks], Box::new(then)))
    });
    Ok(Step::Ask([first, next].concat(), then))
}

/// Other sizes for a VM that is down.
pub(super) fn resize(
    facade: &Facade,
    vm: Uuid,
    change: impl FnOnce(&mut VmSizes),
) -> Result<Step, Failure> {
    let object = facade.mirror.live.vms.get(&vm).filter(|_| facade.is_on_paper(vm));
    let Some(before) = object.and_then(|it| it.config.as_ref()) else {
        let state = facade.objects.field((Class::Vm, vm), "power_state").and_then(Value::as_str);
        return Err(Failure::power_state(vm, "Halted", state.unwrap_or_default()));
    };
    let mut after = before.clone();
    change(&mut after);
    let is_possible = (1..=after.memory_max_mib).contains(&after.memory_mib)
        && (1..=after.vcpus_max).contains(&after.vcpus);
    if !is_possible {
        let why = "a VM has at least 1 MiB and one vCPU, and no more than its maximum";
        return Err(Failure::new("MEMORY_CONSTRAINT_VIOLATION", [why]));
    }
    // Only what is changed: another call may be changing the rest.
    let settings = [
        ("memory", before.memory_mib, after.memory_mib),
        ("maxmem", before.memory_max_mib, after.memory_max_mib),
        ("vcpus", before.vcpus.into(), after.vcpus.into()),
        ("maxvcpus", before.vcpus_max.into(), after.vcpus_max.into()),
    ];
    let changed = settings.into_iter().filter(|(_, before, after)| before != after);
    let overrides: Vec<_> = changed.map(|(key, _, after)| format!("{key}={after}")).collect();
    if overrides.is_empty() {
        return Step::void();
    }
    let settled = Settled::Sized(vm, before.clone(), after);
    redefine(vm, overrides, Then::Settle(settled, Value::void()))
}

fn sized(
    facade: &Facade,
    ctx: &Ctx<'_>,
    change: impl FnOnce(&mut VmSizes),
) -> Result<Step, Failure> {
    let vm = ctx.handle(facade, Class::Vm, 0)?;
    resize(facade, vm, change)
}

pub(super) fn vcpus(ctx: &Ctx<'_>) -> Result<u32, Failure> {
    u32::try_from(ctx.size(1)?).map_err(|_| Failure::wrong_type("value"))
}

pub(super) fn set_static_max(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let max = ctx.size(1)? / MIB;
    sized(facade, ctx, |it| it.memory_max_mib = max)
}

pub(super) fn set_static_range(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let max = ctx.size(2)? / MIB;
    sized(facade, ctx, |it| it.memory_max_mib = max)
}

pub(super) fn set_limits(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (max, memory) = (ctx.size(2)? / MIB, ctx.size(4)? / MIB);
    sized(facade, ctx, |it| {
        it.memory_max_mib = max;
        it.memory_mib = memory;
    })
}

pub(super) fn set_vcpus_max(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let max = vcpus(ctx)?;
    sized(facade, ctx, |it| it.vcpus_max = max)
}
