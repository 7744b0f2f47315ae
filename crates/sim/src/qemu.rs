//! The QEMU programs that storage uses, and the kernel's network block devices.

use std::collections::BTreeMap;

use storage::{Access, DeviceNumber, HostError};

use crate::os::{File, OsState};

/// Major number of network block devices.
const NBD_MAJOR: u32 = 43;
/// Number of devices.
const NBD_COUNT: u32 = 8;

/// Pids of `qemu-nbd`: this plus the device's number.
const PID_FIRST: u32 = 1000;

/// Connected devices, by minor number.
pub(crate) type Served = BTreeMap<u32, Server>;

/// What a network block device is backed by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Behind {
    /// An image, by a `qemu-nbd`.
    Image(String),
    /// An export of a server, by the kernel itself.
    Export { server: String, name: String },
}

/// A `qemu-nbd`, or the kernel's connection to a server. The kernel keeps it until it is
/// disconnected, even if it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) behind: Behind,
    pub(crate) access: Access,
    /// Arguments of the program, if there is one.
    arguments: Vec<String>,
    socket: String,
    pub(crate) lives: bool,
}

fn refused<T>(words: impl Into<String>) -> Result<T, HostError> {
    Err(HostError::Refused(words.into()))
}

/// What a device is backed by, while its server is alive.
pub(crate) fn behind(served: &Served, device: DeviceNumber) -> Option<&Behind> {
    let found = served.get(&device.minor).filter(|it| device.major == NBD_MAJOR && it.lives);
    found.map(|it| &it.behind)
}

/// Its size; 0 if the backing is gone.
pub(crate) fn bytes(os: &OsState, behind: &Behind) -> u64 {
    match behind {
        Behind::Image(path) => match os.files.get(path) {
            Some(File::Qcow2 { bytes, .. }) => *bytes,
            _ => 0,
        },
        Behind::Export { server, name } => {
            os.storage.nbd.export(server, name).map_or(0, |export| export.bytes)
        }
    }
}

/// Connects a device in the kernel.
fn put(os: &mut OsState, minor: u32, server: Server) -> Result<(), HostError> {
    if os.storage.served.contains_key(&minor) {
        return Err(HostError::Busy);
    }
    os.storage.served.insert(minor, server);
    let number = DeviceNumber { major: NBD_MAJOR, minor };
    os.files.insert(format!("/dev/nbd{minor}"), File::Block(number));
    Ok(())
}

/// The same with the kernel's own connection.
pub(crate) fn serve(
    os: &mut OsState,
    minor: u32,
    behind: Behind,
    access: Access,
) -> Result<(), HostError> {
    let (arguments, socket) = (Vec::new(), String::new());
    put(os, minor, Server { behind, access, arguments, socket, lives: true })
}

/// The number of a device, by its name.
pub(crate) fn minor(device: &str) -> Result<u32, HostError> {
    let minor = device.strip_prefix("nbd").and_then(|it| it.parse().ok());
    minor.ok_or_else(|| HostError::Refused(format!("{device}: no network block device")))
}

/// Kills its server; its files remain.
pub(crate) fn kill(served: &mut Served, device: DeviceNumber) {
    if let Some(server) = served.get_mut(&device.minor).filter(|_| device.major == NBD_MAJOR) {
        server.lives = false;
    }
}

/// Names in `/proc`.
pub(crate) fn processes(served: &Served) -> Vec<String> {
    let living = served.iter().filter(|(_, it)| it.lives && !it.arguments.is_empty());
    living.map(|(minor, _)| (PID_FIRST + minor).to_string()).collect()
}

/// Command line of a process.
fn command_line(served: &Served, pid: &str) -> Result<Vec<u8>, HostError> {
    let minor = pid.parse::<u32>().ok().and_then(|pid| pid.checked_sub(PID_FIRST));
    let server = minor.and_then(|minor| served.get(&minor)).filter(|it| it.lives);
    let server = server.ok_or(HostError::Missing)?;
    Ok(server.arguments.iter().flat_map(|word| format!("{word}\0").into_bytes()).collect())
}

/// Names below `/sys/block`.
pub(crate) fn devices() -> Vec<String> {
    (0..NBD_COUNT).map(|minor| format!("nbd{minor}")).collect()
}

