//! Store access of the work: batches of requests, with as few round trips as possible.

mod libxl;
mod scripts;

use std::collections::BTreeMap;

use migrate::Rings;
use xen::{DomId, DomainRef, EvtchnPort, Uuid, XenbusState};
use xenstore::client::{
    Batch, Client, ClientError, Nodes as _, PreparedCommit, Replies, Transport,
};
use xenstore::{Error, Permission};

use crate::ConsoleKind;
use crate::layout::{
    BACKENDS, DeviceKind, DeviceRef, Ends, Nodes, PENDING, RECEIVED, RECORDS, Removal, cap_path,
    incoming_path, leaving_path, made_disks_path, received_path, record_path, saving_path,
    suspend_port_path, vm_link, vm_path,
};
use crate::moves::Leaving;
use crate::record::FORMAT_NODE;
use crate::saved::Saving;
use crate::work::{DeviceReading, Failure, Quota, Record};
pub(crate) use libxl::{adopt, children, devices_left, disown, foreign};
pub(crate) use scripts::{connected_disk, mark_script, script_error, script_mark};

fn batch_of(nodes: &Nodes) -> Batch {
    let mut batch = Batch::new();
    put_all(&mut batch, nodes);
    batch
}

pub(crate) fn put_all(batch: &mut Batch, nodes: &Nodes) {
    for node in &nodes.0 {
        batch.write(&node.path, &node.value);
        if let Some(permissions) = &node.permissions {
            batch.set_perms(&node.path, permissions);
        }
    }
}

/// Writes nodes that no one reads yet.
pub(crate) fn write_plainly<T: Transport>(
    store: &mut Client<T>,
    nodes: &Nodes,
) -> Result<(), ClientError> {
    store.run(&batch_of(nodes))?.all_ok()
}

/// Writes nodes atomically.
pub(crate) fn write_as_one<T: Transport>(
    store: &mut Client<T>,
    nodes: &Nodes,
) -> Result<(), ClientError> {
    store.commit(&batch_of(nodes)).map(drop)
}

pub(crate) fn write_one<T: Transport>(
    store: &mut Client<T>,
    path: &str,
    value: &str,
) -> Result<(), ClientError> {
    store.write(path, value.as_bytes())
}

/// The host's end of a vif is on its bridge, which may have another MTU than the guest was told.
pub(crate) fn connect_vif<T: Transport>(
    store: &mut Client<T>,
    frontend: &str,
    backend: &str,
    told: Option<u32>,
    found: Option<u32>,
) -> Result<(), ClientError> {
    let other = found.filter(|_| found != told.or(Some(crate::layout::VIF_MTU)));
    // The frontend waits for its backend, which waits for the node below.
    if let Some(bytes) = other {
        write_one(store, &format!("{frontend}/mtu"), &bytes.to_string())?;
    }
    write_one(store, &format!("{backend}/hotplug-status"), "connected")
}

/// Commits changes guarded by the domain's link to its VM.
pub(crate) fn commit_for<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    batch: &Batch,
) -> Result<(), Failure> {
    store.commit(batch).map(drop).map_err(|error| not_committed(domid, error))
}

/// What a change means that is guarded by the domain's link to its VM and was refused.
fn not_committed(domid: DomId, error: ClientError) -> Failure {
    match error.refusal() {
        Some(Error::ENOENT | Error::EAGAIN) => taken_down(domid),
        _ => error.into(),
    }
}

/// Removes a node with all below it, if it is there.
pub(crate) fn remove_tree<T: Transport>(
    store: &mut Client<T>,
    path: &str,
) -> Result<(), ClientError> {
    match store.rm(path) {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

pub(crate) fn taken_down(domid: DomId) -> Failure {
    Failure(format!("domain {domid} is being taken down"))
}

/// An empty batch that takes effect only if the domain's nodes still belong to the VM.
pub(crate) fn guarded(domid: DomId, uuid: Uuid) -> Batch {
    let mut batch = Batch::new();
    batch.guard_value(&vm_link(domid), vm_path(uuid));
    batch
}

/// Writes what a change of a domain consists of, if its nodes still belong to the VM. Domain 0 is nobody's.
pub(crate) fn write_tuned<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    vm: Option<Uuid>,
    nodes: &Nodes,
) -> Result<(), Failure> {
    let mut batch = vm.map_or_else(Batch::new, |uuid| guarded(domid, uuid));
    put_all(&mut batch, nodes);
    commit_for(store, domid, &batch)
}

/// Requests a shutdown from the guest. The node must exist already and belong to the VM: written
/// after a teardown it would recreate nodes of a dead domain, or stop another one.
pub(crate) fn request_shutdown<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    request: &str,
) -> Result<(), Failure> {
    commit_for(store, domid, &shutdown_request(domid, uuid, request))
}

