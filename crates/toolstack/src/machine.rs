//! The state machine that owns the VMs: requests and observations in, work and replies out.
//!
//! ```text
//!            create                    all steps done
//!   (none) ---------> Starting ------------------------> Running
//!                        | a step failed, or destroy         | domain stopped, or destroy
//!                        v                                   v
//!                     Stopping <------------------------- Stopping
//!                        |  everything taken down            |
//!                        v                                   v
//!                     (none), or Starting again if the policy says restart
//! ```
//! There is one operation at a time on a VM; reads never wait for it. Events only trigger a poll;
//! actions follow from the state that is found.

mod adopt;
mod adoption;
mod around;
mod changes;
mod checkpoints;
mod checks;
mod definitions;
mod devices;
mod disown;
mod dump;
mod events;
mod explain;
mod facts;
mod farewells;
mod host_shutdown;
mod index;
mod journal;
mod live;
mod lookup;
mod messages;
mod model;
mod moves;
mod next_config;
mod operation;
mod permits;
mod policy;
mod progress;
mod requests;
mod save;
mod shutdown;
mod suspend;
mod trace;
mod tuning;
mod unread;
mod users;
mod vdis;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use xen::{DomId, DomainInfo, DomainRef, ShutdownReason, Uuid};
use xenstore::client::DomainUpdate;

use crate::channel::ChannelId;
use crate::config::{OnHostShutdown, VmConfig};
use crate::device_model::Process;
use crate::foreign::Adoption;
use crate::layout::DeviceRef;
use crate::moves::ReceiveRequest;
use crate::plan::plan_finish;
use crate::scheduler::{Limits, Scheduler, Ticket};
use crate::tuning::Tuning;
use crate::work::{
    AdoptionWork, Cost, Failure, LeftFiles, Output, QueryWork, SaveWork, Survey, SuspendWork, Work,
};
use adoption::Adopted;
pub use around::NetworkObject;
use around::Surroundings;
pub use checkpoints::Copy;
use checkpoints::Revert;
use checks::WantedVm;
pub use definitions::{Begin, Boot, DefinitionFile, StartedAll, VmRow};
use definitions::{BulkStart, Definition};
pub use devices::Device;
pub(crate) use devices::{Pending, empty_drive, remove_from};
use events::Rest;
pub use events::{StateChange, StateChanges, VmState, VmStatus};
pub use explain::PlanOf;
pub(crate) use facts::{Facts, Incarnation};
use farewells::{Farewells, Listener};
use index::{Definitions, Foreigners, Operations, Vms};
use journal::Journal;
pub use journal::{Asker, Level, LogRecord};
use live::Live;
pub use live::{
    Classes, DeviceObject, DeviceState, Object, ObjectChange, ObjectClass, ObjectKey, Objects,
    OperationObject, VmObject,
};
use lookup::Lists;
pub use lookup::Wanted;
pub use messages::{
    Action, ConsoleKind, Created, DomainRow, Event, MediumChange, Reply, ReplyWhen, Request,
    ShutdownRequest, StepTime,
};
use moves::Moves;
use operation::Outcome;
use permits::Item;
pub use permits::{Deed, PermitRequest, SrChange};
pub use progress::{OpenStep, Progress};
use shutdown::{Asking, Groups};
pub use shutdown::{Fallback, Targets, Told};
pub use trace::{Summary, Trace};
use tuning::Tunings;
use unread::Unread;
pub(crate) use users::DomainUsers;
use vdis::SrContents;

/// A point in time, in nanoseconds since a fixed epoch. The caller has the clock.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

impl Instant {
    /// The time `seconds` later.
    #[must_use]
    pub fn plus_seconds(self, seconds: u64) -> Self {
        Self(self.0 + seconds * 1_000_000_000)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub u64);
    };
}

id!(
    /// A client that waits for a reply. Assigned by the caller.
    ClientId
);
id!(
    /// Work in progress. Assigned by the machine.
    WorkId
);
/// An operation in progress.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct OperationId(u64);

