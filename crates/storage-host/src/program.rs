//! Programs: run with their arguments only, until exit or a deadline.
//!
//! No shell, no inherited environment, no input. Their output goes to files in memory, so that a
//! grandchild that keeps it open does not block us.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jail::{Jail, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use storage::{Command, HostError};

/// Limit of a program's output, in bytes.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;
/// Timeout for the exit of a killed program before it is abandoned: one that waits for a device may
/// not exit.
const KILL_TIME: Duration = Duration::from_secs(2);

fn told(what: &str, error: impl std::fmt::Display) -> HostError {
    HostError::Refused(format!("{what}: {error}"))
}

/// Environment of a program.
pub(crate) fn prepare(command: &Command) -> std::process::Command {
    prepare_in(command, None)
}

fn prepare_in(command: &Command, jail: Option<&Jail>) -> std::process::Command {
    let mut prepared = match (jail, &command.confined_as) {
        (Some(jail), Some(name)) => jail.command(Kind::ImageServer, name, &command.program),
        _ => std::process::Command::new(&command.program),
    };
    in_plain_environment(prepared.args(&command.arguments));
    prepared
}

fn in_plain_environment(command: &mut std::process::Command) -> &mut std::process::Command {
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .current_dir("/")
        // Its children are killed with it.
        .process_group(0)
}

/// With a jail, commands that ask for it are confined.
pub(crate) fn run(command: &Command, jail: Option<&Jail>) -> Result<String, HostError> {
    let name = command.program.rsplit('/').next().unwrap_or_default();
    let memory = || memfd_create("output", MemfdFlags::CLOEXEC).map_err(|e| told(name, e));
    let (output, errors) = (memory()?, memory()?);
    let copy = |fd: &OwnedFd| fd.try_clone().map(Stdio::from).map_err(|e| told(name, e));
    let cannot_run = |error| told(&format!("cannot run {}", command.program), error);
    if jail.is_some() {
        // Otherwise only the confined process would find that it is missing.
        std::fs::metadata(&command.program).map_err(cannot_run)?;
    }
    let mut child = prepare_in(command, jail)
        .stdin(Stdio::null())
        .stdout(copy(&output)?)
        .stderr(copy(&errors)?)
        .spawn()
        .map_err(cannot_run)?;
    let Some(status) = wait(&mut child, Duration::from_secs(command.seconds))
        .map_err(|error| told(name, error))?
    else {
        end(child);
        return Err(HostError::Refused(format!("{name} did not end within {} s", command.seconds)));
    };
    let output = text(output).map_err(|error| told(name, error))?;
    if status.success() {
        return Ok(output);
    }
    let errors = text(errors).map_err(|error| told(name, error))?;
    let words = if errors.trim().is_empty() { output } else { errors };
    Err(HostError::Refused(format!("{name} {}: {}", ending(status), one_line(&words))))
}

/// How a program ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// `None` if its time was over: it was killed with its process group.
    pub status: Option<ExitStatus>,
    /// Its output and its errors, in their order.
    pub words: String,
}

/// Runs a program that was prepared by others, with this name, until its exit or a deadline. It has this in its environment in
/// addition to what all programs have.
///
/// # Errors
/// It does not start.
pub fn run_to_end(
    program: &str,
    command: &mut std::process::Command,
    environment: &[(&str, &str)],
    seconds: u64,
) -> Result<Ended, HostError> {
    to_end(program, command, environment, Stdio::null(), seconds)
}

/// The same for a program that reads this.
///
/// # Errors
/// It does not start.
pub fn run_with_input(
    program: &str,
    command: &mut std::process::Command,
    input: &[u8],
    seconds: u64,
) -> Result<Ended, HostError> {
    let name = program.rsplit('/').next().unwrap_or_default();
    let failed = |error| told(name, error);
    let memory = memfd_create("input", MemfdFlags::CLOEXEC).map_err(|error| told(name, error))?;
    let mut memory = File::from(memory);
    memory.write_all(input).and_then(|()| memory.rewind()).map_err(failed)?;
    to_end(program, command, &[], Stdio::from(memory), seconds)
}

fn to_end(
    program: &str,
    command: &mut std::process::Command,
    environment: &[(&str, &str)],
    input: Stdio,
    seconds: u64,
) -> Result<Ended, HostError> {
    let name = program.rsplit('/').next().unwrap_or_default();
    let failed = |error| told(name, error);
    let output = memfd_create("output", MemfdFlags::CLOEXEC).map_err(|error| told(name, error))?;
    let copy = || output.try_clone().map(Stdio::from).map_err(failed);
    let mut child = in_plain_environment(command)
        .envs(environment.iter().copied())
        .stdin(input)
        .stdout(copy()?)
        .stderr(copy()?)
        .spawn()
        .map_err(|error| told(&format!("cannot run {program}"), error))?;
    let status = wait(&mut child, Duration::from_secs(seconds)).map_err(failed)?;
    if status.is_none() {
        end(child);
    }
    Ok(Ended { status, words: text(output).map_err(failed)? })
}

/// In words.
#[must_use]
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with status {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

/// Joins a program's lines into one.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Waits for the exit of a program; `None` after a timeout of `time`.
fn wait(child: &mut Child, time: Duration) -> std::io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    await_input(&end, time)?;
    child.try_wait()
}

/// Waits for input, at most for `time`. Returns whether there is any.
pub(crate) fn await_input(fd: impl AsFd, time: Duration) -> std::io::Result<bool> {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills a program with its children. If it still does not exit, a separate thread waits for it.
pub(crate) fn end(mut child: Child) {
    let _gone_already = kill_process_group(Pid::from_child(&child), Signal::KILL);
    if !matches!(wait(&mut child, KILL_TIME), Ok(Some(_))) {
        std::thread::spawn(move || child.wait());
    }
}

fn text(fd: OwnedFd) -> std::io::Result<String> {
    let mut file = File::from(fd);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> Result<String, HostError> {
        run(&Command::new("/bin/sh", &["-c", script], seconds), None)
    }

    #[test]
    fn a_program_s_output_comes_back_and_its_words_are_the_error() {
        assert_eq!(shell("echo one; echo two >&2", 600), Ok("one\ntwo\n"[..4].to_owned()));
        let error = shell("echo out; echo ' no room' >&2; echo left >&2; exit 5", 600).unwrap_err();
        assert_eq!(error.to_string(), "sh failed with status 5: no room; left");
        assert_eq!(shell("kill -9 $$", 600).unwrap_err().to_string(), "sh was ended by signal 9: ");
        let error = run(&Command::new("/nowhere/program", &[], 1), None).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot run /nowhere/program: No such file"),
            "{error}"
        );
    }

    #[test]
    fn arguments_are_not_read_by_a_shell_and_the_environment_is_bare() {
        let echo = Command::new("/bin/echo", &["a b", "$HOME", ";", "'"], 600);
        assert_eq!(run(&echo, None), Ok("a b $HOME ; '\n".to_owned()));
        assert_eq!(shell("echo $LC_ALL $HOME$USER", 600), Ok("C\n".to_owned()));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        // The child holds the output open: that must not block us.
        let begin = Instant::now();
        let error = shell("sleep 1000 & sleep 1000", 1).unwrap_err();
        assert_eq!(error.to_string(), "sh did not end within 1 s");
        assert!(begin.elapsed() < Duration::from_secs(500));
    }

    #[test]
    fn a_program_that_leaves_a_child_behind_has_ended() {
        assert_eq!(shell("sleep 5 & echo done", 600), Ok("done\n".to_owned()));
    }
}
