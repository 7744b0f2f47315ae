//! What the daemon keeps of a configuration reads back to the same, and any text at all gets an answer.

use proptest::prelude::*;
use toolstack::config::{
    Altp2m, Bios, Bootloader, ClockOffset, DiskBus, DiskConfig, GuestOptions, HvmSettings,
    ImageFormat, Mac, MachineOptions, Mode, ModelUser, OnHostShutdown, Origin, Passthrough,
    PciDevice, PciName, PciPlace, Rate, Rdm, RdmPolicy, ServedDevices, Shim, ShutdownAction,
    ShutdownPolicy, SmbiosText, SoundCard, Spice, TimerMode, Trust, TscMode, UsbVersion, Vdev, Vga,
    VifConfig, VmConfig, Vnc,
};
use xen::{DomainKind, Uuid};

use crate::xlcfg::parse_with;

/// A text that a configuration can hold: no control characters, not empty.
fn text() -> impl Strategy<Value = String> {
    r#"[ -~é'"\\#;,=\[\]]{0,20}[!-~]"#
}

fn action() -> impl Strategy<Value = ShutdownAction> {
    proptest::sample::select(ShutdownAction::ALL.to_vec())
}

fn disks() -> impl Strategy<Value = Vec<DiskConfig>> {
    let format = proptest::sample::select(ImageFormat::ALL.to_vec());
    let mode = proptest::sample::select(vec![Mode::ReadOnly, Mode::ReadWrite, Mode::Shared]);
    let backend = proptest::option::of("[a-z]{1,8}");
    let place = (0u32..1000, 0u32..256);
    let disk = (place, text(), format, mode, any::<bool>(), any::<bool>(), backend);
    proptest::collection::vec(disk, 0..5).prop_map(|disks| {
        let mut disks: Vec<DiskConfig> = disks
            .into_iter()
            .map(|((disk, partition), target, format, mode, cdrom, discard, backend)| DiskConfig {
                vdev: format!("d{disk}p{partition}").parse::<Vdev>().unwrap(),
                format: match target.contains(':') || backend.is_some() {
                    true => ImageFormat::Raw,
                    false => format,
                },
                target,
                mode: if cdrom { Mode::ReadOnly } else { mode },
                cdrom,
                discard,
                script: None,
                trust: Trust::Trusted,
                backend: backend.filter(|_| !cdrom),
            })
            .collect();
        disks.sort_by_key(|disk| disk.vdev.number);
        disks.dedup_by_key(|disk| disk.vdev.number);
        disks
    })
}

fn vifs() -> impl Strategy<Value = Vec<VifConfig>> {
    let mac = proptest::option::of((any::<[u8; 5]>(), 1u8..128));
    let rate = proptest::option::of((1u64..1 << 40, 1u64..=1_000_000));
    let word = || proptest::option::of("[a-z]{1,8}");
    let host = (proptest::option::of("/?[a-z]{1,8}"), word(), word());
    let named = (any::<bool>(), any::<bool>(), host);
    let vif = ("[a-z][a-z0-9.-]{0,14}", mac, proptest::option::of(68u32..=65535), rate, named);
    proptest::collection::vec(vif, 0..5).prop_map(|vifs| {
        let mut vifs: Vec<VifConfig> = vifs
            .into_iter()
            .zip(0..)
            .map(|((bridge, mac, mtu, rate, (named, trusted, host)), devid)| VifConfig {
                model: None,
                devid,
                mac: mac.map(|([b, c, d, e, f], half)| Mac([half * 2, b, c, d, e, f])),
                bridge,
                name: named.then(|| format!("lan{devid}")),
                ip: named.then(|| "10.0.0.2 fe80::1/64".to_owned()),
                mtu,
                rate: rate.map(|(bytes, interval_us)| Rate { bytes, interval_us }),
                antispoof: named && host.0.is_none() && host.2.is_none(),
                script: host.0,
                gateway: host.1,
                trust: if trusted { Trust::Trusted } else { Trust::Untrusted },
                backend: host.2,
            })
            .collect();
        let mut macs = Vec::new();
        vifs.retain(|vif| {
            let fresh = vif.mac.is_none_or(|mac| !macs.contains(&mac));
            macs.extend(vif.mac);
            fresh
        });
        vifs
    })
}

