//! A configuration to JSON.

use serde_json::{Map, Value, json};
use xen::DomainKind;
use xen_build::{BitPolicy, CpuidRegister, NO_SUBLEAF};

use super::{ExportError, machine, pci, served};
use crate::config::{
    Access, AffinityConfig, Bios, CpuLists, CpuidConfig, DiskConfig, GuestOptions, HardwareAccess,
    HvmSettings, IoMemory, IoPorts, ModelUser, ShutdownAction, SmbiosText, Spice, Trust, TscMode,
    Vga, VifConfig, VmConfig,
};
use crate::layout::kind_name;
use crate::xlcfg::viridian_groups;

/// The configuration as xl reads it.
///
/// # Errors
/// It has something that xl has no word for.
pub fn to_json(config: &VmConfig) -> Result<String, ExportError> {
    let uuid = config.uuid.ok_or(ExportError::NoUuid)?;
    let disks = config.disks.iter().map(disk).collect::<Result<Vec<_>, _>>()?;
    Ok(whole(config, &uuid.to_string(), &disks).to_string())
}

/// The fields of the configuration for lists: a VDI is named where xl has a path, and of a VM without a UUID it is empty.
#[must_use]
pub fn fields(config: &VmConfig) -> Map<String, Value> {
    let uuid = config.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
    let disks: Vec<Value> = config.disks.iter().map(disk_fields).collect();
    match whole(config, &uuid, &disks) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn whole(config: &VmConfig, uuid: &str, disks: &[Value]) -> Value {
    let vifs: Vec<Value> = config.vifs.iter().map(|vif| nic(vif, config.kind)).collect();
    let mut whole = json!({
        "c_info": {
            "type": kind_name(config.kind),
            "name": config.name,
            "uuid": uuid,
            "run_hotplug_scripts": "True",
        },
        "disks": disks,
        "nics": vifs,
    });
    let info = build_info(config, &mut whole["c_info"]);
    whole["b_info"] = info;
    served::put(config, &mut whole);
    pci::put(config, &mut whole);
    if config.options.is_driver_domain {
        whole["c_info"]["driver_domain"] = json!("True");
    }
    if config.options.shadow_paging {
        whole["c_info"]["hap"] = json!("False");
    }
    if let Some(pool) = &config.options.pool {
        whole["c_info"]["pool_name"] = json!(pool);
    }
    let policy = &config.policy;
    for (key, action) in [
        ("on_poweroff", policy.poweroff),
        ("on_reboot", policy.reboot),
        ("on_watchdog", policy.watchdog),
        ("on_crash", policy.crash),
        ("on_soft_reset", policy.soft_reset),
    ] {
        whole[key] = json!(shutdown_action(action));
    }
    whole
}

pub(super) fn shutdown_action(action: ShutdownAction) -> &'static str {
    match action {
        ShutdownAction::Destroy => "destroy",
        ShutdownAction::Restart => "restart",
        ShutdownAction::RenameRestart => "restart_rename",
        ShutdownAction::Preserve => "preserve",
        ShutdownAction::CoredumpDestroy => "coredump_destroy",
        ShutdownAction::CoredumpRestart => "coredump_restart",
        ShutdownAction::SoftReset => "soft_reset",
    }
}

pub(super) fn tsc_mode(mode: TscMode) -> &'static str {
    match mode {
        TscMode::Default => "default",
        TscMode::AlwaysEmulate => "always_emulate",
        TscMode::Native => "native",
    }
}

pub(super) fn vga(card: Vga) -> &'static str {
    match card {
        Vga::None => "none",
        Vga::Cirrus => "cirrus",
        Vga::Standard => "std",
        Vga::Qxl => "qxl",
    }
}