/// Contents of a file below `/sys/block` or `/proc`; `None` for any other file.
pub(crate) fn kernel_file(os: &OsState, path: &str) -> Option<Result<Vec<u8>, HostError>> {
    if let Some(pid) = path.strip_prefix("/proc/").and_then(|it| it.strip_suffix("/cmdline")) {
        return Some(command_line(&os.storage.served, pid));
    }
    let (minor, file) = path.strip_prefix("/sys/block/nbd")?.split_once('/')?;
    let minor = minor.parse().ok()?;
    let Some(server) = os.storage.served.get(&minor) else {
        return Some(Err(HostError::Missing));
    };
    Some(match file {
        "pid" => Ok(format!("{}\n", PID_FIRST + minor).into_bytes()),
        "size" => Ok(format!("{}\n", bytes(os, &server.behind) / 512).into_bytes()),
        _ => Err(HostError::Missing),
    })
}

/// The first bytes of an image.
pub(crate) fn header(bytes: u64, backing: Option<&str>) -> Vec<u8> {
    const BACKING_AT: usize = 112;
    let name = backing.unwrap_or_default();
    let at = if backing.is_some() { BACKING_AT } else { 0 };
    let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
    header.extend((at as u64).to_be_bytes());
    header.extend(u32::try_from(name.len()).expect("names are short").to_be_bytes());
    header.extend(16_u32.to_be_bytes());
    header.extend(bytes.to_be_bytes());
    header.resize(BACKING_AT, 0);
    header.extend(name.as_bytes());
    header
}

/// `qemu-img`
pub(crate) fn img(os: &mut OsState, words: &[&str]) -> Result<String, HostError> {
    match words {
        ["create", "-q", "-f", "qcow2", path, bytes] => create(os, path, bytes, None),
        ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing, path, bytes] => {
            create(os, path, bytes, Some(backing))
        }
        ["resize", "-q", "-f", "qcow2", path, new] => match os.files.get_mut(*path) {
            Some(File::Qcow2 { bytes, .. }) => {
                *bytes = new.parse().unwrap_or(*bytes);
                Ok(String::new())
            }
            _ => refused(format!("Could not open '{path}'")),
        },
        _ => refused("qemu-img: wrong arguments"),
    }
}

fn create(
    os: &mut OsState,
    path: &str,
    bytes: &str,
    backing: Option<&str>,
) -> Result<String, HostError> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let sectors = match backing.map(|name| os.files.get(&format!("{folder}/{name}"))) {
        None => BTreeMap::new(),
        // The backing file is not changed.
        Some(Some(File::Qcow2 { sectors, .. })) => sectors.clone(),
        Some(_) => return refused("Could not open backing file"),
    };
    let bytes = bytes.parse().map_err(|_| HostError::Refused("Invalid image size".to_owned()))?;
    let backing = backing.map(str::to_owned);
    os.files.insert(path.to_owned(), File::Qcow2 { bytes, sectors, backing });
    Ok(String::new())
}

/// `qemu-nbd`
pub(crate) fn nbd(os: &mut OsState, words: &[&str]) -> Result<String, HostError> {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let minor = |path: &str| path.strip_prefix("/dev/nbd").and_then(|it| it.parse::<u32>().ok());
    if let ["--disconnect", path] = words {
        let server = minor(path).and_then(|minor| os.storage.served.remove(&minor));
        if let Some(server) = server.filter(|it| it.lives) {
            os.files.remove(&server.socket);
        }
        return Ok(String::new());
    }
    let (Some(minor), Some(path)) = (value("--connect=").and_then(minor), words.last()) else {
        return refused("qemu-nbd: wrong arguments");
    };
    let access = if words.contains(&"--read-only") { Access::ReadOnly } else { Access::ReadWrite };
    if !matches!(os.files.get(*path), Some(File::Qcow2 { .. })) {
        return refused(format!("Failed to blk_new_open '{path}'"));
    }
    let behind = Behind::Image((*path).to_owned());
    if os.check_lock(path, access, false).is_err() {
        return refused("Failed to get \"write\" lock; is another process using the image?");
    }
    let mut others = os.storage.served.values().filter(|it| it.lives && it.behind == behind);
    if others.any(|it| it.access == Access::ReadWrite || access == Access::ReadWrite) {
        return refused("Failed to get \"write\" lock; is another process using the image?");
    }
    let socket = value("--socket=").unwrap_or_default().to_owned();
    let arguments = words.iter().map(|&word| word.to_owned()).collect();
    put(os, minor, Server { behind, access, arguments, socket: socket.clone(), lives: true })?;
    os.files.insert(socket, File::Bytes([].into()));
    Ok(String::new())
}
