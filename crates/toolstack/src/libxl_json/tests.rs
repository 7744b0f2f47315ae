//! Configurations of every kind, to libxl's JSON and back.

use expect_test::expect;
use proptest::prelude::*;
use xen::{DomainKind, Uuid};
use xen_build::CpuidOverride;

use super::{ExportError, from_json, to_json};
use crate::config::{
    Bios, ClockOffset, CpuidText, DiskBus, DiskConfig, GuestOptions, HardwareAccess, HvmSettings,
    ImageFormat, IoMemory, IoPorts, Mac, MachineOptions, Mode, ModelUser, Origin, Passthrough,
    Rate, ServedDevices, Shim, ShutdownAction, ShutdownPolicy, SmbiosText, SoundCard, Spice,
    TimerMode, Trust, TscMode, UsbVersion, Vga, VifConfig, VmConfig, Vnc,
};
use crate::xlcfg::{Source, parse, viridian_mask};

fn of_cfg(text: &str) -> VmConfig {
    parse(Source { file: "test.cfg", text, overrides: &[] }).unwrap()
}

/// The configuration as it is after a round trip: what xl has no word for has its default.
fn as_xl_knows_it(config: &VmConfig) -> VmConfig {
    let mut known = config.clone();
    known.origin = Origin { file: "saved".to_owned(), ..Origin::default() };
    for disk in &mut known.disks {
        if disk.mode == Mode::Shared {
            disk.mode = Mode::ReadWrite;
        }
    }
    known
}

