//! VMs whose record this daemon cannot read: a later release's, or damaged.
//!
//! Such a VM keeps running, and its record and resources are left untouched for a daemon that can
//! read them. It is listed as stuck; it can be destroyed, or adopted with a given configuration.

use std::collections::{BTreeMap, BTreeSet};

use storage::Attachment;
use xen::{DomId, DomainKind, DomainRef, EvtchnPort, Uuid};

use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Facts, Incarnation, Instant, Purpose, Toolstack, Vm, policy};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::foreign::{Adoption, ForeignReading};
use crate::layout::{self, Backends, Completion, DeviceKind, DeviceRef};
use crate::plan::Start;
use crate::work::{AdoptionWork, Failure, Output};
use crate::xlcfg;

/// A VM whose record cannot be read.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) name: String,
    /// Why the record cannot be read.
    pub(super) why: String,
    /// The domain named by the record, or with the VM's UUID.
    pub(super) domain: Option<DomainRef>,
    /// Its attached disks.
    pub(super) disks: BTreeMap<u32, Attachment>,
    /// The driver domains of its devices.
    pub(super) backends: Backends,
    pub(super) model: Option<Process>,
    /// Clients that want it gone.
    pub(super) waiters: Vec<ClientId>,
}

impl Unread {
    pub(super) fn new(
        name: String,
        why: String,
        domain: Option<DomainRef>,
        backends: Backends,
    ) -> Self {
        let disks = BTreeMap::new();
        Self { name, why, domain, disks, backends, model: None, waiters: Vec::new() }
    }

    pub(super) fn domid(&self) -> Option<DomId> {
        Some(self.domain?.domid)
    }

    pub(super) fn refusal(&self) -> String {
        let Self { name, why, .. } = self;
        format!(
            "{name}: {why}; `xy destroy {name}` ends it, `xy adopt --config FILE {name}` takes it over"
        )
    }

    /// The running domain as a VM of ours again, with the configuration `base`.
    fn adoption(&self, reading: &ForeignReading, base: &VmConfig) -> Result<Adoption, String> {
        let name = &self.name;
        let kind = layout::kind_name(base.kind);
        if reading.kind != kind {
            let place = base.origin.at("type");
            return Err(format!("{place}: {name} is a {} guest, not {kind}", reading.kind));
        }
        if reading.info.flags.dying() || reading.info.flags.shutdown().is_some() {
            return Err(format!("{name}: has stopped; `xy destroy {name}` takes it down"));
        }
        if base.kind == DomainKind::Hvm && self.model.is_none() {
            return Err(format!("{name}: its device model is not running"));
        }
        let wanted: BTreeSet<DeviceRef> = layout::devices(base).into_iter().collect();
        let found: BTreeSet<DeviceRef> = reading.devices.iter().map(|it| it.device).collect();
        if let Some(device) = found.difference(&wanted).next() {
            return Err(format!("{name}: has a {device} that the configuration does not name"));
        }
        if let Some(device) = wanted.difference(&found).next() {
            return Err(format!("{name}: has no {device}, which the configuration names"));
        }
        let (Some(port), Some(store_gfn)) = (reading.store_port, reading.store_gfn) else {
            return Err(format!("{name}: has no xenstore ring in the store; it is incomplete"));
        };
        let start = match reading.info.flags.paused() {
            true => Start::Paused,
            false => Start::Running,
        };
        let (uuid, domain) = (reading.info.handle, reading.domain);
        let config = VmConfig { name: name.clone(), uuid: Some(uuid), ..base.clone() };
        let completion = Completion { start, store_port: EvtchnPort(port), store_gfn };
        let (disks, model) = (self.disks.clone(), self.model);
        let backends = self.backends.clone();
        Ok(Adoption { config, uuid, domain, completion, disks, backends, model })
    }

    /// Enough of a configuration to take the VM down.
    fn remains(&self, devices: &[DeviceRef]) -> VmConfig {
        let mut config = stand_in();
        config.name.clone_from(&self.name);
        for DeviceRef { kind, devid } in devices {
            match kind {
                DeviceKind::Vbd => {
                    let spec = format!("format=raw,vdev={devid},access=r,target=/unknown");
                    config.disks.extend(xlcfg::parse_disk(&spec));
                }
                DeviceKind::Vif => config.vifs.extend(xlcfg::parse_vif("", *devid)),
                // Enough that their nodes are removed.
                DeviceKind::Console
                | DeviceKind::Vfb
                | DeviceKind::Vkbd
                | DeviceKind::NinePfs
                | DeviceKind::Pci => {}
            }
        }
        config
    }
}

/// Placeholder for an unreadable configuration. It is HVM, so that a device model is looked for.
pub(super) fn stand_in() -> VmConfig {
    let text = "name = 'unreadable'\ntype = 'hvm'\nmemory = 4\n";
    let source = xlcfg::Source { file: "record", text, overrides: &[] };
    xlcfg::parse(source).expect("this text is a configuration")
}

