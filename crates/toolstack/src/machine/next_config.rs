//! Another configuration for a VM's next domain, which is made when the present one reboots.
//!
//! It is in the record, so that a later daemon knows it. At the reboot everything of the VM is taken down, as its disks and
//! devices may be others, and it is created from that.

use std::sync::Arc;

use xen::Uuid;

use super::operation::{Operation, Outcome};
use super::{Action, Facts, Instant, Toolstack, Vm, policy};
use crate::config::{Start, VmConfig};
use crate::layout;
use crate::perform::tuning::{ChangedFile, TuneWork};
use crate::plan::plan_create;
use crate::tuning::Tuning;
use crate::work::Record;
use crate::xlcfg;

/// What a record says of it.
pub(super) fn read(record: &Record, notes: &mut Vec<String>) -> Option<Arc<VmConfig>> {
    let text = &record.next_text;
    if text.is_empty() {
        return None;
    }
    match xlcfg::parse(xlcfg::Source { file: "next", text, overrides: &[] }) {
        Ok(config) => Some(Arc::new(config)),
        Err(error) => {
            let uuid = record.uuid;
            notes.push(format!("{uuid}: the configuration for its reboot cannot be read: {error}"));
            None
        }
    }
}

impl Toolstack {
    /// Why a VM cannot have this configuration next.
    pub(super) fn next_refusal(&self, uuid: Uuid, config: &VmConfig) -> Option<String> {
        let name = &self.vms[&uuid].config.name;
        if let Some(other) = config.uuid.filter(|other| *other != uuid) {
            let place = config.origin.at("uuid");
            return Some(format!("{place}: {name} has the UUID {uuid}, not {other}"));
        }
        if config.name != *name {
            let (place, other) = (config.origin.at("name"), &config.name);
            return Some(format!("{place}: {name} is not {other}; `xy rename` names it otherwise"));
        }
        policy::refusal(config)
    }

    /// The work that records it, and in the VM's definition if it has one.
    pub(super) fn record_next(&self, uuid: Uuid, config: &VmConfig) -> Result<TuneWork, String> {
        let text = config.to_cfg_text();
        // A later daemon must be able to read it back.
        let source = xlcfg::Source { file: &config.name, text: &text, overrides: &[] };
        xlcfg::parse(source).map_err(|error| error.to_string())?;
        let before = self.vms[&uuid].next.as_ref().map(|next| next.to_cfg_text());
        let record = layout::next_config_nodes(uuid, &before.unwrap_or_default(), &text);
        let definition = self.definitions.get(&uuid).map(|definition| {
            let (before, after) = (definition.encode(), definition.with(config).encode());
            Box::new(ChangedFile { uuid, before, after })
        });
        let tuning = Box::new(Tuning::NextConfig(Box::new(config.clone())));
        Ok(TuneWork { subject: self.subject(uuid), tuning, record, definition, namesake: None })
    }

    /// It is recorded.
    pub(super) fn note_next(&mut self, uuid: Uuid, config: &VmConfig) {
        let vm = self.vms.get_mut(&uuid).expect("it waits for the change");
        vm.next = Some(Arc::new(config.clone()));
        if let Some(definition) = self.definitions.get(&uuid) {
            let definition = definition.with(config);
            self.definitions.insert(uuid, definition);
        }
    }

    /// Takes down a VM that has stopped, to create it from another configuration.
    pub(super) fn replace(
        &mut self,
        now: Instant,
        uuid: Uuid,
        config: Arc<VmConfig>,
        out: &mut Vec<Action>,
    ) {
        self.tear_down(now, uuid, Outcome::Replaced { config }, out);
    }

    /// Nothing is left of it.
    pub(super) fn taken_down_to_replace(
        &mut self,
        now: Instant,
        config: Arc<VmConfig>,
        operation: Operation,
        out: &mut Vec<Action>,
    ) {
        let uuid = operation.uuid;
        let is_unwanted = self.vms[&uuid].condemned;
        self.forget(now, uuid, None, operation.failure, out);
        if is_unwanted {
            return;
        }
        let refusals = self.refusals_of(&config, uuid, super::checks::Existing::Definition);
        let abandoned = || self.abandoned_start(uuid, &config.name);
        if let Some(why) = refusals.into_iter().next().or_else(abandoned) {
            let message = format!("{}: could not start again: {why}", config.name);
            return out.push(Action::Note { message });
        }
        let plan = plan_create(&config, Start::Running);
        self.vms.insert(uuid, Vm::new(config, uuid, Facts::default()));
        self.begin(now, uuid, plan, Outcome::Created { client: None }, out);
    }
}
