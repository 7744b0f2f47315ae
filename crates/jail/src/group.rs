//! Control groups (version 2), which bound what a program takes of dom0's memory and CPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where systemd, and the lab, mount them.
const TOP: &str = "/sys/fs/cgroup";
/// Begins the names of our programs' groups.
const PREFIX: &str = "xylem-";
/// The group of a daemon that a service manager gave one of its own: a group with controllers has processes in its
/// subgroups only.
const DAEMON: &str = "daemon";
/// That of processes which an earlier daemon left in the service's own group.
const EARLIER: &str = "earlier";
/// Ends the name of a group that is a service's alone. In any other there may be a user's shell.
const SERVICE: &str = ".service";
/// Processes that fork while they are moved are moved again.
const MOVES_MAX: u32 = 5;

const PROCESSES: &str = "cgroup.procs";

/// Limits, by file. A device model maps a guest's memory, which does not count as its own; its own is some 100 MiB.
const LIMITS: [(&str, &str); 3] =
    [("memory.max", "1073741824"), ("pids.max", "256"), ("cpu.weight", "50")];

/// The group whose subgroups are those of our programs.
#[derive(Clone, Debug)]
pub struct Groups(PathBuf);

impl Groups {
    /// Prepares it, below the group that this process is in, which it leaves for one of its own: call it before other
    /// processes are started.
    ///
    /// # Errors
    /// The host has no control groups of version 2, or this process may not have subgroups: its service needs
    /// `Delegate=yes`.
    pub fn prepare() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let own = text.lines().find_map(|line| line.strip_prefix("0::"));
        let own =
            own.ok_or_else(|| io::Error::other("the host has no control groups of version 2"))?;
        Self::below(Path::new(TOP), own)
    }

    fn below(top: &Path, own: &str) -> io::Result<Self> {
        let own = own.trim_matches('/');
        let base = match own.strip_suffix(DAEMON).and_then(|it| it.strip_suffix('/')) {
            // No service manager: a group of our own.
            None if own.is_empty() => {
                enable(top)?;
                top.join("xylem")
            }
            None => {
                let daemon = top.join(own).join(DAEMON);
                make(&daemon)?;
                fs::write(daemon.join(PROCESSES), "0")?;
                top.join(own)
            }
            // An earlier daemon of this service was here.
            Some(service) => top.join(service),
        };
        make(&base)?;
        enable_without_processes(&base)?;
        let groups = Self(base);
        groups.limit_again();
        Ok(groups)
    }

    /// The limits of programs that an earlier daemon started are gone if the controllers were taken away in between, without
    /// which a service manager cannot put a daemon into the group.
    fn limit_again(&self) {
        for group in self.programs() {
            // One that has ended is removed meanwhile.
            let _gone = limit(&group);
        }
    }

    fn programs(&self) -> impl Iterator<Item = PathBuf> {
        fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
            .map(|entry| entry.path())
    }

    /// The group of a program. Also removes those of programs that have ended.
    #[must_use]
    pub(crate) fn path(&self, name: &str) -> String {
        for group in self.programs() {
            // Refused as long as there is a process in it.
            let _in_use = fs::remove_dir(group);
        }
        self.0.join(format!("{PREFIX}{name}")).to_string_lossy().into_owned()
    }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn enable(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.subtree_control"), "+memory +pids +cpu")
}

/// The same for a group that processes of before may be in: device models that were started without groups.
fn enable_without_processes(group: &Path) -> io::Result<()> {
    let mut attempts = 0..MOVES_MAX;
    loop {
        match enable(group) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && group.to_string_lossy().ends_with(SERVICE)
                    && attempts.next().is_some() =>
            {
                let earlier = group.join(EARLIER);
                make(&earlier)?;
                for process in fs::read_to_string(group.join(PROCESSES))?.lines() {
                    // It may have ended.
                    let _gone = fs::write(earlier.join(PROCESSES), process);
                }
            }
            result => return result,
        }
    }
}

fn limit(group: &Path) -> io::Result<()> {
    LIMITS.into_iter().try_for_each(|(file, limit)| fs::write(group.join(file), limit))
}

/// Moves this process into a group.
pub(crate) fn join(group: &str) -> io::Result<()> {
    let group = Path::new(group);
    make(group)?;
    limit(group)?;
    fs::write(group.join(PROCESSES), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_below_the_services_own_or_at_the_top() {
        let top = std::env::temp_dir().join(format!("jail-groups-{}", std::process::id()));
        let service = top.join("system.slice/xylemd.service");
        fs::create_dir_all(&service).unwrap();
        for (own, base) in [
            ("/", "xylem"),
            ("/system.slice/xylemd.service", "system.slice/xylemd.service"),
            ("/system.slice/xylemd.service/daemon", "system.slice/xylemd.service"),
        ] {
            let groups = Groups::below(&top, own).unwrap();
            assert_eq!(groups.0, top.join(base), "{own}");
            let enabled = fs::read_to_string(groups.0.join("cgroup.subtree_control")).unwrap();
            assert_eq!(enabled, "+memory +pids +cpu", "{own}");
            fs::create_dir(groups.0.join("xylem-ended")).unwrap();
            Groups::below(&top, own).unwrap();
            let memory = groups.0.join("xylem-ended/memory.max");
            assert_eq!(fs::read_to_string(&memory).unwrap(), LIMITS[0].1, "{own}");
            // In a real one these are no files that anybody removes.
            for (file, _) in LIMITS {
                fs::remove_file(groups.0.join("xylem-ended").join(file)).unwrap();
            }
            assert_eq!(Path::new(&groups.path("new")), top.join(base).join("xylem-new"));
            assert!(!groups.0.join("xylem-ended").exists(), "{own}");
        }
        assert_eq!(fs::read_to_string(service.join("daemon/cgroup.procs")).unwrap(), "0");
        fs::remove_dir_all(&top).unwrap();
    }
}
