//! Network block devices of the kernel, each served by its own `qemu-nbd` or by the kernel's own
//! connection.
//!
//! A mark in `/run/xylem/nbd` records which device was chosen for which VDI. It exists from before
//! the device is connected until it is completely disconnected, so anything a killed daemon began
//! is found by the marks. A program is identified by its socket, and the kernel keeps
//! `/sys/block/nbdN/pid` until the last user has closed the device.

use super::{Place, Result};
use crate::error::Naming as _;
use crate::system::text_if_there;
use crate::{Access, BlockDevice, Command, HostError, StorageError};

const PROGRAM: &str = "/usr/bin/qemu-nbd";
const SECONDS: u64 = 60;
pub(crate) const MARKS: &str = "/run/xylem/nbd";

/// The client and server of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Server {
    /// The VDI's own `qemu-nbd`.
    Program,
    /// The kernel itself, with a connection made for it.
    Kernel,
}

fn mark(device: &str) -> String {
    format!("{MARKS}/{device}")
}

/// The socket of a VDI's program.
fn socket(place: &Place<'_>, vdi: &str) -> String {
    // Marks have no colon.
    format!("{MARKS}/{}.socket", place.name(vdi))
}

/// The argument by which it is identified.
fn socket_word(place: &Place<'_>, vdi: &str) -> String {
    format!("--socket={}", socket(place, vdi))
}

/// Whether the device is served or open.
fn is_connected(place: &mut Place<'_>, device: &str) -> bool {
    // If it disappears while being read, read again.
    place.system.read(&format!("/sys/block/{device}/pid")) != Err(HostError::Missing)
}

/// Whether a program serves the VDI, or is about to.
fn is_served(place: &mut Place<'_>, vdi: &str) -> Result<bool> {
    let socket = socket_word(place, vdi);
    for process in place.system.list("/proc").of("/proc")? {
        if !process.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        // A process that exits meanwhile does not count.
        let words = text_if_there(place.system, &format!("/proc/{process}/cmdline"));
        if words.is_ok_and(|it| it.is_some_and(|it| it.split('\0').any(|word| word == socket))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Chooses a free device and marks it.
pub(super) fn choose(place: &mut Place<'_>, vdi: &str) -> Result<String> {
    let name = place.name(vdi);
    let _choosing = place.system.lock("nbd").of(&name)?;
    let marked = place.system.list(MARKS).of(MARKS)?;
    let there = place.system.list("/sys/block").of("/sys/block")?;
    let mut numbers: Vec<u32> =
        there.iter().filter_map(|it| it.strip_prefix("nbd")?.parse().ok()).collect();
    numbers.sort_unstable();
    for number in &numbers {
        let device = format!("nbd{number}");
        if !marked.contains(&device) && !is_connected(place, &device) {
            let tag = place.tag(vdi);
            place.system.write(&mark(&device), tag.as_bytes()).of(&name)?;
            return Ok(device);
        }
    }
    Err(StorageError::refused(match numbers.len() {
        0 => {
            format!("{name}: there is no /dev/nbd0; `modprobe nbd nbds_max=256` makes 256 of them")
        }
        count => format!(
            "{name}: all {count} network block devices are in use; nbd's parameter nbds_max says how many there are"
        ),
    }))
}

/// Starts a `qemu-nbd` that serves `source` as a block device.
pub(super) fn connect_program(
    place: &mut Place<'_>,
    vdi: &str,
    access: Access,
    source: &[&str],
) -> Result<BlockDevice> {
    let name = place.name(vdi);
    let device = choose(place, vdi)?;
    let path = format!("/dev/{device}");
    let (connect, socket) = (format!("--connect={path}"), socket_word(place, vdi));
    let mut arguments = vec!["--fork", &connect, &socket];
    if access == Access::ReadOnly {
        arguments.push("--read-only");
    }
    arguments.extend(source);
    let command = Command::new(PROGRAM, &arguments, SECONDS).confined_as(&device);
    place.system.run(&command).of(&name)?;
    await_connected(place, vdi, &device)
}

/// Waits until a device can be read.
pub(super) fn await_connected(
    place: &mut Place<'_>,
    vdi: &str,
    device: &str,
) -> Result<BlockDevice> {
    let (name, path) = (place.name(vdi), format!("/dev/{device}"));
    // A program is ready shortly before the kernel knows the device's size.
    let size = format!("/sys/block/{device}/size");
    let mut waits = 0;
    while !is_connected(place, device)
        || text_if_there(place.system, &size).of(&name)?.is_none_or(|it| it.trim() == "0")
    {
        if !place.system.pause(waits) {
            return Err(StorageError::refused(format!("{name}: {path} stays without a server")));
        }
        waits += 1;
    }
    place.block_device(&name, path)
}

/// The device that is marked as this VDI's; 0:0 (none) if there is none.
pub(super) fn find(place: &mut Place<'_>, vdi: &str) -> Result<BlockDevice> {
    let (name, tag) = (place.name(vdi), place.tag(vdi));
    for device in place.system.list(MARKS).of(MARKS)? {
        if !device.contains(':')
            && text_if_there(place.system, &mark(&device)).of(&name)?.as_ref() == Some(&tag)
        {
            return place.block_device(&name, format!("/dev/{device}"));
        }
    }
    Ok(BlockDevice::default())
}

/// Undoes a connect, also an interrupted one, after waiting until the device is closed.
pub(super) fn disconnect(place: &mut Place<'_>, vdi: &str, server: Server) -> Result<()> {
    let (name, tag) = (place.name(vdi), place.tag(vdi));
    for device in place.system.list(MARKS).of(MARKS)? {
        if device.contains(':')
            || text_if_there(place.system, &mark(&device)).of(&name)?.as_ref() != Some(&tag)
        {
            continue;
        }
        let mut waits = 0;
        let mut told = false;
        loop {
            let connected = is_connected(place, &device);
            let served = server == Server::Program && is_served(place, vdi)?;
            if !connected && !served {
                break;
            }
            if connected && !told {
                tell_to_go(place, &device, server).of(&name)?;
                told = true;
            }
            if !place.system.pause(waits) {
                return Err(StorageError::InUse(format!("{name}: /dev/{device} is still open")));
            }
            waits += 1;
        }
        // A killed program did not remove it itself.
        place.system.remove(&socket(place, vdi)).of(&name)?;
        place.system.remove(&mark(&device)).of(&name)?;
    }
    Ok(())
}

fn tell_to_go(
    place: &mut Place<'_>,
    device: &str,
    server: Server,
) -> std::result::Result<(), HostError> {
    match server {
        Server::Kernel => place.system.release_nbd(device),
        Server::Program => {
            let arguments = ["--disconnect", &format!("/dev/{device}")];
            place.system.run(&Command::new(PROGRAM, &arguments, SECONDS)).map(drop)
        }
    }
}

/// A fault of a device that a program serves.
pub(super) fn trouble(
    place: &mut Place<'_>,
    vdi: &str,
    device: &BlockDevice,
) -> Result<Option<String>> {
    Ok((!is_served(place, vdi)?).then(|| {
        format!(
            "{}: what its VM reads and writes fails: the qemu-nbd of {} has ended; `xy block-detach` or `xy destroy` \
             lets the disk go, and it can be attached anew",
            place.name(vdi),
            device.path
        )
    }))
}
