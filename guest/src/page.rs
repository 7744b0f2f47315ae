//! Pages that other domains or Xen can write, and the small pool they are taken from.
//!
//! A [`Page`] is never borrowed as a slice: its bytes are copied in or out, its index words read
//! or written exactly once, so that nothing can change between a check and its use.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const PAGE_BYTES: usize = 4096;

#[repr(C, align(4096))]
pub struct Frame(UnsafeCell<[u8; PAGE_BYTES]>);

// SAFETY: a frame's bytes are reached only through `Page`, which makes no references to them.
unsafe impl Sync for Frame {}

impl Frame {
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; PAGE_BYTES]))
    }

    pub fn page(&'static self) -> Page {
        Page { base: self.0.get().cast() }
    }
}

/// A mapped page. Invariant: `base` is page-aligned and the page stays mapped and writable for
/// the life of the guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Page {
    base: *mut u8,
}

impl Page {
    /// # Safety
    /// `address` must be that of a page which is mapped, stays so, and is used through `Page`
    /// alone.
    pub unsafe fn at(address: usize) -> Self {
        assert!(address % PAGE_BYTES == 0, "page at {address:#x} is not aligned");
        Self { base: core::ptr::with_exposed_provenance_mut(address) }
    }

    pub fn address(self) -> usize {
        self.base.addr()
    }

    /// One read of an index that a peer writes; what the peer wrote before it is seen after.
    pub fn load(self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// One write of an index that a peer reads; what was written before it is seen by the peer.
    pub fn store(self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Swaps a word if it is still `old`: for flags that Xen changes meanwhile.
    pub fn swap(self, offset: usize, old: u32, new: u32) -> Result<u32, u32> {
        self.word(offset).compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    pub fn load_long(self, offset: usize) -> u64 {
        self.long(offset).load(Ordering::Acquire)
    }

    pub fn store_long(self, offset: usize, value: u64) {
        self.long(offset).store(value, Ordering::Release);
    }

    /// Clears the bits in `mask`; the bits as they were before.
    pub fn clear_bits(self, offset: usize, mask: u64) -> u64 {
        self.long(offset).fetch_and(!mask, Ordering::SeqCst)
    }

    pub fn read(self, offset: usize, into: &mut [u8]) {
        assert!(offset <= PAGE_BYTES && into.len() <= PAGE_BYTES - offset);
        // SAFETY: the range lies in the page (checked above), which is mapped (invariant).
        let from = unsafe { self.base.add(offset) };
        copy(from, into.as_mut_ptr(), into.len());
    }

    pub fn write(self, offset: usize, from: &[u8]) {
        assert!(offset <= PAGE_BYTES && from.len() <= PAGE_BYTES - offset);
        // SAFETY: the range lies in the page (checked above), which is mapped (invariant).
        let into = unsafe { self.base.add(offset) };
        copy(from.as_ptr(), into, from.len());
    }

    pub fn clear(self) {
        for offset in (0..PAGE_BYTES).step_by(8) {
            self.store_long(offset, 0);
        }
    }

    fn word(self, offset: usize) -> &'static AtomicU32 {
        assert!(offset % 4 == 0 && offset <= PAGE_BYTES - 4);
        // SAFETY: aligned and inside the page (checked above), which stays mapped (invariant);
        // peers change it by whole words, as atomics allow.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    fn long(self, offset: usize) -> &'static AtomicU64 {
        assert!(offset % 8 == 0 && offset <= PAGE_BYTES - 8);
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

/// Copies in a way that the compiler cannot look into, repeat or leave out: the other side of the
/// page may change it at any time.
fn copy(from: *const u8, into: *mut u8, bytes: usize) {
    // SAFETY: both callers pass `bytes` mapped bytes on each side: a slice and a part of a page.
    unsafe {
        asm!(
            "rep movsb",
            inout("rsi") from => _,
            inout("rdi") into => _,
            inout("rcx") bytes => _,
            options(nostack, preserves_flags),
        );
    }
}

/// A whole number of 64.
const POOL_PAGES: usize = if cfg!(feature = "wide") { 320 } else { 64 };
const POOL_WORDS: usize = POOL_PAGES / 64;
static POOL: [Frame; POOL_PAGES] = [const { Frame::new() }; POOL_PAGES];

/// The pages of the pool that are free: one bit each.
pub struct Pool {
    free: [u64; POOL_WORDS],
}

impl Pool {
    /// All pages free. Make it once: a second pool would hand out the same pages.
    pub fn new() -> Self {
        Self { free: [u64::MAX; POOL_WORDS] }
    }

    /// A cleared page, if there is one left.
    pub fn take(&mut self) -> Option<Page> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros() as usize;
        let page = POOL[word * 64 + bit].page();
        self.free[word] &= !(1 << bit);
        page.clear();
        Some(page)
    }

    /// Takes a page back. Pages that another domain still maps must not come back.
    pub fn give_back(&mut self, page: Page) {
        let first = POOL[0].page().address();
        let index = page.address().checked_sub(first).map(|bytes| bytes / PAGE_BYTES);
        let index = index.filter(|index| *index < POOL_PAGES).expect("a page of the pool");
        let (word, bit) = (&mut self.free[index / 64], 1 << (index % 64));
        assert!(*word & bit == 0, "page {index} of the pool came back twice");
        *word |= bit;
    }
}
