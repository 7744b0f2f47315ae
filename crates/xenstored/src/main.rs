//! `xylem-xenstored`: the xenstore daemon. Sockets, rings and event channels around `xenstore::server`.

mod background;
mod broker;
mod confinement;
mod daemon;
mod file_platform;
mod files;
mod guard;
mod journal;
mod live_update;
mod log;
mod options;
mod patience;
mod platform;
mod rings;
mod signs_of_life;
mod status;
mod trap;
mod update;
mod xen_platform;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use xenstore::server::{RestoredPeer, Server};

use crate::broker::Broker;
use crate::confinement::Account;
use crate::daemon::{Daemon, End};
use crate::file_platform::FilePlatform;
use crate::journal::{Journal, Start};
use crate::live_update::foreign::{self, Arrival};
use crate::live_update::successor::Successor;
use crate::log::Log;
use crate::options::{Domains, Environment, Options, Origin, Output, Place, Wanted};
use crate::platform::Platform;
use crate::rings::Rings;
use crate::signs_of_life::SignsOfLife;
use crate::trap::Trap;
use crate::xen_platform::{Devices, XenPlatform};

/// Ends a daemon that an operator has to help: to start it again is of no use. Source: `sysexits.h`, `EX_CONFIG`.
const EXIT_CONFIG: u8 = 78;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            log::complain(&format!("{error:#}"));
            match error.is::<journal::Refused>() {
                true => ExitCode::from(EXIT_CONFIG),
                false => ExitCode::FAILURE,
            }
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
        Wanted::Version => {
            // The commit is known to what `cargo xtask package` builds.
            let commit = option_env!("XYLEM_COMMIT").map(|it| format!(" ({it})"));
            let commit = commit.unwrap_or_default();
            writeln!(stdout, "xylem-xenstored {}{commit}", env!("CARGO_PKG_VERSION"))?;
        }
        Wanted::Broker(account) => return Ok(broker::process::serve(&account)),
        Wanted::Serve(options) if goes_to_background(&options) => return background::start(),
        Wanted::Serve(options) => serve(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever takes over from another daemon is what that one was: it stays where it is.
fn goes_to_background(options: &Options) -> bool {
    let takes_over = match options.origin {
        Origin::Own => false,
        Origin::SameProcess => foreign::state_file(&options.rundir).exists(),
        Origin::Predecessor => true,
    };
    options.place == Place::Background && !takes_over
}

fn serve(options: &Options) -> anyhow::Result<()> {
    // The store's time; before anything is opened, as descriptors may have been left for us.
    let started = Instant::now();
    let account = options.user.as_deref().map(Account::find).transpose()?;
    let Predecessor { arrival, broker, mut successor } = Predecessor::find(options, started)?;
    // Before the working folder changes.
    let paths = Paths::new(options)?;
    if options.tells_parent {
        background::leave_terminal()?;
    }
    raise_descriptor_limit();
    guard::note_panics();
    if let Some(account) = account {
        for path in [&paths.socket, &paths.journal] {
            let folder = path.parent().context("the root folder is no socket")?;
            files::give_folder(folder, account)?;
        }
        files::give_file(&paths.journal, account, Journal::is_journal).with_context(|| {
            format!("cannot give {} to the daemon's user", paths.journal.display())
        })?;
    }
    let mut log = Log::open(paths.trace_file.clone(), account)?;
    warn_of_memory_limit(&mut log);
    // The one before us has the file until it has ended.
    let mut pid_file = None;
    if successor.is_none() {
        pid_file = paths.pid_file.as_deref().map(|it| PidFile::create(it, account)).transpose()?;
    }
    // What only root may open comes first, what another daemon has written last: as nobody who could do harm by it.
    let begun = match arrival {
        Some(arrival) => {
            let daemon = take_over(options, &paths, log, arrival, broker, started)?;
            Begun::TakenOver(Box::new(daemon))
        }
        None => Begun::Opened(Opened::open(&paths, account)?, log),
    };
    if let Some(account) = account {
        confinement::enter(account)?;
    }
    let mut daemon = match begun {
        Begun::TakenOver(daemon) => *daemon,
        Begun::Opened(opened, log) => begin(options, &paths, log, opened, started)?,
    };
    daemon.update.state_file =
        std::path::absolute(foreign::state_file(&options.rundir)).context("no working folder")?;
    daemon.server.set_event_timeout(options.event_timeout);
    daemon.is_supervised = service_manager::is_there();
    daemon.server.set_tracing(daemon.rings.log.trace.is_some());
    if let Some(channel) = &successor {
        Trap::hang_as_successor();
        channel.wait_for_go()?;
    }
    if options.origin != Origin::Own {
        daemon.answer_for_predecessor();
    }
    if let Some(channel) = successor.take() {
        channel.tell_answered()?;
        pid_file = paths.pid_file.as_deref().and_then(|path| match PidFile::create(path, None) {
            Ok(file) => Some(file),
            Err(error) => {
                // The store is served, which matters more.
                daemon.rings.log.line(&format!("{error:#}"));
                None
            }
        });
    }
    announce(options, pid_file)?;
    daemon.life = SignsOfLife::begin();
    daemon.rings.log.errors_changed();
    match daemon.run()? {
        End::Stopped => {
            tell_manager("STOPPING=1\nSTATUS=The journal keeps the store for the next daemon\n")
        }
        End::HandedOver { successor } => tell_manager(&format!("MAINPID={successor}\n")),
    }
}

/// What a daemon before this one has left, if this one takes over from it.
struct Predecessor {
    arrival: Option<Arrival>,
    broker: Option<Broker>,
    /// To the one that still runs.
    successor: Option<Successor>,
}

impl Predecessor {
    fn find(options: &Options, started: Instant) -> anyhow::Result<Self> {
        let state_file = foreign::state_file(&options.rundir);
        let mut found = Self { arrival: None, broker: None, successor: None };
        match options.origin {
            Origin::SameProcess if state_file.exists() => {
                let arrival = foreign::arrive(&state_file, options.quota, started.elapsed())?;
                found.arrival = Some(arrival);
            }
            Origin::Predecessor => {
                // It is ready by the time that we need it. Who may not start one borrows that of the daemon before.
                if options.domains == Domains::OfXen && rustix::process::geteuid().is_root() {
                    found.broker = Some(Broker::start(Account::of_broker())?);
                }
                let (channel, arrival) = Successor::receive(options.quota, started.elapsed())?;
                (found.successor, found.arrival) = (Some(channel), Some(arrival));
            }
            Origin::SameProcess | Origin::Own => {}
        }
        Ok(found)
    }
}

/// Tells whoever waits for it that clients are served, and by which process.
fn announce(options: &Options, pid_file: Option<PidFile>) -> anyhow::Result<()> {
    let id = std::process::id();
    if let Some(file) = pid_file {
        file.write(id)?;
    }
    if options.output == Output::ProcessId {
        writeln!(std::io::stdout(), "{id}")?;
    }
    tell_manager("READY=1\n")?;
    if options.tells_parent {
        background::tell_parent()?;
    }
    Ok(())
}

fn tell_manager(state: &str) -> anyhow::Result<()> {
    service_manager::tell(state).context("cannot tell the service manager how the daemon is")
}

/// Files of the daemon, wherever its working folder is.
struct Paths {
    socket: PathBuf,
    pid_file: Option<PathBuf>,
    trace_file: Option<PathBuf>,
    journal: PathBuf,
    status: PathBuf,
    domains: Domains,
}

impl Paths {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .with_context(|| format!("cannot find the place of {}", path.display()))
        };
        Ok(Self {
            socket: absolute(&options.socket)?,
            pid_file: options.pid_file.as_ref().map(absolute).transpose()?,
            trace_file: options.trace_file.as_ref().map(absolute).transpose()?,
            journal: absolute(&options.journal)?,
            status: absolute(&options.status)?,
            domains: match &options.domains {
                Domains::OfFolder(path) => Domains::OfFolder(absolute(path)?),
                other => other.clone(),
            },
        })
    }
}

