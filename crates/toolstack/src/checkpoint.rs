//! Checkpoints: a guest's memory and its disks at one moment, kept for a revert and for copies.
//!
//! A checkpoint is the file of a saved VM that names a snapshot for each disk that the guest may
//! write. Its name below the VM's folder is its name; a mark beside it says what a killed daemon was
//! about to make or remove.

use std::fmt::Write as _;

use storage::{MakeDisk, VdiName};
use xen::{DomainKind, Uuid};

use crate::config::{Access, VmConfig};
use crate::saved::SavedFile;

/// The folders of all VMs' checkpoints.
pub const FOLDER: &str = "/var/lib/xylem/checkpoints";

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 40;
/// Ends the name of a mark: no checkpoint's name has it, nor that of an unfinished file.
const MARK_SUFFIX: &str = "@mark";

/// Where a VM's checkpoints are.
#[must_use]
pub fn folder(uuid: Uuid) -> String {
    format!("{FOLDER}/{uuid}")
}

/// The file of a checkpoint.
#[must_use]
pub fn path(uuid: Uuid, name: &str) -> String {
    format!("{}/{name}", folder(uuid))
}

/// The mark of a checkpoint that is being made or removed.
pub(crate) fn mark_path(uuid: Uuid, name: &str) -> String {
    format!("{}/{name}{MARK_SUFFIX}", folder(uuid))
}

/// The checkpoint of a mark, by the mark's name.
pub(crate) fn marked(file: &str) -> Option<&str> {
    file.strip_suffix(MARK_SUFFIX).filter(|name| check_name(name).is_ok())
}

/// Whether a checkpoint may be called so.
///
/// # Errors
/// Says what names are like.
pub fn check_name(name: &str) -> Result<(), String> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(letter) {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot name a checkpoint: expected up to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, \
         a letter or digit first"
    ))
}

/// A disk of a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SavedDisk {
    /// `virtual-device`.
    pub number: u32,
    /// What the guest writes.
    pub vdi: VdiName,
    /// Its contents at the moment of the checkpoint.
    pub snapshot: VdiName,
}

/// The disks of which a checkpoint needs snapshots, each named after the checkpoint.
///
/// # Errors
/// Names the disk that can have none, and what to do.
pub(crate) fn disks_of(config: &VmConfig, id: Uuid) -> Result<Vec<SavedDisk>, String> {
    let written =
        |disk: &&crate::config::DiskConfig| !disk.is_empty() && disk.access() == Access::ReadWrite;
    let mut disks = Vec::new();
    for disk in config.disks.iter().filter(written) {
        let vdi = VdiName::parse(&disk.target).filter(|_| disk.is_attached_first());
        let Some(vdi) = vdi else {
            return Err(format!(
                "{}: disk {}: {} is written by its path, so no snapshot of it can be taken; keep it \
                 as a VDI in an SR with snapshots (file on xfs or btrfs, qcow2, lvmthin), or attach \
                 it read-only",
                config.name, disk.vdev.name, disk.target
            ));
        };
        let id = id.to_string();
        let short: String = id.chars().filter(|it| *it != '-').take(16).collect();
        let snapshot = VdiName::new(vdi.sr(), &format!("ck-{short}-{}", disk.vdev.name));
        let snapshot = snapshot.map_err(|error| format!("{}: {error}", config.name))?;
        disks.push(SavedDisk { number: disk.vdev.number, vdi, snapshot });
    }
    Ok(disks)
}

/// The disks of a checkpoint as its file has them.
pub(crate) fn encode_disks(disks: &[SavedDisk]) -> String {
    let mut text = String::new();
    for SavedDisk { number, vdi, snapshot } in disks {
        writeln!(text, "{number} {vdi} {snapshot}").expect("strings have room");
    }
    text
}

/// `None` if it is anything else.
pub(crate) fn decode_disks(bytes: &[u8]) -> Option<Vec<SavedDisk>> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let number = words.next()?.parse().ok()?;
        let (vdi, snapshot) = (VdiName::parse(words.next()?)?, VdiName::parse(words.next()?)?);
        let fits = words.next().is_none() && vdi.sr() == snapshot.sr();
        fits.then_some(SavedDisk { number, vdi, snapshot })
    };
    std::str::from_utf8(bytes).ok()?.lines().map(line).collect()
}

/// What a mark says was going on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MarkStage {
    /// It is made if its file is there, and is to be removed otherwise.
    Making,
    /// It is to be removed.
    Ending,
}

/// Written before the first snapshot is taken or destroyed, removed when the checkpoint is whole or
/// nothing is left of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mark {
    pub(crate) stage: MarkStage,
    /// Of the save.
    pub(crate) id: Uuid,
    pub(crate) snapshots: Vec<VdiName>,
}

impl Mark {
    pub(crate) fn new(stage: MarkStage, id: Uuid, disks: &[SavedDisk]) -> Self {
        let snapshots = disks.iter().map(|disk| disk.snapshot.clone()).collect();
        Self { stage, id, snapshots }
    }

