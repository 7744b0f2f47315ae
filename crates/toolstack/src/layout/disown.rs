//! What libxl has of a domain beside what ours have, for a domain that is given to it, or was its.

use std::collections::BTreeMap;

use storage::Attachment;
use xen::DomId;
use xenstore::{Access, Permission};

use super::{DOM0_ONLY, DeviceKind, DeviceRef, Nodes, Removal};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::hotplug;

/// What libxl has of a domain beside what ours have: the scripts that it runs when a device goes, what those read, its
/// console, and the process that it kills. `config` is as libxl knows it.
#[must_use]
pub fn disowned_nodes(
    config: &VmConfig,
    domid: DomId,
    disks: &BTreeMap<u32, Attachment>,
    model: Option<Process>,
) -> Nodes {
    let mut nodes = Nodes::default();
    let mut device = |device: DeviceRef, values: &[(&str, &str)]| {
        for folder in [device.in_domain_0(domid).backend_path(), device.libxl(domid)] {
            for (key, value) in values {
                nodes.put(format!("{folder}/{key}"), *value);
            }
        }
    };
    for disk in config.disks.iter().filter(|disk| !disk.is_empty()) {
        let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: disk.vdev.number };
        let Some(attachment) = disks.get(&disk.vdev.number) else {
            // It has its script's nodes.
            continue;
        };
        let params = match attachment {
            Attachment::Loop(_) | Attachment::Block(_) => &disk.target,
            Attachment::Image(device) | Attachment::Vdi { device, .. } => &device.path,
        };
        device(vbd, &[("script", hotplug::BLOCK), ("params", params)]);
        if let Attachment::Loop(of_file) = attachment {
            // The script detaches it.
            device(vbd, &[("node", &of_file.path)]);
        }
    }
    // A driver domain runs its scripts itself.
    for vif in config.vifs.iter().filter(|vif| vif.backend.is_none()) {
        let script = hotplug::path(vif.script.as_deref().unwrap_or(hotplug::VIF_BRIDGE));
        device(DeviceRef { kind: DeviceKind::Vif, devid: vif.devid }, &[("script", &script)]);
    }
    console_nodes(&mut nodes, domid);
    if let Some(process) = model {
        let node = format!("/local/domain/{domid}/image/device-model-pid");
        nodes.put(node, process.pid.to_string());
    }
    nodes
}

/// libxl's own of the first console.
fn console_nodes(nodes: &mut Nodes, domid: DomId) {
    let frontend = format!("/local/domain/{domid}/console");
    let backend = format!("/local/domain/0/backend/console/{domid}/0");
    let libxl = format!("/libxl/{domid}/device/console/0");
    nodes.put_with(&backend, "", &[DOM0_ONLY, Permission::new(Access::Read, domid)]);
    for folder in [&backend, &libxl] {
        nodes.put(format!("{folder}/frontend"), &frontend);
        nodes.put(format!("{folder}/frontend-id"), domid.to_string());
        for (key, value) in [("online", "1"), ("state", "1"), ("protocol", "vt100")] {
            nodes.put(format!("{folder}/{key}"), value);
        }
    }
    nodes.put(format!("{libxl}/backend"), &backend);
    nodes.put(format!("{frontend}/backend"), &backend);
    nodes.put(format!("{frontend}/backend-id"), "0");
}

/// Unused console nodes of libxl: without them, an adopted domain's nodes are like those of ours.
#[must_use]
pub fn foreign_paths(domid: DomId) -> Vec<Removal> {
    vec![
        Removal::of_domain(format!("/local/domain/0/backend/console/{domid}"), 1),
        Removal::of_domain(format!("/libxl/{domid}/device/console"), 1),
        Removal::of_domain(format!("/local/domain/{domid}/console/backend"), 0),
        Removal::of_domain(format!("/local/domain/{domid}/console/backend-id"), 0),
    ]
}