/// A VM of ours.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) config: Arc<VmConfig>,
    pub(crate) uuid: Uuid,
    pub(crate) facts: Facts,
    operation: Option<OperationId>,
    /// Its state while no operation starts it or takes it down.
    rest: Rest,
    /// Operations on single devices, while there is none on the VM as a whole.
    plugs: BTreeMap<DeviceRef, OperationId>,
    /// Its record is being changed, which is none of those.
    is_tuned: bool,
    /// What begins after all of these have ended.
    after_plugs: Option<Outcome>,
    /// What a restarted daemon would have to continue, as in the record.
    pub(crate) pending: BTreeMap<DeviceRef, Pending>,
    /// CD drives that are being emptied.
    pub(crate) ejecting: BTreeSet<DeviceRef>,
    /// Clients to answer when the VM is gone.
    waiters: Vec<ClientId>,
    /// The domain changed while an operation was under way.
    poll_again: bool,
    /// The reason its domain last stopped with.
    stopped: Option<ShutdownReason>,
    /// A shutdown or reboot was requested from its guest.
    is_asked: bool,
    /// Destruction was requested: no restart.
    condemned: bool,
    /// When its domain began to run, if this process saw that.
    began: Option<Instant>,
    /// Number of successive domains that stopped by themselves soon after.
    short_lives: u32,
    /// When it is restarted, if delayed.
    restart_at: Option<Instant>,
    /// When its last domains stopped without a request.
    crashes: VecDeque<Instant>,
    /// Why it goes down, if there is more than its shutdown reason.
    why: Option<String>,
    /// What its next domain is made of, if not of the same.
    next: Option<Arc<VmConfig>>,
    /// A suspend of its guest was given up, and may still happen.
    suspends_late: bool,
    /// An earlier daemon's save of it is recorded, and could not be settled.
    save_is_open: bool,
}

impl Vm {
    /// The process that emulates hardware for an HVM domain. What serves devices of others has no state of its guest's.
    pub(crate) fn emulator(&self) -> Option<Process> {
        self.facts.incarnation.model.filter(|_| self.config.hvm.is_some())
    }

    fn new(config: impl Into<Arc<VmConfig>>, uuid: Uuid, facts: Facts) -> Self {
        Self {
            config: config.into(),
            uuid,
            facts,
            operation: None,
            rest: Rest::Running,
            plugs: BTreeMap::new(),
            is_tuned: false,
            after_plugs: None,
            pending: BTreeMap::new(),
            ejecting: BTreeSet::new(),
            waiters: Vec::new(),
            poll_again: false,
            stopped: None,
            is_asked: false,
            began: None,
            short_lives: 0,
            restart_at: None,
            condemned: false,
            crashes: VecDeque::new(),
            why: None,
            next: None,
            suspends_late: false,
            save_is_open: false,
        }
    }
}

