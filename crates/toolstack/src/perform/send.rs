//! The sending side of a move, on one connection.
//!
//! ```text
//!   offered -> accepted -> recorded: sending -> [rounds while the guest runs] -> suspended -> all sent -> loaded there
//!      devices closed, disks detached (steps of their own)
//!   recorded: given -> Go -> running there, or failed there, or nothing is heard
//! ```
//! Until `given` is recorded the other host cannot run the guest, whatever is lost: every failure resumes it here.
//! From then on it goes on here only if the other host says that it never runs there.

use std::ops::ControlFlow;

use migrate::image::{Head, Lane, Lanes, Writer};
use migrate::libxc::{Headers, PageData};
use migrate::peer::{self, DATA_BYTES_MAX, Fate, Message, Offer};
use migrate::rounds::{Busy, Next, Policy, Rounds, Sent};
use migrate::{Capture, CaptureError, Round, libxl, save_file, xl_peer};
use storage::{Mode, takes_two_hosts};
use xen::{DomainRef, Hypervisor, ShutdownReason, Uuid};
use xenstore::client::Transport;

use super::brake::Brake;
use super::build::PAGES_PER_MIB;
use super::model::Told;
use super::outgoing::{Form, Outgoing, Took};
use super::suspend::PreparedSuspend;
use super::{Performer, failure, refused, store};
use crate::channel::{ChannelId, Conversation, Silence};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::host::Host;
use crate::lanes::{LANES_MAX, LaneCall, LaneOut};
use crate::layout::{Ends, Nodes};
use crate::libxl_json;
use crate::moves::{
    DomidWish, Farewell, Handover, Leaving, LeavingStage, MigrateRequest, Pace, Reach, Speaks,
    gone_file, leaving_file, received_file,
};
use crate::qmp::GoesOn;
use crate::steps::moves::{FORGOTTEN, GoOn};
use crate::work::{Failure, IdentityCheck, Part, WorkMonitor};

/// How long a host may take to say that it is there: a connection may have to be made, and a key be typed in.
pub(super) const GREETING_SECONDS: u64 = 120;
/// To accept or refuse an offer. Other moves may come first.
const ACCEPT_SECONDS: u64 = 600;
/// To load what came, and to run the guest.
pub(super) const ANSWER_SECONDS: u64 = 120;
/// To answer a question.
const QUESTION_SECONDS: u64 = 30;
/// To forget a transfer.
const FORGOTTEN_SECONDS: u64 = 10;
/// For the reason, after the connection broke.
const REASON_SECONDS: u64 = 2;

const MICROSECOND: u64 = 1000;
/// The part of a pause beside pages, before anything is known: suspend, registers, closed devices, the other host.
const FIXED_US: u64 = 20_000;

/// A VM that is sent.
#[derive(Clone, Copy)]
struct Sending<'a> {
    domain: DomainRef,
    uuid: Uuid,
    config: &'a VmConfig,
    to: &'a MigrateRequest,
    /// That of an HVM domain.
    model: Option<Process>,
}

impl Sending<'_> {
    fn name(&self) -> &str {
        &self.config.name
    }

    /// The configuration on the other host.
    fn sent(&self) -> &VmConfig {
        self.to.wishes.config.as_deref().unwrap_or(self.config)
    }

    fn captured<T>(&self, result: Result<T, CaptureError>) -> Result<T, Failure> {
        result.map_err(|error| failure(format_args!("{}: cannot be migrated", self.name()), error))
    }

    fn heard<T>(&self, result: Result<T, Silence>) -> Result<T, Failure> {
        result.map_err(|silence| match silence {
            Silence::Cancelled => Failure(format!("{}: the migration was cancelled", self.name())),
            silence => failure(&self.to.to, silence),
        })
    }
}

/// What a send has of the guest's domain while it is under way.
struct Hold {
    capture: Capture,
    /// `None` if the guest had suspended before.
    suspend: Option<PreparedSuspend>,
    /// Of a guest that runs while it is sent, where it can be slowed down.
    brake: Option<Brake>,
    /// What its device model was told.
    model: Told,
}