prop_compose! {
    fn spice()(port in 1u16.., flags in proptest::array::uniform3(any::<bool>()), host in proptest::option::of("[a-z0-9.:]{1,10}")) -> Spice {
        Spice {
            host,
            port,
            tls_port: if flags[0] { 1 } else { 0 },
            password: None,
            agent_mouse: flags[0],
            agent: flags[1],
            clipboard: flags[2],
            usb_redirections: 0,
            image_compression: flags[1].then(|| "glz".to_owned()),
            streaming_video: flags[2].then(|| "filter".to_owned()),
        }
    }
}

prop_compose! {
    fn hvm()(
        paths in proptest::array::uniform4(proptest::option::of(text())),
        card in proptest::sample::select(Vga::ALL.to_vec()),
        video in 7u32..9,
        vnc in proptest::option::of(("[a-z0-9.]{1,10}", proptest::option::of(0u16..1000), proptest::option::of(text()))),
        words in proptest::collection::vec(text(), 0..3),
        usb in any::<bool>(),
        tablet in any::<bool>(),
        flags in proptest::array::uniform5(any::<bool>()),
        ovmf in any::<bool>(),
        boot in "[cdna]{1,3}",
        spice in proptest::option::of(spice()),
        user in 0..3,
        viridian in proptest::sample::select(vec![0, 1, 3, 0xb, 0x187, 0x1865, 0x1ffd, 0x1fff]),
    ) -> HvmSettings {
        let [loader, bios_path, model, _] = paths;
        let password = vnc.as_ref().and_then(|(_, _, password)| password.clone());
        // QEMU is told one password.
        let spice = spice.map(|spice| Spice { password: password.filter(|_| ovmf), usb_redirections: 0, ..spice });
        let usb_devices = if tablet { vec!["tablet".to_owned()] } else { Vec::new() };
        HvmSettings {
            loader,
            bios: if ovmf { Bios::Ovmf } else { Bios::SeaBios },
            bios_path,
            boot,
            vga: card,
            video_mib: if card == Vga::None { 0 } else { 1 << video },
            vnc: vnc.map(|(listen, display, password)| Vnc { listen, display, password }),
            keymap: usb.then(|| "en-us".to_owned()),
            nographic: ovmf,
            spice,
            serial: words.clone(),
            usb: usb || tablet,
            usb_devices,
            usb_version: (!usb && !tablet).then_some(UsbVersion::Three),
            sound: tablet.then_some(SoundCard::Hda),
            disk_bus: if ovmf { DiskBus::Ahci } else { DiskBus::Ide },
            vendor_device: ovmf,
            apic: !tablet,
            acpi: flags[0],
            acpi_s3: flags[1],
            acpi_s4: flags[2],
            hpet: flags[3],
            generation_id: ovmf,
            viridian,
            platform_device: flags[4],
            model,
            model_user: match user {
                0 => ModelUser::Restricted,
                1 => ModelUser::Root,
                _ => ModelUser::Named("qemu".to_owned()),
            },
            model_arguments: words.clone(),
            acpi_tables: ovmf.then(|| "/acpi".to_owned()),
            smbios_structures: tablet.then(|| "/smbios".to_owned()),
            laptop_slate: tablet,
            pae: !ovmf,
            lmce: ovmf,
            hole_mib: usb.then_some(3840),
            smbios: words
                .iter()
                .filter(|word| !word.is_empty() && !word.contains(char::is_control))
                .map(|word| SmbiosText { key: SmbiosText::OEM, value: word.clone() })
                .collect(),
        }
    }
}

/// Or the default.
fn machine(is_strange: bool) -> MachineOptions {
    let strange = MachineOptions {
        altp2m: Altp2m::External,
        altp2m_count: Some(3),
        timer_mode: TimerMode::OnePending,
        timers_aligned: false,
        pirqs: true,
        vpmu: true,
        trace_kib: 64,
        out_of_sync: false,
        passthrough: Passthrough::Enabled,
    };
    if is_strange { strange } else { MachineOptions::default() }
}

/// As far as the rest allows it: some is only for some kinds, or not together with something else.
fn allowed(machine: MachineOptions, kind: DomainKind, grows: bool, nested: bool) -> MachineOptions {
    let default = MachineOptions::default();
    let is_translated = kind != DomainKind::Pv;
    let is_hvm = kind == DomainKind::Hvm;
    let has_views = is_translated && !grows && !nested;
    MachineOptions {
        altp2m: if has_views { machine.altp2m } else { default.altp2m },
        altp2m_count: machine.altp2m_count.filter(|_| is_translated),
        timer_mode: if is_translated { machine.timer_mode } else { default.timer_mode },
        timers_aligned: machine.timers_aligned || !is_hvm,
        pirqs: machine.pirqs && is_hvm,
        vpmu: machine.vpmu,
        trace_kib: if is_translated { machine.trace_kib } else { 0 },
        out_of_sync: machine.out_of_sync || !is_translated,
        passthrough: match kind {
            DomainKind::Pvh => default.passthrough,
            DomainKind::Hvm if grows => default.passthrough,
            DomainKind::Pv | DomainKind::Hvm => machine.passthrough,
        },
    }
}

