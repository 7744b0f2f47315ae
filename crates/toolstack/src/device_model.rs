//! The device model of an HVM domain: QEMU's command line for a configuration, and how a running
//! one is identified.
//!
//! Sources: QEMU 7.2's manual (`docs/system/invocation.rst`), xen `tools/libs/light/libxl_dm.c` for what hvmloader
//! and PV drivers expect, `docs/features/qemu-deprivilege.pandoc`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use storage::Attachment;
use xen::{DomId, PciAddress, Uuid};

use crate::config::{
    Access, Connection, DiskConfig, DiskPlace, HvmSettings, ModelUser, SoundCard, Spice,
    UsbVersion, Vga, VifConfig, VmConfig, Vnc,
};
use crate::layout;
use crate::pci::Assigned;

/// A process of the host; a pid alone may be reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Process {
    pub pid: u32,
    /// Its start time, in the host's clock ticks.
    pub started: u64,
}

/// A device model of ours, found among the host's processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OwnModel {
    pub process: Process,
    pub uuid: Uuid,
    pub domid: DomId,
}

/// A device model to be started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Launch {
    /// The first existing one is used.
    pub programs: Vec<String>,
    pub arguments: Vec<String>,
    /// Its standard input.
    pub input: Option<String>,
    /// Its log file.
    pub log: String,
    /// The state with which it goes on, of another one.
    pub state: Option<ModelState>,
    /// Whether it only serves devices: it then opens Xen's devices whenever a guest connects one.
    pub is_server: bool,
    /// Whether it gives its guest devices of the host, which it opens before it gives up its rights.
    pub passes_devices: bool,
}

/// The state of a device model, for another one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelState {
    /// Nodes in its directory in the store: relative path and value.
    pub nodes: Vec<(String, String)>,
    /// What it says of itself, which only another one understands.
    pub context: Vec<u8>,
}

impl ModelState {
    /// The directory of those nodes.
    pub(crate) const PLACES: &str = "physmap";
    /// Those of each part of the guest's memory.
    pub(crate) const PLACE_KEYS: [&str; 3] = ["start_addr", "size", "name"];

    /// Whether a node may be in it.
    pub(crate) fn is_place(path: &str) -> bool {
        let mut words = path.split('/');
        let is_hex = |word: &str| {
            (1..=16).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        words.next() == Some(Self::PLACES)
            && words.next().is_some_and(is_hex)
            && words.next().is_some_and(|word| Self::PLACE_KEYS.contains(&word))
            && words.next().is_none()
    }
}

/// An empty folder, the root of a restricted device model.
pub const EMPTY_FOLDER: &str = "/run/xylem/empty";

/// First uid of restricted device models, in a range unused on Linux hosts (see systemd's
/// `docs/UIDS-GIDS.md`). Each domain has its own.
pub const USER_FIRST: u32 = 1_900_000_000;

/// By which XenServer's drivers are found.
const XENSERVER_DEVICE: u16 = 0xc000;

/// A password that comes through a pipe.
const SECRET: &str = "secret,id=vnc-password,file=/proc/self/fd/0";

/// Tag of our device models on their command line.
const TAG: &str = "null,id=xylem-";

/// The node in which a device model reports that it is ready.
#[must_use]
pub fn state_node(domid: DomId) -> String {
    format!("{}/state", folder(domid))
}

/// The socket of its monitor, named as libxl names it.
#[must_use]
pub fn monitor_socket(domid: DomId) -> String {
    format!("/run/xen/qmp-libxl-{domid}")
}

/// A device model's directory in the store.
#[must_use]
pub fn folder(domid: DomId) -> String {
    format!("/local/domain/0/device-model/{domid}")
}

/// The host interface of the emulated card.
#[must_use]
pub fn vif_link(domid: DomId, vif: &VifConfig) -> String {
    format!("{}-emu", layout::host_link(domid, vif))
}

/// The port of VNC's display 0.
const VNC_PORT_FIRST: u32 = 5900;

/// The VNC port.
#[must_use]
pub fn vnc_port(vnc: &Vnc, domid: DomId) -> u32 {
    VNC_PORT_FIRST + vnc_display(vnc, domid)
}

/// The VNC display, by domid unless the configuration has one.
pub(crate) fn vnc_display(vnc: &Vnc, domid: DomId) -> u32 {
    vnc.display.map_or(u32::from(domid.0), u32::from)
}

/// QEMU's name of the end of a channel, as libxl's.
#[must_use]
pub fn channel_name(devid: u32) -> String {
    format!("libxl-channel{devid}")
}

/// Candidate paths of the device model; the first existing one is used.
#[must_use]
pub fn programs(config: &VmConfig) -> Vec<String> {
    let wanted = match &config.hvm {
        Some(hvm) => &hvm.model,
        None => &config.served.program,
    };
    match wanted {
        Some(path) => vec![path.clone()],
        None => xen::programs::DEVICE_MODELS.iter().map(|&path| path.to_owned()).collect(),
    }
}

/// Its log file, the same as xl's.
#[must_use]
pub fn log_file(config: &VmConfig) -> String {
    format!("/var/log/xen/qemu-dm-{}.log", config.name)
}

/// The VM and domain of a command line, if it is one of ours.
#[must_use]
pub fn parse_command_line(words: &[String]) -> Option<(Uuid, DomId)> {
    let uuid = words.iter().find_map(|word| word.strip_prefix(TAG))?.parse().ok()?;
    let at = words.iter().position(|word| word == "-xen-domid")?;
    Some((uuid, DomId(words.get(at + 1)?.parse().ok()?)))
}

/// A value in one of QEMU's lists, with commas doubled.
fn value(text: &str) -> String {
    text.replace(',', ",,")
}

struct Words(Vec<String>);

impl Words {
    fn put<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(str::to_owned));
    }

    fn pair(&mut self, option: &str, text: impl Into<String>) {
        self.0.push(option.to_owned());
        self.0.push(text.into());
    }
}