/// How far a daemon is once it needs root's rights no more.
enum Begun {
    TakenOver(Box<Daemon>),
    Opened(Opened, Log),
}

/// What a daemon that begins by itself has open before it reads anything.
struct Opened {
    platform: Option<Box<dyn Platform>>,
    listener: OwnedFd,
    status: OwnedFd,
}

impl Opened {
    fn open(paths: &Paths, account: Option<Account>) -> anyhow::Result<Self> {
        as_user(account, || Journal::wait_for_predecessor(&paths.journal))?;
        let platform: Option<Box<dyn Platform>> = match &paths.domains {
            Domains::OfXen => Some(Box::new(XenPlatform::open(Account::of_broker())?)),
            Domains::OfFolder(path) => {
                Some(Box::new(as_user(account, || FilePlatform::open(path.clone()))?))
            }
            Domains::None => None,
        };
        let listen = |path| as_user(account, || daemon::listen(path));
        Ok(Self { platform, listener: listen(&paths.socket)?, status: listen(&paths.status)? })
    }
}

/// Does something with the rights of the user that the daemon becomes, if it becomes one.
fn as_user<R>(
    account: Option<Account>,
    what: impl FnOnce() -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    match account {
        Some(account) => account.act(what),
        None => what(),
    }
}

/// Begins with the journal's store, or an empty one.
fn begin(
    options: &Options,
    paths: &Paths,
    mut log: Log,
    opened: Opened,
    started: Instant,
) -> anyhow::Result<Daemon> {
    let Opened { platform, listener, status } = opened;
    let (journal, store) = Journal::open(&paths.journal, options.start, options.damage, &mut log)?;
    let mut rings = Rings::new(platform, journal, log);
    let mut server;
    let waiting;
    if let Some(known) = store {
        server = known;
        waiting = rings.resume(&mut server)?;
        if !rings.journal.is_whole() {
            rings.begin_journal(&mut server);
        }
    } else {
        server = Server::new(options.quota);
        waiting = rings.connect_control_domain(&mut server)?.into_iter().collect();
        rings.begin_journal(&mut server);
    }
    Daemon::new(server, rings, listener, status, waiting, started)
}

