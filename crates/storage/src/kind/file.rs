//! Files in a folder: raw sparse ones, each under a loop device with direct I/O while it is active,
//! or qcow2 images.
//!
//! `NAME.raw` or `NAME.qcow2` is the VDI `NAME`; `NAME.json` next to it marks a snapshot. A
//! snapshot or clone is a separate file: a reflink where the file system supports it (xfs, btrfs),
//! otherwise a copy.

use serde::{Deserialize, Serialize};

use super::nbd_device::{self, Server};
use super::qcow2::Header;
use super::{Driver, Place, Result, Source, qcow2};
use crate::error::Naming as _;
use crate::system::{PARTIAL_PREFIX, text_if_there};
use crate::{
    Access, BlockDevice, Copying, FileKind, HostError, Space, StorageError, System, Vdi, name,
};

/// A kind of SR whose VDIs are files in a folder.
pub(super) trait InFolder: Sync {
    fn folder(&self, place: &Place<'_>) -> Result<Folder>;

    fn create(&self, place: &mut Place<'_>) -> Result<()>;

    fn connect(&self, place: &mut Place<'_>) -> Result<()>;

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()>;

    fn destroy(&self, place: &mut Place<'_>) -> Result<()>;
}

/// Image format of a VDI's file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Format {
    Raw,
    Qcow2,
}

impl Format {
    fn suffix(self) -> &'static str {
        match self {
            Self::Raw => ".raw",
            Self::Qcow2 => ".qcow2",
        }
    }
}

/// Size of a file by which it is tried whether files can share blocks.
const PROBE_BYTES: u64 = 4096;

fn cannot_share(vdi: &str, why: &str) -> StorageError {
    StorageError::InUse(format!(
        "{vdi}: is written to, and its file system cannot copy it in one moment ({why}); \
         stop its VM, or keep it on xfs or btrfs"
    ))
}

/// Longest allowed backing chain.
const BACKING_MAX: usize = 200;

pub(super) struct File(pub(super) Format);

#[derive(Deserialize, Serialize)]
struct SnapshotRecord {
    snapshot_of: String,
}

/// The files of VDIs in one folder.
pub(super) struct Folder {
    pub(super) path: String,
    pub(super) format: Format,
}

impl Folder {
    fn file(&self, vdi: &str) -> String {
        format!("{vdi}{}", self.format.suffix())
    }

    fn image(&self, vdi: &str) -> String {
        format!("{}/{}", self.path, self.file(vdi))
    }

    /// Temporary path of an image until it is complete.
    fn partial(&self, vdi: &str) -> String {
        format!("{}/{PARTIAL_PREFIX}{}", self.path, self.file(vdi))
    }

    fn record(&self, vdi: &str) -> String {
        format!("{}/{vdi}.json", self.path)
    }

    fn snapshot_of(&self, system: &mut dyn System, vdi: &str) -> Result<Option<String>> {
        let path = self.record(vdi);
        let Some(text) = text_if_there(system, &path).of(&path)? else { return Ok(None) };
        let record: SnapshotRecord = serde_json::from_str(&text)
            .map_err(|error| StorageError::refused(format!("{path} cannot be read: {error}")))?;
        Ok(Some(record.snapshot_of))
    }

    pub(super) fn check(&self, place: &mut Place<'_>) -> Result<()> {
        match place.system.inspect(&self.path).of(&self.path)? {
            FileKind::Directory => Ok(()),
            _ => Err(StorageError::refused(format!("{}: not a folder", self.path))),
        }
    }

    pub(super) fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        place.system.space(&self.path).of(&self.path)
    }

    pub(super) fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        let names = place.system.list(&self.path).of(&self.path)?;
        let suffix = self.format.suffix();
        let mut vdis = Vec::new();
        for name in &names {
            let path = format!("{}/{name}", self.path);
            if name.starts_with(PARTIAL_PREFIX) {
                place.system.remove(&path).of(&path)?;
            } else if let Some(vdi) = name.strip_suffix(".json").filter(|vdi| name::is_vdi(vdi)) {
                // The record is written before its image; without an image it is stale.
                if !names.iter().any(|other| other.strip_suffix(suffix) == Some(vdi)) {
                    place.system.remove(&path).of(&path)?;
                }
            } else if let Some(vdi) = name.strip_suffix(suffix).filter(|vdi| name::is_vdi(vdi)) {
                let FileKind::Regular { bytes } = place.system.inspect(&path).of(&path)? else {
                    continue;
                };
                let bytes = match self.format {
                    Format::Raw => bytes,
                    // Still listed, so that it can be found and deleted.
                    Format::Qcow2 => Header::find(place, &path)?.map_or(0, |header| header.bytes),
                };
                vdis.push(Vdi {
                    name: vdi.to_owned(),
                    bytes,
                    used_bytes: Some(place.system.used_bytes(&path).of(&path)?),
                    snapshot_of: self.snapshot_of(place.system, vdi)?,
                });
            }
        }
        Ok(vdis)
    }

