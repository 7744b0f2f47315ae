//! VDIs as objects of the live model.
//!
//! What an SR holds only the SR can tell, and some take their time. SRs are read while somebody follows VDIs: at first, after
//! each change of ours, and every so often, as other hosts may change what they share. Whoever begins to read VDIs waits for
//! that, but not long for an SR that hangs. If an SR cannot be read its VDIs stay as they were, and the SR says why.

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::{Vdi, VdiName};

use super::around::PATIENCE_NS;
use super::live::{Classes, ObjectClass, ObjectKey};
use super::permits::{Item, SrChange, vdi_of_disk};
use super::{Action, Instant, Purpose, Toolstack};
use crate::config::VmConfig;
use crate::scheduler::{Ask, SrRequest, Ticket};
use crate::steps::{Permit, Step, StorageOf};
use crate::work::{Failure, Output, QueryWork, SrReading, VdiReading};

/// Readings for one reader that waits and is told of nothing. It may have gone, which nobody says.
const READINGS_MAX: u32 = 5;
/// An SR rests so many times as long as its reading has taken.
const REST: u64 = 9;

/// An SR's VDIs, as somebody has read them.
#[derive(Debug, Default)]
struct Contents {
    vdis: BTreeMap<VdiName, VdiReading>,
    /// When they were read; `None` if they never were or may have changed since.
    read_at: Option<Instant>,
    reading: Option<Reading>,
    /// After each of our changes they are read at once, but so that an SR does not spend its time with that.
    rests_until: Instant,
    problem: Option<Arc<str>>,
}

/// Somebody reads an SR.
#[derive(Clone, Copy, Debug)]
struct Reading {
    since: Instant,
    /// Another one's result is of an SR that had the same name.
    ticket: Ticket,
    /// What it holds may have changed meanwhile.
    is_outdated: bool,
}

/// What the SRs hold.
#[derive(Debug, Default)]
pub(super) struct SrContents {
    /// How often SRs are read while others follow; `None`: nobody does.
    every_ns: Option<u64>,
    srs: BTreeMap<Arc<str>, Contents>,
    /// When readers that wait were last counted a reading.
    counted_at: Option<Instant>,
}

impl SrContents {
    pub(super) fn of(srs: &[String]) -> Self {
        let srs = srs.iter().map(|sr| (Arc::from(&**sr), Contents::default())).collect();
        Self { every_ns: None, srs, counted_at: None }
    }

    fn change(&mut self, change: &SrChange) {
        match change {
            SrChange::Come(sr) => {
                self.srs.entry(Arc::from(&**sr)).or_default();
            }
            SrChange::Gone(sr) => drop(self.srs.remove(&**sr)),
            SrChange::Changed(sr) => {
                self.srs.get_mut(&**sr).into_iter().for_each(Contents::may_differ);
            }
        }
    }

    pub(super) fn vdi(&self, name: &VdiName) -> Option<&Vdi> {
        Some(&self.srs.get(name.sr())?.vdis.get(name)?.vdi)
    }

    /// What is wrong with an SR.
    pub(super) fn problem(&self, sr: &str) -> Option<&Arc<str>> {
        self.srs.get(sr)?.problem.as_ref()
    }

    /// SRs to be read by now: for somebody who waits, or for those who follow.
    fn due(&self, now: Instant, waits: bool) -> Vec<Arc<str>> {
        let Some(every) = self.every_ns else { return Vec::new() };
        let is_due = |it: &Contents| match it.due(every) {
            Some(_) if waits && it.read_at.is_none() => true,
            due => due.is_some_and(|due| due <= now),
        };
        self.srs.iter().filter(|(_, it)| is_due(it)).map(|(sr, _)| Arc::clone(sr)).collect()
    }

    /// Whether somebody reads what a reader has to be told, and does not take long.
    pub(super) fn is_awaited(&self, now: Instant) -> bool {
        let is_awaited = |it: &Contents| {
            it.read_at.is_none()
                && it.reading.is_some_and(|it| now.0 < it.since.0.saturating_add(PATIENCE_NS))
        };
        self.srs.values().any(is_awaited)
    }
}

impl Contents {
    fn may_differ(&mut self) {
        self.read_at = None;
        self.reading.iter_mut().for_each(|it| it.is_outdated = true);
    }

    /// When it is to be read again, unless somebody does.
    fn due(&self, every_ns: u64) -> Option<Instant> {
        let again = self.read_at.map(|at| Instant(at.0.saturating_add(every_ns)));
        self.reading.is_none().then_some(again.unwrap_or(self.rests_until))
    }
}

/// Whether somebody who follows these classes wants to hear of VDIs.
pub(super) fn concerns_vdis(classes: &Classes) -> bool {
    classes.is_empty() || classes.contains(&ObjectClass::Vdi)
}

impl Toolstack {
    /// Sets how often SRs are read while somebody follows VDIs. Nobody reads them before.
    pub fn set_readings_every(&mut self, ns: u64) {
        self.contents.every_ns = Some(ns);
    }

