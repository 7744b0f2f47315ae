//! pciback's devices of one guest: a virtual bus that guests look at anew when devices come and go.
//!
//! ```text
//!   Initialised -- frontend Initialised --> Connected
//!   frontend Reconfiguring -> devices come and go -> Reconfigured -- frontend Connected --> Connected
//! ```
//! Source: Linux `drivers/xen/xen-pciback/xenbus.c`.

use std::collections::BTreeSet;

use toolstack::pci::parse_address;
use xen::{PciAddress, XenbusState};
use xenstore::client::{ClientError, Nodes as _};

use super::Shared;
use super::device::Fatal;

/// What the driver has given to the guest.
#[derive(Debug, Default)]
pub(super) struct Bus {
    exported: BTreeSet<PciAddress>,
}

fn read(shared: &mut Shared, path: &str) -> Result<Option<String>, ClientError> {
    let value = shared.store.read_optional(path)?;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

impl Bus {
    /// Adds devices that are Initialising, and removes those that are Closing.
    pub(super) fn reconfigure(
        &mut self,
        shared: &mut Shared,
        path: &str,
    ) -> Result<Result<(), Fatal>, ClientError> {
        let count = read(shared, &format!("{path}/num_devs"))?;
        let Some(count) = count.and_then(|count| count.parse::<u32>().ok()) else {
            return Ok(Err((-22, "Error reading number of devices".to_owned())));
        };
        for index in 0..count {
            let state = format!("{path}/state-{index}");
            let Some(now) = read(shared, &state)? else { continue };
            let address = read(shared, &format!("{path}/dev-{index}"))?;
            let Some(address) = address.as_deref().and_then(parse_address) else {
                return Ok(Err((-22, "String does not match PCI address".to_owned())));
            };
            match XenbusState::decode(now.as_bytes()) {
                XenbusState::Initialising => {
                    if !shared.os.export_pci(address) {
                        return Ok(Err((-22, format!("Couldn't locate PCI device ({address})!"))));
                    }
                    self.exported.insert(address);
                    shared.store.write(&state, XenbusState::Initialised.as_str().as_bytes())?;
                }
                XenbusState::Closing if self.exported.remove(&address) => {
                    shared.os.withdraw_pci(address);
                }
                _ => {}
            }
        }
        Ok(Ok(()))
    }

    pub(super) fn remove(&mut self, shared: &Shared) {
        for address in std::mem::take(&mut self.exported) {
            shared.os.withdraw_pci(address);
        }
    }
}
