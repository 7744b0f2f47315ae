//! A suspended PV guest goes on in its own domain as if it were a new one.
//!
//! The guest's suspend call was given its start info, in which it had put its own numbers for the frames of the store's
//! and the console's ring, and expects machine frames when the call returns 0. Of its vCPUs those that it had taken
//! down must be as in a new domain, so that it can initialise them again.
//!
//! Sources: `xen/include/public/xen.h` (`start_info`), `tools/libs/guest/xg_resume.c` for what libxc's slow resume changes.

use xen::{DomainInfo, Hypervisor, Xen};

use crate::capture::CaptureError;
use crate::layout::{context, put_u64_at, start, u64_at};

/// Machine frames of a PV guest's rings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rings {
    pub store: u64,
    pub console: u64,
}

/// Prepares a suspended PV guest for a return of 0 from its suspend call. Doing it again changes nothing.
///
/// # Errors
/// The guest has 32 bits, its start info is not its own memory, or Xen refuses.
pub fn prepare_in_place<H: Hypervisor>(
    xen: &mut Xen<H>,
    info: &DomainInfo,
    rings: Rings,
) -> Result<(), CaptureError> {
    let domid = info.domid;
    let refused = |what| CaptureError::refused(domid, what);
    let bits = xen.address_size(domid).map_err(refused("ask for its address size"))?;
    if bits != 64 {
        return Err(CaptureError::Width { domid, bits });
    }
    let registers = xen.vcpu_context(domid, 0).map_err(refused("read a vCPU's state"))?;
    let frame = u64_at(&registers, context::RDX);
    let mut page = [0; start::BYTES];
    // Xen lets nobody map a frame that is not the guest's.
    xen.read_foreign(domid, &[frame], 0, &mut page)?;
    put_u64_at(&mut page, start::STORE_FRAME, rings.store);
    put_u64_at(&mut page, start::CONSOLE_FRAME, rings.console);
    xen.write_foreign(domid, &[frame], 0, &page)?;
    for vcpu in 1..=info.vcpu_id_max.unwrap_or(0) {
        if !xen.vcpu_info(domid, vcpu).map_err(refused("read a vCPU's state"))?.online {
            xen.reset_vcpu(domid, vcpu).map_err(refused("reset a vCPU"))?;
        }
    }
    Ok(())
}
