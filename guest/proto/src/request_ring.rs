//! Indexes of the front half of a shared ring of requests and responses (blkif, netif).
//!
//! The page starts with four words: `req_prod` and `rsp_event` are ours, `rsp_prod` and
//! `req_event` the backend's; slots follow at byte 64. An event index asks the other side for a
//! notification once the matching producer passes it. Source: xen `io/ring.h`.

pub use crate::byte_ring::BadIndex;

pub const REQ_PROD: usize = 0;
pub const REQ_EVENT: usize = 4;
pub const RSP_PROD: usize = 8;
pub const RSP_EVENT: usize = 12;
const SLOTS: usize = 64;

/// Our two private indexes of a one-page ring.
///
/// Invariant: `req_prod - rsp_cons <= slots`: each response needs an earlier request, whatever
/// the backend writes.
#[derive(Clone, Copy, Debug)]
pub struct FrontRing {
    slots: u32,
    slot_bytes: usize,
    req_prod: u32,
    rsp_cons: u32,
}

impl FrontRing {
    /// A ring whose slot holds either a request or a response: as many slots, rounded down to a
    /// power of two, as fit a page.
    #[must_use]
    pub const fn new(slot_bytes: usize) -> Self {
        let fit = (4096 - SLOTS) / slot_bytes;
        let slots = 1 << fit.ilog2();
        Self { slots, slot_bytes, req_prod: 0, rsp_cons: 0 }
    }

    /// Requests without a response.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Page offset of the next request's slot; `None` if the ring is full.
    #[must_use]
    pub fn next_request(&mut self) -> Option<usize> {
        if self.in_flight() >= self.slots {
            return None;
        }
        let offset = self.offset(self.req_prod);
        self.req_prod = self.req_prod.wrapping_add(1);
        Some(offset)
    }

    /// The value to publish as `req_prod`.
    #[must_use]
    pub fn req_prod(&self) -> u32 {
        self.req_prod
    }

    /// Whether publishing now, after `published` before, passes what the backend asked to be
    /// told about.
    #[must_use]
    pub fn must_notify(&self, published: u32, req_event: u32) -> bool {
        self.req_prod.wrapping_sub(req_event) < self.req_prod.wrapping_sub(published)
    }

    /// Page offset of the next response, given the backend's `rsp_prod`.
    ///
    /// # Errors
    /// [`BadIndex`] if the backend claims responses to requests that were never made.
    pub fn next_response(&mut self, rsp_prod: u32) -> Result<Option<usize>, BadIndex> {
        let waiting = rsp_prod.wrapping_sub(self.rsp_cons);
        if waiting > self.in_flight() {
            return Err(BadIndex);
        }
        if waiting == 0 {
            return Ok(None);
        }
        let offset = self.offset(self.rsp_cons);
        self.rsp_cons = self.rsp_cons.wrapping_add(1);
        Ok(Some(offset))
    }

    /// The value to publish as `rsp_event`: tell us at the next response.
    #[must_use]
    pub fn rsp_event(&self) -> u32 {
        self.rsp_cons.wrapping_add(1)
    }

    fn offset(&self, index: u32) -> usize {
        SLOTS + (index & (self.slots - 1)) as usize * self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(ring: &mut FrontRing, requests: u32) {
        for _ in 0..requests {
            ring.next_request().expect("a free slot");
        }
    }

    #[test]
    fn slots_are_the_power_of_two_that_fits_a_page() {
        for (slot_bytes, slots) in [(112, 32), (12, 256), (8, 256)] {
            let mut ring = FrontRing::new(slot_bytes);
            fill(&mut ring, slots);
            assert_eq!(ring.next_request(), None, "slots of {slot_bytes} bytes");
        }
    }

    #[test]
    fn responses_come_back_in_slot_order_and_free_their_slots() {
        let mut ring = FrontRing::new(112);
        fill(&mut ring, 32);
        assert_eq!(ring.next_response(1), Ok(Some(64)));
        assert_eq!(ring.next_response(1), Ok(None));
        assert_eq!(ring.next_request(), Some(64));
        assert_eq!(ring.next_request(), None);
    }

    #[test]
    fn a_response_without_a_request_is_refused() {
        let mut ring = FrontRing::new(112);
        assert_eq!(ring.next_response(1), Err(BadIndex));
        fill(&mut ring, 2);
        assert_eq!(ring.next_response(3), Err(BadIndex));
        assert_eq!(ring.next_response(2), Ok(Some(64)));
        // A producer that runs backwards is as impossible as one that runs ahead.
        assert_eq!(ring.next_response(0), Err(BadIndex));
    }

    #[test]
    fn the_backend_is_told_only_when_it_asked() {
        let mut ring = FrontRing::new(8);
        fill(&mut ring, 3);
        assert!(ring.must_notify(0, 1));
        assert!(ring.must_notify(0, 3));
        assert!(!ring.must_notify(0, 4));
        assert!(!ring.must_notify(1, 1));
    }

    #[test]
    fn indexes_wrap_at_two_to_the_32() {
        let mut ring = FrontRing { req_prod: u32::MAX, rsp_cons: u32::MAX, ..FrontRing::new(8) };
        fill(&mut ring, 2);
        assert_eq!(ring.req_prod(), 1);
        assert!(ring.must_notify(u32::MAX, 0));
        assert_eq!(ring.next_response(0), Ok(Some(64 + 255 * 8)));
        assert_eq!(ring.next_response(1), Ok(Some(64)));
    }
}
