//! From records back to a store.

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
use crate::server::write_rate::Credit;
use crate::server::{ConnId, Host, Request, Server};
use crate::transaction::Transaction;
use crate::watch::WatchRequest;
use crate::wire::{self, MessageType};

/// The records make no sense from this byte on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the record at byte {0} of the journal cannot be read")]
pub struct Corrupt(pub usize);

/// A store that is being brought back, record by record.
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
    use MessageType as M;
    matches!(
        kind,
        M::Read
            | M::Directory
            | M::DirectoryPart
            | M::GetPerms
            | M::Write
            | M::Mkdir
            | M::Rm
            | M::SetPerms
            | M::TransactionStart
            | M::TransactionEnd
    )
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
    /// [`Corrupt`]; the store is of no use then.
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

    /// `None` if the record does not fit to the state.
    fn apply_one(&mut self, record: Record<'_>) -> Option<()> {
        match record {
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
                self.server.store.remove(path)?;
            }
            Record::ForgetDomain { domid } => self.server.store.forget_domain(domid),
            Record::Node { up, name, acl, value } => self.add_node(up, name, acl, value)?,
            Record::Generation { generation } => self.server.store.skip_generations(generation),
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
        let before = self.server.domains.get(domid).filter(|before| before.connection.is_some());
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
            Record::Ring {
                connection: number,
                domid,
                gfn,
                port,
                broken,
                must_reset,
                last_transaction,
            } => {
                let being = self.being(Some(domid))??;
                let home = super::domain_requests::home(domid);
                let mut connection = Connection::new(Peer::Ring(being), home);
                connection.seat.gfn = Gfn(gfn);
                connection.seat.port = EvtchnPort(port);
                connection.seat.must_reset = must_reset;
                connection.broken = broken;
                connection.last_transaction = last_transaction;
                self.server.connections.insert(ConnId(number), connection);
                self.server.last_connection = self.server.last_connection.max(number);
            }
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

    fn apply_to_client(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::Watch { connection: number, path, token, depth, home_bytes } => {
                let id = ConnId(number);
                let home_bytes = usize::try_from(home_bytes).ok()?;
                if home_bytes > path.as_str().len() {
                    return None;
                }
                self.connection(number)?;
                let request = WatchRequest { path, token, depth, home_bytes };
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
