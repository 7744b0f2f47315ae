//! Configuration files as users write them, the faults they have, and what the daemon keeps of them.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use toolstack::config::{DiskPlace, Vga, VmConfig};
use toolstack::xlcfg::{ConfigError, Source, Strictness, parse, read};
use xen::DomainKind;

pub(crate) fn parse_with(text: &str, overrides: &[&str]) -> Result<VmConfig, ConfigError> {
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
                    script: None,
                    trust: Trusted,
                    backend: None,
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
                    script: None,
                    trust: Trusted,
                    backend: None,
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
                    script: None,
                    gateway: None,
                    trust: Trusted,
                    backend: None,
                    antispoof: false,
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
                machine: MachineOptions {
                    altp2m: Disabled,
                    altp2m_count: None,
                    timer_mode: NoDelay,
                    timers_aligned: true,
                    pirqs: false,
                    vpmu: false,
                    trace_kib: 0,
                    out_of_sync: true,
                    passthrough: Default,
                },
                pci: [],
                rdm: None,
                host_map: false,
                is_driver_domain: false,
                shim: None,
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
    check(
        "vnuma = [ ['pnode=0'] ]",
        "vnuma: guests get no NUMA topology of their own; xl gives one to HVM domains only",
    );
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
        g.cfg:3: warning: sdl: ignored: no window is opened in domain 0; vnc or spice shows the screen
        g.cfg:6: warning: device_model: ignored, as xl ignores it; use device_model_override"#]];
    expected.assert_eq(&findings(text, Strictness::Tolerant).join("\n"));
}

#[test]
fn all_faults_of_a_file_are_found_at_once() {
    let text = "name = '7'\nmemroy = 64\nkernel = ''\nvcpus = 'x'\npci = [ '1:0' ]\n\
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
            "pci[0]",
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
