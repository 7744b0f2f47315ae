//! PVH domains, inspected as their kernel does: through `ebx` and physical memory.

use expect_test::expect;
use xen::{DomainKind, PAGE_BYTES, Xen};
use xen_build::{BuildConfig, Built, KernelImage, Shimmed, TscMode};

use crate::fake::{DOMAIN, Fake};
use crate::kernels::{self, code};
use crate::pv::{CHANNELS, config};

struct Guest {
    fake: Fake,
    built: Built,
    calls: String,
}

impl Guest {
    fn build(config: &BuildConfig<'_>) -> Self {
        let mut xen: Xen<Fake> = Fake::xen(true);
        let built = xen_build::build(&mut xen, DOMAIN, config, &CHANNELS, &mut ()).unwrap();
        let calls = xen.counters().iter().map(|(name, n)| format!("{name} {n}\n")).collect();
        let fake = std::mem::take(xen.hypervisor());
        Self { fake, built, calls }
    }
}

#[test]
fn linux_finds_everything_through_start_info() {
    let elf = kernels::linux();
    let kernel = KernelImage::parse(&elf.bytes()).unwrap();
    let ramdisk = code(2 * PAGE_BYTES + 7);
    let config = BuildConfig {
        ramdisk: Some(&ramdisk),
        tsc_mode: TscMode::Native,
        ..config(DomainKind::Pvh, &kernel, 64)
    };
    let guest = Guest::build(&config);
    for (address, bytes, memory) in &elf.segments {
        let loaded = guest.fake.read(*address, usize::try_from(*memory).unwrap());
        assert!(loaded.starts_with(bytes));
        assert!(loaded[bytes.len()..].iter().all(|byte| *byte == 0));
    }
    assert_eq!((guest.fake.register(640), guest.built.entry), (0x100_0050, 0x100_0050));
    // Protected mode without paging; flat code segment.
    assert_eq!((guest.fake.register(656), guest.fake.register(888)), (0x11, 0xc93_0000_0c9b));

    let start_info = guest.fake.register(520);
    assert_eq!(guest.fake.word(start_info), 1 << 32 | 0x336e_c578);
    assert_eq!(guest.fake.word(start_info + 8), 1 << 32);
    let module = guest.fake.word(start_info + 16);
    assert_eq!(guest.fake.word(module + 8), ramdisk.len() as u64);
    assert_eq!(guest.fake.read(guest.fake.word(module), ramdisk.len()), ramdisk);
    assert_eq!(guest.fake.read(guest.fake.word(start_info + 24), 19), b"console=hvc0 quiet\0");
    assert_eq!(guest.fake.read(guest.fake.word(start_info + 32), 8), b"RSD PTR ");
    // The map is the one set in Xen.
    let map = guest.fake.word(start_info + 40);
    for (index, entry) in guest.fake.memory_map.chunks_exact(20).enumerate() {
        assert_eq!(guest.fake.read(map + index as u64 * 24, 20), entry);
    }
    assert_eq!(guest.fake.word(start_info + 48), guest.fake.memory_map.len() as u64 / 20);
    assert_eq!(guest.fake.tsc_mode, Some(2));
}

#[test]
fn a_shim_finds_the_kernel_that_it_runs_before_the_ramdisk() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    let (image, ramdisk) = (code(PAGE_BYTES + 3), code(77));
    let config = BuildConfig {
        ramdisk: Some(&ramdisk),
        shimmed: Some(Shimmed { image: &image, cmdline: "root=/dev/xvda" }),
        cmdline: "pv-shim",
        ..config(DomainKind::Pvh, &kernel, 64)
    };
    let guest = Guest::build(&config).fake;
    let start_info = guest.register(520);
    assert_eq!(guest.word(start_info + 8) >> 32, 2);
    assert_eq!(guest.read(guest.word(start_info + 24), 8), b"pv-shim\0");
    let modules = guest.word(start_info + 16);
    let module = |at: u64| {
        let length = usize::try_from(guest.word(at + 8)).unwrap();
        guest.read(guest.word(at), length)
    };
    assert_eq!((module(modules), module(modules + 32)), (image, ramdisk));
    assert_eq!(guest.read(guest.word(modules + 16), 15), b"root=/dev/xvda\0");
    assert_eq!(guest.word(modules + 48), 0);
}

