//! Saves a guest's state to a file.
//!
//! ```text
//!   record: writing -> file begun -> [rounds while the guest runs] -> suspended -> the rest
//!     destroyed afterwards:  -> file committed -> record: whole        (its VM is taken down)
//!     paused afterwards:     -> file committed -> paused, resumed      -> no record
//!     running afterwards:    -> resumed -> file committed              -> no record
//! ```
//! The commit gives the file its name. Before it, every failure resumes the guest and removes the
//! file. A daemon that is killed leaves a record by which the next one settles the save: if the file
//! is there, whole and of this save, the VM is in it; otherwise the guest goes on. A guest that is to
//! run afterwards goes on in any case.

use std::ops::ControlFlow;

use migrate::libxc::PageData;
use migrate::rounds::{Next, Policy, Rounds, Sent};
use migrate::{Capture, CaptureError, Round};
use storage::HostError;
use xen::{DomId, DomainRef, Errno, Hypervisor, ShutdownReason, Uuid};
use xenstore::client::Transport;

use super::build::PAGES_PER_MIB;
use super::model::Told;
use super::saved_file::{Beginning, SaveWriter};
use super::suspend::PreparedSuspend;
use super::{Performer, failure, refused, store};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::host::Host;
use crate::qmp::GoesOn;
use crate::saved::{AfterSave, HOST_FOLDER, SaveEnd, SaveStage, SaveTo, Saving};
use crate::work::{Failure, IdentityCheck, Part, WorkMonitor};

/// Bytes of a guest that goes on are kept in memory up to this, so that it need not wait for the disk.
/// As many VMs as [`MEMORY_COPIES`](crate::scheduler::MEMORY_COPIES) are saved at a time.
const HELD_BYTES_MAX: usize = 64 << 20;
/// What a suspend takes besides its pages, in microseconds: a guess until there are figures of it.
const SUSPEND_US: u64 = 20_000;
/// A path is in the record, whose nodes are limited by the store's wire.
pub(super) const PATH_BYTES_MAX: usize = 2048;

/// A VM to be saved, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaveOf<'a> {
    pub(crate) domain: DomainRef,
    pub(crate) uuid: Uuid,
    pub(crate) config: &'a VmConfig,
    pub(crate) to: &'a SaveTo,
    /// That of an HVM domain.
    pub(crate) model: Option<Process>,
}

impl SaveOf<'_> {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn saving(&self, stage: SaveStage) -> Saving {
        let SaveTo { path, after, format, id, .. } = self.to;
        Saving { stage, after: *after, format: *format, id: *id, path: path.clone() }
    }

    fn captured<T>(&self, result: Result<T, CaptureError>) -> Result<T, Failure> {
        result.map_err(|error| failure(format_args!("{}: cannot be saved", self.name()), error))
    }
}

/// What a save has of the guest's domain while it is under way.
struct Hold {
    capture: Capture,
    /// `None` if the guest had suspended before, or goes on already.
    suspend: Option<PreparedSuspend>,
    /// What its device model was told.
    model: Told,
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Saves a guest. After a failure it runs on as before, and there is no file.
    pub(crate) fn save(
        &mut self,
        of: SaveOf<'_>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<SaveEnd, Failure> {
        let SaveOf { domain, uuid, to, .. } = of;
        if to.path.len() > PATH_BYTES_MAX {
            return Err(Failure(format!("{}: the path is too long", to.path)));
        }
        if to.path.starts_with(HOST_FOLDER) {
            let made = self.host.system().make_folder(HOST_FOLDER);
            made.map_err(|error| failure(HOST_FOLDER, error))?;
        }
        // It refuses what cannot suspend, before there is a file.
        let suspend = self.prepare_suspend(domain, uuid, of.name())?;
        let written = self.save_prepared(of, suspend, monitor);
        if written.is_ok() && to.after == AfterSave::Destroyed {
            // The file says so as well; this only saves a later daemon from looking.
            let whole = of.saving(SaveStage::Whole);
            let _says_less = store::keep_saving(&mut self.store, domain.domid, uuid, &whole);
        } else {
            let _settled_later = store::forget_saving(&mut self.store, uuid);
        }
        written.map(|()| SaveEnd::Saved(to.after))
    }

