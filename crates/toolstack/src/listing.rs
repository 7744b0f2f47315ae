//! A list of all domains, shared by all who request one at the same time.
//!
//! A list is always one hypercall over all domains. It has the guarantees of Xen's walk: ascending
//! domids without duplicates, and every domain that exists from the beginning to the end of the
//! list. A domain that is created or destroyed meanwhile may or may not be in it. Fields of a row
//! are sampled one after the other.
//!
//! A list is immutable: pages, filters and orders are derived from it, so they are consistent. A
//! request that arrives while a list is being made is answered by the next one, which begins after
//! the request; concurrent requests share it.

use xen::{DomId, Uuid};

use crate::machine::DomainRow;

/// A snapshot of all domains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Listing {
    /// Number within this process: later lists have greater numbers.
    pub number: u64,
    /// By ascending domid.
    pub rows: Vec<DomainRow>,
}

impl Listing {
    /// The domain with this domid.
    #[must_use]
    pub fn row(&self, domid: DomId) -> Option<&DomainRow> {
        let at = self.rows.binary_search_by_key(&domid, |row| row.info.domid).ok()?;
        self.rows.get(at)
    }

    /// The domain of a VM; the live one if it is being replaced.
    #[must_use]
    pub fn row_of(&self, uuid: Uuid) -> Option<&DomainRow> {
        let of_vm = || self.rows.iter().filter(|row| row.info.handle == uuid);
        of_vm().find(|row| !row.info.flags.dying()).or_else(|| of_vm().next())
    }

    /// At most `most` rows after `after`, or from the beginning.
    #[must_use]
    pub fn page(&self, after: Option<DomId>, most: usize) -> &[DomainRow] {
        let from =
            after.map_or(0, |after| self.rows.partition_point(|row| row.info.domid <= after));
        &self.rows[from..self.rows.len().min(from.saturating_add(most))]
    }
}
