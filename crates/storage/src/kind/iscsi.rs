//! Logical units (LUNs) of an iSCSI target, by open-iscsi: each a VDI, or disks for logical
//! volumes.
//!
//! A host has one session with a target, shared by all its users. Each SR that uses it has a file
//! below `/run/xylem/iscsi`, written before the login and removed before the logout, which the last
//! one does. The state of a session is read from `/sys`, so a lost target blocks no query.

use super::{Driver, Place, Result, Source};
use crate::error::Naming as _;
use crate::system::text_if_there;
use crate::{Access, BlockDevice, Command, Space, StorageError, Vdi};

const PROGRAM: &str = "/usr/sbin/iscsiadm";
/// Default port of a target.
const PORT: u16 = 3260;
/// Longer than a login to an unresponsive target may take.
const SECONDS: u64 = 60;
const SESSIONS: &str = "/sys/class/iscsi_session";
pub(crate) const USERS: &str = "/run/xylem/iscsi";
/// Session settings: after how long a guest's request fails if the target is lost, and how often a
/// login is tried.
const SETTINGS: [(&str, &str); 2] = [
    ("node.session.timeo.replacement_timeout", "20"),
    ("node.session.initial_login_retry_max", "1"),
];

pub(super) struct Iscsi;

/// A target and its portal.
struct Target {
    name: String,
    portal: String,
}

/// One LUN of a session.
struct Unit {
    number: u64,
    /// Its name below `/sys/block`.
    disk: String,
}

fn target(place: &Place<'_>) -> Result<Target> {
    let name = place.sr.setting("target")?;
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'_');
    let is_name = ["iqn.", "eui.", "naa."].iter().any(|begin| name.starts_with(begin))
        && name.len() <= 223
        && name.bytes().all(letter);
    if !is_name {
        return Err(StorageError::refused(format!(
            "{}: target={name:?}: expected a name like iqn.2001-04.com.example:disks",
            place.sr.name
        )));
    }
    Ok(Target { name: name.to_owned(), portal: place.sr.server(PORT)? })
}

fn node(place: &mut Place<'_>, target: &Target, more: &[&str]) -> Result<()> {
    let mut arguments = vec!["-m", "node", "-T", &target.name, "-p", &target.portal];
    arguments.extend(more);
    place.system.run(&Command::new(PROGRAM, &arguments, SECONDS)).map(drop).of(&target.name)
}