    fn save_prepared(
        &mut self,
        of: SaveOf<'_>,
        suspend: Option<PreparedSuspend>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let begun = self.begin_save(of);
        let (capture, writer) = match begun {
            Ok(begun) => begun,
            Err(why) => return Err(self.given_up(suspend, why)),
        };
        let mut hold = Hold { capture, suspend, model: Told::default() };
        let result = self.save_with(of, &mut hold, writer, monitor);
        hold.capture.end(&mut self.xen);
        let goes_on = match result.is_err() || of.to.after != AfterSave::Destroyed {
            true => GoesOn::Here,
            false => GoesOn::Elsewhere,
        };
        let told = hold.model;
        let result = self.end_with_model(of.domain.domid, of.model, told, goes_on, result);
        match result {
            Ok(()) => {
                if let Some(suspend) = hold.suspend {
                    self.end_suspend(suspend);
                }
                Ok(())
            }
            Err(why) => Err(self.given_up(hold.suspend, why)),
        }
    }

    /// The guest goes on, if the suspend was ours.
    fn given_up(&mut self, suspend: Option<PreparedSuspend>, why: Failure) -> Failure {
        match suspend {
            Some(suspend) => self.abandon_suspend(suspend, why),
            None => why,
        }
    }

    /// Begins the file, records the save and reads what does not change.
    fn begin_save(&mut self, of: SaveOf<'_>) -> Result<(Capture, SaveWriter), Failure> {
        let SaveOf { domain, uuid, to, .. } = of;
        let domid = domain.domid;
        let capture = of.captured(Capture::prepare(&mut self.xen, domid))?;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.ok_or_else(|| Failure(format!("{}: its domain is gone", of.name())))?;
        let created = self.host.unix_ms() / 1000;
        // First, so that a later daemon finds what is left of the file.
        store::keep_saving(&mut self.store, domid, uuid, &of.saving(SaveStage::Writing))?;
        let sink = self.host.create_image(&to.path);
        let sink = sink.map_err(|error| match error {
            HostError::Busy => failure(&to.path, "another save is writing it now"),
            error => failure(&to.path, error),
        })?;
        let beginning = Beginning {
            to,
            config: to.config.as_deref().unwrap_or(of.config),
            uuid,
            info: &info,
            headers: capture.headers(),
            created,
        };
        let mut writer = SaveWriter::new(sink, &beginning)?;
        for record in capture.head() {
            writer.record(&record)?;
        }
        Ok((capture, writer))
    }

