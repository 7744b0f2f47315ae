//! HVM domains, inspected as their loader does: through the information page, `ebx` and physical
//! memory.

use expect_test::expect;
use xen::Xen;
use xen_build::{
    BuildError, Built, HvmConfig, HvmLoader, TscMode, build_hvm, check_hvm, prepare_hvm,
};

use crate::fake::{DOMAIN, Fake};
use crate::kernels::code;
use crate::pv::CHANNELS;

const LOADER_AT: u32 = 0x10_0000;

/// A loader as Xen's: one segment with a bss.
fn loader_file(address: u32, entry: u32) -> Vec<u8> {
    let bytes = code(5000);
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2_u16, 3] {
        file.extend(half.to_le_bytes());
    }
    for word in [1, entry, 52, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    for half in [52_u16, 32, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [1, 84, address, address, 5000, 9000, 7, 16] {
        file.extend(word.to_le_bytes());
    }
    file.extend(bytes);
    file
}

fn config<'a>(loader: &'a HvmLoader, firmware: &'a [u8], mib: u64) -> HvmConfig<'a> {
    HvmConfig {
        loader,
        firmware,
        memory_pages: mib * 256,
        memory_pages_max: mib * 256,
        video_pages: 8 * 256,
        vcpus: 9,
        tsc_mode: TscMode::Native,
        apic: true,
        viridian: 0,
        hole_pages: None,
        acpi_tables: &[],
        smbios_structures: &[],
    }
}

struct Guest {
    fake: Fake,
    built: Built,
}

impl Guest {
    fn build(config: &HvmConfig<'_>) -> Self {
        let mut xen: Xen<Fake> = Fake::xen(true);
        prepare_hvm(&mut xen, DOMAIN, config).unwrap();
        let built = build_hvm(&mut xen, DOMAIN, config, &CHANNELS, &mut ()).unwrap();
        Self { fake: std::mem::take(xen.hypervisor()), built }
    }
}

#[test]
fn the_loader_finds_itself_its_firmware_and_the_machine() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT + 16)).unwrap();
    let firmware = code(0x2_0001);
    let guest = Guest::build(&config(&loader, &firmware, 64));
    let at = u64::from(LOADER_AT);
    assert_eq!(guest.fake.read(at, 5000), code(5000));
    assert!(guest.fake.read(at + 5000, 4000).iter().all(|byte| *byte == 0));
    assert_eq!(guest.built.entry, at + 16);
    assert_eq!(guest.built.pages, 56 * 256);

    // ebx.
    let start_info = guest.fake.register(520);
    assert_eq!(guest.fake.word(start_info), 1 << 32 | 0x336e_c578);
    assert_eq!(guest.fake.word(start_info + 8), 1 << 32);
    let module = guest.fake.word(start_info + 16);
    assert_eq!(guest.fake.word(module + 8), firmware.len() as u64);
    assert_eq!(guest.fake.read(guest.fake.word(module), firmware.len()), firmware);
    assert_eq!(guest.fake.read(guest.fake.word(module + 16), 9), b"firmware\0");

    let info = guest.fake.read(0x9f800, 48);
    assert_eq!(info.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    assert_eq!((&info[..8], info[8], info[13]), (&b"HVM INFO"[..], 48, 1));
    let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
    assert_eq!([16, 20, 24, 28].map(word), [9, 56 * 256, 0xfeff0, 0]);
    assert_eq!((info[32], info[33], info[34]), (0xff, 1, 0));
}

#[test]
fn the_screen_of_a_pc_has_no_memory_and_the_special_pages_are_empty() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let guest = Guest::build(&config(&loader, &[1; 4096], 64));
    let frames = guest.fake.frames();
    assert!(frames.iter().all(|frame| !(0xa0..0xc0).contains(frame)));
    assert_eq!(frames.iter().filter(|frame| **frame < 56 * 256).count(), 56 * 256 - 0x20);
    assert_eq!(frames.iter().filter(|frame| **frame >= 0xfe000).count(), 16);
    for frame in (0xfeff0..0xff000).filter(|frame| *frame != 0xfeffe) {
        assert!(guest.fake.read(frame << 12, 4096).iter().all(|byte| *byte == 0), "{frame:#x}");
    }
    assert_eq!(guest.fake.read((0xfeffe << 12) + 4092, 4), 0xffc0_00e7_u32.to_le_bytes());
    expect!["{1: feffc, 2: 1, 5: feffd, 6: feffb, c: feffe000, 11: fefff, 12: 2, 1b: feff8, 1c: feff9, 1d: feffa, 20: feff0, 21: 8}"]
        .assert_eq(&format!("{:x?}", guest.fake.hvm_params));
    assert_eq!(guest.fake.tsc_mode, Some(2));
    // Room for the screen and for the ROMs of cards.
    assert_eq!(guest.fake.memory_max_kib, 64 * 1024 + 2048);
}

