//! Checkpoints, returns to them, and copies of saved VMs, through the whole toolstack.

use std::collections::BTreeMap;

use sim::Daemon;
use storage::{DeviceNumber, HostError, Kind, Repositories, VdiName};
use toolstack::checkpoint::{self, Checkpoint};
use toolstack::config::VmConfig;
use toolstack::plan::Start;
use toolstack::saved::SavedFile;
use toolstack::{Copy, Reply, Request, StartedAll, VmState, xlcfg};
use xen::{DomId, ShutdownReason, Uuid};

use crate::support::{A_WHILE, Lab};

const ID: Uuid = Uuid([9; 16]);
const DISKS: [&str; 2] = ["one", "two"];

fn vdi(name: &str) -> VdiName {
    VdiName::new("s", name).unwrap()
}

/// A host with an SR on a file system that shares blocks, and two disks there.
fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    let mut os = lab.host.os().clone();
    os.set_shares_blocks(true);
    let mut srs = Repositories::new(&mut os);
    let config = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
    srs.create("s", Kind::File, config).unwrap();
    for name in DISKS {
        srs.create_vdi(&vdi(name), 1 << 20).unwrap();
    }
    lab.before = lab.host.snapshot().unwrap();
    lab
}

/// One whose pages can be checked, with what a Linux has.
fn guest(kind: &str) -> String {
    format!(
        "name = 'web'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\nvcpus = 2\n\
         extra = 'sim.writes=50 sim.kind=linux'\nvif = ['bridge=xenbr0']\n\
         disk = ['s:one,,xvda,w', 's:two,,xvdb,w']\n"
    )
}

fn started(seed: u64) -> (Lab, DomId) {
    let mut lab = lab(seed);
    let domid = lab.create(&guest("pvh")).unwrap();
    for _ in 0..4 {
        lab.pass(A_WHILE);
    }
    (lab, domid)
}

fn checkpoint_request(name: &str) -> Request {
    Request::Checkpoint { target: "web".to_owned(), name: name.to_owned(), id: ID }
}

#[track_caller]
fn made(reply: &Reply) {
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("{other:?}"),
    }
}

fn list(lab: &mut Lab) -> Vec<Checkpoint> {
    match lab.ask(Request::Checkpoints) {
        Reply::Checkpoints(all) => all,
        other => panic!("{other:?}"),
    }
}

fn saved(lab: &mut Lab, path: &str) -> (Box<SavedFile>, VmConfig) {
    let file = match lab.ask(Request::ReadSaved { path: path.to_owned() }) {
        Reply::SavedFile(file) => file,
        other => panic!("{other:?}"),
    };
    let source = xlcfg::Source { file: path, text: &file.config_text, overrides: &[] };
    let config = xlcfg::parse(source).unwrap();
    (file, config)
}

fn revert_request(lab: &mut Lab, name: &str) -> Request {
    let uuid = list(lab)[0].uuid;
    let (file, config) = saved(lab, &checkpoint::path(uuid, name));
    Request::Revert { file, config: Box::new(config), start: Start::Running }
}