/// How to start the device model of a domain whose emulated disks are attached.
///
/// # Panics
/// If the VM has none, or one of those disks is missing.
#[must_use]
pub fn launch(
    config: &VmConfig,
    uuid: Uuid,
    domid: DomId,
    disks: &BTreeMap<u32, Attachment>,
    devices: &[Assigned],
    state: Option<ModelState>,
) -> Launch {
    let Some(hvm) = config.hvm.as_deref() else { return launch_served(config, uuid, domid) };
    let mut words = common(config, uuid, domid);
    let machine = if hvm.platform_device { "xenfv" } else { "pc,accel=xen" };
    let acpi = if hvm.acpi { "" } else { ",acpi=off" };
    let below = hvm.hole_mib.map(|mib| (1_u64 << 32) - (u64::from(mib) << 20));
    let below = below.map(|bytes| format!(",max-ram-below-4g={bytes}")).unwrap_or_default();
    words.pair("-machine", format!("{machine}{acpi},suppress-vmdesc=on{below}"));
    words.pair("-m", (config.memory_max_mib - hvm.video_mib).to_string());
    if config.vcpus_max > 1 {
        words.pair("-smp", format!("{},maxcpus={}", config.vcpus, config.vcpus_max));
    }
    if hvm.nographic && hvm.vnc.is_none() {
        words.put(["-nographic"]);
    }
    // First, so that it has the same place whatever else there is.
    if config.emulated_disks().any(|(place, _)| matches!(place, DiskPlace::Scsi(_))) {
        words.pair("-device", "lsi53c895a");
    }
    if let Some(spice) = &hvm.spice {
        spice_server(&mut words, spice, hvm);
    }
    match hvm.vga {
        Vga::None => {}
        Vga::Cirrus => words.pair("-device", format!("cirrus-vga,vgamem_mb={}", hvm.video_mib)),
        Vga::Standard => words.pair("-device", format!("VGA,vgamem_mb={}", hvm.video_mib)),
        Vga::Qxl => {
            let half = hvm.video_mib / 2;
            words.pair("-device", format!("qxl-vga,vram_size_mb={half},ram_size_mb={half}"));
        }
    }
    screen(&mut words, hvm.vnc.as_ref(), hvm.keymap.as_deref(), domid);
    for serial in &hvm.serial {
        words.pair("-serial", serial);
    }
    usb(&mut words, hvm);
    redirections(&mut words, hvm);
    sound(&mut words, hvm);
    boot(&mut words, config, hvm);
    // In libxl's order: a device's number on the PCI bus is that of its option, a guest knows its devices by it, and so does a
    // state that xl saved.
    for (model, vif) in config.emulated_vifs() {
        card(&mut words, hvm, model, vif, uuid, domid);
    }
    if config.emulated_disks().any(|(place, _)| matches!(place, DiskPlace::Ahci(_))) {
        words.pair("-device", "ahci,id=ahci0");
    }
    for (place, disk) in config.emulated_disks() {
        drive(&mut words, place, disk, disks.get(&disk.vdev.number));
    }
    if hvm.vendor_device {
        words.pair("-device", format!("xen-pvdevice,device-id={XENSERVER_DEVICE:#x}"));
    }
    for device in devices {
        let of_slot = devices.iter().filter(|it| it.guest_slot >> 3 == device.guest_slot >> 3);
        host_device(&mut words, device, device.guest_slot != 0 && of_slot.count() > 1);
    }
    restrict(&mut words, hvm, domid, !devices.is_empty());
    if state.is_some() {
        // It is handed over by the monitor.
        words.pair("-incoming", "defer");
    }
    words.0.extend(hvm.model_arguments.iter().cloned());
    Launch {
        programs: programs(config),
        arguments: words.0,
        input: password(hvm).cloned(),
        log: log_file(config),
        state,
        is_server: false,
        passes_devices: !devices.is_empty(),
    }
}