    pub(super) fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        match self.format {
            Format::Raw => place.system.make_sparse(&self.image(vdi), bytes).of(place.name(vdi)),
            Format::Qcow2 => self.create_image(place, vdi, bytes, None),
        }
    }

    /// Creates an image with `qemu-img`, renamed to its own name once complete.
    fn create_image(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        bytes: u64,
        backing: Option<&str>,
    ) -> Result<()> {
        let partial = self.partial(vdi);
        qcow2::create(place, vdi, &partial, bytes, backing)?;
        place.system.rename_new(&partial, &self.image(vdi)).of(place.name(vdi))
    }

    /// Checks that the backing chain consists of images of this folder. A header that others wrote
    /// could name any file of this host.
    fn check_chain(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        let refused = |place: &Place<'_>, what: &str| {
            Err(StorageError::refused(format!(
                "{}: {what}; `qemu-img convert` makes an image that stands alone",
                place.name(vdi)
            )))
        };
        let mut file = self.file(vdi);
        for _ in 0..=BACKING_MAX {
            let header = Header::read(place, &format!("{}/{file}", self.path))?;
            if header.has_data_file {
                return refused(place, &format!("{file} keeps its data in another file"));
            }
            let Some(backing) = header.backing else { return Ok(()) };
            if !backing.strip_suffix(self.format.suffix()).is_some_and(name::is_vdi) {
                let what = format!("{file} has {backing:?} behind it, which is no image of its SR");
                return refused(place, &what);
            }
            file = backing;
        }
        refused(place, &format!("more than {BACKING_MAX} images are behind it"))
    }

    /// Images backed by this one.
    fn clones(&self, place: &mut Place<'_>, vdi: &str) -> Result<Vec<String>> {
        let mut clones = Vec::new();
        if self.format == Format::Qcow2 {
            for name in place.system.list(&self.path).of(&self.path)? {
                let Some(other) = name.strip_suffix(self.format.suffix()) else { continue };
                if !name::is_vdi(other) {
                    continue;
                }
                let header = Header::find(place, &self.image(other))?;
                if header.is_some_and(|it| it.backing == Some(self.file(vdi))) {
                    clones.push(other.to_owned());
                }
            }
        }
        Ok(clones)
    }

    pub(super) fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        let clones = self.clones(place, vdi)?;
        if !clones.is_empty() {
            return Err(StorageError::InUse(format!(
                "{}: its clones share what it has; destroy {} first",
                place.name(vdi),
                clones.join(", ")
            )));
        }
        // The image first: a stale record is removed by the next scan, an image without its record
        // would be writable.
        place.system.remove(&self.image(vdi)).of(place.name(vdi))?;
        place.system.remove(&self.record(vdi)).of(place.name(vdi))
    }

    pub(super) fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        match (self.format, device) {
            (Format::Qcow2, None) => qcow2::grow(place, vdi, &self.image(vdi), bytes),
            (Format::Qcow2, Some(_)) => Err(StorageError::InUse(format!(
                "{}: an image in format qcow2 grows while nobody uses it; stop its VM",
                place.name(vdi)
            ))),
            (Format::Raw, device) => {
                place.system.grow(&self.image(vdi), bytes).of(place.name(vdi))?;
                match device {
                    Some(device) => place.system.resize_loop(&device.path).of(place.name(vdi)),
                    None => Ok(()),
                }
            }
        }
    }

    /// While a guest writes only a file system that shares blocks will do; whether this one does is
    /// tried with a small file.
    pub(super) fn check_snapshot(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        source: Source,
    ) -> Result<()> {
        if source == Source::Quiet {
            return Ok(());
        }
        let probe = |what: &str| format!("{}/{PARTIAL_PREFIX}{what}-{}", self.path, from.name);
        let (one, other) = (probe("probe"), probe("share"));
        for left in [&one, &other] {
            place.system.remove(left).of(left)?;
        }
        place.system.make_sparse(&one, PROBE_BYTES).of(&one)?;
        let shared = place.system.copy(&one, &other, Copying::Shared);
        for left in [&one, &other] {
            // If it remains, the next scan removes it.
            let _left = place.system.remove(left);
        }
        shared.map_err(|error| match error {
            HostError::Refused(why) => cannot_share(&place.name(&from.name), &why),
            error => StorageError::refused(format!("{}: {error}", place.name(&from.name))),
        })
    }

    /// Marks it as a snapshot of itself.
    pub(super) fn seal_vdi(&self, place: &mut Place<'_>, vdi: &Vdi) -> Result<()> {
        if vdi.snapshot_of.is_some() {
            return Ok(());
        }
        let record = SnapshotRecord { snapshot_of: vdi.name.clone() };
        let text = serde_json::to_string(&record).expect("strings always serialise");
        place.system.write(&self.record(&vdi.name), text.as_bytes()).of(place.name(&vdi.name))
    }

    pub(super) fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        let record = SnapshotRecord { snapshot_of: from.name.clone() };
        let text = serde_json::to_string(&record).expect("strings always serialise");
        // Before the image, so that it is never writable.
        place.system.write(&self.record(to), text.as_bytes()).of(place.name(to))?;
        self.copy_vdi(place, from, to, source).inspect_err(|_| {
            // If it remains, the next scan removes it; report the first error.
            let _left = place.system.remove(&self.record(to));
        })
    }

    pub(super) fn clone_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        if self.format == Format::Qcow2 && from.snapshot_of.is_some() {
            return self.create_image(place, to, from.bytes, Some(&self.file(&from.name)));
        }
        self.copy_vdi(place, from, to, source)
    }

    fn copy_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()> {
        let how = match source {
            Source::Quiet => Copying::Any,
            Source::Written => Copying::Shared,
        };
        let copied = place.system.copy(&self.image(&from.name), &self.image(to), how);
        copied.map_err(|error| match (source, error) {
            (Source::Written, HostError::Refused(why)) => {
                cannot_share(&place.name(&from.name), &why)
            }
            (_, error) => StorageError::refused(format!("copying to {}: {error}", place.name(to))),
        })
    }

    pub(super) fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        let image = self.image(vdi);
        match place.system.inspect(&image).of(place.name(vdi))? {
            FileKind::Regular { .. } => {}
            _ => return Err(StorageError::refused(format!("{image}: not a regular file"))),
        }
        if self.format == Format::Qcow2 {
            self.check_chain(place, vdi)?;
        }
        if access == Access::ReadWrite && self.snapshot_of(place.system, vdi)?.is_some() {
            return Err(StorageError::refused(format!(
                "{}: is a snapshot and cannot be written to; clone it",
                place.name(vdi)
            )));
        }
        Ok(())
    }

    pub(super) fn activate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        access: Access,
    ) -> Result<BlockDevice> {
        let image = self.image(vdi);
        match self.format {
            Format::Raw => {
                let tag = place.tag(vdi);
                let attached = place.system.attach_loop(&image, access.into(), &tag);
                attached.map(|it| it.device).of(place.name(vdi))
            }
            Format::Qcow2 => {
                let source = ["--format=qcow2", "--cache=none", "--discard=unmap", &image];
                nbd_device::connect_program(place, vdi, access, &source)
            }
        }
    }

    pub(super) fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        if self.format == Format::Qcow2 {
            return nbd_device::disconnect(place, vdi, Server::Program);
        }
        let tag = place.tag(vdi);
        let found = match device {
            Some(device) => vec![device.clone()],
            None => {
                let all = place.system.tagged_loops(&tag).of(place.name(vdi))?;
                all.into_iter().filter(|it| it.tag == tag).map(|it| it.device).collect()
            }
        };
        for device in found {
            // A killed daemon may have detached it already, and the number may have been reused.
            place.system.detach_tagged(&device.path, &tag).of(place.name(vdi))?;
        }
        Ok(())
    }
}

