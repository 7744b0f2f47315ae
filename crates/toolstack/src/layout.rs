//! The store nodes of a domain and its devices, as guests, backends and `xl` expect them.
//!
//! Sources: xen `docs/misc/xenstore-paths.pandoc`, `xen/include/public/io/{blkif,netif,xenbus}.h`,
//! Linux `drivers/block/xen-blkback/xenbus.c` and `drivers/net/xen-netback/xenbus.c`.
//!
//! A node inherits its parent's permissions when it is created, so permissions are set only where
//! they change: the domain's directory (the guest reads) and the few places where the guest writes.

mod backends;
mod disown;
mod hvm;
mod pci;
mod removals;
mod served;

use std::collections::BTreeMap;

use storage::{Attachment, BlockDevice};
use xen::{DomId, DomainKind, EvtchnPort, Uuid, XenbusState};
use xenstore::{Access, Permission};

use crate::config::{DiskConfig, Mac, Start, VifConfig, VmConfig};
use crate::hotplug;
use crate::record::{self, FORMAT_NODE, Texts};
pub use backends::{Backends, Ends};
pub use disown::{disowned_nodes, foreign_paths};
pub use hvm::{generation_nodes, generation_path, table_nodes};
pub(crate) use pci::{ENTRY_NODES as PCI_ENTRY_NODES, owner_nodes as pci_owner_nodes};
pub use pci::{backend as pci_backend, more_nodes as more_pci_nodes, nodes as pci_nodes};
pub use removals::{
    Removal, condemned_paths, removed_device_paths, removed_domain_paths, removed_model_paths,
    removed_paths,
};
pub use served::{devices as served_devices, plugged_keyboard as plugged_keyboard_nodes};

/// One node to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    pub path: String,
    pub value: String,
    /// Owner first; `None` inherits the parent's.
    pub permissions: Option<Vec<Permission>>,
}

/// Nodes in the order in which they must be written.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Nodes(pub Vec<Node>);

/// Owned by dom0, no access for others.
pub(crate) const DOM0_ONLY: Permission = Permission::new(Access::None, DomId::DOM0);

impl Nodes {
    pub(crate) fn put(&mut self, path: impl Into<String>, value: impl Into<String>) {
        self.0.push(Node { path: path.into(), value: value.into(), permissions: None });
    }

    pub(crate) fn put_with(
        &mut self,
        path: impl Into<String>,
        value: impl Into<String>,
        permissions: &[Permission],
    ) {
        self.0.push(Node {
            path: path.into(),
            value: value.into(),
            permissions: Some(permissions.to_vec()),
        });
    }
}

/// Kind of a split device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DeviceKind {
    Vbd,
    Vif,
    /// A console beside the first one.
    Console,
    Vfb,
    Vkbd,
    /// A folder of domain 0.
    NinePfs,
    /// What an entry of `pci` names: all of a domain's are one split device.
    Pci,
}

impl DeviceKind {
    pub const ALL: [Self; 7] =
        [Self::Vbd, Self::Vif, Self::Console, Self::Vfb, Self::Vkbd, Self::NinePfs, Self::Pci];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vbd => "vbd",
            Self::Vif => "vif",
            Self::Console => "console",
            Self::Vfb => "vfb",
            Self::Vkbd => "vkbd",
            Self::NinePfs => "9pfs",
            Self::Pci => "pci",
        }
    }

    /// Whether QEMU serves it, whose end is its end.
    #[must_use]
    pub fn is_served(self) -> bool {
        match self {
            Self::Vbd | Self::Vif | Self::Pci => false,
            Self::Console | Self::Vfb | Self::Vkbd | Self::NinePfs => true,
        }
    }
}

/// A device of a domain, by kind and id.
///
/// The id of PCI devices is the place of their entry among those of `pci`; it is theirs only as long as none is removed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeviceRef {
    pub kind: DeviceKind,
    pub devid: u32,
}

impl DeviceRef {
    /// The number of the split device.
    fn number(self) -> u32 {
        match self.kind {
            DeviceKind::Pci => 0,
            _ => self.devid,
        }
    }

    /// The frontend's directory.
    #[must_use]
    pub fn frontend(self, domid: DomId) -> String {
        format!("/local/domain/{domid}/device/{}/{}", self.kind.as_str(), self.number())
    }

