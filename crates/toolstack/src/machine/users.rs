//! Who still does something about a domain: its number may be given out again only when nobody does.

use std::collections::{BTreeMap, BTreeSet};

use xen::DomainRef;

use super::Facts;
use crate::work::Release;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct DomainUsers {
    /// How much of the work under way is about which domain.
    works: BTreeMap<DomainRef, u32>,
    /// Domains to be released as soon as no work is about them.
    owed: BTreeSet<DomainRef>,
}

impl DomainUsers {
    /// Work about a domain is given out.
    pub(super) fn enter(&mut self, domain: DomainRef) {
        *self.works.entry(domain).or_default() += 1;
    }

    /// Such work is over. Returns whether the domain is to be released now.
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

    /// Releases a domain when the last work that is about it has ended.
    pub(super) fn release_later(&mut self, domain: DomainRef) {
        self.owed.insert(domain);
    }

    /// A VM's domain is released with its nodes, or when the last work that is about it has ended.
    pub(crate) fn release(&mut self, facts: &mut Facts) -> Release {
        facts.is_released = true;
        match facts.domain {
            Some(domain) if self.is_used(domain) => {
                self.release_later(domain);
                Release::Later
            }
            _ => Release::Now,
        }
    }
}
