//! A VM is sent from one host to the other.

use migrate::peer::Arrival;
use sim_pair::moves::{self, Guest, Outcome, Plan, Trouble, Way};
use sim_pair::{Pair, Side};
use toolstack::moves::{MigrateRequest, Pace, ReceiveRequest, Speaks, Wishes};
use toolstack::{Reply, Request};
use xen::Uuid;

use crate::support::{create, seeded, unikernel};

fn plan(way: Way, guest: Guest) -> Plan {
    Plan { way, guest, trouble: Trouble::Nothing, seed: 1 }
}

#[test]
fn it_goes_on_on_the_other_host() {
    for (way, guest) in
        [(Way::Live, Guest::Pvh), (Way::Stopped, Guest::Pvh), (Way::Stopped, Guest::Pv)]
    {
        let outcome = moves::run(&plan(way, guest)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(outcome, Outcome { runs_on: Some(Side::Right), was_hit: false });
    }
}

/// The VMs that a host knows: name, whether defined, place in the start of the host.
fn vms(pair: &mut Pair, side: Side) -> Vec<(String, bool, Option<u32>)> {
    match pair.say(side, Request::Vms) {
        Reply::Vms(rows) => {
            rows.into_iter().map(|row| (row.name, row.defined, row.autostart)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn its_definition_goes_with_it() {
    let mut pair = seeded(1);
    let text = unikernel("vm", "pvh");
    let Request::Create { config, fresh_uuid, start } = create(&text, 0x11) else { unreachable!() };
    let define = Request::Define { config, fresh_uuid, autostart: Some(7) };
    assert!(matches!(pair.say(Side::Left, define), Reply::Defined { .. }));
    let begin = Request::Start { target: "vm".to_owned(), start };
    assert!(matches!(pair.say(Side::Left, begin), Reply::Created(_)));
    let [channel, far] = pair.connect();
    let receive = ReceiveRequest {
        channel: far,
        speaks: Speaks::Own,
        arrival: Arrival::Runs,
        transfer: Uuid([0x33; 16]),
    };
    let migrate = MigrateRequest {
        target: "vm".to_owned(),
        channel,
        to: "right".to_owned(),
        from: "left".to_owned(),
        peer: None,
        transfer: Uuid([0x44; 16]),
        pace: Pace::Live,
        downtime_ms: None,
        arrival: Arrival::Runs,
        wishes: Wishes::default(),
    };
    pair.ask(Side::Right, Request::Receive(receive));
    assert!(matches!(pair.say(Side::Left, Request::Migrate(Box::new(migrate))), Reply::Ok));
    pair.pass(10_000_000_000);
    assert_eq!(vms(&mut pair, Side::Left), []);
    assert_eq!(vms(&mut pair, Side::Right), [("vm".to_owned(), true, Some(7))]);
}
