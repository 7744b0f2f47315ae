//! Exports of a remote NBD server, each a VDI: the kernel connects to the server directly, without
//! a process in between.
//!
//! The server owns the exports: their list and sizes are queried each time. The kernel holds a
//! connection from activate to deactivate; if the server is lost, I/O on the device fails.

use super::nbd_device::{self, Server};
use super::{Driver, Place, Result, Source};
use crate::error::Naming as _;
use crate::nbd::{self, Handshake, NbdExport, PORT};
use crate::{Access, BlockDevice, Connection, HostError, Space, StorageError, Vdi, name};

/// The kernel serves no larger blocks than its pages.
const BLOCK_BYTES_MAX: u32 = 4096;
const SECTOR_BYTES: u64 = 512;

pub(super) struct Nbd;

fn dial(place: &mut Place<'_>) -> Result<Box<dyn Connection>> {
    let server = place.sr.server(PORT)?;
    let object = object(place);
    place.system.dial(&server).of(object)
}

/// The SR and its server, for messages.
fn object(place: &Place<'_>) -> String {
    let server = place.sr.config.get("server").map_or("", String::as_str);
    format!("{}: {server}", place.sr.name)
}

/// Queries an export's description, by any means that the server supports.
fn describe_export(place: &mut Place<'_>, vdi: &str) -> Result<NbdExport> {
    let name = place.name(vdi);
    let mut connection = dial(place)?;
    let export = Handshake::begin(&mut *connection).of(&name)?.enter(vdi).of(&name)?;
    nbd::leave(&mut *connection);
    Ok(export)
}

fn usable(place: &Place<'_>, vdi: &str, export: NbdExport) -> Result<NbdExport> {
    let bytes = export.bytes / SECTOR_BYTES * SECTOR_BYTES;
    let blocks = export.block_bytes;
    if bytes == 0 || i64::try_from(bytes).is_err() {
        let name = place.name(vdi);
        return Err(StorageError::refused(format!(
            "{name}: its server says that it has {} bytes",
            export.bytes
        )));
    }
    if blocks > BLOCK_BYTES_MAX || !blocks.is_power_of_two() {
        let name = place.name(vdi);
        return Err(StorageError::refused(format!(
            "{name}: its server wants blocks of {blocks} bytes; up to {BLOCK_BYTES_MAX} can be had"
        )));
    }
    Ok(NbdExport { bytes, ..export })
}

fn check_access(place: &Place<'_>, vdi: &str, export: NbdExport, access: Access) -> Result<()> {
    if access == Access::ReadWrite && export.is_read_only() {
        let name = place.name(vdi);
        return Err(StorageError::refused(format!(
            "{name}: its server exports it for reading only"
        )));
    }
    Ok(())
}

fn on_the_server(place: &Place<'_>, vdi: &str) -> StorageError {
    StorageError::refused(format!(
        "{}: exports are made, copied and taken away on their server",
        place.name(vdi)
    ))
}

impl Driver for Nbd {
    /// The server exists already; it belongs to the administrator.
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        self.scan(place).map(drop)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        let object = object(place);
        let mut connection = dial(place)?;
        Handshake::begin(&mut *connection).of(object)?.end();
        Ok(())
    }

    fn disconnect(&self, _: &mut Place<'_>) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, _: &mut Place<'_>) -> Result<()> {
        Ok(())
    }

    /// The total size, all of it used.
    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        let bytes = self.scan(place)?.iter().fold(0, |all: u64, vdi| all.saturating_add(vdi.bytes));
        Ok(Space { bytes, free_bytes: 0 })
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        let object = object(place);
        let mut connection = dial(place)?;
        let mut handshake = Handshake::begin(&mut *connection).of(&object)?;
        let mut names = handshake.names().of(&object)?;
        // Names that are not valid VDI names are ignored.
        names.retain(|it| name::is_vdi(it));
        names.sort();
        names.dedup();
        let mut vdis = Vec::new();
        for name in names {
            match handshake.describe(&name) {
                Ok(export) => vdis.push(Vdi { name, bytes: export.bytes, ..Vdi::default() }),
                // It disappeared meanwhile.
                Err(HostError::Missing) => {}
                Err(error) => return Err(error).of(&object),
            }
        }
        handshake.end();
        for vdi in &mut vdis {
            if vdi.bytes == 0 {
                // An export that the server cannot open is still listed, and hides no other.
                match describe_export(place, &vdi.name) {
                    Ok(export) => vdi.bytes = export.bytes,
                    Err(_) => self.connect(place)?,
                }
            }
            vdi.bytes -= vdi.bytes % SECTOR_BYTES;
        }
        Ok(vdis)
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, _: u64) -> Result<()> {
        Err(on_the_server(place, vdi))
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        Err(on_the_server(place, vdi))
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        let name = place.name(&vdi.name);
        if bytes > vdi.bytes {
            return Err(StorageError::refused(format!(
                "{name}: has {} bytes; an export is made larger on its server first",
                vdi.bytes
            )));
        }
        // A connection keeps the size that the export had when it was made.
        match device {
            None => Ok(()),
            Some(_) => Err(StorageError::InUse(format!(
                "{name}: is larger for whoever uses it next; stop its VM and start it again"
            ))),
        }
    }

    fn check_snapshot(&self, place: &mut Place<'_>, from: &Vdi, _: Source) -> Result<()> {
        Err(on_the_server(place, &from.name))
    }

    fn snapshot_vdi(&self, place: &mut Place<'_>, from: &Vdi, _: &str, _: Source) -> Result<()> {
        Err(on_the_server(place, &from.name))
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, _: &str, _: Source) -> Result<()> {
        Err(on_the_server(place, &from.name))
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        let export = describe_export(place, vdi)?;
        let export = usable(place, vdi, export)?;
        check_access(place, vdi, export, access)
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice> {
        let name = place.name(vdi);
        let mut connection = dial(place)?;
        let export = Handshake::begin(&mut *connection).of(&name)?.enter(vdi).of(&name)?;
        let export = usable(place, vdi, export)?;
        check_access(place, vdi, export, access)?;
        let export = match access {
            Access::ReadOnly => export.read_only(),
            Access::ReadWrite => export,
        };
        let device = nbd_device::choose(place, vdi)?;
        place.system.serve_nbd(&device, connection, &export).of(&name)?;
        nbd_device::await_connected(place, vdi, &device)
    }

    fn deactivate(&self, place: &mut Place<'_>, vdi: &str, _: Option<&BlockDevice>) -> Result<()> {
        nbd_device::disconnect(place, vdi, Server::Kernel)
    }

    fn detach(&self, _: &mut Place<'_>, _: &str) -> Result<()> {
        Ok(())
    }
}
