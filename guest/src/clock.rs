//! Xen's system time: nanoseconds since the host started. Source: xen `xen.h`,
//! `struct vcpu_time_info`.

use core::arch::x86_64::_rdtsc;

use crate::evtchn::SHARED_INFO;

pub const MILLISECOND_NS: u64 = 1_000_000;
pub const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;

/// `vcpu_info[0].time` in the shared info page.
const TIME: usize = 32;

/// The processor's own clock: comparable, through [`elapsed_ns`], even before Xen's is mapped.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction; Xen emulates it where it traps.
    unsafe { _rdtsc() }
}

pub fn now_ns() -> u64 {
    let scale = Scale::load();
    scale.system_ns.wrapping_add(scale.ns(ticks().wrapping_sub(scale.ticks)))
}

pub fn elapsed_ns(since_ticks: u64) -> u64 {
    Scale::load().ns(ticks().wrapping_sub(since_ticks))
}

/// Xen's last parameters of the clock.
struct Scale {
    ticks: u64,
    system_ns: u64,
    factor: u32,
    shift: i8,
}

impl Scale {
    fn load() -> Self {
        let page = SHARED_INFO.page();
        loop {
            let version = page.load(TIME);
            let scale = Self {
                ticks: page.load_long(TIME + 8),
                system_ns: page.load_long(TIME + 16),
                factor: page.load(TIME + 24),
                shift: i8::from_le_bytes([page.load(TIME + 28).to_le_bytes()[0]]),
            };
            // An odd version is being written; a changed one was.
            if version & 1 == 0 && page.load(TIME) == version {
                return scale;
            }
        }
    }

    /// Ticks to nanoseconds: shifted, then times a 32-bit fraction.
    fn ns(&self, ticks: u64) -> u64 {
        let amount = u32::from(self.shift.unsigned_abs());
        let ticks = match self.shift {
            ..0 => ticks.checked_shr(amount),
            0.. => ticks.checked_shl(amount),
        };
        let product = u128::from(ticks.unwrap_or(0)) * u128::from(self.factor);
        u64::try_from(product >> 32).unwrap_or(u64::MAX)
    }
}
