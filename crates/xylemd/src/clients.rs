//! Clients: a thread each, which reads requests and asks the core until they are answered.

mod vms;

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::{Answer, Request, Target, Targets, Wait};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use storage_host::LinuxSystem;
use toolstack::config::{DiskConfig, VmConfig};
use toolstack::layout::DeviceRef;
use toolstack::plan::{Start, Unplug, plan_create, plan_plug};
use toolstack::{
    Asker, Device, DomainRow, Fallback, MediumChange, PlanOf, Reply, ReplyWhen, ShutdownRequest,
    Told, Wanted, xlcfg,
};
use xen::{DomId, Uuid};

use crate::core::{Answered, Core, Ended, Progress};
use crate::{devices, host, render, storage_requests};

/// Connections served at a time; further ones are told so.
const CLIENTS_MAX: usize = 256;
/// Threads that wait for a client while there is none. A thread that has to be made first keeps it waiting.
const THREADS_WAITING: usize = 4;
/// How long a console may take to get its terminal from xenconsoled.
const CONSOLE_WAIT: Duration = Duration::from_secs(10);

/// How long the lock is waited for: a program that a killed daemon was just starting has it until its exec.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Makes sure that no other daemon serves this socket, now or later: of several that are started at once one gets the lock.
/// It is held as long as the file is open.
pub(crate) fn lock(socket: &Path) -> Result<File> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let path = socket.with_extension("lock");
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => bail!("another xylemd serves {} already", socket.display()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Binds the socket. Whoever does has the [`lock`].
pub(crate) fn listen(path: &Path) -> Result<UnixListener> {
    // A daemon of an earlier release has no lock.
    if UnixStream::connect(path).is_ok() {
        bail!("another xylemd serves {} already", path.display());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // Nobody answers there: what is left is a dead daemon's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {}", path.display()))?;
    Ok(listener)
}

/// Accepts clients, on threads that serve them: whoever is accepted finds one that waits for work.
pub(crate) fn serve(
    listener: UnixListener,
    core: &Arc<Core>,
    system: &LinuxSystem,
) -> std::io::Result<()> {
    let door = Arc::new(Door {
        listener,
        core: Arc::clone(core),
        system: system.clone(),
        waiting: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
    });
    (0..THREADS_WAITING).try_for_each(|_| add_thread(&door))
}

/// Where clients come in.
struct Door {
    listener: UnixListener,
    core: Arc<Core>,
    system: LinuxSystem,
    /// Threads that wait for a client, or are about to.
    waiting: AtomicUsize,
    /// Clients that are being served.
    open: AtomicUsize,
}

fn add_thread(door: &Arc<Door>) -> std::io::Result<()> {
    door.waiting.fetch_add(1, Ordering::Relaxed);
    let door = Arc::clone(door);
    thread::Builder::new().name("client".to_owned()).spawn(move || welcome(&door)).map(drop)
}

/// Serves one client after another, until enough other threads wait for the next.
fn welcome(door: &Arc<Door>) {
    loop {
        let Ok((stream, _)) = door.listener.accept() else {
            // Out of descriptors: some client has to leave first.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if door.open.fetch_add(1, Ordering::Relaxed) < CLIENTS_MAX {
            if door.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                // Nobody waits at the door any more. Without a further thread the next client waits for this
                // one, and that is all that goes wrong.
                let _later = add_thread(door);
            }
            // A connection that breaks ends the client, nothing else.
            let (core, system) = (&*door.core, &door.system);
            let asker = socket_peercred(&stream)
                .ok()
                .map(|peer| Asker { uid: peer.uid.as_raw(), pid: peer.pid.as_raw_nonzero().get() });
            let _broken = Client { asker, stream: &stream, core, system }.run();
            door.open.fetch_sub(1, Ordering::Relaxed);
            if door.waiting.fetch_add(1, Ordering::Relaxed) >= THREADS_WAITING {
                door.waiting.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        } else {
            door.open.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{CLIENTS_MAX} clients are connected already; try again");
            let refusal = api::encode_answer(&Answer::Error(message));
            let _gone = (&stream).write_all(refusal.as_bytes());
        }
    }
}

struct Client<'a> {
    /// Who is at the other end, if the kernel says so.
    asker: Option<Asker>,
    stream: &'a UnixStream,
    core: &'a Core,
    system: &'a LinuxSystem,
}

/// Why a request has no result: the connection is gone, or one line for the client.
enum Failed {
    Gone,
    Told(String),
}

impl From<std::io::Error> for Failed {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

impl From<Ended> for Failed {
    fn from(Ended: Ended) -> Self {
        Self::Gone
    }
}

impl Client<'_> {
    fn run(&mut self) -> std::io::Result<()> {
        let mut reader = BufReader::new(self.stream);
        loop {
            let mut line = Vec::new();
            let limit = api::LINE_BYTES_MAX as u64 + 1;
            if reader.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let answer = match api::decode_request(&line) {
                Ok(request) => match self.answer(request) {
                    Ok(reply) => Answer::Ok(reply),
                    Err(Failed::Told(message)) => Answer::Error(message),
                    Err(Failed::Gone) => return Ok(()),
                },
                Err(error) => Answer::Error(error.to_string()),
            };
            self.send(&answer)?;
        }
    }

    fn send(&self, answer: &Answer) -> std::io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(api::encode_answer(answer).as_bytes())
    }

    fn ask(&self, request: toolstack::Request) -> Result<Reply, Failed> {
        told(self.core.ask(self.asker, request, Progress::Unwanted, |_| Ok(()))?)
    }

    /// As `ask`, where the client hears how far it is, if it wants that.
    fn ask_telling(
        &self,
        vm: &str,
        request: toolstack::Request,
        progress: bool,
    ) -> Result<Reply, Failed> {
        let progress = if progress { Progress::Wanted } else { Progress::Unwanted };
        told(
            self.core.ask(self.asker, request, progress, |far| {
                self.tell_far(vm, far).map_err(|_| Ended)
            })?,
        )
    }

    fn tell_far(&self, vm: &str, far: &toolstack::Progress) -> std::io::Result<()> {
        self.send(&Answer::Progress(render::progress(vm, far)))
    }

    fn answer(&mut self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::Ping => Ok(api::Reply::Pong(api::Pong {
                release: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
            })),
            Request::Create(create) => self.create(&create),
            Request::Check(create) => self.check(&create).map(Box::new).map(api::Reply::Checked),
            Request::List { targets } => {
                let rows = self.rows(&targets)?;
                Ok(api::Reply::Domains(rows.iter().map(render::domain_row).collect()))
            }
            Request::Configs { targets } => {
                let rows = self.rows(&targets)?;
                let config = |row: &DomainRow| match &row.config {
                    Some(vm) => {
                        render::listed_config(Some(row.info.domid.0), Some(row.info.handle), vm)
                    }
                    None => render::listed_foreign(row),
                };
                Ok(api::Reply::Configs(rows.iter().map(config).collect()))
            }
            Request::Adopt(adopt) => self.adopt(adopt),
            Request::Destroy { target } => {
                self.ask(toolstack::Request::Destroy { target: target.0 })?;
                Ok(api::Reply::Done)
            }
            Request::Shutdown { targets, wait, acpi, progress } => {
                self.shut_down(targets, wait, ShutdownRequest::Poweroff, acpi, progress)
            }
            Request::Reboot { targets, wait, acpi } => {
                self.shut_down(targets, wait, ShutdownRequest::Reboot, acpi, false)
            }
            Request::Pause { target } => {
                self.ask(toolstack::Request::Pause { target: target.0 })?;
                Ok(api::Reply::Done)
            }
            Request::Unpause { target } => {
                self.ask(toolstack::Request::Unpause { target: target.0 })?;
                Ok(api::Reply::Done)
            }
            Request::Domid { name } => {
                let rows = self.rows(&[])?;
                let row = rows.iter().find(|row| row.name.as_deref() == Some(name.as_str()));
                let row = row.ok_or_else(|| no_such_domain(&name))?;
                Ok(api::Reply::Domid(row.info.domid.0))
            }
            Request::Domname { domid } => {
                let name = self.find(Wanted::Number(DomId(domid)))?.and_then(|row| row.name);
                Ok(api::Reply::Domname(name.ok_or_else(|| no_such_domain(&domid.to_string()))?))
            }
            Request::Console { target } => self.console(target),
            Request::BlockList { targets } => {
                let mut rows = Vec::new();
                for target in targets {
                    let (domid, readings) = self.devices(target)?;
                    rows.extend(render::block_rows(domid.0, &readings));
                }
                Ok(api::Reply::Blocks(rows))
            }
            Request::NetworkList { targets } => {
                let mut rows = Vec::new();
                for target in targets {
                    let (_, readings) = self.devices(target)?;
                    rows.extend(render::network_rows(&readings));
                }
                Ok(api::Reply::Networks(rows))
            }
            Request::VcpuList { targets } => self.vcpus(&targets),
            Request::Uptime { targets } => self.uptime(&targets),
            Request::BlockAttach { target, disk, cwd, progress } => {
                let device = devices::disk(&disk, Path::new(&cwd)).map_err(Failed::Told)?;
                self.plug(target, device, progress)
            }
            Request::BlockDetach { target, disk, force, progress } => {
                let device = devices::disk_ref(&disk).map_err(Failed::Told)?;
                self.unplug(target, device, force, progress)
            }
            Request::CdInsert { target, drive, path, cwd, force } => {
                let device = devices::disk_ref(&drive).map_err(Failed::Told)?;
                let spec = format!("format=raw,vdev={drive},access=r,devtype=cdrom,target={path}");
                let medium = devices::disk(&spec, Path::new(&cwd)).map_err(Failed::Told)?;
                let Device::Disk(medium) = medium else { unreachable!("a disk was read") };
                self.change_medium(target, device, Some(medium), force)
            }
            Request::CdEject { target, drive, force } => {
                let drive = devices::disk_ref(&drive).map_err(Failed::Told)?;
                self.change_medium(target, drive, None, force)
            }
            Request::NetworkAttach { target, vif } => {
                let (configured, uuid) = self.config_and_uuid(&target)?;
                let device = devices::vif(&vif, &configured).map_err(Failed::Told)?;
                // Whoever has the name by now is not meant.
                self.plug(Target(uuid.to_string()), device, false)
            }
            Request::NetworkDetach { target, vif, force } => {
                let (configured, uuid) = self.config_and_uuid(&target)?;
                let device = devices::vif_ref(&vif, &configured, uuid).map_err(Failed::Told)?;
                self.unplug(Target(uuid.to_string()), device, force, false)
            }
            Request::Explain { target } => {
                text(self.ask(toolstack::Request::Explain { target: target.0 })?)
            }
            Request::Plan { of } => self.plan(of),
            Request::Limits(changes) => self.limits(changes),
            Request::Info => match self.ask(toolstack::Request::HostInfo)? {
                Reply::HostInfo(info) => Ok(api::Reply::Info(api::Info(render::host_info(&info)))),
                other => Err(unexpected(&other)),
            },
            Request::Activity => Ok(api::Reply::Activity(self.core.activity())),
            Request::Define(define) => self.define(&define),
            Request::Undefine { target } => {
                self.ask(toolstack::Request::Undefine { target: target.0 })?;
                Ok(api::Reply::Done)
            }
            Request::Vms => self.vms(),
            Request::Start { target, paused, progress } => self.start(&target.0, paused, progress),
            Request::StartAll => self.start_all(),
            Request::Events { since, wait } => self.events(since, wait),
            Request::WaitFor { target, state, timeout_s } => {
                self.wait_for(&target.0, &state, timeout_s)
            }
            Request::Operations => match self.ask(toolstack::Request::Operations)? {
                Reply::Operations { now, operations } => {
                    let rows = operations.iter().map(render::operation_row).collect();
                    Ok(api::Reply::Operations(api::Operations { now_ns: now.0, rows }))
                }
                other => Err(unexpected(&other)),
            },
            Request::Trace { target } => match self.ask(toolstack::Request::Trace { target })? {
                Reply::Trace { now, trace } => {
                    Ok(api::Reply::Trace(render::operation_trace(now, &trace)))
                }
                other => Err(unexpected(&other)),
            },
            Request::Storage(request) => storage_requests::answer(self.core, self.system, request)
                .map_err(|error| Failed::Told(error.to_string())),
            Request::Counters => {
                let cost = render::cost(&self.core.totals());
                Ok(api::Reply::Counters(api::Counters { cost, ..Default::default() }))
            }
        }
    }

    fn plug(
        &self,
        Target(target): Target,
        device: Device,
        progress: bool,
    ) -> Result<api::Reply, Failed> {
        let request = toolstack::Request::Plug { target: target.clone(), device: Box::new(device) };
        self.ask_telling(&target, request, progress)?;
        Ok(api::Reply::Done)
    }

    fn change_medium(
        &self,
        Target(target): Target,
        drive: DeviceRef,
        medium: Option<DiskConfig>,
        force: bool,
    ) -> Result<api::Reply, Failed> {
        let how = if force { Unplug::Forced } else { Unplug::Clean };
        let change = Box::new(MediumChange { drive, medium, how });
        self.ask(toolstack::Request::ChangeMedium { target, change })?;
        Ok(api::Reply::Done)
    }

    fn unplug(
        &self,
        Target(target): Target,
        device: DeviceRef,
        force: bool,
        progress: bool,
    ) -> Result<api::Reply, Failed> {
        let how = if force { Unplug::Forced } else { Unplug::Clean };
        let request = toolstack::Request::Unplug { target: target.clone(), device, how };
        self.ask_telling(&target, request, progress)?;
        Ok(api::Reply::Done)
    }

    fn config_and_uuid(&self, target: &Target) -> Result<(Arc<VmConfig>, Uuid), Failed> {
        let row = self.rows(std::slice::from_ref(target))?.pop();
        let found = row.and_then(|row| Some((row.config?, row.info.handle)));
        found.ok_or_else(|| Failed::Told(format!("{}: not managed by Xylem", target.0)))
    }

    fn plan(&self, planned: api::Planned) -> Result<api::Reply, Failed> {
        let (Target(target), what) = match planned {
            api::Planned::Create(create) => {
                let plan = plan_create(&self.parsed(&create)?, Start::Running);
                return Ok(api::Reply::Text(plan.to_string()));
            }
            api::Planned::BlockAttach { disk } => {
                let device = devices::disk(&disk, Path::new("/")).map_err(Failed::Told)?;
                return Ok(api::Reply::Text(plan_plug(device.id()).to_string()));
            }
            api::Planned::NetworkAttach { vif } => {
                let vif = xlcfg::parse_vif(&vif, 0).map_err(Failed::Told)?;
                let plan = plan_plug(Device::Vif(vif).id());
                return Ok(api::Reply::Text(plan.to_string()));
            }
            api::Planned::Reboot { target } => (target, PlanOf::Reboot),
            api::Planned::Shutdown { target } | api::Planned::Destroy { target } => {
                (target, PlanOf::Teardown)
            }
            api::Planned::BlockDetach { target, disk, force } => {
                let how = if force { Unplug::Forced } else { Unplug::Clean };
                let device = devices::disk_ref(&disk).map_err(Failed::Told)?;
                (target, PlanOf::Unplug(device, how))
            }
        };
        text(self.ask(toolstack::Request::Plan { target, what })?)
    }

    /// What is given is changed; all is told.
    fn limits(&self, changes: api::LimitChanges) -> Result<api::Reply, Failed> {
        let told = |reply| match reply {
            Reply::Limits { limits, waiting, held } => Ok((limits, waiting, held)),
            other => Err(unexpected(&other)),
        };
        let ask = |wanted| self.ask(toolstack::Request::Limits { wanted }).and_then(told);
        let (mut limits, mut waiting, mut held) = ask(None)?;
        if changes != api::LimitChanges::default() {
            devices::change(&mut limits, changes);
            (limits, waiting, held) = ask(Some(limits))?;
        }
        Ok(api::Reply::Limits(render::limits(&limits, waiting, held)))
    }

    fn create(&mut self, create: &api::Create) -> Result<api::Reply, Failed> {
        if create.dry_run {
            let checked = self.check(create)?;
            return match checked.faults.into_iter().next() {
                Some(fault) => Err(Failed::Told(fault)),
                None => Ok(api::Reply::Configs(checked.config.into_iter().collect())),
            };
        }
        let config = self.parsed(create)?;
        let start = if create.paused { Start::Paused } else { Start::Running };
        let fresh_uuid = random_uuid().map_err(|error| Failed::Told(format!("{error:#}")))?;
        let vm = config.name.clone();
        let config = Box::new(config);
        let request = toolstack::Request::Create { config, fresh_uuid, start };
        match self.ask_telling(&vm, request, create.progress)? {
            Reply::Created(created) => Ok(api::Reply::Created(render::create_report(&created))),
            // Destroyed by somebody else while it was being made.
            other => Err(unexpected(&other)),
        }
    }

    /// All that is wrong with a configuration, whether its text or this host says so.
    fn check(&self, create: &api::Create) -> Result<api::Checked, Failed> {
        let api::Create { file, config_text, overrides, strict, .. } = create;
        let source = xlcfg::Source { file, text: config_text, overrides };
        let reading = xlcfg::read(source, strictness(*strict));
        let mut faults: Vec<String> = reading.faults.iter().map(ToString::to_string).collect();
        let mut listed = None;
        if let Some(mut config) = reading.config {
            resolve_paths(&mut config, Path::new(&create.cwd));
            listed = Some(render::listed_config(None, None, &config));
            let request = toolstack::Request::Check {
                config: Box::new(config),
                fresh_uuid: random_uuid().map_err(|error| Failed::Told(format!("{error:#}")))?,
                is_whole: faults.is_empty(),
            };
            match self.ask(request)? {
                Reply::Checked { faults: more } => faults.extend(more),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(api::Checked { faults, warnings: reading.warnings, config: listed })
    }

    /// The VM that a client's file describes.
    fn parsed(&self, create: &api::Create) -> Result<VmConfig, Failed> {
        let api::Create { file, config_text, overrides, cwd, strict, warnings, .. } = create;
        let source = xlcfg::Source { file, text: config_text, overrides };
        self.configuration(source, cwd, *strict, *warnings)
    }

    /// What a client's file says; it hears the warnings if it wants them.
    fn configuration(
        &self,
        source: xlcfg::Source<'_>,
        cwd: &str,
        strict: bool,
        warnings: bool,
    ) -> Result<VmConfig, Failed> {
        let reading = xlcfg::read(source, strictness(strict));
        for warning in reading.warnings.into_iter().filter(|_| warnings) {
            self.send(&Answer::Warning(warning))?;
        }
        if let Some(fault) = reading.faults.first() {
            let more = match reading.faults.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more; `xy check` shows all)"),
            };
            return Err(Failed::Told(format!("{fault}{more}")));
        }
        let mut config = reading.config.expect("what has no fault can be read");
        resolve_paths(&mut config, Path::new(cwd));
        Ok(config)
    }

    /// The rows of a listing: those of `targets` in their order, or all.
    fn rows(&self, targets: &[Target]) -> Result<Vec<DomainRow>, Failed> {
        if let [Target(target)] = targets
            && let Some(wanted) = wanted(target)
        {
            let row = self.find(wanted)?.ok_or_else(|| no_such_domain(target))?;
            return Ok(vec![row]);
        }
        let listing = match self.ask(toolstack::Request::List)? {
            Reply::Domains(listing) => listing,
            other => return Err(unexpected(&other)),
        };
        let rows = &listing.rows;
        if targets.is_empty() {
            return Ok(rows.clone());
        }
        let row_of = |Target(target): &Target| {
            let domid = target.parse().ok().map(DomId);
            let uuid: Option<Uuid> = target.parse().ok();
            rows.iter()
                .find(|row| match domid {
                    Some(domid) => row.info.domid == domid,
                    None => {
                        row.name.as_deref() == Some(target.as_str())
                            || uuid == Some(row.info.handle)
                    }
                })
                .cloned()
                .ok_or_else(|| no_such_domain(target))
        };
        targets.iter().map(row_of).collect()
    }

    /// One domain, without a list of all.
    fn find(&self, wanted: Wanted) -> Result<Option<DomainRow>, Failed> {
        match self.ask(toolstack::Request::Find { wanted })? {
            Reply::Found(row) => Ok(row.map(|row| *row)),
            other => Err(unexpected(&other)),
        }
    }

    fn shut_down(
        &mut self,
        targets: Targets,
        wait: Wait,
        how: ShutdownRequest,
        acpi: bool,
        progress: bool,
    ) -> Result<api::Reply, Failed> {
        let targets = match targets {
            Targets::These(targets) => {
                toolstack::Targets::These(targets.into_iter().map(|Target(it)| it).collect())
            }
            Targets::All => toolstack::Targets::All,
        };
        let reply = match wait {
            Wait::Asked => ReplyWhen::Asked,
            Wait::Shutdown | Wait::Gone => ReplyWhen::Gone,
        };
        let fallback = if acpi { Fallback::Acpi } else { Fallback::Refuse };
        let request = toolstack::Request::ShutdownEach { targets, how, fallback, reply };
        let wanted = if progress { Progress::Wanted } else { Progress::Unwanted };
        let answered = self.core.begin(self.asker, request, wanted);
        let mut vm = String::new();
        loop {
            match answered.recv().map_err(|_| Failed::Gone)? {
                Answered::Reply(reply) => return told(reply).map(|_| api::Reply::Done),
                Answered::Told(told) => {
                    if let Told::Waiting { vm: name, .. } = &told {
                        vm.clone_from(name);
                    }
                    for answer in render::told(told, progress) {
                        self.send(&answer)?;
                    }
                }
                Answered::Progress(far) => self.tell_far(&vm, &far)?,
                Answered::Started { .. } => {}
            }
        }
    }

    /// xenconsoled makes the terminal some time after the domain was introduced.
    fn console(&self, Target(target): Target) -> Result<api::Reply, Failed> {
        let deadline = Instant::now() + CONSOLE_WAIT;
        let uuid = self.resolve(&target)?.to_string();
        loop {
            match self.ask(toolstack::Request::Console { target: uuid.clone() })? {
                Reply::Console { domid, tty: Some(tty) } => {
                    return Ok(api::Reply::Console(api::Console { domid: domid.0, tty }));
                }
                Reply::Console { .. } if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                Reply::Console { .. } => {
                    return Err(Failed::Told(format!(
                        "{target}: no terminal after {} s; is xenconsoled running?",
                        CONSOLE_WAIT.as_secs()
                    )));
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The VM that is meant, for requests in several parts.
    fn resolve(&self, target: &str) -> Result<Uuid, Failed> {
        match self.ask(toolstack::Request::Resolve { target: target.to_owned() })? {
            Reply::Resolved { uuid, .. } => Ok(uuid),
            other => Err(unexpected(&other)),
        }
    }

    fn devices(
        &self,
        Target(target): Target,
    ) -> Result<(DomId, Vec<toolstack::work::DeviceReading>), Failed> {
        match self.ask(toolstack::Request::Devices { target })? {
            Reply::Devices { domid, devices } => Ok((domid, devices)),
            other => Err(unexpected(&other)),
        }
    }

    fn vcpus(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let rows = self.rows(targets)?;
        match self.ask(toolstack::Request::Vcpus { of: identities(&rows) })? {
            Reply::Vcpus(readings) => {
                let of_row = |row| render::vcpu_rows(row, &readings);
                Ok(api::Reply::Vcpus(rows.iter().flat_map(of_row).collect()))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn uptime(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let rows = self.rows(targets)?;
        match self.ask(toolstack::Request::StartTimes { of: identities(&rows) })? {
            Reply::StartTimes(times) => {
                let of_row = |row: &DomainRow| api::DomainRow {
                    started_unix_s: times.get(&row.info.domid).copied(),
                    ..render::domain_row(row)
                };
                Ok(api::Reply::Domains(rows.iter().map(of_row).collect()))
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn text(reply: Reply) -> Result<api::Reply, Failed> {
    match reply {
        Reply::Text(text) => Ok(api::Reply::Text(text)),
        other => Err(unexpected(&other)),
    }
}

/// A reply that is none is the operator's to read.
fn told(reply: Reply) -> Result<Reply, Failed> {
    match reply {
        Reply::Failed(message) => Err(Failed::Told(message)),
        reply => Ok(reply),
    }
}

/// A target that is a domain's number or a VM's UUID, and no name.
fn wanted(target: &str) -> Option<Wanted> {
    let number = || target.parse().ok().map(DomId).map(Wanted::Number);
    number().or_else(|| target.parse().ok().map(Wanted::Handle))
}

fn no_such_domain(target: &str) -> Failed {
    Failed::Told(format!("{target}: no such domain; `xy list` shows them all"))
}

fn unexpected(reply: &Reply) -> Failed {
    match reply {
        Reply::Gone { .. } => Failed::Told("the domain was destroyed meanwhile".to_owned()),
        other => Failed::Told(format!("unexpected reply: {other:?}")),
    }
}

/// Which domains the rows are about.
fn identities(rows: &[DomainRow]) -> Vec<(DomId, Uuid)> {
    rows.iter().map(|row| (row.info.domid, row.info.handle)).collect()
}

fn strictness(strict: bool) -> xlcfg::Strictness {
    if strict { xlcfg::Strictness::Strict } else { xlcfg::Strictness::Tolerant }
}

/// Relative paths begin where the client is.
fn resolve_paths(config: &mut VmConfig, cwd: &Path) {
    let resolve = |path: &mut String| *path = host::absolute(cwd, path);
    config.kernel.iter_mut().for_each(resolve);
    config.ramdisk.iter_mut().for_each(resolve);
    if let Some(hvm) = &mut config.hvm {
        for path in [&mut hvm.loader, &mut hvm.bios_path, &mut hvm.model] {
            path.iter_mut().for_each(resolve);
        }
    }
    for disk in &mut config.disks {
        if !disk.is_empty() && storage::VdiName::parse(&disk.target).is_none() {
            resolve(&mut disk.target);
        }
    }
}

/// A version 4 UUID.
fn random_uuid() -> Result<Uuid> {
    let mut bytes = [0; 16];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if length.context("no random numbers for a UUID")? < bytes.len() {
        bail!("too few random numbers for a UUID");
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(Uuid(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_daemons_that_are_started_at_once_one_serves() {
        let folder = std::env::temp_dir().join(format!("xylemd-lock-{}", std::process::id()));
        let socket = folder.join("xylemd.sock");
        let start = |_| {
            let socket = socket.clone();
            thread::spawn(move || lock(&socket).and_then(|lock| Ok((lock, listen(&socket)?))))
        };
        let started: Vec<_> = (0..16)
            .map(start)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect();
        let refused = started.iter().filter_map(|it| it.as_ref().err());
        let expected = format!("another xylemd serves {} already", socket.display());
        assert!(refused.clone().all(|it| it.to_string() == expected), "{started:?}");
        assert_eq!(refused.count(), 15);
        // The next one takes over when it has ended.
        drop(started);
        lock(&socket).and_then(|_| listen(&socket)).unwrap();
        // Nobody's file is opened through a link.
        std::fs::remove_file(socket.with_extension("lock")).unwrap();
        std::os::unix::fs::symlink("/dev/null", socket.with_extension("lock")).unwrap();
        assert!(lock(&socket).unwrap_err().to_string().starts_with("cannot open"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
