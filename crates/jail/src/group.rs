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

/// Limits, by file. A device model maps a guest's memory, which does not count as its own; its own is some 100 MiB.
const LIMITS: [(&str, &str); 3] =
    [("memory.max", "1073741824"), ("pids.max", "256"), ("cpu.weight", "50")];

/// The group whose subgroups are those of our programs.
#[derive(Clone, Debug)]
pub struct Groups(PathBuf);

impl Groups {
    /// Prepares it, below the group that this process is in.
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
        let base = match own.strip_suffix(DAEMON).map(|it| it.trim_end_matches('/')) {
            // No service manager: a group of our own.
            None if own.is_empty() => {
                enable(top)?;
                top.join("xylem")
            }
            None => {
                let daemon = top.join(own).join(DAEMON);
                make(&daemon)?;
                fs::write(daemon.join("cgroup.procs"), "0")?;
                top.join(own)
            }
            // An earlier daemon of this service was here.
            Some(service) => top.join(service),
        };
        make(&base)?;
        enable(&base)?;
        Ok(Self(base))
    }

    /// The group of a program. Also removes those of programs that have ended.
    #[must_use]
    pub(crate) fn path(&self, name: &str) -> String {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                // Refused as long as there is a process in it.
                let _in_use = fs::remove_dir(entry.path());
            }
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

/// Moves this process into a group.
pub(crate) fn join(group: &str) -> io::Result<()> {
    let group = Path::new(group);
    make(group)?;
    for (file, limit) in LIMITS {
        fs::write(group.join(file), limit)?;
    }
    fs::write(group.join("cgroup.procs"), "0")
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
            assert_eq!(Path::new(&groups.path("new")), top.join(base).join("xylem-new"));
            assert!(!groups.0.join("xylem-ended").exists(), "{own}");
        }
        assert_eq!(fs::read_to_string(service.join("daemon/cgroup.procs")).unwrap(), "0");
        fs::remove_dir_all(&top).unwrap();
    }
}