    /// Its two ends, if domain 0 serves it.
    #[must_use]
    pub fn in_domain_0(self, domid: DomId) -> Ends {
        Ends { device: self, frontend: domid, backend: DomId::DOM0 }
    }

    /// The frontend's error node.
    #[must_use]
    pub fn frontend_error(self, domid: DomId) -> String {
        let (kind, devid) = (self.kind.as_str(), self.number());
        format!("/local/domain/{domid}/error/device/{kind}/{devid}/error")
    }

    /// How far its hotplug script is, as [`Mark`](crate::hotplug::Mark) says it.
    #[must_use]
    pub fn script_mark(self, domid: DomId) -> String {
        format!("{}/xylem-script", self.libxl(domid))
    }

    /// libxl's own directory of the device, by which `xl` finds it.
    #[must_use]
    pub fn libxl(self, domid: DomId) -> String {
        format!("/libxl/{domid}/device/{}/{}", self.kind.as_str(), self.number())
    }
}

impl DeviceRef {
    /// As in messages: `disk xvdb`, `vif 0`.
    #[must_use]
    pub fn spoken(self) -> String {
        match self.kind {
            DeviceKind::Vbd => format!("disk {}", crate::xlcfg::vdev_name(self.devid)),
            DeviceKind::Vif => format!("vif {}", self.devid),
            DeviceKind::Console => format!("channel {}", self.devid),
            DeviceKind::Vfb => format!("screen {}", self.devid),
            DeviceKind::Vkbd => format!("keyboard {}", self.devid),
            DeviceKind::NinePfs => format!("folder {}", self.devid),
            DeviceKind::Pci => format!("pci[{}]", self.devid),
        }
    }
}

/// As the record and plans name it.
impl std::fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.devid)
    }
}

/// The name or domid of the driver domain that a configuration wants to serve a device.
#[must_use]
pub fn wanted_backend(config: &VmConfig, device: DeviceRef) -> Option<&str> {
    match device.kind {
        DeviceKind::Vbd => {
            let disk = config.disks.iter().find(|it| it.vdev.number == device.devid)?;
            disk.backend.as_deref()
        }
        DeviceKind::Vif => {
            let vif = config.vifs.iter().find(|it| it.devid == device.devid)?;
            vif.backend.as_deref()
        }
        // QEMU and pciback run in domain 0.
        DeviceKind::Console
        | DeviceKind::Vfb
        | DeviceKind::Vkbd
        | DeviceKind::NinePfs
        | DeviceKind::Pci => None,
    }
}

/// The devices of a VM that the kernel serves, disks first.
#[must_use]
pub fn devices(config: &VmConfig) -> Vec<DeviceRef> {
    let disks = config.disks.iter().filter(|disk| !disk.is_empty());
    let disks = disks.map(|d| DeviceRef { kind: DeviceKind::Vbd, devid: d.vdev.number });
    let vifs = config.vifs.iter().map(|v| DeviceRef { kind: DeviceKind::Vif, devid: v.devid });
    disks.chain(vifs).collect()
}

/// The devices of a VM, with those that QEMU serves.
#[must_use]
pub fn all_devices(config: &VmConfig) -> Vec<DeviceRef> {
    [devices(config), served_devices(config)].concat()
}

/// Identifies the VM of a domain's nodes: its value is the VM's [`vm_path`], and guests cannot
/// write it.
#[must_use]
pub fn vm_link(domid: DomId) -> String {
    format!("/local/domain/{domid}/vm")
}

/// A VM's own directory, independent of its domain.
#[must_use]
pub fn vm_path(uuid: Uuid) -> String {
    format!("/vm/{uuid}")
}

/// When a VM's domain was started: `SECONDS.HUNDREDTHS` since 1970, as libxl writes it.
#[must_use]
pub fn start_time_path(uuid: Uuid) -> String {
    format!("{}/start_time", vm_path(uuid))
}

/// The host interface of a vif, as named by xen-netback.
#[must_use]
pub fn vif_link(domid: DomId, vif: &VifConfig) -> String {
    format!("vif{domid}.{}", vif.devid)
}

/// The name of a vif's host interface once it is on its bridge.
#[must_use]
pub fn host_link(domid: DomId, vif: &VifConfig) -> String {
    vif.name.clone().unwrap_or_else(|| vif_link(domid, vif))
}

