//! Adoption of domains of other toolstacks.
//!
//! Read, decide, write: until the record is written the domain is foreign and is not touched.

use std::sync::Arc;

use xen::{DomId, Uuid};

use super::events::VmState;
use super::requests::fail;
use super::{Action, ClientId, Facts, Incarnation, Instant, Purpose, Reply, Toolstack, Vm, policy};
use crate::config::VmConfig;
use crate::device_model;
use crate::foreign::Adoption;
use crate::layout;
use crate::plan::Start;
use crate::userdata::Userdata;
use crate::work::{AdoptionWork, Failure, Output};

impl Toolstack {
    pub(super) fn adopt_foreign(
        &mut self,
        client: ClientId,
        target: &str,
        base: Option<Box<VmConfig>>,
        out: &mut Vec<Action>,
    ) {
        if let Some(uuid) = self.unread(target) {
            return self.adopt_unread(client, uuid, base, out);
        }
        match self.adoptable(target, base.as_deref()) {
            Err(message) => fail(client, message, out),
            Ok((domid, uuid)) => {
                let base = base.expect("looked at");
                self.adopting.insert(uuid);
                let generation = self.next_generation();
                let work = AdoptionWork::ReadForeign { domid, uuid, generation };
                self.give_out(Purpose::ReadForeign { client, uuid, base }, work, out);
            }
        }
    }

    /// The foreign domain with this name, if it may be adopted.
    fn adoptable(&self, target: &str, base: Option<&VmConfig>) -> Result<(DomId, Uuid), String> {
        if self.resolve(target).is_ok() {
            return Err(format!("{target}: is managed by Xylem already"));
        }
        let (domid, name, uuid) = self.resolve_any(target)?;
        if domid == DomId::DOM0 {
            return Err(format!("{target}: domain 0 cannot be managed"));
        }
        if self.adopting.contains(&uuid) {
            return Err(format!("{name}: is being adopted already"));
        }
        // One that was given to xl comes back as what it was.
        let defined = self.defined(&name).or(self.definitions.contains_key(&uuid).then_some(uuid));
        let is_itself = |it: &Uuid| *it == uuid && self.definitions[it].config.name == name;
        if defined.is_some_and(|it| !is_itself(&it)) {
            return Err(format!("{name}: is defined; run `xy undefine {name}` first"));
        }
        if self.vms.named(&name).is_some() {
            return Err(format!("{name}: there is a VM of that name already"));
        }
        match base.map(policy::refusal) {
            Some(None) => Ok((domid, uuid)),
            Some(Some(message)) => Err(message),
            None => Err(format!(
                "{name}: its kernel is not known, and a reboot needs it; \
                 `xy adopt --config FILE {name}` names the file it was made from"
            )),
        }
    }

    /// Handles the result of reading the domain.
    pub(super) fn foreign_read(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        base: &VmConfig,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let adoption = match result {
            Ok(Output::Foreign(reading)) => {
                self.adoption(&reading, base).and_then(|adoption| self.come_back(adoption))
            }
            Ok(output) => unreachable!("a reading answered with {output:?}"),
            Err(Failure(message)) => Err(message),
        };
        match adoption {
            Err(message) => {
                fail(client, message, out);
                self.adoption_ended(now, uuid, out);
            }
            Ok(adoption) => {
                let (domain, domid) = (adoption.domain, adoption.domain.domid);
                let text = adoption.config.to_cfg_text();
                let (made, backends) = (adoption.completion, &adoption.backends);
                let nodes = layout::adopted_nodes(&text, uuid, domid, made, backends);
                let removals = layout::foreign_paths(domid);
                // Our own loop devices already have our tags.
                let loops = match self.unread.contains_key(&uuid) {
                    true => Vec::new(),
                    false => adoption.loops(),
                };
                let config = Arc::new(adoption.config.clone());
                let userdata = Userdata::of(&config, uuid, domid, &adoption.disks);
                let purpose = Purpose::Adopt { client, adoption: Box::new(adoption) };
                self.give_out(
                    purpose,
                    AdoptionWork::Adopt { domain, uuid, loops, config, nodes, removals, userdata },
                    out,
                );
            }
        }
    }

    /// Handles the result of writing the record.
    pub(super) fn adopted(
        &mut self,
        now: Instant,
        client: ClientId,
        adoption: Adoption,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let Adoption { config, uuid, domain, completion, disks, backends, model } = adoption;
        if let Err(Failure(message)) = result {
            fail(client, format!("{}: {message}", config.name), out);
            return self.adoption_ended(now, uuid, out);
        }
        self.adopting.remove(&uuid);
        self.is_back(uuid);
        if let Some(process) = model {
            out.push(Action::Follow { process, log: device_model::log_file(&config) });
        }
        let domid = domain.domid;
        let incarnation = Incarnation {
            model,
            domain: Some(domain),
            nodes: true,
            completion: Some(completion),
            ..Incarnation::default()
        };
        let facts = Facts { recorded: true, disks, backends, incarnation, ..Facts::default() };
        self.foreign.remove(&domid);
        self.vms.insert(uuid, Vm::new(config, uuid, facts));
        let state = match completion.start {
            Start::Paused => VmState::Paused,
            Start::Running => VmState::Running,
        };
        self.changed(now, uuid, state, "adopted");
        out.push(Action::Reply { client, reply: Reply::Done { domid } });
        // It may have stopped before the adoption.
        self.poll(domid, out);
        let unread = self.unread.remove(&uuid);
        for client in unread.into_iter().flat_map(|it| it.waiters) {
            self.destroy(now, client, uuid, out);
        }
    }
}
