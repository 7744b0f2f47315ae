//! What each front end has besides its protocol: pages lent to the backend, and an event channel.

use guest_proto::request_ring::{FrontRing, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD};

use crate::console::say;
use crate::grant::{Access, Ended, GrantTable};
use crate::hypercall;
use crate::machine::Machine;
use crate::page::{Page, Pool};
use crate::store::Store;

/// What a front end works with; it owns none of it.
pub struct Context<'a> {
    pub machine: &'a Machine,
    pub store: &'a mut Store,
    pub grants: &'a mut GrantTable,
    pub pool: &'a mut Pool,
}

/// A page of the pool that another domain may map.
#[derive(Clone, Copy)]
pub struct Lent {
    pub page: Page,
    pub grant: u32,
}

impl Lent {
    /// `None` if pages or grant entries have run out.
    pub fn new(context: &mut Context<'_>, domid: u16, access: Access) -> Option<Self> {
        let page = context.pool.take()?;
        let Some(grant) = context.grants.grant(domid, context.machine.frame_of(page), access)
        else {
            context.pool.give_back(page);
            return None;
        };
        Some(Self { page, grant })
    }

    /// Takes the page back. One that the other domain keeps mapped is lost to us.
    pub fn take_back(self, context: &mut Context<'_>) {
        match context.grants.end(self.grant) {
            Ended::Free => context.pool.give_back(self.page),
            Ended::StillMapped => say!("grant {} is still mapped and stays so", self.grant),
        }
    }
}

/// A shared ring with our indexes of it.
pub struct SharedRing {
    pub lent: Lent,
    indexes: FrontRing,
    published: u32,
}

/// The backend wrote an index that cannot be; it gets no more attention.
#[derive(Clone, Copy, Debug)]
pub struct Misbehaved;

impl SharedRing {
    pub fn new(context: &mut Context<'_>, domid: u16, slot_bytes: usize) -> Option<Self> {
        let lent = Lent::new(context, domid, Access::ReadWrite)?;
        // Both event indexes start at 1: the first request and the first response are told.
        lent.page.store(REQ_EVENT, 1);
        lent.page.store(RSP_EVENT, 1);
        Some(Self { lent, indexes: FrontRing::new(slot_bytes), published: 0 })
    }

    /// Puts a request into the next slot; `false` if the ring is full.
    pub fn push(&mut self, request: &[u8]) -> bool {
        let Some(offset) = self.indexes.next_request() else { return false };
        self.lent.page.write(offset, request);
        true
    }

    /// Shows the backend what was pushed and tells it if it wants to be told.
    pub fn publish(&mut self, port: u32) {
        if self.published == self.indexes.req_prod() {
            return;
        }
        self.lent.page.store(REQ_PROD, self.indexes.req_prod());
        full_barrier();
        if self.indexes.must_notify(self.published, self.lent.page.load(REQ_EVENT)) {
            hypercall::send(port);
        }
        self.published = self.indexes.req_prod();
    }

    /// Copies the next response out; `None` after having asked to be told of the next one.
    pub fn pop<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Misbehaved> {
        for asked in [false, true] {
            let rsp_prod = self.lent.page.load(RSP_PROD);
            if let Some(offset) = self.indexes.next_response(rsp_prod).map_err(|_| Misbehaved)? {
                let mut response = [0; N];
                self.lent.page.read(offset, &mut response);
                return Ok(Some(response));
            }
            if !asked {
                self.lent.page.store(RSP_EVENT, self.indexes.rsp_event());
                full_barrier();
            }
        }
        Ok(None)
    }
}

/// Between writing our index and reading the other side's: the one order that x86 does not keep
/// by itself.
fn full_barrier() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
