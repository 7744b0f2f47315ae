//! The host's PCI bus, by sysfs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use storage::HostError;
use toolstack::pci::{PCIBACK, PciBus, PciRegion, parse_address};
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
    fn device_file(&self, device: PciAddress, name: &str) -> PathBuf {
        self.0.join("devices").join(device.to_string()).join(name)
    }

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

    fn functions(&mut self, device: PciAddress) -> Result<Vec<PciAddress>, HostError> {
        let entries = fs::read_dir(self.0.join("devices")).map_err(|error| refused(&error))?;
        let mut functions = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| refused(&error))?.file_name();
            functions.extend(name.to_str().and_then(parse_address));
        }
        functions.retain(|it| it.0 >> 3 == device.0 >> 3);
        Ok(functions)
    }

    fn regions(&mut self, device: PciAddress) -> Result<Vec<PciRegion>, HostError> {
        let text = fs::read_to_string(self.device_file(device, "resource"));
        parse_regions(&text.map_err(|error| refused(&error))?)
    }

    fn interrupt(&mut self, device: PciAddress) -> Result<Option<u32>, HostError> {
        /// Beyond are those that are no lines.
        const LINES: u32 = 256;
        let text = fs::read_to_string(self.device_file(device, "irq"));
        let text = text.map_err(|error| refused(&error))?;
        Ok(text.trim().parse().ok().filter(|irq| (1..LINES).contains(irq)))
    }

    fn reset(&mut self, device: PciAddress) -> Result<(), HostError> {
        // XCP-ng's kernel has a better one than the kernel's own.
        match put(&self.driver_file(PCIBACK, "do_flr"), device) {
            Err(HostError::Missing) => {}
            ended => return ended,
        }
        let file = File::options().write(true).open(self.device_file(device, "reset"));
        let written = file.and_then(|mut file| file.write_all(b"1"));
        written.map_err(|error| refused(&error))
    }

    fn set_permissive(&mut self, device: PciAddress) -> Result<(), HostError> {
        put(&self.driver_file(PCIBACK, "permissive"), device)
    }
}

/// The BARs and the ROM, which are the first lines of the file: first and last address, and the kernel's flags.
fn parse_regions(text: &str) -> Result<Vec<PciRegion>, HostError> {
    const REGIONS: usize = 7;
    const IORESOURCE_IO: u64 = 0x100;
    let mut regions = Vec::new();
    for line in text.lines().take(REGIONS) {
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let numbers: Option<Vec<u64>> = line.split_ascii_whitespace().map(number).collect();
        let Some([first, last, flags]) = numbers.as_deref() else {
            return Err(HostError::Refused(format!("a region {line:?}")));
        };
        if *first != 0 && last >= first {
            let bytes = (last - first).saturating_add(1);
            regions.push(PciRegion { first: *first, bytes, is_ports: flags & IORESOURCE_IO != 0 });
        }
    }
    Ok(regions)
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
    fn what_a_device_has_is_read_from_its_files() {
        let folder = std::env::temp_dir().join(format!("xylemd-pci-has-{}", std::process::id()));
        let _earlier = fs::remove_dir_all(&folder);
        let mut bus = bus(&folder);
        let device = folder.join("devices/0000:00:10.0");
        let text = "0x000000000000c080 0x000000000000c09f 0x0000000000040101\n\
            0x00000000fea40000 0x00000000fea40fff 0x0000000000040200\n\
            0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
            0x0000000400000000 0x0000000400003fff 0x000000000014220c\n";
        fs::write(device.join("resource"), text).unwrap();
        let region = |first, bytes, is_ports| PciRegion { first, bytes, is_ports };
        let regions = [
            region(0xc080, 0x20, true),
            region(0xfea4_0000, 0x1000, false),
            region(0x4_0000_0000, 0x4000, false),
        ];
        assert_eq!(bus.regions(CARD).unwrap(), regions);
        let lines = "0x1 0x2 0x200\n".repeat(9);
        assert_eq!(parse_regions(&lines).unwrap().len(), 7, "what follows is of bridges");
        assert!(parse_regions("0x1 0x2\n").is_err());

        for (text, irq) in [("11\n", Some(11)), ("0\n", None), ("256\n", None)] {
            fs::write(device.join("irq"), text).unwrap();
            assert_eq!(bus.interrupt(CARD), Ok(irq));
        }
        for name in ["0000:00:10.3", "0000:00:11.0", "0001:00:10.0"] {
            fs::create_dir(folder.join("devices").join(name)).unwrap();
        }
        let mut functions = bus.functions(CARD).unwrap();
        functions.sort_unstable();
        assert_eq!(functions, [CARD, PciAddress(0x83)]);

        assert_eq!(bus.reset(CARD), Err(HostError::Missing));
        fs::write(device.join("reset"), "").unwrap();
        bus.reset(CARD).unwrap();
        assert_eq!(fs::read(device.join("reset")).unwrap(), b"1");
        fs::write(folder.join("drivers/pciback/do_flr"), "").unwrap();
        bus.reset(CARD).unwrap();
        let better = fs::read_to_string(folder.join("drivers/pciback/do_flr")).unwrap();
        assert_eq!(better, "0000:00:10.0");
        fs::remove_dir_all(&folder).unwrap();
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
