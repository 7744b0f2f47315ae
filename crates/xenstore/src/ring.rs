//! The shared page through which a domain talks to the store.
//!
//! Two rings of 1024 bytes with free-running indexes. Each index is loaded once and checked; later
//! writes of the peer have no effect. Source: xen `docs/misc/xenstore-ring.txt`,
//! `xen/include/public/io/xs_wire.h`, `struct xenstore_domain_interface`.

/// Bytes in each of the two rings.
pub const RING_BYTES: usize = 1024;

/// The ring can be reset without another `INTRODUCE`.
pub const FEATURE_RECONNECTION: u32 = 1;
/// The page has an error field.
pub const FEATURE_ERROR: u32 = 2;
/// A watch may have a depth.
pub const FEATURE_WATCH_DEPTH: u32 = 4;
/// A permission may apply to every domain, by `DomId::ANY`.
pub const FEATURE_DOMID_ANY: u32 = 8;

/// Offsets of the page's fields, in bytes.
pub mod field {
    pub const REQUEST_CONSUMER: usize = 2048;
    pub const REQUEST_PRODUCER: usize = 2052;
    pub const REPLY_CONSUMER: usize = 2056;
    pub const REPLY_PRODUCER: usize = 2060;
    pub const SERVER_FEATURES: usize = 2064;
    pub const CONNECTION: usize = 2068;
    pub const ERROR: usize = 2072;
    pub const PORT: usize = 2076;
}

use field::{CONNECTION, ERROR, PORT, SERVER_FEATURES};

const CONNECTED: u32 = 0;
const RECONNECT: u32 = 1;

/// A page that the peer writes to concurrently.
///
/// `load_u32` loads once and no later access of this thread moves before it; no earlier access moves
/// after `store_u32`. Bytes may change at any moment.
pub trait RingPage {
    /// Loads the word at `offset`, once.
    fn load_u32(&self, offset: usize) -> u32;
    /// Stores the word at `offset`, after everything written before.
    fn store_u32(&self, offset: usize, value: u32);
    /// Copies bytes out of the page.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes into the page.
    fn write(&self, offset: usize, bytes: &[u8]);
}

