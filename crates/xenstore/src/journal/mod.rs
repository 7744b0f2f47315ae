//! What a killed daemon leaves behind: records of every change that must outlive it.
//!
//! While recording is on, each change of the store appends a [`Record`] to a buffer that the shell
//! copies to a place which survives the process, before anything that follows from the change becomes
//! visible outside. A checkpoint is such records too: those that lead from nothing to the present
//! state. So there is one format and one way back, `server/replay.rs`.
//!
//! Sockets die with the process; nothing of theirs is recorded but what they changed for others.

mod record;

pub(crate) use record::{NodePath, Record, decode_acl, encode_acl};

use alloc::vec::Vec;

/// Version of the records. A reader takes its own version only: see `docs/store.md` for what to do.
pub const RECORD_VERSION: u32 = 1;

/// The buffer of records; nothing is kept unless it is switched on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    is_on: bool,
    bytes: Vec<u8>,
}

impl Recorder {
    pub(crate) fn start(&mut self) {
        self.is_on = true;
    }

    pub(crate) fn stop(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn record(&mut self, record: &Record<'_>) {
        if self.is_on {
            record.encode(&mut self.bytes);
        }
    }

    /// Records since the last [`clear`](Self::clear).
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        // One unusually long turn should not stay for ever.
        self.bytes.shrink_to(64 * 1024);
    }
}
