//! Defined VMs: definitions, kept in files, and bulk starts.
//!
//! Order of a bulk start: VMs with the lowest number start first, concurrently within the
//! scheduler's limits; the next number follows when each of them runs or has failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use xen::{DomId, Uuid};

use super::checks::WantedVm;
use super::events::VmState;
use super::host_shutdown::LateRestore;
use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Facts, Instant, Purpose, Reply, Toolstack, Vm, policy};
use crate::config::VmConfig;
use crate::moves::TransferFile;
use crate::plan::{Start, plan_create};
use crate::work::{DefinitionWork, Failure, Output, QueryWork};
use crate::{record, xlcfg};

/// A VM as it was defined.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Definition {
    pub(super) config: Arc<VmConfig>,
    /// Starts with the host, in the wave with this number.
    pub(super) autostart: Option<u32>,
}

/// The first line of a file, with its format in the middle. Format 1 has only the first release's
/// keys; a file has the lowest sufficient format, so that earlier releases can read most.
const FIRST_LINE: (&str, &str) = ("# A VM of Xylem, format ", ". Written by xy define.");
const FORMAT: u32 = 2;
const AUTOSTART: &str = "# autostart ";

impl Definition {
    /// The text of its file: a configuration with comments at the top.
    pub(super) fn encode(&self) -> String {
        let autostart = self.autostart.map(|order| format!("{AUTOSTART}{order}\n"));
        let autostart = autostart.unwrap_or_default();
        let text = self.config.to_cfg_text();
        let format = if record::is_format_1(&text) { 1 } else { FORMAT };
        let (before, after) = FIRST_LINE;
        format!("{before}{format}{after}\n{autostart}{text}")
    }

    /// The same under another name.
    pub(super) fn renamed(&self, name: &str) -> Self {
        let mut definition = self.clone();
        name.clone_into(&mut Arc::make_mut(&mut definition.config).name);
        definition
    }

    /// The same with another configuration.
    pub(super) fn with(&self, config: &VmConfig) -> Self {
        Self { config: Arc::new(config.clone()), autostart: self.autostart }
    }

    pub(super) fn decode(name: &str, text: &str) -> Result<(Uuid, Self), String> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let format = first.strip_prefix(FIRST_LINE.0).and_then(|it| it.strip_suffix(FIRST_LINE.1));
        match format.map(str::parse) {
            Some(Ok(1..=FORMAT)) => {}
            Some(Ok(format)) => {
                return Err(format!(
                    "it has format {format} and this xylemd knows formats up to {FORMAT}"
                ));
            }
            _ => return Err("its first line is not that of a definition".to_owned()),
        }
        let autostart = lines.next().and_then(|line| line.strip_prefix(AUTOSTART));
        let autostart = match autostart.map(str::parse).transpose() {
            Ok(autostart) => autostart,
            Err(_) => return Err("its autostart is not a number".to_owned()),
        };
        let source = xlcfg::Source { file: name, text, overrides: &[] };
        let config = xlcfg::parse(source).map_err(|error| error.to_string())?;
        let uuid = config.uuid.ok_or("it has no uuid")?;
        if name != uuid.to_string() {
            return Err(format!("its uuid is {uuid}"));
        }
        Ok((uuid, Self { config: Arc::new(config), autostart }))
    }
}

/// A file of a definition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DefinitionFile {
    /// The VM's UUID.
    pub name: String,
    /// Its content, or why it cannot be read.
    pub text: Result<String, String>,
}

/// Whether this is the first daemon since the host's boot.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Boot {
    /// Autostart VMs are to be started.
    First,
    #[default]
    Again,
}

/// What a daemon starts with.
#[derive(Clone, Debug, Default)]
pub struct Begin {
    /// Revisions of events come after this one.
    pub revision: u64,
    pub definitions: Vec<DefinitionFile>,
    pub boot: Boot,
    /// What is known of moves to and from other hosts.
    pub transfers: Vec<TransferFile>,
    /// The names of all SRs.
    pub srs: Vec<String>,
}

/// One line of a list of VMs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VmRow {
    /// For an unreadable definition, the file's name.
    pub name: String,
    pub uuid: Option<Uuid>,
    pub state: VmState,
    /// Why it is stuck; empty otherwise.
    pub reason: String,
    pub domid: Option<DomId>,
    pub defined: bool,
    pub autostart: Option<u32>,
}

