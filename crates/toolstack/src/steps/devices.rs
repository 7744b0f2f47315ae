//! Steps of single devices: at a create, a teardown, or hotplug.

use std::sync::Arc;

use storage::Attachment;
use xen::{DomId, DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::pci::{self, PciWork};
use super::{Completing, IfCancelled, IfFailed, Permit, Preparation, StepInfo};
use crate::config::{VifConfig, VmConfig};
use crate::device_model::Process;
use crate::domains::DomainSet;
use crate::host::{Host, Link};
use crate::hotplug::{self, Scripts, Way};
use crate::layout::{self, DeviceKind, DeviceRef, Ends, Nodes, Removal};
use crate::machine::{Device, Pending, Vm, empty_drive, remove_from};
use crate::network::{self, Connection};
use crate::perform::{Performer, WantedBackend, checks, disks, failure, store};
use crate::plan::Unplug;
use crate::scheduler::Track;
use crate::userdata::Userdata;
use crate::work::{Failure, Output, OwnLoop, Quota, WorkClass, WorkInfo, loop_tag};

/// Steps of devices. Disks are identified by `virtual-device`, vifs by number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DeviceStep {
    AttachDisk(u32),
    /// The same while another host may still have it, if its kind allows that; otherwise it is left for later.
    AttachEarly(u32),
    DetachDisk(u32),
    /// Let another host have it: the same, unless it may stay attached meanwhile.
    LetGo(u32),
    /// Check that a disk can be attached.
    CheckDisk(u32),
    /// Check that the bridge of this vif exists, or its hotplug script.
    CheckBridge(u32),
    /// Find the driver domain that is to serve a device.
    FindBackend(DeviceRef),
    /// Add the host's end of this vif to its bridge.
    JoinBridge(u32),
    /// Connect the host's end of this vif to its network, or the opposite.
    JoinNetwork(u32, Way),
    /// Run the hotplug script of a device.
    RunScript(DeviceRef, Way),
    /// Tell all backends to close their devices.
    CloseAll,
    /// Write the nodes of a hotplugged device, and the record with it.
    Add(DeviceRef),
    /// Record that a device is complete.
    Settle(DeviceRef),
    /// Ask the guest to close a device.
    AskToClose(DeviceRef),
    /// Remove a device from its guest.
    Close(DeviceRef),
    /// Remove the nodes of one device, and write the record without it.
    Remove(DeviceRef),
    /// Take the CD from an emulated drive.
    EjectCd(u32, Unplug),
    /// Put the attached CD into an emulated drive.
    InsertCd(u32),
    /// Check that the domain can have the PCI devices of this entry.
    CheckPci(u32),
    /// Give it these.
    AssignPci(u32),
}

/// Their work.
#[derive(Clone, Debug)]
pub enum DeviceWork {
    AttachDisk {
        config: Arc<VmConfig>,
        index: usize,
        tag: String,
        /// It was attached early.
        early: Option<Attachment>,
        /// Whether it is one of the disks that the configuration's file names.
        is_in_file: bool,
        /// The domains of our VMs.
        own: DomainSet,
    },
    AttachEarly {
        config: Arc<VmConfig>,
        index: usize,
        tag: String,
        own: DomainSet,
    },
    DetachDisk {
        attachment: Attachment,
        tag: String,
    },
    /// Detaches it if another host may not have it otherwise.
    LetGo {
        config: Arc<VmConfig>,
        index: usize,
        attachment: Attachment,
        tag: String,
    },
    CheckDisk {
        config: Arc<VmConfig>,
        index: usize,
        tag: String,
        own: DomainSet,
    },
    CheckBridge {
        config: Arc<VmConfig>,
        index: usize,
    },
    FindBackend {
        config: Arc<VmConfig>,
        device: DeviceRef,
        /// Whose domain has this name, as far as is known.
        known: Option<DomId>,
        /// The domain that it is to serve, if there is one.
        domain: Option<DomainRef>,
        /// Whether it is one of the devices that the configuration's file names.
        is_in_file: bool,
    },
    /// Adds the links to the bridge, then notifies netback.
    JoinBridge {
        bridge: String,
        /// netback's link, and that of an emulated card if there is one.
        links: Vec<Link>,
        mtu: Option<u32>,
        frontend: String,
        backend: String,
    },
    /// Connects a vif's links to its network, then notifies netback; or the opposite.
    JoinNetwork {
        domain: DomainRef,
        uuid: Uuid,
        device: DeviceRef,
        connections: Vec<Connection>,
        way: Way,
    },
    /// Runs a device's scripts as far as that is needed.
    RunScript {
        domain: DomainRef,
        uuid: Uuid,
        device: DeviceRef,
        scripts: Scripts,
        way: Way,
    },
    CloseAll {
        domain: DomainRef,
        uuid: Uuid,
        devices: Vec<Ends>,
    },
    /// Writes the nodes of a hotplugged device.
    Add {
        domain: DomainRef,
        uuid: Uuid,
        nodes: Nodes,
        quota: Option<Quota>,
        userdata: Userdata,
    },
    /// Writes the pending operations on devices.
    Settle {
        nodes: Nodes,
    },
    /// Asks the guest to close a device, after `nodes` were written.
    AskToClose {
        domain: DomainRef,
        uuid: Uuid,
        device: Ends,
        nodes: Nodes,
    },
    /// Removes a device from its guest, after `nodes` were written.
    Close {
        domain: DomainRef,
        uuid: Uuid,
        device: Ends,
        nodes: Nodes,
    },
    /// Removes a device's nodes, then writes `nodes`.
    Remove {
        domain: DomainRef,
        uuid: Uuid,
        removals: Vec<Removal>,
        nodes: Nodes,
        userdata: Userdata,
    },
    EjectCd {
        domain: DomainRef,
        model: Option<Process>,
        drive: u32,
        how: Unplug,
    },
    InsertCd {
        domain: DomainRef,
        model: Option<Process>,
        drive: u32,
        attachment: Attachment,
    },
    Pci(PciWork),
}

