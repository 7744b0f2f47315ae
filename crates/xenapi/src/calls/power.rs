//! VMs go on and off.

use api::{Request, Wait};
use xen::Uuid;

use super::{Ctx, ask, target, targets};
use crate::facade::{Facade, Step, Then};
use crate::failure::Failure;
use crate::model::Class;
use crate::records::{allowed, operation_word, power_state};
use crate::refs::opaque;
use crate::settle::Settled;
use crate::value::Value;

/// The state that an operation needs.
fn needed(operation: &str) -> Option<&'static [&'static str]> {
    Some(match operation {
        "start" | "start_on" | "destroy" | "clone" | "copy" | "provision" => &["Halted"],
        "clean_shutdown"
        | "clean_reboot"
        | "pause"
        | "suspend"
        | "checkpoint"
        | "snapshot"
        | "shutdown"
        | "changing_dynamic_range"
        | "changing_memory_live"
        | "changing_VCPUs_live" => &["Running"],
        "unpause" => &["Paused"],
        "resume" | "resume_on" => &["Suspended"],
        "hard_shutdown" => &["Running", "Paused", "Suspended"],
        "hard_reboot" => &["Running", "Paused"],
        "revert" => &["Suspended"],
        _ => return None,
    })
}

impl Facade {
    /// Whether this can be done with the VM now.
    pub(crate) fn check(&self, vm: Uuid, operation: &str) -> Result<(), Failure> {
        let key = (Class::Vm, vm);
        let blocked = self.labels.get(key, "blocked_operations").and_then(Value::as_map);
        if let Some(why) = blocked.and_then(|it| it.get(operation)) {
            let why = why.as_str().unwrap_or_default().to_owned();
            return Err(Failure::new("OPERATION_BLOCKED", [opaque(vm), why]));
        }
        let Some(object) = self.mirror.live.vms.get(&vm) else {
            return self.check_other(vm, operation);
        };
        let state = power_state(object);
        let is_busy = self.tasks.on(vm).next().is_some()
            || object.operations.iter().any(|id| {
                let operation = self.mirror.live.operations.get(id);
                operation.is_some_and(|it| operation_word(&it.row.what).is_some())
            });
        // The daemon ends what is under way, whatever it is.
        let ends_it = operation == "hard_shutdown" && (object.domid.is_some() || is_busy);
        if ends_it {
            return Ok(());
        }
        if is_busy {
            return Err(Failure::other_operation(Class::Vm, vm));
        }
        if matches!(operation, "start" | "start_on") && self.view().is_template(vm) {
            return Err(Failure::new("VM_IS_TEMPLATE", [opaque(vm), operation.to_owned()]));
        }
        match needed(operation) {
            Some(states) if !states.contains(&state) => {
                Err(Failure::power_state(vm, states[0], state))
            }
            Some(_) if operation == "hard_reboot" && !object.defined => Err(Failure::not_allowed(
                "the VM is not defined, so that it would be gone: xy define keeps it",
            )),
            Some(_)
                if is_listed(operation)
                    && !allowed(state, object, self.view().is_template(vm))
                        .contains(&operation) =>
            {
                Err(Failure::not_allowed("the VM is in no state for that"))
            }
            Some(_) => Ok(()),
            None => Err(Failure::not_allowed("Xylem does nothing like it with a VM")),
        }
    }

    /// Of a checkpoint, or of another toolstack's domain.
    fn check_other(&self, vm: Uuid, operation: &str) -> Result<(), Failure> {
        let is = |field| self.objects.field((Class::Vm, vm), field) == Some(&Value::Bool(true));
        match operation {
            "revert" | "destroy" | "hard_shutdown" if is("is_a_snapshot") => Ok(()),
            _ if is("is_a_snapshot") => {
                Err(Failure::new("VM_IS_SNAPSHOT", [opaque(vm), operation.to_owned()]))
            }
            _ if is("is_control_domain") => Err(Failure::not_allowed("this is domain 0")),
            _ => Err(Failure::not_allowed(
                "the domain is another toolstack's: xy adopt takes it over",
            )),
        }
    }

