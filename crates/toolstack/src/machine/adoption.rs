//! Adoption of an earlier daemon's VMs, from its records.

use std::collections::BTreeMap;

use storage::VdiName;
use xen::{DomId, DomainInfo, DomainRef, Life, ShutdownReason, Uuid};

use super::devices::Pending;
use super::moves::IsSuspended;
use super::next_config;
use super::unread::stand_in;
use super::{Action, Facts, Incarnation, Purpose, Toolstack, Unread, Vm};
use crate::layout::{Backends, Completion, DeviceRef};
use crate::moves::Leaving;
use crate::plan::Start;
use crate::record::Understood;
use crate::saved::Saving;
use crate::userdata::Userdata;
use crate::work::{AdoptionWork, OwnLoop, Record, Survey, parse_loop_tag};

impl Toolstack {
    /// Makes a VM from each record. One that cannot be read is left untouched.
    pub(super) fn adopt(
        &mut self,
        survey: &Survey,
        records: Vec<Record>,
        unique_ids: &BTreeMap<DomId, u64>,
    ) -> Adopted {
        let mut adopted = Adopted::default();
        for record in records {
            // After a reboot the domain before may still be listed, dead, with the same handle.
            let lives = |info: &&DomainInfo| !info.flags.dying() && info.handle == record.uuid;
            let domain = survey.domains.iter().find(lives);
            let domid = domain.map(|info| info.domid).or(record.domid);
            let unique_id = domain.and_then(|info| unique_ids.get(&info.domid).copied());
            let domain_ref = domid.map(|domid| {
                let generation = self.next_generation();
                let counted = Life::Counted { handle: record.uuid, generation };
                DomainRef { domid, life: unique_id.map_or(counted, Life::Unique) }
            });
            let backends = Backends::decode(record.backends.as_deref().unwrap_or_default());
            let read = match read(&record, domain) {
                Ok(read) => read,
                Err(why) => {
                    let name = domid.and_then(|domid| survey.names.get(&domid).cloned());
                    let name = name.unwrap_or_else(|| record.uuid.to_string());
                    let unread = Unread::new(name, why, domain_ref, backends);
                    self.unread.insert(record.uuid, unread);
                    continue;
                }
            };
            match (read.complete, domain) {
                (Some(Completion { start, .. }), Some(info)) => {
                    // A domain that has run was complete, and is paused on request.
                    if has_run(info) {
                        let pending = Pending::decode_all(&record.pending);
                        let pending = pending.into_iter().map(|(it, what)| (record.uuid, it, what));
                        adopted.pending.extend(pending);
                    } else {
                        adopted.unfinished.push((record.uuid, start));
                    }
                }
                _ => adopted.half_made.push(record.uuid),
            }
            if let (Some(text), true, Some(_)) = (&record.saving, domain.is_some(), read.complete)
                && let Some(saving) = Saving::decode(text)
            {
                adopted.saving.push((record.uuid, saving));
            }
            if let (Some(text), Some(info), Some(_)) = (&record.leaving, domain, read.complete)
                && let Some(leaving) = Leaving::decode(text)
            {
                let suspended = info.flags.shutdown() == Some(ShutdownReason::Suspend);
                let state = if suspended { IsSuspended::Yes } else { IsSuspended::No };
                adopted.leaving.push((record.uuid, leaving, state));
            }
            // Once it has run it is this host's.
            let transfer = record.incoming.as_deref().and_then(|text| text.parse().ok());
            let transfer = transfer.filter(|_| !domain.is_some_and(has_run));
            if record.has_suspend_port && domain.is_some() {
                adopted.subscribed.extend(domain_ref);
            }
            let incarnation = Incarnation {
                domain: domain_ref,
                nodes: domid.is_some(),
                completion: read.complete,
                ..Incarnation::default()
            };
            let words = record.made_disks.as_deref().unwrap_or_default().split(' ');
            let made_disks = words.filter_map(VdiName::parse).collect();
            let facts = Facts { recorded: true, incarnation, transfer, ..Facts::default() };
            let facts = Facts { backends, made_disks, ..facts };
            let mut vm = Vm::new(read.config, record.uuid, facts);
            vm.next = next_config::read(&record, &mut adopted.notes);
            self.vms.insert(record.uuid, vm);
        }
        adopted
    }

