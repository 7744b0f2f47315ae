//! A running server in a folder of its own, with the domains of its fake host.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use file_host::HostFolder;
use xen::DomId;
use xenstore::wire::MessageType;

use super::client::Connection;
use super::guest::Guest;
use super::peers::Peers;
use lab::Store;
use lab::cargo::{self, Target};

/// How long a server may take to serve.
const START_MAX: Duration = Duration::from_secs(60);

/// Where a server runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// The only CPU it may use.
    pub cpu: Option<usize>,
    /// Ahead of everything that is not real-time.
    pub is_realtime: bool,
}

/// The servers' programs.
#[derive(Clone, Debug)]
pub struct Programs {
    xylem: PathBuf,
    earlier: Option<PathBuf>,
    peers: Option<Peers>,
}

impl Programs {
    /// Builds ours and, if they are wanted, gets the others.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn prepare(stores: &[Store]) -> Result<Self> {
        let program = Target::Program("xylem-xenstored");
        cargo::build(&[program])?;
        let wants_peers = stores.iter().any(|store| matches!(store, Store::C | Store::Oxen));
        Ok(Self {
            xylem: cargo::path(program)?,
            earlier: None,
            peers: wants_peers.then(Peers::prepare).transpose()?,
        })
    }

    /// With our program of an earlier commit, from `folder`.
    #[must_use]
    pub fn with_earlier(self, folder: &Path) -> Self {
        Self { earlier: Some(folder.join("xylem-xenstored")), ..self }
    }

    /// The file of a server's program.
    ///
    /// # Errors
    /// It was not prepared.
    pub fn path_of(&self, store: Store) -> Result<PathBuf> {
        match store {
            Store::Xylem => return Ok(self.xylem.clone()),
            Store::Bare => return std::env::current_exe().context("no program of ours"),
            Store::Earlier => return self.earlier.clone().context("there is no earlier program"),
            Store::C | Store::Oxen => {}
        }
        let peers = self.peers.as_ref().context("the packaged servers were not prepared")?;
        let name = if store == Store::C { "xenstored" } else { "oxenstored" };
        Ok(peers.command(Path::new("")).1.join(name))
    }
}

/// A server; ended with this value.
#[derive(Debug)]
pub struct Daemon {
    pub store: Store,
    host: HostFolder,
    program: String,
    process: Child,
}

impl Daemon {
    /// Starts a server and waits until it answers. `extra` are options of ours.
    ///
    /// # Errors
    /// It does not start; its own words are in the error.
    pub fn start(
        programs: &Programs,
        store: Store,
        placement: Placement,
        extra: &[&str],
    ) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        // Short: a socket's path has at most 107 bytes.
        let name = format!("xylem-store-{}-{number}", std::process::id());
        // In memory, as /run is on a host.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(name);
        std::fs::create_dir_all(&folder)?;
        let host = HostFolder::open(&folder)?;

