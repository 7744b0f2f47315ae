//! A [`VmConfig`] as text, as saved by the daemon.

use std::fmt::{self, Write as _};

use xen::DomainKind;

use super::viridian;
use crate::config::{
    AffinityConfig, Bootloader, ChannelConfig, Connection, CpuLists, CpuidText, DiskBus,
    DiskConfig, FolderConfig, GuestOptions, HardwareAccess, HvmSettings, IoMemory, IoPorts,
    KeyboardConfig, MachineOptions, ModelUser, PciDevice, PciName, Rate, Rdm, ServedDevices, Shim,
    SoundCard, Spice, Trust, TscMode, VifConfig, VmConfig, Vnc,
};

use crate::layout::{DeviceKind, DeviceRef, kind_name};

impl VmConfig {
    /// The configuration as a file that [`parse`](super::parse) reads back to the same values; only
    /// `origin` is lost.
    #[must_use]
    pub fn to_cfg_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_cfg(&mut text);
        text
    }

    fn write_cfg(&self, out: &mut String) -> fmt::Result {
        let kind = kind_name(self.kind);
        writeln!(out, "name = {}", Quoted(&self.name))?;
        if let Some(uuid) = self.uuid {
            writeln!(out, "uuid = \"{uuid}\"")?;
        }
        writeln!(out, "type = \"{kind}\"")?;
        if let Some(kernel) = &self.kernel {
            writeln!(out, "kernel = {}", Quoted(kernel))?;
        }
        if let Some(ramdisk) = &self.ramdisk {
            writeln!(out, "ramdisk = {}", Quoted(ramdisk))?;
        }
        if !self.cmdline.is_empty() {
            writeln!(out, "cmdline = {}", Quoted(&self.cmdline))?;
        }
        writeln!(out, "memory = {}", self.memory_mib)?;
        writeln!(out, "maxmem = {}", self.memory_max_mib)?;
        writeln!(out, "vcpus = {}", self.vcpus)?;
        writeln!(out, "maxvcpus = {}", self.vcpus_max)?;
        write_list(out, "disk", self.disks.iter().map(disk_spec))?;
        let spec = |vif| vif_spec(vif, self.kind);
        write_list(out, "vif", self.vifs.iter().map(spec))?;
        write_served(out, &self.served)?;
        let policy = &self.policy;
        for (key, action) in [
            ("on_poweroff", policy.poweroff),
            ("on_reboot", policy.reboot),
            ("on_crash", policy.crash),
            ("on_watchdog", policy.watchdog),
            ("on_soft_reset", policy.soft_reset),
        ] {
            writeln!(out, "{key} = \"{}\"", action.as_str())?;
        }
        let mode = match self.tsc_mode {
            TscMode::Default => "default",
            TscMode::AlwaysEmulate => "always_emulate",
            TscMode::Native => "native",
        };
        writeln!(out, "tsc_mode = \"{mode}\"")?;
        if let Some(frames) = self.grant_frames_max {
            writeln!(out, "max_grant_frames = {frames}")?;
        }
        write_options(out, &self.options)?;
        write_machine(out, &self.options.machine)?;
        self.hvm.as_deref().map_or(Ok(()), |hvm| write_hvm(out, hvm))
    }
}

/// A device of a VM as its list says it: `disk`, `vif`, `channel`, `vkb`, `p9` or `pci`. Nothing of a screen, which may have
/// a password, and of the keyboard that comes with it.
#[must_use]
pub fn device_text(config: &VmConfig, device: DeviceRef) -> Option<String> {
    let at = usize::try_from(device.devid).ok()?;
    let served = &config.served;
    match device.kind {
        DeviceKind::Vbd => {
            config.disks.iter().find(|it| it.vdev.number == device.devid).map(disk_spec)
        }
        DeviceKind::Vif => {
            let vif = config.vifs.iter().find(|it| it.devid == device.devid)?;
            Some(vif_spec(vif, config.kind))
        }
        // Console 0 is every domain's own.
        DeviceKind::Console => served.channels.get(at.checked_sub(1)?).map(channel_spec),
        DeviceKind::Vfb => None,
        DeviceKind::Vkbd => {
            let keyboards = served.all_keyboards();
            keyboards
                .iter()
                .find(|(devid, _)| *devid == device.devid)
                .map(|(_, it)| keyboard_spec(it))
        }
        DeviceKind::NinePfs => served.folders.get(at).map(folder_spec),
        DeviceKind::Pci => config.options.pci.get(at).map(pci_spec),
    }
}

