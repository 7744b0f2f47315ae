//! The live update of a running daemon, a step in each turn.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context;
use xenstore::server::{ConnId, Endpoint, Endpoints, PollScope};

use crate::daemon::Daemon;
use crate::live_update::handover::{Handover, Stage};
use crate::live_update::{Patience, Session, Way, foreign};
use crate::signs_of_life;

/// Progress of a running update.
#[derive(Default)]
pub(crate) struct Update {
    handover: Option<Handover>,
    /// The program's file is read on another thread, since it may be long.
    look: Option<JoinHandle<std::io::Result<Way>>>,
    way: Option<Way>,
    /// File of the state for another daemon.
    pub(crate) state_file: std::path::PathBuf,
}

/// Result of one step.
enum Step {
    NotYet,
    /// The process that serves now.
    HandedOver(u32),
}

impl Daemon {
    /// Serving resumes after another daemon: clients waiting for the update are answered first.
    pub(crate) fn answer_for_predecessor(&mut self) {
        for id in self.clients.iter().map(|(id, _)| *id).collect::<Vec<_>>() {
            if self.server.is_held(id) {
                self.server.answer_held(id, "OK");
            }
            // The other daemon may have left complete requests, such as those that waited for the
            // update.
            self.resume(id);
            self.flush(id);
        }
        if self.rings.journal.is_whole() {
            self.server.start_recording();
        } else {
            self.rings.begin_journal(&mut self.server);
        }
        self.rings.notify_all();
    }

    /// One step of an update. `Some`: this process no longer serves.
    pub(crate) fn work_on_update(&mut self) -> Option<u32> {
        let session = self.rings.live_update.started()?.clone();
        match self.step(&session) {
            Ok(Step::NotYet) => None,
            Ok(Step::HandedOver(successor)) => Some(successor),
            Err(error) => {
                let text = format!("{error:#}");
                self.rings.log.line(&format!("live update: {text}"));
                self.end_update(&session, &text);
                None
            }
        }
    }

    /// Cancels an update whose client has disconnected.
    pub(crate) fn end_update_of(&mut self, client: ConnId) {
        let session = self.rings.live_update.started().filter(|session| session.client == client);
        if let Some(session) = session.cloned() {
            self.end_update(&session, "");
        }
    }

    fn end_update(&mut self, session: &Session, text: &str) {
        if let Some(handover) = self.update.handover.take() {
            handover.give_up(&mut self.server);
        }
        self.update.way = None;
        self.update.look = None;
        self.rings.live_update.end();
        self.server.answer_held(session.client, text);
        self.resume(session.client);
        for id in self.server.resume_transactions() {
            if self.clients.contains_key(&id) {
                self.resume(id);
                self.unread.push(id);
            } else {
                self.unfinished.insert(id);
            }
        }
    }

    /// The client may have sent further requests.
    fn resume(&mut self, client: ConnId) {
        // A protocol violation is noticed at the next bytes too.
        let _closed_later = self.server.receive(&mut self.rings, client, &[]);
    }

    fn step(&mut self, session: &Session) -> anyhow::Result<Step> {
        if !self.server.is_held(session.client) {
            anyhow::bail!("whoever started the update does not wait for it any more");
        }
        let Some(way) = self.choose_way(session)? else { return Ok(Step::NotYet) };
        match way {
            Way::Beside => self.step_beside(session),
            Way::Exec => self.step_exec(session).map(|()| Step::NotYet),
        }
    }

    /// The kind of takeover, as soon as it is known.
    fn choose_way(&mut self, session: &Session) -> anyhow::Result<Option<Way>> {
        if self.update.way.is_some() {
            return Ok(self.update.way);
        }
        let Some(look) = self.update.look.take() else {
            let session = session.clone();
            self.update.look = Some(std::thread::spawn(move || session.way()));
            return Ok(None);
        };
        if !look.is_finished() {
            self.update.look = Some(look);
            return Ok(None);
        }
        let way = look.join().map_err(|_| anyhow::anyhow!("the new program's file upsets us"))?;
        self.update.way = Some(way.with_context(|| {
            format!("cannot read the new program {}", session.program.display())
        })?);
        Ok(self.update.way)
    }

    fn step_beside(&mut self, session: &Session) -> anyhow::Result<Step> {
        let handover = match &mut self.update.handover {
            Some(handover) => handover,
            None => self.update.handover.insert(Handover::start(session, &self.server)?),
        };
        if handover.step()? == Stage::Loading {
            return Ok(Step::NotYet);
        }
        let began = Instant::now();
        let successor = handover.process_id();
        self.stop_serving()?;
        match self.hand_over() {
            Ok(()) => {
                let milliseconds = began.elapsed().as_millis();
                let line = format!("process {successor} serves now, after {milliseconds} ms");
                self.rings.log.note(&line);
                Ok(Step::HandedOver(successor))
            }
            Err(error) => {
                // It must have exited before its events are ours again.
                if let Some(handover) = self.update.handover.take() {
                    handover.give_up(&mut self.server);
                }
                self.serve_again()?;
                Err(error).context("the new program failed, and this one goes on")
            }
        }
    }

