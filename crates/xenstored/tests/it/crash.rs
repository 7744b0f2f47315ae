//! A daemon that is killed, and the one after it.

use std::os::unix::fs::FileExt;
use std::process::Stdio;

use file_host::{DomainFile, State};
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::client::{Client, ClientError, Nodes, Transport};
use xenstore::{Access, Error, Permission};

use crate::process::{Daemon, command, unprivileged_user};

/// A guest with a home of its own.
fn guest_at_home(daemon: &Daemon, domid: u16) -> Client<file_host::Guest> {
    let mut dom0 = daemon.client();
    let home = format!("/local/domain/{domid}");
    dom0.write(&home, b"").unwrap();
    let guest = daemon.guest(domid);
    dom0.set_perms(&home, &[Permission::new(Access::None, DomId(domid))]).unwrap();
    guest
}

#[test]
fn everything_is_there_again_after_a_kill() {
    let mut daemon = Daemon::start("kill", &[]);
    let mut guest = guest_at_home(&daemon, 1);
    let mut dom0 = daemon.client();
    guest.write("data", b"1").unwrap();
    guest.watch("data", "token").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data");
    dom0.write("/private", &[0, 255]).unwrap();
    daemon.kill();
    assert!(dom0.read("/private").is_err());
    daemon.restart(&[]);
    let mut dom0 = daemon.client();
    assert_eq!(dom0.read("/private"), Ok(vec![0, 255]));
    assert_eq!(guest.read("data"), Ok(b"1".to_vec()));
    assert_eq!(guest.read("/private").unwrap_err().refusal(), Some(Error::EACCES));
    dom0.write("/local/domain/1/data", b"2").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data");
    assert_eq!(guest.read("data"), Ok(b"2".to_vec()));
    assert_eq!(dom0.is_introduced(DomId(1)), Ok(true));
}

#[test]
fn what_a_guest_asked_before_the_kill_is_answered_after_it() {
    let mut daemon = Daemon::start("asked", &[]);
    let mut guest = guest_at_home(&daemon, 1);
    daemon.kill();
    let mut request = Vec::new();
    xenstore::wire::encode(&mut request, 11, 7, 0, &[b"data\0", b"late"]);
    guest.transport_mut().send(&request).unwrap();
    daemon.restart(&[]);
    let mut reply = [0; 19];
    let mut read = 0;
    while read < reply.len() {
        read += guest.transport_mut().recv(&mut reply[read..]).unwrap();
    }
    assert_eq!((reply[0], reply[4], &reply[16..]), (11, 7, &b"OK\0"[..]));
    assert_eq!(guest.read("data"), Ok(b"late".to_vec()));
}

#[test]
fn a_transaction_goes_on_where_it_was() {
    let mut daemon = Daemon::start("inside", &[]);
    let mut guest = guest_at_home(&daemon, 1);
    guest.write("before", b"1").unwrap();
    let mut tries = 0;
    let committed = guest.transaction(|transaction| {
        tries += 1;
        transaction.write("inside", b"2")?;
        daemon.kill();
        daemon.restart(&[]);
        assert_eq!(transaction.read("before")?, b"1");
        assert_eq!(transaction.read("inside")?, b"2");
        assert_eq!(daemon.client().read_optional("/local/domain/1/inside").unwrap(), None);
        Ok::<_, ClientError>(())
    });
    assert_eq!((committed, tries), (Ok(()), 1));
    assert_eq!(daemon.client().read("/local/domain/1/inside"), Ok(b"2".to_vec()));
}

#[test]
fn a_domain_that_died_meanwhile_is_gone_and_others_are_told() {
    let mut daemon = Daemon::start("died", &[]);
    let dead = guest_at_home(&daemon, 1);
    let reborn = guest_at_home(&daemon, 2);
    let mut witness = guest_at_home(&daemon, 3);
    witness.watch("@releaseDomain", "token").unwrap();
    witness.next_event().unwrap();
    daemon.kill();
    dead.transport().destroy().unwrap();
    let other = DomainFile { state: State::Running, unique_id: 99 };
    daemon.host().set_domain(reborn.transport().domid(), other).unwrap();
    daemon.restart(&[]);
    assert_eq!(witness.next_event().unwrap().path, "@releaseDomain");
    let mut dom0 = daemon.client();
    for (domid, lives) in [(1, false), (2, false), (3, true)] {
        assert_eq!(dom0.is_introduced(DomId(domid)), Ok(lives), "domain {domid}");
        let home = dom0.read_optional(&format!("/local/domain/{domid}")).unwrap();
        assert_eq!(home.is_some(), lives, "domain {domid}");
    }
}

#[test]
fn a_stopped_daemon_leaves_its_store_to_the_next_unless_that_begins_anew() {
    let mut daemon = Daemon::start("stop", &[]);
    daemon.client().write("/kept", b"1").unwrap();
    daemon.stop();
    daemon.restart(&[]);
    assert_eq!(daemon.client().read("/kept"), Ok(b"1".to_vec()));
    daemon.kill();
    daemon.restart(&["--fresh"]);
    assert_eq!(daemon.client().read_optional("/kept"), Ok(None));
    daemon.client().write("/new", b"2").unwrap();
    daemon.kill();
    daemon.restart(&["--no-journal"]);
    assert_eq!(daemon.client().read_optional("/new"), Ok(None));
    assert!(!daemon.folder.path().join("journal").exists());
}

