//! Runs the scripts in `tests/scripts`: rows of who asks what and what is answered.
//!
//! ```text
//! dom0     write /a/b hello      -> OK            a request and its reply
//! dom0:t1  read /a/b             -> hello         inside the transaction that `start t1` began
//! d1       events /a/b:token                      exactly these events have come since
//! xen      create 1                               something happens to a domain
//! dom0     raw 2 /a|             -> hello         any type and payload, `|` for NUL
//! ```
//!
//! `dom0` and names that begin with `s` are sockets, `d1` is the ring of domain 1. When a script ends,
//! no event may be left that it did not mention, and all counters must equal a recount.

use std::collections::BTreeMap;

use xen::DomId;
use xenstore::wire::MessageType;
use xenstore::{Error, Quota};

use crate::world::World;

struct Script {
    world: World,
    transactions: BTreeMap<String, u32>,
}

fn run(text: &str) {
    let mut script = Script { world: World::new(Quota::default()), transactions: BTreeMap::new() };
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        // A line of its own in the panic message is what a reader needs most.
        let row = format!("line {}: {line}", number + 1);
        let (request, expected) = match line.split_once("->") {
            Some((request, expected)) => (request.trim(), Some(expected.trim())),
            None => (line, None),
        };
        let mut words = request.split_whitespace();
        let who = words.next().expect("not empty");
        let words: Vec<&str> = words.collect();
        script.row(&row, who, &words, expected);
    }
    let names: Vec<String> = script.world.peers.keys().cloned().collect();
    for name in names {
        let left = script.world.take_events(&name);
        assert!(left.is_empty(), "{name} has events that the script does not mention: {left:?}");
    }
    script.world.assert_counts();
}

impl Script {
    fn row(&mut self, row: &str, who: &str, words: &[&str], expected: Option<&str>) {
        if who == "xen" {
            return self.xen(row, words);
        }
        let (who, transaction) = match who.split_once(':') {
            // A number that no transaction has.
            Some((who, "none")) => (who, 4711),
            Some((who, name)) => (who, self.transactions[name]),
            None => (who, 0),
        };
        if who.starts_with('s') && !self.world.peers.contains_key(who) {
            self.world.connect(who);
        }
        if let ["events", expected @ ..] = words {
            assert_eq!(self.world.take_events(who), expected, "{row}");
            return;
        }
        if let ["close"] = words {
            let peer = self.world.peers.remove(who).unwrap_or_else(|| panic!("{row}: no {who}"));
            return self.world.server.disconnect(peer.id);
        }
        let answer = self.ask(row, who, transaction, words);
        let expected = expected.unwrap_or_else(|| panic!("{row}: what is the answer?"));
        assert_eq!(answer, expected, "{row}");
    }

    fn xen(&mut self, row: &str, words: &[&str]) {
        if let ["shutdown-and-destroy", stops, dies] = words {
            let domid = |word: &str| DomId(word.parse().expect(row));
            let states = &mut self.world.machine.states;
            states.get_mut(&domid(stops)).expect(row).shutdown = true;
            states.remove(&domid(dies)).expect(row);
            return self.world.raise_exception();
        }
        let domids = words[1..].iter().map(|word| word.parse::<u16>().expect(row));
        for domid in domids {
            match words[0] {
                "create" => self.world.create_domain(domid),
                "guest" => self.world.add_guest(domid),
                "ring" => self.world.adopt_ring(domid),
                "shutdown" => {
                    let states = &mut self.world.machine.states;
                    states.get_mut(&DomId(domid)).expect(row).shutdown = true;
                }
                "unshutdown" => {
                    let states = &mut self.world.machine.states;
                    states.get_mut(&DomId(domid)).expect(row).shutdown = false;
                }
                "dying" => {
                    let states = &mut self.world.machine.states;
                    states.get_mut(&DomId(domid)).expect(row).dying = true;
                }
                "destroy" => drop(self.world.machine.states.remove(&DomId(domid))),
                other => panic!("{row}: no such event '{other}'"),
            }
        }
        if matches!(words[0], "shutdown" | "dying" | "destroy") {
            self.world.raise_exception();
        }
    }