/// The place of a disk in its VM's configuration, which has all disks of its plans.
fn place_of(config: &VmConfig, devid: u32) -> usize {
    let place = config.disks.iter().position(|disk| disk.vdev.number == devid);
    place.expect("a planned disk is configured")
}

fn script_info(device: DeviceRef, way: Way) -> StepInfo {
    let (text, track, undo, if_failed) = match way {
        Way::Connect => {
            let undo = DeviceStep::RunScript(device, Way::Disconnect);
            let text = "run the script that connects {}";
            (text, Track::Connect, Some(undo.into()), IfFailed::Fail)
        }
        Way::Disconnect => {
            let text = "run the script that disconnects {}";
            (text, Track::Disconnect, None, IfFailed::FailUnlessItGoesOn)
        }
    };
    StepInfo {
        stage: "run scripts",
        text,
        device: Some(device),
        undo,
        if_failed,
        if_cancelled: IfCancelled::Finish,
        permit: Some(Permit::script(track)),
    }
}

fn network_info(devid: u32, way: Way) -> StepInfo {
    let (text, track, undo, if_failed) = match way {
        Way::Connect => {
            let undo = DeviceStep::JoinNetwork(devid, Way::Disconnect);
            ("connect {} to its network", Track::Connect, Some(undo.into()), IfFailed::Fail)
        }
        Way::Disconnect => {
            let text = "disconnect {} from its network";
            (text, Track::Disconnect, None, IfFailed::FailUnlessItGoesOn)
        }
    };
    StepInfo {
        stage: "join networks",
        text,
        device: Some(DeviceRef { kind: DeviceKind::Vif, devid }),
        undo,
        if_failed,
        if_cancelled: IfCancelled::Finish,
        // A switch that does not answer may take as long as a script.
        permit: Some(Permit::script(track)),
    }
}

const FIND: &str = "find the driver domain of {}";

