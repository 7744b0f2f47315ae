//! Network block devices of the kernel, each served by a `qemu-nbd` of its own or by the kernel's own connection.
//!
//! A mark in `/run/xylem/nbd` says which device was chosen for which VDI. It is there before the device is connected
//! and until nothing of it is left, so whatever a killed daemon began is found by the marks. A program is known
//! by the socket that it was told to use, and the kernel keeps `/sys/block/nbdN/pid` until the last one who had
//! the device open has closed it.

use super::{Place, Result};
use crate::error::Naming as _;
use crate::system::text_if_there;
use crate::{Access, BlockDevice, Command, HostError, StorageError};

const PROGRAM: &str = "/usr/bin/qemu-nbd";
const SECONDS: u64 = 60;
pub(crate) const MARKS: &str = "/run/xylem/nbd";

/// Who speaks with whom for a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Server {
    /// A `qemu-nbd` of the VDI's own.
    Program,
    /// The kernel itself, by a connection that it was given.
    Kernel,
}

fn mark(device: &str) -> String {
    format!("{MARKS}/{device}")
}

/// Where the program of a VDI listens.
fn socket(place: &Place<'_>, vdi: &str) -> String {
    // No mark has a colon.
    format!("{MARKS}/{}.socket", place.name(vdi))
}

/// The word by which it is known.
fn socket_word(place: &Place<'_>, vdi: &str) -> String {
    format!("--socket={}", socket(place, vdi))
}

/// Whether somebody serves the device or has it open.
fn is_connected(place: &mut Place<'_>, device: &str) -> bool {
    // One that goes while it is read is looked at again.
    place.system.read(&format!("/sys/block/{device}/pid")) != Err(HostError::Missing)
}

/// Whether there is a program that serves the VDI, or is about to.
fn is_served(place: &mut Place<'_>, vdi: &str) -> Result<bool> {
    let socket = socket_word(place, vdi);
    for process in place.system.list("/proc").of("/proc")? {
        if !process.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        // One that ends meanwhile is not there.
        let words = text_if_there(place.system, &format!("/proc/{process}/cmdline"));
        if words.is_ok_and(|it| it.is_some_and(|it| it.split('\0').any(|word| word == socket))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A device that nobody has, and its mark.
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

/// Has a `qemu-nbd` serve what `source` says, as a block device.
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
    place.system.run(&Command::new(PROGRAM, &arguments, SECONDS)).of(&name)?;
    await_connected(place, vdi, &device)
}

/// Waits until a device can be read.
pub(super) fn await_connected(
    place: &mut Place<'_>,
    vdi: &str,
    device: &str,
) -> Result<BlockDevice> {
    let (name, path) = (place.name(vdi), format!("/dev/{device}"));
    // A program is ready a moment before the kernel knows how long the device is.
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

/// The device that is marked as this VDI's; 0:0, which is none, if there is none.
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

/// Undoes a connect, also one that was interrupted, once whoever has the device open lets go.
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
        // One that was killed did not take it away itself.
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

/// What is wrong with a device that a program was to serve.
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
