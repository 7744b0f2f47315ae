//! PV domains, inspected as their kernel does: through vCPU 0's registers and its page tables.

use expect_test::expect;
use xen::{DomId, DomainKind, EvtchnPort, PAGE_BYTES, Xen};
use xen_build::{BuildConfig, Built, Channel, Channels, KernelImage, TscMode};

use crate::fake::{DOMAIN, Fake, GARBAGE, SHARED_INFO_FRAME};
use crate::kernels::{self, Elf, code};

pub(crate) const CHANNELS: Channels = Channels {
    store: Channel { port: EvtchnPort(1), backend: DomId(0) },
    console: Channel { port: EvtchnPort(2), backend: DomId(3) },
};

/// A base configuration for tests.
pub(crate) fn config(kind: DomainKind, kernel: &KernelImage, mib: u64) -> BuildConfig<'_> {
    BuildConfig {
        shimmed: None,
        kind,
        kernel,
        ramdisk: None,
        cmdline: "console=hvc0 quiet",
        memory_pages: mib * 256,
        memory_pages_max: mib * 256,
        vcpus: 2,
        tsc_mode: TscMode::Default,
    }
}

/// A built domain, as its vCPU 0 sees it.
struct Guest {
    fake: Fake,
    built: Built,
    calls: String,
}

/// A page as vCPU 0 reaches it.
struct Reached {
    frame: u64,
    writable: bool,
}

impl Guest {
    fn build(config: &BuildConfig<'_>) -> Self {
        let mut xen: Xen<Fake> = Fake::xen(false);
        let built = xen_build::build(&mut xen, DOMAIN, config, &CHANNELS, &mut ()).unwrap();
        let calls = xen.counters().iter().map(|(name, n)| format!("{name} {n}\n")).collect();
        let fake = std::mem::take(xen.hypervisor());
        Self { fake, built, calls }
    }