/// Goes on with the store, the clients and the rings of another daemon.
fn take_over(
    options: &Options,
    paths: &Paths,
    mut log: Log,
    arrival: Arrival,
    broker: Option<Broker>,
    started: Instant,
) -> anyhow::Result<Daemon> {
    let helpers = Account::of_broker();
    let Arrival { restored, mut descriptors, devices, journal, status } = arrival;
    for note in &restored.notes {
        log.note(note);
    }
    let mut descriptor = |number: Option<i32>| descriptors.remove(&number?);
    let ports = restored.peers.iter().filter_map(|(_, peer)| match peer {
        RestoredPeer::Ring { port, .. } => Some(*port),
        RestoredPeer::Socket { .. } => None,
    });
    let events = descriptor(restored.event_channels);
    let platform: Option<Box<dyn Platform>> = match (&paths.domains, events) {
        (Domains::OfXen, Some(events)) => {
            let devices = match broker {
                Some(broker) => Devices::open(broker)?,
                None => match Devices::lent(devices) {
                    Some(lent) => lent,
                    None => Devices::open(Broker::start(helpers)?)?,
                },
            };
            Some(Box::new(XenPlatform::adopt(events, ports, devices, helpers)?))
        }
        (Domains::OfFolder(path), Some(events)) => {
            Some(Box::new(FilePlatform::adopt(path.clone(), events)?))
        }
        (Domains::None, _) => None,
        (_, None) => bail!("the daemon before this one left no event channels"),
    };
    let listener = match descriptor(restored.listener) {
        Some(listener) => daemon::adopt_listener(listener)?,
        None => daemon::listen(&paths.socket)?,
    };
    let status = match status {
        Some(status) => daemon::adopt_listener(status)?,
        None => daemon::listen(&paths.status)?,
    };
    let journal = match (options.start, journal) {
        (Start::WithoutJournal, _) => Journal::none(),
        (_, Some(file)) => Journal::adopt(&paths.journal, file)?,
        (_, None) => Journal::without_file(&paths.journal),
    };
    let mut server = restored.server;
    let mut rings = Rings::new(platform, journal, log);
    rings.adopt(&mut server, &restored.peers);
    let waiting = rings.endpoints().map(|(id, _)| id).collect();
    let mut daemon = Daemon::new(server, rings, listener, status, waiting, started)?;
    for (id, peer) in restored.peers {
        let RestoredPeer::Socket { descriptor: number } = peer else { continue };
        match descriptor(Some(number)) {
            Some(socket) => daemon.adopt(id, socket)?,
            None => daemon.server.disconnect(id),
        }
    }
    Ok(daemon)
}

/// The pid file: made while the daemon may, written when it serves.
struct PidFile {
    path: PathBuf,
    file: std::fs::File,
}

impl PidFile {
    fn create(path: &Path, account: Option<Account>) -> anyhow::Result<Self> {
        let file = files::open(path, files::Content::Replaced, account)
            .with_context(|| format!("cannot write the pid file {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(mut self, id: u32) -> anyhow::Result<()> {
        writeln!(self.file, "{id}")
            .with_context(|| format!("cannot write the pid file {}", self.path.display()))
    }
}

/// A failed allocation ends the daemon. The next one continues from the journal, but with the same
/// limit.
fn warn_of_memory_limit(log: &mut Log) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    if let Some(bytes) = limit.current {
        let mib = bytes >> 20;
        log.line(&format!(
            "the address space is limited to {mib} MiB (ulimit -v): the daemon ends when its guests need more"
        ));
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