pub(super) fn defbool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Sets the fields that have a value.
pub(super) fn set<V: Into<Value>>(
    map: &mut Map<String, Value>,
    fields: impl IntoIterator<Item = (&'static str, Option<V>)>,
) {
    for (key, value) in fields {
        if let Some(value) = value {
            map.insert(key.to_owned(), value.into());
        }
    }
}

fn build_info(config: &VmConfig, create: &mut Value) -> Value {
    let options = &config.options;
    let mut info = Map::new();
    set(
        &mut info,
        [
            ("max_vcpus", Some(u64::from(config.vcpus_max))),
            ("max_memkb", Some(config.memory_max_mib << 10)),
            ("target_memkb", Some(config.memory_mib << 10)),
            ("max_grant_frames", config.grant_frames_max.map(u64::from)),
            ("max_maptrack_frames", options.maptrack_frames_max.map(u64::from)),
            ("max_grant_version", options.grant_version_max.map(u64::from)),
            ("event_channels", options.evtchn_port_max.map(u64::from)),
            ("shadow_memkb", options.paging_pool_mib.map(|mib| u64::from(mib) << 10)),
            // Without one, xl list -l of a PV domain counts with libxl's word for "default".
            ("video_memkb", Some(config.hvm.as_ref().map_or(0, |hvm| hvm.video_mib << 10))),
            (
                "rtc_timeoffset",
                Some(options.clock.seconds)
                    .filter(|seconds| *seconds != 0)
                    .map(|seconds| u64::from(seconds.cast_unsigned())),
            ),
        ],
    );
    set(
        &mut info,
        [
            ("kernel", config.kernel.as_deref()),
            ("ramdisk", config.ramdisk.as_deref()),
            ("cmdline", Some(&*config.cmdline).filter(|it| !it.is_empty())),
            ("tsc_mode", Some(tsc_mode(config.tsc_mode))),
            ("nested_hvm", options.nested_virt.then_some("True")),
            ("disable_migrate", options.never_moves.then_some("True")),
            ("localtime", options.clock.is_local.then_some("True")),
        ],
    );
    put_bootloader(options, &mut info);
    let mut shares = Map::new();
    set(
        &mut shares,
        [("weight", options.cpu_weight.map(u64::from)), ("cap", options.cpu_cap.map(u64::from))],
    );
    let online: Vec<Value> = (0..config.vcpus).map(Value::from).collect();
    set(
        &mut info,
        [
            ("avail_vcpus", Some(Value::from(online))),
            ("cpuid", options.cpuid.as_deref().map(cpuid)),
            ("vcpu_hard_affinity", affinity(config, |it| it.hard.as_ref())),
            ("vcpu_soft_affinity", affinity(config, |it| it.soft.as_ref())),
            // xl writes these always.
            ("sched_params", Some(Value::Object(shares))),
            ("arch_arm", Some(json!({}))),
        ],
    );
    put_hardware(config, &mut info);
    let mut own = Map::new();
    if let Some(hvm) = config.hvm.as_deref() {
        put_hvm(hvm, &mut info, &mut own);
        if let Some(uuid) = config.uuid.filter(|_| hvm.generation_id) {
            // libxl has a number where we have that there is one: what a guest of ours is told is in the store.
            own.insert("ms_vm_genid".to_owned(), uuid.0.to_vec().into());
        }
    }
    if options.host_map {
        own.insert("e820_host".to_owned(), "True".into());
    }
    machine::put(&options.machine, create, &mut info, &mut own);
    put_shim(options, &mut own);
    info.insert(format!("type.{}", kind_name(config.kind)), own.into());
    info.into()
}

fn put_shim(options: &GuestOptions, own: &mut Map<String, Value>) {
    if let Some(shim) = options.shim.as_deref() {
        let path = shim.path.as_deref();
        let cmdline = Some(shim.cmdline.as_str());
        set(own, [("pvshim", Some("True")), ("pvshim_path", path), ("pvshim_cmdline", cmdline)]);
    }
}

fn put_bootloader(options: &GuestOptions, info: &mut Map<String, Value>) {
    if let Some(bootloader) = options.bootloader.as_deref() {
        let user = bootloader.user.as_deref();
        set(info, [("bootloader", Some(&*bootloader.program)), ("bootloader_user", user)]);
        set(info, [("bootloader_args", list(&bootloader.arguments))]);
    }
}

fn put_hardware(config: &VmConfig, info: &mut Map<String, Value>) {
    let x86 = match config.options.msr_relaxed {
        true => json!({ "msr_relaxed": "True" }),
        false => json!({}),
    };
    let interrupts = |it: &HardwareAccess| it.interrupts.iter().copied().map(Value::from).collect();
    set(
        info,
        [
            // xl writes this always.
            ("arch_x86", Some(x86)),
            ("ioports", hardware(config, ports)),
            ("irqs", hardware(config, interrupts)),
            ("iomem", hardware(config, memory)),
        ],
    );
}

/// A list of the host's own hardware, unless it is empty.
fn hardware(config: &VmConfig, of: fn(&HardwareAccess) -> Vec<Value>) -> Option<Value> {
    let list = of(config.options.hardware.as_deref()?);
    (!list.is_empty()).then(|| list.into())
}

fn ports(hardware: &HardwareAccess) -> Vec<Value> {
    let range = |it: &IoPorts| json!({ "first": it.first, "number": it.last - it.first + 1 });
    hardware.ports.iter().map(range).collect()
}

fn memory(hardware: &HardwareAccess) -> Vec<Value> {
    let range = |it: &IoMemory| json!({ "start": it.first, "number": it.frames, "gfn": it.gfn.unwrap_or(it.first) });
    hardware.memory.iter().map(range).collect()
}

/// `None` if it is empty.
fn list(texts: &[String]) -> Option<Value> {
    (!texts.is_empty()).then(|| Value::from(texts.to_vec()))
}

/// A list of CPUs for each vCPU. What depends on the host, such as its NUMA nodes, is left to the next one.
fn affinity(config: &VmConfig, of: impl Fn(&AffinityConfig) -> Option<&CpuLists>) -> Option<Value> {
    let lists = of(config.options.affinity.as_deref()?)?;
    let cpus = |vcpu| lists.of(vcpu)?.numbers();
    let each = (0..config.vcpus_max).map_while(cpus);
    let each: Vec<Value> = each.map(|cpus| cpus.into_iter().collect()).collect();
    (!each.is_empty()).then(|| each.into())
}

/// What the first release does not know, if it is not the default.
fn put_machine(hvm: &HvmSettings, own: &mut Map<String, Value>) {
    set(
        own,
        [
            ("acpi_firmware", hvm.acpi_tables.as_deref()),
            ("smbios_firmware", hvm.smbios_structures.as_deref()),
            ("acpi_laptop_slate", hvm.laptop_slate.then_some("True")),
            ("pae", (!hvm.pae).then_some("False")),
        ],
    );
    set::<Value>(
        own,
        [
            ("mca_caps", hvm.lmce.then(|| LMCE.into())),
            ("mmio_hole_memkb", hvm.hole_mib.map(|mib| (u64::from(mib) << 10).into())),
            ("smbios", (!hvm.smbios.is_empty()).then(|| smbios(hvm))),
        ],
    );
}

/// `XEN_HVM_MCA_CAP_LMCE`.
pub(super) const LMCE: u64 = 1;

fn smbios(hvm: &HvmSettings) -> Value {
    let text = |it: &SmbiosText| json!({ "key": it.key, "value": it.value });
    hvm.smbios.iter().map(text).collect()
}

/// The fields of a device model, and those in the part for HVM domains.
fn put_hvm(hvm: &HvmSettings, info: &mut Map<String, Value>, own: &mut Map<String, Value>) {
    // libxl's default is to restrict nobody, and it needs users made for that.
    let user = match &hvm.model_user {
        ModelUser::Restricted => None,
        ModelUser::Root => Some("root"),
        ModelUser::Named(name) => Some(name.as_str()),
    };
    set(
        info,
        [
            ("device_model_version", Some("qemu_xen")),
            ("device_model", hvm.model.as_deref()),
            ("device_model_user", user),
            ("acpi", Some(defbool(hvm.acpi))),
            ("apic", Some(defbool(hvm.apic))),
        ],
    );
    set(info, [("extra_hvm", list(&hvm.model_arguments))]);
    set(
        own,
        [
            ("firmware", hvm.loader.as_deref()),
            (
                "bios",
                Some(match hvm.bios {
                    Bios::SeaBios => "seabios",
                    Bios::Ovmf => "ovmf",
                }),
            ),
            ("system_firmware", hvm.bios_path.as_deref()),
            ("boot", Some(&*hvm.boot)),
            ("keymap", hvm.keymap.as_deref()),
            ("acpi_s3", Some(defbool(hvm.acpi_s3))),
            ("acpi_s4", Some(defbool(hvm.acpi_s4))),
            ("hpet", Some(defbool(hvm.hpet))),
            ("usb", Some(defbool(hvm.usb))),
            ("xen_platform_pci", Some(defbool(hvm.platform_device))),
        ],
    );
    put_machine(hvm, own);
    let groups: Vec<Value> =
        viridian_groups(hvm.viridian).into_iter().map(|(number, _)| number.into()).collect();
    let mut screen = Map::new();
    set(&mut screen, [("enable", Some(defbool(hvm.vnc.is_some())))]);
    if let Some(vnc) = &hvm.vnc {
        set(
            &mut screen,
            [("listen", Some(vnc.listen.as_str())), ("passwd", vnc.password.as_deref())],
        );
        if let Some(display) = vnc.display {
            screen.insert("display".to_owned(), display.into());
            screen.insert("findunused".to_owned(), "False".into());
        }
    }
    set(
        own,
        [
            ("viridian_enable", (!groups.is_empty()).then(|| groups.into())),
            ("vga", Some(json!({ "kind": vga(hvm.vga) }))),
            ("vnc", Some(screen.into())),
            ("spice", hvm.spice.as_ref().map(spice)),
            ("nographic", hvm.nographic.then(|| "True".into())),
            ("serial_list", list(&hvm.serial)),
            ("usbdevice_list", list(&hvm.usb_devices)),
            ("usbversion", hvm.usb_version.map(|it| it.number().into())),
            ("soundhw", hvm.sound.map(|it| it.as_str().into())),
            ("hdtype", Some(hvm.disk_bus.as_str().into())),
            ("vendor_device", hvm.vendor_device.then(|| "xenserver".into())),
        ],
    );
}

fn spice(spice: &Spice) -> Value {
    let mut fields = json!({
        "enable": "True",
        "port": spice.port,
        "tls_port": spice.tls_port,
        "disable_ticketing": defbool(spice.password.is_none()),
        "agent_mouse": defbool(spice.agent_mouse),
        "vdagent": defbool(spice.agent),
        "clipboard_sharing": defbool(spice.clipboard),
        "usbredirection": spice.usb_redirections,
    });
    for (key, text) in [
        ("host", &spice.host),
        ("passwd", &spice.password),
        ("image_compression", &spice.image_compression),
        ("streaming_video", &spice.streaming_video),
    ] {
        if let Some(text) = text {
            fields[key] = json!(text);
        }
    }
    fields
}

/// A list of leaves, which every reader takes, unless there are registers that came later.
fn cpuid(config: &CpuidConfig) -> Value {
    let mut leaves: Vec<Value> = Vec::new();
    let mut places: Vec<(u32, u32)> = Vec::new();
    for register in &config.registers {
        let place = (register.leaf, register.subleaf);
        let at = places.iter().position(|it| *it == place).unwrap_or_else(|| {
            places.push(place);
            let mut leaf = json!({ "leaf": register.leaf });
            if register.subleaf != NO_SUBLEAF {
                leaf["subleaf"] = register.subleaf.into();
            }
            leaves.push(leaf);
            leaves.len() - 1
        });
        leaves[at][register_name(register.register)] = bits_32(register.bits).into();
    }
    if config.msrs.is_empty() {
        return leaves.into();
    }
    let msrs: Vec<Value> = config
        .msrs
        .iter()
        .map(|msr| json!({ "index": msr.index, "policy": bits_64(msr.bits) }))
        .collect();
    json!({ "cpuid": leaves, "msr": msrs })
}

pub(super) fn register_name(register: CpuidRegister) -> &'static str {
    match register {
        CpuidRegister::Eax => "eax",
        CpuidRegister::Ebx => "ebx",
        CpuidRegister::Ecx => "ecx",
        CpuidRegister::Edx => "edx",
    }
}

