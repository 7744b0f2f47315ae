//! What the daemon gave up. That it serves all the same, the tests of guests and clients say, which
//! run their daemon so.

use std::os::unix::fs::MetadataExt;

use xenstore::client::Nodes;

use crate::process::{Daemon, Folder, command, signal, unprivileged_user};

#[test]
fn a_daemon_with_a_user_has_no_rights_left() {
    let daemon = Daemon::start_confined("rights", &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let words = |name: &str| -> Vec<&str> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).split_whitespace().collect()
    };
    let (uid, gid) =
        unprivileged_user().split_once(':').map(|(u, g)| (u.to_owned(), g.to_owned())).unwrap();
    assert_eq!(words("Uid:"), [uid.as_str(); 4]);
    assert_eq!(words("Gid:"), [gid.as_str(); 4]);
    let none = ["0000000000000000"];
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(words(set), none, "{set}");
    }
    if rustix::process::getuid().is_root() {
        assert_eq!(words("CapBnd:"), none);
        assert!(words("Groups:").is_empty());
    }
    assert_eq!(words("NoNewPrivs:"), ["1"]);
    assert_eq!(words("Seccomp:"), ["2"]);
}

#[test]
fn a_daemon_without_root_still_owns_its_folder_and_its_trace() {
    let folder = Folder::new("owns");
    let status = command(&folder, &["--user", &unprivileged_user(), "-F", "pid", "-T", "trace"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let id: u32 = std::fs::read_to_string(folder.path().join("pid"))
        .unwrap()
        .trim()
        .parse()
        .expect("a number");
    let socket = std::os::unix::net::UnixStream::connect(folder.path().join("socket")).unwrap();
    let mut client = xenstore::client::Client::new(crate::process::Socket(socket));
    std::fs::rename(folder.path().join("trace"), folder.path().join("trace.old")).unwrap();
    signal(id, rustix::process::Signal::HUP);
    while !folder.path().join("trace").exists() {
        client.read("/").unwrap();
    }
    client.write("/b", b"2").unwrap();
    let traced = std::fs::read_to_string(folder.path().join("trace")).unwrap();
    assert!(traced.contains("write /b"), "{traced}");
    let owner = std::fs::metadata(folder.path()).unwrap().uid();
    assert!(unprivileged_user().starts_with(&format!("{owner}:")));
    signal(id, rustix::process::Signal::TERM);
    while client.read("/").is_ok() {}
}

#[test]
fn a_user_that_cannot_be_had_ends_the_start() {
    let folder = Folder::new("nouser");
    for user in ["no-such-user", "1:"] {
        let output = command(&folder, &["--no-fork", "--user", user]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(user), "{error}");
    }
}

#[test]
fn a_broker_that_cannot_begin_says_why_to_its_daemon() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let folder = Folder::new("broker");
    // Before it opens anything it looks for whom it is to become.
    let mut process = command(&folder, &["--broker=no-such-user"]).stdin(theirs).spawn().unwrap();
    assert!(!process.wait().unwrap().success());
    let mut said = [0; 512];
    let length = recv(&socket, &mut said, RecvFlags::empty()).unwrap().0;
    let text = String::from_utf8_lossy(&said[..length]);
    assert!(text.contains("there is no user 'no-such-user'"), "{text}");
    assert_eq!(recv(&socket, &mut said, RecvFlags::empty()).unwrap().0, 0, "its end is told");
}
