//! Operations on the SRs of a host (create, list, destroy) and on their VDIs (create, copy,
//! attach).
//!
//! Two folders hold what must outlive the daemon: one file for each SR, and one for each VDI in
//! use. The second is in `/run`: after a reboot of the host nothing is attached.
//!
//! Locks, always taken in this order: `sr/SR` to change the set of an SR's VDIs; `vdi/SR:VDI` to
//! work on that VDI; `use/SR`, briefly, when a VDI gets its first user and when an unused SR is
//! removed. So attaching never waits for work on another VDI.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Naming as _;
use crate::kind::{Driver, Place, Source};
use crate::record::Attached;
use crate::system::{PARTIAL_PREFIX, text_if_there};
use crate::vdi::{Stage, Unfit, Uses};
use crate::{
    Access, BlockDevice, DiskId, HostError, Kind, Lock, Repository, Space, StorageError, System,
    Vdi, VdiName, name,
};

/// Smallest unit of a VDI's size, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Folders of the files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Places {
    /// The SRs.
    pub repositories: String,
    /// The attached VDIs.
    pub attached: String,
}

impl Default for Places {
    fn default() -> Self {
        Self { repositories: "/var/lib/xylem/sr".to_owned(), attached: "/run/xylem/sr".to_owned() }
    }
}

/// A use of a VDI.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InUse {
    pub name: VdiName,
    pub owner: String,
    pub access: Access,
    pub stage: Stage,
    /// Known once it is activated.
    pub device: Option<BlockDevice>,
}

/// The SRs of a host; see the module documentation.
pub struct Repositories<'a> {
    pub(crate) system: &'a mut dyn System,
    places: Places,
}

type Result<T> = std::result::Result<T, StorageError>;

impl std::fmt::Debug for Repositories<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repositories").field("places", &self.places).finish_non_exhaustive()
    }
}

impl<'a> Repositories<'a> {
    /// With the default folders.
    pub fn new(system: &'a mut dyn System) -> Self {
        Self::at(system, Places::default())
    }

    /// With other folders.
    pub fn at(system: &'a mut dyn System, places: Places) -> Self {
        Self { system, places }
    }

    fn sr_path(&self, sr: &str) -> String {
        format!("{}/{sr}.json", self.places.repositories)
    }

    fn attached_path(&self, sr: &str, vdi: &str) -> String {
        format!("{}/{sr}/{vdi}.json", self.places.attached)
    }

    pub(crate) fn lock(&mut self, what: &str, name: impl std::fmt::Display) -> Result<Lock> {
        self.system.lock(&format!("{what}/{name}")).map_err(|error| match error {
            HostError::Busy => {
                StorageError::InUse(format!("{name}: another operation is still under way"))
            }
            error => StorageError::refused(format!("{name}: {error}")),
        })
    }

    /// The SR of this name.
    ///
    /// # Errors
    /// [`StorageError::Missing`] if there is none.
    pub fn get(&mut self, sr: &str) -> Result<Repository> {
        name::check_sr(sr)?;
        let path = self.sr_path(sr);
        match text_if_there(self.system, &path).of(&path)? {
            Some(text) => Repository::from_text(sr, &path, &text),
            None => {
                Err(StorageError::Missing(format!("{sr}: no such SR; `xy sr-list` shows them all")))
            }
        }
    }

    /// The names of all SRs, in order; their files are not read.
    ///
    /// # Errors
    /// Their folder cannot be read.
    pub fn names(&mut self) -> Result<Vec<String>> {
        let folder = self.places.repositories.clone();
        let names = self.system.list(&folder).of(&folder)?;
        let srs = names.iter().filter_map(|file| file.strip_suffix(".json"));
        // Files without a valid SR name are ignored.
        Ok(srs.filter(|sr| name::check_sr(sr).is_ok()).map(ToOwned::to_owned).collect())
    }

