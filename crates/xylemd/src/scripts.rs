//! Hotplug scripts: run to their end, and ended with their daemon.
//!
//! A script and all that it starts have a mark of the run in their environment, and a file has its name for as long as it
//! runs. So whatever a killed daemon leaves is found by the next one, also what has left the script's process group, and what
//! a successful script has put into the background is not mistaken for it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use storage::HostError;
use toolstack::hotplug::{ScriptEnd, ScriptRun};

use crate::host::refusal;

/// Where the files are. They must not outlive the host.
const FOLDER: &str = "/run/xylem/scripts";
/// The mark.
const VARIABLE: &str = "XYLEM_SCRIPT";
/// What is kept of a script's words: their end.
const WORDS_BYTES_MAX: usize = 4 << 10;
/// Processes that fork meanwhile are looked for again.
const LOOKS_MAX: u32 = 20;

/// Ends the scripts of an earlier daemon. What they were to do is done anew.
pub(crate) fn end_earlier() {
    end_those_in(Path::new(FOLDER));
}

fn end_those_in(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let names = files.iter().filter_map(|file| file.file_name()?.to_str());
    end(&names.map(str::to_owned).collect());
    for file in files {
        // Of a script that was about to begin, or has ended.
        let _gone = fs::remove_file(file);
    }
}

/// Checks that there is a program.
pub(crate) fn check(path: &str) -> Result<(), HostError> {
    const EXECUTABLE: u32 = 0o111;
    let found = fs::metadata(path).map_err(|error| refusal(&error))?;
    match found.is_file() && found.permissions().mode() & EXECUTABLE != 0 {
        true => Ok(()),
        false => Err(HostError::Refused("cannot be executed".to_owned())),
    }
}

/// Runs one to its end.
pub(crate) fn run(run: &ScriptRun) -> Result<ScriptEnd, HostError> {
    run_in(Path::new(FOLDER), run)
}

fn run_in(folder: &Path, run: &ScriptRun) -> Result<ScriptEnd, HostError> {
    check(&run.program)?;
    let name = fresh_name();
    let file = folder.join(&name);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| fs::write(&file, &run.program))
        .map_err(|error| HostError::Refused(format!("{}: {error}", file.display())))?;
    let mut environment: Vec<(&str, &str)> =
        run.environment.iter().map(|(key, value)| (*key, value.as_str())).collect();
    environment.push((VARIABLE, &name));
    let mut command = Command::new(&run.program);
    command.args(&run.arguments);
    let ended = storage_host::run_to_end(&run.program, &mut command, &environment, run.seconds);
    if ended.as_ref().is_ok_and(|it| it.status.is_none()) {
        // Also what is in other process groups.
        end(&BTreeSet::from([name]));
    }
    // If it stays, the next daemon ends what the script left in the background.
    let _stays = fs::remove_file(&file);
    let ended = ended?;
    let problem = match ended.status {
        None => Some(format!("did not end within {} s", run.seconds)),
        Some(status) if status.success() => None,
        Some(status) => Some(storage_host::ending(status)),
    };
    Ok(ScriptEnd { problem, words: last_of(&ended.words) })
}

fn last_of(words: &str) -> String {
    let mut start = words.len().saturating_sub(WORDS_BYTES_MAX);
    while !words.is_char_boundary(start) {
        start += 1;
    }
    words[start..].to_owned()
}

