//! What is removed from the store with a domain, or with one of its devices.

use std::collections::BTreeSet;

use xen::{DomId, Uuid};

use super::{
    BACKENDS, Backends, DeviceKind, Ends, PENDING, all_devices, incoming_path, leaving_path,
    made_disks_path, record_path, record_removal, saving_path, suspend_port_path, vm_path,
};
use crate::config::VmConfig;
use crate::device_model;

/// A path to remove, and how many directories above it to remove as well if that empties them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Removal {
    pub path: String,
    pub levels_above: usize,
    /// The path contains the domid, and may belong to another domain by now.
    pub of_domain: bool,
}

impl Removal {
    pub(super) fn of_domain(path: String, levels_above: usize) -> Self {
        Self { path, levels_above, of_domain: true }
    }

    pub(super) fn of_vm(path: String, levels_above: usize) -> Self {
        Self { path, levels_above, of_domain: false }
    }
}

/// Paths to remove with a domain, and the directories above to remove when empty.
#[must_use]
pub fn removed_paths(
    config: &VmConfig,
    uuid: Uuid,
    domid: Option<DomId>,
    backends: &Backends,
) -> Vec<Removal> {
    let mut removals = Vec::new();
    if let Some(domid) = domid {
        let elsewhere: BTreeSet<String> =
            backends.iter().map(|(it, _)| backends.ends(it, domid).backends_path()).collect();
        // Of a driver domain that is gone nothing is to stay, not even the directory with its number.
        removals.extend(elsewhere.into_iter().map(|path| Removal::of_domain(path, 3)));
        let all = all_devices(config);
        for kind in DeviceKind::ALL {
            // Of a VM whose record cannot be read these are not known.
            let has = all.iter().any(|device| device.kind == kind)
                || (kind.is_served() && config.has_model())
                || (kind == DeviceKind::Pci && !config.options.pci.is_empty());
            if has {
                let path = format!("/local/domain/0/backend/{}/{domid}", kind.as_str());
                removals.push(Removal::of_domain(path, 2));
                // Where the kernel says what went wrong with a backend.
                let path = format!("/local/domain/0/error/backend/{}/{domid}", kind.as_str());
                removals.push(Removal::of_domain(path, 3));
            }
        }
        if config.has_model() {
            removals.push(Removal::of_domain(device_model::folder(domid), 1));
        }
        removals.push(Removal::of_domain(format!("/local/domain/{domid}"), 0));
        removals.push(Removal::of_domain(format!("/libxl/{domid}"), 1));
        removals.push(Removal::of_vm(vm_path(uuid), 1));
    }
    removals.push(record_removal(uuid));
    removals
}

/// A device model's nodes, which may exist before the domain's own.
#[must_use]
pub fn removed_model_paths(domid: DomId) -> Vec<Removal> {
    vec![Removal::of_vm(device_model::folder(domid), 1)]
}

/// The nodes that mark a record as complete.
#[must_use]
pub fn condemned_paths(uuid: Uuid) -> Vec<Removal> {
    vec![Removal::of_vm(format!("{}/complete", record_path(uuid)), 0)]
}

/// Paths to remove of a domain whose VM continues in another. The completion mark goes first, and
/// the domid last, so that a partly removed record can still be taken down.
#[must_use]
pub fn removed_domain_paths(
    config: &VmConfig,
    uuid: Uuid,
    domid: Option<DomId>,
    backends: &Backends,
) -> Vec<Removal> {
    let record = record_path(uuid);
    let mut removals = vec![Removal::of_vm(format!("{record}/complete"), 0)];
    removals.push(Removal::of_vm(format!("{record}/{PENDING}"), 0));
    removals.push(Removal::of_vm(suspend_port_path(uuid), 0));
    removals.push(Removal::of_vm(saving_path(uuid), 0));
    removals.push(Removal::of_vm(leaving_path(uuid), 0));
    removals.push(Removal::of_vm(incoming_path(uuid), 0));
    removals.push(Removal::of_vm(made_disks_path(uuid), 0));
    let mut paths = removed_paths(config, uuid, domid, backends);
    paths.pop().expect("the record itself is the last");
    removals.extend(paths);
    removals.push(Removal::of_vm(format!("{record}/{BACKENDS}"), 0));
    removals.push(Removal::of_vm(format!("{record}/domid"), 0));
    removals
}

/// Paths to remove for one device.
#[must_use]
pub fn removed_device_paths(ends: Ends) -> Vec<Removal> {
    let Ends { device, frontend: domid, .. } = ends;
    // What a driver domain says of its errors is its own.
    let error = ends.is_in_domain_0().then(|| ends.backend_error());
    let above = |path: String, levels| {
        let path = path.strip_suffix("/error").map(str::to_owned).unwrap_or(path);
        Removal::of_domain(path, levels)
    };
    let mut removals = vec![
        above(device.frontend(domid), 1),
        above(device.frontend_error(domid), 0),
        above(device.libxl(domid), 2),
        above(ends.backend_path(), if ends.is_in_domain_0() { 3 } else { 4 }),
    ];
    removals.extend(error.map(|path| above(path, 4)));
    removals
}
