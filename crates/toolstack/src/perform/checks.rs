//! Checks of a configuration against the host, shared by creates and checks.

use storage::{DiskUse, HostError};
use xen::{Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Performer, WantedBackend, disks, failure};
use crate::config::VmConfig;
use crate::domains::DomainSet;
use crate::host::Host;
use crate::hotplug;
use crate::layout::{DeviceKind, DeviceRef};
use crate::network::{self, Network};
use crate::work::{Failure, loop_tag};

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// All errors that a create would have now. Of an invalid configuration only the parts are
    /// checked, not their combination.
    pub(super) fn check(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        is_whole: bool,
        own: &DomainSet,
    ) -> Vec<Failure> {
        let mut failures = Vec::new();
        let images = match (is_whole, &config.hvm, &config.kernel) {
            // What it finds is known when the disks are attached.
            _ if config.options.bootloader.is_some() => self.find_bootloader(config).map(drop),
            (true, ..) => self
                .load_images(config)
                .and_then(|images| self.check_memory(config, &images))
                .map(drop),
            (false, Some(hvm), _) => self.load_firmware(config, hvm).map(drop),
            (false, None, Some(kernel)) => self.load_kernel(config, kernel).map(drop),
            (false, None, None) => Ok(()),
        };
        failures.extend(images.err());
        failures.extend(self.check_devices(config, Some(uuid)).err());
        // A create attaches one after the other, so a later disk meets the use by an earlier one.
        let mut earlier = Vec::new();
        for index in 0..config.disks.len() {
            match self.check_disk(config, uuid, index, own, &earlier) {
                Ok(used) => earlier.extend(used),
                Err(error) => failures.push(error),
            }
        }
        for index in 0..config.vifs.len() {
            if config.vifs[index].backend.is_some() {
                let device = DeviceRef { kind: DeviceKind::Vif, devid: config.vifs[index].devid };
                let wanted = WantedBackend { config, device, is_in_file: true };
                failures.extend(self.find_backend(wanted, None, None).err());
                continue;
            }
            failures.extend(check_bridge(&mut self.host, config, index).err());
            failures.extend(self.check_link_name(config, index).err());
        }
        failures
    }

    fn check_disk(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        index: usize,
        own: &DomainSet,
        earlier: &[DiskUse],
    ) -> Result<Option<DiskUse>, Failure> {
        if config.disks[index].backend.is_some() {
            let device =
                DeviceRef { kind: DeviceKind::Vbd, devid: config.disks[index].vdev.number };
            self.find_backend(WantedBackend { config, device, is_in_file: true }, None, None)?;
            return Ok(None);
        }
        if config.disks[index].script.is_some() {
            check_disk_script(&mut self.host, config, index)?;
            return Ok(None);
        }
        let owner = loop_tag(uuid, config.disks[index].vdev.number);
        disks::check(self.host.system(), &mut self.store, config, index, &owner, own, earlier)
            .map_err(|error| failure(config.origin.at(&format!("disk[{index}]")), error.0))
    }

    /// An interface gets its name only once there is a domain; the name must be free.
    fn check_link_name(&mut self, config: &VmConfig, index: usize) -> Result<(), Failure> {
        let Some(name) = &config.vifs[index].name else { return Ok(()) };
        let place = config.origin.at(&format!("vif[{index}]"));
        match self.host.has_link(name) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Failure(format!(
                "{place}: vifname={name}: this host has an interface of that name already"
            ))),
            Err(error) => Err(failure(format!("{place}: vifname={name}"), error)),
        }
    }
}

/// Checks that the script of a disk exists.
pub(crate) fn check_disk_script(
    host: &mut impl Host,
    config: &VmConfig,
    index: usize,
) -> Result<(), Failure> {
    let script = config.disks[index].script.as_deref().unwrap_or_default();
    check_script(host, config, &format!("disk[{index}]"), script)
}

fn check_script(
    host: &mut impl Host,
    config: &VmConfig,
    key: &str,
    script: &str,
) -> Result<(), Failure> {
    let path = hotplug::path(script);
    let place = config.origin.at(key);
    host.check_script(&path).map_err(|error| match error {
        HostError::Missing => Failure(format!("{place}: no hotplug script {path} on this host")),
        error => failure(format!("{place}: the hotplug script {path}"), error),
    })
}

/// Checks that the bridge of a vif exists, or the script that it has instead.
pub(crate) fn check_bridge(
    host: &mut impl Host,
    config: &VmConfig,
    index: usize,
) -> Result<(), Failure> {
    let vif = &config.vifs[index];
    let key = format!("vif[{index}]");
    if let Ok(Some(network)) = Network::of(vif) {
        let place = config.origin.at(&key);
        return network::check(host, &network, vif.antispoof)
            .map_err(|problem| Failure(format!("{place}: {problem}")));
    }
    let script = vif.script.as_deref().unwrap_or_default();
    check_script(host, config, &key, script)
}
