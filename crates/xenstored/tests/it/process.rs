//! A daemon as a process, the folder it works in, and how to talk to it.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use file_host::{Guest, HostFolder};
use xen::{DomId, Errno, EvtchnPort, Gfn};
use xenstore::client::{Client, Transport};

/// A folder that is removed with everything in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xenstored-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the folder is ours");
    }
}

/// The daemon on a host without Xen.
pub(crate) fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xylem-xenstored"));
    command
        .args(["--host", "dir:."])
        .args(arguments)
        .env("XENSTORED_RUNDIR", folder.path())
        .env_remove("XENSTORED_PATH")
        .env_remove("NOTIFY_SOCKET")
        .current_dir(folder.path())
        .stdin(Stdio::null());
    command
}

/// A daemon in the foreground.
pub(crate) struct Daemon {
    pub(crate) folder: Folder,
    process: Child,
    manager: UnixDatagram,
    /// Bytes of a request in which the daemon panics.
    trap: &'static str,
}

impl Daemon {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_as(name, arguments, Stdio::null())
    }

    /// As [`start`](Self::start), with this as its standard error.
    pub(crate) fn start_with_errors(name: &str, errors: Stdio) -> Self {
        Self::start_as(name, &[], errors)
    }

    fn start_as(name: &str, arguments: &[&str], errors: Stdio) -> Self {
        let folder = Folder::new(name);
        // The service manager's datagram says when it serves.
        let notify = folder.path().join("notify");
        let manager = UnixDatagram::bind(&notify).unwrap();
        // As systemd's, it takes words from everybody.
        std::fs::set_permissions(&notify, Permissions::from_mode(0o666)).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let trap = "";
        let process = spawn(&folder, &manager, trap, arguments, errors);
        Self { folder, process, manager, trap }
    }

    /// Waits until it ended by itself.
    pub(crate) fn wait_for_end(&mut self) {
        assert!(!self.process.wait().unwrap().success());
    }

    /// From its next start on it panics in each request that has these bytes in it.
    pub(crate) fn set_trap(&mut self, trap: &'static str) {
        self.trap = trap;
    }

    /// Asks the daemon to end, and waits until it did.
    pub(crate) fn stop(&mut self) {
        signal(self.id(), rustix::process::Signal::TERM);
        self.process.wait().unwrap();
    }

    /// Ends the daemon without a chance to do anything.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it once more in the same folder, after it ended.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        self.process = spawn(&self.folder, &self.manager, self.trap, arguments, Stdio::null());
    }

    /// As [`start`](Self::start), with everything given up that serving does not need.
    pub(crate) fn start_confined(name: &str, arguments: &[&str]) -> Self {
        Self::start(name, &[&["--user", &unprivileged_user()], arguments].concat())
    }

    pub(crate) fn stream(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("socket")).unwrap()
    }

    pub(crate) fn client(&self) -> Client<Socket> {
        Client::new(Socket(self.stream()))
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Memory that the daemon holds.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn host(&self) -> HostFolder {
        HostFolder::open(self.folder.path()).unwrap()
    }

    /// A guest that the store serves.
    pub(crate) fn guest(&self, domid: u16) -> Client<Guest> {
        let guest = self.stranger(domid, u64::from(domid));
        self.client().introduce(DomId(domid), Gfn(1), EvtchnPort(1)).unwrap();
        Client::new(guest)
    }

    /// A guest that the store does not know.
    pub(crate) fn stranger(&self, domid: u16, unique_id: u64) -> Guest {
        Guest::create(&self.host(), DomId(domid), unique_id).unwrap()
    }
}

fn spawn(
    folder: &Folder,
    manager: &UnixDatagram,
    trap: &str,
    arguments: &[&str],
    errors: Stdio,
) -> Child {
    // A test that the machine lets wait must miss no event for it.
    let as_tested = ["--no-fork", "-w", "watch-event=0"];
    drop_words_of_the_one_before(manager);
    let process = command(folder, &[&as_tested[..], arguments].concat())
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .env("XENSTORED_TRAP", trap)
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let length = manager.recv(&mut said).expect("the daemon says that it is ready");
    assert_eq!(&said[..length], b"READY=1\n");
    process
}

/// What a daemon said before its end still waits here.
fn drop_words_of_the_one_before(manager: &UnixDatagram) {
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut [0; 64]).is_ok() {}
    manager.set_nonblocking(false).unwrap();
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself, as some tests want.
        let _ended = self.process.kill();
        self.process.wait().expect("our own child");
    }
}

pub(crate) struct Socket(pub(crate) UnixStream);

impl Transport for Socket {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.0.write_all(bytes).map_err(|error| Errno(error.raw_os_error().unwrap_or(5)))
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        self.0.read(into).map_err(|error| Errno(error.raw_os_error().unwrap_or(5)))
    }
}

pub(crate) fn signal(process: u32, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_raw(process.try_into().unwrap()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// A user for the daemon: only root can become another one.
pub(crate) fn unprivileged_user() -> String {
    match rustix::process::getuid().as_raw() {
        0 => "65534:65534".to_owned(),
        own => format!("{own}:{}", rustix::process::getgid().as_raw()),
    }
}
