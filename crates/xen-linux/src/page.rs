//! [`SharedPage`]: one page that another domain reads and writes at the same time.
//!
//! No reference into the page ever exists: all access is volatile, and indices are atomic.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::io::Errno;
use xen::PAGE_BYTES;

use crate::HostError;
use crate::error::Refused;
use crate::gntdev::GrantRelease;
use crate::mapping::{Access, Mapping};

/// A mapped page that is shared with another domain, which may change any byte at any time.
///
/// The usual ring discipline: [`load_u32`](Self::load_u32) the peer's index, then
/// [`read`](Self::read) what it covers; [`write`](Self::write) the data, then
/// [`store_u32`](Self::store_u32) one's own index. Loads acquire, stores release.
///
/// Dropping it unmaps the page, which releases the owner domain.
#[derive(Debug)]
pub struct SharedPage {
    // Before `release`: fields are dropped in order, and a grant can be released only when
    // unmapped.
    mapping: Mapping,
    #[expect(dead_code, reason = "held to be dropped")]
    release: Option<GrantRelease>,
}

impl SharedPage {
    pub(crate) fn new(mapping: Mapping) -> Self {
        assert_eq!(mapping.bytes(), PAGE_BYTES, "a shared page is one page");
        Self { mapping, release: None }
    }

    pub(crate) fn of_grant(mapping: Mapping, release: GrantRelease) -> Self {
        Self { release: Some(release), ..Self::new(mapping) }
    }

    /// Maps a file of exactly one page, which stands in for a domain's page where there is no Xen.
    ///
    /// If the file is truncated afterwards, the next access kills this process: only for trusted
    /// files.
    ///
    /// # Errors
    /// If the file is not one page long, or may not be mapped for writing.
    pub fn of_file(file: &File) -> Result<Self, HostError> {
        let bytes = rustix::fs::fstat(file).refused(|| "cannot read a ring file's size")?.st_size;
        if usize::try_from(bytes) != Ok(PAGE_BYTES) {
            return Err(HostError::new(
                format!("a ring file must have {PAGE_BYTES} bytes, not {bytes}"),
                Errno::INVAL,
            ));
        }
        let mapping = Mapping::new(file, 1, 0, Access::ReadWrite)
            .refused(|| "cannot map a ring file; is it writable?")?;
        Ok(Self::new(mapping))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset} is not aligned");
        let pointer = self.mapping.at(offset, 4).cast::<u32>();
        // SAFETY: inside the mapping, aligned, and atomics may be shared with other writers.
        unsafe { AtomicU32::from_ptr(pointer.as_ptr()) }
    }

    /// Reads a native-endian word; what the peer wrote before it is visible afterwards.
    ///
    /// # Panics
    /// If `offset` is not a multiple of four inside the page.
    #[must_use]
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes a native-endian word after everything that was written before.
    ///
    /// Followed by a full barrier: a later [`load_u32`](Self::load_u32) of the peer's index cannot
    /// overtake it, so a peer that sleeps between the two is not missed.
    ///
    /// # Panics
    /// If `offset` is not a multiple of four inside the page.
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Copies bytes out of the page. The peer may change them meanwhile: check the copy, never the page.
    ///
    /// # Panics
    /// If the range lies outside the page.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        copy_out(self.mapping.at(offset, into.len()), into);
    }

    /// Copies bytes into the page.
    ///
    /// # Panics
    /// If the range lies outside the page.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        copy_in(self.mapping.at(offset, bytes.len()), bytes);
    }
}

/// Size of the unit of copying.
const WORD: usize = size_of::<u64>();

/// Reads `into.len()` bytes from `from`, which must lie inside a mapping.
fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let mut offset = 0;
    while offset < into.len() {
        let rest = &mut into[offset..];
        // SAFETY: the caller checked the whole range.
        let at = unsafe { from.add(offset) };
        if rest.len() >= WORD && at.cast::<u64>().is_aligned() {
            // SAFETY: in range and aligned; volatile, since a peer may write at the same time.
            let word = unsafe { at.cast::<u64>().read_volatile() };
            rest[..WORD].copy_from_slice(&word.to_ne_bytes());
            offset += WORD;
        } else {
            // SAFETY: in range; volatile, since a peer may write at the same time.
            rest[0] = unsafe { at.read_volatile() };
            offset += 1;
        }
    }
}

/// Writes `bytes` to `to`, which must lie inside a mapping.
fn copy_in(to: NonNull<u8>, bytes: &[u8]) {
    let mut offset = 0;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        // SAFETY: the caller checked the whole range.
        let at = unsafe { to.add(offset) };
        if let (Some(word), true) = (rest.first_chunk::<WORD>(), at.cast::<u64>().is_aligned()) {
            // SAFETY: in range and aligned; volatile, since a peer may read at the same time.
            unsafe { at.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
            offset += WORD;
        } else {
            // SAFETY: in range; volatile, since a peer may read at the same time.
            unsafe { at.write_volatile(rest[0]) };
            offset += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// Two mappings of the same page stand for the two domains.
    fn two_ends() -> (SharedPage, SharedPage) {
        let memory: OwnedFd = memfd_create("page", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, PAGE_BYTES as u64).unwrap();
        let map = || SharedPage::new(Mapping::new(&memory, 1, 0, Access::ReadWrite).unwrap());
        (map(), map())
    }

    #[test]
    fn one_end_reads_what_the_other_wrote_at_every_alignment_and_length() {
        let (ours, theirs) = two_ends();
        let bytes: Vec<u8> = (1..=40).collect();
        for offset in (0..9).chain([PAGE_BYTES - 40]) {
            for len in 0..bytes.len() {
                ours.write(offset, &[0; 40]);
                ours.write(offset, &bytes[..len]);
                let mut seen = [0; 40];
                theirs.read(offset, &mut seen);
                assert_eq!(seen[..len], bytes[..len], "{len} bytes at {offset}");
                assert!(seen[len..].iter().all(|&b| b == 0), "{len} bytes at {offset}");
                let mut part = vec![0; len];
                theirs.read(offset, &mut part);
                assert_eq!(part, bytes[..len], "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn words_are_native_endian_and_reach_to_the_last_of_the_page() {
        let (ours, theirs) = two_ends();
        ours.store_u32(PAGE_BYTES - 4, 0x0102_0304);
        assert_eq!(theirs.load_u32(PAGE_BYTES - 4), 0x0102_0304);
        let mut bytes = [0; 4];
        theirs.read(PAGE_BYTES - 4, &mut bytes);
        assert_eq!(bytes, 0x0102_0304_u32.to_ne_bytes());
    }

    #[test]
    fn a_ring_file_is_one_page_long() {
        for bytes in [0, PAGE_BYTES as u64 - 1, PAGE_BYTES as u64 + 1] {
            let file = File::from(memfd_create("page", MemfdFlags::CLOEXEC).unwrap());
            file.set_len(bytes).unwrap();
            let error = SharedPage::of_file(&file).unwrap_err();
            assert!(error.to_string().contains(&format!("not {bytes}")), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "lie outside a mapping")]
    fn a_word_beyond_the_page_is_a_bug() {
        let _ = two_ends().0.load_u32(PAGE_BYTES);
    }

    #[test]
    #[should_panic(expected = "lie outside a mapping")]
    fn a_range_that_crosses_the_end_is_a_bug() {
        two_ends().0.write(PAGE_BYTES - 1, &[0; 2]);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_word_at_an_odd_place_is_a_bug() {
        let _ = two_ends().0.load_u32(2);
    }
}
