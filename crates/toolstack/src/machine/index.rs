//! Indexes of VMs, definitions and domains of other toolstacks by all their names, with lookup
//! costs independent of their number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use xen::{DomId, Uuid};

use super::definitions::Definition;
use super::live::Marks;
use super::operation::Operation;
use super::{Foreign, OperationId, Vm};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::domains::DomainSet;

/// Our VMs.
#[derive(Debug, Default)]
pub(super) struct Vms {
    by_uuid: BTreeMap<Uuid, Vm>,
    by_name: Names,
    /// While a domid is reused, both VMs.
    by_domid: BTreeSet<(DomId, Uuid)>,
    by_model: BTreeMap<Process, Uuid>,
    /// All domids in `by_domid`.
    domains: DomainSet,
    /// Those that may have changed.
    pub(super) marks: Marks<Uuid>,
    /// Those that have come or gone.
    pub(super) whole: Marks<Uuid>,
}

impl Vms {
    pub(super) fn insert(&mut self, uuid: Uuid, vm: Vm) {
        self.by_name.insert(&vm.config.name, uuid);
        self.by_uuid.insert(uuid, vm);
        self.index(uuid);
        self.marks.mark(uuid);
        self.whole.mark(uuid);
    }

    pub(super) fn remove(&mut self, uuid: &Uuid) -> Option<Vm> {
        if self.contains_key(uuid) {
            self.forget(*uuid);
        }
        self.marks.mark(*uuid);
        self.whole.mark(*uuid);
        let vm = self.by_uuid.remove(uuid)?;
        self.by_name.remove(&vm.config.name, *uuid);
        Some(vm)
    }

    /// Makes a change that may affect the VM's domain or device model.
    pub(super) fn change<T>(&mut self, uuid: Uuid, change: impl FnOnce(&mut Vm) -> T) -> T {
        self.forget(uuid);
        self.marks.mark(uuid);
        let changed = change(self.by_uuid.get_mut(&uuid).expect("a known VM"));
        self.index(uuid);
        changed
    }

    /// Changes the VM's configuration, its name too.
    pub(super) fn reconfigure(&mut self, uuid: Uuid, change: impl FnOnce(&mut VmConfig)) {
        self.marks.mark(uuid);
        let vm = self.by_uuid.get_mut(&uuid).expect("a known VM");
        self.by_name.remove(&vm.config.name, uuid);
        change(Arc::make_mut(&mut vm.config));
        self.by_name.insert(&vm.config.name, uuid);
    }

    fn index(&mut self, uuid: Uuid) {
        let facts = &self.by_uuid[&uuid].facts;
        if let Some(domid) = facts.domid() {
            self.by_domid.insert((domid, uuid));
            self.domains.insert(domid);
        }
        self.by_model.extend(facts.incarnation.model.map(|model| (model, uuid)));
    }

    fn forget(&mut self, uuid: Uuid) {
        let facts = &self.by_uuid[&uuid].facts;
        if let Some(domid) = facts.domid() {
            self.by_domid.remove(&(domid, uuid));
            if self.at(domid).is_none() {
                self.domains.remove(domid);
            }
        }
        if let Some(model) = facts.incarnation.model {
            self.by_model.remove(&model);
        }
    }

    pub(super) fn get(&self, uuid: &Uuid) -> Option<&Vm> {
        self.by_uuid.get(uuid)
    }

    /// For changes of anything but name, domain and device model.
    pub(super) fn get_mut(&mut self, uuid: &Uuid) -> Option<&mut Vm> {
        let vm = self.by_uuid.get_mut(uuid)?;
        self.marks.mark(*uuid);
        Some(vm)
    }

    pub(super) fn contains_key(&self, uuid: &Uuid) -> bool {
        self.by_uuid.contains_key(uuid)
    }

    pub(super) fn named(&self, name: &str) -> Option<&Vm> {
        self.get(&self.by_name.first(name)?)
    }

    /// The VM whose domain has, or had, this domid.
    pub(super) fn at(&self, domid: DomId) -> Option<&Vm> {
        let (_, uuid) = self.by_domid.range((domid, Uuid([0; 16]))..).next()?;
        self.get(uuid).filter(|vm| vm.facts.domid() == Some(domid))
    }