fn shim() -> Box<Shim> {
    Box::new(Shim { path: Some("/shim".to_owned()), cmdline: "pv-shim quiet".to_owned() })
}

fn pci() -> Vec<PciDevice> {
    let place = PciPlace { segment: 1, bus: 0xaf, device: 0x1f, function: None };
    let device = |name, slot| PciDevice {
        name,
        slot,
        permissive: true,
        msitranslate: false,
        seize: true,
        power_mgmt: true,
        rdm_policy: RdmPolicy::Strict,
    };
    vec![
        device(PciName::Address(place), Some(0x1f)),
        device(PciName::Address(PciPlace { function: Some(7), ..place }), None),
        device(PciName::Named("card".to_owned()), None),
    ]
}

prop_compose! {
    fn options()(
        limits in proptest::array::uniform2(proptest::option::of(1..1u32 << 31)),
        grant_version_max in proptest::option::of(1u8..=2),
        cpu_weight in proptest::option::of(1..=u16::MAX),
        cpu_cap in proptest::option::of(1..=100u16),
        flags in proptest::array::uniform2(any::<bool>()),
        affinity in proptest::sample::select(vec!["", "cpus = 'all,^0'", "cpus = ['1', 'nodes:0-1']\ncpus_soft = '2-3'"])
            .prop_map(|lines| {
                let text = format!("name='g'\nkernel='/k'\nmemory=64\n{lines}\n");
                parse_with(&text, &[]).unwrap().options.affinity.map(|it| *it)
            }),
        cpuid in proptest::sample::select(vec![
            None,
            Some("'host,rdtscp=0,family=0x17,rdcl-no=1'"),
            Some("['0x1:ecx=xxxxxxxxxx1kxxxxxxxxxxxxxxxxxxx0', '7,0:ebx=0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx']"),
        ]),
    ) -> GuestOptions {
        let cpuid = cpuid.map(|value| {
            let text = format!("name='g'\nkernel='/k'\nmemory=64\ncpuid = {value}\n");
            parse_with(&text, &[]).unwrap().options.cpuid
        });
        GuestOptions {
            evtchn_port_max: limits[0],
            maptrack_frames_max: limits[1],
            grant_version_max,
            nested_virt: flags[0],
            shadow_paging: flags[1],
            cpuid: cpuid.flatten(),
            cpu_weight,
            cpu_cap,
            affinity: affinity.map(Box::new),
            never_moves: flags == [true, false],
            clock: ClockOffset { seconds: if flags[0] { -3600 } else { 0 }, is_local: flags[1] },
            // A VM that is never saved is not saved with its host.
            on_host_shutdown: [None, Some(OnHostShutdown::Shutdown), Some(OnHostShutdown::Save)]
                [usize::from(flags[0]) + usize::from(flags[1])],
            pool: [None, Some("lab".to_owned())][usize::from(flags[0])].clone(),
            bootloader: None,
            paging_pool_mib: flags[0].then_some(77),
            msr_relaxed: flags[1],
            pci: Vec::new(),
            rdm: None,
            shim: None,
            is_driver_domain: flags[1],
            host_map: flags[1],
            machine: MachineOptions::default(),
            hardware: flags[0].then(|| {
                let text = "name='g'\nkernel='/k'\nmemory=1\nioports=['3f8-3ff']\nirqs=[4,7]\niomem=['a0,20','c0,1@f0']\n";
                parse_with(text, &[]).unwrap().options.hardware.unwrap()
            }),
        }
    }
}

