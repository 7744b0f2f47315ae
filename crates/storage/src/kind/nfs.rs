//! A folder of an NFS server, mounted below `/run/xylem/mount` while the SR is in use.
//!
//! Mounted soft: if the server is lost, access fails after a time instead of hanging users and the
//! daemon forever.

use super::file::{Folder, Format, InFolder};
use super::{Place, Result};
use crate::error::Naming as _;
use crate::{Command, StorageError};

const MOUNT_SECONDS: u64 = 60;
/// Three tries of ten seconds each, then an error; mounting from an absent server fails at once.
const OPTIONS: &str = "soft,timeo=100,retrans=3,retry=0,nosuid,nodev,noexec";

pub(super) struct Nfs;

fn mount_point(place: &Place<'_>) -> String {
    format!("/run/xylem/mount/{}", place.sr.name)
}

/// `server:/path`
fn source(place: &Place<'_>) -> Result<String> {
    let server = place.sr.setting("server")?;
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']');
    if server.is_empty() || !server.bytes().all(letter) {
        return Err(StorageError::refused(format!(
            "{}: server={server:?}: expected a host's name or address",
            place.sr.name
        )));
    }
    Ok(format!("{server}:{}", place.sr.path("serverpath")?))
}

/// What is mounted at `point`, from the kernel's table.
fn mounted(place: &mut Place<'_>, point: &str) -> Result<Option<String>> {
    const TABLE: &str = "/proc/self/mounts";
    let table = place.system.read(TABLE).of(TABLE)?;
    let table = String::from_utf8_lossy(&table);
    let mut found = None;
    for line in table.lines() {
        let mut words = line.split(' ');
        if let (Some(source), Some(at)) = (words.next(), words.next())
            && at == point
        {
            // The last of several is the topmost.
            found = Some(source.to_owned());
        }
    }
    Ok(found)
}

impl InFolder for Nfs {
    fn folder(&self, place: &Place<'_>) -> Result<Folder> {
        Ok(Folder { path: mount_point(place), format: Format::Raw })
    }

    /// The server's folder exists already; it belongs to the administrator.
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        InFolder::connect(self, place)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        let (point, source) = (mount_point(place), source(place)?);
        match mounted(place, &point)? {
            Some(there) if there.trim_end_matches('/') == source.trim_end_matches('/') => {
                return Ok(());
            }
            Some(other) => {
                return Err(StorageError::refused(format!(
                    "{point}: {other} is mounted there already"
                )));
            }
            None => {}
        }
        place.system.make_folder(&point).of(&point)?;
        let options = match place.sr.config.get("options") {
            Some(more) => format!("{OPTIONS},{more}"),
            None => OPTIONS.to_owned(),
        };
        let arguments = ["-t", "nfs", "-o", &options, &source, &point];
        place.system.run(&Command::new("/usr/bin/mount", &arguments, MOUNT_SECONDS)).of(&source)?;
        Ok(())
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        let point = mount_point(place);
        if mounted(place, &point)?.is_some() {
            place
                .system
                .run(&Command::new("/usr/bin/umount", &[&point], MOUNT_SECONDS))
                .of(&point)?;
        }
        place.system.remove_folder(&point).of(&point)
    }

    fn destroy(&self, _: &mut Place<'_>) -> Result<()> {
        Ok(())
    }
}