fn bits_32(bits: BitPolicy<u32>) -> String {
    let BitPolicy { ones, host, default } = bits;
    letters(32, BitPolicy { ones: ones.into(), host: host.into(), default: default.into() })
}

fn bits_64(bits: BitPolicy<u64>) -> String {
    letters(64, bits)
}

fn letters(width: u32, bits: BitPolicy<u64>) -> String {
    let letter = |at: u32| {
        let has = |mask: u64| mask >> at & 1 == 1;
        match (has(bits.ones), has(bits.host), has(bits.default)) {
            (true, ..) => '1',
            (_, true, _) => 'k',
            (_, _, true) => 'x',
            _ => '0',
        }
    };
    (0..width).rev().map(letter).collect()
}

fn disk(disk: &DiskConfig) -> Result<Value, ExportError> {
    if disk.is_attached_first() && !disk.target.starts_with('/') {
        let (vdev, target) = (disk.vdev.name.clone(), disk.target.clone());
        return Err(ExportError::Vdi { vdev, target });
    }
    Ok(disk_fields(disk))
}

fn disk_fields(disk: &DiskConfig) -> Value {
    let mut fields = Map::new();
    set(
        &mut fields,
        [
            ("pdev_path", Some(disk.target.as_str()).filter(|it| !it.is_empty())),
            ("vdev", Some(&disk.vdev.name)),
            ("format", Some(if disk.is_empty() { "empty" } else { disk.format.as_str() })),
            ("discard_enable", (!disk.discard).then_some("False")),
            ("script", disk.script.as_deref()),
            ("trusted", (disk.trust == Trust::Untrusted).then_some("False")),
        ],
    );
    set_backend(&mut fields, disk.backend.as_deref());
    set(
        &mut fields,
        [
            ("readwrite", (disk.access() == Access::ReadWrite).then_some(1)),
            // xl sets both for a CD.
            ("is_cdrom", disk.cdrom.then_some(1)),
            ("removable", disk.cdrom.then_some(1)),
        ],
    );
    fields.into()
}

