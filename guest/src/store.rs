//! Client of the store over its ring: requests with an answer, posted ones without, watches.
//!
//! One request waits for its answer at a time, but any number of posted ones may be on their way
//! before it: answers come in the order of the requests, so that a transaction costs two waits,
//! whatever it writes. Events are level-triggered: a token's bit says "look again".

use core::fmt;
use core::sync::atomic::{Ordering, fence};

use guest_proto::byte_ring;
use guest_proto::device::{DeviceId, Touched};
use guest_proto::text::decimal_u32;
use guest_proto::xenbus::{HEADER_BYTES, Header, Kind, PAYLOAD_BYTES_MAX, Refusal, decode_event};

use crate::console::say;
use crate::devices::DEVICES_MAX;
use crate::machine::Ring;
use crate::{clock, evtchn, hypercall};

const RING_BYTES: u32 = 1024;
const REQUESTS: usize = 0;
const RESPONSES: usize = 1024;
const REQ_CONS: usize = 2048;
const REQ_PROD: usize = 2052;
const RSP_CONS: usize = 2056;
const RSP_PROD: usize = 2060;

/// Tokens are bit numbers in [`Store::fired`].
pub const TOKEN_SHUTDOWN: u32 = 0;
pub const TOKEN_DEVICES: u32 = 1;
/// The first of one token for each device.
pub const TOKEN_DEVICE: u32 = 8;
const FIRED_WORDS: usize = (TOKEN_DEVICE as usize + DEVICES_MAX).div_ceil(64);

/// Outside any transaction.
pub const NO_TRANSACTION: u32 = 0;
/// A transaction that meets another is run again, but not for ever.
const TRIES: u32 = 64;
const TOUCHED_MAX: usize = 8;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreError {
    Refused(Refusal),
    /// The ring holds what no store would write. Nothing works from here on.
    Broken,
}

/// Whether a refusal of a posted request makes the next transaction fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Matters {
    Yes,
    No,
}

pub struct Store {
    ring: Ring,
    request: u32,
    /// Requests whose answers have not come.
    unanswered: u32,
    incoming: [u8; HEADER_BYTES + PAYLOAD_BYTES_MAX],
    incoming_bytes: usize,
    broken: bool,
    /// First refusal of a posted request that matters.
    refused: Option<Refusal>,
    fired: [u64; FIRED_WORDS],
    touched: [Option<DeviceId>; TOUCHED_MAX],
}

/// Posted requests whose refusal does not matter carry this bit in their id.
const ID_INDIFFERENT: u32 = 1 << 31;

