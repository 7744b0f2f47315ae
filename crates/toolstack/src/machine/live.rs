//! The live model: what others may see of the machine's state, as objects in the order of their last change.
//!
//! When an object changes it is only marked, which costs the same with any number of readers; its state is put together
//! when a reader asks. It is marked where it is kept, by whoever gets hold of it to change it, so no change is missed;
//! and so an object may be told again that looks as before. Changes are collected for a moment before readers that wait
//! hear of them: they are told of an object once, however often it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use live::{Cursor, Revision, Table};
use storage::{Vdi, VdiName};
use xen::{DomId, Uuid};

use super::around::NetworkObject;
use super::definitions::VmRow;
use super::operation::{Operation, Outcome};
use super::permits::SrChange;
use super::progress::{OpenStep, STEPS_MAX};
use super::trace::Summary;
use super::{Action, ClientId, Instant, OperationId, Reply, Toolstack, VmState};
use crate::around::HostFacts;
use crate::config::VmConfig;
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::xlcfg;

/// Removed objects that are remembered, for readers that know them.
const REMOVALS_MAX: usize = 4096;
/// Objects in one answer. The machine does nothing else meanwhile.
const OBJECTS_PER_ANSWER: usize = 64;
/// Readers that may wait at a time; if another comes, the one that has waited longest is answered early.
const READERS_MAX: usize = 256;
/// How long changes are collected for readers that wait, after they were told of some: the first change after a quiet time is told
/// at once.
const COLLECTED_NS: u64 = 50_000_000;

/// What an object is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ObjectClass {
    Vm,
    Device,
    /// A domain that is none of ours.
    Domain,
    Operation,
    Sr,
    Vdi,
    Network,
    Host,
}

impl ObjectClass {
    pub const ALL: [Self; 8] = [
        Self::Vm,
        Self::Device,
        Self::Domain,
        Self::Operation,
        Self::Sr,
        Self::Vdi,
        Self::Network,
        Self::Host,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Device => "device",
            Self::Domain => "domain",
            Self::Operation => "operation",
            Self::Sr => "sr",
            Self::Vdi => "vdi",
            Self::Network => "network",
            Self::Host => "host",
        }
    }
}

/// Which object.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ObjectKey {
    Vm(Uuid),
    Device(Uuid, DeviceRef),
    Domain(DomId),
    Operation(u64),
    Sr(Arc<str>),
    Vdi(VdiName),
    Network(Arc<str>),
    /// There is one.
    Host,
}

impl ObjectKey {
    #[must_use]
    pub fn class(&self) -> ObjectClass {
        match self {
            Self::Vm(_) => ObjectClass::Vm,
            Self::Device(..) => ObjectClass::Device,
            Self::Domain(_) => ObjectClass::Domain,
            Self::Operation(_) => ObjectClass::Operation,
            Self::Sr(_) => ObjectClass::Sr,
            Self::Vdi(_) => ObjectClass::Vdi,
            Self::Network(_) => ObjectClass::Network,
            Self::Host => ObjectClass::Host,
        }
    }
}

/// An object as it is now.
#[derive(Clone, Debug)]
pub enum Object {
    Vm(Box<VmObject>),
    Device(DeviceObject),
    Domain {
        name: Option<String>,
        uuid: Uuid,
    },
    Operation(Box<OperationObject>),
    /// What else it is like stands in its file.
    Sr {
        /// What is wrong with it, as far as reading it has shown.
        problem: Option<Arc<str>>,
    },
    /// Who uses it stands in its file.
    Vdi(Vdi),
    Network(NetworkObject),
    Host(Box<HostFacts>),
}

#[derive(Clone, Debug)]
pub struct VmObject {
    pub row: VmRow,
    /// That of its domain, or of its definition; `None` if it cannot be read.
    pub config: Option<Arc<VmConfig>>,
    /// Those on the VM and on its devices.
    pub operations: Vec<u64>,
}

/// Whether a domain has a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeviceState {
    Attaching,
    Attached,
    Detaching,
    Detached,
}

