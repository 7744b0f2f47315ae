//! `xy store` with the real store, served on a socket of the test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use expect_test::{Expect, expect};
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::client::{Batch, Client, Nodes};
use xenstore::server::{ConnId, Host, Server};
use xenstore::{Access, Error, Permission, Quota};
use xenstore_socket::StoreSocket;

use crate::daemon::{Said, Scratch};

/// Domains 1 to 9 exist, but none has a ring.
struct NoRings;

impl Host for NoRings {
    fn connect_ring(&mut self, _: ConnId, _: DomId, _: Gfn, _: EvtchnPort) -> Result<(), Error> {
        Err(Error::EINVAL)
    }

    fn reset_ring(&mut self, _: DomId, _: EvtchnPort) -> Result<(), Error> {
        Err(Error::EINVAL)
    }

    fn disconnect_ring(&mut self, _: DomId) {}

    fn domain_exists(&mut self, domid: DomId) -> bool {
        domid.0 < 10
    }

    fn log(&mut self, _: &str) {}
}

/// The store with the sockets of its clients.
struct Shared {
    server: Server,
    streams: BTreeMap<ConnId, UnixStream>,
}

impl Shared {
    fn flush(&mut self) {
        for id in self.server.take_ready() {
            loop {
                let bytes = self.server.output(id).to_vec();
                if bytes.is_empty() {
                    break;
                }
                self.server.consume(id, bytes.len());
                // The client may have disconnected.
                let _gone = self.streams.get(&id).map(|mut stream| stream.write_all(&bytes));
            }
        }
    }
}

struct Store {
    scratch: Scratch,
    shared: Arc<Mutex<Shared>>,
}

impl Store {
    fn new() -> Self {
        let scratch = Scratch::new();
        let listener = UnixListener::bind(scratch.path.join("socket")).unwrap();
        let shared = Shared { server: Server::new(Quota::default()), streams: BTreeMap::new() };
        let shared = Arc::new(Mutex::new(shared));
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), Arc::clone(&served));
                thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { scratch, shared }
    }

    /// A store with some nodes.
    fn furnished() -> Self {
        let store = Self::new();
        let mut batch = Batch::new();
        batch.rm("/tool");
        batch.write("/local/domain/1/name", "web");
        batch.write("/local/domain/1/device/vbd/51712/state", "4");
        batch.write("/local/domain/1/console", "");
        batch.write("/vm/note", "tab\there, \"quoted\", back\\slash, \u{e9}");
        store.client().commit(&batch).unwrap();
        let list =
            [Permission::new(Access::None, DomId(1)), Permission::new(Access::Read, DomId(2))];
        store.client().set_perms("/local/domain/1", &list).unwrap();
        store
    }

    fn client(&self) -> Client<StoreSocket> {
        StoreSocket::connect(&self.scratch.path.join("socket")).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xy"));
        command
            .arg("store")
            .args(arguments)
            .env("XENSTORED_PATH", self.scratch.path.join("socket"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        Said::new(&self.command(arguments).output().unwrap())
    }

    fn check(&self, arguments: &[&str], expected: &Expect) {
        let Said { status, stdout, stderr } = self.run(arguments);
        let errors: String = stderr.lines().map(|line| format!("! {line}\n")).collect();
        expected.assert_eq(&format!("{stdout}{errors}= {}\n", status.unwrap_or(-1)));
    }
}

fn serve(mut stream: UnixStream, shared: &Mutex<Shared>) {
    let id = {
        let mut shared = shared.lock().unwrap();
        let id = shared.server.connect_socket();
        shared.streams.insert(id, stream.try_clone().unwrap());
        id
    };
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        let mut shared = shared.lock().unwrap();
        if shared.server.receive(&mut NoRings, id, &bytes[..length]).is_err() {
            break;
        }
        shared.flush();
    }
    let mut shared = shared.lock().unwrap();
    shared.server.disconnect(id);
    shared.streams.remove(&id);
}

