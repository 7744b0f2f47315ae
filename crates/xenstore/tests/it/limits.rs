//! Random scripts of guests that want more than they may have.
//!
//! Only guests act, so every count stays within its limit at every step; what is refused outside a
//! transaction changes nothing; and all counters equal a recount, deaths included.

use std::time::Duration;

use proptest::prelude::*;
use xenstore::server::{Progress, Replay};
use xenstore::wire::MessageType as M;
use xenstore::{Error, Quota};

use crate::model::config;
use crate::world::World;

const LIMITS: Quota = Quota {
    nodes: 12,
    watches: 4,
    outstanding: 20,
    memory_bytes: 6000,
    memory_bytes_soft: 4000,
    transactions: 3,
    transaction_nodes: 10,
    permissions: 3,
    path_bytes: 60,
    node_bytes: 120,
};

#[derive(Clone, Debug)]
enum Step {
    Ask {
        who: u16,
        transaction: usize,
        kind: M,
        payload: String,
    },
    Start(u16),
    End {
        who: u16,
        transaction: usize,
        commits: bool,
    },
    /// The guest stops or begins to read.
    Deafen(u16),
    Hear(u16),
    Wait(u64),
    Kill(u16),
    /// Both ends of its ring begin anew.
    Reconnect(u16),
}