impl DeviceState {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
            Self::Detached => "detached",
        }
    }
}

#[derive(Clone, Debug)]
pub struct DeviceObject {
    pub device: DeviceRef,
    /// Of a disk, such as `xvda`.
    pub name: Option<String>,
    /// As a configuration file has it; of a screen nothing.
    pub config: String,
    pub state: DeviceState,
    /// Of an interface, if its network is on this host and no script of others connects it.
    pub network: Option<Arc<str>>,
    /// The one on the device alone.
    pub operation: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct OperationObject {
    pub summary: Summary,
    pub uuid: Uuid,
    /// The first few steps in progress or about to begin.
    pub waits_for: Vec<OpenStep>,
}

/// Objects that have changed, the earliest change first.
#[derive(Clone, Debug)]
pub struct Objects {
    pub items: Vec<ObjectChange>,
    /// Where to go on.
    pub next: Cursor,
    /// Whoever has read up to here knows all as it is.
    pub is_last: bool,
    /// The reader forgets what it knows: these are the first of all objects.
    pub starts_again: bool,
}

#[derive(Clone, Debug)]
pub struct ObjectChange {
    pub revision: Revision,
    pub key: ObjectKey,
    /// `None` if it is there no more.
    pub object: Option<Arc<Object>>,
}

/// Which objects a reader wants to hear of; empty means all.
pub type Classes = BTreeSet<ObjectClass>;

#[derive(Debug)]
struct Reader {
    client: ClientId,
    cursor: Cursor,
    classes: Classes,
    /// How often somebody looked for it, without news.
    looks: u32,
}

/// Objects that were put together for one reader, for others that are told at the same time.
type Told = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// Keys of what somebody got hold of to change it, since the last look.
#[derive(Debug)]
pub(super) struct Marks<K>(Vec<K>);

impl<K> Default for Marks<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord> Marks<K> {
    pub(super) fn mark(&mut self, key: K) {
        if self.0.last() != Some(&key) {
            self.0.push(key);
        }
    }

    /// Each key once.
    fn take(&mut self) -> Vec<K> {
        let mut marked = std::mem::take(&mut self.0);
        marked.sort_unstable();
        marked.dedup();
        marked
    }
}

/// The objects, and who waits for their changes.
#[derive(Debug)]
pub(super) struct Live {
    table: Table<ObjectKey, ()>,
    /// VMs all of whose devices may have changed.
    pub(super) all_devices: Marks<Uuid>,
    pub(super) devices: Marks<(Uuid, DeviceRef)>,
    /// Operations that are remembered no more.
    pub(super) forgotten: Vec<u64>,
    readers: Vec<Reader>,
    /// When those who wait are told of what was collected.
    pub(super) due: Option<Instant>,
    /// Until when changes are collected.
    collected_until: Instant,
}

impl Live {
    /// One whose revisions are above `revision`, with these SRs.
    pub(super) fn after(revision: u64, srs: Vec<String>) -> Self {
        let mut table = Table::after(Revision(revision), REMOVALS_MAX);
        for sr in srs {
            table.put(ObjectKey::Sr(sr.into()), ());
        }
        Self {
            table,
            all_devices: Marks::default(),
            devices: Marks::default(),
            forgotten: Vec::new(),
            readers: Vec::new(),
            due: None,
            collected_until: Instant(0),
        }
    }

    pub(super) fn sr_changed(&mut self, change: SrChange) {
        match change {
            SrChange::Come(sr) => self.set(ObjectKey::Sr(sr.into()), true),
            SrChange::Gone(sr) => self.set(ObjectKey::Sr(sr.into()), false),
            SrChange::Changed(sr) => self.touch_sr(sr.into()),
        }
    }

    /// An SR may have changed, if there is one of this name.
    pub(super) fn touch_sr(&mut self, sr: Arc<str>) {
        let key = ObjectKey::Sr(sr);
        if self.table.get(&key).is_some() {
            self.set(key, true);
        }
    }

