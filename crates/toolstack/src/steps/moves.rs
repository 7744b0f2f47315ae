//! Steps of a move to another host, and from one.

use std::sync::Arc;

use migrate::peer::{Fate, Message};
use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Completing, IfCancelled, Permit, Preparation, StepInfo};
use crate::channel::ChannelId;
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::host::Host;
use crate::layout::{self, Ends, Nodes};
use crate::moves::{Incoming, Leaving, MigrateRequest, Reach, ReceiveRequest};
use crate::perform::Performer;
use crate::work::{Failure, NewDomain, Output, WorkClass, WorkInfo, WorkMonitor};

/// The answer to a word that a transfer may be forgotten.
pub(crate) const FORGOTTEN: Message = Message::Answer { fate: Fate::Never };

/// Steps of a move. The first four are the sender's.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum MoveStep {
    /// Send the guest's state, and suspend it on the way.
    Send,
    /// Give the VM to the other host.
    HandOver,
    /// Write the nodes of devices that were closed, as at a create.
    WriteDevices,
    /// A suspended guest goes on here.
    GoOn(GoOn),
    /// Fill the domain with what comes.
    Receive,
    /// Say that all is here, and wait for the word to go on.
    AwaitGo,
    /// From here on it is known after a crash of the host that the VM came.
    Note,
    /// It is defined here from now on.
    Define,
    /// Say that the VM runs.
    Report,
    /// Make sure that a VM that came in part never runs, also after a kill.
    Fence,
}

/// How a suspended guest goes on in its own domain.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum GoOn {
    /// It keeps its devices.
    WithDevices,
    /// It connects to new ones, as in another domain.
    Anew,
    /// The same for a guest that may not be able to; somebody wants it.
    AnewByWish,
}

/// Their work.
#[derive(Clone, Debug)]
pub enum MoveWork {
    Send {
        domain: DomainRef,
        uuid: Uuid,
        config: Arc<VmConfig>,
        /// It is defined, and starts with the host in this place.
        defined: Option<Option<u32>>,
        to: Box<MigrateRequest>,
        model: Option<Process>,
    },
    HandOver {
        domain: DomainRef,
        uuid: Uuid,
        channel: ChannelId,
        leaving: Leaving,
    },
    WriteDevices {
        domain: DomainRef,
        uuid: Uuid,
        devices: Vec<Ends>,
        nodes: Nodes,
    },
    GoOn {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
        how: GoOn,
        model: Option<Process>,
    },
    Receive {
        config: Arc<VmConfig>,
        uuid: Uuid,
        incoming: Arc<Incoming>,
        domain: NewDomain,
    },
    AwaitGo {
        name: String,
        incoming: Arc<Incoming>,
    },
    Note {
        transfer: Uuid,
        uuid: Uuid,
        definition: Option<String>,
    },
    /// Writes the definition that came with a VM.
    Define {
        transfer: Uuid,
        uuid: Uuid,
        text: String,
    },
    Report {
        incoming: Arc<Incoming>,
    },
    Fence {
        transfer: Uuid,
        uuid: Uuid,
    },
    /// Hears what a connection is for.
    Greet {
        receive: ReceiveRequest,
    },
    /// Says one thing.
    Say {
        channel: ChannelId,
        message: Message,
    },
    /// Tells an xl host that its VM stays there.
    GiveBack {
        channel: ChannelId,
    },
    /// Asks what became of a transfer.
    Ask {
        peer: Reach,
        transfer: Uuid,
    },
    /// The VM is gone from here: nothing more is to be known of the transfer.
    Forget {
        uuid: Uuid,
        transfer: Uuid,
        channel: Option<ChannelId>,
        peer: Option<Reach>,
    },
    /// Waits until the sender has forgotten a transfer.
    AwaitForget {
        channel: ChannelId,
        transfer: Uuid,
    },
    /// Nobody will ask for it any more, which may be answered.
    Forgotten {
        transfer: Uuid,
        channel: Option<ChannelId>,
    },
    /// Says to a host that had not heard it that it may forget a transfer.
    SayGone {
        peer: Reach,
        transfer: Uuid,
    },
    /// It is not told any more.
    EndFarewell {
        transfer: Uuid,
    },
    /// A VM that was to leave stays.
    Stay {
        uuid: Uuid,
    },
}

