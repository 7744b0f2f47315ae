//! The live model, printed.

use std::collections::BTreeMap;

use api::{
    DeviceObject, HostObject, NetworkObject, Object, ObjectChange, Objects, OperationObject,
    Request, VdiRow, VmObject,
};

use super::expect_reply;
use crate::columns::shown;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn objects(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let json = options.has("json");
    let mut names = Names::default();
    read(session, options, &options.operands, |session, objects| {
        if json {
            // One object per line, so that a stream can be parsed line by line.
            let line = serde_json::to_string(objects).expect("api types always serialise");
            session.print(&(line + "\n"));
        } else {
            print_objects(session, objects, &mut names);
        }
    })
}

/// Reads objects of these classes and, if they are followed, what changes of them, as the options say. Each answer is told.
pub(super) fn read(
    session: &mut Session,
    options: &Options,
    classes: &[String],
    mut tell: impl FnMut(&mut Session, &Objects),
) -> Result<(), Failure> {
    let (follow, json) = (options.has("follow"), options.has("json"));
    let mut cursor = options.value("since").map(ToOwned::to_owned);
    let mut wait = false;
    loop {
        let classes = classes.to_vec();
        let request = Request::Objects { cursor: cursor.take(), classes, wait };
        let objects = expect_reply!(session.call(&request)?, Objects);
        tell(session, &objects);
        let is_last = objects.is_last;
        // Stop when the reader has closed our output.
        if session.try_flush().is_err() || (is_last && !follow) {
            if !json {
                session.tell(&format!("go on from here with --since {}", objects.cursor));
            }
            return Ok(());
        }
        cursor = Some(objects.cursor);
        wait = is_last;
    }
}

/// VMs' names by UUID, for lines about their devices.
type Names = BTreeMap<String, String>;

fn print_objects(session: &mut Session, objects: &Objects, names: &mut Names) {
    if objects.starts_again {
        names.clear();
    }
    for change in &objects.changes {
        if let Object::Vm(Some(vm)) = &change.object {
            names.insert(vm.uuid.clone(), vm.name.clone());
        }
        session.print(&line(change, names));
    }
}

fn line(change: &ObjectChange, names: &Names) -> String {
    let ObjectChange { revision, key, object } = change;
    let key = match key.split_once('/') {
        Some((uuid, device)) => {
            format!("{}/{device}", names.get(uuid).map_or(uuid, String::as_str))
        }
        None => names.get(key).unwrap_or(key).clone(),
    };
    let (class, text) = match object {
        Object::Vm(it) => ("vm", it.as_deref().map(vm)),
        Object::Device(it) => ("device", it.as_ref().map(device)),
        Object::Domain(it) => (
            "domain",
            it.as_ref()
                .map(|it| format!("{}, not managed", it.name.as_deref().unwrap_or("(null)"))),
        ),
        Object::Sr(it) => (
            "sr",
            it.as_ref().map(|it| match &it.problem {
                Some(problem) => problem.clone(),
                None => format!("{}, {} VDIs in use", it.kind, it.in_use),
            }),
        ),
        Object::Vdi(it) => ("vdi", it.as_ref().map(vdi)),
        Object::Operation(it) => ("operation", it.as_deref().map(operation)),
        Object::Network(it) => ("network", it.as_ref().map(network)),
        Object::Host(it) => ("host", it.as_deref().map(host)),
    };
    let text = text.unwrap_or_else(|| "is gone".to_owned());
    format!("{revision} {class} {}: {}\n", shown(&key), shown(&text))
}

fn vm(it: &VmObject) -> String {
    let mut parts = vec![it.state.clone()];
    parts.extend(it.domid.map(|domid| format!("domain {domid}")));
    parts.extend(
        it.config.as_ref().map(|sizes| {
            format!("{}, {} MiB, {} vCPUs", sizes.kind, sizes.memory_mib, sizes.vcpus)
        }),
    );
    parts.extend(it.operations.iter().map(|id| format!("operation {id}")));
    parts.extend((!it.reason.is_empty()).then(|| it.reason.clone()));
    parts.join(", ")
}

fn device(it: &DeviceObject) -> String {
    let name = it.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
    let operation = it.operation.map(|id| format!(" by operation {id}")).unwrap_or_default();
    let config = if it.config.is_empty() { String::new() } else { format!(", {}", it.config) };
    format!("{name}{}{operation}{config}", it.state)
}

fn vdi(it: &VdiRow) -> String {
    let mut parts = vec![format!("{} bytes", it.bytes)];
    parts.extend(it.used_bytes.map(|bytes| format!("{bytes} used")));
    parts.extend(it.snapshot_of.as_ref().map(|of| format!("snapshot of {of}")));
    parts.extend(it.users.iter().map(|user| format!("{} by {}", user.access, user.owner)));
    parts.join(", ")
}

fn network(it: &NetworkObject) -> String {
    let state = match (it.exists, it.up) {
        (false, _) => "is not there",
        (true, false) => "down",
        (true, true) => "up",
    };
    let mut parts = vec![it.kind.clone(), state.to_owned()];
    parts.extend(it.mtu.map(|mtu| format!("MTU {mtu}")));
    parts.extend((!it.ports.is_empty()).then(|| format!("ports {}", it.ports.join(" "))));
    parts.push(format!("{} interfaces of VMs", it.interfaces));
    parts.join(", ")
}

fn host(it: &HostObject) -> String {
    format!(
        "Xen {}, {} CPUs, {} MiB, of which {} MiB are free",
        it.xen_version, it.cpus, it.memory_mib, it.memory_free_mib
    )
}

fn operation(it: &OperationObject) -> String {
    let row = &it.row;
    let how = match (&row.failure, row.ended_ns) {
        (Some(why), _) => format!("failed: {why}"),
        (None, Some(ended)) => {
            format!("done after {} ms", ended.saturating_sub(row.started_ns) / 1_000_000)
        }
        (None, None) if it.waits_for.is_empty() => "in progress".to_owned(),
        (None, None) => it.waits_for.join(", "),
    };
    format!("{} {}, {} of {} steps, {how}", row.what, row.vm, row.done, row.steps)
}