#[test]
fn the_journal_is_made_anew_when_changes_outgrow_the_store() {
    let mut daemon = Daemon::start_confined("compact", &[]);
    let mut guest = guest_at_home(&daemon, 1);
    let mut dom0 = daemon.client();
    // Three times what makes it begin.
    for i in 0..6400_u32 {
        dom0.write(&format!("/many/{}", i % 100), &[i.to_le_bytes()[0]; 4000]).unwrap();
    }
    guest.write("data", b"1").unwrap();
    let size = daemon.folder.path().join("journal").metadata().unwrap().len();
    assert!(size < 12 << 20, "{size} bytes");
    daemon.kill();
    daemon.restart(&["--user", &unprivileged_user()]);
    let mut dom0 = daemon.client();
    for i in 6300..6400_u32 {
        let value = vec![i.to_le_bytes()[0]; 4000];
        assert_eq!(dom0.read(&format!("/many/{}", i % 100)), Ok(value));
    }
    assert_eq!(guest.read("data"), Ok(b"1".to_vec()));
}

#[test]
fn a_ring_that_was_introduced_again_begins_anew_after_a_kill_too() {
    let mut daemon = Daemon::start("again", &[]);
    let mut guest = guest_at_home(&daemon, 1);
    guest.watch("data", "token").unwrap();
    guest.next_event().unwrap();
    daemon.client().introduce(DomId(1), Gfn(1), EvtchnPort(1)).unwrap();
    daemon.kill();
    daemon.restart(&[]);
    guest.write("data", b"1").unwrap();
    assert_eq!(guest.read("data"), Ok(b"1".to_vec()));
    assert_eq!(guest.poll_event(), None);
}

#[test]
fn a_journal_that_cannot_be_read_is_not_taken_for_an_empty_store() {
    let mut daemon = Daemon::start("foreign", &[]);
    daemon.client().write("/kept", b"1").unwrap();
    daemon.kill();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(daemon.folder.path().join("journal"))
        .unwrap();
    let mut byte = [0];
    // The version, then the first record.
    for at in [16, 4096] {
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[0xee], at).unwrap();
        let output =
            command(&daemon.folder, &["--no-fork"]).stdout(Stdio::null()).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("journal") && said.contains("--fresh"), "{said}");
        file.write_all_at(&byte, at).unwrap();
    }
    daemon.restart(&[]);
    assert_eq!(daemon.client().read("/kept"), Ok(b"1".to_vec()));
    // Of an earlier boot: there is nothing left that it describes.
    daemon.kill();
    file.write_all_at(b"earlier", 24).unwrap();
    // As a header without a checksum, which has none to be wrong.
    file.write_all_at(&[0; 4], 60).unwrap();
    daemon.restart(&[]);
    assert_eq!(daemon.client().read_optional("/kept"), Ok(None));
}

#[test]
fn a_request_that_ends_the_daemon_twice_is_refused_and_everybody_else_is_served() {
    let mut daemon = Daemon::start("trap", &[]);
    let mut bad = guest_at_home(&daemon, 1);
    let mut good = guest_at_home(&daemon, 2);
    good.write("data", b"1").unwrap();
    daemon.kill();
    daemon.set_trap("stumble");
    daemon.restart(&[]);
    // Its request lies in the ring, whoever serves it.
    let asked = std::thread::spawn(move || {
        let answer = bad.write("data", b"stumble");
        (bad, answer)
    });
    for _ in 0..2 {
        daemon.wait_for_end();
        daemon.restart(&[]);
    }
    let (mut bad, answer) = asked.join().unwrap();
    assert_eq!(answer.unwrap_err().refusal(), Some(Error::EIO));
    assert_eq!(bad.write("data", b"walk"), Ok(()));
    assert_eq!(good.read("data"), Ok(b"1".to_vec()));
    // The same by a client that asks again after each restart.
    for _ in 0..2 {
        assert!(daemon.client().write("/data", b"stumble").is_err());
        daemon.wait_for_end();
        daemon.restart(&[]);
    }
    let answer = daemon.client().write("/data", b"stumble");
    assert_eq!(answer.unwrap_err().refusal(), Some(Error::EIO));
    // It is known from start to start, and whether the journal was made anew or not.
    let mut dom0 = daemon.client();
    for i in 0..3200_u32 {
        dom0.write(&format!("/many/{}", i % 100), &[b'v'; 4000]).unwrap();
    }
    daemon.kill();
    daemon.restart(&[]);
    let answer = daemon.client().write("/data", b"stumble");
    assert_eq!(answer.unwrap_err().refusal(), Some(Error::EIO));
    assert_eq!(bad.read("data"), Ok(b"walk".to_vec()));
    assert_eq!(daemon.client().control(&["check"]), Ok("OK".to_owned()));
}

