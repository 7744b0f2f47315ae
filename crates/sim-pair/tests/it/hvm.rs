//! An HVM VM is sent from one host to the other: its device model's state goes with it.

use sim::{MonitorFate, SimHost};
use sim_pair::{Pair, PairConfig, Side};
use toolstack::moves::{MigrateRequest, Pace};
use toolstack::{Reply, Request};
use xen::DomId;

use crate::support::{create, migration};

const VM: &str = "name = 'vm'\ntype = 'hvm'\nmemory = 16\nvif = ['type=vif,bridge=xenbr0']\n";

fn prepare(host: &SimHost) {
    sim::add_hvm_files(host.os(), "sim.kind=linux sim.writes=20 sim.rests-after=6000");
    host.os().add_bridge("xenbr0");
}

fn started() -> Pair {
    let mut pair = Pair::boot(&PairConfig { seed: 1, prepare, ..PairConfig::default() });
    assert!(matches!(pair.say(Side::Left, create(VM, 0x11)), Reply::Created(_)));
    pair.pass(1_000_000_000);
    pair
}

fn migrate(pair: &mut Pair, pace: Pace) -> Reply {
    let migrate = MigrateRequest { pace, ..migration(pair) };
    let reply = pair.say(Side::Left, Request::Migrate(Box::new(migrate)));
    pair.pass(10_000_000_000);
    reply
}

/// How often the device model of the VM there was moved; `None` without one. None was told what nobody undid.
fn lives(pair: &mut Pair, side: Side) -> Option<u32> {
    pair.on(side, |lab| {
        assert!(lab.host.os().models_are_at_rest());
        (1..10).find_map(|domid| lab.host.os().model_lives(DomId(domid)))
    })
}

fn console(pair: &mut Pair, side: Side) -> String {
    pair.on(side, |lab| (1..10).map(|domid| lab.host.console(DomId(domid))).collect())
}

#[test]
fn it_goes_on_there_with_its_device_models_state() {
    for pace in [Pace::Live, Pace::Stopped] {
        let mut pair = started();
        let reply = migrate(&mut pair, pace);
        assert!(matches!(reply, Reply::Ok), "{reply:?}");
        assert_eq!((lives(&mut pair, Side::Left), lives(&mut pair, Side::Right)), (None, Some(1)));
        let told = console(&mut pair, Side::Right);
        assert!(told.contains("memory: as written") && told.contains("in a new domain"), "{told}");
    }
}

#[test]
fn a_device_model_that_takes_no_state_there_leaves_the_vm_here() {
    for fate in [MonitorFate::Refuses("migrate-incoming"), MonitorFate::Garbage] {
        let mut pair = started();
        pair.on(Side::Right, move |lab| lab.host.os().set_monitor_fate(fate));
        let reply = migrate(&mut pair, Pace::Live);
        assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
        assert_eq!((lives(&mut pair, Side::Left), lives(&mut pair, Side::Right)), (Some(0), None));
        let told = console(&mut pair, Side::Left);
        assert!(!told.contains("in a new domain"), "{told}");
    }
}

#[test]
fn a_disk_that_its_device_model_has_locked_is_named_before_the_guest_is_suspended() {
    let mut pair = Pair::boot(&PairConfig { seed: 1, prepare, ..PairConfig::default() });
    pair.on(Side::Left, |lab| lab.host.os().add_disk("/shared/a.raw", 1 << 20));
    let vm = format!("{VM}disk = ['/shared/a.raw,raw,xvda,w']\n");
    assert!(matches!(pair.say(Side::Left, create(&vm, 0x11)), Reply::Created(_)));
    pair.pass(1_000_000_000);
    let Reply::Failed(why) = migrate(&mut pair, Pace::Live) else { panic!("it has moved") };
    expect_test::expect!["vm: /shared/a.raw: the device model has this disk locked until the guest runs at right; put it on a block device, NBD or iSCSI, or use `xy save` here and `xy restore` there"].assert_eq(&why);
    assert!(!console(&mut pair, Side::Left).contains("suspend:"));
}