        let mut words: Vec<String> = Vec::new();
        if placement.is_realtime {
            words.extend(["chrt", "--fifo", "20"].map(str::to_owned));
        }
        if let Some(cpu) = placement.cpu {
            words.extend(["taskset".to_owned(), "--cpu-list".to_owned(), cpu.to_string()]);
        }
        let (program, arguments, environment) = invocation(programs, store, &folder, extra)?;
        // Only the server gets the shim, not what places it.
        words.push("env".to_owned());
        words.extend(environment.iter().map(|(name, value)| format!("{name}={}", value.display())));
        let program = program.to_string_lossy().into_owned();
        words.push(program.clone());
        words.extend(arguments);
        let output = std::fs::File::create(folder.join("output"))?;
        let process = Command::new(&words[0])
            .args(&words[1..])
            .env_remove("XENSTORED_PATH")
            .env_remove("NOTIFY_SOCKET")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let mut daemon = Self { store, host, program, process };
        daemon.wait_until_it_serves()?;
        Ok(daemon)
    }

    fn wait_until_it_serves(&mut self) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Ok(mut client) = self.connect()
                && client.call(MessageType::Directory, 0, b"/\0").is_ok()
            {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || started.elapsed() > START_MAX {
                let said = self.output();
                bail!("the {} server does not serve ({ended:?}); it said: {said}", self.store);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it has ended, or does so right now.
    pub fn has_died(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(200));
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// The file of its program.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// What it printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.folder().join("output")).unwrap_or_default()
    }

    pub fn folder(&self) -> &Path {
        self.host.path()
    }

    /// # Errors
    /// It does not listen any more.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(&self.folder().join("socket"))
            .with_context(|| format!("the {} server", self.store))
    }

    /// Who serves now: after a live update of ours, that is another process, which says so in the file
    /// `pid`.
    ///
    /// # Errors
    /// The file says nothing.
    pub fn serving_process(&self) -> Result<u32> {
        match std::fs::read_to_string(self.folder().join("pid")) {
            Err(_) => Ok(self.process.id()),
            Ok(text) => text.trim().parse().context("the pid file has no number"),
        }
    }

    /// CPU time that all its threads have used, from the scheduler's accounting.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&self) -> Result<Duration> {
        let mut nanoseconds = 0;
        let tasks = format!("/proc/{}/task", self.process.id());
        for task in std::fs::read_dir(&tasks).with_context(|| format!("{} is gone", self.store))? {
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
                continue;
            };
            let first = text.split_whitespace().next().unwrap_or_default();
            nanoseconds += first.parse::<u64>().context("schedstat is no number")?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Memory that is in use for it, in bytes (`VmRSS`).
    ///
    /// # Errors
    /// It is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
        Ok(kib.parse::<u64>()? * 1024)
    }

    /// How often it has polled the domains; `None` if it does not say.
    #[must_use]
    pub fn polls(&self) -> Option<u64> {
        let mut status = UnixStream::connect(self.folder().join("status")).ok()?;
        status.write_all(b"json\n").ok()?;
        let mut text = String::new();
        status.read_to_string(&mut text).ok()?;
        let (_, rest) = text.split_once("\"looks\":")?;
        rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
    }

    /// Makes a domain and what it needs to talk; the store does not know it yet.
    ///
    /// # Errors
    /// Its files cannot be made.
    pub fn create_domain(&self, domid: u16) -> Result<Guest> {
        static LIVES: AtomicU32 = AtomicU32::new(1);
        let life = LIVES.fetch_add(1, Ordering::Relaxed).into();
        let guest = file_host::Guest::create(&self.host, DomId(domid), life);
        Ok(Guest::new(guest.with_context(|| format!("cannot make domain {domid}"))?))
    }

    /// Makes a domain and introduces it.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn introduce(&self, client: &mut Connection, domid: u16) -> Result<Guest> {
        let guest = self.create_domain(domid)?;
        client.call(MessageType::Introduce, 0, format!("{domid}\x005\x007\0").as_bytes())?;
        Ok(guest)
    }

    /// Tells the server that something happened to domains (`VIRQ_DOM_EXC`).
    ///
    /// # Errors
    /// It has no event channel.
    pub fn raise(&self) -> Result<()> {
        self.host.raise_exception().context("the server has no event channel")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(serving) = self.serving_process()
            && serving != self.process.id()
            && let Some(serving) =
                i32::try_from(serving).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _gone = rustix::process::kill_process(serving, rustix::process::Signal::KILL);
        }
        // It may have ended by itself; then there is nothing to kill.
        let _ended = self.process.kill();
        let _status = self.process.wait();
        let _left = std::fs::remove_dir_all(self.folder());
    }
}

type Invocation = (PathBuf, Vec<String>, Vec<(&'static str, PathBuf)>);

fn invocation(
    programs: &Programs,
    store: Store,
    folder: &Path,
    extra: &[&str],
) -> Result<Invocation> {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    if matches!(store, Store::Xylem | Store::Earlier) {
        let mut arguments = owned(&["--no-fork", "--host"]);
        arguments.push(format!("dir:{}", folder.display()));
        // After a live update another process has to be ended.
        arguments.extend(["--pid-file".to_owned(), folder.join("pid").display().to_string()]);
        arguments.extend(owned(extra));
        let environment = vec![("XENSTORED_RUNDIR", folder.to_owned())];
        return Ok((programs.path_of(store)?, arguments, environment));
    }
    if store == Store::Bare {
        let socket = folder.join("socket").display().to_string();
        return Ok((programs.path_of(store)?, vec![super::BARE_STORE.to_owned(), socket], vec![]));
    }
    let peers = programs.peers.as_ref().context("the packaged servers were not prepared")?;
    let (environment, bin) = peers.command(folder);
    if store == Store::C {
        // No limit on the memory of what a domain owns: a bench gives one 100k nodes.
        let arguments = owned(&["-N", "--quota", "memory=0"]);
        return Ok((bin.join("xenstored"), arguments, environment));
    }
    let configuration = folder.join("oxenstored.conf");
    let place = folder.display();
    let lines = [
        format!("xenstored-kva = {place}/ring.0"),
        format!("xenstored-port = {place}/port.0"),
        format!("xenstored-log-file = {place}/log"),
        format!("access-log-file = {place}/access-log"),
        "persistent = false".to_owned(),
        "quota-activate = false".to_owned(),
    ];
    std::fs::write(&configuration, lines.join("\n") + "\n")?;
    let mut arguments = owned(&["--no-fork", "--no-access-log", "--config-file"]);
    arguments.push(configuration.to_string_lossy().into_owned());
    Ok((bin.join("oxenstored"), arguments, environment))
}