/// A vif's MTU until its bridge's is known.
pub(crate) const VIF_MTU: u32 = 1500;

/// The address of a vif without a configured one: Xen's prefix and three bytes derived from the
/// VM's UUID and the vif's number, so that it is the same at every start.
#[must_use]
pub fn default_mac(uuid: Uuid, devid: u32) -> Mac {
    // FNV-1a: well distributed, and must never change.
    let mut hash: u32 = 0x811c_9dc5;
    for byte in uuid.0.into_iter().chain(devid.to_le_bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    let [a, b, c, d] = hash.to_le_bytes();
    Mac([0x00, 0x16, 0x3e, (a ^ d) & 0x7f, b, c])
}

/// What the nodes need to know of a built domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BuiltDomain {
    pub domid: DomId,
    pub store_port: EvtchnPort,
    pub store_gfn: u64,
    pub console_port: EvtchnPort,
    pub console_gfn: u64,
}

impl BuiltDomain {
    #[must_use]
    pub(crate) fn completion(&self, start: Start) -> Completion {
        Completion { start, store_port: self.store_port, store_gfn: self.store_gfn }
    }
}

/// The completed part of a record: all that the remaining steps need to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    pub start: Start,
    pub store_port: EvtchnPort,
    pub store_gfn: u64,
}

impl Completion {
    fn encode(self) -> String {
        format!("{} {} {}", self.start.as_str(), self.store_port, self.store_gfn)
    }

    /// `None` if it is invalid.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let start = Start::decode(words.next()?)?;
        let store_port = EvtchnPort(words.next()?.parse().ok()?);
        let store_gfn = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { start, store_port, store_gfn })
    }
}

/// Most bytes of a configuration in one node; the wire's limit is 4096 with path and framing.
const CONFIG_CHUNK_BYTES: usize = 2048;

/// Directory of a VM's record, from which a restarted daemon adopts it.
#[must_use]
pub fn record_path(uuid: Uuid) -> String {
    format!("{RECORDS}/{uuid}")
}

/// Directory of all records.
pub const RECORDS: &str = "/xylem/vm";

/// The record of a VM whose domain is being created. Written first, so that nothing can be left
/// without a record.
#[must_use]
pub fn record_nodes(uuid: Uuid, config_text: &str) -> Nodes {
    let mut nodes = Nodes::default();
    let path = record_path(uuid);
    // No access for guests.
    nodes.put_with(&path, "", &[DOM0_ONLY]);
    nodes.put(format!("{path}/{FORMAT_NODE}"), record::FORMAT.to_string());
    let texts = Texts::of(config_text);
    put_text(&mut nodes, &path, "config", &texts.config, "");
    put_text(&mut nodes, &path, "full", &texts.full, "");
    nodes
}

/// A text in as many nodes as it needs, replacing `before`.
fn put_text(nodes: &mut Nodes, path: &str, node: &str, text: &str, before: &str) {
    let chunks = config_chunks(text);
    let left = config_chunks(before).len().saturating_sub(chunks.len());
    // An empty chunk ends a text that was longer before.
    for (index, chunk) in chunks.into_iter().chain(std::iter::repeat_n("", left)).enumerate() {
        nodes.put(format!("{path}/{node}-{index}"), chunk);
    }
}

fn config_chunks(text: &str) -> Vec<&str> {
    let mut chunks = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.len().min(CONFIG_CHUNK_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (chunk, tail) = rest.split_at(end);
        chunks.push(chunk);
        rest = tail;
    }
    chunks
}

/// Nodes below a domain's own that its guest may write.
const GUEST_WRITES: [&str; 11] = [
    "control/shutdown",
    "control/feature-poweroff",
    "control/feature-reboot",
    "control/feature-suspend",
    "control/sysrq",
    "device/suspend/event-channel",
    "data",
    "drivers",
    "feature",
    "attr",
    "error",
];

/// And those of a guest that serves others' devices, by libxl of its own.
const DRIVER_DOMAIN_WRITES: [&str; 2] = ["libxl", "device-model"];

/// All nodes of a built domain, its devices and the end of its record.
#[must_use]
pub fn domain_nodes(
    config: &VmConfig,
    uuid: Uuid,
    built: &BuiltDomain,
    disks: &BTreeMap<u32, Attachment>,
    backends: &Backends,
    start: Start,
) -> Nodes {
    let mut nodes = early_nodes(config, uuid, built.domid, backends);
    nodes.0.extend(late_nodes(config, uuid, built, disks, start).0);
    nodes
}

