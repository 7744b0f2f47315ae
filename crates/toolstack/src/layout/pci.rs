//! The nodes of devices of the host that a domain has: one split device for all of them.
//!
//! Source: Linux `drivers/xen/xen-pciback/xenbus.c`; xen `tools/libs/light/libxl_pci.c`.

use xen::{DomId, XenbusState};

use super::Nodes;
use crate::pci::{self, Assigned};

/// What the backend's directory has of each device, each with the device's place: `dev-0`.
pub(crate) const ENTRY_NODES: [&str; 7] = ["key", "dev", "vdevfn", "name", "opts", "state", "vdev"];

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
    super::both_ends(&mut nodes, (domid, &frontend), (DomId::DOM0, &backend));
    nodes.put(format!("{backend}/domain"), vm);
    put_entries(&mut nodes, domid, 0, devices);
    nodes.put(format!("{backend}/num_devs"), devices.len().to_string());
    super::device_states(&mut nodes, &frontend, &backend);
    nodes
}

/// What a running domain gets in addition, after the `first` ones that it has. Its guest looks for new ones then.
#[must_use]
pub fn more_nodes(domid: DomId, first: usize, devices: &[Assigned]) -> Nodes {
    let (mut nodes, backend) = (Nodes::default(), backend(domid));
    put_entries(&mut nodes, domid, first, devices);
    nodes.put(format!("{backend}/num_devs"), (first + devices.len()).to_string());
    nodes.put(format!("{backend}/state"), XenbusState::Reconfiguring.as_str());
    nodes
}

/// Who has each.
#[must_use]
pub(crate) fn owner_nodes(domid: DomId, devices: &[Assigned]) -> Nodes {
    let mut nodes = Nodes::default();
    for device in devices {
        nodes.put(format!("{}/domid", pci::path(device.address)), domid.to_string());
    }
    nodes
}

fn put_entries(nodes: &mut Nodes, domid: DomId, first: usize, devices: &[Assigned]) {
    let backend = backend(domid);
    nodes.0.extend(owner_nodes(domid, devices).0);
    for (index, device) in (first..).zip(devices) {
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
}
