//! Changes of running domains that need no plan.
//!
//! One that its VM's next domain must have too is recorded with its nodes, in one commit. Changes of a record take
//! turns, by a permit each; and whatever takes the VM down, or begins its next domain, waits for the one under way.

use std::collections::BTreeMap;

use xen::{DomId, Uuid};

use super::permits::{Item, ask_for};
use super::requests::fail;
use super::{Action, ClientId, Instant, Pending, Purpose, Query, Reply, Toolstack};
use crate::config::VmConfig;
use crate::layout;
use crate::perform::tuning::{ChangedFile, Subject, TuneWork};
use crate::scheduler::{Priority, Ticket};
use crate::steps::Permit;
use crate::tuning::Tuning;
use crate::work::{DefinitionWork, Failure, Output};
use crate::xlcfg;

/// Changes that wait for their turn, by who asked for them.
pub(super) type Tunings = BTreeMap<ClientId, (Uuid, Tuning)>;

impl Toolstack {
    pub(super) fn tune(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        tuning: Tuning,
        out: &mut Vec<Action>,
    ) {
        let is_of_record = matches!(tuning, Tuning::Rename { .. } | Tuning::NextConfig(_));
        if self.is_dom0(target) && !is_of_record {
            return self.tune_plainly(client, Subject::dom0(), tuning, out);
        }
        if let Tuning::Rename { name } = &tuning
            && self.vms.meant(target).is_none()
            && let Some(uuid) = self.defined(target).filter(|it| !self.unread.contains_key(it))
        {
            return self.rename_definition(client, uuid, name, out);
        }
        self.with_domain(client, target, out, |this, uuid, _, out| {
            let mut tuning = tuning;
            if let Tuning::NextConfig(config) = &mut tuning {
                if let Some(message) = this.next_refusal(uuid, config) {
                    return fail(client, message, out);
                }
                config.uuid = Some(uuid);
            }
            match this.tune_refusal(uuid, &tuning) {
                Some(message) => fail(client, message, out),
                None if tuning.outlives_domain() => {
                    let vm = &this.vms[&uuid];
                    let ask = ask_for(uuid, &vm.config, Permit::RECORD, Priority::Interactive);
                    this.tunings.insert(client, (uuid, tuning));
                    this.scheduler.put(ask, Item::Tune(client));
                    this.dispatch(now, out);
                }
                None => {
                    let subject = this.subject(uuid);
                    this.tune_plainly(client, subject, tuning, out);
                }
            }
        });
    }

    /// Nothing is recorded.
    fn tune_plainly(
        &mut self,
        client: ClientId,
        subject: Subject,
        tuning: Tuning,
        out: &mut Vec<Action>,
    ) {
        let query = Query::Tuned { domid: subject.domid() };
        self.query(client, query, TuneWork::plain(subject, tuning), out);
    }

    fn is_dom0(&self, target: &str) -> bool {
        let is_named = || self.foreign.meant(target).is_some_and(|(domid, _)| domid == DomId::DOM0);
        target.parse() == Ok(DomId::DOM0.0) || self.vms.meant(target).is_none() && is_named()
    }

    /// A VM of ours with a domain.
    pub(super) fn subject(&self, uuid: Uuid) -> Subject {
        let vm = &self.vms[&uuid];
        let domain = vm.facts.incarnation.domain.expect("resolved to one");
        Subject {
            name: vm.config.name.clone(),
            kind: vm.config.kind,
            vm: Some((domain, uuid)),
            model: vm.emulator(),
        }
    }

    /// Why a VM cannot be changed like this now.
    fn tune_refusal(&self, uuid: Uuid, tuning: &Tuning) -> Option<String> {
        let vm = self.vms.get(&uuid)?;
        let name = &vm.config.name;
        if let Some(message) = self.doubt_about(uuid) {
            return Some(message);
        }
        let is_busy = vm.operation.is_some() || vm.after_plugs.is_some();
        let busy = "an operation on it is under way; try again when that has ended";
        (tuning.outlives_domain() && is_busy).then(|| format!("{name}: {busy}"))
    }

    /// It is this change's turn.
    pub(super) fn begin_tune(&mut self, client: ClientId, ticket: Ticket, out: &mut Vec<Action>) {
        let (uuid, tuning) = self.tunings.remove(&client).expect("it waits for its turn");
        match self.recorded_tune(uuid, tuning.clone()) {
            Ok(work) => {
                self.vms.get_mut(&uuid).expect("checked").is_tuned = true;
                let renamed_from = match &tuning {
                    // At once, so that nobody else takes the name meanwhile.
                    Tuning::Rename { name } => Some(self.rename(uuid, name)),
                    _ => None,
                };
                let purpose = Purpose::Tune { client, uuid, ticket, tuning, renamed_from };
                self.give_out(purpose, work, out);
            }
            Err(message) => {
                self.scheduler.done(ticket);
                fail(client, message, out);
            }
        }
    }

