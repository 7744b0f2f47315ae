//! Performs work on a hypervisor, a store and a host, without decisions.
//!
//! The same code runs on Linux's threads and in the simulator.

mod adoption;
mod arrive;
mod backends;
mod bootloader;
mod brake;
mod build;
pub(crate) mod checkpoint;
pub(crate) mod checks;
mod definitions;
pub(crate) mod disks;
pub(crate) mod dump;
mod hardware;
mod hvm;
mod machine;
mod model;
mod outgoing;
mod pci;
mod psr;
mod queries;
pub(crate) mod restore;
mod room;
pub(crate) mod save;
mod saved_file;
mod sched;
mod scripts;
mod send;
pub(crate) mod store;
pub(crate) mod suspend;
pub(crate) mod tuning;
mod xen_host;

pub use adoption::AdoptionWork;
pub use arrive::LIMITS;
pub(crate) use backends::WantedBackend;
pub use definitions::DefinitionWork;
pub use queries::QueryWork;
pub use suspend::PreparedSuspend;
pub use tuning::TuneWork;
use xen::{DomId, DomainRef, Errno, Hypervisor, Presence, Xen};
use xenstore::client::{Client, ClientCounters, ClientError, Transport};

use crate::host::Host;
use crate::work::{Cost, Failure, IdentityCheck, Output, Work, WorkMonitor};

/// A performer: a connection each to Xen, the store and the host.
#[derive(Debug)]
pub struct Performer<H, T, O> {
    pub xen: Xen<H>,
    pub store: Client<T>,
    pub host: O,
}

pub(crate) fn failure(object: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
    Failure(format!("{object}: {error}"))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

/// Error of a hypercall for a domain.
pub(crate) fn refused(action: &'static str, domid: DomId) -> impl Fn(Errno) -> Failure {
    move |errno| Failure(format!("cannot {action} domain {domid}: Xen returned {errno}"))
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Performs one work; also returns its cost.
    pub fn perform(
        &mut self,
        work: Work,
        monitor: &mut dyn WorkMonitor,
    ) -> (Result<Output, Failure>, Cost) {
        self.xen.take_counters();
        self.store.counters = ClientCounters::default();
        let result = match work {
            Work::Create(work) => work.perform(self, monitor),
            Work::Device(work) => work.perform(self),
            Work::Teardown(work) => work.perform(self),
            Work::Suspend(work) => work.perform(self, monitor),
            Work::Save(work) => work.perform(self, monitor),
            Work::Move(work) => work.perform(self, monitor),
            Work::Adoption(work) => work.perform(self),
            Work::Query(work) => work.perform(self),
            Work::Tune(work) => work.perform(self),
            Work::Definition(work) => work.perform(self),
        };
        let cost = Cost {
            hypercalls: self.xen.counters().iter().collect(),
            store_messages: self.store.counters.messages,
            store_round_trips: self.store.counters.round_trips,
            transactions: self.store.counters.transactions,
            conflicts: self.store.counters.conflicts,
            queued_ns: 0,
        };
        (result, cost)
    }
}

impl<H: Hypervisor, T, O> Performer<H, T, O> {
    /// Checks that the domain is still the intended one.
    pub(crate) fn check_identity(
        &mut self,
        domain: DomainRef,
        check: IdentityCheck,
    ) -> Result<(), Failure> {
        if check == IdentityCheck::Needless || self.presence(domain)? == Presence::Here {
            return Ok(());
        }
        let domid = domain.domid;
        Err(Failure(format!(
            "domain {domid} is gone, and nothing was done to whoever bears its number now; \
             `xy list` shows what is there"
        )))
    }

    pub(crate) fn presence(&mut self, domain: DomainRef) -> Result<Presence, Failure> {
        self.xen.presence(domain).map_err(refused("look up", domain.domid))
    }
}
