//! Shared lists, and lookup of single domains without one.
//!
//! The domid of a VM's domain is known from updates; before an answer that domain is polled, so a
//! stale entry is a miss and never a wrong answer. Only a miss lists all domains, shared with other
//! waiting requests. Misses are never cached, since Xen does not announce new domains.

use std::sync::Arc;

use xen::{DomId, DomainInfo, Uuid};

use super::requests::fail;
use super::{Action, ClientId, DomainRow, Purpose, Query, Reply, Toolstack};
use crate::listing::Listing;
use crate::work::{Failure, Output, QueryWork, Survey};

/// A domain requested by a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wanted {
    Number(DomId),
    Handle(Uuid),
}

/// A client that waits for a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    client: ClientId,
    /// The whole list, or this VM's domain.
    wants: Option<Uuid>,
}

/// Lists in progress and pending.
#[derive(Debug, Default)]
pub(super) struct Lists {
    last: u64,
    /// Clients of the current list.
    readers: Vec<Reader>,
    /// Clients that arrived since it began.
    next: Vec<Reader>,
}

impl Toolstack {
    pub(super) fn list(&mut self, client: ClientId, out: &mut Vec<Action>) {
        self.read_list(Reader { client, wants: None }, out);
    }

    fn read_list(&mut self, reader: Reader, out: &mut Vec<Action>) {
        if self.lists.readers.is_empty() {
            self.lists.readers.push(reader);
            self.begin_list(out);
        } else {
            self.lists.next.push(reader);
        }
    }

    fn begin_list(&mut self, out: &mut Vec<Action>) {
        let known = self.known_names();
        self.give_out(Purpose::List, QueryWork::Survey { known }, out);
    }

    pub(super) fn handle_listed(&mut self, result: Result<Output, Failure>, out: &mut Vec<Action>) {
        let next = std::mem::take(&mut self.lists.next);
        let readers = std::mem::replace(&mut self.lists.readers, next);
        match result {
            Ok(Output::Survey(survey)) => {
                self.lists.last += 1;
                self.learn_foreign(&survey);
                let listing = Arc::new(self.listing(survey));
                for Reader { client, wants } in readers {
                    let reply = match wants {
                        None => Reply::Domains(Arc::clone(&listing)),
                        Some(uuid) => Reply::Found(listing.row_of(uuid).cloned().map(Box::new)),
                    };
                    out.push(Action::Reply { client, reply });
                }
            }
            Ok(output) => unreachable!("a list answered with {output:?}"),
            Err(Failure(message)) => {
                for reader in readers {
                    fail(reader.client, message.clone(), out);
                }
            }
        }
        if !self.lists.readers.is_empty() {
            self.begin_list(out);
        }
    }

    fn listing(&self, survey: Survey) -> Listing {
        let row = |info: DomainInfo| {
            let name = self.foreign.get(&info.domid).and_then(|foreign| foreign.name.clone());
            self.row(info, name)
        };
        let rows = survey.domains.into_iter().map(row).collect();
        Listing { number: self.lists.last, rows }
    }

    /// A row of a listing; the name is that of a domain that is not ours.
    fn row(&self, info: DomainInfo, name: Option<String>) -> DomainRow {
        let vm = self.vms.get(&info.handle).filter(|vm| vm.facts.domid() == Some(info.domid));
        match vm {
            Some(vm) => {
                let config = Arc::clone(&vm.config);
                DomainRow { name: Some(config.name.clone()), config: Some(config), info }
            }
            None => DomainRow { name, config: None, info },
        }
    }

    pub(super) fn find(&mut self, client: ClientId, wanted: Wanted, out: &mut Vec<Action>) {
        let places = match wanted {
            Wanted::Number(domid) => vec![domid],
            Wanted::Handle(uuid) => self.places(uuid),
        };
        self.find_at(client, wanted, places, out);
    }

    /// Last known domids of domains with this handle: several while one replaces another.
    fn places(&self, uuid: Uuid) -> Vec<DomId> {
        let ours = self.vms.get(&uuid).and_then(|vm| vm.facts.domid());
        ours.into_iter().chain(self.foreign.places(uuid)).collect()
    }

    fn find_at(
        &mut self,
        client: ClientId,
        wanted: Wanted,
        mut places: Vec<DomId>,
        out: &mut Vec<Action>,
    ) {
        match (places.pop(), wanted) {
            (Some(domid), _) => {
                let query = Query::Find { wanted, places };
                let known = self.known_at(domid);
                self.query(client, query, QueryWork::Find { domid, known }, out);
            }
            (None, Wanted::Handle(uuid)) => {
                self.read_list(Reader { client, wants: Some(uuid) }, out);
            }
            (None, Wanted::Number(_)) => {
                out.push(Action::Reply { client, reply: Reply::Found(None) });
            }
        }
    }

    /// The handle of the domain with this domid, if its name need not be read.
    fn known_at(&self, domid: DomId) -> Option<Uuid> {
        let ours = self.vms.at(domid);
        let foreign = self.foreign.get(&domid).filter(|foreign| foreign.name.is_some());
        ours.map(|vm| vm.uuid).or(foreign.map(|foreign| foreign.handle))
    }

    /// Handles the poll of a candidate domid.
    pub(super) fn found(
        &mut self,
        client: ClientId,
        wanted: Wanted,
        places: Vec<DomId>,
        info: Option<DomainInfo>,
        name: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let is_it = |info: &DomainInfo| match wanted {
            Wanted::Number(_) => true,
            Wanted::Handle(uuid) => info.handle == uuid && !info.flags.dying(),
        };
        match info.filter(is_it) {
            Some(info) => {
                let known = self.foreign.get(&info.domid).filter(|it| it.handle == info.handle);
                let name = name.or_else(|| known?.name.clone());
                let row = self.row(info, name);
                out.push(Action::Reply { client, reply: Reply::Found(Some(Box::new(row))) });
            }
            None => self.find_at(client, wanted, places, out),
        }
    }
}
