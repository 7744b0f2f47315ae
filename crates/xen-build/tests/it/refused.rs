//! Configurations that cannot be built, and errors of the host.

use std::ops::ControlFlow;

use expect_test::{Expect, expect};
use xen::{DomainKind, Xen};
use xen_build::{BuildConfig, BuildError, KernelImage};

use crate::fake::{DOMAIN, Fake};
use crate::kernels::{self, Elf};
use crate::pv::{CHANNELS, config};

/// Check and build must return the same error.
fn check(config: &BuildConfig<'_>, expected: &Expect) {
    let checked = xen_build::check(config).unwrap_err();
    let mut xen: Xen<Fake> = Fake::xen(config.kind != DomainKind::Pv);
    let built = xen_build::build(&mut xen, DOMAIN, config, &CHANNELS, &mut ()).unwrap_err();
    assert_eq!(checked, built);
    expected.assert_eq(&checked.to_string());
}

fn parse(elf: &Elf) -> KernelImage {
    KernelImage::parse(&elf.bytes()).unwrap()
}

#[test]
fn an_impossible_domain_is_refused_before_it_is_created() {
    let kernel = parse(&kernels::linux());
    let ramdisk = vec![0; 50 << 20];
    let pv = config(DomainKind::Pv, &kernel, 64);
    let pvh = config(DomainKind::Pvh, &kernel, 64);
    check(
        &config(DomainKind::Pv, &kernel, 4),
        &expect!["memory = 4 MiB is too little: kernel, ramdisk and start-up tables need 20 MiB"],
    );
    check(
        &BuildConfig { ramdisk: Some(&ramdisk), ..pv },
        &expect!["memory = 64 MiB is too little: kernel, ramdisk and start-up tables need 70 MiB"],
    );
    check(
        &BuildConfig { ramdisk: Some(&ramdisk), ..pvh },
        &expect!["memory = 64 MiB is too little: kernel, ramdisk and start-up tables need 70 MiB"],
    );
    check(
        &BuildConfig { memory_pages: 0, ..pvh },
        &expect!["memory = 0 MiB is too little: kernel, ramdisk and start-up tables need 20 MiB"],
    );
    check(
        &BuildConfig { memory_pages: 1 << 31, memory_pages_max: 1 << 31, ..pv },
        &expect!["memory = 8388608 MiB exceeds the limit of 4194304 MiB"],
    );
    check(
        &BuildConfig { memory_pages_max: 15 * 256, ..pv },
        &expect!["maxmem = 15 MiB is less than memory = 64 MiB"],
    );
    check(&BuildConfig { vcpus: 0, ..pv }, &expect!["vcpus = 0 is out of range: 1 to 512"]);
    check(&BuildConfig { vcpus: 129, ..pvh }, &expect!["vcpus = 129 is out of range: 1 to 128"]);
    check(
        &BuildConfig { cmdline: &"x".repeat(1024), ..pv },
        &expect!["the kernel command line has 1024 bytes, at most 1023 are allowed"],
    );
    check(
        &BuildConfig { cmdline: &"x".repeat(4096), ..pvh },
        &expect!["the kernel command line has 4096 bytes, at most 4095 are allowed"],
    );
    check(
        &BuildConfig { cmdline: "a\0b", ..pvh },
        &expect!["the kernel command line contains a NUL byte"],
    );
    check(
        &config(DomainKind::Hvm, &kernel, 64),
        &expect!["Hvm domains are built from a firmware, not from a kernel"],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn an_unsuitable_kernel_is_refused() {
    let check = |elf: Elf, kind, expected: &Expect| {
        let kernel = parse(&elf);
        check(&config(kind, &kernel, 64), expected);
    };
    let linux = kernels::linux;
    check(
        linux().without(kernels::ENTRY),
        DomainKind::Pv,
        &expect![[r#"no Xen notes of a PV kernel: it cannot run as a PV guest; try type = "pvh""#]],
    );
    let mut generic = linux().without(kernels::ENTRY);
    generic.texts = vec![(kernels::LOADER, "generic"), (kernels::XEN_VERSION, "xen-3.0")];
    check(
        generic,
        DomainKind::Pv,
        &expect![
            "entry point 0x1000000 of the ELF file lies outside it, and there is no Xen note ENTRY: this kernel cannot run as a PV guest"
        ],
    );
    check(
        linux().without(kernels::PHYS32_ENTRY),
        DomainKind::Pvh,
        &expect![[
            r#"no Xen note PHYS32_ENTRY: this kernel cannot run as a PVH guest; try type = "pv""#
        ]],
    );
    check(
        linux().with(kernels::PHYS32_ENTRY, 0x1000),
        DomainKind::Pvh,
        &expect!["the kernel's Xen note PHYS32_ENTRY has an invalid value: 0x1000"],
    );
    check(
        linux().with(kernels::ENTRY, 0x1000),
        DomainKind::Pv,
        &expect!["the kernel's Xen note ENTRY has an invalid value: 0x1000"],
    );
    check(
        linux().with(kernels::PADDR_OFFSET, 1 << 40),
        DomainKind::Pv,
        &expect!["the kernel's Xen note PADDR_OFFSET has an invalid value: 0x10000000000"],
    );
    let init_p2m = |virt| linux().with(kernels::INIT_P2M, virt);
    let (in_xen, in_hole) = (0xffff_8000_0000_0000, 0x7fff_ffff_f000);
    let (in_kernel, uneven) = (0xffff_ffff_8000_0000, 0x123);
    check(
        init_p2m(in_xen),
        DomainKind::Pv,
        &expect!["the kernel's Xen note INIT_P2M has an invalid value: 0xffff800000000000"],
    );
    check(
        init_p2m(in_hole),
        DomainKind::Pv,
        &expect!["the kernel's Xen note INIT_P2M has an invalid value: 0x7ffffffff000"],
    );
    check(
        init_p2m(in_kernel),
        DomainKind::Pv,
        &expect!["the kernel's Xen note INIT_P2M has an invalid value: 0xffffffff80000000"],
    );
    check(
        init_p2m(uneven),
        DomainKind::Pv,
        &expect!["the kernel's Xen note INIT_P2M has an invalid value: 0x123"],
    );
    check(
        kernels::unikernel().with(kernels::HYPERCALL_PAGE, 0x10_0010),
        DomainKind::Pv,
        &expect!["the kernel's Xen note HYPERCALL_PAGE has an invalid value: 0x100010"],
    );
    check(
        kernels::unikernel().with(kernels::HYPERCALL_PAGE, 0x1000_0000),
        DomainKind::Pv,
        &expect!["the kernel's Xen note HYPERCALL_PAGE has an invalid value: 0x10000000"],
    );
    let in_xen = kernels::unikernel()
        .with(kernels::VIRT_BASE, 0xffff_8000_0000_0000)
        .with(kernels::ENTRY, 0xffff_8000_0010_0000)
        .without(kernels::HYPERCALL_PAGE);
    check(
        in_xen,
        DomainKind::Pv,
        &expect!["the kernel's Xen note VIRT_BASE has an invalid value: 0xffff800000000000"],
    );
}

#[test]
fn a_32_bit_kernel_cannot_run_as_a_pv_guest() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes_32(3)).unwrap();
    check(
        &config(DomainKind::Pv, &kernel, 64),
        &expect![[r#"a 32-bit kernel cannot run as a PV guest here: try type = "pvh""#]],
    );
}

/// Builds on a host with `pages` free, in extents up to `order_max`.
fn build_on(pages: u64, order_max: u32, config: &BuildConfig<'_>) -> (Fake, String) {
    let mut xen: Xen<Fake> = Fake::xen(config.kind != DomainKind::Pv);
    xen.hypervisor().pages_left = pages;
    xen.hypervisor().order_max = order_max;
    let outcome = match xen_build::build(&mut xen, DOMAIN, config, &CHANNELS, &mut ()) {
        Ok(_) => "built".to_owned(),
        Err(error) => error.to_string(),
    };
    (std::mem::take(xen.hypervisor()), outcome)
}

#[test]
fn smaller_extents_are_used_when_large_ones_run_out() {
    let kernel = parse(&kernels::unikernel());
    let config = config(DomainKind::Pvh, &kernel, 1100);
    let (fake, outcome) = build_on(u64::MAX, 9, &config);
    assert_eq!(outcome, "built");
    assert_eq!(fake.extents, [(18, 1, 0), (9, 512, 512), (9, 38, 38), (0, 4, 4)]);
    let (fake, outcome) = build_on(u64::MAX, 0, &config);
    assert_eq!(outcome, "built");
    let single: u64 = fake.extents.iter().filter(|(order, ..)| *order == 0).map(|e| e.2).sum();
    assert_eq!(single, 1100 * 256 + 4);
    assert!(fake.extents.len() < 45, "{:?}", fake.extents);
}

/// Notes how far a build is, and ends it there.
struct EndsAt {
    pages: u64,
    seen: Vec<(u64, u64)>,
}

impl xen_build::Monitor for EndsAt {
    fn allocated(&mut self, pages: u64, total: u64) -> ControlFlow<()> {
        self.seen.push((pages, total));
        if pages >= self.pages { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_build_reports_each_gib_and_ends_there_if_it_is_told_to() {
    let kernel = parse(&kernels::unikernel());
    let config = config(DomainKind::Pvh, &kernel, 2560);
    let total = 2560 * 256;
    for (pages, seen) in [(0, &[0][..]), (1, &[0, 1 << 18]), (u64::MAX, &[0, 1 << 18, 1 << 19])] {
        let mut xen: Xen<Fake> = Fake::xen(true);
        let mut monitor = EndsAt { pages, seen: Vec::new() };
        let built = xen_build::build(&mut xen, DOMAIN, &config, &CHANNELS, &mut monitor);
        let expected: Vec<(u64, u64)> = seen.iter().map(|&pages| (pages, total)).collect();
        assert_eq!(monitor.seen, expected);
        match built {
            Ok(_) => assert_eq!(pages, u64::MAX),
            Err(error) => assert_eq!(error, BuildError::Interrupted(DOMAIN)),
        }
        assert_eq!(xen.hypervisor().claimed, 0, "the host has what was not allocated");
    }
}

#[test]
fn the_last_pages_are_allocated_one_by_one() {
    let kernel = parse(&kernels::unikernel());
    let config = config(DomainKind::Pv, &kernel, 16);
    let (fake, outcome) = build_on(4096, 18, &config);
    assert_eq!((outcome.as_str(), fake.pages_left), ("built", 0));
    let (fake, outcome) = build_on(4095, 18, &config);
    assert_eq!(fake.extents, [(9, 8, 7), (0, 512, 511)]);
    expect!["out of memory for domain 7: only 4095 of 4096 pages were allocated"]
        .assert_eq(&outcome);
}
