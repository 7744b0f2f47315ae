//! VMs that are down: what they are made of is changed in their definitions.
//!
//! The daemon tells a VM's configuration as a file has it; it is defined again from that, with other settings in place of
//! some, if it is still the same by then. Else somebody else has changed it, and it begins again.

use api::{Define, DeviceObject, Request, VmSizes};
use xen::Uuid;

use super::{Ctx, target};
use crate::facade::{Facade, Redefine, Step, Then};
use crate::failure::Failure;
use crate::model::Class;
use crate::records::power_state;
use crate::settle::Settled;
use crate::spec::Spec;
use crate::value::Value;

const MIB: u64 = 1 << 20;

/// A device's line as it is between quotes.
pub(super) fn escaped(line: &str) -> String {
    line.replace('\\', r"\\").replace('"', r#"\""#)
}

/// A list of a file, with a device in each line.
pub(super) fn list(key: &str, escaped: &[String]) -> String {
    let quoted: Vec<String> = escaped.iter().map(|line| format!("\"{line}\"")).collect();
    format!("{key}=[{}]", quoted.join(","))
}

/// A change of a definition, whatever else is changed in it meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// A setting, `key=value`, in place of what it says.
    Set(String),
    /// One more device in a list,
    Add { list: List, line: String },
    /// and those less of which this is so.
    Remove { list: List, key: &'static str, value: String },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum List {
    Disk,
    Vif,
}

impl List {
    fn of(kind: &str) -> Self {
        if kind == "vbd" { Self::Disk } else { Self::Vif }
    }

    /// Its key in a file, and what tells its lines apart.
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Disk => ("disk", "vdev"),
            Self::Vif => ("vif", "devid"),
        }
    }

    /// Its lines in a text of the daemon, as they are between their quotes; they follow a line that begins the list.
    fn lines(self, text: &str) -> Vec<String> {
        let begins = format!("{} = [", self.keys().0);
        let rest = text.lines().skip_while(|line| **line != *begins).skip(1);
        let lines = rest.take_while(|line| *line != "]");
        let quoted = lines.filter_map(|it| it.trim().strip_prefix('"')?.strip_suffix("\","));
        quoted.map(str::to_owned).collect()
    }
}

/// The settings that make these changes of what a text says.
fn overrides(text: &str, changes: &[Change]) -> Result<Vec<String>, Failure> {
    let mut settings = Vec::new();
    let mut lists: [Option<Vec<String>>; 2] = [None, None];
    let slot = |list: List| usize::from(list == List::Vif);
    for change in changes {
        match change {
            Change::Set(setting) => settings.push(setting.clone()),
            Change::Add { list, line } => {
                let lines = lists[slot(*list)].get_or_insert_with(|| list.lines(text));
                let (_, key) = list.keys();
                let name = |line: &str| Spec(line).get(key).map(str::to_owned);
                if lines.iter().any(|it| name(it) == name(line)) {
                    return Err(Failure::new("DEVICE_ALREADY_EXISTS", name(line)));
                }
                lines.push(escaped(line));
            }
            Change::Remove { list, key, value } => {
                let lines = lists[slot(*list)].get_or_insert_with(|| list.lines(text));
                let value = escaped(value);
                lines.retain(|it| Spec(it).get(key) != Some(&*value));
            }
        }
    }
    for (of, lines) in [List::Disk, List::Vif].into_iter().zip(&lists) {
        if let Some(lines) = lines {
            settings.push(list(of.keys().0, lines));
        }
    }
    Ok(settings)
}

impl Facade {
    /// Whether a VM is defined and down, so that its definition is all there is of it.
    pub(crate) fn is_on_paper(&self, vm: Uuid) -> bool {
        let vm = self.mirror.live.vms.get(&vm);
        vm.is_some_and(|it| it.defined && power_state(it) == "Halted" && it.state == "down")
    }

    /// The request that defines a VM from this text, its own or another one's.
    pub(crate) fn define(
        &self,
        vm: Uuid,
        text: String,
        changes: &[Change],
    ) -> Result<Request, Failure> {
        let object = self.mirror.live.vms.get(&vm);
        Ok(Request::Define(Define {
            file: object.map(|it| format!("{}.cfg", it.name)).unwrap_or_default(),
            overrides: overrides(&text, changes)?,
            replaces: object.map(|_| text.clone()),
            config_text: text,
            cwd: "/".to_owned(),
            ..Define::default()
        }))
    }

    /// With one more device.
    pub(crate) fn with_device(
        &self,
        vm: Uuid,
        device: &DeviceObject,
        then: Then,
    ) -> Result<Step, Failure> {
        let (list, line) = (List::of(&device.kind), device.config.clone());
        redefine(vm, vec![Change::Add { list, line }], then)
    }

    /// Without one of its devices.
    pub(crate) fn without_device(
        &self,
        vm: Uuid,
        device: &DeviceObject,
        then: Then,
    ) -> Result<Step, Failure> {
        let list = List::of(&device.kind);
        let (_, key) = list.keys();
        let named = Spec(&device.config).get(key).map(str::to_owned);
        let value = named.unwrap_or_else(|| device.devid.to_string());
        redefine(vm, vec![Change::Remove { list, key, value }], then)
    }
}

/// What asks for the text that [`Facade::define`] needs.
pub(crate) fn text_of(vm: Uuid) -> Request {
    Request::ConfigText { target: target(vm) }
}

fn redefine(vm: Uuid, changes: Vec<Change>, then: Then) -> Result<Step, Failure> {
    Ok(Step::Ask(vec![text_of(vm)], Then::Define(Redefine::new(vm, changes), Box::new(then))))
}

/// VMs that are down without a disk that is there no more: what is asked for after `first`, and what follows.
pub(super) fn without_vdi(
    facade: &Facade,
    vdi: &str,
    first: Vec<Request>,
) -> Result<Step, Failure> {
    let uses = |it: &DeviceObject| it.kind == "vbd" && Spec(&it.config).get("target") == Some(vdi);
    let devices = facade.mirror.live.devices.iter();
    let users = devices
        .filter(|(vm, devices)| facade.is_on_paper(**vm) && devices.values().any(uses))
        .map(|(vm, _)| *vm);
    let last = (Vec::new(), Then::Settle(Settled::Now, Value::void()));
    let (next, then) = users.fold(last, |(next, then), vm| {
        let then = if next.is_empty() { then } else { Then::Ask(next, Box::new(then)) };
        let without = Change::Remove { list: List::Disk, key: "target", value: vdi.to_owned() };
        (vec![text_of(vm)], Then::Define(Redefine::new(vm, vec![without]), Box::new(then)))
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
    let changes: Vec<_> =
        changed.map(|(key, _, after)| Change::Set(format!("{key}={after}"))).collect();
    if changes.is_empty() {
        return Step::void();
    }
    let settled = Settled::Sized(vm, before.clone(), after);
    redefine(vm, changes, Then::Settle(settled, Value::void()))
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