/// The purpose of work in progress.
#[derive(Debug)]
enum Purpose {
    Step {
        operation: OperationId,
        index: usize,
    },
    /// A list for all waiting requests.
    List,
    /// A survey after domains changed, without a client.
    PollAll,
    /// A poll of one domain that has changed.
    Poll {
        domid: DomId,
    },
    /// A domain that is the only conflict of a create or start.
    Namesake {
        client: ClientId,
        domid: DomId,
        wanted: Box<WantedVm>,
    },
    Observe,
    /// Reads what an SR holds.
    ReadSr {
        sr: Arc<str>,
        ticket: Ticket,
    },
    /// Looks at what changes on the host by itself.
    Around,
    /// Reads what was saved when the host was shut down.
    HostSaves(Boot),
    /// Checks that a VM can go back to a checkpoint.
    CheckRevert {
        client: ClientId,
        revert: Box<Revert>,
    },
    /// Hears what a connection from another host is for.
    Greet {
        client: ClientId,
        receive: ReceiveRequest,
    },
    /// The last word on a connection from another host.
    Said {
        client: ClientId,
        channel: ChannelId,
        reply: Box<Reply>,
    },
    /// The last word of a move.
    Farewell {
        client: Option<ClientId>,
        channel: Option<ChannelId>,
        /// Who may not hear it.
        listener: Option<Listener>,
    },
    /// A host that has not heard it hears it again.
    Gone {
        transfer: Uuid,
    },
    /// The definition that came with a VM is being written.
    Defined {
        transfer: Uuid,
    },
    /// A VM has come; its sender ends what it has of it.
    AwaitForget {
        client: ClientId,
        channel: ChannelId,
        transfer: Uuid,
    },
    /// What became of a VM that was given to another host.
    Fate {
        uuid: Uuid,
    },
    /// A change of a domain and its VM's record.
    Tune {
        client: ClientId,
        uuid: Uuid,
        ticket: Ticket,
        tuning: Tuning,
        /// The name that it had, if that is what changes.
        renamed_from: Option<String>,
    },
    /// A read for a client.
    Query {
        client: ClientId,
        query: Query,
    },
    /// A definition is being written; what it replaces.
    Define {
        client: ClientId,
        uuid: Uuid,
        before: Option<Box<Definition>>,
    },
    Undefine {
        client: ClientId,
        uuid: Uuid,
    },
    /// Reads a domain that is to be adopted.
    ReadForeign {
        client: ClientId,
        uuid: Uuid,
        base: Box<VmConfig>,
    },
    /// Reads the devices of a VM that is to be destroyed and whose record cannot be read.
    Left {
        uuid: Uuid,
    },
    /// A foreign domain becomes ours.
    Adopt {
        client: ClientId,
        adoption: Box<Adoption>,
    },
    /// A VM becomes xl's.
    Disown {
        client: ClientId,
        uuid: Uuid,
    },
    /// Work of a step whose operation was cancelled.
    Abandoned {
        ticket: Ticket,
        /// The device that it may leave attached.
        leaves: Option<(Uuid, DeviceRef)>,
    },
    /// Releases its result.
    Discard {
        leaves: Option<(Uuid, DeviceRef)>,
    },
    /// No client waits for the result.
    Aside,
}

#[derive(Debug)]
enum Query {
    /// A check of a configuration, with the faults known so far.
    Check {
        faults: Vec<String>,
    },
    Find {
        wanted: Wanted,
        /// Where else it may be.
        places: Vec<DomId>,
    },
    /// Answered with `Done`; after that the VM is in this state.
    Becomes {
        domid: DomId,
        uuid: Uuid,
        state: VmState,
    },
    /// A change of a domain that is recorded nowhere.
    Tuned {
        domid: DomId,
    },
    Console {
        domid: DomId,
    },
    Devices {
        domid: DomId,
    },
    HostInfo,
    Host,
    /// Answered with what somebody else says.
    Text,
    SavedFile,
    /// The list of them, or a change of it.
    Checkpoints,
    Vcpus,
    Sched,
    StartTimes,
    /// If the reply comes when the domain is gone, only a failure is reported.
    Shutdown {
        uuid: Uuid,
        domid: DomId,
        asking: Asking,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Polling {
    Idle,
    Underway { again: bool },
}

/// A domain that is not ours.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Foreign {
    handle: Uuid,
    name: Option<String>,
}

/// How many VMs and operations there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Census {
    /// VMs that have a domain.
    pub running: usize,
    pub operations: usize,
}

