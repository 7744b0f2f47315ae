//! File descriptors inherited from the parent.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Dir, Mode, OFlags};

use crate::HostError;
use crate::error::Refused;

/// Standard input, output and error belong to Rust's runtime.
const FIRST: RawFd = 3;

/// Every inherited descriptor but the standard ones, by number. Those not taken are closed.
#[derive(Debug)]
pub struct Inherited(BTreeMap<RawFd, OwnedFd>);

impl Inherited {
    /// Takes all of them. Call this before anything else opens a file: descriptors opened before
    /// would be taken too. A second call is therefore refused.
    ///
    /// # Errors
    /// If the descriptors cannot be listed.
    ///
    /// # Panics
    /// If it is called a second time.
    pub fn take_all() -> Result<Self, HostError> {
        static TAKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let again = TAKEN.swap(true, std::sync::atomic::Ordering::SeqCst);
        assert!(!again, "inherited descriptors are taken once");
        let context = || "cannot list the descriptors that were inherited".to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open("/proc/self/fd", flags, Mode::empty()).refused(context)?;
        let own = folder.as_raw_fd();
        let mut numbers = Vec::new();
        for entry in Dir::new(folder).refused(context)? {
            let entry = entry.refused(context)?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            numbers.extend(number.filter(|number: &RawFd| *number >= FIRST && *number != own));
        }
        let take = |number: RawFd| {
            // SAFETY: the descriptor is open, as it was listed, and this process has not opened any
            // itself yet, so nothing else owns it. It is not taken twice: see above.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            (number, descriptor)
        };
        Ok(Self(numbers.into_iter().map(take).collect()))
    }

    /// Takes one out and sets close-on-exec.
    #[must_use]
    pub fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        let descriptor = self.0.remove(&number)?;
        // It is open, and the call cannot fail otherwise.
        let _kept = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        Some(descriptor)
    }
}
