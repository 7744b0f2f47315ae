//! Whose turn it is: hosts with VMs live side by side.

use sim_pair::{Side, checks};
use toolstack::channel::Channel as _;
use toolstack::{Reply, Request};

use crate::support::{create, seeded, unikernel};

const SECOND: u64 = 1_000_000_000;

#[test]
fn both_hosts_create_and_destroy_vms_at_once() {
    let mut pair = seeded(1);
    let letters = [
        pair.ask(Side::Left, create(&unikernel("one", "pv"), 1)),
        pair.ask(Side::Right, create(&unikernel("two", "pvh"), 2)),
    ];
    for letter in letters {
        let reply = pair.wait(letter, 10 * SECOND);
        assert!(matches!(reply, Some(Reply::Created(_))), "{reply:?}");
    }
    pair.settle();
    let runs = pair.runs();
    assert_eq!(checks::twice(&runs), [""; 0]);
    assert_eq!(checks::running(&runs, xen::Uuid([1; 16])), [1, 0]);
    for (side, name) in [(Side::Left, "one"), (Side::Right, "two")] {
        let gone = pair.say(side, Request::Destroy { target: name.to_owned() });
        assert!(matches!(gone, Reply::Gone { .. }), "{gone:?}");
    }
    pair.settle();
    for side in Side::BOTH {
        assert_eq!(pair.on(side, |lab| lab.left_behind()), [""; 0]);
    }
}

#[test]
fn a_vm_of_one_uuid_on_both_hosts_is_noticed() {
    let mut pair = seeded(2);
    for side in Side::BOTH {
        let reply = pair.say(side, create(&unikernel("one", "pv"), 1));
        assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    }
    let twice = checks::twice(&pair.runs());
    assert!(twice.len() == 1 && twice[0].contains("runs on the left as domain 1"), "{twice:?}");
}

#[test]
fn a_run_with_vms_follows_from_its_seed() {
    let run = |seed: u64| {
        let mut pair = seeded(seed);
        let letters = [
            pair.ask(Side::Left, create(&unikernel("one", "pv"), 1)),
            pair.ask_after(Side::Right, 1_000_000, create(&unikernel("two", "pvh"), 2)),
        ];
        for letter in letters {
            assert!(pair.wait(letter, 10 * SECOND).is_some());
        }
        pair.settle();
        (pair.now(), pair.digest(), pair.traces())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).1, run(6).1);
}

#[test]
fn a_killed_daemon_starts_again_and_knows_its_vms() {
    let mut pair = seeded(3);
    pair.say(Side::Right, create(&unikernel("one", "pv"), 1));
    pair.on(Side::Right, |lab| lab.kill());
    let letter = pair.ask(Side::Right, Request::List);
    let refused = pair.wait(letter, SECOND);
    assert!(matches!(refused, Some(Reply::Failed(_))), "{refused:?}");
    pair.settle();
    let Reply::Domains(listing) = pair.say(Side::Right, Request::List) else { panic!("no list") };
    assert!(listing.rows.iter().any(|row| row.name.as_deref() == Some("one")));
}

#[test]
fn a_host_that_loses_power_forgets_its_domains_and_keeps_its_definitions() {
    let mut pair = seeded(4);
    let text = unikernel("one", "pv") + "on_reboot = 'restart'\n";
    pair.say(Side::Right, create(&text, 1));
    let channels = pair.connect();
    let waiting = pair.begin(Side::Left, move |lab| {
        let mut channel = lab.host.os().open_channel(channels[0]).unwrap();
        let began = lab.host.now();
        let received = channel.receive(&mut [0], 60 * SECOND);
        (received.unwrap_err().to_string(), lab.host.now().0 - began.0)
    });
    pair.on(Side::Right, |lab| lab.crash(30 * SECOND));
    let (why, took) = pair.finish(&waiting);
    assert_eq!(why, "No route to host");
    assert!((15 * SECOND..16 * SECOND).contains(&took), "{took} ns");
    pair.settle();
    assert!(pair.on(Side::Right, |lab| lab.daemon.is_some()));
    let runs = pair.runs();
    assert_eq!(runs[1].len(), 1);
    assert_eq!(checks::running(&runs, xen::Uuid([1; 16])), [0, 0]);
    let reply = pair.say(Side::Right, create(&text, 1));
    assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    assert_eq!(checks::twice(&pair.runs()), [""; 0]);
}
