//! blkback's part: opens the given device and describes it to the frontend.

use storage::{Access, DeviceNumber};
use xenstore::client::{Batch, ClientError, Nodes as _};

use super::device::{Connection, Fatal};
use super::{BackendId, Shared};
use crate::history::DiskUse;

#[derive(Debug)]
pub(super) struct Vbd {
    opened: Option<DeviceNumber>,
    /// The disk, while it is connected.
    connected: Option<String>,
}

/// `%x:%x`, major and minor.
fn parse_number(text: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    Some(DeviceNumber { major: hex(major)?, minor: hex(minor)? })
}

impl Vbd {
    pub(super) fn probe(shared: &mut Shared, path: &str) -> Result<Self, ClientError> {
        let mut features = Batch::new();
        features.write(&format!("{path}/feature-max-indirect-segments"), "256");
        features.write(&format!("{path}/multi-queue-max-queues"), "2");
        features.write(&format!("{path}/max-ring-page-order"), "4");
        shared.store.run(&features)?.all_ok()?;
        Ok(Self { opened: None, connected: None })
    }

    /// Opens the physical device, once it is known.
    pub(super) fn open(
        &mut self,
        shared: &mut Shared,
        path: &str,
    ) -> Result<Result<(), Fatal>, ClientError> {
        if self.opened.is_some() {
            return Ok(Ok(()));
        }
        let Some(text) = shared.store.read_optional(&format!("{path}/physical-device"))? else {
            return Ok(Ok(()));
        };
        match parse_number(&text) {
            Some(number) if shared.os.get_mut().open(number) => {
                self.opened = Some(number);
                Ok(Ok(()))
            }
            _ => Ok(Err((-2, "creating vbd structure".to_owned()))),
        }
    }

    pub(super) fn connect(
        &mut self,
        shared: &mut Shared,
        path: &str,
        frontend: &str,
        id: BackendId,
    ) -> Result<Result<Option<Connection>, Fatal>, ClientError> {
        let Some(number) = self.opened else { return Ok(Ok(None)) };
        let rings = ["ring-ref"];
        let channels = ["event-channel"];
        let made = Connection::make(shared, frontend, id.domid, &rings, &channels)?;
        let connection = match made {
            Ok(connection) => connection,
            Err(fatal) => return Ok(Err(fatal)),
        };
        let sectors = shared.os.get().sectors(number);
        let mut facts = Batch::new();
        for (key, value) in [
            ("feature-flush-cache", "1".to_owned()),
            ("feature-discard", "0".to_owned()),
            ("feature-persistent", "1".to_owned()),
            ("sectors", sectors.to_string()),
            ("info", "0".to_owned()),
            ("sector-size", "512".to_owned()),
            ("physical-sector-size", "512".to_owned()),
        ] {
            facts.write(&format!("{path}/{key}"), value);
        }
        shared.store.commit(&facts)?;
        let mode = shared.store.read_optional(&format!("{path}/mode"))?;
        let access =
            if mode.as_deref() == Some(b"r") { Access::ReadOnly } else { Access::ReadWrite };
        let now = shared.machine.get().now();
        let mut os = shared.os.get_mut();
        let disk = os.behind(number);
        os.disk_uses.begin(now, id.domid, DiskUse { disk: disk.clone(), access });
        self.connected = Some(disk);
        Ok(Ok(Some(connection)))
    }

    pub(super) fn disconnect(&mut self, shared: &mut Shared, id: BackendId) {
        if let Some(disk) = self.connected.take() {
            let now = shared.machine.get().now();
            shared.os.get_mut().disk_uses.end(now, id.domid, &disk);
        }
    }

    pub(super) fn close(&mut self, shared: &mut Shared) {
        if let Some(number) = self.opened.take() {
            shared.os.get_mut().close(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_physical_device_is_two_hexadecimal_numbers() {
        assert_eq!(parse_number(b"ca:10"), Some(DeviceNumber { major: 202, minor: 16 }));
        for noise in [&b""[..], b"7", b"7:", b"x:1", b"7:1:2", b"\xff:1"] {
            assert_eq!(parse_number(noise), None);
        }
    }
}
