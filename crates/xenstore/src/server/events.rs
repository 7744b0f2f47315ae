//! Watch events and their visibility.
//!
//! A client is notified of a change if it may read the node or its parent: in their current state,
//! in that before a removal, or by the replaced permission list (XSA-115).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use xen::DomId;

use crate::Error;
use crate::acl::{Acl, Entry, Life, Right, Subject, private_to_dom0};
use crate::path::{OwnedPath, Path};
use crate::permission::{Access, Permission};
use crate::quota::admits;
use crate::ring::FEATURE_WATCH_DEPTH;
use crate::server::connection::{EventFate, Output, OwnWatches};
use crate::server::{ConnId, Server, work};
use crate::transaction::NodeChange;
use crate::tree::Node;
use crate::watch::{Audience, Watch, WatchRequest};

/// Bytes of events that may be queued for a guest regardless of its other memory.
const EVENT_BYTES_ALWAYS: usize = 8 * 1024;

/// The special nodes of a new store: guests may watch released domains, but not introduced ones.
pub(super) fn special_nodes() -> BTreeMap<OwnedPath, Arc<Acl>> {
    let private = Permission::new(Access::None, DomId::DOM0);
    let everybody = Permission::new(Access::Read, DomId::ANY);
    let release = Acl::new(alloc::vec![
        Entry { permission: private, life: Some(Life(0)) },
        Entry { permission: everybody, life: Some(Life(0)) },
    ]);
    BTreeMap::from([
        (Path::INTRODUCE_DOMAIN.to_owned_path(), private_to_dom0()),
        (Path::RELEASE_DOMAIN.to_owned_path(), Arc::new(release)),
    ])
}

/// Cost of queueing an event, in [`work`].
const STEPS_OF_EVENT: u64 = 3;

