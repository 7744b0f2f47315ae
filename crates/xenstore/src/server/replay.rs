//! Replay of records into a store.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::{DomId, EvtchnPort, Gfn};

use crate::Error;
use crate::acl::{Acl, Being, Life};
use crate::journal::{NodePath, Record, decode_acl};
use crate::quota::Quota;
use crate::ring::RingIndexes;
use crate::server::connection::{Connection, Output, Peer};
use crate::server::domains::Domain;
use crate::server::receiving::INPUT_BYTES_MAX;
use crate::server::write_rate::Credit;
use crate::server::{ConnId, Host, Request, Server};
use crate::transaction::Transaction;
use crate::watch::WatchRequest;
use crate::wire::{self, Effect, MessageType, PAYLOAD_BYTES_MAX};

/// The records are invalid from this byte on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the record at byte {0} of the journal cannot be read")]
pub struct Corrupt(pub usize);

/// A store being restored, record by record.
#[derive(Debug)]
pub struct Replay {
    server: Server,
    node: NodePath,
    read: usize,
    /// The request in a transaction whose answer comes next.
    unanswered: Option<(u64, u32)>,
}

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}

/// Requests in a transaction that change what the transaction is: those about nodes, its start and end.
pub(super) fn is_replayed(kind: MessageType) -> bool {
    kind.traits().effect != Effect::Elsewhere
}

impl Replay {
    #[must_use]
    pub fn new() -> Self {
        let mut server = Server::without_nodes(Quota::default());
        server.is_replaying = true;
        Self { server, node: NodePath::default(), read: 0, unanswered: None }
    }

    /// Takes records: a checkpoint, then what happened since, cut between records if at all.
    ///
    /// # Errors
    /// [`Corrupt`]; then the store is unusable.
    pub fn apply(&mut self, mut records: &[u8]) -> Result<(), Corrupt> {
        while !records.is_empty() {
            let before = records.len();
            let applied = Record::decode(&mut records).and_then(|record| self.apply_one(record));
            applied.ok_or(Corrupt(self.read))?;
            self.read += before - records.len();
        }
        Ok(())
    }

    /// The store as it was, without sockets. Its rings are to be
    /// [resumed](Server::resume_ring).
    #[must_use]
    pub fn finish(mut self) -> Server {
        self.server.is_replaying = false;
        // One whose ring was not recorded any more is to be introduced again.
        let connections = &self.server.connections;
        for (_, domain) in self.server.domains.iter_mut() {
            domain.connection = domain.connection.filter(|id| connections.contains_key(id));
        }
        self.server
    }

    fn acl(&self, bytes: &[u8]) -> Option<Arc<Acl>> {
        let life = |domid| match domid {
            DomId::DOM0 | DomId::ANY => Some(Life(0)),
            _ => self.server.domains.get(domid).map(|domain| domain.life),
        };
        decode_acl(bytes, life)
    }

    fn being(&self, domid: Option<DomId>) -> Option<Option<Being>> {
        let Some(domid) = domid else { return Some(None) };
        let life = self.server.domains.get(domid)?.life;
        Some(Some(Being { domid, life }))
    }

    fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.server.connections.get_mut(&ConnId(number))
    }

    /// `None` if the record does not match the state.
    fn apply_one(&mut self, record: Record<'_>) -> Option<()> {
        check_sizes(&record)?;
        match record {
            // They are no nodes of the tree, and whoever wrote this took them for some.
            Record::Write { path, .. }
            | Record::Ensure { path, .. }
            | Record::SetAcl { path, .. }
            | Record::Remove { path }
                if path.is_special() =>
            {
                return None;
            }
            Record::SpecialAcl { path, .. } if !path.is_special() => return None,
            Record::Write { path, creator, value } => {
                let creator = self.being(creator)?;
                self.server.store.write(path, creator, value);
            }
            Record::Ensure { path, creator } => {
                let creator = self.being(creator)?;
                self.server.store.ensure(path, creator);
            }
            Record::SetAcl { path, acl } => {
                let acl = self.acl(acl)?;
                self.server.store.set_acl(path, &acl)?;
            }
            Record::Remove { path } => {
                drop(self.server.store.remove(path)?);
                self.server.store.clear_up_removed();
            }
            Record::ForgetDomain { domid } => self.server.store.forget_domain(domid),
            Record::Node { up, name, acl, value } => self.add_node(up, name, acl, value)?,
            Record::Generation { generation } => {
                check_count(generation)?;
                self.server.store.skip_generations(generation);
            }
            Record::SpecialAcl { path, acl } => {
                let acl = self.acl(acl)?;
                self.server.special.insert(path.to_owned_path(), acl);
            }
            Record::ForgetSpecialRights { domid } => self.server.forget_special_rights(domid),
            Record::DomainEnd { domid } => {
                let domain = self.server.domains.end(domid)?;
                if let Some(connection) = domain.connection {
                    self.server.disconnect(connection);
                    self.server.write_rate.leave(domain.credit);
                }
            }
            Record::Quota { quota } => self.server.domains.quota = quota,
            Record::Numbers { connection, life } => {
                check_connection(connection)?;
                check_count(life)?;
                self.server.last_connection = connection;
                self.server.domains.set_last_life(life);
            }
            Record::Domain { .. } => self.set_domain(&record)?,
            other => self.apply_to_ring(other)?,
        }
        Some(())
    }

    fn add_node(&mut self, up: u64, name: &str, acl: &[u8], value: &[u8]) -> Option<()> {
        let acl = if acl.is_empty() { None } else { Some(self.acl(acl)?) };
        let path = self.node.step(up, name)?;
        self.server.store.write(path, None, value);
        if let Some(acl) = acl {
            self.server.store.set_acl(path, &acl)?;
        }
        Some(())
    }

    fn set_domain(&mut self, record: &Record<'_>) -> Option<()> {
        let &Record::Domain {
            domid,
            life,
            unique_id,
            connection,
            shutdown,
            target,
            target_life,
            features,
            quota,
        } = record
        else {
            return None;
        };
        check_connection(connection)?;
        check_count(life)?;
        let known = self.server.domains.get(domid);
        // The end of another one, or of its ring, would have been recorded.
        let is_same = |known: &Domain| {
            let kept = known.connection.is_none_or(|id| id == ConnId(connection));
            known.life == Life(life) && kept
        };
        let is_anothers = || self.server.connections.contains_key(&ConnId(connection));
        if !domid.is_ordinary()
            || known.is_some_and(|known| !is_same(known))
            || (known.is_none_or(|known| known.connection.is_none()) && is_anothers())
        {
            return None;
        }
        let before = known.filter(|before| before.connection.is_some());
        let credit = match before {
            Some(before) => before.credit,
            None if connection != 0 && domid != DomId::DOM0 => {
                self.server.write_rate.join(self.server.now)
            }
            None => Credit::default(),
        };
        let domain = Domain {
            unique_id,
            connection: (connection != 0).then_some(ConnId(connection)),
            shutdown,
            target: target.map(|domid| Being { domid, life: Life(target_life) }),
            features,
            credit,
            ..Domain::new(Life(life), quota)
        };
        self.server.domains.restore(domid, domain);
        Some(())
    }

    fn apply_to_ring(&mut self, record: Record<'_>) -> Option<()> {
        match record {
            ring @ Record::Ring { .. } => self.apply_ring(&ring)?,
            Record::RingIndexes { connection, requests_taken, replies_put } => {
                let seat = &mut self.connection(connection)?.seat;
                seat.indexes = Some(RingIndexes { requests_taken, replies_put });
                seat.must_reset = false;
            }
            Record::RingReset { connection: number, port } => {
                self.connection(number)?.seat.port = EvtchnPort(port);
                self.server.reset(ConnId(number));
            }
            Record::RingBroken { connection } => {
                let connection = self.connection(connection)?;
                connection.broken = true;
                connection.output.clear();
            }
            Record::Taken { connection, requests_taken, replies_put } => {
                let connection = self.connection(connection)?;
                connection.seat.indexes.as_mut()?.requests_taken = requests_taken;
                connection.consume_to(replies_put)?;
            }
            Record::Input { connection, bytes } => {
                self.connection(connection)?.input = bytes.to_vec();
            }
            Record::MoreInput { connection, bytes } => {
                let input = &mut self.connection(connection)?.input;
                input.extend_from_slice(bytes);
                if input.len() > INPUT_BYTES_MAX {
                    return None;
                }
            }
            Record::Reply { connection, code, request_id, transaction_id, payload } => {
                self.answer(connection, code, transaction_id, payload)?;
                self.connection(connection)?.output.reply(|out| {
                    wire::encode(out, code, request_id, transaction_id, &[payload]);
                });
            }
            Record::Event { connection, path, token } => {
                let mut bytes = Vec::new();
                let parts = [path.as_bytes(), b"\0", token, b"\0"];
                wire::encode(&mut bytes, MessageType::WatchEvent.code(), 0, 0, &parts);
                self.connection(connection)?.output.message(bytes);
            }
            Record::Output { connection, bytes, reply_ends } => {
                let is_within = |end: &u64| usize::try_from(*end).is_ok_and(|e| e <= bytes.len());
                if !reply_ends.iter().all(is_within) || !reply_ends.is_sorted() {
                    return None;
                }
                self.connection(connection)?.output = Output::of_unsent(bytes, reply_ends);
            }
            other => self.apply_to_client(&other)?,
        }
        Some(())
    }

    fn apply_ring(&mut self, record: &Record<'_>) -> Option<()> {
        let Record::Ring {
            connection: number,
            domid,
            gfn,
            port,
            broken,
            must_reset,
            last_transaction,
        } = *record
        else {
            return None;
        };
        let being = self.being(Some(domid))??;
        let is_its = self.server.domains.introduced(domid) == Some(ConnId(number));
        if !is_its || self.server.connections.contains_key(&ConnId(number)) {
            return None;
        }
        let home = super::domain_requests::home(domid);
        let mut connection = Connection::new(Peer::Ring(being), home);
        connection.seat.gfn = Gfn(gfn);
        connection.seat.port = EvtchnPort(port);
        connection.seat.must_reset = must_reset;
        connection.broken = broken;
        connection.last_transaction = last_transaction;
        self.server.connections.insert(ConnId(number), connection);
        self.server.last_connection = self.server.last_connection.max(number);
        Some(())
    }

    fn apply_to_client(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::Watch { connection: number, path, token, depth, home_bytes } => {
                let id = ConnId(number);
                let home_bytes = usize::try_from(home_bytes).ok()?;
                let home = &self.connection(number)?.home;
                // As the client spelled it: from the root, or from its home.
                let inner = path.as_str().strip_prefix(home.as_str());
                let is_at_home = inner.is_some_and(|inner| inner.starts_with('/'));
                if home_bytes != 0 && (home_bytes != home.len() + 1 || !is_at_home) {
                    return None;
                }
                let is_privileged = self.connection(number)?.is_privileged();
                let request = WatchRequest { path, token, depth, home_bytes, is_privileged };
                let watch = self.server.watches.add(id, request);
                let watches = &mut self.connection(number)?.watches;
                if watches.contains(path, token) {
                    return None;
                }
                watches.insert(path, token, watch.id);
            }
            Record::Unwatch { connection, path, token } => {
                let watch = self.connection(connection)?.watches.remove(path, token)?;
                self.server.watches.remove(watch);
            }
            Record::ResetWatches { connection } => {
                self.connection(connection)?;
                self.server.reset_watches(ConnId(connection));
            }
            Record::Request { connection, code, transaction_id, payload } => {
                self.connection(connection)?;
                self.unanswered = Some((connection, transaction_id));
                self.execute_again(ConnId(connection), code, transaction_id, payload)?;
            }
            Record::OldTransaction { transaction_id: 0, .. } => return None,
            Record::OldTransaction { connection, transaction_id } => {
                let mut transaction = Transaction::new(&self.server.store);
                transaction.outdate();
                let transactions = &mut self.connection(connection)?.transactions;
                if transactions.insert(transaction_id, Box::new(transaction)).is_none() {
                    self.server.transactions_open += 1;
                }
            }
            // All others were handled on the way here.
            _ => return None,
        }
        Some(())
    }

    /// What hit a limit then fails its transaction, whatever room there would be now.
    fn answer(&mut self, number: u64, code: u32, transaction: u32, payload: &[u8]) -> Option<()> {
        let is_of_transaction = self.unanswered.take() == Some((number, transaction));
        let is_refusal =
            code == MessageType::Error.code() && matches!(payload, b"ENOSPC\0" | b"ENOMEM\0");
        if is_of_transaction
            && is_refusal
            && let Some(transaction) = self.connection(number)?.transactions.get_mut(&transaction)
        {
            transaction.fail();
        }
        Some(())
    }

    /// What a request did inside a transaction. Its answer, and what a commit did to the tree, have
    /// records of their own.
    fn execute_again(
        &mut self,
        id: ConnId,
        code: u32,
        transaction: u32,
        payload: &[u8],
    ) -> Option<()> {
        let kind = MessageType::from_code(code).filter(|kind| is_replayed(*kind))?;
        if kind == MessageType::TransactionEnd {
            if matches!(payload, b"T\0" | b"F\0") {
                let transactions = &mut self.server.connections.get_mut(&id)?.transactions;
                if transactions.remove(&transaction).is_some() {
                    self.server.transactions_open -= 1;
                }
            }
            return Some(());
        }
        let request = Request { id, kind, transaction };
        let _as_before = self.server.execute(&mut Nowhere, request, payload, &mut Vec::new());
        Some(())
    }
}

