//! Confinement: once started, the daemon drops root, all capabilities and most system calls.
//!
//! Sockets, ring pages and `/dev/xen` are open by then, and hypercalls are made by the broker, which gives up
//! more. They are lent to a successor (live update), and are all that it needs. What it is started with stays: the
//! account, the empty sets of capabilities and the filter. So starting a program is no way out, and
//! is allowed. A daemon of another kind, as the C one, takes no loans and opens Xen's devices itself: an update to it
//! is refused.

mod system_calls;

use std::fmt;

use anyhow::{Context, bail};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// An account to run as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Account {
    uid: Uid,
    gid: Gid,
}

/// The broker's account if started by root: used by no other process, so that neither a process of
/// the daemon's user nor one of `nobody` may kill or trace it. One below those of device models.
const BROKER_ID: u32 = 1_899_999_999;

impl fmt::Display for Account {
    /// In the syntax of [`find`](Self::find).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid.as_raw(), self.gid.as_raw())
    }
}

impl Account {
    /// The broker's account.
    pub(crate) fn of_broker() -> Self {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        if uid.is_root() {
            return Self { uid: Uid::from_raw(BROKER_ID), gid: Gid::from_raw(BROKER_ID) };
        }
        Self { uid, gid }
    }

    /// Finds a name in `/etc/passwd`, or parses `UID:GID`.
    pub(crate) fn find(name: &str) -> anyhow::Result<Self> {
        if let Some((uid, gid)) = name.split_once(':') {
            return Self::of_numbers(uid, gid)
                .with_context(|| format!("'{name}' is not of the form UID:GID"));
        }
        let accounts = std::fs::read_to_string("/etc/passwd")
            .context("cannot read /etc/passwd; write --user UID:GID")?;
        Self::find_in(&accounts, name)
    }

    fn of_numbers(uid: &str, gid: &str) -> Option<Self> {
        let (uid, gid) = uid.parse().ok().zip(gid.parse().ok())?;
        Some(Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) })
    }

    fn find_in(accounts: &str, name: &str) -> anyhow::Result<Self> {
        for line in accounts.lines() {
            let mut words = line.split(':');
            if words.next() == Some(name)
                && let (Some(_password), Some(uid), Some(gid)) =
                    (words.next(), words.next(), words.next())
            {
                return Self::of_numbers(uid, gid)
                    .with_context(|| format!("/etc/passwd has no numbers for '{name}'"));
            }
        }
        bail!("there is no user '{name}'; make one, or write --user UID:GID")
    }

    pub(crate) fn uid(self) -> Uid {
        self.uid
    }

    pub(crate) fn gid(self) -> Gid {
        self.gid
    }

    /// Runs a function with the rights of this account only. Without root it just runs it.
    ///
    /// # Panics
    /// If root's rights cannot be restored.
    pub(crate) fn act<R, E: From<Errno>>(
        self,
        what: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let root = (rustix::process::getuid(), rustix::process::getgid());
        if !rustix::process::geteuid().is_root() {
            return what();
        }
        thread::set_thread_groups(&[])?;
        thread::set_thread_res_gid(root.1, self.gid, root.1)?;
        let done = thread::set_thread_res_uid(root.0, self.uid, root.0)
            .map_err(E::from)
            .and_then(|()| what());
        thread::set_thread_res_uid(root.0, root.0, root.0)
            .and_then(|()| thread::set_thread_res_gid(root.1, root.1, root.1))
            .expect("who is root by its real user can become root again");
        done
    }
}

/// Drops everything that serving does not need, permanently.
pub(crate) fn enter(account: Account) -> anyhow::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert_eq!(threads, 1, "threads of before would keep what this one gives up");
    become_account(account)?;
    drop_capabilities().context("cannot give up all capabilities")?;
    thread::set_no_new_privs(true).context("cannot give up set-user-id programs")?;
    system_calls::allow_only_those_needed()
}

/// Drops everything that the broker does not need: it has its socket, its memory and Xen open, and
/// opens nothing else.
pub(crate) fn enter_as_broker(account: Account) -> anyhow::Result<()> {
    /// It only writes a list of domains, of some MiB at most.
    const FILE_BYTES_MAX: u64 = 16 << 20;
    /// As many as it has, with some room for Rust's runtime.
    const DESCRIPTORS_MAX: u64 = 8;
    std::env::set_current_dir("/").context("cannot leave the current folder")?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, FILE_BYTES_MAX),
        (Resource::Nofile, DESCRIPTORS_MAX),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .context("cannot bound the broker")?;
    }
    thread::set_name(c"xylem-broker").context("cannot give the broker a name")?;
    become_account(account)?;
    // A non-root daemon, whose account it shares then, must not trace it either.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot hide the broker's memory")?;
    drop_capabilities().context("cannot give up all capabilities")?;
    thread::set_no_new_privs(true).context("cannot give up set-user-id programs")?;
    system_calls::allow_only_a_brokers()
}

fn become_account(account: Account) -> anyhow::Result<()> {
    let now = (rustix::process::getuid(), rustix::process::getgid());
    if now == (account.uid, account.gid) {
        return Ok(());
    }
    let (uid, gid) = (account.uid, account.gid);
    thread::set_thread_groups(&[])
        .and_then(|()| thread::set_thread_res_gid(gid, gid, gid))
        // Last, since it forbids all of this.
        .and_then(|()| {
            forget_capability_bounds();
            thread::set_thread_res_uid(uid, uid, uid)
        })
        .with_context(|| {
            let (uid, gid) = (uid.as_raw(), gid.as_raw());
            format!("cannot become user {uid}:{gid}; only root can")
        })
}

/// Programs that are started get no capabilities, whatever their file has.
fn forget_capability_bounds() {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // Fails for capabilities unknown to the kernel; `no_new_privs` covers any others.
        let _unknown = thread::remove_capability_from_bounding_set(capability);
    }
}

fn drop_capabilities() -> rustix::io::Result<()> {
    thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    thread::set_capabilities(None, none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_two_numbers() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nbroken\nxenstored:x:110:112::/:/bin/false\n\
                        odd:x:many:1::/:\n";
        let find = |name: &str| {
            if name.contains(':') { Account::find(name) } else { Account::find_in(accounts, name) }
        };
        let account = |uid, gid| Account { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) };
        assert_eq!(find("xenstored").unwrap(), account(110, 112));
        assert_eq!(find("5:6").unwrap(), account(5, 6));
        for name in ["nobody", "xen", "broken", "odd", "5:", "a:b"] {
            let error = format!("{:#}", find(name).unwrap_err());
            assert!(error.contains(&format!("'{name}'")), "{error}");
        }
    }
}
