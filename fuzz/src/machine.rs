//! A machine with domains that are there as long as the target says.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, EvtchnPort, Gfn, ShutdownReason, Uuid};
use xenstore::Error;
use xenstore::server::{ConnId, DomainState, Endpoints, Host, Progress, Replay, Restore, Server};
use xenstore::state::{Form, Frames, Record};
use xenstore::{Quota, wire};

/// The domains, and which rings the store has connected.
#[derive(Debug, Default)]
pub struct Machine {
    pub domains: BTreeMap<DomId, u64>,
    pub rings: BTreeMap<DomId, ConnId>,
    /// Rings that are to be emptied.
    pub to_reset: Vec<ConnId>,
}

impl Machine {
    /// As Xen lists them; those that shut down are `stopped`.
    #[must_use]
    pub fn listing(&self, stopped: bool) -> Vec<DomainState> {
        let state = |(domid, unique_id): (&DomId, &u64)| DomainState {
            domid: *domid,
            shutdown: stopped,
            reason: stopped.then_some(ShutdownReason::Crash),
            dying: false,
            unique_id: Some(*unique_id),
            handle: Uuid([0; 16]),
        };
        self.domains.iter().map(state).collect()
    }
}

impl Host for Machine {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        _: Gfn,
        _: EvtchnPort,
    ) -> Result<(), Error> {
        if !self.domains.contains_key(&domid) {
            return Err(Error::EINVAL);
        }
        let known = self.rings.insert(domid, connection);
        assert_eq!(known, None, "the ring of domain {domid} is connected twice");
        Ok(())
    }

    fn reset_ring(&mut self, domid: DomId, _: EvtchnPort) -> Result<(), Error> {
        self.to_reset.push(*self.rings.get(&domid).ok_or(Error::ENOENT)?);
        Ok(())
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        self.rings.remove(&domid);
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        self.domains.contains_key(&domid)
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        self.domains.get(&domid).copied()
    }

    fn log(&mut self, _: &str) {}
}

/// Every counter and index equals a recount.
pub fn check(server: &Server) {
    assert_eq!(server.check(), Ok(()));
}

/// What a store says of itself leads to it again: the stream for a successor, the checkpoint for a
/// restart, and the streams for daemons of other kinds can be written.
pub fn check_saved(server: &mut Server) {
    let mut stream = Vec::new();
    server.save(Form::Own, &Endpoints::default()).fill_all(&mut stream);
    let mut restore = Restore::new(Quota::default());
    restore.feed(&stream).expect("our own stream");
    let restored = restore.finish(std::time::Duration::ZERO).expect("our own stream");
    check(&restored.server);
    assert_eq!(restored.server.open_transactions(), server.open_transactions());
    assert_eq!(restored.server.watch_count(), server.watch_count());
    assert_eq!(nodes(&restored.server), nodes(server));
    for form in [Form::Version1, Form::Version2] {
        server.save(form, &Endpoints::default()).fill_all(&mut Vec::new());
    }
    while !server.is_cleared_up() {
        server.clear_up(1000);
    }
    let mut records = Vec::new();
    let mut checkpoint = server.checkpoint();
    while checkpoint.write(&mut records, 4096) == Progress::More {}
    let again = replay(&records);
    assert_eq!(nodes(&again), nodes(server));
}

/// The store that our own records describe.
#[must_use]
pub fn replay(records: &[u8]) -> Server {
    let mut replay = Replay::new();
    replay.apply(records).expect("our own records");
    let server = replay.finish();
    check(&server);
    server
}

/// The node's path, its value, and whether a domain that lives owns it.
pub type Listed = (Vec<u8>, Vec<u8>, bool);

/// Every node, as the stream for other daemons has them.
#[must_use]
pub fn nodes(server: &Server) -> Vec<Listed> {
    let mut stream = Vec::new();
    server.save(Form::Version2, &Endpoints::default()).fill_all(&mut stream);
    let mut frames = Frames::new();
    frames.push(&stream);
    let mut nodes = Vec::new();
    while let Some((kind, body)) = frames.next_record().expect("our own stream") {
        if let Record::Node(node) = Record::decode(kind, body).expect("our own record") {
            let owner = node.permissions.iter().next().expect("a node has an owner");
            let (permission, is_stale) = owner;
            let is_guest = permission.domid != DomId::DOM0 && permission.domid != DomId::ANY;
            nodes.push((node.path.to_vec(), node.value.to_vec(), is_guest && !is_stale));
        }
    }
    nodes
}

/// All domains die: nothing is left of what they owned, and no ring is served.
pub fn kill_everybody(server: &mut Server) {
    let mut machine = Machine::default();
    for known in server.known_rings() {
        machine.rings.insert(known.domid, known.connection);
    }
    let mut owned = BTreeSet::new();
    for (path, _, is_guests) in nodes(server) {
        if is_guests && path.starts_with(b"/") && path != b"/" {
            owned.insert(path);
        }
    }
    server.handle_domain_states(&mut machine, &[]);
    check(server);
    for (path, _, _) in nodes(server) {
        let text = String::from_utf8_lossy(&path);
        assert!(!owned.contains(&path), "{text} outlives its owner");
    }
    while !server.is_cleared_up() {
        server.clear_up(1000);
    }
    check(server);
    let left = server.known_rings().into_iter().filter(|ring| ring.domid != DomId::DOM0).count();
    assert_eq!(left, 0, "rings of dead domains");
}

/// A request as bytes.
#[must_use]
pub fn message(code: u32, transaction: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, code, 1, transaction, &[payload]);
    bytes
}