/// What is longer than any message never came to be.
fn check_sizes(record: &Record<'_>) -> Option<()> {
    let fits = match *record {
        Record::Write { value, .. } | Record::Node { value, .. } => {
            value.len() <= PAYLOAD_BYTES_MAX
        }
        Record::Input { bytes, .. } => bytes.len() <= INPUT_BYTES_MAX,
        Record::Reply { payload, .. } | Record::Request { payload, .. } => {
            payload.len() <= PAYLOAD_BYTES_MAX
        }
        Record::Event { path, token, .. } => {
            let is_text = !path.contains('\0') && !token.contains(&0);
            is_text && path.len() + token.len() + 2 <= PAYLOAD_BYTES_MAX
        }
        Record::Watch { token, .. } => !token.contains(&0) && token.len() <= PAYLOAD_BYTES_MAX,
        _ => true,
    };
    fits.then_some(())
}

/// Connections are numbered with 32 bits.
fn check_connection(number: u64) -> Option<()> {
    u32::try_from(number).ok().map(drop)
}

/// Counters continue from here; one about to overflow is invalid.
pub(super) const COUNT_MAX: u64 = (1 << 62) - 1;

fn check_count(count: u64) -> Option<()> {
    (count <= COUNT_MAX).then_some(())
}

/// A machine without domains: those that mattered have records.
struct Nowhere;