    /// The VM with this device model.
    pub(super) fn of_model(&self, model: Process) -> Option<Uuid> {
        self.by_model.get(&model).copied()
    }

    /// The VM with this domid, name or UUID.
    pub(super) fn meant(&self, target: &str) -> Option<&Vm> {
        let by_domid = target.parse().ok().and_then(|domid| self.at(DomId(domid)));
        by_domid.or_else(|| self.named(target)).or_else(|| self.get(&target.parse().ok()?))
    }

    /// The domains of all VMs.
    pub(super) fn domains(&self) -> &DomainSet {
        &self.domains
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Uuid> {
        self.by_uuid.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Vm> {
        self.by_uuid.values()
    }

    /// Whether the indexes agree with the VMs.
    pub(super) fn is_consistent(&self) -> bool {
        let mut domains = DomainSet::default();
        self.values().filter_map(|vm| vm.facts.domid()).for_each(|it| domains.insert(it));
        let domids = self.values().filter_map(|vm| Some((vm.facts.domid()?, vm.uuid)));
        let names = self.values().map(|vm| (vm.config.name.clone(), vm.uuid));
        let models = self.values().filter_map(|vm| Some((vm.facts.incarnation.model?, vm.uuid)));
        self.domains == domains
            && self.by_domid == domids.collect()
            && self.by_model == models.collect()
            && self.by_name.0 == names.collect()
    }
}

impl Index<&Uuid> for Vms {
    type Output = Vm;

    fn index(&self, uuid: &Uuid) -> &Vm {
        &self.by_uuid[uuid]
    }
}

/// The defined VMs.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    by_uuid: BTreeMap<Uuid, Definition>,
    by_name: Names,
    /// Those that have come, changed or gone.
    pub(super) marks: Marks<Uuid>,
}

impl Definitions {
    pub(super) fn insert(&mut self, uuid: Uuid, definition: Definition) -> Option<Definition> {
        let before = self.remove(&uuid);
        self.by_name.insert(&definition.config.name, uuid);
        self.by_uuid.insert(uuid, definition);
        self.marks.mark(uuid);
        before
    }

    pub(super) fn remove(&mut self, uuid: &Uuid) -> Option<Definition> {
        let before = self.by_uuid.remove(uuid)?;
        self.by_name.remove(&before.config.name, *uuid);
        self.marks.mark(*uuid);
        Some(before)
    }

    pub(super) fn get(&self, uuid: &Uuid) -> Option<&Definition> {
        self.by_uuid.get(uuid)
    }

    pub(super) fn contains_key(&self, uuid: &Uuid) -> bool {
        self.by_uuid.contains_key(uuid)
    }

    pub(super) fn named(&self, name: &str) -> Option<Uuid> {
        self.by_name.first(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uuid, &Definition)> {
        self.by_uuid.iter()
    }
}

impl Index<&Uuid> for Definitions {
    type Output = Definition;

    fn index(&self, uuid: &Uuid) -> &Definition {
        &self.by_uuid[uuid]
    }
}

/// The operations in progress.
#[derive(Debug, Default)]
pub(super) struct Operations {
    by_id: BTreeMap<OperationId, Operation>,
    /// Those that have begun, may have changed, or have ended.
    pub(super) marks: Marks<OperationId>,
}

impl Operations {
    pub(super) fn insert(&mut self, id: OperationId, operation: Operation) {
        self.marks.mark(id);
        self.by_id.insert(id, operation);
    }

    pub(super) fn remove(&mut self, id: &OperationId) -> Option<Operation> {
        self.marks.mark(*id);
        self.by_id.remove(id)
    }

