//! Storage: where a VM's disks come from, and how they become block devices for a backend.
//!
//! A disk is a path, or a virtual disk image (VDI) of a storage repository (SR), written `sr:vdi`.
//! [`Repositories`] manages the SRs of a host and what is attached of them; `vdi` has the rules,
//! `kind` the drivers of each kind of SR. All system access goes through the [`System`] that is
//! passed in.
//!
//! ```text
//!   detached --attach--> attached --activate--> activated
//!   detached <--detach-- attached <-deactivate- activated
//! ```

mod error;
mod images;
mod kind;
mod name;
mod nbd;
mod record;
mod repositories;
mod repository;
mod sharing;
mod snapshots;
mod system;
mod vdi;

pub use error::StorageError;
pub use images::Image;
pub use kind::Kind;
pub use name::VdiName;
pub use nbd::NbdExport;
pub use repositories::{InUse, Places, Repositories};
pub use repository::{Repository, Vdi};
pub use sharing::may_join;
pub use sharing::{Claim, Claims, DETACH_THERE, DiskId, DiskUse, Family, LoopUse, Mode, Wanted};
pub use snapshots::{MakeDisk, PreparedSnapshots};
pub use system::{Command, Connection, Copying, Job, Lock, PARTIAL_PREFIX, Space, System};
pub use vdi::{Stage, Use};

use std::fmt;

/// A block device's number. The backend's `physical-device` is its text in hexadecimal.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Parses the text of [`Display`](fmt::Display).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        let hex = |text| u32::from_str_radix(text, 16).ok();
        Some(Self { major: hex(major)?, minor: hex(minor)? })
    }

    /// Parses the kernel's decimal form.
    #[must_use]
    pub fn parse_decimal(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
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

/// The kind of file at a path.
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

/// A loop device with a tag of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaggedLoop {
    pub device: BlockDevice,
    pub tag: String,
    /// The backing file.
    pub behind: DiskId,
    pub access: Access,
}

/// Why the host refused. The caller names the object.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HostError {
    #[error("no such file or directory")]
    Missing,
    #[error("busy")]
    Busy,
    /// Anything else, as reported by the operating system.
    #[error("{0}")]
    Refused(String),
}

/// The host's files and loop devices.
pub trait BlockHost {
    /// The kind of file at `path`, following symbolic links.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it does not exist.
    fn inspect(&mut self, path: &str) -> Result<FileKind, HostError>;

    /// The identity of a path's target, following symbolic links.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it does not exist.
    fn identify(&mut self, path: &str) -> Result<DiskId, HostError>;

    /// Attaches a regular file to a loop device. `tag` (up to 63 bytes) can be read from the device
    /// while it exists, so that a restarted daemon recognises it. Meanwhile the file is locked as
    /// QEMU locks its disks, unless it is shared.
    ///
    /// # Errors
    /// An errno of the kernel, or the file is locked.
    fn attach_loop(&mut self, path: &str, mode: Mode, tag: &str) -> Result<LoopUse, HostError>;

    /// All attached loop devices.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn loops(&mut self) -> Result<Vec<LoopUse>, HostError>;

    /// Whether this block device, its whole disk and its partitions are not opened exclusively, as
    /// by mounted file systems and device-mapper.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn is_unclaimed(&mut self, device: &str) -> Result<bool, HostError>;

    /// Changes the tag of an attached loop device, unnoticed by its users.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it is not attached.
    fn tag_loop(&mut self, device: &str, tag: &str) -> Result<(), HostError>;

    /// Detaches a loop device. Idempotent.
    ///
    /// # Errors
    /// [`HostError::Busy`] while it is open.
    fn detach_loop(&mut self, device: &str) -> Result<(), HostError>;

    /// All loop devices whose tag begins with `prefix`.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError>;
}

/// Format of an image.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum ImageFormat {
    #[default]
    Raw,
    Qcow,
    Qcow2,
    Qed,
    Vhd,
}

impl ImageFormat {
    pub const ALL: [Self; 5] = [Self::Raw, Self::Qcow, Self::Qcow2, Self::Qed, Self::Vhd];

