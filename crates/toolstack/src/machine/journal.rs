//! The daemon's log: what became of VMs, who asked for what, and how that ended.
//!
//! Records are made in two places only: of each change of a VM's state, and of each answer to a request that
//! changes something. What else there is to say is a note.

use std::collections::BTreeMap;

use xen::{DomId, Uuid};

use super::{Action, ClientId, Instant, Reply, Request, StateChange, Toolstack, VmState};

/// Who makes a request: the process at the other end of the connection, as the kernel tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asker {
    pub uid: u32,
    pub pid: i32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    Info,
    Warning,
}

/// A line of the log. The message says all of it in words; the rest is for those who search.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogRecord {
    pub level: Level,
    pub message: String,
    pub vm: Option<String>,
    pub uuid: Option<Uuid>,
    pub domid: Option<DomId>,
    pub asker: Option<Asker>,
    /// In nanoseconds.
    pub took_ns: Option<u64>,
}

/// A request that changes something, until it is answered.
#[derive(Debug)]
struct Asked {
    verb: String,
    vm: String,
    uuid: Option<Uuid>,
    domid: Option<DomId>,
    began: Instant,
}

/// What the next records need to know.
#[derive(Debug, Default)]
pub(super) struct Journal {
    askers: BTreeMap<ClientId, Asker>,
    asked: BTreeMap<ClientId, Asked>,
    /// When each VM came to the state it has.
    since: BTreeMap<Uuid, Instant>,
}

impl Request {
    /// What is done with which VM, if the request changes something.
    fn deed(&self) -> Option<(String, &str)> {
        fn deed<'a>(verb: &str, vm: &'a str) -> Option<(String, &'a str)> {
            Some((verb.to_owned(), vm))
        }
        match self {
            Self::Create { config, .. } => deed("create", &config.name),
            Self::Define { config, .. } => deed("define", &config.name),
            Self::Undefine { target } => deed("undefine", target),
            Self::Start { target, .. } => deed("start", target),
            Self::StartAll => deed("start --all", "all VMs"),
            Self::Destroy { target } => deed("destroy", target),
            Self::Shutdown { target, how, .. } => deed(how.as_str(), target),
            Self::ShutdownEach { how, targets, .. } => match targets {
                super::Targets::These(targets) if targets.len() == 1 => {
                    deed(how.as_str(), &targets[0])
                }
                super::Targets::These(_) => deed(how.as_str(), "several VMs"),
                super::Targets::All => deed(how.as_str(), "all VMs"),
            },
            Self::Pause { target } => deed("pause", target),
            Self::Unpause { target } => deed("unpause", target),
            Self::Adopt { target, .. } => deed("adopt", target),
            Self::Plug { target, device } => Some((format!("attach {}", device.id()), target)),
            Self::Unplug { target, device, .. } => Some((format!("detach {device}"), target)),
            _ => None,
        }
    }
}

fn seconds(nanoseconds: u64) -> String {
    let ms = nanoseconds / 1_000_000;
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

impl Toolstack {
    /// Says who a client is, before its request comes.
    pub fn introduce(&mut self, client: ClientId, asker: Asker) {
        self.journal.askers.insert(client, asker);
    }

    /// A request begins.
    pub(super) fn note_request(&mut self, now: Instant, client: ClientId, request: &Request) {
        let Some((verb, target)) = request.deed() else { return };
        let meant = self.resolve(target).ok();
        let vm = meant.and_then(|uuid| self.vms.get(&uuid));
        let asked = Asked {
            verb,
            vm: vm.map_or(target, |vm| vm.config.name.as_str()).to_owned(),
            uuid: meant,
            domid: vm.and_then(|vm| vm.facts.domid()),
            began: now,
        };
        self.journal.asked.insert(client, asked);
    }

    /// Adds the records that follow from what is told to clients, and from changes after `revision`.
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
            asker: None,
            took_ns,
        }
    }

    fn answered(&mut self, now: Instant, client: ClientId, reply: &Reply) -> Option<LogRecord> {
        let asker = self.askers.remove(&client);
        let Asked { verb, vm, uuid, domid, began } = self.asked.remove(&client)?;
        let took_ns = now.0.saturating_sub(began.0);
        let by = asker.map_or(String::new(), |it| format!(" by uid {} (pid {})", it.uid, it.pid));
        let (level, outcome) = match reply {
            Reply::Failed(message) => (Level::Warning, format!("failed: {message}")),
            _ => (Level::Info, "done".to_owned()),
        };
        let (uuid, domid) = match reply {
            Reply::Created(created) => (Some(created.uuid), Some(created.domid)),
            Reply::Defined { uuid } => (Some(*uuid), domid),
            Reply::Done { domid } | Reply::Gone { domid, .. } => (uuid, Some(*domid)),
            _ => (uuid, domid),
        };
        let message = format!("{vm}: {verb}{by}, {}: {outcome}", seconds(took_ns));
        Some(LogRecord { level, message, vm: Some(vm), uuid, domid, asker, took_ns: Some(took_ns) })
    }
}
