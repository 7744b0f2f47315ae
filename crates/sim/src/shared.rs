//! Files that several hosts share, with the locks on them.
//!
//! Each host has its own copy. Whoever runs the hosts carries the changes from one to the other when
//! another begins to run, so all see one content at all times.

use std::collections::BTreeMap;

use storage::{Access, HostError};

use crate::os::{File, LOOP_MAJOR, OsState, SimOs};
use crate::qemu;

/// A lock on a file, as QEMU and the daemon take it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Lock {
    path: String,
    access: Access,
    /// Others may write as well.
    is_shared: bool,
}

/// One host's view of what is shared, to be carried to the others.
#[derive(Clone, Debug, Default)]
pub struct SharedFiles {
    /// Grows with each change.
    version: u64,
    files: BTreeMap<String, File>,
    locks: Vec<Lock>,
}

/// What a host knows of the others.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    version: u64,
    /// The files as of that version.
    files: BTreeMap<String, File>,
    locks_of_others: Vec<Lock>,
}

/// Folder whose files are shared; so is what is mounted from a server.
const FOLDER: &str = "/shared/";

/// As the real host says it.
const LOCKED: &str = "is in use by a program that has locked it, such as QEMU; stop that first, or share it with mode w!";

fn is_shared(path: &str) -> bool {
    path.starts_with(FOLDER) || !path.starts_with('/') && path.contains(":/")
}

impl OsState {
    fn shared(&self) -> impl Iterator<Item = (&String, &File)> {
        self.files.iter().filter(|(path, _)| is_shared(path))
    }

    fn locks(&self) -> Vec<Lock> {
        let loops = self.loops.values().map(|it| Lock {
            path: it.path.clone(),
            access: it.access,
            is_shared: it.is_shared,
        });
        let images = self.storage.served.values().filter_map(|it| match &it.behind {
            qemu::Behind::Image(path) if it.lives => {
                Some(Lock { path: path.clone(), access: it.access, is_shared: false })
            }
            _ => None,
        });
        loops.chain(images).filter(|it| is_shared(&it.path)).collect()
    }

    /// Whether another host's lock allows this one to use a file.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check_lock(
        &self,
        path: &str,
        access: Access,
        may_share: bool,
    ) -> Result<(), HostError> {
        let conflicts = |it: &Lock| {
            let writes = it.access == Access::ReadWrite || access == Access::ReadWrite;
            it.path == path && writes && !(it.is_shared && may_share)
        };
        if self.sharing.locks_of_others.iter().any(conflicts) {
            return Err(HostError::Refused(LOCKED.to_owned()));
        }
        Ok(())
    }
}

impl SimOs {
    /// Brings a host's view of what is shared up to date, for the others.
    pub fn show_shared(&self, view: &mut SharedFiles) {
        let os = &mut *self.get_mut();
        view.locks = os.locks();
        if !os.shared().eq(os.sharing.files.iter()) {
            let files = os.shared().map(|(path, file)| (path.clone(), file.clone())).collect();
            os.sharing.version += 1;
            os.sharing.files = files;
        }
        if view.version != os.sharing.version {
            view.version = os.sharing.version;
            view.files = os.sharing.files.clone();
        }
    }

    /// Sees what another host has done to what is shared.
    pub fn see_shared(&self, view: &SharedFiles) {
        let os = &mut *self.get_mut();
        os.sharing.locks_of_others.clone_from(&view.locks);
        if view.version > os.sharing.version {
            os.sharing.version = view.version;
            os.sharing.files.clone_from(&view.files);
            os.files.retain(|path, _| !is_shared(path));
            os.files.extend(view.files.clone());
        }
    }

    /// Forgets other hosts and connections to them.
    pub fn forget_network(&self) {
        self.close_channels();
        // What it holds may hold this.
        let exchange = self.get_mut().exchange.take();
        drop(exchange);
    }
}

impl OsState {
    /// The file, export or device behind a block device.
    pub(crate) fn behind(&self, number: storage::DeviceNumber) -> String {
        match qemu::behind(&self.storage.served, number) {
            Some(qemu::Behind::Image(path)) => return path.clone(),
            Some(qemu::Behind::Export { server, name }) => return format!("{server}/{name}"),
            None => {}
        }
        match self.loops.get(&number.minor).filter(|_| number.major == LOOP_MAJOR) {
            Some(device) => device.path.clone(),
            None => format!("block {}:{}", number.major, number.minor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::{BlockHost as _, Mode};

    fn carry(from: &SimOs, to: &SimOs, view: &mut SharedFiles) {
        from.show_shared(view);
        to.see_shared(view);
    }

    #[test]
    fn what_one_host_does_to_shared_files_the_other_sees() {
        let (left, right) = (SimOs::default(), SimOs::default());
        let (mut of_left, mut of_right) = (SharedFiles::default(), SharedFiles::default());
        left.add_disk("/shared/a.raw", 1 << 20);
        left.add_disk("/own.raw", 1 << 20);
        carry(&left, &right, &mut of_left);
        assert!(right.get().files.contains_key("/shared/a.raw"));
        assert!(!right.get().files.contains_key("/own.raw"));
        right.remove_below("/shared");
        right.add_file("/shared/note", *b"seen");
        carry(&right, &left, &mut of_right);
        let paths: Vec<String> = left.get().paths("/shared");
        assert_eq!(paths, ["/shared/note"]);
        // Nothing new leaves all as it is.
        carry(&left, &right, &mut of_left);
        assert_eq!(right.get().paths("/shared"), paths);
    }

    #[test]
    fn a_disk_that_one_host_writes_is_locked_on_the_other() {
        let (mut left, mut right) = (SimOs::default(), SimOs::default());
        let mut view = SharedFiles::default();
        left.add_disk("/shared/a.raw", 1 << 20);
        let used = left.attach_loop("/shared/a.raw", Mode::ReadWrite, "one").unwrap();
        carry(&left, &right, &mut view);
        for mode in [Mode::ReadOnly, Mode::ReadWrite, Mode::Shared] {
            let refused = right.attach_loop("/shared/a.raw", mode, "two");
            assert_eq!(refused.unwrap_err(), HostError::Refused(LOCKED.to_owned()));
        }
        left.detach_loop(&used.device.path).unwrap();
        left.attach_loop("/shared/a.raw", Mode::Shared, "one").unwrap();
        carry(&left, &right, &mut view);
        right.attach_loop("/shared/a.raw", Mode::Shared, "two").unwrap();
    }
}
