//! A fake `xylemd`: one connection, scripted answers, recorded requests.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

/// A temporary directory of the test.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("xy-it-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Answers the first request by the lines of the first script, the second by the second's.
pub(crate) struct Daemon {
    scratch: Scratch,
    thread: JoinHandle<Vec<String>>,
}

impl Daemon {
    pub(crate) fn new(scripts: &[&[&str]]) -> Self {
        let scratch = Scratch::new();
        let listener = UnixListener::bind(scratch.path.join("sock")).unwrap();
        let scripts: Vec<String> = scripts
            .iter()
            .map(|lines| lines.iter().map(|line| format!("{line}\n")).collect())
            .collect();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut scripts = scripts.into_iter();
            BufReader::new(stream.try_clone().unwrap())
                .lines()
                .map(|line| {
                    let script = scripts.next().unwrap_or_default();
                    stream.write_all(script.as_bytes()).unwrap();
                    line.unwrap()
                })
                .collect()
        });
        Self { scratch, thread }
    }

    /// Directory for configuration files of the test.
    pub(crate) fn directory(&self) -> &Path {
        &self.scratch.path
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        xy(&self.scratch.path, self.scratch.path.join("sock"), arguments)
    }

    /// Runs `xy`; returns its output and requests.
    pub(crate) fn run(self, arguments: &[&str]) -> (Said, Vec<String>) {
        let output = self.command(arguments).output().unwrap();
        (Said::new(&output), self.requests())
    }

    /// The requests, after the client has exited.
    pub(crate) fn requests(self) -> Vec<String> {
        // Do not wait for a client that never connected: the test must fail, not hang.
        drop(UnixStream::connect(self.scratch.path.join("sock")));
        self.thread.join().unwrap()
    }
}

pub(crate) fn xy(directory: &Path, socket: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
    command
        .args(arguments)
        .current_dir(directory)
        .env("XYLEMD_SOCKET", socket)
        .stdin(Stdio::null());
    command
}

/// Runs `xy` without a daemon.
pub(crate) fn run_alone(arguments: &[&str]) -> Said {
    Said::new(&xy(Path::new("/"), "/nonexistent/sock", arguments).output().unwrap())
}

/// Result of a run: exit status, standard output, standard error.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Said {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn new(output: &Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    pub(crate) fn assert(&self, status: i32, stdout: &str, stderr: &str) {
        let expected =
            Self { status: Some(status), stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        assert_eq!(*self, expected);
    }
}
