//! A running daemon in a folder of its own, and clients that connect to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use xenstore::Error;
use xenstore::client::{Batch, Client, ClientError, Nodes};
use xenstore::wire;

use crate::process::{Daemon, Folder, Socket, command, signal};

#[test]
fn clients_share_one_store() {
    let daemon = Daemon::start_confined("share", &[]);
    let (mut one, mut two) = (daemon.client(), daemon.client());
    one.watch("/a", "token").unwrap();
    one.next_event().unwrap();
    two.write("/a/b", b"value").unwrap();
    assert_eq!(one.next_event().unwrap().path, "/a/b");
    assert_eq!(one.read("/a/b"), Ok(b"value".to_vec()));
    let result = one.transaction(|transaction| {
        transaction.write("/a/c", b"1")?;
        assert_eq!(two.read_optional("/a/c")?, None);
        Ok::<_, ClientError>(())
    });
    assert_eq!(result, Ok(()));
    assert_eq!(two.read("/a/c"), Ok(b"1".to_vec()));
}

#[test]
fn a_client_that_reads_late_misses_nothing_and_delays_nobody() {
    let daemon = Daemon::start_confined("late", &[]);
    let (mut late, mut writer) = (daemon.client(), daemon.client());
    let mut watches = Batch::new();
    for i in 0..500 {
        watches.watch("/n", &format!("{i:0200}"));
    }
    late.run(&watches).unwrap().all_ok().unwrap();
    for _ in 0..500 {
        late.next_event().unwrap();
    }
    // More than the kernel's buffers hold.
    for i in 0..40 {
        writer.write(&format!("/n/{i}"), b"").unwrap();
    }
    for i in 0..40 {
        for token in 0..500 {
            let event = late.next_event().unwrap();
            assert_eq!((event.path, event.token), (format!("/n/{i}"), format!("{token:0200}")));
        }
    }
}

#[test]
fn requests_beyond_every_buffer_are_all_answered() {
    let daemon = Daemon::start_confined("flood", &[]);
    let mut stream = daemon.stream();
    let value = [b'v'; 4000];
    let mut bytes = Vec::new();
    for id in 0..500 {
        wire::encode(&mut bytes, 11, id, 0, &[b"/a\0", &value]);
        wire::encode(&mut bytes, 2, id, 0, &[b"/a\0"]);
    }
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&bytes));
    let mut expected = 500 * (16 + 3 + 16 + value.len());
    let mut buffer = [0; 65536];
    while expected > 0 {
        let length = stream.read(&mut buffer).unwrap();
        assert_ne!(length, 0, "closed with {expected} bytes missing");
        expected -= length;
    }
    sender.join().unwrap().unwrap();
}

#[test]
fn a_client_that_floods_gets_no_more_than_its_turn() {
    let daemon = Daemon::start_confined("fair", &[]);
    let (mut flood, mut other) = (daemon.stream(), daemon.stream());
    flood.set_nonblocking(true).unwrap();
    // Both wait for a daemon that sleeps, so that one turn finds them.
    signal(daemon.id(), rustix::process::Signal::STOP);
    let state = format!("/proc/{}/stat", daemon.id());
    while !std::fs::read_to_string(&state).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    let mut requests = Vec::new();
    for _ in 0..100 {
        wire::encode(&mut requests, 2, 0, 0, &[b"/\0"]);
    }
    let mut flooded = 0;
    while let Ok(sent) = flood.write(&requests) {
        flooded += sent;
    }
    let mut request = Vec::new();
    wire::encode(&mut request, 0, 0, 0, &[b"stats\0"]);
    other.write_all(&request).unwrap();
    signal(daemon.id(), rustix::process::Signal::CONT);
    let mut reply = [0; 4096];
    let length = other.read(&mut reply).unwrap();
    let text = String::from_utf8_lossy(&reply[..length]).into_owned();
    let (_, count) = text.split_once("\"requests_total\":").unwrap();
    let count: usize = count[..count.find(',').unwrap()].parse().unwrap();
    let flooded = flooded / 18;
    assert!(flooded > 2000, "the kernel took only {flooded} requests; too few to see a difference");
    assert!(
        count <= 1000,
        "{count} of {flooded} requests were executed ahead of the other client's"
    );
}

