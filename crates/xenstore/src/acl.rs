//! Permission lists and checks.
//!
//! A right belongs to one life of a domain: a later domain with the same domid does not have it.
//! Source: xen `docs/misc/xenstore.txt`, `SET_PERMS`; XSA-322, XSA-417.

use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::permission::{Access, Permission};

/// One life of a domain, never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Life(pub(crate) u64);

/// A domain during one life.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Being {
    pub(crate) domid: DomId,
    pub(crate) life: Life,
}

/// The subject of an access check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Subject {
    /// The control domain, by its ring or by a socket: everything is allowed and no quota applies.
    Privileged,
    /// A guest; it has the rights of its target as well (a device model's domain has one).
    Guest { being: Being, target: Option<Being> },
}

impl Subject {
    /// The guest, or `None` for the control domain.
    pub(crate) fn guest(self) -> Option<Being> {
        match self {
            Self::Privileged => None,
            Self::Guest { being, .. } => Some(being),
        }
    }

    fn is(self, domid: DomId, life: Option<Life>) -> bool {
        let named = life.map(|life| Being { domid, life });
        match self {
            Self::Privileged => false,
            Self::Guest { being, target } => {
                named.is_some() && (named == Some(being) || named == target)
            }
        }
    }
}

/// A right that a request needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Right {
    Read,
    Write,
    /// Write, and be the owner.
    Own,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Entry {
    pub(crate) permission: Permission,
    /// `None`: stale, the domain does not exist any more. `DomId::ANY`, which matches every guest,
    /// has `Life(0)`; a stale entry is hidden from the guest that set it.
    pub(crate) life: Option<Life>,
}

impl Entry {
    fn is_of(&self, being: Being) -> bool {
        self.permission.domid == being.domid && self.life == Some(being.life)
    }
}

/// A node's permission list.
///
/// Invariant: never empty; the first entry names the owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// # Panics
    /// If there is no entry.
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        assert!(!entries.is_empty(), "a permission list has an owner");
        Self { entries }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn owner(&self) -> Entry {
        self.entries[0]
    }

    pub(crate) fn permissions(&self) -> Vec<Permission> {
        self.entries.iter().map(|entry| entry.permission).collect()
    }

    pub(crate) fn allows(&self, subject: Subject, right: Right) -> bool {
        let owner = self.owner();
        if subject == Subject::Privileged || subject.is(owner.permission.domid, owner.life) {
            return true;
        }
        let access = self.entries[1..]
            .iter()
            .find(|entry| {
                let is_any = entry.permission.domid == DomId::ANY && entry.life.is_some();
                is_any || subject.is(entry.permission.domid, entry.life)
            })
            .map_or(owner.permission.access, |entry| entry.permission.access);
        match right {
            Right::Read => access.reads(),
            Right::Write => access.writes(),
            Right::Own => false,
        }
    }

    /// Guests that may read by this list; `None` if every guest may. Some may not, if they are
    /// listed twice.
    pub(crate) fn readers(&self) -> Option<impl Iterator<Item = DomId>> {
        let is_any = |entry: &&Entry| entry.permission.domid == DomId::ANY;
        let reads = |entry: &&Entry| entry.life.is_some() && entry.permission.access.reads();
        let (owner, others) = self.entries.split_first()?;
        if owner.permission.access.reads() || others.iter().filter(is_any).any(|e| reads(&e)) {
            return None;
        }
        let others = others.iter().filter(reads);
        Some(core::iter::once(owner).chain(others).map(|entry| entry.permission.domid))
    }

    /// The list of a node that `creator` creates below one with this list: the same, but a guest
    /// owns what it creates.
    pub(crate) fn inherited(self: &Arc<Self>, creator: Option<Being>) -> Arc<Self> {
        let owner = self.owner();
        match creator {
            Some(being)
                if !(owner.permission.domid == being.domid && owner.life == Some(being.life)) =>
            {
                let mut entries = self.entries.clone();
                entries[0].permission.domid = being.domid;
                entries[0].life = Some(being.life);
                Arc::new(Self { entries })
            }
            _ => Arc::clone(self),
        }
    }

    /// The list with the control domain as the owner; no one gains a right.
    pub(crate) fn owned_by_dom0(&self) -> Self {
        let mut entries = self.entries.clone();
        entries[0] = Entry {
            permission: Permission::new(self.owner().permission.access, DomId::DOM0),
            life: Some(Life(0)),
        };
        Self { entries }
    }

    /// The list without the rights of a dead domain. Its ownership is handled elsewhere.
    pub(crate) fn without(&self, domid: DomId) -> Self {
        self.without_named(|entry| entry.permission.domid == domid && entry.life.is_some())
    }

    /// The list without the rights of this one life.
    pub(crate) fn without_being(&self, being: Being) -> Self {
        self.without_named(|entry| entry.is_of(being))
    }

    fn without_named(&self, leaves: impl Fn(&Entry) -> bool) -> Self {
        let others = self.entries[1..].iter().filter(|entry| !leaves(entry));
        Self { entries: core::iter::once(&self.entries[0]).chain(others).copied().collect() }
    }

    /// Whether the list contains the guest in this role.
    pub(crate) fn mentions(&self, role: Role, being: Being) -> bool {
        match role {
            Role::Owner => self.entries[0].is_of(being),
            Role::Named => self.entries[1..].iter().any(|entry| entry.is_of(being)),
        }
    }

    /// The list without the rights of dead domains; a dead owner remains, without effect.
    pub(crate) fn of_the_living(&self, lives: impl Fn(Being) -> bool) -> Self {
        let is_dead = |entry: &Entry| {
            let domid = entry.permission.domid;
            let is_guest = domid != DomId::DOM0 && domid != DomId::ANY;
            is_guest && entry.life.is_some_and(|life| !lives(Being { domid, life }))
        };
        let owner_is_dead = is_dead(&self.entries[0]);
        let mut list = self.without_named(is_dead);
        if owner_is_dead {
            list.entries[0].life = None;
        }
        list
    }

    /// Live guests in the list, with their roles.
    pub(crate) fn guests(&self) -> impl Iterator<Item = (Role, Being)> {
        self.entries.iter().enumerate().filter_map(|(i, entry)| {
            let domid = entry.permission.domid;
            let role = if i == 0 { Role::Owner } else { Role::Named };
            let life = entry.life.filter(|_| domid != DomId::DOM0 && domid != DomId::ANY)?;
            Some((role, Being { domid, life }))
        })
    }
}

