//! An out-of-process driver: a shell script that keeps its VDIs as file names.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use storage::{Access, Kind, Places, Repositories, VdiName};
use storage_host::LinuxSystem;

use crate::Scratch;

/// Parses the keys that it needs from a line; a VDI called `dies` makes it exit.
const DRIVER: &str = r#"#!/bin/sh
folder=$(dirname "$0")/vdis
word() { echo "$line" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
number() { echo "$line" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
while read -r line; do
    vdi=$(word vdi)
    case $vdi in
        dies) exit 1 ;;
    esac
    case $(word call) in
        create) mkdir "$folder" && echo '{"ok":null}' || echo '{"error":"there already"}' ;;
        space) echo '{"ok":{"bytes":1000,"free_bytes":10}}' ;;
        scan)
            list=
            for file in "$folder"/*; do
                [ -f "$file" ] || continue
                list="$list${list:+,}{\"name\":\"${file##*/}\",\"bytes\":$(cat "$file")}"
            done
            echo "{\"ok\":[$list]}"
            ;;
        create-vdi) number bytes >"$folder/$vdi" && echo '{"ok":null}' ;;
        destroy-vdi) rm "$folder/$vdi" && echo '{"ok":null}' ;;
        activate) echo '{"ok":"/dev/null"}' ;;
        snapshot-vdi) echo '{"error":"no snapshots here"}' ;;
        *) echo '{"ok":null}' ;;
    esac
done
"#;

#[test]
fn a_driver_out_of_process_has_an_sr_of_its_own_and_its_death_fails_one_request() {
    let (scratch, mut system) = (Scratch::new(), LinuxSystem::default());
    let program = scratch.path("driver");
    // Another process writes it: a child of another test that inherited the open file would make it busy.
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin", &program])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(DRIVER.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
    let places = Places { repositories: scratch.path("sr"), attached: scratch.path("run") };
    let mut srs = Repositories::at(&mut system, places);
    let config = BTreeMap::from([
        ("program".to_owned(), program),
        ("its-own".to_owned(), "setting".to_owned()),
    ]);
    for wrong in ["0", "soon", "3601", "-1"] {
        let mut config = config.clone();
        config.insert("timeout".to_owned(), wrong.to_owned());
        let refused = srs.create("t", Kind::Program, config).unwrap_err();
        let expected = format!("t: timeout={wrong:?}: expected seconds, from 1 to 3600");
        assert_eq!(refused.to_string(), expected);
    }
    srs.create("s", Kind::Program, config).unwrap();
    let one = VdiName::new("s", "one").unwrap();
    srs.create_vdi(&one, 1024).unwrap();
    let found = srs.scan("s").unwrap();
    assert_eq!((found.len(), found[0].name.as_str(), found[0].bytes), (1, "one", 1024));
    assert_eq!(srs.space("s").unwrap().free_bytes, 10);

    let refused = srs.snapshot_vdi(&one, "snap").unwrap_err();
    assert_eq!(refused.to_string(), "s:one: no snapshots here");
    let refused = srs.attach_for(&one, "vm", Access::ReadWrite).unwrap_err();
    assert_eq!(refused.to_string(), "s:one: /dev/null is no block device");
    assert_eq!(srs.in_use().unwrap(), [], "what could not be activated is detached");

    let refused = srs.create_vdi(&VdiName::new("s", "dies").unwrap(), 512).unwrap_err();
    assert!(refused.to_string().starts_with("s:dies: "), "{refused}");
    assert_eq!(srs.scan("s").unwrap().len(), 1, "it was started anew");
    srs.destroy_vdi(&one).unwrap();
    srs.destroy("s").unwrap();
    assert_eq!(srs.list().unwrap(), []);
}