impl<P: RingPage + ?Sized> RingPage for &P {
    fn load_u32(&self, offset: usize) -> u32 {
        (**self).load_u32(offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        (**self).store_u32(offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        (**self).read(offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        (**self).write(offset, bytes);
    }
}

impl<P: RingPage + ?Sized> RingPage for alloc::boxed::Box<P> {
    fn load_u32(&self, offset: usize) -> u32 {
        (**self).load_u32(offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        (**self).store_u32(offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        (**self).read(offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        (**self).write(offset, bytes);
    }
}

/// Why the store stopped serving a ring, as the page tells the guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RingError {
    #[error("the event channel does not work")]
    EventChannel = 1,
    #[error("a ring holds more bytes than fit into it")]
    BadIndex = 2,
    #[error("a message announces a payload longer than the protocol allows")]
    PayloadTooLong = 3,
}

/// One of the two rings in the page.
#[derive(Clone, Copy, Debug)]
struct Ring {
    data: usize,
    consumer: usize,
    producer: usize,
}

const REQUESTS: Ring =
    Ring { data: 0, consumer: field::REQUEST_CONSUMER, producer: field::REQUEST_PRODUCER };
const REPLIES: Ring =
    Ring { data: 1024, consumer: field::REPLY_CONSUMER, producer: field::REPLY_PRODUCER };

/// A snapshot of both indexes of a ring.
#[derive(Clone, Copy, Debug)]
struct Indexes {
    consumer: u32,
    producer: u32,
    used_bytes: usize,
}

impl Ring {
    fn indexes(self, page: &impl RingPage) -> Result<Indexes, RingError> {
        let consumer = page.load_u32(self.consumer);
        let producer = page.load_u32(self.producer);
        match usize::try_from(producer.wrapping_sub(consumer)) {
            Ok(used_bytes) if used_bytes <= RING_BYTES => {
                Ok(Indexes { consumer, producer, used_bytes })
            }
            _ => Err(RingError::BadIndex),
        }
    }

    fn take(self, page: &impl RingPage, into: &mut [u8]) -> Result<usize, RingError> {
        let (bytes, consumer) = self.copy_out(page, into)?;
        if bytes > 0 {
            page.store_u32(self.consumer, consumer);
        }
        Ok(bytes)
    }

    /// Returns the number of bytes, and the consumer's index after them.
    fn copy_out(self, page: &impl RingPage, into: &mut [u8]) -> Result<(usize, u32), RingError> {
        let indexes = self.indexes(page)?;
        let bytes = indexes.used_bytes.min(into.len());
        let start = offset(indexes.consumer);
        let first = bytes.min(RING_BYTES - start);
        page.read(self.data + start, &mut into[..first]);
        page.read(self.data, &mut into[first..bytes]);
        Ok((bytes, advanced(indexes.consumer, bytes)))
    }

    fn put(self, page: &impl RingPage, from: &[u8]) -> Result<usize, RingError> {
        let indexes = self.indexes(page)?;
        let bytes = (RING_BYTES - indexes.used_bytes).min(from.len());
        let start = offset(indexes.producer);
        let first = bytes.min(RING_BYTES - start);
        page.write(self.data + start, &from[..first]);
        page.write(self.data, &from[first..bytes]);
        if bytes > 0 {
            page.store_u32(self.producer, advanced(indexes.producer, bytes));
        }
        Ok(bytes)
    }

    fn clear(self, page: &impl RingPage) {
        page.store_u32(self.consumer, 0);
        page.store_u32(self.producer, 0);
    }
}

fn offset(index: u32) -> usize {
    index as usize % RING_BYTES
}

fn advanced(index: u32, bytes: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 1024")]
    let bytes = bytes as u32;
    index.wrapping_add(bytes)
}

/// The store's positions in a ring page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RingIndexes {
    /// Index of the next byte of a request.
    pub requests_taken: u32,
    /// Index of the next byte of a reply.
    pub replies_put: u32,
}

/// The store's end of a ring page.
#[derive(Debug)]
pub struct ServerRing<P> {
    page: P,
}

impl<P: RingPage> ServerRing<P> {
    pub fn new(page: P) -> Self {
        Self { page }
    }

    pub fn page(&self) -> &P {
        &self.page
    }

    /// Sets the features, and marks the ring as connected.
    pub fn offer(&self, features: u32) {
        self.page.store_u32(SERVER_FEATURES, features);
        if self.page.load_u32(CONNECTION) == CONNECTED {
            self.page.store_u32(ERROR, 0);
        }
    }

    /// The event channel in the page itself, instead of `INTRODUCE`'s; 0 if there is none.
    pub fn port(&self) -> u32 {
        self.page.load_u32(PORT)
    }

    /// The store's own indexes, from the page.
    pub fn indexes(&self) -> RingIndexes {
        RingIndexes {
            requests_taken: self.page.load_u32(REQUESTS.consumer),
            replies_put: self.page.load_u32(REPLIES.producer),
        }
    }

    /// Copies bytes of requests without consuming them: returns the number, and the index after
    /// them for [`release_requests`](Self::release_requests).
    ///
    /// # Errors
    /// [`RingError::BadIndex`].
    pub fn copy_requests(&self, into: &mut [u8]) -> Result<(usize, u32), RingError> {
        REQUESTS.copy_out(&self.page, into)
    }

    /// Frees the space of requests before this index; notify the guest.
    pub fn release_requests(&self, taken: u32) {
        self.page.store_u32(REQUESTS.consumer, taken);
    }

    /// Consumes bytes of requests and returns the number; notify the guest if there were any.
    ///
    /// # Errors
    /// [`RingError::BadIndex`].
    pub fn take_requests(&self, into: &mut [u8]) -> Result<usize, RingError> {
        REQUESTS.take(&self.page, into)
    }

    /// Puts bytes of replies in and returns how many fitted; notify the guest if there were any.
    ///
    /// # Errors
    /// [`RingError::BadIndex`].
    pub fn put_replies(&self, from: &[u8]) -> Result<usize, RingError> {
        REPLIES.put(&self.page, from)
    }

    /// Whether the guest requests a reconnection.
    pub fn wants_reconnect(&self) -> bool {
        self.page.load_u32(CONNECTION) == RECONNECT
    }

    /// Resets: empties both rings and marks them as connected. Notify the guest.
    pub fn reset(&self) {
        REQUESTS.clear(&self.page);
        REPLIES.clear(&self.page);
        self.page.store_u32(ERROR, 0);
        self.page.store_u32(CONNECTION, CONNECTED);
    }

    /// Sets the error for the guest, which is no longer served. Notify the guest.
    pub fn set_error(&self, error: RingError) {
        self.page.store_u32(ERROR, error as u32);
    }
}

/// The guest's end of a ring page.
#[derive(Debug)]
pub struct ClientRing<P> {
    page: P,
}

impl<P: RingPage> ClientRing<P> {
    pub fn new(page: P) -> Self {
        Self { page }
    }

    pub fn page(&self) -> &P {
        &self.page
    }

    /// The store's `FEATURE_` bits.
    pub fn features(&self) -> u32 {
        self.page.load_u32(SERVER_FEATURES)
    }

    /// Puts bytes of requests in and returns how many fitted; notify the store if there were any.
    ///
    /// # Errors
    /// [`RingError::BadIndex`].
    pub fn put_requests(&self, from: &[u8]) -> Result<usize, RingError> {
        REQUESTS.put(&self.page, from)
    }

    /// Consumes bytes of replies and returns the number; notify the store if there were any.
    ///
    /// # Errors
    /// [`RingError::BadIndex`].
    pub fn take_replies(&self, into: &mut [u8]) -> Result<usize, RingError> {
        REPLIES.take(&self.page, into)
    }

    /// Requests a reconnection; only if [`FEATURE_RECONNECTION`] is offered. Notify the store and
    /// wait until [`is_connected`](Self::is_connected).
    pub fn ask_reconnect(&self) {
        self.page.store_u32(CONNECTION, RECONNECT);
    }

    pub fn is_connected(&self) -> bool {
        self.page.load_u32(CONNECTION) == CONNECTED
    }

    /// The code of the [`RingError`] that ended the service; 0 if there was none.
    pub fn error(&self) -> u32 {
        self.page.load_u32(ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::cell::RefCell;
    use proptest::prelude::*;

    struct Page(RefCell<[u8; 4096]>);

    impl Page {
        fn starting_at(index: u32) -> Self {
            let page = Self(RefCell::new([0; 4096]));
            for ring in [REQUESTS, REPLIES] {
                page.store_u32(ring.consumer, index);
                page.store_u32(ring.producer, index);
            }
            page
        }
    }

    impl RingPage for Page {
        fn load_u32(&self, offset: usize) -> u32 {
            let mut word = [0; 4];
            self.read(offset, &mut word);
            u32::from_ne_bytes(word)
        }

        fn store_u32(&self, offset: usize, value: u32) {
            self.write(offset, &value.to_ne_bytes());
        }

        fn read(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    #[test]
    fn a_full_ring_is_valid_and_takes_nothing_more() {
        let page = Page::starting_at(u32::MAX - 500);
        let (guest, store) = (ClientRing::new(&page), ServerRing::new(&page));
        let bytes: Vec<u8> = (0..2000u32).map(|i| i.to_le_bytes()[0]).collect();
        assert_eq!(guest.put_requests(&bytes), Ok(1024));
        assert_eq!(guest.put_requests(&bytes), Ok(0));
        let mut taken = [0; 4096];
        assert_eq!(store.take_requests(&mut taken), Ok(1024));
        assert_eq!(taken[..1024], bytes[..1024]);
        assert_eq!(store.take_requests(&mut taken), Ok(0));
    }

    #[test]
    fn indexes_that_cannot_be_are_an_error() {
        for (consumer, producer) in [(0, 1025), (1, 0), (5, u32::MAX), (0, 1 << 31)] {
            let page = Page::starting_at(0);
            page.store_u32(REQUESTS.consumer, consumer);
            page.store_u32(REQUESTS.producer, producer);
            let store = ServerRing::new(&page);
            assert_eq!(store.take_requests(&mut [0; 16]), Err(RingError::BadIndex));
            store.set_error(RingError::BadIndex);
            assert_eq!(ClientRing::new(&page).error(), 2);
        }
    }

    #[test]
    fn a_reconnection_starts_at_zero() {
        let page = Page::starting_at(77);
        let (guest, store) = (ClientRing::new(&page), ServerRing::new(&page));
        store.offer(FEATURE_RECONNECTION);
        assert_eq!(guest.features(), FEATURE_RECONNECTION);
        guest.put_requests(b"half a message").unwrap();
        guest.ask_reconnect();
        assert!(store.wants_reconnect() && !guest.is_connected());
        store.reset();
        assert!(guest.is_connected());
        assert_eq!(store.take_requests(&mut [0; 16]), Ok(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn bytes_arrive_whole_and_in_order(
            start in any::<u32>(),
            sizes in proptest::collection::vec((1usize..1500, 1usize..1500), 1..40)
        ) {
            let page = Page::starting_at(start);
            let (guest, store) = (ClientRing::new(&page), ServerRing::new(&page));
            let mut next = 0u8;
            let mut expected = 0u8;
            for (put, take) in sizes {
                let bytes: Vec<u8> = (0..put).map(|i| next.wrapping_add(i.to_le_bytes()[0])).collect();
                let sent = store.put_replies(&bytes).unwrap();
                next = next.wrapping_add(sent.to_le_bytes()[0]);
                let mut into = alloc::vec![0; take];
                let taken = guest.take_replies(&mut into).unwrap();
                for byte in &into[..taken] {
                    prop_assert_eq!(*byte, expected);
                    expected = expected.wrapping_add(1);
                }
            }
        }

        #[test]
        fn no_words_in_the_page_make_either_end_panic(words in any::<[u32; 8]>()) {
            let page = Page::starting_at(0);
            for (i, word) in words.into_iter().enumerate() {
                page.store_u32(2048 + 4 * i, word);
            }
            let store = ServerRing::new(&page);
            let mut into = [0; 2048];
            if let Ok(bytes) = store.take_requests(&mut into) {
                prop_assert!(bytes <= RING_BYTES);
            }
            let _bytes_or_error = store.put_replies(&into);
        }
    }
}
