//! Configuration files as users write them, the faults they have, and what the daemon keeps of them.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use toolstack::config::{
    Bios, Bootloader, ClockOffset, DiskBus, DiskConfig, DiskPlace, GuestOptions, HvmSettings,
    ImageFormat, Mac, Mode, ModelUser, OnHostShutdown, Origin, Rate, ServedDevices, ShutdownAction,
    ShutdownPolicy, SmbiosText, SoundCard, TscMode, UsbVersion, Vdev, Vga, VifConfig, VmConfig,
    Vnc,
};
use toolstack::xlcfg::{ConfigError, Source, Strictness, parse, read};
use xen::{DomainKind, Uuid};

fn parse_with(text: &str, overrides: &[&str]) -> Result<VmConfig, ConfigError> {
    let overrides: Vec<_> = overrides.iter().map(|&text| text.to_owned()).collect();
    parse(Source { file: "guest.cfg", text, overrides: &overrides })
}

/// What a minimal file and `more` give, without what no setting changed.
pub(crate) fn check(more: &str, overrides: &[&str], expected: &Expect) {
    let minimal = "name = 'g'\nkernel = '/k'\nmemory = 64\n";
    let default = parse_with(minimal, &[]).unwrap();
    let actual = match parse_with(&format!("{minimal}{more}"), overrides) {
        Ok(config) => differences(&default, &config),
        Err(error) => format!("{error}\n"),
    };
    expected.assert_eq(&actual);
}

fn differences(default: &VmConfig, config: &VmConfig) -> String {
    let (default, config) = (format!("{default:#?}"), format!("{config:#?}"));
    let old: Vec<_> = default.lines().collect();
    config
        .lines()
        .skip_while(|line| !line.starts_with("    name"))
        .filter(|line| !old.contains(line))
        .fold(String::new(), |mut out, line| {
            let _ = writeln!(out, "{}", line.trim());
            out
        })
}

