//! `xylemd`, the toolstack daemon: threads, sockets and devices around [`toolstack::Toolstack`].
//!
//! The machine is behind a lock under which nothing blocks (`core`). Work needs a performer, of
//! which there are few for each class of it (`pool`): a client's thread (`clients`) takes one for
//! its request's work, and threads of the pool do the rest. Watches have their own connection
//! (`watch`). Kernels are parsed by a confined process (`images`). There are no decisions about VMs
//! here.

mod bootloaders;
mod capabilities;
mod channels;
mod core;
mod daemon;
mod definitions;
mod host;
mod images;
mod journal;
mod lanes;
mod links;
mod models;
mod monitor;
mod networks;
mod pci;
mod peers;
mod pool;
mod saved;
mod scripts;
mod stats;
mod status;
mod store;
mod supervision;
mod traffic;
mod userdata;
mod watch;
mod xlconf;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use image_parser::{Limits, Parser};
use jail::{Groups, Jail};
use local_door::Reports;
use peer_link::Address;
use toolstack::Level;
use toolstack::balloon::DOM0_KIB_LEAST;
use toolstack::config::OnHostShutdown;
use xen_linux::StopSignals;

use crate::core::Core;
use crate::definitions::Definitions;
use crate::peers::Directory;

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) socket: PathBuf,
    /// Socket for counters.
    pub(crate) status_socket: PathBuf,
    pub(crate) store_socket: PathBuf,
    /// Worker threads.
    pub(crate) workers: usize,
    on_host_shutdown: OnHostShutdown,
    /// Folder of VM definitions.
    pub(crate) vm_folder: PathBuf,
    /// Where other hosts that are known may call.
    pub(crate) peer_listen: Option<Address>,
    /// What holds for VMs that do not say otherwise.
    xl_conf: PathBuf,
    /// What domain 0 keeps of its memory.
    dom0_kib_least: u64,
}

impl Options {
    /// Files of moves to and from other hosts, beside the definitions.
    pub(crate) fn transfers(&self) -> Definitions {
        Definitions { folder: self.vm_folder.with_file_name("moves"), ..self.definitions() }
    }

    /// The files of peers, beside the definitions.
    fn directory(&self) -> Directory {
        let folder = self.vm_folder.parent().unwrap_or(Path::new("/"));
        Directory::in_folder(folder, self.peer_listen.clone())
    }

    pub(crate) fn definitions(&self) -> Definitions {
        // Next to the socket, so that a reboot removes it.
        let marker = self.socket.with_file_name("started-with-the-host");
        Definitions { folder: self.vm_folder.clone(), marker }
    }
}

const USAGE: &str = "\
usage: xylemd [--socket PATH] [--status PATH] [--store-socket PATH] [--workers N]
              [--vm-folder PATH] [--peer-listen ADDRESS[:PORT]]
              [--on-host-shutdown ACTION] [--xl-conf PATH] [--dom0-memory-min MIB]

