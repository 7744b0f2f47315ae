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
fn the_store_of_a_daemon_of_roots_is_continued_by_one_with_a_user() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let mut daemon = Daemon::start("root-before", &[]);
    // Each of the two leaves its files to the other.
    let user = unprivileged_user();
    for (round, arguments) in [&["--user", &*user][..], &[], &["--user", &user]].iter().enumerate()
    {
        daemon.client().write(&format!("/kept/{round}"), b"yes").unwrap();
        daemon.kill();
        daemon.restart(arguments);
        for before in 0..=round {
            assert_eq!(
                daemon.client().read(&format!("/kept/{before}")).unwrap(),
                b"yes",
                "{round}"
            );
        }
    }
}

/// A daemon that is started in a folder which its user has prepared, until it serves or has ended; what it said.
fn started_in(folder: &Folder, arguments: &[&str]) -> String {
    let words = [&["--user", "65534:65534"], arguments].concat();
    // It keeps its standard error, so a pipe would have no end.
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    let errors = Folder::new(&format!("said-of-{name}"));
    let file = errors.path().join("said");
    let mut start = command(folder, &words);
    let output = start.stderr(std::fs::File::create(&file).unwrap()).output().unwrap();
    let id = String::from_utf8(output.stdout).unwrap();
    if let Ok(id) = id.trim().parse() {
        signal(id, rustix::process::Signal::KILL);
    }
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn no_link_of_the_user_gives_it_a_file_of_roots() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    if !rustix::process::getuid().is_root() {
        return;
    }
    let place = Folder::new("victims");
    let victim = place.path().join("victim");
    let folder_of_root = place.path().join("folder");
    std::fs::create_dir(&folder_of_root).unwrap();
    for name in ["pid", "trace", "socket", "status", "journal"] {
        std::fs::write(&victim, "root's own").unwrap();
        std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
        let folder = Folder::new(&format!("planted-{name}"));
        symlink(&victim, folder.path().join(name)).unwrap();
        chown(folder.path(), Some(65534), Some(65534)).unwrap();
        let said = started_in(&folder, &["-P", "-F", "pid", "-T", "trace"]);
        let found = std::fs::metadata(&victim).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600), "{name}: {said}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "root's own", "{name}: {said}");
    }
    // The folder itself.
    let folder = Folder::new("planted-folder");
    symlink(&folder_of_root, folder.path().join("run")).unwrap();
    chown(folder.path(), Some(65534), Some(65534)).unwrap();
    let mut start = command(&folder, &["--user", "65534:65534", "--no-fork"]);
    let output = start.env("XENSTORED_RUNDIR", folder.path().join("run")).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(std::fs::metadata(&folder_of_root).unwrap().uid(), 0);
}

#[test]
fn what_the_user_left_as_a_journal_is_not_read_by_root() {
    use std::os::unix::fs::symlink;
    if !rustix::process::getuid().is_root() {
        return;
    }
    // A link to a file that only root may read: an error of the user's rights, not of the file's content.
    let folder = Folder::new("journal-of-others");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, vec![0; 8192]).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::hard_link(&secret, folder.path().join("journal")).unwrap();
    let said = started_in(&folder, &["-P"]);
    assert!(said.contains("Permission denied") || said.contains("EACCES"), "{said}");
    // Nor is a link followed.
    std::fs::remove_file(folder.path().join("journal")).unwrap();
    symlink(&secret, folder.path().join("journal")).unwrap();
    assert!(!started_in(&folder, &["-P"]).is_empty());
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