fn write_served(out: &mut String, served: &ServedDevices) -> fmt::Result {
    write_list(out, "channel", served.channels.iter().map(channel_spec))?;
    if let Some(screen) = &served.screen {
        match &screen.vnc {
            None => {
                let keymap = screen.keymap.as_ref().map(|it| format!(",keymap={it}"));
                let spec = format!("vnc=0{}", keymap.unwrap_or_default());
                write_list(out, "vfb", std::iter::once(spec))?;
            }
            Some(vnc) => {
                write_vnc(out, vnc)?;
                if let Some(keymap) = &screen.keymap {
                    writeln!(out, "keymap = {}", Quoted(keymap))?;
                }
            }
        }
    }
    write_list(out, "vkb", served.keyboards.iter().map(keyboard_spec))?;
    write_list(out, "p9", served.folders.iter().map(folder_spec))?;
    write_list(out, "device_model_args", served.arguments.iter().cloned())?;
    match &served.program {
        None => Ok(()),
        Some(program) => writeln!(out, "device_model_override = {}", Quoted(program)),
    }
}

fn write_vnc(out: &mut String, vnc: &Vnc) -> fmt::Result {
    writeln!(out, "vnc = 1\nvnclisten = {}", Quoted(&vnc.listen))?;
    if let Some(display) = vnc.display {
        writeln!(out, "vncdisplay = {display}")?;
    }
    match &vnc.password {
        None => Ok(()),
        Some(password) => writeln!(out, "vncpasswd = {}", Quoted(password)),
    }
}

fn channel_spec(channel: &ChannelConfig) -> String {
    let path = match &channel.connection {
        Connection::Pty => String::new(),
        Connection::Socket(path) => format!(",path={path}"),
    };
    format!("connection={},name={}{path}", channel.connection.as_str(), channel.name)
}

fn keyboard_spec(keyboard: &KeyboardConfig) -> String {
    let mut spec = "backend-type=qemu".to_owned();
    if let Some(devid) = keyboard.devid {
        let _ = write!(spec, ",devid={devid}");
    }
    if let Some(id) = &keyboard.unique_id {
        let _ = write!(spec, ",unique-id={id}");
    }
    for (key, number) in &keyboard.numbers {
        let _ = write!(spec, ",{key}={number}");
    }
    spec
}

fn folder_spec(folder: &FolderConfig) -> String {
    let FolderConfig { tag, path, security_model } = folder;
    format!("tag={tag},path={path},security_model={}", security_model.as_str())
}

/// Defaults are omitted.
fn write_options(out: &mut String, options: &GuestOptions) -> fmt::Result {
    let GuestOptions {
        evtchn_port_max,
        maptrack_frames_max,
        grant_version_max,
        nested_virt,
        shadow_paging,
        cpuid,
        cpu_weight,
        cpu_cap,
        affinity,
        never_moves,
        clock,
        on_host_shutdown,
        pool,
        bootloader,
        paging_pool_mib,
        msr_relaxed,
        is_driver_domain,
        pci,
        rdm,
        host_map,
        shim,
        hardware,
        machine: _,
    } = options;
    write_devices(out, pci, *rdm)?;
    if let Some(hardware) = hardware.as_deref() {
        write_hardware(out, hardware)?;
    }
    write_shim(out, shim.as_deref())?;
    if let Some(pool) = pool {
        writeln!(out, "pool = {}", Quoted(pool))?;
    }
    if let Some(bootloader) = bootloader.as_deref() {
        write_bootloader(out, bootloader)?;
    }
    if clock.seconds != 0 {
        writeln!(out, "rtc_timeoffset = {}", clock.seconds)?;
    }
    if clock.is_local {
        writeln!(out, "localtime = 1")?;
    }
    if let Some(action) = on_host_shutdown {
        writeln!(out, "on_host_shutdown = \"{}\"", action.as_str())?;
    }
    for (key, number) in [
        ("cpu_weight", cpu_weight.map(u32::from)),
        ("cap", cpu_cap.map(u32::from)),
        ("max_event_channels", *evtchn_port_max),
        ("max_maptrack_frames", *maptrack_frames_max),
        ("max_grant_version", grant_version_max.map(u32::from)),
        ("nestedhvm", nested_virt.then_some(1)),
        ("hap", shadow_paging.then_some(0)),
        ("nomigrate", never_moves.then_some(1)),
        ("shadow_memory", *paging_pool_mib),
        ("msr_relaxed", msr_relaxed.then_some(1)),
        ("driver_domain", is_driver_domain.then_some(1)),
        ("e820_host", host_map.then_some(1)),
    ] {
        if let Some(number) = number {
            writeln!(out, "{key} = {number}")?;
        }
    }
    write_affinity(out, affinity.as_deref())?;
    match cpuid.as_deref().map(|cpuid| &cpuid.text) {
        None => Ok(()),
        Some(CpuidText::Words(text)) => writeln!(out, "cpuid = {}", Quoted(text)),
        Some(CpuidText::Leaves(texts)) => write_list(out, "cpuid", texts.iter().cloned()),
    }
}

