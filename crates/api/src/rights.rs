//! Who may ask for what.

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointRequest, HostRequest, LimitChanges, PciRequest, PeerRequest, PsrRequest,
    RelayRequest, Report, Request, SchedRequest, StorageRequest, StoreRequest,
};

/// What a client may do. Each may do what those before it may.
///
/// Whoever may name files, devices or programs of the host, or write to a guest's memory or configuration, can become root
/// there. So an operator gets none of that: VMs go on and off as they are.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Looks, at everything but passwords and what guests have in their memory.
    Viewer,
    /// Starts, stops and pauses VMs that are there.
    Operator,
    /// Is as good as root.
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The group of the host whose members have this role.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Viewer => "xylem",
            Self::Operator => "xylem-operator",
            Self::Admin => "xylem-admin",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// The least role that may ask for this.
    #[must_use]
    pub fn needed(request: &Request) -> Self {
        match request {
            Request::Ping
            | Request::List { .. }
            | Request::Domid { .. }
            | Request::Domname { .. }
            | Request::BlockList { .. }
            | Request::NetworkList { .. }
            | Request::ChannelList { .. }
            | Request::KeyboardList { .. }
            | Request::VcpuList { .. }
            | Request::Uptime { .. }
            | Request::Explain { .. }
            | Request::Info
            | Request::Counters
            | Request::Activity
            | Request::Traffic
            | Request::Vms
            | Request::Events { .. }
            | Request::Objects { .. }
            | Request::WaitFor { .. }
            | Request::Operations
            | Request::Trace { .. }
            | Request::Relay(RelayRequest::Report { of: Report::Doctor }) => Self::Viewer,
            Request::Shutdown { .. }
            | Request::Reboot { .. }
            | Request::Destroy { .. }
            | Request::Pause { .. }
            | Request::Unpause { .. }
            | Request::Suspend { .. }
            | Request::Resume { .. }
            | Request::Start { .. }
            | Request::StartAll
            | Request::CdEject { .. } => Self::Operator,
            // Files, devices and networks of the host, or what decides over them.
            Request::Create(_)
            | Request::Check(_)
            | Request::Plan { .. }
            | Request::Define(_)
            | Request::Undefine { .. }
            | Request::Adopt(_)
            | Request::Disown { .. }
            | Request::Save(_)
            | Request::Restore(_)
            | Request::DumpCore(_)
            | Request::Migrate(_)
            | Request::MigrateReceive { .. }
            | Request::MigrateSettle { .. }
            | Request::HostShutdown { .. }
            | Request::Console { .. }
            | Request::Relay(_)
            | Request::QemuMonitorCommand { .. }
            | Request::BlockAttach { .. }
            | Request::BlockDetach { .. }
            | Request::CdInsert { .. }
            | Request::NetworkAttach { .. }
            | Request::NetworkDetach { .. }
            | Request::KeyboardAttach { .. }
            | Request::KeyboardDetach { .. }
            | Request::Tune(_)
            | Request::Sched(SchedRequest::Change { .. })
            // Passwords of VNC and SPICE are among these.
            | Request::Configs { .. }
            | Request::ConfigText { .. } => Self::Admin,
            Request::Peer(PeerRequest::Key | PeerRequest::List) => Self::Viewer,
            Request::Peer(_) => Self::Admin,
            Request::Limits(_)
            | Request::Sched(_)
            | Request::Checkpoint(_)
            | Request::Storage(_)
            | Request::Store(_)
            | Request::Host(_) => Self::if_it_only_looks(only_looks(request)),
        }
    }

    fn if_it_only_looks(looks: bool) -> Self {
        if looks { Self::Viewer } else { Self::Admin }
    }

    /// Why this role may not ask for that; `None` if it may.
    #[must_use]
    pub fn refusal(self, request: &Request) -> Option<String> {
        let needed = Self::needed(request);
        (self < needed).then(|| {
            let (needed, own) = (needed.as_str(), self.as_str());
            format!("not permitted: this needs the role {needed}, and yours is {own}")
        })
    }
}

/// Requests of which some look and others change something.
fn only_looks(request: &Request) -> bool {
    match request {
        Request::Limits(changes) => *changes == LimitChanges::default(),
        Request::Sched(request) => !matches!(request, SchedRequest::Change { .. }),
        Request::Checkpoint(request) => matches!(request, CheckpointRequest::CheckpointList { .. }),
        Request::Storage(request) => only_looks_at_storage(request),
        // Counts; all else is passwords and what may lead to others.
        Request::Store(request) => matches!(
            request,
            StoreRequest::Quota { .. } | StoreRequest::Stats | StoreRequest::Metrics
        ),
        Request::Host(request) => only_looks_at_host(request),
        _ => false,
    }
}

fn only_looks_at_storage(request: &StorageRequest) -> bool {
    match request {
        StorageRequest::SrList
        | StorageRequest::SrInfo { .. }
        | StorageRequest::VdiList { .. }
        | StorageRequest::ImageList => true,
        StorageRequest::SrCreate { .. }
        | StorageRequest::SrIntroduce { .. }
        | StorageRequest::SrForget { .. }
        | StorageRequest::SrDestroy { .. }
        | StorageRequest::VdiCreate { .. }
        | StorageRequest::VdiDestroy { .. }
        | StorageRequest::VdiResize { .. }
        | StorageRequest::VdiSnapshot { .. }
        | StorageRequest::VdiClone { .. }
        | StorageRequest::VdiLend { .. }
        | StorageRequest::VdiPass { .. }
        | StorageRequest::ImageAdd(_)
        | StorageRequest::ImageRemove { .. } => false,
    }
}

fn only_looks_at_host(request: &HostRequest) -> bool {
    match request {
        HostRequest::Topology { .. }
        | HostRequest::Defaults
        | HostRequest::Boot
        | HostRequest::NodeAffinity { .. }
        | HostRequest::Pools
        | HostRequest::Enforcing => true,
        HostRequest::Pci(request) => match request {
            PciRequest::Assignable | PciRequest::List { .. } => true,
            PciRequest::AssignableAdd { .. }
            | PciRequest::AssignableRemove { .. }
            | PciRequest::Attach { .. }
            | PciRequest::Detach { .. } => false,
        },
        HostRequest::Psr(request) => match request {
            PsrRequest::Hardware
            | PsrRequest::CmtShow { .. }
            | PsrRequest::CatShow { .. }
            | PsrRequest::MbaShow { .. } => true,
            PsrRequest::CmtAttach { .. }
            | PsrRequest::CmtDetach { .. }
            | PsrRequest::CatSet { .. }
            | PsrRequest::MbaSet { .. } => false,
        },
        // Xen's messages tell of addresses, as the kernel's do.
        HostRequest::Console { .. }
        | HostRequest::DebugKeys { .. }
        | HostRequest::PoolCreate { .. }
        | HostRequest::PoolDestroy { .. }
        | HostRequest::PoolRename { .. }
        | HostRequest::PoolAdd { .. }
        | HostRequest::PoolRemove { .. }
        | HostRequest::PoolMigrate { .. }
        | HostRequest::PoolSplit
        | HostRequest::SetParameters { .. }
        | HostRequest::SetEnforcing { .. }
        | HostRequest::LoadPolicy { .. } => false,
    }
}