    /// Its name in a disk's configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow => "qcow",
            Self::Qcow2 => "qcow2",
            Self::Qed => "qed",
            Self::Vhd => "vhd",
        }
    }

    /// QEMU's name for it.
    fn of_qemu(self) -> &'static str {
        match self {
            Self::Vhd => "vpc",
            other => other.as_str(),
        }
    }
}

/// An attached disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attachment {
    /// A raw file under a loop device of ours.
    Loop(BlockDevice),
    /// An existing block device. It is 0:0 (none) if a daemon was killed after the claim and before
    /// the attach.
    Block(BlockDevice),
    /// An image in one of QEMU's formats, served as a network block device.
    Image(BlockDevice),
    /// A VDI, attached and activated for `owner`. Its device is 0:0 (none) if a daemon was killed
    /// before it had one.
    Vdi { name: VdiName, owner: String, device: BlockDevice },
}

impl Attachment {
    /// The device to hand to the backend.
    #[must_use]
    pub fn device(&self) -> &BlockDevice {
        match self {
            Self::Loop(device)
            | Self::Block(device)
            | Self::Image(device)
            | Self::Vdi { device, .. } => device,
        }
    }
}

/// A disk could not be attached. The message names it as the user did.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachError {
    #[error("{path}: {error}")]
    Host { path: String, error: HostError },
    #[error("{path}: neither a regular file nor a block device")]
    WrongKind { path: String },
    #[error("{path}: {bytes} bytes long; a raw disk image is at least one sector of 512 bytes")]
    Empty { path: String, bytes: u64 },
    /// It is in use.
    #[error("{0}")]
    InUse(String),
    #[error("{0}")]
    CannotShare(String),
    #[error("{0}")]
    Repository(#[from] StorageError),
}

impl AttachError {
    fn host(path: &str) -> impl Fn(HostError) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Host { path: path.clone(), error }
    }
}

/// The claim's note for an image, which leaves no other trace before it is served. For a block
/// device the note is its path.
const IMAGE: &str = "image";

/// Attaches a disk's target: a VDI written `sr:vdi`, or a path.
///
/// # Errors
/// [`AttachError`]; then nothing is attached.
pub fn attach(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    format: ImageFormat,
) -> Result<Attachment, AttachError> {
    match (VdiName::parse(wanted.target), format) {
        (Some(name), _) => attach_vdi(system, wanted, name),
        (None, ImageFormat::Raw) => attach_raw(system, wanted),
        (None, format) => attach_image(system, wanted, format),
    }
}

fn attach_vdi(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    name: VdiName,
) -> Result<Attachment, AttachError> {
    check_can_share(wanted, ImageFormat::Raw)?;
    let access = wanted.mode.access();
    let device = match Repositories::new(system).attach_for(&name, wanted.owner, access) {
        Ok(device) => device,
        Err(error) => {
            // A lock on its file names nobody; a claim names who uses the file by its path. The SR is
            // not asked again: if it hangs, so would the question.
            let is_free = Repositories::new(system).check_uses(&name, wanted.owner, access).is_ok();
            return Err(match check_known_identity(system, wanted, &name) {
                Err(in_use @ AttachError::InUse(_)) if is_free => in_use,
                _ => error.into(),
            });
        }
    };
    let claimed = Repositories::new(system)
        .identity(&name, &device)
        .map_err(AttachError::from)
        .and_then(|disk| {
            let device = matches!(disk, DiskId::Device(_)).then_some(&device);
            sharing::claim(system, wanted, disk, device, "")
        });
    if let Err(error) = claimed {
        // Report the first error; the VDI's own file records what could not be undone.
        let _left = Repositories::new(system).detach_for(&name, wanted.owner);
        return Err(error);
    }
    Ok(Attachment::Vdi { name, owner: wanted.owner.to_owned(), device })
}

/// Finds errors of [`attach`] as far as possible without attaching anything. Returns what the disk is; nothing for a VDI
/// that has neither a file nor, yet, a device.
///
/// # Errors
/// [`AttachError`].
pub fn check(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    format: ImageFormat,
) -> Result<Option<DiskId>, AttachError> {
    if let Some(name) = VdiName::parse(wanted.target) {
        check_can_share(wanted, format)?;
        return check_vdi(system, wanted, &name);
    }
    let (disk, device) = find(system, wanted, format)?;
    sharing::check(system, wanted, disk, device.as_ref())?;
    Ok(Some(disk))
}