impl DeviceStep {
    pub(super) fn info(self) -> StepInfo {
        let step = |stage, text, device, permit| StepInfo {
            stage,
            text,
            device: Some(device),
            undo: None,
            if_failed: IfFailed::Fail,
            if_cancelled: IfCancelled::Finish,
            permit: Some(permit),
        };
        let disk = |stage, text, track, devid| {
            let vbd = DeviceRef { kind: DeviceKind::Vbd, devid };
            step(stage, text, vbd, Permit::storage(track, devid))
        };
        let attach = |text, devid| StepInfo {
            undo: Some(Self::DetachDisk(devid).into()),
            if_cancelled: IfCancelled::Abandon,
            ..disk("attach disks", text, Track::Attach, devid)
        };
        let vif = |devid| DeviceRef { kind: DeviceKind::Vif, devid };
        match self {
            Self::AttachDisk(devid) => attach("attach disk {number}", devid),
            Self::AttachEarly(devid) => attach("attach disk {number} early", devid),
            Self::DetachDisk(devid) => StepInfo {
                // A disk that stays attached after removal from the VM is detached again at the
                // next teardown.
                if_failed: IfFailed::FailUnlessReboot,
                ..disk("detach disks", "detach disk {number}", Track::Teardown, devid)
            },
            Self::LetGo(devid) => StepInfo {
                if_failed: IfFailed::FailUnlessReboot,
                ..disk("let go of disks", "let go of disk {number}", Track::Teardown, devid)
            },
            Self::CheckDisk(devid) => {
                disk("check disks", "check disk {number}", Track::Attach, devid)
            }
            Self::CheckBridge(devid) => {
                step("check bridges", "check the bridge of {}", vif(devid), Permit::SHORT)
            }
            Self::FindBackend(device) => step("find driver domains", FIND, device, Permit::SHORT),
            Self::JoinBridge(devid) => step(
                "join bridges",
                "put {} on its bridge",
                vif(devid),
                Permit::SHORT.with_backend(),
            ),
            Self::JoinNetwork(devid, way) => network_info(devid, way),
            Self::RunScript(device, way) => script_info(device, way),
            Self::CloseAll => StepInfo {
                if_failed: IfFailed::FailUnlessReboot,
                ..StepInfo::plain(
                    "close devices",
                    Permit::SHORT.with_backend(),
                    IfCancelled::Finish,
                )
            },
            Self::Add(device) => StepInfo {
                undo: Some(Self::Remove(device).into()),
                ..step("add devices", "add {}", device, Permit::RECORD.with_backend())
            },
            Self::Settle(device) => step("settle devices", "settle {}", device, Permit::RECORD),
            Self::AskToClose(device) => {
                step("ask the guest", "ask the guest for {}", device, Permit::RECORD)
            }
            Self::Close(device) => {
                step("close devices", "close {}", device, Permit::RECORD.with_backend())
            }
            Self::Remove(device) => {
                step("remove devices", "remove {}", device, Permit::RECORD.with_backend())
            }
            Self::EjectCd(devid, _) | Self::InsertCd(devid) => self.cd_info(devid),
            Self::CheckPci(place) | Self::AssignPci(place) => pci::info(self, place),
        }
    }

