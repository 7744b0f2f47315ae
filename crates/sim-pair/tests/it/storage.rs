//! Storage that both hosts share.

use sim_pair::{Side, checks};
use toolstack::{Reply, Request};

use crate::support::{DISK, create, seeded, unikernel};

fn with_disk(mode: &str) -> String {
    format!("{}disk = ['{DISK},raw,xvda,{mode}']\n", unikernel("one", "pv"))
}

#[test]
fn a_disk_that_one_host_uses_is_refused_on_the_other_until_it_is_free() {
    let mut pair = seeded(1);
    let reply = pair.say(Side::Left, create(&with_disk("w"), 1));
    assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    pair.settle();
    let Reply::Failed(message) = pair.say(Side::Right, create(&with_disk("w"), 2)) else {
        panic!("two hosts write one disk")
    };
    assert!(message.contains(DISK) && message.contains("locked"), "{message}");
    pair.say(Side::Left, Request::Destroy { target: "one".to_owned() });
    let reply = pair.say(Side::Right, create(&with_disk("w"), 2));
    assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    pair.settle();
    let uses = pair.disk_uses();
    assert_eq!([uses[0].len(), uses[1].len()], [1, 1]);
    assert_eq!(checks::written_twice(&uses, "/shared/"), [""; 0]);
}

#[test]
fn a_disk_that_is_written_from_both_hosts_is_noticed() {
    let mut pair = seeded(2);
    for (side, uuid) in [(Side::Left, 1), (Side::Right, 2)] {
        let reply = pair.say(side, create(&with_disk("w!"), uuid));
        assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    }
    pair.settle();
    let twice = checks::written_twice(&pair.disk_uses(), "/shared/");
    assert_eq!(twice.len(), 1, "{twice:?}");
}