fn revert(lab: &mut Lab, name: &str) -> Result<DomId, String> {
    let request = revert_request(lab, name);
    match lab.ask(request) {
        Reply::Created(created) => Ok(created.domid),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

fn clone_request(lab: &mut Lab, name: &str, count: u8) -> Request {
    let uuid = list(lab)[0].uuid;
    let (file, config) = saved(lab, &checkpoint::path(uuid, name));
    let copies = (1..=count).map(|number| {
        let fresh = Uuid([0x40 + number; 16]);
        let (config, disks) =
            checkpoint::copy_of(&file, &config, &format!("copy-{number}"), fresh).unwrap();
        Copy { config: Box::new(config), disks }
    });
    let copies = copies.collect();
    Request::Clone { file, copies }
}

fn cloned(reply: Reply) -> StartedAll {
    match reply {
        Reply::StartedAll(all) => *all,
        other => panic!("{other:?}"),
    }
}

fn states(lab: &mut Lab) -> BTreeMap<String, VmState> {
    match lab.ask(Request::Events { since: None, waits: false }) {
        Reply::Changes(changes) => {
            let states = changes.snapshot.expect("without a revision");
            states.into_iter().map(|it| (it.name, it.state)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn domains(lab: &Lab) -> Vec<DomId> {
    let machine = lab.host.machine().get();
    machine.domains().map(|domain| domain.domid).filter(|it| *it != DomId::DOM0).collect()
}

fn device(lab: &Lab, name: &str) -> DeviceNumber {
    let mut os = lab.host.os().clone();
    let uses = Repositories::new(&mut os).in_use().unwrap();
    let it = uses.into_iter().find(|it| it.name == vdi(name)).expect("it is attached");
    it.device.expect("it is active").number
}

/// What a guest writes, through its disks' devices.
fn write(lab: &Lab, byte: u8) {
    for name in DISKS {
        assert!(lab.host.os().write_sector(device(lab, name), 3, byte));
    }
}

#[track_caller]
fn assert_on_disks(lab: &Lab, byte: u8) {
    for name in DISKS {
        assert_eq!(lab.host.os().read_sector(device(lab, name), 3), Some(byte), "{name}");
    }
}

/// The VDIs of the SR but for those of the VM itself.
fn others(lab: &Lab) -> Vec<String> {
    let mut os = lab.host.os().clone();
    let vdis = Repositories::new(&mut os).scan("s").unwrap();
    vdis.into_iter().map(|it| it.name).filter(|it| !DISKS.contains(&it.as_str())).collect()
}

/// All files of checkpoints, folders aside.
fn files(lab: &Lab) -> Vec<String> {
    let paths = lab.host.os().get().paths(checkpoint::FOLDER);
    paths.into_iter().filter(|path| path.matches('/').count() > 5).collect()
}

#[track_caller]
fn assert_goes_on(lab: &mut Lab, domid: DomId) {
    lab.pass(A_WHILE);
    let told = lab.host.console(domid);
    assert!(told.contains("memory: as written"), "{told}");
    assert!(told.contains("suspend: returned 0, in a new domain"), "{told}");
}

/// The guest of a VM runs, and can suspend and be resumed.
#[track_caller]
fn assert_runs(lab: &mut Lab, domid: DomId, place: &str) {
    let reason = lab.host.machine().get().domain(domid).and_then(|domain| domain.shutdown);
    let reason = reason.map(ShutdownReason::from_code);
    assert_eq!(reason, None, "{place}: nobody resumes it");
    assert_eq!(states(lab)["web"], VmState::Running, "{place}");
    for request in [
        Request::Suspend { target: "web".to_owned() },
        Request::Resume { target: "web".to_owned() },
    ] {
        let reply = lab.ask(request);
        assert!(matches!(reply, Reply::Done { .. }), "{place}: {reply:?}");
    }
}

fn destroy_checkpoint(lab: &mut Lab, name: &str) -> Reply {
    let uuid = list(lab)[0].uuid;
    lab.ask(Request::DestroyCheckpoint { uuid, name: name.to_owned() })
}

#[test]
fn a_revert_takes_memory_and_disks_back_to_the_same_moment() {
    let (mut lab, first) = started(1);
    write(&lab, 1);
    made(&lab.ask(checkpoint_request("before")));
    assert_runs(&mut lab, first, "after the checkpoint");
    write(&lab, 2);
    lab.pass(A_WHILE);
    let all = list(&mut lab);
    assert_eq!((all.len(), all[0].vm.as_str(), all[0].name.as_str()), (1, "web", "before"));
    assert!(all[0].fault.is_none() && all[0].bytes > 0);
    let id = "ck-0909090909090909";
    assert_eq!(others(&lab), [format!("{id}-xvda"), format!("{id}-xvdb")]);
    for byte in [3, 4] {
        let again = revert(&mut lab, "before").unwrap();
        assert_ne!(again, first);
        assert_on_disks(&lab, 1);
        assert_goes_on(&mut lab, again);
        write(&lab, byte);
    }
    // Its VM need not exist any more.
    lab.destroy("web");
    lab.assert_nothing_left();
    let again = revert(&mut lab, "before").unwrap();
    assert_on_disks(&lab, 1);
    assert_goes_on(&mut lab, again);
    lab.destroy("web");
    assert!(matches!(destroy_checkpoint(&mut lab, "before"), Reply::Ok));
    assert_eq!((others(&lab), files(&lab)), (vec![], vec![]));
    lab.assert_nothing_left();
}

#[test]
fn what_a_checkpoint_needs_is_refused_before_anything_happens() {
    let (mut lab, domid) = started(2);
    lab.host.os().set_shares_blocks(false);
    let message = failed(lab.ask(checkpoint_request("one")));
    assert!(message.starts_with("web: s:one: is written to, and its file system"), "{message}");
    lab.host.os().set_shares_blocks(true);
    let message = failed(lab.ask(checkpoint_request("../one")));
    assert!(message.starts_with("\"../one\" cannot name a checkpoint"), "{message}");
    assert_eq!((others(&lab), files(&lab)), (vec![], vec![]));
    assert!(!lab.host.console(domid).contains("suspend"), "its guest was asked");
    made(&lab.ask(checkpoint_request("one")));
    let message = failed(lab.ask(checkpoint_request("one")));
    assert!(message.starts_with("web: has a checkpoint one already"), "{message}");
    let path = checkpoint::path(list(&mut lab)[0].uuid, "one");
    let (file, config) = saved(&mut lab, &path);
    let request = Request::Restore { file, config: Box::new(config), start: Start::Running };
    let message = failed(lab.ask(request));
    assert!(message.contains("`xy revert web one` goes back to it"), "{message}");
    lab.destroy("web");
    let text = guest("pvh").replace("s:two", "/disk.raw");
    lab.create(&text).unwrap();
    let message = failed(lab.ask(checkpoint_request("two")));
    assert!(message.starts_with("web: disk xvdb: /disk.raw is written by its path"), "{message}");
    lab.destroy("web");
    lab.assert_nothing_left();
}

#[test]
fn after_a_failure_the_guest_runs_on_and_neither_file_nor_snapshot_is_left() {
    for second in ["/srv/vdis/ck-0909090909090909-xvdb", "/srv/vdis/.part-ck-0909090909090909-xvdb"]
    {
        let (mut lab, domid) = started(3);
        lab.host.os().set_failing(second, Some(HostError::Refused("it is broken".to_owned())));
        let message = failed(lab.ask(checkpoint_request("one")));
        assert!(message.contains("it is broken"), "{message}");
        lab.host.os().set_failing(second, None);
        lab.pass(A_WHILE);
        assert_runs(&mut lab, domid, second);
        made(&lab.ask(checkpoint_request("one")));
        assert_eq!(others(&lab).len(), 2, "{:?}", others(&lab));
    }
    for room in [0, 100, 30_000, 100_000] {
        let (mut lab, domid) = started(room);
        lab.host.os().set_room(Some(room));
        let message = failed(lab.ask(checkpoint_request("one")));
        assert!(message.ends_with("no space left on device"), "{message}");
        lab.host.os().set_room(None);
        lab.pass(A_WHILE);
        assert_runs(&mut lab, domid, "a full disk");
        assert_eq!((others(&lab), files(&lab)), (vec![], vec![]));
    }
}

/// Kills the daemon at this action of a request. Whether it came that far.
fn killed(lab: &mut Lab, action: u64, request: Request) -> bool {
    lab.host.machine().get_mut().faults_mut().kill_toolstack(action);
    let until = lab.until();
    let answer = lab.daemon.request(request).map(|client| lab.daemon.wait(client, until));
    let is_dead = lab.host.machine().get().faults().is_toolstack_dead();
    lab.host.machine().get_mut().faults_mut().revive_toolstack();
    if is_dead {
        lab.daemon = Daemon::start(&lab.host).unwrap();
    } else {
        assert!(matches!(answer, Ok(Ok(Some(_)))), "{answer:?}");
    }
    lab.pass(A_WHILE);
    lab.pass(A_WHILE);
    is_dead
}

/// Of the many actions that copy pages a few are enough.
fn is_tried(action: u64) -> bool {
    action < 16 || action.is_multiple_of(4)
}

#[test]
fn whenever_the_daemon_is_killed_a_checkpoint_is_whole_or_nothing_is_left_of_it() {
    let (mut kills, mut whole, mut nothing) = (0, 0, 0);
    for action in (1..).filter(|it| is_tried(*it)) {
        let (mut lab, domid) = started(action);
        write(&lab, 1);
        let is_dead = killed(&mut lab, action, checkpoint_request("one"));
        kills += u64::from(is_dead);
        let place = format!("action {action}");
        assert_eq!(domains(&lab), [domid], "{place}");
        assert_runs(&mut lab, domid, &place);
        let all = list(&mut lab);
        if all.is_empty() {
            nothing += 1;
            assert_eq!((others(&lab), files(&lab)), (vec![], vec![]), "{place}");
            made(&lab.ask(checkpoint_request("one")));
        } else {
            whole += 1;
        }
        assert_eq!((others(&lab).len(), files(&lab).len()), (2, 1), "{place}");
        write(&lab, 2);
        let again = revert(&mut lab, "one").unwrap();
        assert_goes_on(&mut lab, again);
        lab.destroy("web");
        destroy_checkpoint(&mut lab, "one");
        assert_eq!((others(&lab), files(&lab)), (vec![], vec![]), "{place}");
        lab.assert_nothing_left();
        if !is_dead {
            break;
        }
    }
    assert!(kills > 25 && whole > 0 && nothing > 15, "{kills} {whole} {nothing}");
}

#[test]
fn whenever_the_daemon_is_killed_a_revert_can_be_asked_for_again() {
    let (mut kills, mut runs) = (0, 0);
    for action in (1..).filter(|it| is_tried(*it)) {
        let (mut lab, _) = started(action);
        write(&lab, 1);
        made(&lab.ask(checkpoint_request("one")));
        write(&lab, 2);
        let request = revert_request(&mut lab, "one");
        let is_dead = killed(&mut lab, action, request);
        kills += u64::from(is_dead);
        let place = format!("action {action}");
        let left = domains(&lab);
        assert!(left.len() <= 1, "{place}: {left:?}");
        runs += left.len();
        let again = revert(&mut lab, "one").unwrap_or_else(|why| panic!("{place}: {why}"));
        assert_on_disks(&lab, 1);
        assert_goes_on(&mut lab, again);
        lab.destroy("web");
        assert_eq!((others(&lab).len(), files(&lab).len()), (2, 1), "{place}");
        lab.assert_nothing_left();
        if !is_dead {
            break;
        }
    }
    assert!(kills > 25 && runs > 5, "{kills} {runs}");
}

#[test]
fn whenever_the_daemon_is_killed_a_checkpoint_is_destroyed_or_whole() {
    for action in 1.. {
        let (mut lab, _) = started(action);
        made(&lab.ask(checkpoint_request("one")));
        let uuid = list(&mut lab)[0].uuid;
        let request = Request::DestroyCheckpoint { uuid, name: "one".to_owned() };
        let is_dead = killed(&mut lab, action, request);
        match list(&mut lab).len() {
            0 => assert_eq!((others(&lab), files(&lab)), (vec![], vec![]), "action {action}"),
            _ => {
                revert(&mut lab, "one").unwrap_or_else(|why| panic!("action {action}: {why}"));
            }
        }
        if !is_dead {
            assert!(action > 5, "{action}");
            break;
        }
    }
}

#[test]
fn copies_have_an_identity_and_disks_of_their_own() {
    let (mut lab, _) = started(4);
    write(&lab, 1);
    made(&lab.ask(checkpoint_request("one")));
    write(&lab, 2);
    // One cannot be made, the others can.
    let mut os = lab.host.os().clone();
    Repositories::new(&mut os).create_vdi(&vdi("copy-3-xvdb"), 1 << 20).unwrap();
    let request = clone_request(&mut lab, "one", 4);
    let all = cloned(lab.ask(request));
    assert_eq!((all.started, all.failed.len()), (3, 1), "{all:?}");
    let (name, why) = &all.failed[0];
    assert_eq!(name, "copy-3");
    assert!(why.contains("s:copy-3-xvdb: there is a VDI of this name"), "{why}");
    assert!(others(&lab).contains(&"copy-3-xvdb".to_owned()), "it was another's");
    assert!(!others(&lab).contains(&"copy-3-xvda".to_owned()), "nothing of a failed one is left");
    let mut macs = Vec::new();
    for domid in domains(&lab) {
        let path = format!("/local/domain/{domid}/device/vif/0/mac");
        let mac = xenstore::client::Nodes::read(&mut lab.host.connect(), &path).unwrap();
        macs.push(String::from_utf8(mac).unwrap());
    }
    macs.sort();
    macs.dedup();
    assert_eq!(macs.len(), 4, "{macs:?}");
    for number in [1, 2, 4] {
        let name = format!("copy-{number}");
        let Reply::Resolved { domid, .. } = lab.ask(Request::Resolve { target: name.clone() })
        else {
            panic!("{name} does not run")
        };
        assert_goes_on(&mut lab, domid);
        let own = device(&lab, &format!("{name}-xvda"));
        assert_eq!(lab.host.os().read_sector(own, 3), Some(1));
        lab.host.os().write_sector(own, 3, number);
        lab.destroy(&name);
    }
    assert_on_disks(&lab, 2);
    lab.destroy("web");
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_a_copy_runs_or_nothing_is_left_of_it() {
    let (mut kills, mut runs) = (0, 0);
    for action in (1..).filter(|it| is_tried(*it)) {
        let (mut lab, _) = started(action);
        made(&lab.ask(checkpoint_request("one")));
        lab.destroy("web");
        let request = clone_request(&mut lab, "one", 1);
        let is_dead = killed(&mut lab, action, request);
        kills += u64::from(is_dead);
        let place = format!("action {action}");
        let made = others(&lab).into_iter().filter(|it| it.starts_with("copy")).count();
        match domains(&lab).as_slice() {
            [] => assert_eq!(made, 0, "{place}: its disks are left"),
            [domid] => {
                runs += 1;
                assert_eq!(made, 2, "{place}");
                assert_goes_on(&mut lab, *domid);
                lab.destroy("copy-1");
            }
            more => panic!("{place}: {more:?}"),
        }
        lab.assert_nothing_left();
        if !is_dead {
            break;
        }
    }
    assert!(kills > 25 && runs > 1, "{kills} {runs}");
}

#[test]
fn many_checkpoints_in_a_row_leave_nothing() {
    let (mut lab, domid) = started(5);
    made(&lab.ask(checkpoint_request("one")));
    destroy_checkpoint(&mut lab, "one");
    lab.pass(A_WHILE);
    let before = lab.host.snapshot().unwrap();
    let paths = lab.host.os().get().paths("/").len();
    let mut costs = Vec::new();
    for _ in 0..50 {
        lab.daemon.totals = toolstack::work::Cost::default();
        made(&lab.ask(checkpoint_request("one")));
        let cost = std::mem::take(&mut lab.daemon.totals);
        costs.push(cost.store_round_trips);
        assert!(matches!(destroy_checkpoint(&mut lab, "one"), Reply::Ok));
    }
    lab.pass(A_WHILE);
    let left = lab.host.snapshot().unwrap().differences(&before);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(lab.host.os().get().paths("/").len(), paths);
    assert_eq!(costs.first(), costs.last(), "the last is as cheap as the first");
    assert_runs(&mut lab, domid, "after all");
    made(&lab.ask(checkpoint_request("one")));
    let again = revert(&mut lab, "one").unwrap();
    assert_goes_on(&mut lab, again);
}