fn payload() -> impl Strategy<Value = (M, String)> {
    let root = prop::sample::select(vec!["", "/local/domain/1/", "/local/domain/2/", "/shared/"]);
    let name = prop::sample::select(vec!["a", "b", "c", "name-of-twenty-bytes"]);
    let path = (root, prop::collection::vec(name, 1..4))
        .prop_map(|(root, names)| format!("{root}{}", names.join("/")));
    let value = prop::sample::select(vec![0, 1, 20, 60, 90, 100, 3000]).prop_map(|n| "v".repeat(n));
    let list =
        prop::collection::vec(prop::sample::select(vec!["n1", "n2", "r1", "b2", "w0"]), 1..5);
    (path, value, list, 0..9).prop_map(|(path, value, list, kind)| match kind {
        0 => (M::Read, format!("{path}|")),
        1 => (M::Directory, format!("{path}|")),
        2 | 3 => (M::Write, format!("{path}|{value}")),
        4 => (M::Mkdir, format!("{path}|")),
        5 => (M::Rm, format!("{path}|")),
        6 => (M::SetPerms, format!("{path}|{}|", list.join("|"))),
        7 => (M::Watch, format!("{path}|{value}|")),
        _ => (M::Unwatch, format!("{path}|{value}|")),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let who = 1u16..3;
    prop_oneof![
        30 => (who.clone(), 0usize..4, payload()).prop_map(|(who, transaction, (kind, payload))| {
            Step::Ask { who, transaction, kind, payload }
        }),
        4 => who.clone().prop_map(Step::Start),
        4 => (who.clone(), 0usize..3, any::<bool>())
            .prop_map(|(who, transaction, commits)| Step::End { who, transaction, commits }),
        1 => who.clone().prop_map(Step::Deafen),
        1 => who.clone().prop_map(Step::Hear),
        2 => (0u64..30).prop_map(Step::Wait),
        1 => who.clone().prop_map(Step::Kill),
        1 => who.prop_map(Step::Reconnect),
    ]
}

struct Run {
    world: World,
    /// Open transactions of each guest.
    open: [Vec<u32>; 3],
}

impl Run {
    fn add_guest(&mut self, domid: u16) {
        self.open[usize::from(domid)].clear();
        self.world.add_guest_with_home(domid);
        // Domains that come later have their rights as well.
        let known: String = [1, 2].map(|domid| format!("b{domid}|")).concat();
        self.world.call("dom0", M::SetPerms, 0, &format!("/shared|n0|{known}")).expect("dom0 may");
    }

    fn is_deaf(&self, who: u16) -> bool {
        self.world.deaf.contains(&self.world.peers[&format!("d{who}")].id)
    }

    /// Asks, if the guest is served; `None` if there is no answer to wait for.
    fn ask(&mut self, who: u16, kind: M, transaction: u32, payload: &str) -> Option<Answer> {
        let name = format!("d{who}");
        let id = self.world.peers[&name].id;
        if self.is_deaf(who) {
            if self.world.server.accepts_requests(id) {
                let payload = payload.replace('|', "\0");
                self.world.send(&name, kind.code(), transaction, payload.as_bytes());
                if kind == M::TransactionStart || kind == M::TransactionEnd {
                    // What came of it is not known.
                    self.world.send(&name, M::ResetWatches.code(), 0, b"\0");
                    self.open[usize::from(who)].clear();
                }
            }
            return None;
        }
        while let Some(until) = self.world.server.resumes_at(id) {
            let now = self.world.now;
            self.world.wait(until - now);
        }
        Some(self.world.call(&name, kind, transaction, payload))
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask { who, transaction, kind, payload } => {
                let open = &self.open[usize::from(*who)];
                let transaction = open.get(*transaction).copied().unwrap_or(0);
                let before = self.dump();
                let answer = self.ask(*who, *kind, transaction, payload);
                let changes_nothing = transaction != 0 || matches!(answer, Some(Err(_)));
                assert!(!changes_nothing || self.dump() == before, "{step:?} was {answer:?}");
            }
            Step::Start(who) => {
                if let Some(Ok(id)) = self.ask(*who, M::TransactionStart, 0, "|") {
                    let id = String::from_utf8(id).expect("text");
                    let id = id.trim_end_matches('\0').parse().expect("a number");
                    self.open[usize::from(*who)].push(id);
                }
            }
            Step::End { who, transaction, commits } => {
                let open = &mut self.open[usize::from(*who)];
                if *transaction < open.len() {
                    let id = open.remove(*transaction);
                    let verdict = if *commits { "T|" } else { "F|" };
                    let before = self.dump();
                    let answer = self.ask(*who, M::TransactionEnd, id, verdict);
                    let refused = [Error::EAGAIN, Error::ENOMEM, Error::ENOSPC];
                    let is_known = match &answer {
                        Some(Err(error)) => refused.contains(error),
                        _ => true,
                    };
                    assert!(is_known, "{answer:?}");
                    let changes_nothing = !commits || matches!(answer, Some(Err(_)));
                    assert!(!changes_nothing || self.dump() == before, "{step:?}: {answer:?}");
                }
            }
            Step::Deafen(who) => {
                let id = self.world.peers[&format!("d{who}")].id;
                self.world.deaf.insert(id);
            }
            Step::Hear(who) => {
                let id = self.world.peers[&format!("d{who}")].id;
                self.world.deaf.remove(&id);
                self.world.read_all(id);
                self.world.pump();
            }
            Step::Wait(seconds) => self.world.wait(Duration::from_secs(*seconds)),
            Step::Kill(who) => {
                self.world.destroy_domain(*who);
                self.add_guest(*who);
            }
            Step::Reconnect(who) => {
                let peer = self.world.peers.get_mut(&format!("d{who}")).expect("a guest");
                peer.messages.clear();
                self.world.server.handle_reconnect(peer.id);
                self.open[usize::from(*who)].clear();
            }
        }
        for peer in self.world.peers.values_mut() {
            peer.messages.clear();
        }
        self.world.assert_counts();
        for who in [1, 2] {
            self.check_limits(who);
        }
    }

    fn check_limits(&mut self, who: u16) {
        let report = self.world.call("dom0", M::Control, 0, &format!("quota|{who}|"));
        let report = String::from_utf8(report.expect("a report")).expect("text");
        let in_use = |name: &str| -> u32 {
            let line = report.lines().find(|line| line.starts_with(name)).expect("a line");
            let value = line.split([':', '(']).nth(1).expect("a value");
            value.trim().parse().expect("a number")
        };
        let within = |name: &str, limit: u32| {
            assert!(in_use(name) <= limit, "{name} of domain {who} is {}", in_use(name));
        };
        within("nodes", LIMITS.nodes);
        within("watches", LIMITS.watches);
        within("transactions", LIMITS.transactions);
        within("outstanding", LIMITS.outstanding);
        // A path too many in each transaction, replies, and the events that always fit.
        let slack = 3 * 300 + 20 * (16 + 64 + 96) + 8 * 1024;
        within("memory", LIMITS.memory_bytes + slack);
    }

    /// Values and permissions of everything.
    fn dump(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut paths = vec!["/local/domain".to_owned(), "/shared".to_owned()];
        while let Some(path) = paths.pop() {
            let [value, list, names] = [M::Read, M::GetPerms, M::Directory].map(|kind| {
                let reply = self.world.call("dom0", kind, 0, &format!("{path}|"));
                String::from_utf8(reply.expect("exists")).expect("text")
            });
            paths.extend(names.split_terminator('\0').map(|name| format!("{path}/{name}")));
            lines.push(format!("{path} {value} {list}"));
        }
        lines
    }
}

type Answer = Result<Vec<u8>, Error>;

fn run(steps: &[Step]) {
    let mut world = World::new(LIMITS);
    assert!(world.call("dom0", M::Mkdir, 0, "/shared|").is_ok());
    // Somebody's transaction, so that writes have their price.
    assert!(world.call("dom0", M::TransactionStart, 0, "|").is_ok());
    let mut run = Run { world, open: Default::default() };
    for domid in [1, 2] {
        run.add_guest(domid);
    }
    for step in steps {
        run.step(step);
    }
    for domid in [1, 2] {
        run.world.destroy_domain(domid);
        run.world.assert_counts();
    }
    assert_eq!(run.world.server.watch_count(), 0);
    assert_eq!(run.dump().len(), 2, "all that guests had is gone");
}

/// The store is killed and brought back from its records; sockets are gone with it.
fn restart(world: &mut World, checkpoint: &[u8]) {
    let mut replay = Replay::new();
    replay.apply(checkpoint).expect("our own records");
    replay.apply(world.server.recorded()).expect("our own records");
    world.server = replay.finish();
    world.assert_counts();
    let guest = world.peers["d1"].id;
    world.read_all(guest);
    world.peers.get_mut("d1").expect("a guest").messages.clear();
    world.connect("dom0");
}

#[test]
fn a_restart_fails_the_transactions_that_met_a_limit_and_no_others() {
    for (value, expected) in [(100, Ok(b"OK\0".to_vec())), (3000, Err(Error::ENOMEM))] {
        let quota = Quota { memory_bytes: 8000, node_bytes: 0, ..Quota::default() };
        let mut world = World::new(quota);
        world.add_guest_with_home(1);
        let mut checkpoint = Vec::new();
        world.server.start_recording();
        let mut writer = world.server.checkpoint();
        while writer.write(&mut checkpoint, 100) == Progress::More {}
        // Read by the guest, which the records do not say: what is brought back has them unread.
        world.call("d1", M::Write, 0, &format!("a|{}", "v".repeat(200))).unwrap();
        for _ in 0..15 {
            world.call("d1", M::Read, 0, "a|").unwrap();
        }
        world.call("d1", M::TransactionStart, 0, "|").unwrap();
        let written = world.call("d1", M::Write, 1, &format!("b|{}", "v".repeat(value)));
        assert_eq!(written, expected);
        restart(&mut world, &checkpoint);
        assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), expected);
        assert_eq!(world.call("d1", M::Read, 0, "b|").is_ok(), expected.is_ok());
        world.assert_counts();
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn no_guest_has_more_than_it_may(steps in prop::collection::vec(step(), 1..80)) {
        run(&steps);
    }
}
