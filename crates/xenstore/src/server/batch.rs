//! The batch message: many requests of a socket client, executed as one.
//!
//! Changes use a transaction that begins and ends here, so rights, limits, events and the commit
//! are the same as for other requests. [`crate::wire::batch`] has the format.

use alloc::vec::Vec;

use crate::Error;
use crate::server::connection::Peer;
use crate::server::listings::list;
use crate::server::{ConnId, Host, Request, Server};
use crate::transaction::Facet;
use crate::tree::Node;
use crate::wire::batch::{self, BATCH_PAYLOAD_BYTES_MAX, Entry, EntryKind, Refusal, ReplyWriter};

/// The entry that failed the batch, and its error.
struct Refused {
    entry: usize,
    error: Error,
}

impl Server {
    /// Batches are too long for a ring, and guests do not need them.
    pub(super) fn offers_batches(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.peer == Peer::Socket)
    }

    pub(super) fn batch(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let entries = batch::decode_request(payload)?;
        let changes = entries.iter().any(|entry| entry.kind.changes());
        let mut writer = ReplyWriter::new(reply);
        let result = if changes && request.transaction == 0 {
            self.run_as_transaction(host, request, &entries, &mut writer, reply)
        } else {
            self.run_entries(host, request, &entries, &mut writer, reply)
        };
        match result {
            Ok(()) => writer.done(reply),
            Err(Refused { entry, error }) => {
                if let Some(transaction) = self.transaction_mut(request) {
                    transaction.fail();
                }
                writer.refused(reply, entry, error);
            }
        }
        Ok(())
    }

    fn run_as_transaction(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        entries: &[Entry<'_>],
        writer: &mut ReplyWriter,
        reply: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let in_commit = |error| Refused { entry: entries.len(), error };
        let transaction = self.open_transaction(request.id).map_err(in_commit)?;
        let inside = Request { transaction, ..request };
        let result = self.run_entries(host, inside, entries, writer, reply);
        let verdict: &[u8] = if result.is_ok() { b"T\0" } else { b"F\0" };
        // Guests do not send batches, so no writes are charged here.
        let ended = self.transaction_end(inside, verdict).map(|_| ()).map_err(in_commit);
        result.and(ended)
    }

    fn run_entries(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        entries: &[Entry<'_>],
        writer: &mut ReplyWriter,
        reply: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let changes = entries.iter().any(|entry| entry.kind.changes());
        for (index, entry) in entries.iter().enumerate() {
            let refused = |error| Refused { entry: index, error };
            let at = ReplyWriter::begin_result(reply);
            let result = self.run_entry(host, request, entry, reply);
            if entry.refusal == Refusal::OfAll {
                result.map_err(refused)?;
            }
            match writer.end_result(reply, at, result) {
                Ok(()) => {}
                // The client requests the rest. A result too long for any reply is an error itself.
                Err(_) if !changes && index > 0 => return Ok(()),
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }

    fn run_entry(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        entry: &Entry<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        use EntryKind as E;
        let payload = entry.payload;
        match entry.kind {
            E::Read => return self.read(request, payload, reply),
            E::GetPerms => return self.get_perms(request, payload, reply),
            E::DirectoryPart => return self.directory_part(request, payload, reply),
            E::Directory => {
                return self.examine(request, payload, Facet::Children, |node, rest| {
                    nothing(rest)?;
                    // Longer than any reply: it can only be read in parts.
                    if node.name_bytes() > BATCH_PAYLOAD_BYTES_MAX - 32 {
                        return Err(Error::E2BIG);
                    }
                    list(node, reply);
                    Ok(())
                });
            }
            E::Write => self.write(request, payload)?,
            E::Mkdir => self.mkdir(request, payload)?,
            E::Rm => self.rm(request, payload)?,
            E::SetPerms => self.set_perms(host, request, payload)?,
            E::GuardPresent => {
                self.examine(request, payload, Facet::Existence, |_, rest| nothing(rest))?;
            }
            E::GuardAbsent => {
                match self.examine(request, payload, Facet::Existence, |_, rest| nothing(rest)) {
                    Ok(()) => return Err(Error::EEXIST),
                    Err(Error::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            E::GuardValue => self.examine(request, payload, Facet::Value, |node, value| {
                if node.value() == value { Ok(()) } else { Err(Error::EAGAIN) }
            })?,
            E::GuardChildren => self.examine(request, payload, Facet::Children, |node, text| {
                let generation = alloc::format!("{}\0", node.generation());
                if generation.as_bytes() == text { Ok(()) } else { Err(Error::EAGAIN) }
            })?,
        }
        reply.extend_from_slice(b"OK\0");
        Ok(())
    }

    /// Calls `judge` with the node named in the payload, and the rest of the payload.
    fn examine(
        &mut self,
        request: Request,
        payload: &[u8],
        facet: Facet,
        judge: impl FnOnce(&Node, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let end = payload.iter().position(|&byte| byte == 0).ok_or(Error::EINVAL)?;
        let (text, rest) = (&payload[..end], &payload[end + 1..]);
        let path = self.node_path(request.id, text)?;
        self.read_node(request, path.as_path(), facet, |node| judge(node, rest))
    }
}

/// An entry that is only a path has no further payload.
fn nothing(rest: &[u8]) -> Result<(), Error> {
    if rest.is_empty() { Ok(()) } else { Err(Error::EINVAL) }
}