fn round_trip(config: &VmConfig) -> VmConfig {
    let json = to_json(config).unwrap();
    let imported = from_json("saved", &json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(imported.warnings, Vec::<String>::new());
    imported.config
}

const FULL: &str = r#"
name = "web"
uuid = "11111111-2222-3333-4444-555555555551"
type = "pvh"
kernel = "/boot/vmlinuz"
ramdisk = "/boot/initrd"
cmdline = "console=hvc0 a=\"b\""
memory = 512
maxmem = 1024
vcpus = 2
maxvcpus = 4
disk = [ "format=raw,vdev=xvda,access=rw,target=/dev/vg/a,b",
         "format=qcow2,vdev=xvdb,access=ro,no-discard,target=/b.qcow2" ]
vif = [ "mac=00:16:3e:00:00:01,bridge=xenbr0",
        "bridge=br1,vifname=web,ip=10.0.0.9 10.0.0.10,mtu=1400,rate=10Mb/s",
        "script=vif-route,gatewaydev=eth1,untrusted" ]
on_reboot = "rename-restart"
on_crash = "preserve"
on_watchdog = "coredump-restart"
tsc_mode = "native"
max_grant_frames = 40
max_event_channels = 500
cpu_weight = 512
cap = 150
max_maptrack_frames = 100
max_grant_version = 1
nestedhvm = 1
hap = 0
cpus = [ "0-1", "2,4" ]
cpus_soft = "0,2"
nomigrate = 1
cpuid = [ "0x7,0x0:ebx=xxxxxxxxxxxxxxxxxxxxxxxxxxxxx0k1,ecx=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx0", "0x1:edx=xxx0xxxxxxxxxxxxxxxxxxxxxxxxxxxx" ]
"#;

#[test]
fn a_configuration_is_the_same_after_a_round_trip() {
    let config = of_cfg(FULL);
    assert_eq!(round_trip(&config), as_xl_knows_it(&config));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a whole document")]
fn json_has_the_names_and_words_of_libxl() {
    let json: serde_json::Value = serde_json::from_str(&to_json(&of_cfg(FULL)).unwrap()).unwrap();
    expect![[r#"
        {
          "b_info": {
            "arch_arm": {},
            "arch_x86": {},
            "avail_vcpus": [
              0,
              1
            ],
            "cmdline": "console=hvc0 a=\"b\"",
            "cpuid": [
              {
                "ebx": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx0k1",
                "ecx": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx0",
                "leaf": 7,
                "subleaf": 0
              },
              {
                "edx": "xxx0xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                "leaf": 1
              }
            ],
            "disable_migrate": "True",
            "event_channels": 500,
            "kernel": "/boot/vmlinuz",
            "max_grant_frames": 40,
            "max_grant_version": 1,
            "max_maptrack_frames": 100,
            "max_memkb": 1048576,
            "max_vcpus": 4,
            "nested_hvm": "True",
            "ramdisk": "/boot/initrd",
            "sched_params": {
              "cap": 150,
              "weight": 512
            },
            "target_memkb": 524288,
            "tsc_mode": "native",
            "type.pvh": {},
            "vcpu_hard_affinity": [
              [
                0,
                1
              ],
              [
                2,
                4
              ]
            ],
            "vcpu_soft_affinity": [
              [
                0,
                2
              ],
              [
                0,
                2
              ],
              [
                0,
                2
              ],
              [
                0,
                2
              ]
            ],
            "video_memkb": 0
          },
          "c_info": {
            "hap": "False",
            "name": "web",
            "run_hotplug_scripts": "True",
            "type": "pvh",
            "uuid": "11111111-2222-3333-4444-555555555551"
          },
          "disks": [
            {
              "format": "raw",
              "pdev_path": "/dev/vg/a,b",
              "readwrite": 1,
              "vdev": "xvda"
            },
            {
              "discard_enable": "False",
              "format": "qcow2",
              "pdev_path": "/b.qcow2",
              "vdev": "xvdb"
            }
          ],
          "nics": [
            {
              "bridge": "xenbr0",
              "devid": 0,
              "mac": "00:16:3e:00:00:01"
            },
            {
              "bridge": "br1",
              "devid": 1,
              "ifname": "web",
              "ip": "10.0.0.9 10.0.0.10",
              "mtu": 1400,
              "rate_bytes_per_interval": 62500,
              "rate_interval_usecs": 50000
            },
            {
              "bridge": "xenbr0",
              "devid": 2,
              "gatewaydev": "eth1",
              "script": "vif-route",
              "trusted": "False"
            }
          ],
          "on_crash": "preserve",
          "on_poweroff": "destroy",
          "on_reboot": "restart_rename",
          "on_soft_reset": "soft_reset",
          "on_watchdog": "coredump_restart"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&json).unwrap());
}

#[test]
fn cpu_features_by_name_are_registers_for_xl() {
    let by_name = of_cfg(&format!("{FULL}\ncpuid = \"host,htt=0,x2apic=k,family=6\""));
    let read = round_trip(&by_name).options.cpuid.unwrap();
    let in_order = |mut registers: Vec<CpuidOverride>| {
        registers.sort_by_key(|it| (it.leaf, it.subleaf, it.register as u32));
        registers
    };
    let expected = by_name.options.cpuid.unwrap().registers;
    assert_eq!(in_order(read.registers), in_order(expected));
    let CpuidText::Leaves(texts) = read.text else { panic!("{:?}", read.text) };
    assert_eq!(
        texts,
        ["0x1:eax=xxxx00000000xxxxxxxx0110xxxxxxxx,ecx=xxxxxxxxxxkxxxxxxxxxxxxxxxxxxxxx,\
          edx=xxx0xxxxxxxxxxxxxxxxxxxxxxxxxxxx"]
    );
    // Registers that came with Xen 4.19 have a form that earlier readers do not take, and are only used
    // if they are needed.
    let with_msr = of_cfg(&format!("{FULL}\ncpuid = \"host,rdcl-no=1\""));
    let json = to_json(&with_msr).unwrap();
    assert!(json.contains("\"msr\":[{\"index\":266,\"policy\":\"xxxxxxxx"), "{json}");
    let imported = from_json("saved", &json).unwrap();
    assert_eq!(imported.config.options.cpuid, None);
    assert_eq!(
        imported.warnings,
        ["saved: warning: b_info.cpuid.msr: ignored from the VM's next start on"]
    );
}

#[test]
fn what_xl_has_no_word_for_is_refused() {
    let mut config = of_cfg(FULL);
    config.disks[0].target = "fast:root".to_owned();
    let error = to_json(&config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "disk xvda: xl does not know the VDI fast:root; name the file or device that it is on the \
         other host"
    );
    config.disks.clear();
    config.uuid = None;
    assert_eq!(to_json(&config), Err(ExportError::NoUuid));
}

/// A small configuration in which one object is replaced.
fn with(place: &str, value: serde_json::Value) -> Result<super::Imported, String> {
    let mut json: serde_json::Value =
        serde_json::from_str(&to_json(&of_cfg(FULL)).unwrap()).unwrap();
    *json.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
    from_json("saved", &json.to_string()).map_err(|error| error.to_string())
}

/// As `with`, for a key that is new.
fn plus(object: &str, key: &str, value: serde_json::Value) -> Result<super::Imported, String> {
    let mut json: serde_json::Value =
        serde_json::from_str(&to_json(&of_cfg(FULL)).unwrap()).unwrap();
    json.pointer_mut(object).unwrap()[key] = value;
    from_json("saved", &json.to_string()).map_err(|error| error.to_string())
}

#[test]
fn a_bootloader_a_pool_and_a_clock_are_as_libxl_says_them() {
    let text = "name='g'\nuuid='11111111-2222-3333-4444-555555555551'\nmemory=64\n\
                disk=['/d,raw,xvda,w']\nbootloader='pygrub'\nbootloader_user='boot'\n\
                bootloader_args=['--entry=2']\npool='lab'\nrtc_timeoffset=-3600\n";
    let config = of_cfg(text);
    let json: serde_json::Value = serde_json::from_str(&to_json(&config).unwrap()).unwrap();
    let info = &json["b_info"];
    assert_eq!(info["bootloader"], "pygrub");
    assert_eq!(info["rtc_timeoffset"], (-3600_i32).cast_unsigned());
    assert_eq!(json["c_info"]["pool_name"], "lab");
    assert_eq!(info["bootloader_user"], "boot");
    assert_eq!(info["bootloader_args"], serde_json::json!(["--entry=2"]));
    assert_eq!(round_trip(&config), as_xl_knows_it(&config));
}

#[test]
fn what_is_not_supported_is_named() {
    use serde_json::json;
    let mut lines = String::new();
    let mut say = |result: Result<super::Imported, String>| {
        lines.push_str(&result.map(|it| format!("{:?}", it.config)).unwrap_or_else(|it| it));
        lines.push('\n');
    };
    say(plus("", "pcidevs", json!([{ "bus": 1 }])));
    say(plus("/b_info", "iomem", json!([{ "start": 1 }])));
    say(plus("/b_info", "device_model_stubdomain", json!("True")));
    say(with("/b_info/tsc_mode", json!("native_paravirt")));
    say(with("/b_info/max_memkb", json!("much")));
    say(with("/b_info/max_vcpus", json!(100_000)));
    say(with("/b_info/cpuid/0/ebx", json!("1")));
    say(with("/c_info/type", json!("pvx")));
    say(with("/c_info/uuid", json!("1")));
    say(with("/c_info/name", json!("a/b")));
    say(with("/c_info", json!([])));
    say(with("/disks/0/vdev", json!("floppy")));
    say(plus("/disks/0", "backend", json!("tap")));
    say(plus("/disks/1", "script", json!("block-iscsi")));
    say(plus("/disks/1", "specification", json!("virtio")));
    say(with("/disks/1/vdev", json!("xvda")));
    say(plus("/nics/1", "script", json!("a,bridge=b")));
    say(plus("/nics/1", "vlan", json!("7")));
    say(with("/nics/0/mac", json!("00:16")));
    say(with("/nics/0/bridge", json!("br0,script=x")));
    say(with("/on_crash", json!("reboot")));
    expect![[r#"
        saved: pci: not for PVH domains: Xen gives them no devices of the host yet
        saved: b_info.iomem[0].number: expected a first frame and how many
        saved: b_info.device_model_stubdomain: device models in domains of their own are not supported
        saved: b_info.tsc_mode: "native_paravirt": expected one of default, always_emulate, native
        saved: b_info.max_memkb: expected a whole number
        saved: maxvcpus: 100000 is out of range; expected 1 to 128
        saved: b_info.cpuid: "0x7,0x0:ebx=1,ecx=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx0": a register has exactly 32 bits, of 0, 1, x, k and s
        saved: c_info.type: "pvx": expected one of pv, pvh, hvm
        saved: c_info.uuid: not a UUID: expected 32 hexadecimal digits as in 01234567-89ab-cdef-0123-456789abcdef
        saved: name: "a/b" contains a /
        saved: c_info: expected an object
        saved: disks[0].vdev: not a virtual disk: expected xvda to xvdbgqcv with or without a partition up to 255, hda to hdd, sda to sdp, d0p0 or a number
        saved: disks[0].backend: expected phy or qdisk
        saved: disk[1]: format qcow2: what a script connects is a block device; leave format out
        saved: disks[1].specification: only Xen's block devices are supported
        saved: disk[1]: vdev xvda is used by disk[0] already
        saved: vif[1]: "bridge" is given twice
        saved: nics[1].vlan: VLANs of bridges are not supported
        saved: nics[0].mac: not an Ethernet address: expected six pairs of hexadecimal digits as in 00:16:3e:01:02:03
        saved: a text in the configuration has a comma or quote that it cannot have
        saved: on_crash: "reboot": expected one of destroy, restart, restart_rename, preserve, coredump_destroy, coredump_restart, soft_reset
    "#]].assert_eq(&lines);
}

#[test]
fn foreign_texts_are_told() {
    for (text, problem) in [
        ("", "saved: the configuration is not JSON: EOF while parsing a value at line 1 column 0"),
        ("[1]", "saved: the configuration is not one of libxl"),
        ("{}", "saved: c_info: is missing"),
        (r#"{"c_info": {}}"#, "saved: b_info: is missing"),
        (r#"{"c_info": {}, "b_info": {}}"#, "saved: c_info.type: is missing"),
        (r#"{"c_info": {"type": "pv"}, "b_info": {}}"#, "saved: b_info.max_memkb: is missing"),
        (
            r#"{"c_info": {"type": "pv"}, "b_info": {"max_memkb": 1024}}"#,
            "saved: c_info.name: is missing",
        ),
        (
            r#"{"c_info": {"type": "pv", "name": "a"}, "b_info": {"max_memkb": 1024}}"#,
            "saved: kernel: missing; name the guest's kernel image, as in kernel = \"/boot/vmlinuz\"",
        ),
    ] {
        assert_eq!(from_json("saved", text).unwrap_err().to_string(), problem);
    }
    let deep = "[".repeat(1000);
    assert!(from_json("saved", &deep).is_err());
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 =\"'\\\\,äß./-]{0,12}[a-z]"
}

fn path() -> impl Strategy<Value = String> {
    "/[a-z0-9 ,=.]{0,8}[a-z]"
}

fn disks() -> impl Strategy<Value = Vec<DiskConfig>> {
    let disk = (
        prop::sample::select(ImageFormat::ALL.to_vec()),
        prop::sample::select(vec![Mode::ReadOnly, Mode::ReadWrite, Mode::Shared]),
        any::<bool>(),
        path(),
        prop::option::of("[a-z]{1,8}"),
    );
    prop::collection::vec(disk, 0..4).prop_map(|disks| {
        let disks = disks.into_iter().zip(b'e'..);
        disks
            .map(|((format, mode, discard, target, backend), letter)| DiskConfig {
                vdev: format!("xvd{}", char::from(letter)).parse().unwrap(),
                target,
                format: if backend.is_some() { ImageFormat::Raw } else { format },
                mode,
                cdrom: false,
                discard,
                script: None,
                trust: Trust::Trusted,
                backend,
            })
            .collect()
    })
}

fn vifs(kind: DomainKind) -> impl Strategy<Value = Vec<VifConfig>> {
    let vif = (
        prop::option::of(any::<[u8; 5]>()),
        prop::option::of(68_u32..65536),
        // Rates that a configuration file can say.
        prop::option::of((1_u64..1_000_000, 1_u64..1000)),
        any::<bool>(),
        prop::option::of("[a-z]{1,8}"),
        (
            prop::option::of("/?[a-z]{1,8}"),
            prop::option::of("[a-z]{1,8}"),
            any::<bool>(),
            prop::option::of("[a-z]{1,8}|[1-9]"),
        ),
    );
    prop::collection::vec(vif, 0..4).prop_map(move |vifs| {
        let vifs = vifs.into_iter().zip(0..);
        vifs.map(|((mac, mtu, rate, is_emulated, name, host), devid)| VifConfig {
            devid,
            mac: mac.map(|[a, b, c, d, _]| Mac([0, a, b, c, d, devid.to_le_bytes()[0]])),
            bridge: "xenbr0".to_owned(),
            name: name.map(|name| format!("{name}{devid}")),
            ip: None,
            mtu,
            rate: rate.map(|(bytes, ms)| Rate { bytes: bytes * ms, interval_us: ms * 1000 }),
            model: (kind == DomainKind::Hvm && is_emulated && host.3.is_none())
                .then(|| "e1000".to_owned()),
            script: host.0,
            gateway: host.1,
            trust: if host.2 { Trust::Trusted } else { Trust::Untrusted },
            antispoof: false,
            backend: host.3,
        })
        .collect()
    })
}

fn spice() -> Spice {
    Spice {
        host: Some("::1".to_owned()),
        port: 0,
        tls_port: 6000,
        password: None,
        agent_mouse: false,
        agent: true,
        clipboard: true,
        usb_redirections: 0,
        image_compression: Some("quic".to_owned()),
        streaming_video: Some("all".to_owned()),
    }
}

fn hvm_settings() -> impl Strategy<Value = HvmSettings> {
    let flags = any::<[bool; 6]>();
    let vnc = prop::option::of((prop::option::of(0_u16..1000), prop::option::of(text())));
    let groups = prop::sample::subsequence((1..13).collect::<Vec<usize>>(), 0..12);
    let user = prop_oneof![
        Just(ModelUser::Restricted),
        Just(ModelUser::Root),
        Just(ModelUser::Named("qemu".to_owned()))
    ];
    let card = prop::sample::select(Vga::ALL.to_vec());
    (flags, vnc, groups, any::<bool>(), user, card, prop::collection::vec(text(), 0..3)).prop_map(
        |(
            [acpi, acpi_s3, acpi_s4, hpet, usb, platform_device],
            vnc,
            groups,
            has,
            user,
            vga,
            extra,
        )| {
            let groups: Vec<usize> = [0].into_iter().chain(groups).collect();
            HvmSettings {
                loader: has.then(|| "/loader".to_owned()),
                bios: if has { Bios::Ovmf } else { Bios::SeaBios },
                bios_path: has.then(|| "/bios".to_owned()),
                boot: "dc".to_owned(),
                vga,
                video_mib: if vga == Vga::None { 0 } else { 128 },
                vnc: vnc.map(|(display, password)| Vnc {
                    listen: "127.0.0.1".to_owned(),
                    display,
                    password,
                }),
                keymap: has.then(|| "de".to_owned()),
                serial: if has { vec!["pty".to_owned(), "null".to_owned()] } else { Vec::new() },
                usb,
                usb_devices: if usb { vec!["tablet".to_owned()] } else { Vec::new() },
                usb_version: (!usb).then_some(UsbVersion::Two),
                spice: has.then(spice),
                nographic: has,
                generation_id: has,
                sound: has.then_some(SoundCard::Hda),
                disk_bus: if has { DiskBus::Ahci } else { DiskBus::Ide },
                vendor_device: has,
                apic: !has,
                acpi,
                acpi_s3,
                acpi_s4,
                hpet,
                viridian: if has { viridian_mask(&groups).unwrap() } else { 0 },
                platform_device,
                model: has.then(|| "/model".to_owned()),
                model_user: user,
                model_arguments: extra,
                acpi_tables: has.then(|| "/acpi".to_owned()),
                smbios_structures: has.then(|| "/smbios".to_owned()),
                laptop_slate: has,
                pae: !has,
                lmce: has,
                hole_mib: has.then_some(512),
                smbios: ["bios_vendor", "oem", "oem"]
                    .into_iter()
                    .take(if has { 3 } else { 0 })
                    .map(|key| SmbiosText { key, value: "a=b, c".to_owned() })
                    .collect(),
            }
        },
    )
}

fn hardware() -> HardwareAccess {
    let frames = |first, frames, gfn| IoMemory { first, frames, gfn };
    HardwareAccess {
        ports: vec![IoPorts { first: 0x3f8, last: 0x3ff }],
        interrupts: vec![4, 7],
        memory: vec![frames(0xa0, 0x20, None), frames(0xc0, 1, Some(0xf_0000))],
    }
}

fn shim() -> Box<Shim> {
    Box::new(Shim { path: Some("/shim".to_owned()), cmdline: "pv-shim loglvl=all".to_owned() })
}

/// Not the default where it need not be, if it is strange.
fn machine(kind: DomainKind, is_strange: bool, grows: bool) -> MachineOptions {
    let default = MachineOptions::default();
    if !is_strange {
        return default;
    }
    let (is_translated, is_hvm) = (kind != DomainKind::Pv, kind == DomainKind::Hvm);
    MachineOptions {
        altp2m_count: is_translated.then_some(3),
        timer_mode: if is_translated { TimerMode::Dropped } else { default.timer_mode },
        timers_aligned: !is_hvm,
        pirqs: is_hvm,
        vpmu: true,
        trace_kib: if is_translated { 64 } else { 0 },
        out_of_sync: !is_translated,
        passthrough: if kind == DomainKind::Pvh || is_hvm && grows {
            Passthrough::Disabled
        } else {
            Passthrough::Synchronised
        },
        ..default
    }
}

fn clock(is_behind: bool, is_local: bool) -> ClockOffset {
    ClockOffset { seconds: if is_behind { -3600 } else { 0 }, is_local }
}

fn configs() -> impl Strategy<Value = VmConfig> {
    let kind = prop::sample::select(vec![DomainKind::Pv, DomainKind::Pvh, DomainKind::Hvm]);
    kind.prop_flat_map(|kind| {
        let sizes = (1_u64..4096, 0_u64..4096, 1_u32..8, 0_u32..8);
        let texts = (text(), path(), prop::option::of(path()), any::<[u8; 16]>());
        let actions = prop::array::uniform5(prop::sample::select(ShutdownAction::ALL.to_vec()));
        let tsc =
            prop::sample::select(vec![TscMode::Default, TscMode::AlwaysEmulate, TscMode::Native]);
        let options = (
            prop::option::of(1_u32..1000),
            prop::option::of(1_u32..1000),
            prop::option::of(1_u8..3),
            any::<bool>(),
            any::<bool>(),
            prop::option::of(1_u16..100),
        );
        let devices = (disks(), vifs(kind), hvm_settings());
        (sizes, texts, actions, tsc, options, devices).prop_map(move |parts| {
            let ((memory, more, vcpus, more_vcpus), texts, actions, tsc_mode, options, devices) =
                parts;
            let ((cmdline, kernel, ramdisk, uuid), (disks, vifs, hvm)) = (texts, devices);
            let [poweroff, reboot, crash, watchdog, soft_reset] = actions;
            let is_translated = kind != DomainKind::Pv;
            VmConfig {
                served: ServedDevices::default(),
                origin: Origin::default(),
                name: "web".to_owned(),
                uuid: Some(Uuid(uuid)).filter(|it| *it != Uuid::default()).or(Some(Uuid([1; 16]))),
                kind,
                kernel: Some(kernel),
                ramdisk,
                cmdline,
                memory_mib: memory,
                memory_max_mib: memory + more,
                vcpus,
                vcpus_max: vcpus + more_vcpus,
                disks,
                vifs,
                policy: ShutdownPolicy { poweroff, reboot, crash, watchdog, soft_reset },
                tsc_mode,
                grant_frames_max: options.5,
                options: GuestOptions {
                    evtchn_port_max: options.0,
                    maptrack_frames_max: options.1,
                    grant_version_max: options.2,
                    nested_virt: is_translated && options.3,
                    shadow_paging: is_translated && options.4,
                    cpuid: None,
                    clock: clock(options.3, options.4),
                    cpu_weight: None,
                    cpu_cap: None,
                    affinity: None,
                    never_moves: options.3 != options.4,
                    on_host_shutdown: None,
                    pool: None,
                    bootloader: None,
                    paging_pool_mib: (is_translated && options.3).then_some(77),
                    msr_relaxed: options.4,
                    pci: Vec::new(),
                    rdm: None,
                    host_map: kind == DomainKind::Pv && options.4,
                    shim: (kind == DomainKind::Pvh && options.3).then(shim),
                    is_driver_domain: options.4,
                    hardware: options.3.then(|| Box::new(hardware())),
                    machine: machine(kind, options.3, more > 0),
                },
                hvm: (kind == DomainKind::Hvm).then(|| Box::new(hvm)),
            }
        })
    })
}

proptest! {
    #[test]
    fn every_configuration_survives_a_round_trip(config in configs()) {
        // What a file cannot say is no configuration: rates are rounded, and so on.
        let text = config.to_cfg_text();
        let config = parse(Source { file: "a", text: &text, overrides: &[] }).unwrap();
        prop_assert_eq!(round_trip(&config), as_xl_knows_it(&config));
    }

    /// Whatever a file has, it is a configuration or an error.
    #[test]
    fn strange_json_never_panics(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec!["null", "[]", "{}", "-1", "1e99", "\"\"", "[{}]", "true", "18446744073709551615"]),
    ) {
        let json: serde_json::Value =
            serde_json::from_str(&to_json(&of_cfg(FULL)).unwrap()).unwrap();
        let mut places = Vec::new();
        collect(&json, String::new(), &mut places);
        let mut changed = json.clone();
        *changed.pointer_mut(&places[at.index(places.len())]).unwrap() =
            serde_json::from_str(value).unwrap();
        let _ = from_json("saved", &changed.to_string());
    }
}

/// Where everything in it is.
fn collect(value: &serde_json::Value, place: String, places: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            map.iter().for_each(|(key, value)| collect(value, format!("{place}/{key}"), places));
        }
        serde_json::Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, value)| collect(value, format!("{place}/{at}"), places));
        }
        _ => {}
    }
    places.push(place);
}