    fn cd_info(self, devid: u32) -> StepInfo {
        let (stage, text, track) = match self {
            Self::InsertCd(_) => ("insert CDs", "insert the CD of {}", Track::Attach),
            _ => ("eject CDs", "eject the CD of {}", Track::Teardown),
        };
        StepInfo {
            stage,
            text,
            device: Some(DeviceRef { kind: DeviceKind::Vbd, devid }),
            undo: None,
            if_failed: IfFailed::Fail,
            if_cancelled: IfCancelled::Finish,
            permit: Some(Permit::storage(track, devid)),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> DeviceWork {
        let Preparation { vm, config, plugged, own, named, .. } = with;
        let uuid = vm.uuid;
        let existing = vm.facts.incarnation.domain;
        let domain = || existing.expect("planned while there is a domain");
        match self {
            Self::AttachDisk(devid) => {
                let index = place_of(&config, devid);
                DeviceWork::AttachDisk {
                    config,
                    index,
                    tag: loop_tag(uuid, devid),
                    early: vm.facts.disks.get(&devid).cloned(),
                    is_in_file: plugged.is_none(),
                    own,
                }
            }
            Self::AttachEarly(devid) => {
                let index = place_of(&config, devid);
                DeviceWork::AttachEarly { config, index, tag: loop_tag(uuid, devid), own }
            }
            Self::DetachDisk(devid) => {
                let attachment = vm.facts.disks[&devid].clone();
                DeviceWork::DetachDisk { attachment, tag: loop_tag(uuid, devid) }
            }
            Self::LetGo(devid) => {
                let attachment = vm.facts.disks[&devid].clone();
                let index = place_of(&config, devid);
                DeviceWork::LetGo { config, index, attachment, tag: loop_tag(uuid, devid) }
            }
            Self::CheckDisk(devid) => {
                let index = place_of(&config, devid);
                DeviceWork::CheckDisk { config, index, tag: loop_tag(uuid, devid), own }
            }
            Self::CheckBridge(devid) => {
                let index = config.vifs.iter().position(|vif| vif.devid == devid);
                let index = index.expect("a planned vif is configured");
                DeviceWork::CheckBridge { config, index }
            }
            Self::FindBackend(device) => {
                let (known, domain, is_in_file) = (named, existing, plugged.is_none());
                DeviceWork::FindBackend { config, device, known, domain, is_in_file }
            }
            Self::JoinBridge(devid) => join_bridge(&config, devid, domain().domid),
            Self::JoinNetwork(devid, way) => join_network(&config, uuid, domain(), devid, way),
            Self::RunScript(device, way) => {
                let domain = domain();
                let scripts = hotplug::scripts(&config, domain.domid, device);
                let scripts = scripts.expect("planned for a device with a script");
                DeviceWork::RunScript { domain, uuid, device, scripts, way }
            }
            Self::CloseAll => close_all(vm, &config, domain()),
            Self::Add(_) => add(vm, domain(), plugged.expect("planned for a device")),
            Self::Settle(device) => {
                vm.pending.remove(&device);
                DeviceWork::Settle { nodes: pending_nodes(vm) }
            }
            Self::AskToClose(device) => ask(vm, domain(), device, Unplug::Clean),
            Self::Close(device) => ask(vm, domain(), device, Unplug::Forced),
            Self::Remove(device) => remove(vm, domain(), device),
            Self::EjectCd(drive, how) => eject(vm, domain(), drive, how),
            Self::InsertCd(drive) => insert(vm, domain(), drive),
            Self::CheckPci(place) => {
                DeviceWork::Pci(PciWork::Check { config, entry: pci::index(place) })
            }
            Self::AssignPci(place) => {
                let (domain, entry) = (domain(), pci::index(place));
                DeviceWork::Pci(PciWork::Assign { domain, uuid, config, entry })
            }
        }
    }

    pub(super) fn complete(self, output: Output, with: Completing<'_>) {
        let Completing { vm, unseen, .. } = with;
        match self {
            Self::AttachDisk(devid) => {
                let Output::Attached(OwnLoop { attachment, .. }) = output else {
                    output.misplaced()
                };
                vm.facts.disks.insert(devid, attachment);
            }
            Self::AttachEarly(devid) => match output {
                Output::Attached(OwnLoop { attachment, .. }) => {
                    vm.facts.disks.insert(devid, attachment);
                }
                later => later.expect_done(),
            },
            Self::Close(DeviceRef { kind: DeviceKind::Pci, .. }) => output.expect_done(),
            Self::CloseAll | Self::Close(_) => {
                let Output::Closing { unseen: more } = output else { output.misplaced() };
                unseen.extend(more);
            }
            Self::DetachDisk(devid) => {
                output.expect_done();
                vm.facts.disks.remove(&devid);
            }
            Self::FindBackend(device) => {
                let Output::Backend(domid) = output else { output.misplaced() };
                vm.facts.backends.insert(device, domid);
            }
            Self::RunScript(device, Way::Connect) => {
                let Output::Connected(disk) = output else { output.misplaced() };
                vm.facts.scripted.extend(disk.map(|it| (device.devid, it)));
            }
            Self::RunScript(device, Way::Disconnect) => {
                output.expect_done();
                if device.kind == DeviceKind::Vbd {
                    vm.facts.scripted.remove(&device.devid);
                }
            }
            Self::LetGo(devid) => match output {
                // It goes with the rest of the VM.
                Output::Attached(_) => {}
                detached => {
                    detached.expect_done();
                    vm.facts.disks.remove(&devid);
                }
            },
            Self::Remove(device) => {
                output.expect_done();
                vm.device_removed(device);
            }
            Self::CheckDisk(_)
            | Self::CheckBridge(_)
            | Self::JoinBridge(_)
            | Self::JoinNetwork(..)
            | Self::Add(_)
            | Self::Settle(_)
            | Self::AskToClose(_)
            | Self::EjectCd(..)
            | Self::InsertCd(_)
            | Self::CheckPci(_)
            | Self::AssignPci(_) => output.expect_done(),
        }
    }
}

/// The pending operations on devices, as in the record.
pub(crate) fn pending_nodes(vm: &Vm) -> Nodes {
    layout::pending_nodes(vm.uuid, &Pending::encode_all(&vm.pending))
}

fn close_all(vm: &Vm, config: &VmConfig, domain: DomainRef) -> DeviceWork {
    let devices = vm.facts.backends.all_ends(layout::devices(config), domain.domid);
    DeviceWork::CloseAll { domain, uuid: vm.uuid, devices }
}

/// The guest lets go of a device, or its backend does.
fn ask(vm: &mut Vm, domain: DomainRef, device: DeviceRef, how: Unplug) -> DeviceWork {
    let uuid = vm.uuid;
    vm.pending.insert(device, vm.unplugging(device, how));
    let nodes = pending_nodes(vm);
    let ends = vm.facts.backends.ends(device, domain.domid);
    match (device.kind, how) {
        // One backend serves the other devices as well.
        (DeviceKind::Pci, _) => {
            let entry = Box::new(vm.config.options.pci[pci::index(device.devid)].clone());
            DeviceWork::Pci(PciWork::AskToClose { domain, uuid, entry, nodes })
        }
        (_, Unplug::Clean) => DeviceWork::AskToClose { domain, uuid, device: ends, nodes },
        (_, Unplug::Forced) => DeviceWork::Close { domain, uuid, device: ends, nodes },
    }
}

fn eject(vm: &Vm, domain: DomainRef, drive: u32, how: Unplug) -> DeviceWork {
    DeviceWork::EjectCd { domain, model: vm.facts.incarnation.model, drive, how }
}

fn insert(vm: &Vm, domain: DomainRef, drive: u32) -> DeviceWork {
    let attachment = vm.facts.disks[&drive].clone();
    DeviceWork::InsertCd { domain, model: vm.facts.incarnation.model, drive, attachment }
}

fn vif_of(config: &VmConfig, devid: u32) -> &VifConfig {
    let vif = config.vifs.iter().find(|vif| vif.devid == devid);
    vif.expect("a planned vif is configured")
}

fn join_network(
    config: &VmConfig,
    uuid: Uuid,
    domain: DomainRef,
    devid: u32,
    way: Way,
) -> DeviceWork {
    let connections = network::connections(config, uuid, domain.domid, vif_of(config, devid));
    let device = DeviceRef { kind: DeviceKind::Vif, devid };
    DeviceWork::JoinNetwork { domain, uuid, device, connections, way }
}

fn join_bridge(config: &VmConfig, devid: u32, domid: DomId) -> DeviceWork {
    let vif = vif_of(config, devid);
    let links = network::links(domid, vif);
    let device = DeviceRef { kind: DeviceKind::Vif, devid };
    DeviceWork::JoinBridge {
        bridge: vif.bridge.clone(),
        links,
        mtu: vif.mtu,
        frontend: device.frontend(domid),
        backend: device.in_domain_0(domid).backend_path(),
    }
}

/// Changes of a VM's record are serialised, so each writes the whole state.
fn add(vm: &mut Vm, domain: DomainRef, device: &Device) -> DeviceWork {
    let (uuid, domid) = (vm.uuid, domain.domid);
    let before = vm.config.to_cfg_text();
    device.add_to(Arc::make_mut(&mut vm.config));
    let mut nodes = match device {
        Device::Disk(disk) => {
            if disk.has_own_script() {
                vm.pending.insert(device.id(), Pending::Plug);
            }
            let attachment = vm.facts.disks.get(&device.id().devid);
            layout::plugged_vbd_nodes(domid, disk, attachment, &vm.facts.backends)
        }
        Device::Vif(vif) => {
            // A driver domain does the rest alone.
            if vif.backend.is_none() {
                vm.pending.insert(device.id(), Pending::Plug);
            }
            layout::plugged_vif_nodes(domid, uuid, vif, &vm.facts.backends)
        }
        Device::Keyboard(devid, keyboard) => {
            layout::plugged_keyboard_nodes(domid, *devid, keyboard)
        }
        Device::Pci(..) => {
            vm.pending.insert(device.id(), Pending::Plug);
            Nodes::default()
        }
    };
    let text = vm.config.to_cfg_text();
    let pending = Pending::encode_all(&vm.pending);
    nodes.0.extend(layout::changed_record_nodes(uuid, &before, &text, &pending).0);
    if layout::wanted_backend(&vm.config, device.id()).is_some() {
        nodes.0.extend(layout::backends_nodes(uuid, &vm.facts.backends).0);
    }
    let quota = Quota::for_devices(domid, &vm.config);
    let userdata = Userdata::of(&vm.config, uuid, domid, &vm.facts.disks);
    DeviceWork::Add { domain, uuid, nodes, quota, userdata }
}

fn remove(vm: &mut Vm, domain: DomainRef, device: DeviceRef) -> DeviceWork {
    let uuid = vm.uuid;
    // The VM has it until it is removed: a teardown meanwhile closes it too.
    let mut config = VmConfig::clone(&vm.config);
    match vm.ejecting.contains(&device) {
        true => empty_drive(&mut config, device),
        false => remove_from(&mut config, device),
    }
    let (before, text) = (vm.config.to_cfg_text(), config.to_cfg_text());
    let pending = Pending::encode_all(vm.pending.iter().filter(|(it, _)| **it != device));
    let nodes = layout::changed_record_nodes(uuid, &before, &text, &pending);
    let userdata = Userdata::of(&Arc::new(config), uuid, domain.domid, &vm.facts.disks);
    if device.kind == DeviceKind::Pci {
        let entry = Box::new(vm.config.options.pci[pci::index(device.devid)].clone());
        return DeviceWork::Pci(PciWork::Remove { domain, uuid, entry, nodes, userdata });
    }
    let ends = vm.facts.backends.ends(device, domain.domid);
    let removals = layout::removed_device_paths(ends);
    let mut nodes = nodes;
    if !ends.is_in_domain_0() {
        let mut backends = vm.facts.backends.clone();
        backends.remove(device);
        nodes.0.extend(layout::backends_nodes(uuid, &backends).0);
    }
    DeviceWork::Remove { domain, uuid, removals, nodes, userdata }
}

impl DeviceWork {
    pub(crate) fn info(&self) -> WorkInfo {
        use WorkClass::{Attach, Change, Destroy, Release, Script};
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::AttachDisk { .. } => info("attach-disk", Attach, None),
            Self::AttachEarly { .. } => info("attach-disk-early", Attach, None),
            Self::DetachDisk { .. } => info("detach-disk", Release, None),
            Self::LetGo { .. } => info("let-go", Release, None),
            Self::CheckDisk { .. } => info("check-disk", Attach, None),
            Self::CheckBridge { .. } => info("check-bridge", Change, None),
            Self::FindBackend { .. } => info("find-backend", Change, None),
            Self::JoinBridge { .. } => info("join-bridge", Change, None),
            Self::JoinNetwork { domain, .. } => info("join-network", Script, Some(*domain)),
            Self::RunScript { domain, .. } => info("run-script", Script, Some(*domain)),
            Self::CloseAll { domain, .. } => info("close-devices", Destroy, Some(*domain)),
            Self::Add { domain, .. } => info("add-device", Change, Some(*domain)),
            Self::Settle { .. } => info("settle-device", Change, None),
            Self::AskToClose { domain, .. } => info("ask-to-close", Destroy, Some(*domain)),
            Self::Close { domain, .. } => info("close-device", Destroy, Some(*domain)),
            Self::Remove { domain, .. } => info("remove-device", Destroy, Some(*domain)),
            Self::EjectCd { domain, .. } => info("eject-cd", Attach, Some(*domain)),
            Self::InsertCd { domain, .. } => info("insert-cd", Attach, Some(*domain)),
            Self::Pci(work) => work.info(),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        match self {
            Self::EjectCd { .. }
            | Self::InsertCd { .. }
            | Self::DetachDisk { .. }
            | Self::JoinBridge { .. } => self.perform_short(by).map(|()| Output::Done),
            Self::Pci(work) => work.perform(by).map(|()| Output::Done),
            Self::RunScript { domain, uuid, device, scripts, way } => {
                by.run_scripts(domain.domid, uuid, device, &scripts, way)
            }
            Self::CheckDisk { config, index, .. } if config.disks[index].script.is_some() => {
                checks::check_disk_script(&mut by.host, &config, index).map(|()| Output::Done)
            }
            Self::JoinNetwork { domain, uuid, device, connections, way } => {
                by.join_network(domain.domid, uuid, device, &connections, way)
            }
            Self::FindBackend { config, device, known, domain, is_in_file } => {
                let wanted = WantedBackend { config: &config, device, is_in_file };
                by.find_backend(wanted, known, domain).map(Output::Backend)
            }
            _ => self.perform_long(by),
        }
    }

    fn perform_long<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        let Performer { store, host, .. } = by;
        match self {
            Self::EjectCd { .. }
            | Self::InsertCd { .. }
            | Self::DetachDisk { .. }
            | Self::JoinBridge { .. }
            | Self::RunScript { .. }
            | Self::JoinNetwork { .. }
            | Self::FindBackend { .. }
            | Self::Pci(_) => unreachable!("performed elsewhere"),
            Self::AttachDisk { tag, early: Some(attachment), .. } => {
                return Ok(Output::Attached(OwnLoop { attachment, tag }));
            }
            Self::AttachEarly { config, index, tag, own } => {
                let early = disks::attach_early(host.system(), store, &config, index, &tag, &own)?;
                let early = early.map(|attachment| OwnLoop { attachment, tag });
                return Ok(early.map_or(Output::Done, Output::Attached));
            }
            Self::AttachDisk { config, index, tag, is_in_file, own, early: None } => {
                let place = match is_in_file {
                    true => config.origin.at(&format!("disk[{index}]")),
                    false => format!("{}: {}", config.name, config.disks[index].vdev.name),
                };
                let attached = disks::attach(host.system(), store, &config, index, &tag, &own);
                return attached
                    .map(|attachment| Output::Attached(OwnLoop { attachment, tag }))
                    .map_err(|error| failure(place, error.0));
            }
            Self::LetGo { config, index, attachment, tag } => {
                let attachment = disks::let_go(host.system(), &config, index, attachment, &tag)?;
                let kept = attachment.map(|attachment| OwnLoop { attachment, tag });
                return Ok(kept.map_or(Output::Done, Output::Attached));
            }
            Self::CheckDisk { config, index, tag, own } => {
                let place = format!("{}: {}", config.name, config.disks[index].vdev.name);
                disks::check(host.system(), store, &config, index, &tag, &own, &[])
                    .map_err(|error| failure(place, error.0))?;
            }
            Self::CheckBridge { config, index } => checks::check_bridge(host, &config, index)?,
            Self::CloseAll { domain, uuid, devices } => {
                let unseen = store::close_devices(store, domain.domid, uuid, &devices)?;
                return Ok(Output::Closing { unseen });
            }
            Self::Add { domain, uuid, nodes, quota, userdata } => {
                if let Some(quota) = quota {
                    store::raise_quota(store, quota)?;
                }
                store::add_device(store, domain.domid, uuid, &nodes)?;
                userdata.keep(host);
            }
            Self::Settle { nodes } => store::write_plainly(store, &nodes)?,
            Self::AskToClose { uuid, device, nodes, .. } => {
                store::write_as_one(store, &nodes)?;
                store::ask_to_close(store, uuid, device)?;
            }
            Self::Close { domain, uuid, device, nodes } => {
                store::write_as_one(store, &nodes)?;
                let unseen = store::close_devices(store, domain.domid, uuid, &[device])?;
                return Ok(Output::Closing { unseen });
            }
            Self::Remove { domain, uuid, removals, nodes, userdata } => {
                store::remove(store, Some(domain.domid), uuid, &removals)?;
                store::write_as_one(store, &nodes)?;
                userdata.keep(host);
            }
        }
        Ok(Output::Done)
    }
}

impl DeviceWork {
    /// What takes one call.
    fn perform_short<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<(), Failure> {
        match self {
            Self::EjectCd { domain, model, drive, how } => {
                by.eject_cd(domain.domid, model, drive, how)
            }
            Self::DetachDisk { attachment, tag } => {
                storage::detach(by.host.system(), &attachment, &tag)
                    .map_err(|error| Failure(error.to_string()))
            }
            Self::InsertCd { domain, model, drive, attachment } => {
                by.insert_cd(domain.domid, model, drive, &attachment.device().path)
            }
            Self::JoinBridge { bridge, links, mtu, frontend, backend } => {
                let found = put_on_bridge(&mut by.host, &bridge, &links, mtu)?;
                Ok(store::connect_vif(&mut by.store, &frontend, &backend, mtu, found)?)
            }
            _ => unreachable!("no other work is given here"),
        }
    }
}

/// Puts the interfaces on the bridge, and returns the MTU that they have by then.
fn put_on_bridge(
    host: &mut impl Host,
    bridge: &str,
    links: &[Link],
    mtu: Option<u32>,
) -> Result<Option<u32>, Failure> {
    let mut found = mtu;
    for link in links {
        let joined = host.join_bridge(bridge, link, mtu);
        found = Some(
            joined.map_err(|error| failure(format!("{} on bridge {bridge}", link.name), error))?,
        );
    }
    Ok(found)
}
