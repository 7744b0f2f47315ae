//! Requests for defined VMs, and for events.

use core::time::Duration;

use toolstack::plan::Start;
use toolstack::{Reply, Request, VmState};

use crate::{Failed, Gone, News, Progress, Service, render, succeeded, unexpected};

impl Service<'_> {
    pub(crate) fn vms(&self) -> Result<api::Reply, Failed> {
        match self.ask(Request::Vms)? {
            Reply::Vms(rows) => Ok(api::Reply::Vms(rows.iter().map(render::vm_row).collect())),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn start(
        &self,
        target: &str,
        paused: bool,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        let start = if paused { Start::Paused } else { Start::Running };
        let request = Request::Start { target: target.to_owned(), start };
        self.created(target, request, progress)
    }

    pub(crate) fn start_all(&self) -> Result<api::Reply, Failed> {
        let mut hear = |news| {
            if let News::Started { vm, done, total, failure } = news {
                let step = failure.map_or("started".to_owned(), |why| format!("failed: {why}"));
                // The start continues if the client has disconnected.
                let _gone = self.tell_started(vm, done, total, step);
            }
            Ok(())
        };
        let ask = self.request(Request::StartAll, Progress::Unwanted);
        let reply = self.daemon.wait(ask, None, self.door, &mut hear)?.ok_or(Failed::Gone)?;
        match succeeded(reply)? {
            Reply::StartedAll(all) => Ok(api::Reply::StartedAll(render::started_all(&all))),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn tell_started(
        &self,
        vm: String,
        done: usize,
        total: usize,
        step: String,
    ) -> Result<(), Gone> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (done, total, waits_for) = (number(done), number(total), String::new());
        let progress = api::Progress { vm, done, total, step, waits_for };
        self.door.tell(&api::Answer::Progress(progress))
    }

    pub(crate) fn events(&self, since: Option<u64>, wait: bool) -> Result<api::Reply, Failed> {
        match self.wait(Request::Events { since, waits: wait }, None)? {
            Some(Reply::Changes(changes)) => {
                let unix_ms = |at| self.daemon.unix_ms(at);
                Ok(api::Reply::Changes(render::changes(&changes, unix_ms)))
            }
            Some(other) => Err(unexpected(&other)),
            None => Err(Failed::Gone),
        }
    }

    pub(crate) fn wait_for(
        &self,
        target: &str,
        state: &str,
        timeout_s: Option<u64>,
    ) -> Result<api::Reply, Failed> {
        let found = VmState::ALL.into_iter().find(|it| it.as_str() == state);
        let state = found.ok_or_else(|| {
            let states: Vec<_> = VmState::ALL.iter().map(|it| it.as_str()).collect();
            Failed::Told(format!("{state:?} is no state of a VM; it can be {}", states.join(", ")))
        })?;
        let patience = timeout_s.map(Duration::from_secs);
        match self.wait(Request::Wait { target: target.to_owned(), state }, patience)? {
            Some(Reply::Ok) => Ok(api::Reply::Done),
            Some(other) => Err(unexpected(&other)),
            None => {
                let seconds = timeout_s.unwrap_or_default();
                Err(Failed::Told(format!("{target}: not {state} within {seconds} s")))
            }
        }
    }

    /// Waits for a reply that may take for ever; `None` when the time is over.
    pub(crate) fn wait(
        &self,
        request: Request,
        patience: Option<Duration>,
    ) -> Result<Option<Reply>, Failed> {
        let ask = self.request(request, Progress::Unwanted);
        let reply = self.daemon.wait(ask, patience, self.door, &mut |_| Ok(()))?;
        reply.map(succeeded).transpose()
    }
}
