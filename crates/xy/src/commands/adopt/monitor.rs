//! The process that `xl create` leaves for each domain: it sleeps until the domain stops, and then
//! applies the domain's policy. It is identified by its output, which goes to the domain's log.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One of them, by pidfd, so that its pid cannot be reused.
#[derive(Debug)]
pub(super) struct Monitor(OwnedFd);

impl Monitor {
    /// All those of the domain with this name, for this program.
    pub(super) fn find(proc: &Path, program: &str, domain: &str) -> Vec<Self> {
        let log = format!("xl-{domain}.log");
        let mut found = Vec::new();
        for number in processes(proc, program) {
            let Some(pid) = Pid::from_raw(number) else { continue };
            // Open first, then check.
            let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            let output = std::fs::read_link(proc.join(format!("{number}/fd/1")));
            let is_it = output.is_ok_and(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| is_log(name, &log))
            });
            if is_it && !domain.is_empty() {
                found.push(Self(held));
            }
        }
        found
    }

    /// Stops it: it does nothing from now on.
    pub(super) fn stop(&self) {
        self.send(Signal::STOP);
    }

    pub(super) fn go_on(&self) {
        self.send(Signal::CONT);
    }

    /// Kills it. It holds no resources to release.
    pub(super) fn end(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        // It may have exited already.
        let _ended = pidfd_send_signal(&self.0, signal);
    }
}

/// Whether a program of this name runs.
pub(in crate::commands) fn runs(program: &str) -> bool {
    processes(Path::new("/proc"), program).next().is_some()
}

fn processes(proc: &Path, program: &str) -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        (name.trim_end() == program).then_some(number)
    })
}

/// The log may have been rotated: `xl-web.log.1`.
fn is_log(name: &str, log: &str) -> bool {
    name.strip_prefix(log).is_some_and(|rest| match rest.strip_prefix('.') {
        None => rest.is_empty(),
        Some(number) => number.bytes().all(|byte| byte.is_ascii_digit()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn only_the_log_of_that_very_domain_is_its() {
        for (name, is_it) in [
            ("xl-a.log", true),
            ("xl-a.log.1", true),
            ("xl-a.log.log", false),
            ("xl-ab.log", false),
        ] {
            assert_eq!(is_log(name, "xl-a.log"), is_it, "{name}");
        }
    }

    fn state(child: &Child) -> char {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    fn comes_to(child: &Child, states: &[char]) {
        for _ in 0..500 {
            if states.contains(&state(child)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{} and not one of {states:?}", state(child));
    }

    #[test]
    fn a_process_is_found_by_its_log_stopped_and_ended() {
        let folder = std::env::temp_dir().join(format!("xy-monitor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let start = |name: &str| {
            let log = File::create(folder.join(name)).unwrap();
            Command::new("sleep").arg("100").stdout(log).spawn().unwrap()
        };
        let (mut one, mut other) = (start("xl-web.log"), start("xl-web2.log"));
        comes_to(&one, &['S']);
        let found = Monitor::find(Path::new("/proc"), "sleep", "web");
        assert_eq!(found.len(), 1);
        found[0].stop();
        comes_to(&one, &['T']);
        found[0].go_on();
        comes_to(&one, &['S']);
        found[0].end();
        one.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        found[0].end();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
