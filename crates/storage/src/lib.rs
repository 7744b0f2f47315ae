//! Where a VM's disks come from, and how they become block devices that a backend can serve.
//!
//! A disk is a path, or a virtual disk image (VDI) of a storage repository (SR), written `sr:vdi`.
//! [`Repositories`] knows the SRs of a host and what is attached of them; `vdi` has the rules, `kind` what
//! each kind of SR does for them. What the operating system does is the [`System`] they are handed.
//!
//! ```text
//!   detached --attach--> attached --activate--> activated
//!   detached <--detach-- attached <-deactivate- activated
//! ```

mod error;
mod kind;
mod name;
mod nbd;
mod record;
mod repositories;
mod repository;
mod system;
mod vdi;

pub use error::StorageError;
pub use kind::Kind;
pub use name::VdiName;
pub use nbd::NbdExport;
pub use repositories::{InUse, Places, Repositories};
pub use repository::{Repository, Vdi};
pub use system::{Command, Connection, Copying, Lock, PARTIAL_PREFIX, Space, System};
pub use vdi::{Stage, Use};

use std::fmt;

/// A block device's number. The backend's `physical-device` is its text in hexadecimal.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major, self.minor)
    }
}

/// A block device of the host.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct BlockDevice {
    pub path: String,
    pub number: DeviceNumber,
}

/// What lies at a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileKind {
    Regular { bytes: u64 },
    Block(DeviceNumber),
    Directory,
    Other,
}

/// Whether the guest may write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

impl Access {
    /// The backend's `mode`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "r",
            Self::ReadWrite => "w",
        }
    }
}

/// A loop device that carries a tag of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaggedLoop {
    pub device: BlockDevice,
    pub tag: String,
}

/// Why the host refused. The caller names the object.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HostError {
    #[error("no such file or directory")]
    Missing,
    #[error("busy")]
    Busy,
    /// Anything else, in the operating system's words.
    #[error("{0}")]
    Refused(String),
}

/// The host's files and loop devices.
pub trait BlockHost {
    /// What lies at `path`, symbolic links followed.
    ///
    /// # Errors
    /// [`HostError::Missing`] if nothing does.
    fn inspect(&mut self, path: &str) -> Result<FileKind, HostError>;

    /// Puts a loop device over a regular file. `tag` (up to 63 bytes) stays readable from the device
    /// for as long as it exists, so that a restarted daemon knows its own.
    ///
    /// # Errors
    /// What the kernel says.
    fn attach_loop(
        &mut self,
        path: &str,
        access: Access,
        tag: &str,
    ) -> Result<BlockDevice, HostError>;

    /// Gives a loop device that is there another tag, without a word to whoever uses it.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it has no file.
    fn tag_loop(&mut self, device: &str, tag: &str) -> Result<(), HostError>;

    /// Takes a loop device away. One that is gone already is no error.
    ///
    /// # Errors
    /// [`HostError::Busy`] while somebody has it open.
    fn detach_loop(&mut self, device: &str) -> Result<(), HostError>;

    /// All loop devices whose tag begins with `prefix`.
    ///
    /// # Errors
    /// What the kernel says.
    fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError>;
}

/// An attached VDI.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attachment {
    /// A raw file under a loop device of ours.
    Loop(BlockDevice),
    /// A block device that was there before.
    Block(BlockDevice),
    /// A VDI, attached and activated for `owner`. Its device is 0:0, which is none, if a daemon died before
    /// it had one.
    Vdi { name: VdiName, owner: String, device: BlockDevice },
}

impl Attachment {
    /// The device to hand to the backend.
    #[must_use]
    pub fn device(&self) -> &BlockDevice {
        match self {
            Self::Loop(device) | Self::Block(device) | Self::Vdi { device, .. } => device,
        }
    }
}

/// A disk could not be attached. The message names the file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachError {
    #[error("{path}: {error}")]
    Host { path: String, error: HostError },
    #[error("{path}: neither a regular file nor a block device")]
    WrongKind { path: String },
    #[error("{path}: {bytes} bytes long; a raw disk image is at least one sector of 512 bytes")]
    Empty { path: String, bytes: u64 },
    #[error("{0}")]
    Repository(#[from] StorageError),
}

/// Attaches what a configuration calls a disk's target: a VDI written `sr:vdi`, or else a path. `owner` says
/// who uses it, in up to 63 bytes.
///
/// # Errors
/// [`AttachError`]; nothing is attached then.
pub fn attach(
    system: &mut dyn System,
    target: &str,
    access: Access,
    owner: &str,
) -> Result<Attachment, AttachError> {
    match VdiName::parse(target) {
        None => attach_path(system, target, access, owner),
        Some(name) => {
            let device = Repositories::new(system).attach_for(&name, owner, access)?;
            Ok(Attachment::Vdi { name, owner: owner.to_owned(), device })
        }
    }
}