#[test]
fn memory_beyond_the_hole_continues_at_4_gib() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let guest = Guest::build(&config(&loader, &[1; 4096], 4096 + 8));
    let info = guest.fake.read(0x9f800, 48);
    let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
    assert_eq!([20, 28].map(word), [0xf_0000, 0x11_0000]);
    let map: Vec<u64> = (guest.fake.memory_map.chunks_exact(20))
        .flat_map(|entry| {
            [&entry[..8], &entry[8..16]].map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        })
        .collect();
    assert_eq!(map, [0x10_0000, 0xeff0_0000, 0x1_0000_0000, 0x1000_0000]);
}

#[test]
fn a_larger_hole_takes_memory_from_below_and_tables_are_where_the_loader_is_told() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let (acpi, smbios) = (code(5000), code(77));
    let guest = Guest::build(&HvmConfig {
        hole_pages: Some(3840 * 256),
        acpi_tables: &acpi,
        smbios_structures: &smbios,
        ..config(&loader, &[1; 4096], 512 + 8)
    });
    let info = guest.fake.read(0x9f800, 48);
    let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
    assert_eq!([20, 28].map(word), [0x1_0000, 0x11_0000]);
    for (place, bytes) in [(guest.built.tables.acpi, acpi), (guest.built.tables.smbios, smbios)] {
        let (address, count) = place.unwrap();
        assert_eq!(count, bytes.len() as u64);
        assert_eq!(guest.fake.read(address, bytes.len()), bytes);
    }
}

#[test]
fn impossible_builds_are_refused_with_a_reason() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let small = check_hvm(&config(&loader, &[1; 4 << 20], 8)).unwrap_err();
    assert_eq!(
        small.to_string(),
        "memory = 8 MiB is too little: kernel, ramdisk and start-up tables need 14 MiB"
    );
    assert!(matches!(
        check_hvm(&config(&loader, &[], 64)),
        Err(BuildError::Firmware { bytes: 0, .. })
    ));
    let needs = check_hvm(&config(&loader, &[1; 4096], 64)).unwrap();
    assert_eq!(needs.memory_pages_min, 8 * 256 + 0x103 + 2);
}

#[test]
fn a_loader_is_a_32_bit_file_for_either_machine() {
    let mut file = loader_file(LOADER_AT, LOADER_AT);
    file[18] = 62;
    assert!(HvmLoader::parse(&file).is_ok());
    let wide = HvmLoader::parse(&crate::kernels::unikernel().bytes()).unwrap_err();
    assert!(wide.to_string().contains("is not a 32-bit ELF file"), "{wide}");
}

#[test]
fn a_damaged_loader_never_panics() {
    let whole = loader_file(LOADER_AT, LOADER_AT);
    for cut in 0..whole.len() {
        assert!(HvmLoader::parse(&whole[..cut]).is_err(), "{cut}");
    }
    for at in 0..84 {
        for bit in 0..8 {
            let mut file = whole.clone();
            file[at] ^= 1 << bit;
            // Whatever the result, no panic.
            let _: Result<HvmLoader, BuildError> = HvmLoader::parse(&file);
        }
    }
    let low = HvmLoader::parse(&loader_file(0x8_0000, 0x8_0000)).unwrap_err();
    assert!(low.to_string().contains("has a segment in the first MiB"), "{low}");
}

#[test]
fn memory_that_it_does_not_begin_with_is_in_its_map_and_comes_on_demand() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let more = HvmConfig { memory_pages_max: 136 * 256, ..config(&loader, &[1; 4096], 72) };
    let guest = Guest::build(&more);
    // Neither the screen's memory nor the hole for it is part of it.
    assert_eq!(guest.fake.on_demand, 64 * 256 - 0x20);
    let info = guest.fake.read(0x9f800, 48);
    assert_eq!(u32::from_le_bytes(info[20..24].try_into().unwrap()), 128 * 256);
    let frames = guest.fake.frames();
    assert_eq!(frames.iter().filter(|frame| **frame < 0xf0000).count(), 128 * 256 - 0x20);
    assert_eq!(guest.fake.memory_max_kib, (72 + 2) * 1024);
    // What is left of the claim is the screen's.
    assert_eq!(guest.fake.claimed, 8 * 256);
}

#[test]
fn memory_on_demand_that_the_host_does_not_have_leaves_no_claim() {
    let loader = HvmLoader::parse(&loader_file(LOADER_AT, LOADER_AT)).unwrap();
    let mut xen: Xen<Fake> = Fake::xen(true);
    xen.hypervisor().pages_left = 1 << 18;
    let more = HvmConfig { memory_pages_max: 8 << 18, ..config(&loader, &[1; 4096], 4096) };
    let refused = prepare_hvm(&mut xen, DOMAIN, &more).unwrap_err();
    assert!(matches!(refused, BuildError::HostMemory { got_pages: 0x4_0000, .. }), "{refused:?}");
    assert_eq!(xen.hypervisor().claimed, 0);
}