    fn recorded_tune(&self, uuid: Uuid, tuning: Tuning) -> Result<TuneWork, String> {
        self.resolve_domain(&uuid.to_string())?;
        if let Some(message) = self.tune_refusal(uuid, &tuning) {
            return Err(message);
        }
        if let Tuning::NextConfig(config) = &tuning {
            return self.record_next(uuid, config);
        }
        let vm = &self.vms[&uuid];
        let (namesake, definition) = match &tuning {
            Tuning::Rename { name } => {
                let namesake = self.may_be_named(uuid, &vm.config.name, name)?;
                (namesake, self.renamed_file(uuid, name))
            }
            _ => (None, None),
        };
        let mut config = VmConfig::clone(&vm.config);
        tuning.apply(&mut config);
        let (before, text) = (vm.config.to_cfg_text(), config.to_cfg_text());
        // A later daemon must be able to read it back.
        let source = xlcfg::Source { file: &vm.config.name, text: &text, overrides: &[] };
        xlcfg::parse(source).map_err(|error| error.to_string())?;
        let pending = Pending::encode_all(&vm.pending);
        let record = layout::changed_record_nodes(uuid, &before, &text, &pending);
        let (subject, definition) = (self.subject(uuid), definition.map(Box::new));
        Ok(TuneWork { subject, tuning: Box::new(tuning), record, definition, namesake })
    }

    /// Notes what came of a change.
    pub(super) fn tuned(
        &mut self,
        uuid: Uuid,
        tuning: &Tuning,
        renamed_from: Option<String>,
        result: Result<Output, Failure>,
    ) -> Reply {
        match result {
            Ok(output) => {
                output.expect_done();
                match tuning {
                    Tuning::NextConfig(config) => self.note_next(uuid, config),
                    tuning => self.vms.reconfigure(uuid, |config| tuning.apply(config)),
                }
                Reply::Done { domid: self.vms[&uuid].facts.domid().unwrap_or_default() }
            }
            Err(Failure(message)) => {
                if let Some(name) = renamed_from {
                    self.rename(uuid, &name);
                }
                Reply::Failed(message)
            }
        }
    }

    /// Others may change it now.
    pub(super) fn end_tune(
        &mut self,
        now: Instant,
        uuid: Uuid,
        ticket: Ticket,
        out: &mut Vec<Action>,
    ) {
        self.scheduler.done(ticket);
        self.vms.get_mut(&uuid).expect("it waits for the change").is_tuned = false;
        self.take_over_if_waiting(now, uuid, out);
        self.dispatch(now, out);
    }

    /// Why a VM cannot have this name. A domain of another toolstack that has it may have another by now.
    fn may_be_named(&self, uuid: Uuid, before: &str, name: &str) -> Result<Option<DomId>, String> {
        if let Some(problem) = xlcfg::name_problem(name) {
            return Err(format!("{before}: cannot be renamed: {name:?} {problem}"));
        }
        let running = self.vms.named(name).map(|vm| vm.uuid);
        let unread = self.unread.iter().find(|(_, it)| it.name == name).map(|(uuid, _)| *uuid);
        let all = [running, unread, self.definitions.named(name)];
        if let Some(other) = all.into_iter().flatten().find(|other| *other != uuid) {
            return Err(format!("{before}: cannot be renamed: {name} is the VM {other} already"));
        }
        Ok(self.foreign.named(name))
    }

    /// The file of its definition, if it is defined.
    fn renamed_file(&self, uuid: Uuid, name: &str) -> Option<ChangedFile> {
        let definition = self.definitions.get(&uuid)?;
        let (before, after) = (definition.encode(), definition.renamed(name).encode());
        Some(ChangedFile { uuid, before, after })
    }

    /// The name that it had.
    fn rename(&mut self, uuid: Uuid, name: &str) -> String {
        let before = self.vms[&uuid].config.name.clone();
        self.vms.reconfigure(uuid, |config| name.clone_into(&mut config.name));
        if let Some(definition) = self.definitions.get(&uuid) {
            let definition = definition.renamed(name);
            self.definitions.insert(uuid, definition);
        }
        self.log.rename(uuid, name);
        before
    }

    /// Of a VM that is defined and does not run.
    fn rename_definition(
        &mut self,
        client: ClientId,
        uuid: Uuid,
        name: &str,
        out: &mut Vec<Action>,
    ) {
        let before = self.definitions[&uuid].config.name.clone();
        match self.may_be_named(uuid, &before, name) {
            Err(message) => fail(client, message, out),
            Ok(Some(domid)) => {
                fail(client, format!("{before}: domain {domid} is named {name} already"), out);
            }
            Ok(None) => {
                let definition = self.definitions[&uuid].renamed(name);
                let text = definition.encode();
                let before = self.definitions.insert(uuid, definition);
                self.log.rename(uuid, name);
                let purpose = Purpose::Define { client, uuid, before: before.map(Box::new) };
                self.give_out(purpose, DefinitionWork::Write { uuid, text }, out);
            }
        }
    }

    /// Begins what waited for the changes of a VM to end.
    pub(super) fn take_over_if_waiting(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("still there");
        if vm.plugs.is_empty()
            && !vm.is_tuned
            && let Some(outcome) = vm.after_plugs.take()
        {
            self.take_over(now, uuid, outcome, out);
        }
    }
}
