//! What a confined program has left. It is started as the daemon starts device models and servers of images.

use std::process::{Command, Output};

/// Runs a shell script confined.
fn confined(kind: &str, group: &str, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xylemd"))
        .args(["--confine", kind, group, "--", "/bin/sh", "-c", script])
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A line of /proc/self/status.
fn status(kind: &str, name: &str) -> String {
    let output = confined(kind, "-", "cat /proc/self/status");
    let all = text(&output.stdout);
    let line = all.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name}: {output:?}")).trim().to_owned()
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Whether this test itself may have namespaces: a container's root may not.
fn may_unshare() -> bool {
    Command::new("/bin/sh").args(["-c", "unshare -mn true"]).output().unwrap().status.success()
}

#[test]
fn it_has_a_filter_and_gains_nothing_by_programs() {
    for kind in ["device-model", "image-server"] {
        assert_eq!(status(kind, "NoNewPrivs:"), "1", "{kind}");
        assert_eq!(status(kind, "Seccomp:"), "2", "{kind}");
        assert_eq!(text(&confined(kind, "-", "ulimit -c").stdout), "0\n", "{kind}");
    }
}

#[test]
fn it_keeps_few_capabilities() {
    if !is_root() {
        return;
    }
    // Bits of `linux/capability.h`: DAC_OVERRIDE 1, FOWNER 3, SETGID 6, SETUID 7, NET_BIND_SERVICE 10, NET_ADMIN 12,
    // IPC_LOCK 14, SYS_CHROOT 18, SYS_ADMIN 21.
    let bits = |list: &[u32]| list.iter().fold(0_u64, |sum, bit| sum | 1 << bit);
    for (kind, most) in
        [("device-model", bits(&[1, 3, 6, 7, 10, 12, 14, 18])), ("image-server", bits(&[1, 3, 21]))]
    {
        for set in ["CapBnd:", "CapPrm:", "CapEff:"] {
            let has = u64::from_str_radix(&status(kind, set), 16).unwrap();
            assert_eq!(has & !most, 0, "{kind} {set} {has:x}");
            assert_ne!(has, 0, "{kind} {set}");
        }
    }
}

#[test]
fn what_helps_an_attacker_is_refused() {
    if !is_root() || !may_unshare() {
        return;
    }
    for script in [
        "mount -t tmpfs none /mnt",
        "unshare -m true",
        "unshare -U true",
        "nsenter -t 1 -m true",
        "swapoff -a; mknod /tmp/xylem-jail-node b 7 0",
        "touch /usr/xylem-jail-test",
        "touch /etc/xylem-jail-test",
    ] {
        for kind in ["device-model", "image-server"] {
            let output = confined(kind, "-", script);
            assert!(!output.status.success(), "{kind}: {script}: {output:?}");
        }
    }
    assert!(!std::path::Path::new("/usr/xylem-jail-test").exists());
}

#[test]
fn a_server_of_images_has_no_network_and_a_device_model_the_hosts() {
    if !is_root() || !may_unshare() {
        return;
    }
    let links = |kind| text(&confined(kind, "-", "cat /proc/net/dev").stdout);
    let names = |table: &str| -> Vec<String> {
        let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
        table.lines().filter_map(name).collect()
    };
    assert_eq!(names(&links("image-server")), ["lo"]);
    let own = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    assert_eq!(names(&links("device-model")), names(&own));
}

#[test]
fn what_cannot_be_had_is_said_and_the_program_runs() {
    let output = confined("image-server", "/nowhere/xylem-group", "echo runs");
    assert_eq!(text(&output.stdout), "runs\n");
    let said = text(&output.stderr);
    assert!(
        said.contains("xylem-jail: without limits of memory and CPU: /nowhere/xylem-group"),
        "{said}"
    );
}

#[test]
fn a_program_that_is_missing_is_named() {
    let xylemd = env!("CARGO_BIN_EXE_xylemd");
    let words = ["--confine", "image-server", "-", "--", "/nowhere/program"];
    let output = Command::new(xylemd).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    let said = text(&output.stderr);
    assert!(said.contains("cannot execute /nowhere/program: No such file"), "{said}");
    for words in [&["--confine"][..], &["--confine", "nothing", "-", "--", "/bin/true"]] {
        let output = Command::new(xylemd).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{words:?}");
    }
}