/// What every process of QEMU is told first.
fn common(config: &VmConfig, uuid: Uuid, domid: DomId) -> Words {
    let mut words = Words(Vec::new());
    words.pair("-xen-domid", domid.to_string());
    // The tag by which a later daemon identifies it.
    words.pair("-chardev", format!("{TAG}{uuid}"));
    words.pair(
        "-chardev",
        format!("socket,id=libxl-cmd,path={},server=on,wait=off", monitor_socket(domid)),
    );
    words.pair("-mon", "chardev=libxl-cmd,mode=control");
    words.put(["-no-shutdown", "-nodefaults", "-no-user-config", "-display", "none"]);
    words.pair("-name", value(&config.name));
    for (channel, devid) in config.served.channels.iter().zip(1..) {
        if let Connection::Socket(path) = &channel.connection {
            let (id, path) = (channel_name(devid), value(path));
            words.pair("-chardev", format!("socket,id={id},path={path},server=on,wait=off"));
        }
    }
    words
}

/// QEMU for a domain without emulated hardware, which serves some of its devices.
fn launch_served(config: &VmConfig, uuid: Uuid, domid: DomId) -> Launch {
    let served = &config.served;
    assert!(served.any(), "only a domain with such devices has a process that serves them");
    let mut words = common(config, uuid, domid);
    words.put(["-xen-attach"]);
    words.pair("-machine", "xenpv");
    words.pair("-m", config.memory_max_mib.to_string());
    let vnc = served.screen.as_ref().and_then(|screen| screen.vnc.as_ref());
    let keymap = served.screen.as_ref().and_then(|screen| screen.keymap.as_deref());
    if vnc.is_none() {
        words.pair("-vnc", "none");
    }
    screen(&mut words, vnc, keymap, domid);
    // It cannot be restricted to its domain by Xen: it reaches the store and maps what the guest grants.
    take_rights(&mut words, &served.user(), domid);
    words.0.extend(served.arguments.iter().cloned());
    Launch {
        programs: programs(config),
        arguments: words.0,
        input: vnc.and_then(|vnc| vnc.password.clone()),
        log: log_file(config),
        state: None,
        is_server: true,
        passes_devices: false,
    }
}

fn screen(words: &mut Words, vnc: Option<&Vnc>, keymap: Option<&str>, domid: DomId) {
    if let Some(vnc) = vnc {
        let mut screen = format!("{}:{}", vnc.listen, vnc_display(vnc, domid));
        if vnc.password.is_some() {
            // Passed through a pipe, since command lines are world-readable.
            words.pair("-object", SECRET);
            screen.push_str(",password-secret=vnc-password");
        }
        words.pair("-vnc", screen);
    }
    if let Some(keymap) = keymap {
        words.pair("-k", keymap);
    }
}

/// The one of VNC and SPICE.
fn password(hvm: &HvmSettings) -> Option<&String> {
    let of_vnc = hvm.vnc.as_ref().and_then(|vnc| vnc.password.as_ref());
    of_vnc.or(hvm.spice.as_ref().and_then(|spice| spice.password.as_ref()))
}

