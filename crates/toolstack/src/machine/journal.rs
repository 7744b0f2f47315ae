//! The daemon's log: state changes of VMs, and requests with client and result.
//!
//! Records are made in two places only: for each change of a VM's state, and for each answer to a
//! request that changes something. Everything else is a note.

use std::collections::BTreeMap;

use xen::{DomId, Uuid};

use super::permits::PermitRequest;
use super::{Action, ClientId, Instant, Reply, Request, StateChange, Toolstack, VmState};
use crate::scheduler::Ticket;
use crate::tuning::SchedQuestion;

/// The client of a request: the peer process, from the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asker {
    pub uid: u32,
    pub pid: i32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    Info,
    Warning,
    /// The daemon itself cannot go on as it should.
    Error,
}

/// A line of the log. The message is complete; the other fields are for searching.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogRecord {
    pub level: Level,
    pub message: String,
    pub vm: Option<String>,
    pub uuid: Option<Uuid>,
    pub domid: Option<DomId>,
    /// What was asked for, of a request's record.
    pub operation: Option<String>,
    pub asker: Option<Asker>,
    /// In nanoseconds.
    pub took_ns: Option<u64>,
}

/// A request that changes something, until it is answered.
#[derive(Debug)]
struct Asked {
    verb: String,
    /// What is changed: a VM by its name, or an SR or VDI.
    subject: Subject,
    asker: Option<Asker>,
    /// Why it failed, where the reply does not say so.
    failure: Option<String>,
    uuid: Option<Uuid>,
    domid: Option<DomId>,
    began: Instant,
}

#[derive(Clone, Debug)]
enum Subject {
    Vm(String),
    Storage(String),
}

/// State for the next records.
#[derive(Debug, Default)]
pub(super) struct Journal {
    askers: BTreeMap<ClientId, Asker>,
    asked: BTreeMap<ClientId, Asked>,
    /// What clients do themselves, by their permits.
    held: BTreeMap<Ticket, Asked>,
    /// When each VM entered its state.
    since: BTreeMap<Uuid, Instant>,
}

fn deed<'a>(verb: &str, vm: &'a str) -> Option<(String, &'a str)> {
    Some((verb.to_owned(), vm))
}

