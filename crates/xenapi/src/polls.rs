//! When to ask for what the live model does not tell.

use std::collections::{BTreeMap, BTreeSet};

use api::{CheckpointRequest, HostRequest, Request, StorageRequest, Target};
use xen::Uuid;

/// Questions that follow from changes are asked no more often than this.
const PAUSE_MS: u64 = 1000;

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Question {
    Info,
    Topology,
    Defaults,
    /// Memory and vCPUs of domains.
    Domains,
    Checkpoints,
    Space(String),
}

#[derive(Clone, Copy, Debug, Default)]
struct Poll {
    asked_unix_ms: Option<u64>,
    /// Something has changed since.
    is_wanted: bool,
}

#[derive(Debug)]
pub(crate) struct Polls {
    questions: BTreeMap<Question, Poll>,
    /// Domains of which nobody knows since when they run,
    starts: BTreeSet<u16>,
    /// and VMs of which nobody knows the addresses of their interfaces. These are asked for one by one: one that is gone
    /// would fail the request for all.
    macs: BTreeSet<Uuid>,
}

impl Question {
    /// Asked again after this time, whatever happens; `None`: never.
    fn every_ms(&self) -> Option<u64> {
        match self {
            Self::Topology | Self::Defaults => None,
            Self::Domains => Some(10_000),
            Self::Info => Some(30_000),
            Self::Checkpoints | Self::Space(_) => Some(60_000),
        }
    }

    fn request(&self) -> Request {
        match self {
            Self::Info => Request::Info,
            Self::Topology => Request::Host(HostRequest::Topology { pci: Vec::new() }),
            Self::Defaults => Request::Host(HostRequest::Defaults),
            Self::Domains => Request::List { targets: Vec::new() },
            Self::Checkpoints => {
                Request::Checkpoint(CheckpointRequest::CheckpointList { vms: Vec::new() })
            }
            Self::Space(sr) => Request::Storage(StorageRequest::SrInfo { name: sr.clone() }),
        }
    }
}

impl Polls {
    pub(crate) fn new() -> Self {
        let all = [
            Question::Info,
            Question::Topology,
            Question::Defaults,
            Question::Domains,
            Question::Checkpoints,
        ];
        Self {
            questions: all.into_iter().map(|it| (it, Poll::default())).collect(),
            starts: BTreeSet::new(),
            macs: BTreeSet::new(),
        }
    }

    /// These domains are new.
    pub(crate) fn want_domains(&mut self, domids: BTreeSet<u16>) {
        self.starts.extend(domids);
        self.questions.entry(Question::Info).or_default().is_wanted = true;
    }

    /// These VMs have interfaces whose addresses are not known.
    pub(crate) fn want_macs(&mut self, vms: BTreeSet<Uuid>) {
        self.macs.extend(vms);
    }

    /// These SRs have changed.
    pub(crate) fn want_srs(&mut self, srs: &BTreeSet<String>) {
        for sr in srs {
            self.questions.entry(Question::Space(sr.clone())).or_default().is_wanted = true;
        }
    }

    /// Only these SRs are there.
    pub(crate) fn keep_srs<'a>(&mut self, has: impl Fn(&str) -> bool + 'a) {
        self.questions.retain(|question, _| match question {
            Question::Space(sr) => has(sr),
            _ => true,
        });
    }

    /// The next question whose time has come.
    pub(crate) fn due(&mut self, now_unix_ms: u64) -> Option<Request> {
        let is_due = |question: &Question, poll: &Poll| {
            let Some(asked) = poll.asked_unix_ms else { return true };
            let since = now_unix_ms.saturating_sub(asked);
            (poll.is_wanted && since >= PAUSE_MS)
                || question.every_ms().is_some_and(|every| since >= every)
        };
        let mut questions = self.questions.iter_mut();
        if let Some((question, poll)) = questions.find(|(question, poll)| is_due(question, poll)) {
            *poll = Poll { asked_unix_ms: Some(now_unix_ms), is_wanted: false };
            return Some(question.request());
        }
        if let Some(domid) = self.starts.pop_first() {
            return Some(Request::Uptime { targets: vec![Target(domid.to_string())] });
        }
        let vm = self.macs.pop_first()?;
        Some(Request::NetworkList { targets: vec![Target(vm.to_string())] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_its_time() {
        let mut polls = Polls::new();
        let mut all = |now| std::iter::from_fn(|| polls.due(now)).count();
        assert_eq!(all(100_000), 5);
        assert_eq!(all(105_000), 0);
        assert_eq!(all(110_000), 1);
        polls.want_srs(&BTreeSet::from(["files".to_owned()]));
        polls.want_domains(BTreeSet::from([7]));
        polls.want_macs(BTreeSet::from([Uuid([1; 16])]));
        let all: Vec<_> = std::iter::from_fn(|| polls.due(110_500)).collect();
        let names: Vec<_> = all.iter().map(api::name_of).collect();
        assert_eq!(names, ["info", "storage sr-info", "uptime", "network-list"]);
        polls.keep_srs(|_| false);
        let is_sr = |it: &Question| matches!(it, Question::Space(_));
        assert!(!polls.questions.keys().any(is_sr));
    }
}
