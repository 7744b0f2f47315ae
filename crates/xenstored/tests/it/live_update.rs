//! The store goes on in another process, with every client in the middle of what it does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use xen::DomId;
use xenstore::client::Nodes;
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType as M};
use xenstore::{Access, Permission};

use crate::process::{Daemon, Folder, command, signal};

/// A client that sees every byte.
struct Raw(UnixStream);

impl Raw {
    fn new(daemon: &Daemon) -> Self {
        let stream = daemon.stream();
        stream.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
        Self(stream)
    }

    fn receive(&mut self) -> (u32, String) {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap().unwrap();
        let mut payload = vec![0; header.payload_bytes()];
        self.0.read_exact(&mut payload).unwrap();
        (header.code, String::from_utf8(payload).unwrap().replace('\0', "|"))
    }

    fn encode(kind: M, transaction: u32, payload: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        wire::encode(
            &mut bytes,
            kind.code(),
            1,
            transaction,
            &[payload.replace('|', "\0").as_bytes()],
        );
        bytes
    }

    fn call(&mut self, kind: M, transaction: u32, payload: &str) -> String {
        self.0.write_all(&Self::encode(kind, transaction, payload)).unwrap();
        loop {
            let (code, payload) = self.receive();
            if code != M::WatchEvent.code() {
                return payload;
            }
        }
    }

    fn live_update(&mut self, words: &[&str]) -> String {
        let payload: String = words.iter().map(|word| format!("{word}|")).collect();
        self.call(M::Control, 0, &format!("live-update|{payload}"))
    }
}

/// Whoever serves now, until the end of the test.
struct Served {
    daemon: Daemon,
    pid_file: PathBuf,
}

impl Served {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let daemon = Daemon::start(name, &[&["--pid-file", "pid"], arguments].concat());
        let pid_file = daemon.folder.path().join("pid");
        Self { daemon, pid_file }
    }

    fn process(&self) -> u32 {
        for _ in 0..120_000 {
            let text = std::fs::read_to_string(&self.pid_file).unwrap();
            if let Ok(process) = text.trim().parse() {
                return process;
            }
            // It is being written.
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nobody writes the pid file");
    }

    /// A new file each time: one that runs, or whose descriptor a child of another test still holds, is busy.
    fn script(&self, text: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.daemon.folder.path().join(format!("program-{number}"));
        // Another process writes it, so that no child of this one inherits a descriptor that is open for writing.
        let mut install = std::process::Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(install.wait().unwrap().success());
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let process = self.process();
        if process != self.daemon.id() {
            signal(process, rustix::process::Signal::KILL);
        }
    }
}

const OURS: &str = env!("CARGO_BIN_EXE_xylem-xenstored");

