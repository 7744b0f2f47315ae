//! What each request is about. No match here has a default: a new request is classified, or this does not compile.

use api::{
    CheckpointRequest, HostRequest, RelayRequest, Reply, Request, Target, Targets, TuneRequest,
};

/// What a request is about.
pub(super) enum Concern<'a> {
    /// No VM, and nothing of the host that is not for everybody.
    Nothing,
    Vm(&'a mut Target),
    /// These; if none are named, all that run. What the answer is if there are none.
    Vms(&'a mut Vec<Target>, fn() -> Reply),
    /// These; if none are named, all, and each row of the reply says whose it is.
    Rows(&'a mut Vec<Target>),
    /// VMs that are to end.
    Ends(&'a mut Targets),
    /// An operation by its number, or the last one of a VM.
    Trace(&'a mut String),
    /// A VM's domid by its name, and the other way round.
    Domid(&'a str),
    Domname(u16),
    /// All VMs, of which the live model knows the same.
    States,
    /// The host as a whole, or other VMs too. In words: `this is ..`.
    Host(&'static str),
}

const FILES: &str = "this names files, devices or networks of the host";
const STORAGE: &str = "this is about the host's storage";
const SHARES: &str = "this is about memory and CPUs, which all VMs share";
const HOST: &str = "this is about the host as a whole";
const MOVES: &str = "this is about other hosts";
const FOLLOWS: &str = "this tells of all VMs; follow /v1/events or read /v1/objects";

pub(super) fn concern(request: &mut Request) -> Concern<'_> {
    match request {
        Request::Ping | Request::Operations => Concern::Nothing,
        Request::List { targets } | Request::Configs { targets } | Request::Uptime { targets } => {
            Concern::Rows(targets)
        }
        Request::VcpuList { targets } => Concern::Vms(targets, || Reply::Vcpus(Vec::new())),
        Request::BlockList { targets } => Concern::Vms(targets, || Reply::Blocks(Vec::new())),
        Request::NetworkList { targets } => Concern::Vms(targets, || Reply::Networks(Vec::new())),
        Request::ChannelList { targets } => Concern::Vms(targets, || Reply::Channels(Vec::new())),
        Request::KeyboardList { targets } => Concern::Vms(targets, || Reply::Keyboards(Vec::new())),
        Request::Destroy { target }
        | Request::Pause { target }
        | Request::Unpause { target }
        | Request::Suspend { target }
        | Request::Resume { target }
        | Request::Start { target, .. }
        | Request::CdEject { target, .. }
        | Request::BlockDetach { target, .. }
        | Request::NetworkDetach { target, .. }
        | Request::KeyboardDetach { target, .. }
        | Request::ConfigText { target }
        | Request::Explain { target }
        | Request::Undefine { target }
        | Request::WaitFor { target, .. }
        | Request::Relay(
            RelayRequest::Console { target, .. } | RelayRequest::Screen { target },
        ) => Concern::Vm(target),
        Request::Shutdown { targets, .. } | Request::Reboot { targets, .. } => {
            Concern::Ends(targets)
        }
        Request::Trace { target } => Concern::Trace(target),
        Request::Domid { name } => Concern::Domid(name),
        Request::Domname { domid } => Concern::Domname(*domid),
        Request::Vms => Concern::States,
        Request::Tune(request) => of_tune(request),
        Request::Checkpoint(request) => of_checkpoint(request),
        Request::Host(request) => of_host(request),
        Request::Events { .. } | Request::Objects { .. } => Concern::Host(FOLLOWS),
        Request::Create(_)
        | Request::Check(_)
        | Request::Plan { .. }
        | Request::Define(_)
        | Request::Save(_)
        | Request::DumpCore(_)
        | Request::Restore(_)
        | Request::BlockAttach { .. }
        | Request::CdInsert { .. }
        | Request::NetworkAttach { .. }
        // Its backend may be any domain.
        | Request::KeyboardAttach { .. }
        // A pty of the host.
        | Request::Console { .. }
        // It can be told to open whatever there is.
        | Request::QemuMonitorCommand { .. } => Concern::Host(FILES),
        Request::Storage(_) => Concern::Host(STORAGE),
        Request::Migrate(_)
        | Request::MigrateReceive { .. }
        | Request::MigrateSettle { .. }
        | Request::Peer(_) => Concern::Host(MOVES),
        Request::Sched(_) => Concern::Host(SHARES),
        Request::Adopt(_)
        | Request::Disown { .. }
        | Request::HostShutdown { .. }
        | Request::StartAll
        | Request::Limits(_)
        | Request::Info
        | Request::Counters
        | Request::Activity
        | Request::Traffic
        | Request::Store(_)
        | Request::Relay(RelayRequest::Report { .. }) => Concern::Host(HOST),
    }
}

fn of_tune(request: &mut TuneRequest) -> Concern<'_> {
    match request {
        TuneRequest::Sysrq { target, .. } | TuneRequest::Trigger { target, .. } => {
            Concern::Vm(target)
        }
        TuneRequest::MemMax { .. }
        | TuneRequest::MemSet { .. }
        | TuneRequest::VcpuSet { .. }
        | TuneRequest::VcpuPin { .. }
        | TuneRequest::Share { .. }
        | TuneRequest::Budgets { .. } => Concern::Host(SHARES),
        TuneRequest::ConfigUpdate(_) => Concern::Host(FILES),
        // A name that is taken would tell of the VM that has it.
        TuneRequest::Rename { .. } => Concern::Host("this is about the names of all VMs"),
    }
}

fn of_checkpoint(request: &mut CheckpointRequest) -> Concern<'_> {
    match request {
        CheckpointRequest::CheckpointList { vms } => Concern::Rows(vms),
        CheckpointRequest::Checkpoint(_)
        | CheckpointRequest::CheckpointDestroy { .. }
        | CheckpointRequest::Revert(_)
        | CheckpointRequest::Clone(_) => Concern::Host(STORAGE),
    }
}

fn of_host(request: &HostRequest) -> Concern<'static> {
    match request {
        HostRequest::Pci(_) => Concern::Host(FILES),
        HostRequest::Console { .. }
        | HostRequest::DebugKeys { .. }
        | HostRequest::Topology { .. }
        | HostRequest::Defaults
        | HostRequest::Boot
        | HostRequest::NodeAffinity { .. }
        | HostRequest::Pools
        | HostRequest::PoolCreate { .. }
        | HostRequest::PoolDestroy { .. }
        | HostRequest::PoolRename { .. }
        | HostRequest::PoolAdd { .. }
        | HostRequest::PoolRemove { .. }
        | HostRequest::PoolMigrate { .. }
        | HostRequest::PoolSplit
        | HostRequest::SetParameters { .. }
        | HostRequest::Enforcing
        | HostRequest::SetEnforcing { .. }
        | HostRequest::Psr(_)
        | HostRequest::LoadPolicy { .. } => Concern::Host(HOST),
    }
}
