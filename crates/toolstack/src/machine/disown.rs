//! VMs that are given to xl while they run.
//!
//! What xl needs is written and the record removed in one commit: a daemon that is killed leaves a VM of ours, or one of
//! xl's. Claims and attachments of its disks are kept until its domain ends, so that no VM of ours gets one
//! that is in use. A later daemon finds them as it finds all that lacks a record.

use std::collections::BTreeMap;

use storage::Attachment;
use xen::{DomId, Uuid};

use super::events::VmState;
use super::requests::fail;
use super::{Action, ClientId, Foreign, Instant, Purpose, Reply, Toolstack};
use crate::foreign::{Adoption, ForeignLoop};
use crate::layout;
use crate::userdata::Userdata;
use crate::work::{AdoptionWork, Failure, Output, OwnLoop, SuspendWork, loop_tag, parse_loop_tag};

/// What is still attached and claimed for domains that were given away.
#[derive(Debug, Default)]
pub(super) struct Disowned(BTreeMap<Uuid, Vec<OwnLoop>>);

impl Disowned {
    pub(super) fn add(&mut self, uuid: Uuid, attached: OwnLoop) {
        self.0.entry(uuid).or_default().push(attached);
    }
}

impl Toolstack {
    pub(super) fn disown(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            if let Some(message) = this.disown_refusal(uuid) {
                return fail(client, message, out);
            }
            let vm = this.vms.get_mut(&uuid).expect("resolved");
            // Whatever takes it down waits until it is known whose it is.
            vm.is_tuned = true;
            let (config, disks) = (&vm.config, &vm.facts.disks);
            let userdata = Userdata::of(config, uuid, domain.domid, disks);
            let loops = config
                .disks
                .iter()
                .filter_map(|disk| ForeignLoop::given(disk, disks.get(&disk.vdev.number)?));
            let loops = loops.collect();
            let model = vm.facts.incarnation.model;
            let nodes = layout::disowned_nodes(&userdata.config(), domain.domid, disks, model);
            let work = AdoptionWork::Disown { domain, uuid, loops, nodes, userdata };
            this.give_out(Purpose::Disown { client, uuid }, work, out);
        });
    }

    fn disown_refusal(&self, uuid: Uuid) -> Option<String> {
        let busy = self.busy_with_operation(uuid);
        busy.or_else(|| match self.state_of(uuid) {
            VmState::Running | VmState::Paused => None,
            state => {
                let name = &self.vms[&uuid].config.name;
                Some(format!(
                    "{name}: is {state}; only a VM that runs or is paused can be given to xl"
                ))
            }
        })
    }

    /// Handles the result of giving it away.
    pub(super) fn disowned(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("it waits for the change");
        vm.is_tuned = false;
        if let Err(Failure(message)) = result {
            let message = format!("{}: {message}", vm.config.name);
            fail(client, message, out);
            return self.take_over_if_waiting(now, uuid, out);
        }
        let vm = self.vms.remove(&uuid).expect("looked at");
        let domain = vm.facts.incarnation.domain.expect("resolved to one");
        let name = &vm.config.name;
        for (number, attachment) in vm.facts.disks {
            self.disowned.add(uuid, OwnLoop { attachment, tag: loop_tag(uuid, number) });
        }
        for waiter in vm.waiters {
            fail(waiter, format!("{name}: was given to xl meanwhile; ask xl"), out);
        }
        let foreign = Foreign { handle: uuid, name: Some(name.clone()) };
        self.foreign.insert(domain.domid, foreign);
        self.give_out(Purpose::Aside, SuspendWork::EndSubscription { domain }, out);
        self.note_down(now, uuid, "given to xl");
        out.push(Action::Reply { client, reply: Reply::Done { domid: domain.domid } });
        // It may have ended meanwhile.
        self.poll(domain.domid, out);
    }

    /// What was given away is as it was when it comes back: its VDIs are known by their names.
    ///
    /// # Errors
    /// It has a disk of which only the device is known.
    pub(super) fn come_back(&self, mut adoption: Adoption) -> Result<Adoption, String> {
        let Some(attached) = self.disowned.0.get(&adoption.uuid) else { return Ok(adoption) };
        for OwnLoop { attachment, tag } in attached {
            let Some((_, number)) = parse_loop_tag(tag) else { continue };
            let Adoption { config, disks, .. } = &mut adoption;
            let disk = config.disks.iter_mut().find(|disk| disk.vdev.number == number);
            let Some(disk) = disk.filter(|it| it.target == attachment.device().path) else {
                continue;
            };
            match attachment {
                Attachment::Vdi { name, .. } => {
                    disk.target = name.to_string();
                    disks.insert(number, attachment.clone());
                }
                Attachment::Image(_) => {
                    return Err(format!(
                        "{}: disk {} is an image that Xylem still serves, and of which no more is known; shut the \
                         guest down, end its domain with xl, and create it here",
                        config.name, disk.vdev.name
                    ));
                }
                Attachment::Loop(_) | Attachment::Block(_) => {}
            }
        }
        Ok(adoption)
    }

    /// It is ours again.
    pub(super) fn is_back(&mut self, uuid: Uuid) {
        self.disowned.0.remove(&uuid);
    }

    /// The domain has ended: whoever wants its disks may have them.
    pub(super) fn disowned_ended(&mut self, uuid: Uuid, out: &mut Vec<Action>) {
        if let Some(orphans) = self.disowned.0.remove(&uuid) {
            self.give_out(Purpose::Aside, AdoptionWork::DetachOrphans { orphans }, out);
        }
    }

    /// Those whose domain is not among the living.
    pub(super) fn end_disowned(&mut self, lives: impl Fn(Uuid) -> bool, out: &mut Vec<Action>) {
        let ended: Vec<Uuid> = self.disowned.0.keys().copied().filter(|it| !lives(*it)).collect();
        for uuid in ended {
            self.disowned_ended(uuid, out);
        }
    }

    /// The domain with this number has gone, if it was one of those.
    pub(super) fn foreign_gone(&mut self, domid: DomId, out: &mut Vec<Action>) {
        if let Some(foreign) = self.foreign.remove(&domid) {
            self.disowned_ended(foreign.handle, out);
        }
    }
}