fn shutdown_request(domid: DomId, uuid: Uuid, request: &str) -> Batch {
    let path = format!("/local/domain/{domid}/control/shutdown");
    let mut batch = guarded(domid, uuid);
    batch.guard_present(&path);
    batch.write(&path, request);
    batch
}

/// Does all of a request to suspend but its last message to the store.
pub(crate) fn prepare_suspend_request<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<PreparedCommit, Failure> {
    let prepared = store.prepare_commit(shutdown_request(domid, uuid, "suspend"));
    prepared.map_err(|error| not_committed(domid, error))
}

/// The guest is asked.
pub(crate) fn request_prepared<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    prepared: PreparedCommit,
) -> Result<(), Failure> {
    store.commit_prepared(prepared).map_err(|error| not_committed(domid, error))
}

/// The ports of a guest's suspend.
pub(crate) struct SuspendNodes {
    /// The guest's own, by which it wants to be asked.
    pub(crate) guest_port: Option<EvtchnPort>,
    /// Ours in the domain.
    pub(crate) own_port: Option<EvtchnPort>,
}

pub(crate) fn suspend_nodes<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<SuspendNodes, Failure> {
    let mut batch = Batch::new();
    let link = batch.read(&vm_link(domid));
    let guest_port = batch.read(&format!("/local/domain/{domid}/device/suspend/event-channel"));
    let own_port = batch.read(&suspend_port_path(uuid));
    let replies = store.run(&batch)?;
    check_link(&replies, link, domid, uuid)?;
    let port = |index| -> Result<_, ClientError> {
        let number = replies.get_optional(index)?.map(text).and_then(|it| it.parse().ok());
        Ok(number.filter(|number| *number > 0).map(EvtchnPort))
    };
    Ok(SuspendNodes { guest_port: port(guest_port)?, own_port: port(own_port)? })
}

/// The frames of a domain's rings, as written when it was made.
pub(crate) fn ring_frames<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<Rings, Failure> {
    let mut batch = Batch::new();
    let link = batch.read(&vm_link(domid));
    let [of_store, of_console] = ["store", "console"].map(|ring| {
        let path = format!("/local/domain/{domid}/{ring}/ring-ref");
        (batch.read(&path), path)
    });
    let replies = store.run(&batch)?;
    check_link(&replies, link, domid, uuid)?;
    let frame = |(index, path): (usize, String)| {
        let frame = replies.get_optional(index)?.map(text).and_then(|it| it.parse().ok());
        frame.ok_or_else(|| Failure(format!("{path}: is no frame of a ring")))
    };
    Ok(Rings { store: frame(of_store)?, console: frame(of_console)? })
}

/// Keeps the port for later suspends of the same domain.
pub(crate) fn keep_suspend_port<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    port: EvtchnPort,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    batch.write(&suspend_port_path(uuid), port.to_string());
    commit_for(store, domid, &batch)
}

/// Records how far a save is, for a later daemon.
pub(crate) fn keep_saving<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    saving: &Saving,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    batch.write(&saving_path(uuid), saving.encode());
    commit_for(store, domid, &batch)
}

/// The save has ended, and the VM goes on.
pub(crate) fn forget_saving<T: Transport>(
    store: &mut Client<T>,
    uuid: Uuid,
) -> Result<(), ClientError> {
    remove_tree(store, &saving_path(uuid))
}

/// Records how far a move is, for a later daemon.
pub(crate) fn keep_leaving<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    leaving: &Leaving,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    batch.write(&leaving_path(uuid), leaving.encode());
    commit_for(store, domid, &batch)
}