/// The role of a domain in a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Owner,
    Named,
}

/// The list of the control domain's private nodes.
pub(crate) fn private_to_dom0() -> Arc<Acl> {
    let permission = Permission::new(Access::None, DomId::DOM0);
    Arc::new(Acl::new(alloc::vec![Entry { permission, life: Some(Life(0)) }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn being(domid: u16, life: u64) -> Being {
        Being { domid: DomId(domid), life: Life(life) }
    }

    fn guest(domid: u16, life: u64) -> Subject {
        Subject::Guest { being: being(domid, life), target: None }
    }

    fn entry(access: Access, domid: u16, life: Option<u64>) -> Entry {
        Entry { permission: Permission::new(access, DomId(domid)), life: life.map(Life) }
    }

    fn rights(acl: &Acl, subject: Subject) -> [bool; 3] {
        [Right::Read, Right::Write, Right::Own].map(|right| acl.allows(subject, right))
    }

    #[test]
    fn the_owner_may_everything_whatever_the_letter() {
        let acl = Acl::new(alloc::vec![entry(Access::None, 1, Some(5))]);
        assert_eq!(rights(&acl, guest(1, 5)), [true, true, true]);
        assert_eq!(rights(&acl, guest(2, 6)), [false, false, false]);
        assert_eq!(rights(&acl, Subject::Privileged), [true, true, true]);
    }

    #[test]
    fn the_next_domain_of_the_same_number_has_no_right() {
        let acl = Acl::new(alloc::vec![
            entry(Access::None, 1, Some(5)),
            entry(Access::ReadWrite, 2, Some(6)),
            entry(Access::ReadWrite, 3, None),
        ]);
        assert_eq!(rights(&acl, guest(1, 9)), [false, false, false]);
        assert_eq!(rights(&acl, guest(2, 6)), [true, true, false]);
        assert_eq!(rights(&acl, guest(2, 9)), [false, false, false]);
        assert_eq!(rights(&acl, guest(3, 9)), [false, false, false]);
    }

    #[test]
    fn the_first_entry_that_names_the_guest_decides() {
        let acl = Acl::new(alloc::vec![
            entry(Access::Read, 0, Some(0)),
            entry(Access::Write, 2, Some(6)),
            entry(Access::None, 0x7ff5, None),
            entry(Access::ReadWrite, 0x7ff5, Some(0)),
        ]);
        assert_eq!(rights(&acl, guest(2, 6)), [false, true, false]);
        assert_eq!(rights(&acl, guest(3, 7)), [true, true, false]);
    }

    #[test]
    fn a_guest_has_the_rights_of_its_target() {
        let acl = Acl::new(alloc::vec![entry(Access::None, 1, Some(5))]);
        let target = Some(being(1, 5));
        let helper = Subject::Guest { being: being(2, 6), target };
        assert_eq!(rights(&acl, helper), [true, true, true]);
        let target = Some(being(1, 4));
        let helper = Subject::Guest { being: being(2, 6), target };
        assert_eq!(rights(&acl, helper), [false, false, false]);
    }

    #[test]
    fn a_guest_owns_what_it_creates() {
        let parent = Arc::new(Acl::new(alloc::vec![
            entry(Access::Read, 0, Some(0)),
            entry(Access::Write, 1, Some(5)),
        ]));
        assert_eq!(*parent.inherited(None), *parent);
        let child = parent.inherited(Some(being(1, 5)));
        assert_eq!(child.entries()[0], entry(Access::Read, 1, Some(5)));
        assert_eq!(child.entries()[1..], parent.entries()[1..]);
    }
}
