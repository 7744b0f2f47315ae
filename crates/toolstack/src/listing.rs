//! All domains at one moment, listed once for everybody who asks.
//!
//! A list is one hypercall over all domains, always. What it promises is what Xen's walk does: ascending
//! domids, none twice, and every domain that was there when the list began and is there when it ends. One
//! that came or went meanwhile is in it or not. Fields of a row were read one after the other.
//!
//! The list is a value that never changes: pages, filters and orders are made of it, so that they fit
//! together however many domains come and go between two of them. Whoever asks while a list is being made
//! gets the next one, together with everybody else who does: it began after they asked.

use xen::{DomId, Uuid};

use crate::machine::DomainRow;

/// A snapshot of all domains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Listing {
    /// Of this process: a later list has a greater number, and equal numbers are one list.
    pub number: u64,
    /// By ascending domid.
    pub rows: Vec<DomainRow>,
}

impl Listing {
    /// The domain of this number.
    #[must_use]
    pub fn row(&self, domid: DomId) -> Option<&DomainRow> {
        let at = self.rows.binary_search_by_key(&domid, |row| row.info.domid).ok()?;
        self.rows.get(at)
    }

    /// The domain of a VM; if it is just being replaced by the next, the one that lives.
    #[must_use]
    pub fn row_of(&self, uuid: Uuid) -> Option<&DomainRow> {
        let of_vm = || self.rows.iter().filter(|row| row.info.handle == uuid);
        of_vm().find(|row| !row.info.flags.dying()).or_else(|| of_vm().next())
    }

    /// At most so many rows behind `after`, or from the beginning.
    #[must_use]
    pub fn page(&self, after: Option<DomId>, most: usize) -> &[DomainRow] {
        let from =
            after.map_or(0, |after| self.rows.partition_point(|row| row.info.domid <= after));
        &self.rows[from..self.rows.len().min(from.saturating_add(most))]
    }
}