fn spice_server(words: &mut Words, spice: &Spice, hvm: &HvmSettings) {
    let mut server = format!("port={},tls-port={}", spice.port, spice.tls_port);
    if let Some(host) = &spice.host {
        let _ = write!(server, ",addr={host}");
    }
    match &spice.password {
        None => server.push_str(",disable-ticketing=on"),
        Some(_) => {
            if hvm.vnc.as_ref().is_none_or(|vnc| vnc.password.is_none()) {
                words.pair("-object", SECRET);
            }
            server.push_str(",password-secret=vnc-password");
        }
    }
    let _ = write!(server, ",agent-mouse={}", if spice.agent_mouse { "on" } else { "off" });
    if !spice.clipboard {
        server.push_str(",disable-copy-paste=on");
    }
    for (option, word) in [
        ("image-compression", &spice.image_compression),
        ("streaming-video", &spice.streaming_video),
    ] {
        if let Some(word) = word {
            let _ = write!(server, ",{option}={word}");
        }
    }
    words.pair("-spice", server);
    if spice.agent {
        words.pair("-device", "virtio-serial");
        words.pair("-chardev", "spicevmc,id=vdagent,name=vdagent");
        words.pair("-device", "virtserialport,chardev=vdagent,name=com.redhat.spice.0");
    }
}

/// For USB devices of a SPICE client.
fn redirections(words: &mut Words, hvm: &HvmSettings) {
    let count = hvm.spice.as_ref().map_or(0, |spice| spice.usb_redirections);
    for number in 1..=count {
        words.pair("-chardev", format!("spicevmc,name=usbredir,id=usbrc{number}"));
        words.pair("-device", format!("usb-redir,chardev=usbrc{number},id=usbrc{number}"));
    }
}

/// A controller of the version that was asked for, or of version 1 with devices.
fn usb(words: &mut Words, hvm: &HvmSettings) {
    if hvm.usb {
        words.put(["-usb"]);
        for device in &hvm.usb_devices {
            words.pair("-usbdevice", device);
        }
        return;
    }
    match hvm.usb_version {
        None => {}
        Some(UsbVersion::One) => words.pair("-device", "piix3-usb-uhci,id=usb"),
        Some(UsbVersion::Two) => {
            words.pair("-device", "ich9-usb-ehci1,id=usb,addr=0x1d.0x7,multifunction=on");
            // For devices of version 1, each at two of its six ports.
            for number in 0..3 {
                let (name, port) = (number + 1, number * 2);
                words.pair(
                    "-device",
                    format!(
                        "ich9-usb-uhci{name},masterbus=usb.0,firstport={port},\
                         addr=0x1d.{number:#x},multifunction=on"
                    ),
                );
            }
        }
        Some(UsbVersion::Three) => words.pair("-device", "nec-usb-xhci,id=usb"),
    }
}

fn sound(words: &mut Words, hvm: &HvmSettings) {
    let Some(card) = hvm.sound else { return };
    // Without rights it can reach no sound server, and would say so for each card.
    let source = match hvm.model_user {
        ModelUser::Restricted => {
            words.pair("-audiodev", "none,id=sound");
            ",audiodev=sound"
        }
        ModelUser::Root | ModelUser::Named(_) => "",
    };
    let driver = match card {
        SoundCard::Hda => {
            words.pair("-device", "intel-hda");
            "hda-duplex"
        }
        SoundCard::Ac97 => "AC97",
        SoundCard::Es1370 => "ES1370",
        SoundCard::Adlib | SoundCard::Cs4231a | SoundCard::Gus | SoundCard::Sb16 => card.as_str(),
    };
    words.pair("-device", format!("{driver}{source}"));
}

fn boot(words: &mut Words, config: &VmConfig, hvm: &HvmSettings) {
    if let Some(kernel) = &config.kernel {
        words.pair("-kernel", kernel);
        if let Some(ramdisk) = &config.ramdisk {
            words.pair("-initrd", ramdisk);
        }
        if !config.cmdline.is_empty() {
            words.pair("-append", &config.cmdline);
        }
    }
    words.pair("-boot", format!("order={}", hvm.boot));
}

/// The name of a CD drive, and of the medium with which it starts.
#[must_use]
pub fn drive_name(number: u32) -> String {
    format!("ide-{number}")
}