/// The state machine; see the module documentation.
#[derive(Debug)]
pub struct Toolstack {
    vms: Vms,
    operations: Operations,
    works: BTreeMap<WorkId, (Purpose, Option<DomainRef>)>,
    users: DomainUsers,
    /// Devices that abandoned work still uses.
    abandoned: BTreeSet<(Uuid, DeviceRef)>,
    /// Watched path to the step that waits for it.
    waits: BTreeMap<String, (OperationId, usize)>,
    /// Deadlines of the waits.
    deadlines: BTreeSet<(Instant, OperationId, usize)>,
    /// Delayed restarts.
    restarts: BTreeSet<(Instant, Uuid)>,
    /// Steps that wait for a permit.
    scheduler: Scheduler<Item>,
    foreign: Foreigners,
    /// VMs whose record cannot be read; their domains are among `foreign`.
    unread: BTreeMap<Uuid, Unread>,
    /// Domains that are becoming ours.
    adopting: BTreeSet<Uuid>,
    disowned: disown::Disowned,
    past: trace::Past,
    log: events::Log,
    live: Live,
    surroundings: Surroundings,
    contents: SrContents,
    moves: Moves,
    farewells: Farewells,
    /// Taken over by [`Event::Started`].
    files: Vec<DefinitionFile>,
    boot: Boot,
    definitions: Definitions,
    /// Files of definitions that cannot be read, and why.
    left_aside: BTreeMap<String, String>,
    /// Bulk starts in progress.
    bulk_starts: Vec<BulkStart>,
    /// For VMs that do not say.
    on_host_shutdown: OnHostShutdown,
    /// VMs that an earlier daemon left in between: what was saved with the host is looked at when they
    /// are settled.
    host_saves_wait: Option<(Vec<Uuid>, LeftFiles)>,
    /// Shutdowns of the host in which driver domains are still to go down.
    host_shutdowns: Vec<host_shutdown::HostShutdown>,
    /// VMs that are restored with the host after all others have started.
    late_restores: Vec<host_shutdown::LateRestore>,
    /// Files of VMs that are being restored with the host.
    host_saves: BTreeMap<Uuid, String>,
    /// Files of VMs that are to be restored at the next boot of the host.
    saved_with_host: BTreeMap<Uuid, String>,
    tunings: Tunings,
    polling: Polling,
    lists: Lists,
    groups: Groups,
    journal: Journal,
    /// Requests that arrived before the first observation.
    backlog: Option<Vec<(ClientId, Request)>>,
    /// Domain updates that arrived before that.
    early_updates: Vec<DomainUpdate>,
    next_work: u64,
    next_operation: u64,
    /// Last generation used in a domain identity.
    last_generation: u64,
}

/// Tells the operator what failed that nobody waits for.
fn note_failure(result: Result<Output, Failure>, out: &mut Vec<Action>) {
    out.extend(result.err().map(|Failure(message)| Action::Note { message }));
}

impl Default for Toolstack {
    fn default() -> Self {
        Self::new()
    }
}

impl Toolstack {
    /// An empty machine; [`Event::Started`] makes it observe the host.
    #[must_use]
    pub fn new() -> Self {
        Self::beginning(Begin::default())
    }

    /// As [`Toolstack::new`], with what outlived earlier daemons.
    #[must_use]
    pub fn beginning(begin: Begin) -> Self {
        let (moves, farewells) = Moves::beginning(&begin.transfers);
        Self {
            vms: Vms::default(),
            operations: Operations::default(),
            works: BTreeMap::new(),
            users: DomainUsers::default(),
            abandoned: BTreeSet::new(),
            waits: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            restarts: BTreeSet::new(),
            scheduler: Scheduler::default(),
            foreign: Foreigners::default(),
            unread: BTreeMap::new(),
            adopting: BTreeSet::new(),
            disowned: disown::Disowned::default(),
            past: trace::Past::default(),
            log: events::Log::after(begin.revision),
            contents: SrContents::of(&begin.srs),
            live: Live::after(begin.revision, begin.srs),
            surroundings: Surroundings::default(),
            moves,
            farewells,
            files: begin.definitions,
            boot: begin.boot,
            definitions: Definitions::default(),
            left_aside: BTreeMap::new(),
            bulk_starts: Vec::new(),
            on_host_shutdown: OnHostShutdown::default(),
            host_saves_wait: None,
            host_shutdowns: Vec::new(),
            late_restores: Vec::new(),
            host_saves: BTreeMap::new(),
            saved_with_host: BTreeMap::new(),
            tunings: Tunings::new(),
            polling: Polling::Idle,
            lists: Lists::default(),
            groups: Groups::default(),
            journal: Journal::default(),
            backlog: Some(Vec::new()),
            early_updates: Vec::new(),
            next_work: 1,
            next_operation: 1,
            last_generation: 0,
        }
    }

    /// Sets the limits of concurrent steps.
    pub fn set_limits(&mut self, limits: Limits) {
        self.scheduler.set_limits(limits);
    }

    /// Sets what becomes of VMs with the host whose configuration does not say.
    pub fn set_on_host_shutdown(&mut self, action: OnHostShutdown) {
        self.on_host_shutdown = action;
    }