    pub(crate) fn encode(&self) -> String {
        let stage = match self.stage {
            MarkStage::Making => "making",
            MarkStage::Ending => "ending",
        };
        let mut text = format!("{stage} {}\n", self.id);
        for snapshot in &self.snapshots {
            writeln!(text, "{snapshot}").expect("strings have room");
        }
        text
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (stage, id) = lines.next()?.split_once(' ')?;
        let stage = match stage {
            "making" => MarkStage::Making,
            "ending" => MarkStage::Ending,
            _ => return None,
        };
        let snapshots = lines.map(VdiName::parse).collect::<Option<_>>()?;
        Some(Self { stage, id: id.parse().ok()?, snapshots })
    }
}

/// A checkpoint in a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Checkpoint {
    pub vm: String,
    pub uuid: Uuid,
    pub name: String,
    /// In seconds since 1970.
    pub created: u64,
    /// Of its file.
    pub bytes: u64,
    pub disks: Vec<SavedDisk>,
    /// Why it cannot be used; then nothing else is known but its name and the VM's UUID.
    pub fault: Option<String>,
}

/// A disk to be made from a snapshot before a VM has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskFrom {
    pub number: u32,
    pub snapshot: VdiName,
    pub to: VdiName,
    pub how: MakeDisk,
}

/// The disks that a revert makes.
pub(crate) fn disks_again(file: &SavedFile) -> Vec<DiskFrom> {
    let again = |disk: &SavedDisk| DiskFrom {
        number: disk.number,
        snapshot: disk.snapshot.clone(),
        to: disk.vdi.clone(),
        how: MakeDisk::InPlace,
    };
    file.disks.iter().map(again).collect()
}

/// The configuration of a copy of a saved VM, and the disks that are made for it: name, UUID, MAC
/// addresses and written disks are its own.
///
/// # Errors
/// It would share something that only one can have.
pub fn copy_of(
    file: &SavedFile,
    config: &VmConfig,
    name: &str,
    uuid: Uuid,
) -> Result<(VmConfig, Vec<DiskFrom>), String> {
    if config.kind == DomainKind::Hvm {
        return Err(format!("{}: only PV and PVH domains can be cloned", file.path));
    }
    let mut copy = VmConfig { name: name.to_owned(), uuid: Some(uuid), ..config.clone() };
    for vif in &mut copy.vifs {
        // Derived from the UUID.
        vif.mac = None;
        vif.name = None;
    }
    let mut made = Vec::new();
    for disk in &mut copy.disks {
        if disk.is_empty() || disk.access() == Access::ReadOnly {
            continue;
        }
        let saved = file.disks.iter().find(|saved| saved.number == disk.vdev.number);
        let Some(saved) = saved else {
            return Err(format!(
                "{}: disk {}: {} has no snapshot of that moment, and two VMs cannot write it; clone a \
                 checkpoint of the VM",
                file.path, disk.vdev.name, disk.target
            ));
        };
        let to = VdiName::new(saved.vdi.sr(), &format!("{name}-{}", disk.vdev.name));
        let to = to.map_err(|error| format!("{name}: {error}"))?;
        disk.target = to.to_string();
        let snapshot = saved.snapshot.clone();
        made.push(DiskFrom { number: saved.number, snapshot, to, how: MakeDisk::Anew });
    }
    Ok((copy, made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg;

    fn config(disk: &str) -> VmConfig {
        let text =
            format!("name = 'a'\nkernel = '/k'\ntype = 'pvh'\nmemory = 8\ndisk = [{disk}]\n");
        xlcfg::parse(xlcfg::Source { file: "test", text: &text, overrides: &[] }).unwrap()
    }

    #[test]
    fn disks_that_are_written_need_snapshots_and_others_do_not() {
        let config = config("'fast:web,,xvda,w', '/iso,,xvdb,r', 'fast:data,,xvdc,r'");
        let disks = disks_of(&config, Uuid([0xab; 16])).unwrap();
        let text = "51712 fast:web fast:ck-abababababababab-xvda\n";
        assert_eq!(encode_disks(&disks), text);
        assert_eq!(decode_disks(text.as_bytes()), Some(disks));
        for wrong in ["x", "1 a:b", "1 a:b c:d", "1 a:b a:c d", "\u{ff}"] {
            assert_eq!(decode_disks(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_disk_by_its_path_is_refused_by_its_name() {
        let refusal = disks_of(&config("'/disk.raw,,xvdb,w'"), Uuid([1; 16])).unwrap_err();
        assert!(refusal.starts_with("a: disk xvdb: /disk.raw is written by its path"), "{refusal}");
    }

    #[test]
    fn a_mark_reads_back() {
        let snapshots = vec![VdiName::parse("a:b").unwrap(), VdiName::parse("a:c").unwrap()];
        for stage in [MarkStage::Making, MarkStage::Ending] {
            for snapshots in [Vec::new(), snapshots.clone()] {
                let mark = Mark { stage, id: Uuid([3; 16]), snapshots };
                assert_eq!(Mark::decode(&mark.encode()), Some(mark));
            }
        }
        for wrong in ["", "making", "made 1\n", "making 1\n/path\n"] {
            assert_eq!(Mark::decode(wrong), None);
        }
    }

    #[test]
    fn names_are_files_that_are_not_hidden() {
        assert_eq!(marked("one@mark"), Some("one"));
        assert_eq!(marked(".part-one@mark"), None);
        for wrong in ["", ".", "..", ".hidden", "a/b", "-x", &"a".repeat(41)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
