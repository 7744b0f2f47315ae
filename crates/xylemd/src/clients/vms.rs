//! Requests about VMs that outlive their domains, and about how VMs change.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use toolstack::plan::Start;
use toolstack::{Reply, VmState, xlcfg};

use super::{Client, Failed, random_uuid, told, unexpected};
use crate::core::{Answered, Progress};
use crate::render;

/// How often a client that waits is looked at: it may have gone.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Client<'_> {
    pub(super) fn define(&self, define: &api::Define) -> Result<api::Reply, Failed> {
        let api::Define { file, config_text, overrides, cwd, strict, warnings, .. } = define;
        let source = xlcfg::Source { file, text: config_text, overrides };
        let config = Box::new(self.configuration(source, cwd, *strict, *warnings)?);
        let fresh_uuid = random_uuid().map_err(|error| Failed::Told(format!("{error:#}")))?;
        let autostart = define.autostart;
        let request = toolstack::Request::Define { config, fresh_uuid, autostart };
        match self.ask(request)? {
            Reply::Defined { uuid } => Ok(api::Reply::Defined { uuid: uuid.to_string() }),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn adopt(&self, adopt: api::Adopt) -> Result<api::Reply, Failed> {
        let read = |text: String| {
            let source = xlcfg::Source { file: &adopt.file, text: &text, overrides: &[] };
            self.configuration(source, &adopt.cwd, false, false).map(Box::new)
        };
        let base = adopt.config_text.map(read).transpose()?;
        let target = adopt.target.0;
        self.ask(toolstack::Request::Adopt { target, base })?;
        Ok(api::Reply::Done)
    }

    pub(super) fn vms(&self) -> Result<api::Reply, Failed> {
        match self.ask(toolstack::Request::Vms)? {
            Reply::Vms(rows) => Ok(api::Reply::Vms(rows.iter().map(render::vm_row).collect())),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn start(
        &self,
        target: &str,
        paused: bool,
        progress: bool,
    ) -> Result<api::Reply, Failed> {
        let start = if paused { Start::Paused } else { Start::Running };
        let request = toolstack::Request::Start { target: target.to_owned(), start };
        match self.ask_telling(target, request, progress)? {
            Reply::Created(created) => Ok(api::Reply::Created(render::create_report(&created))),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn start_all(&self) -> Result<api::Reply, Failed> {
        let answered =
            self.core.begin(self.asker, toolstack::Request::StartAll, Progress::Unwanted);
        loop {
            match answered.recv().map_err(|_| Failed::Gone)? {
                Answered::Reply(reply) => match told(reply)? {
                    Reply::StartedAll(all) => {
                        return Ok(api::Reply::StartedAll(render::started_all(&all)));
                    }
                    other => return Err(unexpected(&other)),
                },
                Answered::Started { vm, done, total, failure } => {
                    let step = failure.map_or("started".to_owned(), |why| format!("failed: {why}"));
                    // A client that has gone changes nothing about the start.
                    let _gone = self.tell_progress(&vm, done, total, step);
                }
                Answered::Progress(_) | Answered::Told(_) => {}
            }
        }
    }

    fn tell_progress(
        &self,
        vm: &str,
        done: usize,
        total: usize,
        step: String,
    ) -> std::io::Result<()> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (done, total, vm) = (number(done), number(total), vm.to_owned());
        let waits_for = String::new();
        self.send(&api::Answer::Progress(api::Progress { vm, done, total, step, waits_for }))
    }

    pub(super) fn events(&self, since: Option<u64>, wait: bool) -> Result<api::Reply, Failed> {
        let request = toolstack::Request::Events { since, waits: wait };
        let answered = self.core.begin(self.asker, request, Progress::Unwanted);
        match self.patient(&answered, None)? {
            Some(Reply::Changes(changes)) => {
                let unix_ms = |at| self.core.unix_ms(at);
                Ok(api::Reply::Changes(render::changes(&changes, unix_ms)))
            }
            Some(other) => Err(unexpected(&other)),
            None => Err(Failed::Gone),
        }
    }

    pub(super) fn wait_for(
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
        let deadline = timeout_s.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let request = toolstack::Request::Wait { target: target.to_owned(), state };
        let answered = self.core.begin(self.asker, request, Progress::Unwanted);
        match self.patient(&answered, deadline)? {
            Some(Reply::Ok) => Ok(api::Reply::Done),
            Some(other) => Err(unexpected(&other)),
            None => {
                let seconds = timeout_s.unwrap_or_default();
                Err(Failed::Told(format!("{target}: not {state} within {seconds} s")))
            }
        }
    }

    /// Waits for an answer that may take for ever, as long as the client is there. None when the time is
    /// over.
    fn patient(
        &self,
        answered: &Receiver<Answered>,
        deadline: Option<Instant>,
    ) -> Result<Option<Reply>, Failed> {
        loop {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            match answered.recv_timeout(left.map_or(LOOK_INTERVAL, |it| it.min(LOOK_INTERVAL))) {
                Ok(Answered::Reply(reply)) => return told(reply).map(Some),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Failed::Gone),
                Err(RecvTimeoutError::Timeout) if left.is_some_and(|it| it.is_zero()) => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) if self.has_gone() => return Err(Failed::Gone),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Whether the client has closed its end.
    fn has_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}
