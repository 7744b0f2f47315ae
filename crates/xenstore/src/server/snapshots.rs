//! Limits on how long a guest's transaction keeps replaced nodes alive.
//!
//! What a transaction itself notes is charged to its guest. The nodes of its snapshot are not, as they
//! are everybody's until they are replaced. So that they do not pile up, a guest's snapshot is
//! given up when it is so many replaced nodes, or bytes of copies, old: whatever guests keep alive together
//! is what was replaced since then, however many they are.

use alloc::vec::Vec;

use crate::acl::Subject;
use crate::journal::Record;
use crate::server::{ConnId, Server};
use crate::transaction::Transaction;

/// Nodes that may be replaced or removed while a guest has a transaction open.
const VERSIONS_MAX: u64 = 10_000;

/// Checked once in this many.
const VERSIONS_BETWEEN: u64 = 1_000;

/// What the store may copy because of snapshots while a guest has one. A write copies the way to its node
/// once for each snapshot, so few writes can keep much alive.
const COPIED_BYTES_MAX: usize = 8 << 20;
const COPIED_BYTES_BETWEEN: usize = 1 << 20;

impl Server {
    /// Lets transactions of guests go on with the present tree if theirs is too old. Their commit will
    /// be a conflict.
    pub(super) fn give_up_old_snapshots(&mut self) {
        let (versions, copied) = (self.store.versions(), self.store.tree().copied_bytes());
        let (versions_before, copied_before) = self.snapshots_looked_at;
        if versions < versions_before + VERSIONS_BETWEEN
            && copied < copied_before + COPIED_BYTES_BETWEEN
        {
            return;
        }
        self.snapshots_looked_at = (versions, copied);
        let least_copied = copied.saturating_sub(COPIED_BYTES_MAX);
        let oldest = versions.saturating_sub(VERSIONS_MAX);
        let mut old: Vec<(ConnId, u32)> = Vec::new();
        for (id, connection) in &self.connections {
            if connection.transactions.is_empty() || self.subject(*id) == Subject::Privileged {
                continue;
            }
            let open = connection.transactions.iter();
            let is_old = open.filter(|(_, transaction)| {
                transaction.began_at() < oldest || transaction.copied_before() < least_copied
            });
            old.extend(is_old.map(|(number, _)| (*id, *number)));
        }
        for (id, number) in old {
            let mut fresh = Transaction::new(&self.store);
            fresh.outdate();
            let connection = self.connections.get_mut(&id);
            let Some(open) = connection.and_then(|c| c.transactions.get_mut(&number)) else {
                continue;
            };
            if open.has_failed() {
                fresh.fail();
            }
            let given_up = core::mem::replace(&mut **open, fresh);
            self.discard([alloc::boxed::Box::new(given_up)]);
            self.counters.snapshots_given_up += 1;
            let (connection, transaction_id) = (id.number(), number);
            self.store.recorder.record(&Record::OldTransaction { connection, transaction_id });
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::sync::Arc;

    use xen::{DomId, EvtchnPort, Gfn};

    use super::*;
    use crate::path::Path;
    use crate::server::Host;
    use crate::wire::{self, MessageType as M};
    use crate::{Error, Quota};

    struct Machine;

    impl Host for Machine {
        fn connect_ring(
            &mut self,
            _: ConnId,
            _: DomId,
            _: Gfn,
            _: EvtchnPort,
        ) -> Result<(), Error> {
            Ok(())
        }

        fn reset_ring(&mut self, _: DomId, _: EvtchnPort) -> Result<(), Error> {
            Ok(())
        }

        fn disconnect_ring(&mut self, _: DomId) {}

        fn domain_exists(&mut self, _: DomId) -> bool {
            true
        }

        fn log(&mut self, _: &str) {}
    }

    fn call(server: &mut Server, id: ConnId, kind: M, transaction: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, kind.code(), 1, transaction, &[payload]);
        server.receive(&mut Machine, id, &bytes).expect("a valid message");
        let mut reply = Vec::new();
        while !server.output(id).is_empty() {
            let bytes = server.output(id).to_vec();
            server.consume(id, bytes.len());
            reply.extend(bytes);
        }
        reply.split_off(wire::HEADER_BYTES)
    }

    /// A store with a guest, whose transaction has seen `/a`, and a socket whose transaction has, too.
    fn begin() -> (Server, ConnId, ConnId) {
        let mut server = Server::new(Quota::default());
        let socket = server.connect_socket();
        call(&mut server, socket, M::Introduce, 0, b"1\x001\x001\0");
        call(&mut server, socket, M::Write, 0, b"/a\0old");
        call(&mut server, socket, M::SetPerms, 0, b"/a\0b0\0");
        let guest = server.domains.introduced(DomId(1)).expect("introduced above");
        for id in [guest, socket] {
            assert_eq!(call(&mut server, id, M::TransactionStart, 0, b"\0"), b"1\0");
            assert_eq!(call(&mut server, id, M::Read, 1, b"/a\0"), b"old");
        }
        (server, guest, socket)
    }

    fn replace(server: &mut Server, socket: ConnId, count: u64) {
        for i in 0..count {
            call(server, socket, M::Write, 0, format!("/b\0{i}").as_bytes());
        }
    }

    #[test]
    fn a_guest_keeps_no_node_alive_that_was_replaced_long_ago() {
        let (mut server, guest, socket) = begin();
        let path = Path::from_canonical("/a");
        let old = Arc::downgrade(server.store.tree().get(path).expect("written above"));
        call(&mut server, socket, M::TransactionEnd, 1, b"F\0");
        call(&mut server, socket, M::Write, 0, b"/a\0new");
        assert!(old.upgrade().is_some(), "the guest still sees it");
        assert_eq!(call(&mut server, guest, M::Read, 1, b"/a\0"), b"old");
        replace(&mut server, socket, VERSIONS_MAX + 2 * VERSIONS_BETWEEN);
        assert!(old.upgrade().is_none());
        assert_eq!(server.check(), Ok(()));
        assert_eq!(call(&mut server, guest, M::Read, 1, b"/a\0"), b"new");
        assert_eq!(call(&mut server, guest, M::Write, 1, b"/a\0mine"), b"OK\0");
        assert_eq!(call(&mut server, guest, M::TransactionEnd, 1, b"T\0"), b"EAGAIN\0");
        assert_eq!(call(&mut server, guest, M::Read, 0, b"/a\0"), b"new");
    }

    #[test]
    fn young_ones_and_those_of_the_control_domain_go_on() {
        let (mut server, guest, socket) = begin();
        replace(&mut server, socket, VERSIONS_MAX - VERSIONS_BETWEEN);
        assert_eq!(call(&mut server, guest, M::TransactionEnd, 1, b"T\0"), b"OK\0");
        replace(&mut server, socket, 3 * VERSIONS_BETWEEN);
        assert_eq!(call(&mut server, socket, M::Write, 1, b"/a\0mine"), b"OK\0");
        assert_eq!(call(&mut server, socket, M::TransactionEnd, 1, b"T\0"), b"OK\0");
    }

    #[test]
    fn a_restart_knows_that_it_was_given_up() {
        let (mut server, _, socket) = begin();
        server.start_recording();
        let mut journal = Vec::new();
        let mut checkpoint = server.checkpoint();
        while checkpoint.write(&mut journal, 4096) == crate::server::Progress::More {}
        replace(&mut server, socket, VERSIONS_MAX + 2 * VERSIONS_BETWEEN);
        journal.extend_from_slice(server.recorded());
        let mut replay = crate::server::Replay::new();
        assert_eq!(replay.apply(&journal), Ok(()));
        let mut server = replay.finish();
        let guest = server.domains.introduced(DomId(1)).expect("introduced above");
        assert_eq!(server.check(), Ok(()));
        assert_eq!(call(&mut server, guest, M::Write, 1, b"/a\0mine"), b"OK\0");
        assert_eq!(call(&mut server, guest, M::TransactionEnd, 1, b"T\0"), b"EAGAIN\0");
    }
}