fn check_vdi(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    name: &VdiName,
) -> Result<Option<DiskId>, AttachError> {
    let access = wanted.mode.access();
    Repositories::new(system).check(name, wanted.owner, access)?;
    check_known_identity(system, wanted, name)
}

/// Finds other users of a VDI that is known before it is attached.
fn check_known_identity(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    name: &VdiName,
) -> Result<Option<DiskId>, AttachError> {
    let disk = Repositories::new(system).known_identity(name)?;
    if let Some(disk) = disk {
        // Not its device: while it is active, that is the SR's own.
        sharing::check(system, wanted, disk, None)?;
    }
    Ok(disk)
}

/// Refuses `w!` for disks that cannot be shared.
fn check_can_share(wanted: &Wanted<'_>, format: ImageFormat) -> Result<(), AttachError> {
    let target = wanted.target;
    if wanted.mode != Mode::Shared {
        return Ok(());
    }
    if VdiName::parse(target).is_some() {
        return Err(AttachError::CannotShare(format!(
            "{target}: a VDI cannot be shared for writing (w!); use the path of a device that can"
        )));
    }
    if format != ImageFormat::Raw {
        return Err(AttachError::CannotShare(format!(
            "{target}: an image in format {} cannot be shared for writing (w!)",
            format.as_str()
        )));
    }
    Ok(())
}

/// The file at a path, if it can be a disk, and its block device.
fn find(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    format: ImageFormat,
) -> Result<(DiskId, Option<BlockDevice>), AttachError> {
    const SECTOR_BYTES: u64 = 512;
    let path = wanted.target.to_owned();
    let refused = AttachError::host(&path);
    check_can_share(wanted, format)?;
    match system.inspect(&path).map_err(&refused)? {
        FileKind::Regular { bytes } if bytes < SECTOR_BYTES => {
            Err(AttachError::Empty { path, bytes })
        }
        FileKind::Regular { .. } => Ok((system.identify(&path).map_err(&refused)?, None)),
        FileKind::Block(number) => Ok((DiskId::Device(number), Some(BlockDevice { path, number }))),
        FileKind::Directory | FileKind::Other => Err(AttachError::WrongKind { path }),
    }
}

/// Attaches a raw file (through a loop device) or a block device.
fn attach_raw(system: &mut dyn System, wanted: &Wanted<'_>) -> Result<Attachment, AttachError> {
    let (disk, device) = find(system, wanted, ImageFormat::Raw)?;
    let path = device.as_ref().map_or("", |it| it.path.as_str());
    sharing::claim(system, wanted, disk, device.as_ref(), path)?;
    match device {
        Some(device) => Ok(Attachment::Block(device)),
        None => attach_file(system, wanted, disk).inspect_err(|_| {
            let _kept = Claims::new(system).release(wanted.owner);
        }),
    }
}

fn attach_file(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    disk: DiskId,
) -> Result<Attachment, AttachError> {
    let refused = AttachError::host(wanted.target);
    let attached =
        system.attach_loop(wanted.target, wanted.mode, wanted.owner).map_err(&refused)?;
    if attached.behind != disk {
        system.detach_loop(&attached.device.path).map_err(&refused)?;
        let text = "another file was put in its place; try again".to_owned();
        return Err(refused(HostError::Refused(text)));
    }
    Ok(Attachment::Loop(attached.device))
}

fn attach_image(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    format: ImageFormat,
) -> Result<Attachment, AttachError> {
    let path = wanted.target;
    let (disk, device) = find(system, wanted, format)?;
    sharing::claim(system, wanted, disk, device.as_ref(), IMAGE)?;
    let access = wanted.mode.access();
    match kind::attach_image(system, path, format.of_qemu(), access, wanted.owner) {
        Ok(device) => Ok(Attachment::Image(device)),
        Err(error) => {
            if kind::detach_image(system, wanted.owner).is_ok() {
                let _kept = Claims::new(system).release(wanted.owner);
            }
            Err(error.into())
        }
    }
}

