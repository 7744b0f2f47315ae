//! Device models: processes that outlive this daemon and are found by their command lines.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jail::Jail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, pidfd_open,
    pidfd_send_signal, prlimit, setpriority_process, waitid,
};
use storage::HostError;
use toolstack::Event;
use toolstack::device_model::{
    EMPTY_FOLDER, Launch, OwnModel, Process, USER_FIRST, monitor_socket, parse_command_line,
};
use xen::DomId;

use crate::core::Core;
use crate::host::refusal;

/// Largest file that a device model may write. A guest can make QEMU log without end.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// A longer log is truncated at the next start.
const LOG_BYTES_KEPT: u64 = 1 << 20;
/// Timeout for the exit of a killed device model: the kernel flushes its disks' caches.
const END_TIME: Duration = Duration::from_secs(30);
/// Bytes at the end of a log that are searched for the last line.
const LAST_BYTES: u64 = 4096;

/// Starts a device model.
pub(crate) fn start(
    program: &str,
    launch: &Launch,
    jail: Option<&Jail>,
) -> Result<Process, HostError> {
    if !Path::new(program).exists() {
        return Err(HostError::Missing);
    }
    let told = |what: &str, error: io::Error| HostError::Refused(format!("{what}: {error}"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(EMPTY_FOLDER)
        .map_err(|error| told(EMPTY_FOLDER, error))?;
    let sockets = monitor_socket(DomId::DOM0);
    if let Some(folder) = Path::new(&sockets).parent() {
        fs::create_dir_all(folder).map_err(|error| told(&sockets, error))?;
    }
    let log = open_log(&launch.log).map_err(|error| told(&launch.log, error))?;
    let errors = log.try_clone().map_err(|error| told(&launch.log, error))?;
    let input = if launch.input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut command = match jail {
        Some(jail) => {
            let (_, domid) = parse_command_line(&launch.arguments).unwrap_or_default();
            let kind = match (launch.is_server, launch.passes_devices) {
                (true, _) => jail::Kind::DeviceServer,
                (false, true) => jail::Kind::PassthroughModel,
                (false, false) => jail::Kind::DeviceModel,
            };
            jail.command(kind, &format!("model-{domid}"), program)
        }
        None => Command::new(program),
    };
    let mut child = command
        .args(&launch.arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .current_dir("/")
        // A signal to this daemon's process group must not kill it.
        .process_group(0)
        .stdin(input)
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| told(program, error))?;
    if let (Some(text), Some(mut pipe)) = (&launch.input, child.stdin.take()) {
        // A short text fits into the pipe. If the process exits without reading it, the log says
        // why.
        let _closed = pipe.write_all(text.as_bytes());
    }
    let pid = Pid::from_child(&child);
    // Do not inherit the daemon's priority; limit the log.
    let _ended = setpriority_process(Some(pid), 0);
    let limit = Rlimit { current: Some(LOG_BYTES_MAX), maximum: Some(LOG_BYTES_MAX) };
    let _ended = prlimit(Some(pid), Resource::Fsize, limit);
    match started(child.id()) {
        // Its exit is waited for by the follower.
        Ok(started) => Ok(Process { pid: child.id(), started }),
        Err(error) => {
            let _ended = child.kill().and_then(|()| child.wait());
            Err(told(program, error))
        }
    }
}

fn open_log(path: &str) -> io::Result<File> {
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() > LOG_BYTES_KEPT {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Start time of a process, in ticks since boot. Source: `proc(5)`, field 22 of `stat`.
fn started(pid: u32) -> io::Result<u64> {
    const FIELDS_BEFORE: usize = 19;
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before may contain anything, also parentheses.
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks = fields.nth(FIELDS_BEFORE).and_then(|field| field.parse().ok());
    ticks.ok_or_else(|| io::Error::other("an unknown form of /proc/PID/stat"))
}

/// A pidfd of this very process; `None` if it has exited.
fn open(process: Process) -> io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
        other => other?,
    };
    // Checked after it was opened: from here on the pidfd is that process's.
    Ok(started(process.pid).is_ok_and(|it| it == process.started).then_some(handle))
}

/// Whether it has not ended.
pub(crate) fn runs(process: Process) -> io::Result<bool> {
    let Some(handle) = open(process)? else { return Ok(false) };
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&Timespec::default()))?;
    Ok(ended == 0)
}

/// Kills a device model and waits for its exit.
pub(crate) fn end(process: Process) -> Result<(), HostError> {
    let Some(handle) = open(process).map_err(|error| refusal(&error))? else { return Ok(()) };
    match pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(HostError::Refused(errno.to_string())),
    }
    let deadline = Instant::now() + END_TIME;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(HostError::Busy),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(HostError::Refused(errno.to_string())),
        }
    }
}