    pub(super) fn get(&self, id: &OperationId) -> Option<&Operation> {
        self.by_id.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &OperationId) -> Option<&mut Operation> {
        let operation = self.by_id.get_mut(id)?;
        self.marks.mark(*id);
        Some(operation)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&OperationId, &Operation)> {
        self.by_id.iter()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &OperationId> {
        self.by_id.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

impl Index<&OperationId> for Operations {
    type Output = Operation;

    fn index(&self, id: &OperationId) -> &Operation {
        &self.by_id[id]
    }
}

/// Names, which need not be unique.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeSet<(String, Uuid)>);

impl Names {
    pub(super) fn insert(&mut self, name: &str, uuid: Uuid) {
        self.0.insert((name.to_owned(), uuid));
    }

    pub(super) fn remove(&mut self, name: &str, uuid: Uuid) {
        self.0.remove(&(name.to_owned(), uuid));
    }

    pub(super) fn first(&self, name: &str) -> Option<Uuid> {
        let (found, uuid) = self.0.range((name.to_owned(), Uuid([0; 16]))..).next()?;
        (found == name).then_some(*uuid)
    }
}

/// The domains of other toolstacks.
#[derive(Debug, Default)]
pub(super) struct Foreigners {
    by_domid: BTreeMap<DomId, Foreign>,
    by_name: BTreeMap<String, BTreeSet<DomId>>,
    by_handle: BTreeSet<(Uuid, DomId)>,
    /// Those that have come, changed or gone.
    pub(super) marks: Marks<DomId>,
}

impl Foreigners {
    pub(super) fn insert(&mut self, domid: DomId, foreign: Foreign) {
        self.remove(&domid);
        if let Some(name) = &foreign.name {
            self.by_name.entry(name.clone()).or_default().insert(domid);
        }
        self.by_handle.insert((foreign.handle, domid));
        self.by_domid.insert(domid, foreign);
        self.marks.mark(domid);
    }

    /// The same domains as another list of them says; those that are alike have not changed.
    pub(super) fn replace(&mut self, mut by: Self) {
        by.marks = std::mem::take(&mut self.marks);
        let all = self.by_domid.keys().chain(by.by_domid.keys());
        let changed: BTreeSet<DomId> =
            all.filter(|domid| self.get(domid) != by.get(domid)).copied().collect();
        changed.into_iter().for_each(|domid| by.marks.mark(domid));
        *self = by;
    }

    pub(super) fn remove(&mut self, domid: &DomId) -> Option<Foreign> {
        let foreign = self.by_domid.remove(domid)?;
        if let Some(name) = &foreign.name
            && let Some(domids) = self.by_name.get_mut(name)
        {
            domids.remove(domid);
            if domids.is_empty() {
                self.by_name.remove(name);
            }
        }
        self.by_handle.remove(&(foreign.handle, *domid));
        self.marks.mark(*domid);
        Some(foreign)
    }

    pub(super) fn get(&self, domid: &DomId) -> Option<&Foreign> {
        self.by_domid.get(domid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&DomId, &Foreign)> {
        self.by_domid.iter()
    }

    /// The domid of the domain with this name.
    pub(super) fn named(&self, name: &str) -> Option<DomId> {
        self.by_name.get(name)?.first().copied()
    }

    /// The domids of domains with this handle: several while one replaces another.
    pub(super) fn places(&self, handle: Uuid) -> impl Iterator<Item = DomId> {
        let range = (handle, DomId(0))..=(handle, DomId(u16::MAX));
        self.by_handle.range(range).map(|(_, domid)| *domid)
    }

    /// The domain with this name, domid or UUID.
    pub(super) fn meant(&self, target: &str) -> Option<(DomId, &Foreign)> {
        let at = |domid: DomId| Some((domid, self.get(&domid)?));
        target
            .parse()
            .ok()
            .and_then(|domid| at(DomId(domid)))
            .or_else(|| at(self.named(target)?))
            .or_else(|| at(self.places(target.parse().ok()?).next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_of_another_toolstack_is_found_by_all_its_names_until_it_is_gone() {
        let mut all = Foreigners::default();
        let named =
            |name: &str, byte| Foreign { handle: Uuid([byte; 16]), name: Some(name.into()) };
        all.insert(DomId(3), named("a", 1));
        all.insert(DomId(4), named("a", 2));
        let uuid = Uuid([2; 16]).to_string();
        let meant = |all: &Foreigners, target: &str| all.meant(target).map(|(domid, _)| domid.0);
        assert_eq!(
            [meant(&all, "4"), meant(&all, "a"), meant(&all, &uuid)],
            [Some(4), Some(3), Some(4)]
        );
        // The domid belongs to another domain now.
        all.insert(DomId(3), named("b", 3));
        assert_eq!([meant(&all, "a"), meant(&all, "b")], [Some(4), Some(3)]);
        all.remove(&DomId(4));
        assert_eq!([meant(&all, "a"), meant(&all, &uuid), meant(&all, "4")], [None; 3]);
    }
}
