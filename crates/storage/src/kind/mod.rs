//! Kinds of SRs, and what each has to be able to do.

mod file;
mod iscsi;
mod lvm;
mod nbd;
mod nbd_device;
mod nfs;
mod program;
mod qcow2;
mod sim;

use std::collections::BTreeMap;
use std::fmt;

use crate::error::Naming as _;
use crate::sharing;
use crate::system::text_if_there;
use crate::{Access, BlockDevice, FileKind, Repository, Space, StorageError, System, Vdi};

type Result<T> = std::result::Result<T, StorageError>;

/// The devices that dom0's kernel serves to guests.
const BACKENDS: &str = "/sys/bus/xen-backend/devices";

/// What an SR is made of.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// Raw sparse files in a folder, under loop devices.
    File,
    /// The same in a folder of an NFS server.
    Nfs,
    /// Images in format qcow2 in a folder, under network block devices.
    Qcow2,
    /// Thick logical volumes.
    Lvm,
    /// Logical volumes in a thin pool.
    LvmThin,
    /// LUNs of an iSCSI target.
    Iscsi,
    /// Exports of an NBD server.
    Nbd,
    /// What a program makes of it.
    Program,
    /// Files, with made-up delays and failures.
    Sim,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::File,
        Self::Nfs,
        Self::Qcow2,
        Self::Lvm,
        Self::LvmThin,
        Self::Iscsi,
        Self::Nbd,
        Self::Program,
        Self::Sim,
    ];

    /// Reads a kind's name.
    ///
    /// # Errors
    /// Names the kinds there are.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            StorageError::refused(format!("{name:?} is no kind of SR; there are {known}"))
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Nfs => "nfs",
            Self::Qcow2 => "qcow2",
            Self::Lvm => "lvm",
            Self::LvmThin => "lvmthin",
            Self::Iscsi => "iscsi",
            Self::Nbd => "nbd",
            Self::Program => "program",
            Self::Sim => "sim",
        }
    }

    /// Names of the settings that an SR of this kind has.
    pub(crate) fn settings(self) -> Vec<&'static str> {
        match self {
            Self::File | Self::Qcow2 => vec!["path"],
            Self::Nfs => vec!["server", "serverpath", "options"],
            Self::Lvm | Self::LvmThin => vec!["device", "server", "target", "lun"],
            Self::Iscsi => vec!["server", "target"],
            Self::Nbd => vec!["server"],
            Self::Program => vec!["program", "timeout", "what its program wants"],
            Self::Sim => sim::settings(),
        }
    }

    /// Folders in which kinds keep notes of their own, and those in which each folder has some.
    pub(crate) const NOTES: [&'static str; 2] = [nbd_device::MARKS, sharing::OWNERS];
    pub(crate) const FOLDERS_OF_NOTES: [&'static str; 2] = [iscsi::USERS, sharing::DISKS];

    pub(crate) fn driver(self) -> &'static dyn Driver {
        match self {
            Self::File => &file::File(file::Format::Raw),
            Self::Nfs => &nfs::Nfs,
            Self::Qcow2 => &file::File(file::Format::Qcow2),
            Self::Lvm => &lvm::Lvm::Thick,
            Self::LvmThin => &lvm::Lvm::Thin,
            Self::Iscsi => &iscsi::Iscsi,
            Self::Nbd => &nbd::Nbd,
            Self::Program => &program::Program,
            Self::Sim => &sim::Sim,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The SR that something is to be done in, and the operating system to do it with.
pub(crate) struct Place<'a> {
    pub(crate) system: &'a mut dyn System,
    pub(crate) sr: &'a Repository,
}

impl Place<'_> {
    /// `sr:vdi`, for messages.
    pub(crate) fn name(&self, vdi: &str) -> String {
        format!("{}:{vdi}", self.sr.name)
    }

    /// What marks a device as this VDI's: it fits into a loop device's 63 bytes.
    pub(crate) fn tag(&self, vdi: &str) -> String {
        format!("vdi/{}/{vdi}", self.sr.name)
    }

    /// The block device at `path`, which `name` is to be used as.
    pub(crate) fn block_device(&mut self, name: &str, path: String) -> Result<BlockDevice> {
        match self.system.inspect(&path).of(name)? {
            FileKind::Block(number) => Ok(BlockDevice { path, number }),
            _ => Err(StorageError::refused(format!("{name}: {path} is no block device"))),
        }
    }

    /// Waits until no backend serves a guest from `device`: dom0's kernel closes it a moment after it was told to.
    pub(crate) fn await_unserved(&mut self, name: &str, device: &BlockDevice) -> Result<()> {
        let mut waits = 0;
        while self.is_served(device)? {
            if !self.system.pause(waits) {
                return Err(StorageError::InUse(format!("{name}: {} is still open", device.path)));
            }
            waits += 1;
        }
        Ok(())
    }

    fn is_served(&mut self, device: &BlockDevice) -> Result<bool> {
        let number = device.number.to_string();
        for backend in self.system.list(BACKENDS).of(BACKENDS)? {
            // One that goes meanwhile, or is no disk, has none.
            let path = format!("{BACKENDS}/{backend}/physical_device");
            let found = text_if_there(self.system, &path).ok().flatten();
            if found.is_some_and(|it| it.trim() == number) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether somebody may be writing to a VDI while it is copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Source {
    Quiet,
    Written,
}

/// What a kind of SR does.
///
/// All of it can be done twice: a daemon that was killed in the middle does it again. The order of calls on
/// a VDI, and that nobody else works on it meanwhile, is the caller's care; what is read-only, and what a VDI
/// in use may not undergo, is the driver's.
pub(crate) trait Driver: Sync {
    /// Makes the SR where nothing is yet.
    fn create(&self, place: &mut Place<'_>) -> Result<()>;

    /// Sees that this host can reach the SR.
    fn connect(&self, place: &mut Place<'_>) -> Result<()>;

    /// Lets go of what `connect` took.
    fn disconnect(&self, place: &mut Place<'_>) -> Result<()>;

    /// Takes an SR away that has no VDIs.
    fn destroy(&self, place: &mut Place<'_>) -> Result<()>;

    fn space(&self, place: &mut Place<'_>) -> Result<Space>;

    /// All VDIs, by name. Also clears away what a killed daemon left half-made.
    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>>;

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()>;

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()>;

    /// `device` is what the VDI is activated as, if it is.
    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()>;

    /// A read-only VDI `to` with what `from` has now.
    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()>;

    /// A writable VDI `to` with what `from` has now.
    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()>;

    /// Everything that may be slow.
    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()>;

    /// From here on there is a block device.
    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice>;

    /// `device` is `None` if a daemon died before it could note it: then it is to be looked for.
    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()>;

    fn detach(&self, place: &mut Place<'_>, vdi: &str) -> Result<()>;

    /// The file that a VDI is, if it is one that this host sees.
    fn file(&self, _place: &mut Place<'_>, _vdi: &str) -> Result<Option<String>> {
        Ok(None)
    }

    /// What is wrong with a device that was activated, in one line for the operator, if this host can tell without
    /// asking a server.
    fn trouble(
        &self,
        _place: &mut Place<'_>,
        _vdi: &str,
        _device: &BlockDevice,
    ) -> Result<Option<String>> {
        Ok(None)
    }
}

/// What stands in for an SR where an image is served that belongs to none: no SR can have this name.
fn no_repository() -> Repository {
    Repository { name: "@image".to_owned(), kind: Kind::Qcow2, config: BTreeMap::new() }
}

/// An owner's tag in place of a VDI's name.
fn stand_in(owner: &str) -> String {
    owner.replace('/', "+")
}

/// Names the path where the messages have the stand-in.
fn by_path(error: StorageError, path: &str, place: &str) -> StorageError {
    let text = |text: String| match text.strip_prefix(place) {
        Some(rest) => format!("{path}{rest}"),
        None => text,
    };
    match error {
        StorageError::Missing(it) => StorageError::Missing(text(it)),
        StorageError::InUse(it) => StorageError::InUse(text(it)),
        StorageError::Refused(it) => StorageError::Refused(text(it)),
    }
}

/// Serves an image at `path` that belongs to no SR.
pub(crate) fn attach_image(
    system: &mut dyn System,
    path: &str,
    format: &str,
    access: Access,
    owner: &str,
) -> Result<BlockDevice> {
    let (sr, vdi) = (no_repository(), stand_in(owner));
    let mut place = Place { system, sr: &sr };
    let name = place.name(&vdi);
    let format = format!("--format={format}");
    let source = [&format, "--cache=none", "--discard=unmap", path];
    nbd_device::connect_program(&mut place, &vdi, access, &source)
        .map_err(|error| by_path(error, path, &name))
}

/// Ends that. Once more is no error.
pub(crate) fn detach_image(system: &mut dyn System, owner: &str) -> Result<()> {
    let (sr, vdi) = (no_repository(), stand_in(owner));
    let mut place = Place { system, sr: &sr };
    let name = place.name(&vdi);
    nbd_device::disconnect(&mut place, &vdi, nbd_device::Server::Program)
        .map_err(|error| by_path(error, "the image", &name))
}

/// The device by which an image is served; 0:0, which is none, if it is not.
pub(crate) fn image_device(system: &mut dyn System, owner: &str) -> Result<BlockDevice> {
    let (sr, vdi) = (no_repository(), stand_in(owner));
    let mut place = Place { system, sr: &sr };
    nbd_device::find(&mut place, &vdi)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(&kind.to_string()), Ok(kind));
        }
        let error = Kind::parse("ext").unwrap_err().to_string();
        assert!(error.starts_with("\"ext\" is no kind of SR; there are file, nfs"), "{error}");
    }
}