/// Result of a bulk start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StartedAll {
    pub started: usize,
    /// They were running or starting already.
    pub running: usize,
    /// Name and reason.
    pub failed: Vec<(String, String)>,
}

/// A bulk start in progress.
#[derive(Debug)]
pub(super) struct BulkStart {
    /// `None`: started with the host.
    client: Option<ClientId>,
    waves: VecDeque<Vec<Uuid>>,
    open: BTreeSet<Uuid>,
    total: usize,
    outcome: StartedAll,
}

impl Toolstack {
    /// Reads the existing definitions.
    pub(super) fn take_definitions(
        &mut self,
        now: Instant,
        files: Vec<DefinitionFile>,
        out: &mut Vec<Action>,
    ) {
        for DefinitionFile { name, text } in files {
            let decoded = text.and_then(|text| Definition::decode(&name, &text));
            match decoded {
                Ok((uuid, definition)) => {
                    self.definitions.insert(uuid, definition);
                    self.changed(now, uuid, VmState::Down, "defined before");
                }
                Err(why) => {
                    let message = format!("definition {name} is left aside: {why}");
                    out.push(Action::Note { message });
                    name.parse().into_iter().for_each(|uuid| self.vms.marks.mark(uuid));
                    self.left_aside.insert(name, why);
                }
            }
        }
    }

    /// The definition with this name or UUID.
    pub(super) fn defined(&self, target: &str) -> Option<Uuid> {
        let uuid = || target.parse().ok().filter(|uuid| self.definitions.contains_key(uuid));
        self.definitions.named(target).or_else(uuid)
    }

    pub(super) fn define(
        &mut self,
        now: Instant,
        client: ClientId,
        mut config: VmConfig,
        fresh_uuid: Uuid,
        autostart: Option<u32>,
        out: &mut Vec<Action>,
    ) {
        if let Some(message) = policy::refusal(&config) {
            return fail(client, message, out);
        }
        let name = config.name.clone();
        let namesake = self.definitions.named(&name);
        let running = self.vms.named(&name).map(|vm| vm.uuid);
        let running = running.or_else(|| self.unread(&name));
        // Without a UUID the file refers to the VM of that name.
        let uuid = config.uuid.or(namesake).or(running).unwrap_or(fresh_uuid);
        let other = [namesake, running].into_iter().flatten().find(|other| *other != uuid);
        if let Some(other) = other {
            let place = config.origin.at("name");
            return fail(client, format!("{place}: {name} is the VM {other} already"), out);
        }
        if let Some(why) = self.left_aside.get(&uuid.to_string()) {
            let message = format!("{name}: has a definition that cannot be read: {why}");
            return fail(client, message, out);
        }
        config.uuid = Some(uuid);
        let definition = Definition { config: Arc::new(config), autostart };
        let text = definition.encode();
        let before = self.definitions.insert(uuid, definition);
        if !self.vms.contains_key(&uuid) {
            self.changed(now, uuid, VmState::Down, "defined");
        }
        let purpose = Purpose::Define { client, uuid, before: before.map(Box::new) };
        self.give_out(purpose, DefinitionWork::Write { uuid, text }, out);
    }

    /// Defines a VM again, if it is still defined like this.
    pub(super) fn redefine(
        &mut self,
        now: Instant,
        client: ClientId,
        config: VmConfig,
        before: &str,
        out: &mut Vec<Action>,
    ) {
        let known = config.uuid.and_then(|uuid| Some((uuid, self.definitions.get(&uuid)?)));
        match known.filter(|(_, it)| it.config.to_cfg_text() == before) {
            Some((uuid, definition)) => {
                let autostart = definition.autostart;
                self.define(now, client, config, uuid, autostart, out);
            }
            None => {
                let message = format!("{}: its definition is another one by now", config.name);
                fail(client, message, out);
            }
        }
    }

    /// Handles the result of writing a definition's file.
    pub(super) fn written(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        before: Option<Definition>,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let reply = match result {
            Ok(_) => Reply::Defined { uuid },
            Err(Failure(message)) => {
                match before {
                    Some(before) => {
                        self.log.rename(uuid, &before.config.name);
                        self.definitions.insert(uuid, before);
                    }
                    None => self.undefined(now, uuid, "its definition was not written"),
                }
                Reply::Failed(message)
            }
        };
        out.push(Action::Reply { client, reply });
    }

    pub(super) fn undefine(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        let Some(uuid) = self.defined(target) else {
            return fail(client, self.not_defined(target), out);
        };
        self.give_out(Purpose::Undefine { client, uuid }, DefinitionWork::Remove { uuid }, out);
    }