/// Those that do not depend on the domain's memory and its disks: they may be written while both still come.
#[must_use]
pub fn early_nodes(config: &VmConfig, uuid: Uuid, domid: DomId, backends: &Backends) -> Nodes {
    let mut nodes = Nodes::default();
    let path = format!("/local/domain/{domid}");
    let guest_reads = [DOM0_ONLY, Permission::new(Access::Read, domid)];
    let guest_owns = [Permission::new(Access::None, domid)];

    nodes.put_with(&path, "", &guest_reads);
    nodes.put(vm_link(domid), vm_path(uuid));
    nodes.put(format!("{path}/name"), &config.name);
    nodes.put(format!("{path}/domid"), domid.to_string());
    memory_nodes(&mut nodes, &path, config);
    for vcpu in 0..config.vcpus_max {
        let availability = if vcpu < config.vcpus { "online" } else { "offline" };
        nodes.put(format!("{path}/cpu/{vcpu}/availability"), availability);
    }
    nodes.put(format!("{path}/control/platform-feature-multiprocessor-suspend"), "1");
    nodes.put(format!("{path}/control/platform-feature-xs_reset_watches"), "1");
    let of_drivers = DRIVER_DOMAIN_WRITES.iter().filter(|_| config.options.is_driver_domain);
    for writable in GUEST_WRITES.iter().chain(of_drivers) {
        nodes.put_with(format!("{path}/{writable}"), "", &guest_owns);
    }

    nodes.put_with(vm_path(uuid), "", &guest_reads);
    nodes.put(format!("/vm/{uuid}/uuid"), uuid.to_string());
    nodes.put(format!("/vm/{uuid}/name"), &config.name);
    // `xl console` and `xl shutdown` read the domain type here.
    nodes.put_with(format!("/libxl/{domid}"), "", &[DOM0_ONLY]);
    nodes.put(format!("/libxl/{domid}/type"), kind_name(config.kind));

    if let Some(hvm) = &config.hvm {
        // Else libxl takes it for one that knows no QMP.
        nodes.put(format!("/libxl/{domid}/dm-version"), "qemu_xen");
        hvm::nodes(&mut nodes, domid, hvm);
    }
    served::nodes(&mut nodes, domid, config);
    for vif in &config.vifs {
        vif_nodes(&mut nodes, domid, uuid, vif, backends);
    }
    for disk in config.disks.iter().filter(|disk| !disk.is_empty() && !disk.is_attached_first()) {
        vbd_nodes(&mut nodes, domid, disk, None, backends);
    }
    if !backends.is_empty() {
        nodes.0.extend(backends_nodes(uuid, backends).0);
    }
    // A later daemon finds all of these by it, also if the domain is gone.
    nodes.put(format!("{}/domid", record_path(uuid)), domid.to_string());
    nodes
}

/// The others, with the end of the record.
#[must_use]
pub fn late_nodes(
    config: &VmConfig,
    uuid: Uuid,
    built: &BuiltDomain,
    disks: &BTreeMap<u32, Attachment>,
    start: Start,
) -> Nodes {
    let mut nodes = Nodes::default();
    let domid = built.domid;
    let path = format!("/local/domain/{domid}");
    nodes.put(format!("{path}/store/port"), built.store_port.to_string());
    nodes.put(format!("{path}/store/ring-ref"), built.store_gfn.to_string());
    for disk in config.disks.iter().filter(|disk| disk.is_attached_first()) {
        let attachment = Some(&disks[&disk.vdev.number]);
        vbd_nodes(&mut nodes, domid, disk, attachment, &Backends::default());
    }

    // Last, because xenconsoled and the kernel's backends act on what they find.
    let console = format!("{path}/console");
    nodes.put(format!("{console}/type"), "xenconsoled");
    nodes.put(format!("{console}/output"), "pty");
    nodes.put(format!("{console}/limit"), "1048576");
    nodes.put(format!("{console}/tty"), "");
    nodes.put(format!("{console}/ring-ref"), built.console_gfn.to_string());
    nodes.put(format!("{console}/port"), built.console_port.to_string());
    nodes.put(format!("{}/complete", record_path(uuid)), built.completion(start).encode());
    nodes
}

