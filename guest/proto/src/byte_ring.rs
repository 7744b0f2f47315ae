//! Index arithmetic of the two byte rings: console output and the store's requests and replies.
//!
//! Both indexes run freely and wrap at 2^32; the ring's size is a power of two. One side writes
//! `prod`, the other `cons`; either may be anything a hostile peer likes.
//! Source: xen `io/console.h` and `io/xs_wire.h`.

use core::ops::Range;

/// The peer's index is impossible: more than the ring's size apart from ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadIndex;

/// Bytes that wait to be read.
///
/// # Errors
/// [`BadIndex`] if that is more than fits.
pub fn used(prod: u32, cons: u32, size: u32) -> Result<u32, BadIndex> {
    debug_assert!(size.is_power_of_two());
    let used = prod.wrapping_sub(cons);
    if used <= size { Ok(used) } else { Err(BadIndex) }
}

/// Bytes that may still be written.
///
/// # Errors
/// [`BadIndex`] as for [`used`].
pub fn free(prod: u32, cons: u32, size: u32) -> Result<u32, BadIndex> {
    Ok(size - used(prod, cons, size)?)
}

/// The stretch of the ring that starts at `index`, holds at most `bytes`, and does not wrap:
/// a transfer takes at most two of them.
#[must_use]
pub fn stretch(index: u32, bytes: u32, size: u32) -> Range<usize> {
    debug_assert!(size.is_power_of_two());
    let start = index & (size - 1);
    let end = start + bytes.min(size - start);
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_wrap_at_two_to_the_32() {
        assert_eq!(used(3, u32::MAX - 1, 1024), Ok(5));
        assert_eq!(free(3, u32::MAX - 1, 1024), Ok(1019));
    }

    #[test]
    fn an_index_that_promises_more_than_the_ring_holds_is_refused() {
        assert_eq!(used(1024, 0, 1024), Ok(1024));
        assert_eq!(used(1025, 0, 1024), Err(BadIndex));
        assert_eq!(used(0, 1, 1024), Err(BadIndex));
        assert_eq!(free(0, 1, 1024), Err(BadIndex));
    }

    #[test]
    fn a_transfer_over_the_end_takes_two_stretches() {
        let first = stretch(1020, 10, 1024);
        assert_eq!(first, 1020..1024);
        assert_eq!(stretch(1020 + 4, 6, 1024), 0..6);
        assert_eq!(stretch(u32::MAX, 10, 2048), 2047..2048);
    }
}
