//! Requests on domains, and handling of stopped and dead domains.

use alloc::format;
use alloc::vec::Vec;

use xen::{DomId, EvtchnPort, Gfn};

use crate::Error;
use crate::acl::{Acl, Being, Entry, Life};
use crate::journal::Record;
use crate::path::{OwnedPath, Path};
use crate::permission::Permission;
use crate::quota;
use crate::ring::FEATURE_DOMID_ANY;
use crate::server::connection::Peer;
use crate::server::domains::{FEATURES, Fate};
use crate::server::{ConnId, DomainNews, DomainState, Host, Server, Topic};
use crate::transaction::NodeChange;
use crate::wire::{self, changes::DomainIdentity};

/// `GET_DOMAIN_PATH`: allowed for everyone, also for domains that do not exist.
pub(super) fn get_domain_path(payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
    let domid = domid(wire::one_string(payload)?)?;
    reply.extend_from_slice(format!("{}\0", home(domid)).as_bytes());
    Ok(())
}

pub(super) fn home(domid: DomId) -> alloc::string::String {
    format!("/local/domain/{domid}")
}

/// A number as in requests: decimal, no sign.
fn number<N: core::str::FromStr>(text: &[u8]) -> Result<N, Error> {
    let is_digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = core::str::from_utf8(text).ok().filter(|_| is_digits);
    text.and_then(|text| text.parse().ok()).ok_or(Error::EINVAL)
}

fn domid(text: &[u8]) -> Result<DomId, Error> {
    number(text).map(DomId)
}

/// The strings of a payload, if there are exactly N.
fn exactly<const N: usize>(payload: &[u8]) -> Result<[&[u8]; N], Error> {
    let strings: Vec<&[u8]> = wire::strings(payload).collect();
    strings.try_into().map_err(|_| Error::EINVAL)
}

impl Server {
    pub(super) fn introduce(&mut self, host: &mut dyn Host, payload: &[u8]) -> Result<(), Error> {
        let mut strings = wire::strings(payload);
        let (Some(id), Some(gfn), Some(port)) = (strings.next(), strings.next(), strings.next())
        else {
            return Err(Error::EINVAL);
        };
        let (domid, gfn) = (domid(id)?, Gfn(number(gfn)?));
        let port = EvtchnPort(number(port)?);
        if port.0 == 0 || domid == DomId::DOM0 {
            return Err(Error::EINVAL);
        }
        if let Some(connection) = self.domains.introduced(domid) {
            let known = self.connections.get(&connection);
            if let Some(broken) = known.filter(|connection| connection.broken) {
                let fault =
                    broken.fault.map_or("it could not be served".into(), |e| format!("{e}"));
                host.log(&format!(
                    "cannot introduce domain {domid} again: its ring is out of service ({fault}) until \
                     the domain is destroyed"
                ));
                return Err(Error::EIO);
            }
            host.reset_ring(domid, port)?;
            if let Some(connection) = self.connections.get_mut(&connection) {
                connection.seat.port = port;
            }
            self.reset(connection);
            return Ok(());
        }
        if !domid.is_ordinary() {
            return Err(Error::EINVAL);
        }
        let connection = self.next_connection();
        host.connect_ring(connection, domid, gfn, port)?;
        let domain = self.domains.get_or_begin(host, domid);
        domain.connection = Some(connection);
        domain.credit = self.write_rate.join(self.now);
        let being = Being { domid, life: domain.life };
        let mut entry = super::Connection::new(Peer::Ring(being), home(domid));
        entry.seat.gfn = gfn;
        entry.seat.port = port;
        self.connections.insert(connection, entry);
        self.record_domain(domid);
        self.record_ring(connection);
        // The guest may have put requests into the ring before it was mapped.
        self.ready.insert(connection);
        if self.traces(Topic::Domains) {
            host.trace(format_args!("domain {domid} is served as client {}", connection.number()));
        }
        self.fire_some_domain(Path::INTRODUCE_DOMAIN);
        self.fire_which_domain(Path::INTRODUCE_DOMAIN, domid);
        Ok(())
    }

    pub(super) fn release(&mut self, host: &mut dyn Host, payload: &[u8]) -> Result<(), Error> {
        let domid = self.introduced_guest(payload)?;
        self.end_domain(host, domid, None);
        Ok(())
    }

    pub(super) fn resume(&mut self, payload: &[u8]) -> Result<(), Error> {
        let domid = self.introduced_guest(payload)?;
        if let Some(domain) = self.domains.get_mut(domid) {
            domain.shutdown = false;
        }
        self.record_domain(domid);
        self.tell_resumed(domid);
        Ok(())
    }