    /// Sends the request and spells the answer as scripts do.
    fn ask(&mut self, row: &str, who: &str, transaction: u32, words: &[&str]) -> String {
        use MessageType as M;
        let joined =
            |words: &[&str]| words.iter().map(|word| format!("{word}|")).collect::<String>();
        let (kind, payload) = match words {
            ["raw", kind, payload @ ..] => {
                let payload = payload.join(" ").replace('|', "\0");
                let kind = kind.parse().expect(row);
                return spell(self.world.call_raw(who, kind, transaction, payload.as_bytes()));
            }
            ["start", name] => {
                let reply = self.world.call(who, M::TransactionStart, transaction, "|");
                return match reply {
                    Ok(id) => {
                        let id = String::from_utf8(id).expect(row);
                        let id = id.trim_end_matches('\0').parse().expect(row);
                        self.transactions.insert((*name).to_owned(), id);
                        "OK".to_owned()
                    }
                    Err(error) => spell(Err(error)),
                };
            }
            ["commit", name] => {
                let id = self.transactions[*name];
                return spell(self.world.call(who, M::TransactionEnd, id, "T|"));
            }
            ["abort", name] => {
                let id = self.transactions[*name];
                return spell(self.world.call(who, M::TransactionEnd, id, "F|"));
            }
            ["write", path, value @ ..] => (M::Write, format!("{path}|{}", value.join(" "))),
            ["read", rest @ ..] => (M::Read, joined(rest)),
            ["ls", rest @ ..] => (M::Directory, joined(rest)),
            ["part", rest @ ..] => {
                let reply = self.world.call(who, M::DirectoryPart, transaction, &joined(rest));
                return match reply {
                    // Each NUL counts here.
                    Ok(payload) => String::from_utf8_lossy(&payload).replace('\0', "|"),
                    Err(error) => spell(Err(error)),
                };
            }
            ["mkdir", rest @ ..] => (M::Mkdir, joined(rest)),
            ["rm", rest @ ..] => (M::Rm, joined(rest)),
            ["perms", rest @ ..] => (M::GetPerms, joined(rest)),
            ["chmod", rest @ ..] => (M::SetPerms, joined(rest)),
            ["watch", rest @ ..] => (M::Watch, joined(rest)),
            ["unwatch", rest @ ..] => (M::Unwatch, joined(rest)),
            ["reset-watches"] => (M::ResetWatches, "|".to_owned()),
            ["introduce", rest @ ..] => (M::Introduce, joined(rest)),
            ["introduced", rest @ ..] => (M::IsDomainIntroduced, joined(rest)),
            ["release", rest @ ..] => (M::Release, joined(rest)),
            ["resume", rest @ ..] => (M::Resume, joined(rest)),
            ["target", rest @ ..] => (M::SetTarget, joined(rest)),
            ["path", rest @ ..] => (M::GetDomainPath, joined(rest)),
            ["features", rest @ ..] => (M::GetFeature, joined(rest)),
            ["set-feature", rest @ ..] => (M::SetFeature, joined(rest)),
            ["quota", rest @ ..] => (M::GetQuota, joined(rest)),
            ["set-quota", rest @ ..] => (M::SetQuota, joined(rest)),
            ["control", rest @ ..] => (M::Control, joined(rest)),
            _ => panic!("{row}: no such request"),
        };
        spell(self.world.call(who, kind, transaction, &payload))
    }
}

/// `OK`, an error's name, or the payload: a NUL shows as a blank between strings, `""` is empty.
fn spell(result: Result<Vec<u8>, Error>) -> String {
    match result {
        Err(error) => error.name().to_owned(),
        Ok(payload) if payload.is_empty() => "\"\"".to_owned(),
        Ok(payload) => {
            let text = String::from_utf8_lossy(&payload);
            text.strip_suffix('\0').unwrap_or(&text).replace('\0', " ")
        }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $file:literal;)*) => {
        $($(#[$doc])* #[test] fn $name() { run(include_str!(concat!("../scripts/", $file))); })*
    };
}

scripts! {
    nodes_are_read_written_listed_and_removed: "nodes.txt";
    requests_of_the_wrong_form_are_refused: "forms.txt";
    paths_follow_their_rules: "paths.txt";
    permissions_decide_who_does_what: "permissions.txt";
    transactions_conflict_only_on_what_they_saw: "transactions.txt";
    watches_tell_of_changes: "watches.txt";
    watches_tell_only_what_their_owner_may_read: "watch-rights.txt";
    domains_come_and_go: "domains.txt";
    special_nodes_have_rules_of_their_own: "special.txt";
    guests_may_not_do_what_the_control_domain_may: "privileges.txt";
    each_limit_admits_exactly_what_it_says: "limits.txt";
    errors_and_events_come_in_order: "orders.txt";
    what_the_other_stores_are_tested_for_holds_here: "two-stores.txt";
    a_domid_used_again_inherits_nothing: "second-life.txt";
    a_device_model_acts_for_its_target: "target.txt";
}
