//! What has changed, in words: states of VMs from the daemon's list of their changes, and all classes of the live model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{
    DeviceObject, HostObject, NetworkObject, Object, ObjectChange, Objects, OperationObject,
    Request, SrRow, StateChange, StateChanges, VdiRow, VmObject,
};

use super::expect_reply;
use super::objects::read;
use super::vms::number;
use crate::columns::shown;
use crate::options::Options;
use crate::session::{Failure, Session};

/// The class that means all.
const ALL: &str = "all";

pub(crate) fn events(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if !options.operands.is_empty() {
        return of_objects(session, options);
    }
    let since = options.value("since").map(|it| number("events", "--since", it)).transpose()?;
    let (follow, json) = (options.has("follow"), options.has("json"));
    let mut request = Request::Events { since, wait: false };
    loop {
        let changes = expect_reply!(session.call(&request)?, Changes);
        let is_all = changes.changes.is_empty();
        print_changes(session, &changes, json);
        // Stop when the reader has closed our output.
        if session.try_flush().is_err() || (is_all && !follow) {
            return Ok(());
        }
        // Only wait once all known changes have been read.
        let wait = follow && is_all;
        request = Request::Events { since: Some(changes.revision), wait };
    }
}

/// A line for each change, or for each state if the given revision is too old.
fn print_changes(session: &mut Session, it: &StateChanges, json: bool) {
    if json {
        // One object per line, so that a stream can be parsed line by line.
        let line = serde_json::to_string(it).expect("api types always serialise");
        return session.print(&(line + "\n"));
    }
    if it.too_old {
        session.tell("older changes are no longer kept; these are the current states");
    }
    for status in it.snapshot.iter().flatten() {
        let domid = status.domid.map_or(String::new(), |domid| format!(" (domain {domid})"));
        let name = shown(&status.name);
        session.print(&format!("{} {name}{domid} is {}\n", status.revision, status.state));
    }
    if let Some(states) = &it.snapshot {
        session.print(&format!("{} {} VMs\n", it.revision, states.len()));
    }
    for change in &it.changes {
        session.print(&line(change));
    }
}

fn line(it: &StateChange) -> String {
    let domid = it.domid.map_or(String::new(), |domid| format!(" (domain {domid})"));
    let reason = if it.reason.is_empty() { String::new() } else { format!(": {}", it.reason) };
    let (vm, reason) = (shown(&it.vm), shown(&reason));
    let (clock, before, after) = (clock(it.unix_ms), &it.before, &it.after);
    format!("{} {clock} {vm}{domid} {before} -> {after}{reason}\n", it.revision)
}

