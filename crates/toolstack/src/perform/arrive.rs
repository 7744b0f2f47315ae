//! The receiving side of a move, on one connection. See `send.rs` for the other one.

use std::ops::ControlFlow;

use migrate::image::{Arrivals, Item, Lane, Lanes, Limits, StreamReader};
use migrate::libxc::Record;
use migrate::peer::{self, Message};
use migrate::{Input, Load, libxc, libxl, save_file, xl_peer};
use xen::{Hypervisor, Uuid};
use xenstore::client::Transport;

use super::build::PAGES_PER_MIB;
use super::model::ModelRecords;
use super::restore::{built, restored, target};
use super::{Performer, failure, store};
use crate::channel::{ChannelId, Conversation, Patience, Silence};
use crate::config::VmConfig;
use crate::host::Host;
use crate::lanes::{LaneIn, LaneItem};
use crate::moves::{
    Greeting, Incoming, ReceiveRequest, Speaks, XlOffer, received_file, received_text,
};
use crate::steps::moves::FORGOTTEN;
use crate::work::{Failure, LoadedVm, NewDomain, Part, WorkMonitor};

/// How long a connection may take to say what it is for.
const OFFER_SECONDS: u64 = 60;
/// How long a sender may say nothing: it is suspending its guest, or the link is slow.
const DATA_SECONDS: u64 = 180;
/// What comes in that time at least. There are few performers that receive, and a sender may be in no hurry.
const DATA_BYTES_MIN: u64 = 256 << 10;
/// How long a sender may take to let go of the VM's disks.
const GO_SECONDS: u64 = 300;
/// How long one may take to end what it has of the VM.
const FORGET_SECONDS: u64 = 60;

/// How long all that was sent may take to come on further connections.
const LANE_SECONDS: u64 = 60;
/// How long one connection is waited for before the others are looked at.
const LANE_LOOK_NS: u64 = 1_000_000;

/// What is taken of a guest that comes.
pub const LIMITS: Limits = Limits { pfn_max: (1 << 32) - 1, known_facts: &[] };

/// A guest that comes.
struct Arriving<'a> {
    config: &'a VmConfig,
    uuid: Uuid,
    incoming: &'a Incoming,
    domain: NewDomain,
    reader: StreamReader,
    input: Input,
    load: Option<Load>,
    model: ModelRecords,
    pages: u64,
    lanes: Vec<ComingLane>,
    arrivals: Arrivals,
    /// Rounds of which the sender knows that they are loaded.
    told: u32,
}

/// A further connection.
struct ComingLane {
    lane: Lane,
    from: Box<dyn LaneIn>,
    has_ended: bool,
}

impl Arriving<'_> {
    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        failure(format_args!("{} from {}", self.config.name, self.incoming.from), what)
    }

    /// Says how many rounds are loaded, if there are more than before.
    fn tell_rounds(&mut self, with: &mut Conversation) -> Result<(), Silence> {
        let rounds = self.arrivals.rounds();
        if rounds > self.told {
            self.told = rounds;
            with.say(&Message::Reached { rounds })?;
        }
        Ok(())
    }
}

/// What has come in a while.
struct Flow {
    since_ns: u64,
    bytes: u64,
}

impl Flow {
    fn from(now_ns: u64) -> Self {
        Self { since_ns: now_ns, bytes: 0 }
    }

