//! What other releases of the daemon left: records in the store and files of definitions. A daemon that
//! cannot read one never ends the VM.

use std::collections::BTreeMap;

use sim::Daemon;
use toolstack::{Reply, Request, ShutdownRequest, VmRow, VmState, xlcfg};
use xen::{DomId, Uuid};
use xenstore::client::{Batch, Nodes as _};

use crate::support::{Lab, linux};

/// A record's configuration as the first release wrote it.
const FORMAT_1: &str = "name = \"web\"\ntype = \"pv\"\nkernel = \"/kernel\"\nramdisk = \"/initrd\"\n\
    cmdline = \"sim.kind=linux sim.behaviour=normal\"\nmemory = 16\nmaxmem = 16\nvcpus = 2\n\
    maxvcpus = 2\ndisk = [\n  \"format=raw,vdev=xvda,access=w,target=/disk.raw\",\n]\nvif = [\n  \
    \"devid=0,bridge=xenbr0\",\n]\non_poweroff = \"destroy\"\non_reboot = \"restart\"\n\
    on_crash = \"destroy\"\non_watchdog = \"destroy\"\non_soft_reset = \"soft-reset\"\n\
    tsc_mode = \"default\"\n";

const HVM: &str = "name = 'web'\ntype = 'hvm'\nmemory = 64\n\
                   disk = ['/disk.raw,raw,hda,w']\nvif = ['type=vif']\n";

/// A lab in which `web` runs.
fn lab(kind: &str) -> (Lab, DomId) {
    let mut lab = Lab::seeded(31);
    let text = match kind {
        "hvm" => {
            sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
            lab.before = lab.host.snapshot().unwrap();
            HVM.to_owned()
        }
        kind => linux("web", kind, "normal"),
    };
    let domid = lab.create(&text).unwrap();
    lab.settle();
    (lab, domid)
}

fn record_path(lab: &Lab) -> String {
    let uuid = lab.host.connect().directory("/xylem/vm").unwrap().pop().unwrap();
    format!("/xylem/vm/{uuid}")
}

/// Every node of the record.
fn record(lab: &Lab) -> BTreeMap<String, Vec<u8>> {
    let mut store = lab.host.connect();
    let path = record_path(lab);
    let names = store.directory(&path).unwrap();
    names
        .into_iter()
        .map(|name| (name.clone(), store.read(&format!("{path}/{name}")).unwrap()))
        .collect()
}

/// Puts other nodes in the place of a record's; an empty value removes one.
fn rewrite(lab: &Lab, nodes: &[(&str, &str)]) {
    let path = record_path(lab);
    let old = record(lab);
    let mut batch = Batch::new();
    for (name, value) in nodes {
        if !value.is_empty() {
            batch.write(&format!("{path}/{name}"), value);
        } else if old.contains_key(*name) {
            batch.rm(&format!("{path}/{name}"));
        }
    }
    lab.host.connect().commit(&batch).unwrap();
}

fn restart(lab: &mut Lab) {
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
}

fn rows(lab: &mut Lab) -> Vec<VmRow> {
    match lab.ask(Request::Vms) {
        Reply::Vms(rows) => rows,
        other => panic!("{other:?}"),
    }
}

fn runs(lab: &Lab, domid: DomId) -> bool {
    lab.host.machine().get().domain(domid).is_some_and(sim::Domain::is_running)
}

/// Names and values.
type Nodes = &'static [(&'static str, &'static str)];

/// Records that this release cannot read: what is written over the nodes of one, and what is said of it.
const UNREADABLE: [(&str, Nodes, &str); 6] = [
    ("a later format", &[("format", "3"), ("config-0", "domain { name: web }")], "format 3"),
    ("a later format of the same words", &[("format", "3")], "format 3"),
    ("an unknown format", &[("format", "two")], "format"),
    (
        "a later word in a value",
        &[("config-0", "name = 'web'\ntype = 'quantum'\n")],
        "config:2: type",
    ),
    ("a damaged text", &[("config-0", "name = 'web")], "config:1: "),
    ("a later word for a whole VM", &[("complete", "frozen 1 2 3")], "complete: \"frozen 1 2 3\""),
];

#[test]
fn a_record_of_the_first_release_is_adopted() {
    let (mut lab, domid) = lab("pv");
    rewrite(&lab, &[("format", ""), ("full-0", ""), ("config-0", FORMAT_1)]);
    restart(&mut lab);
    let row = rows(&mut lab).pop().unwrap();
    assert_eq!((row.name.as_str(), row.state, row.domid), ("web", VmState::Running, Some(domid)));
    lab.ask(Lab::shutdown_request("web", ShutdownRequest::Reboot));
    lab.settle();
    lab.ask(Lab::shutdown_request("web", ShutdownRequest::Poweroff));
    lab.assert_nothing_left();
}