/// libxl takes digits for a domid, too.
fn set_backend(fields: &mut Map<String, Value>, backend: Option<&str>) {
    match backend.map(|it| (it, it.parse::<u16>())) {
        Some((_, Ok(domid))) => {
            fields.insert("backend_domid".to_owned(), json!(domid));
        }
        Some((name, Err(_))) => {
            fields.insert("backend_domname".to_owned(), json!(name));
        }
        None => {}
    }
}

fn nic(vif: &VifConfig, kind: DomainKind) -> Value {
    let mut fields = Map::new();
    let kind_of_nic = match (&vif.model, kind) {
        (Some(_), _) => Some("vif_ioemu"),
        (None, DomainKind::Hvm) => Some("vif"),
        (None, DomainKind::Pv | DomainKind::Pvh) => None,
    };
    let mac = vif.mac.map(|mac| mac.to_string());
    set(
        &mut fields,
        [
            ("mac", mac.as_deref()),
            ("bridge", Some(vif.bridge.as_str())),
            ("ifname", vif.name.as_deref()),
            ("ip", vif.ip.as_deref()),
            ("model", vif.model.as_deref()),
            ("nictype", kind_of_nic),
            ("script", vif.script.as_deref()),
            ("gatewaydev", vif.gateway.as_deref()),
            ("trusted", (vif.trust == Trust::Untrusted).then_some("False")),
        ],
    );
    set_backend(&mut fields, vif.backend.as_deref());
    set(
        &mut fields,
        [
            ("devid", Some(u64::from(vif.devid))),
            ("mtu", vif.mtu.map(u64::from)),
            ("rate_bytes_per_interval", vif.rate.map(|rate| rate.bytes)),
            ("rate_interval_usecs", vif.rate.map(|rate| rate.interval_us)),
        ],
    );
    fields.into()
}
