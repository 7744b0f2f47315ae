//! Out-of-process drivers: programs that are kept running and receive requests line by line.
//!
//! One request at a time for each program. If it exits or times out, it is killed and restarted by
//! the next request: other programs are not affected.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use storage::{Command, HostError};

use crate::program;

/// Longest request: fits into a pipe, so that writing never blocks.
const QUESTION_BYTES_MAX: usize = 32 << 10;
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The set-user-ID bit of a file's mode.
const SET_USER_ID: u32 = 0o4000;

#[derive(Debug, Default)]
pub(crate) struct Conversations(Mutex<BTreeMap<Vec<String>, Slot>>);

/// The running program; locked during a request.
type Slot = Arc<Mutex<Option<Partner>>>;

#[derive(Debug)]
struct Partner {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Input after the last answer.
    rest: Vec<u8>,
}

enum Silence {
    Ended,
    TooLong,
    TooLate,
    Broken(std::io::Error),
}

impl From<std::io::Error> for Silence {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

impl Conversations {
    pub(crate) fn converse(&self, command: &Command, line: &str) -> Result<String, HostError> {
        let mut key = vec![command.program.clone()];
        key.extend(command.arguments.iter().cloned());
        let slot = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key).or_default())
        };
        let refused = |what: String| HostError::Refused(format!("{}: {what}", command.program));
        if line.len() > QUESTION_BYTES_MAX || line.contains('\n') {
            return Err(refused("the request is too long or not one line".to_owned()));
        }
        // The holder has a deadline, so this wait is bounded.
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // An exit between requests does not fail a request.
        let running = slot.take().and_then(Partner::if_running);
        let mut partner = match running {
            Some(partner) => partner,
            None => Partner::start(command).map_err(|error| refused(error.to_string()))?,
        };
        match partner.ask(line, Duration::from_secs(command.seconds)) {
            Ok(answer) => {
                *slot = Some(partner);
                Ok(answer)
            }
            Err(silence) => {
                program::end(partner.child);
                Err(refused(match silence {
                    Silence::Ended => "ended without an answer".to_owned(),
                    Silence::TooLong => "its answer has no end".to_owned(),
                    Silence::TooLate => format!("no answer within {} s", command.seconds),
                    Silence::Broken(error) => error.to_string(),
                }))
            }
        }
    }
}

impl Drop for Conversations {
    fn drop(&mut self) {
        let all = std::mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner));
        for slot in all.into_values() {
            let partner = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(partner) = partner {
                program::end(partner.child);
            }
        }
    }
}

