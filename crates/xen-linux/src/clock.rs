//! The host's time zone.

use std::time::{SystemTime, UNIX_EPOCH};

/// How far local time is ahead of UTC now, in seconds; 0 if that is unknown.
///
/// The zone is read from its file at the first call.
#[must_use]
pub fn local_offset_seconds() -> i32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(seconds) = libc::time_t::try_from(now.as_secs()) else { return 0 };
    // SAFETY: all zeros are a `tm`: numbers, and a name that may be null.
    let mut broken_down: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for the call, and this form uses no memory of its own.
    let known = unsafe { !libc::localtime_r(&raw const seconds, &raw mut broken_down).is_null() };
    match known {
        true => i32::try_from(broken_down.tm_gmtoff).unwrap_or_default(),
        false => 0,
    }
}