/// All running device models of ours.
pub(crate) fn all() -> Result<Vec<OwnModel>, HostError> {
    let mut models = Vec::new();
    for entry in fs::read_dir("/proc").map_err(|error| refusal(&error))? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes that exit meanwhile do not count.
        models.extend(identify(pid, &entry.path()));
    }
    Ok(models)
}

/// Identifies a process as a device model of ours.
fn identify(pid: u32, folder: &Path) -> Option<OwnModel> {
    let began = started(pid).ok()?;
    let line = fs::read(folder.join("cmdline")).ok()?;
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    let (uuid, domid) = parse_command_line(&words)?;
    let is_ours = match user(folder)? {
        // Only root can start a process with this user.
        uid if uid == USER_FIRST + u32::from(domid.0) => true,
        // A compromised one claims another domain.
        uid if uid >= USER_FIRST => false,
        // Root, or the user `device_model_user`. Reading that process's descriptors needs
        // CAP_SYS_PTRACE.
        _ => writes_root_s_log(folder),
    };
    // All of this was one process's only if the pid was not reused meanwhile.
    let is_the_same = started(pid).is_ok_and(|it| it == began);
    (is_ours && is_the_same).then_some(OwnModel {
        process: Process { pid, started: began },
        uuid,
        domid,
    })
}

/// The user of a process, if all its user IDs are equal. The owner of its folder in /proc is only
/// one of them.
fn user(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut ids = ids.split_whitespace().map(str::parse);
    let first = ids.next()?.ok()?;
    ids.all(|id| id == Ok(first)).then_some(first)
}

/// Whether a process's standard output is open for writing on a file of root's that only root may
/// open for writing. Every device model inherited its log in this way; no other user's process can
/// open one, and a set-user-ID program has its caller's output.
///
/// Reading this needs ptrace access to the process: root without capabilities that this daemon
/// lacks.
fn writes_root_s_log(folder: &Path) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o002;
    const OPEN_FOR_WRITING: u32 = 0o200;
    let output = folder.join("fd/1");
    let is_written =
        fs::symlink_metadata(&output).is_ok_and(|link| link.mode() & OPEN_FOR_WRITING != 0);
    let is_root_s = fs::metadata(&output).is_ok_and(|file| {
        file.is_file() && file.uid() == 0 && file.mode() & WRITABLE_BY_OTHERS == 0
    });
    is_written && is_root_s
}

/// Handle to request notifications of exits.
pub(crate) struct Follow {
    orders: Sender<(Process, String)>,
    bell: UnixStream,
}

impl Follow {
    pub(crate) fn follow(&self, process: Process, log: String) {
        // If the follower has ended, the daemon is exiting.
        let _ended = self.orders.send((process, log));
        let _full = (&self.bell).write(b"!");
    }
}

/// The thread that waits for the exit of all device models.
pub(crate) struct Follower {
    orders: Receiver<(Process, String)>,
    heard: UnixStream,
}

struct Followed {
    process: Process,
    log: String,
    handle: OwnedFd,
}

/// The two ends.
pub(crate) fn follower() -> Result<(Follow, Follower)> {
    let (bell, heard) = UnixStream::pair().context("no socket pair")?;
    for end in [&bell, &heard] {
        end.set_nonblocking(true)?;
    }
    let (sender, orders) = mpsc::channel();
    Ok((Follow { orders: sender, bell }, Follower { orders, heard }))
}

impl Follower {
    /// Runs forever.
    pub(crate) fn run(self, core: &Core) {
        let mut followed: Vec<Followed> = Vec::new();
        loop {
            let mut rings = [0; 64];
            while (&self.heard).read(&mut rings).is_ok_and(|n| n == rings.len()) {}
            for (process, log) in self.orders.try_iter() {
                match open(process) {
                    Ok(Some(handle)) => followed.push(Followed { process, log, handle }),
                    _ => tell(core, process, &log, "has ended"),
                }
            }
            let mut fds = vec![PollFd::new(&self.heard, PollFlags::IN)];
            fds.extend(followed.iter().map(|it| PollFd::new(&it.handle, PollFlags::IN)));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let ended: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut ended = ended.into_iter();
            followed.retain(|it| {
                let is_over = ended.next().unwrap_or_default();
                if is_over {
                    tell(core, it.process, &it.log, &ending(&it.handle));
                }
                !is_over
            });
        }
    }
}

