//! Moves of VMs to other hosts, and from them.
//!
//! ```text
//!   here:  Sent --running there--------------------------------> Moved (taken down, forgotten)
//!           |  \--lost--> in doubt --asked: it runs there-------/
//!           |                |  asked: it never does
//!           v                v
//!        runs on          TakenBack (its devices again, and on)
//!
//!   there: Greet -> Received -> runs; or taken down behind a fence, and only then refused
//! ```
//! Whether a failed move can be taken back is decided by one bit: the other host was told to go on, or not. After it was,
//! the guest stays suspended until that host has answered. See `docs/migration.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use migrate::peer::{Arrival, Fate, Message, Offer};
use xen::{DomId, Uuid};

use super::definitions::Definition;
use super::events::VmState;
use super::farewells::{Farewells, Listener};
use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Facts, Instant, OperationId, Purpose, Reply, Toolstack, Vm};
use crate::channel::ChannelId;
use crate::config::{Start, VmConfig};
use crate::hotplug;
use crate::libxl_json;
use crate::moves::{
    Greeting, Handover, Incoming, Known, Leaving, LeavingStage, MigrateRequest, ReceiveRequest,
    Speaks, TransferFile, Verdict, check_config, read_files,
};
use crate::plan::{ComesWith, GoOn, plan_receive, plan_run_on, plan_send, plan_take_back};
use crate::work::{DefinitionWork, Failure, Images, MoveWork, Output};
use crate::xlcfg;

/// Seconds between questions to a host, at first and at most.
const ASK_SECONDS: (u64, u64) = (1, 60);

/// What is kept of another host's name for itself.
const FROM_CHARS_MAX: usize = 255;

/// A VM that may run on another host.
#[derive(Clone, Debug)]
pub(crate) struct Doubt {
    leaving: Leaving,
    why: String,
    /// Questions so far.
    asked: u32,
    /// A question is under way.
    is_asking: bool,
    /// The migration that waits for the answer.
    client: Option<ClientId>,
}

/// What is known of moves beside the VMs.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Transfers that came, with their VMs.
    received: BTreeMap<Uuid, Uuid>,
    /// VMs that may run on another host; those of them without a domain are down, or of an earlier boot.
    pub(super) doubts: BTreeMap<Uuid, Doubt>,
    /// When to ask for them next.
    pub(super) due: BTreeSet<(Instant, Uuid)>,
    /// VMs that did not leave, and could not be let go on here.
    kept: BTreeSet<Uuid>,
    /// As found at the start.
    files: Vec<(Uuid, Leaving)>,
    /// Of VMs of which the rest is being taken down.
    taken_down: BTreeMap<Uuid, Leaving>,
}

impl Moves {
    pub(super) fn beginning(files: &[TransferFile]) -> (Self, Farewells) {
        let Known { leaving, received, definitions, gone } = read_files(files);
        let moves = Self { received, files: leaving, ..Self::default() };
        (moves, Farewells::beginning(gone, definitions))
    }

    /// Something of a VM is left that runs on another host.
    pub(super) fn is_left(&mut self, uuid: Uuid, leaving: &Leaving) {
        self.taken_down.insert(uuid, leaving.clone());
    }

    /// A VM runs here, or has run.
    pub(super) fn came(&mut self, transfer: Uuid, uuid: Uuid) {
        self.received.insert(transfer, uuid);
    }
}

impl Toolstack {
    /// Sends a VM to another host.
    pub(super) fn migrate(
        &mut self,
        now: Instant,
        client: ClientId,
        to: MigrateRequest,
        out: &mut Vec<Action>,
    ) {
        let channel = to.channel;
        let may = self.resolve_domain(&to.target).and_then(|(uuid, _)| {
            match self.busy_with_operation(uuid) {
                Some(message) => Err(message),
                None => self.may_migrate(uuid, &to).map(|()| uuid),
            }
        });
        match may {
            Ok(uuid) => {
                let vm = self.vms.get_mut(&uuid).expect("resolved");
                vm.suspends_late = false;
                vm.facts.incarnation.is_sent = None;
                vm.facts.handover = None;
                let plan = plan_send(&vm.config, &vm.facts.disk_ids());
                let outcome = Outcome::Sent { client: Some(client), to: Box::new(to) };
                self.begin(now, uuid, plan, outcome, out);
            }
            Err(message) => {
                out.push(Action::CloseChannel { channel });
                fail(client, message, out);
            }
        }
    }

