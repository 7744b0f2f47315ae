//! A guest's ends of the store ring and the console ring, in its own memory.
//!
//! Written from the public headers, independently of the store's code, so that the two check each
//! other. Sources: `xen/include/public/io/xs_wire.h` (`xenstore_domain_interface`), `io/console.h`.

use xen::{DomId, Errno, EvtchnPort, PAGE_BYTES};
use xenstore::client::Transport;
use xenstore::wire::HEADER_BYTES;

use crate::bytes::{put_u32, u32_at};
use crate::machine::Machine;
use crate::store::Store;

const RING_BYTES: u32 = 1024;
const REQUESTS: usize = 0;
const REPLIES: usize = 1024;
const REQUEST_CONSUMER: usize = 2048;
const REQUEST_PRODUCER: usize = 2052;
const REPLY_CONSUMER: usize = 2056;
const REPLY_PRODUCER: usize = 2060;

/// Offset in a ring of `RING_BYTES` for a free-running index.
fn slot(index: u32) -> usize {
    usize::try_from(index % RING_BYTES).expect("below the ring's size")
}

/// Puts as many bytes into the request ring as fit; returns how many, and whether the ring was empty.
fn put_requests(page: &mut [u8; PAGE_BYTES], bytes: &[u8]) -> (usize, bool) {
    let (consumer, mut producer) = (u32_at(page, REQUEST_CONSUMER), u32_at(page, REQUEST_PRODUCER));
    let was_empty = producer == consumer;
    let mut done = 0;
    while done < bytes.len() && producer.wrapping_sub(consumer) < RING_BYTES {
        page[REQUESTS + slot(producer)] = bytes[done];
        producer = producer.wrapping_add(1);
        done += 1;
    }
    put_u32(page, REQUEST_PRODUCER, producer);
    (done, was_empty)
}

/// Takes bytes from the reply ring; returns how many, and whether the ring was full.
fn take_replies(page: &mut [u8; PAGE_BYTES], into: &mut [u8]) -> (usize, bool) {
    let (mut consumer, producer) = (u32_at(page, REPLY_CONSUMER), u32_at(page, REPLY_PRODUCER));
    let was_full = producer.wrapping_sub(consumer) >= RING_BYTES;
    let mut done = 0;
    while done < into.len() && consumer != producer {
        into[done] = page[REPLIES + slot(consumer)];
        consumer = consumer.wrapping_add(1);
        done += 1;
    }
    put_u32(page, REPLY_CONSUMER, consumer);
    (done, was_full)
}

/// The store ring as a client's transport. As Linux does it (`xb_write`, `xb_read`), a header and its
/// payload are written one after the other, an event is sent for either only if the ring was empty, and
/// for replies taken only if theirs was full. Waiting lets the store work if it has an event; if there is
/// still no reply, the result is `EAGAIN`.
#[derive(Debug)]
pub(crate) struct RingTransport {
    pub(crate) machine: Machine,
    pub(crate) store: Store,
    pub(crate) domid: DomId,
    pub(crate) mfn: u64,
    pub(crate) port: EvtchnPort,
}

impl RingTransport {
    fn notify(&self) -> Result<(), Errno> {
        self.machine.get_mut().evtchn_send(self.domid, self.port)
    }
}

impl Transport for RingTransport {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let (header, payload) = bytes.split_at(bytes.len().min(HEADER_BYTES));
        for mut rest in [header, payload] {
            while !rest.is_empty() {
                let (done, was_empty) = put_requests(
                    self.machine.get_mut().guest_frame_mut(self.domid, self.mfn),
                    rest,
                );
                if done == 0 {
                    return Err(Errno::EAGAIN);
                }
                if was_empty {
                    self.notify()?;
                }
                rest = &rest[done..];
                // The store runs on another CPU.
                self.store.serve_notified_ring(self.domid);
            }
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        for _ in 0..2 {
            let (done, was_full) =
                take_replies(self.machine.get_mut().guest_frame_mut(self.domid, self.mfn), into);
            if done > 0 {
                if was_full {
                    self.notify()?;
                }
                return Ok(done);
            }
            self.store.serve_notified_ring(self.domid);
        }
        Err(Errno::EAGAIN)
    }
}

/// Corrupts the store ring's indexes, as a hostile guest may.
pub(crate) fn break_store_ring(page: &mut [u8; PAGE_BYTES]) {
    let consumer = u32_at(page, REQUEST_CONSUMER);
    put_u32(page, REQUEST_PRODUCER, consumer.wrapping_add(RING_BYTES + 1));
}

const CONSOLE_OUT: usize = 1024;
const CONSOLE_OUT_BYTES: u32 = 2048;
const CONSOLE_OUT_CONSUMER: usize = 3080;
const CONSOLE_OUT_PRODUCER: usize = 3084;

fn console_slot(index: u32) -> usize {
    CONSOLE_OUT + usize::try_from(index % CONSOLE_OUT_BYTES).expect("below the ring's size")
}

/// Writes to the console; what does not fit is lost, as without a reader.
pub(crate) fn console_write(page: &mut [u8; PAGE_BYTES], text: &str) {
    let consumer = u32_at(page, CONSOLE_OUT_CONSUMER);
    let mut producer = u32_at(page, CONSOLE_OUT_PRODUCER);
    for byte in text.bytes() {
        if producer.wrapping_sub(consumer) >= CONSOLE_OUT_BYTES {
            break;
        }
        page[console_slot(producer)] = byte;
        producer = producer.wrapping_add(1);
    }
    put_u32(page, CONSOLE_OUT_PRODUCER, producer);
}

/// Reads all pending console output, as xenconsoled does.
pub(crate) fn console_drain(page: &mut [u8; PAGE_BYTES]) -> Vec<u8> {
    let mut consumer = u32_at(page, CONSOLE_OUT_CONSUMER);
    let producer = u32_at(page, CONSOLE_OUT_PRODUCER);
    let mut out = Vec::new();
    if producer.wrapping_sub(consumer) > CONSOLE_OUT_BYTES {
        return out;
    }
    while consumer != producer {
        out.push(page[console_slot(consumer)]);
        consumer = consumer.wrapping_add(1);
    }
    put_u32(page, CONSOLE_OUT_CONSUMER, consumer);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_takes_what_fits_and_wraps_round() {
        let mut page = [0; PAGE_BYTES];
        for start in [0, u32::MAX - 3] {
            put_u32(&mut page, REQUEST_CONSUMER, start);
            put_u32(&mut page, REQUEST_PRODUCER, start);
            assert_eq!(put_requests(&mut page, &[7; 1500]), (1024, true));
            assert_eq!(u32_at(&page, REQUEST_PRODUCER), start.wrapping_add(1024));
            assert_eq!(put_requests(&mut page, &[7]), (0, false));
        }
    }

    #[test]
    fn console_output_reads_back() {
        let mut page = [0; PAGE_BYTES];
        console_write(&mut page, "hello\n");
        assert_eq!(console_drain(&mut page), b"hello\n");
        assert_eq!(console_drain(&mut page), b"");
        console_write(&mut page, &"x".repeat(3000));
        assert_eq!(console_drain(&mut page).len(), 2048);
    }
}