fn write_machine(out: &mut String, machine: &MachineOptions) -> fmt::Result {
    let default = MachineOptions::default();
    let MachineOptions {
        altp2m,
        altp2m_count,
        timer_mode,
        timers_aligned,
        pirqs,
        vpmu,
        trace_kib,
        out_of_sync,
        passthrough,
    } = *machine;
    for (key, word) in [
        ("altp2m", (altp2m != default.altp2m).then(|| altp2m.as_str())),
        ("timer_mode", (timer_mode != default.timer_mode).then(|| timer_mode.as_str())),
        ("passthrough", (passthrough != default.passthrough).then(|| passthrough.as_str())),
    ] {
        if let Some(word) = word {
            writeln!(out, "{key} = \"{word}\"")?;
        }
    }
    for (key, number) in [
        ("altp2m_count", altp2m_count.map(u32::from)),
        ("vpt_align", (!timers_aligned).then_some(0)),
        ("hvm_pirq", pirqs.then_some(1)),
        ("vpmu", vpmu.then_some(1)),
        ("vmtrace_buf_kb", Some(trace_kib).filter(|kib| *kib != 0)),
        ("oos", (!out_of_sync).then_some(0)),
    ] {
        if let Some(number) = number {
            writeln!(out, "{key} = {number}")?;
        }
    }
    Ok(())
}

fn write_devices(out: &mut String, pci: &[PciDevice], rdm: Option<Rdm>) -> fmt::Result {
    write_list(out, "pci", pci.iter().map(pci_spec))?;
    if let Some(rdm) = rdm {
        let strategy = if rdm.of_host { "strategy=host," } else { "" };
        writeln!(out, "rdm = \"{strategy}policy={}\"", rdm.policy.as_str())?;
    }
    Ok(())
}

fn write_shim(out: &mut String, shim: Option<&Shim>) -> fmt::Result {
    if let Some(shim) = shim {
        writeln!(out, "pvshim = 1\npvshim_cmdline = {}", Quoted(&shim.cmdline))?;
        if let Some(path) = &shim.path {
            writeln!(out, "pvshim_path = {}", Quoted(path))?;
        }
    }
    Ok(())
}

fn write_affinity(out: &mut String, affinity: Option<&AffinityConfig>) -> fmt::Result {
    if let Some(affinity) = affinity {
        for (key, lists) in [("cpus", &affinity.hard), ("cpus_soft", &affinity.soft)] {
            match lists {
                None => {}
                Some(CpuLists::Common(list)) => writeln!(out, "{key} = {}", Quoted(list.text()))?,
                Some(CpuLists::Each(lists)) => {
                    write_list(out, key, lists.iter().map(|list| list.text().to_owned()))?;
                }
            }
        }
    }
    Ok(())
}

fn pci_spec(device: &PciDevice) -> String {
    let name = match &device.name {
        PciName::Address(place) => place.to_string(),
        PciName::Named(name) => format!("name={name}"),
    };
    let slot = device.slot.map(|slot| format!(",vslot={slot:x}")).unwrap_or_default();
    let [permissive, msitranslate, seize, power_mgmt] =
        [device.permissive, device.msitranslate, device.seize, device.power_mgmt].map(u8::from);
    format!(
        "{name}{slot},permissive={permissive},msitranslate={msitranslate},seize={seize},\
         power_mgmt={power_mgmt},rdm_policy={}",
        device.rdm_policy.as_str()
    )
}

