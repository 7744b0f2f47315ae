//! Which domain is meant: a domid is given out again, so a number alone does not say.
//!
//! Xen has no call "do this if it is still that domain". So whoever is about to act on a domain that it
//! has not just made looks first ([`Xen::presence`]), and the time between look and act is closed
//! elsewhere: the store keeps a page of every dead domain mapped until the toolstack has let the domain
//! go, and as long as a page is mapped Xen gives its domid to nobody.
//!
//! Source: `xen/include/public/domctl.h`, `XEN_DOMCTL_get_domain_state` (4.21 and later).

use crate::abi::{domctl, u16_at, u64_at};
use crate::xen::domctl_raw;
use crate::{DomId, Errno, Hypervisor, Uuid, Xen};

/// What tells a domain from all others that have or had its domid.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Life {
    /// Xen's own number (4.21 and later), which no other domain since boot has.
    Unique(u64),
    /// The handle it was made with, and a number of whoever speaks of it. Xen knows the handle only: two
    /// domains that follow each other under one domid with one handle look the same to it.
    Counted { handle: Uuid, generation: u64 },
}

/// One domain, and no other that had its domid before or will have it later.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DomainRef {
    pub domid: DomId,
    pub life: Life,
}

/// Whether a domain that was meant is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Presence {
    /// It bears its domid, alive or dead.
    Here,
    /// Nobody bears its domid, or somebody else does.
    Gone,
}

/// A domain's state as Xen 4.21 and later keep it for whoever owns VIRQ_DOM_EXC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LifeState {
    pub domid: DomId,
    /// 0 if the domain does not exist any more.
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
    /// A name for the domain that bears this domid now: one hypercall where Xen has numbers of its own,
    /// none elsewhere.
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

    /// Whether this very domain is there: one hypercall that costs the same however many others exist.
    ///
    /// # Errors
    /// What Xen says, but for "no such domain".
    pub fn presence(&mut self, domain: DomainRef) -> Result<Presence, Errno> {
        let is_same = match domain.life {
            Life::Unique(id) => self.life_state(domain.domid)?.is_some_and(|s| s.unique_id == id),
            Life::Counted { handle, .. } => {
                self.domain(domain.domid)?.is_some_and(|info| info.handle == handle)
            }
        };
        Ok(if is_same { Presence::Here } else { Presence::Gone })
    }

    /// State and number of the domain that bears this domid, if there is one. Only where
    /// [`Abi::tells_unique_ids`](crate::Abi::tells_unique_ids).
    ///
    /// # Errors
    /// What Xen says, but for "no such domain".
    pub fn life_state(&mut self, domid: DomId) -> Result<Option<LifeState>, Errno> {
        self.get_domain_state(domid)
    }

    /// The next domain whose state changed since it was told the last time, lowest domid first; `None`
    /// when there is no more. Every domain counts as changed when VIRQ_DOM_EXC is bound.
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
