//! `bugreport`: a tar file of what a developer asks for first: versions, states, counters and logs.
//!
//! Everything is what `xy` prints or a log says, without passwords (`secrets`). The store, configurations and keys of
//! peers are not in it.

mod secrets;
mod tar;

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::options::Options;
use crate::session::{Failure, Session, one_line};
use secrets::without_secrets;

/// Commands of `xy`, each a file of the report.
const COMMANDS: &[&str] = &[
    "--version",
    "doctor",
    "info",
    "info -n",
    "dmesg",
    "list -v",
    "vm-list",
    "vcpu-list",
    "cpupool-list -c",
    "claims",
    "trace",
    "counters",
    "hypercalls -o",
    "hypercalls -q",
    "limits",
    "sr-list",
    "vdi-list",
    "checkpoint-list",
    "store stats",
];

/// The same of other programs, where there are.
const PROGRAMS: &[&str] = &[
    "uname -a",
    "journalctl --no-pager -n 5000 -u xylemd -u xylem-xenstored -u xenstored -u xenconsoled",
    "dmesg",
    "lsmod",
    "ip -d link",
    "losetup -a",
];

/// Files of the host, and folders of which every log is taken.
const FILES: &[&str] = &["/etc/xen/xl.conf", "/etc/default/xylemd", "/etc/os-release"];
const LOGS: &str = "/var/log/xen";

/// The end of each log.
const LOG_BYTES: u64 = 256 << 10;

/// A program that does not end is not waited for: that something hangs is what many reports are about.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn bugreport(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = format!("xy-bugreport-{now}");
    let path = match options.operands.first() {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(format!("{name}.tar")),
    };
    let cannot =
        |error: io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    if path.as_os_str() == "-" {
        // As another program wants it, which says the rest.
        return write(&mut io::stdout(), &name, now).map(drop).map_err(cannot);
    }
    // What cannot be had is said before there is a file.
    let far = match &session.remote {
        Some(remote) => {
            Some(remote.get("/v1/bugreport").map_err(|why| Failure::failed(one_line(&why)))?)
        }
        None => None,
    };
    let mut file =
        File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(cannot)?;
    let entries = match far {
        Some(far) => tar::copy(far, &mut file),
        None => write(&mut file, &name, now),
    };
    let entries = entries.and_then(|entries| file.sync_all().map(|()| entries)).map_err(cannot)?;
    session.print(&format!(
        "{}: {entries} files. It names VMs, disks and networks of {} host; passwords and keys are \
         left out. Read it before you send it.\n",
        path.display(),
        if session.remote.is_some() { "the" } else { "this" },
    ));
    Ok(())
}

/// Writes the report; returns how many files are in it.
fn write(file: &mut impl Write, name: &str, now: u64) -> io::Result<u64> {
    let mut entries = 0;
    let mut put = |entry: &str, text: &str| {
        entries += 1;
        let entry = format!("{name}/{entry}");
        file.write_all(&tar::entry(&entry, without_secrets(text).as_bytes(), now))
    };
    let own = std::env::current_exe()?;
    for command in COMMANDS {
        put(&format!("xy-{}.txt", file_name(command)), &output_of(&own, command))?;
    }
    for command in PROGRAMS {
        let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
        put(&format!("{program}.txt"), &output_of(Path::new(program), arguments))?;
    }
    for path in FILES.iter().map(PathBuf::from).chain(logs()) {
        if let Some(text) = end_of(&path) {
            let entry = path.strip_prefix("/").unwrap_or(&path).display().to_string();
            put(&format!("files/{entry}"), &text)?;
        }
    }
    file.write_all(&tar::END)?;
    Ok(entries)
}

/// A command as a file's name.
fn file_name(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').map(|it| it.trim_start_matches('-')).collect();
    words.join("-")
}

fn logs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(LOGS).into_iter().flatten().flatten();
    let mut logs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    logs.retain(|path| path.is_file() && path.extension().is_some_and(|it| it == "log"));
    logs.sort();
    logs
}

/// The last bytes of a file; none if there is no such file.
fn end_of(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(LOG_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut end).ok()?;
    Some(String::from_utf8_lossy(&end).into_owned())
}

/// What a program prints, and how it ended.
fn output_of(program: &Path, arguments: &str) -> String {
    let child = Command::new(program)
        .args(arguments.split_ascii_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return format!("cannot be started: {error}\n"),
    };
    let (stdout, stderr) = (drained(child.stdout.take()), drained(child.stderr.take()));
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            Ok(Some(status)) => break format!("{status}"),
            Ok(None) | Err(_) => {
                // Both fail only if it has ended after all.
                let _ended = child.kill().and_then(|()| child.wait());
                break format!("no end within {} s", PATIENCE.as_secs());
            }
        }
    };
    let text = |output: thread::JoinHandle<String>| output.join().unwrap_or_default();
    format!("{}{}[{ended}]\n", text(stdout), text(stderr))
}

/// Reads an output to its end, so that the program is never kept waiting.
fn drained(output: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is kept.
        let _read = output.map(|mut output| output.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
