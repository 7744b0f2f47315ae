//! Guests that write all the time, over links that are slower than that.

use expect_test::expect;
use sim::{LetterId, NetworkConfig};
use sim_pair::{Pair, Side};
use toolstack::moves::{MigrateRequest, Reach, Wishes};
use toolstack::{Reply, Request};

use crate::support::{TRANSFER, create, migration, with_network};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A guest that writes 4000 pages a second, each with new contents, and a link that takes half of them.
fn writing() -> Pair {
    let network = NetworkConfig {
        bytes_per_second: 4 << 20,
        buffer_bytes: 64 << 10,
        ..NetworkConfig::default()
    };
    let mut pair = with_network(1, network);
    let text = "name = 'vm'\ntype = 'pvh'\nkernel = '/kernel'\nmemory = 16\n\
                extra = 'sim.kind=linux sim.writes=512'\n";
    assert!(matches!(pair.say(Side::Left, create(text, 0x11)), Reply::Created(_)));
    pair.pass(SECOND);
    pair
}

/// Sends the VM to the right.
fn send(pair: &mut Pair, downtime_ms: Option<u64>) -> LetterId {
    send_with(pair, downtime_ms, Wishes::default())
}

fn send_with(pair: &mut Pair, downtime_ms: Option<u64>, wishes: Wishes) -> LetterId {
    let peer = Some(Reach::Peer("right".to_owned()));
    let migrate = MigrateRequest { peer, downtime_ms, wishes, ..migration(pair) };
    pair.ask(Side::Left, Request::Migrate(Box::new(migrate)))
}

/// The caps of all guests.
fn caps(pair: &mut Pair, side: Side) -> Vec<u16> {
    pair.on(side, |lab| {
        let machine = lab.host.machine().get();
        machine.domains().filter(|it| it.domid.0 > 0).map(sim::Domain::cap).collect()
    })
}

/// What was done with the guest's cap on the left host, and kills of its daemon.
fn brakes(pair: &mut Pair) -> Vec<String> {
    let [left, _] = pair.traces();
    let what = |line: String| line.trim_start().split_once(' ').map(|(_, what)| what.to_owned());
    let lines = left.into_iter().filter_map(what);
    lines.filter(|it| it.contains("a cap of") || it.contains("is killed")).collect()
}

#[test]
fn one_that_writes_faster_than_its_pages_leave_is_slowed_down_and_moves() {
    let mut pair = writing();
    let letter = send(&mut pair, None);
    assert!(matches!(pair.wait(letter, 100 * SECOND), Some(Reply::Ok)));
    pair.pass(10 * SECOND);
    expect![[r#"
        [
            "xen: domain 1 has a cap of 46 %",
            "xen: domain 1 has a cap of 23 %",
            "xen: domain 1 has a cap of 9 %",
            "xen: domain 1 has a cap of 0 %",
        ]
    "#]]
    .assert_debug_eq(&brakes(&mut pair));
    // The right host's domain is another one.
    assert_eq!(caps(&mut pair, Side::Right), [0]);
    let [left, right] = pair.runs();
    let (left, right) = (left.last().unwrap(), right.last().unwrap());
    let pause = right.began.0 - left.ended.unwrap().0;
    assert!(pause < 150 * MS, "a pause of {} ms", pause / MS);
}

#[test]
fn a_move_that_is_cancelled_ends_in_milliseconds_and_the_guest_has_its_cpu_back() {
    // Also while it waits for a full link.
    for after in [100 * MS, 2300 * MS, 2777 * MS] {
        let mut pair = writing();
        let letter = send(&mut pair, None);
        let cancel = Request::CancelMove { transfer: TRANSFER };
        let began = pair.now().0 + after;
        pair.ask_after(Side::Left, after, cancel);
        let reply = pair.wait(letter, 100 * SECOND);
        assert!(matches!(&reply, Some(Reply::Failed(why)) if why.contains("cancel")), "{reply:?}");
        let took = pair.now().0.saturating_sub(began);
        assert!(took < 100 * MS, "{} ms", took / MS);
        assert_eq!(caps(&mut pair, Side::Left), [0]);
        pair.pass(10 * SECOND);
        assert!(caps(&mut pair, Side::Right).is_empty());
        assert_eq!(brakes(&mut pair).is_empty(), after < SECOND);
    }
}

#[test]
fn a_guest_has_its_cpu_back_also_after_a_kill_of_the_daemon() {
    let mut killed_while_slowed = 0;
    for k in [80, 120, 160] {
        let mut pair = writing();
        pair.on(Side::Left, move |lab| lab.kill_at(k));
        let letter = send(&mut pair, None);
        pair.wait(letter, 100 * SECOND);
        pair.pass(30 * SECOND);
        let brakes = brakes(&mut pair);
        let at = brakes.iter().position(|it| it.contains("is killed"));
        let before = at.and_then(|at| brakes[..at].last());
        killed_while_slowed += u32::from(before.is_some_and(|it| !it.ends_with(" 0 %")));
        let both = Side::BOTH.map(|side| caps(&mut pair, side));
        assert_eq!(both.concat(), [0], "{k}: {brakes:?}");
    }
    assert!(killed_while_slowed > 0, "{killed_while_slowed}");
}

#[test]
fn a_move_on_several_connections_brings_all_of_a_guest_that_writes() {
    for seed in 1..=3 {
        let network = NetworkConfig { bytes_per_second: 32 << 20, ..NetworkConfig::default() };
        let mut pair = with_network(seed, network);
        // It checks its memory in its new domain.
        let text = "name = 'vm'\ntype = 'pvh'\nkernel = '/kernel'\nmemory = 16\n\
                    extra = 'sim.kind=linux sim.writes=512 sim.rests-after=20000'\n";
        assert!(matches!(pair.say(Side::Left, create(text, 0x11)), Reply::Created(_)));
        pair.pass(SECOND);
        let letter = send_with(&mut pair, None, Wishes { lanes: Some(4), ..Wishes::default() });
        let reply = pair.wait(letter, 100 * SECOND);
        assert!(matches!(reply, Some(Reply::Ok)), "{reply:?}");
        pair.pass(30 * SECOND);
        let (console, channels) = pair.on(Side::Right, |lab| {
            let domid = {
                let machine = lab.host.machine().get();
                machine.domains().map(|it| it.domid).filter(|it| it.0 > 0).max()
            };
            (lab.host.console(domid.expect("it has come")), lab.host.os().channels())
        });
        assert!(console.contains("memory: as written"), "{console}");
        assert_eq!(channels, 0);
    }
}
