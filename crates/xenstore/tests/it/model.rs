//! Random scripts against a store that is written to be obvious.
//!
//! The model keeps every node in one `BTreeMap` and does each request the slow way. A transaction of
//! the model is a copy of the map and a list of its requests. It need not predict a conflict: when the
//! store says that a commit succeeded, running the same requests again on the model as it is then must
//! give the same answers and the same tree; and a store that nobody else changed must not say `EAGAIN`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use xenstore::wire::MessageType;
use xenstore::{Access, Error, Permission, Quota};

use crate::world::World;

/// The control domain, or a guest.
type Caller = u16;

#[derive(Clone, Debug, Eq, PartialEq)]
struct Node {
    value: String,
    /// Letter and domain; only living domains occur, as the model takes rights away at death.
    permissions: Vec<(char, Caller)>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Model {
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wanted {
    Read,
    Write,
    Own,
}

#[derive(Clone, Debug)]
enum Request {
    Read(String),
    Directory(String),
    GetPerms(String),
    Write(String, String),
    Mkdir(String),
    Rm(String),
    SetPerms(String, Vec<(char, Caller)>),
}

type Answer = Result<String, Error>;

fn parent(path: &str) -> Option<String> {
    match path.rfind('/')? {
        0 if path == "/" => None,
        0 => Some("/".to_owned()),
        slash => Some(path[..slash].to_owned()),
    }
}

fn is_below(path: &str, top: &str) -> bool {
    path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

impl Model {
    fn new() -> Self {
        let node = Node { value: String::new(), permissions: vec![('n', 0)] };
        let paths = ["/", "/tool", "/tool/xenstored"];
        Self { nodes: paths.map(|path| (path.to_owned(), node.clone())).into() }
    }

    fn allows(node: &Node, who: Caller, wanted: Wanted) -> bool {
        let (default, owner) = node.permissions[0];
        if who == 0 || who == owner {
            return true;
        }
        let named = node.permissions[1..].iter().find(|(_, domid)| *domid == who);
        let letter = named.map_or(default, |(letter, _)| *letter);
        match wanted {
            Wanted::Read => matches!(letter, 'r' | 'b'),
            Wanted::Write => matches!(letter, 'w' | 'b'),
            Wanted::Own => false,
        }
    }

    fn check(&self, path: &str, who: Caller, wanted: Wanted) -> Result<(), Error> {
        let mut nearest = path.to_owned();
        while !self.nodes.contains_key(&nearest) {
            nearest = parent(&nearest).expect("the root exists");
        }
        // Whoever may write there may know that there is no node to own.
        let wanted = match wanted {
            Wanted::Own if nearest != path => Wanted::Write,
            wanted => wanted,
        };
        if !Self::allows(&self.nodes[&nearest], who, wanted) {
            return Err(Error::EACCES);
        }
        if nearest == path { Ok(()) } else { Err(Error::ENOENT) }
    }

    fn create(&mut self, path: &str, who: Caller) {
        if self.nodes.contains_key(path) {
            return;
        }
        let above = parent(path).expect("the root exists");
        self.create(&above, who);
        let mut node = Node { value: String::new(), ..self.nodes[&above].clone() };
        if who != 0 {
            node.permissions[0].1 = who;
        }
        self.nodes.insert(path.to_owned(), node);
    }

    fn children(&self, path: &str) -> Vec<String> {
        let child = |other: &String| {
            let slash = other.rfind('/')?;
            (parent(other)? == path).then(|| other[slash + 1..].to_owned())
        };
        self.nodes.keys().filter_map(child).collect()
    }

    fn run(&mut self, who: Caller, request: &Request) -> Answer {
        let done = Ok("OK\0".to_owned());
        match request {
            Request::Read(path) => {
                self.check(path, who, Wanted::Read)?;
                Ok(self.nodes[path].value.clone())
            }
            Request::Directory(path) => {
                self.check(path, who, Wanted::Read)?;
                Ok(self.children(path).iter().map(|name| format!("{name}\0")).collect())
            }
            Request::GetPerms(path) => {
                self.check(path, who, Wanted::Read)?;
                let list = self.nodes[path].permissions.iter();
                Ok(list.map(|(letter, domid)| format!("{letter}{domid}\0")).collect())
            }
            Request::Write(path, value) => match self.check(path, who, Wanted::Write) {
                Ok(()) | Err(Error::ENOENT) => {
                    self.create(path, who);
                    self.nodes.get_mut(path).expect("created").value.clone_from(value);
                    done
                }
                Err(error) => Err(error),
            },
            Request::Mkdir(path) => match self.check(path, who, Wanted::Write) {
                Ok(()) | Err(Error::ENOENT) => {
                    self.create(path, who);
                    done
                }
                Err(error) => Err(error),
            },
            Request::Rm(path) => match self.check(path, who, Wanted::Write) {
                Ok(()) if path == "/" => Err(Error::EINVAL),
                Ok(()) => {
                    self.nodes.retain(|other, _| !is_below(other, path));
                    done
                }
                Err(Error::ENOENT) if self.nodes.contains_key(&parent(path).expect("not /")) => {
                    done
                }
                Err(error) => Err(error),
            },
            Request::SetPerms(path, list) => {
                self.check(path, who, Wanted::Own)?;
                let node = self.nodes.get_mut(path).expect("checked");
                if who != 0 && node.permissions[0].1 != list[0].1 {
                    return Err(Error::EPERM);
                }
                node.permissions.clone_from(list);
                done
            }
        }
    }

    /// A domain dies: its nodes go with all below them, and its rights.
    fn kill(&mut self, who: Caller) {
        let owned: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.permissions[0].1 == who)
            .map(|(path, _)| path.clone())
            .collect();
        for path in owned {
            self.nodes.retain(|other, _| !is_below(other, &path));
        }
        for node in self.nodes.values_mut() {
            node.permissions.retain(|(_, domid)| *domid != who);
        }
    }
}

/// What the store is asked, in the words of the protocol.
fn ask(world: &mut World, who: Caller, transaction: u32, request: &Request) -> Answer {
    use MessageType as M;
    let (kind, payload) = match request {
        Request::Read(path) => (M::Read, format!("{path}\0")),
        Request::Directory(path) => (M::Directory, format!("{path}\0")),
        Request::GetPerms(path) => (M::GetPerms, format!("{path}\0")),
        Request::Write(path, value) => (M::Write, format!("{path}\0{value}")),
        Request::Mkdir(path) => (M::Mkdir, format!("{path}\0")),
        Request::Rm(path) => (M::Rm, format!("{path}\0")),
        Request::SetPerms(path, list) => {
            let list: String =
                list.iter().map(|(letter, domid)| format!("{letter}{domid}\0")).collect();
            (M::SetPerms, format!("{path}\0{list}"))
        }
    };
    let reply = world.call_raw(&name(who), kind.code(), transaction, payload.as_bytes())?;
    let text = String::from_utf8(reply).expect("text");
    if kind != M::Directory {
        return Ok(text);
    }
    // The model lists by name, the store by age.
    let mut names: Vec<&str> = text.split_terminator('\0').collect();
    names.sort_unstable();
    Ok(names.iter().map(|name| format!("{name}\0")).collect())
}

fn name(who: Caller) -> String {
    format!("dom{who}").replace("dom1", "d1").replace("dom2", "d2")
}

/// The whole tree, asked for node by node.
fn dump(world: &mut World) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::new();
    let mut paths = vec!["/".to_owned()];
    while let Some(path) = paths.pop() {
        let value = ask(world, 0, 0, &Request::Read(path.clone())).expect("exists");
        let list = ask(world, 0, 0, &Request::GetPerms(path.clone())).expect("exists");
        let permissions = Permission::decode_list(list.as_bytes()).expect("permissions");
        let permissions = permissions.iter().map(|p| (letter(p.access), p.domid.0)).collect();
        let children = ask(world, 0, 0, &Request::Directory(path.clone())).expect("exists");
        let prefix = if path == "/" { "" } else { &path };
        paths.extend(children.split_terminator('\0').map(|name| format!("{prefix}/{name}")));
        nodes.insert(path, Node { value, permissions });
    }
    nodes
}

fn letter(access: Access) -> char {
    access.letter()
}

#[derive(Clone, Debug)]
enum Step {
    /// Outside or, if one is open, inside the transaction of this client.
    Ask {
        who: Caller,
        inside: bool,
        request: Request,
    },
    Start(Caller),
    End {
        who: Caller,
        commits: bool,
    },
    /// The guest dies, and another with its number comes.
    Kill(Caller),
}

struct Open {
    id: u32,
    /// What the transaction sees.
    view: Model,
    /// Requests with their answers, and whether they changed the view.
    done: Vec<(Request, Answer, bool)>,
    changes: bool,
    /// Somebody else changed something since its start.
    disturbed: bool,
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn check(steps: &[Step]) {
    let unlimited = Quota { nodes: 0, transaction_nodes: 0, ..Quota::default() };
    let mut world = World::new(unlimited);
    world.add_guest(1);
    world.add_guest(2);
    world.connect("watcher");
    watch_everything(&mut world, "watcher");
    watch_everything(&mut world, "d1");
    let mut model = Model::new();
    let mut open: BTreeMap<Caller, Open> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let before = model.clone();
        let mut named = Named::default();
        match step {
            Step::Ask { who, inside: true, request } if open.contains_key(who) => {
                let transaction = open.get_mut(who).expect("just seen");
                let changes = changes(&transaction.view, request);
                let expected = transaction.view.run(*who, request);
                let answer = ask(&mut world, *who, transaction.id, request);
                assert_eq!(answer, expected, "step {number}, inside: {step:?}");
                let changed = changes && answer.is_ok();
                transaction.changes |= changed;
                transaction.done.push((request.clone(), answer, changed));
            }
            Step::Ask { who, request, .. } => {
                let expected = model.run(*who, request);
                let answer = ask(&mut world, *who, 0, request);
                assert_eq!(answer, expected, "step {number}: {step:?}");
                if answer.is_ok() && changes(&before, request) {
                    named.must.extend(request.changed_path());
                }
            }
            Step::Start(who) => {
                if !open.contains_key(who) {
                    let reply = world
                        .call(&name(*who), MessageType::TransactionStart, 0, "|")
                        .expect("starts");
                    let id = String::from_utf8(reply).expect("text");
                    let id = id.trim_end_matches('\0').parse().expect("a number");
                    let view = model.clone();
                    open.insert(
                        *who,
                        Open { id, view, done: Vec::new(), changes: false, disturbed: false },
                    );
                }
            }
            Step::End { who, commits } => {
                let Some(transaction) = open.remove(who) else { continue };
                let verdict = if *commits { "T|" } else { "F|" };
                let reply =
                    world.call(&name(*who), MessageType::TransactionEnd, transaction.id, verdict);
                match reply {
                    Ok(_) if !commits => {}
                    // One that changes nothing is true at the moment of its start.
                    Ok(_) if !transaction.changes => {}
                    Ok(_) => {
                        for (request, answer, changed) in &transaction.done {
                            // What was refused is not remembered, as it may hang on hidden nodes.
                            if *answer == Err(Error::EACCES) {
                                continue;
                            }
                            let again = model.run(*who, request);
                            assert_eq!(again, *answer, "step {number}: {request:?} at the commit");
                            if *changed {
                                if let Request::Rm(path) = request {
                                    named.removed.insert(path.clone());
                                }
                                named.may.extend(request.changed_path());
                            }
                        }
                    }
                    Err(Error::EAGAIN) => {
                        assert!(transaction.disturbed, "step {number}: a conflict with nobody");
                    }
                    Err(error) => panic!("step {number}: {error}"),
                }
            }
            Step::Kill(who) => {
                model.kill(*who);
                open.remove(who);
                // A death is a change even if the tree shows nothing of it.
                open.values_mut().for_each(|transaction| transaction.disturbed = true);
                world.destroy_domain(*who);
                world.add_guest(*who);
                if *who == 1 {
                    watch_everything(&mut world, "d1");
                }
                named.may.extend(before.nodes.keys().cloned());
                named.by_death = true;
            }
        }
        check_events(&mut world, &before, &model, &named);
        if model != before {
            open.values_mut().for_each(|transaction| transaction.disturbed = true);
        }
        world.assert_counts();
        assert_eq!(dump(&mut world), model.nodes, "after step {number}: {step:?}");
    }
}

/// Whether a request of a transaction changes something, if it is answered well.
fn changes(view: &Model, request: &Request) -> bool {
    match request {
        Request::Read(_) | Request::Directory(_) | Request::GetPerms(_) => false,
        Request::Rm(path) => view.nodes.contains_key(path),
        Request::Mkdir(path) => !view.nodes.contains_key(path),
        Request::Write(..) | Request::SetPerms(..) => true,
    }
}

impl Request {
    /// The path that a watcher is told, if the request changes something.
    fn changed_path(&self) -> Option<String> {
        match self {
            Self::Read(_) | Self::Directory(_) | Self::GetPerms(_) => None,
            Self::Write(path, _) | Self::Mkdir(path) | Self::Rm(path) | Self::SetPerms(path, _) => {
                Some(path.clone())
            }
        }
    }
}

/// Paths of which a watcher of everything must, and which it may, be told after a step.
#[derive(Default)]
struct Named {
    must: BTreeSet<String>,
    may: BTreeSet<String>,
    /// Those of `may` that a transaction removed; something else may be there afterwards.
    removed: BTreeSet<String>,
    /// Rights that end with a domain are no news.
    by_death: bool,
}

fn watch_everything(world: &mut World, who: &str) {
    assert!(world.call(who, MessageType::Watch, 0, "/|all|").is_ok());
    world.take_events(who);
}

fn check_events(world: &mut World, before: &Model, after: &Model, named: &Named) {
    let mut told = |who| -> BTreeSet<String> {
        let events = world.take_events(who);
        events
            .iter()
            .map(|event| event.strip_suffix(":all").expect("the token").to_owned())
            .collect()
    };
    // The control domain learns of everything, of a commit as well: of what differs and was named, and
    // of each removal by its own name.
    let is_news = |path: &&String| {
        before.nodes.get(*path) != after.nodes.get(*path)
            && !named.removed.iter().any(|removed| is_below(path, removed))
    };
    let mut must = named.must.clone();
    must.extend(named.may.iter().filter(is_news).cloned());
    let is_gone =
        |path: &&String| before.nodes.contains_key(*path) && !after.nodes.contains_key(*path);
    must.extend(named.removed.iter().filter(is_gone).cloned());
    let events = told("watcher");
    if !named.by_death {
        assert!(events.is_superset(&must), "told {events:?}, must be told {must:?}");
    }
    let known: BTreeSet<String> = named.must.union(&named.may).cloned().collect();
    assert!(events.is_subset(&known), "told {events:?} of {known:?}");
    // A guest learns of nothing that it may not read, before or after, and of all that it may.
    let reads = |model: &Model, path: &str| {
        let node = model.nodes.get(path).is_some_and(|node| Model::allows(node, 1, Wanted::Read));
        let above = parent(path).and_then(|above| model.nodes.get(&above).cloned());
        node || above.is_some_and(|above| Model::allows(&above, 1, Wanted::Read))
    };
    let guest = told("d1");
    for path in &guest {
        assert!(reads(before, path) || reads(after, path), "domain 1 is told of {path}");
    }
    for path in &named.must {
        let removed = !after.nodes.contains_key(path);
        assert!(
            guest.contains(path) || !reads(if removed { before } else { after }, path),
            "domain 1 is not told of {path}"
        );
    }
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::vec(name, 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn permissions() -> impl Strategy<Value = Vec<(char, Caller)>> {
    let entry = (prop::sample::select(vec!['n', 'r', 'w', 'b']), 0u16..3);
    prop::collection::vec(entry, 1..4)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        3 => path().prop_map(Request::Read),
        2 => path().prop_map(Request::Directory),
        1 => path().prop_map(Request::GetPerms),
        5 => (path(), "[xy]?").prop_map(|(path, value)| Request::Write(path, value)),
        2 => path().prop_map(Request::Mkdir),
        2 => path().prop_map(Request::Rm),
        3 => (path(), permissions()).prop_map(|(path, list)| Request::SetPerms(path, list)),
    ]
}

fn step(with_deaths: bool) -> impl Strategy<Value = Step> {
    let kills = u32::from(with_deaths);
    prop_oneof![
        20 => (0u16..3, any::<bool>(), request())
            .prop_map(|(who, inside, request)| Step::Ask { who, inside, request }),
        3 => (0u16..3).prop_map(Step::Start),
        3 => (0u16..3, prop::bool::weighted(0.9))
            .prop_map(|(who, commits)| Step::End { who, commits }),
        kills => (1u16..3).prop_map(Step::Kill),
    ]
}

/// A longer run by hand: `PROPTEST_CASES=10000`.
#[expect(clippy::disallowed_methods, reason = "not the store's setting but the test's")]
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn random_scripts_end_as_the_model_does(steps in prop::collection::vec(step(false), 1..120)) {
        check(&steps);
    }

    #[test]
    fn deaths_take_along_what_the_model_says(steps in prop::collection::vec(step(true), 1..120)) {
        check(&steps);
    }
}
