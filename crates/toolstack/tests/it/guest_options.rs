//! Keys that few guests set, and what guests of xl's find that few look for.

use crate::xlcfg::check_error;
use expect_test::expect;
use toolstack::layout::{self, Backends};
use toolstack::xlcfg::parse_vif;
use xen::{DomId, Uuid};

use crate::xlcfg::check;

#[test]
fn a_share_of_the_cpus_is_in_the_range_that_libxl_takes() {
    check(
        "vcpus = 2\ncpu_weight = 512\ncap = 200",
        &[],
        &expect![[r#"
        vcpus: 2,
        vcpus_max: 2,
        cpu_weight: Some(
        512,
        ),
        cpu_cap: Some(
        200,
        ),
    "#]],
    );
    check(
        "cpu_weight = 256\ncap = 0",
        &[],
        &expect![[r#"
        cpu_weight: Some(
        256,
        ),
    "#]],
    );
    check(
        "cpu_weight = 0",
        &[],
        &expect![[r#"
        guest.cfg:4: cpu_weight: 0 is out of range; expected 1 to 65535
    "#]],
    );
    check(
        "vcpus = 2\ncap = 201",
        &[],
        &expect![[r#"
        guest.cfg:5: cap: 201 is above 200, all of 2 vCPUs
    "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn limits_paging_and_nesting_are_taken_as_xl_takes_them() {
    check(
        "max_event_channels = 4096\nmax_grant_version = 1\nmax_maptrack_frames = 0\n\
         max_grant_frames = 9\nnestedhvm = 1\nhap = 0\n",
        &[],
        &expect![[r#"
            grant_frames_max: Some(
            9,
            evtchn_port_max: Some(
            4096,
            ),
            maptrack_frames_max: Some(
            0,
            ),
            grant_version_max: Some(
            1,
            ),
            nested_virt: true,
            shadow_paging: true,
        "#]],
    );
    check("max_event_channels = 0\nhap = 1\nnestedhvm = 0\ncpuid = 'host'\n", &[], &expect![[""]]);
    check(
        "max_grant_version = 3",
        &[],
        &expect![[r#"
        guest.cfg:4: max_grant_version: 3 is out of range; expected 1 to 2
    "#]],
    );
    check(
        "type = 'hvm'\nviridian = [ 'base', 'stimer' ]",
        &[],
        &expect![[r#"
            kind: Hvm,
            hvm: Some(
            HvmSettings {
            loader: None,
            bios: SeaBios,
            bios_path: None,
            boot: "cda",
            vga: Cirrus,
            video_mib: 8,
            vnc: Some(
            Vnc {
            listen: "127.0.0.1",
            display: None,
            password: None,
            },
            ),
            spice: None,
            keymap: None,
            nographic: false,
            serial: [],
            usb: false,
            usb_devices: [],
            usb_version: None,
            sound: None,
            disk_bus: Ide,
            vendor_device: false,
            apic: true,
            acpi: true,
            acpi_s3: true,
            acpi_s4: true,
            hpet: true,
            generation_id: false,
            viridian: 391,
            platform_device: true,
            model: None,
            model_user: Restricted,
            model_arguments: [],
            laptop_slate: false,
            pae: true,
            lmce: false,
            hole_mib: None,
            smbios: [],
            acpi_tables: None,
            smbios_structures: None,
        "#]],
    );
    check(
        "type = 'hvm'\nviridian = [ 'stimer' ]",
        &[],
        &expect![[r#"
        guest.cfg:5: viridian: every other group needs the group base
    "#]],
    );
    check(
        "type = 'hvm'\nviridian = [ 'hyperv' ]",
        &[],
        &expect![[r#"
        guest.cfg:5: viridian: "hyperv": no such group; there are all, defaults, base, freq, time_ref_count, reference_tsc, hcall_remote_tlb_flush, apic_assist, crash_ctl, synic, stimer, hcall_ipi, ex_processor_masks, no_vp_limit, cpu_hotplug
    "#]],
    );
    check("viridian = 1", &[], &expect![[""]]);
}

#[test]
fn cpuid_is_taken_in_either_syntax() {
    check(
        "cpuid = 'host,rdtscp=0'",
        &[],
        &expect![[r#"
        cpuid: Some(
        CpuidConfig {
        text: Words(
        "host,rdtscp=0",
        ),
        registers: [
        CpuidOverride {
        leaf: 2147483649,
        subleaf: 4294967295,
        register: Edx,
        bits: BitPolicy {
        ones: 0,
        host: 0,
        default: 4160749567,
        },
        },
        ],
        msrs: [],
        },
        ),
    "#]],
    );
    check(
        "cpuid = [ '0x80000001:edx=xxxx0xxxxxxxxxxxxxxxxxxxxxxxxxxx' ]",
        &[],
        &expect![[r#"
        cpuid: Some(
        CpuidConfig {
        text: Leaves(
        [
        "0x80000001:edx=xxxx0xxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ],
        ),
        registers: [
        CpuidOverride {
        leaf: 2147483649,
        subleaf: 4294967295,
        register: Edx,
        bits: BitPolicy {
        ones: 0,
        host: 0,
        default: 4160749567,
        },
        },
        ],
        msrs: [],
        },
        ),
    "#]],
    );
    check(
        "cpuid = 'host,rdtspc=0'",
        &[],
        &expect![[r#"
        guest.cfg:4: cpuid: "rdtspc=0": no CPU feature has this name; did you mean rdtscp?
    "#]],
    );
    check(
        "cpuid = [\n'1:eax=1' ]",
        &[],
        &expect![[r#"
        guest.cfg:5: cpuid[0]: "1:eax=1": a register has exactly 32 bits, of 0, 1, x, k and s
    "#]],
    );
}

#[test]
fn a_frontend_reads_its_mtu() {
    for (more, in_frontend, in_backend) in
        [("", Some("1500"), None), (",mtu=9000", Some("9000"), Some("9000"))]
    {
        let vif = parse_vif(&format!("bridge=b{more}"), 0).unwrap();
        let nodes = layout::plugged_vif_nodes(DomId(7), Uuid([1; 16]), &vif, &Backends::default());
        let value = |end: &str| {
            let path = format!("{end}/mtu");
            nodes.0.iter().find(|node| node.path == path).map(|node| node.value.as_str())
        };
        assert_eq!(value("/local/domain/7/device/vif/0"), in_frontend, "{more}");
        assert_eq!(value("/local/domain/0/backend/vif/7/0"), in_backend, "{more}");
    }
}

#[test]
fn keys_that_do_nothing_without_a_device_model_are_taken() {
    check(
        "vfb = []\nserial = 'pty'\nvnc = 0\nvnclisten = '0.0.0.0'\nsdl=0\nboot='c'\nvga='none'\n\
         pci = [ ]\nbootloader = ''\nlocaltime = 0\ncap = 0\nacpi = 0\nspice=1\n",
        &[],
        &expect![""],
    );
}

#[test]
fn numbers_may_be_quoted_or_hexadecimal() {
    check(
        "vcpus = '2'; maxvcpus = 0x4; maxmem = '0x80'\nmax_grant_frames = 128\ntsc_mode = 2",
        &[],
        &expect![[r#"
            memory_max_mib: 128,
            vcpus: 2,
            vcpus_max: 4,
            tsc_mode: Native,
            grant_frames_max: Some(
            128,
        "#]],
    );
}

#[test]
fn what_an_hvm_guest_cannot_have_is_said() {
    for (line, problem) in [
        ("mmio_hole=64", "mmio_hole: 64 is out of range; expected 256 to 3840"),
        ("mca_caps=['cmci']", "mca_caps[0]: \"cmci\": expected lmce"),
        ("smbios=['oem']", "smbios[0]: \"oem\": expected KEY=TEXT"),
        ("smbios=['oem=']", "smbios[0]: oem: expected a text without control characters"),
        ("smbios=['bios_vendor=a', 'bios_vendor=b']", "smbios[1]: bios_vendor: at most 1"),
        ("viridian=['freq']", "viridian: every other group needs the group base"),
        ("vga='vmware'", "vga: \"vmware\": expected stdvga, cirrus, qxl or none"),
        ("vga='qxl'; videoram=64", "videoram: 64 MiB is too little; qxl needs 128"),
        ("videoram=4", "videoram: 4 MiB is too little; cirrus needs 8"),
        ("videoram=12", "videoram: 12 MiB: expected a power of two"),
        ("bios='rombios'", "bios: \"rombios\": expected seabios or ovmf"),
        ("boot='x'", "boot: \"x\": expected letters of c, d, n and a"),
        ("vnclisten='a,b'", "vnclisten: \"a,b\": expected no comma"),
        ("vnclisten='a:b'", "vnclisten: \"a:b\": expected ADDRESS or ADDRESS:DISPLAY"),
        ("usbdevice='host:1'", "usbdevice: \"host:1\": expected one of tablet, mouse, keyboard"),
        (
            "device_model_version='qemu-xen-traditional'",
            "device_model_version: only qemu-xen is supported",
        ),
        (
            "usb=1; usbversion=2",
            "usbversion: not together with usb or usbdevice, which have a controller of version 1",
        ),
        ("vnclisten='::1:1'; vncdisplay=2", "vncdisplay: vnclisten has a display already"),
        ("ms_vm_genid='1234'", "ms_vm_genid: \"1234\": expected one of none, generate"),
        ("spice=1", "spice: needs a port, spiceport or spicetls_port"),
        (
            "spice=1; spiceport=1",
            "spice: needs a password, spicepasswd, or spicedisable_ticketing = 1",
        ),
        (
            "spice=1; spiceport=1; spicepasswd='a'; vncpasswd='b'",
            "spicepasswd: not another one than vncpasswd: QEMU is told one for both",
        ),
        (
            "spice=1; spiceport=1; spicepasswd='a'; spiceusbredirection=5",
            "spiceusbredirection: 5 is out of range; expected 0 to 4",
        ),
        (
            "spice=1; spiceport=1; spicepasswd='a'; spiceusbredirection=1; usb=1",
            "spiceusbredirection: not together with usb or usbdevice, which have a controller of version 1",
        ),
        (
            "spice=1; spiceport=1; spicepasswd='a'; spice_streaming_video='on'",
            "spice_streaming_video: \"on\": expected one of off, all, filter",
        ),
        ("hdtype='scsi'", "hdtype: \"scsi\": expected one of ide, ahci"),
        (
            "soundhw='all'",
            "soundhw: \"all\": expected one of ac97, adlib, cs4231a, es1370, gus, hda, sb16",
        ),
        ("vendor_device='other'", "vendor_device: \"other\": expected one of none, xenserver"),
        ("firmware='rombios'", "firmware: \"rombios\": expected seabios or ovmf"),
        (
            "disk=['/a,raw,hda,w', '/b,raw,xvda,w']",
            "disk[1]: xvda and hda are the same emulated disk; rename one",
        ),
        (
            "disk=['/a,raw,hdb,r']",
            "disk[0]: an emulated disk cannot be read-only; use devtype=cdrom, or xvdb instead of hdb",
        ),
    ] {
        let text = format!("name='w'\ntype='hvm'\nmemory=64\n{line}\n");
        check_error(&text, &[], &format!("guest.cfg:4: {problem}"));
    }
}