impl InFolder for File {
    fn folder(&self, place: &Place<'_>) -> Result<Folder> {
        Ok(Folder { path: place.sr.path("path")?, format: self.0 })
    }

    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        let folder = self.folder(place)?;
        let there = place.system.list(&folder.path).of(&folder.path)?;
        if !there.is_empty() {
            return Err(StorageError::refused(format!(
                "{}: the folder is not empty; `xy sr-introduce` takes over one that has VDIs",
                folder.path
            )));
        }
        place.system.make_folder(&folder.path).of(&folder.path)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        self.folder(place)?.check(place)
    }

    fn disconnect(&self, _: &mut Place<'_>) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, place: &mut Place<'_>) -> Result<()> {
        let folder = self.folder(place)?;
        place.system.remove_folder(&folder.path).of(&folder.path)
    }
}

impl<T: InFolder> Driver for T {
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        InFolder::create(self, place)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        InFolder::connect(self, place)
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        InFolder::disconnect(self, place)
    }

    fn destroy(&self, place: &mut Place<'_>) -> Result<()> {
        InFolder::destroy(self, place)
    }

    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        self.folder(place)?.space(place)
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        self.folder(place)?.scan(place)
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        self.folder(place)?.create_vdi(place, vdi, bytes)
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        self.folder(place)?.destroy_vdi(place, vdi)
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        self.folder(place)?.grow_vdi(place, &vdi.name, bytes, device)
    }

    fn check_snapshot(&self, place: &mut Place<'_>, from: &Vdi, source: Source) -> Result<()> {
        self.folder(place)?.check_snapshot(place, from, source)
    }

    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        self.folder(place)?.snapshot_vdi(place, from, to, source)
    }

    fn seal_vdi(&self, place: &mut Place<'_>, vdi: &Vdi) -> Result<()> {
        self.folder(place)?.seal_vdi(place, vdi)
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()> {
        self.folder(place)?.clone_vdi(place, from, to, source)
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        self.folder(place)?.attach(place, vdi, access)
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice> {
        self.folder(place)?.activate(place, vdi, access)
    }

    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        self.folder(place)?.deactivate(place, vdi, device)
    }

    fn detach(&self, _: &mut Place<'_>, _: &str) -> Result<()> {
        Ok(())
    }

    fn file(&self, place: &mut Place<'_>, vdi: &str) -> Result<Option<String>> {
        Ok(Some(self.folder(place)?.image(vdi)))
    }

    fn trouble(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: &BlockDevice,
    ) -> Result<Option<String>> {
        match self.folder(place)?.format {
            // The kernel serves it.
            Format::Raw => Ok(None),
            Format::Qcow2 => nbd_device::trouble(place, vdi, device),
        }
    }
}
