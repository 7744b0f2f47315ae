//! `xy store` with the store of another host.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::remote::{Remote, told};

/// Says the same there and here, and that it was done. The nodes of VMs change as they run: only what said the same before and
/// after can be compared.
fn both(remote: &Remote, arguments: &[&str]) -> String {
    for _ in 0..50 {
        let before = remote.run_locally(arguments);
        let there = remote.run(arguments);
        if before == remote.run_locally(arguments) {
            assert_eq!(there, before, "{arguments:?}");
            assert_eq!(there.0, 0, "{arguments:?}");
            return there.1;
        }
    }
    panic!("{arguments:?}: what it says never stays the same");
}

#[test]
fn nodes_are_read_there_as_here() {
    let remote = Remote::new();
    let write =
        ["store", "write", "/t/a", "1\\n2", "/t/a/b", "", "/t/a-b", "\\xff\\\\", "/t/z", "end"];
    assert_eq!(remote.run(&write), (0, String::new(), String::new()));
    let tree = both(&remote, &["store", "ls", "-f", "-p", "/t"]);
    assert!(tree.contains("/t/a = \"1\\n2\"   (n0)\n"), "{tree}");
    for arguments in [
        &["store", "ls", "/t"][..],
        &["store", "ls", "-p", "/t", "/t/a"],
        &["store", "ls", "-f", "/xylem"],
        &["store", "ls", "/local/domain/1"],
        &["store", "list", "/t"],
        &["store", "list", "-p", "/", "/t"],
        &["store", "read", "/t/a", "/t/a-b"],
        &["store", "read", "-p", "/t/a", "/t/z"],
        &["store", "read", "-R", "/t/a-b"],
        &["store", "exists", "/t/a", "/t"],
    ] {
        both(&remote, arguments);
    }
    // What is not there, or is no path.
    for arguments in [
        &["store", "read", "/t/z", "/t/none"][..],
        &["store", "list", "/t", "/none"],
        &["store", "ls", "/none"],
        &["store", "exists", "/none"],
        &["store", "read", "a//b"],
        &["store", "write", "a//b", "x"],
        &["store", "chmod", "/none", "r1"],
        &["store", "rm", "/none/below"],
    ] {
        let (there, here) = (remote.run(arguments), remote.run_locally(arguments));
        assert_eq!(there, here, "{arguments:?}");
        assert_eq!(there.0, 1, "{arguments:?}");
    }
}

#[test]
fn nodes_are_changed_there_as_here() {
    let remote = Remote::new();
    let changes: [&[&str]; 6] = [
        &["store", "write", "/t/a/b/c", "x"],
        &["store", "write", "-R", "/t/a/raw", "a\\nb"],
        &["store", "chmod", "-r", "/t/a", "n0", "r1"],
        &["store", "chmod", "-u", "/t/a/b/c", "b2", "w3"],
        &["store", "rm", "/t/a/raw"],
        &["store", "rm", "-t", "/t/a/b/c"],
    ];
    let mut trees = Vec::new();
    let start = ["store", "write", "/t/keep", "k"];
    let look = ["store", "ls", "-f", "-p", "/t"];
    assert_eq!(remote.run(&start).0, 0);
    for change in changes {
        assert_eq!(remote.run(change), (0, String::new(), String::new()), "{change:?}");
        trees.push(remote.run(&look).1);
    }
    assert_eq!(remote.run(&["store", "rm", "/t"]).0, 0);
    assert_eq!(remote.run_locally(&start).0, 0);
    for (change, tree) in changes.into_iter().zip(trees) {
        assert_eq!(remote.run_locally(change), (0, String::new(), String::new()), "{change:?}");
        assert_eq!(remote.run_locally(&look).1, tree, "{change:?}");
    }
}

#[test]
fn a_large_tree_comes_in_parts() {
    let remote = Remote::new();
    let paths: Vec<String> =
        (0..2500).map(|number| format!("/t/{}/{number}", number % 7)).collect();
    for paths in paths.chunks(64) {
        let mut write = vec!["store", "write"];
        write.extend(paths.iter().flat_map(|path| [path.as_str(), "x"]));
        assert_eq!(remote.run(&write).0, 0);
    }
    let tree = both(&remote, &["store", "ls", "-f", "/t"]);
    assert_eq!(tree.lines().count(), 2507);
    let whole = both(&remote, &["store", "ls", "-f", "-p"]);
    assert!(whole.lines().count() > 2600);
}

#[test]
fn changes_are_told_as_they_happen() {
    let remote = Remote::new();
    assert_eq!(remote.run(&["store", "write", "/t/a", "1"]).0, 0);
    let mut command = remote.command(&["store", "watch", "-n", "3", "/t"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "/t");
    assert_eq!(remote.run(&["store", "write", "/t/a", "2", "/t/b", "3"]).0, 0);
    assert_eq!(lines.by_ref().collect::<Vec<_>>(), ["/t/a", "/t/b"]);
    assert_eq!(told(&child.wait_with_output().unwrap()).0, 0);
    let mut command = remote.command(&["store", "ls", "-w", "/t"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "a = \"2\"");
    assert_eq!(lines.next().unwrap(), "b = \"3\"");
    assert_eq!(remote.run(&["store", "write", "/t/c", "new"]).0, 0);
    assert_eq!(lines.next().unwrap(), "+ /t/c = \"new\"");
    assert_eq!(remote.run(&["store", "rm", "/t/a"]).0, 0);
    assert_eq!(lines.next().unwrap(), "- /t/a");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_store_is_for_admins_and_its_counters_for_all() {
    let remote = Remote::new();
    let as_viewer = |arguments: &[&str]| {
        let mut command = remote.command(arguments);
        told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap())
    };
    for arguments in [
        &["store", "ls"][..],
        &["store", "read", "/local"],
        &["store", "watch", "/"],
        &["store", "rm", "/t"],
    ] {
        let (status, said, why) = as_viewer(arguments);
        assert_eq!((status, said.as_str()), (1, ""), "{arguments:?}");
        assert!(why.contains("this needs the role admin, and yours is viewer"), "{why}");
    }
    let stats = as_viewer(&["store", "stats"]);
    assert_eq!(stats.0, 0, "{stats:?}");
    assert!(stats.1.contains("\nnodes  "), "{stats:?}");
    let metrics = remote.run(&["store", "stats", "--metrics"]);
    let why = "xy: the store has no status socket that tells metrics\n";
    assert_eq!(metrics, (1, String::new(), why.to_owned()));
}