impl Toolstack {
    /// The VM with this name, domid or UUID, if its record cannot be read.
    pub(super) fn unread(&self, target: &str) -> Option<Uuid> {
        let domid = target.parse().ok().map(DomId);
        let uuid: Option<Uuid> = target.parse().ok();
        let is_it = |(id, it): &(&Uuid, &Unread)| {
            it.name == target || uuid == Some(**id) || (domid.is_some() && it.domid() == domid)
        };
        self.unread.iter().find(is_it).map(|(uuid, _)| *uuid)
    }

    /// Destroys it; its devices are read first.
    pub(super) fn destroy_unread(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        out: &mut Vec<Action>,
    ) {
        let it = self.unread.get_mut(&uuid).expect("resolved");
        it.waiters.push(client);
        if it.waiters.len() > 1 || self.adopting.contains(&uuid) {
            return;
        }
        match it.domain {
            Some(domain) => {
                self.give_out(Purpose::Left { uuid }, AdoptionWork::ReadLeft { domain, uuid }, out);
            }
            None => self.take_down_unread(now, uuid, &[], out),
        }
    }

    /// Handles the result of reading the devices of a VM to be destroyed.
    pub(super) fn left_read(
        &mut self,
        now: Instant,
        uuid: Uuid,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        match result {
            Ok(Output::Left(devices)) => self.take_down_unread(now, uuid, &devices, out),
            Ok(output) => unreachable!("what is left is answered with {output:?}"),
            Err(Failure(message)) => {
                let it = self.unread.get_mut(&uuid).expect("kept until it is taken down");
                for client in std::mem::take(&mut it.waiters) {
                    fail(client, format!("{}: {message}", it.name), out);
                }
            }
        }
    }

    fn take_down_unread(
        &mut self,
        now: Instant,
        uuid: Uuid,
        devices: &[DeviceRef],
        out: &mut Vec<Action>,
    ) {
        let it = self.unread.remove(&uuid).expect("kept until it is taken down");
        let config = it.remains(devices);
        if let Some(domid) = it.domid() {
            self.foreign.remove(&domid);
        }
        // Removes the record's completion mark, whatever else it contains.
        let completion =
            Completion { start: Start::Running, store_port: EvtchnPort(0), store_gfn: 0 };
        let incarnation = Incarnation {
            domain: it.domain,
            nodes: it.domain.is_some(),
            completion: Some(completion),
            model: it.model,
            ..Incarnation::default()
        };
        let (disks, backends) = (it.disks, it.backends);
        let facts = Facts { recorded: true, disks, backends, incarnation, ..Facts::default() };
        let mut vm = Vm::new(config, uuid, facts);
        vm.waiters = it.waiters;
        vm.condemned = true;
        self.vms.insert(uuid, vm);
        self.tear_down(now, uuid, Outcome::Gone, out);
    }

    /// Adopts one with a given configuration.
    pub(super) fn adopt_unread(
        &mut self,
        client: ClientId,
        uuid: Uuid,
        base: Option<Box<VmConfig>>,
        out: &mut Vec<Action>,
    ) {
        let it = &self.unread[&uuid];
        let name = &it.name;
        let refusal = match (&base, it.domain) {
            (None, _) => Some(it.refusal()),
            (_, None) => Some(format!("{name}: has no domain; `xy destroy {name}` takes it down")),
            _ if self.adopting.contains(&uuid) => Some(format!("{name}: is being adopted already")),
            _ if !it.waiters.is_empty() => Some(format!("{name}: is being taken down")),
            (Some(base), _) => policy::refusal(base),
        };
        let (Some(base), Some(domain), None) = (base, it.domain, &refusal) else {
            return fail(client, refusal.unwrap_or_default(), out);
        };
        self.adopting.insert(uuid);
        let generation = self.next_generation();
        let work = AdoptionWork::ReadForeign { domid: domain.domid, uuid, generation };
        self.give_out(Purpose::ReadForeign { client, uuid, base }, work, out);
    }

    /// The adoption of a domain.
    pub(super) fn adoption(
        &self,
        reading: &ForeignReading,
        base: &VmConfig,
    ) -> Result<Adoption, String> {
        match self.unread.get(&reading.info.handle) {
            Some(unread) => unread.adoption(reading, base),
            None => Adoption::of(reading, base),
        }
    }

    /// Handles the end of an adoption. A destroy requested meanwhile is done now.
    pub(super) fn adoption_ended(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        self.adopting.remove(&uuid);
        let Some(it) = self.unread.get_mut(&uuid) else { return };
        let waiters = std::mem::take(&mut it.waiters);
        for client in waiters {
            self.destroy_unread(now, client, uuid, out);
        }
    }
}