    fn introduced_guest(&self, payload: &[u8]) -> Result<DomId, Error> {
        let domid = domid(wire::one_string(payload)?)?;
        if domid == DomId::DOM0 {
            return Err(Error::EINVAL);
        }
        self.domains.introduced(domid).ok_or(Error::ENOENT)?;
        Ok(domid)
    }

    pub(super) fn set_target(&mut self, payload: &[u8]) -> Result<(), Error> {
        let [helper, target] = exactly(payload)?;
        let (helper, target) = (domid(helper)?, domid(target)?);
        self.domains.introduced(helper).ok_or(Error::ENOENT)?;
        let served = self.domains.get(target).filter(|domain| domain.connection.is_some());
        let life = served.ok_or(Error::ENOENT)?.life;
        self.domains.set_target(helper, Being { domid: target, life });
        self.record_domain(helper);
        Ok(())
    }

    pub(super) fn is_domain_introduced(
        &self,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let domid = domid(wire::one_string(payload)?)?;
        let introduced = domid == DomId::SELF || self.domains.introduced(domid).is_some();
        reply.extend_from_slice(if introduced { b"T\0" } else { b"F\0" });
        Ok(())
    }

    /// Without an argument: the features of the caller's own ring.
    pub(super) fn get_feature(
        &self,
        host: &mut dyn Host,
        id: ConnId,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let features = if payload.is_empty() {
            self.own_features(id)
        } else {
            let domid = domid(wire::one_string(payload)?)?;
            match self.domains.get(domid) {
                Some(domain) => domain.features,
                None if host.domain_exists(domid) => FEATURES,
                None => return Err(Error::ENOENT),
            }
        };
        reply.extend_from_slice(format!("{features}\0").as_bytes());
        Ok(())
    }

    /// Features offered to the client.
    pub(super) fn own_features(&self, id: ConnId) -> u32 {
        match self.connections.get(&id).map(|connection| connection.peer) {
            Some(Peer::Ring(being)) => self.ring_features(being.domid),
            _ => FEATURES,
        }
    }

    pub(super) fn set_feature(&mut self, host: &mut dyn Host, payload: &[u8]) -> Result<(), Error> {
        let [id, bits] = exactly(payload)?;
        let (domid, bits) = (domid(id)?, number::<u32>(bits)?);
        if self.domains.get(domid).is_none() && !host.domain_exists(domid) {
            return Err(Error::ENOENT);
        }
        if self.domains.introduced(domid).is_some() {
            return Err(Error::EBUSY);
        }
        if bits & !FEATURES != 0 {
            return Err(Error::EINVAL);
        }
        self.domains.get_or_begin(host, domid).features = bits;
        self.record_domain(domid);
        Ok(())
    }

    /// The features to be offered in the domain's ring page.
    #[must_use]
    pub fn ring_features(&self, domid: DomId) -> u32 {
        self.domains.get(domid).map_or(FEATURES, |domain| domain.features)
    }

    pub(super) fn get_quota(
        &self,
        host: &mut dyn Host,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if payload.is_empty() {
            reply.extend_from_slice(format!("{}\0", quota::names()).as_bytes());
            return Ok(());
        }
        let strings: Vec<&[u8]> = wire::strings(payload).collect();
        let (quota, name) = match strings[..] {
            [name] => (self.domains.quota, name),
            [id, name] => {
                let domid = domid(id)?;
                match self.domains.get(domid) {
                    Some(domain) => (domain.quota, name),
                    None if host.domain_exists(domid) => (self.domains.quota, name),
                    None => return Err(Error::ENOENT),
                }
            }
            _ => return Err(Error::EINVAL),
        };
        let name = core::str::from_utf8(name).map_err(|_| Error::EINVAL)?;
        let value = quota.get(name).ok_or(Error::EINVAL)?;
        reply.extend_from_slice(format!("{value}\0").as_bytes());
        Ok(())
    }

    pub(super) fn set_quota(&mut self, host: &mut dyn Host, payload: &[u8]) -> Result<(), Error> {
        let strings: Vec<&[u8]> = wire::strings(payload).collect();
        let mut whose = None;
        let (quota, name, value) = match strings[..] {
            [name, value] => (&mut self.domains.quota, name, value),
            [id, name, value] => {
                let domid = domid(id)?;
                if self.domains.get(domid).is_none() && !host.domain_exists(domid) {
                    return Err(Error::ENOENT);
                }
                whose = Some(domid);
                (&mut self.domains.get_or_begin(host, domid).quota, name, value)
            }
            _ => return Err(Error::EINVAL),
        };
        let name = core::str::from_utf8(name).map_err(|_| Error::EINVAL)?;
        *quota.get_mut(name).ok_or(Error::EINVAL)? = number(value)?;
        match whose {
            Some(domid) => self.record_domain(domid),
            None => self.record_quota(),
        }
        Ok(())
    }