/// The guest is about to be slowed down; this is the cap that it had.
pub(crate) fn keep_cap<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    cap: u16,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    batch.write(&cap_path(uuid), cap.to_string());
    commit_for(store, domid, &batch)
}

/// The cap that a guest had before it was slowed down, if it was.
pub(crate) fn cap<T: Transport>(
    store: &mut Client<T>,
    uuid: Uuid,
) -> Result<Option<u16>, ClientError> {
    match store.read(&cap_path(uuid)) {
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The VM does not leave.
pub(crate) fn forget_leaving<T: Transport>(
    store: &mut Client<T>,
    uuid: Uuid,
) -> Result<(), ClientError> {
    remove_tree(store, &leaving_path(uuid))
}

/// Nobody will ask for a transfer any more.
pub(crate) fn forget_received<T: Transport>(
    store: &mut Client<T>,
    transfer: Uuid,
) -> Result<(), ClientError> {
    remove_tree(store, &received_path(transfer))
}

/// The transfers that came, with their VMs.
pub(crate) fn received<T: Transport>(store: &mut Client<T>) -> Result<Vec<(Uuid, Uuid)>, Failure> {
    let names = match store.directory(RECEIVED) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let transfers: Vec<Uuid> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut look = Batch::new();
    for transfer in &transfers {
        look.read(&received_path(*transfer));
    }
    let replies = store.run(&look)?;
    let mut received = Vec::with_capacity(transfers.len());
    for (index, transfer) in transfers.into_iter().enumerate() {
        let uuid = replies.get_optional(index)?.map(text).and_then(|it| it.parse().ok());
        received.extend(uuid.map(|uuid| (transfer, uuid)));
    }
    Ok(received)
}

/// Takes a suspend request back. False if the guest has acknowledged it or is gone.
pub(crate) fn cancel_suspend<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<bool, ClientError> {
    let path = format!("/local/domain/{domid}/control/shutdown");
    let mut batch = guarded(domid, uuid);
    batch.guard_value(&path, "suspend");
    batch.write(&path, "");
    match store.commit(&batch) {
        Err(error) if matches!(error.refusal(), Some(Error::ENOENT | Error::EAGAIN)) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Retries when nodes changed between read and commit.
const ATTEMPTS_MAX: u32 = 100;

/// Retries after a conflict.
fn steadily<T: Transport>(
    store: &mut Client<T>,
    mut attempt: impl FnMut(&mut Client<T>) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let mut attempts = 1;
    loop {
        match attempt(store) {
            Err(ClientError::Refused {
                error: Error::EAGAIN | Error::ENOENT | Error::EEXIST,
                ..
            }) if attempts < ATTEMPTS_MAX => attempts += 1,
            other => return other,
        }
    }
}

/// Makes the backends close without asking the guest, by removing the frontend. Returns the devices
/// that no backend had probed yet. Most likely none will: Linux's xenbus ignores a device whose
/// state is not Initialising.
pub(crate) fn close_devices<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    devices: &[Ends],
) -> Result<Vec<DeviceRef>, ClientError> {
    let mut unseen = Vec::new();
    steadily(store, |store| {
        unseen.clear();
        let mut look = Batch::new();
        let link = look.read(&vm_link(domid));
        let mut states = Vec::with_capacity(devices.len());
        for device in devices {
            states.push(look.read(&format!("{}/state", device.backend_path())));
        }
        let seen = store.run(&look)?;
        let mut close = Batch::new();
        match seen.get_optional(link)? {
            Some(vm) if vm == vm_path(uuid).as_bytes() => close.guard_value(&vm_link(domid), vm),
            // The devices belong to another VM, or to none.
            _ => return Ok(()),
        };
        for (device, index) in devices.iter().zip(states) {
            // Writing its state must not create a backend that never existed.
            let Some(state) = seen.get_optional(index)? else { continue };
            let backend = device.backend_path();
            guard_backend(&mut close, *device, state);
            close.write(&format!("{backend}/online"), "0");
            // Linux's backends do not write the state they are in again: one that has closed with
            // its guest would leave our Closing in place.
            let state = XenbusState::decode(state);
            if state != XenbusState::Closed {
                close.write(&format!("{backend}/state"), XenbusState::Closing.as_str());
            }
            if state == XenbusState::Initialising {
                unseen.push(device.device);
            }
            close.rm(&device.frontend_path());
        }
        if close.len() == 1 { Ok(()) } else { store.commit(&close).map(drop) }
    })?;
    Ok(unseen)
}

/// Lets a change of a backend's state take effect only if the backend is there. In domain 0 nothing may have changed meanwhile; a
/// driver domain could hold us up for ever by that.
fn guard_backend(batch: &mut Batch, device: Ends, state: &[u8]) {
    let node = format!("{}/state", device.backend_path());
    match device.is_in_domain_0() {
        true => batch.guard_value(&node, state),
        false => batch.guard_present(&node),
    };
}

/// Raises a domain's quota for its devices, if the store has quotas per domain.
pub(crate) fn raise_quota<T: Transport>(
    store: &mut Client<T>,
    quota: Quota,
) -> Result<(), ClientError> {
    for (name, value) in [("nodes", quota.nodes), ("watches", quota.watches)] {
        match store.set_quota(quota.domid, name, value) {
            Ok(()) | Err(ClientError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the nodes of a hotplugged device, if the domain's nodes still belong to the VM.
pub(crate) fn add_device<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    nodes: &Nodes,
) -> Result<(), Failure> {
    let mut batch = guarded(domid, uuid);
    put_all(&mut batch, nodes);
    commit_for(store, domid, &batch)
}

/// Sets the backend to Closing, which then asks the guest.
pub(crate) fn ask_to_close<T: Transport>(
    store: &mut Client<T>,
    uuid: Uuid,
    ends: Ends,
) -> Result<(), ClientError> {
    let Ends { device, frontend: domid, .. } = ends;
    let backend = ends.backend_path();
    let node = format!("{backend}/state");
    let words = device.frontend_error(domid);
    steadily(store, |store| {
        let mut look = Batch::new();
        let link = look.read(&vm_link(domid));
        let (state, said) = (look.read(&node), look.read(&words));
        let seen = store.run(&look)?;
        let mut ask = Batch::new();
        match (seen.get_optional(link)?, seen.get_optional(state)?) {
            (Some(vm), Some(state)) if vm == vm_path(uuid).as_bytes() => {
                ask.guard_value(&vm_link(domid), vm);
                guard_backend(&mut ask, ends, state);
                ask.write(&format!("{backend}/online"), "0");
                if XenbusState::decode(state) != XenbusState::Closed {
                    ask.write(&node, XenbusState::Closing.as_str());
                }
            }
            // It does not exist.
            _ => return Ok(()),
        }
        if seen.get_optional(said)?.is_some() {
            // The guest's error of an earlier attempt.
            ask.rm(&words);
        }
        store.commit(&ask).map(drop)
    })
}

/// Removes paths atomically, and then empty directories above them. Paths with the domid are only
/// removed if the nodes there belong to the VM.
pub(crate) fn remove<T: Transport>(
    store: &mut Client<T>,
    domid: Option<DomId>,
    uuid: Uuid,
    removals: &[Removal],
) -> Result<(), ClientError> {
    let mut directories = BTreeMap::new();
    steadily(store, |store| {
        directories.clear();
        let mut look = Batch::new();
        let paths: Vec<usize> = removals.iter().map(|it| look.read(&it.path)).collect();
        let link = domid.map(|domid| (vm_link(domid), look.read(&vm_link(domid))));
        let seen = store.run(&look)?;
        let mut batch = Batch::new();
        let mut is_ours = false;
        if let Some((link, index)) = link
            && let Some(vm) = seen.get_optional(index)?
            && vm == vm_path(uuid).as_bytes()
        {
            is_ours = true;
            batch.guard_value(&link, vm);
        }
        let mut removed = false;
        for (removal, index) in removals.iter().zip(paths) {
            if removal.of_domain && !is_ours {
                continue;
            }
            note_above(&mut directories, &removal.path, removal.levels_above);
            if seen.get_optional(index)?.is_some() {
                batch.rm(&removal.path);
                removed = true;
            }
        }
        if removed { store.commit(&batch).map(drop) } else { Ok(()) }
    })?;
    while !directories.is_empty() {
        // Usually they are not empty, which a single read of all of them shows.
        let mut look = Batch::new();
        for path in directories.keys() {
            look.directory(path);
        }
        let replies = store.run(&look)?;
        let mut above = BTreeMap::new();
        for (index, (path, levels)) in directories.into_iter().enumerate() {
            let is_gone = match replies.get_optional(index) {
                Ok(None) => true,
                Ok(Some(children)) => children.is_empty() && remove_if_empty(store, &path)?,
                Err(error) if error.refusal() == Some(Error::E2BIG) => false,
                Err(error) => return Err(error),
            };
            if is_gone {
                note_above(&mut above, &path, levels);
            }
        }
        directories = above;
    }
    Ok(())
}

/// Releases the domain: its domid may be reused.
pub(crate) fn release<T: Transport>(
    store: &mut Client<T>,
    domain: DomainRef,
) -> Result<(), ClientError> {
    match store.release_domains(&[domain.into()]) {
        // Another store, which does not keep domids.
        Err(ClientError::Refused { .. }) => Ok(()),
        other => other,
    }
}

/// Records the directory of `path`, if this many levels above it are to be checked.
fn note_above(directories: &mut BTreeMap<String, usize>, path: &str, levels: usize) {
    let Some(levels_left) = levels.checked_sub(1) else { return };
    if let Some((above, _)) = path.rsplit_once('/') {
        let levels = directories.entry(above.to_owned()).or_default();
        *levels = levels_left.max(*levels);
    }
}

/// Removes the directory if it is empty; returns whether it is gone. Atomic, so that no new entry
/// is lost.
fn remove_if_empty<T: Transport>(store: &mut Client<T>, path: &str) -> Result<bool, ClientError> {
    store.transaction(|transaction| match transaction.directory(path) {
        Ok(children) if children.is_empty() => {
            transaction.rm(path)?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The names of domains that have one.
pub(crate) fn names<T: Transport>(
    store: &mut Client<T>,
    domids: &[DomId],
) -> Result<BTreeMap<DomId, String>, Failure> {
    if domids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut batch = Batch::new();
    for domid in domids {
        batch.read(&format!("/local/domain/{domid}/name"));
    }
    let replies = store.run(&batch)?;
    let mut names = BTreeMap::new();
    for (index, domid) in domids.iter().enumerate() {
        if let Some(name) = replies.get_optional(index)? {
            names.insert(*domid, text(name));
        }
    }
    Ok(names)
}

/// A start time in libxl's format.
pub(crate) fn start_time(unix_ms: u64) -> String {
    format!("{}.{:02}", unix_ms / 1000, unix_ms % 1000 / 10)
}

/// Start times of domains, in seconds since 1970, as far as recorded.
pub(crate) fn start_times<T: Transport>(
    store: &mut Client<T>,
    domains: &[(DomId, Uuid)],
) -> Result<BTreeMap<DomId, u64>, Failure> {
    let mut batch = Batch::new();
    for (_, uuid) in domains {
        batch.read(&crate::layout::start_time_path(*uuid));
    }
    let replies = store.run(&batch)?;
    let mut times = BTreeMap::new();
    for (index, (domid, _)) in domains.iter().enumerate() {
        let Some(value) = replies.get_optional(index)? else { continue };
        // libxl writes hundredths after a point.
        let seconds = text(value).split('.').next().and_then(|seconds| seconds.parse().ok());
        times.extend(seconds.map(|seconds| (*domid, seconds)));
    }
    Ok(times)
}

/// All records, in a few round trips.
pub(crate) fn records<T: Transport>(store: &mut Client<T>) -> Result<Vec<Record>, Failure> {
    let names = match store.directory(RECORDS) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    // Only UUIDs are ours.
    let uuids: Vec<Uuid> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut look = Batch::new();
    for uuid in &uuids {
        let path = record_path(*uuid);
        look.read(&format!("{path}/domid"));
        look.read(&format!("{path}/complete"));
        look.read(&format!("{path}/{PENDING}"));
        look.read(&format!("{path}/{FORMAT_NODE}"));
        look.read(&suspend_port_path(*uuid));
        look.read(&saving_path(*uuid));
        look.read(&leaving_path(*uuid));
        look.read(&incoming_path(*uuid));
        look.read(&made_disks_path(*uuid));
        look.read(&format!("{path}/{BACKENDS}"));
    }
    let replies = store.run(&look)?;
    let mut records = Vec::with_capacity(uuids.len());
    for (index, uuid) in uuids.into_iter().enumerate() {
        let value = |at: usize| -> Result<Option<String>, ClientError> {
            Ok(replies.get_optional(10 * index + at)?.map(text))
        };
        let domid = value(0)?.and_then(|text| text.parse().ok()).map(DomId);
        let (complete, pending) = (value(1)?, value(2)?.unwrap_or_default());
        let (format, has_suspend_port) = (value(3)?, value(4)?.is_some());
        records.push(Record {
            uuid,
            format,
            domid,
            complete,
            pending,
            has_suspend_port,
            saving: value(5)?,
            leaving: value(6)?,
            incoming: value(7)?,
            made_disks: value(8)?,
            backends: value(9)?,
            ..Record::default()
        });
    }
    let path = |record: &Record, node: &str| format!("{}/{node}", record_path(record.uuid));
    let mut texts: Vec<(String, &mut String)> = Vec::with_capacity(3 * records.len());
    for record in &mut records {
        let paths = ["config", "full", crate::layout::NEXT].map(|node| path(record, node));
        let [config, full, next] = paths;
        texts.push((config, &mut record.config_text));
        texts.push((full, &mut record.full_text));
        texts.push((next, &mut record.next_text));
    }
    read_texts(store, texts)?;
    Ok(records)
}

/// Reads the next chunk of each text until all have ended.
fn read_texts<T: Transport>(
    store: &mut Client<T>,
    mut open: Vec<(String, &mut String)>,
) -> Result<(), ClientError> {
    for chunk in 0.. {
        if open.is_empty() {
            break;
        }
        let mut look = Batch::new();
        for (path, _) in &open {
            look.read(&format!("{path}-{chunk}"));
        }
        let replies = store.run(&look)?;
        let mut more = Vec::new();
        for (index, (path, so_far)) in open.into_iter().enumerate() {
            if let Some(bytes) = replies.get_optional(index)? {
                so_far.push_str(&text(bytes));
                more.push((path, so_far));
            }
        }
        open = more;
    }
    Ok(())
}

/// Fails if the domain's nodes do not belong to the VM.
pub(super) fn check_link(
    replies: &Replies,
    index: usize,
    domid: DomId,
    uuid: Uuid,
) -> Result<(), Failure> {
    match replies.get_optional(index)? {
        Some(vm) if vm == vm_path(uuid).as_bytes() => Ok(()),
        _ => Err(taken_down(domid)),
    }
}

/// A console's pty, created by its server. As for xenconsole, a serial port that there is not means the PV console.
pub(crate) fn console_tty<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    kind: ConsoleKind,
    number: u32,
) -> Result<Option<String>, Failure> {
    let domain = format!("/local/domain/{domid}");
    let mut batch = Batch::new();
    let link = batch.read(&vm_link(domid));
    let pv = batch.read(&match number {
        0 => format!("{domain}/console/tty"),
        number => format!("{domain}/device/console/{number}/tty"),
    });
    let serial = batch.read(&format!("{domain}/serial/{number}/tty"));
    let replies = store.run(&batch)?;
    check_link(&replies, link, domid, uuid)?;
    let tty = match (kind, replies.get_optional(serial)?) {
        (ConsoleKind::Serial, Some(tty)) => Some(tty),
        (ConsoleKind::Serial, None) | (ConsoleKind::Pv, _) => replies.get_optional(pv)?,
    };
    Ok(tty.map(text).filter(|tty| !tty.is_empty()))
}

/// The nodes of a device that lists show.
struct ReadingKeys {
    event_channel: &'static str,
    ring_ref: &'static str,
    rx_ring_ref: Option<&'static str>,
    mac: Option<&'static str>,
    tty: Option<&'static str>,
    /// In the backend's directory.
    connection: Option<&'static str>,
    name: Option<&'static str>,
}

impl ReadingKeys {
    const NONE: Self = Self {
        event_channel: "event-channel",
        ring_ref: "ring-ref",
        rx_ring_ref: None,
        mac: None,
        tty: None,
        connection: None,
        name: None,
    };

    fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Vbd | DeviceKind::NinePfs | DeviceKind::Pci => Self::NONE,
            DeviceKind::Vif => Self {
                ring_ref: "tx-ring-ref",
                rx_ring_ref: Some("rx-ring-ref"),
                mac: Some("mac"),
                ..Self::NONE
            },
            DeviceKind::Console => Self {
                event_channel: "port",
                tty: Some("tty"),
                connection: Some("connection"),
                name: Some("name"),
                ..Self::NONE
            },
            DeviceKind::Vfb => Self { ring_ref: "page-ref", ..Self::NONE },
            DeviceKind::Vkbd => {
                Self { ring_ref: "page-gref", name: Some("unique-id"), ..Self::NONE }
            }
        }
    }

    /// The same order as in [`device_readings`].
    fn paths(&self, device: Ends) -> [Option<String>; READING_NODES] {
        let (frontend, backend) = (device.frontend_path(), device.backend_path());
        let front = |key: &str| format!("{frontend}/{key}");
        let back = |key: &str| format!("{backend}/{key}");
        [
            Some(front("state")),
            Some(front(self.event_channel)),
            // Interfaces may have one channel for each direction.
            self.mac.map(|_| front("event-channel-tx")),
            Some(front(self.ring_ref)),
            self.rx_ring_ref.map(front),
            self.mac.map(front),
            self.tty.map(front),
            self.connection.map(back),
            self.name.map(back),
        ]
    }
}

const READING_NODES: usize = 9;

/// Whether the guest could not have written a node of its folder, which it may remove and make anew.
fn is_domain_0s(replies: &Replies, permissions: Option<usize>) -> bool {
    let list = permissions.and_then(|place| replies.get(place).ok());
    let list = list.and_then(|list| Permission::decode_list(list).ok());
    list.is_some_and(|list| list.first().is_some_and(|first| first.domid == DomId::DOM0))
}

/// Data of `block-list` and the other lists of devices, in one round trip.
pub(crate) fn device_readings<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
    devices: &[Ends],
) -> Result<Vec<DeviceReading>, Failure> {
    let mut batch = Batch::new();
    let places: Vec<[Option<usize>; READING_NODES]> = devices
        .iter()
        .map(|device| {
            let paths = ReadingKeys::of(device.device.kind).paths(*device);
            paths.map(|path| path.map(|path| batch.read(&path)))
        })
        .collect();
    let owners: Vec<Option<usize>> = devices
        .iter()
        .map(|device| {
            let tty = ReadingKeys::of(device.device.kind).tty?;
            Some(batch.get_perms(&format!("{}/{tty}", device.frontend_path())))
        })
        .collect();
    let link = batch.read(&vm_link(domid));
    let replies = store.run(&batch)?;
    check_link(&replies, link, domid, uuid)?;
    let mut readings = Vec::new();
    for ((device, places), owner) in devices.iter().zip(places).zip(owners) {
        let mut values: [Option<String>; READING_NODES] = Default::default();
        for (value, place) in values.iter_mut().zip(places) {
            let Some(place) = place else { continue };
            *value = match replies.get(place) {
                Ok(bytes) => Some(text(bytes)),
                Err(error) if error.refusal() == Some(Error::ENOENT) => None,
                Err(error) => return Err(error.into()),
            };
        }
        let number = |value: Option<String>| -> Option<i64> { value?.parse().ok() };
        let [
            state,
            event_channel,
            event_channel_tx,
            ring_ref,
            rx_ring_ref,
            mac,
            tty,
            connection,
            name,
        ] = values;
        readings.push(DeviceReading {
            device: device.device,
            backend: device.backend_path(),
            backend_domid: device.backend,
            state: state.and_then(|text| text.parse().ok()).unwrap_or(0),
            mac,
            event_channel: number(event_channel).or_else(|| number(event_channel_tx)),
            ring_ref: number(ring_ref),
            rx_ring_ref: number(rx_ring_ref),
            connection,
            tty: tty.filter(|_| is_domain_0s(&replies, owner)),
            name,
        });
    }
    Ok(readings)
}