impl Request {
    /// The action and VM of a request that changes something.
    fn deed(&self) -> Option<(String, &str)> {
        match self {
            Self::Create { config, .. } => deed("create", &config.name),
            Self::Define { config, .. } | Self::Redefine { config, .. } => deed("define", &config.name),
            Self::Undefine { target } => deed("undefine", target),
            Self::Start { target, .. } => deed("start", target),
            Self::HostShutdown => deed("host-shutdown", "all VMs"),
            Self::StartAll => deed("start --all", "all VMs"),
            Self::Destroy { target } => deed("destroy", target),
            Self::Shutdown { target, how, .. } => deed(how.as_str(), target),
            Self::ShutdownEach { how, targets, .. } => match targets {
                super::Targets::These(one) if one.len() == 1 => deed(how.as_str(), &one[0]),
                super::Targets::These(_) => deed(how.as_str(), "several VMs"),
                super::Targets::All => deed(how.as_str(), "all VMs"),
            },
            Self::Pause { target } => deed("pause", target),
            Self::Unpause { target } => deed("unpause", target),
            Self::Tune { target, tuning } => Some((tuning.deed(), target)),
            Self::Suspend { target } => deed("suspend", target),
            Self::Save { .. }
            | Self::Dump { .. }
            | Self::SpeakToModel { .. }
            | Self::CancelSave { .. }
            | Self::Restore { .. }
            | Self::Checkpoint { .. }
            | Self::Revert { .. }
            | Self::Clone { .. }
            | Self::DestroyCheckpoint { .. } => self.deed_to_memory(),
            Self::Resume { target } => deed("resume", target),
            Self::Migrate(to) => deed("migrate", &to.target),
            Self::Settle { target, .. } => deed("settle", target),
            Self::Adopt { target, .. } => deed("adopt", target),
            Self::Disown { target } => deed("disown", target),
            Self::Plug { target, device } => Some((format!("attach {}", device.id()), target)),
            Self::Unplug { target, device, .. } => Some((format!("detach {device}"), target)),
            Self::UnplugPci { target, entry, .. } => Some((format!("detach pci {entry}"), target)),
            Self::ChangeMedium { target, change } => {
                let verb = if change.medium.is_some() { "insert a CD into" } else { "eject" };
                Some((format!("{verb} {}", change.drive), target))
            }
            Self::Sched(SchedQuestion::Change { .. }) => deed("change a scheduler", "this host"),
            Self::Host(ask) => ask.deed(),
            Self::Limits { wanted: Some(_) } => deed("change limits", "this host"),
            // Noted where it is held and given back.
            Self::Permit(_)
            // What only reads.
            | Self::Check { .. }
            | Self::ReadSaved { .. }
            | Self::Checkpoints
            | Self::Receive(_)
            | Self::CancelMove { .. }
            | Self::List
            | Self::Console { .. }
            | Self::Screen { .. }
            | Self::Devices { .. }
            | Self::Resolve { .. }
            | Self::HostInfo
            | Self::Find { .. }
            | Self::Vcpus { .. }
            | Self::StartTimes { .. }
            | Self::Sched(_)
            | Self::ConfigText { .. }
            | Self::Explain { .. }
            | Self::Plan { .. }
            | Self::Limits { wanted: None }
            | Self::Events { .. }
            | Self::Objects { .. }
            | Self::Wait { .. }
            | Self::Vms
            | Self::Operations
            | Self::Trace { .. } => None,
        }
    }

    /// The same of one that is about what a guest has in its memory.
    fn deed_to_memory(&self) -> Option<(String, &str)> {
        match self {
            Self::Save { target, .. } => deed("save", target),
            Self::Dump { target, .. } => deed("dump", target),
            Self::SpeakToModel { target, command } => {
                deed(&format!("qemu-monitor-command {command:?}"), target)
            }
            Self::CancelSave { target, .. } => deed("cancel the save", target),
            Self::Restore { config, .. } => deed("restore", &config.name),
            Self::Checkpoint { target, name, .. } => deed(&format!("checkpoint {name}"), target),
            Self::Revert { config, .. } => deed("revert", &config.name),
            Self::Clone { file, .. } => deed("clone", &file.name),
            Self::DestroyCheckpoint { name, .. } => deed("destroy checkpoint", name),
            other => unreachable!("{other:?} is told elsewhere"),
        }
    }
}