impl Partner {
    /// Waits for the exit of an earlier daemon's program, which finishes its last request and then
    /// reads the end of its input.
    fn start(command: &Command) -> std::io::Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(command.seconds);
        while is_running(command)? {
            if Instant::now() >= deadline {
                return Err(std::io::Error::other("an earlier one does not end"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut child =
            program::prepare(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().expect("asked for");
        let output = child.stdout.take().expect("asked for");
        Ok(Self { child, input, output, rest: Vec::new() })
    }

    fn if_running(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    fn ask(&mut self, line: &str, time: Duration) -> Result<String, Silence> {
        let deadline = Instant::now() + time;
        self.input.write_all(format!("{line}\n").as_bytes())?;
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let answer: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&answer[..end]).into_owned());
            }
            if self.rest.len() > ANSWER_BYTES_MAX {
                return Err(Silence::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !program::await_input(&self.output, left)? {
                return Err(Silence::TooLate);
            }
            let mut bytes = [0; 4096];
            match self.output.read(&mut bytes)? {
                0 => return Err(Silence::Ended),
                count => self.rest.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

/// Whether an earlier daemon's process of this program still runs: one with the program and its arguments as the last
/// words of its command line (a script's first word is its interpreter) that runs as this daemon does.
fn is_running(command: &Command) -> std::io::Result<bool> {
    let words = std::iter::once(&command.program).chain(&command.arguments);
    let words: Vec<u8> = words.flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    for process in std::fs::read_dir("/proc")? {
        let folder = process?.path();
        // One that exits meanwhile, or is not a process, has none.
        let line = std::fs::read(folder.join("cmdline")).unwrap_or_default();
        let before = line.strip_suffix(&words[..]);
        if before.is_some_and(|it| it.last().is_none_or(|&byte| byte == 0))
            && runs_as_we_do(&folder)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a process has our user in all its user IDs, not from a set-user-ID program.
///
/// A command line can be forged. Any user can run `sudo` or `passwd` with any arguments, and some
/// of them take root's real user ID before they ask for a password: hence the check of the file.
fn runs_as_we_do(folder: &Path) -> bool {
    let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
    let own = geteuid().as_raw().to_string();
    let mut ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids = ids.trim();
    let has_our_ids = !ids.is_empty() && ids.split_whitespace().all(|id| id == own);
    let program = std::fs::metadata(folder.join("exe"));
    has_our_ids && program.is_ok_and(|it| it.mode() & SET_USER_ID == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt as _;

    use super::*;

    fn shell(script: &str, seconds: u64) -> Command {
        Command::new("/bin/sh", &["-c", script], seconds)
    }

    /// Waits until the process's command line is this program's. The parent continues shortly before
    /// that.
    fn wait_until_visible(process: &std::process::Child, program: &str) {
        let line = format!("/proc/{}/cmdline", process.id());
        let beginning = format!("{program}\0");
        while !std::fs::read(&line).unwrap().starts_with(beginning.as_bytes()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_is_kept_and_asked_again() {
        let all = Conversations::default();
        let counts = shell("n=0; while read -r line; do n=$((n+1)); echo $n $line; done", 600);
        assert_eq!(all.converse(&counts, "a"), Ok("1 a".to_owned()));
        assert_eq!(all.converse(&counts, "b"), Ok("2 b".to_owned()));
        assert!(all.converse(&counts, "a\nb").is_err());
    }

    #[test]
    fn one_that_ended_in_between_is_started_anew_before_it_is_asked() {
        let all = Conversations::default();
        let once = shell("read -r line; echo $line", 600);
        for word in ["a", "b", "c"] {
            assert_eq!(all.converse(&once, word), Ok(word.to_owned()));
            for slot in all.0.lock().unwrap().values() {
                let mut slot = slot.lock().unwrap();
                slot.as_mut().expect("it answered").child.wait().unwrap();
            }
        }
    }

    #[test]
    fn one_that_an_earlier_daemon_started_has_ended_before_the_next_begins() {
        let driver = shell("read -r line; echo $line earlier-daemon", 600);
        let mut earlier = program::prepare(&driver).stdin(Stdio::piped()).spawn().unwrap();
        wait_until_visible(&earlier, "/bin/sh");
        let all = Conversations::default();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| all.converse(&driver, "a"));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!asked.is_finished(), "it waits");
            // As on the death of a daemon.
            drop(earlier.stdin.take());
            earlier.wait().unwrap();
            assert_eq!(asked.join().unwrap(), Ok("a earlier-daemon".to_owned()));
        });
    }

    #[test]
    fn a_process_of_another_user_with_the_driver_s_command_line_stops_nothing() {
        if !geteuid().is_root() {
            // Only root can start a process of another user.
            return;
        }
        let driver = shell("read -r line; echo $line beside-an-impostor", 1);
        let mut impostor =
            program::prepare(&driver).uid(65534).stdin(Stdio::piped()).spawn().unwrap();
        wait_until_visible(&impostor, "/bin/sh");
        assert_eq!(
            Conversations::default().converse(&driver, "a"),
            Ok("a beside-an-impostor".to_owned())
        );
        assert!(impostor.try_wait().unwrap().is_none(), "it ran all the time");
        drop(impostor.stdin.take());
        impostor.wait().unwrap();
    }

    #[test]
    fn a_set_user_id_program_with_the_driver_s_command_line_is_not_the_driver() {
        let copy = std::env::temp_dir().join(format!("xylem-set-user-id-{}", std::process::id()));
        std::fs::copy("/bin/sleep", &copy).unwrap();
        let driver = Command::new("/run/xylem/impostor", &["1000"], 1);
        let mut seen = Vec::new();
        for mode in [0o4755, 0o755] {
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(mode)).unwrap();
            let mut process = std::process::Command::new(&copy);
            let mut process = process.arg0("/run/xylem/impostor").arg("1000").spawn().unwrap();
            wait_until_visible(&process, "/run/xylem/impostor");
            seen.push(is_running(&driver).unwrap());
            process.kill().unwrap();
            process.wait().unwrap();
        }
        std::fs::remove_file(&copy).unwrap();
        assert_eq!(seen, [false, true]);
    }

    #[test]
    fn one_that_dies_or_hangs_fails_its_own_request_and_is_started_anew() {
        let all = Conversations::default();
        let dies = shell("read -r line; echo $line; read -r line; exit 3", 600);
        assert_eq!(all.converse(&dies, "a"), Ok("a".to_owned()));
        let error = all.converse(&dies, "b").unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh: ended without an answer");
        assert_eq!(all.converse(&dies, "c"), Ok("c".to_owned()));

        let hangs = shell("read -r line; sleep 1000", 1);
        for _ in 0..2 {
            let error = all.converse(&hangs, "a").unwrap_err();
            assert_eq!(error.to_string(), "/bin/sh: no answer within 1 s");
        }
        assert_eq!(
            all.converse(&shell("read -r line; echo fine", 600), "a"),
            Ok("fine".to_owned())
        );
    }
}