/// In KiB, as libxl writes them. Its target of an HVM domain is without what the device model has of it.
fn memory_nodes(nodes: &mut Nodes, path: &str, config: &VmConfig) {
    /// Less by this, if the guest is to begin with less than its maximum.
    const BALLOONED_KIB: u64 = 1024;
    let (mut target, max) = (config.memory_mib * 1024, config.memory_max_mib * 1024);
    if let Some(hvm) = &config.hvm {
        let video = hvm.video_mib * 1024;
        let ballooned = if max > target { BALLOONED_KIB } else { 0 };
        target = target.saturating_sub(video + ballooned);
        nodes.put(format!("{path}/memory/videoram"), video.to_string());
    }
    nodes.put(format!("{path}/memory/static-max"), max.to_string());
    nodes.put(format!("{path}/memory/target"), target.to_string());
}

/// The word for a kind of domain in configuration files and under `/libxl`.
#[must_use]
pub fn kind_name(kind: DomainKind) -> &'static str {
    match kind {
        DomainKind::Pv => "pv",
        DomainKind::Pvh => "pvh",
        DomainKind::Hvm => "hvm",
    }
}

/// Both ends of a device, up to the backend's own keys.
fn device_ends(nodes: &mut Nodes, ends: Ends) -> (String, String) {
    let (frontend, backend) = (ends.frontend_path(), ends.backend_path());
    let domid = ends.frontend;
    both_ends(nodes, (domid, &frontend), (ends.backend, &backend));
    let libxl = ends.device.libxl(domid);
    nodes.put(format!("{libxl}/frontend"), &frontend);
    nodes.put(format!("{libxl}/backend"), &backend);
    nodes.put(format!("{libxl}/frontend-id"), domid.to_string());
    (frontend, backend)
}

/// One domain's, which another one reads.
fn owned(by: DomId, reader: DomId) -> [Permission; 2] {
    [Permission::new(Access::None, by), Permission::new(Access::Read, reader)]
}

/// The directories of a frontend and a backend, and what each says of the other.
fn both_ends(
    nodes: &mut Nodes,
    (domid, frontend): (DomId, &str),
    (server, backend): (DomId, &str),
) {
    nodes.put_with(frontend, "", &owned(domid, server));
    nodes.put_with(backend, "", &owned(server, domid));
    nodes.put(format!("{frontend}/backend"), backend);
    nodes.put(format!("{frontend}/backend-id"), server.to_string());
    nodes.put(format!("{backend}/frontend"), frontend);
    nodes.put(format!("{backend}/frontend-id"), domid.to_string());
    nodes.put(format!("{backend}/online"), "1");
}

/// Both `state` nodes, which wake the drivers.
fn device_states(nodes: &mut Nodes, frontend: &str, backend: &str) {
    nodes.put(format!("{frontend}/state"), XenbusState::Initialising.as_str());
    nodes.put(format!("{backend}/state"), XenbusState::Initialising.as_str());
}

/// A disk that its script connects, here or in a driver domain, has no attachment.
fn vbd_nodes(
    nodes: &mut Nodes,
    domid: DomId,
    disk: &DiskConfig,
    attachment: Option<&Attachment>,
    backends: &Backends,
) {
    let device = DeviceRef { kind: DeviceKind::Vbd, devid: disk.vdev.number };
    let kind = if disk.cdrom { "cdrom" } else { "disk" };
    let ends = backends.ends(device, domid);
    let (frontend, backend) = device_ends(nodes, ends);
    nodes.put(format!("{frontend}/virtual-device"), disk.vdev.number.to_string());
    nodes.put(format!("{frontend}/device-type"), kind);
    nodes.put(format!("{frontend}/trusted"), disk.trust.as_node());
    let removable = if disk.cdrom { "1" } else { "0" };
    // Keys that `xl block-list` and the like read, in libxl's copy.
    for (key, value) in [
        ("dev", disk.vdev.name.as_str()),
        ("type", "phy"),
        ("mode", disk.mode.as_str()),
        ("device-type", kind),
        ("removable", removable),
        ("params", disk.target.as_str()),
    ] {
        nodes.put(format!("{backend}/{key}"), value);
        nodes.put(format!("{}/{key}", device.libxl(domid)), value);
    }
    nodes.put(format!("{backend}/bootable"), "1");
    nodes.put(format!("{backend}/discard-enable"), if disk.discard { "1" } else { "0" });
    let script = disk.script.as_deref().or((!ends.is_in_domain_0()).then_some(hotplug::BLOCK));
    if let Some(script) = script {
        let script = hotplug::path(script);
        nodes.put(format!("{}/script", device.libxl(domid)), &script);
        nodes.put(format!("{backend}/script"), script);
    }
    if let Some(attachment) = attachment {
        let BlockDevice { path, number } = attachment.device();
        nodes.put(format!("{backend}/physical-device-path"), path);
        nodes.put(format!("{backend}/physical-device"), number.to_string());
    }
    device_states(nodes, &frontend, &backend);
}