impl Host for Nowhere {
    fn connect_ring(&mut self, _: ConnId, _: DomId, _: Gfn, _: EvtchnPort) -> Result<(), Error> {
        Err(Error::EINVAL)
    }

    fn reset_ring(&mut self, _: DomId, _: EvtchnPort) -> Result<(), Error> {
        Err(Error::EINVAL)
    }

    fn disconnect_ring(&mut self, _: DomId) {}

    fn domain_exists(&mut self, _: DomId) -> bool {
        false
    }

    fn log(&mut self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::Acl;
    use crate::acl::Entry;
    use crate::journal::encode_acl;
    use crate::path::Path;
    use crate::permission::{Access, Permission};

    const GUEST: DomId = DomId(1);

    fn list(domid: DomId) -> Vec<u8> {
        let permission = Permission::new(Access::None, domid);
        encode_acl(&Acl::new(alloc::vec![Entry { permission, life: Some(Life(0)) }]))
    }

    fn domain(domid: DomId, life: u64, connection: u64) -> Record<'static> {
        Record::Domain {
            domid,
            life,
            unique_id: None,
            connection,
            shutdown: false,
            target: None,
            target_life: 0,
            features: 0,
            quota: Quota::default(),
        }
    }

    fn ring(domid: DomId, connection: u64) -> Record<'static> {
        let (gfn, port, last_transaction) = (1, 1, 0);
        let (broken, must_reset) = (false, false);
        Record::Ring { connection, domid, gfn, port, broken, must_reset, last_transaction }
    }

    /// A store with one guest, and then these.
    fn read(records: &[Record<'_>]) -> Result<Server, Corrupt> {
        let mut bytes = Vec::new();
        let begin = [domain(GUEST, 5, 3), ring(GUEST, 3), domain(DomId(2), 6, 0)];
        begin.iter().chain(records).for_each(|record| record.encode(&mut bytes));
        let mut replay = Replay::new();
        replay.apply(&bytes)?;
        let server = replay.finish();
        assert_eq!(server.check(), Ok(()));
        Ok(server)
    }

    #[test]
    fn special_nodes_are_not_in_the_tree_and_others_are_not_special() {
        let (dom0, special) = (list(DomId::DOM0), Path::from_canonical("@releaseDomain/1"));
        for record in [
            Record::Write { path: special, creator: None, value: b"" },
            Record::Ensure { path: special, creator: None },
            Record::SetAcl { path: special, acl: &dom0 },
            Record::Remove { path: special },
            Record::SpecialAcl { path: Path::from_canonical("/a"), acl: &dom0 },
        ] {
            assert!(read(core::slice::from_ref(&record)).is_err(), "{record:?}");
        }
        assert!(read(&[Record::SpecialAcl { path: special, acl: &dom0 }]).is_ok());
    }

    #[test]
    fn a_domain_has_one_life_and_one_ring_until_its_end_is_recorded() {
        for record in [
            domain(GUEST, 6, 3),
            domain(GUEST, 5, 4),
            domain(DomId(2), 6, 3),
            domain(DomId(9), 9, 3),
            domain(DomId(0x7ff5), 9, 0),
            domain(DomId(9), 9, 1 << 32),
            domain(DomId(9), 1 << 62, 0),
            ring(GUEST, 3),
            ring(GUEST, 4),
            ring(DomId(2), 4),
            ring(DomId(9), 4),
        ] {
            assert!(read(core::slice::from_ref(&record)).is_err(), "{record:?}");
        }
        let again = [
            Record::DomainEnd { domid: GUEST },
            domain(GUEST, 6, 4),
            ring(GUEST, 4),
            domain(GUEST, 6, 4),
        ];
        assert_eq!(read(&again).map(|server| server.known_rings().len()), Ok(1));
        // Killed between the two records.
        let server = read(&[domain(DomId(9), 9, 4)]).expect("it is one record short");
        assert_eq!(server.domains.introduced(DomId(9)), None);
    }

    #[test]
    fn what_fits_into_no_message_or_number_never_was() {
        let long = [b'v'; PAYLOAD_BYTES_MAX + 1];
        let path = Path::from_canonical("/a");
        let watch =
            |token| Record::Watch { connection: 3, path, token, depth: None, home_bytes: 0 };
        for record in [
            Record::Write { path, creator: None, value: &long },
            Record::Node { up: 0, name: "a", acl: b"", value: &long },
            Record::Input { connection: 3, bytes: &[0; INPUT_BYTES_MAX + 1] },
            watch(b"a\0b"),
            watch(&long),
            Record::Event { connection: 3, path: "/a", token: b"a\0b" },
            Record::Event { connection: 3, path: "/a", token: &long },
            Record::OldTransaction { connection: 3, transaction_id: 0 },
            Record::Generation { generation: 1 << 62 },
            Record::Numbers { connection: 1 << 32, life: 7 },
            Record::Numbers { connection: 3, life: 1 << 62 },
        ] {
            assert!(read(core::slice::from_ref(&record)).is_err(), "{record:?}");
        }
        let path = Path::from_canonical("/local/domain/2/a");
        let elsewhere =
            Record::Watch { connection: 3, path, token: b"", depth: None, home_bytes: 16 };
        assert!(read(&[elsewhere]).is_err());
        assert!(read(&[watch(b"token"), Record::Numbers { connection: 3, life: 7 }]).is_ok());
    }
}
