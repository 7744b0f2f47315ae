//! Whether the model shows what the daemon has done: a client that is answered reads what it has asked for.

use xen::Uuid;

use crate::facade::Facade;
use crate::labels::DeviceKey;
use crate::objects::Key;
use crate::records::power_state;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Settled {
    Now,
    /// The VM is in this state, or is there no more.
    Power(Uuid, &'static str),
    /// The VM has another domain than this.
    Rebooted(Uuid, Option<u16>),
    Named(Uuid, String),
    /// The VM is said to have the second of these, as far as that differs from the first.
    Sized(Uuid, api::VmSizes, api::VmSizes),
    Device(DeviceKey, Plugged),
    There(Key),
    Gone(Key),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Plugged {
    Yes,
    No,
}

fn is_sized(now: &api::VmSizes, before: &api::VmSizes, after: &api::VmSizes) -> bool {
    let is = |of: fn(&api::VmSizes) -> u64| of(before) == of(after) || of(now) == of(after);
    is(|it| it.memory_mib)
        && is(|it| it.memory_max_mib)
        && is(|it| it.vcpus.into())
        && is(|it| it.vcpus_max.into())
}

impl Facade {
    pub(crate) fn is_settled(&self, settled: &Settled) -> bool {
        let vm = |uuid: &Uuid| self.mirror.live.vms.get(uuid);
        match settled {
            Settled::Now => true,
            Settled::Power(uuid, state) => vm(uuid).is_none_or(|it| {
                let is_there = power_state(it) == *state;
                is_there && !matches!(it.state.as_str(), "starting" | "stopping")
            }),
            Settled::Rebooted(uuid, domid) => {
                vm(uuid).is_none_or(|it| it.domid != *domid && it.state == "running")
            }
            Settled::Named(uuid, name) => vm(uuid).is_none_or(|it| it.name == *name),
            Settled::Sized(uuid, before, after) => {
                let config = vm(uuid).map(|it| it.config.as_ref());
                config.is_none_or(|now| now.is_some_and(|now| is_sized(now, before, after)))
            }
            Settled::Device((uuid, kind, devid), plugged) => {
                let devices = self.mirror.live.devices.get(uuid);
                let device = devices.and_then(|it| it.get(&(kind.clone(), *devid)));
                let is_attached = device.is_some_and(|it| it.state == "attached");
                match plugged {
                    Plugged::Yes => is_attached,
                    Plugged::No => device.is_none_or(|it| it.state == "detached"),
                }
            }
            Settled::There(key) => self.objects.has(*key),
            Settled::Gone(key) => !self.objects.has(*key),
        }
    }
}
