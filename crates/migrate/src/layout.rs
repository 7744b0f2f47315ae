//! Where the fields are that a PV guest's frames are named in.
//!
//! Sources: `xen/include/public/xen.h` (`shared_info`, `start_info`), `arch-x86/xen.h`
//! (`arch_shared_info`, `vcpu_guest_context`), `arch-x86/xen-x86_64.h`. All of 64-bit guests.

/// An entry of a page table maps something.
pub(crate) const PTE_PRESENT: u64 = 1;
/// An entry above level 1 maps a large page.
pub(crate) const PTE_LARGE: u64 = 1 << 7;
/// Address of the frame in an entry.
pub(crate) const PTE_FRAME: u64 = 0x000f_ffff_ffff_f000;
pub(crate) const PTES: usize = 512;
/// Xen's own entries of a top-level table.
pub(crate) const XEN_SLOTS: core::ops::Range<usize> = 256..272;

/// `struct vcpu_guest_context`.
pub(crate) mod context {
    pub(crate) const BYTES: usize = 5168;
    pub(crate) const FLAGS: usize = 512;
    pub(crate) const VGCF_ONLINE: u64 = 1 << 5;
    /// Of vCPU 0 in a suspended guest: the frame of `start_info`.
    pub(crate) const RDX: usize = 616;
    pub(crate) const GDT_FRAMES: usize = 4832;
    pub(crate) const GDT_ENTRIES: usize = 4960;
    /// Entries of a guest's GDT below Xen's own.
    pub(crate) const GDT_ENTRIES_MAX: u64 = 14 * 512;
    /// The guest's top-level table for user mode, with bit 0 set if there is one.
    pub(crate) const CR1: usize = 4992;
    pub(crate) const CR3: usize = 5008;
}

/// `struct shared_info`.
pub(crate) mod shared {
    pub(crate) const VCPUS: usize = 32;
    pub(crate) const VCPU_BYTES: usize = 64;
    /// In `struct vcpu_info`.
    pub(crate) const PENDING_SELECTOR: usize = 8;
    pub(crate) const PENDING: core::ops::Range<usize> = 2048..2560;
    pub(crate) const MASK: core::ops::Range<usize> = 2560..3072;
    pub(crate) const ARCH: core::ops::Range<usize> = 3088..3136;
    /// Number of entries of the p2m.
    pub(crate) const PAGES: usize = 3088;
    pub(crate) const FRAME_LIST_LIST: usize = 3096;
    pub(crate) const P2M_ROOT: usize = 3112;
    pub(crate) const P2M_ADDRESS: usize = 3120;
}

/// `struct start_info`.
pub(crate) mod start {
    pub(crate) const BYTES: usize = 128;
    pub(crate) const PAGES: usize = 32;
    pub(crate) const SHARED_INFO: usize = 40;
    pub(crate) const FLAGS: usize = 48;
    pub(crate) const STORE_FRAME: usize = 56;
    pub(crate) const STORE_PORT: usize = 64;
    pub(crate) const CONSOLE_FRAME: usize = 72;
    pub(crate) const CONSOLE_PORT: usize = 80;
}

/// `struct xencons_interface`.
pub(crate) mod console {
    pub(crate) const CONNECTION: usize = 3088;
    pub(crate) const DISCONNECTED: u8 = 1;
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

pub(crate) fn put_u64_at(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32_at(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}
