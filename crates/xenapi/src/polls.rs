//! When to ask for what the live model does not tell.

use std::collections::{BTreeMap, BTreeSet};

use api::{CheckpointRequest, HostRequest, Request, StorageRequest};

/// Questions that follow from changes are asked no more often than this.
const PAUSE_MS: u64 = 1000;

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Question {
    Info,
    Topology,
    Defaults,
    /// Memory and vCPUs of domains.
    Domains,
    /// The same, and since when they run.
    Starts,
    Checkpoints,
    Vdis(String),
    Space(String),
}

#[derive(Clone, Copy, Debug, Default)]
struct Poll {
    asked_unix_ms: Option<u64>,
    /// Something has changed since.
    is_wanted: bool,
}

#[derive(Debug)]
pub(crate) struct Polls(BTreeMap<Question, Poll>);

impl Question {
    /// Asked again after this time, whatever happens; `None`: never.
    fn every_ms(&self) -> Option<u64> {
        match self {
            Self::Topology | Self::Defaults | Self::Starts => None,
            Self::Domains => Some(10_000),
            Self::Info => Some(30_000),
            Self::Checkpoints | Self::Vdis(_) | Self::Space(_) => Some(60_000),
        }
    }

    fn request(&self) -> Request {
        match self {
            Self::Info => Request::Info,
            Self::Topology => Request::Host(HostRequest::Topology { pci: Vec::new() }),
            Self::Defaults => Request::Host(HostRequest::Defaults),
            Self::Domains => Request::List { targets: Vec::new() },
            Self::Starts => Request::Uptime { targets: Vec::new() },
            Self::Checkpoints => {
                Request::Checkpoint(CheckpointRequest::CheckpointList { vms: Vec::new() })
            }
            Self::Vdis(sr) => Request::Storage(StorageRequest::VdiList { srs: vec![sr.clone()] }),
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
            Question::Starts,
            Question::Checkpoints,
        ];
        Self(all.into_iter().map(|it| (it, Poll::default())).collect())
    }

    /// Domains have come or gone.
    pub(crate) fn want_domains(&mut self) {
        for question in [Question::Starts, Question::Info] {
            self.0.entry(question).or_default().is_wanted = true;
        }
    }

    /// These SRs have changed.
    pub(crate) fn want_srs(&mut self, srs: &BTreeSet<String>) {
        for sr in srs {
            for question in [Question::Vdis(sr.clone()), Question::Space(sr.clone())] {
                self.0.entry(question).or_default().is_wanted = true;
            }
        }
    }

    /// Only these SRs are there.
    pub(crate) fn keep_srs<'a>(&mut self, has: impl Fn(&str) -> bool + 'a) {
        self.0.retain(|question, _| match question {
            Question::Vdis(sr) | Question::Space(sr) => has(sr),
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
        let (question, poll) = self.0.iter_mut().find(|(question, poll)| is_due(question, poll))?;
        *poll = Poll { asked_unix_ms: Some(now_unix_ms), is_wanted: false };
        Some(question.request())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_its_time() {
        let mut polls = Polls::new();
        let mut all = |now| std::iter::from_fn(|| polls.due(now)).count();
        assert_eq!(all(100_000), 6);
        assert_eq!(all(105_000), 0);
        assert_eq!(all(110_000), 1);
        polls.want_srs(&BTreeSet::from(["files".to_owned()]));
        polls.want_domains();
        let all: Vec<_> = std::iter::from_fn(|| polls.due(110_500)).collect();
        let vdis = StorageRequest::VdiList { srs: vec!["files".to_owned()] };
        assert!(all.contains(&Request::Storage(vdis)));
        assert!(all.contains(&Request::Uptime { targets: Vec::new() }));
        polls.keep_srs(|_| false);
        assert!(!polls.0.keys().any(|it| matches!(it, Question::Vdis(_) | Question::Space(_))));
    }
}
