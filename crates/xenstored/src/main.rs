//! `xylem-xenstored`: the xenstore daemon. Sockets, rings and event channels around `xenstore::server`.

mod background;
mod confinement;
mod daemon;
mod file_platform;
mod journal;
mod log;
mod options;
mod patience;
mod platform;
mod rings;
mod status;
mod xen_platform;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use xenstore::server::Server;

use crate::confinement::Account;
use crate::daemon::Daemon;
use crate::file_platform::FilePlatform;
use crate::journal::Journal;
use crate::log::Log;
use crate::options::{Domains, Environment, Options, Output, Place, Wanted};
use crate::platform::Platform;
use crate::rings::Rings;
use crate::xen_platform::XenPlatform;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xylem-xenstored: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let variable = |name| std::env::var_os(name).map(Into::into);
    let environment =
        Environment { path: variable("XENSTORED_PATH"), rundir: variable("XENSTORED_RUNDIR") };
    let mut stdout = std::io::stdout();
    match options::parse(lexopt::Parser::from_env(), environment)? {
        Wanted::Help => stdout.write_all(options::HELP.as_bytes())?,
        Wanted::Version => writeln!(stdout, "xylem-xenstored {}", env!("CARGO_PKG_VERSION"))?,
        Wanted::Serve(options) if options.place == Place::Background => {
            return background::start();
        }
        Wanted::Serve(options) => serve(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(options: &Options) -> anyhow::Result<()> {
    // Before the working folder changes.
    let absolute = |path: &PathBuf| {
        std::path::absolute(path)
            .with_context(|| format!("cannot find the place of {}", path.display()))
    };
    let socket = absolute(&options.socket)?;
    let pid_file = options.pid_file.as_ref().map(absolute).transpose()?;
    let trace_file = options.trace_file.as_ref().map(absolute).transpose()?;
    let journal_file = absolute(&options.journal)?;
    let status_socket = absolute(&options.status)?;
    let domains = match &options.domains {
        Domains::OfFolder(path) => Domains::OfFolder(absolute(path)?),
        other => other.clone(),
    };
    let account = options.user.as_deref().map(Account::find).transpose()?;
    if options.tells_parent {
        background::leave_terminal()?;
    }
    raise_descriptor_limit();
    let mut log = Log::open(trace_file.clone())?;
    // First, since it waits until a daemon that was killed is gone.
    let (journal, store) = Journal::open(&journal_file, options.start, &mut log)?;
    let platform: Option<Box<dyn Platform>> = match domains {
        Domains::OfXen => Some(Box::new(XenPlatform::open()?)),
        Domains::OfFolder(path) => Some(Box::new(FilePlatform::open(path)?)),
        Domains::None => None,
    };
    let listener = daemon::listen(&socket)?;
    let status = daemon::listen(&status_socket)?;
    let mut rings = Rings::new(platform, journal, log);
    let mut server;
    let waiting;
    if let Some(known) = store {
        server = known;
        waiting = rings.resume(&mut server)?;
    } else {
        server = Server::new(options.quota);
        waiting = rings.connect_control_domain(&mut server)?.into_iter().collect();
        rings.begin_journal(&mut server);
    }
    server.set_event_timeout(options.event_timeout);
    server.set_tracing(rings.log.trace.is_some());
    let mut daemon = Daemon::new(server, rings, listener, status, waiting)?;

    let pid_file = pid_file.as_deref().map(PidFile::create).transpose()?;
    if let Some(account) = account {
        let written = [socket.parent(), journal_file.parent(), trace_file.as_deref()];
        for path in written.into_iter().flatten() {
            account.own(path)?;
        }
        confinement::enter(account)?;
    }
    let id = std::process::id();
    if let Some(file) = pid_file {
        file.write(id)?;
    }
    if options.output == Output::ProcessId {
        writeln!(std::io::stdout(), "{id}")?;
    }
    background::tell_service_manager(std::env::var_os("NOTIFY_SOCKET").as_deref())?;
    if options.tells_parent {
        background::tell_parent()?;
    }
    daemon.run()
}

/// The pid file: made while the daemon may, written when it serves.
struct PidFile {
    path: PathBuf,
    file: std::fs::File,
}

impl PidFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(path)
            .with_context(|| format!("cannot write the pid file {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(mut self, id: u32) -> anyhow::Result<()> {
        writeln!(self.file, "{id}")
            .with_context(|| format!("cannot write the pid file {}", self.path.display()))
    }
}

/// As many clients as the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Never refused, as the hard limit stays; were it, the soft one would do.
    let _unchanged = setrlimit(Resource::Nofile, raised);
}
