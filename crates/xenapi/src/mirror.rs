//! What is known of the host: the daemon's live model, and what has to be asked for from time to time.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    CheckpointRow, DeviceObject, DomainObject, DomainRow, Object, ObjectChange, Objects,
    OperationObject, Reply, Request, SrRow, StorageRequest, Topology, VdiRow, VmObject,
};
use xen::Uuid;

/// The live model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub vms: BTreeMap<Uuid, VmObject>,
    /// By VM, kind and number.
    pub devices: BTreeMap<Uuid, BTreeMap<(String, u32), DeviceObject>>,
    pub domains: BTreeMap<u16, DomainObject>,
    pub operations: BTreeMap<u64, OperationObject>,
    pub srs: BTreeMap<String, SrRow>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    pub live: Live,
    /// Being read anew, in parts.
    next: Option<Live>,
    pub cursor: Option<String>,
    /// Everything has been read once.
    pub is_whole: bool,
    /// By domid.
    pub rows: BTreeMap<u16, DomainRow>,
    pub info: BTreeMap<String, String>,
    pub topology: Topology,
    pub bridge: String,
    /// By SR and name.
    pub vdis: BTreeMap<String, BTreeMap<String, VdiRow>>,
    /// SRs with their space.
    pub spaces: BTreeMap<String, SrRow>,
    pub checkpoints: BTreeMap<Uuid, Vec<CheckpointRow>>,
}

/// What has to be derived again.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Dirty {
    pub vms: BTreeSet<Uuid>,
    pub host: bool,
    pub storage: bool,
    pub networks: bool,
    pub tasks: bool,
    /// SRs that have to be looked at.
    pub srs: BTreeSet<String>,
    /// Domains have come or gone.
    pub domains: bool,
}

impl Dirty {
    pub(crate) fn vm(uuid: Uuid) -> Self {
        Self { vms: BTreeSet::from([uuid]), ..Self::default() }
    }

    fn of_device(vm: Uuid) -> Self {
        Self { storage: true, networks: true, ..Self::vm(vm) }
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.vms.extend(other.vms);
        self.srs.extend(other.srs);
        self.host |= other.host;
        self.storage |= other.storage;
        self.networks |= other.networks;
        self.tasks |= other.tasks;
        self.domains |= other.domains;
    }
}

impl Live {
    fn apply(&mut self, change: ObjectChange) -> Dirty {
        let ObjectChange { key, object, .. } = change;
        match object {
            Object::Vm(vm) => self.apply_vm(&key, vm.map(|it| *it)),
            Object::Device(device) => self.apply_device(&key, device),
            Object::Domain(domain) => self.apply_domain(&key, domain),
            Object::Operation(it) => self.apply_operation(&key, it.map(|it| *it)),
            Object::Sr(sr) => {
                match sr {
                    Some(sr) => self.srs.insert(key.clone(), sr),
                    None => self.srs.remove(&key),
                };
                Dirty { storage: true, host: true, srs: BTreeSet::from([key]), ..Dirty::default() }
            }
        }
    }

    fn apply_vm(&mut self, key: &str, vm: Option<VmObject>) -> Dirty {
        let Ok(uuid) = key.parse::<Uuid>() else { return Dirty::default() };
        let domid = vm.as_ref().and_then(|it| it.domid);
        let before = match vm {
            Some(vm) => self.vms.insert(uuid, vm),
            None => self.vms.remove(&uuid),
        };
        let domains = before.and_then(|it| it.domid) != domid;
        Dirty { host: true, tasks: true, domains, ..Dirty::vm(uuid) }
    }

    fn apply_device(&mut self, key: &str, device: Option<DeviceObject>) -> Dirty {
        let parts = || {
            let (vm, rest) = key.split_once('/')?;
            let (kind, devid) = rest.split_once('/')?;
            Some((vm.parse::<Uuid>().ok()?, kind.to_owned(), devid.parse::<u32>().ok()?))
        };
        let Some((vm, kind, devid)) = parts() else { return Dirty::default() };
        let devices = self.devices.entry(vm).or_default();
        match device {
            Some(device) => devices.insert((kind, devid), device),
            None => devices.remove(&(kind, devid)),
        };
        if devices.is_empty() {
            self.devices.remove(&vm);
        }
        Dirty::of_device(vm)
    }

