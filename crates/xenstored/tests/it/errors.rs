//! Standard error that takes nothing: a full pipe that nobody reads, a closed one, a full disk. The store goes on.

use std::fs::OpenOptions;
use std::io::Read;
use std::process::Stdio;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::client::Nodes;

use crate::process::Daemon;

/// Has the daemon write many lines: for each INTRODUCE of a domain that does not exist one, and the
/// client still gets each answer.
fn cause_lines(daemon: &Daemon) {
    let mut client = daemon.client();
    for domid in 1..500 {
        assert!(client.introduce(DomId(domid), Gfn(1), EvtchnPort(1)).is_err());
    }
    client.write("/still", b"here").unwrap();
    assert_eq!(client.read("/still").unwrap(), b"here");
}

#[test]
fn a_pipe_that_nobody_reads_does_not_stop_the_store() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let daemon = Daemon::start_with_errors("stuck", Stdio::from(writer.try_clone().unwrap()));
    // Full from the start, but for a few bytes.
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    while rustix::io::write(&writer, &[b'.'; 512]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    drop(writer);
    cause_lines(&daemon);
    // Who reads again is told that something is missing.
    let mut taken = vec![0; 1 << 16];
    reader.read_exact(&mut taken).unwrap();
    assert!(daemon.client().introduce(DomId(9), Gfn(1), EvtchnPort(1)).is_err());
    let mut rest = Vec::new();
    drop(daemon);
    reader.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("lines are missing here"), "{rest}");
}

#[test]
fn a_closed_pipe_does_not_end_the_store() {
    let (reader, writer) = std::io::pipe().unwrap();
    let daemon = Daemon::start_with_errors("closed", Stdio::from(writer));
    drop(reader);
    cause_lines(&daemon);
}

#[test]
fn a_full_disk_does_not_end_the_store() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let daemon = Daemon::start_with_errors("full", Stdio::from(full));
    cause_lines(&daemon);
}

#[test]
fn a_socket_that_nobody_reads_does_not_stop_the_store() {
    let (_reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let daemon =
        Daemon::start_with_errors("socket", Stdio::from(std::os::fd::OwnedFd::from(writer)));
    cause_lines(&daemon);
}
