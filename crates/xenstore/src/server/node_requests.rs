//! Requests about nodes, in and outside transactions: rights, limits, answers.

use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::Error;
use crate::access::lookup;
use crate::acl::{Right, Subject};
use crate::path::Path;
use crate::permission::Permission;
use crate::quota::admits;
use crate::server::listings::list;
use crate::server::{ConnId, Host, Request, Server, work};
use crate::transaction::{Facet, NodeChange, Transaction};
use crate::tree::{Node, Tree, held_bytes};
use crate::wire::{self, PAYLOAD_BYTES_MAX};

/// Size of a node without permissions, value and children, as the `node-size` limit counts.
const NODE_BYTES: usize = 16;
const PERMISSION_BYTES: usize = 8;

impl Server {
    /// The tree that the request sees.
    fn tree(&self, request: Request) -> &Tree {
        if request.transaction == 0 {
            return self.store.tree();
        }
        let connection = self.connections.get(&request.id);
        connection
            .and_then(|connection| connection.transactions.get(&request.transaction))
            .map_or(self.store.tree(), |transaction| transaction.tree())
    }

    /// Notes what the answer depends on, inside a transaction.
    fn see(&mut self, request: Request, path: Path<'_>, facet: Facet) -> Result<(), Error> {
        self.note(request, |transaction| transaction.see(path, facet))
    }

    /// Notes that the request was not refused: nobody may take the right away before the commit.
    ///
    /// A request that was refused notes nothing. What it would note tells whether there is a node that
    /// the guest may not know of: by the limit of what a transaction notes, and by the commit (XSA-115).
    fn see_right(&mut self, request: Request, path: Path<'_>, right: Right) -> Result<(), Error> {
        if self.subject(request.id) == Subject::Privileged {
            return Ok(());
        }
        self.note(request, |transaction| transaction.see_right(path, right))
    }

    fn note(&mut self, request: Request, note: impl FnOnce(&mut Transaction)) -> Result<(), Error> {
        if request.transaction == 0 {
            return Ok(());
        }
        let limit = self.guest_quota(request.id).map_or(0, |quota| quota.transaction_nodes);
        let Some(transaction) = self.transaction_mut(request) else { return Ok(()) };
        if transaction.has_failed() {
            return Ok(());
        }
        note(transaction);
        let result = if admits(limit, transaction.touched_count()) {
            self.check_room(request.id, 0)
        } else {
            Err(Error::ENOSPC)
        };
        if result.is_err()
            && let Some(transaction) = self.transaction_mut(request)
        {
            transaction.fail();
        }
        result
    }