/// Changes a byte of the journal, counted from its end if `at` is negative, before the unused rest of the file.
fn damage(daemon: &Daemon, at: i64) {
    use std::os::unix::fs::FileExt;
    const HEADER_BYTES: i64 = 4096;
    let path = daemon.folder.path().join("journal");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).unwrap();
    let length = i64::from_ne_bytes(word);
    let at = u64::try_from(HEADER_BYTES + if at < 0 { length + at } else { at }).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

#[test]
fn a_damaged_change_is_not_believed_and_what_was_before_it_is_there() {
    let mut daemon = Daemon::start("damaged", &[]);
    daemon.client().write("/good", b"before").unwrap();
    daemon.client().write("/bad", b"hello").unwrap();
    daemon.kill();
    damage(&daemon, -3);
    daemon.restart(&[]);
    assert_eq!(daemon.client().read("/good").unwrap(), b"before");
    // Without a checksum it would be "heLlo", or another path.
    assert!(daemon.client().read("/bad").is_err());
    // It goes on behind what was good, and is whole again.
    daemon.client().write("/later", b"x").unwrap();
    daemon.kill();
    daemon.restart(&["--damaged-journal", "refuse"]);
    assert_eq!(daemon.client().read("/later").unwrap(), b"x");
    assert_eq!(daemon.client().read("/good").unwrap(), b"before");
}

#[test]
fn a_journal_that_cannot_be_gone_on_with_ends_the_daemon_with_a_status_of_its_own() {
    let mut daemon = Daemon::start("refused", &[]);
    daemon.client().write("/good", b"before").unwrap();
    daemon.kill();
    let try_with = |daemon: &Daemon, arguments: &[&str]| {
        let words = [&["--no-fork"], arguments].concat();
        let output = command(&daemon.folder, &words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    damage(&daemon, -1);
    let (status, said) = try_with(&daemon, &["--damaged-journal", "refuse"]);
    assert!(status == Some(78) && said.contains("is damaged at byte"), "{status:?} {said}");
    // In the checkpoint, without which the changes mean nothing.
    damage(&daemon, 10);
    let (status, said) = try_with(&daemon, &[]);
    assert!(status == Some(78) && said.contains("--fresh"), "{status:?} {said}");
}

#[test]
fn a_journal_that_somebody_truncates_is_continued_as_far_as_it_goes_or_refused() {
    let mut daemon = Daemon::start("truncated", &[]);
    daemon.client().write("/good", b"before").unwrap();
    let path = daemon.folder.path().join("journal");
    let length_of = |path: &std::path::Path| {
        let head = std::fs::read(path).unwrap();
        4096 + u64::from_ne_bytes(*head.first_chunk().unwrap())
    };
    let whole = length_of(&path);
    daemon.client().write("/lost", b"after").unwrap();
    daemon.kill();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole).unwrap();
    let refused = command(&daemon.folder, &["--no-fork", "--damaged-journal", "refuse"]);
    assert_eq!(exit_of(refused), (Some(78), true));
    daemon.restart(&[]);
    assert_eq!(daemon.client().read("/good").unwrap(), b"before");
    assert!(daemon.client().read("/lost").is_err());
    // The state that its changes begin with is cut.
    daemon.kill();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4100).unwrap();
    assert_eq!(exit_of(command(&daemon.folder, &["--no-fork"])), (Some(78), true));
}

#[test]
fn a_running_daemon_whose_journal_is_truncated_ends_and_the_next_one_says_what_it_found() {
    let mut daemon = Daemon::start("cut-off", &[]);
    daemon.client().write("/good", b"before").unwrap();
    let path = daemon.folder.path().join("journal");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    // Writing to what is no longer there.
    assert!(daemon.client().write("/more", &[b'v'; 3000]).is_err());
    daemon.wait_for_end();
    assert_eq!(exit_of(command(&daemon.folder, &["--no-fork"])), (Some(78), true));
    // The operator decides.
    daemon.restart(&["--fresh"]);
    assert!(daemon.client().read("/good").is_err());
}

#[test]
fn a_changed_bit_in_the_journals_header_does_not_make_the_store_empty() {
    let mut daemon = Daemon::start("header", &[]);
    daemon.client().write("/good", b"before").unwrap();
    daemon.kill();
    let path = daemon.folder.path().join("journal");
    let sound = std::fs::read(&path).unwrap();
    // Version, validity, boot, length of the checkpoint.
    for at in [16, 20, 24, 40, 59, 64, 71] {
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(exit_of(command(&daemon.folder, &["--no-fork"])), (Some(78), true), "{at}");
    }
    std::fs::write(&path, sound).unwrap();
    daemon.restart(&[]);
    assert_eq!(daemon.client().read("/good").unwrap(), b"before");
}

/// The status that a daemon ends with, and whether it said why in one line that names the journal.
fn exit_of(mut command: std::process::Command) -> (Option<i32>, bool) {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said.lines().count() == 1 && said.contains("journal"))
}