fn seconds(nanoseconds: u64) -> String {
    let ms = nanoseconds / 1_000_000;
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

impl Toolstack {
    /// Introduces a client before its request.
    pub fn introduce(&mut self, client: ClientId, asker: Asker) {
        self.journal.askers.insert(client, asker);
    }

    /// A request begins.
    pub(super) fn note_request(&mut self, now: Instant, client: ClientId, request: &Request) {
        if let Request::Permit(request) = request {
            return self.journal.permit_asked(now, client, request);
        }
        let Some((verb, target)) = request.deed() else { return };
        let meant = self.resolve(target).ok();
        let vm = meant.and_then(|uuid| self.vms.get(&uuid));
        let name = vm.map_or(target, |vm| vm.config.name.as_str()).to_owned();
        let asked = Asked {
            verb,
            subject: Subject::Vm(name),
            asker: self.journal.askers.get(&client).copied(),
            failure: None,
            uuid: meant,
            domid: vm.and_then(|vm| vm.facts.domid()),
            began: now,
        };
        self.journal.asked.insert(client, asked);
    }

    /// Adds records for answers to clients, and for changes after `revision`.
    pub(super) fn keep_journal(&mut self, now: Instant, revision: u64, out: &mut Vec<Action>) {
        let journal = &mut self.journal;
        let mut records: Vec<LogRecord> =
            self.log.after_revision(revision).map(|change| journal.changed(change)).collect();
        for action in &*out {
            if let Action::Reply { client, reply } = action {
                records.extend(journal.answered(now, *client, reply));
            }
        }
        out.extend(records.into_iter().map(|it| Action::Log(Box::new(it))));
    }
}

impl Journal {
    fn changed(&mut self, it: &StateChange) -> LogRecord {
        let before = match it.after {
            VmState::Gone => self.since.remove(&it.uuid),
            _ => self.since.insert(it.uuid, it.at),
        };
        let took_ns = before.map(|before| it.at.0.saturating_sub(before.0));
        let domid = it.domid.map_or(String::new(), |domid| format!(" (domain {domid})"));
        let reason = if it.reason.is_empty() { String::new() } else { format!(": {}", it.reason) };
        let took = took_ns.map_or(String::new(), |ns| format!(" after {}", seconds(ns)));
        let level = match it.after {
            VmState::Stuck | VmState::Preserved => Level::Warning,
            _ => Level::Info,
        };
        LogRecord {
            level,
            message: format!("{}{domid}: {} -> {}{took}{reason}", it.name, it.before, it.after),
            vm: Some(it.name.clone()),
            uuid: Some(it.uuid),
            domid: it.domid,
            operation: None,
            asker: None,
            took_ns,
        }
    }

    /// What a client does itself begins when it asks for its permit, and ends when it gives that back.
    fn permit_asked(&mut self, now: Instant, client: ClientId, request: &PermitRequest) {
        let asked = match request {
            PermitRequest::Sr { deed: Some(deed), .. } => Asked {
                verb: deed.verb.to_owned(),
                subject: Subject::Storage(deed.subject.clone()),
                asker: self.askers.get(&client).copied(),
                failure: None,
                uuid: None,
                domid: None,
                began: now,
            },
            PermitRequest::Sr { deed: None, .. } => return,
            PermitRequest::GiveBack { permit, outcome, change: _ } => {
                match self.held.remove(permit) {
                    Some(asked) => Asked { failure: outcome.clone().err(), ..asked },
                    None => return,
                }
            }
        };
        self.asked.insert(client, asked);
    }

    fn answered(&mut self, now: Instant, client: ClientId, reply: &Reply) -> Option<LogRecord> {
        self.askers.remove(&client);
        let asked = self.asked.remove(&client)?;
        if let Reply::Permit(permit) = reply {
            self.held.insert(*permit, asked);
            return None;
        }
        let Asked { verb, subject, asker, failure, uuid, domid, began } = asked;
        let took_ns = now.0.saturating_sub(began.0);
        let by = asker.map_or(String::new(), |it| format!(" by uid {} (pid {})", it.uid, it.pid));
        let failure = match reply {
            Reply::Failed(message) => Some(message),
            _ => failure.as_ref(),
        };
        let (level, outcome) = match failure {
            Some(message) => (Level::Warning, format!("failed: {message}")),
            None => (Level::Info, "done".to_owned()),
        };
        let (uuid, domid) = match reply {
            Reply::Created(created) => (Some(created.uuid), Some(created.domid)),
            Reply::Defined { uuid } => (Some(*uuid), domid),
            Reply::Done { domid } | Reply::Gone { domid, .. } => (uuid, Some(*domid)),
            _ => (uuid, domid),
        };
        let (subject, vm) = match subject {
            Subject::Vm(name) => (name.clone(), Some(name)),
            Subject::Storage(name) => (name, None),
        };
        let message = format!("{subject}: {verb}{by}, {}: {outcome}", seconds(took_ns));
        let (operation, took_ns) = (Some(verb), Some(took_ns));
        Some(LogRecord { level, message, vm, uuid, domid, operation, asker, took_ns })
    }
}