/// Whether a disk may be attached here while the host that its VM comes from still has it: then only the VM's backend
/// waits for that. Files are locked, and images and clustered volumes are kept in memory or marked as in use.
///
/// # Errors
/// It cannot be looked at.
pub fn takes_two_hosts(
    system: &mut dyn System,
    target: &str,
    format: ImageFormat,
) -> Result<bool, AttachError> {
    match (VdiName::parse(target), format) {
        (Some(name), _) => Ok(Repositories::new(system).takes_two_hosts(&name)?),
        (None, ImageFormat::Raw) => {
            let kind = system.inspect(target).map_err(AttachError::host(target))?;
            Ok(matches!(kind, FileKind::Block(_)))
        }
        (None, _) => Ok(false),
    }
}

/// Undoes [`attach`]. Idempotent.
///
/// # Errors
/// An error of the host; the device then still exists.
pub fn detach(
    system: &mut dyn System,
    attachment: &Attachment,
    owner: &str,
) -> Result<(), AttachError> {
    match attachment {
        Attachment::Loop(device) => {
            system.detach_loop(&device.path).map_err(AttachError::host(&device.path))?;
        }
        Attachment::Block(_) => {}
        Attachment::Image(_) => kind::detach_image(system, owner)?,
        Attachment::Vdi { name, owner, .. } => Repositories::new(system).detach_for(name, owner)?,
    }
    Claims::new(system).release(owner).map_err(AttachError::host(&attachment.device().path))
}

/// An attached disk and its owner's tag.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attached {
    pub attachment: Attachment,
    pub owner: String,
}

/// All disks attached for owners whose tags begin with `prefix`. One that an earlier daemon
/// attached without a claim gets one; `who` describes an owner in words.
///
/// # Errors
/// The host's lists cannot be read.
pub fn attached(
    system: &mut dyn System,
    prefix: &str,
    who: &dyn Fn(&str) -> String,
) -> Result<Vec<Attached>, AttachError> {
    let mut all = Vec::new();
    let claims = AttachError::host("claims of disks");
    let new = |owner: &str, disk, mode| {
        let (owner, who) = (owner.to_owned(), who(owner));
        Claim { disk, mode, owner, who, note: String::new() }
    };
    for it in system.tagged_loops(prefix).map_err(AttachError::host("loop devices"))? {
        let mut known = Claims::new(system);
        if known.of(&it.tag).map_err(&claims)?.is_none_or(|known| known.disk != it.behind) {
            known.note(&new(&it.tag, it.behind, it.access.into())).map_err(&claims)?;
        }
        all.push(Attached { attachment: Attachment::Loop(it.device), owner: it.tag });
    }
    for it in Repositories::new(system).in_use()? {
        let is_known = Claims::new(system).of(&it.owner).map_err(&claims)?.is_some();
        if let Some(device) = it.device.as_ref().filter(|_| !is_known) {
            // An unresponsive SR must not keep a daemon from starting.
            if let Ok(disk) = Repositories::new(system).identity(&it.name, device) {
                let claim = new(&it.owner, disk, it.access.into());
                Claims::new(system).note(&claim).map_err(&claims)?;
            }
        }
        let (name, owner, device) = (it.name, it.owner, it.device.unwrap_or_default());
        let attachment = Attachment::Vdi { name, owner: owner.clone(), device };
        all.push(Attached { attachment, owner });
    }
    for claim in Claims::new(system).all().map_err(&claims)? {
        if all.iter().any(|it| it.owner == claim.owner) || !claim.owner.starts_with(prefix) {
            continue;
        }
        let attachment = match claim.disk {
            _ if claim.note == IMAGE => {
                Attachment::Image(kind::image_device(system, &claim.owner)?)
            }
            DiskId::Device(number) => Attachment::Block(BlockDevice { path: claim.note, number }),
            DiskId::File { .. } => Attachment::Block(BlockDevice::default()),
        };
        all.push(Attached { attachment, owner: claim.owner });
    }
    Ok(all)
}
