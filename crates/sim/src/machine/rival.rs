//! Another toolstack on the same host, which acts without hypercalls of ours: it kills domains and takes
//! their numbers.

use xen::{DomId, Errno, Uuid};

use super::SimXen;
use super::domain::Creation;

impl SimXen {
    /// Somebody else makes a domain of exactly this number, as `domid=` in a configuration file asks for.
    ///
    /// # Errors
    /// EEXIST if the number is taken, ENOMEM.
    pub fn take_number(&mut self, domid: DomId, handle: Uuid) -> Result<(), Errno> {
        let domid = self.choose_domid(domid)?;
        let creation = Creation {
            handle,
            flags: 0,
            emulation: 0,
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: 64,
        };
        self.insert_domain(domid, &creation)
    }

    /// Somebody else destroys a domain. Nothing happens if there is none of this number.
    pub fn destroy(&mut self, domid: DomId) {
        if domid != DomId::DOM0 {
            self.kill_domain(domid);
        }
    }
}
