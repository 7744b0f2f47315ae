//! libxl's files of domains. Source: xen `tools/libs/light/libxl_dom.c` and `libxl_internal.c` (names, locks).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use xen::{DomId, Uuid};

/// Where they are.
pub(crate) const FOLDER: &str = "/var/lib/xen";

/// How long a program of libxl may keep a domain's files locked until they are written all the same: it has hung.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// All that libxl and xl keep of a domain: what kind, and whose.
const KEPT: [(char, &str); 5] = [
    ('d', "libxl-json"),
    ('n', "libxl-json"),
    ('d', "xl"),
    ('n', "xl"),
    ('l', "domain-userdata-lock"),
];

fn path(folder: &Path, kind: char, domid: DomId, uuid: Uuid, what: &str) -> PathBuf {
    folder.join(format!("userdata-{kind}.{domid}.{uuid}.{what}"))
}

/// A domain's files, locked as libxl locks them.
struct Locked {
    path: PathBuf,
    _file: File,
}

impl Locked {
    fn of(path: PathBuf, wait: Duration) -> io::Result<Option<Self>> {
        let deadline = Instant::now() + wait;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Its holder removes the file: it may be another one by now.
                Ok(()) if is_at(&file, &path)? => return Ok(Some(Self { path, _file: file })),
                Ok(()) => {}
                Err(_) if Instant::now() >= deadline => return Ok(None),
                Err(_) => std::thread::sleep(LOCK_POLL),
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((held.dev(), held.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Before it is closed: who waits for it finds that it is gone.
        let _gone = fs::remove_file(&self.path);
    }
}

/// Replaces a domain's configuration. It is not synced: it ends with the domain.
pub(crate) fn write(folder: &Path, domid: DomId, uuid: Uuid, json: &str) -> io::Result<()> {
    let file = |kind, what| path(folder, kind, domid, uuid, what);
    let (new, place) = (file('n', "libxl-json"), file('d', "libxl-json"));
    // Nobody reads and changes what is not there yet.
    let _locked = match place.try_exists()? {
        true => Locked::of(file('l', "domain-userdata-lock"), LOCK_WAIT)?,
        false => None,
    };
    let put = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        // libxl takes it for a C string.
        file.write_all(format!("{json}\0").as_bytes())?;
        fs::rename(&new, place)
    };
    put().inspect_err(|_| {
        let _left = fs::remove_file(&new);
    })
}

/// The domains that have a configuration here, without domain 0.
pub(crate) fn all(folder: &Path) -> io::Result<Vec<(DomId, Uuid)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let of = |name: &str| {
        let name = name.strip_prefix("userdata-d.")?.strip_suffix(".libxl-json")?;
        let (domid, uuid) = name.split_once('.')?;
        Some((DomId(domid.parse().ok()?), uuid.parse().ok()?))
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(of));
    }
    found.retain(|(domid, _)| *domid != DomId::DOM0);
    Ok(found)
}

/// Removes all files of a domain.
pub(crate) fn remove(folder: &Path, domid: DomId, uuid: Uuid) -> io::Result<()> {
    for (kind, what) in KEPT {
        match fs::remove_file(path(folder, kind, domid, uuid, what)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_files_come_and_go_and_others_stay() {
        let folder = std::env::temp_dir().join(format!("xylemd-userdata-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let names = || {
            let entries = fs::read_dir(&folder).unwrap();
            let name =
                |it: io::Result<fs::DirEntry>| it.unwrap().file_name().into_string().unwrap();
            let mut names: Vec<String> = entries.map(name).collect();
            names.sort();
            names
        };
        let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
        write(&folder, DomId(3), one, "{}").unwrap();
        write(&folder, DomId(3), one, "{\"a\":1}").unwrap();
        write(&folder, DomId(30), other, "{}").unwrap();
        let file = format!("userdata-d.3.{one}.libxl-json");
        assert_eq!(names(), [file.clone(), format!("userdata-d.30.{other}.libxl-json")]);
        assert_eq!(fs::read(folder.join(&file)).unwrap(), b"{\"a\":1}\0");
        fs::write(folder.join(format!("userdata-d.3.{one}.xl")), "name = 'a'").unwrap();
        write(&folder, DomId(0), Uuid([0; 16]), "{}").unwrap();
        let mut found = all(&folder).unwrap();
        found.sort_unstable();
        assert_eq!(found, [(DomId(3), one), (DomId(30), other)]);
        remove(&folder, DomId(0), Uuid([0; 16])).unwrap();
        remove(&folder, DomId(3), one).unwrap();
        remove(&folder, DomId(3), one).unwrap();
        assert_eq!(names(), [format!("userdata-d.30.{other}.libxl-json")]);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            write(&folder, DomId(3), one, "{}").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn who_has_it_locked_is_waited_for_and_not_for_ever() {
        let folder = std::env::temp_dir().join(format!("xylemd-locked-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let lock = folder.join("lock");
        let held = Locked::of(lock.clone(), LOCK_WAIT).unwrap();
        assert!(Locked::of(lock.clone(), Duration::from_millis(20)).unwrap().is_none());
        let waiting = std::thread::spawn({
            let lock = lock.clone();
            move || Locked::of(lock, Duration::from_secs(60)).unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(held);
        assert!(waiting.join().unwrap());
        assert!(!lock.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
