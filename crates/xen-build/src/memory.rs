//! A new domain's memory: allocated in large extents, written in large batches.

use alloc::vec::Vec;
use core::ops::Range;

use xen::{DomId, Errno, Hypervisor, PAGE_BYTES, PAGE_SHIFT, Piece, Placement, Xen};

use crate::{BuildError, Monitor};

/// Pages of a byte count, rounded up.
pub(crate) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

/// Whole MiB of a page count, rounded up, for a message.
pub(crate) fn mib_of(pages: u64) -> u64 {
    pages.div_ceil(1 << (20 - PAGE_SHIFT))
}

/// An address or a count as an index into this process' memory.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).expect("checked against the domain's memory, which this process counts")
}

/// Claims the memory of a domain that has none yet, so that two concurrent builds cannot both count
/// on the same free memory.
pub(crate) fn claim<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    pages: u64,
) -> Result<(), BuildError> {
    xen.claim_pages(domid, pages).map_err(|errno| match errno {
        Errno::ENOMEM => BuildError::HostMemory { domid, got_pages: 0, wanted_pages: pages },
        errno => BuildError::Hypercall { action: "reserve memory", domid, errno },
    })
}

/// Releases the rest of a claim when a build has failed, so that others can use it before the
/// domain is destroyed.
pub(crate) fn unclaim<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) {
    // The domain may already be destroyed, and its claim with it.
    let _gone = xen.claim_pages(domid, 0);
}

/// Orders of extents to try, largest first: 1 GiB, 2 MiB and 4 KiB.
const ORDERS: [u32; 3] = [18, 9, 0];

/// Pages allocated by one hypercall, which cannot be interrupted: 1 GiB, in about a tenth of a second.
const PAGES_PER_CALL: u64 = 1 << ORDERS[0];

/// Allocates pseudo-physical frames and calls `populated` with the machine frame and order of each
/// extent, in order.
///
/// Once the host has no extent of an order left, smaller ones are used.
pub(crate) fn populate<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    ranges: &[Range<u64>],
    monitor: &mut dyn Monitor,
    populated: impl FnMut(u64, u32),
) -> Result<(), BuildError> {
    populate_placed(xen, domid, ranges, Placement::Anywhere, monitor, populated)
}

/// Gives a translated domain that has no memory yet `pages` for all of `ranges`, which are more:
/// each is taken when its frame is first used. The guest's balloon driver is to give back the
/// frames that there is no memory for before it uses them, else Xen ends the domain.
///
/// Before anything else takes memory for the domain: Xen takes what it has then for what was
/// populated on demand.
pub(crate) fn populate_on_demand<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    ranges: &[Range<u64>],
    pages: u64,
) -> Result<(), BuildError> {
    let mut got_pages = 0;
    while got_pages < pages {
        let target = pages.min(got_pages + PAGES_PER_CALL);
        xen.set_pod_target(domid, target).map_err(|errno| match errno {
            Errno::ENOMEM => BuildError::HostMemory { domid, got_pages, wanted_pages: pages },
            errno => BuildError::Hypercall { action: "allocate memory", domid, errno },
        })?;
        got_pages = target;
    }
    populate_placed(xen, domid, ranges, Placement::OnDemand, &mut (), |_, _| {})
}

fn populate_placed<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    ranges: &[Range<u64>],
    placement: Placement,
    monitor: &mut dyn Monitor,
    mut populated: impl FnMut(u64, u32),
) -> Result<(), BuildError> {
    let wanted_pages = ranges.iter().map(|range| range.end - range.start).sum();
    let mut orders = ORDERS.as_slice();
    let mut got_pages = 0;
    for pfns in ranges {
        let mut next = pfns.start;
        while next < pfns.end {
            if monitor.allocated(got_pages, wanted_pages).is_break() {
                return Err(BuildError::Interrupted(domid));
            }
            let (order, count) = next_extents(next, pfns.end, orders);
            let count = count.min(Xen::<H>::EXTENTS_MAX as u64).min(PAGES_PER_CALL >> order);
            let firsts: Vec<u64> = (0..count).map(|extent| next + (extent << order)).collect();
            let done = xen.populate_placed(domid, order, &firsts, placement).map_err(|errno| {
                BuildError::Hypercall { action: "allocate memory", domid, errno }
            })?;
            done.iter().for_each(|&frame| populated(frame, order));
            next += (done.len() as u64) << order;
            got_pages += (done.len() as u64) << order;
            if done.len() < firsts.len() {
                let smaller = ORDERS.iter().position(|&other| other < order);
                orders = smaller.map(|first| &ORDERS[first..]).ok_or(BuildError::HostMemory {
                    domid,
                    got_pages,
                    wanted_pages,
                })?;
            }
        }
    }
    Ok(())
}

/// Allocates single pages that the domain shares with others.
pub(crate) fn populate_special<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    pfns: &[u64],
) -> Result<(), BuildError> {
    let done = xen.populate(domid, 0, pfns).map_err(|errno| BuildError::Hypercall {
        action: "allocate special pages",
        domid,
        errno,
    })?;
    let (got_pages, wanted_pages) = (done.len() as u64, pfns.len() as u64);
    if got_pages < wanted_pages {
        return Err(BuildError::HostMemory { domid, got_pages, wanted_pages });
    }
    Ok(())
}

/// The largest order that fits at `next`, and how many extents of it lie before `end` or before a
/// larger order fits.
fn next_extents(next: u64, end: u64, orders: &[u32]) -> (u32, u64) {
    let fits = |order: u32, from: u64| from + (1 << order) <= end;
    let mut until = end;
    for &order in orders {
        if next.is_multiple_of(1 << order) && fits(order, next) {
            return (order, (until - next) >> order);
        }
        let aligned = next.next_multiple_of(1 << order);
        if fits(order, aligned) {
            until = until.min(aligned);
        }
    }
    unreachable!("a single page fits anywhere")
}

