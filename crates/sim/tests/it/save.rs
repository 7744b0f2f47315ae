//! Saves and restores of VMs through the whole toolstack.

use std::sync::Arc;

use sim::Daemon;
use toolstack::plan::Start;
use toolstack::saved::{AfterSave, FileFormat, SaveTo, SavedFile};
use toolstack::tuning::Tuning;
use toolstack::{Reply, Request, VmState, xlcfg};
use xen::{DomId, ShutdownReason, Uuid};

use xenstore::client::Nodes as _;

use crate::support::{A_WHILE, Lab};

const FILE: &str = "/saved";
const UNFINISHED: &str = "/.saved.xylem-unfinished";

fn save_request(after: AfterSave) -> Request {
    save_as(after, FileFormat::Xylem)
}

pub(crate) fn save_as(after: AfterSave, format: FileFormat) -> Request {
    let to = SaveTo {
        path: FILE.to_owned(),
        after,
        format,
        config: None,
        id: Uuid([9; 16]),
        checkpoint: None,
        disks: Vec::new(),
    };
    Request::Save { target: "one".to_owned(), to: Box::new(to) }
}

fn read(lab: &mut Lab) -> Result<Box<SavedFile>, String> {
    match lab.ask(Request::ReadSaved { path: FILE.to_owned() }) {
        Reply::SavedFile(file) => Ok(file),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

fn restore_request(file: Box<SavedFile>, start: Start) -> Request {
    let source = xlcfg::Source { file: FILE, text: &file.config_text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    Request::Restore { file, config, start }
}

fn restore(lab: &mut Lab) -> Result<DomId, String> {
    let file = read(lab)?;
    match lab.ask(restore_request(file, Start::Running)) {
        Reply::Created(created) => Ok(created.domid),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

fn domain(lab: &Lab) -> Option<DomId> {
    lab.host.machine().get().domains().map(|domain| domain.domid).find(|it| *it != DomId::DOM0)
}

fn is_suspended(lab: &Lab, domid: DomId) -> bool {
    let reason = lab.host.machine().get().domain(domid).and_then(|domain| domain.shutdown);
    reason.map(ShutdownReason::from_code) == Some(ShutdownReason::Suspend)
}

/// One whose pages and registers can be checked, with devices if it is a Linux.
fn vm(kind: &str, words: &str) -> String {
    format!(
        "name = 'one'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\nvcpus = 2\n\
         extra = 'sim.writes=50 {words}'\n"
    )
}

fn with_devices(kind: &str) -> String {
    vm(kind, "sim.kind=linux") + "disk = ['/disk.raw,raw,xvda,rw']\nvif = ['bridge=xenbr0']\n"
}

fn started(seed: u64, text: &str) -> (Lab, DomId) {
    let mut lab = Lab::seeded(seed);
    let domid = lab.create(text).unwrap();
    for _ in 0..4 {
        lab.pass(A_WHILE);
    }
    (lab, domid)
}

#[track_caller]
fn assert_saved(lab: &mut Lab) {
    assert_eq!(lab.state("one"), VmState::Gone);
    assert!(lab.host.os().file(FILE).is_some() && lab.host.os().file(UNFINISHED).is_none());
    lab.assert_nothing_left();
}

#[track_caller]
fn assert_no_file(lab: &Lab) {
    assert!(lab.host.os().file(FILE).is_none() && lab.host.os().file(UNFINISHED).is_none());
}

#[track_caller]
fn assert_goes_on_elsewhere(lab: &mut Lab, domid: DomId) {
    lab.pass(A_WHILE);
    let told = lab.host.console(domid);
    assert!(told.contains("memory: as written"), "{told}");
    assert!(told.contains("suspend: returned 0, in a new domain"), "{told}");
    assert_eq!(lab.state("one"), VmState::Running);
}

#[test]
fn a_vm_is_saved_and_goes_on_where_it_was_in_another_domain() {
    for kind in ["pvh", "pv"] {
        for text in [vm(kind, ""), with_devices(kind)] {
            let (mut lab, first) = started(1, &text);
            let reply = lab.ask(save_request(AfterSave::Destroyed));
            assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
            assert_saved(&mut lab);
            let again = restore(&mut lab).unwrap();
            assert_ne!(first, again);
            assert_goes_on_elsewhere(&mut lab, again);
            // And once more, as xl does it.
            lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xl));
            assert_eq!(read(&mut lab).unwrap().format, FileFormat::Xl);
            let third = restore(&mut lab).unwrap();
            assert_goes_on_elsewhere(&mut lab, third);
            lab.destroy("one");
            lab.assert_nothing_left();
        }
    }
}

#[test]
fn a_vm_with_memory_on_demand_is_saved_with_what_its_balloon_driver_left() {
    for words in ["sim.kind=linux", "sim.kind=unikernel"] {
        let (mut lab, first) = started(3, &(vm("pvh", words) + "maxmem = 24\n"));
        let pages = |lab: &Lab, domid| {
            let machine = lab.host.machine().get();
            let domain = machine.domain(domid).unwrap();
            (domain.pages, domain.pages_mapped())
        };
        let (has, mapped) = pages(&lab, first);
        // 8 MiB and the special pages; most of it is not used yet.
        assert!((2048..2060).contains(&has) && mapped < 1100, "{has} {mapped}");
        lab.ask(save_request(AfterSave::Running));
        assert_eq!(pages(&lab, first).0, has);
        lab.destroy("one");
        let again = restore(&mut lab).unwrap();
        assert_goes_on_elsewhere(&mut lab, again);
        // One without that driver has more frames than memory, and all of them are saved.
        let is_more = words == "sim.kind=unikernel";
        assert_eq!(pages(&lab, again).0, if is_more { has + 16 * 256 } else { has });
        let pages_max = lab.host.machine().get().domain(again).unwrap().pages_max;
        assert_eq!(pages_max, 9 * 256);
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_guest_that_does_not_give_back_what_it_was_told_to_is_restored_with_what_it_has() {
    for kind in ["pvh", "pv"] {
        let (mut lab, first) = started(4, &vm(kind, "sim.kind=unikernel"));
        let pages = |lab: &Lab, domid| lab.host.machine().get().domain(domid).unwrap().pages;
        let has = pages(&lab, first);
        let tuning = Tuning::MemoryTarget { kib: 5 * 1024 };
        let reply = lab.ask(Request::Tune { target: "one".to_owned(), tuning });
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        lab.pass(A_WHILE);
        assert_eq!(pages(&lab, first), has);
        lab.ask(save_request(AfterSave::Destroyed));
        let again = restore(&mut lab).unwrap();
        assert_goes_on_elsewhere(&mut lab, again);
        assert_eq!(pages(&lab, again), has);
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_vm_that_is_saved_may_go_on_or_be_paused() {
    for kind in ["pvh", "pv"] {
        for (after, expected) in
            [(AfterSave::Running, VmState::Running), (AfterSave::Paused, VmState::Paused)]
        {
            let (mut lab, domid) = started(2, &with_devices(kind));
            let reply = lab.ask(save_request(after));
            assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
            assert_eq!(lab.state("one"), expected);
            assert!(!is_suspended(&lab, domid));
            if after == AfterSave::Paused {
                lab.ask(Request::Unpause { target: "one".to_owned() });
            }
            lab.pass(A_WHILE);
            let told = lab.host.console(domid);
            assert!(told.contains("returned 1, the suspend was cancelled"), "{told}");
            lab.destroy("one");
            assert_saved(&mut lab);
            let again = restore(&mut lab).unwrap();
            assert_goes_on_elsewhere(&mut lab, again);
            lab.destroy("one");
            lab.assert_nothing_left();
        }
    }
}

/// Kills the daemon at this action of a request. Whether it came that far.
pub(crate) fn killed(lab: &mut Lab, action: u64, request: Request) -> bool {
    lab.host.machine().get_mut().faults_mut().kill_toolstack(action);
    let until = lab.until();
    let answer = lab.daemon.request(request).map(|client| lab.daemon.wait(client, until));
    let is_dead = lab.host.machine().get().faults().is_toolstack_dead();
    lab.host.machine().get_mut().faults_mut().revive_toolstack();
    if !is_dead {
        assert!(matches!(answer, Ok(Ok(Some(_)))), "{answer:?}");
    }
    is_dead
}

/// Each action of a save is a test by itself; of the many that copy pages a few are enough.
fn is_tried(action: u64) -> bool {
    action < 34 || action.is_multiple_of(13)
}

#[test]
fn whenever_the_daemon_is_killed_a_vm_that_is_saved_runs_or_is_in_its_file() {
    for (kind, after, format) in [
        ("pvh", AfterSave::Destroyed, FileFormat::Xylem),
        ("pv", AfterSave::Destroyed, FileFormat::Xl),
        ("pvh", AfterSave::Running, FileFormat::Xylem),
        ("pvh", AfterSave::Paused, FileFormat::Xylem),
    ] {
        let (mut kills, mut runs, mut saved) = (0, 0, 0);
        for action in (1..).filter(|it| is_tried(*it)) {
            let (mut lab, domid) = started(action, &vm(kind, ""));
            let is_dead = killed(&mut lab, action, save_as(after, format));
            if is_dead {
                kills += 1;
                lab.daemon = Daemon::start(&lab.host).unwrap();
            }
            lab.pass(A_WHILE);
            let place = format!("{kind} {after:?} action {action}");
            let os = lab.host.os();
            assert!(os.file(UNFINISHED).is_none(), "{place}: an unfinished file");
            let record = lab.host.connect().directory("/xylem/vm").unwrap_or_default();
            let is_whole = os.file(FILE).is_some();
            match domain(&lab) {
                Some(left) => {
                    assert_eq!(left, domid, "{place}");
                    assert!(!(is_whole && after == AfterSave::Destroyed), "{place}: it is in both");
                    assert!(!is_suspended(&lab, domid), "{place}: nobody resumes it");
                    let expected = match is_whole && after == AfterSave::Paused {
                        true => VmState::Paused,
                        false => VmState::Running,
                    };
                    assert_eq!(lab.state("one"), expected, "{place}");
                    if expected == VmState::Paused {
                        lab.ask(Request::Unpause { target: "one".to_owned() });
                        lab.pass(A_WHILE);
                    }
                    assert_runs(&mut lab, &place);
                    let node = format!("/xylem/vm/{}/saving", record[0]);
                    assert!(lab.host.connect().read(&node).is_err(), "{place}: it is recorded");
                    runs += 1;
                    lab.destroy("one");
                }
                None => {
                    assert!(is_whole && after == AfterSave::Destroyed, "{place}: it is lost");
                    saved += 1;
                }
            }
            if is_whole {
                let again = restore(&mut lab).unwrap();
                assert_goes_on_elsewhere(&mut lab, again);
                lab.destroy("one");
            }
            lab.assert_nothing_left();
            if !is_dead {
                break;
            }
        }
        assert!(kills > 30 && runs > 20, "{kind} {after:?}: {kills} {runs} {saved}");
        assert!(saved > 2 || after != AfterSave::Destroyed, "{saved}");
    }
}

/// A guest that runs can suspend and be resumed.
#[track_caller]
fn assert_runs(lab: &mut Lab, place: &str) {
    for request in [
        Request::Suspend { target: "one".to_owned() },
        Request::Resume { target: "one".to_owned() },
    ] {
        let reply = lab.ask(request);
        assert!(matches!(reply, Reply::Done { .. }), "{place}: {reply:?}");
    }
}

#[test]
fn whenever_the_daemon_is_killed_a_restore_is_whole_or_leaves_nothing() {
    for kind in ["pvh", "pv"] {
        let (mut kills, mut whole) = (0, 0);
        for action in (1..).filter(|it| is_tried(*it)) {
            let (mut lab, _) = started(action, &with_devices(kind));
            lab.ask(save_request(AfterSave::Destroyed));
            let bytes = lab.host.os().file(FILE).unwrap();
            let file = read(&mut lab).unwrap();
            let is_dead = killed(&mut lab, action, restore_request(file, Start::Running));
            if is_dead {
                kills += 1;
                lab.daemon = Daemon::start(&lab.host).unwrap();
            }
            lab.pass(A_WHILE);
            assert_eq!(lab.host.os().file(FILE), Some(bytes));
            match domain(&lab) {
                Some(domid) => {
                    whole += 1;
                    assert_goes_on_elsewhere(&mut lab, domid);
                    lab.destroy("one");
                }
                None => assert_eq!(lab.state("one"), VmState::Gone, "{kind} {action}"),
            }
            let again = restore(&mut lab).unwrap();
            assert_goes_on_elsewhere(&mut lab, again);
            lab.destroy("one");
            lab.assert_nothing_left();
            if !is_dead {
                break;
            }
        }
        assert!(kills > 30 && whole > 0, "{kills} {whole}");
    }
}

#[test]
fn a_full_disk_is_told_and_the_vm_runs_on() {
    for after in [AfterSave::Destroyed, AfterSave::Running, AfterSave::Paused] {
        for room in [0, 100, 30_000, 100_000] {
            let (mut lab, domid) = started(room, &vm("pvh", ""));
            lab.host.os().set_room(Some(room));
            let Reply::Failed(message) = lab.ask(save_request(after)) else { panic!("it fits") };
            assert_eq!(message, "/saved: no space left on device");
            assert_no_file(&lab);
            assert!(!is_suspended(&lab, domid));
            assert_eq!(lab.state("one"), VmState::Running);
            lab.host.os().set_room(None);
            lab.ask(save_request(AfterSave::Destroyed));
            assert_saved(&mut lab);
        }
    }
}

#[test]
fn a_damaged_or_cut_file_is_refused_and_nothing_is_left() {
    let (mut lab, _) = started(4, &vm("pvh", ""));
    lab.ask(save_request(AfterSave::Destroyed));
    let whole = lab.host.os().file(FILE).unwrap();
    for length in [0, 7, 100, 5000, whole.len() / 2, whole.len() - 1] {
        lab.host.os().add_file(FILE, &whole[..length]);
        let message = restore(&mut lab).unwrap_err();
        assert!(message.starts_with("/saved: ") && !message.contains('\n'), "{message}");
        lab.assert_nothing_left();
    }
    for at in [100, 600, 5000, whole.len() / 3, whole.len() / 2, whole.len() - 30] {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 0x40;
        lab.host.os().add_file(FILE, bytes);
        let message = restore(&mut lab).unwrap_err();
        assert!(message.starts_with("/saved: is damaged"), "{at}: {message}");
        lab.assert_nothing_left();
    }
    lab.host.os().add_file(FILE, Arc::clone(&whole));
    let again = restore(&mut lab).unwrap();
    assert_goes_on_elsewhere(&mut lab, again);
    lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xl));
    let of_xl = lab.host.os().file(FILE).unwrap();
    for length in [40, 1000, 3000, of_xl.len() / 2, of_xl.len() - 8, of_xl.len() - 1] {
        lab.host.os().add_file(FILE, &of_xl[..length]);
        let message = restore(&mut lab).unwrap_err();
        assert!(message.starts_with("/saved: is damaged"), "{length}: {message}");
        lab.assert_nothing_left();
    }
    lab.host.os().add_file(FILE, whole);
    for offset in [0, 5000, 20_000] {
        lab.host.os().set_unreadable_from(Some(offset));
        assert_eq!(restore(&mut lab).unwrap_err(), "/saved: input/output error");
        lab.assert_nothing_left();
    }
    lab.host.os().set_unreadable_from(None);
    lab.host.os().add_file("/other", vec![7; 5000]);
    let request = Request::ReadSaved { path: "/other".to_owned() };
    let Reply::Failed(message) = lab.ask(request) else { panic!("it is none") };
    assert_eq!(message, "/other: is not the file of a saved VM");
    let again = restore(&mut lab).unwrap();
    assert_goes_on_elsewhere(&mut lab, again);
}

#[test]
fn a_save_is_cancelled_and_the_guest_runs_on() {
    for after in [AfterSave::Destroyed, AfterSave::Running] {
        let (mut lab, domid) = started(5, &vm("pvh", ""));
        let saving = lab.daemon.request(save_request(after)).unwrap();
        let cancel = |id| Request::CancelSave { target: "one".to_owned(), id: Uuid([id; 16]) };
        // The client of an earlier save hangs up late.
        let other = lab.ask(cancel(8));
        assert!(matches!(&other, Reply::Failed(it) if it == "one: is not being saved"));
        let cancelled = lab.ask(cancel(9));
        assert!(matches!(cancelled, Reply::Done { .. }), "{cancelled:?}");
        let Reply::Failed(message) = lab.wait(saving) else { panic!("it was not cancelled") };
        assert!(message.starts_with("one: the save was cancelled"), "{message}");
        lab.pass(A_WHILE);
        assert_no_file(&lab);
        assert!(!is_suspended(&lab, domid));
        assert_eq!(lab.state("one"), VmState::Running);
        let again = lab.ask(cancel(9));
        assert!(matches!(&again, Reply::Failed(it) if it == "one: is not being saved"));
    }
}

#[test]
fn a_guest_that_somebody_resumed_is_not_given_up_for_its_file_later() {
    for action in 1.. {
        let (mut lab, domid) = started(8, &vm("pvh", ""));
        assert!(killed(&mut lab, action, save_request(AfterSave::Destroyed)), "no such action");
        let uuid = lab.host.connect().directory("/xylem/vm").unwrap().remove(0);
        let record = lab.host.connect().read(&format!("/xylem/vm/{uuid}/saving"));
        let is_open = record.is_ok_and(|record| record.starts_with(b"writing"));
        if !is_open || lab.host.os().file(FILE).is_none() {
            continue;
        }
        // The file is whole, and cannot be read.
        lab.host.os().set_unreadable_from(Some(0));
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.pass(A_WHILE);
        assert!(is_suspended(&lab, domid));
        assert_eq!(lab.state("one"), VmState::Suspended);
        let resumed = lab.ask(Request::Resume { target: "one".to_owned() });
        assert!(matches!(resumed, Reply::Done { .. }), "{resumed:?}");
        // Later it can be, and the daemon is started again.
        lab.host.os().set_unreadable_from(None);
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.pass(A_WHILE);
        assert_eq!((domain(&lab), lab.state("one")), (Some(domid), VmState::Running));
        assert_runs(&mut lab, "after both");
        lab.destroy("one");
        return lab.assert_nothing_left();
    }
}

#[test]
fn a_file_that_could_not_be_restored_is_not_written() {
    let (mut lab, _) = started(9, &vm("pvh", ""));
    for (before, after, expected) in [
        ("'pvh'", "'pv'", "one has type = pvh, not pv; it could not be restored so"),
        ("vcpus = 2", "vcpus = 1", "one has maxvcpus = 2, not 1; it could not be restored so"),
        ("memory = 8", "memory = 4", "one has memory = 8, not 4; it could not be restored so"),
        ("name = 'one'", "name = 'two'\nuuid = '00000000-0000-0000-0000-000000000001'", "uuid"),
    ] {
        let text = vm("pvh", "").replace(before, after);
        let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
        let Request::Save { target, mut to } = save_request(AfterSave::Destroyed) else {
            unreachable!("as made")
        };
        to.config = Some(Box::new(xlcfg::parse(source).unwrap()));
        let reply = lab.ask(Request::Save { target, to });
        let Reply::Failed(message) = reply else { panic!("{after}: {reply:?}") };
        assert!(message.contains(expected), "{message}");
        assert_no_file(&lab);
    }
    assert_eq!(lab.state("one"), VmState::Running);
}

#[test]
fn what_cannot_be_saved_or_restored_is_refused_before_anything_happens() {
    let (mut lab, _) = started(6, &vm("pvh", ""));
    lab.ask(Request::Pause { target: "one".to_owned() });
    let refused = |lab: &mut Lab| match lab.ask(save_request(AfterSave::Destroyed)) {
        Reply::Failed(message) => message,
        other => panic!("{other:?}"),
    };
    assert!(refused(&mut lab).starts_with("one: is paused, so its guest cannot suspend"));
    assert_no_file(&lab);
    lab.ask(Request::Unpause { target: "one".to_owned() });
    lab.host.os().add_directory(FILE);
    assert_eq!(refused(&mut lab), "/saved: is a directory");
    lab.host.os().remove_file(FILE);
    lab.ask(save_request(AfterSave::Running));
    // It runs: neither its name nor its UUID is free.
    assert!(restore(&mut lab).unwrap_err().ends_with("a domain named one exists already"));
    let mut file = read(&mut lab).unwrap();
    file.config_text = file.config_text.replace("\"one\"", "\"other\"");
    let reply = lab.ask(restore_request(file.clone(), Start::Running));
    assert!(matches!(&reply, Reply::Failed(it) if it.contains("exists already")), "{reply:?}");
    lab.destroy("one");
    // A configuration that the guest was not saved with.
    for (before, after, key) in
        [("maxvcpus = 2", "maxvcpus = 3", "maxvcpus"), ("\"pvh\"", "\"pv\"", "type")]
    {
        let mut file = file.clone();
        file.config_text = file.config_text.replace(before, after);
        let reply = lab.ask(restore_request(file, Start::Running));
        let Reply::Failed(message) = reply else { panic!("{reply:?}") };
        assert!(message.contains(&format!("was saved with {key} = ")), "{message}");
    }
    lab.host.os().set_room(None);
    lab.assert_nothing_left();
}

#[test]
fn a_restore_costs_no_more_when_others_exist() {
    let mut costs = Vec::new();
    for others in [0, 30] {
        let (mut lab, _) = started(7, &vm("pvh", ""));
        for other in 0..others {
            let text = crate::support::unikernel(&format!("other{other}"), "pvh", "normal");
            lab.create(&text).unwrap();
        }
        lab.ask(save_request(AfterSave::Destroyed));
        lab.pass(A_WHILE);
        lab.daemon.totals = toolstack::work::Cost::default();
        restore(&mut lab).unwrap();
        let cost = std::mem::take(&mut lab.daemon.totals);
        costs.push((cost.hypercalls, cost.store_round_trips, cost.transactions));
    }
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn a_vm_with_nomigrate_stays_where_it_is() {
    let (mut lab, domid) = started(77, &(vm("pvh", "") + "nomigrate = 1\n"));
    let never = "one: is never saved or moved, by nomigrate in its configuration";
    for request in [
        save_request(AfterSave::Destroyed),
        Request::Checkpoint { target: "one".to_owned(), name: "a".to_owned(), id: Uuid([9; 16]) },
    ] {
        match lab.ask(request) {
            Reply::Failed(message) => assert_eq!(message, never),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(domain(&lab), Some(domid));
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.assert_nothing_left();
}