    /// Lets libxl find all complete VMs: an earlier release may have written less, or had no room.
    pub(super) fn tell_libxl(&mut self, out: &mut Vec<Action>) {
        let userdata = |vm: &Vm| {
            let incarnation = &vm.facts.incarnation;
            let domain = incarnation.domain.filter(|_| incarnation.completion.is_some())?;
            let userdata = Userdata::of(&vm.config, vm.uuid, domain.domid, &vm.facts.disks);
            Some(AdoptionWork::TellLibxl { domain, userdata })
        };
        let all: Vec<AdoptionWork> = self.vms.values().filter_map(userdata).collect();
        for work in all {
            self.give_out(Purpose::Aside, work, out);
        }
    }

    /// Returns loop devices to the VMs named by their tags; the result is the others.
    ///
    /// One of a live domain without a record belongs to another toolstack: it was given away, or its adoption was
    /// interrupted.
    pub(super) fn adopt_loops(&mut self, loops: Vec<OwnLoop>, survey: &Survey) -> Vec<OwnLoop> {
        let lives = |uuid: Uuid| {
            survey.domains.iter().any(|info| info.handle == uuid && !info.flags.dying())
        };
        let mut orphans = Vec::new();
        for OwnLoop { attachment, tag } in loops {
            let of = parse_loop_tag(&tag);
            if let Some((uuid, number)) = of
                && let Some(unread) = self.unread.get_mut(&uuid)
            {
                unread.disks.insert(number, attachment);
                continue;
            }
            if let Some((uuid, _)) = of
                && lives(uuid)
                && !self.vms.contains_key(&uuid)
            {
                self.disowned.add(uuid, OwnLoop { attachment, tag });
                continue;
            }
            let owner = of.and_then(|(uuid, number)| {
                let vm = self.vms.get_mut(&uuid)?;
                let is_known = vm.config.disks.iter().any(|disk| disk.vdev.number == number);
                is_known.then_some((vm, number))
            });
            match owner {
                Some((vm, number)) if !vm.facts.disks.contains_key(&number) => {
                    vm.facts.disks.insert(number, attachment);
                }
                _ => orphans.push(OwnLoop { attachment, tag }),
            }
        }
        orphans
    }
}

/// Work to be done for VMs of an earlier daemon.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    /// To be taken down.
    pub(super) half_made: Vec<Uuid>,
    /// Their nodes are written; some of the later steps may be missing.
    pub(super) unfinished: Vec<(Uuid, Start)>,
    /// Devices that were being plugged or unplugged.
    pub(super) pending: Vec<(Uuid, DeviceRef, Pending)>,
    /// Saves that were in progress.
    pub(super) saving: Vec<(Uuid, Saving)>,
    /// Moves to other hosts that were in progress.
    pub(super) leaving: Vec<(Uuid, Leaving, IsSuspended)>,
    /// Domains that were being suspended, perhaps.
    pub(super) subscribed: Vec<DomainRef>,
    /// Faults that do not matter now.
    pub(super) notes: Vec<String>,
}

/// The content of a record, or why it cannot be read.
fn read(record: &Record, domain: Option<&DomainInfo>) -> Result<Understood, String> {
    match record.read() {
        // Its daemon was killed while writing it, and the domain has not run.
        Err(_) if record.was_never_whole() && !domain.is_some_and(has_run) => {
            let mut config = stand_in();
            config.name = format!("unreadable-{}", record.uuid);
            Ok(Understood { config, complete: None })
        }
        read => read,
    }
}

/// Whether a domain has run or has changed since its creation.
fn has_run(info: &DomainInfo) -> bool {
    !info.flags.paused() || info.cpu_time_ns > 0
}
