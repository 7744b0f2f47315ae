//! Domain identity: domids are reused, so a number alone does not identify a domain.
//!
//! Xen has no call "do this if it is still that domain". So a caller that acts on a domain it has
//! not just created checks first ([`Xen::presence`]). The window between check and act is closed
//! elsewhere: the store keeps a page of every dead domain mapped until the toolstack has released
//! the domain, and Xen does not reuse a domid while a page is mapped.
//!
//! Source: `xen/include/public/domctl.h`, `XEN_DOMCTL_get_domain_state` (4.21 and later).

use crate::abi::{domctl, u16_at, u64_at};
use crate::xen::domctl_raw;
use crate::{DomId, Errno, Hypervisor, Uuid, Xen};

/// What distinguishes a domain from all others that have or had its domid.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Life {
    /// Xen's own number (4.21 and later), unique since boot.
    Unique(u64),
    /// The handle at creation, and a generation counted by the caller. Xen knows the handle only:
    /// two successive domains with the same domid and handle look the same to it.
    Counted { handle: Uuid, generation: u64 },
}

/// One domain, and no other that has had or will have its domid.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DomainRef {
    pub domid: DomId,
    pub life: Life,
}

/// Whether a domain still exists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Presence {
    /// It has its domid, alive or dead.
    Here,
    /// Its domid is free or belongs to another domain.
    Gone,
}

/// A domain's state as Xen 4.21 and later report it to the owner of VIRQ_DOM_EXC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LifeState {
    pub domid: DomId,
    /// 0 if the domain no longer exists.
    pub unique_id: u64,
    pub exists: bool,
    pub shutdown: bool,
    /// It is being torn down, or was.
    pub dying: bool,
    /// Teardown is complete.
    pub dead: bool,
}

const DOMID_INVALID: DomId = DomId(0x7FF4);

impl<H: Hypervisor> Xen<H> {
    /// The identity of the domain that has this domid now: one hypercall where Xen has unique
    /// numbers, otherwise none.
    ///
    /// # Errors
    /// ESRCH if there is no such domain (where Xen was asked).
    pub fn identify(
        &mut self,
        domid: DomId,
        handle: Uuid,
        generation: u64,
    ) -> Result<DomainRef, Errno> {
        let life = if self.abi.tells_unique_ids() {
            Life::Unique(self.life_state(domid)?.ok_or(Errno::ESRCH)?.unique_id)
        } else {
            Life::Counted { handle, generation }
        };
        Ok(DomainRef { domid, life })
    }

    /// Whether this very domain exists: one hypercall, whose cost does not depend on the number of
    /// domains.
    ///
    /// # Errors
    /// Any errno of the hypercall but ESRCH.
    pub fn presence(&mut self, domain: DomainRef) -> Result<Presence, Errno> {
        let is_same = match domain.life {
            Life::Unique(id) => self.life_state(domain.domid)?.is_some_and(|s| s.unique_id == id),
            Life::Counted { handle, .. } => {
                self.domain(domain.domid)?.is_some_and(|info| info.handle == handle)
            }
        };
        Ok(if is_same { Presence::Here } else { Presence::Gone })
    }

    /// State and unique number of the domain with this domid, if there is one. Only where
    /// [`Abi::tells_unique_ids`](crate::Abi::tells_unique_ids).
    ///
    /// # Errors
    /// Any errno of the hypercall but ESRCH.
    pub fn life_state(&mut self, domid: DomId) -> Result<Option<LifeState>, Errno> {
        self.get_domain_state(domid)
    }

    /// The next domain whose state changed since it was last reported, lowest domid first; `None`
    /// when there are no more. Every domain counts as changed when VIRQ_DOM_EXC is bound.
    ///
    /// # Errors
    /// EACCES unless this domain owns VIRQ_DOM_EXC.
    pub fn next_changed(&mut self) -> Result<Option<LifeState>, Errno> {
        self.get_domain_state(DOMID_INVALID)
    }

    fn get_domain_state(&mut self, domid: DomId) -> Result<Option<LifeState>, Errno> {
        const EXIST: u16 = 1;
        const SHUTDOWN: u16 = 2;
        const DYING: u16 = 4;
        const DEAD: u16 = 8;
        self.counters.count("get_domain_state");
        // The one stable domctl: its interface version is 0 on every Xen that has it.
        match domctl_raw(&mut self.hypervisor, 0, domctl::GET_DOMAIN_STATE, domid, &[]) {
            Ok(_) => {}
            Err(Errno::ESRCH | Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let domid = self.domctl_domid();
        let payload = self.domctl_payload();
        let (state, unique_id) = (u16_at(payload, 0), u64_at(payload, 8));
        let has = |bit: u16| state & bit != 0;
        Ok(Some(LifeState {
            domid,
            unique_id,
            exists: has(EXIST),
            shutdown: has(SHUTDOWN),
            dying: has(DYING),
            dead: has(DEAD),
        }))
    }
}
