//! `CONTROL`, as `xenstore-control` sends it: one word or more, and an answer for people.

use expect_test::expect;
use xenstore::wire::MessageType as M;
use xenstore::{Error, Quota};

use crate::world::World;

fn world() -> World {
    let mut world = World::new(Quota::default());
    world.add_guest_with_home(1);
    world
}

fn ask(world: &mut World, words: &str) -> Result<String, Error> {
    let words = words.split(' ').map(|word| format!("{word}|")).collect::<String>();
    let reply = world.call("dom0", M::Control, 0, &words)?;
    let text = String::from_utf8(reply).expect("text");
    Ok(text.strip_suffix('\0').expect("a NUL at the end").to_owned())
}

#[test]
fn every_command_has_a_form_and_no_other() {
    let mut world = world();
    for words in [
        "check",
        "help",
        "log",
        "log on",
        "log off",
        "log +io",
        "log -wrl",
        "logfile /var/log/trace",
        "memreport",
        "memreport /tmp/report",
        "print hello",
        "quota",
        "quota 1",
        "quota max",
        "quota max -r",
        "quota set nodes 5",
        "quota-soft",
        "quota-soft set memory 5",
        "stats",
    ] {
        assert!(ask(&mut world, words).is_ok(), "{words}");
    }
    for (words, error) in [
        ("", Error::EINVAL),
        ("no-such", Error::EINVAL),
        ("check now", Error::EINVAL),
        ("help me", Error::EINVAL),
        ("log maybe", Error::EINVAL),
        ("log +nothing", Error::EINVAL),
        ("log io", Error::EINVAL),
        ("log on off", Error::EINVAL),
        ("logfile", Error::EINVAL),
        ("logfile a b", Error::EINVAL),
        ("memreport a b", Error::EINVAL),
        ("print", Error::EINVAL),
        ("print a b", Error::EINVAL),
        ("quota x", Error::EINVAL),
        ("quota 7", Error::ENOENT),
        ("quota 65536", Error::EINVAL),
        ("quota max -x", Error::EINVAL),
        ("quota set nodes", Error::EINVAL),
        ("quota set nodes 0", Error::EINVAL),
        ("quota set nodes -1", Error::EINVAL),
        ("quota set no-such 1", Error::EINVAL),
        ("quota set soft-memory 1", Error::EINVAL),
        ("quota-soft set nodes 1", Error::EINVAL),
        ("quota-soft 1", Error::EINVAL),
        // The machine of these tests cannot be handed over.
        ("live-update -a", Error::ENOSYS),
    ] {
        assert_eq!(ask(&mut world, words), Err(error), "{words}");
    }
    assert_eq!(world.call("dom0", M::Control, 0, "check"), Err(Error::EINVAL));
    assert_eq!(world.call("d1", M::Control, 0, "help|"), Err(Error::EACCES));
}