    /// Handles the result of removing a definition's file.
    pub(super) fn removed(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let reply = match result {
            Ok(_) => {
                self.undefined(now, uuid, "undefined");
                Reply::Ok
            }
            Err(Failure(message)) => Reply::Failed(message),
        };
        out.push(Action::Reply { client, reply });
    }

    fn undefined(&mut self, now: Instant, uuid: Uuid, reason: &str) {
        self.definitions.remove(&uuid);
        if !self.vms.contains_key(&uuid) {
            self.changed(now, uuid, VmState::Gone, reason);
        }
    }

    /// All VMs, defined or only running.
    pub(super) fn list_vms(&self, client: ClientId, out: &mut Vec<Action>) {
        let mut known: BTreeSet<Uuid> = self.definitions.iter().map(|(uuid, _)| *uuid).collect();
        known.extend(self.vms.keys());
        let mut rows: Vec<VmRow> =
            known.into_iter().filter_map(|uuid| self.readable_row(uuid)).collect();
        rows.extend(self.stuck_rows());
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        out.push(Action::Reply { client, reply: Reply::Vms(rows) });
    }

    /// A VM as it is listed.
    pub(super) fn vm_row(&self, uuid: Uuid) -> Option<VmRow> {
        self.readable_row(uuid).or_else(|| self.stuck_rows().find(|row| row.uuid == Some(uuid)))
    }

    /// The same of one whose record, if it has one, can be read.
    fn readable_row(&self, uuid: Uuid) -> Option<VmRow> {
        if self.unread.contains_key(&uuid) {
            return None;
        }
        let definition = self.definitions.get(&uuid);
        Some(VmRow {
            uuid: Some(uuid),
            name: self.config_of(uuid)?.name.clone(),
            state: self.state_of(uuid),
            reason: String::new(),
            domid: self.vms.get(&uuid).and_then(|vm| vm.facts.domid()),
            defined: definition.is_some(),
            autostart: definition.and_then(|it| it.autostart),
        })
    }

    /// VMs whose record or definition cannot be read.
    fn stuck_rows(&self) -> impl Iterator<Item = VmRow> {
        let unread = self.unread.iter().map(|(uuid, it)| {
            let definition = self.definitions.get(uuid);
            // Its domain may have ended meanwhile.
            let lives = |domid: &DomId| self.foreign.get(domid).is_some_and(|f| f.handle == *uuid);
            VmRow {
                uuid: Some(*uuid),
                name: it.name.clone(),
                state: VmState::Stuck,
                reason: it.why.clone(),
                domid: it.domid().filter(lives),
                defined: definition.is_some(),
                autostart: definition.and_then(|it| it.autostart),
            }
        });
        let left_aside = self.left_aside.iter().map(|(name, why)| VmRow {
            uuid: name.parse().ok(),
            name: name.clone(),
            state: VmState::Stuck,
            reason: format!("its definition cannot be read: {why}"),
            domid: None,
            defined: true,
            autostart: None,
        });
        // A running VM is listed as itself.
        let is_listed = |row: &VmRow| row.uuid.is_some_and(|uuid| self.vms.contains_key(&uuid));
        unread.chain(left_aside.filter(move |row| !is_listed(row)))
    }

    pub(super) fn start_vm(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        start: Start,
        out: &mut Vec<Action>,
    ) {
        let Some(uuid) = self.defined(target) else {
            return fail(client, self.not_defined(target), out);
        };
        self.start_known(now, client, uuid, start, out);
    }

    /// Starts a defined VM, if need be after a poll of the foreign domain that has its name or UUID.
    pub(super) fn start_known(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        start: Start,
        out: &mut Vec<Action>,
    ) {
        if let Err(message) = self.is_startable(uuid) {
            return fail(client, message, out);
        }
        if let Some(domid) = self.foreign_namesake(uuid) {
            let wanted = Box::new(WantedVm::Defined { uuid, start });
            let purpose = Purpose::Namesake { client, domid, wanted };
            self.give_out(purpose, QueryWork::Find { domid, known: None }, out);
            return;
        }
        self.start_defined(now, uuid, start, Some(client), out);
    }

    fn not_defined(&self, target: &str) -> String {
        match self.left_aside.get(target) {
            Some(why) => format!("{target}: its definition cannot be read: {why}"),
            None => format!("{target}: no VM of that name is defined; see `xy vm-list`"),
        }
    }