/// The time of day, in UTC.
fn clock(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000 % 86_400, unix_ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Objects of these classes: their changes if they are followed, otherwise what they are, or have become since.
fn of_objects(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (follow, json) = (options.has("follow"), options.has("json"));
    let mut classes = options.operands.clone();
    let mut seen = Seen::default();
    if classes.iter().any(|class| class == ALL) {
        classes.clear();
    } else if classes.iter().any(|class| class == "device") && !classes.iter().any(|it| it == "vm")
    {
        // Devices are called by their VM's name.
        classes.push("vm".to_owned());
        seen.names_only = true;
    }
    // A follower wants to hear of what changes, and has to know first how things were.
    let mut is_silent = follow && options.value("since").is_none();
    read(session, options, &classes, |session, objects| {
        let told = seen.take(objects);
        if !is_silent {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
            told.iter().for_each(|it| session.print(&it.line(now, json)));
        }
        is_silent &= !objects.is_last;
    })
}

/// One thing to tell.
struct Told {
    class: &'static str,
    name: String,
    words: String,
    change: ObjectChange,
}

impl Told {
    fn line(&self, now_unix_ms: u64, json: bool) -> String {
        let Self { class, name, words, change } = self;
        if json {
            let mut value = serde_json::to_value(change).expect("api types always serialise");
            value["unix_ms"] = now_unix_ms.into();
            value["name"] = name.as_str().into();
            value["what"] = words.as_str().into();
            return format!("{value}\n");
        }
        format!("{} {class} {}: {}\n", clock(now_unix_ms), shown(name), shown(words))
    }
}

/// What an operator sees of an object: a word for each thing, of which the first needs none.
type Facts = Vec<(&'static str, String)>;
type Key = (&'static str, String);

/// Objects as they were told last, for what has changed of them.
#[derive(Default)]
struct Seen {
    all: BTreeMap<Key, (String, Facts)>,
    /// VMs' names by UUID.
    vms: BTreeMap<String, String>,
    /// VMs are only read for their names.
    names_only: bool,
    /// While all is told from the beginning: what has not been told again yet.
    untold: Option<BTreeSet<Key>>,
    /// All objects are here, so that another one is new.
    is_whole: bool,
}

impl Seen {
    /// What there is to tell of this: nothing of what looks as before.
    fn take(&mut self, objects: &Objects) -> Vec<Told> {
        if objects.starts_again {
            self.untold = Some(self.all.keys().cloned().collect());
        }
        let mut told: Vec<Told> =
            objects.changes.iter().filter_map(|change| self.take_one(change)).collect();
        if objects.is_last
            && let Some(untold) = self.untold.take()
        {
            self.is_whole = true;
            for (class, key) in untold {
                let Some(object) = nothing(class) else { continue };
                let change = ObjectChange { revision: 0, key, object };
                told.extend(self.take_one(&change));
            }
        }
        told
    }

    fn take_one(&mut self, change: &ObjectChange) -> Option<Told> {
        let (class, facts) = facts(&change.object);
        let key = (class, change.key.clone());
        if let Some(untold) = &mut self.untold {
            untold.remove(&key);
        }
        if let Object::Vm(Some(vm)) = &change.object {
            self.vms.insert(vm.uuid.clone(), vm.name.clone());
        }
        if self.names_only && class == "vm" {
            return None;
        }
        let before = self.all.remove(&key);
        let name = self.name_of(change).or_else(|| Some(before.as_ref()?.0.clone()));
        let name = name.unwrap_or_else(|| change.key.clone());
        let words = match (&before, &facts) {
            (_, None) => Some("is gone".to_owned()),
            (Some((_, before)), Some(after)) => difference(before, after),
            (None, Some(after)) => {
                let verb = if self.is_whole { "has come, " } else { "is " };
                Some(format!("{verb}{}", all_of(after)))
            }
        };
        if let Object::Vm(None) = &change.object {
            self.vms.remove(&change.key);
        }
        if let Some(facts) = facts {
            self.all.insert(key, (name.clone(), facts));
        }
        Some(Told { class, name, words: words?, change: change.clone() })
    }

    /// What people call it; `None` if only the object would have told.
    fn name_of(&self, change: &ObjectChange) -> Option<String> {
        match &change.object {
            Object::Vm(it) => it.as_ref().map(|it| it.name.clone()),
            Object::Device(it) => {
                let (uuid, device) = change.key.split_once('/')?;
                let vm = self.vms.get(uuid).map_or(uuid, String::as_str);
                let disk = it.as_ref()?.name.as_ref();
                Some(disk.map_or_else(|| format!("{vm}/{device}"), |disk| format!("{vm}/{disk}")))
            }
            Object::Operation(it) => {
                let row = &it.as_ref()?.row;
                Some(format!("{} {} {}", change.key, row.what, row.vm))
            }
            Object::Domain(it) => {
                let name = it.as_ref()?.name.as_ref()?;
                Some(format!("{name} ({})", change.key))
            }
            Object::Host(it) => it.as_ref().map(|it| it.name.clone()),
            Object::Sr(_) | Object::Vdi(_) | Object::Network(_) => Some(change.key.clone()),
        }
    }
}

fn difference(before: &Facts, after: &Facts) -> Option<String> {
    let old: BTreeMap<&str, &String> = before.iter().map(|(label, text)| (*label, text)).collect();
    let changed = after.iter().filter(|(label, text)| old.get(label) != Some(&text));
    let words = changed.map(|(label, text)| {
        let old = old.get(label).map_or("", |it| it.as_str());
        match (*label, old, text.as_str()) {
            ("", old, new) => format!("{old} -> {new}"),
            (label, "", new) => format!("{label} {new}"),
            (label, old, "") => format!("{label} {old} no more"),
            (label, old, new) => format!("{label} {old} -> {new}"),
        }
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn all_of(facts: &Facts) -> String {
    // Its name is told already.
    let told = facts.iter().filter(|(label, text)| *label != "name" && !text.is_empty());
    let words = told.map(
        |(label, text)| {
            if label.is_empty() { text.clone() } else { format!("{label} {text}") }
        },
    );
    words.collect::<Vec<_>>().join(", ")
}

/// An object of this class that is there no more.
fn nothing(class: &str) -> Option<Object> {
    Some(match class {
        "vm" => Object::Vm(None),
        "device" => Object::Device(None),
        "domain" => Object::Domain(None),
        "operation" => Object::Operation(None),
        "sr" => Object::Sr(None),
        "vdi" => Object::Vdi(None),
        "network" => Object::Network(None),
        "host" => Object::Host(None),
        _ => return None,
    })
}

fn facts(object: &Object) -> (&'static str, Option<Facts>) {
    match object {
        Object::Vm(it) => ("vm", it.as_deref().map(vm)),
        Object::Device(it) => ("device", it.as_ref().map(device)),
        Object::Domain(it) => {
            let facts = |_| vec![("", "not managed by Xylem".to_owned())];
            ("domain", it.as_ref().map(facts))
        }
        Object::Operation(it) => ("operation", it.as_deref().map(operation)),
        Object::Sr(it) => ("sr", it.as_ref().map(sr)),
        Object::Vdi(it) => ("vdi", it.as_ref().map(vdi)),
        Object::Network(it) => ("network", it.as_ref().map(network)),
        Object::Host(it) => ("host", it.as_deref().map(host)),
    }
}

fn vm(it: &VmObject) -> Facts {
    let size =
        |text: &dyn Fn(&api::VmSizes) -> String| it.config.as_ref().map_or(String::new(), text);
    vec![
        ("", it.state.clone()),
        ("name", it.name.clone()),
        ("domain", it.domid.map_or(String::new(), |domid| domid.to_string())),
        ("type", size(&|it| it.kind.clone())),
        ("memory", size(&|it| format!("{} MiB", it.memory_mib))),
        ("vCPUs", size(&|it| it.vcpus.to_string())),
        ("defined", (if it.defined { "yes" } else { "no" }).to_owned()),
        ("autostart", it.autostart.map_or(String::new(), |order| order.to_string())),
        ("because", it.reason.clone()),
    ]
}

fn device(it: &DeviceObject) -> Facts {
    let network = it.network.clone().unwrap_or_default();
    vec![("", it.state.clone()), ("network", network), ("as", it.config.clone())]
}

/// When it begins and how it ends; what it does meanwhile `xy objects -f` tells.
fn operation(it: &OperationObject) -> Facts {
    let row = &it.row;
    let how = match (&row.failure, row.ended_ns) {
        (Some(why), _) => format!("failed: {why}"),
        (None, Some(ended)) => {
            format!("done after {} ms", ended.saturating_sub(row.started_ns) / 1_000_000)
        }
        (None, None) => "in progress".to_owned(),
    };
    vec![("", how)]
}

fn sr(it: &SrRow) -> Facts {
    let state = it.problem.clone().unwrap_or_else(|| "in order".to_owned());
    vec![("", state), ("kind", it.kind.clone()), ("VDIs in use", it.in_use.to_string())]
}

fn vdi(it: &VdiRow) -> Facts {
    let users = it.users.iter().map(|user| format!("{} ({})", user.owner, user.access));
    let users: Vec<String> = users.collect();
    vec![
        ("bytes", it.bytes.to_string()),
        ("used", it.used_bytes.map_or(String::new(), |bytes| bytes.to_string())),
        ("snapshot of", it.snapshot_of.clone().unwrap_or_default()),
        ("users", users.join(" ")),
    ]
}

fn network(it: &NetworkObject) -> Facts {
    let state = match (it.exists, it.up) {
        (false, _) => "not there",
        (true, false) => "down",
        (true, true) => "up",
    };
    vec![
        ("", state.to_owned()),
        ("kind", it.kind.clone()),
        ("MTU", it.mtu.map_or(String::new(), |mtu| mtu.to_string())),
        ("ports", it.ports.join(" ")),
        ("interfaces of VMs", it.interfaces.to_string()),
    ]
}

fn host(it: &HostObject) -> Facts {
    let mib = |mib: u64| format!("{mib} MiB");
    vec![
        ("Xen", it.xen_version.clone()),
        ("Xylem", it.release.clone()),
        ("kernel", it.kernel.clone()),
        ("CPUs", it.cpus.to_string()),
        ("memory", mib(it.memory_mib)),
        ("free memory", mib(it.memory_free_mib)),
        ("memory of domain 0", mib(it.dom0_memory_mib)),
        ("vCPUs of domain 0", it.dom0_vcpus.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn change(key: &str, object: Object) -> ObjectChange {
        ObjectChange { revision: 1, key: key.to_owned(), object }
    }

    fn web(state: &str, domid: Option<u16>) -> ObjectChange {
        let (uuid, name) = ("u".to_owned(), "web".to_owned());
        let vm = VmObject { uuid, name, state: state.to_owned(), domid, ..VmObject::default() };
        change("u", Object::Vm(Some(Box::new(vm))))
    }

    fn disk(state: &str) -> ObjectChange {
        let (vm, name) = ("u".to_owned(), Some("xvda".to_owned()));
        let state = state.to_owned();
        let object = DeviceObject { vm, name, state, kind: "vbd".to_owned(), ..Default::default() };
        change("u/vbd/51712", Object::Device(Some(object)))
    }

    fn bridge(ports: &[&str], interfaces: u64) -> ObjectChange {
        let (name, kind) = ("xenbr0".to_owned(), "bridge".to_owned());
        let ports = ports.iter().map(|it| (*it).to_owned()).collect();
        let object = NetworkObject {
            name,
            kind,
            exists: true,
            up: true,
            mtu: Some(1500),
            ports,
            interfaces,
        };
        change("xenbr0", Object::Network(Some(object)))
    }

    fn page(starts_again: bool, is_last: bool, changes: Vec<ObjectChange>) -> Objects {
        Objects { cursor: "c".to_owned(), is_last, starts_again, changes }
    }

    fn check(pages: &[Objects], expected: &Expect) {
        let mut seen = Seen::default();
        let mut lines = String::new();
        for page in pages {
            for told in seen.take(page) {
                lines += &told.line(0, false);
            }
            lines += "-\n";
        }
        expected.assert_eq(&lines);
    }

    #[test]
    fn what_has_changed_is_told_in_words_and_what_looks_as_before_is_not() {
        check(
            &[
                page(true, false, vec![web("down", None), disk("detached")]),
                page(false, true, vec![bridge(&["eth0"], 0)]),
                page(false, true, vec![web("starting", None), disk("attaching")]),
                page(false, true, vec![web("running", Some(3)), disk("attached"), bridge(&[], 1)]),
                page(false, true, vec![web("running", Some(3))]),
                // The daemon was started anew.
                page(true, true, vec![web("stopping", Some(3)), bridge(&[], 1)]),
                page(false, true, vec![change("u", Object::Vm(None)), web("down", None)]),
            ],
            &expect![[r#"
                00:00:00.000Z vm web: is down, defined no
                00:00:00.000Z device web/xvda: is detached
                -
                00:00:00.000Z network xenbr0: is up, kind bridge, MTU 1500, ports eth0, interfaces of VMs 0
                -
                00:00:00.000Z vm web: down -> starting
                00:00:00.000Z device web/xvda: detached -> attaching
                -
                00:00:00.000Z vm web: starting -> running, domain 3
                00:00:00.000Z device web/xvda: attaching -> attached
                00:00:00.000Z network xenbr0: ports eth0 no more, interfaces of VMs 0 -> 1
                -
                -
                00:00:00.000Z vm web: running -> stopping
                00:00:00.000Z device web/xvda: is gone
                -
                00:00:00.000Z vm web: is gone
                00:00:00.000Z vm web: has come, down, defined no
                -
            "#]],
        );
    }

    #[test]
    fn a_line_of_json_has_the_object_and_the_words() {
        let mut seen = Seen::default();
        let told = seen.take(&page(true, true, vec![bridge(&[], 2)]));
        let line = told[0].line(7, true);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["unix_ms"], 7);
        assert_eq!((&value["class"], &value["name"]), (&"network".into(), &"xenbr0".into()));
        assert_eq!(value["object"]["interfaces"], 2);
        assert!(value["what"].as_str().unwrap().contains("2"), "{line}");
    }
}