    fn save_with(
        &mut self,
        of: SaveOf<'_>,
        hold: &mut Hold,
        mut writer: SaveWriter,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let goes_on = of.to.after == AfterSave::Running;
        if goes_on && hold.suspend.is_some() {
            self.save_live(of, hold, &mut writer, monitor)?;
        }
        let snapshots = self.prepare_snapshots(of)?;
        if let Some(suspend) = &mut hold.suspend {
            self.arm_suspend(suspend)?;
            self.trigger_suspend(suspend, monitor)?;
        }
        // It may write to the guest's memory and disks until then.
        let model = self.stop_model(of.domain.domid, of.model, &mut hold.model)?;
        // What the guest has asked of its disks and not heard of, it asks again when it is restored:
        // so it does not matter what of that the snapshots have.
        if let Some(snapshots) = snapshots {
            let taken = snapshots.take(self.host.system());
            taken.map_err(|error| failure(of.name(), error))?;
        }
        if goes_on {
            writer.hold(HELD_BYTES_MAX);
        }
        let pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Last))?;
        self.save_round(of, hold, pages, &mut writer, monitor)?;
        for record in of.captured(hold.capture.tail(&mut self.xen))? {
            writer.record(&record)?;
        }
        writer.end(model.as_ref())?;
        match of.to.after {
            AfterSave::Running => {
                hold.capture.end(&mut self.xen);
                self.go_on(of, hold)?;
                writer.commit()
            }
            AfterSave::Paused => {
                writer.commit()?;
                let domid = of.domain.domid;
                self.xen.pause_domain(domid).map_err(refused("pause", domid))?;
                self.go_on(of, hold)
            }
            AfterSave::Destroyed => writer.commit(),
        }
    }

    /// The suspended guest goes on where it was, and its device model before it.
    fn go_on(&mut self, of: SaveOf<'_>, hold: &mut Hold) -> Result<(), Failure> {
        if let Some(model) = of.model.filter(|_| hold.model.is_stopped) {
            self.continue_model(of.domain.domid, model)?;
            hold.model.is_stopped = false;
        }
        let Some(suspend) = &hold.suspend else { return self.resume(of.domain, of.name()) };
        self.resume_at_once(suspend)?;
        if let Some(suspend) = hold.suspend.take() {
            self.end_suspend(suspend);
        }
        self.tell_resumed(of.domain.domid)
    }

    /// Copies the memory while the guest runs, so that less of it is left when it has suspended.
    fn save_live(
        &mut self,
        of: SaveOf<'_>,
        hold: &mut Hold,
        writer: &mut SaveWriter,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        match hold.capture.start_live(&mut self.xen) {
            // All of it is copied while it is suspended, as with xl.
            Err(CaptureError::NoLogDirty { .. }) => return Ok(()),
            started => of.captured(started)?,
        }
        self.begin_model_log(of.domain.domid, of.model, &mut hold.model)?;
        let mut rounds = Rounds::new(Policy::copy(), SUSPEND_US);
        let mut pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Live))?;
        loop {
            let (began, bytes) = (self.xen.now_ns(), writer.bytes());
            self.save_round(of, hold, pages, writer, monitor)?;
            writer.end_round()?;
            let micros = self.xen.now_ns().saturating_sub(began) / 1000;
            let bytes = writer.bytes() - bytes;
            let sent = Sent { pages, bytes, micros, copy_micros: micros };
            pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Live))?;
            if !matches!(rounds.ended(sent, pages), Next::Round { .. }) {
                // A round that was begun is copied; it is short, or no later one would be shorter.
                self.save_round(of, hold, pages, writer, monitor)?;
                return writer.end_round();
            }
        }
    }

    /// Copies the pages of a round that has begun.
    fn save_round(
        &mut self,
        of: SaveOf<'_>,
        hold: &mut Hold,
        pages: u64,
        writer: &mut SaveWriter,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let total = pages.div_ceil(PAGES_PER_MIB);
        let (mut batch, mut done) = (PageData::default(), 0);
        while of.captured(hold.capture.next_batch(&mut self.xen, &mut batch))? {
            let packing = self.xen.now_ns();
            writer.pages(&mut batch);
            let writing = self.xen.now_ns();
            writer.write()?;
            let written_ns = self.xen.now_ns().saturating_sub(writing);
            writer.took(writing.saturating_sub(packing), written_ns);
            done += batch.pages.len() as u64;
            let part = Part { done: (done / PAGES_PER_MIB).min(total), total, unit: "MiB" };
            if monitor.reached(part) == ControlFlow::Break(()) {
                return Err(Failure(format!("{}: the save was cancelled", of.name())));
            }
        }
        Ok(())
    }

    /// Finds out what came of a save whose daemon was killed. The VM is as it is to be afterwards,
    /// but for one that is to be destroyed.
    pub(crate) fn settle_save(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
        saving: &Saving,
        model: Option<Process>,
    ) -> Result<SaveEnd, Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        if saving.stage == SaveStage::Dumping {
            return self.settle_dump(domain, uuid, saving);
        }
        let is_whole = saving.stage == SaveStage::Whole || self.is_of_save(saving)?;
        if is_whole && saving.after == AfterSave::Destroyed {
            return Ok(SaveEnd::Saved(AfterSave::Destroyed));
        }
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.ok_or_else(|| Failure(format!("{name}: its domain is gone")))?;
        self.end_log(domid)?;
        self.release_model(domid, model, Told::ANYTHING, GoesOn::Here)?;
        store::cancel_suspend(&mut self.store, domid, uuid)?;
        let stays_paused = is_whole && saving.after == AfterSave::Paused;
        if stays_paused && !info.flags.paused() {
            self.xen.pause_domain(domid).map_err(refused("pause", domid))?;
        }
        if info.flags.shutdown() == Some(ShutdownReason::Suspend) {
            self.resume(domain, name)?;
        }
        if !stays_paused && info.flags.paused() {
            self.xen.unpause_domain(domid).map_err(refused("unpause", domid))?;
        }
        self.remove_unfinished(&saving.path)?;
        store::forget_saving(&mut self.store, uuid)?;
        Ok(if is_whole { SaveEnd::Saved(saving.after) } else { SaveEnd::RunsOn })
    }

    /// Removes what a killed daemon has left of a file.
    pub(super) fn remove_unfinished(&mut self, path: &str) -> Result<(), Failure> {
        match self.host.remove_unfinished_image(path) {
            // Somebody writes it now, or it is nowhere.
            Ok(()) | Err(HostError::Busy | HostError::Missing) => Ok(()),
            Err(error) => Err(failure(path, error)),
        }
    }

    /// No later daemon settles a save of this VM.
    pub(crate) fn forget_save(&mut self, uuid: Uuid) -> Result<(), Failure> {
        Ok(store::forget_saving(&mut self.store, uuid)?)
    }

    /// Xen logs writes no longer for a killed daemon.
    pub(super) fn end_log(&mut self, domid: DomId) -> Result<(), Failure> {
        match self.xen.disable_log_dirty(domid) {
            // It was not on, or this Xen has none.
            Ok(()) | Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
            Err(errno) => Err(refused("end the log of writes of", domid)(errno)),
        }
    }
}