impl MoveStep {
    pub(super) fn info(self) -> StepInfo {
        let step = StepInfo::plain;
        let (finish, interrupt) = (IfCancelled::Finish, IfCancelled::Interrupt);
        match self {
            Self::Send => step("send", Permit::SEND, interrupt),
            Self::HandOver => step("hand over", Permit::TALK, finish),
            Self::WriteDevices => step("write devices", Permit::SHORT.with_backend(), finish),
            Self::GoOn(_) => step("go on here", Permit::SHORT, finish),
            Self::Receive => step("receive", Permit::RECEIVE, interrupt),
            Self::AwaitGo => step("await the word", Permit::LISTEN, interrupt),
            Self::Note => step("note the arrival", Permit::SHORT, finish),
            Self::Define => step("define", Permit::SHORT, finish),
            Self::Report => step("report", Permit::TALK, finish),
            Self::Fence => step("fence", Permit::SHORT, finish),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> MoveWork {
        let Preparation { vm, config, moving, defined, .. } = with;
        let (uuid, name) = (vm.uuid, config.name.clone());
        let domain = vm.facts.incarnation.domain;
        let domain = || domain.expect("planned for a domain");
        let model = vm.emulator();
        let incoming = vm.facts.incoming.clone();
        let coming = || incoming.clone().expect("planned for a VM that comes");
        let leaving = || moving.expect("planned for a VM that leaves");
        match self {
            Self::Send => {
                let to = Box::new(leaving().clone());
                MoveWork::Send { domain: domain(), uuid, config, defined, to, model }
            }
            Self::HandOver => {
                let MigrateRequest { channel, .. } = leaving();
                let speaks = vm.facts.incarnation.is_sent.expect("planned after it was sent");
                let leaving = leaving().leaving(speaks);
                MoveWork::HandOver { domain: domain(), uuid, channel: *channel, leaving }
            }
            Self::WriteDevices => {
                let (domid, facts) = (domain().domid, &vm.facts);
                let devices = facts.backends.all_ends(layout::devices(&config), domid);
                let nodes =
                    layout::device_nodes(&config, uuid, domid, &facts.disks, &facts.backends);
                MoveWork::WriteDevices { domain: domain(), uuid, devices, nodes }
            }
            Self::GoOn(how) => MoveWork::GoOn { domain: domain(), uuid, name, how, model },
            Self::Receive => {
                vm.facts.images = None;
                let domain = vm.facts.incarnation.new.expect("planned after the domain");
                MoveWork::Receive { config, uuid, incoming: coming(), domain }
            }
            Self::AwaitGo => MoveWork::AwaitGo { name, incoming: coming() },
            Self::Note => {
                let incoming = coming();
                let (transfer, definition) = (incoming.transfer, incoming.definition.clone());
                MoveWork::Note { transfer, uuid, definition }
            }
            Self::Define => {
                let incoming = coming();
                // It is ours, whatever happens to it.
                vm.facts.came = vm.facts.transfer.take().or(vm.facts.came);
                let text = incoming.definition.clone().expect("planned for a defined VM");
                MoveWork::Define { transfer: incoming.transfer, uuid, text }
            }
            Self::Report => {
                let incoming = coming();
                vm.facts.incoming = None;
                vm.facts.came = vm.facts.transfer.take().or(vm.facts.came);
                MoveWork::Report { incoming }
            }
            Self::Fence => {
                let transfer = vm.facts.transfer.expect("planned for a VM that comes");
                MoveWork::Fence { transfer, uuid }
            }
        }
    }

    pub(super) fn complete(self, output: Output, with: Completing<'_>) {
        let Completing { vm, .. } = with;
        let incarnation = &mut vm.facts.incarnation;
        match self {
            Self::Send => {
                let Output::Sent(speaks) = output else { output.misplaced() };
                incarnation.is_sent = Some(speaks);
            }
            Self::HandOver => {
                let Output::HandedOver(handover) = output else { output.misplaced() };
                vm.facts.handover = Some(handover);
            }
            Self::Receive => {
                let Output::Loaded(loaded) = output else { output.misplaced() };
                incarnation.built = Some(loaded.built);
                vm.facts.model_state = loaded.model.map(Box::new);
            }
            Self::WriteDevices
            | Self::GoOn(_)
            | Self::AwaitGo
            | Self::Note
            | Self::Define
            | Self::Report
            | Self::Fence => output.expect_done(),
        }
    }
}

impl MoveWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Send { domain, .. } => info("send", WorkClass::Send, Some(*domain)),
            Self::HandOver { domain, .. } => info("hand-over", WorkClass::Talk, Some(*domain)),
            Self::WriteDevices { domain, .. } => {
                info("write-devices", WorkClass::Change, Some(*domain))
            }
            Self::GoOn { domain, .. } => info("go-on", WorkClass::Change, Some(*domain)),
            Self::Receive { domain, .. } => {
                info("receive", WorkClass::Receive, Some(domain.domain))
            }
            Self::AwaitGo { .. } => info("await-go", WorkClass::Listen, None),
            Self::Note { .. } => info("note-arrival", WorkClass::Change, None),
            Self::Define { .. } => info("define-arrived", WorkClass::Change, None),
            Self::Report { .. } => info("report", WorkClass::Talk, None),
            Self::Fence { .. } => info("fence", WorkClass::Change, None),
            Self::Greet { .. } => info("greet", WorkClass::Listen, None),
            Self::Say { .. } => info("say", WorkClass::Talk, None),
            Self::GiveBack { .. } => info("give-back", WorkClass::Talk, None),
            Self::Ask { .. } => info("ask", WorkClass::Talk, None),
            Self::Forget { .. } => info("forget", WorkClass::Talk, None),
            Self::AwaitForget { .. } => info("await-forget", WorkClass::Listen, None),
            Self::Forgotten { .. } => info("forgotten", WorkClass::Talk, None),
            Self::SayGone { .. } => info("say-gone", WorkClass::Talk, None),
            Self::EndFarewell { .. } => info("end-farewell", WorkClass::Change, None),
            Self::Stay { .. } => info("stay", WorkClass::Change, None),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Output, Failure> {
        match self {
            Self::Send { domain, uuid, config, defined, to, model } => {
                let sent = by.send_vm(domain, uuid, &config, defined, (&to, model), monitor);
                return sent.map(Output::Sent);
            }
            Self::HandOver { domain, uuid, channel, leaving } => {
                return by.hand_over(domain, uuid, channel, leaving).map(Output::HandedOver);
            }
            Self::WriteDevices { domain, uuid, devices, nodes } => {
                by.write_devices(domain, uuid, &devices, &nodes)?;
            }
            Self::GoOn { domain, uuid, name, how, model } => {
                by.go_on_here(domain, uuid, &name, (how, model))?;
            }
            Self::Receive { config, uuid, incoming, domain } => {
                let loaded = by.receive_state(&config, uuid, &incoming, domain, monitor)?;
                by.map_hardware(domain.domain.domid, &config)?;
                return Ok(Output::Loaded(Box::new(loaded)));
            }
            Self::AwaitGo { name, incoming } => by.await_go(&name, &incoming, monitor)?,
            Self::Note { transfer, uuid, definition } => {
                by.note_arrival(transfer, uuid, definition.as_deref())?;
            }
            Self::Define { transfer, uuid, text } => by.define_come(transfer, uuid, &text)?,
            Self::Report { incoming } => by.report_arrival(&incoming),
            Self::Fence { transfer, uuid } => by.fence(transfer, uuid)?,
            Self::Greet { receive } => return by.greet(receive, monitor).map(Output::Greeted),
            Self::Say { channel, message } => by.say_once(channel, &message)?,
            Self::GiveBack { channel } => by.give_back(channel)?,
            Self::Ask { peer, transfer } => {
                return by.ask_peer(&peer, transfer).map(Output::Fate);
            }
            Self::Forget { uuid, transfer, channel, peer } => {
                let heard = by.forget_leaving(uuid, transfer, channel, peer.as_ref())?;
                return Ok(Output::Farewell(heard));
            }
            Self::AwaitForget { channel, transfer } => by.await_forget(channel, transfer)?,
            Self::Forgotten { transfer, channel } => {
                by.forget_received(transfer)?;
                if let Some(channel) = channel {
                    by.say_once(channel, &FORGOTTEN)?;
                }
            }
            Self::SayGone { peer, transfer } => by.say_gone(&peer, transfer)?,
            Self::EndFarewell { transfer } => by.end_farewell(transfer)?,
            Self::Stay { uuid } => by.stay(uuid)?,
        }
        Ok(Output::Done)
    }
}
