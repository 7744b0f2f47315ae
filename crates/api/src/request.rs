//! Requests of clients.

use serde::{Deserialize, Serialize};

use crate::checkpoints::CheckpointRequest;
use crate::host::HostRequest;
use crate::moves::{Arrival, Migrate, Runs, Speaks};
use crate::peers::PeerRequest;
use crate::relays::RelayRequest;
use crate::sched::SchedRequest;
use crate::storage::StorageRequest;
use crate::store::StoreRequest;
use crate::tuning::TuneRequest;
use crate::vms::Define;

/// A domain as named by a user: digits are a domid, a UUID has dashes, anything else is a name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Target(pub String);

/// The domains of a request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// Every domain managed by the daemon; those of other toolstacks are not touched.
    All,
    These(Vec<Target>),
}

/// When a shutdown or reboot is answered.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// When the requests have been sent.
    #[default]
    Asked,
    /// When every domain has shut down or is gone.
    Shutdown,
    /// When every domain is gone.
    Gone,
}

/// A VM to be created.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Create {
    /// The file's name as the user gave it, for error messages.
    pub file: String,
    /// The file's content. The client reads it, since the daemon may not see the same files.
    pub config_text: String,
    /// `key=value` settings of the command line, which override the file's.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// The client's working directory, for relative paths in the file.
    pub cwd: String,
    /// Leave the domain paused.
    #[serde(default)]
    pub paused: bool,
    /// Check everything, create nothing. [`Request::Check`] reports all faults instead of the
    /// first.
    #[serde(default)]
    pub dry_run: bool,
    /// Treat warnings about unsupported and unknown keys as faults.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub strict: bool,
    /// Send [`Answer::Warning`](crate::Answer::Warning) lines.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub warnings: bool,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// What becomes of a VM whose state is in a file.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AfterSave {
    #[default]
    Destroyed,
    /// It goes on.
    Running,
    Paused,
}

/// Whose files are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SavedFormat {
    #[default]
    Xylem,
    Xl,
}

/// A VM whose state is to be written to a file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Save {
    pub target: Target,
    /// The file to be written.
    pub path: String,
    /// The client's working directory.
    pub cwd: String,
    #[serde(default)]
    pub after: AfterSave,
    #[serde(default)]
    pub format: SavedFormat,
    /// The configuration's file, for error messages.
    #[serde(default)]
    pub file: String,
    /// A configuration that is recorded instead of the VM's own.
    #[serde(default)]
    pub config_text: Option<String>,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// A domain whose memory is to be written to a core file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpCore {
    pub target: Target,
    /// The file to be written.
    pub path: String,
    /// The client's working directory.
    pub cwd: String,
    /// The domain is not paused meanwhile.
    #[serde(default)]
    pub live: bool,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// A saved VM that is to go on.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restore {
    /// Of the saved VM.
    pub path: String,
    /// The client's working directory.
    pub cwd: String,
    /// The configuration's file, for error messages.
    #[serde(default)]
    pub file: String,
    /// A configuration in place of the recorded one.
    #[serde(default)]
    pub config_text: Option<String>,
    /// Leave the domain paused.
    #[serde(default)]
    pub paused: bool,
    /// Send [`Answer::Warning`](crate::Answer::Warning) lines.
    #[serde(default)]
    pub warnings: bool,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// A running domain of another toolstack to be adopted.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Adopt {
    pub target: Target,
    /// The file's name, for error messages.
    #[serde(default)]
    pub file: String,
    /// Its boot configuration; devices and sizes in it are ignored. Without this or the next one it is refused.
    #[serde(default)]
    pub config_text: Option<String>,
    /// The configuration that libxl keeps of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libxl_json: Option<String>,
    /// The client's working directory.
    #[serde(default)]
    pub cwd: String,
}

/// Who serves a console.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ConsoleKind {
    /// xenconsoled, or whoever serves a channel.
    Pv,
    /// A device model's serial port.
    Serial,
}

