//! Daemonising: the program executes itself again and waits until the child serves.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use crate::options::READY_OPTION;

const READY: &[u8] = b"ready\n";

/// Starts the daemon with the same arguments and waits until it serves clients, or exits.
pub(crate) fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--no-fork", &format!("--{READY_OPTION}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon in the background")?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut said).context("cannot hear from the daemon")?;
    }
    if said.ends_with(READY) {
        let before = &said[..said.len() - READY.len()];
        std::io::stdout().write_all(before).context("cannot write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    // It has reported the reason on the shared standard error.
    child.wait().context("cannot wait for the daemon")?;
    Ok(ExitCode::FAILURE)
}

/// In the daemon: detaches from the terminal.
pub(crate) fn leave_terminal() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot leave the terminal")?;
    std::env::set_current_dir("/").context("cannot leave the current folder")
}

/// In the daemon: notifies the waiting parent, and closes its standard streams except a log.
pub(crate) fn tell_parent() -> anyhow::Result<()> {
    std::io::stdout().write_all(READY).context("cannot tell that the daemon is ready")?;
    std::io::stdout().flush()?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    if rustix::termios::isatty(rustix::stdio::stderr()) {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}