    /// Commits everything, and stops sending domain changes.
    fn stop_serving(&mut self) -> anyhow::Result<()> {
        // Another process begins a new epoch: followers reconnect and get all domains.
        for id in self.server.followers() {
            self.close(id);
        }
        self.rings.commit(&mut self.server);
        match self.rings.platform() {
            Some(platform) => platform.yield_exceptions(),
            None => Ok(()),
        }
    }

    fn serve_again(&mut self) -> anyhow::Result<()> {
        if let Some(platform) = self.rings.platform() {
            platform.claim_exceptions()?;
        }
        if let Err(error) = self.start_broker() {
            self.rings.log.line(&format!("{error:#}"));
        }
        // Domains may have been created and destroyed.
        self.compare_domains(PollScope::Everything);
        Ok(())
    }

    fn hand_over(&mut self) -> anyhow::Result<()> {
        self.check_inputs()?;
        let Some(handover) = &mut self.update.handover else { return Ok(()) };
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        let mut endpoints = Endpoints { listener: Some(0), ..Endpoints::default() };
        endpoints.connections.extend(self.rings.endpoints());
        for (id, client) in self.clients.iter() {
            let descriptor = i32::try_from(descriptors.len()).context("too many clients")?;
            endpoints.connections.insert(*id, Endpoint::Socket { descriptor });
            descriptors.push(client.fd.as_fd());
        }
        let journal =
            self.rings.journal.lend().map(|file| file.try_clone_to_owned()).transpose()?;
        let mut devices = Vec::new();
        if let Some(platform) = self.rings.platform() {
            endpoints.event_channels = i32::try_from(descriptors.len()).ok();
            descriptors.push(platform.events());
            devices = platform.lend();
        }
        let rest = self.server.save_rest(handover.save(), &endpoints);
        handover.finish(
            &rest,
            &descriptors,
            &devices,
            journal.as_ref().map(AsFd::as_fd),
            self.status.listener().as_fd(),
        )?;
        // Whoever can open devices has opened its own.
        if let Some(platform) = self.rings.platform()
            && !rustix::process::geteuid().is_root()
        {
            platform.leave_to_borrower();
        }
        Ok(())
    }

    /// The stream has 16 bits for the size of a client's pending input.
    fn check_inputs(&self) -> anyhow::Result<()> {
        let bytes = self.server.input_bytes_max();
        let fits = u16::try_from(bytes).is_ok();
        anyhow::ensure!(fits, "a client has {bytes} bytes of requests that wait; try again");
        Ok(())
    }

    fn step_exec(&mut self, session: &Session) -> anyhow::Result<()> {
        let Some(start) = session.start else { return Ok(()) };
        let opens_devices = self.rings.platform().is_some_and(|platform| platform.opens_devices());
        if opens_devices && !rustix::process::geteuid().is_root() {
            anyhow::bail!(
                "another program has to open Xen's devices, which this daemon's user may not; stop it and start that one"
            );
        }
        self.server.hold_transactions();
        if self.server.open_transactions() == 0 || start.since.elapsed() >= start.timeout {
            self.server.execute_waiting(&mut self.rings);
        }
        let open = self.server.open_transactions();
        if open > 0 {
            if start.since.elapsed() < start.timeout {
                return Ok(());
            }
            if start.patience == Patience::GiveUp {
                anyhow::bail!("{open} transactions are open; -F drops them");
            }
        }
        self.stop_serving()?;
        if let Some(platform) = self.rings.platform() {
            // The other program would not know that it has a child.
            platform.end_broker();
        }
        let error = match self.write_and_exec(session, start.form) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        // It may not exist.
        let _gone = std::fs::remove_file(&self.update.state_file);
        self.serve_again()?;
        self.rings.begin_journal(&mut self.server);
        Err(error)
    }

    fn write_and_exec(
        &mut self,
        session: &Session,
        form: xenstore::state::Form,
    ) -> anyhow::Result<std::convert::Infallible> {
        use std::os::fd::AsRawFd;
        self.check_inputs()?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        let mut endpoints =
            Endpoints { listener: Some(self.listener.as_raw_fd()), ..Endpoints::default() };
        endpoints.connections.extend(self.rings.endpoints());
        for (id, client) in self.clients.iter() {
            let descriptor = client.fd.as_raw_fd();
            endpoints.connections.insert(*id, Endpoint::Socket { descriptor });
            descriptors.push(client.fd.as_fd());
        }
        self.rings.journal.end();
        self.server.stop_recording();
        if let Some(platform) = self.rings.platform() {
            endpoints.event_channels = Some(platform.events().as_raw_fd());
            descriptors.push(platform.events());
        }
        let mut state = Vec::new();
        self.server.save(form, &endpoints).fill_all(&mut state);
        foreign::write_state(&self.update.state_file, &state)?;
        signs_of_life::excuse();
        let failed = foreign::become_program(session, &descriptors);
        signs_of_life::insist_again();
        failed
    }
}