fn write_hardware(out: &mut String, hardware: &HardwareAccess) -> fmt::Result {
    let HardwareAccess { ports, interrupts, memory } = hardware;
    let range = |it: &IoPorts| format!("{:x}-{:x}", it.first, it.last);
    write_list(out, "ioports", ports.iter().map(range))?;
    write_list(out, "irqs", interrupts.iter().map(u32::to_string))?;
    let range = |it: &IoMemory| {
        let gfn = it.gfn.map(|gfn| format!("@{gfn:x}")).unwrap_or_default();
        format!("{:x},{:x}{gfn}", it.first, it.frames)
    };
    write_list(out, "iomem", memory.iter().map(range))
}

fn write_bootloader(out: &mut String, bootloader: &Bootloader) -> fmt::Result {
    writeln!(out, "bootloader = {}", Quoted(&bootloader.program))?;
    if let Some(user) = &bootloader.user {
        writeln!(out, "bootloader_user = {}", Quoted(user))?;
    }
    write_list(out, "bootloader_args", bootloader.arguments.iter().cloned())
}

fn write_hvm(out: &mut String, hvm: &HvmSettings) -> fmt::Result {
    for (key, path) in [
        ("firmware_override", &hvm.loader),
        ("bios_path_override", &hvm.bios_path),
        ("keymap", &hvm.keymap),
        ("device_model_override", &hvm.model),
        ("acpi_firmware", &hvm.acpi_tables),
        ("smbios_firmware", &hvm.smbios_structures),
    ] {
        if let Some(path) = path {
            writeln!(out, "{key} = {}", Quoted(path))?;
        }
    }
    writeln!(out, "bios = \"{}\"", hvm.bios.as_str())?;
    writeln!(out, "boot = {}", Quoted(&hvm.boot))?;
    writeln!(out, "vga = \"{}\"\nvideoram = {}", hvm.vga.as_str(), hvm.video_mib)?;
    match &hvm.vnc {
        None => writeln!(out, "vnc = 0")?,
        Some(vnc) => write_vnc(out, vnc)?,
    }
    if let Some(spice) = &hvm.spice {
        write_spice(out, spice)?;
    }
    write_list(out, "serial", hvm.serial.iter().cloned())?;
    write_list(out, "usbdevice", hvm.usb_devices.iter().cloned())?;
    write_list(out, "device_model_args", hvm.model_arguments.iter().cloned())?;
    // What the first release does not know is said only if it is not the default.
    for (key, word) in [
        ("soundhw", hvm.sound.map(SoundCard::as_str)),
        ("hdtype", Some(hvm.disk_bus).filter(|it| *it != DiskBus::Ide).map(DiskBus::as_str)),
        ("vendor_device", hvm.vendor_device.then_some("xenserver")),
        ("ms_vm_genid", hvm.generation_id.then_some("generate")),
    ] {
        if let Some(word) = word {
            writeln!(out, "{key} = \"{word}\"")?;
        }
    }
    if let Some(version) = hvm.usb_version {
        writeln!(out, "usbversion = {}", version.number())?;
    }
    if !hvm.apic {
        writeln!(out, "apic = 0")?;
    }
    for (key, flag) in [
        ("usb", hvm.usb),
        ("acpi", hvm.acpi),
        ("acpi_s3", hvm.acpi_s3),
        ("acpi_s4", hvm.acpi_s4),
        ("hpet", hvm.hpet),
        ("xen_platform_pci", hvm.platform_device),
    ] {
        writeln!(out, "{key} = {}", u8::from(flag))?;
    }
    write_list(out, "smbios", hvm.smbios.iter().map(|it| format!("{}={}", it.key, it.value)))?;
    write_list(out, "mca_caps", hvm.lmce.then(|| "lmce".to_owned()).into_iter())?;
    for (key, number) in [
        ("nographic", hvm.nographic.then_some(1)),
        ("acpi_laptop_slate", hvm.laptop_slate.then_some(1)),
        ("pae", (!hvm.pae).then_some(0)),
        ("mmio_hole", hvm.hole_mib),
    ] {
        if let Some(number) = number {
            writeln!(out, "{key} = {number}")?;
        }
    }
    let groups: Vec<&str> = viridian::groups(hvm.viridian).collect();
    write_list(out, "viridian", groups.into_iter().map(str::to_owned))?;
    match &hvm.model_user {
        ModelUser::Restricted => Ok(()),
        ModelUser::Root => writeln!(out, "dm_restrict = 0"),
        ModelUser::Named(name) => writeln!(out, "device_model_user = {}", Quoted(name)),
    }
}