prop_compose! {
    fn vm_config()(
        name in "[a-zA-Z][a-zA-Z0-9 \"'._-]{0,20}[a-z]",
        uuid in proptest::option::of(any::<[u8; 16]>().prop_filter("not zero", |b| *b != [0; 16])),
        kind in proptest::sample::select(vec![DomainKind::Pv, DomainKind::Pvh, DomainKind::Hvm]),
        hvm in hvm(),
        kernel in proptest::option::of(text()),
        ramdisk in proptest::option::of(text()),
        cmdline in proptest::option::of(text()),
        memory in (1u64..1 << 23, prop_oneof![Just(0u64), 0u64..1 << 23]),
        vcpus in (1u32..=64, 0u32..=64),
        disks in disks(),
        vifs in vifs(),
        actions in (action(), action(), action(), action(), action()),
        tsc_mode in proptest::sample::select(vec![TscMode::Default, TscMode::AlwaysEmulate, TscMode::Native]),
        grant_frames_max in proptest::option::of(1u16..),
        options in options(),
        strange in any::<bool>().prop_map(machine),
        bootloader in proptest::option::of((
            "/?[a-z]{1,8}",
            proptest::collection::vec("[ -~]{1,9}", 0..3),
            proptest::option::of("[a-q]{1,9}"),
        )),
    ) -> VmConfig {
        let (poweroff, reboot, crash, watchdog, soft_reset) = actions;
        let is_hvm = kind == DomainKind::Hvm;
        let has_disk = disks.first().is_some_and(DiskConfig::is_attached_first);
        let bootloader = bootloader.filter(|_| has_disk && !is_hvm);
        let bootloader = bootloader
            .map(|(program, arguments, user)| Box::new(Bootloader { program, arguments, user }));
        let machine = allowed(strange, kind, memory.1 > 0, options.nested_virt);
        let has_pci = kind != DomainKind::Pvh && (kind == DomainKind::Pv || memory.1 == 0);
        let pci = if has_pci && memory.0 % 2 == 0 { pci() } else { Vec::new() };
        let rdm = Rdm { of_host: is_hvm, policy: RdmPolicy::Strict };
        let rdm = (is_hvm && memory.0 % 3 == 0).then_some(rdm);
        let shim = (kind == DomainKind::Pvh && memory.0 % 2 == 0).then(shim);
        let host_map = kind == DomainKind::Pv && (options.host_map || !pci.is_empty());
        let options = GuestOptions { bootloader, machine, pci, rdm, shim, host_map, ..options };
        VmConfig {
            origin: Origin::default(),
            name,
            uuid: uuid.map(Uuid),
            kind,
            kernel: if is_hvm || options.bootloader.is_some() { kernel } else { Some(kernel.unwrap_or_else(|| "/k".to_owned())) },
            ramdisk,
            cmdline: cmdline.unwrap_or_default(),
            memory_mib: memory.0,
            memory_max_mib: memory.0 + memory.1,
            vcpus: vcpus.0,
            vcpus_max: vcpus.0 + vcpus.1,
            disks,
            vifs,
            served: ServedDevices::default(),
            policy: ShutdownPolicy { poweroff, reboot, crash, watchdog, soft_reset },
            tsc_mode,
            grant_frames_max,
            options,
            hvm: is_hvm.then(|| Box::new(hvm)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_kept_configuration_reads_back_to_the_same(config in vm_config()) {
        let text = config.to_cfg_text();
        let mut read = parse_with(&text, &[]).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        read.origin = Origin::default();
        prop_assert_eq!(read, config);
    }

    #[test]
    fn any_text_gets_an_answer_of_one_line(text in "\\PC{0,200}", key in "\\PC{0,20}") {
        if let Err(error) = parse_with(&text, &[&key]) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn any_mix_of_pieces_gets_an_answer_of_one_line(
        pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..60),
        bytes in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut text = pieces.concat();
        text.push_str(&String::from_utf8_lossy(&bytes));
        if let Err(error) = parse_with(&text, &[&text]) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

/// What configuration files are made of, to get further than noise would.
const PIECES: &[&str] = &[
    "name",
    "memory",
    "kernel",
    "disk",
    "vif",
    "type",
    "vfb",
    "uuid",
    "maxmem",
    " = ",
    "+=",
    "=",
    "[",
    "]",
    "'",
    "\"",
    "\\",
    "\\x",
    "#",
    ";",
    ",",
    "\n",
    "'/x,raw,xvda,w'",
    "'phy:/x,xvdb'",
    "phy:",
    ":/",
    "target=",
    "vdev=",
    "mac=",
    "00:16:3e:00:00:01",
    "rate=10Mb/s@20ms",
    "@",
    "'pv'",
    "'g'",
    "0x",
    "64",
    "-1",
    "é",
    "\0",
    "d0p0",
    "d",
    "xvd",
    "99999999999999999999",
];