#[test]
fn a_message_that_is_too_long_closes_its_connection_only() {
    let daemon = Daemon::start_confined("oversize", &[]);
    let mut other = daemon.client();
    let mut stream = daemon.stream();
    let header: Vec<u8> = [2u32, 1, 0, 4097].iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&header).unwrap();
    let mut rest = Vec::new();
    assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
    assert_eq!(other.write("/a", b""), Ok(()));
}

#[test]
fn a_client_that_goes_away_takes_its_watches_along() {
    let daemon = Daemon::start_confined("gone", &[]);
    let mut stays = daemon.client();
    for _ in 0..20 {
        let mut goes = daemon.client();
        goes.watch("/a", "token").unwrap();
    }
    // Each end of a connection is seen some time after it happened.
    loop {
        let stats = stays.control(&["stats"]).unwrap();
        // Ours and the control domain's ring.
        if stats.contains("\"connections\":2,") {
            assert!(stats.contains("\"watches\":0,"), "{stats}");
            break;
        }
    }
    assert_eq!(stays.control(&["check"]), Ok("OK".to_owned()));
}

#[test]
fn clients_beyond_the_descriptors_wait_until_others_leave() {
    let daemon = Daemon::start("full", &[]);
    let process = i32::try_from(daemon.id()).unwrap();
    let process = rustix::process::Pid::from_raw(process);
    let few = rustix::process::Rlimit { current: Some(20), maximum: Some(20) };
    rustix::process::prlimit(process, rustix::process::Resource::Nofile, few).unwrap();
    let mut crowd: Vec<UnixStream> = (0..30).map(|_| daemon.stream()).collect();
    let mut request = Vec::new();
    wire::encode(&mut request, 2, 1, 0, &[b"/\0"]);
    // Whoever came first is served while the others wait, and they are when it leaves.
    let mut served = 0;
    while !crowd.is_empty() {
        let mut first = crowd.remove(0);
        first.write_all(&request).unwrap();
        let mut reply = [0; 16];
        first.read_exact(&mut reply).unwrap();
        served += 1;
    }
    assert_eq!(served, 30);
}

#[test]
fn limits_of_the_command_line_are_those_of_guests() {
    let daemon = Daemon::start_confined("limits", &["-E", "7", "-Q", "watches=9"]);
    let mut client = daemon.client();
    let report = client.control(&["quota"]).unwrap();
    let shown = |name: &str, value| {
        let line = report.lines().find(|line| line.starts_with(name)).expect(name);
        line.split([' ', ':']).any(|word| word == value)
    };
    assert!(shown("nodes ", "7") && shown("watches ", "9"), "{report}");
    assert_eq!(client.control(&["no-such"]).unwrap_err().refusal(), Some(Error::EINVAL));
}

#[test]
fn the_background_begins_when_clients_are_served() {
    let folder = Folder::new("background");
    let status = command(&folder, &["--pid-file", "pid", "-T", "trace"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let id: u32 = std::fs::read_to_string(folder.path().join("pid"))
        .unwrap()
        .trim()
        .parse()
        .expect("a number");
    let socket = folder.path().join("socket");
    let mut client = Client::new(Socket(UnixStream::connect(socket).unwrap()));
    client.write("/a", b"1").unwrap();
    // SIGHUP: the trace goes on in a new file of the same name.
    std::fs::rename(folder.path().join("trace"), folder.path().join("trace.old")).unwrap();
    signal(id, rustix::process::Signal::HUP);
    while !folder.path().join("trace").exists() {
        client.read("/a").unwrap();
    }
    client.write("/b", b"2").unwrap();
    let traced = |file| std::fs::read_to_string(folder.path().join(file)).unwrap();
    assert!(traced("trace.old").contains("write /a\\01"), "{}", traced("trace.old"));
    assert!(traced("trace").contains("write /b\\02"), "{}", traced("trace"));
    // SIGTERM ends it, and with it the connection.
    signal(id, rustix::process::Signal::TERM);
    let error = loop {
        match client.read("/a") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Closed | ClientError::Transport(_)), "{error}");
}

#[test]
fn a_start_that_fails_says_why() {
    let folder = Folder::new("fails");
    for (arguments, expected) in [
        (&["--no-such"][..], "--no-such"),
        (&["--pid-file", "nowhere/pid"], "nowhere/pid"),
        (&["--no-fork", "--trace-file", "nowhere/trace"], "nowhere/trace"),
    ] {
        let output = command(&folder, arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