    /// How much there is of what an operator sees.
    #[must_use]
    pub fn census(&self) -> Census {
        let with_domain = |vm: &&Vm| vm.facts.domid().is_some();
        Census {
            running: self.vms.values().filter(with_domain).count(),
            operations: self.operations.len(),
        }
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let wait = self.deadlines.first().map(|(deadline, _, _)| *deadline);
        let asks = self.moves.due.first().map(|(at, _)| *at);
        let says = self.farewells.due.first().map(|(at, _)| *at);
        let restart = self.restarts.first().map(|(at, _)| *at);
        let looks = [self.early_until(), self.look_due(), self.reading_due()];
        let others = [wait, restart, asks, says, self.live.due];
        others.into_iter().chain(looks).flatten().min()
    }

    /// Whether there is no operation and no work in progress.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        debug_assert!(self.vms.is_consistent(), "a VM has changed behind its index");
        self.operations.is_empty() && self.works.is_empty()
    }

    /// Handles one event; all resulting actions are appended to `out`.
    pub fn handle(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        let revision = self.log.revision();
        match event {
            Event::Started => {
                let files = std::mem::take(&mut self.files);
                self.take_definitions(now, files, out);
                self.give_out(Purpose::Observe, AdoptionWork::Observe, out);
            }
            Event::Request { client, request } => {
                self.note_request(now, client, &request);
                match &mut self.backlog {
                    Some(backlog) => backlog.push((client, request)),
                    None => self.handle_request(now, client, request, out),
                }
            }
            Event::Worked { work, result, cost } => {
                self.handle_worked(now, work, result, &cost, out);
            }
            Event::Reached { work, far } => self.work_reached(work, far, out),
            Event::Node { path, value } => self.handle_node(now, &path, value.as_deref(), out),
            Event::Introduced { domid } => {
                // Our own creates need no poll; a list for each would make them O(domains).
                let ours = domid.is_some_and(|domid| self.vms.at(domid).is_some());
                match domid {
                    Some(_) if ours => {}
                    Some(domid) => self.poll(domid, out),
                    None => self.poll_all(out),
                }
            }
            Event::Domains(update) => self.handle_domain_update(now, update, out),
            Event::DomainsChanged => self.poll_all(out),
            Event::ModelEnded { process, how } => self.model_ended(now, process, &how, out),
            Event::Tick => {}
        }
        self.read_host_saves(now, out);
        // Deadlines are kept even under a constant stream of events.
        self.end_late_waits(now, out);
        self.begin_restarts(now, out);
        self.ask_for_doubts(now, out);
        self.say_farewells(now, out);
        self.tell_of_changes(out);
        self.translate_for_groups(out);
        while self.go_on_with_host_shutdowns(now, out) {
            self.translate_for_groups(out);
        }
        self.look_in_time(now, out);
        self.read_srs_in_time(now, out);
        self.note_objects(now, out);
        self.keep_journal(now, revision, out);
    }

    fn give_out(
        &mut self,
        purpose: Purpose,
        work: impl Into<Work>,
        out: &mut Vec<Action>,
    ) -> WorkId {
        let work = work.into();
        let id = WorkId(self.next_work);
        self.next_work += 1;
        let domain = work.info().domain;
        if let Some(domain) = domain {
            self.users.enter(domain);
        }
        self.works.insert(id, (purpose, domain));
        out.push(Action::Work { id, work });
        id
    }

    fn handle_worked(
        &mut self,
        now: Instant,
        work: WorkId,
        result: Result<Output, Failure>,
        cost: &Cost,
        out: &mut Vec<Action>,
    ) {
        let (purpose, domain) = self.works.remove(&work).expect("work is reported once");
        if let Some(domain) = domain
            && self.users.leave(domain)
        {
            out.push(Action::Release { domains: vec![domain.into()] });
        }
        match purpose {
            Purpose::Step { operation, index } => {
                self.step_worked(now, operation, index, result, cost, out);
            }
            Purpose::List => self.handle_listed(result, out),
            Purpose::PollAll => self.polled_all(now, result, out),
            Purpose::Poll { domid } => {
                // As for all: a domain that could not be polled stays as it was.
                if let Ok(Output::Looked { info, name }) = result {
                    self.handle_polled(now, domid, info.as_deref(), name, out);
                }
            }
            Purpose::Namesake { client, domid, wanted } => {
                self.namesake_looked_at(now, client, domid, *wanted, result, out);
            }
            Purpose::Observe => self.handle_observed(now, result, out),
            Purpose::ReadSr { sr, ticket } => self.sr_read(now, (sr, ticket), result, out),
            Purpose::Around => self.looked_around(now, result, out),
            Purpose::HostSaves(boot) => self.host_saves_read(now, boot, result, out),
            Purpose::CheckRevert { client, revert } => {
                self.revert_checked(now, client, *revert, result, out);
            }
            Purpose::Greet { client, receive } => self.greeted(now, client, receive, result, out),
            Purpose::Said { client, channel, reply } => {
                out.push(Action::CloseChannel { channel });
                out.push(Action::Reply { client, reply: *reply });
            }
            Purpose::Farewell { client, channel, listener } => {
                self.said_farewell(now, (client, channel), listener, result, out);
            }
            Purpose::Gone { transfer } => self.said_gone(now, transfer, &result, out),
            Purpose::Defined { transfer } => self.has_defined(transfer, result, out),
            Purpose::AwaitForget { client, channel, transfer } => {
                self.sender_forgot(client, channel, transfer, &result, out);
            }
            Purpose::Fate { uuid } => self.fate_heard(now, uuid, result, out),
            Purpose::Tune { client, uuid, ticket, tuning, renamed_from } => {
                let reply = self.tuned(uuid, &tuning, renamed_from, result);
                out.push(Action::Reply { client, reply });
                self.end_tune(now, uuid, ticket, out);
            }
            Purpose::Query { client, query } => {
                if let (Query::Becomes { uuid, state, .. }, Ok(_)) = (&query, &result) {
                    self.came_to(now, *uuid, *state);
                }
                self.answer(client, query, result, out);
            }
            Purpose::Define { client, uuid, before } => {
                self.written(now, client, uuid, before.map(|it| *it), result, out);
            }
            Purpose::Undefine { client, uuid } => self.removed(now, client, uuid, result, out),
            Purpose::ReadForeign { client, uuid, base } => {
                self.foreign_read(now, client, uuid, &base, result, out);
            }
            Purpose::Left { uuid } => self.left_read(now, uuid, result, out),
            Purpose::Adopt { client, adoption } => {
                self.adopted(now, client, *adoption, result, out);
            }
            Purpose::Disown { client, uuid } => self.disowned(now, client, uuid, result, out),
            Purpose::Abandoned { ticket, leaves } => {
                self.abandoned_ended(now, ticket, leaves, result, out);
            }
            Purpose::Discard { leaves } => self.forget_abandoned(leaves),
            Purpose::Aside => note_failure(result, out),
        }
    }

    /// Lists the domains again. Single-flight: changes during a list cause one more, not many.
    fn poll_all(&mut self, out: &mut Vec<Action>) {
        match &mut self.polling {
            Polling::Idle if self.backlog.is_none() => {
                self.polling = Polling::Underway { again: false };
                let known = self.known_names();
                self.give_out(Purpose::PollAll, QueryWork::Survey { known }, out);
            }
            Polling::Idle => {}
            Polling::Underway { again } => *again = true,
        }
    }

    fn polled_all(&mut self, now: Instant, result: Result<Output, Failure>, out: &mut Vec<Action>) {
        let again = self.polling == Polling::Underway { again: true };
        self.polling = Polling::Idle;
        // A failed poll is repeated at the next change; the domains stay as they were.
        if let Ok(Output::Survey(survey)) = result {
            self.handle_survey(now, &survey, out);
        }
        if again {
            self.poll_all(out);
        }
    }

    /// Domains whose names need not be read.
    fn known_names(&self) -> BTreeMap<DomId, Uuid> {
        let ours = self.vms.values().filter_map(|vm| Some((vm.facts.domid()?, vm.uuid)));
        let foreign = self.foreign.iter().map(|(domid, foreign)| (*domid, foreign.handle));
        ours.chain(foreign).collect()
    }

    /// Updates the foreign domains from a survey.
    fn learn_foreign(&mut self, survey: &Survey) {
        let mut foreign = Foreigners::default();
        for info in &survey.domains {
            if self.vms.at(info.domid).is_some() || self.vms.contains_key(&info.handle) {
                continue;
            }
            // A dying domain has given up its name.
            if info.flags.dying() {
                continue;
            }
            let known = self.foreign.get(&info.domid).filter(|f| f.handle == info.handle);
            let name = survey.names.get(&info.domid).cloned();
            let name = name.or_else(|| known.and_then(|f| f.name.clone()));
            // A domain without a name yet is read again.
            if name.is_some() {
                foreign.insert(info.domid, Foreign { handle: info.handle, name });
            }
        }
        self.foreign.replace(foreign);
    }

    fn handle_survey(&mut self, now: Instant, survey: &Survey, out: &mut Vec<Action>) {
        self.learn_foreign(survey);
        let by_domid: BTreeMap<DomId, &DomainInfo> =
            survey.domains.iter().map(|info| (info.domid, info)).collect();
        let lives = |uuid| survey.domains.iter().any(|it| it.handle == uuid && !it.flags.dying());
        self.end_disowned(lives, out);
        let mut stopped = Vec::new();
        for vm in self.vms.values() {
            let Some(domid) = vm.facts.domid() else { continue };
            let end = changes::end_of(by_domid.get(&domid).copied(), vm.uuid);
            stopped.extend(end.map(|end| (vm.uuid, end)));
        }
        for (uuid, end) in stopped {
            self.domain_ended(now, uuid, end, out);
        }
    }

    /// Adopts VMs of an earlier daemon: complete ones are kept, others taken down.
    fn handle_observed(
        &mut self,
        now: Instant,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let (survey, records, loops, unique_ids, models, received, left) = match result {
            Ok(Output::Observed { survey, records, loops, unique_ids, models, received, left }) => {
                (survey, records, loops, unique_ids, models, received, left)
            }
            // Nothing can be decided without an observation: retry, requests wait.
            _ => {
                self.give_out(Purpose::Observe, AdoptionWork::Observe, out);
                return;
            }
        };
        let mut adopted = self.adopt(&survey, records, &unique_ids);
        let without_model = self.adopt_models(models, &survey, &mut adopted, out);
        let Adopted { half_made, unfinished, pending, subscribed, saving, leaving, notes } =
            adopted;
        out.extend(notes.into_iter().map(|message| Action::Note { message }));
        for domain in subscribed {
            self.give_out(Purpose::Aside, SuspendWork::EndSubscription { domain }, out);
        }
        let orphans = self.adopt_loops(loops, &survey);
        if !orphans.is_empty() {
            self.give_out(Purpose::Aside, AdoptionWork::DetachOrphans { orphans }, out);
        }
        self.found_whole(now, &survey, &half_made);
        self.found_unread(now, out);
        self.tell_libxl(out);
        let mut unsettled = half_made.clone();
        unsettled.extend(saving.iter().map(|(uuid, _)| *uuid));
        for uuid in half_made {
            self.tear_down(now, uuid, Outcome::Gone, out);
        }
        for (uuid, start) in unfinished {
            let plan = plan_finish(&self.vms[&uuid].config, start);
            self.begin(now, uuid, plan, Outcome::Created { client: None }, out);
        }
        for (uuid, saving) in saving {
            self.settle_save(now, uuid, saving, out);
        }
        if left.checkpoints {
            self.give_out(Purpose::Aside, SaveWork::SettleCheckpoints, out);
        }
        self.adopt_moves(now, leaving, received, out);
        self.adopt_farewells(now, out);
        for (uuid, device, pending) in pending {
            self.resume_pending(now, uuid, device, pending, out);
        }
        for (client, request) in self.backlog.take().into_iter().flatten() {
            self.handle_request(now, client, request, out);
        }
        self.handle_survey(now, &survey, out);
        for update in std::mem::take(&mut self.early_updates) {
            self.handle_domain_update(now, update, out);
        }
        for uuid in without_model {
            self.lost_model(now, uuid, "its device model ended while nobody looked", out);
        }
        self.host_saves_wait = Some((unsettled, left));
    }

    pub(crate) fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }
}
