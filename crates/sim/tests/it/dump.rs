//! Core files of domains: what is in them, and what is left when one is not whole.

use std::collections::BTreeMap;

use sim::Daemon;
use toolstack::saved::{DUMP_FOLDER, DumpTo, Guest};
use toolstack::{Reply, Request, VmState};
use xen::{DomId, Uuid};
use xenstore::client::Nodes as _;

use crate::save::killed;
use crate::support::{A_WHILE, Lab, unikernel};

const FILE: &str = "/core";
const UNFINISHED: &str = "/.core.xylem-unfinished";
const PAGE: usize = 4096;

fn dump_request(guest: Guest) -> Request {
    let to = DumpTo { path: FILE.to_owned(), guest, id: Uuid([9; 16]) };
    Request::Dump { target: "one".to_owned(), to: Box::new(to) }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn place_at(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u64_at(bytes, at)).unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

/// The sections of a core file by their names, read as a debugger does: by the headers alone.
fn sections(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    assert_eq!(&file[..7], b"\x7fELF\x02\x01\x01");
    // ET_CORE of x86-64.
    assert_eq!((u16_at(file, 16), u16_at(file, 18)), (4, 62));
    let (headers, count, names) = (place_at(file, 40), u16_at(file, 60), u16_at(file, 62));
    let place = |index: usize| {
        let header = headers + index * 64;
        let at = place_at(file, header + 24);
        (u32_at(file, header), at..at + place_at(file, header + 32))
    };
    let names = &file[place(names).1];
    let mut sections = BTreeMap::new();
    let mut end = headers + count * 64;
    for index in 1..count {
        let (name, range) = place(index);
        let name = names[name..].split(|byte| *byte == 0).next().unwrap();
        end = end.max(range.end);
        let earlier =
            sections.insert(String::from_utf8(name.to_vec()).unwrap(), file[range].to_vec());
        assert!(earlier.is_none());
    }
    assert_eq!(end, file.len(), "something is in the file that no section has");
    sections
}

/// The notes of a section by their types.
fn notes(section: &[u8]) -> BTreeMap<usize, Vec<u8>> {
    let (mut notes, mut at) = (BTreeMap::new(), 0);
    while at < section.len() {
        let (name, bytes) = (u32_at(section, at), u32_at(section, at + 4));
        assert_eq!(&section[at + 12..at + 12 + name], b"Xen\0");
        notes.insert(u32_at(section, at + 8), section[at + 16..][..bytes].to_vec());
        at += 16 + bytes;
    }
    notes
}

fn started(seed: u64, kind: &str) -> (Lab, DomId) {
    let mut lab = Lab::seeded(seed);
    let text = format!(
        "name = 'one'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\nvcpus = 2\n\
         extra = 'sim.writes=50'\n"
    );
    let domid = lab.create(&text).unwrap();
    lab.pass(A_WHILE);
    (lab, domid)
}

#[track_caller]
fn assert_is_core_of(lab: &Lab, file: &[u8], domid: DomId, is_pv: bool) {
    let machine = lab.host.machine();
    let machine = machine.get();
    let sections = sections(file);
    let notes = notes(&sections[".note.Xen"]);
    let header = &notes[&0x0200_0001];
    let numbers: Vec<u64> = (0..4).map(|at| u64_at(header, at * 8)).collect();
    let magic = if is_pv { 0xF00F_EBED } else { 0xF00F_EBEE };
    let table = &sections[if is_pv { ".xen_p2m" } else { ".xen_pfn" }];
    let entry = if is_pv { 16 } else { 8 };
    let pages = table.len() / entry;
    // Its second vCPU was never started.
    assert_eq!(numbers, [magic, 1, pages as u64, PAGE as u64]);
    assert_eq!(notes[&0x0200_0000].len(), 0);
    assert_eq!(notes[&0x0200_0002].len(), 1280);
    assert_eq!(notes[&0x0200_0003], 1_u64.to_le_bytes());
    assert_eq!(sections[".xen_prstatus"].len(), 5168);
    assert!(!is_pv || sections[".xen_shared_info"].len() == PAGE);
    let content = &sections[".xen_pages"];
    assert_eq!(content.len(), pages * PAGE);
    let domain = machine.domain(domid).unwrap();
    let mut page = [0; PAGE];
    let frames: Vec<u64> = (0..pages).map(|at| u64_at(table, at * entry)).collect();
    assert!(frames.is_sorted() && pages > 8 << 7, "{pages}");
    for (at, &frame) in frames.iter().enumerate() {
        assert!(machine.guest_read(domid, frame, 0, &mut page), "{frame:#x}");
        assert_eq!(page, content[at * PAGE..][..PAGE], "{frame:#x}");
        if is_pv {
            assert_eq!(domain.mfn_of_pfn(frame), Some(u64_at(table, at * entry + 8)));
        }
    }
}

fn is_paused(lab: &Lab, domid: DomId) -> bool {
    lab.host.machine().get().domain(domid).unwrap().is_paused()
}

#[track_caller]
fn assert_done(reply: &Reply) {
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

#[test]
fn a_core_file_has_the_memory_of_a_domain() {
    for (kind, is_pv) in [("pvh", false), ("pv", true)] {
        let (mut lab, domid) = started(1, kind);
        // So that nothing changes between the dump and the comparison.
        lab.ask(Request::Pause { target: "one".to_owned() });
        assert_done(&lab.ask(dump_request(Guest::Pauses)));
        let file = lab.host.os().file(FILE).unwrap();
        assert_is_core_of(&lab, &file, domid, is_pv);
        assert!(is_paused(&lab, domid), "somebody else had paused it");
        assert_eq!(lab.state("one"), VmState::Paused);
        lab.ask(Request::Unpause { target: "one".to_owned() });
        for guest in [Guest::Pauses, Guest::RunsOn] {
            assert_done(&lab.ask(dump_request(guest)));
            let again = lab.host.os().file(FILE).unwrap();
            assert_eq!(again.len(), file.len());
            assert!(!is_paused(&lab, domid));
            assert_eq!(lab.state("one"), VmState::Running);
        }
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_guest_stands_still_while_it_is_dumped_unless_it_is_not_to() {
    for (guest, expected) in [(Guest::Pauses, 1), (Guest::RunsOn, 0)] {
        let (mut lab, domid) = started(2, "pvh");
        lab.daemon.totals = toolstack::work::Cost::default();
        let client = lab.daemon.request(dump_request(guest)).unwrap();
        let asked = lab.daemon.request(Request::Unpause { target: "one".to_owned() });
        let Reply::Failed(message) = lab.wait(asked.unwrap()) else { panic!("it runs") };
        assert_eq!(message, "one: is being dumped; try again when that has ended");
        assert_done(&lab.wait(client));
        assert!(!is_paused(&lab, domid));
        let calls = &lab.daemon.totals.hypercalls;
        let count = |name| calls.get(name).copied().unwrap_or_default();
        let paused = [count("pausedomain"), count("unpausedomain")];
        assert_eq!(paused, [expected, expected], "{calls:?}");
    }
}

#[test]
fn whenever_the_daemon_is_killed_the_guest_runs_on_and_a_core_file_is_whole_or_absent() {
    for (kind, is_paused_before) in [("pvh", false), ("pv", false), ("pvh", true)] {
        let (mut kills, mut whole) = (0, 0);
        for action in 1.. {
            let (mut lab, domid) = started(action, kind);
            if is_paused_before {
                lab.ask(Request::Pause { target: "one".to_owned() });
            }
            let is_dead = killed(&mut lab, action, dump_request(Guest::Pauses));
            if is_dead {
                kills += 1;
                lab.daemon = Daemon::start(&lab.host).unwrap();
            }
            lab.pass(A_WHILE);
            let place = format!("{kind} action {action}");
            assert_eq!(is_paused(&lab, domid), is_paused_before, "{place}");
            let expected = if is_paused_before { VmState::Paused } else { VmState::Running };
            assert_eq!(lab.state("one"), expected, "{place}");
            assert!(lab.host.os().file(UNFINISHED).is_none(), "{place}: half a file is left");
            let record = lab.host.connect().directory("/xylem/vm").unwrap_or_default();
            let node = format!("/xylem/vm/{}/saving", record[0]);
            assert!(lab.host.connect().read(&node).is_err(), "{place}: it is recorded");
            if let Some(file) = lab.host.os().file(FILE) {
                whole += 1;
                sections(&file);
            }
            lab.destroy("one");
            lab.assert_nothing_left();
            if !is_dead {
                break;
            }
        }
        assert!(kills > 10 && whole > 0, "{kills} {whole}");
    }
}

#[test]
fn a_dump_that_fails_or_is_cancelled_leaves_no_file_and_the_guest_goes_on() {
    let (mut lab, domid) = started(3, "pvh");
    for room in [0, 5000, 100_000, 8_400_000] {
        lab.host.os().set_room(Some(room));
        let Reply::Failed(message) = lab.ask(dump_request(Guest::Pauses)) else {
            panic!("it fits")
        };
        assert_eq!(message, "/core: no space left on device");
        assert!(lab.host.os().file(FILE).is_none() && lab.host.os().file(UNFINISHED).is_none());
        assert!(!is_paused(&lab, domid));
    }
    lab.host.os().set_room(None);
    let client = lab.daemon.request(dump_request(Guest::Pauses)).unwrap();
    let cancel = Request::CancelSave { target: "one".to_owned(), id: Uuid([9; 16]) };
    assert_done(&lab.ask(cancel));
    let Reply::Failed(message) = lab.wait(client) else { panic!("it was not cancelled") };
    assert_eq!(message, "one: the dump was cancelled");
    assert!(lab.host.os().file(FILE).is_none() && !is_paused(&lab, domid));
    assert_eq!(lab.state("one"), VmState::Running);

    // A destroy does not wait for it.
    let client = lab.daemon.request(dump_request(Guest::Pauses)).unwrap();
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    let Reply::Failed(message) = lab.wait(client) else { panic!("it was not cancelled") };
    assert_eq!(message, "destroyed while it was being dumped");
    lab.assert_nothing_left();
}

#[test]
fn the_core_of_a_guest_that_has_crashed_is_kept() {
    let path = format!("{DUMP_FOLDER}/one");
    for (action, ends) in
        [("coredump-destroy", true), ("coredump-restart", true), ("preserve", false)]
    {
        for kind in ["pvh", "pv"] {
            let mut lab = Lab::seeded(4);
            let text = unikernel("one", kind, "crashes") + &format!("on_crash = '{action}'\n");
            let first = lab.create(&text).unwrap();
            lab.settle();
            assert_eq!(lab.host.os().file(&path).is_some(), ends, "{action}");
            if ends {
                let file = lab.host.os().file(&path).unwrap();
                assert!(sections(&file)[".xen_pages"].len() > 1 << 20);
                // One that is restarted has crashed so often that it is left down.
                assert!(lab.host.machine().get().domain(first).is_none());
                assert_eq!(lab.state("one"), VmState::Gone);
            } else {
                assert_eq!(lab.state("one"), VmState::Preserved);
                assert_done(&lab.ask(dump_request(Guest::Pauses)));
                let file = lab.host.os().file(FILE).unwrap();
                assert_is_stopped_core(&lab, &file, first, kind);
                assert_eq!(lab.state("one"), VmState::Preserved);
                lab.destroy("one");
            }
            lab.assert_nothing_left();
        }
    }
}

#[track_caller]
fn assert_is_stopped_core(lab: &Lab, file: &[u8], domid: DomId, kind: &str) {
    let sections = sections(file);
    assert_eq!(sections[".xen_prstatus"].len(), 5168);
    let table = &sections[if kind == "pv" { ".xen_p2m" } else { ".xen_pfn" }];
    let mut page = [0; PAGE];
    assert!(lab.host.machine().get().guest_read(domid, u64_at(table, 0), 0, &mut page));
    assert_eq!(page, sections[".xen_pages"][..PAGE]);
}

#[test]
fn a_core_that_cannot_be_written_does_not_keep_a_vm_from_its_restart() {
    let mut lab = Lab::seeded(5);
    lab.host.os().set_room(Some(1000));
    let Reply::Changes(before) = lab.ask(Request::Events { since: None, waits: false }) else {
        panic!("no events")
    };
    let text = unikernel("one", "pvh", "crashes") + "on_crash = 'coredump-restart'\n";
    lab.create(&text).unwrap();
    lab.settle();
    assert_eq!(lab.state("one"), VmState::Gone);
    match lab.ask(Request::Events { since: Some(before.revision), waits: false }) {
        Reply::Changes(changes) => {
            let starts = changes.changes.iter().filter(|it| it.after == VmState::Starting).count();
            assert!(starts >= 5, "{changes:?}");
        }
        other => panic!("{other:?}"),
    }
    lab.host.os().set_room(None);
    lab.assert_nothing_left();
}

#[test]
fn a_crash_that_a_killed_daemon_was_dumping_is_dumped_by_the_next() {
    let path = format!("{DUMP_FOLDER}/one");
    let mut kills = 0;
    for action in 1.. {
        let mut lab = Lab::seeded(6);
        let text = unikernel("one", "pvh", "crashes") + "on_crash = 'coredump-destroy'\n";
        let request = lab.create_request(&text);
        if !killed(&mut lab, action, request) {
            break;
        }
        kills += 1;
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        assert_eq!(lab.state("one"), VmState::Gone, "action {action}");
        let half = format!("{DUMP_FOLDER}/.one.xylem-unfinished");
        assert!(lab.host.os().file(&half).is_none(), "action {action}: half a file is left");
        if let Some(file) = lab.host.os().file(&path) {
            sections(&file);
        }
        lab.assert_nothing_left();
    }
    assert!(kills > 10, "{kills}");
}