    /// Whether somebody waits for changes of such classes.
    pub(super) fn has_reader(&self, is_wanted: impl Fn(&Classes) -> bool) -> bool {
        self.readers.iter().any(|reader| is_wanted(&reader.classes))
    }

    pub(super) fn set(&mut self, key: ObjectKey, is_there: bool) {
        if is_there {
            self.table.put(key, ());
        } else {
            self.table.remove(&key);
        }
    }
}

impl Toolstack {
    /// Takes up what has changed during an event, and tells those who have waited for it.
    pub(super) fn note_objects(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.take_up_marks();
        let table = &self.live.table;
        let has_news = self.live.readers.iter().any(|reader| table.has_news(reader.cursor));
        if self.live.due.is_none() && has_news {
            self.live.due = Some(now.max(self.live.collected_until));
        }
        if self.live.due.is_some_and(|due| due <= now) {
            self.live.due = None;
            self.live.collected_until = Instant(now.0 + COLLECTED_NS);
            self.tell_readers(out);
        }
    }

    fn take_up_marks(&mut self) {
        for uuid in self.vms.whole.take() {
            self.live.all_devices.mark(uuid);
        }
        for uuid in self.definitions.marks.take() {
            self.vms.marks.mark(uuid);
            self.live.all_devices.mark(uuid);
        }
        for uuid in self.vms.marks.take() {
            let is_there = self.is_vm(uuid);
            self.live.set(ObjectKey::Vm(uuid), is_there);
        }
        for uuid in self.live.all_devices.take() {
            self.note_devices(uuid);
        }
        for (uuid, device) in self.live.devices.take() {
            let is_there = self.has_device(uuid, device);
            self.note_place(uuid, device, is_there);
            self.live.set(ObjectKey::Device(uuid, device), is_there);
        }
        for domid in self.foreign.marks.take() {
            let is_there = self.foreign.get(&domid).is_some();
            self.live.set(ObjectKey::Domain(domid), is_there);
        }
        for id in self.operations.marks.take() {
            self.live.set(ObjectKey::Operation(id.0), true);
        }
        for id in std::mem::take(&mut self.live.forgotten) {
            self.live.set(ObjectKey::Operation(id), false);
        }
    }

    /// Any device of this VM may have come, changed or gone.
    fn note_devices(&mut self, uuid: Uuid) {
        let config = self.config_of(uuid);
        let mut there: BTreeSet<DeviceRef> =
            config.map(|config| devices(config).collect()).unwrap_or_default();
        there.extend(self.vms.get(&uuid).into_iter().flat_map(|vm| vm.plugs.keys()));
        let first = DeviceRef { kind: DeviceKind::Vbd, devid: 0 };
        let known = self.live.table.keys_from(ObjectKey::Device(uuid, first));
        let known: Vec<DeviceRef> = known
            .map_while(|key| match key {
                ObjectKey::Device(of, device) if *of == uuid => Some(*device),
                _ => None,
            })
            .collect();
        for device in known {
            if !there.contains(&device) {
                self.note_place(uuid, device, false);
                self.live.set(ObjectKey::Device(uuid, device), false);
            }
        }
        for device in there {
            self.note_place(uuid, device, true);
            self.live.set(ObjectKey::Device(uuid, device), true);
        }
    }

    /// Whether a VM has a device, or one is coming or going.
    fn has_device(&self, uuid: Uuid, device: DeviceRef) -> bool {
        self.vms.get(&uuid).is_some_and(|vm| vm.plugs.contains_key(&device))
            || self.config_of(uuid).is_some_and(|config| devices(config).any(|it| it == device))
    }

    /// Of a running VM, or of a definition.
    pub(super) fn config_of(&self, uuid: Uuid) -> Option<&Arc<VmConfig>> {
        let running = self.vms.get(&uuid).map(|vm| &vm.config);
        running.or_else(|| self.definitions.get(&uuid).map(|it| &it.config))
    }