fn vif_nodes(nodes: &mut Nodes, domid: DomId, uuid: Uuid, vif: &VifConfig, backends: &Backends) {
    let device = DeviceRef { kind: DeviceKind::Vif, devid: vif.devid };
    let mac = vif.mac.unwrap_or_else(|| default_mac(uuid, vif.devid)).to_string();
    let ends = backends.ends(device, domid);
    let (frontend, backend) = device_ends(nodes, ends);
    nodes.put(format!("{frontend}/handle"), vif.devid.to_string());
    nodes.put(format!("{frontend}/mac"), &mac);
    // The backend's, as libxl has it: the script of a driver domain writes there what its bridge has.
    let mtu = vif.mtu.unwrap_or(VIF_MTU).to_string();
    nodes.put_with(format!("{frontend}/mtu"), mtu, &owned(ends.backend, domid));
    nodes.put(format!("{frontend}/trusted"), vif.trust.as_node());
    let kind = if vif.model.is_some() { "vif_ioemu" } else { "vif" };
    for (key, value) in [
        ("handle", vif.devid.to_string()),
        ("mac", mac),
        ("bridge", vif.bridge.clone()),
        ("type", kind.to_owned()),
    ] {
        nodes.put(format!("{backend}/{key}"), &value);
        nodes.put(format!("{}/{key}", device.libxl(domid)), value);
    }
    for (key, value) in [("vifname", &vif.name), ("ip", &vif.ip), ("gatewaydev", &vif.gateway)] {
        if let Some(value) = value {
            nodes.put(format!("{backend}/{key}"), value);
        }
    }
    // netback requires the key, but no script: we add the bridge port. A driver domain has nobody else who does.
    let script = vif.script.as_deref().or((!ends.is_in_domain_0()).then_some(hotplug::VIF_BRIDGE));
    let script = script.map(hotplug::path).unwrap_or_default();
    if !ends.is_in_domain_0() {
        // What an adoption believes: the other is the driver domain's.
        nodes.put(format!("{}/script", device.libxl(domid)), &script);
    }
    nodes.put(format!("{backend}/script"), script);
    nodes.put(format!("{backend}/hotplug-status"), "");
    if let Some(mtu) = vif.mtu {
        nodes.put(format!("{backend}/mtu"), mtu.to_string());
    }
    if let Some(rate) = vif.rate {
        nodes.put(format!("{backend}/rate"), format!("{},{}", rate.bytes, rate.interval_us));
    }
    device_states(nodes, &frontend, &backend);
}

/// The nodes of a hotplugged disk.
#[must_use]
pub fn plugged_vbd_nodes(
    domid: DomId,
    disk: &DiskConfig,
    attachment: Option<&Attachment>,
    backends: &Backends,
) -> Nodes {
    let mut nodes = Nodes::default();
    vbd_nodes(&mut nodes, domid, disk, attachment, backends);
    nodes
}

/// The nodes of all devices, as at a create.
#[must_use]
pub fn device_nodes(
    config: &VmConfig,
    uuid: Uuid,
    domid: DomId,
    disks: &BTreeMap<u32, Attachment>,
    backends: &Backends,
) -> Nodes {
    let mut nodes = Nodes::default();
    for disk in config.disks.iter().filter(|disk| !disk.is_empty()) {
        vbd_nodes(&mut nodes, domid, disk, disks.get(&disk.vdev.number), backends);
    }
    for vif in &config.vifs {
        vif_nodes(&mut nodes, domid, uuid, vif, backends);
    }
    nodes
}

/// Transfers that came from other hosts, each with its VM, until the sender has forgotten it.
pub const RECEIVED: &str = "/xylem/received";