#[test]
fn help_names_every_command() {
    expect![[r#"
        check
        help
        live-update     [-c <cmdline>] [-F] [-t <timeout>] [-v <version>] <file>
        log             [on|off|+<switch>|-<switch>]
        logfile         <file>
        memreport       [<file>]
        print           <string>
        quota           [set <name> <val>|<domid>|max [-r]]
        quota-soft      [set <name> <val>]
        stats
    "#]]
    .assert_eq(&ask(&mut world(), "help").unwrap());
}

#[test]
fn limits_are_shown_and_set_for_those_that_come_later() {
    let mut world = world();
    assert_eq!(ask(&mut world, "quota set nodes 7").as_deref(), Ok("OK"));
    assert_eq!(ask(&mut world, "quota-soft set memory 8").as_deref(), Ok("OK"));
    expect![[r#"
        Quota settings:
        nodes            :        7 nodes that a domain owns
        watches          :      128 watches of a domain
        outstanding      :       20 requests of a domain with an unread reply
        memory           :  2621440 bytes held for a domain
        transactions     :       10 open transactions of a domain
        transaction-nodes:     1024 nodes that one transaction touches
        node-permissions :        5 permissions of a node
        path-max         :     2048 length of a path
        node-size        :     2048 size of a node
    "#]]
    .assert_eq(&ask(&mut world, "quota").unwrap());
    expect![[r#"
        Quota settings:
        memory           :        8 bytes held for a domain (warning)
    "#]]
    .assert_eq(&ask(&mut world, "quota-soft").unwrap());
    assert_eq!(world.call("dom0", M::GetQuota, 0, "1|nodes|"), Ok(b"1000\0".to_vec()));
    world.add_guest(2);
    assert_eq!(world.call("dom0", M::GetQuota, 0, "2|nodes|"), Ok(b"7\0".to_vec()));
}

#[test]
fn what_a_domain_uses_is_shown_and_the_most_that_was_seen() {
    let mut world = world();
    for i in 0..5 {
        world.call("d1", M::Write, 0, &format!("n{i}|value")).unwrap();
        world.call("d1", M::Watch, 0, &format!("n{i}|t|")).unwrap();
    }
    world.call("d1", M::TransactionStart, 0, "|").unwrap();
    world.take_events("d1");
    for i in 1..5 {
        world.call("d1", M::Rm, 0, &format!("n{i}|")).unwrap();
    }
    world.call("d1", M::ResetWatches, 0, "|").unwrap();
    world.peers.get_mut("d1").unwrap().messages.clear();
    expect![[r#"
        Domain 1:
        nodes            :        2 (max        6)
        watches          :        0 (max        5)
        outstanding      :        0 (max        1)
        memory           :      870 (max    17564)
        transactions     :        0 (max        1)
    "#]]
    .assert_eq(&ask(&mut world, "quota 1").unwrap());
    expect![[r#"
        Max. seen accounting values:
        nodes            :        6
        watches          :        5
        outstanding      :        1
        memory           :    17564
        transactions     :        1
    "#]]
    .assert_eq(&ask(&mut world, "quota max").unwrap());
    expect![[r#"
        Max. seen accounting values:
        nodes            :        2
        watches          :        0
        outstanding      :        0
        memory           :      870
        transactions     :        0
    "#]]
    .assert_eq(&ask(&mut world, "quota max -r").unwrap());
}

#[test]
fn the_trace_is_switched_by_topic_and_goes_where_it_is_told() {
    let mut world = world();
    expect![[r#"
        Log switch settings:
        obj     : on
        io      : on
        wrl     : off
    "#]]
    .assert_eq(&ask(&mut world, "log").unwrap());
    assert_eq!(world.machine.traced, [""; 0]);
    assert_eq!(ask(&mut world, "logfile /var/log/trace").as_deref(), Ok("OK"));
    world.call("dom0", M::Read, 0, "/tool|").unwrap();
    ask(&mut world, "log -io").unwrap();
    world.add_guest(2);
    ask(&mut world, "log -obj").unwrap();
    world.destroy_domain(2);
    ask(&mut world, "log off").unwrap();
    ask(&mut world, "log +obj").unwrap();
    world.add_guest(3);
    ask(&mut world, "log on").unwrap();
    world.destroy_domain(3);
    let files = &world.machine.trace_files;
    assert_eq!(files, &[Some("/var/log/trace".to_owned()), None]);
    expect![[r#"
        out 1 OK
        in 1 transaction 0 read /tool\0
        out 1 OK
        in 1 transaction 0 control log\0-io\0
        domain 2 is served as client 3
        domain 3 is gone"#]]
    .assert_eq(&world.machine.traced.join("\n"));
}

#[test]
fn reports_go_to_the_client_or_to_a_file() {
    let mut world = world();
    let report = ask(&mut world, "memreport").unwrap();
    expect![[r#"
        6 nodes, 0 watches, 2 connections, 0 open transactions
        domain 1: 431 bytes, 1 nodes, 0 watches, 0 transactions
        socket client 1: 0 bytes, 0 watches
    "#]]
    .assert_eq(&report);
    assert_eq!(ask(&mut world, "memreport /tmp/report").as_deref(), Ok("OK"));
    assert_eq!(world.machine.reports, [(Some("/tmp/report".to_owned()), report)]);
}
