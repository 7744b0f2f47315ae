//! What is known of the host: the daemon's live model, and what has to be asked for from time to time.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    CheckpointRow, DeviceObject, DomainObject, DomainRow, NetworkRow, Object, ObjectChange,
    Objects, OperationObject, Reply, Request, SrRow, StorageRequest, Topology, VdiList, VdiRow,
    VmObject,
};
use xen::Uuid;

use crate::spec::Spec;

/// The live model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub vms: BTreeMap<Uuid, VmObject>,
    /// By VM, kind and number.
    pub devices: BTreeMap<Uuid, BTreeMap<(String, u32), DeviceObject>>,
    pub domains: BTreeMap<u16, DomainObject>,
    pub operations: BTreeMap<u64, OperationObject>,
    pub srs: BTreeMap<String, SrRow>,
    /// By SR and name.
    pub vdis: BTreeMap<String, BTreeMap<String, VdiRow>>,
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
    /// Addresses of VMs' interfaces by their number. A VM has the same ones as long as it is there.
    macs: BTreeMap<Uuid, BTreeMap<u32, String>>,
    pub info: BTreeMap<String, String>,
    pub topology: Topology,
    pub bridge: String,
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
    /// VDIs that disks name, as they name them.
    pub vdis: BTreeSet<String>,
    pub networks: bool,
    pub tasks: bool,
    /// VDIs that have come or gone.
    pub moved: BTreeSet<String>,
    /// SRs that have to be looked at.
    pub srs: BTreeSet<String>,
    /// Domains that are new, or that are another's now.
    pub domains: BTreeSet<u16>,
    /// VMs whose interfaces are new.
    pub vifs: BTreeSet<Uuid>,
}

impl Dirty {
    pub(crate) fn vm(uuid: Uuid) -> Self {
        Self { vms: BTreeSet::from([uuid]), ..Self::default() }
    }