/// Whether somebody wants it to end.
fn is_cancelled(monitor: &mut dyn WorkMonitor) -> bool {
    monitor.reached(Part { done: 0, total: 0, unit: "" }) == ControlFlow::Break(())
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn converse(&mut self, channel: ChannelId) -> Result<Conversation, Failure> {
        let channel = self.host.channel(channel);
        channel.map(Conversation::on).map_err(|error| failure("the connection", error))
    }

    /// Sends a guest; it is suspended at the end. After a failure it runs on, and nothing is recorded.
    pub(crate) fn send_vm(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        config: &VmConfig,
        defined: Option<Option<u32>>,
        (to, model): (&MigrateRequest, Option<Process>),
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Speaks, Failure> {
        let of = Sending { domain, uuid, config, to, model };
        let mut with = self.converse(to.channel)?;
        // It refuses what cannot suspend, before anything is said.
        let suspend = self.prepare_suspend(domain, uuid, of.name())?;
        let result = self.send_prepared(of, defined, &mut with, suspend, monitor);
        result.map_err(|why| {
            let why = said_instead(&mut with, why);
            if !with.is_xl() {
                let _it_hears_the_end = with.say(&Message::GiveUp { why: why.0.clone() });
            }
            why
        })
    }

    fn send_prepared(
        &mut self,
        of: Sending<'_>,
        defined: Option<Option<u32>>,
        with: &mut Conversation,
        suspend: Option<PreparedSuspend>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Speaks, Failure> {
        let begun = self.offer(of, defined, with, monitor).and_then(|(speaks, lanes)| {
            let capture = of.captured(Capture::prepare(&mut self.xen, of.domain.domid))?;
            self.keep_leaving(of.domain, of.uuid, &of.to.leaving(speaks))?;
            Ok((capture, speaks, lanes))
        });
        let (capture, speaks, lanes) = match begun {
            Ok(begun) => begun,
            Err(why) => return Err(self.not_sent(of, suspend, why)),
        };
        let mut hold = Hold { capture, suspend, brake: None, model: Told::default() };
        let sent = self.send_with(of, (with, speaks, lanes), &mut hold, monitor);
        hold.capture.end(&mut self.xen);
        self.at_full_speed(&mut hold);
        let goes_on = if sent.is_ok() { GoesOn::Elsewhere } else { GoesOn::Here };
        let sent = self.end_with_model(of.domain.domid, of.model, hold.model, goes_on, sent);
        match sent {
            Ok(()) => {
                if let Some(suspend) = hold.suspend {
                    self.end_suspend(suspend);
                }
                Ok(speaks)
            }
            Err(why) => Err(self.not_sent(of, hold.suspend, why)),
        }
    }

    /// The guest goes on, if the suspend was ours, and no move is recorded any more.
    fn not_sent(
        &mut self,
        of: Sending<'_>,
        suspend: Option<PreparedSuspend>,
        why: Failure,
    ) -> Failure {
        let why = match suspend {
            Some(suspend) => self.abandon_suspend(suspend, why),
            None => why,
        };
        match self.stay(of.uuid) {
            Ok(()) => why,
            Err(Failure(more)) => Failure(format!("{}; and then: {more}", why.0)),
        }
    }

    /// Records the move: in a file for a later boot, in the store for a later daemon.
    fn keep_leaving(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        let file = leaving_file(uuid);
        let written = self.host.write_transfer(&file, &leaving.encode());
        written.map_err(|error| failure(&file, error))?;
        store::keep_leaving(&mut self.store, domain.domid, uuid, leaving)
    }

    /// The VM does not leave.
    pub(crate) fn stay(&mut self, uuid: Uuid) -> Result<(), Failure> {
        store::forget_leaving(&mut self.store, uuid)?;
        let file = leaving_file(uuid);
        self.host.remove_transfer(&file).map_err(|error| failure(&file, error))
    }

    /// Offers the VM, and waits until it is accepted.
    fn offer(
        &mut self,
        of: Sending<'_>,
        defined: Option<Option<u32>>,
        with: &mut Conversation,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(Speaks, Vec<Box<dyn LaneOut>>), Failure> {
        let stop = &mut || is_cancelled(monitor);
        let banner = of.heard(with.hear_line(peer::BANNER_BYTES_MAX, GREETING_SECONDS, stop))?;
        if banner == xl_peer::BANNER {
            // It has nothing to refuse before it has all.
            with.set_xl();
            if of.to.wishes.domid == DomidWish::Same {
                let why = "runs xl, which is not told of a number for the domain (-D)";
                return Err(Failure(format!("{}: {why}", of.to.to)));
            }
            return Ok((Speaks::Xl, Vec::new()));
        }
        if banner != peer::BANNER.as_bytes() {
            let said = String::from_utf8_lossy(&banner);
            let said = said.trim_end().escape_debug().to_string();
            return Err(Failure(format!("{}: answered \"{said}\"", of.to.to)));
        }
        self.check_model_lets_go(of)?;
        let offer = Offer {
            transfer: of.to.transfer,
            name: of.sent().name.clone(),
            uuid: of.uuid,
            config: of.sent().to_cfg_text(),
            arrival: of.to.arrival,
            from: of.to.from.clone(),
            defined,
            lanes: self.lanes_wanted(of.to),
            domid: match of.to.wishes.domid {
                DomidWish::Any => None,
                DomidWish::Same => Some(of.domain.domid.0),
            },
        };
        of.heard(with.say(&Message::Offer(Box::new(offer))))?;
        match of.heard(with.hear(ACCEPT_SECONDS, stop))? {
            Message::Accepted { lanes, token } => {
                Ok((Speaks::Own, self.open_lanes(of.to, lanes, token)))
            }
            Message::Refused { why } | Message::Failed { why } => {
                Err(Failure(format!("{}: refuses: {why}", of.to.to)))
            }
            other => Err(unexpected(of, &other)),
        }
    }

    /// A device model has its disks open until it ends, which is when the guest runs elsewhere: the other host can attach
    /// them before that, or the move would fail while the guest is suspended.
    fn check_model_lets_go(&mut self, of: Sending<'_>) -> Result<(), Failure> {
        for (_, disk) in of.config.emulated_disks().filter(|_| of.model.is_some()) {
            let target = &disk.target;
            if disk.script.is_some() {
                return Err(Failure(format!(
                    "{}: {}: the device model has this disk open until the guest runs at {}, and its script cannot \
                     disconnect it before; use `xy save` here and `xy restore` there",
                    of.name(),
                    disk.vdev.name,
                    of.to.to
                )));
            }
            if disk.is_empty() || disk.mode != Mode::ReadWrite {
                continue;
            }
            let takes_two = takes_two_hosts(self.host.system(), target, disk.format);
            if !takes_two.map_err(|error| failure(target, error))? {
                return Err(Failure(format!(
                    "{}: {target}: the device model has this disk locked until the guest runs at {}; put it on a block \
                     device, NBD or iSCSI, or use `xy save` here and `xy restore` there",
                    of.name(),
                    of.to.to
                )));
            }
        }
        Ok(())
    }

    /// Further connections that a move to a peer has.
    fn lanes_wanted(&mut self, to: &MigrateRequest) -> u32 {
        match to.peer {
            Some(Reach::Peer(_)) => {
                let usual = self.host.lanes_usual();
                let wanted = to.wishes.lanes.unwrap_or(usual).clamp(1, LANES_MAX);
                u32::from(wanted) - 1
            }
            Some(Reach::Command(_)) | None => 0,
        }
    }

    /// As many as the other host takes. With fewer it is only slower.
    fn open_lanes(
        &mut self,
        to: &MigrateRequest,
        taken: u32,
        token: [u8; 16],
    ) -> Vec<Box<dyn LaneOut>> {
        let wanted = self.lanes_wanted(to).min(taken);
        let all = u8::try_from(wanted + 1).ok().and_then(Lanes::new).unwrap_or(Lanes::ONE);
        let Some(peer) = &to.peer else { return Vec::new() };
        let mut lanes = Vec::new();
        for lane in all.iter().skip(1) {
            let call = LaneCall { transfer: to.transfer, lane, token };
            match self.host.open_lane(peer, &call) {
                Ok(lane) => lanes.push(lane),
                // Those that are open expect as many as were wanted.
                Err(_) => return Vec::new(),
            }
        }
        lanes
    }

    fn send_with(
        &mut self,
        of: Sending<'_>,
        (with, speaks, lanes): (&mut Conversation, Speaks, Vec<Box<dyn LaneOut>>),
        hold: &mut Hold,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let domid = of.domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.ok_or_else(|| Failure(format!("{}: its domain is gone", of.name())))?;
        let head = Head {
            name: of.sent().name.clone(),
            uuid: of.uuid.0,
            config: String::new(),
            headers: hold.capture.headers(),
            pages_max: info.pages_max,
            vcpus: of.config.vcpus_max,
            created: self.host.unix_ms() / 1000,
            facts: Vec::new(),
        };
        let mut out = Vec::with_capacity(2 * DATA_BYTES_MAX);
        let token = of.to.transfer.0;
        let form = match speaks {
            Speaks::Own => {
                let all = u8::try_from(lanes.len() + 1).ok().and_then(Lanes::new);
                let lane = Lane { number: 0, of: all.expect("a few") };
                Form::Own(Box::new(Writer::connection(
                    &head,
                    lane,
                    &token,
                    Outgoing::CODEC,
                    &mut out,
                )))
            }
            Speaks::Xl => {
                begin_xl(of, hold.capture.headers(), &mut out)?;
                Form::Xl
            }
        };
        let mut image = Outgoing::begin(with, lanes, form, out);
        for record in hold.capture.head() {
            image.record(&record);
        }
        of.heard(image.flush(&mut || is_cancelled(monitor)))?;
        hold.brake = self.brake(of.domain, of.uuid);
        let mut rounds = Rounds::new(policy(of.to, hold.brake.as_ref()), FIXED_US);
        if of.to.pace == Pace::Live && hold.suspend.is_some() {
            self.send_live(of, hold, (&mut image, &mut rounds), monitor)?;
        }
        // A slowed guest would take long to suspend.
        self.at_full_speed(hold);
        if let Some(suspend) = &mut hold.suspend {
            self.arm_suspend(suspend)?;
            self.trigger_suspend(suspend, monitor)?;
        }
        // It may write to the guest's memory until then.
        let model = self.stop_model(domid, of.model, &mut hold.model)?;
        let pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Last))?;
        self.send_round(of, (hold, pages), (&mut image, &rounds), monitor)?;
        for record in of.captured(hold.capture.tail(&mut self.xen))? {
            image.record(&record);
        }
        let _until_loaded = of.heard(image.end(model.as_ref(), &mut || is_cancelled(monitor)))?;
        if speaks == Speaks::Xl {
            let stop = &mut || is_cancelled(monitor);
            return of.heard(with.hear_exactly(xl_peer::READY, ANSWER_SECONDS, stop));
        }
        of.heard(with.say(&Message::Whole))?;
        match of.heard(with.hear(ANSWER_SECONDS, &mut || is_cancelled(monitor)))? {
            Message::Loaded => Ok(()),
            Message::Failed { why } => Err(Failure(format!("{}: {why}", of.to.to))),
            other => Err(unexpected(of, &other)),
        }
    }

    /// Sends the memory in rounds while the guest runs.
    fn send_live(
        &mut self,
        of: Sending<'_>,
        hold: &mut Hold,
        (image, rounds): (&mut Outgoing<'_>, &mut Rounds),
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        match hold.capture.start_live(&mut self.xen) {
            Err(error @ CaptureError::NoLogDirty { .. }) => {
                return Err(Failure(format!(
                    "{}: cannot be migrated live: {error}; `--non-live` suspends it first",
                    of.name()
                )));
            }
            started => of.captured(started)?,
        }
        self.begin_model_log(of.domain.domid, of.model, &mut hold.model)?;
        let mut pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Live))?;
        loop {
            let sent = self.send_live_round(of, (hold, pages), (image, rounds), monitor)?;
            pages = of.captured(hold.capture.begin_round(&mut self.xen, Round::Live))?;
            match rounds.ended(sent, pages) {
                Next::Round { percent: 100 } => {}
                Next::Round { percent } => {
                    let brake = hold.brake.as_mut();
                    self.slow_down(brake.expect("the policy asked for one"), percent)?;
                }
                Next::Stop { .. } => break,
                Next::GiveUp(why) => {
                    return Err(Failure(format!(
                        "{}: {why}; `--downtime` allows a longer pause, `--non-live` suspends it first",
                        of.name()
                    )));
                }
            }
        }
        // What was written since is little.
        self.send_live_round(of, (hold, pages), (image, rounds), monitor)?;
        Ok(())
    }

    /// Sends a round while the guest runs, and waits until it is loaded: what is under way would be part of the pause,
    /// and a link takes more in a moment than it delivers.
    fn send_live_round(
        &mut self,
        of: Sending<'_>,
        round: (&mut Hold, u64),
        (image, rounds): (&mut Outgoing<'_>, &Rounds),
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Sent, Failure> {
        let began = self.xen.now_ns();
        let mut sent = self.send_round(of, round, (image, rounds), monitor)?;
        let stop = &mut || is_cancelled(monitor);
        of.heard(image.end_round(stop))?;
        match of.heard(image.await_round(ANSWER_SECONDS, stop))? {
            None => {}
            Some(Message::Failed { why }) => {
                return Err(Failure(format!("{}: {why}", of.to.to)));
            }
            Some(other) => return Err(unexpected(of, &other)),
        }
        sent.micros = self.xen.now_ns().saturating_sub(began) / MICROSECOND;
        Ok(sent)
    }

    fn at_full_speed(&mut self, hold: &mut Hold) {
        if let Some(brake) = &mut hold.brake {
            self.release_brake(brake);
        }
    }

    /// Sends the pages of a round that has begun.
    fn send_round(
        &mut self,
        of: Sending<'_>,
        (hold, pages): (&mut Hold, u64),
        (image, rounds): (&mut Outgoing<'_>, &Rounds),
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Sent, Failure> {
        let total = pages.div_ceil(PAGES_PER_MIB);
        let (began, bytes) = (self.xen.now_ns(), image.bytes());
        let mut batch = PageData::default();
        let mut sent = Sent { pages, ..Sent::default() };
        let mut done = 0;
        loop {
            let copying = self.xen.now_ns();
            if !of.captured(hold.capture.next_batch(&mut self.xen, &mut batch))? {
                break;
            }
            let packing = self.xen.now_ns();
            let count = batch.pages.len() as u64;
            of.heard(image.pages(&mut batch, &mut || is_cancelled(monitor)))?;
            let sending = self.xen.now_ns();
            of.heard(image.flush(&mut || is_cancelled(monitor)))?;
            let now = self.xen.now_ns();
            image.took(Took {
                copy_ns: packing.saturating_sub(copying),
                pack_ns: sending.saturating_sub(packing),
                send_ns: now.saturating_sub(sending),
            });
            done += count;
            let so_far = Sent {
                pages: done,
                bytes: image.bytes() - bytes,
                micros: now.saturating_sub(began) / MICROSECOND,
                copy_micros: 0,
            };
            let part = Part { done: (done / PAGES_PER_MIB).min(total), total, unit: "MiB" };
            let flow = image.flow(rounds.progress(so_far, pages.saturating_sub(done)));
            if monitor.flows(part, flow) == ControlFlow::Break(()) {
                return of.heard(Err(Silence::Cancelled));
            }
        }
        sent.bytes = image.bytes() - bytes;
        sent.micros = self.xen.now_ns().saturating_sub(began) / MICROSECOND;
        sent.copy_micros = sent.micros;
        Ok(sent)
    }

    /// Gives the VM to the other host. A failure means that it was not given.
    pub(crate) fn hand_over(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        channel: ChannelId,
        leaving: Leaving,
    ) -> Result<Handover, Failure> {
        let mut with = self.converse(channel)?;
        let leaving = Leaving { stage: LeavingStage::Given, ..leaving };
        store::keep_leaving(&mut self.store, domain.domid, uuid, &leaving)?;
        if leaving.speaks == Speaks::Xl {
            return Ok(hand_over_to_xl(&mut with));
        }
        let said = with.say(&Message::Go).and_then(|()| with.hear(ANSWER_SECONDS, &mut || false));
        Ok(match said {
            Ok(Message::Running) => Handover::Running,
            Ok(Message::Failed { why }) => Handover::Failed(why),
            Ok(other) => Handover::Lost(format!("it said \"{}\"", other.name())),
            Err(silence) => Handover::Lost(silence.to_string()),
        })
    }

    /// A suspended guest goes on in its own domain.
    pub(crate) fn go_on_here(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
        (how, model): (GoOn, Option<Process>),
    ) -> Result<(), Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let is_suspended =
            info.is_some_and(|it| it.flags.shutdown() == Some(ShutdownReason::Suspend));
        self.end_log(domid)?;
        self.give_cap_back(domain, uuid)?;
        store::cancel_suspend(&mut self.store, domid, uuid)?;
        self.release_model(domid, model, Told::ANYTHING, GoesOn::Here)?;
        match how {
            _ if !is_suspended => {}
            GoOn::WithDevices => self.resume(domain, name)?,
            GoOn::Anew | GoOn::AnewByWish => self.resume_anew(domain, uuid, name, how)?,
        }
        self.stay(uuid)
    }

    /// Writes the nodes of closed devices as if they had just been made.
    pub(crate) fn write_devices(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        devices: &[Ends],
        nodes: &Nodes,
    ) -> Result<(), Failure> {
        let domid = domain.domid;
        let removals: Vec<_> =
            devices.iter().flat_map(|it| crate::layout::removed_device_paths(*it)).collect();
        store::remove(&mut self.store, Some(domid), uuid, &removals)?;
        store::add_device(&mut self.store, domid, uuid, nodes)
    }

    /// Asks a host what became of a transfer.
    pub(crate) fn ask_peer(&mut self, peer: &Reach, transfer: Uuid) -> Result<Fate, Failure> {
        let mut with = self.reach(peer)?;
        with.say(&Message::Question { transfer })?;
        match with.hear(QUESTION_SECONDS, &mut || false)? {
            Message::Answer { fate } => Ok(fate),
            other => Err(Failure(format!("the other host: said \"{}\"", other.name()))),
        }
    }

    fn reach(&mut self, peer: &Reach) -> Result<Conversation, Failure> {
        let channel = self.host.connect(peer).map_err(|error| failure(peer, error))?;
        let mut with = Conversation::on(channel);
        let banner = with.hear_line(peer::BANNER_BYTES_MAX, QUESTION_SECONDS, &mut || false)?;
        if banner == peer::BANNER.as_bytes() {
            return Ok(with);
        }
        Err(Failure("the other host: does not run Xylem".to_owned()))
    }

    /// The VM is another host's, which need not remember the transfer any more.
    pub(crate) fn forget_leaving(
        &mut self,
        uuid: Uuid,
        transfer: Uuid,
        channel: Option<ChannelId>,
        peer: Option<&Reach>,
    ) -> Result<Farewell, Failure> {
        // The other host answers for the VM until nothing here could start it again.
        let definition = self.host.remove_definition(&uuid.to_string());
        definition.map_err(|error| failure(format_args!("definition {uuid}"), error))?;
        let heard = channel
            .and_then(|channel| self.converse(channel).ok())
            .is_some_and(|mut with| tell_to_forget(&mut with, transfer).is_ok());
        let heard = match (heard, peer) {
            (false, Some(peer)) => {
                let file = gone_file(transfer);
                let noted = self.host.write_transfer(&file, &peer.encode());
                noted.map_err(|error| failure(&file, error))?;
                Farewell::Unheard
            }
            _ => Farewell::Heard,
        };
        self.stay(uuid)?;
        Ok(heard)
    }

    /// Says to a host that had not heard it that it may forget a transfer.
    pub(crate) fn say_gone(&mut self, peer: &Reach, transfer: Uuid) -> Result<(), Failure> {
        let mut with = self.reach(peer)?;
        tell_to_forget(&mut with, transfer)?;
        self.end_farewell(transfer)
    }

    /// The other host is not told any more.
    pub(crate) fn end_farewell(&mut self, transfer: Uuid) -> Result<(), Failure> {
        let file = gone_file(transfer);
        self.host.remove_transfer(&file).map_err(|error| failure(&file, error))
    }

    /// Says one thing on a connection.
    pub(crate) fn say_once(
        &mut self,
        channel: ChannelId,
        message: &Message,
    ) -> Result<(), Failure> {
        Ok(self.converse(channel)?.say(message)?)
    }

    /// Nobody will ask for a transfer that came here any more.
    pub(crate) fn forget_received(&mut self, transfer: Uuid) -> Result<(), Failure> {
        store::forget_received(&mut self.store, transfer)?;
        let file = received_file(transfer);
        self.host.remove_transfer(&file).map_err(|error| failure(&file, error))
    }
}

/// Says that a transfer may be forgotten, and waits until it is.
fn tell_to_forget(with: &mut Conversation, transfer: Uuid) -> Result<(), Failure> {
    with.say(&Message::Forget { transfer })?;
    match with.hear(FORGOTTEN_SECONDS, &mut || false)? {
        FORGOTTEN => Ok(()),
        other => Err(Failure(format!("the other host: said \"{}\"", other.name()))),
    }
}

/// What is wanted of the rounds.
fn policy(to: &MigrateRequest, brake: Option<&Brake>) -> Policy {
    let mut policy = Policy::migration();
    if brake.is_none() {
        policy.busy = Busy::Accept;
    }
    if let Some(ms) = to.downtime_ms {
        policy.pause_us = ms.saturating_mul(1000);
        policy.pause_max_us = policy.pause_max_us.max(policy.pause_us);
    }
    policy
}

/// Everything up to libxc's first record, as `xl migrate` sends it.
fn begin_xl(of: Sending<'_>, headers: Headers, out: &mut Vec<u8>) -> Result<(), Failure> {
    let config = VmConfig { uuid: Some(of.uuid), ..of.sent().clone() };
    let json = libxl_json::to_json(&config).map_err(|error| failure(of.name(), error))?;
    save_file::encode(&json, out);
    libxl::encode_header(out);
    libxl::Record::LibxcContext.encode(out);
    headers.encode(out);
    Ok(())
}

/// Gives the VM to a host that runs xl, which cannot be asked later.
fn hand_over_to_xl(with: &mut Conversation) -> Handover {
    let no = &mut || false;
    let said = with
        .send(xl_peer::GO)
        .and_then(|()| with.hear_exactly(xl_peer::REPORT, ANSWER_SECONDS, no))
        .and_then(|()| with.hear_bytes(1, ANSWER_SECONDS, no));
    match said.as_deref() {
        Ok([0]) => Handover::Running,
        Ok(_) => match with.hear_exactly(xl_peer::GO, ANSWER_SECONDS, no) {
            Ok(()) => Handover::Failed("it could not run there; see xl's messages".to_owned()),
            Err(silence) => Handover::Lost(silence.to_string()),
        },
        Err(silence) => Handover::Lost(silence.to_string()),
    }
}

/// The other side's reason, if it closed the connection with one.
fn said_instead(with: &mut Conversation, why: Failure) -> Failure {
    if with.is_xl() {
        return why;
    }
    match with.hear_last(REASON_SECONDS) {
        Some(Message::Failed { why: theirs } | Message::Refused { why: theirs }) => {
            Failure(format!("the other host: {theirs}"))
        }
        _ => why,
    }
}

fn unexpected(of: Sending<'_>, message: &Message) -> Failure {
    Failure(format!("{}: said \"{}\" out of turn", of.to.to, message.name()))
}

impl MigrateRequest {
    /// As recorded before the guest is suspended.
    #[must_use]
    pub fn leaving(&self, speaks: Speaks) -> Leaving {
        Leaving {
            stage: LeavingStage::Sending,
            speaks,
            transfer: self.transfer,
            to: self.to.clone(),
            // xl has no answer to a question.
            peer: self.peer.clone().filter(|_| speaks == Speaks::Own),
        }
    }
}