    /// All SRs, by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn list(&mut self) -> Result<Vec<Repository>> {
        self.names()?.iter().map(|sr| self.get(sr)).collect()
    }

    /// Creates an SR and records it.
    ///
    /// # Errors
    /// The SR is not recorded then; what was created of it is left for the administrator.
    pub fn create(&mut self, sr: &str, kind: Kind, config: BTreeMap<String, String>) -> Result<()> {
        self.remember(sr, kind, config, |driver, place| driver.create(place))
    }

    /// Records an existing SR.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn introduce(
        &mut self,
        sr: &str,
        kind: Kind,
        config: BTreeMap<String, String>,
    ) -> Result<()> {
        self.remember(sr, kind, config, |driver, place| driver.connect(place))
    }

    fn remember(
        &mut self,
        sr: &str,
        kind: Kind,
        config: BTreeMap<String, String>,
        make: impl FnOnce(&dyn Driver, &mut Place<'_>) -> Result<()>,
    ) -> Result<()> {
        name::check_sr(sr)?;
        let _changing = self.lock("sr", sr)?;
        let repository = Repository { name: sr.to_owned(), kind, config };
        repository.check_settings()?;
        let identity = repository.identity()?;
        for other in self.list()? {
            if other.name == sr {
                return Err(StorageError::refused(format!("{sr}: there is an SR of this name")));
            }
            if other.identity() == Ok(identity.clone()) {
                return Err(StorageError::refused(format!(
                    "{sr}: is the SR {} already",
                    other.name
                )));
            }
        }
        make(kind.driver(), &mut Place { system: self.system, sr: &repository })?;
        let path = self.sr_path(sr);
        self.system.write(&path, repository.to_text().as_bytes()).of(path)
    }

    /// Forgets an SR; its VDIs stay where they are.
    ///
    /// # Errors
    /// [`StorageError::InUse`] while one of its VDIs is in use.
    pub fn forget(&mut self, sr: &str) -> Result<()> {
        let _changing = self.lock("sr", sr)?;
        let repository = self.get(sr)?;
        self.detach_all_former_users(sr)?;
        let _used = self.lock("use", sr)?;
        self.check_unused(sr)?;
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().disconnect(&mut place)?;
        self.drop_record(sr)
    }

    /// Destroys an SR without VDIs.
    ///
    /// # Errors
    /// It has VDIs.
    pub fn destroy(&mut self, sr: &str) -> Result<()> {
        let _changing = self.lock("sr", sr)?;
        let repository = self.get(sr)?;
        let driver = repository.kind.driver();
        let mut place = Place { system: self.system, sr: &repository };
        driver.connect(&mut place)?;
        let count = driver.scan(&mut place)?.len();
        if count > 0 {
            return Err(StorageError::InUse(format!(
                "{sr}: has {count} VDIs; destroy them first, or only forget the SR"
            )));
        }
        let _used = self.lock("use", sr)?;
        self.check_unused(sr)?;
        let mut place = Place { system: self.system, sr: &repository };
        driver.destroy(&mut place)?;
        driver.disconnect(&mut place)?;
        self.drop_record(sr)
    }

    fn check_unused(&mut self, sr: &str) -> Result<()> {
        let folder = format!("{}/{sr}", self.places.attached);
        match self.system.list(&folder).of(&folder)?.first() {
            None => Ok(()),
            Some(file) => Err(StorageError::InUse(format!(
                "{sr}: its VDI {} is in use",
                file.trim_end_matches(".json")
            ))),
        }
    }

    fn drop_record(&mut self, sr: &str) -> Result<()> {
        let folder = format!("{}/{sr}", self.places.attached);
        self.system.remove_folder(&folder).of(&folder)?;
        let path = self.sr_path(sr);
        self.system.remove(&path).of(path)
    }

    /// Scans the SR for its VDIs.
    ///
    /// # Errors
    /// The SR cannot be reached.
    pub fn scan(&mut self, sr: &str) -> Result<Vec<Vdi>> {
        let _changing = self.lock("sr", sr)?;
        self.vdis(sr).map(|(_, vdis)| vdis)
    }

    /// Size and free space of an SR.
    ///
    /// # Errors
    /// The SR cannot be reached.
    pub fn space(&mut self, sr: &str) -> Result<Space> {
        let repository = self.get(sr)?;
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().connect(&mut place)?;
        repository.kind.driver().space(&mut place)
    }

    pub(crate) fn vdis(&mut self, sr: &str) -> Result<(Repository, Vec<Vdi>)> {
        let repository = self.get(sr)?;
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().connect(&mut place)?;
        let vdis = repository.kind.driver().scan(&mut place)?;
        self.detach_all_former_users(sr)?;
        Ok((repository, vdis))
    }

    /// The SR and one of its VDIs.
    pub(crate) fn find(&mut self, name: &VdiName) -> Result<(Repository, Vdi)> {
        let (repository, vdis) = self.vdis(name.sr())?;
        match vdis.into_iter().find(|vdi| vdi.name == name.vdi()) {
            Some(vdi) => Ok((repository, vdi)),
            None => Err(StorageError::Missing(format!(
                "{name}: no such VDI; `xy vdi-list` shows them all"
            ))),
        }
    }

    /// The SR, after checking that it has no VDI of this name.
    fn without(&mut self, name: &VdiName) -> Result<Repository> {
        let (repository, vdis) = self.vdis(name.sr())?;
        if vdis.iter().any(|vdi| vdi.name == name.vdi()) {
            return Err(StorageError::refused(format!("{name}: there is a VDI of this name")));
        }
        Ok(repository)
    }

    /// Creates a VDI of zeros.
    ///
    /// # Errors
    /// The name is in use, or there is no space.
    pub fn create_vdi(&mut self, name: &VdiName, bytes: u64) -> Result<()> {
        check_size(name, bytes)?;
        let _changing = self.lock("sr", name.sr())?;
        let repository = self.without(name)?;
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().create_vdi(&mut place, name.vdi(), bytes)
    }

    /// Destroys a VDI and its data.
    ///
    /// # Errors
    /// [`StorageError::InUse`] while it is in use.
    pub fn destroy_vdi(&mut self, name: &VdiName) -> Result<()> {
        let _changing = self.lock("sr", name.sr())?;
        let (repository, _) = self.find(name)?;
        let _vdi = self.lock("vdi", name)?;
        if let Some(owner) = self.attached(name)?.uses.0.keys().next() {
            return Err(StorageError::InUse(format!("{name}: is in use by {owner}")));
        }
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().destroy_vdi(&mut place, name.vdi())
    }

    /// Grows a VDI, also while it is in use.
    ///
    /// # Errors
    /// It would become smaller, or there is no space.
    pub fn resize_vdi(&mut self, name: &VdiName, bytes: u64) -> Result<()> {
        check_size(name, bytes)?;
        let _changing = self.lock("sr", name.sr())?;
        let (repository, vdi) = self.find(name)?;
        let _vdi = self.lock("vdi", name)?;
        if bytes < vdi.bytes {
            return Err(StorageError::refused(format!(
                "{name}: has {} bytes; {bytes} would cut off what a guest wrote",
                vdi.bytes
            )));
        }
        if let Some(origin) = &vdi.snapshot_of {
            return Err(StorageError::refused(format!(
                "{name}: is a snapshot of {origin} and stays as it is; clone it"
            )));
        }
        let device = self.attached(name)?.device;
        let mut place = Place { system: self.system, sr: &repository };
        repository.kind.driver().grow_vdi(&mut place, &vdi, bytes, device.as_ref())
    }

    /// Creates a read-only VDI `to` in the same SR with the current contents of `from`.
    ///
    /// # Errors
    /// The SR's kind does not support it, or not while `from` is in use.
    pub fn snapshot_vdi(&mut self, from: &VdiName, to: &str) -> Result<()> {
        self.copy(from, to, |driver, place, from, to, source| {
            driver.snapshot_vdi(place, from, to, source)
        })
    }

    /// Creates a writable VDI `to` in the same SR with the current contents of `from`.
    ///
    /// # Errors
    /// The SR's kind does not support it, or not while `from` is in use.
    pub fn clone_vdi(&mut self, from: &VdiName, to: &str) -> Result<()> {
        self.copy(from, to, |driver, place, from, to, source| {
            driver.clone_vdi(place, from, to, source)
        })
    }

    fn copy(
        &mut self,
        from: &VdiName,
        to: &str,
        copy: impl FnOnce(&dyn Driver, &mut Place<'_>, &Vdi, &str, Source) -> Result<()>,
    ) -> Result<()> {
        let to = VdiName::new(from.sr(), to)?;
        let _changing = self.lock("sr", from.sr())?;
        self.without(&to)?;
        let (repository, vdi) = self.find(from)?;
        let _vdi = self.lock("vdi", from)?;
        let source = match self.attached(from)?.uses.writer() {
            Some(_) => Source::Written,
            None => Source::Quiet,
        };
        let mut place = Place { system: self.system, sr: &repository };
        copy(repository.kind.driver(), &mut place, &vdi, to.vdi(), source)
    }

    /// Whether a VDI may be activated here while another host has it activated.
    pub(crate) fn takes_two_hosts(&mut self, name: &VdiName) -> Result<bool> {
        Ok(self.get(name.sr())?.kind.takes_two_hosts())
    }

    pub(crate) fn attached(&mut self, name: &VdiName) -> Result<Attached> {
        let path = self.attached_path(name.sr(), name.vdi());
        match text_if_there(self.system, &path).of(&path)? {
            Some(text) => Attached::from_text(&path, &text),
            None => Ok(Attached::default()),
        }
    }

    fn save(&mut self, name: &VdiName, attached: &Attached) -> Result<()> {
        let path = self.attached_path(name.sr(), name.vdi());
        if attached.uses.0.is_empty() {
            self.system.remove(&path).of(path)
        } else {
            self.system.write(&path, attached.to_text().as_bytes()).of(path)
        }
    }

    /// Finds errors of [`Repositories::attach`]: no such VDI, or conflicting users.
    ///
    /// # Errors
    /// The error.
    pub fn check(&mut self, name: &VdiName, owner: &str, access: Access) -> Result<()> {
        let changing = self.lock("sr", name.sr())?;
        self.find(name)?;
        drop(changing);
        self.check_uses(name, owner, access)
    }

    /// The same without asking the SR: finds conflicting users only.
    ///
    /// # Errors
    /// The error.
    pub(crate) fn check_uses(&mut self, name: &VdiName, owner: &str, access: Access) -> Result<()> {
        let before = self.attached(name)?;
        before.uses.attach(owner, access).map(drop).map_err(|unfit| refusal(name, owner, &unfit))
    }

    /// Attaches a VDI for `owner`: the slow part. Idempotent.
    ///
    /// # Errors
    /// Conflicting users, or an error of the SR; then it is not attached.
    pub fn attach(&mut self, name: &VdiName, owner: &str, access: Access) -> Result<()> {
        self.detach_former_users(name)?;
        let _vdi = self.lock("vdi", name)?;
        let used = self.lock("use", name.sr())?;
        let repository = self.get(name.sr())?;
        let before = self.attached(name)?;
        let uses =
            before.uses.attach(owner, access).map_err(|unfit| refusal(name, owner, &unfit))?;
        self.save(name, &before.with(uses, before.device.clone()))?;
        drop(used);
        let driver = repository.kind.driver();
        let mut place = Place { system: self.system, sr: &repository };
        let attached =
            driver.connect(&mut place).and_then(|()| driver.attach(&mut place, name.vdi(), access));
        let Err(error) = attached else { return Ok(()) };
        let others = before.uses.stage() != Stage::Detached;
        // If even this fails, the file keeps a use that no longer has an owner.
        if others || driver.detach(&mut place, name.vdi()).is_ok() {
            self.save(name, &before)?;
        } else {
            self.leave(name, owner)?;
        }
        Err(error)
    }

    /// Activates an attached VDI, which creates the block device. Idempotent.
    ///
    /// # Errors
    /// It is not attached, or an error of the SR.
    pub fn activate(&mut self, name: &VdiName, owner: &str) -> Result<BlockDevice> {
        let _vdi = self.lock("vdi", name)?;
        let repository = self.get(name.sr())?;
        let before = self.attached(name)?;
        let uses = before.uses.activate(owner).map_err(|unfit| refusal(name, owner, &unfit))?;
        if let Some(device) = &before.device {
            if let Some(trouble) = self.trouble(&repository, name)? {
                return Err(StorageError::Refused(trouble));
            }
            self.save(name, &before.with(uses, Some(device.clone())))?;
            return Ok(device.clone());
        }
        let access = before.uses.0[owner].access;
        self.save(name, &before.with(uses.clone(), None))?;
        let driver = repository.kind.driver();
        let mut place = Place { system: self.system, sr: &repository };
        if before.uses.stage() == Stage::Activated {
            // A daemon was killed here: what it left may be incomplete.
            driver.deactivate(&mut place, name.vdi(), None)?;
        }
        match driver.activate(&mut place, name.vdi(), access) {
            Ok(device) => {
                self.save(name, &before.with(uses, Some(device.clone())))?;
                Ok(device)
            }
            Err(error) => {
                if driver.deactivate(&mut place, name.vdi(), None).is_ok() {
                    let uses = before.uses.deactivate(owner);
                    self.save(name, &before.with(uses, None))?;
                }
                Err(error)
            }
        }
    }

    /// Removes the block device, unless another user has it. Idempotent.
    ///
    /// # Errors
    /// It is still open, or an error of the SR; then nothing has changed.
    pub fn deactivate(&mut self, name: &VdiName, owner: &str) -> Result<()> {
        let _vdi = self.lock("vdi", name)?;
        let before = self.attached(name)?;
        let uses = before.uses.deactivate(owner);
        if uses == before.uses {
            return Ok(());
        }
        let device = if uses.stage() == Stage::Activated {
            before.device.clone()
        } else {
            let repository = self.get(name.sr())?;
            let mut place = Place { system: self.system, sr: &repository };
            let driver = repository.kind.driver();
            let done = driver.deactivate(&mut place, name.vdi(), before.device.as_ref());
            done.or_else(|error| self.keep_leaving(name, owner, &before).and(Err(error)))?;
            None
        };
        self.save(name, &before.with(uses, device))
    }

    /// Undoes `attach`. Idempotent.
    ///
    /// # Errors
    /// It is still activated, or an error of the SR.
    pub fn detach(&mut self, name: &VdiName, owner: &str) -> Result<()> {
        let _vdi = self.lock("vdi", name)?;
        let before = self.attached(name)?;
        let uses = before.uses.detach(owner).map_err(|unfit| refusal(name, owner, &unfit))?;
        if uses == before.uses {
            return Ok(());
        }
        if uses == Uses::default() {
            let repository = self.get(name.sr())?;
            let mut place = Place { system: self.system, sr: &repository };
            let done = repository.kind.driver().detach(&mut place, name.vdi());
            done.or_else(|error| self.keep_leaving(name, owner, &before).and(Err(error)))?;
        }
        self.save(name, &before.with(uses, before.device.clone()))
    }

    /// Records that a user is done with a VDI that its SR cannot detach. Its device may still
    /// disappear later and its number be reused, so from here on the device is searched for.
    fn keep_leaving(&mut self, name: &VdiName, owner: &str, before: &Attached) -> Result<()> {
        let mut left = before.with(before.uses.clone(), None);
        left.leaving.insert(owner.to_owned());
        self.save(name, &left)
    }

    /// The same for a user that never had a device, whose attach or activation could not be undone.
    fn leave(&mut self, name: &VdiName, owner: &str) -> Result<()> {
        let mut left = self.attached(name)?;
        if left.uses.0.contains_key(owner) {
            left.leaving.insert(owner.to_owned());
        }
        self.save(name, &left)
    }

    /// Detaches a VDI for its former users.
    fn detach_former_users(&mut self, name: &VdiName) -> Result<()> {
        for owner in self.attached(name)?.leaving {
            self.detach_for(name, &owner)?;
        }
        Ok(())
    }

    /// The same for all VDIs of an SR that responds again. Those that it still cannot detach
    /// remain.
    fn detach_all_former_users(&mut self, sr: &str) -> Result<()> {
        let folder = format!("{}/{sr}", self.places.attached);
        for file in self.system.list(&folder).of(&folder)? {
            let vdi = file.strip_suffix(".json");
            if let Some(name) = vdi.and_then(|vdi| VdiName::new(sr, vdi).ok()) {
                let _still = self.detach_former_users(&name);
            }
        }
        Ok(())
    }

    /// Removes incomplete files of a killed daemon. Call it before writing anything.
    ///
    /// # Errors
    /// A folder cannot be read or written.
    pub fn clear(&mut self) -> Result<()> {
        let mut folders = vec![self.places.repositories.clone()];
        folders.extend(Kind::NOTES.map(str::to_owned));
        let tops = Kind::FOLDERS_OF_NOTES.map(str::to_owned);
        for top in [self.places.attached.clone()].into_iter().chain(tops) {
            let below = self.system.list(&top).of(&top)?;
            folders.extend(below.into_iter().map(|folder| format!("{top}/{folder}")));
        }
        for folder in folders {
            for file in self.system.list(&folder).of(&folder)? {
                if file.starts_with(PARTIAL_PREFIX) {
                    let path = format!("{folder}/{file}");
                    self.system.remove(&path).of(path)?;
                }
            }
        }
        Ok(())
    }

    /// Attaches and activates.
    ///
    /// # Errors
    /// Then nothing is left attached.
    pub fn attach_for(
        &mut self,
        name: &VdiName,
        owner: &str,
        access: Access,
    ) -> Result<BlockDevice> {
        self.attach(name, owner, access)?;
        self.activate(name, owner).inspect_err(|_| {
            // Report the first error; the file records what could not be undone.
            if self.detach(name, owner).is_err() {
                let _unwritten = self.leave(name, owner);
            }
        })
    }

    /// Deactivates and detaches.
    ///
    /// # Errors
    /// As for the two calls.
    pub fn detach_for(&mut self, name: &VdiName, owner: &str) -> Result<()> {
        self.deactivate(name, owner)?;
        self.detach(name, owner)
    }

    /// Faults of the devices of an SR's VDIs, as far as this host knows: a line for each. Does not
    /// ask a server.
    ///
    /// # Errors
    /// There is no such SR, or a file cannot be read.
    pub fn troubles(&mut self, sr: &str) -> Result<Vec<String>> {
        let repository = self.get(sr)?;
        let mut troubles = Vec::new();
        let used: BTreeSet<VdiName> = self.in_use()?.into_iter().map(|it| it.name).collect();
        for name in used.into_iter().filter(|name| name.sr() == sr) {
            // A device that is being detached is not faulty: check again when that has finished.
            if self.trouble(&repository, &name)?.is_some() {
                let _vdi = self.lock("vdi", &name)?;
                troubles.extend(self.trouble(&repository, &name)?);
            }
        }
        Ok(troubles)
    }

    fn trouble(&mut self, sr: &Repository, name: &VdiName) -> Result<Option<String>> {
        let Some(device) = self.attached(name)?.device else { return Ok(None) };
        let mut place = Place { system: self.system, sr };
        sr.kind.driver().trouble(&mut place, name.vdi(), &device)
    }

    /// Identity of an activated VDI: its file, or else its device.
    ///
    /// # Errors
    /// Its SR or its file does not exist.
    pub fn identity(&mut self, name: &VdiName, device: &BlockDevice) -> Result<DiskId> {
        let repository = self.get(name.sr())?;
        let mut place = Place { system: self.system, sr: &repository };
        match repository.kind.driver().file(&mut place, name.vdi())? {
            Some(file) => self.system.identify(&file).of(name),
            None => Ok(DiskId::Device(device.number)),
        }
    }

    /// The same as far as it is known without attaching the VDI: a file that can be reached now, or the device of an
    /// active one.
    ///
    /// # Errors
    /// The SR or the VDI's file of uses cannot be read.
    pub fn known_identity(&mut self, name: &VdiName) -> Result<Option<DiskId>> {
        let repository = self.get(name.sr())?;
        let mut place = Place { system: self.system, sr: &repository };
        if let Some(file) = repository.kind.driver().file(&mut place, name.vdi())? {
            return Ok(self.system.identify(&file).ok());
        }
        Ok(self.attached(name)?.device.map(|device| DiskId::Device(device.number)))
    }

    /// All uses of all VDIs, from the files. Does not ask an SR.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn in_use(&mut self) -> Result<Vec<InUse>> {
        let top = self.places.attached.clone();
        let mut all = Vec::new();
        for sr in self.system.list(&top).of(&top)? {
            let folder = format!("{top}/{sr}");
            for file in self.system.list(&folder).of(&folder)? {
                let vdi = file.strip_suffix(".json");
                let Some(name) = vdi.and_then(|vdi| VdiName::new(&sr, vdi).ok()) else { continue };
                let attached = self.attached(&name)?;
                all.extend(attached.uses.0.into_iter().map(|(owner, its)| InUse {
                    name: name.clone(),
                    owner,
                    access: its.access,
                    stage: its.stage,
                    device: attached.device.clone(),
                }));
            }
        }
        Ok(all)
    }

    /// The same, by VDI.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn users(&mut self) -> Result<BTreeMap<VdiName, Vec<InUse>>> {
        let mut users: BTreeMap<VdiName, Vec<InUse>> = BTreeMap::new();
        for it in self.in_use()? {
            users.entry(it.name.clone()).or_default().push(it);
        }
        Ok(users)
    }
}

fn check_size(name: &VdiName, bytes: u64) -> Result<()> {
    if bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES) && i64::try_from(bytes).is_ok() {
        return Ok(());
    }
    Err(StorageError::refused(format!(
        "{name}: {bytes} bytes: expected a multiple of a sector of {SECTOR_BYTES} bytes, and not none"
    )))
}

fn refusal(name: &VdiName, owner: &str, unfit: &Unfit) -> StorageError {
    match unfit {
        Unfit::Other(other) => StorageError::InUse(format!(
            "{name}: is in use by {other}; many may read a VDI, or one may write"
        )),
        Unfit::ReadOnly => StorageError::InUse(format!(
            "{name}: {owner} has it for reading; detach it before it is attached for writing"
        )),
        Unfit::NotAttached => StorageError::refused(format!("{name}: is not attached for {owner}")),
        Unfit::StillActivated => {
            StorageError::InUse(format!("{name}: is still active for {owner}; deactivate it first"))
        }
    }
}