    /// Notes what has come; why it is too little, if it is.
    fn came(&mut self, bytes: usize, now_ns: u64) -> Result<(), String> {
        self.bytes += bytes as u64;
        if now_ns.saturating_sub(self.since_ns) < DATA_SECONDS * 1_000_000_000 {
            return Ok(());
        }
        if self.bytes < DATA_BYTES_MIN {
            let (kib, min) = (self.bytes >> 10, DATA_BYTES_MIN >> 10);
            return Err(format!(
                "only {kib} KiB came in {DATA_SECONDS} s, {min} KiB are the least"
            ));
        }
        *self = Self::from(now_ns);
        Ok(())
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Says who we are, and hears what the connection is for.
    pub(crate) fn greet(
        &mut self,
        receive: ReceiveRequest,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Greeting, Failure> {
        let mut with = self.converse(receive.channel)?;
        let stop = &mut || is_cancelled(monitor);
        if receive.speaks == Speaks::Xl {
            with.send(xl_peer::BANNER)?;
            return Ok(Greeting::Xl(Box::new(XlOffer { json: hear_config(&mut with, stop)? })));
        }
        with.send(peer::BANNER.as_bytes())?;
        match with.hear(OFFER_SECONDS, stop)? {
            Message::Offer(offer) => Ok(Greeting::Offer(offer)),
            Message::Question { transfer } => Ok(Greeting::Question(transfer)),
            Message::Forget { transfer } => Ok(Greeting::Forget(transfer)),
            other => Err(Failure(format!("the other host: began with \"{}\"", other.name()))),
        }
    }

    /// Accepts a VM, and fills its domain with what comes.
    pub(crate) fn receive_state(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        incoming: &Incoming,
        domain: NewDomain,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<LoadedVm, Failure> {
        self.check_model(config)?;
        if incoming.speaks == Speaks::Xl {
            let loaded = self.receive_from_xl(config, incoming, domain, monitor);
            let finished = self.finish_loading(config, domain.domain.domid);
            return loaded.and_then(|loaded| finished.map(|()| loaded));
        }
        let mut with = self.converse(incoming.channel)?;
        let mut arriving = Arriving {
            config,
            uuid,
            incoming,
            domain,
            reader: StreamReader::new(LIMITS),
            input: Input::new(),
            load: None,
            model: ModelRecords::default(),
            pages: 0,
            lanes: Vec::new(),
            arrivals: Arrivals::new(Lanes::ONE),
            told: 0,
        };
        let loaded = self.take_in(&mut arriving, &mut with, monitor);
        self.host.forget_lanes(incoming.transfer);
        let finished = self.finish_loading(config, domain.domain.domid);
        loaded.and_then(|loaded| finished.map(|()| loaded))
    }

    fn take_in(
        &mut self,
        arriving: &mut Arriving<'_>,
        with: &mut Conversation,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<LoadedVm, Failure> {
        let cancelled = format!("{}: was cancelled", arriving.config.name);
        let heard = |silence| match silence {
            Silence::Cancelled => Failure(cancelled.clone()),
            silence => Failure::from(silence),
        };
        let accepted = self.accept_lanes(arriving.incoming);
        with.say(&accepted).map_err(heard)?;
        let mut flow = Flow::from(self.xen.now_ns());
        let mut quiet_ns = 0;
        loop {
            let message = if arriving.lanes.is_empty() {
                with.hear(DATA_SECONDS, &mut || is_cancelled(monitor)).map_err(heard)?
            } else {
                let has_come = self.take_from_lanes(arriving, 0)?;
                arriving.tell_rounds(with).map_err(heard)?;
                match with.hear_soon(if has_come { 0 } else { LANE_LOOK_NS }).map_err(heard)? {
                    Some(message) => message,
                    None => {
                        quiet_ns = if has_come { 0 } else { quiet_ns + LANE_LOOK_NS };
                        if quiet_ns > DATA_SECONDS * 1_000_000_000 {
                            return Err(heard(Silence::TooLong { seconds: DATA_SECONDS }));
                        }
                        if is_cancelled(monitor) {
                            return Err(Failure(cancelled));
                        }
                        continue;
                    }
                }
            };
            quiet_ns = 0;
            match message {
                Message::Alive => {}
                Message::Data(bytes) => {
                    let flows = flow.came(bytes.len(), self.xen.now_ns());
                    flows.map_err(|why| arriving.failure(why))?;
                    arriving.input.feed(&bytes);
                    self.take_items(arriving)?;
                    arriving.tell_rounds(with).map_err(heard)?;
                }
                Message::Whole => break,
                Message::GiveUp { why } => return Err(arriving.failure(why)),
                other => {
                    let what = format!("the sender said \"{}\" out of turn", other.name());
                    return Err(arriving.failure(what));
                }
            }
            let total = restored(arriving.config).pages().div_ceil(PAGES_PER_MIB);
            let done = (arriving.pages / PAGES_PER_MIB).min(total);
            if monitor.reached(Part { done, total, unit: "MiB" }) == ControlFlow::Break(()) {
                return Err(Failure(cancelled));
            }
        }
        self.end_lanes(arriving, monitor)?;
        if !arriving.reader.has_ended() {
            return Err(arriving.failure("its state has no end"));
        }
        let load = arriving.load.take();
        let mut load = load.ok_or_else(|| arriving.failure("its state has no beginning"))?;
        let refused = |error: migrate::LoadError| arriving.failure(error);
        load.apply(&mut self.xen, Record::End).map_err(refused)?;
        let built = built(load.finish(&mut self.xen).map_err(refused)?);
        let model = std::mem::take(&mut arriving.model);
        let model = model.finish(arriving.config).map_err(|why| arriving.failure(why))?;
        Ok(LoadedVm { built, model })
    }

    /// Reads libxl's stream, which ends by itself.
    fn receive_from_xl(
        &mut self,
        config: &VmConfig,
        incoming: &Incoming,
        domain: NewDomain,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<LoadedVm, Failure> {
        let mut with = self.converse(incoming.channel)?;
        let wrong =
            |what: &dyn std::fmt::Display| failure(format_args!("{} from xl", config.name), what);
        let mut parser = libxl::Parser::new(LIMITS.pfn_max);
        let mut load: Option<Load> = None;
        let mut model = ModelRecords::default();
        let mut pages = 0;
        let mut flow = Flow::from(self.xen.now_ns());
        let total = restored(config).pages().div_ceil(PAGES_PER_MIB);
        while !parser.has_ended() {
            let item = parser.next(with.input()).map_err(|error| wrong(&error))?;
            let record = match item {
                None if parser.has_ended() => break,
                None => {
                    let (stop, before) = (&mut || is_cancelled(monitor), with.input().unparsed());
                    let patience = &mut Patience::of(DATA_SECONDS);
                    with.take_in(patience, stop).map_err(|silence| wrong(&silence))?;
                    let came = with.input().unparsed() - before;
                    flow.came(came, self.xen.now_ns()).map_err(|why| wrong(&why))?;
                    continue;
                }
                Some(libxl::Item::Libxc(libxc::Item::Headers(headers))) => {
                    let new = Load::new(target(config, domain), headers);
                    load = Some(new.map_err(|error| wrong(&error))?);
                    continue;
                }
                Some(libxl::Item::Libxc(libxc::Item::Record(record))) => record,
                Some(libxl::Item::Record(record)) => {
                    model.take(record).map_err(|why| wrong(&why))?;
                    continue;
                }
            };
            if let Record::PageData(data) = &record {
                pages += data.pages.len() as u64;
            }
            let Some(load) = &mut load else { return Err(wrong(&"its state has no beginning")) };
            load.apply(&mut self.xen, record).map_err(|error| wrong(&error))?;
            let done = (pages / PAGES_PER_MIB).min(total);
            if monitor.reached(Part { done, total, unit: "MiB" }) == ControlFlow::Break(()) {
                return Err(wrong(&"was cancelled"));
            }
        }
        let load = load.ok_or_else(|| wrong(&"its state has no beginning"))?;
        let built = built(load.finish(&mut self.xen).map_err(|error| wrong(&error))?);
        let model = model.finish(config).map_err(|why| wrong(&why))?;
        Ok(LoadedVm { built, model })
    }

    /// Applies all that has come.
    fn take_items(&mut self, arriving: &mut Arriving<'_>) -> Result<(), Failure> {
        loop {
            let item = arriving.reader.next(&mut arriving.input);
            let Some(item) = item.map_err(|error| arriving.failure(error))? else { return Ok(()) };
            let record = match item {
                Item::Head(head) => {
                    if head.uuid != arriving.uuid.0 {
                        return Err(arriving.failure("its state is another VM's"));
                    }
                    let target = target(arriving.config, arriving.domain);
                    let load = Load::new(target, head.headers);
                    arriving.load = Some(load.map_err(|error| arriving.failure(error))?);
                    continue;
                }
                Item::Lane(lane, token) if token == arriving.incoming.transfer.0 => {
                    self.begin_lanes(arriving, lane.of)?;
                    continue;
                }
                Item::Lane(..) => return Err(arriving.failure("its state is of another transfer")),
                Item::Record(record) => record,
                Item::Pages(pages) => {
                    let data = pages.into_page_data();
                    arriving.pages += data.pages.len() as u64;
                    Record::PageData(data)
                }
                Item::Emulator(record) => {
                    let taken = arriving.model.take(record);
                    taken.map_err(|why| arriving.failure(why))?;
                    continue;
                }
                Item::EndOfRound(round) => {
                    arriving.arrivals.end_round(arriving.reader.lane(), round);
                    continue;
                }
                Item::End => {
                    arriving.arrivals.end(arriving.reader.lane());
                    continue;
                }
                Item::Checkpoint => continue,
            };
            let Some(load) = &mut arriving.load else {
                return Err(arriving.failure("its state has no beginning"));
            };
            let applied = load.apply(&mut self.xen, record);
            applied.map_err(|error| arriving.failure(error))?;
        }
    }

    /// Whether, and how, further connections are taken.
    fn accept_lanes(&mut self, incoming: &Incoming) -> Message {
        let (transfer, token) = (incoming.transfer, incoming.token);
        let taken = match incoming.lanes {
            0 => 0,
            _ => u32::from(self.host.expect_lanes(incoming.channel, transfer, token)),
        };
        Message::Accepted { lanes: taken.min(incoming.lanes), token }
    }

    /// The sender has opened as many: all of them are here.
    fn begin_lanes(&mut self, arriving: &mut Arriving<'_>, all: Lanes) -> Result<(), Failure> {
        arriving.arrivals = Arrivals::new(all);
        for lane in all.iter().skip(1) {
            let from = self.host.take_lane(arriving.incoming.transfer, lane.number);
            let what = format_args!("connection {}", lane.number + 1);
            let from = from.map_err(|error| arriving.failure(failure(what, error)))?;
            arriving.lanes.push(ComingLane { lane, from, has_ended: false });
        }
        Ok(())
    }

    /// Applies what has come on further connections; whether there was any.
    fn take_from_lanes(
        &mut self,
        arriving: &mut Arriving<'_>,
        timeout_ns: u64,
    ) -> Result<bool, Failure> {
        if !arriving.load.as_ref().is_some_and(Load::takes_pages) {
            return Ok(false);
        }
        let mut has_come = false;
        for at in 0..arriving.lanes.len() {
            let it = &mut arriving.lanes[at];
            if it.has_ended {
                continue;
            }
            let (lane, next) = (it.lane, it.from.next(timeout_ns));
            let broken = |error| failure(format_args!("connection {}", lane.number + 1), error);
            match next.map_err(broken).map_err(|error| arriving.failure(error))? {
                None => continue,
                Some(LaneItem::Pages(data)) => {
                    arriving.pages += data.pages.len() as u64;
                    let load = arriving.load.as_mut().expect("looked at above");
                    let applied = load.apply(&mut self.xen, Record::PageData(data));
                    applied.map_err(|error| arriving.failure(error))?;
                }
                Some(LaneItem::EndOfRound(round)) => arriving.arrivals.end_round(lane, round),
                Some(LaneItem::End) => {
                    arriving.arrivals.end(lane);
                    arriving.lanes[at].has_ended = true;
                }
            }
            has_come = true;
        }
        Ok(has_come)
    }

    /// All has been sent on the first connection: what is under way on others comes, too.
    fn end_lanes(
        &mut self,
        arriving: &mut Arriving<'_>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let mut quiet_ns = 0;
        while arriving.lanes.iter().any(|it| !it.has_ended) {
            if self.take_from_lanes(arriving, LANE_LOOK_NS)? {
                quiet_ns = 0;
                continue;
            }
            quiet_ns += LANE_LOOK_NS;
            if quiet_ns > LANE_SECONDS * 1_000_000_000 {
                return Err(arriving.failure("a part of its memory does not come"));
            }
            if is_cancelled(monitor) {
                return Err(arriving.failure("was cancelled"));
            }
        }
        if arriving.lanes.is_empty() || arriving.arrivals.is_complete() {
            return Ok(());
        }
        Err(arriving.failure("its connections do not belong together"))
    }

    /// Says that all of a VM is here, and waits until it is ours.
    pub(crate) fn await_go(
        &mut self,
        name: &str,
        incoming: &Incoming,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let mut with = self.converse(incoming.channel)?;
        if incoming.speaks == Speaks::Xl {
            with.send(xl_peer::READY)?;
            return Ok(with.hear_exactly(xl_peer::GO, GO_SECONDS, &mut || is_cancelled(monitor))?);
        }
        with.say(&Message::Loaded)?;
        match with.hear(GO_SECONDS, &mut || is_cancelled(monitor)) {
            Ok(Message::Go) => Ok(()),
            Ok(Message::GiveUp { why }) => Err(Failure(why)),
            Ok(other) => Err(Failure(format!("{name}: the sender said \"{}\"", other.name()))),
            Err(Silence::Cancelled) => Err(Failure(format!("{name}: was cancelled"))),
            Err(silence) => Err(silence.into()),
        }
    }

    /// Makes it known to a later boot that the VM came here.
    pub(crate) fn note_arrival(
        &mut self,
        transfer: Uuid,
        uuid: Uuid,
        definition: Option<&str>,
    ) -> Result<(), Failure> {
        let file = received_file(transfer);
        let noted = self.host.write_transfer(&file, &received_text(uuid, definition));
        noted.map_err(|error| failure(&file, error))
    }

    /// Writes the definition of a VM that has come, of which only the note of its arrival knew.
    pub(crate) fn define_come(
        &mut self,
        transfer: Uuid,
        uuid: Uuid,
        text: &str,
    ) -> Result<(), Failure> {
        let written = self.host.write_definition(&uuid.to_string(), text);
        written.map_err(|error| failure(format_args!("definition {uuid}"), error))?;
        self.note_arrival(transfer, uuid, None)
    }

    /// Says that the VM runs. If nobody hears it, somebody will ask.
    pub(crate) fn report_arrival(&mut self, incoming: &Incoming) {
        if let Ok(mut with) = self.converse(incoming.channel) {
            let _asks_later = match incoming.speaks {
                Speaks::Own => with.say(&Message::Running),
                Speaks::Xl => with.send(xl_peer::REPORT).and_then(|()| with.send(&[0])),
            };
        }
    }

    /// From here on no daemon runs what came in part.
    pub(crate) fn fence(&mut self, transfer: Uuid, uuid: Uuid) -> Result<(), Failure> {
        let file = received_file(transfer);
        self.host.remove_transfer(&file).map_err(|error| failure(&file, error))?;
        let mut removals = crate::layout::condemned_paths(uuid);
        removals.push(crate::layout::received_removal(transfer));
        Ok(store::remove(&mut self.store, None, uuid, &removals)?)
    }

    /// Waits until the sender has ended what it has of a VM, after which nobody asks any more.
    pub(crate) fn await_forget(
        &mut self,
        channel: ChannelId,
        transfer: Uuid,
    ) -> Result<(), Failure> {
        let mut with = self.converse(channel)?;
        match with.hear(FORGET_SECONDS, &mut || false) {
            Ok(Message::Forget { transfer: theirs }) if theirs == transfer => {
                self.forget_received(transfer)?;
                // Who has not heard it says it again.
                let _asks_again = with.say(&FORGOTTEN);
                Ok(())
            }
            Ok(other) => Err(Failure(format!("the sender said \"{}\"", other.name()))),
            Err(silence) => Err(silence.into()),
        }
    }

    /// Tells an xl host that its VM stays there.
    pub(crate) fn give_back(&mut self, channel: ChannelId) -> Result<(), Failure> {
        let mut with = self.converse(channel)?;
        with.send(xl_peer::REPORT)?;
        with.send(&[1])?;
        Ok(with.send(xl_peer::GO)?)
    }
}

/// The configuration that xl sends first.
fn hear_config(with: &mut Conversation, stop: &mut dyn FnMut() -> bool) -> Result<String, Failure> {
    let mut patience = Patience::of(OFFER_SECONDS);
    loop {
        let config = save_file::parse(with.input());
        match config.map_err(|error| failure("the other host", error))? {
            Some(json) => return Ok(json),
            None => with.take_in(&mut patience, stop)?,
        }
    }
}

fn is_cancelled(monitor: &mut dyn WorkMonitor) -> bool {
    monitor.reached(Part { done: 0, total: 0, unit: "" }) == ControlFlow::Break(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_sends_next_to_nothing_is_left() {
        const SECOND: u64 = 1_000_000_000;
        let mut flow = Flow::from(0);
        // 2 KiB/s are enough, and a pause for a suspend is.
        for second in 0..1000 {
            assert_eq!(flow.came(2 << 10, second * SECOND), Ok(()));
        }
        assert_eq!(flow.came(1 << 20, 1001 * SECOND), Ok(()));
        assert_eq!(flow.came(1, 1170 * SECOND), Ok(()));
        let told = (1171..2000).find_map(|second| flow.came(1, second * SECOND).err());
        assert_eq!(told.unwrap(), "only 0 KiB came in 180 s, 256 KiB are the least");
    }
}