#[test]
fn a_vm_whose_record_cannot_be_read_runs_on_and_is_stuck() {
    for kind in ["pv", "pvh", "hvm"] {
        for (what, nodes, why) in UNREADABLE {
            let (mut lab, domid) = lab(kind);
            rewrite(&lab, nodes);
            let before = record(&lab);
            for _daemon in 0..2 {
                restart(&mut lab);
                assert!(runs(&lab, domid), "{kind}, {what}: the domain was ended");
                assert_eq!(record(&lab), before, "{kind}, {what}");
                assert_eq!(lab.host.os().get().loops().len(), 1, "{kind}, {what}");
                let row = rows(&mut lab).pop().expect("it is listed");
                let seen = (row.name.as_str(), row.state, row.domid);
                assert_eq!(seen, ("web", VmState::Stuck, Some(domid)), "{kind}, {what}");
                assert!(row.reason.contains(why), "{kind}, {what}: {}", row.reason);
            }
            let refused = lab.create(&linux("web", "pv", "normal")).unwrap_err();
            assert!(refused.contains("web exists already"), "{refused}");
            match lab.ask(Request::Pause { target: "web".to_owned() }) {
                Reply::Failed(message) => {
                    assert!(message.contains("`xy destroy web`"), "{message}");
                }
                other => panic!("{kind}, {what}: {other:?}"),
            }
            assert!(matches!(lab.destroy("web"), Reply::Gone { .. }), "{kind}, {what}");
            lab.assert_nothing_left();
        }
    }
}

#[test]
fn a_vm_whose_record_cannot_be_read_is_adopted_by_the_file_it_was_made_from() {
    for kind in ["pv", "pvh", "hvm"] {
        let (mut lab, domid) = lab(kind);
        rewrite(&lab, &[("format", "3"), ("config-0", "{}"), ("config-7", "{}")]);
        restart(&mut lab);
        let text = if kind == "hvm" { HVM.to_owned() } else { linux("web", kind, "normal") };
        let base = |text: &str| {
            let source = xlcfg::Source { file: "web.cfg", text, overrides: &[] };
            Some(Box::new(xlcfg::parse(source).unwrap()))
        };
        let adopt =
            |lab: &mut Lab, base| lab.ask(Request::Adopt { target: "web".to_owned(), base });
        let more = text.replace("vif = [", "vif = ['', ");
        for (base, expected) in [
            (None, "xy adopt --config FILE web"),
            (base(&more), "web: has no vif 1, which the configuration names"),
            (base(&text.replace("\ndisk = ", "\n#")), "that the configuration does not name"),
        ] {
            match adopt(&mut lab, base) {
                Reply::Failed(message) => assert!(message.contains(expected), "{kind}: {message}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
        let reply = adopt(&mut lab, base(&text));
        assert!(matches!(reply, Reply::Done { domid: it } if it == domid), "{kind}: {reply:?}");
        assert!(!record(&lab).contains_key("config-7"));
        for _daemon in 0..2 {
            lab.settle();
            assert!(runs(&lab, domid), "{kind}");
            let row = rows(&mut lab).pop().unwrap();
            assert_eq!((row.state, row.domid), (VmState::Running, Some(domid)), "{kind}");
            restart(&mut lab);
        }
        lab.destroy("web");
        lab.assert_nothing_left();
    }
}

#[test]
fn what_is_left_of_a_vm_whose_record_cannot_be_read_is_kept_when_its_domain_ends() {
    let (mut lab, domid) = lab("pv");
    rewrite(&lab, &[("format", "3")]);
    restart(&mut lab);
    xen::Xen::probe(lab.host.hypervisor()).unwrap().destroy_domain(domid).unwrap();
    lab.settle();
    let row = rows(&mut lab).pop().unwrap();
    assert_eq!((row.state, row.domid), (VmState::Stuck, None));
    assert_eq!(record(&lab)["format"], b"3");
    lab.destroy("web");
    lab.assert_nothing_left();
}

#[test]
fn definitions_of_this_release_and_the_first_are_read_and_those_of_a_later_one_are_kept() {
    let uuid = |n: u8| Uuid([n; 16]).to_string();
    let file = |format: u32, n: u8| {
        let text = FORMAT_1.replace("\"web\"", &format!("\"web{n}\"\nuuid = \"{}\"", uuid(n)));
        format!("# A VM of Xylem, format {format}. Written by xy define.\n# autostart 3\n{text}")
    };
    let mut lab = Lab::seeded(32);
    for (n, format) in [(1, 1), (2, 2), (3, 3)] {
        lab.host.os().put_definition(&uuid(n), &file(format, n));
    }
    lab.host.os().put_definition("notes", "to do");
    let before = lab.host.os().definitions();
    restart(&mut lab);
    let seen: Vec<_> = rows(&mut lab).into_iter().map(|row| (row.name, row.state)).collect();
    let expected = [
        (uuid(3), VmState::Stuck),
        ("notes".to_owned(), VmState::Stuck),
        ("web1".to_owned(), VmState::Down),
        ("web2".to_owned(), VmState::Down),
    ];
    assert_eq!(seen, expected);
    let text = FORMAT_1.replace("\"web\"", &format!("\"web3\"\nuuid = \"{}\"", uuid(3)));
    let source = xlcfg::Source { file: "web.cfg", text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let fresh_uuid = Uuid([9; 16]);
    match lab.ask(Request::Define { config, fresh_uuid, autostart: None }) {
        Reply::Failed(message) => assert!(message.contains("format 3"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(lab.host.os().definitions(), before);
}
