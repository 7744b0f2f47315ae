//! Moves of VMs to and from other hosts: what is asked, what a VM's record says of one, how one ends.

use std::collections::BTreeMap;

pub use migrate::peer::Arrival;
use migrate::peer::Offer;
use xen::{DomId, Uuid};

use crate::channel::ChannelId;
use crate::config::VmConfig;
use crate::layout::kind_name;

/// Whether the guest runs while most of its memory is sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pace {
    #[default]
    Live,
    /// It is suspended first.
    Stopped,
}

/// Whose protocol is spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Speaks {
    /// Ours.
    Own,
    /// That of `xl migrate` and `xl migrate-receive`.
    Xl,
}

/// How another host is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reach {
    /// By a command of the shell, such as ssh's.
    Command(String),
    /// As the peer with this name: directly, with keys that both hosts know.
    Peer(String),
}

/// What a peer's record begins with. A command that does is written with a space before it.
const PEER: &str = "tls:";

impl Reach {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Command(command) if command.starts_with(PEER) => format!(" {command}"),
            Self::Command(command) => command.clone(),
            Self::Peer(name) => format!("{PEER}{name}"),
        }
    }

    /// `None` for nothing.
    fn decode(text: &str) -> Option<Self> {
        match text.strip_prefix(PEER) {
            Some(name) => Some(Self::Peer(name.to_owned())),
            None => Some(Self::Command(text.to_owned())).filter(|_| !text.is_empty()),
        }
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command(command) => f.write_str(command),
            Self::Peer(name) => write!(f, "the peer {name}"),
        }
    }
}

/// A VM is to go to another host.
#[derive(Clone, Debug)]
pub struct MigrateRequest {
    pub target: String,
    pub channel: ChannelId,
    /// The other host, for operators.
    pub to: String,
    /// This host, for theirs.
    pub from: String,
    /// How the other host can be asked later, see [`crate::host::Host::connect`].
    pub peer: Option<Reach>,
    /// Of this move and no other.
    pub transfer: Uuid,
    pub pace: Pace,
    /// The wanted pause of the guest.
    pub downtime_ms: Option<u64>,
    pub arrival: Arrival,
    pub wishes: Wishes,
}

/// What is seldom asked of a move.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// The VM has this configuration from then on.
    pub config: Option<Box<VmConfig>>,
    pub domid: DomidWish,
    /// Connections, if not as many as usual.
    pub lanes: Option<u8>,
}

/// The number of the VM's domain on the other host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DomidWish {
    #[default]
    Any,
    /// As here; if that is taken there, the VM stays here.
    Same,
}

/// Whether a guest can go on with another configuration than it has.
///
/// # Errors
/// Says what is different that cannot be.
pub(crate) fn check_config(of: &VmConfig, uuid: Uuid, new: &VmConfig) -> Result<(), String> {
    let differs = |key: &str, has: &dyn std::fmt::Display, given: &dyn std::fmt::Display| {
        let place = new.origin.at(key);
        Err(format!("{place}: {} runs with {key} = {has}, not {given}", of.name))
    };
    match new.uuid.filter(|given| *given != uuid) {
        Some(given) => differs("uuid", &uuid, &given),
        None if of.kind != new.kind => differs("type", &kind_name(of.kind), &kind_name(new.kind)),
        None if of.vcpus_max != new.vcpus_max => differs("maxvcpus", &of.vcpus_max, &new.vcpus_max),
        None => Ok(()),
    }
}

/// A VM comes from another host, or a host has a question.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    pub channel: ChannelId,
    pub speaks: Speaks,
    /// What the receiving side wants; the sender may want it too.
    pub arrival: Arrival,
    /// Names the move if the sender does not.
    pub transfer: Uuid,
}

/// Where a VM runs of which nobody can be asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    Here,
    There,
}

/// How far a move is, for a later daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeavingStage {
    /// The other host does not run the VM, and never will without a further word.
    Sending,
    /// The VM is the other host's, if that wants it.
    Given,
}

/// A move in the VM's record, and in a file that outlives the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leaving {
    pub stage: LeavingStage,
    pub speaks: Speaks,
    pub transfer: Uuid,
    pub to: String,
    pub peer: Option<Reach>,
}

impl Leaving {
    #[must_use]
    pub fn encode(&self) -> String {
        let stage = match self.stage {
            LeavingStage::Sending => "sending",
            LeavingStage::Given => "given",
        };
        // A command may have spaces, a host's name has none.
        let to: String = self.to.chars().filter(|it| !it.is_whitespace()).collect();
        let speaks = match self.speaks {
            Speaks::Own => "own",
            Speaks::Xl => "xl",
        };
        let peer = self.peer.as_ref().map(Reach::encode).unwrap_or_default();
        format!("{stage} {speaks} {} {to} {peer}", self.transfer)
    }

    /// `None` if it is invalid.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let stage = match words.next()? {
            "sending" => LeavingStage::Sending,
            "given" => LeavingStage::Given,
            _ => return None,
        };
        let speaks = match words.next()? {
            "own" => Speaks::Own,
            "xl" => Speaks::Xl,
            _ => return None,
        };
        let transfer = words.next()?.parse().ok()?;
        let to = words.next()?.to_owned();
        let peer = Reach::decode(words.next()?);
        Some(Self { stage, speaks, transfer, to, peer })
    }
}