    /// Why a defined VM cannot be started now.
    pub(super) fn may_start(&self, uuid: Uuid) -> Result<(), String> {
        self.is_startable(uuid)?;
        match self.foreign_namesake(uuid) {
            Some(domid) => {
                let name = &self.definitions[&uuid].config.name;
                Err(format!(
                    "{name}: domain {domid}, which another toolstack made, has its name or UUID"
                ))
            }
            None => Ok(()),
        }
    }

    /// The foreign domain with the name or UUID of a defined VM, as known since the last survey or poll.
    fn foreign_namesake(&self, uuid: Uuid) -> Option<DomId> {
        let name = &self.definitions[&uuid].config.name;
        self.foreign.places(uuid).next().or_else(|| self.foreign.named(name))
    }

    /// Why a defined VM cannot be started now, foreign domains aside.
    fn is_startable(&self, uuid: Uuid) -> Result<(), String> {
        if let Some(message) = self.doubt_about(uuid) {
            return Err(message);
        }
        let name = &self.definitions[&uuid].config.name;
        if let Some(vm) = self.vms.get(&uuid) {
            let state = self.state_of(uuid);
            return Err(match vm.facts.domid() {
                Some(domid) => format!("{name}: {state} already, as domain {domid}"),
                None => format!("{name}: {state} already"),
            });
        }
        if let Some(unread) = self.unread.get(&uuid) {
            return Err(unread.refusal());
        }
        match self.abandoned_start(uuid, name) {
            Some(message) => Err(message),
            None => Ok(()),
        }
    }

    fn start_defined(
        &mut self,
        now: Instant,
        uuid: Uuid,
        start: Start,
        client: Option<ClientId>,
        out: &mut Vec<Action>,
    ) {
        let config = Arc::clone(&self.definitions[&uuid].config);
        let plan = plan_create(&config, start);
        self.vms.insert(uuid, Vm::new(config, uuid, Facts::default()));
        self.begin(now, uuid, plan, Outcome::Created { client }, out);
    }

    /// Starts all defined VMs that are not running, in waves.
    pub(super) fn start_all(&mut self, now: Instant, client: ClientId, out: &mut Vec<Action>) {
        let all = |_: &Uuid, it: &Definition| Some(it.autostart.unwrap_or(u32::MAX));
        self.bulk_start(now, Some(client), all, BTreeSet::new(), out);
    }

    /// Starts the autostart VMs.
    pub(super) fn start_with_the_host(
        &mut self,
        now: Instant,
        restored: BTreeSet<Uuid>,
        not: &BTreeSet<Uuid>,
        out: &mut Vec<Action>,
    ) {
        let order = |uuid: &Uuid, it: &Definition| it.autostart.filter(|_| !not.contains(uuid));
        self.bulk_start(now, None, order, restored, out);
    }

    fn bulk_start(
        &mut self,
        now: Instant,
        client: Option<ClientId>,
        order: impl Fn(&Uuid, &Definition) -> Option<u32>,
        open: BTreeSet<Uuid>,
        out: &mut Vec<Action>,
    ) {
        let mut waves: BTreeMap<u32, Vec<Uuid>> = BTreeMap::new();
        let mut outcome = StartedAll::default();
        for (uuid, definition) in self.definitions.iter() {
            let Some(order) = order(uuid, definition) else { continue };
            if self.vms.contains_key(uuid) {
                outcome.running += 1;
            } else {
                waves.entry(order).or_default().push(*uuid);
            }
        }
        let total = open.len() + waves.values().map(Vec::len).sum::<usize>();
        let waves = waves.into_values().collect();
        self.bulk_starts.push(BulkStart { client, waves, open, total, outcome });
        self.drive_storms(now, out);
    }

    /// Tells a client of starts that are about to begin, and of those that could not.
    pub(super) fn follow_starts(
        &mut self,
        client: ClientId,
        open: BTreeSet<Uuid>,
        failed: Vec<(String, String)>,
    ) {
        let total = open.len() + failed.len();
        let outcome = StartedAll { failed, ..StartedAll::default() };
        let (client, waves) = (Some(client), VecDeque::new());
        self.bulk_starts.push(BulkStart { client, waves, open, total, outcome });
    }

