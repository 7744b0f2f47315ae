//! Reports about the host: what `xy` says here, written to a client's connection.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use api::Report;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, setpriority_process};

use crate::ChannelEnds;

/// Reports at a time.
const REPORTS_MAX: usize = 4;
/// For a report: it does not wait for programs that hang, but for its client.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is looked whether it is complete.
const LOOK: Duration = Duration::from_millis(50);
/// For programs that it asks.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// What makes reports.
#[derive(Clone, Debug)]
pub struct Reports {
    program: PathBuf,
    socket: PathBuf,
    store: PathBuf,
    /// Each report that is being made has one, too.
    count: Arc<()>,
}

impl Reports {
    /// By this `xy`, which asks the daemon and the store at these sockets.
    #[must_use]
    pub fn by(program: PathBuf, socket: PathBuf, store: PathBuf) -> Self {
        Self { program, socket, store, count: Arc::default() }
    }

    /// The `xy` beside this program, or where it is installed.
    #[must_use]
    pub fn program() -> PathBuf {
        let own = std::env::current_exe().unwrap_or_default().with_file_name("xy");
        if own.is_file() { own } else { Path::new("/usr/bin/xy").to_owned() }
    }

    /// Begins to write a report, which goes on by itself.
    ///
    /// # Errors
    /// Says why it cannot be made.
    pub fn begin(&self, report: Report, [from, to]: ChannelEnds) -> Result<(), String> {
        let count = Arc::clone(&self.count);
        // This one, and the one that is kept here.
        if Arc::strong_count(&count) > REPORTS_MAX + 1 {
            return Err(format!("{REPORTS_MAX} reports are made already; try again"));
        }
        drop(from);
        let started = self.start(report, to);
        let mut child = started.map_err(|error| format!("{}: {error}", self.program.display()))?;
        let wait = move || {
            wait_for(&mut child);
            drop(count);
        };
        thread::Builder::new()
            .name("report".to_owned())
            .spawn(wait)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn start(&self, report: Report, to: OwnedFd) -> std::io::Result<Child> {
        fcntl_setfl(&to, fcntl_getfl(&to)? - OFlags::NONBLOCK)?;
        let arguments = match report {
            Report::Doctor => ["doctor", "--json"],
            Report::Bugreport => ["bugreport", "-"],
        };
        let child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env(api::SOCKET_VARIABLE, &self.socket)
            .env("XENSTORED_PATH", &self.store)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::from(to))
            .stderr(Stdio::null())
            .spawn()?;
        // The daemon comes before others; this does not.
        let _ended = setpriority_process(Some(Pid::from_child(&child)), 0);
        Ok(child)
    }
}

fn wait_for(child: &mut Child) {
    let deadline = Instant::now() + PATIENCE;
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= deadline {
            // Both fail only if it has ended after all.
            let _ended = child.kill().and_then(|()| child.wait());
            return;
        }
        thread::sleep(LOOK);
    }
}