/// How a domain's pseudo-physical frames are addressed in foreign mappings.
#[derive(Clone, Copy)]
pub(crate) enum FrameNames<'a> {
    /// A PV domain: by machine frame, listed by pseudo-physical frame.
    Machine(&'a [u64]),
    /// A translated domain: by themselves.
    Same,
}

impl FrameNames<'_> {
    pub(crate) fn name(self, pfn: u64) -> u64 {
        match self {
            Self::Machine(p2m) => p2m[index(pfn)],
            Self::Same => pfn,
        }
    }
}

/// Writes a domain's memory in ascending order, joining neighbours into as few mappings as sensible.
///
/// Gaps up to [`GAP_BYTES_MAX`] are filled with zeros: another mapping would cost more, and a guest
/// may expect zeros there. Bytes are copied once, into the mapping.
pub(crate) struct Loader<'a, 'b, H> {
    xen: &'a mut Xen<H>,
    domid: DomId,
    names: FrameNames<'b>,
    /// Pseudo-physical address of the first pending byte.
    start: u64,
    pending: Vec<Piece<'b>>,
    pending_bytes: usize,
}

/// Most bytes in one mapping.
const BATCH_BYTES: usize = 1024 * PAGE_BYTES;
const GAP_BYTES_MAX: u64 = 64 << 10;

impl<'a, 'b, H: Hypervisor> Loader<'a, 'b, H> {
    pub(crate) fn new(xen: &'a mut Xen<H>, domid: DomId, names: FrameNames<'b>) -> Self {
        Self { xen, domid, names, start: 0, pending: Vec::new(), pending_bytes: 0 }
    }

    /// Writes `bytes` at a pseudo-physical address, not below earlier ones.
    pub(crate) fn put(&mut self, address: u64, bytes: &'b [u8]) -> Result<(), BuildError> {
        self.put_piece(address, Piece::Bytes(bytes))
    }

    /// Writes zeros.
    pub(crate) fn zero(&mut self, address: u64, bytes: u64) -> Result<(), BuildError> {
        self.put_piece(address, Piece::Zeros(index(bytes)))
    }

    fn put_piece(&mut self, address: u64, piece: Piece<'b>) -> Result<(), BuildError> {
        self.seek(address)?;
        let mut rest = piece;
        while rest.bytes() > 0 {
            let room = BATCH_BYTES - self.pending_bytes;
            let now;
            (now, rest) = rest.split_at(room.min(rest.bytes()));
            self.pending.push(now);
            self.pending_bytes += now.bytes();
            if self.pending_bytes == BATCH_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes pending data.
    pub(crate) fn flush(&mut self) -> Result<(), BuildError> {
        self.flush_with(&[])
    }

    /// Writes what is pending and, with the same mapping, whole frames outside the domain's memory.
    pub(crate) fn flush_with(&mut self, outside: &[(u64, &'b [u8])]) -> Result<(), BuildError> {
        let end = self.start + self.pending_bytes as u64;
        let pfns =
            if self.pending_bytes > 0 { self.start >> PAGE_SHIFT..pages_of(end) } else { 0..0 };
        let mut frames: Vec<u64> = pfns.map(|pfn| self.names.name(pfn)).collect();
        let mut offset = index(self.start % PAGE_BYTES as u64);
        if !outside.is_empty() {
            if frames.is_empty() {
                offset = 0;
            }
            let filled = offset + self.pending_bytes;
            self.pending.push(Piece::Zeros(filled.next_multiple_of(PAGE_BYTES) - filled));
            for (frame, page) in outside {
                assert_eq!(page.len(), PAGE_BYTES, "a frame is written whole");
                frames.push(*frame);
                self.pending.push(Piece::Bytes(page));
            }
        }
        if !frames.is_empty() {
            self.xen.write_foreign_pieces(self.domid, &frames, offset, &self.pending)?;
        }
        self.pending.clear();
        self.pending_bytes = 0;
        self.start = end;
        Ok(())
    }

    /// Continues at `address`.
    fn seek(&mut self, address: u64) -> Result<(), BuildError> {
        let end = self.start + self.pending_bytes as u64;
        assert!(address >= end || self.pending_bytes == 0, "loading goes upwards");
        if self.pending_bytes == 0 {
            self.start = address;
        } else if address - end <= GAP_BYTES_MAX
            && self.pending_bytes + index(address - end) < BATCH_BYTES
        {
            let gap = index(address - end);
            if gap > 0 {
                self.pending.push(Piece::Zeros(gap));
                self.pending_bytes += gap;
            }
        } else {
            self.flush()?;
            self.start = address;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_as_large_as_alignment_and_the_end_allow() {
        assert_eq!(next_extents(0, 2048, &ORDERS), (9, 4));
        assert_eq!(next_extents(0, 2049, &ORDERS), (9, 4));
        assert_eq!(next_extents(2048, 2049, &ORDERS), (0, 1));
        assert_eq!(next_extents(0, 1 << 18, &ORDERS), (18, 1));
        assert_eq!(next_extents(512, (1 << 18) + (1 << 18), &ORDERS), (9, 511));
        assert_eq!(next_extents(3, 2048, &ORDERS), (0, 509));
        assert_eq!(next_extents(3, 514, &ORDERS), (0, 511));
        assert_eq!(next_extents(0, 2048, &ORDERS[2..]), (0, 2048));
    }
}
