//! Snapshots of several VDIs at one moment, and what is made of them afterwards.
//!
//! Whoever wants them stops the writers for that moment. So all that can be done before is: the SRs
//! are scanned, names and kinds are checked, what was written is flushed, and locks keep all of that
//! true until the snapshots are taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Naming as _;
use crate::kind::{Place, Source};
use crate::system::Job;
use crate::{
    Access, BlockDevice, Lock, Repositories, Repository, StorageError, System, Vdi, VdiName,
};

type Result<T> = std::result::Result<T, StorageError>;

/// How a VDI is made from a snapshot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MakeDisk {
    /// It must not exist yet.
    Anew,
    /// It replaces the one of that name, if there is one.
    InPlace,
}

#[derive(Debug)]
struct Prepared {
    name: VdiName,
    to: VdiName,
    repository: Repository,
    vdi: Vdi,
    source: Source,
    device: Option<BlockDevice>,
}

impl Prepared {
    fn take(&self, system: &mut dyn System) -> Result<()> {
        // A server of an image answers a write before it can be found in the file.
        if let Some(device) = &self.device {
            system.flush(&device.path).of(&self.name)?;
        }
        let mut place = Place { system, sr: &self.repository };
        let driver = self.repository.kind.driver();
        driver.snapshot_vdi(&mut place, &self.vdi, self.to.vdi(), self.source)
    }
}

/// Snapshots of which all is done but to take them. Until this is dropped nobody else changes their
/// SRs, attaches these VDIs or detaches them.
#[derive(Debug)]
#[must_use = "it holds locks"]
pub struct PreparedSnapshots {
    each: Vec<Prepared>,
    _locks: Vec<Lock>,
}

impl PreparedSnapshots {
    /// Takes all of them, concurrently where the host can.
    ///
    /// # Errors
    /// The first error; any of them may exist then.
    pub fn take(&self, system: &mut dyn System) -> Result<()> {
        let jobs = self.each.iter().map(|prepared| {
            let job: Job<'_> = Box::new(|system: &mut dyn System| prepared.take(system));
            job
        });
        system.do_each(jobs.collect()).into_iter().collect()
    }
}

impl Repositories<'_> {
    /// Prepares snapshots: of each of these VDIs one with this name, in the VDI's SR.
    ///
    /// # Errors
    /// One of them cannot be taken; then nothing has happened.
    pub fn prepare_snapshots(
        &mut self,
        wanted: &[(VdiName, VdiName)],
    ) -> Result<PreparedSnapshots> {
        let mut locks = Vec::new();
        let srs: BTreeSet<&str> = wanted.iter().map(|(name, _)| name.sr()).collect();
        let mut scanned = BTreeMap::new();
        for sr in srs {
            locks.push(self.lock("sr", sr)?);
            scanned.insert(sr, self.vdis(sr)?);
        }
        let names: BTreeSet<&VdiName> = wanted.iter().map(|(name, _)| name).collect();
        for name in names {
            locks.push(self.lock("vdi", name)?);
        }
        let mut each = Vec::with_capacity(wanted.len());
        for (name, to) in wanted {
            let (repository, vdis) = &scanned[name.sr()];
            if vdis.iter().any(|vdi| vdi.name == to.vdi()) {
                return Err(StorageError::refused(format!("{to}: there is a VDI of this name")));
            }
            let vdi = vdis.iter().find(|vdi| vdi.name == name.vdi()).cloned();
            let vdi = vdi.ok_or_else(|| StorageError::Missing(format!("{name}: no such VDI")))?;
            each.push(self.prepare_snapshot(name, to, repository.clone(), vdi)?);
        }
        Ok(PreparedSnapshots { each, _locks: locks })
    }

    fn prepare_snapshot(
        &mut self,
        name: &VdiName,
        to: &VdiName,
        repository: Repository,
        vdi: Vdi,
    ) -> Result<Prepared> {
        let attached = self.attached(name)?;
        let source = match attached.uses.writer() {
            Some(_) => Source::Written,
            None => Source::Quiet,
        };
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().check_snapshot(&mut place, &vdi, source)?;
        // So that little is left to be flushed.
        if let Some(device) = &attached.device {
            self.system.flush(&device.path).of(name)?;
        }
        let device = attached.device;
        Ok(Prepared { name: name.clone(), to: to.clone(), repository, vdi, source, device })
    }

    /// Destroys a VDI, unless there is none.
    ///
    /// # Errors
    /// As for [`Repositories::destroy_vdi`], but for a missing one.
    pub fn destroy_if_there(&mut self, name: &VdiName) -> Result<()> {
        match self.destroy_vdi(name) {
            Ok(()) | Err(StorageError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds errors of [`Repositories::make_from`]. `owner` may use the VDI that is replaced.
    ///
    /// # Errors
    /// The error.
    pub fn check_make_from(
        &mut self,
        snapshot: &VdiName,
        to: &VdiName,
        how: MakeDisk,
        owner: &str,
    ) -> Result<()> {
        let vdis = self.scan(snapshot.sr())?;
        match vdis.iter().find(|vdi| vdi.name == snapshot.vdi()) {
            None => return Err(StorageError::Missing(format!("{snapshot}: no such VDI"))),
            Some(vdi) if vdi.snapshot_of.is_none() => {
                return Err(StorageError::refused(format!("{snapshot}: is no snapshot")));
            }
            Some(_) => {}
        }
        match how {
            MakeDisk::Anew if vdis.iter().any(|vdi| vdi.name == to.vdi()) => {
                Err(StorageError::refused(format!("{to}: there is a VDI of this name")))
            }
            MakeDisk::Anew => Ok(()),
            MakeDisk::InPlace => self.check_uses(to, owner, Access::ReadWrite),
        }
    }

    /// Makes the writable VDI `to` with the contents of a snapshot of the same SR, which stays as it is.
    ///
    /// # Errors
    /// A VDI that is to be replaced is in use, or an error of the SR. It may be gone then.
    pub fn make_from(&mut self, snapshot: &VdiName, to: &VdiName, how: MakeDisk) -> Result<()> {
        if how == MakeDisk::InPlace {
            self.destroy_if_there(to)?;
        }
        self.clone_vdi(snapshot, to.vdi())
    }
}