/// An empty drive has no attachment.
fn drive(words: &mut Words, place: DiskPlace, disk: &DiskConfig, attachment: Option<&Attachment>) {
    // A state that is loaded lets QEMU write to its disks only at the end, when the paths are no longer there for it: it
    // is not to open them anew.
    let access = match disk.cdrom || disk.access() == Access::ReadOnly {
        true => "on",
        false => "off,auto-read-only=off",
    };
    let file = attachment.map(|it| format!("file={},format=raw,", value(&it.device().path)));
    let file = file.unwrap_or_default();
    let number = disk.vdev.number;
    let (interface, id, device) = match place {
        // The device has a name of its own, by which its medium is changed.
        _ if disk.cdrom => {
            let (id, bus, unit) = (drive_name(number), place.index() / 2, place.index() % 2);
            let device = format!("ide-cd,id={id},drive={id},bus=ide.{bus},unit={unit}");
            ("if=none".to_owned(), id, Some(device))
        }
        DiskPlace::Ide(index) => {
            (format!("if=ide,index={index},media=disk"), drive_name(number), None)
        }
        DiskPlace::Ahci(port) => {
            let id = format!("ahci-{number}");
            let device = format!("ide-hd,bus=ahci0.{port},unit=0,drive={id}");
            ("if=none".to_owned(), id, Some(device))
        }
        DiskPlace::Scsi(target) => {
            let id = format!("scsi-{number}");
            let device = format!("scsi-hd,drive={id},scsi-id={target}");
            ("if=none".to_owned(), id, Some(device))
        }
    };
    // QEMU takes a drive with any further option for one with a medium.
    let cache = if attachment.is_some() { ",cache=writeback" } else { "" };
    words.pair("-drive", format!("{file}{interface},id={id},readonly={access}{cache}"));
    if let Some(device) = device {
        words.pair("-device", device);
    }
}

fn card(
    words: &mut Words,
    hvm: &HvmSettings,
    model: &str,
    vif: &VifConfig,
    uuid: Uuid,
    domid: DomId,
) {
    let devid = vif.devid;
    let mac = vif.mac.unwrap_or_else(|| layout::default_mac(uuid, devid));
    // A boot ROM takes memory of the domain.
    let rom = if hvm.boot.contains('n') { "" } else { ",romfile=" };
    words.pair("-device", format!("{model},id=nic{devid},netdev=net{devid},mac={mac}{rom}"));
    let link = vif_link(domid, vif);
    words.pair("-netdev", format!("tap,id=net{devid},ifname={link},script=no,downscript=no"));
}

/// QEMU's name of a device of the host, as libxl's.
#[must_use]
pub fn host_device_name(device: PciAddress) -> String {
    let PciAddress(number) = device;
    let segment = match number >> 16 {
        0 => String::new(),
        segment => format!("{segment:04x}_"),
    };
    let (bus, slot, function) = (number >> 8 & 0xff, number >> 3 & 0x1f, number & 7);
    format!("pci-pt-{segment}{bus:02x}_{slot:02x}.{function:x}")
}

fn host_device(words: &mut Words, device: &Assigned, shares_slot: bool) {
    let Assigned { address, guest_slot, is_permissive, .. } = device;
    let mut option =
        format!("xen-pci-passthrough,id={},hostaddr={address}", host_device_name(*address));
    if *guest_slot != 0 {
        let _ = write!(option, ",addr={:x}.{:x}", guest_slot >> 3, guest_slot & 7);
    }
    // The first function says that there are others.
    if shares_slot && guest_slot & 7 == 0 {
        option.push_str(",multifunction=on");
    }
    if *is_permissive {
        option.push_str(",permissive=on");
    }
    words.pair("-device", option);
}

fn restrict(words: &mut Words, hvm: &HvmSettings, domid: DomId, passes_devices: bool) {
    // Whoever gives a guest devices of the host asks more of Xen than what concerns this domain.
    if hvm.model_user == ModelUser::Restricted && !passes_devices {
        words.put(["-xen-domid-restrict"]);
    }
    take_rights(words, &hvm.model_user, domid);
}