impl Server {
    pub(super) fn watch(&mut self, id: ConnId, payload: &[u8]) -> Result<Arc<Watch>, Error> {
        let end = payload.iter().rposition(|&byte| byte == 0).ok_or(Error::EINVAL)?;
        let mut strings = payload[..end].split(|&byte| byte == 0);
        let (Some(given), Some(token)) = (strings.next(), strings.next()) else {
            return Err(Error::EINVAL);
        };
        let depth = strings.next().map(depth).transpose()?;
        if strings.next().is_some() {
            return Err(Error::EINVAL);
        }
        if depth.is_some() && self.own_features(id) & FEATURE_WATCH_DEPTH == 0 {
            return Err(Error::EINVAL);
        }
        let path = self.path(id, given)?;
        let limit = self.guest_quota(id).map_or(0, |quota| quota.watches);
        let connection = self.connections.get(&id).ok_or(Error::EINVAL)?;
        if connection.watches.contains(path.as_path(), token) {
            return Err(Error::EEXIST);
        }
        if !admits(limit, connection.watches.len() + 1) {
            return Err(Error::ENOSPC);
        }
        self.check_room(id, OwnWatches::bytes_of(path.as_path(), token))?;
        // A relative watch reports relative paths, without the home and its slash.
        let home_bytes = path.as_path().as_str().len() - given.len();
        let is_privileged = connection.is_privileged();
        let path_watched = path.as_path();
        let request = WatchRequest { path: path_watched, token, depth, home_bytes, is_privileged };
        let watch = self.watches.add(id, request);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.watches.insert(path.as_path(), token, watch.id);
        }
        self.record_watch(&watch);
        Ok(watch)
    }

    pub(super) fn unwatch(&mut self, id: ConnId, payload: &[u8]) -> Result<(), Error> {
        let end = payload.iter().rposition(|&byte| byte == 0).ok_or(Error::EINVAL)?;
        let mut strings = payload[..end].split(|&byte| byte == 0);
        let (Some(path), Some(token), None) = (strings.next(), strings.next(), strings.next())
        else {
            return Err(Error::EINVAL);
        };
        let path = self.path(id, path)?;
        let connection = self.connections.get_mut(&id).ok_or(Error::EINVAL)?;
        let watch = connection.watches.remove(path.as_path(), token).ok_or(Error::ENOENT)?;
        self.watches.remove(watch);
        self.record_unwatch(id, path.as_path(), token);
        Ok(())
    }

    /// The initial event of a new watch, which reveals nothing and so needs no right.
    pub(super) fn announce(&mut self, watch: &Arc<Watch>) {
        self.queue(watch, watch.path.as_path());
    }

    /// Reports a change of the tree.
    pub(super) fn fire(&mut self, change: &NodeChange) {
        match change {
            NodeChange::Changed { path, acl_before } => {
                self.fire_changed(path.as_path(), acl_before.clone());
            }
            NodeChange::Removed { path, node } => {
                let path = path.as_path();
                for (place, node, parent) in self.watches.below(node, path) {
                    let acls = [Some(Arc::clone(node.acl())), Some(Arc::clone(parent.acl()))];
                    self.work.add(1);
                    let watches = self.watches.at(place, &self.audience(&acls));
                    if let Some(below) = watches.first().map(|watch| watch.path.clone()) {
                        self.report(&watches, below.as_path(), &acls);
                    }
                }
                if !self.watches.is_unwatched(path) {
                    let acls = [Some(Arc::clone(Node::acl(node))), self.parent_acl(path)];
                    let reaching = self.watches.reaching(path, &self.audience(&acls));
                    self.report(&reaching, path, &acls);
                }
            }
        }
    }

    /// Reports that the node was created, written, or got another list than this one.
    pub(super) fn fire_changed(&mut self, path: Path<'_>, acl_before: Option<Arc<Acl>>) {
        if self.watches.is_unwatched(path) {
            return;
        }
        let node = self.store.tree().get(path).map(|node| Arc::clone(node.acl()));
        let acls = [acl_before, node, self.parent_acl(path)];
        let reaching = self.watches.reaching(path, &self.audience(&acls));
        self.report(&reaching, path, &acls);
    }

    /// A superset of the guests that may read by one of the lists.
    fn audience(&self, acls: &[Option<Arc<Acl>>]) -> Audience {
        let mut clients = BTreeSet::new();
        for acl in acls.iter().flatten() {
            let Some(readers) = acl.readers() else { return Audience::Everybody };
            clients.extend(readers.flat_map(|domid| self.domains.rings_with_rights_of(domid)));
        }
        Audience::Only(clients)
    }

    fn parent_acl(&self, path: Path<'_>) -> Option<Arc<Acl>> {
        self.store.tree().get(path.parent()?).map(|parent| Arc::clone(parent.acl()))
    }

    /// Queues the event for those watches whose client may read by one of the lists.
    fn report(&mut self, watches: &[Arc<Watch>], path: Path<'_>, acls: &[Option<Arc<Acl>>]) {
        self.work.add(work::steps(watches.len()));
        for watch in watches {
            let subject = self.subject(watch.connection);
            let may_read = |acl: &Arc<Acl>| acl.allows(subject, Right::Read);
            if subject == Subject::Privileged || acls.iter().flatten().any(may_read) {
                self.queue(watch, path);
            }
        }
    }

    /// Reports that some domain was introduced or released, without its domid.
    pub(super) fn fire_some_domain(&mut self, base: Path<'_>) {
        let acls = [self.special.get(base.as_str()).cloned()];
        let audience = self.audience(&acls);
        let mut watches = self.watches.on_special(base, &audience);
        watches.retain(|watch| watch.depth.is_none_or(|depth| depth == 0));
        self.report(&watches, base, &acls);
    }

    /// Reports which domain was introduced or released, to watches that request the domid.
    pub(super) fn fire_which_domain(&mut self, base: Path<'_>, domid: DomId) {
        let text = base.join(&alloc::format!("{domid}"));
        let which = Path::from_canonical(&text);
        let acl = self.special.get(which.as_str()).or_else(|| self.special.get(base.as_str()));
        let acls = [acl.cloned()];
        let audience = self.audience(&acls);
        let mut watches = self.watches.on_special(base, &audience);
        watches.retain(|watch| watch.depth.is_some_and(|depth| depth > 0));
        watches.extend(self.watches.on_special(which, &audience));
        self.report(&watches, which, &acls);
    }

    fn queue(&mut self, watch: &Arc<Watch>, path: Path<'_>) {
        let id = watch.connection;
        let is_guest = self.subject(id).guest().is_some();
        let bytes = Output::held_bytes_of(watch, path);
        let has_room = !is_guest || self.has_room(id, bytes);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        // Nodes that others created for it must not keep events from a guest that reads.
        let fits = has_room || connection.output.held_bytes() + bytes <= EVENT_BYTES_ALWAYS;
        if connection.broken || !fits {
            self.counters.events_dropped += 1;
            if is_guest {
                self.crowded.insert(id);
            }
            return;
        }
        self.work.add(STEPS_OF_EVENT);
        match connection.output.event(watch, path, self.now) {
            EventFate::Queued => {
                self.counters.events_queued += 1;
                self.ready.insert(id);
                self.record_event(watch, path);
                if is_guest {
                    self.expect_to_be_read(id);
                    self.note_crowd(id);
                }
            }
            EventFate::Coalesced => self.counters.events_coalesced += 1,
            EventFate::Oversized => self.counters.events_dropped += 1,
        }
    }
}

fn depth(text: &[u8]) -> Result<u32, Error> {
    let is_digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = core::str::from_utf8(text).ok().filter(|_| is_digits);
    text.and_then(|text| text.parse().ok()).ok_or(Error::EINVAL)
}
