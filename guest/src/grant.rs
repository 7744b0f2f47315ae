//! The grant table, version 1, one frame: 512 entries, the first eight of them not ours.
//!
//! Source: xen `grant_table.h`, `struct grant_entry_v1`: flags and domid in one word, frame in
//! the next.

use crate::page::{Frame, Page};

/// Where the grant table's frame is mapped over this one.
pub static GRANT_FRAME: Frame = Frame::new();

const ENTRIES: u32 = 512;
const ENTRIES_RESERVED: u32 = 8;
const PERMIT: u32 = 1;
const READ_ONLY: u32 = 1 << 2;
/// Mapped for reading or for writing right now.
const IN_USE: u32 = 1 << 3 | 1 << 4;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// What became of an entry that was taken back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Ended {
    Free,
    /// The other domain still maps the page: neither page nor entry may be used again.
    StillMapped,
}

pub struct GrantTable {
    table: Page,
}

impl GrantTable {
    /// The table of this domain, once it is mapped at [`GRANT_FRAME`].
    pub fn new() -> Self {
        Self { table: GRANT_FRAME.page() }
    }

    /// Lets `domid` map a machine (PV) or guest (PVH) frame; the reference to tell it.
    pub fn grant(&mut self, domid: u16, frame: u64, access: Access) -> Option<u32> {
        let frame = u32::try_from(frame).ok()?;
        let entry = (ENTRIES_RESERVED..ENTRIES).find(|entry| self.table.load(at(*entry)) == 0)?;
        self.table.store(at(entry) + 4, frame);
        let flags = match access {
            Access::ReadOnly => PERMIT | READ_ONLY,
            Access::ReadWrite => PERMIT,
        };
        // The entry counts from this word on: written last.
        self.table.store(at(entry), flags | u32::from(domid) << 16);
        Some(entry)
    }

    /// Takes an entry back.
    pub fn end(&mut self, entry: u32) -> Ended {
        let mut word = self.table.load(at(entry));
        while word & IN_USE == 0 {
            match self.table.swap(at(entry), word, 0) {
                Ok(_) => return Ended::Free,
                Err(changed) => word = changed,
            }
        }
        Ended::StillMapped
    }
}

fn at(entry: u32) -> usize {
    entry as usize * 8
}