    fn apply_domain(&mut self, key: &str, domain: Option<DomainObject>) -> Dirty {
        let Ok(domid) = key.parse() else { return Dirty::default() };
        let uuid = domain.as_ref().and_then(|it| it.uuid.parse().ok());
        let before = match domain {
            Some(domain) => self.domains.insert(domid, domain),
            None => self.domains.remove(&domid),
        };
        let before = before.and_then(|it| it.uuid.parse().ok());
        let vms = [before, uuid].into_iter().flatten().collect();
        Dirty { vms, host: true, domains: true, ..Dirty::default() }
    }

    fn apply_operation(&mut self, key: &str, operation: Option<OperationObject>) -> Dirty {
        let Ok(id) = key.parse() else { return Dirty::default() };
        let vm = operation.as_ref().and_then(|it| it.uuid.parse().ok());
        // One that has ended is of no use here.
        match operation.filter(|it| it.row.ended_ns.is_none()) {
            Some(operation) => self.operations.insert(id, operation),
            None => self.operations.remove(&id),
        };
        Dirty { vms: vm.into_iter().collect(), tasks: true, ..Dirty::default() }
    }

    /// Everything that is here.
    fn all(&self) -> Dirty {
        let of_domains = self.domains.values().filter_map(|it| it.uuid.parse().ok());
        let vms = self.vms.keys().copied().chain(self.devices.keys().copied());
        Dirty {
            vms: vms.chain(of_domains).collect(),
            srs: self.srs.keys().cloned().collect(),
            host: true,
            storage: true,
            networks: true,
            tasks: true,
            domains: true,
        }
    }
}

impl Mirror {
    /// A page of the live model.
    pub(crate) fn apply(&mut self, page: Objects) -> Dirty {
        self.cursor = Some(page.cursor);
        if page.starts_again {
            self.next = Some(Live::default());
        }
        let mut dirty = Dirty::default();
        let target = self.next.as_mut().unwrap_or(&mut self.live);
        for change in page.changes {
            dirty.join(target.apply(change));
        }
        if self.next.is_some() {
            // Readers see the old model until the new one is whole, and then only what differs.
            dirty = Dirty::default();
            if page.is_last
                && let Some(next) = self.next.take()
            {
                dirty = self.live.all();
                dirty.join(next.all());
                self.live = next;
            }
        }
        self.is_whole |= page.is_last;
        dirty
    }

    /// What the daemon has answered to a question of ours.
    pub(crate) fn learn(&mut self, request: &Request, reply: &Reply) -> Dirty {
        match reply {
            Reply::Domains(rows) => self.learn_rows(request, rows),
            Reply::Info(info) => {
                self.info = info.0.iter().cloned().collect();
                Dirty { host: true, ..Dirty::default() }
            }
            Reply::Topology(topology) => {
                self.topology = topology.clone();
                Dirty { host: true, ..Dirty::default() }
            }
            Reply::Defaults { bridge } => {
                self.bridge.clone_from(bridge);
                Dirty { networks: true, ..Dirty::default() }
            }
            Reply::Vdis(list) => {
                let Request::Storage(StorageRequest::VdiList { srs }) = request else {
                    return Dirty::default();
                };
                for sr in srs {
                    let of_sr = list.vdis.iter().filter(|vdi| vdi.sr == *sr);
                    let of_sr = of_sr.map(|vdi| (vdi.name.clone(), vdi.clone()));
                    self.vdis.insert(sr.clone(), of_sr.collect());
                }
                // VBDs name their VDIs.
                let vms = self.live.devices.keys().copied().collect();
                Dirty { storage: true, vms, ..Dirty::default() }
            }
            Reply::Srs(rows) => {
                let rows = rows.iter().filter(|row| row.bytes.is_some());
                self.spaces.extend(rows.map(|row| (row.name.clone(), row.clone())));
                Dirty { storage: true, ..Dirty::default() }
            }
            Reply::Checkpoints(rows) => self.learn_checkpoints(request, rows),
            Reply::Objects(page) => self.apply(page.clone()),
            _ => Dirty::default(),
        }
    }