    /// The path of a request that works on nodes of the tree.
    pub(super) fn node_path<'a>(
        &self,
        id: ConnId,
        text: &'a [u8],
    ) -> Result<crate::path::CanonicalPath<'a>, Error> {
        let path = self.path(id, text)?;
        if path.as_path().is_special() { Err(Error::EINVAL) } else { Ok(path) }
    }

    /// Looks a node up for reading and lets `answer` put the reply together.
    pub(super) fn read_node(
        &mut self,
        request: Request,
        path: Path<'_>,
        facet: Facet,
        answer: impl FnOnce(&Node) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if facet == Facet::Value
            && let Some(transaction) = self.transaction_mut(request)
        {
            transaction.settle_value(path);
        }
        let subject = self.subject(request.id);
        let result = match lookup(self.tree(request), path, subject, Right::Read) {
            Ok(node) => answer(node),
            Err(Error::EACCES) => return Err(Error::EACCES),
            Err(error) => Err(error),
        };
        let facet = if result == Err(Error::ENOENT) { Facet::Existence } else { facet };
        self.see_right(request, path, Right::Read)?;
        self.see(request, path, facet)?;
        result
    }

    pub(super) fn read(
        &mut self,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = self.node_path(request.id, wire::one_string(payload)?)?;
        self.read_node(request, path.as_path(), Facet::Value, |node| {
            reply.extend_from_slice(node.value());
            Ok(())
        })
    }

    pub(super) fn directory(
        &mut self,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = self.node_path(request.id, wire::one_string(payload)?)?;
        let mut listings = core::mem::take(&mut self.listings);
        let result = self.read_node(request, path.as_path(), Facet::Children, |node| {
            if node.name_bytes() > PAYLOAD_BYTES_MAX {
                return Err(Error::E2BIG);
            }
            listings.list(node, reply);
            Ok(())
        });
        self.listings = listings;
        self.work.add(work::of_names(reply.len()));
        result
    }

    pub(super) fn directory_part(
        &mut self,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let strings: Vec<&[u8]> = wire::strings(payload).collect();
        let ([text, offset], Some(0)) = (&strings[..], payload.last()) else {
            return Err(Error::EINVAL);
        };
        let is_digits = !offset.is_empty() && offset.iter().all(u8::is_ascii_digit);
        let offset = core::str::from_utf8(offset).ok().filter(|_| is_digits);
        let offset: usize = offset.and_then(|offset| offset.parse().ok()).ok_or(Error::EINVAL)?;
        let path = self.node_path(request.id, text)?;
        let mut listed = 0;
        let result = self.read_node(request, path.as_path(), Facet::Children, |node| {
            reply.extend_from_slice(alloc::format!("{}\0", node.generation()).as_bytes());
            listed = node.name_bytes();
            let mut listing = Vec::with_capacity(node.name_bytes());
            list(node, &mut listing);
            let rest = listing.get(offset..).unwrap_or_default();
            // Room for the NUL that ends the last part.
            let room = PAYLOAD_BYTES_MAX - reply.len() - 1;
            let part = if rest.len() <= room {
                rest
            } else {
                let end = rest[..room].iter().rposition(|&byte| byte == 0).map_or(0, |at| at + 1);
                &rest[..end]
            };
            reply.extend_from_slice(part);
            if part.len() == rest.len() {
                reply.push(0);
            }
            Ok(())
        });
        self.work.add(work::of_names(listed));
        result
    }

    pub(super) fn get_perms(
        &mut self,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = self.path(request.id, wire::one_string(payload)?)?;
        let path = path.as_path();
        if path.is_special() {
            let acl = self.special.get(path.as_str());
            // One that is not there is as hidden as the one above it.
            let above = path.parent().and_then(|parent| self.special.get(parent.as_str()));
            let subject = self.subject(request.id);
            let may_know = acl.or(above).is_none_or(|acl| acl.allows(subject, Right::Read));
            if !may_know {
                return Err(Error::EACCES);
            }
            let acl = acl.ok_or(Error::ENOENT)?;
            let list = Permission::encode_list(&acl.permissions());
            reply.extend_from_slice(list.as_bytes());
            return Ok(());
        }
        self.read_node(request, path, Facet::Acl, |node| {
            let list = Permission::encode_list(&node.acl().permissions());
            if list.len() > PAYLOAD_BYTES_MAX {
                return Err(Error::E2BIG);
            }
            reply.extend_from_slice(list.as_bytes());
            Ok(())
        })
    }

    pub(super) fn write(&mut self, request: Request, payload: &[u8]) -> Result<(), Error> {
        let end = payload.iter().position(|&byte| byte == 0).ok_or(Error::EINVAL)?;
        let value = &payload[end + 1..];
        let path = self.node_path(request.id, &payload[..end])?;
        let path = path.as_path();
        self.check_write(request, path, value.len())?;
        let creator = self.subject(request.id).guest();
        if request.transaction == 0 {
            self.store.write(path, creator, value);
            self.fire_changed(path, None);
        } else if let Some(transaction) = self.transaction_mut(request) {
            transaction.write(path, creator, value);
        }
        Ok(())
    }

    pub(super) fn mkdir(&mut self, request: Request, payload: &[u8]) -> Result<(), Error> {
        let path = self.node_path(request.id, wire::one_string(payload)?)?;
        let path = path.as_path();
        let subject = self.subject(request.id);
        match lookup(self.tree(request), path, subject, Right::Write) {
            Ok(_) => {
                self.see_right(request, path, Right::Write)?;
                return self.see(request, path, Facet::Existence);
            }
            Err(Error::ENOENT) => self.check_write(request, path, 0)?,
            Err(error) => return Err(error),
        }
        let creator = subject.guest();
        if request.transaction == 0 {
            self.store.ensure(path, creator);
            self.fire_changed(path, None);
        } else if let Some(transaction) = self.transaction_mut(request) {
            transaction.ensure(path, creator);
        }
        Ok(())
    }

    /// Checks rights and limits of a write that may create the node and others above it.
    fn check_write(
        &mut self,
        request: Request,
        path: Path<'_>,
        value_bytes: usize,
    ) -> Result<(), Error> {
        let subject = self.subject(request.id);
        if subject == Subject::Privileged {
            return Ok(());
        }
        match lookup(self.tree(request), path, subject, Right::Write) {
            Ok(_) | Err(Error::ENOENT) => self.see_right(request, path, Right::Write)?,
            Err(error) => return Err(error),
        }
        let mut result = self.check_write_limits(request, path, value_bytes);
        if result.is_err() && !self.store.is_cleared_up() {
            // What the guest removed before may still be counted.
            self.store.clear_up_removed();
            result = self.check_write_limits(request, path, value_bytes);
        }
        if result.is_err()
            && let Some(transaction) = self.transaction_mut(request)
        {
            transaction.fail();
        }
        result
    }

    fn check_write_limits(
        &self,
        request: Request,
        path: Path<'_>,
        value_bytes: usize,
    ) -> Result<(), Error> {
        let Some(guest) = self.subject(request.id).guest() else { return Ok(()) };
        let quota = self.domains.quota(guest.domid);
        let (nearest, missing) = self.tree(request).nearest(path);
        let bytes = NODE_BYTES + PERMISSION_BYTES * nearest.acl().entries().len();
        let children_bytes = if missing == 0 { nearest.name_bytes() } else { 0 };
        if !admits(quota.node_bytes, bytes + value_bytes + children_bytes) {
            return Err(Error::ENOSPC);
        }
        let growth = if missing == 0 {
            value_bytes.saturating_sub(nearest.value().len())
        } else {
            missing * held_bytes(path.as_str().len(), 0, nearest.acl()) + value_bytes
        };
        let noted = if request.transaction == 0 {
            0
        } else {
            missing.max(1) * Transaction::held_bytes_of(path, 0) + value_bytes
        };
        if growth + noted > 0 {
            self.check_room(request.id, growth + noted)?;
        }
        if missing == 0 {
            return Ok(());
        }
        // Each new node is one more name in its parent, which may be one of them.
        let components = path.components().count();
        let new_names = path.components().skip(components - missing);
        for (i, name) in new_names.enumerate() {
            let before = if i == 0 { nearest.value().len() + nearest.name_bytes() } else { 0 };
            if !admits(quota.node_bytes, bytes + before + name.len() + 1) {
                return Err(Error::ENOSPC);
            }
        }
        let transaction = self
            .connections
            .get(&request.id)
            .and_then(|connection| connection.transactions.get(&request.transaction));
        let owned = self.store.owned_count(guest.domid);
        let delta = transaction.map_or(0, |open| open.owned_delta());
        if admits(quota.nodes, owned.saturating_add_signed(delta) + missing) {
            Ok(())
        } else {
            Err(Error::ENOSPC)
        }
    }

    pub(super) fn rm(&mut self, request: Request, payload: &[u8]) -> Result<(), Error> {
        let path = self.node_path(request.id, wire::one_string(payload)?)?;
        let path = path.as_path();
        let subject = self.subject(request.id);
        let found = lookup(self.tree(request), path, subject, Right::Write).map(|_| ());
        if found == Err(Error::EACCES) {
            return Err(Error::EACCES);
        }
        let Some(parent) = path.parent() else { return Err(Error::EINVAL) };
        self.see_right(request, path, Right::Write)?;
        match found {
            Ok(()) => {}
            Err(Error::ENOENT) => {
                let exists = self.tree(request).contains(parent);
                self.see(request, path, Facet::Existence)?;
                self.see(request, parent, Facet::Existence)?;
                return if exists { Ok(()) } else { Err(Error::ENOENT) };
            }
            Err(error) => return Err(error),
        }
        let caller = subject.guest();
        if request.transaction == 0 {
            if let Some(node) = self.store.remove(path) {
                self.fire(&NodeChange::Removed { path: path.to_owned_path(), node });
                let cleared = self.store.clear_up_removed();
                self.work.add(work::steps(cleared));
            }
            return Ok(());
        }
        // Had the parent been gone the answer would have been another; whether the node was is all one.
        self.see(request, parent, Facet::Existence)?;
        if let Some(transaction) = self.transaction_mut(request) {
            let visited = transaction.remove(path, caller);
            self.work.add(work::steps(visited));
        }
        Ok(())
    }

    pub(super) fn set_perms(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        payload: &[u8],
    ) -> Result<(), Error> {
        let mut strings = wire::strings(payload);
        let text = strings.next().ok_or(Error::EINVAL)?;
        let list: Vec<&[u8]> = strings.collect();
        if list.is_empty() {
            return Err(Error::EINVAL);
        }
        let limit = self.guest_quota(request.id).map_or(0, |quota| quota.permissions);
        if !admits(limit, list.len()) {
            return Err(Error::ENOSPC);
        }
        let permissions: Vec<Permission> =
            list.into_iter().map(Permission::decode).collect::<Result<_, _>>()?;
        if permissions[0].domid == DomId::ANY {
            // A node owned by everybody would be owned by every guest.
            return Err(Error::EINVAL);
        }
        let path = self.path(request.id, text)?;
        let path = path.as_path();
        let subject = self.subject(request.id);
        if path.is_special() {
            return self.set_special_perms(host, request, path, &permissions);
        }
        let found = lookup(self.tree(request), path, subject, Right::Own);
        let found = found.map(|node| (node.acl().owner(), node.name_bytes() + node.value().len()));
        if let Ok(_) | Err(Error::ENOENT) = found {
            self.see_right(request, path, Right::Own)?;
        }
        if let Err(Error::ENOENT) = found {
            self.see(request, path, Facet::Existence)?;
        }
        let (owner, children_and_value) = found?;
        self.work.add(work::of_names(children_and_value));
        if subject != Subject::Privileged {
            if owner.permission.domid != permissions[0].domid {
                return Err(Error::EPERM);
            }
            let node_bytes = self.guest_quota(request.id).map_or(0, |quota| quota.node_bytes);
            let bytes = NODE_BYTES + PERMISSION_BYTES * permissions.len() + children_and_value;
            if !admits(node_bytes, bytes) {
                return Err(Error::ENOSPC);
            }
        }
        // Last, as it tells which domains there are.
        let acl = Arc::new(self.bind_permissions(host, request.id, &permissions)?);
        if request.transaction == 0 {
            let acl_before = self.store.set_acl(path, &acl);
            self.fire_changed(path, acl_before);
        } else if let Some(transaction) = self.transaction_mut(request) {
            transaction.set_acl(path, acl);
        }
        Ok(())
    }

    fn set_special_perms(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        path: Path<'_>,
        permissions: &[Permission],
    ) -> Result<(), Error> {
        // First, as the others tell which domains there are.
        if self.subject(request.id) != Subject::Privileged {
            return Err(Error::EACCES);
        }
        let acl = Arc::new(self.bind_permissions(host, request.id, permissions)?);
        if !self.is_special_node(path) {
            return Err(Error::ENOENT);
        }
        self.record_special(path, &acl);
        self.special.insert(path.to_owned_path(), acl);
        Ok(())
    }

    /// The special nodes that can have permissions: two, and one for each domain that is served.
    fn is_special_node(&self, path: Path<'_>) -> bool {
        if self.special.contains_key(path.as_str()) {
            return true;
        }
        let is_release = path.parent() == Some(Path::RELEASE_DOMAIN);
        let number = path.as_str().rsplit('/').next().and_then(|text| text.parse().ok());
        is_release && number.is_some_and(|id| self.domains.introduced(DomId(id)).is_some())
    }
}
