//! `xy --host`: another host, by its `xylem-web`.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use api::Role;
use gate::{Scope, Secret, Who, entry_line};
use local_door::Reports;
use sim_daemon::{Population, SimDaemon, WorldConfig};

pub(crate) struct Remote {
    pub(crate) url: String,
    token: String,
    pub(crate) viewer: String,
    socket: std::path::PathBuf,
    store: std::path::PathBuf,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _left_over = std::fs::remove_file(&self.socket);
        let _left_over = std::fs::remove_file(&self.store);
    }
}

impl Remote {
    pub(crate) fn new() -> Self {
        Self::of(|daemon| daemon)
    }

    /// Whose daemon has something more.
    pub(crate) fn of(more: impl FnOnce(SimDaemon) -> SimDaemon) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("xy-remote-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = local_door::listen(&socket).unwrap();
        let world = WorldConfig { seed: 1, memory_mib: 16_384, cpus: 4 };
        let store = socket.with_extension("store");
        let xy = env!("CARGO_BIN_EXE_xy").into();
        let reports = Reports::by(xy, socket.clone(), store.clone());
        let daemon = more(SimDaemon::start(world).unwrap().with_reports(reports));
        daemon.serve_store(UnixListener::bind(&store).unwrap()).unwrap();
        local_door::serve(listener, Arc::new(daemon)).unwrap();
        Population::at(&socket, 1).unwrap().make(5, |_| ()).unwrap();
        let client = |role: Role| {
            let (secret, token) = Secret::token(&[role as u8; 32]);
            let who =
                Who { name: role.as_str().to_owned(), role, expires: None, scope: Scope::Host };
            (entry_line(&who, &secret).unwrap(), token)
        };
        let ((admin, token), (line, viewer)) = (client(Role::Admin), client(Role::Viewer));
        let listen = "127.0.0.1:0".parse().unwrap();
        let address = web::serve_beside(socket.clone(), listen, &format!("{admin}{line}")).unwrap();
        Self { url: format!("http://{address}"), token, viewer, socket, store }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
        command.arg("--host").arg(&self.url).args(arguments).env("XYLEM_TOKEN", &self.token);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        told(&self.command(arguments).output().unwrap())
    }

    /// On the host itself.
    pub(crate) fn local_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
        command.args(arguments);
        command.env("XYLEMD_SOCKET", &self.socket).env("XENSTORED_PATH", &self.store);
        command
    }

    pub(crate) fn run_locally(&self, arguments: &[&str]) -> (i32, String, String) {
        told(&self.local_command(arguments).output().unwrap())
    }
}

