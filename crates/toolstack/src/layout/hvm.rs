//! Nodes for an HVM guest's firmware, and for viewers of its screen.

use xen::{DomId, Uuid};
use xen_build::Tables;

use super::{Nodes, record_path};
use crate::config::{HvmSettings, SmbiosText, Vnc};
use crate::device_model;
use crate::generation::GenerationId;

/// Nodes for hvmloader and VNC viewers.
pub(super) fn nodes(nodes: &mut Nodes, domid: DomId, hvm: &HvmSettings) {
    let path = format!("/local/domain/{domid}");
    let flag = |on: bool| if on { "1" } else { "0" };
    nodes.put(format!("{path}/hvmloader/bios"), hvm.bios.as_str());
    // Memory below 4 GiB must stay where QEMU expects it.
    nodes.put(format!("{path}/hvmloader/allow-memory-relocate"), "0");
    nodes.put(format!("{path}/platform/acpi"), flag(hvm.acpi));
    nodes.put(format!("{path}/platform/acpi_s3"), flag(hvm.acpi_s3));
    nodes.put(format!("{path}/platform/acpi_s4"), flag(hvm.acpi_s4));
    nodes.put(format!("{path}/platform/acpi_laptop_slate"), flag(hvm.laptop_slate));
    if let Some(mib) = hvm.hole_mib {
        nodes.put(format!("{path}/platform/mmio_hole_size"), (u64::from(mib) << 20).to_string());
    }
    let mut oem_texts = 1..;
    for SmbiosText { key, value } in &hvm.smbios {
        let name = match *key {
            SmbiosText::OEM => format!("oem-{}", oem_texts.next().unwrap_or_default()),
            key => key.replace('_', "-"),
        };
        nodes.put(format!("{path}/bios-strings/{name}"), value);
    }
    vnc_nodes(nodes, domid, hvm.vnc.as_ref());
}

/// Where its loader finds tables that it adds to its own.
#[must_use]
pub fn table_nodes(domid: DomId, tables: Tables) -> Nodes {
    let mut nodes = Nodes::default();
    for (name, place) in [("acpi", tables.acpi), ("smbios", tables.smbios)] {
        let Some((address, bytes)) = place else { continue };
        let path = format!("/local/domain/{domid}/hvmloader/{name}");
        nodes.put(format!("{path}/address"), format!("{address:#x}"));
        nodes.put(format!("{path}/length"), format!("{bytes:#x}"));
    }
    nodes
}

/// Nodes for VNC viewers.
pub(super) fn vnc_nodes(nodes: &mut Nodes, domid: DomId, vnc: Option<&Vnc>) {
    let Some(vnc) = vnc else { return };
    let path = format!("/local/domain/{domid}/console");
    nodes.put(format!("{path}/vnc-listen"), &vnc.listen);
    nodes.put(format!("{path}/vnc-port"), device_model::vnc_port(vnc, domid).to_string());
}

/// Where a record has the generation of an HVM guest's memory, which its reboots do not change.
#[must_use]
pub fn generation_path(uuid: Uuid) -> String {
    format!("{}/generation-id", record_path(uuid))
}

/// Where its firmware finds that, and the VM's next domain.
#[must_use]
pub fn generation_nodes(domid: DomId, uuid: Uuid, id: GenerationId) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.put(format!("/local/domain/{domid}/platform/generation-id"), id.to_string());
    nodes.put(generation_path(uuid), id.to_string());
    nodes
}