    fn register(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.fake.context[offset..offset + 8].try_into().unwrap())
    }

    /// Walks the tables from cr3.
    fn reach(&self, virt: u64) -> Option<Reached> {
        let mut frame = self.register(4984 + 24) >> 12;
        let mut writable = true;
        for level in (0..4).rev() {
            let slot = usize::try_from(virt >> (12 + 9 * level) & 511).unwrap() * 8;
            let table = self.fake.memory.get(&frame)?;
            let entry = u64::from_le_bytes(table[slot..slot + 8].try_into().unwrap());
            // Present, for user mode, where a 64-bit PV kernel runs; no large pages, no attributes.
            if entry & 1 == 0 {
                return None;
            }
            assert_eq!(entry & 0xfff0_0000_0000_0f98, 0, "{entry:#x}");
            assert_eq!(entry & 4, 4, "{entry:#x}");
            writable &= entry & 2 != 0;
            frame = (entry & 0x000f_ffff_ffff_f000) >> 12;
        }
        Some(Reached { frame, writable })
    }

    fn read(&self, virt: u64, bytes: usize) -> Vec<u8> {
        let mut read = Vec::new();
        while read.len() < bytes {
            let at = virt + read.len() as u64;
            let offset = usize::try_from(at % 4096).unwrap();
            let part = (PAGE_BYTES - offset).min(bytes - read.len());
            read.extend(&self.page(self.reach(at).unwrap().frame)[offset..offset + part]);
        }
        read
    }

    fn page(&self, frame: u64) -> &[u8] {
        assert!(self.fake.owns(frame), "{frame:#x} is not the domain's");
        self.fake.memory.get(&frame).map_or(&[GARBAGE; PAGE_BYTES], Vec::as_slice)
    }

    fn start_info(&self) -> Vec<u8> {
        self.read(self.register(520 + 104), 1168)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Checks that hold for every PV domain.
#[expect(clippy::too_many_lines, reason = "a table")]
fn check(elf: &Elf, ramdisk: &[u8], mib: u64) -> Guest {
    let kernel = KernelImage::parse(&elf.bytes()).unwrap();
    let ramdisk_given = (!ramdisk.is_empty()).then_some(ramdisk);
    let config = BuildConfig { ramdisk: ramdisk_given, ..config(DomainKind::Pv, &kernel, mib) };
    let guest = Guest::build(&config);
    let start_info = guest.start_info();
    let (virt_base, pages) = (kernel.notes().virt_base.unwrap(), config.memory_pages);
    let offset = kernel.notes().paddr_offset.unwrap_or(0);

    // The kernel is where its program headers say, with zeros for its bss.
    for (address, bytes, memory) in &elf.segments {
        let loaded = guest.read(address - offset + virt_base, usize::try_from(*memory).unwrap());
        assert!(loaded.starts_with(bytes));
        assert!(loaded[bytes.len()..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(guest.register(520 + 128), guest.built.entry);

    // The p2m list names every page of the domain exactly once.
    assert_eq!(word(&start_info, 32), pages);
    let list = guest.read(word(&start_info, 104), usize::try_from(pages).unwrap() * 8);
    let p2m: Vec<u64> = list.chunks_exact(8).map(|entry| word(entry, 0)).collect();
    let mut frames = p2m.clone();
    frames.sort_unstable();
    assert!(frames == guest.fake.frames());

    // The initial mapping is the first part of memory, one to one; its tables are read-only in it.
    let pt_base = (word(&start_info, 88) - virt_base) >> 12;
    let tables = pt_base..pt_base + word(&start_info, 96);
    assert_eq!(p2m[usize::try_from(pt_base).unwrap()] << 12, guest.register(4984 + 24));
    assert_eq!(guest.fake.pinned, Some(p2m[usize::try_from(pt_base).unwrap()]));
    let p2m_outside = word(&start_info, 1152)..word(&start_info, 1152) + word(&start_info, 1160);
    let mut mapped = 0;
    while let Some(reached) = guest.reach(virt_base + (mapped << 12)) {
        assert_eq!(reached.frame, p2m[usize::try_from(mapped).unwrap()]);
        assert_eq!(reached.writable, !tables.contains(&mapped), "frame {mapped}");
        mapped += 1;
    }
    assert_eq!((virt_base + (mapped << 12)) % (4 << 20), 0);
    let stack = guest.register(520 + 152);
    assert!(stack + (512 << 10) <= virt_base + (mapped << 12));
    assert!(guest.reach(stack - 8).unwrap().writable);
    // No frame outside is mapped but the list, and the list's own tables are not mapped at all.
    let list_pages = (pages * 8).div_ceil(4096);
    if !p2m_outside.is_empty() {
        assert_eq!(p2m_outside.start, mapped);
        assert!(p2m_outside.end > p2m_outside.start + list_pages, "the tables lie behind the list");
        for page in 0..list_pages {
            let reached = guest.reach(word(&start_info, 104) + (page << 12)).unwrap();
            let frame = p2m[usize::try_from(p2m_outside.start + page).unwrap()];
            assert_eq!((reached.frame, reached.writable), (frame, true));
        }
    }

    // The ramdisk is where the kernel expects it.
    assert_eq!(word(&start_info, 120), ramdisk.len() as u64);
    let by_pfn = start_info[48] & 1 << 3 != 0;
    if by_pfn {
        let first = usize::try_from(word(&start_info, 112)).unwrap();
        assert!(first as u64 >= p2m_outside.end);
        for (page, bytes) in ramdisk.chunks(PAGE_BYTES).enumerate() {
            assert!(guest.page(p2m[first + page]).starts_with(bytes));
        }
    } else if !ramdisk.is_empty() {
        assert_eq!(guest.read(word(&start_info, 112), ramdisk.len()), ramdisk);
    }

    // Rings are empty and granted to their backends, and upcalls are masked.
    let ring = |frame: u64| guest.page(frame).iter().all(|byte| *byte == 0);
    assert!(ring(guest.built.store_frame) && ring(guest.built.console_frame));
    assert_eq!(word(&start_info, 56), guest.built.store_frame);
    assert_eq!(word(&start_info, 72), guest.built.console_frame);
    assert_eq!((start_info[64], start_info[80]), (1, 2));
    let grant = |frame: u64, backend: u8| {
        [[1, 0, backend, 0], u32::try_from(frame).unwrap().to_le_bytes()].concat()
    };
    let grants = [grant(guest.built.console_frame, 3), grant(guest.built.store_frame, 0)].concat();
    assert_eq!(guest.fake.grants[..16], grants);
    assert_eq!(word(&start_info, 40), SHARED_INFO_FRAME << 12);
    let shared_info = &guest.fake.memory[&SHARED_INFO_FRAME];
    let upcalls_masked = (0..32).all(|vcpu| shared_info[vcpu * 64 + 1] == 1);
    assert!(upcalls_masked && shared_info.iter().filter(|byte| **byte != 0).count() == 32);
    assert!(start_info.starts_with(b"xen-3.0-x86_64\0"));
    assert!(start_info[128..1152].starts_with(b"console=hvc0 quiet\0"));
    guest
}

#[test]
fn linux_has_its_list_and_ramdisk_outside_the_initial_mapping() {
    let ramdisk = code(3 * PAGE_BYTES + 5);
    let guest = check(&kernels::linux(), &ramdisk, 64);
    assert_eq!(guest.start_info()[48], 1 << 3);
}

#[test]
fn other_kernels_have_everything_inside_the_initial_mapping() {
    let ramdisk = code(2 * PAGE_BYTES);
    let guest = check(&kernels::unikernel(), &ramdisk, 8);
    assert_eq!(guest.start_info()[48], 0, "as under xl");
    assert_eq!(word(&guest.start_info(), 1160), 0);
    let hypercall_page = guest.reach(0x10_0000).unwrap().frame;
    assert_eq!(guest.fake.hypercall_page, Some(hypercall_page));
    check(&kernels::unikernel(), &[], 8);
}

#[test]
fn physical_addresses_may_count_from_the_virtual_base() {
    const BASE: u64 = 0xffff_ffff_8000_0000;
    let elf = Elf {
        segments: vec![(BASE + 0x10_0000, code(9_000), 50_000)],
        notes: vec![
            (kernels::ENTRY, BASE + 0x10_0000),
            (kernels::VIRT_BASE, BASE),
            (kernels::PADDR_OFFSET, BASE),
        ],
        texts: Vec::new(),
        notes_in: kernels::NotesIn::ProgramHeader,
    };
    check(&elf, &[], 4);
}

#[test]
fn any_memory_size_that_fits_can_be_built() {
    // The initial mapping alone ends at 4 MiB.
    for (mib, ramdisk_pages) in [(4, 0), (4, 200), (9, 1000), (1100, 3)] {
        check(&kernels::unikernel(), &code(ramdisk_pages * PAGE_BYTES), mib);
    }
    check(&kernels::linux(), &code(100), 1100);
}

#[test]
fn the_initial_mapping_leaves_room_after_the_stack_for_any_kernel_size() {
    // Kernels that end at every page around the point where half a MiB no longer fits into 4 MiB.
    for pages in 1..100 {
        let mut elf = kernels::unikernel().with(kernels::ENTRY, 0x34_0000);
        elf = elf.without(kernels::HYPERCALL_PAGE);
        elf.segments = vec![(0x34_0000, vec![], pages * 4096)];
        check(&elf, &[], 8);
    }
}

#[test]
fn a_small_domain_takes_few_calls() {
    let guest = check(&kernels::unikernel(), &[], 8);
    expect![[r#"
        claim_pages 1
        getdomaininfo 1
        hypercall_init 1
        map_foreign 1
        map_resource 1
        max_mem 1
        pin_table 1
        populate_physmap 1
        set_memory_map 1
        setvcpucontext 1
    "#]]
    .assert_eq(&guest.calls);
    assert_eq!((guest.fake.extents.as_slice(), guest.fake.claimed), (&[(9, 4, 4)][..], 0));
    assert_eq!(guest.fake.memory_max_kib, 9 * 1024);
    assert_eq!(guest.fake.tsc_mode, None);
}

#[test]
fn memory_to_grow_into_is_in_the_memory_map_but_not_in_the_list() {
    let kernel = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    let config = BuildConfig { memory_pages_max: 4096, ..config(DomainKind::Pv, &kernel, 8) };
    let guest = Guest::build(&config);
    assert_eq!(word(&guest.start_info(), 32), 2048);
    let map = &guest.fake.memory_map;
    assert_eq!((map.len(), word(map, 0), word(map, 8), map[16]), (20, 0, 16 << 20, 1));
}

#[test]
fn a_kernel_without_the_note_starts_where_its_elf_header_says() {
    let mut elf = kernels::unikernel().without(kernels::ENTRY);
    elf.texts = vec![(kernels::LOADER, "generic"), (kernels::XEN_VERSION, "xen-3.0")];
    let kernel = KernelImage::parse(&elf.bytes()).unwrap();
    let guest = Guest::build(&config(DomainKind::Pv, &kernel, 16));
    const RIP: usize = 520 + 128;
    assert_eq!((guest.built.entry, guest.register(RIP)), (0x10_0000, 0x10_0000));
}
