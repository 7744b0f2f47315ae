//! What a client can ask for.

use serde::{Deserialize, Serialize};

use crate::storage::StorageRequest;
use crate::vms::Define;

/// A domain as a user names it: digits are a domid, the form of a UUID with dashes is a UUID, and
/// all else is a name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Target(pub String);

/// The domains that an operation is meant for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// Every domain that the daemon manages; those of other toolstacks are left alone.
    All,
    These(Vec<Target>),
}

/// When the answer to a shutdown or reboot is due.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// As soon as every domain has been asked.
    #[default]
    Asked,
    /// When every domain has shut down or is gone.
    Shutdown,
    /// When every domain is gone.
    Gone,
}

/// A VM to be made.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Create {
    /// The file's name as the user gave it, for error messages.
    pub file: String,
    /// What the file says. The client reads it: the daemon may not see the same files.
    pub config_text: String,
    /// `key=value` settings of the command line, which win over the file's.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// The client's working directory: relative paths in the file start here.
    pub cwd: String,
    /// Leave the domain paused.
    #[serde(default)]
    pub paused: bool,
    /// Check everything that can be checked, make nothing. [`Request::Check`] tells all faults instead of
    /// the first.
    #[serde(default)]
    pub dry_run: bool,
    /// What is not supported or not known is a fault, where it would be a warning.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub strict: bool,
    /// Send [`Answer::Warning`](crate::Answer::Warning) lines.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub warnings: bool,
    /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
    #[serde(default)]
    pub progress: bool,
}

/// A running domain of another toolstack to be taken over.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Adopt {
    pub target: Target,
    /// The file's name, for error messages.
    #[serde(default)]
    pub file: String,
    /// What it starts from again: a configuration, whose devices and sizes do not count. Without one it is
    /// refused.
    #[serde(default)]
    pub config_text: Option<String>,
    /// The client's working directory.
    #[serde(default)]
    pub cwd: String,
}

/// One request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Answered by [`Reply::Pong`](crate::Reply::Pong).
    Ping,
    /// Answered by [`Reply::Created`](crate::Reply::Created), a dry run by
    /// [`Reply::Configs`](crate::Reply::Configs) with one entry that has no domid.
    Create(Create),
    /// All that is wrong with a configuration, on this host and now. Nothing is made. Answered by
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
    /// Answered by [`Reply::Done`](crate::Reply::Done) when nothing is left of the domain.
    Destroy { target: Target },
    /// Answered by [`Reply::Done`](crate::Reply::Done); an [`Answer::Event`](crate::Answer::Event)
    /// tells of each domain asked and, if waited for, of each that has shut down or is gone.
    Shutdown {
        targets: Targets,
        #[serde(default)]
        wait: Wait,
        /// Send an ACPI event to guests that have no PV drivers.
        #[serde(default, skip_serializing_if = "is_unset")]
        acpi: bool,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// As `Shutdown`. The old domain's end is what is waited for.
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
    /// Answered by [`Reply::Domid`](crate::Reply::Domid).
    Domid { name: String },
    /// Answered by [`Reply::Domname`](crate::Reply::Domname).
    Domname { domid: u16 },
    /// Answered by [`Reply::Console`](crate::Reply::Console), once the console has a terminal.
    Console { target: Target },
    /// Answered by [`Reply::Blocks`](crate::Reply::Blocks).
    BlockList { targets: Vec<Target> },
    /// Answered by [`Reply::Networks`](crate::Reply::Networks).
    NetworkList { targets: Vec<Target> },
    /// Answered by [`Reply::Vcpus`](crate::Reply::Vcpus). `targets` as for `List`.
    VcpuList {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// Answered by [`Reply::Domains`](crate::Reply::Domains) as `List`, with the start of each that is known.
    Uptime {
        #[serde(default)]
        targets: Vec<Target>,
    },
    /// SRs and VDIs.
    Storage(StorageRequest),
    /// A disk for a running domain, as `disk=` names it. Answered by [`Reply::Done`](crate::Reply::Done).
    BlockAttach {
        target: Target,
        disk: String,
        cwd: String,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// Takes a disk away, by its name or number. Answered by [`Reply::Done`](crate::Reply::Done).
    BlockDetach {
        target: Target,
        disk: String,
        /// Without the guest's consent.
        #[serde(default)]
        force: bool,
        /// Send [`Answer::Progress`](crate::Answer::Progress) lines.
        #[serde(default, skip_serializing_if = "is_unset")]
        progress: bool,
    },
    /// Puts a medium into a drive: what is there under its name goes first, with the guest's consent unless
    /// forced. Answered by [`Reply::Done`](crate::Reply::Done).
    CdEject {
        target: Target,
        drive: String,
        #[serde(default)]
        force: bool,
    },
    /// A CD for a drive of a running domain, in the place of what is in it.
    CdInsert {
        target: Target,
        drive: String,
        path: String,
        cwd: String,
        #[serde(default)]
        force: bool,
    },
    /// A network interface for a running domain, as `vif=` names it; without `devid=` it gets the first free
    /// number. Answered by [`Reply::Done`](crate::Reply::Done).
    NetworkAttach { target: Target, vif: String },
    /// Takes an interface away, by its number or MAC address. Answered by
    /// [`Reply::Done`](crate::Reply::Done).
    NetworkDetach {
        target: Target,
        vif: String,
        /// Without the guest's consent.
        #[serde(default)]
        force: bool,
    },
    /// What is under way for a domain, and what each step waits for. Answered by
    /// [`Reply::Text`](crate::Reply::Text).
    Explain { target: Target },
    /// The graph of steps of something that could be asked for. Answered by
    /// [`Reply::Text`](crate::Reply::Text).
    Plan { of: Planned },
    /// The limits of the scheduler, after those given were changed. Answered by
    /// [`Reply::Limits`](crate::Reply::Limits).
    Limits(LimitChanges),
    /// Answered by [`Reply::Info`](crate::Reply::Info).
    Info,
    /// Answered by [`Reply::Counters`](crate::Reply::Counters).
    Counters,
    /// Answered by [`Reply::Activity`](crate::Reply::Activity).
    Activity,
    /// Answered by [`Reply::Defined`](crate::Reply::Defined) when the file is on the disk.
    Define(Define),
    /// Answered by [`Reply::Done`](crate::Reply::Done). A domain that runs goes on.
    Undefine { target: Target },
    /// Answered by [`Reply::Vms`](crate::Reply::Vms).
    Vms,
    /// Starts a VM that is defined. Answered by [`Reply::Created`](crate::Reply::Created).
    Start {
        target: Target,
        #[serde(default)]
        paused: bool,
        #[serde(default)]
        progress: bool,
    },
    /// Starts all that are defined and do not run; a [`Answer::Progress`](crate::Answer::Progress)
    /// tells of each. Answered by [`Reply::StartedAll`](crate::Reply::StartedAll).
    StartAll,
    /// Answered by [`Reply::Changes`](crate::Reply::Changes): at once, or with the next change if
    /// there is none after `since` and the client wants to `wait`.
    Events {
        #[serde(default)]
        since: Option<u64>,
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
    /// Answered by [`Reply::Operations`](crate::Reply::Operations): those under way and the last
    /// that have ended.
    Operations,
    /// The operation of that number, or the last of the VM with that name or UUID. Answered by
    /// [`Reply::Trace`](crate::Reply::Trace).
    Trace { target: String },
}

/// A line has only what differs from what an older client meant.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_unset(flag: &bool) -> bool {
    !flag
}

/// What a plan is wanted of.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
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

/// New values; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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
}