#[test]
fn ls_prints_what_xenstore_ls_prints() {
    let store = Store::furnished();
    store.check(
        &["ls"],
        &expect![[r#"
            local = ""
             domain = ""
              1 = ""
               name = "web"
               device = ""
                vbd = ""
                 51712 = ""
                  state = "4"
               console = ""
            vm = ""
             note = "tab\there, "quoted", back\\slash, \xc3\xa9"
            = 0
        "#]],
    );
    store.check(
        &["ls", "-p", "/local/domain"],
        &expect![[r#"
            1 = "" . . . . . . . . . . . . . . . . . . . . . . . . . . .  (n1,r2)
             name = "web"  . . . . . . . . . . . . . . . . . . . . . . .  (n0)
             device = "" . . . . . . . . . . . . . . . . . . . . . . . .  (n0)
              vbd = "" . . . . . . . . . . . . . . . . . . . . . . . . .  (n0)
               51712 = ""  . . . . . . . . . . . . . . . . . . . . . . .  (n0)
                state = "4"  . . . . . . . . . . . . . . . . . . . . . .  (n0)
             console = ""  . . . . . . . . . . . . . . . . . . . . . . .  (n0)
            = 0
        "#]],
    );
    store.check(
        &["ls", "-f", "/local/domain/1/device", "/vm"],
        &expect![[r#"
            /local/domain/1/device/vbd = ""
            /local/domain/1/device/vbd/51712 = ""
            /local/domain/1/device/vbd/51712/state = "4"
            /vm/note = "tab\there, "quoted", back\\slash, \xc3\xa9"
            = 0
        "#]],
    );
    store.check(
        &["ls", "/nowhere"],
        &expect![[r#"
            ! xy: could not list /nowhere: no such node (ENOENT)
            = 1
        "#]],
    );
}

#[test]
fn ls_cuts_values_where_xenstore_ls_does() {
    let store = Store::new();
    store.client().write("/a/b", &[b'v'; 67]).unwrap();
    store.client().write("/a/c", &[b'v'; 72]).unwrap();
    store.check(
        &["ls", "/a"],
        &expect![[r#"
            b = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"
            c = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv\..."
            = 0
        "#]],
    );
}

#[test]
fn ls_shows_a_tree_of_any_size() {
    let store = Store::new();
    let mut batch = Batch::new();
    for i in 0..6000 {
        batch.write(&format!("/wide/some-longer-name-{i}"), "v");
    }
    store.client().run(&batch).unwrap().all_ok().unwrap();
    let Said { stdout, .. } = store.run(&["ls", "-f", "/wide"]);
    assert_eq!(stdout.lines().count(), 6000);
    assert_eq!(stdout.lines().last(), Some("/wide/some-longer-name-5999 = \"v\""));
}

#[test]
fn values_are_read_and_written_with_escapes_or_raw() {
    let store = Store::furnished();
    store.check(&["write", "/a", r"\x41\n\\", "/b/c", "2"], &expect![["= 0\n"]]);
    assert_eq!(store.client().read("/a").unwrap(), b"A\n\\");
    store.check(
        &["read", "-p", "/a", "/b/c"],
        &expect![[r"
            /a: A\n\\
            /b/c: 2
            = 0
        "]],
    );
    store.check(&["read", "-R", "/b/c"], &expect![["2= 0\n"]]);
    store.check(&["write", "-R", "/a", r"\n"], &expect![["= 0\n"]]);
    assert_eq!(store.client().read("/a").unwrap(), br"\n");
    store.check(
        &["read", "/b/c", "/nowhere", "/a"],
        &expect![[r"
            2
            ! xy: couldn't read path /nowhere: no such node (ENOENT)
            = 1
        "]],
    );
    store.check(
        &["write", "/a", "3", "/bad path", "4"],
        &expect![[r"
            ! xy: xenstore write /bad path: invalid argument (EINVAL)
            = 1
        "]],
    );
    assert_eq!(store.client().read("/a").unwrap(), br"\n");
    store.check(
        &["write", "/a", "1", "/b"],
        &expect![[r#"
            ! xy: store write: "/b" has no value; see 'xy help store write'
            = 2
        "#]],
    );
}

#[test]
fn nodes_are_listed_looked_for_and_removed() {
    let store = Store::furnished();
    store.check(
        &["list", "-p", "/", "/local/domain/1"],
        &expect![[r"
            /local
            /vm
            /local/domain/1/name
            /local/domain/1/device
            /local/domain/1/console
            = 0
        "]],
    );
    store.check(&["exists", "/vm", "/local"], &expect![["= 0\n"]]);
    store.check(&["exists", "/vm", "/nowhere"], &expect![["= 1\n"]]);
    store.check(&["rm", "-t", "/local/domain/1/device/vbd/51712/state"], &expect![["= 0\n"]]);
    store.check(
        &["list", "/local/domain/1", "/local/domain/1/device"],
        &expect![[r"
            name
            console
            ! xy: could not list path /local/domain/1/device: no such node (ENOENT)
            = 1
        "]],
    );
    store.check(
        &["rm", "/vm", "/no/where"],
        &expect![[r"
            ! xy: could not remove path /no/where: no such node (ENOENT)
            = 1
        "]],
    );
    store.check(&["exists", "/vm"], &expect![["= 0\n"]]);
}

#[test]
fn permissions_are_set_up_and_down_the_tree() {
    let store = Store::furnished();
    let permissions = |path: &str| -> String {
        let list = store.client().get_perms(path).unwrap();
        list.iter().map(|permission| format!("{permission} ")).collect()
    };
    store.check(&["chmod", "-r", "/local/domain/1/device", "b3", "r4"], &expect![["= 0\n"]]);
    assert_eq!(permissions("/local/domain/1/device/vbd/51712/state"), "b3 r4 ");
    assert_eq!(permissions("/local/domain/1/name"), "n0 ");
    store.check(&["chmod", "-u", "/local/domain/1", "w5"], &expect![["= 0\n"]]);
    assert_eq!((permissions("/local"), permissions("/")), ("w5 ".into(), "n0 ".into()));
    store.check(
        &["chmod", "/vm", "x1"],
        &expect![[r#"
            ! xy: "x1" is not a permission: n (none), r (read), w (write) or b (both), and a domain's number, as in r3
            = 1
        "#]],
    );
    store.check(
        &["chmod", "/nowhere", "n0"],
        &expect![[r"
            ! xy: could not set permissions of /nowhere: no such node (ENOENT)
            = 1
        "]],
    );
}

#[test]
fn watch_prints_paths_as_they_change() {
    let store = Store::furnished();
    let mut child =
        store.command(&["watch", "-n", "4", "/vm", "/x"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!([lines.next().unwrap(), lines.next().unwrap()], ["/vm", "/x"]);
    store.client().write("/vm/a/b", b"").unwrap();
    assert_eq!(lines.next().unwrap(), "/vm/a/b");
    store.client().write("/x", b"").unwrap();
    assert_eq!(lines.next().unwrap(), "/x");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_live_tree_tells_what_comes_changes_and_goes() {
    let store = Store::furnished();
    let mut child = store
        .command(&["ls", "--watch", "-p", "/vm"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("note = "));
    let mut client = store.client();
    client.write("/vm/new", b"1").unwrap();
    assert_eq!(lines.next().unwrap(), "+ /vm/new = \"1\"   (n0)");
    client.write("/vm/new", b"2").unwrap();
    assert_eq!(lines.next().unwrap(), "~ /vm/new = \"2\"   (n0)");
    client.set_perms("/vm/new", &[Permission::new(Access::Read, DomId(0))]).unwrap();
    assert_eq!(lines.next().unwrap(), "~ /vm/new = \"2\"   (r0)");
    client.rm("/vm").unwrap();
    assert_eq!(lines.next().unwrap(), "- /vm/note");
    assert_eq!(lines.next().unwrap(), "- /vm/new");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn stats_are_a_table_or_json() {
    let store = Store::furnished();
    store.client().read("/vm/note").unwrap();
    let Said { status, stdout, .. } = store.run(&["stats"]);
    assert_eq!(status, Some(0));
    let value = |name: &str| {
        let line = stdout.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().last()).map(str::to_owned)
    };
    assert_eq!(value("nodes"), Some("12".to_owned()), "{stdout}");
    assert_eq!(value("read "), Some("1".to_owned()), "{stdout}");
    assert_eq!(value("set perms"), Some("1".to_owned()), "{stdout}");
    let Said { stdout, .. } = store.run(&["stats", "--json"]);
    assert!(stdout.contains("\"nodes\": 12"), "{stdout}");
}

#[test]
fn a_status_socket_is_asked_first() {
    let store = Store::new();
    let listener = UnixListener::bind(store.scratch.path.join("status")).unwrap();
    let answering = thread::spawn(move || {
        for answer in ["{\"nodes\":7}\n", "xenstore_nodes 7\n"] {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            (&stream).write_all(format!("{answer}# {question}").as_bytes()).unwrap();
        }
    });
    // The request is echoed, which is not JSON; the short form would have been.
    store.check(
        &["stats"],
        &expect![[r"
            ! xy: this store tells no statistics: it is not xylem-xenstored
            = 1
        "]],
    );
    store.check(
        &["stats", "--metrics"],
        &expect![[r"
            xenstore_nodes 7
            # metrics
            = 0
        "]],
    );
    answering.join().unwrap();
}

#[test]
fn without_a_store_the_error_names_the_socket() {
    let scratch = Scratch::new();
    let socket = scratch.path.join("nobody");
    let output = Command::new(env!("CARGO_BIN_EXE_xy"))
        .args(["store", "ls"])
        .env("XENSTORED_PATH", &socket)
        .output()
        .unwrap();
    Said::new(&output).assert(
        1,
        "",
        &format!(
            "xy: no store at {}: No such file or directory (os error 2); is xylem-xenstored \
             running? XENSTORED_PATH names another socket\n",
            socket.display()
        ),
    );
}

#[test]
fn a_restarted_store_is_watched_on() {
    let store = Store::furnished();
    let mut child = store.command(&["watch", "/vm"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "/vm");
    {
        let mut shared = store.shared.lock().unwrap();
        for stream in shared.streams.values() {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        shared.streams.clear();
    }
    // The watch's first event on the new connection causes a new read.
    assert_eq!(lines.next().unwrap(), "/vm");
    store.client().write("/vm/x", b"").unwrap();
    assert_eq!(lines.next().unwrap(), "/vm/x");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn help_names_every_command() {
    let store = Store::new();
    store.check(
        &["--help"],
        &expect![[r"
            Usage: xy store <command> [args]

            Read and change the store.

             ls                  Print a tree with its values
             list                Print the names of a node's children
             read                Print values
             write               Set values; missing nodes are created
             rm                  Remove nodes and all below them
             exists              Exit with 0 if all the nodes exist, with 1 if not
             chmod               Set permissions: n, r, w or b and a domain's number, the owner's first
             watch               Print the path of each change, until interrupted
             stats               Print counters and resources of xylem-xenstored

            Options, output and exit status are those of xenstore-ls, xenstore-read and so on.
            The store is found at XENSTORED_PATH, or at XENSTORED_RUNDIR/socket, by default
            /run/xenstored/socket. 'xy help store <command>' says more.
            = 0
        "]],
    );
    store.check(
        &["rm", "-h"],
        &expect![[r"
            Usage: xy [-vtT] store rm [options] <Path ...>

            Remove nodes and all below them.

            Options:

            -t, --tidy              Also remove parents that are left without value and children.
            -s, --socket            Accepted for xenstore-utils compatibility, ignored.
            = 0
        "]],
    );
    store.check(
        &["l", "/"],
        &expect![[r#"
            ! xy: "l" is ambiguous: ls, list
            = 2
        "#]],
    );
    store.check(
        &["mv", "/"],
        &expect![[r#"
            ! xy: "mv" is no command; see 'xy help store'
            = 2
        "#]],
    );
}
