//! Between this daemon and others, such as C xenstored: a file with the state, and an exec.
//!
//! The next program finds the file and descriptors by the same path and numbers; it removes the
//! file.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use xen_linux::Inherited;
use xenstore::Quota;
use xenstore::server::{Restore, Restored, RestoredPeer};

use crate::live_update::Session;

/// A store from another process, with its descriptors.
pub(crate) struct Arrival {
    pub(crate) restored: Restored,
    /// By their numbers in the state.
    pub(crate) descriptors: BTreeMap<RawFd, OwnedFd>,
    /// What another daemon of ours lends: see [`Platform::lend`](crate::platform::Platform::lend).
    pub(crate) devices: Vec<OwnedFd>,
    /// The journal to continue.
    pub(crate) journal: Option<OwnedFd>,
    /// The status socket.
    pub(crate) status: Option<OwnedFd>,
}

pub(crate) fn state_file(rundir: &Path) -> PathBuf {
    rundir.join("state_dump")
}

/// Takes over from the previous program of this process.
pub(crate) fn arrive(file: &Path, quota: Quota, now: Duration) -> anyhow::Result<Arrival> {
    let mut inherited = Inherited::take_all()?;
    let context = || format!("cannot take over the store of {}", file.display());
    let bytes = read_state(file).with_context(context)?;
    let mut restore = Restore::new(quota);
    restore.feed(&bytes).with_context(context)?;
    let restored = restore.finish(now).with_context(context)?;
    let mut descriptors = BTreeMap::new();
    let sockets = restored.peers.iter().filter_map(|(_, peer)| match peer {
        RestoredPeer::Socket { descriptor } => Some(*descriptor),
        RestoredPeer::Ring { .. } => None,
    });
    let numbers = sockets.chain(restored.listener).chain(restored.event_channels);
    for number in numbers {
        if let Some(descriptor) = inherited.take(number) {
            descriptors.insert(number, descriptor);
        }
    }
    // Only now, so that an operator can inspect a failure.
    std::fs::remove_file(file).with_context(context)?;
    Ok(Arrival { restored, descriptors, devices: Vec::new(), journal: None, status: None })
}

/// Reads the file, unless somebody else than this process's user could have put it there: its
/// folder may be another user's.
fn read_state(path: &Path) -> anyhow::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let (found, own) = (rustix::fs::fstat(&file)?, rustix::process::geteuid());
    let (owner, own) = (found.st_uid, own.as_raw());
    anyhow::ensure!(owner == own, "the file belongs to user {owner}, not to user {own}");
    anyhow::ensure!(found.st_nlink == 1, "the file has several names (hard links)");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)?;
    Ok(bytes)
}

/// Writes the state for the next program.
pub(crate) fn write_state(file: &Path, state: &[u8]) -> anyhow::Result<()> {
    let write = || {
        if file.exists() {
            std::fs::remove_file(file)?;
        }
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
        std::io::Write::write_all(&mut file, state)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

/// Becomes the other program. Returns only if that fails.
///
/// It gets every descriptor as it would have opened it itself: C xenstored takes a read that would have
/// to wait for the end of the connection.
pub(crate) fn become_program(
    session: &Session,
    descriptors: &[BorrowedFd<'_>],
) -> anyhow::Result<std::convert::Infallible> {
    let change = |inheritance: FdFlags, waiting: OFlags| {
        descriptors.iter().try_for_each(|descriptor| {
            rustix::io::fcntl_setfd(descriptor, inheritance)?;
            let others = rustix::fs::fcntl_getfl(descriptor)? - OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(descriptor, others | waiting)
        })
    };
    change(FdFlags::empty(), OFlags::empty()).context("cannot keep the clients' sockets")?;
    let mut arguments = session.arguments();
    if !arguments.iter().any(|word| word == "-U") {
        arguments.push("-U".into());
    }
    let error = Command::new(&session.program).args(arguments).exec();
    change(FdFlags::CLOEXEC, OFlags::NONBLOCK).context("cannot take the clients' sockets back")?;
    Err(error).with_context(|| format!("cannot start {}", session.program.display()))
}