    /// The configuration that has a device: while one comes or goes, that of the operation.
    pub(super) fn config_with(&self, uuid: Uuid, device: DeviceRef) -> Option<&Arc<VmConfig>> {
        let id = self.vms.get(&uuid).and_then(|vm| vm.plugs.get(&device));
        let operation = id.and_then(|id| self.operations.get(id));
        operation.map(Operation::config).or_else(|| self.config_of(uuid))
    }

    fn is_vm(&self, uuid: Uuid) -> bool {
        self.state_of(uuid) != VmState::Gone || self.left_aside.contains_key(&uuid.to_string())
    }

    fn vm_object(&self, uuid: Uuid) -> Option<VmObject> {
        let vm = self.vms.get(&uuid);
        let operations = vm.into_iter().flat_map(|vm| vm.operation.iter().chain(vm.plugs.values()));
        Some(VmObject {
            row: self.vm_row(uuid)?,
            config: self.config_of(uuid).cloned(),
            operations: operations.map(|id| id.0).collect(),
        })
    }

    fn device_object(&self, uuid: Uuid, device: DeviceRef) -> Option<DeviceObject> {
        let id = self.vms.get(&uuid).and_then(|vm| vm.plugs.get(&device)).copied();
        let operation = id.and_then(|id| self.operations.get(&id));
        if !self.has_device(uuid, device) {
            return None;
        }
        let config = self.config_with(uuid, device)?;
        let state = match operation.map(|it| &it.outcome) {
            Some(Outcome::Plugged { .. }) => DeviceState::Attaching,
            Some(_) => DeviceState::Detaching,
            None => match self.state_of(uuid) {
                VmState::Starting => DeviceState::Attaching,
                VmState::Stopping => DeviceState::Detaching,
                VmState::Running | VmState::Paused | VmState::Suspended | VmState::Preserved => {
                    DeviceState::Attached
                }
                VmState::Stuck | VmState::Down | VmState::Gone => DeviceState::Detached,
            },
        };
        let disk = config.disks.iter().find(|disk| disk.vdev.number == device.devid);
        let disk = disk.filter(|_| device.kind == DeviceKind::Vbd);
        Some(DeviceObject {
            device,
            name: disk.map(|disk| disk.vdev.name.clone()),
            config: xlcfg::device_text(config, device).unwrap_or_default(),
            state,
            network: self.surroundings.place(uuid, device).cloned(),
            operation: id.map(|id| id.0),
        })
    }

    fn operation_object(&self, id: u64) -> Option<OperationObject> {
        let Some(operation) = self.operations.get(&OperationId(id)) else {
            let trace = self.past.get(id)?;
            let (summary, uuid) = (trace.summary(), trace.uuid);
            return Some(OperationObject { summary, uuid, waits_for: Vec::new() });
        };
        Some(OperationObject {
            summary: self.summary(OperationId(id)),
            uuid: operation.uuid,
            waits_for: operation.open_steps().take(STEPS_MAX).collect(),
        })
    }

    fn object(&self, key: &ObjectKey) -> Option<Object> {
        match key {
            ObjectKey::Vm(uuid) => self.vm_object(*uuid).map(Box::new).map(Object::Vm),
            ObjectKey::Device(uuid, device) => {
                self.device_object(*uuid, *device).map(Object::Device)
            }
            ObjectKey::Domain(domid) => {
                let foreign = self.foreign.get(domid)?;
                Some(Object::Domain { name: foreign.name.clone(), uuid: foreign.handle })
            }
            ObjectKey::Operation(id) => {
                self.operation_object(*id).map(Box::new).map(Object::Operation)
            }
            ObjectKey::Sr(sr) => Some(Object::Sr { problem: self.contents.problem(sr).cloned() }),
            ObjectKey::Vdi(name) => self.contents.vdi(name).cloned().map(Object::Vdi),
            ObjectKey::Network(name) => self.surroundings.network(name).map(Object::Network),
            ObjectKey::Host => self.surroundings.host.clone().map(Box::new).map(Object::Host),
        }
    }