    /// A device is like this, or was.
    pub(crate) fn device(vm: Uuid, it: &DeviceObject) -> Self {
        let target =
            Some(it).filter(|it| it.kind == "vbd").and_then(|it| Spec(&it.config).get("target"));
        let vdis = target.map(str::to_owned).into_iter().collect();
        Self { vdis, networks: it.kind == "vif", ..Self::vm(vm) }
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.vms.extend(other.vms);
        self.srs.extend(other.srs);
        self.vdis.extend(other.vdis);
        self.moved.extend(other.moved);
        self.host |= other.host;
        self.storage |= other.storage;
        self.networks |= other.networks;
        self.tasks |= other.tasks;
        self.domains.extend(other.domains);
        self.vifs.extend(other.vifs);
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
            Object::Vdi(vdi) => self.apply_vdi(key, vdi),
            // Read when they are asked for.
            Object::Network(_) | Object::Host(_) => Dirty::default(),
        }
    }

    fn apply_vdi(&mut self, key: String, vdi: Option<VdiRow>) -> Dirty {
        let Some((sr, name)) = key.split_once(':') else { return Dirty::default() };
        let is_there = vdi.is_some();
        let of_sr = self.vdis.entry(sr.to_owned()).or_default();
        let before = match vdi {
            Some(vdi) => of_sr.insert(name.to_owned(), vdi),
            None => of_sr.remove(name),
        };
        let moved = (before.is_some() != is_there).then_some(key);
        Dirty { storage: true, moved: moved.into_iter().collect(), ..Dirty::default() }
    }

    /// VMs with a disk that names one of these VDIs.
    fn vms_with(&self, vdis: &BTreeSet<String>) -> BTreeSet<Uuid> {
        if vdis.is_empty() {
            return BTreeSet::new();
        }
        let names_one = |device: &DeviceObject| {
            device.kind == "vbd"
                && Spec(&device.config).get("target").is_some_and(|it| vdis.contains(it))
        };
        let vms = self.devices.iter();
        vms.filter(|(_, devices)| devices.values().any(names_one)).map(|(vm, _)| *vm).collect()
    }

    fn apply_vm(&mut self, key: &str, vm: Option<VmObject>) -> Dirty {
        let Ok(uuid) = key.parse::<Uuid>() else { return Dirty::default() };
        let domid = vm.as_ref().and_then(|it| it.domid);
        let before = match vm {
            Some(vm) => self.vms.insert(uuid, vm),
            None => self.vms.remove(&uuid),
        };
        let is_new = before.and_then(|it| it.domid) != domid;
        let domains = domid.filter(|_| is_new).into_iter().collect();
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
        let mut dirty = Dirty::vm(vm);
        // It has its address once it is attached.
        if device.as_ref().is_some_and(|it| it.kind == "vif" && it.state == "attached") {
            dirty.vifs.insert(vm);
        }
        if let Some(device) = &device {
            dirty.join(Dirty::device(vm, device));
        }
        let before = match device {
            Some(device) => devices.insert((kind, devid), device),
            None => devices.remove(&(kind, devid)),
        };
        if let Some(before) = before {
            dirty.join(Dirty::device(vm, &before));
        }
        if devices.is_empty() {
            self.devices.remove(&vm);
        }
        dirty
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
        Dirty { vms, host: true, domains: BTreeSet::from([domid]), ..Dirty::default() }
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
            vdis: BTreeSet::new(),
            moved: BTreeSet::new(),
            networks: true,
            tasks: true,
            domains: self.vms.values().filter_map(|it| it.domid).collect(),
            vifs: self.devices.keys().copied().collect(),
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
        let moved = std::mem::take(&mut dirty.moved);
        dirty.vms.extend(self.live.vms_with(&moved));
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
            Reply::Vdis(list) => match request {
                Request::Storage(StorageRequest::VdiList { srs }) => self.learn_vdis(srs, list),
                _ => Dirty::default(),
            },
            Reply::Networks(rows) => self.learn_macs(request, rows),
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

    /// What the façade itself has just changed.
    fn learn_vdis(&mut self, srs: &[String], list: &VdiList) -> Dirty {
        let mut moved = BTreeSet::new();
        for sr in srs {
            let of_sr = list.vdis.iter().filter(|vdi| vdi.sr == *sr);
            let now: BTreeMap<String, VdiRow> =
                of_sr.map(|vdi| (vdi.name.clone(), vdi.clone())).collect();
            let before = self.live.vdis.insert(sr.clone(), now.clone()).unwrap_or_default();
            let gone = before.keys().filter(|name| !now.contains_key(*name));
            let come = now.keys().filter(|name| !before.contains_key(*name));
            moved.extend(gone.chain(come).map(|name| format!("{sr}:{name}")));
        }
        Dirty { storage: true, vms: self.live.vms_with(&moved), ..Dirty::default() }
    }

    fn learn_macs(&mut self, request: &Request, rows: &[NetworkRow]) -> Dirty {
        let Request::NetworkList { targets } = request else { return Dirty::default() };
        let [target] = targets.as_slice() else { return Dirty::default() };
        let Ok(vm) = target.0.parse::<Uuid>() else { return Dirty::default() };
        let macs = self.macs.entry(vm).or_default();
        macs.extend(rows.iter().map(|row| (row.devid, row.mac.clone())));
        Dirty::vm(vm)
    }

    /// Rows of all domains, or of some with the times of their starts.
    fn learn_rows(&mut self, request: &Request, rows: &[DomainRow]) -> Dirty {
        let mut dirty = Dirty { host: true, ..Dirty::default() };
        let is_all = matches!(request, Request::List { .. });
        let mut before = std::mem::take(&mut self.rows);
        for row in rows {
            let mut row = row.clone();
            let known = before.remove(&row.domid).filter(|it| it.uuid == row.uuid);
            if is_all && let Some(known) = &known {
                row.started_unix_s = known.started_unix_s;
            }
            let is_shown = |row: &DomainRow| {
                (row.mem_kib, row.mem_max_kib, row.vcpus_online, row.paused, row.started_unix_s)
            };
            if known.as_ref().map(is_shown) != Some(is_shown(&row)) {
                dirty.vms.extend(row.uuid.parse::<Uuid>());
            }
            if is_all && row.managed && row.started_unix_s.is_none() {
                dirty.domains.insert(row.domid);
            }
            self.rows.insert(row.domid, row);
        }
        if !is_all {
            self.rows.extend(before);
        }
        dirty
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

    /// VMs of these that have an interface whose address nobody knows.
    pub(crate) fn without_macs(&self, vms: &BTreeSet<Uuid>) -> BTreeSet<Uuid> {
        let is_unknown = |vm: &Uuid, it: &DeviceObject| {
            it.kind == "vif" && it.state == "attached" && self.mac(*vm, it).is_empty()
        };
        let lacks = |vm: &&Uuid| {
            let devices = self.live.devices.get(vm).into_iter().flat_map(|it| it.values());
            let mut devices = devices.filter(|it| is_unknown(vm, it));
            devices.next().is_some()
        };
        vms.iter().filter(lacks).copied().collect()
    }

    /// The address of an interface; empty if nobody knows it.
    pub(crate) fn mac<'a>(&'a self, vm: Uuid, it: &'a DeviceObject) -> &'a str {
        let known = || self.macs.get(&vm)?.get(&it.devid).map(String::as_str);
        Spec(&it.config).get("mac").or_else(known).unwrap_or_default()
    }

    /// Nothing of a VM is there any more.
    pub(crate) fn forget(&mut self, vm: Uuid) {
        self.macs.remove(&vm);
    }

    /// A line of the host's information.
    pub(crate) fn fact(&self, key: &str) -> &str {
        self.info.get(key).map_or("", String::as_str)
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.fact(key).parse().unwrap_or_default()
    }

    pub(crate) fn vdi(&self, sr: &str, name: &str) -> Option<&VdiRow> {
        self.live.vdis.get(sr)?.get(name)
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
