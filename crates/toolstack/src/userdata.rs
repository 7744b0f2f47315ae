//! What libxl keeps of a domain in a file, and looks for before it changes, lists or saves one.
//!
//! A domain of ours has it too, from its nodes to their removal, so that `xl` works on it. libxl itself believes the store in
//! what changes all the time (name, memory, vCPUs), and the file in what a domain was made from and in its devices: it is
//! written anew when those change.
//!
//! Source: xen `tools/libs/light/libxl_dom.c`, `libxl_domain.c` (`libxl_retrieve_domain_configuration`).

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::{Attachment, VdiName};
use xen::{DomId, Uuid};

use crate::config::{ImageFormat, VmConfig};
use crate::host::Host;
use crate::layout;
use crate::libxl_json;

/// What the file of a domain is made from.
#[derive(Clone, Debug)]
pub struct Userdata {
    pub domid: DomId,
    pub uuid: Uuid,
    config: Arc<VmConfig>,
    /// Where the VDIs are attached, by `virtual-device`.
    vdis: Vec<(u32, String)>,
}

impl Userdata {
    #[must_use]
    pub fn of(
        config: &Arc<VmConfig>,
        uuid: Uuid,
        domid: DomId,
        disks: &BTreeMap<u32, Attachment>,
    ) -> Self {
        let vdi = |number: u32, target: &str| {
            VdiName::parse(target)?;
            Some((number, disks.get(&number)?.device().path.clone()))
        };
        let attached = config.disks.iter().filter(|disk| disk.is_attached_first());
        let vdis = attached.filter_map(|disk| vdi(disk.vdev.number, &disk.target));
        Self { domid, uuid, vdis: vdis.collect(), config: Arc::clone(config) }
    }

    /// The configuration as libxl has it: all that the host chose is in it, and disks are what is attached.
    #[must_use]
    pub fn config(&self) -> VmConfig {
        let mut config = VmConfig { uuid: Some(self.uuid), ..VmConfig::clone(&self.config) };
        for vif in &mut config.vifs {
            vif.mac.get_or_insert_with(|| layout::default_mac(self.uuid, vif.devid));
        }
        for disk in &mut config.disks {
            if let Some((_, path)) = self.vdis.iter().find(|(it, _)| *it == disk.vdev.number) {
                disk.target.clone_from(path);
                disk.format = ImageFormat::Raw;
            }
        }
        config
    }

    /// Nothing of ours depends on the file: without libxl's folder nobody reads it, and the host reports any other
    /// failure.
    pub(crate) fn keep(&self, host: &mut impl Host) {
        // A VDI without a device is in a domain that is being taken down.
        if let Ok(json) = libxl_json::to_json(&self.config()) {
            let _reported = host.write_userdata(self.domid, self.uuid, &json);
        }
    }
}