/// This host's session with the target, if there is one.
fn session(place: &mut Place<'_>, target: &Target) -> Result<Option<String>> {
    for session in place.system.list(SESSIONS).of(SESSIONS)? {
        let path = format!("{SESSIONS}/{session}/targetname");
        // A session that ends meanwhile does not count.
        let name = text_if_there(place.system, &path).ok().flatten();
        if name.is_some_and(|it| it.trim() == target.name) {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

fn users(target: &Target) -> String {
    format!("{USERS}/{}", target.name)
}

fn log_in(place: &mut Place<'_>, target: &Target) -> Result<()> {
    node(place, target, &["-o", "new"])?;
    for (key, value) in SETTINGS {
        node(place, target, &["-o", "update", "-n", key, "-v", value])?;
    }
    node(place, target, &["--login"])
}

/// Makes sure that there is a responsive session.
pub(super) fn connect(place: &mut Place<'_>) -> Result<()> {
    let target = target(place)?;
    let user = format!("{}/{}", users(&target), place.sr.name);
    if session(place, &target)?.is_none() || text_if_there(place.system, &user).of(&user)?.is_none()
    {
        let _alone = place.system.lock("iscsi").of(&target.name)?;
        place.system.write(&user, target.portal.as_bytes()).of(&user)?;
        if session(place, &target)?.is_none()
            && let Err(error) = log_in(place, &target)
        {
            // Report the first error.
            let _left = leave(place, &target);
            return Err(error);
        }
    }
    let Some(session) = session(place, &target)? else {
        return Err(StorageError::refused(format!("{}: the login led to no session", target.name)));
    };
    let state = text_if_there(place.system, &format!("{SESSIONS}/{session}/state"));
    match state.of(&target.name)?.as_deref().map(str::trim) {
        Some("LOGGED_IN") => Ok(()),
        state => Err(StorageError::refused(format!(
            "{}: {} at {} does not answer: its session is {}",
            place.sr.name,
            target.name,
            target.portal,
            state.unwrap_or("gone")
        ))),
    }
}

/// Whether there is a session, responsive or not.
pub(super) fn is_connected(place: &mut Place<'_>) -> Result<bool> {
    let target = target(place)?;
    Ok(session(place, &target)?.is_some())
}

/// Ends the session, unless another SR uses it too.
pub(super) fn disconnect(place: &mut Place<'_>) -> Result<()> {
    let target = target(place)?;
    let _alone = place.system.lock("iscsi").of(&target.name)?;
    leave(place, &target)
}

fn leave(place: &mut Place<'_>, target: &Target) -> Result<()> {
    let folder = users(target);
    let user = format!("{folder}/{}", place.sr.name);
    let others = place.system.list(&folder).of(&folder)?.iter().any(|it| *it != place.sr.name);
    if others {
        return place.system.remove(&user).of(&user);
    }
    if session(place, target)?.is_some() {
        node(place, target, &["--logout"])?;
    }
    // The record may be deleted already.
    let _gone = node(place, target, &["-o", "delete"]);
    place.system.remove(&user).of(&user)?;
    place.system.remove_folder(&folder).of(&folder)
}

/// Rescans for new LUNs and new sizes.
fn rescan(place: &mut Place<'_>) -> Result<()> {
    let target = target(place)?;
    node(place, &target, &["--rescan"])
}

fn units(place: &mut Place<'_>) -> Result<Vec<Unit>> {
    let target = target(place)?;
    let Some(session) = session(place, &target)? else { return Ok(Vec::new()) };
    let device = format!("{SESSIONS}/{session}/device");
    let mut units = Vec::new();
    for found in place.system.list(&device).of(&device)? {
        if !found.starts_with("target") {
            continue;
        }
        let folder = format!("{device}/{found}");
        for address in place.system.list(&folder).of(&folder)? {
            // Host, channel, target, LUN.
            let parts: Option<Vec<u64>> = address.split(':').map(|it| it.parse().ok()).collect();
            let Some([_, _, _, number]) = parts.as_deref() else { continue };
            let number = *number;
            // Only a disk has this.
            let block = format!("{folder}/{address}/block");
            if let Some(disk) = place.system.list(&block).of(&block)?.pop() {
                units.push(Unit { number, disk });
            }
        }
    }
    units.sort_by_key(|unit| unit.number);
    Ok(units)
}

fn bytes(place: &mut Place<'_>, unit: &Unit) -> Result<u64> {
    let path = format!("/sys/block/{}/size", unit.disk);
    let sectors = text_if_there(place.system, &path).of(&path)?;
    let sectors: Option<u64> = sectors.and_then(|it| it.trim().parse().ok());
    Ok(sectors.unwrap_or(0).saturating_mul(512))
}

fn vdi_name(unit: &Unit) -> String {
    format!("lun{}", unit.number)
}

/// The VDI's LUN; waits for it if the session is new.
fn unit(place: &mut Place<'_>, vdi: &str) -> Result<Unit> {
    let mut waits = 0;
    loop {
        let found = units(place)?.into_iter().find(|unit| vdi_name(unit) == vdi);
        if let Some(unit) = found {
            return Ok(unit);
        }
        if waits == 0 {
            rescan(place)?;
        }
        if !place.system.pause(waits) {
            let name = place.name(vdi);
            return Err(StorageError::Missing(format!("{name}: the target has no such LUN")));
        }
        waits += 1;
    }
}

/// The block device of the LUN that the setting `lun` names, for logical volumes.
pub(super) fn device(place: &mut Place<'_>) -> Result<String> {
    let lun = place.sr.setting("lun")?.to_owned();
    let unit = unit(place, &format!("lun{lun}"))?;
    Ok(format!("/dev/{}", unit.disk))
}

fn on_the_server(place: &Place<'_>, what: &str) -> StorageError {
    StorageError::refused(format!(
        "{what}: LUNs are made, copied and taken away on their server; an SR of kind lvm or lvmthin on a LUN ({}) \
         can have VDIs of its own",
        place.sr.config.get("target").map_or("target=..", String::as_str)
    ))
}

impl Driver for Iscsi {
    /// The target exists already; it belongs to the administrator.
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        connect(place)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        connect(place)
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        disconnect(place)
    }

    fn destroy(&self, _: &mut Place<'_>) -> Result<()> {
        Ok(())
    }

    /// The total size, all of it used.
    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        let mut all = 0_u64;
        for unit in units(place)? {
            all = all.saturating_add(bytes(place, &unit)?);
        }
        Ok(Space { bytes: all, free_bytes: 0 })
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        rescan(place)?;
        let mut vdis = Vec::new();
        for unit in units(place)? {
            let bytes = bytes(place, &unit)?;
            vdis.push(Vdi { name: vdi_name(&unit), bytes, ..Vdi::default() });
        }
        Ok(vdis)
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, _: u64) -> Result<()> {
        Err(on_the_server(place, &place.name(vdi)))
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        Err(on_the_server(place, &place.name(vdi)))
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        _: Option<&BlockDevice>,
    ) -> Result<()> {
        // The server has grown it, and the preceding scan has found it.
        if bytes <= vdi.bytes {
            return Ok(());
        }
        Err(StorageError::refused(format!(
            "{}: has {} bytes; a LUN is made larger on its server first",
            place.name(&vdi.name),
            vdi.bytes
        )))
    }

    fn check_snapshot(&self, place: &mut Place<'_>, from: &Vdi, _: Source) -> Result<()> {
        Err(on_the_server(place, &place.name(&from.name)))
    }

    fn snapshot_vdi(&self, place: &mut Place<'_>, from: &Vdi, _: &str, _: Source) -> Result<()> {
        Err(on_the_server(place, &place.name(&from.name)))
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, _: &str, _: Source) -> Result<()> {
        Err(on_the_server(place, &place.name(&from.name)))
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, _: Access) -> Result<()> {
        let unit = unit(place, vdi)?;
        let holders = format!("/sys/block/{}/holders", unit.disk);
        match place.system.list(&holders).of(&holders)?.first() {
            None => Ok(()),
            Some(holder) => Err(StorageError::InUse(format!(
                "{}: {holder} of this host lies on it",
                place.name(vdi)
            ))),
        }
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, _: Access) -> Result<BlockDevice> {
        let path = format!("/dev/{}", unit(place, vdi)?.disk);
        let name = place.name(vdi);
        place.block_device(&name, path)
    }

    /// The device belongs to the session and stays, but no backend may serve it any more.
    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        let name = place.name(vdi);
        let device = match device {
            Some(device) => device.clone(),
            // The session's state is known without the server. Without a session there are no
            // devices.
            None => match units(place)?.into_iter().find(|unit| vdi_name(unit) == vdi) {
                Some(unit) => place.block_device(&name, format!("/dev/{}", unit.disk))?,
                None => return Ok(()),
            },
        };
        place.await_unserved(&name, &device)
    }

    fn detach(&self, _: &mut Place<'_>, _: &str) -> Result<()> {
        Ok(())
    }
}
