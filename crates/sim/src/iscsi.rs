//! iSCSI targets, and the parts of open-iscsi that storage uses.

use std::collections::{BTreeMap, BTreeSet};

use storage::{DeviceNumber, HostError};

use crate::os::{File, OsState, SimOs};

/// Major number of SCSI disks.
const DISK_MAJOR: u32 = 8;
/// Minor numbers between two disks.
const MINORS: u32 = 16;

#[derive(Clone, Debug, Default)]
struct Unit {
    bytes: u64,
    sectors: BTreeMap<u64, u8>,
}

/// Targets that can be reached, and this host's sessions with them.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// By name, then by LUN.
    units: BTreeMap<String, BTreeMap<u64, Unit>>,
    records: BTreeSet<String>,
    sessions: BTreeSet<String>,
    lost: bool,
}

fn refused<T>(words: &str) -> Result<T, HostError> {
    Err(HostError::Refused(words.to_owned()))
}

impl Targets {
    /// Disks of all sessions, in order: their targets and LUNs.
    fn disks(&self) -> Vec<(&str, u64)> {
        let of = |name: &'_ String| self.units.get_key_value(name);
        let units = self.sessions.iter().filter_map(of);
        units.flat_map(|(name, units)| units.keys().map(|lun| (name.as_str(), *lun))).collect()
    }

    fn disk(&self, number: usize) -> Option<&Unit> {
        let (name, lun) = *self.disks().get(number)?;
        self.units.get(name)?.get(&lun)
    }

    fn by_number(&self, device: DeviceNumber) -> Option<usize> {
        (device.major == DISK_MAJOR).then_some((device.minor / MINORS) as usize)
    }

    /// What was written to a disk.
    pub(crate) fn image(&mut self, device: DeviceNumber) -> Option<&mut BTreeMap<u64, u8>> {
        let number = self.by_number(device)?;
        let (name, lun) = *self.disks().get(number)?;
        let name = name.to_owned();
        self.units.get_mut(&name)?.get_mut(&lun).map(|unit| &mut unit.sectors)
    }

    pub(crate) fn bytes(&self, device: DeviceNumber) -> Option<u64> {
        self.disk(self.by_number(device)?).map(|unit| unit.bytes)
    }

    /// Names in a sysfs folder; `None` if it is not about sessions.
    pub(crate) fn list(&self, folder: &str) -> Option<Vec<String>> {
        let rest = folder.strip_prefix("/sys/class/iscsi_session")?;
        let sessions: Vec<&String> = self.sessions.iter().collect();
        let mut parts = rest.split('/').skip(1);
        let Some(session) = parts.next() else {
            return Some((0..sessions.len()).map(|number| format!("session{number}")).collect());
        };
        let number: usize = session.strip_prefix("session")?.parse().ok()?;
        let name = sessions.get(number)?;
        Some(match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("device"), None, None, None) => vec![format!("target{number}:0:0")],
            (Some("device"), Some(_), None, None) => {
                let luns = self.units.get(*name)?.keys();
                luns.map(|lun| format!("{number}:0:0:{lun}")).collect()
            }
            (Some("device"), Some(_), Some(address), Some("block")) => {
                let lun: u64 = address.rsplit(':').next()?.parse().ok()?;
                let at = self.disks().iter().position(|it| *it == (name.as_str(), lun))?;
                vec![disk_name(at)]
            }
            _ => Vec::new(),
        })
    }

    /// A sysfs file, likewise.
    pub(crate) fn read(&self, path: &str) -> Option<Result<Vec<u8>, HostError>> {
        if let Some(disk) = path.strip_prefix("/sys/block/").and_then(|it| it.strip_suffix("/size"))
        {
            let unit = self.disk(disk_number(disk)?);
            return Some(
                unit.map(|it| (it.bytes / 512).to_string().into_bytes()).ok_or(HostError::Missing),
            );
        }
        let rest = path.strip_prefix("/sys/class/iscsi_session/session")?;
        let (number, file) = rest.split_once('/')?;
        let name = self.sessions.iter().nth(number.parse().ok()?)?;
        Some(match file {
            "targetname" => Ok(format!("{name}\n").into_bytes()),
            "state" if self.lost => Ok(b"FAILED\n".to_vec()),
            "state" => Ok(b"LOGGED_IN\n".to_vec()),
            _ => Err(HostError::Missing),
        })
    }
}

fn disk_name(number: usize) -> String {
    format!("sd{}", char::from(b'a' + u8::try_from(number).expect("there are few")))
}

fn disk_number(name: &str) -> Option<usize> {
    let letter = name.strip_prefix("sd")?.bytes().next()?;
    letter.checked_sub(b'a').map(usize::from)
}

/// `iscsiadm`
pub(crate) fn run(os: &mut OsState, words: &[&str]) -> Result<String, HostError> {
    let targets = &mut os.storage.targets;
    let ["-m", "node", "-T", name, "-p", _, rest @ ..] = words else {
        return refused("iscsiadm: wrong arguments");
    };
    let name = (*name).to_owned();
    match rest {
        ["-o", "new"] => drop(targets.records.insert(name)),
        _ if !targets.records.contains(&name) => {
            return refused("iscsiadm failed with status 21: iscsiadm: No records found");
        }
        ["-o", "update", "-n", _, "-v", _] => {}
        ["-o", "delete"] => drop(targets.records.remove(&name)),
        ["--login"] if targets.lost || !targets.units.contains_key(&name) => {
            return refused("iscsiadm failed with status 8: iscsiadm: Could not login");
        }
        ["--login"] if targets.sessions.contains(&name) => {
            return refused("iscsiadm failed with status 15: iscsiadm: session exists");
        }
        ["--login"] => drop(targets.sessions.insert(name)),
        ["--logout"] if targets.sessions.remove(&name) => {}
        ["--rescan"] if targets.sessions.contains(&name) => {}
        _ => return refused("iscsiadm failed with status 21: iscsiadm: No session found"),
    }
    let there = os.storage.targets.disks().len();
    os.files.retain(|path, _| !path.starts_with("/dev/sd"));
    for number in 0..there {
        let minor = u32::try_from(number).expect("there are few") * MINORS;
        let device = File::Block(DeviceNumber { major: DISK_MAJOR, minor });
        os.files.insert(format!("/dev/{}", disk_name(number)), device);
    }
    Ok(String::new())
}

impl OsState {
    /// Sessions with iSCSI targets, and open-iscsi's records.
    #[must_use]
    pub fn iscsi(&self) -> Vec<String> {
        let targets = &self.storage.targets;
        let sessions = targets.sessions.iter().map(|name| format!("session {name}"));
        sessions.chain(targets.records.iter().map(|name| format!("record {name}"))).collect()
    }
}

impl SimOs {
    /// Adds a LUN to a target.
    pub fn add_unit(&self, target: &str, lun: u64, bytes: u64) {
        let unit = Unit { bytes, sectors: BTreeMap::new() };
        let targets = &mut self.get_mut().storage.targets;
        targets.units.entry(target.to_owned()).or_default().insert(lun, unit);
    }

    /// Makes all targets unreachable, or reachable again.
    pub fn set_targets_lost(&self, lost: bool) {
        self.get_mut().storage.targets.lost = lost;
    }
}