    /// Begins the next wave of each bulk start without one; ends those that have no more.
    pub(super) fn drive_storms(&mut self, now: Instant, out: &mut Vec<Action>) {
        // A start can fail at once, which can end a wave: repeat until nothing changes.
        while let Some(index) =
            self.bulk_starts.iter().position(|bulk_start| bulk_start.open.is_empty())
        {
            let mut bulk_start = self.bulk_starts.remove(index);
            let Some(wave) = bulk_start.waves.pop_front() else {
                let is_with_host = bulk_start.client.is_none();
                if is_with_host && !self.late_restores.is_empty() {
                    let late = std::mem::take(&mut self.late_restores);
                    bulk_start.open.extend(late.iter().map(LateRestore::uuid));
                    self.bulk_starts.insert(index, bulk_start);
                    self.restore_late(now, late, out);
                    continue;
                }
                match bulk_start.client {
                    Some(client) => {
                        let reply = Reply::StartedAll(Box::new(bulk_start.outcome));
                        out.push(Action::Reply { client, reply });
                    }
                    None => {
                        for (name, why) in &bulk_start.outcome.failed {
                            let message = format!("{name} did not start with the host: {why}");
                            out.push(Action::Note { message });
                        }
                        self.give_out(Purpose::Aside, DefinitionWork::FinishBoot, out);
                    }
                }
                continue;
            };
            let mut begin = Vec::new();
            for uuid in wave {
                // Undefined or started by another client meanwhile.
                let Some(definition) = self.definitions.get(&uuid) else { continue };
                match self.may_start(uuid) {
                    Ok(()) => begin.push(uuid),
                    Err(_) if self.vms.contains_key(&uuid) => bulk_start.outcome.running += 1,
                    Err(why) => {
                        bulk_start.outcome.failed.push((definition.config.name.clone(), why));
                    }
                }
            }
            bulk_start.open.extend(&begin);
            self.bulk_starts.insert(index, bulk_start);
            for uuid in begin {
                self.start_defined(now, uuid, Start::Running, None, out);
            }
        }
    }

    /// Handles the end of a VM's start for the bulk starts.
    pub(super) fn start_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        name: &str,
        failure: Option<&str>,
        out: &mut Vec<Action>,
    ) {
        self.restored_with_host(uuid, failure, out);
        let mut concerns = false;
        for bulk_start in &mut self.bulk_starts {
            if !bulk_start.open.remove(&uuid) {
                continue;
            }
            concerns = true;
            match failure {
                None => bulk_start.outcome.started += 1,
                Some(why) => bulk_start.outcome.failed.push((name.to_owned(), why.to_owned())),
            }
            if let Some(client) = bulk_start.client {
                let done = bulk_start.outcome.started + bulk_start.outcome.failed.len();
                let (vm, total) = (name.to_owned(), bulk_start.total);
                let failure = failure.map(str::to_owned);
                out.push(Action::Started { client, vm, done, total, failure });
            }
        }
        if concerns {
            self.drive_storms(now, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> VmConfig {
        let source = xlcfg::Source { file: "test", text, overrides: &[] };
        xlcfg::parse(source).unwrap()
    }

    #[test]
    fn a_definition_reads_back_from_its_text() {
        let uuid: Uuid = "01234567-89ab-cdef-0123-456789abcdef".parse().unwrap();
        let text = format!("name = 'a'\nuuid = '{uuid}'\nkernel = '/k'\ntype = 'pv'\nmemory = 8\n");
        for autostart in [None, Some(0), Some(7)] {
            let definition = Definition { config: Arc::new(config(&text)), autostart };
            let (again, decoded) =
                Definition::decode(&uuid.to_string(), &definition.encode()).unwrap();
            assert_eq!((again, decoded.autostart), (uuid, autostart));
            assert_eq!(decoded.config.to_cfg_text(), definition.config.to_cfg_text());
        }
    }

    fn first_line(format: u32) -> String {
        format!("# A VM of Xylem, format {format}. Written by xy define.")
    }

    #[test]
    fn what_is_no_definition_is_told_by_what_is_wrong() {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        for (text, expected) in [
            (String::new(), "its first line is not that of a definition"),
            (first_line(3) + "\nwarp = [", "it has format 3 and this xylemd knows formats up to 2"),
            (format!("{}\n{AUTOSTART}x\n", first_line(1)), "its autostart is not a number"),
            (
                format!("{}\nname = 'a'\nkernel = '/k'\ntype = 'pv'\nmemory = 8\n", first_line(1)),
                "it has no uuid",
            ),
        ] {
            assert_eq!(Definition::decode(uuid, &text).unwrap_err(), expected);
        }
    }
}
