//! Saved VMs: what is asked of a save, what a VM's record says of it, what a file says of itself. Core files of VMs, too.

use migrate::libxc::Headers;
use xen::Uuid;

use crate::checkpoint::SavedDisk;
use crate::config::VmConfig;

/// VMs that were saved when their host was shut down, each under its UUID.
pub const HOST_FOLDER: &str = "/var/lib/xylem/saved";
/// Where the core files of guests go that have crashed, as with xl, each under the VM's name.
pub const DUMP_FOLDER: &str = "/var/lib/xen/dump";
/// Ends the name of one that could not be restored; it is not tried again.
pub(crate) const SET_ASIDE: &str = ".not-restored";

/// What becomes of a VM whose state is in a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AfterSave {
    Destroyed,
    /// It goes on where it was.
    Running,
    /// Likewise, when it is unpaused.
    Paused,
}

impl AfterSave {
    const ALL: [Self; 3] = [Self::Destroyed, Self::Running, Self::Paused];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Destroyed => "destroyed",
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }

    fn decode(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == text)
    }
}

/// Whose files are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileFormat {
    /// Ours.
    Xylem,
    /// Those of `xl save`.
    Xl,
}

impl FileFormat {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Xylem => "xylem",
            Self::Xl => "xl",
        }
    }
}

/// A save that was asked for.
#[derive(Clone, Debug)]
pub struct SaveTo {
    /// Absolute.
    pub path: String,
    pub after: AfterSave,
    pub format: FileFormat,
    /// The configuration to be restored, if it is not the VM's own.
    pub config: Option<Box<VmConfig>>,
    /// Of this save and no other: it is in the file and in the VM's record.
    pub id: Uuid,
    /// The name of the checkpoint that it is.
    pub checkpoint: Option<String>,
    /// Disks of which snapshots are taken while the guest is suspended.
    pub disks: Vec<SavedDisk>,
}

/// A core file that was asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DumpTo {
    /// Absolute.
    pub path: String,
    pub guest: Guest,
    /// Of this dump and no other.
    pub id: Uuid,
}

/// What a guest does while it is dumped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guest {
    Pauses,
    /// The file is of no single moment.
    RunsOn,
}

/// How far a save is, for a later daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SaveStage {
    /// The file may have its name already.
    Writing,
    /// The file is whole, and the VM is as it was to be.
    Whole,
    /// It is no save but a dump. Afterwards the guest runs on, or is as it was before.
    Dumping,
}

/// A save in progress, as in the VM's record. Whatever happens to the daemon, its successor learns
/// from it whether the VM goes on or is in the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Saving {
    pub stage: SaveStage,
    pub after: AfterSave,
    pub format: FileFormat,
    pub id: Uuid,
    pub path: String,
}

impl Saving {
    #[must_use]
    pub fn encode(&self) -> String {
        let stage = match self.stage {
            SaveStage::Writing => "writing",
            SaveStage::Whole => "whole",
            SaveStage::Dumping => "dumping",
        };
        let Self { after, format, id, path, .. } = self;
        format!("{stage} {} {} {id} {path}", after.as_str(), format.as_str())
    }

    /// `None` if it is invalid.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let stage = match words.next()? {
            "writing" => SaveStage::Writing,
            "whole" => SaveStage::Whole,
            "dumping" => SaveStage::Dumping,
            _ => return None,
        };
        let after = AfterSave::decode(words.next()?)?;
        let format = match words.next()? {
            "xylem" => FileFormat::Xylem,
            "xl" => FileFormat::Xl,
            _ => return None,
        };
        let id = words.next()?.parse().ok()?;
        let path = words.next()?.to_owned();
        Some(Self { stage, after, format, id, path })
    }
}

/// A save to be carried out, or to be settled after its daemon was killed.
#[derive(Clone, Debug)]
pub(crate) enum Save {
    New(Box<SaveTo>),
    Left(Saving),
}

impl Save {
    /// It was none, but the dump of a daemon that was killed.
    pub(crate) fn is_dump(&self) -> bool {
        matches!(self, Self::Left(saving) if saving.stage == SaveStage::Dumping)
    }
}

/// What came of a save.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SaveEnd {
    /// The file is whole, and the VM to be dealt with so.
    Saved(AfterSave),
    /// There is no file, and the guest runs as before.
    RunsOn,
    /// A dump has changed nothing.
    IsAsBefore,
}

/// What a file of a saved VM says of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SavedFile {
    /// Absolute.
    pub path: String,
    pub bytes: u64,
    pub format: FileFormat,
    /// Of the save that wrote it; files of others have none.
    pub id: Option<Uuid>,
    pub name: String,
    pub uuid: Uuid,
    /// The configuration in `xl.cfg` syntax.
    pub config_text: String,
    /// What the VM lacks here, a line each.
    pub warnings: Vec<String>,
    pub headers: Headers,
    pub vcpus: u32,
    /// In seconds since 1970; files of others do not say.
    pub created: u64,
    /// The snapshots that belong to it, if it is a checkpoint.
    pub disks: Vec<SavedDisk>,
}

/// A file that was written when the host was shut down.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostSave {
    pub uuid: Uuid,
    pub path: String,
    /// Or why it cannot be read.
    pub file: Result<Box<SavedFile>, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_says_of_a_save_reads_back() {
        for after in AfterSave::ALL {
            for stage in [SaveStage::Writing, SaveStage::Whole, SaveStage::Dumping] {
                for format in [FileFormat::Xylem, FileFormat::Xl] {
                    let path = "/var/a file  with spaces".to_owned();
                    let saving = Saving { stage, after, format, id: Uuid([7; 16]), path };
                    assert_eq!(Saving::decode(&saving.encode()), Some(saving));
                }
            }
        }
        for wrong in ["", "writing", "whole destroyed xl 1 /a", "written destroyed xl"] {
            assert_eq!(Saving::decode(wrong), None);
        }
    }
}