/// Unique on this host, also among those of other daemons.
fn fresh_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    static BEGUN: LazyLock<Duration> =
        LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    format!("{}-{}", BEGUN.as_nanos(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Kills all processes that have one of these marks.
fn end(names: &BTreeSet<String>) {
    if names.is_empty() {
        return;
    }
    for _ in 0..LOOKS_MAX {
        if !matches!(kill_marked(names), Ok(true)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether there were any, or may be.
fn kill_marked(names: &BTreeSet<String>) -> io::Result<bool> {
    let mut any = false;
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
        // Opened first: the number may be another process's at the end.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
        // Empty for one that has ended, and while another program is executed; only the latter has a file.
        any |= environment.is_empty() && fs::read_link(entry.path().join("exe")).is_ok();
        let mark = environment
            .split(|byte| *byte == 0)
            .find_map(|it| std::str::from_utf8(it).ok()?.strip_prefix(VARIABLE)?.strip_prefix('='));
        if mark.is_some_and(|mark| names.contains(mark)) {
            any = true;
            let _has_ended = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _earlier = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn script(&self, text: &str, seconds: u64) -> ScriptRun {
            let path = self.0.join("script");
            // Another process writes it: a child of another test that inherited the open file would make it busy.
            let mut install = Command::new("install")
                .args(["-m", "755", "/dev/stdin"])
                .arg(&path)
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            writeln!(install.stdin.take().unwrap(), "#!/bin/sh\n{text}").unwrap();
            assert!(install.wait().unwrap().success());
            ScriptRun {
                program: path.to_str().unwrap().to_owned(),
                arguments: vec!["online", "type_if=vif"],
                environment: vec![("vif", "vif7.0".to_owned())],
                seconds,
            }
        }

        fn runs(&self) -> PathBuf {
            self.0.join("runs")
        }

        /// Waits for a file, which a script writes at once.
        fn wait_for(&self, name: &str) -> String {
            let path = self.0.join(name);
            loop {
                match fs::read_to_string(&path) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    _ => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn lives(pid: &str) -> bool {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // What nobody has waited for is a zombie.
        text.rsplit(')').next().is_some_and(|it| !it.is_empty() && !it.starts_with(" Z"))
    }

    fn wait_for_end(pid: &str) {
        while lives(pid) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_script_has_its_environment_and_its_words_come_back() {
        let folder = Folder::new("scripts-words");
        let run = folder.script("echo $vif \"$@\" \"[$HOME]\"; echo no >&2; exit 3", 600);
        let end = run_in(&folder.runs(), &run).unwrap();
        assert_eq!(end.problem.as_deref(), Some("failed with status 3"));
        assert_eq!(end.words, "vif7.0 online type_if=vif []\nno\n");
        assert_eq!(fs::read_dir(folder.runs()).unwrap().count(), 0);
        let run = ScriptRun { program: "/nowhere/script".to_owned(), ..run };
        assert_eq!(run_in(&folder.runs(), &run), Err(HostError::Missing));
        let run = ScriptRun { program: "/etc/passwd".to_owned(), ..run };
        assert!(matches!(run_in(&folder.runs(), &run), Err(HostError::Refused(_))));
    }

    #[test]
    fn what_a_successful_script_puts_into_the_background_goes_on() {
        let folder = Folder::new("scripts-background");
        let file = folder.0.join("pid");
        let text = format!("sleep 1000 & echo $! >{}", file.display());
        let end = run_in(&folder.runs(), &folder.script(&text, 600)).unwrap();
        assert_eq!(end.problem, None);
        let pid = folder.wait_for("pid");
        end_those_in(&folder.runs());
        assert!(lives(&pid));
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn a_script_that_hangs_is_ended_with_all_that_it_has_started() {
        let folder = Folder::new("scripts-hang");
        let file = folder.0.join("pid");
        // In a session of its own.
        let text = format!("setsid sh -c 'echo $$ >{}; sleep 1000' & sleep 1000", file.display());
        let end = run_in(&folder.runs(), &folder.script(&text, 1)).unwrap();
        assert_eq!(end.problem.as_deref(), Some("did not end within 1 s"));
        wait_for_end(&folder.wait_for("pid"));
    }

    #[test]
    fn the_scripts_of_a_killed_daemon_are_ended_by_the_next() {
        let folder = Folder::new("scripts-left");
        let runs = folder.runs();
        fs::create_dir_all(&runs).unwrap();
        // As that daemon began it.
        let name = fresh_name();
        fs::write(runs.join(&name), "script").unwrap();
        let mut left = Command::new("/bin/sleep").arg("1000").env(VARIABLE, &name).spawn().unwrap();
        let mut other =
            Command::new("/bin/sleep").arg("1000").env(VARIABLE, fresh_name()).spawn().unwrap();
        end_those_in(&runs);
        left.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(fs::read_dir(&runs).unwrap().count(), 0);
    }
}