/// Finds what [`attach`] would be refused for, as far as that can be told without attaching anything.
///
/// # Errors
/// [`AttachError`].
pub fn check(
    system: &mut dyn System,
    target: &str,
    access: Access,
    owner: &str,
) -> Result<(), AttachError> {
    match VdiName::parse(target) {
        None => check_path(system, target).map(drop),
        Some(name) => Ok(Repositories::new(system).check(&name, owner, access)?),
    }
}

/// What is at `path`, if it can be a disk.
fn check_path<H: BlockHost + ?Sized>(host: &mut H, path: &str) -> Result<FileKind, AttachError> {
    const SECTOR_BYTES: u64 = 512;
    let refused = |error| AttachError::Host { path: path.to_owned(), error };
    match host.inspect(path).map_err(refused)? {
        FileKind::Regular { bytes } if bytes < SECTOR_BYTES => {
            Err(AttachError::Empty { path: path.to_owned(), bytes })
        }
        FileKind::Directory | FileKind::Other => {
            Err(AttachError::WrongKind { path: path.to_owned() })
        }
        kind => Ok(kind),
    }
}

/// Attaches a raw file (through a loop device) or a block device.
///
/// # Errors
/// [`AttachError`]; nothing is attached then.
pub fn attach_path(
    host: &mut dyn BlockHost,
    path: &str,
    access: Access,
    tag: &str,
) -> Result<Attachment, AttachError> {
    let refused = |error| AttachError::Host { path: path.to_owned(), error };
    match check_path(host, path)? {
        FileKind::Block(number) => {
            Ok(Attachment::Block(BlockDevice { path: path.to_owned(), number }))
        }
        _ => host.attach_loop(path, access, tag).map(Attachment::Loop).map_err(refused),
    }
}

/// Undoes [`attach`]. Repeating it is no error.
///
/// # Errors
/// What the host says; the device then still exists.
pub fn detach(system: &mut dyn System, attachment: &Attachment) -> Result<(), AttachError> {
    match attachment {
        Attachment::Loop(device) => detach_loop(system, device),
        Attachment::Block(_) => Ok(()),
        Attachment::Vdi { name, owner, .. } => {
            Ok(Repositories::new(system).detach_for(name, owner)?)
        }
    }
}

fn detach_loop<H: BlockHost + ?Sized>(
    host: &mut H,
    device: &BlockDevice,
) -> Result<(), AttachError> {
    let refused = |error| AttachError::Host { path: device.path.clone(), error };
    host.detach_loop(&device.path).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One file, and the loop devices over it.
    struct OneFile {
        kind: Result<FileKind, HostError>,
        loops: Vec<TaggedLoop>,
    }

    impl BlockHost for OneFile {
        fn inspect(&mut self, _: &str) -> Result<FileKind, HostError> {
            self.kind.clone()
        }

        fn attach_loop(&mut self, _: &str, _: Access, tag: &str) -> Result<BlockDevice, HostError> {
            let number = DeviceNumber { major: 7, minor: 0 };
            let device = BlockDevice { path: "/dev/loop0".to_owned(), number };
            self.loops.push(TaggedLoop { device: device.clone(), tag: tag.to_owned() });
            Ok(device)
        }

        fn tag_loop(&mut self, device: &str, tag: &str) -> Result<(), HostError> {
            let found = self.loops.iter_mut().find(|it| it.device.path == device);
            found.ok_or(HostError::Missing)?.tag = tag.to_owned();
            Ok(())
        }

        fn detach_loop(&mut self, device: &str) -> Result<(), HostError> {
            self.loops.retain(|it| it.device.path != device);
            Ok(())
        }

        fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError> {
            Ok(self.loops.iter().filter(|it| it.tag.starts_with(prefix)).cloned().collect())
        }
    }

    #[test]
    fn a_raw_file_goes_under_a_loop_device_and_leaves_none_behind() {
        let mut host = OneFile { kind: Ok(FileKind::Regular { bytes: 512 }), loops: vec![] };
        let disk = attach_path(&mut host, "/disk", Access::ReadOnly, "t").unwrap();
        assert_eq!(host.loops.len(), 1);
        for _ in 0..2 {
            detach_loop(&mut host, disk.device()).unwrap();
            assert_eq!(host.loops.len(), 0);
        }
    }

    #[test]
    fn what_cannot_be_a_disk_is_refused_by_name() {
        for (kind, message) in [
            (Err(HostError::Missing), "/disk: no such file or directory"),
            (Ok(FileKind::Directory), "/disk: neither a regular file nor a block device"),
            (
                Ok(FileKind::Regular { bytes: 511 }),
                "/disk: 511 bytes long; a raw disk image is at least one sector of 512 bytes",
            ),
        ] {
            let mut host = OneFile { kind, loops: vec![] };
            let error = attach_path(&mut host, "/disk", Access::ReadWrite, "t").unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(host.loops.len(), 0);
        }
    }

    #[test]
    fn a_device_number_is_written_in_hexadecimal() {
        assert_eq!(DeviceNumber { major: 202, minor: 16 }.to_string(), "ca:10");
    }
}