    fn may_migrate(&self, uuid: Uuid, to: &MigrateRequest) -> Result<(), String> {
        let config = &self.vms[&uuid].config;
        if let Some(message) = super::save::stays(&self.vms[&uuid]) {
            return Err(message);
        }
        to.wishes.config.as_ref().map_or(Ok(()), |new| check_config(config, uuid, new))
    }

    /// Ends a move that nobody waits for, unless the VM was given away.
    pub(super) fn cancel_move(
        &mut self,
        now: Instant,
        client: ClientId,
        transfer: Uuid,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.iter().find_map(|(id, operation)| {
            let is_it =
                matches!(&operation.outcome, Outcome::Sent { to, .. } if to.transfer == transfer);
            is_it.then_some(*id)
        });
        if let Some(operation) = operation {
            self.cancel(now, operation, "the migration was cancelled", out);
        }
        out.push(Action::Reply { client, reply: Reply::Ok });
    }

    /// An operation of a move has ended.
    pub(super) fn move_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        outcome: Outcome,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        match outcome {
            Outcome::Sent { client, to } => {
                self.send_ended(now, uuid, client, &to, failure, out);
            }
            Outcome::TakenBack { client, why } => {
                self.taken_back(now, uuid, client, why, failure, out);
            }
            Outcome::Moved { client, leaving, channel } => {
                self.forget(now, uuid, None, failure, out);
                self.forget_leaving(uuid, client, &leaving, channel, out);
            }
            Outcome::Received { client, incoming } => {
                self.receive_ended(now, uuid, client, &incoming, failure, out);
            }
            Outcome::NotReceived { client, incoming, message } => {
                self.forget(now, uuid, Some((None, message.clone())), failure, out);
                self.not_received(client, &incoming, message, out);
            }
            other => unreachable!("{other:?} is no end of a move"),
        }
    }

    /// A move to another host has ended, one way or another.
    pub(super) fn send_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        to: &MigrateRequest,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        let (is_sent, handover) = (vm.facts.incarnation.is_sent, vm.facts.handover.take());
        let channel = to.channel;
        let why = failure.unwrap_or_else(|| format!("{}: was not taken", to.to));
        match (is_sent, handover) {
            (Some(speaks), Some(Handover::Running)) => {
                self.moved(now, uuid, client, &to.leaving(speaks), Some(channel), out);
            }
            (Some(speaks), Some(Handover::Lost(why))) => {
                out.push(Action::CloseChannel { channel });
                self.in_doubt(now, uuid, client, to.leaving(speaks), why, out);
            }
            (Some(_), Some(Handover::Failed(why))) => {
                out.push(Action::CloseChannel { channel });
                self.take_back(now, uuid, client, Some(format!("{}: {why}", to.to)), out);
            }
            (Some(_), None) => {
                out.push(Action::CloseChannel { channel });
                self.take_back(now, uuid, client, Some(why), out);
            }
            (None, _) => {
                // It runs on.
                out.push(Action::CloseChannel { channel });
                vm.suspends_late = true;
                vm.poll_again = false;
                let is_condemned = vm.condemned;
                out.extend(
                    client.map(|client| Action::Reply { client, reply: Reply::Failed(why) }),
                );
                if is_condemned {
                    return self.take_over(now, uuid, Outcome::Gone, out);
                }
                self.changed(now, uuid, VmState::Running, "not migrated");
                self.poll(domid, out);
            }
        }
    }

    /// A suspended guest goes on here, unless it is to be destroyed; `why` is why its move failed, or somebody wants it.
    fn take_back(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        why: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("its domain is here");
        if vm.condemned {
            let told = why.unwrap_or_else(|| format!("{}: is being destroyed", vm.config.name));
            out.extend(client.map(|client| Action::Reply { client, reply: Reply::Failed(told) }));
            self.give_out(Purpose::Aside, MoveWork::Stay { uuid }, out);
            return self.take_over(now, uuid, Outcome::Gone, out);
        }
        let how = if why.is_some() { GoOn::Anew } else { GoOn::AnewByWish };
        let plan = plan_take_back(&vm.config, &vm.facts.disk_ids(), how);
        self.begin(now, uuid, plan, Outcome::TakenBack { client, why }, out);
    }

    /// A guest that was sent goes on here, or cannot.
    pub(super) fn taken_back(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        why: Option<String>,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let is_by_wish = why.is_none();
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        vm.facts.incarnation.is_sent = None;
        vm.poll_again = false;
        let name = vm.config.name.clone();
        let is_condemned = vm.condemned;
        match failure {
            Some(_) => self.moves.kept.insert(uuid),
            None => self.moves.kept.remove(&uuid),
        };
        let is_failed = failure.is_some();
        let trouble = failure.map(|trouble| {
            format!("{trouble}; it is suspended here, `xy migrate --here {name}` tries again")
        });
        let told = match (why, trouble) {
            (Some(why), None) => why,
            (Some(why), Some(trouble)) => format!("{why}; and then: {trouble}"),
            (None, Some(trouble)) => trouble,
            (None, None) => {
                out.extend(client.map(|client| Action::Reply { client, reply: Reply::Ok }));
                "it goes on here".to_owned()
            }
        };
        match client {
            _ if is_by_wish && !is_failed => {}
            Some(client) => {
                out.push(Action::Reply { client, reply: Reply::Failed(told.clone()) });
            }
            None => out.push(Action::Note { message: format!("{name}: not migrated: {told}") }),
        }
        if is_condemned {
            return self.take_over(now, uuid, Outcome::Gone, out);
        }
        let state = if is_failed { VmState::Suspended } else { VmState::Running };
        self.changed(now, uuid, state, format!("not migrated: {told}"));
        self.poll(domid, out);
    }

    /// The VM is the other host's: nothing of it is left here.
    fn moved(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        leaving: &Leaving,
        channel: Option<ChannelId>,
        out: &mut Vec<Action>,
    ) {
        if self.definitions.remove(&uuid).is_some() {
            self.give_out(Purpose::Aside, DefinitionWork::Remove { uuid }, out);
        }
        let Some(vm) = self.vms.get_mut(&uuid) else {
            return self.forget_leaving(uuid, client, leaving, channel, out);
        };
        vm.condemned = true;
        vm.why = Some(format!("migrated to {}", leaving.to));
        let leaving = Box::new(leaving.clone());
        self.take_over(now, uuid, Outcome::Moved { client, leaving, channel }, out);
    }

    /// Nothing of a moved VM is left, or something is that a further destroy removes.
    pub(super) fn forget_leaving(
        &mut self,
        uuid: Uuid,
        client: Option<ClientId>,
        leaving: &Leaving,
        channel: Option<ChannelId>,
        out: &mut Vec<Action>,
    ) {
        // Also if a killed daemon had only begun with it: its file goes with this.
        self.definitions.remove(&uuid);
        let (transfer, peer) = (leaving.transfer, leaving.peer.clone());
        // xl remembers nothing.
        let told = channel.filter(|_| leaving.speaks == Speaks::Own);
        let work = MoveWork::Forget { uuid, transfer, channel: told, peer };
        let listener = Some(Listener { transfer, peer: leaving.peer.clone() });
        self.give_out(Purpose::Farewell { client, channel, listener }, work, out);
    }

    /// Nothing is left of a VM; of one that had moved, when its daemon was killed, its sender forgets the rest.
    pub(super) fn taken_down(&mut self, uuid: Uuid, out: &mut Vec<Action>) {
        if self.moves.kept.remove(&uuid) {
            self.give_out(Purpose::Aside, MoveWork::Stay { uuid }, out);
        }
        if let Some(leaving) = self.moves.taken_down.remove(&uuid) {
            self.forget_leaving(uuid, None, &leaving, None, out);
        }
    }

    // ---- in doubt

    /// The VM was given to another host, and nothing was heard since.
    fn in_doubt(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        leaving: Leaving,
        why: String,
        out: &mut Vec<Action>,
    ) {
        let may_ask = leaving.peer.is_some();
        let to = leaving.to.clone();
        let doubt = Doubt { leaving, why, asked: 0, is_asking: false, client };
        self.moves.doubts.insert(uuid, doubt);
        let message = self.doubt_about(uuid).expect("just inserted");
        if let Some(vm) = self.vms.get_mut(&uuid) {
            vm.condemned = false;
            vm.poll_again = false;
            for waiter in std::mem::take(&mut vm.waiters) {
                fail(waiter, message.clone(), out);
            }
            self.changed(now, uuid, VmState::Suspended, format!("it may run on {to}"));
        }
        out.push(Action::Note { message: message.clone() });
        if may_ask {
            self.moves.due.insert((now.plus_seconds(ASK_SECONDS.0), uuid));
        } else if let Some(client) =
            self.moves.doubts.get_mut(&uuid).and_then(|it| it.client.take())
        {
            fail(client, message, out);
        }
    }

    /// Why nothing can be done with a VM that may run elsewhere.
    pub(super) fn doubt_about(&self, uuid: Uuid) -> Option<String> {
        let doubt = self.moves.doubts.get(&uuid)?;
        let name = match (self.vms.get(&uuid), self.definitions.get(&uuid)) {
            (Some(vm), _) => vm.config.name.clone(),
            (None, Some(definition)) => definition.config.name.clone(),
            (None, None) => uuid.to_string(),
        };
        let (to, why) = (&doubt.leaving.to, &doubt.why);
        let asks = match doubt.leaving.peer {
            Some(_) => "is asked until it answers",
            None => "cannot be asked",
        };
        Some(format!(
            "{name}: may run on {to}, which {asks} ({why}); if you know, `xy migrate --there {name}` removes it here, \
             `xy migrate --here {name}` lets it go on here"
        ))
    }

    /// Asks for the VMs whose time has come.
    pub(super) fn ask_for_doubts(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((at, uuid)) = self.moves.due.first().copied() {
            if at > now {
                return;
            }
            self.moves.due.pop_first();
            let Some(doubt) = self.moves.doubts.get_mut(&uuid).filter(|it| !it.is_asking) else {
                continue;
            };
            let Some(peer) = doubt.leaving.peer.clone() else { continue };
            doubt.is_asking = true;
            let transfer = doubt.leaving.transfer;
            self.give_out(Purpose::Fate { uuid }, MoveWork::Ask { peer, transfer }, out);
        }
    }

    /// The other host has answered, or could not be reached.
    pub(super) fn fate_heard(
        &mut self,
        now: Instant,
        uuid: Uuid,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let Some(doubt) = self.moves.doubts.get_mut(&uuid) else { return };
        doubt.is_asking = false;
        let why = match result {
            Ok(Output::Fate(Fate::Running)) => {
                return self.settle(now, uuid, Verdict::There, None, out);
            }
            Ok(Output::Fate(Fate::Never)) => {
                return self.settle(now, uuid, Verdict::Here, None, out);
            }
            Ok(Output::Fate(Fate::NotYet)) => "it has not decided yet".to_owned(),
            Ok(output) => output.misplaced(),
            Err(Failure(why)) => why,
        };
        doubt.why = why;
        doubt.asked = doubt.asked.saturating_add(1);
        let (first, most) = ASK_SECONDS;
        let seconds = (first << doubt.asked.min(6)).min(most);
        self.moves.due.insert((now.plus_seconds(seconds), uuid));
    }

    /// It is known where the VM runs.
    fn settle(
        &mut self,
        now: Instant,
        uuid: Uuid,
        verdict: Verdict,
        asker: Option<ClientId>,
        out: &mut Vec<Action>,
    ) {
        let Some(doubt) = self.moves.doubts.remove(&uuid) else { return };
        let Doubt { leaving, client, .. } = doubt;
        match (verdict, client.or(asker)) {
            (Verdict::There, client) => self.moved(now, uuid, client, &leaving, None, out),
            (Verdict::Here, client) => {
                let message = format!("{}: it does not run there", leaving.to);
                if self.vms.contains_key(&uuid) {
                    return self.take_back(now, uuid, client, Some(message), out);
                }
                out.extend(client.map(|client| Action::Reply { client, reply: Reply::Ok }));
                self.give_out(Purpose::Aside, MoveWork::Stay { uuid }, out);
            }
        }
    }

    /// An operator knows where a VM runs.
    pub(super) fn settle_by_hand(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        verdict: Verdict,
        out: &mut Vec<Action>,
    ) {
        let defined = self.defined(target);
        let uuid = self.resolve(target).ok().or(defined);
        if let Some(uuid) = uuid.filter(|it| self.moves.kept.contains(it))
            && self.vms.get(&uuid).is_some_and(|vm| vm.operation.is_none())
            && verdict == Verdict::Here
        {
            return self.take_back(now, uuid, Some(client), None, out);
        }
        let Some(uuid) = uuid.filter(|it| self.moves.doubts.contains_key(it)) else {
            let message = format!("{target}: is not in doubt: no migration of it was given away");
            return fail(client, message, out);
        };
        let waits = self.moves.doubts.get_mut(&uuid).and_then(|it| it.client.take());
        if let Some(waits) = waits {
            fail(waits, "an operator has decided meanwhile".to_owned(), out);
        }
        if verdict == Verdict::Here && self.vms.contains_key(&uuid) {
            out.push(Action::Reply { client, reply: Reply::Ok });
            return self.settle(now, uuid, verdict, None, out);
        }
        self.settle(now, uuid, verdict, Some(client), out);
    }

    // ---- after a restart

    /// Moves of an earlier daemon. `leaving` is from records of VMs that have a domain.
    pub(super) fn adopt_moves(
        &mut self,
        now: Instant,
        leaving: Vec<(Uuid, Leaving, IsSuspended)>,
        received: Vec<(Uuid, Uuid)>,
        out: &mut Vec<Action>,
    ) {
        self.moves.received.extend(received);
        // Not decided yet.
        for transfer in self.vms.values().filter_map(|vm| vm.facts.transfer) {
            self.moves.received.remove(&transfer);
        }
        let files = std::mem::take(&mut self.moves.files);
        for (uuid, leaving, state) in leaving {
            if self.vms.get(&uuid).is_none_or(|vm| vm.operation.is_some()) {
                continue;
            }
            match (state, leaving.stage) {
                // Its guest was not suspended, so it was not given away.
                (IsSuspended::No, _) => {
                    let message = "the daemon was restarted".to_owned();
                    let outcome = Outcome::TakenBack { client: None, why: Some(message) };
                    self.begin(now, uuid, plan_run_on(), outcome, out);
                }
                (IsSuspended::Yes, LeavingStage::Sending) => {
                    let message = "the daemon was restarted".to_owned();
                    self.take_back(now, uuid, None, Some(message), out);
                }
                (IsSuspended::Yes, LeavingStage::Given) => {
                    let why = "the daemon was restarted".to_owned();
                    self.in_doubt(now, uuid, None, leaving, why, out);
                }
            }
        }
        for (uuid, leaving) in files {
            if let Some(vm) = self.vms.get(&uuid) {
                let operation = vm.operation.map(|it| &self.operations[&it].outcome);
                match operation {
                    Some(Outcome::TakenBack { .. }) => {}
                    // It was taken down when the daemon was killed: it had moved, or was destroyed.
                    Some(Outcome::Gone) => {
                        self.moves.taken_down.insert(uuid, leaving);
                    }
                    _ if self.moves.doubts.contains_key(&uuid) => {}
                    _ => {
                        self.give_out(Purpose::Aside, MoveWork::Stay { uuid }, out);
                    }
                }
                continue;
            }
            let why = "the host was restarted".to_owned();
            self.in_doubt(now, uuid, None, leaving, why, out);
        }
    }

    // ---- receiving

    /// A connection from another host.
    pub(super) fn receive(
        &mut self,
        client: ClientId,
        receive: ReceiveRequest,
        out: &mut Vec<Action>,
    ) {
        self.give_out(Purpose::Greet { client, receive }, MoveWork::Greet { receive }, out);
    }

    /// It is known what it is for.
    pub(super) fn greeted(
        &mut self,
        now: Instant,
        client: ClientId,
        receive: ReceiveRequest,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let channel = receive.channel;
        match result {
            Ok(Output::Greeted(Greeting::Offer(offer))) => {
                match self.take_offer(now, client, receive, &offer, out) {
                    Ok(()) => {}
                    Err(why) => {
                        let message = Message::Refused { why: why.clone() };
                        self.say_last(client, channel, message, Reply::Failed(why), out);
                    }
                }
            }
            Ok(Output::Greeted(Greeting::Question(transfer))) => {
                let fate = self.fate_of(now, transfer, out);
                self.say_last(client, channel, Message::Answer { fate }, Reply::Ok, out);
            }
            Ok(Output::Greeted(Greeting::Forget(transfer))) => {
                let is_needed = self.farewells.is_defining(transfer)
                    || self.vms.values().any(|vm| vm.facts.transfers().any(|it| it == transfer));
                if is_needed {
                    let message = Message::Answer { fate: Fate::NotYet };
                    return self.say_last(client, channel, message, Reply::Ok, out);
                }
                self.moves.received.remove(&transfer);
                let (client, channel) = (Some(client), Some(channel));
                let purpose = Purpose::Farewell { client, channel, listener: None };
                self.give_out(purpose, MoveWork::Forgotten { transfer, channel }, out);
            }
            Ok(Output::Greeted(Greeting::Xl(offer))) => {
                if let Err(why) = self.take_from_xl(now, client, receive, &offer.json, out) {
                    // xl has no word for a refusal: it sees the connection end, and its guest runs on.
                    out.push(Action::CloseChannel { channel });
                    fail(client, why, out);
                }
            }
            Ok(output) => output.misplaced(),
            Err(Failure(message)) => {
                out.push(Action::CloseChannel { channel });
                fail(client, message, out);
            }
        }
    }

    /// Says one thing, closes the connection and answers the client.
    fn say_last(
        &mut self,
        client: ClientId,
        channel: ChannelId,
        message: Message,
        reply: Reply,
        out: &mut Vec<Action>,
    ) {
        let reply = Box::new(reply);
        self.give_out(
            Purpose::Said { client, channel, reply },
            MoveWork::Say { channel, message },
            out,
        );
    }

    fn take_offer(
        &mut self,
        now: Instant,
        client: ClientId,
        receive: ReceiveRequest,
        offer: &Offer,
        out: &mut Vec<Action>,
    ) -> Result<(), String> {
        let from = offer.from.chars().take(FROM_CHARS_MAX).collect();
        let source = xlcfg::Source { file: "the offer", text: &offer.config, overrides: &[] };
        let config = xlcfg::parse(source).map_err(|error| error.to_string())?;
        if config.name != offer.name {
            return Err(format!("the offer of {} is about {}", offer.name, config.name));
        }
        if offer.uuid == Uuid::default() || config.uuid.is_some_and(|uuid| uuid != offer.uuid) {
            return Err(format!("the offer of {} is about another VM's UUID", offer.name));
        }
        if let Some(message) = hotplug::foreign_problem(&config) {
            return Err(message);
        }
        if let Some(message) = self.refusals(&config, offer.uuid).into_iter().next() {
            return Err(message);
        }
        if let Some(message) = self.abandoned_start(offer.uuid, &config.name) {
            return Err(message);
        }
        if let Some(message) = self.doubt_about(offer.uuid) {
            return Err(message);
        }
        if self.moves.received.contains_key(&offer.transfer) {
            return Err(format!("{}: has come already", config.name));
        }
        let stays_paused = [receive.arrival, offer.arrival].contains(&Arrival::StaysPaused);
        let start = if stays_paused { Start::Paused } else { Start::Running };
        let incoming = Incoming {
            transfer: offer.transfer,
            channel: receive.channel,
            speaks: Speaks::Own,
            arrival: if stays_paused { Arrival::StaysPaused } else { Arrival::Runs },
            defined: offer.defined,
            domid: offer.domid.map(DomId),
            definition: None,
            lanes: offer.lanes,
            token: receive.transfer.0,
            from,
        };
        self.begin_receive(now, client, config, offer.uuid, (incoming, start), out);
        Ok(())
    }

    /// A VM of a host that runs xl.
    fn take_from_xl(
        &mut self,
        now: Instant,
        client: ClientId,
        receive: ReceiveRequest,
        json: &str,
        out: &mut Vec<Action>,
    ) -> Result<(), String> {
        let imported =
            libxl_json::from_json("the stream", json).map_err(|error| error.to_string())?;
        let config = imported.config;
        let name = config.name.clone();
        let uuid = config.uuid.ok_or_else(|| format!("{name}: the stream has no UUID of it"))?;
        if let Some(message) = hotplug::foreign_problem(&config) {
            return Err(message);
        }
        if let Some(message) = self.refusals(&config, uuid).into_iter().next() {
            return Err(message);
        }
        if let Some(message) = self.abandoned_start(uuid, &name).or_else(|| self.doubt_about(uuid))
        {
            return Err(message);
        }
        for warning in imported.warnings {
            out.push(Action::Note { message: format!("{name}: {warning}") });
        }
        let start = match receive.arrival {
            Arrival::Runs => Start::Running,
            Arrival::StaysPaused => Start::Paused,
        };
        let incoming = Incoming {
            transfer: receive.transfer,
            channel: receive.channel,
            speaks: Speaks::Xl,
            arrival: receive.arrival,
            defined: None,
            domid: None,
            definition: None,
            lanes: 0,
            token: [0; 16],
            from: "another host".to_owned(),
        };
        self.begin_receive(now, client, config, uuid, (incoming, start), out);
        Ok(())
    }

    fn begin_receive(
        &mut self,
        now: Instant,
        client: ClientId,
        config: VmConfig,
        uuid: Uuid,
        (incoming, start): (Incoming, Start),
        out: &mut Vec<Action>,
    ) {
        let with = match incoming.defined {
            Some(_) => ComesWith::Definition,
            None => ComesWith::Nothing,
        };
        let plan = plan_receive(&config, start, with);
        let definition = incoming.defined.map(|autostart| {
            let config = VmConfig { uuid: Some(uuid), ..config.clone() };
            Definition { config: Arc::new(config), autostart }.encode()
        });
        let incoming = Incoming { definition, ..incoming };
        let facts = Facts {
            images: Some(Images::Coming),
            transfer: Some(incoming.transfer),
            incoming: Some(Arc::new(incoming.clone())),
            ..Facts::default()
        };
        self.vms.insert(uuid, Vm::new(config, uuid, facts));
        let outcome = Outcome::Received { client, incoming: Arc::new(incoming) };
        self.begin(now, uuid, plan, outcome, out);
    }

    /// A VM has come, or not all of it.
    pub(super) fn receive_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: ClientId,
        incoming: &Arc<Incoming>,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let is_ours = vm.facts.transfer.is_none();
        let name = vm.config.name.clone();
        if is_ours {
            // It runs here, whatever failed after that.
            let (channel, transfer) = (incoming.channel, incoming.transfer);
            match incoming.speaks {
                Speaks::Own => {
                    let work = MoveWork::AwaitForget { channel, transfer };
                    self.give_out(Purpose::AwaitForget { client, channel, transfer }, work, out);
                }
                // Nobody will ask.
                Speaks::Xl => {
                    self.moves.received.remove(&transfer);
                    let (client, channel) = (Some(client), Some(channel));
                    let purpose = Purpose::Farewell { client, channel, listener: None };
                    let work = MoveWork::Forgotten { transfer, channel: None };
                    self.give_out(purpose, work, out);
                }
            }
            if let Some(text) = &incoming.definition
                && let Ok((_, definition)) = Definition::decode(&uuid.to_string(), text)
            {
                self.definitions.insert(uuid, definition);
                if failure.is_some() {
                    // It may not have been written.
                    let text = text.clone();
                    self.give_out(Purpose::Aside, DefinitionWork::Write { uuid, text }, out);
                }
            }
            if let Some(message) = failure {
                out.push(Action::Note { message: format!("{name}: {message}") });
            }
            let vm = self.vms.get_mut(&uuid).expect("as before");
            if vm.condemned {
                return self.take_over(now, uuid, Outcome::Gone, out);
            }
            let domid = vm.facts.domid().unwrap_or_default();
            vm.poll_again = false;
            self.note_started(now, uuid, out);
            return self.poll(domid, out);
        }
        let message = failure.unwrap_or_else(|| format!("{name}: was not received"));
        let incoming = Arc::clone(incoming);
        let outcome = Outcome::NotReceived { client, incoming, message };
        self.tear_down(now, uuid, outcome, out);
    }

    /// Nothing is left of a VM that did not come: now the sender may be told.
    pub(super) fn not_received(
        &mut self,
        client: ClientId,
        incoming: &Incoming,
        why: String,
        out: &mut Vec<Action>,
    ) {
        let channel = incoming.channel;
        if incoming.speaks == Speaks::Xl {
            let reply = Box::new(Reply::Failed(why));
            let purpose = Purpose::Said { client, channel, reply };
            self.give_out(purpose, MoveWork::GiveBack { channel }, out);
            return;
        }
        let message = Message::Failed { why: why.clone() };
        self.say_last(client, channel, message, Reply::Failed(why), out);
    }

    /// The sender has forgotten a transfer, or is not heard of any more.
    pub(super) fn sender_forgot(
        &mut self,
        client: ClientId,
        channel: ChannelId,
        transfer: Uuid,
        result: &Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        if result.is_ok() {
            self.moves.received.remove(&transfer);
        }
        out.push(Action::CloseChannel { channel });
        out.push(Action::Reply { client, reply: Reply::Ok });
    }

    /// What became of a transfer to this host. One that is asked for and not complete is ended.
    fn fate_of(&mut self, now: Instant, transfer: Uuid, out: &mut Vec<Action>) -> Fate {
        let coming = self.vms.values().find(|vm| vm.facts.transfers().any(|it| it == transfer));
        if let Some(vm) = coming {
            let is_complete = vm.facts.incarnation.completion.is_some();
            let operation: Option<OperationId> = vm.operation;
            if let (Some(operation), false) = (operation, is_complete) {
                self.cancel(now, operation, "its sender has lost the connection", out);
            }
            return Fate::NotYet;
        }
        match self.moves.received.contains_key(&transfer) {
            true => Fate::Running,
            false => Fate::Never,
        }
    }
}

/// Whether a killed daemon's guest was found suspended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum IsSuspended {
    Yes,
    No,
}
