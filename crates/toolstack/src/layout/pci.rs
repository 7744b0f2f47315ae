//! The nodes of devices of the host that a domain has: one split device for all of them.
//!
//! Source: Linux `drivers/xen/xen-pciback/xenbus.c`; xen `tools/libs/light/libxl_pci.c`.

use xen::{DomId, XenbusState};

use super::Nodes;
use crate::pci::{self, Assigned};

/// The backend's directory.
#[must_use]
pub fn backend(domid: DomId) -> String {
    format!("/local/domain/0/backend/pci/{domid}/0")
}

/// Both ends of the device, unless there is none, and who has each.
#[must_use]
pub fn nodes(domid: DomId, vm: &str, devices: &[Assigned]) -> Nodes {
    let mut nodes = Nodes::default();
    if devices.is_empty() {
        return nodes;
    }
    let (frontend, backend) = (format!("/local/domain/{domid}/device/pci/0"), backend(domid));
    super::both_ends(&mut nodes, domid, &frontend, &backend);
    nodes.put(format!("{backend}/domain"), vm);
    for (index, device) in devices.iter().enumerate() {
        nodes.put(format!("{}/domid", pci::path(device.address)), domid.to_string());
        nodes.put(format!("{backend}/key-{index}"), device.address.to_string());
        nodes.put(format!("{backend}/dev-{index}"), device.address.to_string());
        if device.guest_slot != 0 {
            nodes.put(format!("{backend}/vdevfn-{index}"), format!("{:x}", device.guest_slot));
        }
        if let Some(name) = &device.name {
            nodes.put(format!("{backend}/name-{index}"), name);
        }
        nodes.put(format!("{backend}/opts-{index}"), &device.options);
        nodes.put(format!("{backend}/state-{index}"), XenbusState::Initialising.as_str());
    }
    nodes.put(format!("{backend}/num_devs"), devices.len().to_string());
    super::device_states(&mut nodes, &frontend, &backend);
    nodes
}
