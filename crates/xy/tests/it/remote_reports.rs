//! What `xy` says of another host as a whole.

use crate::daemon::Scratch;
use crate::remote::{Remote, told};

#[test]
fn a_doctor_finds_there_what_it_finds_here() {
    let remote = Remote::new();
    for arguments in [&["doctor"][..], &["doctor", "--json"]] {
        let there = remote.run(arguments);
        assert_eq!(there, remote.run_locally(arguments), "{arguments:?}");
        assert!(there.1.contains("xen"), "{there:?}");
    }
    let mut command = remote.command(&["doctor"]);
    let viewer = told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap());
    assert_eq!(viewer, remote.run(&["doctor"]));
}

#[test]
fn a_report_is_made_there_and_kept_here() {
    let (remote, folder) = (Remote::new(), Scratch::new());
    let report = |arguments: &[&str], name: &str| {
        let path = folder.path.join(name);
        let mut all = arguments.to_vec();
        all.push(path.to_str().unwrap());
        (told(&remote.command(&all).output().unwrap()), path)
    };
    let ((status, said, error), path) = report(&["bugreport"], "far.tar");
    assert_eq!((status, error.as_str()), (0, ""));
    assert!(said.contains(" files. It names VMs, disks and networks of the host;"), "{said}");
    let here = folder.path.join("here.tar");
    assert_eq!(remote.run_locally(&["bugreport", here.to_str().unwrap()]).0, 0);
    let names = |path: &std::path::Path| {
        let bytes = std::fs::read(path).unwrap();
        let names = String::from_utf8_lossy(&bytes);
        // Each begins with the time.
        let names = names.split("xy-bugreport-").skip(1);
        let name = |it: &str| it.split('\0').next().unwrap().split_once('/').unwrap().1.to_owned();
        names.map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&path), names(&here));
    assert!(names(&path).contains(&"xy-list-v.txt".to_owned()));
    let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    assert!(text.contains("web-0"), "the host's xy has asked the host");
    // Never over another file, and none if it cannot be had.
    assert!(report(&["bugreport"], "far.tar").0.2.contains("File exists"));
    let mut command = remote.command(&["bugreport", folder.path.join("no").to_str().unwrap()]);
    let refused = told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap());
    assert!(refused.2.contains("this needs the role admin, and yours is viewer"), "{refused:?}");
    assert!(!folder.path.join("no").exists());
}

#[test]
fn top_shows_the_domains_of_another_host() {
    let remote = Remote::new();
    let arguments = ["top", "-b", "-i", "1", "-s", "domid"];
    let (there, here) = (remote.run(&arguments), remote.run_locally(&arguments));
    assert_eq!((there.0, here.0), (0, 0), "{there:?}");
    let names = |text: &str| -> Vec<String> {
        text.lines().map(|it| it.split_whitespace().next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&there.1), names(&here.1));
    assert!(names(&there.1).contains(&"web-0".to_owned()), "{}", there.1);
}
