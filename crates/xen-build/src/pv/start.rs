//! Initial state of a PV domain: start info, shared info and the first vCPU's registers.
//!
//! Sources: `xen/include/public/xen.h` (`start_info`, `shared_info`, `vcpu_info`),
//! `arch-x86/xen.h` (`vcpu_guest_context`), `arch-x86/xen-x86_64.h` (`cpu_user_regs`, selectors).

use alloc::vec::Vec;

use xen::{PAGE_BYTES, PAGE_SHIFT};

use super::layout::PvLayout;
use crate::memory::index;
use crate::record::Record;
use crate::{BuildConfig, Channels};

/// Bytes of the command line in start info, its NUL included.
pub(crate) const CMDLINE_BYTES_MAX: usize = 1024;
const START_INFO_BYTES: usize = 1168;
const CONTEXT_BYTES: usize = 5168;

/// `struct start_info`. `machine` is the p2m list.
pub(super) fn start_info(
    config: &BuildConfig<'_>,
    layout: &PvLayout,
    channels: &Channels,
    machine: &[u64],
    shared_info_frame: u64,
) -> Vec<u8> {
    const SIF_MOD_START_PFN: u32 = 1 << 3;
    // `SIF_VIRT_P2M_4TOOLS` stays off, as under xl.
    let mut flags = 0;
    let (mut mod_start, mut mod_bytes) = (0, 0);
    if let Some(ramdisk) = layout.ramdisk {
        mod_bytes = ramdisk.bytes;
        mod_start = ramdisk.pfn;
        if ramdisk.mapped {
            mod_start = layout.virt(ramdisk.pfn);
        } else {
            flags |= SIF_MOD_START_PFN;
        }
    }
    let p2m = layout.p2m.outside.clone().unwrap_or(0..0);
    Record::new(START_INFO_BYTES)
        .bytes(0, b"xen-3.0-x86_64")
        .u64(32, config.memory_pages)
        .u64(40, shared_info_frame << PAGE_SHIFT)
        .u32(48, flags)
        .u64(56, machine[index(layout.store_pfn)])
        .u32(64, channels.store.port.0)
        .u64(72, machine[index(layout.console_pfn)])
        .u32(80, channels.console.port.0)
        .u64(88, layout.virt(layout.root_pfn()))
        .u64(96, layout.table_pfns.end - layout.table_pfns.start)
        .u64(104, layout.p2m.virt)
        .u64(112, mod_start)
        .u64(120, mod_bytes)
        .bytes(128, config.cmdline.as_bytes())
        .u64(1152, p2m.start)
        .u64(1160, p2m.end - p2m.start)
        .done()
}

/// The shared info page: zero, but with upcalls masked on all vCPUs.
pub(super) fn shared_info() -> Vec<u8> {
    const VCPUS: usize = 32;
    const VCPU_INFO_BYTES: usize = 64;
    const UPCALL_MASK: usize = 1;
    (0..VCPUS)
        .fold(Record::new(PAGE_BYTES), |page, vcpu| {
            page.u8(vcpu * VCPU_INFO_BYTES + UPCALL_MASK, 1)
        })
        .done()
}

/// `struct vcpu_guest_context` of vCPU 0, at the kernel's entry with a small stack.
pub(super) fn vcpu_context(layout: &PvLayout, machine: &[u64]) -> Vec<u8> {
    const VGCF_IN_KERNEL: u64 = 1 << 2;
    const VGCF_ONLINE: u64 = 1 << 5;
    /// `struct cpu_user_regs` begins here.
    const REGS: usize = 520;
    const CTRLREG: usize = 4984;
    const FLAT_KERNEL_CS: u16 = 0xe033;
    const FLAT_KERNEL_SS: u16 = 0xe02b;
    const RFLAGS_IF: u64 = 1 << 9;
    let stack = layout.virt(layout.stack_pfn) + PAGE_BYTES as u64;
    Record::new(CONTEXT_BYTES)
        .u64(512, VGCF_IN_KERNEL | VGCF_ONLINE)
        .u64(REGS + 104, layout.virt(layout.start_info_pfn))
        .u64(REGS + 128, layout.entry)
        .u16(REGS + 136, FLAT_KERNEL_CS)
        .u64(REGS + 144, RFLAGS_IF)
        .u64(REGS + 152, stack)
        .u16(REGS + 160, FLAT_KERNEL_SS)
        .u64(4968, FLAT_KERNEL_SS.into())
        .u64(4976, stack)
        .u64(CTRLREG + 3 * 8, machine[index(layout.root_pfn())] << PAGE_SHIFT)
        .done()
}