/// One request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Answered by [`Reply::Pong`](crate::Reply::Pong).
    Ping,
    /// Answered by [`Reply::Created`](crate::Reply::Created), a dry run by
    /// [`Reply::Configs`](crate::Reply::Configs) with one entry that has no domid.
    Create(Create),
    /// Finds all faults of a configuration on this host; creates nothing. Answered by
    /// [`Reply::Checked`](crate::Reply::Checked).
    Check(Create),
    /// Answered by [`Reply::Domains`](crate::Reply::Domains) in the order of `targets`, or of domids
    /// if `targets` is empty, which means all domains.
    List {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// `list -l`; answered by [`Reply::Configs`](crate::Reply::Configs). `targets` as for `List`.
    Configs {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done) when the VM is managed.
    Adopt(Adopt),
    /// Answered by [`Reply::Done`](crate::Reply::Done) when the VM is another toolstack's.
    Disown { target: Target },
    /// Answered by [`Reply::Done`](crate::Reply::Done) when nothing is left of the domain.
    Destroy { target: Target },
    /// Answered by [`Reply::Done`](crate::Reply::Done); an [`Answer::Event`](crate::Answer::Event)
    /// is sent for each requested domain and, if waited for, for each that has shut down or is
    /// gone.
    Shutdown {
        targets: Targets,
        #[serde(default)]
        wait: Wait,
        /// Send an ACPI event to guests without PV drivers.
        #[serde(default, skip_serializing_if = "is_unset")]
        acpi: bool,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// As `Shutdown`. Waits for the end of the old domain.
    Reboot {
        targets: Targets,
        #[serde(default)]
        wait: Wait,
        #[serde(default, skip_serializing_if = "is_unset")]
        acpi: bool,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    Pause { target: Target },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    Unpause { target: Target },
    /// Changes of running domains.
    Tune(TuneRequest),
    /// Schedulers, and domains' shares of the CPUs.
    Sched(SchedRequest),
    /// Answered by [`Reply::Done`](crate::Reply::Done), once the guest has suspended.
    Suspend { target: Target },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    Resume { target: Target },
    /// Sends a domain to a peer, or to the host at the other end of the connection that comes with the request. Answered by
    /// [`Reply::Done`](crate::Reply::Done), once nothing of it is left here.
    Migrate(Box<Migrate>),
    /// Serves the connection that comes with the request, from another host. Answered by
    /// [`Reply::Done`](crate::Reply::Done), once that host needs no further answer.
    MigrateReceive {
        speaks: Speaks,
        #[serde(default)]
        arrival: Arrival,
    },
    /// Says where a domain runs that was given to a host which does not answer. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    MigrateSettle { target: Target, runs: Runs },
    /// Hosts that are known by their keys.
    Peer(PeerRequest),
    /// Answered by [`Reply::Done`](crate::Reply::Done) when the file is whole and the VM as it is to
    /// be. A client that hangs up before cancels it, and the guest runs on.
    Save(Save),
    /// Answered by [`Reply::Done`](crate::Reply::Done) when the file is whole. A client that hangs up before cancels it.
    DumpCore(DumpCore),
    /// Answered by [`Reply::Created`](crate::Reply::Created).
    Restore(Restore),
    /// Shuts down, saves or leaves alone each VM, as its configuration says of the host's shutdown. As for
    /// `Shutdown`. Answered by [`Reply::Done`](crate::Reply::Done) when all of these are gone.
    HostShutdown {
        /// An error after this time, with the VMs that are left.
        #[serde(default)]
        timeout_s: Option<u64>,
    },
    /// Checkpoints of VMs, and copies of saved VMs.
    Checkpoint(CheckpointRequest),
    /// Answered by [`Reply::Domid`](crate::Reply::Domid).
    Domid { name: String },
    /// Answered by [`Reply::Domname`](crate::Reply::Domname).
    Domname { domid: u16 },
    /// Answered by [`Reply::Console`](crate::Reply::Console), once the console has a pty.
    Console {
        target: Target,
        /// Without one, the domain's primary console's.
        #[serde(default, skip_serializing_if = "is_unset")]
        kind: Option<ConsoleKind>,
        #[serde(default, skip_serializing_if = "is_unset")]
        number: u32,
    },
    /// Joins the connection that comes with the request to a console or a screen. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    Relay(RelayRequest),
    /// A command for people to the monitor of a domain's QEMU. Answered by [`Reply::Text`](crate::Reply::Text).
    QemuMonitorCommand { target: Target, command: String },
    /// Answered by [`Reply::Blocks`](crate::Reply::Blocks).
    BlockList { targets: Vec<Target> },
    /// Answered by [`Reply::Networks`](crate::Reply::Networks).
    NetworkList { targets: Vec<Target> },
    /// Answered by [`Reply::Channels`](crate::Reply::Channels).
    ChannelList { targets: Vec<Target> },
    /// Answered by [`Reply::Keyboards`](crate::Reply::Keyboards).
    KeyboardList { targets: Vec<Target> },
    /// Answered by [`Reply::Vcpus`](crate::Reply::Vcpus). `targets` as for `List`.
    VcpuList {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// Answered by [`Reply::Domains`](crate::Reply::Domains) as `List`, with start times where
    /// known.
    Uptime {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// SRs and VDIs.
    Storage(StorageRequest),
    /// The xenstore.
    Store(StoreRequest),
    /// Attaches a disk to a running domain, in the syntax of `disk=`. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    BlockAttach {
        target: Target,
        disk: String,
        cwd: String,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// Detaches a disk, by name or number. Answered by [`Reply::Done`](crate::Reply::Done).
    BlockDetach {
        target: Target,
        disk: String,
        /// Do not ask the guest.
        #[serde(default)]
        force: bool,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// Ejects a CD, asking the guest unless forced. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    CdEject {
        target: Target,
        drive: String,
        #[serde(default)]
        force: bool,
    },
    /// Inserts a CD into a drive of a running domain, replacing the current one.
    CdInsert {
        target: Target,
        drive: String,
        path: String,
        cwd: String,
        #[serde(default)]
        force: bool,
    },
    /// Attaches a network interface to a running domain, in the syntax of `vif=`; without `devid=`
    /// it gets the first free number. Answered by [`Reply::Done`](crate::Reply::Done).
    NetworkAttach { target: Target, vif: String },
    /// Detaches an interface, by number or MAC address. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    NetworkDetach {
        target: Target,
        vif: String,
        /// Do not ask the guest.
        #[serde(default)]
        force: bool,
    },
    /// Attaches a keyboard to a running domain, in the syntax of `vkb=`. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    KeyboardAttach { target: Target, keyboard: String },
    /// Detaches a keyboard by its number. Answered by [`Reply::Done`](crate::Reply::Done).
    KeyboardDetach {
        target: Target,
        keyboard: String,
        /// Do not ask the guest.
        #[serde(default)]
        force: bool,
    },
    /// A VM's configuration, as in a file: of its definition, or of the running VM if it has none. Answered by
    /// [`Reply::Text`](crate::Reply::Text).
    ConfigText { target: Target },
    /// Current operations on a domain, and what each step waits for. Answered by
    /// [`Reply::Text`](crate::Reply::Text).
    Explain { target: Target },
    /// The plan of a possible operation. Answered by [`Reply::Text`](crate::Reply::Text).
    Plan { of: Planned },
    /// The limits of the scheduler, after applying the given changes. Answered by
    /// [`Reply::Limits`](crate::Reply::Limits).
    Limits(LimitChanges),
    /// Answered by [`Reply::Info`](crate::Reply::Info).
    Info,
    /// Xen and the machine as a whole.
    Host(HostRequest),
    /// Answered by [`Reply::Counters`](crate::Reply::Counters).
    Counters,
    /// Answered by [`Reply::Activity`](crate::Reply::Activity).
    Activity,
    /// What domains have read, written, received and sent so far. Answered by
    /// [`Reply::Traffic`](crate::Reply::Traffic).
    Traffic,
    /// Answered by [`Reply::Defined`](crate::Reply::Defined) when the file is durable.
    Define(Define),
    /// Answered by [`Reply::Done`](crate::Reply::Done). A running domain continues.
    Undefine { target: Target },
    /// Answered by [`Reply::Vms`](crate::Reply::Vms).
    Vms,
    /// Starts a defined VM. Answered by [`Reply::Created`](crate::Reply::Created).
    Start {
        target: Target,
        #[serde(default)]
        paused: bool,
        #[serde(default)]
        progress: bool,
    },
    /// Starts all defined VMs that are not running, with an
    /// [`Answer::Progress`](crate::Answer::Progress) for each. Answered by
    /// [`Reply::StartedAll`](crate::Reply::StartedAll).
    StartAll,
    /// Answered by [`Reply::Changes`](crate::Reply::Changes): at once, or with the next change if
    /// there is none after `since` and `wait` is set.
    Events {
        #[serde(default)]
        since: Option<u64>,
        #[serde(default)]
        wait: bool,
    },
    /// Answered by [`Reply::Objects`](crate::Reply::Objects): what has changed since the cursor, or all without one,
    /// a part at a time. If there is nothing and `wait` is set, the answer comes with the next change, after a moment
    /// in which others are collected.
    Objects {
        /// Of the last answer. One that is too old, or another daemon's, starts again.
        #[serde(default)]
        cursor: Option<String>,
        /// `vm`, `device`, `domain`, `operation`, `sr`, `network`, `host`; empty means all.
        #[serde(default)]
        classes: Vec<String>,
        #[serde(default)]
        wait: bool,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done) once the VM is in that state.
    WaitFor {
        target: Target,
        state: String,
        #[serde(default)]
        timeout_s: Option<u64>,
    },
    /// Answered by [`Reply::Operations`](crate::Reply::Operations): the current ones and the last
    /// that have ended.
    Operations,
    /// The operation with that number, or the last one of the VM with that name or UUID. Answered
    /// by [`Reply::Trace`](crate::Reply::Trace).
    Trace { target: String },
}

/// A request's name in the protocol, with that of what is done: `storage vdi-create`.
#[must_use]
pub fn name_of(request: &Request) -> String {
    let json = serde_json::to_value(request).unwrap_or_default();
    ["op", "do", "what"]
        .iter()
        .filter_map(|key| json.get(key)?.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Flags that are not set are omitted, for older daemons, and so are zeros.
pub(crate) fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The operation of a requested plan.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Planned {
    Create(Create),
    Reboot { target: Target },
    Shutdown { target: Target },
    Destroy { target: Target },
    BlockAttach { disk: String },
    BlockDetach { target: Target, disk: String, force: bool },
    NetworkAttach { vif: String },
}

/// New values; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LimitChanges {
    pub host: Option<usize>,
    pub vm: Option<usize>,
    pub sr: Option<usize>,
    pub backend: Option<usize>,
    pub storage: Option<usize>,
    pub domain: Option<usize>,
    pub scan: Option<usize>,
    pub change: Option<usize>,
    pub memory: Option<usize>,
    pub send: Option<usize>,
    pub receive: Option<usize>,
}
