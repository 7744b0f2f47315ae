//! Fault injection for tests; not in release builds.

/// A request that contains these bytes crashes the daemon.
#[derive(Debug)]
pub(crate) struct Trap {
    #[cfg(debug_assertions)]
    bytes: Vec<u8>,
}

impl Trap {
    #[cfg(debug_assertions)]
    pub(crate) fn of_environment() -> Self {
        let bytes = std::env::var("XENSTORED_TRAP").unwrap_or_default().into_bytes();
        Self { bytes }
    }

    #[cfg(not(debug_assertions))]
    pub(crate) fn of_environment() -> Self {
        Self {}
    }

    /// A successor that has taken everything and does not go on.
    pub(crate) fn hang_as_successor() {
        if cfg!(debug_assertions) && std::env::var_os("XENSTORED_TRAP_SUCCESSOR").is_some() {
            loop {
                std::thread::park();
            }
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn check(&self, payload: &[u8]) {
        let length = self.bytes.len();
        let is_it = length > 0 && payload.windows(length).any(|window| window == self.bytes);
        assert!(!is_it, "the trap was stepped on");
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "as in builds for tests")]
    pub(crate) fn check(&self, _payload: &[u8]) {}
}