/// Exit status of a process, if it was our child.
fn ending(handle: &OwnedFd) -> String {
    let id = WaitId::PidFd(handle.as_fd());
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(id, options) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("ended with status {code}"),
            (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
        },
        _ => "has ended".to_owned(),
    }
}

fn tell(core: &Core, process: Process, log: &str, how: &str) {
    let how = match last_line(log) {
        Ok(Some(words)) => format!("{how}; the last line of {log}: {words}"),
        _ => how.to_owned(),
    };
    core.happened(Event::ModelEnded { process, how });
}

/// The last non-empty line of a file.
fn last_line(path: &str) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(LAST_BYTES)))?;
    let mut end = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut end)?;
    let text = String::from_utf8_lossy(&end);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    // A guest can influence QEMU's output: escape control characters.
    Ok(line.map(|line| line.escape_debug().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(script: &str, log: &str) -> Launch {
        let tag = "null,id=xylem-07070707-0707-0707-0707-070707070707";
        let words = ["-c", script, "qemu", "-xen-domid", "3", "-chardev", tag];
        Launch {
            programs: vec!["/bin/sh".to_owned()],
            arguments: words.map(str::to_owned).to_vec(),
            input: Some("secret".to_owned()),
            state: None,
            is_server: false,
            passes_devices: false,
            log: log.to_owned(),
        }
    }

    fn log(name: &str) -> String {
        let path = std::env::temp_dir();
        format!("{}/xylem-model-{}-{name}", path.display(), std::process::id())
    }

    #[test]
    fn a_device_model_is_found_again_and_ended_once() {
        if !rustix::process::getuid().is_root() {
            // Only root can create the folder for restricted ones.
            return;
        }
        let log = log("found");
        let process =
            start("/bin/sh", &launch("read word; echo $word; sleep 1000; :", &log), None).unwrap();
        let found = || all().unwrap().into_iter().filter(|it| it.process == process).count();
        // A program's command line is visible shortly after its start.
        let deadline = Instant::now() + Duration::from_secs(60);
        let has_spoken = || last_line(&log).unwrap().as_deref() == Some("secret");
        while (found() == 0 || !has_spoken()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((found(), has_spoken()), (1, true));
        let model = all().unwrap().into_iter().find(|it| it.process == process).unwrap();
        assert_eq!(model.domid, DomId(3));
        // Another process with that pid is not touched.
        let other = Process { started: process.started + 1, ..process };
        end(other).unwrap();
        assert_eq!(found(), 1);
        let handle = open(process).unwrap().unwrap();
        end(process).unwrap();
        assert_eq!(ending(&handle), "was ended by signal 9");
        end(process).unwrap();
        assert_eq!((found(), open(process).unwrap().is_none()), (0, true));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_process_that_only_claims_to_be_a_device_model_is_none() {
        if !rustix::process::getuid().is_root() {
            // Only root can start processes of other users.
            return;
        }
        let path = log("claims");
        let run = |uid: u32, output: Stdio| {
            let launch = launch("sleep 1000; :", &path);
            Command::new("/bin/sh")
                .args(&launch.arguments)
                .uid(uid)
                .current_dir("/")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(output)
                .spawn()
                .unwrap()
        };
        let log = || Stdio::from(open_log(&path).unwrap());
        // They all claim domain 3.
        let mut tried = [
            ("root, with its log", run(0, log()), true),
            ("domain 3's user", run(USER_FIRST + 3, log()), true),
            ("domain 3's user, whatever it has open", run(USER_FIRST + 3, Stdio::null()), true),
            ("a named user", run(65534, log()), true),
            ("domain 4's user", run(USER_FIRST + 4, log()), false),
            ("a local user", run(65534, Stdio::null()), false),
            ("a set-user-ID program of a local user", run(0, Stdio::null()), false),
            (
                "a local user who reads the log",
                run(65534, File::open(&path).unwrap().into()),
                false,
            ),
        ];
        let found: Vec<u32> = all().unwrap().iter().map(|it| it.process.pid).collect();
        let mut wrong = Vec::new();
        for (who, process, is_one) in &mut tried {
            if found.contains(&process.id()) != *is_one {
                wrong.push(*who);
            }
            let group = Pid::from_child(process);
            rustix::process::kill_process_group(group, Signal::KILL).unwrap();
            process.wait().unwrap();
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn a_program_that_is_missing_is_said_to_be() {
        let launch = launch("", "/nowhere/log");
        assert_eq!(start("/nowhere/qemu", &launch, None), Err(HostError::Missing));
    }
}
