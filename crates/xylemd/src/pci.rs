//! The host's PCI bus, by sysfs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use storage::HostError;
use toolstack::pci::{PCIBACK, PciBus, parse_address};
use xen::PciAddress;

/// The folder of the bus; tests have their own.
#[derive(Clone, Debug)]
pub(crate) struct SysPci(PathBuf);

impl Default for SysPci {
    fn default() -> Self {
        Self(PathBuf::from("/sys/bus/pci"))
    }
}

impl SysPci {
    fn driver_file(&self, driver: &str, name: &str) -> PathBuf {
        self.0.join("drivers").join(driver).join(name)
    }
}

impl PciBus for SysPci {
    fn driver(&mut self, device: PciAddress) -> Result<Option<String>, HostError> {
        let folder = self.0.join("devices").join(device.to_string());
        fs::symlink_metadata(&folder).map_err(|error| refused(&error))?;
        match fs::read_link(folder.join("driver")) {
            Ok(target) => {
                let name = target.file_name().and_then(|name| name.to_str());
                let unread = || HostError::Refused(format!("a driver {}", target.display()));
                name.map(|name| Some(name.to_owned())).ok_or_else(unread)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused(&error)),
        }
    }

    fn unbind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError> {
        put(&self.driver_file(driver, "unbind"), device)
    }

    fn bind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError> {
        put(&self.driver_file(driver, "bind"), device)
    }

    fn of_pciback(&mut self) -> Result<Vec<PciAddress>, HostError> {
        let entries = fs::read_dir(self.driver_file(PCIBACK, ""));
        let mut devices = Vec::new();
        for entry in entries.map_err(|error| refused(&error))? {
            let name = entry.map_err(|error| refused(&error))?.file_name();
            devices.extend(name.to_str().and_then(parse_address));
        }
        Ok(devices)
    }

    fn set_slot(&mut self, device: PciAddress, is_taken: bool) -> Result<(), HostError> {
        let slots = fs::read_to_string(self.driver_file(PCIBACK, "slots"));
        let slots = slots.map_err(|error| refused(&error))?;
        // A second one of the same device would stay when the first is removed.
        let has_one = slots.lines().any(|line| line.trim() == device.to_string());
        match (has_one, is_taken) {
            (false, true) => put(&self.driver_file(PCIBACK, "new_slot"), device),
            (true, false) => put(&self.driver_file(PCIBACK, "remove_slot"), device),
            _ => Ok(()),
        }
    }
}

/// In one write, as the kernel wants it.
fn put(path: &Path, device: PciAddress) -> Result<(), HostError> {
    let written = File::options().write(true).open(path);
    let written = written.and_then(|mut file| file.write_all(device.to_string().as_bytes()));
    written.map_err(|error| refused(&error))
}

fn refused(error: &io::Error) -> HostError {
    match error.kind() {
        io::ErrorKind::NotFound => HostError::Missing,
        _ => HostError::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const CARD: PciAddress = PciAddress(0x80);

    /// A bus with one device, whose files keep what is written to them.
    fn bus(folder: &Path) -> SysPci {
        for driver in ["e1000e", PCIBACK] {
            let files = folder.join("drivers").join(driver);
            fs::create_dir_all(&files).unwrap();
            for file in ["bind", "unbind", "new_slot", "remove_slot", "slots"] {
                fs::write(files.join(file), "").unwrap();
            }
        }
        fs::create_dir_all(folder.join("devices/0000:00:10.0")).unwrap();
        SysPci(folder.to_owned())
    }

    #[test]
    fn a_device_goes_from_driver_to_driver() {
        let folder = std::env::temp_dir().join(format!("xylemd-pci-{}", std::process::id()));
        let _earlier = fs::remove_dir_all(&folder);
        let mut bus = bus(&folder);
        assert_eq!(bus.driver(PciAddress(8)), Err(HostError::Missing));
        assert_eq!(bus.driver(CARD), Ok(None));
        symlink("../../drivers/e1000e", folder.join("devices/0000:00:10.0/driver")).unwrap();
        assert_eq!(bus.driver(CARD), Ok(Some("e1000e".to_owned())));

        let written = |file: &str| fs::read_to_string(folder.join("drivers").join(file)).unwrap();
        bus.unbind(CARD, "e1000e").unwrap();
        assert_eq!(written("e1000e/unbind"), "0000:00:10.0");
        bus.set_slot(CARD, false).unwrap();
        assert_eq!(written("pciback/remove_slot"), "");
        bus.set_slot(CARD, true).unwrap();
        assert_eq!(written("pciback/new_slot"), "0000:00:10.0");
        fs::write(folder.join("drivers/pciback/slots"), "0000:00:1f.2\n0000:00:10.0\n").unwrap();
        fs::write(folder.join("drivers/pciback/new_slot"), "").unwrap();
        bus.set_slot(CARD, true).unwrap();
        assert_eq!(written("pciback/new_slot"), "", "it has one");
        bus.set_slot(CARD, false).unwrap();
        assert_eq!(written("pciback/remove_slot"), "0000:00:10.0");
        bus.bind(CARD, PCIBACK).unwrap();
        assert_eq!(written("pciback/bind"), "0000:00:10.0");
        assert_eq!(bus.bind(CARD, "none"), Err(HostError::Missing));

        assert_eq!(bus.of_pciback(), Ok(Vec::new()));
        fs::create_dir(folder.join("drivers/pciback/0000:00:10.0")).unwrap();
        assert_eq!(bus.of_pciback(), Ok(vec![CARD]));
        fs::remove_dir_all(folder.join("drivers/pciback")).unwrap();
        assert_eq!(bus.of_pciback(), Err(HostError::Missing));
        fs::remove_dir_all(&folder).unwrap();
    }
}