    fn objects(&self, cursor: Option<Cursor>, classes: &Classes, told: &mut Told) -> Objects {
        let is_wanted = |key: &ObjectKey| classes.is_empty() || classes.contains(&key.class());
        let page = self.live.table.read(cursor, OBJECTS_PER_ANSWER, is_wanted);
        let change = |item: &live::Item<'_, ObjectKey, ()>| {
            let object = || item.value.and_then(|()| self.object(item.key)).map(Arc::new);
            let object = told.entry(item.key.clone()).or_insert_with(object).clone();
            ObjectChange { revision: item.revision, key: item.key.clone(), object }
        };
        Objects {
            items: page.items.iter().map(change).collect(),
            next: page.next,
            is_last: page.is_last,
            starts_again: page.starts_again,
        }
    }

    /// Answers with the objects that have changed since the cursor. A client that waits hears of changes when they have
    /// been collected, and only if there are any.
    pub(super) fn read_objects(
        &mut self,
        (now, client): (Instant, ClientId),
        (cursor, classes): (Option<Cursor>, Classes),
        waits: bool,
        out: &mut Vec<Action>,
    ) {
        // What the current event has changed is only known at its end.
        let Some(begun) = cursor.filter(|_| waits) else {
            if let Some((cursor, classes)) = self.look_first(now, client, (cursor, classes), out) {
                self.tell_objects(client, cursor, &classes, out);
            }
            // Whoever keeps a copy up to date by waiting, and has to read its own change there now, asks so.
            if let Some(due) = &mut self.live.due {
                *due = now;
            }
            return;
        };
        let objects = self.objects(Some(begun), &classes, &mut Told::new());
        if objects.starts_again || !objects.is_last {
            return out.push(Action::Reply { client, reply: Reply::Objects(Box::new(objects)) });
        }
        if self.live.readers.len() == READERS_MAX {
            let longest = self.live.readers.remove(0);
            self.tell_reader(&longest, out);
        }
        self.live.readers.push(Reader { client, cursor: begun, classes, looks: 0 });
    }

    fn tell_reader(&self, reader: &Reader, out: &mut Vec<Action>) {
        self.tell_objects(reader.client, Some(reader.cursor), &reader.classes, out);
    }

    /// Answers those for whom somebody looked so often without news: whoever is still there asks again.
    pub(super) fn count_look(
        &mut self,
        looks_max: u32,
        concerns: impl Fn(&Classes) -> bool,
        out: &mut Vec<Action>,
    ) {
        for mut reader in std::mem::take(&mut self.live.readers) {
            reader.looks += u32::from(concerns(&reader.classes));
            if reader.looks < looks_max {
                self.live.readers.push(reader);
            } else {
                self.tell_reader(&reader, out);
            }
        }
    }

    pub(super) fn tell_objects(
        &self,
        client: ClientId,
        cursor: Option<Cursor>,
        classes: &Classes,
        out: &mut Vec<Action>,
    ) {
        let objects = Box::new(self.objects(cursor, classes, &mut Told::new()));
        out.push(Action::Reply { client, reply: Reply::Objects(objects) });
    }

    /// Tells those who wait for something that has changed.
    fn tell_readers(&mut self, out: &mut Vec<Action>) {
        let mut told = Told::new();
        for mut reader in std::mem::take(&mut self.live.readers) {
            let objects = self.objects(Some(reader.cursor), &reader.classes, &mut told);
            if objects.items.is_empty() && !objects.starts_again {
                reader.cursor = objects.next;
                self.live.readers.push(reader);
            } else {
                let reply = Reply::Objects(Box::new(objects));
                out.push(Action::Reply { client: reader.client, reply });
            }
        }
    }
}

/// The devices of a VM, with drives that are empty.
fn devices(config: &VmConfig) -> impl Iterator<Item = DeviceRef> {
    let of = |kind| move |devid| DeviceRef { kind, devid };
    let drives = config.disks.iter().filter(|disk| disk.is_empty()).map(|disk| disk.vdev.number);
    let pci = (0..).take(config.options.pci.len());
    layout::all_devices(config)
        .into_iter()
        .chain(drives.map(of(DeviceKind::Vbd)))
        .chain(pci.map(of(DeviceKind::Pci)))
}