/// A transfer that came, complete.
#[must_use]
pub fn received_path(transfer: Uuid) -> String {
    format!("{RECEIVED}/{transfer}")
}

/// It never came.
#[must_use]
pub fn received_removal(transfer: Uuid) -> Removal {
    Removal::of_vm(received_path(transfer), 1)
}

/// A move to another host that is under way.
#[must_use]
pub fn leaving_path(uuid: Uuid) -> String {
    format!("{}/leaving", record_path(uuid))
}

/// The cap of the scheduler that its guest had before it was slowed down.
#[must_use]
pub fn cap_path(uuid: Uuid) -> String {
    format!("{}/cap", leaving_path(uuid))
}

/// The transfer by which a VM comes or came.
#[must_use]
pub fn incoming_path(uuid: Uuid) -> String {
    format!("{}/incoming", record_path(uuid))
}

/// Disks that are being made for a VM which has not run yet: they end with a failed start.
#[must_use]
pub fn made_disks_path(uuid: Uuid) -> String {
    format!("{}/made-disks", record_path(uuid))
}

/// The nodes of a hotplugged network interface.
#[must_use]
pub fn plugged_vif_nodes(domid: DomId, uuid: Uuid, vif: &VifConfig, backends: &Backends) -> Nodes {
    let mut nodes = Nodes::default();
    vif_nodes(&mut nodes, domid, uuid, vif, backends);
    nodes
}

/// A complete record for an adopted domain.
#[must_use]
pub fn adopted_nodes(
    config_text: &str,
    uuid: Uuid,
    domid: DomId,
    made: Completion,
    backends: &Backends,
) -> Nodes {
    let mut nodes = record_nodes(uuid, config_text);
    if !backends.is_empty() {
        nodes.0.extend(backends_nodes(uuid, backends).0);
    }
    let path = record_path(uuid);
    nodes.put(format!("{path}/domid"), domid.to_string());
    nodes.put(format!("{path}/complete"), made.encode());
    nodes
}

/// The record of a VM that is nobody's of ours any more.
#[must_use]
pub fn record_removal(uuid: Uuid) -> Removal {
    Removal::of_vm(record_path(uuid), 2)
}

/// A record's node that names the driver domains.
pub const BACKENDS: &str = "backends";

/// The part of a record with the driver domains.
#[must_use]
pub fn backends_nodes(uuid: Uuid, backends: &Backends) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.put(format!("{}/{BACKENDS}", record_path(uuid)), backends.encode());
    nodes
}

/// A record's node that names the devices being plugged or unplugged.
pub const PENDING: &str = "pending";

/// The port in the VM's domain that is ours, once there is one.
#[must_use]
pub fn suspend_port_path(uuid: Uuid) -> String {
    format!("{}/suspend-port", record_path(uuid))
}

/// A save in progress, as [`Saving`](crate::saved::Saving) says it.
#[must_use]
pub fn saving_path(uuid: Uuid) -> String {
    format!("{}/saving", record_path(uuid))
}

/// The changed part of a record: a configuration replacing `before`, and pending devices.
#[must_use]
pub fn changed_record_nodes(uuid: Uuid, before: &str, text: &str, pending: &str) -> Nodes {
    let path = record_path(uuid);
    let mut nodes = Nodes::default();
    // The record may be an earlier release's.
    nodes.put(format!("{path}/{FORMAT_NODE}"), record::FORMAT.to_string());
    let (texts, before) = (Texts::of(text), Texts::of(before));
    put_text(&mut nodes, &path, "config", &texts.config, &before.config);
    put_text(&mut nodes, &path, "full", &texts.full, &before.full);
    nodes.put(format!("{path}/{PENDING}"), pending);
    nodes
}

/// Where a record has the configuration of the VM's next domain, if that is another.
pub const NEXT: &str = "next";

/// The part of a record with that, replacing `before`.
#[must_use]
pub fn next_config_nodes(uuid: Uuid, before: &str, text: &str) -> Nodes {
    let mut nodes = Nodes::default();
    put_text(&mut nodes, &record_path(uuid), NEXT, text, before);
    nodes
}

/// The part of a record with the pending devices.
#[must_use]
pub fn pending_nodes(uuid: Uuid, pending: &str) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.put(format!("{}/{PENDING}", record_path(uuid)), pending);
    nodes
}