#[test]
fn rings_are_empty_and_known_by_parameter_and_grant() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    let guest = Guest::build(&config(DomainKind::Pvh, &kernel, 8));
    assert_eq!((guest.built.store_frame, guest.built.console_frame), (0xfeffc, 0xfefff));
    for frame in [0xfeffc, 0xfefff] {
        assert!(guest.fake.read(frame << 12, PAGE_BYTES).iter().all(|byte| *byte == 0));
    }
    // Entries 1023 of the page table that Xen may use: the last 4 MiB, as themselves.
    assert_eq!(guest.fake.read((0xfeffe << 12) + 4092, 4), 0xffc0_00e7_u32.to_le_bytes());
    expect!["{1: feffc, 2: 1, c: feffe000, 11: fefff, 12: 2}"]
        .assert_eq(&format!("{:x?}", guest.fake.hvm_params));
    let grants = [1, 0, 3, 0, 0xff, 0xef, 0x0f, 0, 1, 0, 0, 0, 0xfc, 0xef, 0x0f, 0];
    assert_eq!(guest.fake.grants[..16], grants);
    // Without a ramdisk there is no module.
    assert_eq!(guest.fake.word(guest.fake.register(520) + 8) >> 32, 0);
}

#[test]
fn a_small_domain_takes_few_calls() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    let guest = Guest::build(&config(DomainKind::Pvh, &kernel, 8));
    expect![[r#"
        claim_pages 1
        gethvmcontext 1
        hvm_set_param 5
        map_foreign 2
        map_resource 1
        max_mem 1
        populate_physmap 2
        set_memory_map 1
        set_paging_mempool_size 1
        sethvmcontext 1
    "#]]
    .assert_eq(&guest.calls);
    assert_eq!(guest.fake.extents, [(9, 4, 4), (0, 4, 4)]);
    assert_eq!(guest.fake.claimed, 0);
    assert_eq!(guest.fake.paging_pool, Some((512 + 16) * 4096));
}

#[test]
fn memory_beyond_the_hole_continues_at_4_gib() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    let guest = Guest::build(&config(DomainKind::Pvh, &kernel, 5400));
    let frames = guest.fake.frames();
    let ram = |frame: &&u64| **frame < 0xfc000 || **frame >= 0x10_0000;
    assert_eq!(frames.iter().filter(ram).count(), 5400 * 256);
    assert_eq!(*frames.last().unwrap(), 0x10_0000 + 5400 * 256 - 0xfc000 - 1);
    assert_eq!(
        guest.fake.extents,
        [(18, 1, 1), (18, 1, 1), (18, 1, 1), (9, 480, 480), (18, 1, 1), (9, 172, 172), (0, 4, 4)]
    );
}

#[test]
fn a_32_bit_kernel_starts_as_a_64_bit_one_does() {
    for machine in [3, 62] {
        let elf = kernels::unikernel();
        let kernel = KernelImage::parse(&elf.bytes_32(machine)).unwrap();
        let guest = Guest::build(&config(DomainKind::Pvh, &kernel, 16));
        let (address, bytes, _) = &elf.segments[0];
        assert_eq!(guest.fake.read(*address, bytes.len()), *bytes);
        assert_eq!((guest.fake.register(640), guest.built.entry), (0x10_1014, 0x10_1014));
    }
}

#[test]
fn memory_that_it_does_not_begin_with_is_in_its_map_and_comes_on_demand() {
    let kernel = KernelImage::parse(&kernels::linux().bytes()).unwrap();
    let more =
        BuildConfig { memory_pages_max: 5000 * 256, ..config(DomainKind::Pvh, &kernel, 2048) };
    let guest = Guest::build(&more);
    assert_eq!((guest.fake.on_demand, guest.built.pages), (2048 * 256, 2048 * 256));
    let map = guest.fake.memory_map.chunks_exact(20);
    let ram = map.filter(|entry| entry[16] == 1).map(|entry| {
        [&entry[..8], &entry[8..16]].map(|word| u64::from_le_bytes(word.try_into().unwrap()))
    });
    assert_eq!(ram.collect::<Vec<_>>(), [[0, 4032 << 20], [4 << 30, 968 << 20]]);
    let frames =
        guest.fake.frames().iter().filter(|frame| !(0xfc000..0x10_0000).contains(*frame)).count();
    assert_eq!(frames, 5000 * 256);
    assert_eq!(guest.fake.memory_max_kib, 2049 << 10);
    // All that was claimed is taken.
    assert_eq!(guest.fake.claimed, 0);
}

#[test]
fn a_kernel_must_fit_into_the_memory_that_it_begins_with() {
    let kernel = KernelImage::parse(&kernels::linux().bytes()).unwrap();
    let small = BuildConfig { memory_pages_max: 64 * 256, ..config(DomainKind::Pvh, &kernel, 8) };
    let refused = xen_build::check(&small).unwrap_err();
    assert!(refused.to_string().starts_with("memory = 8 MiB is too little"), "{refused}");
}
