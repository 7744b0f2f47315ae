//! Makes, lists and removes checkpoints.
//!
//! ```text
//!   mark: making -> [save: suspended -> snapshots -> last pages -> resumed -> file committed] -> no mark
//!   mark: ending -> snapshots destroyed -> file removed -> no mark
//! ```
//! The file decides: a checkpoint whose file is there is whole, whatever happened to its daemon; of
//! any other the snapshots that the mark names are destroyed. Marks and files are durable, so that
//! this holds after a crash of the host too.

use storage::{HostError, Lock, PARTIAL_PREFIX, PreparedSnapshots, Repositories, VdiName};
use xen::{Hypervisor, Uuid};
use xenstore::client::Transport;

use super::save::SaveOf;
use super::{Performer, failure};
use crate::checkpoint::{
    Checkpoint, DiskFrom, FOLDER, Mark, MarkStage, check_name, folder, mark_path, marked, path,
};
use crate::config::VmConfig;
use crate::host::Host;
use crate::saved::{FileFormat, SaveEnd, SaveStage, SavedFile, Saving};
use crate::work::{Failure, WorkMonitor, loop_tag};

#[expect(clippy::needless_pass_by_value, reason = "map_err gives it")]
pub(super) fn told(error: storage::StorageError) -> Failure {
    Failure(error.to_string())
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn repositories(&mut self) -> Repositories<'_> {
        Repositories::new(self.host.system())
    }

    /// Changes of a VM's checkpoints are serialised.
    fn lock_checkpoints(&mut self, uuid: Uuid) -> Result<Lock, Failure> {
        self.host.system().lock(&format!("checkpoint/{uuid}")).map_err(|error| match error {
            HostError::Busy => {
                Failure("another checkpoint of this VM is being made or removed".to_owned())
            }
            error => failure("its checkpoints", error),
        })
    }

    fn write_mark(&mut self, uuid: Uuid, name: &str, mark: &Mark) -> Result<(), Failure> {
        let path = mark_path(uuid, name);
        let written = self.host.system().write(&path, mark.encode().as_bytes());
        written.map_err(|error| failure(path, error))
    }

    fn remove_mark(&mut self, uuid: Uuid, name: &str) -> Result<(), Failure> {
        let path = mark_path(uuid, name);
        self.host.system().remove(&path).map_err(|error| failure(path, error))
    }

    /// Makes a checkpoint. After a failure the guest runs on, and there is neither file nor snapshot.
    pub(crate) fn checkpoint(
        &mut self,
        of: SaveOf<'_>,
        name: &str,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<SaveEnd, Failure> {
        let uuid = of.uuid;
        let vm = &of.config.name;
        let named = |Failure(why)| Failure(format!("{vm}: {why}"));
        let _lock = self.lock_checkpoints(uuid).map_err(named)?;
        // One that a daemon could not settle may have left snapshots.
        self.settle_checkpoint(uuid, name)?;
        match self.host.open_image(&of.to.path) {
            Err(HostError::Missing) => {}
            Ok(_) => {
                return Err(Failure(format!(
                    "{vm}: has a checkpoint {name} already; choose another name, or destroy that one"
                )));
            }
            Err(error) => return Err(failure(&of.to.path, error)),
        }
        // It refuses what cannot be taken before anything is there.
        drop(self.prepare_snapshots(of)?);
        let mark = Mark::new(MarkStage::Making, of.to.id, &of.to.disks);
        self.write_mark(uuid, name, &mark)?;
        match self.save(of, monitor) {
            Ok(end) => {
                // The file says so as well.
                let _settled_later = self.remove_mark(uuid, name);
                Ok(end)
            }
            Err(why) => match self.settle_checkpoint(uuid, name) {
                Ok(()) => Err(why),
                Err(Failure(more)) => Err(Failure(format!("{}; and then: {more}", why.0))),
            },
        }
    }

    /// Does all of a save's snapshots but to take them.
    pub(super) fn prepare_snapshots(
        &mut self,
        of: SaveOf<'_>,
    ) -> Result<Option<PreparedSnapshots>, Failure> {
        if of.to.disks.is_empty() {
            return Ok(None);
        }
        let pair = |disk: &crate::checkpoint::SavedDisk| (disk.vdi.clone(), disk.snapshot.clone());
        let wanted: Vec<(VdiName, VdiName)> = of.to.disks.iter().map(pair).collect();
        let prepared = self.repositories().prepare_snapshots(&wanted);
        prepared.map(Some).map_err(|error| failure(&of.config.name, error))
    }

    /// Finishes what the mark of a checkpoint says; does nothing without one.
    fn settle_checkpoint(&mut self, uuid: Uuid, name: &str) -> Result<(), Failure> {
        let place = mark_path(uuid, name);
        let text = match self.host.system().read(&place) {
            Ok(text) => text,
            Err(HostError::Missing) => return Ok(()),
            Err(error) => return Err(failure(place, error)),
        };
        let mark = Mark::decode(&String::from_utf8_lossy(&text));
        let mark = mark.ok_or_else(|| failure(&place, "cannot be read; it is left alone"))?;
        let file = path(uuid, name);
        let saving = Saving {
            stage: SaveStage::Writing,
            after: crate::saved::AfterSave::Running,
            format: FileFormat::Xylem,
            id: mark.id,
            path: file.clone(),
        };
        if mark.stage == MarkStage::Ending || !self.is_of_save(&saving)? {
            for snapshot in &mark.snapshots {
                self.repositories().destroy_if_there(snapshot).map_err(told)?;
            }
            if mark.stage == MarkStage::Ending {
                let removed = self.host.system().remove(&file);
                removed.map_err(|error| failure(&file, error))?;
            }
            match self.host.remove_unfinished_image(&file) {
                Ok(()) | Err(HostError::Missing | HostError::Busy) => {}
                Err(error) => return Err(failure(&file, error)),
            }
        }
        self.remove_mark(uuid, name)
    }

    /// Settles what killed daemons left. What cannot be settled is told, and left for the next one.
    pub(crate) fn settle_checkpoints(&mut self) -> Result<(), Failure> {
        let mut failures = Vec::new();
        for (uuid, file) in self.checkpoint_files()? {
            let settled = self.lock_checkpoints(uuid).and_then(|_lock| match marked(&file) {
                Some(name) => self.settle_checkpoint(uuid, name),
                None if file.starts_with(PARTIAL_PREFIX) => {
                    let left = format!("{}/{file}", folder(uuid));
                    self.host.system().remove(&left).map_err(|error| failure(left, error))
                }
                None => Ok(()),
            });
            if let Err(Failure(why)) = settled {
                failures.push(format!("a checkpoint of {uuid} cannot be settled: {why}"));
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("; "))) }
    }

    /// Whether there is something to be settled, as far as can be seen.
    pub(super) fn has_unsettled_checkpoints(&mut self) -> bool {
        let is_left = |file: &str| marked(file).is_some() || file.starts_with(PARTIAL_PREFIX);
        // What cannot be listed is told when it is to be settled.
        self.checkpoint_files().map_or(true, |files| files.iter().any(|(_, file)| is_left(file)))
    }

    /// All files in the folders of VMs' checkpoints, with the VMs.
    fn checkpoint_files(&mut self) -> Result<Vec<(Uuid, String)>, Failure> {
        let mut files = Vec::new();
        let top = self.host.system().list(FOLDER).map_err(|error| failure(FOLDER, error))?;
        for uuid in top.iter().filter_map(|name| name.parse().ok()) {
            let place = folder(uuid);
            let below = self.host.system().list(&place).map_err(|error| failure(place, error))?;
            files.extend(below.into_iter().map(|file| (uuid, file)));
        }
        Ok(files)
    }

    /// All checkpoints, by VM and name. One that is being removed is not among them.
    pub(crate) fn checkpoints(&mut self) -> Result<Vec<Checkpoint>, Failure> {
        let files = self.checkpoint_files()?;
        let mut found = Vec::new();
        for (uuid, name) in files {
            if check_name(&name).is_err() {
                continue;
            }
            found.extend(self.checkpoint_at(uuid, name));
        }
        found.sort_by(|one, other| {
            (&one.vm, one.created, &one.name).cmp(&(&other.vm, other.created, &other.name))
        });
        Ok(found)
    }

    fn checkpoint_at(&mut self, uuid: Uuid, name: String) -> Option<Checkpoint> {
        let empty = Checkpoint {
            vm: uuid.to_string(),
            uuid,
            name,
            created: 0,
            bytes: 0,
            disks: Vec::new(),
            fault: None,
        };
        let place = path(uuid, &empty.name);
        match self.read_saved(&place) {
            Ok(file) if file.uuid != uuid => {
                Some(Checkpoint { fault: Some("is another VM's".to_owned()), ..empty })
            }
            Ok(SavedFile { name: vm, created, bytes, disks, .. }) => {
                Some(Checkpoint { vm, created, bytes, disks, ..empty })
            }
            // Removed meanwhile.
            Err(_) if matches!(self.host.open_image(&place), Err(HostError::Missing)) => None,
            Err(Failure(why)) => Some(Checkpoint { fault: Some(why), ..empty }),
        }
    }

    /// Removes a checkpoint with its snapshots.
    pub(crate) fn destroy_checkpoint(&mut self, uuid: Uuid, name: &str) -> Result<(), Failure> {
        let _lock = self.lock_checkpoints(uuid)?;
        self.settle_checkpoint(uuid, name)?;
        let place = path(uuid, name);
        let source = match self.host.open_image(&place) {
            Ok(source) => source,
            Err(HostError::Missing) => {
                return Err(Failure(format!(
                    "{name}: no such checkpoint; see `xy checkpoint-list`"
                )));
            }
            Err(error) => return Err(failure(&place, error)),
        };
        drop(source);
        // A file that cannot be read names no snapshots.
        let file = self.read_saved(&place).ok();
        let (id, disks) = file.map_or((None, Vec::new()), |file| (file.id, file.disks));
        let mark = Mark::new(MarkStage::Ending, id.unwrap_or_default(), &disks);
        self.write_mark(uuid, name, &mark)?;
        // The first that cannot be destroyed, such as one that a clone depends on, ends it all.
        if let Some(first) = mark.snapshots.first()
            && let Err(error) = self.repositories().destroy_if_there(first)
        {
            self.remove_mark(uuid, name)?;
            return Err(told(error));
        }
        self.settle_checkpoint(uuid, name)
    }

    /// Finds errors of [`Self::make_disks`] before anything is changed.
    pub(crate) fn check_disks_from(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        disks: &[DiskFrom],
    ) -> Result<(), Failure> {
        for DiskFrom { number, snapshot, to, how } in disks {
            let owner = loop_tag(uuid, *number);
            let checked = self.repositories().check_make_from(snapshot, to, *how, &owner);
            checked.map_err(|error| failure(&config.name, error))?;
        }
        Ok(())
    }

    /// Makes disks from snapshots. After a failure those that are new are gone again.
    pub(crate) fn make_disks(&mut self, vm: &str, disks: &[DiskFrom]) -> Result<(), Failure> {
        for (index, DiskFrom { snapshot, to, how, .. }) in disks.iter().enumerate() {
            let Err(error) = self.repositories().make_from(snapshot, to, *how) else { continue };
            let new = disks[..index].iter().filter(|it| it.how == storage::MakeDisk::Anew);
            for made in new {
                // Its name says whose it was to be.
                let _left = self.repositories().destroy_if_there(&made.to);
            }
            return Err(failure(vm, error));
        }
        Ok(())
    }

    /// Destroys disks that were made for a VM which never ran.
    pub(crate) fn drop_disks(&mut self, disks: &[VdiName]) -> Result<(), Failure> {
        let dropped: Vec<_> =
            disks.iter().map(|vdi| self.repositories().destroy_if_there(vdi)).collect();
        dropped.into_iter().collect::<Result<(), _>>().map_err(told)
    }
}