/// Ports and flags are omitted if they are what xl takes without them.
fn write_spice(out: &mut String, spice: &Spice) -> fmt::Result {
    writeln!(out, "spice = 1")?;
    for (key, text) in [
        ("spicehost", spice.host.as_ref()),
        ("spicepasswd", spice.password.as_ref()),
        ("spice_image_compression", spice.image_compression.as_ref()),
        ("spice_streaming_video", spice.streaming_video.as_ref()),
    ] {
        if let Some(text) = text {
            writeln!(out, "{key} = {}", Quoted(text))?;
        }
    }
    for (key, number) in [
        ("spiceport", spice.port),
        ("spicetls_port", spice.tls_port),
        ("spiceusbredirection", spice.usb_redirections.into()),
        ("spicedisable_ticketing", spice.password.is_none().into()),
        ("spicevdagent", spice.agent.into()),
        ("spice_clipboard_sharing", spice.clipboard.into()),
    ] {
        if number != 0 {
            writeln!(out, "{key} = {number}")?;
        }
    }
    if spice.agent_mouse { Ok(()) } else { writeln!(out, "spiceagent_mouse = 0") }
}

fn write_list(
    out: &mut String,
    key: &str,
    items: impl ExactSizeIterator<Item = String>,
) -> fmt::Result {
    if items.len() == 0 {
        return Ok(());
    }
    writeln!(out, "{key} = [")?;
    for item in items {
        writeln!(out, "  {},", Quoted(&item))?;
    }
    writeln!(out, "]")
}

fn disk_spec(disk: &DiskConfig) -> String {
    // A trailing comma of a target would be taken for a separator, so it is followed by one.
    let comma = if disk.target.ends_with(',') { "," } else { "" };
    let script = disk.script.as_ref().map(|script| format!(",script={script}")).unwrap_or_default();
    let target = match disk.target.as_str() {
        "" => String::new(),
        target => format!(",target={target}{comma}"),
    };
    let backend = disk.backend.as_ref().map(|it| format!(",backend={it}")).unwrap_or_default();
    format!(
        "format={},vdev={},access={}{}{}{script}{backend}{}{target}",
        if disk.is_empty() { "empty" } else { disk.format.as_str() },
        disk.vdev.name,
        disk.mode.as_str(),
        if disk.cdrom { ",devtype=cdrom" } else { "" },
        if disk.discard { "" } else { ",no-discard" },
        if disk.trust == Trust::Trusted { "" } else { ",untrusted" },
    )
}

fn vif_spec(vif: &VifConfig, kind: DomainKind) -> String {
    let mut spec = format!("devid={},bridge={}", vif.devid, vif.bridge);
    match &vif.model {
        Some(model) => {
            let _ = write!(spec, ",model={model}");
        }
        None if kind == DomainKind::Hvm => spec.push_str(",type=vif"),
        None => {}
    }
    if let Some(mac) = vif.mac {
        let _ = write!(spec, ",mac={mac}");
    }
    if let Some(name) = &vif.name {
        let _ = write!(spec, ",vifname={name}");
    }
    if let Some(ip) = &vif.ip {
        let _ = write!(spec, ",ip={ip}");
    }
    if let Some(mtu) = vif.mtu {
        let _ = write!(spec, ",mtu={mtu}");
    }
    if let Some(rate) = vif.rate {
        let _ = write!(spec, ",rate={}B/s@{}us", bytes_per_second(rate), rate.interval_us);
    }
    if let Some(script) = &vif.script {
        let _ = write!(spec, ",script={script}");
    }
    if let Some(gateway) = &vif.gateway {
        let _ = write!(spec, ",gatewaydev={gateway}");
    }
    if vif.antispoof {
        spec.push_str(",antispoof=1");
    }
    if vif.trust == Trust::Untrusted {
        spec.push_str(",untrusted");
    }
    if let Some(backend) = &vif.backend {
        let _ = write!(spec, ",backend={backend}");
    }
    spec
}

/// The lowest rate in bytes a second that gives `rate.bytes` in each interval.
fn bytes_per_second(rate: Rate) -> u128 {
    let bytes = u128::from(rate.bytes) * 1_000_000;
    bytes.div_ceil(u128::from(rate.interval_us.max(1)))
}

/// A string in double quotes, escaped.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