fn take_rights(words: &mut Words, user: &ModelUser, domid: DomId) {
    match user {
        ModelUser::Root => {}
        ModelUser::Named(name) => words.pair("-runas", name),
        ModelUser::Restricted => {
            let user = USER_FIRST + u32::from(domid.0);
            words.pair("-chroot", EMPTY_FOLDER);
            words.pair("-runas", format!("{user}:{user}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg;

    fn config(lines: &str) -> VmConfig {
        let text = format!("name = 'w'\ntype = 'hvm'\nmemory = 128\n{lines}");
        xlcfg::parse(xlcfg::Source { file: "w.cfg", text: &text, overrides: &[] }).unwrap()
    }

    fn attached(path: &str) -> Attachment {
        let number = storage::DeviceNumber { major: 7, minor: 0 };
        Attachment::Loop(storage::BlockDevice { path: path.to_owned(), number })
    }

    #[test]
    fn qemu_is_told_what_the_configuration_says() {
        let config = config(
            "disk = ['/a,raw,hda,w', '/b,raw,xvdb,r', '/c.iso,raw,hdc:cdrom,r', '/d,raw,xvde,w', ',,hdd:cdrom,r']\n\
             vif = ['mac=00:16:3e:00:00:01', 'type=vif']\nserial = 'pty'\nvncpasswd = 'secret'\n\
             usbdevice = 'tablet'\nvcpus = 2\ndevice_model_args = ['-d', 'int']\n",
        );
        let disks: BTreeMap<u32, Attachment> = config
            .disks
            .iter()
            .filter(|it| !it.is_empty())
            .map(|it| (it.vdev.number, attached("/dev/a,b")))
            .collect();
        let launch = launch(&config, Uuid([7; 16]), DomId(3), &disks, &[], None);
        expect_test::expect![[r#"
            -xen-domid 3
            -chardev null,id=xylem-07070707-0707-0707-0707-070707070707
            -chardev socket,id=libxl-cmd,path=/run/xen/qmp-libxl-3,server=on,wait=off
            -mon chardev=libxl-cmd,mode=control
            -no-shutdown -nodefaults -no-user-config -display none -name w
            -machine xenfv,suppress-vmdesc=on
            -m 120
            -smp 2,maxcpus=2
            -device cirrus-vga,vgamem_mb=8
            -object secret,id=vnc-password,file=/proc/self/fd/0
            -vnc 127.0.0.1:3,password-secret=vnc-password
            -serial pty
            -usb -usbdevice tablet
            -boot order=cda
            -device rtl8139,id=nic0,netdev=net0,mac=00:16:3e:00:00:01,romfile=
            -netdev tap,id=net0,ifname=vif3.0-emu,script=no,downscript=no
            -drive file=/dev/a,,b,format=raw,if=ide,index=0,media=disk,id=ide-768,readonly=off,auto-read-only=off,cache=writeback
            -drive file=/dev/a,,b,format=raw,if=none,id=ide-5632,readonly=on,cache=writeback
            -device ide-cd,id=ide-5632,drive=ide-5632,bus=ide.1,unit=0
            -drive if=none,id=ide-5696,readonly=on
            -device ide-cd,id=ide-5696,drive=ide-5696,bus=ide.1,unit=1
            -xen-domid-restrict -chroot /run/xylem/empty
            -runas 1900000003:1900000003
            -d int"#]]
        .assert_eq(&in_lines(&launch.arguments));
        assert_eq!(launch.input.as_deref(), Some("secret"));
        assert!(launch.arguments.iter().all(|word| !word.contains("=secret,data")));
        let known = parse_command_line(&launch.arguments);
        assert_eq!(known, Some((Uuid([7; 16]), DomId(3))));
    }

    #[test]
    fn devices_of_the_host_are_named_as_libxl_names_them() {
        let config = config("vnc = 0\nvga = 'none'\npci = ['00:10.0']\n");
        let device = |number, guest_slot, is_permissive| Assigned {
            address: PciAddress(number),
            name: None,
            guest_slot,
            is_permissive,
            rdm_policy: crate::config::RdmPolicy::Relaxed,
            options: String::new(),
        };
        let devices = [
            device(0x80, 0, true),
            device(0x0300, 6 << 3, false),
            device(0x0301, 6 << 3 | 1, false),
            device(0x1_00ff, 0x48, false),
        ];
        let none = BTreeMap::new();
        let launch = launch(&config, Uuid([7; 16]), DomId(3), &none, &devices, None);
        let from = launch.arguments.iter().position(|word| word == "-boot").unwrap();
        expect_test::expect![[r#"
            -boot order=cda
            -device xen-pci-passthrough,id=pci-pt-00_10.0,hostaddr=0000:00:10.0,permissive=on
            -device xen-pci-passthrough,id=pci-pt-03_00.0,hostaddr=0000:03:00.0,addr=6.0,multifunction=on
            -device xen-pci-passthrough,id=pci-pt-03_00.1,hostaddr=0000:03:00.1,addr=6.1
            -device xen-pci-passthrough,id=pci-pt-0001_00_1f.7,hostaddr=0001:00:1f.7,addr=9.0
            -chroot /run/xylem/empty
            -runas 1900000003:1900000003"#]].assert_eq(&in_lines(&launch.arguments[from..]));
        assert!(launch.passes_devices);
    }

    #[test]
    fn a_screen_by_spice_is_beside_that_by_vnc() {
        let more = "spice = 1\nspicehost = '127.0.0.1'\nspiceport = 6000\nspicevdagent = 1\nvga = 'qxl'\n\
                    spiceusbredirection = 2\nspice_image_compression = 'lz'\nspicepasswd = 'secret'\n";
        let of = |lines: &str| {
            let config = config(&format!("{more}{lines}"));
            launch(&config, Uuid([7; 16]), DomId(3), &BTreeMap::new(), &[], None)
        };
        let shown = |launch: &Launch| {
            let from = launch.arguments.iter().position(|word| word == "-m").unwrap();
            in_lines(&launch.arguments[from..])
        };
        let only = of("vnc = 0\nnographic = 1\n");
        expect_test::expect![[r#"
            -m 0
            -nographic -object secret,id=vnc-password,file=/proc/self/fd/0
            -spice port=6000,tls-port=0,addr=127.0.0.1,password-secret=vnc-password,agent-mouse=on,disable-copy-paste=on,image-compression=lz
            -device virtio-serial
            -chardev spicevmc,id=vdagent,name=vdagent
            -device virtserialport,chardev=vdagent,name=com.redhat.spice.0
            -device qxl-vga,vram_size_mb=64,ram_size_mb=64
            -device ich9-usb-ehci1,id=usb,addr=0x1d.0x7,multifunction=on
            -device ich9-usb-uhci1,masterbus=usb.0,firstport=0,addr=0x1d.0x0,multifunction=on
            -device ich9-usb-uhci2,masterbus=usb.0,firstport=2,addr=0x1d.0x1,multifunction=on
            -device ich9-usb-uhci3,masterbus=usb.0,firstport=4,addr=0x1d.0x2,multifunction=on
            -chardev spicevmc,name=usbredir,id=usbrc1
            -device usb-redir,chardev=usbrc1,id=usbrc1
            -chardev spicevmc,name=usbredir,id=usbrc2
            -device usb-redir,chardev=usbrc2,id=usbrc2
            -boot order=cda
            -xen-domid-restrict -chroot /run/xylem/empty
            -runas 1900000003:1900000003"#]].assert_eq(&shown(&only));
        assert_eq!(only.input.as_deref(), Some("secret"));
        // One password is read once.
        let both = of("vncpasswd = 'secret'\nnographic = 1\n");
        let secrets = both.arguments.iter().filter(|word| word.starts_with("secret,")).count();
        assert_eq!((secrets, both.input.as_deref()), (1, Some("secret")));
        assert!(!both.arguments.iter().any(|word| word == "-nographic"));
        assert!(both.arguments.iter().all(|word| !word.contains("=secret,port")));
    }

    #[test]
    fn qemu_serves_devices_of_a_pv_domain_as_its_own_user_unless_it_serves_folders() {
        let config = |lines: &str| {
            let text = format!("name = 'w'\nkernel = '/k'\nmemory = 64\n{lines}");
            xlcfg::parse(xlcfg::Source { file: "w.cfg", text: &text, overrides: &[] }).unwrap()
        };
        let channels = config(
            "channel = ['connection=pty,name=a', 'connection=socket,path=/run/b,name=b']\n\
             vfb = ['vncpasswd=secret,keymap=de']\ndevice_model_args_pv = ['-d', 'int']\n",
        );
        let none = BTreeMap::new();
        let launch = |config| launch(config, Uuid([7; 16]), DomId(3), &none, &[], None);
        expect_test::expect![[r#"
            -xen-domid 3
            -chardev null,id=xylem-07070707-0707-0707-0707-070707070707
            -chardev socket,id=libxl-cmd,path=/run/xen/qmp-libxl-3,server=on,wait=off
            -mon chardev=libxl-cmd,mode=control
            -no-shutdown -nodefaults -no-user-config -display none -name w
            -chardev socket,id=libxl-channel2,path=/run/b,server=on,wait=off
            -xen-attach -machine xenpv
            -m 64
            -object secret,id=vnc-password,file=/proc/self/fd/0
            -vnc 127.0.0.1:3,password-secret=vnc-password
            -k de
            -chroot /run/xylem/empty
            -runas 1900000003:1900000003
            -d int"#]]
        .assert_eq(&in_lines(&launch(&channels).arguments));
        assert_eq!(launch(&channels).input.as_deref(), Some("secret"));
        let folder = config("p9 = ['tag=t,path=/srv,security_model=none']\n");
        expect_test::expect![[r#"
            -xen-domid 3
            -chardev null,id=xylem-07070707-0707-0707-0707-070707070707
            -chardev socket,id=libxl-cmd,path=/run/xen/qmp-libxl-3,server=on,wait=off
            -mon chardev=libxl-cmd,mode=control
            -no-shutdown -nodefaults -no-user-config -display none -name w
            -xen-attach -machine xenpv
            -m 64
            -vnc none"#]]
        .assert_eq(&in_lines(&launch(&folder).arguments));
    }

    #[test]
    fn controllers_and_cards_of_other_kinds_are_there_if_asked_for() {
        let config = config(
            "hdtype = 'ahci'\ndisk = ['/a,raw,hda,w', '/b,raw,xvde,w', '/c.iso,raw,hdc:cdrom,r', '/d,raw,sdb,r']\n\
             vif = ['type=vif']\nusbversion = 2\nsoundhw = 'hda'\nvendor_device = 'xenserver'\nacpi = 0\n\
             vnc = 0\nvga = 'none'\ndm_restrict = 0\n",
        );
        let disks: BTreeMap<u32, Attachment> =
            config.disks.iter().map(|it| (it.vdev.number, attached("/dev/a"))).collect();
        let launch = launch(&config, Uuid([7; 16]), DomId(3), &disks, &[], None);
        let from = launch.arguments.iter().position(|word| word == "-machine").unwrap();
        expect_test::expect![[r#"
            -machine xenfv,acpi=off,suppress-vmdesc=on
            -m 128
            -device lsi53c895a
            -device ich9-usb-ehci1,id=usb,addr=0x1d.0x7,multifunction=on
            -device ich9-usb-uhci1,masterbus=usb.0,firstport=0,addr=0x1d.0x0,multifunction=on
            -device ich9-usb-uhci2,masterbus=usb.0,firstport=2,addr=0x1d.0x1,multifunction=on
            -device ich9-usb-uhci3,masterbus=usb.0,firstport=4,addr=0x1d.0x2,multifunction=on
            -device intel-hda
            -device hda-duplex
            -boot order=cda
            -device ahci,id=ahci0
            -drive file=/dev/a,format=raw,if=none,id=ahci-768,readonly=off,auto-read-only=off,cache=writeback
            -device ide-hd,bus=ahci0.0,unit=0,drive=ahci-768
            -drive file=/dev/a,format=raw,if=none,id=ahci-51776,readonly=off,auto-read-only=off,cache=writeback
            -device ide-hd,bus=ahci0.4,unit=0,drive=ahci-51776
            -drive file=/dev/a,format=raw,if=none,id=ide-5632,readonly=on,cache=writeback
            -device ide-cd,id=ide-5632,drive=ide-5632,bus=ide.1,unit=0
            -drive file=/dev/a,format=raw,if=none,id=scsi-2064,readonly=on,cache=writeback
            -device scsi-hd,drive=scsi-2064,scsi-id=1
            -device xen-pvdevice,device-id=0xc000"#]].assert_eq(&in_lines(&launch.arguments[from..]));
    }

    /// A line for each option with a value.
    fn in_lines(words: &[String]) -> String {
        let mut text = String::new();
        let mut had_value = true;
        for word in words {
            let begins = word.starts_with('-') && had_value;
            text.push_str(if text.is_empty() {
                ""
            } else if begins {
                "\n"
            } else {
                " "
            });
            text.push_str(word);
            had_value = !word.starts_with('-') && word != "none";
        }
        text
    }

    #[test]
    fn foreign_command_lines_are_not_ours() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for text in [
            "",
            "qemu -xen-domid 3",
            "qemu -xen-domid 3 -chardev null,id=xylem-nonsense",
            "qemu -chardev null,id=xylem-07070707-0707-0707-0707-070707070707 -xen-domid",
        ] {
            assert_eq!(parse_command_line(&words(text)), None, "{text}");
        }
    }
}