    /// The default limits of guests, set from the command line.
    pub fn default_quota_mut(&mut self) -> &mut quota::Quota {
        &mut self.domains.quota
    }

    /// Handles a complete listing after some domain stopped or died.
    ///
    /// Each shutdown is reported once, until the domain is resumed. Everything of dead domains is
    /// removed.
    pub fn handle_domain_states(&mut self, host: &mut dyn Host, listing: &[DomainState]) {
        self.handle_domain_news(host, &DomainNews::All(listing.to_vec()));
    }

    /// As [`handle_domain_states`](Self::handle_domain_states), for a poll that may be partial.
    /// Domains are sorted by domid.
    pub fn handle_domain_news(&mut self, host: &mut dyn Host, news: &DomainNews) {
        self.tell_changes(host, news);
        let fates = self.domains.compare(news);
        let is_served = |server: &Self, domid| server.domains.introduced(domid).is_some();
        let mut shutdown_is_told = true;
        for &(domid, _) in fates.iter().filter(|(_, fate)| *fate == Fate::Shutdown) {
            self.record_domain(domid);
            if is_served(self, domid) {
                self.fire_which_domain(Path::RELEASE_DOMAIN, domid);
                shutdown_is_told = false;
            }
        }
        for &(domid, _) in fates.iter().filter(|(_, fate)| *fate == Fate::Gone) {
            // A death is reported as well.
            shutdown_is_told |= is_served(self, domid);
            self.end_domain(host, domid, Self::identity_of_dead(news, domid));
        }
        if !shutdown_is_told {
            self.fire_some_domain(Path::RELEASE_DOMAIN);
        }
    }

    /// Removes a domain with its ring, watches, transactions, nodes and rights, and reports it.
    /// `dead` is its identity if it is dead and still exists.
    fn end_domain(&mut self, host: &mut dyn Host, domid: DomId, dead: Option<DomainIdentity>) {
        let Some(domain) = self.domains.end(domid) else { return };
        let keeps = self.changes.keeps(domid, dead.filter(|_| domain.connection.is_some()));
        self.store.recorder.record(&Record::DomainEnd { domid });
        if let Some(connection) = domain.connection {
            self.disconnect(connection);
            if keeps {
                host.keep_ring(domid);
            } else {
                host.disconnect_ring(domid);
            }
            self.write_rate.leave(domain.credit);
            if self.traces(Topic::Domains) {
                host.trace(format_args!("domain {domid} is gone"));
            }
        }
        let domains = &self.domains;
        self.store.disown_root(domid, |being| domains.lives(being));
        for path in self.store.owned_tops(domid) {
            if let Some(node) = self.store.remove(path.as_path()) {
                self.fire(&NodeChange::Removed { path, node });
            }
        }
        self.store.forget_domain(domid);
        if domain.connection.is_some() {
            self.fire_some_domain(Path::RELEASE_DOMAIN);
            self.fire_which_domain(Path::RELEASE_DOMAIN, domid);
        }
        self.forget_special_rights(domid);
    }

    /// Removes a dead domain's rights on special nodes, after its end was reported by them.
    pub(super) fn forget_special_rights(&mut self, domid: DomId) {
        self.store.recorder.record(&Record::ForgetSpecialRights { domid });
        let own: OwnedPath =
            Path::from_canonical(&Path::RELEASE_DOMAIN.join(&format!("{domid}"))).to_owned_path();
        self.special.remove(&own);
        for acl in self.special.values_mut() {
            *acl = alloc::sync::Arc::new(acl.without(domid));
        }
    }

    /// The permission list of a request with each domain bound to its current life.
    pub(super) fn bind_permissions(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        permissions: &[Permission],
    ) -> Result<Acl, Error> {
        let knows_any = self.own_features(id) & FEATURE_DOMID_ANY != 0;
        let mut entries = Vec::with_capacity(permissions.len());
        for (i, &permission) in permissions.iter().enumerate() {
            let domid = permission.domid;
            let life = if domid == DomId::DOM0 || (domid == DomId::ANY && knows_any) {
                Some(Life(0))
            } else if domid.is_ordinary()
                && (self.domains.get(domid).is_some() || host.domain_exists(domid))
            {
                let life = self.domains.get_or_begin(host, domid).life;
                self.record_domain(domid);
                Some(life)
            } else {
                None
            };
            if i == 0 && life.is_none() {
                return Err(Error::ENOENT);
            }
            entries.push(Entry { permission, life });
        }
        Ok(Acl::new(entries))
    }
}
