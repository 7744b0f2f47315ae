//! Namespaces of the calling process.

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Which namespaces the process leaves for new ones.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Namespaces {
    pub ipc: bool,
    pub mount: bool,
    pub network: bool,
    /// Of the processes that it starts from then on.
    pub pid: bool,
    pub uts: bool,
}

/// Moves the calling thread into new namespaces; its process has no other thread.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, EINVAL if the kernel lacks one of them.
pub fn unshare(wanted: Namespaces) -> rustix::io::Result<()> {
    let flags = [
        (wanted.ipc, UnshareFlags::NEWIPC),
        (wanted.mount, UnshareFlags::NEWNS),
        (wanted.network, UnshareFlags::NEWNET),
        (wanted.pid, UnshareFlags::NEWPID),
        (wanted.uts, UnshareFlags::NEWUTS),
    ];
    let flags = flags.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, flag)| flag);
    // SAFETY: what makes it unsafe is a table of descriptors, or a signal state, that is no longer
    // shared with other threads. None of these flags changes either.
    unsafe { unshare_unsafe(flags.collect()) }
}
