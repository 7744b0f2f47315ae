//! Kinds of SRs, and the interface of their drivers.

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

/// The kind of an SR.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// Raw sparse files in a folder, under loop devices.
    File,
    /// The same in a folder of an NFS server.
    Nfs,
    /// qcow2 images in a folder, under network block devices.
    Qcow2,
    /// Thick logical volumes.
    Lvm,
    /// Logical volumes in a thin pool.
    LvmThin,
    /// LUNs of an iSCSI target.
    Iscsi,
    /// Exports of an NBD server.
    Nbd,
    /// Implemented by an external program.
    Program,
    /// Files, with simulated delays and failures.
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
    /// Lists the existing kinds.
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

    /// Folders in which kinds keep state, and those whose subfolders do.
    pub(crate) const NOTES: [&'static str; 2] = [nbd_device::MARKS, sharing::OWNERS];
    pub(crate) const FOLDERS_OF_NOTES: [&'static str; 2] = [iscsi::USERS, sharing::DISKS];

    /// Whether a VDI may be activated here before the host that its VM comes from has deactivated it: nothing locks it,
    /// nothing of it is kept in memory, and both hosts are clients of one server.
    pub(crate) fn takes_two_hosts(self) -> bool {
        match self {
            Self::Iscsi | Self::Nbd => true,
            Self::File
            | Self::Nfs
            | Self::Qcow2
            | Self::Lvm
            | Self::LvmThin
            | Self::Program
            | Self::Sim => false,
        }
    }

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

/// An SR, and the operating system to work on it with.
pub(crate) struct Place<'a> {
    pub(crate) system: &'a mut dyn System,
    pub(crate) sr: &'a Repository,
}

impl Place<'_> {
    /// `sr:vdi`, for messages.
    pub(crate) fn name(&self, vdi: &str) -> String {
        format!("{}:{vdi}", self.sr.name)
    }

    /// The tag of this VDI's device; it fits into a loop device's 63 bytes.
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

    /// Waits until no backend has `device` open: blkback closes it asynchronously.
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
            // A backend that disappears meanwhile, or is not a disk, has none.
            let path = format!("{BACKENDS}/{backend}/physical_device");
            let found = text_if_there(self.system, &path).ok().flatten();
            if found.is_some_and(|it| it.trim() == number) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a VDI may be written while it is copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Source {
    Quiet,
    Written,
}

/// The driver of a kind of SR.
///
/// All calls are idempotent: a daemon repeats one that was interrupted. The caller ensures the
/// order of calls on a VDI and mutual exclusion; the driver refuses what a read-only VDI, or one in
/// use, does not allow.
pub(crate) trait Driver: Sync {
    /// Creates the SR.
    fn create(&self, place: &mut Place<'_>) -> Result<()>;

    /// Makes the SR reachable from this host.
    fn connect(&self, place: &mut Place<'_>) -> Result<()>;

    /// Undoes `connect`.
    fn disconnect(&self, place: &mut Place<'_>) -> Result<()>;

    /// Destroys an SR without VDIs.
    fn destroy(&self, place: &mut Place<'_>) -> Result<()>;

    fn space(&self, place: &mut Place<'_>) -> Result<Space>;

    /// All VDIs, by name. Also removes incomplete ones left by a killed daemon.
    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>>;

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()>;

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()>;

    /// `device` is the VDI's device if it is activated.
    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()>;

    /// A read-only VDI `to` with the current contents of `from`.
    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()>;

    /// Why no snapshot of a VDI can be taken as it is used now, in one line for the operator.
    fn check_snapshot(&self, _place: &mut Place<'_>, _from: &Vdi, _source: Source) -> Result<()> {
        Ok(())
    }

    /// Makes an unused VDI read-only. A kind without such VDIs leaves it as it is.
    fn seal_vdi(&self, _place: &mut Place<'_>, _vdi: &Vdi) -> Result<()> {
        Ok(())
    }

    /// A writable VDI `to` with the current contents of `from`.
    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()>;

    /// The slow part.
    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()>;

    /// Creates the block device.
    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice>;

    /// `device` is `None` if a daemon was killed before it could record it; then the driver
    /// searches for it.
    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()>;

    fn detach(&self, place: &mut Place<'_>, vdi: &str) -> Result<()>;

    /// The VDI's file, if it is a local one.
    fn file(&self, _place: &mut Place<'_>, _vdi: &str) -> Result<Option<String>> {
        Ok(None)
    }

    /// A fault of an activated device, in one line for the operator, as far as known without asking
    /// a server.
    fn trouble(
        &self,
        _place: &mut Place<'_>,
        _vdi: &str,
        _device: &BlockDevice,
    ) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Placeholder SR for an image that belongs to none: no SR can have this name.
fn no_repository() -> Repository {
    Repository { name: "@image".to_owned(), kind: Kind::Qcow2, config: BTreeMap::new() }
}

/// An owner's tag used as a VDI's name.
fn stand_in(owner: &str) -> String {
    owner.replace('/', "+")
}

/// Replaces the placeholder in a message by the path.
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

/// Attaches an image at `path` that belongs to no SR.
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

/// Undoes [`attach_image`]. Idempotent.
pub(crate) fn detach_image(system: &mut dyn System, owner: &str) -> Result<()> {
    let (sr, vdi) = (no_repository(), stand_in(owner));
    let mut place = Place { system, sr: &sr };
    let name = place.name(&vdi);
    nbd_device::disconnect(&mut place, &vdi, nbd_device::Server::Program)
        .map_err(|error| by_path(error, "the image", &name))
}

/// The device of an attached image; 0:0 (none) if it is not attached.
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