/// The file of a VM that leaves.
#[must_use]
pub fn leaving_file(uuid: Uuid) -> String {
    format!("leaving-{uuid}")
}

/// The file of a transfer that came here.
#[must_use]
pub fn received_file(transfer: Uuid) -> String {
    format!("received-{transfer}")
}

/// What it says. The definition is the VM's, until it is in a file of its own.
#[must_use]
pub fn received_text(uuid: Uuid, definition: Option<&str>) -> String {
    match definition {
        Some(definition) => format!("{uuid}\n{definition}"),
        None => uuid.to_string(),
    }
}

/// The file of a transfer from here that the other host has not forgotten yet.
#[must_use]
pub fn gone_file(transfer: Uuid) -> String {
    format!("gone-{transfer}")
}

/// A small file that outlives daemon and host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TransferFile {
    pub name: String,
    pub text: String,
}

/// What these files say.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// VMs that leave.
    pub(crate) leaving: Vec<(Uuid, Leaving)>,
    /// Transfers that came, with their VMs.
    pub(crate) received: BTreeMap<Uuid, Uuid>,
    /// Definitions that came with them and may not be in files of their own.
    pub(crate) definitions: BTreeMap<Uuid, (Uuid, String)>,
    /// Transfers from here that the other host need not remember.
    pub(crate) gone: Vec<(Uuid, Reach)>,
}

pub(crate) fn read_files(files: &[TransferFile]) -> Known {
    let leaving = files.iter().filter_map(|file| {
        let uuid = file.name.strip_prefix("leaving-")?.parse().ok()?;
        Some((uuid, Leaving::decode(file.text.trim_end_matches('\n'))?))
    });
    let mut known = Known { leaving: leaving.collect(), ..Known::default() };
    for file in files {
        let parse = |prefix| file.name.strip_prefix(prefix)?.parse().ok();
        if let Some(transfer) = parse("received-") {
            let (uuid, definition) = file.text.split_once('\n').unwrap_or((&file.text, ""));
            let Ok(uuid) = uuid.trim().parse() else { continue };
            known.received.insert(transfer, uuid);
            if !definition.is_empty() {
                known.definitions.insert(transfer, (uuid, definition.to_owned()));
            }
        } else if let Some(transfer) = parse("gone-") {
            known.gone.extend(Reach::decode(&file.text).map(|peer| (transfer, peer)));
        }
    }
    known
}

/// How a handover ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Handover {
    /// The VM is the other host's.
    Running,
    /// It never runs there; why.
    Failed(String),
    /// It was given away, and nothing was heard since.
    Lost(String),
}

/// Whether the other host has heard that it may forget a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Farewell {
    Heard,
    Unheard,
}

/// What a connection from another host began with.
#[derive(Clone, Debug)]
pub enum Greeting {
    Offer(Box<Offer>),
    /// From an xl host: the state of the guest follows.
    Xl(Box<XlOffer>),
    Question(Uuid),
    Forget(Uuid),
}

/// What a host that runs xl tells of a VM before it sends it.
#[derive(Clone, Debug)]
pub struct XlOffer {
    /// libxl's JSON.
    pub json: String,
}

/// A VM that is coming.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub transfer: Uuid,
    pub channel: ChannelId,
    pub speaks: Speaks,
    pub arrival: Arrival,
    /// It was defined where it comes from, and started with the host in this place.
    pub defined: Option<Option<u32>>,
    /// The number that its domain must have.
    pub domid: Option<DomId>,
    /// The text of its definition here.
    pub definition: Option<String>,
    /// Further connections that the sender would open, and what it is told to be known by.
    pub lanes: u32,
    pub token: [u8; 16],
    pub from: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_says_of_a_move_reads_back() {
        for stage in [LeavingStage::Sending, LeavingStage::Given] {
            let command = Reach::Command("ssh -p 1 b  'x y'".to_owned());
            for peer in [None, Some(command), Some(Reach::Peer("b".to_owned()))] {
                let leaving = Leaving {
                    stage,
                    speaks: Speaks::Own,
                    transfer: Uuid([7; 16]),
                    to: "b".to_owned(),
                    peer,
                };
                assert_eq!(Leaving::decode(&leaving.encode()), Some(leaving));
            }
        }
        // Not a peer of that name.
        let command = Reach::Command("tls:b".to_owned());
        let read = Reach::decode(&command.encode());
        assert_eq!(read, Some(Reach::Command(" tls:b".to_owned())));
        let transfer = Uuid([7; 16]);
        let file = |name, text: &str| TransferFile { name, text: text.to_owned() };
        let known = read_files(&[
            file(received_file(transfer), &received_text(Uuid([1; 16]), Some("a\nb\n"))),
            file(received_file(Uuid([8; 16])), &received_text(Uuid([2; 16]), None)),
            file(gone_file(transfer), &Reach::Peer("b".to_owned()).encode()),
        ]);
        let received = [(transfer, Uuid([1; 16])), (Uuid([8; 16]), Uuid([2; 16]))];
        assert_eq!(known.received, BTreeMap::from(received));
        let definition = (transfer, (Uuid([1; 16]), "a\nb\n".to_owned()));
        assert_eq!(known.definitions, BTreeMap::from([definition]));
        assert_eq!(known.gone, [(transfer, Reach::Peer("b".to_owned()))]);
        for wrong in ["", "sending", "given own x b ", "gone own 1 b"] {
            assert_eq!(Leaving::decode(wrong), None);
        }
    }
}
