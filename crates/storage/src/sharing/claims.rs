//! Claims: which disks VMs of ours use. Two small files for each, which outlive the daemon but not
//! a reboot of the host.
//!
//! `DISKS/ID/OWNER` leads from a disk to its users, `OWNERS/OWNER` from a user to the disk. The
//! second is written first and removed last, so a use is never lost: the files may name too many
//! users, never too few.

use serde::{Deserialize, Serialize};

use super::{DETACH_THERE, DiskId, DiskUse, Family, Mode, Wanted, first_in_the_way, refusal};
use crate::system::text_if_there;
use crate::{AttachError, HostError, System};

pub(crate) const DISKS: &str = "/run/xylem/disks";
pub(crate) const OWNERS: &str = "/run/xylem/disk-owners";

#[derive(Deserialize, Serialize)]
struct Record {
    disk: String,
    mode: String,
    owner: String,
    who: String,
    #[serde(default)]
    note: String,
}

/// A disk used by a VM of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    pub disk: DiskId,
    pub mode: Mode,
    pub owner: String,
    /// The user in words.
    pub who: String,
    /// The claimant's note.
    pub note: String,
}

impl Claim {
    fn to_text(&self) -> String {
        let record = Record {
            disk: self.disk.to_string(),
            mode: self.mode.as_str().to_owned(),
            owner: self.owner.clone(),
            who: self.who.clone(),
            note: self.note.clone(),
        };
        serde_json::to_string(&record).expect("strings always serialise") + "\n"
    }

    fn from_text(text: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(text).ok()?;
        Some(Self {
            disk: DiskId::parse(&record.disk)?,
            mode: Mode::parse(&record.mode)?,
            owner: record.owner,
            who: record.who,
            note: record.note,
        })
    }
}

/// The files.
pub struct Claims<'a>(&'a mut dyn System);

impl std::fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claims")
    }
}

/// An owner's tag as a file's name.
fn file_name(owner: &str) -> String {
    owner.replace('/', "+")
}

fn owner_path(owner: &str) -> String {
    format!("{OWNERS}/{}", file_name(owner))
}

fn disk_path(disk: DiskId, owner: &str) -> String {
    format!("{DISKS}/{disk}/{}", file_name(owner))
}

fn unreadable(path: &str) -> HostError {
    HostError::Refused(format!("{path} cannot be read; remove it if its VM is gone"))
}

impl<'a> Claims<'a> {
    pub fn new(system: &'a mut dyn System) -> Self {
        Self(system)
    }

    fn read(&mut self, path: &str) -> Result<Option<Claim>, HostError> {
        match text_if_there(self.0, path)? {
            Some(text) => Claim::from_text(&text).map(Some).ok_or_else(|| unreadable(path)),
            None => Ok(None),
        }
    }

    /// This owner's claim.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of(&mut self, owner: &str) -> Result<Option<Claim>, HostError> {
        self.read(&owner_path(owner))
    }

    /// All claims of all owners.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn all(&mut self) -> Result<Vec<Claim>, HostError> {
        let mut all = Vec::new();
        for name in self.0.list(OWNERS)? {
            // An incomplete file of a killed daemon does not count.
            if name.starts_with(crate::PARTIAL_PREFIX) {
                continue;
            }
            all.extend(self.read(&format!("{OWNERS}/{name}"))?);
        }
        Ok(all)
    }

    fn users(&mut self, disk: DiskId) -> Result<Vec<Claim>, HostError> {
        let folder = format!("{DISKS}/{disk}");
        let mut users = Vec::new();
        for name in self.0.list(&folder)? {
            if name.starts_with(crate::PARTIAL_PREFIX) {
                continue;
            }
            users.extend(self.read(&format!("{folder}/{name}"))?);
        }
        Ok(users)
    }

    /// Checks that no other owner has a disk that shares bytes with this one.
    pub(crate) fn check(
        &mut self,
        wanted: &Wanted<'_>,
        family: &Family,
    ) -> Result<(), AttachError> {
        let refused = AttachError::host(wanted.target);
        for member in family.members() {
            let users = self.users(member).map_err(&refused)?;
            let others = users.into_iter().filter(|it| it.owner != wanted.owner);
            let uses: Vec<DiskUse> = others
                .map(|it| DiskUse {
                    disk: it.disk,
                    mode: it.mode,
                    who: it.who,
                    advice: DETACH_THERE.to_owned(),
                })
                .collect();
            if let Some(by) = first_in_the_way(wanted.mode, family, &uses) {
                return Err(refusal(wanted.target, by));
            }
        }
        Ok(())
    }

    /// Claims `disk` unless another owner has a disk that shares bytes with it; check and write are
    /// atomic.
    pub(crate) fn claim(
        &mut self,
        wanted: &Wanted<'_>,
        disk: DiskId,
        family: &Family,
        note: &str,
    ) -> Result<(), AttachError> {
        let refused = AttachError::host(wanted.target);
        let _one_at_a_time = self.0.lock("disks").map_err(&refused)?;
        self.check(wanted, family)?;
        self.put(&Claim {
            disk,
            mode: wanted.mode,
            owner: wanted.owner.to_owned(),
            who: wanted.who.to_owned(),
            note: note.to_owned(),
        })
        .map_err(&refused)
    }

    /// Records an existing use, whoever else has the disk.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn note(&mut self, claim: &Claim) -> Result<(), HostError> {
        let _one_at_a_time = self.0.lock("disks")?;
        self.put(claim)
    }

    fn put(&mut self, claim: &Claim) -> Result<(), HostError> {
        match self.of(&claim.owner)? {
            Some(before) if before == *claim && self.is_whole(claim)? => return Ok(()),
            Some(before) if before.disk != claim.disk => self.forget(&before)?,
            _ => {}
        }
        let text = claim.to_text();
        self.0.write(&owner_path(&claim.owner), text.as_bytes())?;
        self.0.write(&disk_path(claim.disk, &claim.owner), text.as_bytes())
    }

    /// A daemon may have been killed between the two files.
    fn is_whole(&mut self, claim: &Claim) -> Result<bool, HostError> {
        Ok(self.read(&disk_path(claim.disk, &claim.owner))?.as_ref() == Some(claim))
    }

    /// Releases this owner's claim. Idempotent.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn release(&mut self, owner: &str) -> Result<(), HostError> {
        let _one_at_a_time = self.0.lock("disks")?;
        match self.of(owner)? {
            Some(claim) => self.forget(&claim),
            None => Ok(()),
        }
    }

    fn forget(&mut self, claim: &Claim) -> Result<(), HostError> {
        self.0.remove(&disk_path(claim.disk, &claim.owner))?;
        let folder = format!("{DISKS}/{}", claim.disk);
        if self.0.list(&folder)?.is_empty() {
            self.0.remove_folder(&folder)?;
        }
        self.0.remove(&owner_path(&claim.owner))
    }
}
