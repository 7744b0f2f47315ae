//! Event channels without interrupts: all ports stay masked, pending bits are read after
//! [`wait`] returns. Source: xen `xen.h`, `struct shared_info`.

use crate::hypercall;
use crate::page::{Frame, Page};

/// Where Xen's shared info page is mapped over this one.
pub static SHARED_INFO: Frame = Frame::new();

/// Its fields for PV guests: number of pages, frame of the p2m list's frame list.
pub const P2M_PAGES: usize = 3088;
pub const P2M_LIST_LIST: usize = 3096;

const PENDING: usize = 2048;
const MASK: usize = 2560;
const WORDS: usize = 64;

fn shared_info() -> Page {
    SHARED_INFO.page()
}

/// Masks everything: nothing is to interrupt this guest. Sleeping works all the same.
pub fn mask_all() {
    for word in 0..WORDS {
        shared_info().store_long(MASK + word * 8, u64::MAX);
    }
}

/// Takes the pending mark off a port; whether it was set. Look at the ring *after* this.
pub fn take(port: u32) -> bool {
    let bit = 1 << (port % 64);
    let word = port as usize / 64;
    word < WORDS && shared_info().clear_bits(PENDING + word * 8, bit) & bit != 0
}

/// Sleeps until one of the ports is pending or the clock passes `until_ns` (0: no limit).
pub fn wait(ports: &[u32], until_ns: u64) {
    hypercall::poll(ports, until_ns);
}