The Xylem toolstack daemon. Runs in the foreground, in dom0, as root.

  --socket PATH        where clients connect (default /run/xylem/xylemd.sock, or $XYLEMD_SOCKET)
  --status PATH        where counters can be read (default: `status` beside the clients' socket)
  --store-socket PATH  the store's socket (default /run/xenstored/socket, or $XENSTORED_PATH)
  --workers N          steps carried out side by side (default: one for each 32 MiB of dom0, 4 to 16)
  --vm-folder PATH     where VMs that `xy define` made lie (default /var/lib/xylem/vm)
  --peer-listen ADDRESS[:PORT]
                       where hosts that `xy peer add` made known move VMs to (port 8003 unless given); without this
                       no port is open
  --on-host-shutdown ACTION
                       what `xy host-shutdown` does with VMs that do not say: shutdown (default),
                       save or ignore
  --xl-conf PATH       defaults for VMs, in xl's own file (default /etc/xen/xl.conf)
  --dom0-memory-min MIB
                       what domain 0 keeps if it gives memory to VMs, as `autoballoon` in xl.conf has it (default 512)
  -h, --help           this text
  -V, --version        the release
";

/// Memory of dom0 for a step in progress: its thread's stack and arena, a loop device and state in
/// the store and the backend.
const STEP_MEMORY_KIB: u64 = 1024;

/// As many as use a small part of dom0's memory. More would only contend for its CPUs.
fn workers_by_memory() -> usize {
    const PART: u64 = 32;
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let by_memory = kib.unwrap_or_default() / PART / STEP_MEMORY_KIB;
    usize::try_from(by_memory.clamp(4, 16)).expect("a small number")
}

fn options() -> Result<Option<Options>> {
    use lexopt::prelude::{Long, Short, ValueExt};
    let mut options = Options {
        socket: api::client::socket_path(),
        status_socket: PathBuf::new(),
        store_socket: std::env::var_os("XENSTORED_PATH")
            .map_or_else(|| PathBuf::from("/run/xenstored/socket"), PathBuf::from),
        workers: workers_by_memory(),
        on_host_shutdown: OnHostShutdown::default(),
        vm_folder: PathBuf::from("/var/lib/xylem/vm"),
        peer_listen: None,
        xl_conf: PathBuf::from(xlconf::PATH),
        dom0_kib_least: DOM0_KIB_LEAST,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("socket") => options.socket = parser.value()?.into(),
            Long("status") => options.status_socket = parser.value()?.into(),
            Long("store-socket") => options.store_socket = parser.value()?.into(),
            Long("vm-folder") => options.vm_folder = parser.value()?.into(),
            Long("xl-conf") => options.xl_conf = parser.value()?.into(),
            Long("peer-listen") => {
                let word = parser.value()?.parse::<Address>();
                options.peer_listen = Some(word.context("--peer-listen")?);
            }
            Long("on-host-shutdown") => {
                let word = parser.value()?.parse::<String>()?;
                let action = OnHostShutdown::parse(&word);
                options.on_host_shutdown = action.with_context(|| {
                    format!("--on-host-shutdown {word}: it can be shutdown, save or ignore")
                })?;
            }
            Long("dom0-memory-min") => options.dom0_kib_least = dom0_memory(&parser.value()?)?,
            Long("workers") => {
                options.workers = parser.value()?.parse()?;
                if !(1..=64).contains(&options.workers) {
                    bail!("--workers {}: 1 to 64 are possible", options.workers);
                }
            }
            Short('h') | Long("help") => {
                print_line(USAGE.trim_end());
                return Ok(None);
            }
            Short('V') | Long("version") => {
                // The commit is known to what `cargo xtask package` builds.
                let commit = option_env!("XYLEM_COMMIT").map(|it| format!(" ({it})"));
                let commit = commit.unwrap_or_default();
                print_line(&format!("xylemd {}{commit}", env!("CARGO_PKG_VERSION")));
                return Ok(None);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.status_socket.as_os_str().is_empty() {
        options.status_socket = options.socket.with_file_name("status");
    }
    Ok(Some(options))
}

fn dom0_memory(value: &OsStr) -> Result<u64> {
    use lexopt::ValueExt as _;
    let mib: u64 = value.to_owned().parse()?;
    match mib {
        128..=1_048_576 => Ok(mib << 10),
        _ => bail!("--dom0-memory-min {mib}: 128 to 1048576 MiB are possible"),
    }
}

fn print_line(text: &str) {
    use std::io::Write;
    // The reader may have closed our output.
    let _closed = writeln!(std::io::stdout(), "{text}");
}

/// Logs a line that is not about a VM.
pub(crate) fn log(message: impl std::fmt::Display) {
    log_at(Level::Info, message);
}

/// The same, for an operator to look at.
pub(crate) fn warn(message: impl std::fmt::Display) {
    log_at(Level::Warning, message);
}

fn log_at(level: Level, message: impl std::fmt::Display) {
    journal::write(&toolstack::LogRecord {
        level,
        message: message.to_string(),
        vm: None,
        uuid: None,
        domid: None,
        operation: None,
        asker: None,
        took_ns: None,
    });
}

/// Clients wait for almost all our work, and each piece of it is short; processes that only follow
/// events, such as xenconsoled at each introduction, are less urgent. Inherited by all threads.
const NICENESS: i32 = -10;

fn run(options: &Options) -> Result<()> {
    // Without permission everything is merely slower.
    let _refused = rustix::process::setpriority_process(None, NICENESS);
    capabilities::give_up().context("cannot give up what is not needed of root")?;
    let listener = service_manager::listener(SOCKET_UNIT);
    // Before any thread.
    let stop = StopSignals::open().context("cannot start")?;
    // Before any process, which would be in the way.
    let confinement = confinement();
    // Before anything is opened that it must not inherit.
    let itself = "/proc/self/exe";
    let parser = Parser::start(itself, [PARSER_COMMAND.into()], Limits::default())
        .context("cannot start the parser of kernels")?;
    let _lock = local_door::lock(&options.socket)?;
    let listener = match listener {
        Some(opened) => opened,
        None => local_door::listen(&options.socket)?,
    };
    open_to_group(&options.socket);
    let status = local_door::listen(&options.status_socket)?;
    let images = images::Images::new(parser);
    supervision::end_when_told(stop, images.clone()).context("cannot start")?;
    let system = storage_host::LinuxSystem::confining(confinement);
    bootloaders::clear();
    scripts::end_earlier();
    storage::Repositories::new(&mut system.clone()).clear().context("cannot start")?;
    let peer_listener = options.peer_listen.as_ref().map(peers::bind).transpose()?;
    let directory = options.directory();
    let channels = channels::Channels::new(directory.clone());
    let xl_conf = Arc::new(xlconf::XlConf::new(&options.xl_conf));
    // A fault is logged, and told to each client whose request it concerns: VMs that run need nothing of it.
    let _fault = xl_conf.defaults();
    let dom0 = host::Dom0 { xl_conf: Arc::clone(&xl_conf), least_kib: options.dom0_kib_least };
    let pool =
        pool::Pool::open(options, &images, &system, &channels, &dom0).context("cannot start")?;
    let (orders, watcher) = watch::connect(&options.store_socket).context("cannot start")?;
    let workers: Vec<_> = pool.threads().collect();
    let (follow, follower) = models::follower().context("cannot start")?;
    let definitions = options.definitions();
    let files = (&definitions, &options.transfers());
    let srs = storage::Repositories::new(&mut system.clone()).names().unwrap_or_else(|error| {
        log(format_args!("{error}; SRs are unknown to `xy objects` until they change"));
        Vec::new()
    });
    let core = Core::new(pool, (orders, follow, channels.clone()), files, srs);
    let core = core.context("cannot start")?;
    let core = Arc::new(core);
    core.set_workers(options.workers);
    core.set_on_host_shutdown(options.on_host_shutdown);
    for (class, name) in workers {
        let core = Arc::clone(&core);
        thread::Builder::new().name(name).spawn(move || core.work(class))?;
    }
    let follows = Arc::clone(&core);
    thread::Builder::new().name("models".to_owned()).spawn(move || follower.run(&follows))?;
    core.happened(toolstack::Event::Started);
    status::serve(status, &core).context("cannot serve the status socket")?;
    let (socket, store_socket) = (options.socket.clone(), options.store_socket.clone());
    let running = daemon::Running {
        core: Arc::clone(&core),
        system,
        channels,
        xl_conf,
        relays: local_door::Relays::default(),
        store_links: store::StoreLinks::new(store_socket.clone()),
        reports: Reports::by(Reports::program(), socket, store_socket),
        backends: traffic::Backends::default(),
    };
    if let Some(listener) = peer_listener {
        peers::serve(listener, &directory, running.clone()).context("cannot serve peers")?;
    }
    local_door::serve(listener, Arc::new(running)).context("cannot serve clients")?;
    supervision::begin(&core, watcher.turns()).context("cannot start")?;
    log(format_args!("ready, listening on {}", options.socket.display()));
    Err(watcher.run(&core).context("the watches ended"))
}

/// Lets those in who may look. Without them everything works for root.
fn open_to_group(socket: &Path) {
    if let Some(group) = local_door::group(service::Role::Viewer) {
        let opened = local_door::open_to(socket, group);
        opened.unwrap_or_else(|error| warn(format_args!("{error:#}; only root can use it")));
    }
}

/// Confinement of device models and servers of images.
fn confinement() -> Jail {
    let groups = Groups::prepare().map_err(|error| {
        warn(format_args!(
            "device models and servers of images run without limits of memory and CPU: {error}"
        ));
    });
    Jail { groups: groups.ok() }
}

/// The unit that has our socket open, so that clients wait while this daemon is restarted.
const SOCKET_UNIT: &str = "xylemd.socket";

/// Internal command with which this program executes itself to parse a kernel.
const PARSER_COMMAND: &str = "parse-kernel";

/// From now on a panic of any thread ends the process: the next daemon finds whole records, and nobody waits for a thread
/// that is gone.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn main() -> ExitCode {
    abort_on_panic();
    if std::env::args().nth(1).is_some_and(|word| word == PARSER_COMMAND) {
        return image_parser::serve();
    }
    if let Some(status) = jail::become_program(std::env::args_os()) {
        return status;
    }
    let outcome = options().and_then(|options| match options {
        Some(options) => run(&options),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log_at(Level::Error, format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
