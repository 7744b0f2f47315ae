//! The console ring, one way: lines out. Input is left where it is.
//!
//! A full ring is waited for a little, then the rest of the line is lost: it has no reader, and a
//! guest that hangs for that would be worse. Source: xen `io/console.h`.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use guest_proto::byte_ring;
use guest_proto::text::Text;

use crate::page::Page;
use crate::{clock, evtchn, hypercall};

const OUT: usize = 1024;
const OUT_BYTES: u32 = 2048;
const OUT_CONS: usize = 3080;
const OUT_PROD: usize = 3084;
const LINE_BYTES: usize = 400;
const PATIENCE_NS: u64 = 200 * clock::MILLISECOND_NS;

// Kept in statics for the panic handler, which gets nothing handed to it.
static PAGE: AtomicUsize = AtomicUsize::new(0);
static PORT: AtomicU32 = AtomicU32::new(0);
static QUIET: AtomicBool = AtomicBool::new(false);

/// From here on lines go to this ring.
pub fn open(page: Page, port: u32) {
    PAGE.store(page.address(), Ordering::Relaxed);
    PORT.store(port, Ordering::Relaxed);
}

pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// A line that is always printed: `say!("hello domid={domid}")`.
macro_rules! say {
    ($($arguments:tt)*) => { $crate::console::line(format_args!($($arguments)*)) };
}

/// A line that `xylem.quiet` leaves out.
macro_rules! tell {
    ($($arguments:tt)*) => {
        if !$crate::console::is_quiet() {
            $crate::console::line(format_args!($($arguments)*));
        }
    };
}

pub(crate) use {say, tell};

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

pub fn line(arguments: fmt::Arguments<'_>) {
    let text = Text::<LINE_BYTES>::of(format_args!("XYLEM-UNIKERNEL: {arguments}"));
    let address = PAGE.load(Ordering::Relaxed);
    if address == 0 {
        return;
    }
    // SAFETY: `open` was given a `Page` at this address, and pages stay mapped.
    let page = unsafe { Page::at(address) };
    let port = PORT.load(Ordering::Relaxed);
    write(page, port, text.as_str().as_bytes());
    write(page, port, b"\r\n");
    hypercall::send(port);
}

fn write(page: Page, port: u32, mut bytes: &[u8]) {
    let mut patience_end_ns = 0;
    while !bytes.is_empty() {
        let prod = page.load(OUT_PROD);
        let Ok(free) = byte_ring::free(prod, page.load(OUT_CONS), OUT_BYTES) else { return };
        if free == 0 {
            let now_ns = clock::now_ns();
            if patience_end_ns == 0 {
                patience_end_ns = now_ns + PATIENCE_NS;
            } else if now_ns >= patience_end_ns {
                return;
            }
            hypercall::send(port);
            evtchn::wait(&[port], patience_end_ns);
            evtchn::take(port);
            continue;
        }
        let wanted = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(free);
        let place = byte_ring::stretch(prod, wanted, OUT_BYTES);
        let (now, later) = bytes.split_at(place.len());
        page.write(OUT + place.start, now);
        page.store(OUT_PROD, prod.wrapping_add(u32::try_from(now.len()).unwrap_or(0)));
        bytes = later;
    }
}
