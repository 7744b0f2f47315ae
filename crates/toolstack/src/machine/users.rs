//! Users of domains: a domain may be released only when there is no more work on it.

use std::collections::{BTreeMap, BTreeSet};

use xen::DomainRef;

use super::Incarnation;
use crate::work::Release;

/// Users of domains; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct DomainUsers {
    /// Number of works in progress by domain.
    works: BTreeMap<DomainRef, u32>,
    /// Domains to be released when their work has ended.
    owed: BTreeSet<DomainRef>,
}

impl DomainUsers {
    /// Registers work on a domain.
    pub(super) fn enter(&mut self, domain: DomainRef) {
        *self.works.entry(domain).or_default() += 1;
    }

    /// Unregisters work. Returns whether the domain is to be released now.
    pub(super) fn leave(&mut self, domain: DomainRef) -> bool {
        let works = self.works.get_mut(&domain).expect("work was counted when it was given out");
        *works -= 1;
        *works == 0 && {
            self.works.remove(&domain);
            self.owed.remove(&domain)
        }
    }

    pub(super) fn is_used(&self, domain: DomainRef) -> bool {
        self.works.contains_key(&domain)
    }

    /// Releases a domain when the last work on it has ended.
    pub(super) fn release_later(&mut self, domain: DomainRef) {
        self.owed.insert(domain);
    }

    /// Releases a VM's domain with its nodes, or when the last work on it has ended.
    pub(crate) fn release(&mut self, incarnation: &mut Incarnation) -> Release {
        incarnation.is_released = true;
        match incarnation.domain {
            Some(domain) if self.is_used(domain) => {
                self.release_later(domain);
                Release::Later
            }
            _ => Release::Now,
        }
    }
}