    /// An SR has come, changed or gone.
    pub(super) fn sr_changed(&mut self, change: SrChange) {
        if let SrChange::Gone(sr) = &change
            && let Some(contents) = self.contents.srs.get(&**sr)
        {
            for name in contents.vdis.keys() {
                self.live.set(ObjectKey::Vdi(name.clone()), false);
            }
        }
        self.contents.change(&change);
        self.live.sr_changed(change);
    }

    /// VDIs of any SR may have come or gone.
    pub(super) fn all_srs_may_differ(&mut self) {
        self.contents.srs.values_mut().for_each(Contents::may_differ);
    }

    /// Notes what a step has done to storage: even if it has failed, it may have changed who uses a VDI, or which there are.
    pub(super) fn note_storage(&mut self, step: Step, config: &VmConfig) {
        if let Some(Permit { storage: StorageOf::Disk(devid), .. }) = step.info().permit {
            self.touch_vdi(vdi_of_disk(config, devid));
        }
        if step.changes_vdis() {
            for name in config.disks.iter().filter_map(|disk| VdiName::parse(&disk.target)) {
                self.contents.srs.get_mut(name.sr()).into_iter().for_each(Contents::may_differ);
            }
        }
    }

    /// A VDI has another user now, or one less; its SR counts them.
    fn touch_vdi(&mut self, name: Option<VdiName>) {
        let Some(name) = name else { return };
        self.live.touch_sr(Arc::from(name.sr()));
        if self.contents.vdi(&name).is_some() {
            self.live.set(ObjectKey::Vdi(name), true);
        }
    }

    /// When an SR is to be read, for those who follow.
    pub(super) fn reading_due(&self) -> Option<Instant> {
        let every = self.contents.every_ns?;
        let due = self.contents.srs.values().filter_map(|it| it.due(every)).min()?;
        self.live.has_reader(concerns_vdis).then_some(due)
    }

    pub(super) fn read_srs_in_time(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.reading_due().is_some_and(|due| due <= now) {
            self.read_srs(now, false, out);
        }
    }

    /// Has those SRs read that it is time for. Returns whether a reader has to wait for any.
    pub(super) fn read_srs(&mut self, now: Instant, waits: bool, out: &mut Vec<Action>) -> bool {
        let due = self.contents.due(now, waits);
        for sr in &due {
            let ask = Ask::for_sr(sr, SrRequest::Scan);
            let ticket = self.scheduler.put(ask, Item::Read(Arc::clone(sr)));
            let contents = self.contents.srs.get_mut(sr).expect("it is due");
            contents.reading = Some(Reading { since: now, ticket, is_outdated: false });
        }
        if !due.is_empty() {
            self.dispatch(now, out);
        }
        self.contents.is_awaited(now)
    }

    pub(super) fn begin_reading(&mut self, sr: Arc<str>, ticket: Ticket, out: &mut Vec<Action>) {
        let work = QueryWork::ReadSr { sr: sr.to_string() };
        self.give_out(Purpose::ReadSr { sr, ticket }, work, out);
    }

    pub(super) fn sr_read(
        &mut self,
        now: Instant,
        (sr, ticket): (Arc<str>, Ticket),
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        self.scheduler.done(ticket);
        self.dispatch(now, out);
        if let Some(contents) = self.contents.srs.get_mut(&sr)
            && let Some(reading) = contents.reading.take_if(|it| it.ticket == ticket)
        {
            contents.read_at = (!reading.is_outdated).then_some(now);
            let rest = now.0.saturating_sub(reading.since.0).saturating_mul(REST);
            contents.rests_until = Instant(now.0.saturating_add(rest));
            let (readings, problem) = match result {
                Ok(Output::Sr(SrReading { vdis, problem })) => (Some(vdis), problem),
                Ok(other) => other.misplaced(),
                Err(Failure(why)) => (None, Some(why)),
            };
            if contents.problem.as_deref() != problem.as_deref() {
                contents.problem = problem.map(Arc::from);
                self.live.touch_sr(Arc::clone(&sr));
            }
            if let Some(readings) = readings {
                let before = std::mem::replace(&mut contents.vdis, readings);
                let is_other = |(name, it): &(&VdiName, &VdiReading)| before.get(name) != Some(it);
                for (name, _) in contents.vdis.iter().filter(is_other) {
                    self.live.set(ObjectKey::Vdi(name.clone()), true);
                }
                for name in before.keys().filter(|name| !contents.vdis.contains_key(name)) {
                    self.live.set(ObjectKey::Vdi(name.clone()), false);
                }
            }
        }
        let every = self.contents.every_ns.unwrap_or_default();
        if self.contents.counted_at.is_none_or(|at| at.0.saturating_add(every) <= now.0) {
            self.contents.counted_at = Some(now);
            self.count_look(READINGS_MAX, concerns_vdis, out);
        }
        if self.has_early(concerns_vdis) {
            self.read_srs(now, true, out);
        }
        self.answer_settled(now, out);
    }
}