    fn learn_rows(&mut self, request: &Request, rows: &[DomainRow]) -> Dirty {
        let with_starts = matches!(request, Request::Uptime { .. });
        let mut known: BTreeMap<u16, DomainRow> = BTreeMap::new();
        for row in rows {
            let mut row = row.clone();
            let before = self.rows.get(&row.domid).filter(|it| it.uuid == row.uuid);
            if !with_starts && row.started_unix_s.is_none() {
                row.started_unix_s = before.and_then(|it| it.started_unix_s);
            }
            known.insert(row.domid, row);
        }
        self.rows = known;
        let of_rows = self.rows.values().filter_map(|row| row.uuid.parse().ok());
        Dirty { vms: of_rows.collect(), host: true, ..Dirty::default() }
    }

    fn learn_checkpoints(&mut self, request: &Request, rows: &[CheckpointRow]) -> Dirty {
        use api::CheckpointRequest::CheckpointList;
        let Request::Checkpoint(CheckpointList { vms: asked }) = request else {
            return Dirty::default();
        };
        let mut found: BTreeMap<Uuid, Vec<CheckpointRow>> = BTreeMap::new();
        for row in rows {
            if let Ok(vm) = row.uuid.parse() {
                found.entry(vm).or_default().push(row.clone());
            }
        }
        let mut vms: BTreeSet<Uuid> = found.keys().copied().collect();
        if asked.is_empty() {
            vms.extend(self.checkpoints.keys());
            self.checkpoints = found;
        } else {
            for vm in asked.iter().filter_map(|it| it.0.parse().ok()) {
                vms.insert(vm);
                self.checkpoints.remove(&vm);
            }
            self.checkpoints.extend(found);
        }
        Dirty { vms, ..Dirty::default() }
    }

    /// The foreign domain with this UUID.
    pub(crate) fn foreign(&self, uuid: Uuid) -> Option<&DomainObject> {
        self.live.domains.values().find(|it| it.uuid.parse() == Ok(uuid))
    }

    pub(crate) fn row(&self, domid: u16, uuid: &str) -> Option<&DomainRow> {
        self.rows.get(&domid).filter(|row| row.uuid == uuid)
    }

    /// A line of the host's information.
    pub(crate) fn fact(&self, key: &str) -> &str {
        self.info.get(key).map_or("", String::as_str)
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.fact(key).parse().unwrap_or_default()
    }

    pub(crate) fn vdi(&self, sr: &str, name: &str) -> Option<&VdiRow> {
        self.vdis.get(sr)?.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(byte: u8) -> ObjectChange {
        let uuid = Uuid([byte; 16]).to_string();
        let object = VmObject { uuid: uuid.clone(), ..VmObject::default() };
        ObjectChange { revision: 1, key: uuid, object: Object::Vm(Some(Box::new(object))) }
    }

    fn page(changes: Vec<ObjectChange>, starts_again: bool, is_last: bool) -> Objects {
        Objects { cursor: "c".to_owned(), is_last, starts_again, changes }
    }

    #[test]
    fn a_model_that_is_read_anew_replaces_the_old_one_when_it_is_whole() {
        let mut mirror = Mirror::default();
        mirror.apply(page(vec![vm(1), vm(2)], true, true));
        assert!(mirror.is_whole);
        assert_eq!(mirror.apply(page(vec![vm(2)], true, false)), Dirty::default());
        assert_eq!(mirror.live.vms.len(), 2);
        let dirty = mirror.apply(page(vec![vm(3)], false, true));
        assert_eq!(dirty.vms.len(), 3);
        let known: Vec<_> = mirror.live.vms.keys().map(|it| it.0[0]).collect();
        assert_eq!(known, [2, 3]);
    }
}