    fn check_host(&self) -> Result<(), Failure> {
        let host = opaque(self.identity.host);
        if self.is_enabled { Ok(()) } else { Err(Failure::new("HOST_DISABLED", [host])) }
    }

    /// A VM by the first parameter, with which this can be done now.
    pub(crate) fn vm_for(&self, ctx: &Ctx<'_>, operation: &str) -> Result<Uuid, Failure> {
        let vm = ctx.handle(self, Class::Vm, 0)?;
        self.check(vm, operation)?;
        Ok(vm)
    }
}

/// Those that records list.
fn is_listed(operation: &str) -> bool {
    !matches!(
        operation,
        "hard_reboot" | "changing_memory_live" | "shutdown" | "resume_on" | "revert"
    )
}

fn power(vm: Uuid, state: &'static str) -> Then {
    Then::Settle(Settled::Power(vm, state), Value::void())
}

fn start_vm(facade: &Facade, vm: Uuid, paused: bool) -> Result<Step, Failure> {
    facade.check_host()?;
    let state = if paused { "Paused" } else { "Running" };
    ask(Request::Start { target: target(vm), paused, progress: false }, power(vm, state))
}

pub(super) fn start(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "start")?;
    start_vm(facade, vm, ctx.flag(1)?)
}

pub(super) fn start_on(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "start_on")?;
    ctx.handle(facade, Class::Host, 1)?;
    start_vm(facade, vm, ctx.flag(2)?)
}

pub(super) fn clean_shutdown(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "clean_shutdown")?;
    let (targets, wait) = (targets(vm), Wait::Gone);
    let request = Request::Shutdown { targets, wait, acpi: true, progress: false };
    ask(request, power(vm, "Halted"))
}

pub(super) fn hard_shutdown(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "hard_shutdown")?;
    if facade.checkpoint(vm).is_some() {
        // What clients do before they destroy what is suspended.
        return Step::void();
    }
    ask(Request::Destroy { target: target(vm) }, power(vm, "Halted"))
}

pub(super) fn clean_reboot(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "clean_reboot")?;
    let domid = facade.mirror.live.vms.get(&vm).and_then(|it| it.domid);
    let request = Request::Reboot { targets: targets(vm), wait: Wait::Gone, acpi: false };
    ask(request, Then::Settle(Settled::Rebooted(vm, domid), Value::void()))
}

pub(super) fn hard_reboot(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "hard_reboot")?;
    let domid = facade.mirror.live.vms.get(&vm).and_then(|it| it.domid);
    let start = Request::Start { target: target(vm), paused: false, progress: false };
    let then = Then::Settle(Settled::Rebooted(vm, domid), Value::void());
    Ok(Step::Ask(vec![Request::Destroy { target: target(vm) }, start], then))
}

pub(super) fn pause(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "pause")?;
    ask(Request::Pause { target: target(vm) }, power(vm, "Paused"))
}

pub(super) fn unpause(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "unpause")?;
    ask(Request::Unpause { target: target(vm) }, power(vm, "Running"))
}

pub(super) fn suspend(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "suspend")?;
    ask(Request::Suspend { target: target(vm) }, power(vm, "Suspended"))
}

fn resume_vm(facade: &Facade, vm: Uuid, paused: bool) -> Result<Step, Failure> {
    facade.check_host()?;
    if paused {
        return Err(Failure::not_allowed("a guest that is resumed runs: pause it afterwards"));
    }
    ask(Request::Resume { target: target(vm) }, power(vm, "Running"))
}

pub(super) fn resume(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "resume")?;
    resume_vm(facade, vm, ctx.flag(1)?)
}

pub(super) fn resume_on(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let vm = facade.vm_for(ctx, "resume_on")?;
    ctx.handle(facade, Class::Host, 1)?;
    resume_vm(facade, vm, ctx.flag(2)?)
}