pub(crate) fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn verbs_work_on_another_host_as_on_this_one() {
    let remote = Remote::new();
    let local = |arguments: &[&str]| remote.run_locally(arguments);
    // What only looks says the same there and here.
    for arguments in [
        &["list", "-v"][..],
        &["list", "--json", "web-0"],
        &["vm-list"],
        &["block-list", "web-0"],
        &["network-list", "web-0"],
        &["vcpu-list", "db-1"],
        &["sr-list"],
        &["vdi-list"],
        &["limits"],
        &["domid", "cache-2"],
        &["domname", "1"],
        &["checkpoint-list"],
        &["cpupool-list"],
        &["sched-credit2"],
        &["list", "nobody"],
        &["trace", "web-0", "--json"],
    ] {
        let (there, here) = (remote.run(arguments), local(arguments));
        assert_eq!((there.0, &there.2), (here.0, &here.2), "{arguments:?}");
        if arguments[0] != "vcpu-list" && arguments[0] != "list" && arguments[0] != "trace" {
            assert_eq!(there.1, here.1, "{arguments:?}");
        }
        assert_eq!(there.1.lines().count(), here.1.lines().count(), "{arguments:?}");
    }
    // A life, with a configuration of here.
    let config = std::env::temp_dir().join(format!("xy-remote-{}.cfg", std::process::id()));
    std::fs::write(&config, "name = 'far'\nkernel = '/boot/vmlinuz'\nmemory = 8\n").unwrap();
    let file = config.to_str().unwrap();
    for (arguments, words) in [
        (&["-v", "create", file][..], "far: 1/"),
        (&["pause", "far"], ""),
        (&["unpause", "far"], ""),
        (&["network-attach", "far", "bridge=xenbr0"], ""),
        (&["wait", "far", "running"], ""),
        (&["mem-set", "far", "8"], ""),
        (&["reboot", "-w", "far"], ""),
        (&["destroy", "far"], ""),
    ] {
        let (status, said, error) = remote.run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {said}{error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    std::fs::remove_file(config).unwrap();
}

#[test]
fn what_cannot_be_done_from_afar_is_refused_with_the_reason() {
    let remote = Remote::new();
    for (arguments, expected) in [
        (&["destroy", "far"][..], "xy: far: no such domain; `xy list` shows them all\n"),
        (&["console", "far"], "xy: far: no such domain; `xy list` shows them all\n"),
        (
            &["adopt", "x"],
            "xy: adopt works on the host itself only, since it ends processes of the other toolstack and takes its files away: log in \
             there, or leave out --host\n",
        ),
        (
            &["migrate", "--ssh", "web-0", "xen2"],
            "xy: migrate: xen2 is no peer of the host, which other hosts are reached by from afar: 'xy peer add' makes one; by \
             ssh, log in on the host itself\n",
        ),
        (&["migrate", "--tls", "web-0", "xen2"], "xy: xen2: a simulated host has no peers\n"),
    ] {
        let (status, _, error) = remote.run(arguments);
        assert_eq!((status, error.as_str()), (1, expected));
    }
    // A token that is not known, one with too small a role, and none.
    let wrong = told(&remote.command(&["list"]).env("XYLEM_TOKEN", "x").output().unwrap());
    let expected = format!("xy: {}: this token is not known, or has expired\n", remote.url);
    assert_eq!((wrong.0, wrong.2), (1, expected));
    let mut command = remote.command(&["destroy", "web-0"]);
    let refused = told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap());
    assert!(refused.2.contains("this needs the role operator, and yours is viewer"), "{refused:?}");
    let mut command = remote.command(&["list"]);
    let none = told(&command.env_remove("XYLEM_TOKEN").env("HOME", "/nowhere").output().unwrap());
    assert!(none.2.starts_with("xy: no token for the host: set XYLEM_TOKEN, or"), "{none:?}");
}

#[test]
fn a_console_of_another_host_is_attached_to_as_one_of_this_one() {
    let remote = Remote::new();
    let attach = |arguments: &[&str]| {
        let mut child = remote.command(arguments);
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        child.spawn().unwrap()
    };
    let mut child = attach(&["console", "web-0"]);
    let (mut typed, mut shown) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    // A simulated guest has said something, and what is typed is shown.
    let said = read_until(&mut shown, "\n");
    assert!(said.len() > 2, "{said:?}");
    typed.write_all(b"one two\n").unwrap();
    read_until(&mut shown, "one two\r\n");
    typed.write_all(b"last\x1dnot sent").unwrap();
    assert_eq!(told(&child.wait_with_output().unwrap()).0, 0);
    // Its domain ends, and with it the console.
    let mut child = attach(&["console", "-t", "pv", "-n", "0", "web-0"]);
    let mut shown = child.stdout.take().unwrap();
    assert_eq!(read_until(&mut shown, "\n"), said);
    assert_eq!(remote.run(&["destroy", "web-0"]).0, 0);
    let ended = told(&child.wait_with_output().unwrap());
    assert_eq!((ended.0, ended.2.as_str()), (0, ""));
    // It is for admins.
    let mut command = remote.command(&["console", "db-1"]);
    let refused = told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap());
    assert!(refused.2.contains("this needs the role admin, and yours is viewer"), "{refused:?}");
}

#[test]
fn a_vm_is_made_elsewhere_with_its_console() {
    let remote = Remote::new();
    let config = std::env::temp_dir().join(format!("xy-remote-c-{}.cfg", std::process::id()));
    std::fs::write(&config, "name = 'seen'\nkernel = '/boot/vmlinuz'\nmemory = 8\n").unwrap();
    let mut command = remote.command(&["create", "-q", "-c", config.to_str().unwrap()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut typed, mut shown) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    // It runs: it was paused until its console was there.
    read_until(&mut shown, "\n");
    typed.write_all(b"\x1d").unwrap();
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!((status, error.as_str()), (0, ""));
    std::fs::remove_file(config).unwrap();
}

fn read_until(from: &mut impl Read, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error} after {text:?}"));
        text.push(char::from(byte[0]));
    }
    text
}

#[test]
fn a_place_that_is_none_is_named() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
        told(&command.args(arguments).env("XYLEM_TOKEN", "x").output().unwrap())
    };
    let insecure = run(&["--host", "http://xen1:8443", "list"]);
    let expected = "xy: --host http://xen1:8443: use https, so that nobody reads the token\n";
    assert_eq!((insecure.0, insecure.2.as_str()), (2, expected));
    let nobody = run(&["--host=http://127.0.0.1:1", "list"]);
    assert!(nobody.2.starts_with("xy: cannot reach http://127.0.0.1:1: "), "{nobody:?}");
    assert_eq!(run(&["--host"]).2, "xy: --host: a value is missing\n");
}