/// What must go on, and does, when `update` is done in the middle of it.
fn carries_everything(name: &str, transactions: Carried, update: impl FnOnce(&Served, &mut Raw)) {
    let served = Served::start(name, &[]);
    let daemon = &served.daemon;
    let mut dom0 = daemon.client();
    let mut guest = daemon.guest(1);
    dom0.write("/local/domain/1", b"").unwrap();
    dom0.set_perms("/local/domain/1", &[Permission::new(Access::None, DomId(1))]).unwrap();
    guest.watch("data", "guest").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data");
    let mut talker = Raw::new(daemon);
    assert_eq!(talker.call(M::Watch, 0, "/a|token|"), "OK|");
    assert_eq!(talker.receive().1, "/a|token|");
    let mut number = String::new();
    if transactions == Carried::Yes {
        number = talker.call(M::TransactionStart, 0, "|");
        let number = number.trim_end_matches('|').parse().unwrap();
        assert_eq!(talker.call(M::Read, number, "/a|"), "ENOENT|");
        assert_eq!(talker.call(M::Write, number, "/b|1"), "OK|");
    }
    let request = Raw::encode(M::Read, 0, "/a/b|");
    talker.0.write_all(&request[..19]).unwrap();
    // The daemon has read that much.
    dom0.write("/c", b"").unwrap();

    let mut operator = Raw::new(daemon);
    update(&served, &mut operator);

    dom0.write("/a/b", b"value").unwrap();
    assert_eq!(talker.receive(), (M::WatchEvent.code(), "/a/b|token|".to_owned()));
    talker.0.write_all(&request[19..]).unwrap();
    assert_eq!(talker.receive(), (M::Read.code(), "value".to_owned()));
    if transactions == Carried::Yes {
        // It did not find what is there by now.
        let number = number.trim_end_matches('|').parse().unwrap();
        assert_eq!(talker.call(M::Read, number, "/b|"), "1");
        assert_eq!(talker.call(M::TransactionEnd, number, "T|"), "EAGAIN|");
    }
    dom0.write("/local/domain/1/data", b"1").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data");
    guest.write("data/own", b"2").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data/own");
    assert_eq!(dom0.read("/local/domain/1/data/own"), Ok(b"2".to_vec()));
    assert_eq!(daemon.guest(2).read("/").unwrap_err().refusal(), Some(xenstore::Error::EACCES));
    assert_eq!(operator.call(M::Control, 0, "check|"), "OK|");
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Carried {
    Yes,
    No,
}

#[test]
fn a_new_build_takes_over_everything() {
    carries_everything("beside", Carried::Yes, |served, operator| {
        let before = served.process();
        assert_eq!(operator.live_update(&["-f", OURS]), "OK|");
        assert_eq!(operator.live_update(&["-s"]), "OK|");
        wait_for_another(served, before);
        // And once more, as the one that took over can be followed as well.
        assert_eq!(operator.live_update(&["-f", OURS]), "OK|");
        assert_eq!(operator.live_update(&["-s"]), "OK|");
    });
}

#[test]
fn a_confined_daemon_is_followed_by_a_confined_one() {
    let served =
        Served::start("follow-confined", &["--user", &crate::process::unprivileged_user()]);
    let mut operator = Raw::new(&served.daemon);
    let before = served.process();
    assert_eq!(operator.call(M::Write, 0, "/a|1"), "OK|");
    assert_eq!(operator.live_update(&["-f", OURS]), "OK|");
    assert_eq!(operator.live_update(&["-s"]), "OK|");
    assert_eq!(operator.call(M::Read, 0, "/a|"), "1");
    wait_for_another(&served, before);
}

fn wait_for_another(served: &Served, before: u32) {
    for _ in 0..120_000 {
        if served.process() != before {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("process {before} still is who serves");
}

#[test]
fn a_program_of_another_kind_gets_the_state_in_a_file() {
    carries_everything("exec", Carried::No, |served, operator| {
        let before = served.process();
        let program = served.script(&format!("#!/bin/sh\nexec '{OURS}' \"$@\"\n"));
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        assert_eq!(operator.live_update(&["-s", "-t", "5"]), "OK|");
        assert_eq!(served.process(), before);
        assert!(!served.daemon.folder.path().join("state_dump").exists());
    });
}

#[test]
fn an_update_by_exec_comes_between_transactions() {
    let served = Served::start("between", &[]);
    let mut operator = Raw::new(&served.daemon);
    let program = served.script(&format!("#!/bin/sh\nexec '{OURS}' \"$@\"\n"));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let begun = std::sync::Barrier::new(5);
    std::thread::scope(|threads| {
        for client in 0..4 {
            let (daemon, is_over, begun) = (&served.daemon, &is_over, &begun);
            threads.spawn(move || {
                let mut raw = Raw::new(daemon);
                let mut rounds = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) || rounds < 10 {
                    let number = raw.call(M::TransactionStart, 0, "|");
                    let number = number.trim_end_matches('|').parse().expect("a transaction");
                    assert_eq!(raw.call(M::Write, number, &format!("/{client}|1")), "OK|");
                    assert_eq!(raw.call(M::TransactionEnd, number, "T|"), "OK|");
                    rounds += 1;
                    if rounds == 5 {
                        begun.wait();
                    }
                }
            });
        }
        begun.wait();
        for _ in 0..3 {
            assert_eq!(operator.live_update(&["-f", &program]), "OK|");
            assert_eq!(operator.live_update(&["-s", "-t", "60"]), "OK|");
        }
        // A program that cannot be started gives everybody what they waited for.
        let program = served.script("#!/no/such/interpreter\n");
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        let answer = operator.live_update(&["-s", "-t", "60"]);
        assert!(answer.contains("cannot start"), "{answer}");
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_program_that_fails_leaves_the_old_one_serving() {
    carries_everything("fails", Carried::Yes, |served, operator| {
        let mark = "xylem-xenstored successor, version 3";
        for text in [
            format!("#!/bin/sh\n# {mark}\nexit 1\n"),
            // It loads everything and ends when it should serve.
            format!("#!/bin/sh\n# {mark}\nexec '{OURS}' \"$@\" --trace-file /no/such/folder/f\n"),
        ] {
            let before = served.process();
            let program = served.script(&text);
            assert_eq!(operator.live_update(&["-f", &program]), "OK|");
            let answer = operator.live_update(&["-s"]);
            assert!(answer.contains("the other daemon has"), "{answer}");
            assert_eq!(served.process(), before);
        }
        let program = served.script("#!/no/such/interpreter\n");
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        // The transaction is open; whoever asked does not wait for it.
        assert!(operator.live_update(&["-s", "-t", "0"]).contains("1 transactions are open"));
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        let answer = operator.live_update(&["-s", "-t", "0", "-F"]);
        assert!(answer.contains("cannot start"), "{answer}");
    });
}

#[test]
fn a_program_that_hangs_leaves_the_old_one_serving() {
    carries_everything("hangs", Carried::Yes, |served, operator| {
        let mark = "xylem-xenstored successor, version 3";
        let before = served.process();
        // It loads nothing; clients are served meanwhile.
        let program = served.script(&format!("#!/bin/sh\n# {mark}\nexec sleep 600\n"));
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        let answer = operator.live_update(&["-s", "-t", "0"]);
        assert!(answer.contains("did not load the store in time"), "{answer}");
        // It loads everything and does not begin to serve.
        let program = served.script(&format!(
            "#!/bin/sh\n# {mark}\nXENSTORED_TRAP_SUCCESSOR=1 exec '{OURS}' \"$@\"\n"
        ));
        assert_eq!(operator.live_update(&["-f", &program]), "OK|");
        let answer = operator.live_update(&["-s"]);
        assert!(answer.contains("the other daemon does not answer"), "{answer}");
        assert_eq!(served.process(), before);
    });
}

#[test]
fn a_state_that_somebody_else_could_have_written_is_not_taken_over() {
    let folder = Folder::new("planted");
    let state = folder.path().join("state_dump");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, b"secret").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &state).unwrap();
    let refused = || {
        let output = command(&folder, &["--no-fork", "-U"]).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"secret");
        assert!(std::fs::symlink_metadata(&state).is_ok(), "it is left for the operator");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused();
    assert!(said.contains("Too many levels of symbolic links"), "{said}");
    std::fs::remove_file(&state).unwrap();
    std::fs::hard_link(&elsewhere, &state).unwrap();
    assert!(refused().contains("hard links"));
    if rustix::process::getuid().is_root() {
        std::fs::remove_file(&state).unwrap();
        std::fs::write(&state, b"state").unwrap();
        std::os::unix::fs::chown(&state, Some(65534), None).unwrap();
        let said = refused();
        assert!(said.contains("the file belongs to user 65534"), "{said}");
    }
}
