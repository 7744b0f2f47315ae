//! `cargo xtask store-clients`: the programs that people and toolstacks use on a store, run on ours.
//!
//! They are Debian's: the xenstore-* tools, xenstore-control, test-xenstore, and pyxs. The session
//! says what they print, in the form in which one would see it in a terminal:
//!
//! ```text
//! $ xenstore-read /nowhere
//! xenstore-read: couldn't read path /nowhere
//! ! 1                                          its exit status, if not 0
//! $ours xenstore-control stats | head -c 1     asked of our server only
//! {
//! ```
//! The packaged C xenstored is asked the same, so that the session stays honest; ours is asked a
//! second time after it gave up all its rights.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use lexopt::prelude::*;

use crate::stores::{Daemon, Placement, Programs, unpack_packages};
use lab::Store;

const HELP: &str = "\
cargo xtask store-clients [--stores xylem,c]

Runs the packaged clients of a store against running servers and compares what they print. Ends with 1
if they print something else.";

const SESSION: &str = include_str!("clients/session.txt");
const PYXS_SESSION: &str = include_str!("clients/pyxs_session.py");

/// The clients and the libraries of Xen's that they need.
const PACKAGES: [&str; 6] = [
    "xenstore-utils",
    "xen-utils-4.17",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "python3-pyxs",
];

/// Programs of the system that the session uses, with the packages they come in.
const NEEDS: [(&str, &str); 2] =
    [("/usr/bin/python3", "python3-minimal"), ("/usr/bin/timeout", "coreutils")];

/// One command of the session.
#[derive(Debug, Eq, PartialEq)]
struct Row {
    line: usize,
    command: &'static str,
    ours_only: bool,
    /// What it prints on both outputs, and its status.
    expected: String,
}

/// # Errors
/// A server or a client is missing.
pub fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut stores = vec![Store::Xylem, Store::C];
    while let Some(argument) = parser.next()? {
        match argument {
            Long("stores") => {
                let text = parser.value()?.string()?;
                stores = text.split(',').map(str::parse).collect::<Result<_>>()?;
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(if run(&stores)? == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the session and prints what was not as expected; returns how much that was.
///
/// # Errors
/// As for [`main`].
pub fn run(stores: &[Store]) -> Result<usize> {
    let missing = NEEDS.iter().filter(|(file, _)| !Path::new(file).exists());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        lab::install(&missing)?;
    }
    let clients = unpack()?;
    let programs = Programs::prepare(stores)?;
    let rows = rows(SESSION);
    let mut findings = 0;
    for &store in stores {
        findings += session(&clients, &programs, store, &[], &rows)?;
        if store == Store::Xylem {
            let user = ["--user", &unprivileged_user()?];
            findings += session(&clients, &programs, store, &user, &rows)?;
        }
    }
    Ok(findings)
}

/// The clients' files.
///
/// # Errors
/// A package cannot be fetched.
pub fn unpack() -> Result<PathBuf> {
    unpack_packages("store-clients", &PACKAGES)
}

/// Only root can become another user; others give up what they have.
fn unprivileged_user() -> Result<String> {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").context("cannot tell who runs this")?;
    Ok(if own.uid() == 0 { "65534:65534".into() } else { format!("{}:{}", own.uid(), own.gid()) })
}

fn session(
    clients: &Path,
    programs: &Programs,
    store: Store,
    options: &[&str],
    rows: &[Row],
) -> Result<usize> {
    let daemon = Daemon::start(programs, store, Placement::default(), options)?;
    let scratch = daemon.folder().join("clients");
    std::fs::create_dir_all(&scratch)?;
    std::fs::write(scratch.join("pyxs_session.py"), PYXS_SESSION)?;
    // For permission lists.
    let domains: Result<Vec<_>> = (1..=4).map(|domid| daemon.create_domain(domid)).collect();
    let _alive = domains?;
    let mut findings = 0;
    let mut asked = 0;
    for row in rows.iter().filter(|row| store == Store::Xylem || !row.ours_only) {
        asked += 1;
        let found = shell(clients, &daemon, &scratch, row.command)?;
        if found != row.expected {
            findings += 1;
            let Row { line, command, expected, .. } = row;
            println!("session.txt:{line}: $ {command}\n-- expected\n{expected}-- found\n{found}");
        }
    }
    let with = if options.is_empty() { String::new() } else { format!(" {}", options.join(" ")) };
    println!("store-clients: {store}{with}: {asked} commands, {findings} answered otherwise");
    Ok(findings)
}

/// What a command prints, and its status if that is not 0.
fn shell(clients: &Path, daemon: &Daemon, scratch: &Path, command: &str) -> Result<String> {
    let mut path: Vec<PathBuf> =
        ["usr/lib/xen-4.17/bin", "usr/bin"].iter().map(|folder| clients.join(folder)).collect();
    for tool in ["xenstore-read", "xenstore-control", "test-xenstore"] {
        let found = path.iter().any(|folder| folder.join(tool).is_file());
        ensure!(found, "{tool} is not in the packages {}", PACKAGES.join(" "));
    }
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("/usr/bin/timeout")
        // In one stream, as in a terminal.
        .args(["60", "/bin/sh", "-c", &format!("exec 2>&1\n{command}")])
        .env("PATH", std::env::join_paths(path)?)
        .env("LD_LIBRARY_PATH", clients.join("usr/lib/x86_64-linux-gnu"))
        .env("PYTHONPATH", clients.join("usr/lib/python3/dist-packages"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LC_ALL", "C.UTF-8")
        .env("XENSTORED_RUNDIR", daemon.folder())
        .env_remove("XENSTORED_PATH")
        .current_dir(scratch)
        .stdin(Stdio::null())
        .output()
        .context("timeout does not start")?;
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    trim_end(&mut printed);
    match output.status.code() {
        Some(0) => {}
        Some(code) => printed.push_str(&format!("! {code}\n")),
        None => printed.push_str("! killed\n"),
    }
    Ok(printed)
}

/// Leaves out empty lines at the end, which a session has for its readers.
fn trim_end(text: &mut String) {
    let bytes = text.trim_end_matches('\n').len();
    text.truncate(bytes);
    if bytes > 0 {
        text.push('\n');
    }
}

fn rows(session: &'static str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, line) in session.lines().enumerate() {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        if matches!(mark, "$" | "$ours") {
            let ours_only = mark == "$ours";
            let expected = String::new();
            rows.push(Row { line: index + 1, command: rest, ours_only, expected });
        } else if let Some(row) = rows.last_mut()
            && mark != "#"
        {
            row.expected.push_str(line);
            row.expected.push('\n');
        }
    }
    for row in &mut rows {
        trim_end(&mut row.expected);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_commands_with_what_they_print() {
        let found = rows("# Reading.\n\n$ one a\n1\n\n! 2\n\n# So.\n$ours two\n$ three\n$3\n");
        let row = |line, command, ours_only, expected: &str| Row {
            line,
            command,
            ours_only,
            expected: expected.to_owned(),
        };
        let expected = [
            row(3, "one a", false, "1\n\n! 2\n"),
            row(9, "two", true, ""),
            row(10, "three", false, "$3\n"),
        ];
        assert_eq!(found, expected);
    }
}