pub(crate) fn check_error(text: &str, overrides: &[&str], expected: &str) {
    let message = parse_with(text, overrides).unwrap_err().to_string();
    assert_eq!(message, expected);
    assert!(!message.contains(char::is_control), "{message:?}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_debian_style_pv_guest_is_read() {
    let text = r#"
#
#  Kernel + memory size
#
kernel      = '/boot/vmlinuz-6.1.0-13-amd64'
extra       = 'elevator=noop'
ramdisk     = '/boot/initrd.img-6.1.0-13-amd64'

vcpus       = '2'
memory      = '512'

root        = '/dev/xvda2 ro'
disk        = [
                  'file:/srv/xen/web/disk.img,xvda2,w',
                  "phy:/dev/vg/web-swap,xvda1,w",
              ]

name        = 'web'
vif         = [ 'mac=00:16:3E:5A:01:02,bridge=br0' ]

on_poweroff = 'destroy'
on_reboot   = 'restart'
on_crash    = 'preserve'
"#;
    let config = parse_with(text, &["memory=640", "extra+= quiet"]).unwrap();
    expect![[r#"
        VmConfig {
            origin: Origin {
                file: "guest.cfg",
                lines: {
                    "disk": 13,
                    "disk[0]": 14,
                    "disk[1]": 15,
                    "kernel": 5,
                    "name": 18,
                    "on_crash": 23,
                    "on_poweroff": 21,
                    "on_reboot": 22,
                    "ramdisk": 7,
                    "root": 12,
                    "vcpus": 9,
                    "vif": 19,
                    "vif[0]": 19,
                },
            },
            name: "web",
            uuid: None,
            kind: Pv,
            kernel: Some(
                "/boot/vmlinuz-6.1.0-13-amd64",
            ),
            ramdisk: Some(
                "/boot/initrd.img-6.1.0-13-amd64",
            ),
            cmdline: "root=/dev/xvda2 ro elevator=noopquiet",
            memory_mib: 640,
            memory_max_mib: 640,
            vcpus: 2,
            vcpus_max: 2,
            disks: [
                DiskConfig {
                    vdev: Vdev {
                        name: "xvda2",
                        number: 51714,
                    },
                    target: "/srv/xen/web/disk.img",
                    format: Raw,
                    mode: ReadWrite,
                    cdrom: false,
                    discard: true,
                },
                DiskConfig {
                    vdev: Vdev {
                        name: "xvda1",
                        number: 51713,
                    },
                    target: "/dev/vg/web-swap",
                    format: Raw,
                    mode: ReadWrite,
                    cdrom: false,
                    discard: true,
                },
            ],
            vifs: [
                VifConfig {
                    devid: 0,
                    mac: Some(
                        Mac(
                            [
                                0,
                                22,
                                62,
                                90,
                                1,
                                2,
                            ],
                        ),
                    ),
                    bridge: "br0",
                    name: None,
                    ip: None,
                    mtu: None,
                    rate: None,
                    model: None,
                },
            ],
            served: ServedDevices {
                channels: [],
                screen: None,
                keyboards: [],
                folders: [],
                arguments: [],
                program: None,
            },
            policy: ShutdownPolicy {
                poweroff: Destroy,
                reboot: Restart,
                crash: Preserve,
                watchdog: Destroy,
                soft_reset: SoftReset,
            },
            tsc_mode: Default,
            grant_frames_max: None,
            options: GuestOptions {
                evtchn_port_max: None,
                maptrack_frames_max: None,
                grant_version_max: None,
                nested_virt: false,
                shadow_paging: false,
                cpuid: None,
                cpu_weight: None,
                cpu_cap: None,
                affinity: None,
                never_moves: false,
                clock: ClockOffset {
                    seconds: 0,
                    is_local: false,
                },
                on_host_shutdown: None,
                pool: None,
                paging_pool_mib: None,
                msr_relaxed: false,
                hardware: None,
                bootloader: None,
            },
            hvm: None,
        }
    "#]]
    .assert_debug_eq(&config);
}

#[test]
fn a_vm_that_is_never_saved_is_not_saved_with_its_host() {
    check_error(
        "name='g'\nkernel='/k'\nmemory=64\non_host_shutdown='save'; nomigrate=1",
        &[],
        "guest.cfg:4: nomigrate: the VM would not be saved, which on_host_shutdown = \"save\" asks for",
    );
}

#[test]
fn the_command_line_is_composed_as_xl_does() {
    let check = |more: &str, overrides: &[&str], expected: &str| {
        let text = format!("name='g'\nkernel='/k'\nmemory=64\n{more}");
        assert_eq!(parse_with(&text, overrides).unwrap().cmdline, expected);
    };
    check("", &[], "");
    check("extra = 'a b'", &[], "a b");
    check("root = '/dev/xvda ro'", &[], "root=/dev/xvda ro");
    check("root = '/dev/xvda'\nextra = 'a'", &[], "root=/dev/xvda a");
    check("cmdline = 'root=/x quiet'", &[], "root=/x quiet");
    check("root = '/dev/xvda'\nextra = 'a'", &["cmdline=all mine"], "all mine");
    check("extra = 'a'", &["extra+=\" b\""], "a b");
    let both = "name='g'\nkernel='/k'\nmemory=64\ncmdline='x'\nroot='/dev/xvda'";
    check("cmdline='x'\nroot='/dev/xvda'", &["extra=y"], "x");
    assert_eq!(
        findings(both, Strictness::Tolerant),
        ["g.cfg:5: warning: root: ignored: cmdline is the whole command line"]
    );
}

#[test]
fn the_kind_comes_from_type_or_from_the_old_builder() {
    let kind = |more: &str| {
        parse_with(&format!("name='g'\nkernel='/k'\nmemory=64\n{more}"), &[])
            .map(|config| config.kind)
            .map_err(|error| error.to_string())
    };
    let fails = |problem: &str| Err(format!("guest.cfg:4: {problem}"));
    assert_eq!(kind(""), Ok(DomainKind::Pv));
    assert_eq!(kind("type='pv'"), Ok(DomainKind::Pv));
    assert_eq!(kind("type='pvh'"), Ok(DomainKind::Pvh));
    assert_eq!(kind("builder='generic'"), Ok(DomainKind::Pv));
    assert_eq!(kind("builder='linux';type='pv'"), Ok(DomainKind::Pv));
    assert_eq!(kind("type='hvm'"), Ok(DomainKind::Hvm));
    assert_eq!(kind("builder='hvm'"), Ok(DomainKind::Hvm));
    assert_eq!(kind("builder='hvm';type='hvm'"), Ok(DomainKind::Hvm));
    assert_eq!(
        kind("builder='hvm';type='pvh'"),
        fails("builder: contradicts type; leave builder out")
    );
    assert_eq!(
        kind("type='p'"),
        fails("type: \"p\" is not a domain type; expected pv, pvh or hvm")
    );
    assert_eq!(
        kind("builder='xenner'"),
        fails("builder: \"xenner\" is not a builder; use type = \"pv\" instead")
    );
}

#[test]
fn an_hvm_guest_of_a_usual_kind_is_read() {
    let text = "name='w'\nbuilder='hvm'\nmemory=1024\nvnc=1\nvnclisten='0.0.0.0:2'\nvncpasswd='x'\n\
                disk=['/w.img,raw,hda,w', '/w.iso,raw,hdc:cdrom,r']\nboot='dc'\nusbdevice='tablet'\n\
                serial='pty'\nstdvga=1\nvideoram=32\nacpi=1\napic=1\npae=1\nviridian=0\n\
                vif=['model=e1000']\ndevice_model_version='qemu-xen'\nlocaltime=0\n";
    let config = parse_with(text, &[]).unwrap();
    assert_eq!((config.kind, config.kernel.as_deref()), (DomainKind::Hvm, None));
    let hvm = config.hvm.as_deref().unwrap();
    let vnc = hvm.vnc.as_ref().unwrap();
    assert_eq!(
        (vnc.listen.as_str(), vnc.display, vnc.password.as_deref()),
        ("0.0.0.0", Some(2), Some("x"))
    );
    assert_eq!((hvm.vga, hvm.video_mib, hvm.boot.as_str()), (Vga::Standard, 32, "dc"));
    assert_eq!((hvm.serial.as_slice(), hvm.usb), (&["pty".to_owned()][..], true));
    assert_eq!(
        config.emulated_disks().map(|(place, _)| place).collect::<Vec<_>>(),
        [DiskPlace::Ide(0), DiskPlace::Ide(2)]
    );
    assert_eq!(config.vifs[0].model.as_deref(), Some("e1000"));
    // Screen and its like mean nothing to others.
    let pvh =
        parse_with("name='w'\ntype='pvh'\nkernel='/k'\nmemory=8\nserial='pty'\nvga='none'", &[]);
    assert_eq!(pvh.unwrap().hvm, None);
}

#[test]
fn a_misspelt_key_is_named_with_its_line_and_the_key_that_was_meant() {
    check_error(
        "name = 'g'\n\nmemroy = 64\ncolour = 'red'\n",
        &[],
        "guest.cfg:3: memroy: unknown key; did you mean memory?",
    );
    check_error(
        "name = 'g'\n",
        &["vcpsu=2"],
        "command line: vcpsu: unknown key; did you mean vcpus?",
    );
}

#[test]
fn a_meaning_that_would_be_lost_is_refused() {
    let check = |more: &str, expected: &str| {
        let text = format!("name='g'\nkernel='/k'\nmemory=64\n{more}\n");
        check_error(&text, &[], &format!("guest.cfg:4: {expected}"));
    };
    check("pci = [ '01:00.0' ]", "pci: not supported yet");
    check("cpus = '0-3,x'", "cpus: \"0-3,x\" is no list of CPUs: \"x\" is no number and no range");
    check("type = 'pvh'; acpi = 0", "acpi: PVH domains always have ACPI");
    check(
        "tsc_mode = 'native_paravirt'",
        "tsc_mode: native_paravirt is gone from Xen; expected default, always_emulate or native",
    );
}

/// All that is wrong with a file, warnings last.
fn findings(text: &str, strictness: Strictness) -> Vec<String> {
    let reading = read(Source { file: "g.cfg", text, overrides: &[] }, strictness);
    reading.faults.iter().map(ToString::to_string).chain(reading.warnings).collect()
}

#[test]
fn keys_of_other_tools_pass_with_a_warning_and_are_faults_if_one_wants_that() {
    let text = "name = 'g'; kernel = '/k'; memory = 64\ndhcp = 'dhcp'\ncolour = 'red'\ncpu = '2'\n\
                vfb = [ 'type=vnc' ]\nshadow_memory = 8\nvncviewer = 1\n";
    let expected = expect![[r#"
        g.cfg:2: warning: dhcp: ignored, as xl ignores it
        g.cfg:3: warning: colour: unknown key, ignored
        g.cfg:4: warning: cpu: ignored, as xl ignores it; use cpus
        g.cfg:5: warning: vfb[0]: "type=vnc" is ignored, as xl ignores it"#]];
    expected.assert_eq(&findings(text, Strictness::Tolerant).join("\n"));
    let config = read(Source { file: "g.cfg", text, overrides: &[] }, Strictness::Tolerant).config;
    assert_eq!(config, parse(Source { file: "g.cfg", text, overrides: &[] }).ok());
    let strict = findings(text, Strictness::Strict);
    assert_eq!(strict.len(), 4);
    assert_eq!(strict[1], "g.cfg:3: colour: unknown key, ignored");
}

#[test]
fn an_hvm_guest_s_warnings_speak_of_hvm() {
    let text = "name = 'g'; type = 'hvm'; memory = 64\nvnc = 1\nsdl = 1\nsoundhw = 'hda'\n\
                timer_mode = 2\ndevice_model = '/q'\n";
    let expected = expect![[r#"
        g.cfg:3: warning: sdl: ignored: no window is opened in domain 0; an HVM domain has vnc = 1
        g.cfg:5: warning: timer_mode: ignored: no_delay_for_missed_ticks is used
        g.cfg:6: warning: device_model: ignored, as xl ignores it; use device_model_override"#]];
    expected.assert_eq(&findings(text, Strictness::Tolerant).join("\n"));
}

#[test]
fn all_faults_of_a_file_are_found_at_once() {
    let text = "name = '7'\nmemroy = 64\nkernel = ''\nvcpus = 'x'\npci = [ '1:0.0' ]\n\
                disk = [ 'nonsense', '/a,raw,xvda,w', '/b,raw,xvda,w' ]\n\
                vif = [ 'mac=1', 'bridge=', 'devid=2', 'devid=2' ]\n\
                on_crash = 'explode'\non_reboot = 'dance'\ntsc_mode = 9\nuuid = 'u'\n";
    let found = findings(text, Strictness::Tolerant);
    let keys: Vec<_> = found.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(
        keys,
        [
            "name",
            "memroy",
            "vcpus",
            "pci",
            "disk[0]",
            "disk[2]",
            "vif[0]",
            "vif[1]",
            "vif[3]",
            "on_crash",
            "on_reboot",
            "tsc_mode",
            "uuid",
            "kernel"
        ],
        "{found:#?}"
    );
    let broken = findings("name = g\nkernel = '/k\nmemory = [\n", Strictness::Tolerant);
    expect![[r#"
        g.cfg:1: name: "g" needs quotes around it
        g.cfg:2: kernel: the string has no closing quote on its line
        g.cfg:3: memory: the list has no closing ]"#]]
    .assert_eq(&broken.join("\n"));
}

#[test]
fn what_is_missing_is_named() {
    check_error("", &[], "guest.cfg: name: missing; every VM has one, as in name = \"guest\"");
    check_error("name='g'", &[], "guest.cfg: memory: missing; in MiB, as in memory = 512");
    check_error(
        "name='g'\nmemory=64",
        &[],
        "guest.cfg: kernel: missing; name the guest's kernel image, as in kernel = \"/boot/vmlinuz\"",
    );
    check_error(
        "name='g'\nmemory=64\nkernel=''",
        &[],
        "guest.cfg: kernel: missing; name the guest's kernel image, as in kernel = \"/boot/vmlinuz\"",
    );
}

#[test]
fn maxmem_alone_is_the_memory() {
    let config = parse_with("name='g'\nkernel='/k'\nmaxmem=64", &[]).unwrap();
    assert_eq!((config.memory_mib, config.memory_max_mib), (64, 64));
}

#[test]
fn values_out_of_range_or_of_another_type_are_named() {
    let check = |more: &str, expected: &str| {
        let text = format!("name='g'\nkernel='/k'\n{more}\nmemory=64\n");
        check_error(&text, &[], &format!("guest.cfg:3: {expected}"));
    };
    check("vcpus=0", "vcpus: 0 is out of range; expected 1 to 128");
    check("vcpus=129", "vcpus: 129 is out of range; expected 1 to 128");
    check("vcpus='two'", "vcpus: \"two\" is not a whole number");
    check("vcpus=[1]", "vcpus: expected one value instead of a list");
    check("maxvcpus=-1", "maxvcpus: -1 is out of range; expected 1 to 128");
    check("vcpus=4;maxvcpus=2", "maxvcpus: 2 is less than vcpus, 4");
    check("maxmem=32", "maxmem: 32 MiB is less than memory, 64 MiB");
    check("maxmem=16777217", "maxmem: 16777217 is out of range; expected 1 to 16777216");
    check("maxmem=99999999999999999999", "maxmem: \"99999999999999999999\" is not a whole number");
    check("disk='/x,raw,xvda,w'", "disk: expected a list, as in disk = [ '...' ]");
    check("disk=[['x']]", "disk[0]: expected a string instead of a list");
    check(
        "uuid='1234'",
        "uuid: \"1234\": not a UUID: expected 32 hexadecimal digits as in 01234567-89ab-cdef-0123-456789abcdef",
    );
    check("uuid='00000000-0000-0000-0000-000000000000'", "uuid: all zeros is domain 0's UUID");
    check(
        "on_crash='explode'",
        "on_crash: \"explode\" is not an action; expected one of destroy, restart, rename-restart, preserve, coredump-destroy, coredump-restart, soft-reset",
    );
    check("max_grant_frames=0", "max_grant_frames: 0 is out of range; expected 1 to 65535");
    check(
        "tsc_mode='fast'",
        "tsc_mode: \"fast\" is not a mode; expected default, always_emulate or native",
    );
    check("ramdisk='/a\\nb'", "ramdisk: \"/a\\nb\": expected no control characters");
    check_error(
        "name='g'\nmemory=0",
        &[],
        "guest.cfg:2: memory: 0 is out of range; expected 1 to 16777216",
    );
    check_error(
        "name='g'",
        &["memory=-5"],
        "command line: memory: -5 is out of range; expected 1 to 16777216",
    );
}

#[test]
fn a_name_must_be_usable_as_one() {
    let check = |name: &str, expected: &str| {
        check_error(&format!("name = '{name}'"), &[], &format!("guest.cfg:1: name: {expected}"));
    };
    check("", "\"\" is empty");
    check("7", "\"7\" would be read as a domain ID");
    check("a/b", "\"a/b\" contains a /");
    check(" a", "\" a\" begins or ends with a space");
    check("a\\tb", "\"a\\tb\": expected no control characters");
    check(
        "01234567-89ab-cdef-0123-456789abcdef",
        "\"01234567-89ab-cdef-0123-456789abcdef\" would be read as a UUID",
    );
    let long = "n".repeat(256);
    let shown = "n".repeat(80);
    check(&long, &format!("\"{shown}...\" is longer than 255 bytes"));
}

#[test]
fn devices_name_their_place_and_do_not_collide() {
    let check = |more: &str, expected: &str| {
        let text = format!("name='g'\nkernel='/k'\nmemory=64\n{more}");
        check_error(&text, &[], &format!("guest.cfg:{expected}"));
    };
    check(
        "disk = [\n '/a,raw,xvda,w',\n '/b,raw,d0p0,w' ]",
        "6: disk[1]: vdev d0p0 is used by disk[0] already",
    );
    check(
        "disk = [ '/a,vmdk,xvda,w' ]",
        "4: disk[0]: \"vmdk\" is no known format; expected raw, qcow, qcow2, qed, vhd or empty",
    );
    check(
        "vif = [ '', 'mac=00:16:3e:00:00:01',\n'mac=00:16:3e:00:00:01' ]",
        "5: vif[2]: mac 00:16:3e:00:00:01 is used by vif[1] already",
    );
    check("vif = [ 'devid=1', '' ]", "4: vif[1]: devid 1 is used by vif[0] already");
    check(
        "vif = [ 'mac=xx' ]",
        "4: vif[0]: mac=\"xx\": not an Ethernet address: expected six pairs of hexadecimal digits as in 00:16:3e:01:02:03",
    );
}

#[test]
fn a_syntax_error_names_its_line() {
    check_error(
        "name = 'g'\nkernel = /boot/k\n",
        &[],
        "guest.cfg:2: kernel: \"/boot/k\" needs quotes around it",
    );
    check_error(
        "name = 'g'\nimport os\n",
        &[],
        "guest.cfg:2: import: expected = after the key instead of \"os\"",
    );
    check_error("", &["paused"], "command line: \"paused\": expected key=value");
}

#[test]
fn an_ugly_file_name_stays_on_one_line() {
    let error = parse(Source { file: "a\nb", text: "", overrides: &[] }).unwrap_err();
    assert_eq!(error.to_string(), "a\\nb: name: missing; every VM has one, as in name = \"guest\"");
}

#[test]
fn two_hundred_and_fifty_six_disks_have_numbers_of_their_own() {
    let mut text = "name='g'\nkernel='/k'\nmemory=64\ndisk=[\n".to_owned();
    for disk in 0..256 {
        writeln!(text, "'/d{disk},raw,d{disk}p0,w',").unwrap();
    }
    text.push(']');
    let config = parse_with(&text, &[]).unwrap();
    assert_eq!(config.disks.len(), 256);
    assert_eq!(config.disks[15].vdev.number, 51952);
    assert_eq!(config.disks[16].vdev.number, 268_439_552);
    assert_eq!(config.disks[255].vdev.number, 268_500_736);
}

#[test]
fn the_text_kept_for_a_restart_is_plain() {
    let config = parse_with(
        "name='g \"1\"'\nkernel='/k'\nmemory=64\ntype='pvh'\nuuid='01234567-89ab-cdef-0123-456789abcdef'\n\
         disk=['/a,raw,xvda,w', '/c.iso,,hdc,cdrom']\nvif=['rate=10Mb/s,mac=00:16:3e:00:00:01']\n\
         extra='console=hvc0'\nmax_grant_frames=64",
        &[],
    )
    .unwrap();
    expect![[r#"
        name = "g \"1\""
        uuid = "01234567-89ab-cdef-0123-456789abcdef"
        type = "pvh"
        kernel = "/k"
        cmdline = "console=hvc0"
        memory = 64
        maxmem = 64
        vcpus = 1
        maxvcpus = 1
        disk = [
          "format=raw,vdev=xvda,access=w,target=/a",
          "format=raw,vdev=hdc,access=r,devtype=cdrom,target=/c.iso",
        ]
        vif = [
          "devid=0,bridge=xenbr0,mac=00:16:3e:00:00:01,rate=1250000B/s@50000us",
        ]
        on_poweroff = "destroy"
        on_reboot = "restart"
        on_crash = "destroy"
        on_watchdog = "destroy"
        on_soft_reset = "soft-reset"
        tsc_mode = "default"
        max_grant_frames = 64
    "#]]
    .assert_eq(&config.to_cfg_text());
}

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
    let disk = (0u32..1000, 0u32..256, text(), format, mode, any::<bool>(), any::<bool>());
    proptest::collection::vec(disk, 0..5).prop_map(|disks| {
        let mut disks: Vec<DiskConfig> = disks
            .into_iter()
            .map(|(disk, partition, target, format, mode, cdrom, discard)| DiskConfig {
                vdev: format!("d{disk}p{partition}").parse::<Vdev>().unwrap(),
                format: if target.contains(':') { ImageFormat::Raw } else { format },
                target,
                mode: if cdrom { Mode::ReadOnly } else { mode },
                cdrom,
                discard,
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
    let vif =
        ("[a-z][a-z0-9.-]{0,14}", mac, proptest::option::of(68u32..=65535), rate, any::<bool>());
    proptest::collection::vec(vif, 0..5).prop_map(|vifs| {
        let mut vifs: Vec<VifConfig> = vifs
            .into_iter()
            .zip(0..)
            .map(|((bridge, mac, mtu, rate, named), devid)| VifConfig {
                model: None,
                devid,
                mac: mac.map(|([b, c, d, e, f], half)| Mac([half * 2, b, c, d, e, f])),
                bridge,
                name: named.then(|| format!("lan{devid}")),
                ip: named.then(|| "10.0.0.2 fe80::1/64".to_owned()),
                mtu,
                rate: rate.map(|(bytes, interval_us)| Rate { bytes, interval_us }),
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
    fn hvm()(
        paths in proptest::array::uniform4(proptest::option::of(text())),
        card in proptest::sample::select(Vga::ALL.to_vec()),
        video in 4u32..8,
        vnc in proptest::option::of(("[a-z0-9.]{1,10}", proptest::option::of(0u16..1000), proptest::option::of(text()))),
        words in proptest::collection::vec(text(), 0..3),
        usb in any::<bool>(),
        tablet in any::<bool>(),
        flags in proptest::array::uniform5(any::<bool>()),
        ovmf in any::<bool>(),
        boot in "[cdna]{1,3}",
        user in 0..3,
        viridian in proptest::sample::select(vec![0, 1, 3, 0xb, 0x187, 0x1865, 0x1ffd, 0x1fff]),
    ) -> HvmSettings {
        let [loader, bios_path, model, _] = paths;
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
            serial: words.clone(),
            usb: usb || tablet,
            usb_devices,
            usb_version: (!usb).then_some(UsbVersion::Three),
            sound: tablet.then_some(SoundCard::Hda),
            disk_bus: if ovmf { DiskBus::Ahci } else { DiskBus::Ide },
            vendor_device: ovmf,
            apic: !tablet,
            acpi: flags[0],
            acpi_s3: flags[1],
            acpi_s4: flags[2],
            hpet: flags[3],
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
        memory in (1u64..1 << 23, 0u64..1 << 23),
        vcpus in (1u32..=64, 0u32..=64),
        disks in disks(),
        vifs in vifs(),
        actions in (action(), action(), action(), action(), action()),
        tsc_mode in proptest::sample::select(vec![TscMode::Default, TscMode::AlwaysEmulate, TscMode::Native]),
        grant_frames_max in proptest::option::of(1u16..),
        options in options(),
        bootloader in proptest::option::of((
            "/?[a-z]{1,8}",
            proptest::collection::vec("[ -~]{1,9}", 0..3),
            proptest::option::of("[a-q]{1,9}"),
        )),
    ) -> VmConfig {
        let (poweroff, reboot, crash, watchdog, soft_reset) = actions;
        let is_hvm = kind == DomainKind::Hvm;
        let has_disk = disks.first().is_some_and(|disk| !disk.is_empty());
        let bootloader = bootloader.filter(|_| has_disk && !is_hvm);
        let bootloader = bootloader
            .map(|(program, arguments, user)| Box::new(Bootloader { program, arguments, user }));
        let options = GuestOptions { bootloader, ..options };
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