impl Store {
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            request: 0,
            unanswered: 0,
            incoming: [0; HEADER_BYTES + PAYLOAD_BYTES_MAX],
            incoming_bytes: 0,
            broken: false,
            refused: None,
            fired: [0; FIRED_WORDS],
            touched: [None; TOUCHED_MAX],
        }
    }

    /// After this nothing asked of the store is unanswered. The store is asked nothing if that is so already: it would
    /// take longer than a suspend.
    pub fn settle(&mut self) {
        self.service();
        if self.unanswered > 0 {
            // Answers come in order.
            let _ = self.read(format_args!("domid"));
        }
    }

    /// The ring of a new domain, which still holds what the old one left in it.
    pub fn reopen(ring: Ring) -> Self {
        ring.page.store(RSP_CONS, ring.page.load(RSP_PROD));
        Self::new(ring)
    }

    pub fn port(&self) -> u32 {
        self.ring.port
    }

    pub fn read(&mut self, path: fmt::Arguments<'_>) -> Result<&[u8], StoreError> {
        self.ask(Kind::Read, NO_TRANSACTION, &[&PathText::of(path)])
    }

    /// The answer is for `guest_proto::xenbus::names`.
    pub fn directory(&mut self, path: fmt::Arguments<'_>) -> Result<&[u8], StoreError> {
        self.ask(Kind::Directory, NO_TRANSACTION, &[&PathText::of(path)])
    }

    pub fn watch(&mut self, path: fmt::Arguments<'_>, token: u32) -> Result<(), StoreError> {
        self.ask(Kind::Watch, NO_TRANSACTION, &[&PathText::of(path), &token_text(token)]).map(drop)
    }

    pub fn unwatch(&mut self, path: fmt::Arguments<'_>, token: u32) -> Result<(), StoreError> {
        let parts: [&dyn Part; 2] = [&PathText::of(path), &token_text(token)];
        let done = self.ask(Kind::Unwatch, NO_TRANSACTION, &parts).map(drop);
        self.take_fired(token);
        done
    }

    /// Writes without waiting for the answer.
    pub fn post_write(&mut self, path: fmt::Arguments<'_>, value: &str, matters: Matters) {
        self.post_write_in(NO_TRANSACTION, path, value, matters);
    }

    /// Writes all or nothing. `write` is called again if another transaction came between.
    pub fn transaction(&mut self, mut write: impl FnMut(&mut Self, u32)) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let answer = self.ask(Kind::TransactionStart, NO_TRANSACTION, &[&""])?;
            let id = guest_proto::boot::until_nul(answer);
            let id = decimal_u32(id).ok_or(StoreError::Refused(Refusal::Other))?;
            self.refused = None;
            write(self, id);
            let ended = self.ask(Kind::TransactionEnd, id, &[&"T"]).map(drop);
            match (ended, self.refused.take()) {
                (Err(StoreError::Refused(Refusal::Again)), _) => {}
                (Ok(()), Some(refusal)) => return Err(StoreError::Refused(refusal)),
                (ended, _) => return ended,
            }
        }
        Err(StoreError::Refused(Refusal::Again))
    }

    /// As [`Self::post_write`], inside a transaction.
    pub fn post_write_in(
        &mut self,
        transaction: u32,
        path: fmt::Arguments<'_>,
        value: &str,
        matters: Matters,
    ) {
        let mut request = self.next_request();
        if matters == Matters::No {
            request |= ID_INDIFFERENT;
        }
        // A broken ring shows at the next request that waits.
        let _ = self.send(Kind::Write, request, transaction, &[&PathText::of(path), &value]);
        self.notify();
    }

    /// Takes in what has arrived: events, and answers to posted requests.
    pub fn service(&mut self) {
        evtchn::take(self.ring.port);
        while let Ok(Some(header)) = self.receive() {
            self.dispatch(header);
        }
    }

    /// Whether the watch with this token fired since the last call.
    pub fn take_fired(&mut self, token: u32) -> bool {
        let bit = 1 << (token % 64);
        let Some(word) = self.fired.get_mut(token as usize / 64) else { return false };
        let fired = *word & bit != 0;
        *word &= !bit;
        fired
    }

    /// Whether there is nothing to do and nothing in the ring: only then may one sleep. The
    /// answer to a request may have hidden the event of a message behind it.
    pub fn is_idle(&mut self) -> bool {
        self.service();
        self.fired.iter().all(|word| *word == 0) && self.touched.iter().all(Option::is_none)
    }

    /// The devices that events of the watch on `device` named since the last call.
    pub fn take_touched(&mut self) -> [Option<DeviceId>; TOUCHED_MAX] {
        core::mem::take(&mut self.touched)
    }

    fn next_request(&mut self) -> u32 {
        self.request = self.request.wrapping_add(1) & !ID_INDIFFERENT;
        self.unanswered = self.unanswered.saturating_add(1);
        self.request
    }

    /// Sends a request and waits for its answer.
    fn ask(
        &mut self,
        kind: Kind,
        transaction: u32,
        parts: &[&dyn Part],
    ) -> Result<&[u8], StoreError> {
        let request = self.next_request();
        self.send(kind, request, transaction, parts)?;
        self.notify();
        // Told once: without a word a guest would seem dead where its store is.
        let mut patience_end_ns = clock::now_ns() + 5 * clock::SECOND_NS;
        loop {
            evtchn::take(self.ring.port);
            let Some(header) = self.receive()? else {
                evtchn::wait(&[self.ring.port], patience_end_ns);
                if patience_end_ns != 0 && clock::now_ns() >= patience_end_ns {
                    say!("waiting for the store to answer a request of kind {kind:?}");
                    patience_end_ns = 0;
                }
                continue;
            };
            if header.request != request || header.kind == Kind::WatchEvent as u32 {
                self.dispatch(header);
                continue;
            }
            self.unanswered = self.unanswered.saturating_sub(1);
            let payload = &self.incoming[HEADER_BYTES..HEADER_BYTES + header.payload_bytes()];
            return if header.kind == Kind::Error as u32 {
                Err(StoreError::Refused(Refusal::decode(payload)))
            } else if header.kind == kind as u32 {
                Ok(payload)
            } else {
                Err(StoreError::Refused(Refusal::Other))
            };
        }
    }

    fn send(
        &mut self,
        kind: Kind,
        request: u32,
        transaction: u32,
        parts: &[&dyn Part],
    ) -> Result<(), StoreError> {
        let nul_last = kind != Kind::Write;
        let mut bytes: usize = parts.iter().map(|part| part.bytes().len() + 1).sum();
        bytes -= usize::from(!nul_last);
        let header = Header::new(kind, request, transaction, bytes)
            .ok_or(StoreError::Refused(Refusal::Other))?;
        self.send_bytes(&header.encode())?;
        for (index, part) in parts.iter().enumerate() {
            self.send_bytes(part.bytes())?;
            if nul_last || index + 1 < parts.len() {
                self.send_bytes(&[0])?;
            }
        }
        Ok(())
    }

    fn send_bytes(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        let page = self.ring.page;
        while !bytes.is_empty() {
            if self.broken {
                return Err(StoreError::Broken);
            }
            let prod = page.load(REQ_PROD);
            let Ok(free) = byte_ring::free(prod, page.load(REQ_CONS), RING_BYTES) else {
                return Err(self.break_ring("the request ring's consumer index is impossible"));
            };
            if free == 0 {
                self.make_room()?;
                continue;
            }
            let wanted = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(free);
            let place = byte_ring::stretch(prod, wanted, RING_BYTES);
            let (now, later) = bytes.split_at(place.len());
            page.write(REQUESTS + place.start, now);
            page.store(REQ_PROD, prod.wrapping_add(u32::try_from(now.len()).unwrap_or(0)));
            bytes = later;
        }
        Ok(())
    }

    /// The request ring is full. Answers must be taken in meanwhile: a store whose answers do
    /// not fit stops reading requests.
    fn make_room(&mut self) -> Result<(), StoreError> {
        self.notify();
        evtchn::take(self.ring.port);
        if let Some(header) = self.receive()? {
            self.dispatch(header);
            return Ok(());
        }
        let page = self.ring.page;
        if byte_ring::free(page.load(REQ_PROD), page.load(REQ_CONS), RING_BYTES) == Ok(0) {
            evtchn::wait(&[self.ring.port], 0);
        }
        Ok(())
    }

    fn notify(&self) {
        hypercall::send(self.ring.port);
    }

    /// The next whole message, which stays in `incoming`; `None` if there is none yet.
    fn receive(&mut self) -> Result<Option<Header>, StoreError> {
        loop {
            let header = match self.incoming.first_chunk::<HEADER_BYTES>() {
                Some(bytes) if self.incoming_bytes >= HEADER_BYTES => {
                    Some(Header::decode(bytes).map_err(|oversized| {
                        say!("the store announced a message of {} bytes", oversized.0);
                        self.broken = true;
                        StoreError::Broken
                    })?)
                }
                _ => None,
            };
            let whole = HEADER_BYTES + header.map_or(0, |header| header.payload_bytes());
            if header.is_some() && self.incoming_bytes == whole {
                self.incoming_bytes = 0;
                return Ok(header);
            }
            if !self.take_in(whole)? {
                return Ok(None);
            }
        }
    }

    /// Moves bytes from the ring until `incoming` holds `whole`; whether any came.
    fn take_in(&mut self, whole: usize) -> Result<bool, StoreError> {
        if self.broken {
            return Err(StoreError::Broken);
        }
        let page = self.ring.page;
        let cons = page.load(RSP_CONS);
        let Ok(used) = byte_ring::used(page.load(RSP_PROD), cons, RING_BYTES) else {
            return Err(self.break_ring("the response ring's producer index is impossible"));
        };
        let missing = u32::try_from(whole - self.incoming_bytes).unwrap_or(0).min(used);
        if missing == 0 {
            return Ok(false);
        }
        let place = byte_ring::stretch(cons, missing, RING_BYTES);
        let end = self.incoming_bytes + place.len();
        page.read(RESPONSES + place.start, &mut self.incoming[self.incoming_bytes..end]);
        self.incoming_bytes = end;
        page.store(RSP_CONS, cons.wrapping_add(u32::try_from(place.len()).unwrap_or(0)));
        // A store that found the ring full sleeps until told; it may have filled it after `used`
        // was taken, so look again once the new consumer index can be seen.
        fence(Ordering::SeqCst);
        if page.load(RSP_PROD).wrapping_sub(cons) >= RING_BYTES {
            self.notify();
        }
        Ok(true)
    }

    fn dispatch(&mut self, header: Header) {
        let payload = &self.incoming[HEADER_BYTES..HEADER_BYTES + header.payload_bytes()];
        if header.kind == Kind::WatchEvent as u32 {
            let Some((path, token)) = decode_event(payload) else { return };
            match decimal_u32(token) {
                Some(TOKEN_DEVICES) => self.touch(Touched::decode(path)),
                Some(token) => self.fire(token),
                None => {}
            }
            return;
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        if header.kind == Kind::Error as u32 && header.request & ID_INDIFFERENT == 0 {
            self.refused.get_or_insert(Refusal::decode(payload));
        }
    }

    fn touch(&mut self, touched: Touched) {
        let device = match touched {
            Touched::All => None,
            Touched::Device(device) => Some(device),
            Touched::Foreign => return,
        };
        if device.is_some_and(|_| self.touched.contains(&device)) {
            return;
        }
        match self.touched.iter_mut().find(|place| place.is_none()) {
            Some(place) if device.is_some() => *place = device,
            // Everything, or too many to remember: look at all of them.
            _ => self.fire(TOKEN_DEVICES),
        }
    }

    fn fire(&mut self, token: u32) {
        if let Some(word) = self.fired.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }

    fn break_ring(&mut self, why: &str) -> StoreError {
        if !self.broken {
            say!("the store's ring is broken: {why}");
        }
        self.broken = true;
        StoreError::Broken
    }
}

/// A piece of a request's payload.
trait Part {
    fn bytes(&self) -> &[u8];
}

impl Part for &str {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

type PathText = guest_proto::text::Text<160>;

impl<const N: usize> Part for guest_proto::text::Text<N> {
    fn bytes(&self) -> &[u8] {
        self.as_str().as_bytes()
    }
}

fn token_text(token: u32) -> guest_proto::text::Text<4> {
    guest_proto::text::Text::of(format_args!("{token}"))
}
