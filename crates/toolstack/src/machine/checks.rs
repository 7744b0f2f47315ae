//! Checks before anything of a VM is created: for creates, and for dry runs.

use std::sync::Arc;

use xen::{DomId, Uuid};

use super::requests::fail;
use super::{Action, ClientId, Instant, Query, Toolstack, policy};
use crate::config::VmConfig;
use crate::plan::Start;
use crate::saved::SavedFile;
use crate::work::{Failure, Output, QueryWork};

/// A create or start that waits for a poll of a domain with its VM's name.
#[derive(Debug)]
pub(super) enum WantedVm {
    New { config: Box<VmConfig>, fresh_uuid: Uuid, start: Start },
    Defined { uuid: Uuid, start: Start },
    Saved { file: Box<SavedFile>, config: Box<VmConfig>, start: Start },
}

/// What may exist already of a VM that is to run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Existing {
    Nothing,
    /// Its definition: a saved VM may be a defined one.
    Definition,
}

impl Toolstack {
    /// Why no VM with this configuration can be created now, as far as this machine knows.
    pub(super) fn refusals(&self, config: &VmConfig, uuid: Uuid) -> Vec<String> {
        self.refusals_of(config, uuid, Existing::Nothing)
    }

    /// As [`Self::refusals`], for a VM of which something may exist.
    pub(super) fn refusals_of(
        &self,
        config: &VmConfig,
        uuid: Uuid,
        existing: Existing,
    ) -> Vec<String> {
        let mut refusals = policy::refusals(config);
        let name = config.name.as_str();
        let place = config.origin.at("name");
        let is_defined = self.is_defined(name, uuid, existing);
        let is_name_used = self.vms.named(name).is_some()
            || self.foreign.named(name).is_some()
            || self.unread.values().any(|it| it.name == name);
        let is_uuid_used = self.vms.contains_key(&uuid)
            || self.unread.contains_key(&uuid)
            || self.foreign.places(uuid).next().is_some();
        if is_defined {
            refusals.push(format!("{place}: {name} is a defined VM; `xy start {name}` starts it"));
        } else if is_name_used {
            refusals.push(format!("{place}: a domain named {name} exists already"));
        } else if is_uuid_used {
            let place = config.origin.at("uuid");
            refusals.push(format!("{place}: a domain with UUID {uuid} exists already"));
        }
        refusals
    }

    /// The domain of another toolstack with this VM's name or UUID, if that is the only conflict of
    /// a create. It may be gone by now, since the end of a domain is reported late.
    pub(super) fn namesake(&self, config: &VmConfig, uuid: Uuid) -> Option<DomId> {
        self.namesake_of(config, uuid, Existing::Nothing)
    }

    /// As [`Self::namesake`], for a VM of which something may exist.
    pub(super) fn namesake_of(
        &self,
        config: &VmConfig,
        uuid: Uuid,
        existing: Existing,
    ) -> Option<DomId> {
        let name = config.name.as_str();
        let is_ours = self.is_defined(name, uuid, existing)
            || self.vms.named(name).is_some()
            || self.vms.contains_key(&uuid)
            || self.unread.contains_key(&uuid)
            || self.unread.values().any(|it| it.name == name);
        if is_ours || !policy::refusals(config).is_empty() {
            return None;
        }
        self.foreign.named(name).or_else(|| self.foreign.places(uuid).next())
    }

    /// Whether a VM with this name or UUID is defined, unless that may be.
    fn is_defined(&self, name: &str, uuid: Uuid, existing: Existing) -> bool {
        let named = self.defined(name);
        match existing {
            Existing::Nothing => named.is_some() || self.definitions.contains_key(&uuid),
            Existing::Definition => named.is_some_and(|other| other != uuid),
        }
    }

    /// Handles the poll of a conflicting domain: the create or start continues if it is gone or has
    /// another name, and is refused otherwise.
    pub(super) fn namesake_looked_at(
        &mut self,
        now: Instant,
        client: ClientId,
        domid: DomId,
        wanted: WantedVm,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let (uuid, wanted_name) = match &wanted {
            WantedVm::New { config, fresh_uuid, .. } => {
                (config.uuid.unwrap_or(*fresh_uuid), config.name.clone())
            }
            WantedVm::Saved { file, config, .. } => (file.uuid, config.name.clone()),
            WantedVm::Defined { uuid, .. } => match self.definitions.get(uuid) {
                Some(definition) => (*uuid, definition.config.name.clone()),
                None => return fail(client, format!("{uuid}: was undefined meanwhile"), out),
            },
        };
        let mut is_gone = false;
        if let Ok(Output::Looked { info, name }) = result {
            let info = info.filter(|info| !info.flags.dying());
            is_gone = info.as_ref().is_none_or(|info| {
                info.handle != uuid && name.as_deref() != Some(wanted_name.as_str())
            });
            if is_gone {
                self.foreign.remove(&domid);
                self.handle_polled(now, domid, info.as_deref(), name, out);
            }
        }
        match wanted {
            WantedVm::New { config, fresh_uuid, start } => {
                let refusal = self.refusals(&config, uuid).into_iter().next();
                match refusal.filter(|_| !is_gone) {
                    Some(message) => fail(client, message, out),
                    None => self.create(now, client, *config, fresh_uuid, start, out),
                }
            }
            WantedVm::Saved { file, config, start } => {
                let refusals = self.refusals_of(&config, uuid, Existing::Definition);
                match refusals.into_iter().next().filter(|_| !is_gone) {
                    Some(message) => fail(client, message, out),
                    None => self.restore(now, client, *file, *config, start, out),
                }
            }
            WantedVm::Defined { uuid, start } => match self.may_start(uuid) {
                Err(message) if !is_gone => fail(client, message, out),
                _ => self.start_known(now, client, uuid, start, out),
            },
        }
    }

    /// Finds all errors that a create with this configuration would have, including those that only
    /// the host knows. Of an invalid configuration only the valid parts are checked.
    pub(super) fn check(
        &mut self,
        client: ClientId,
        config: VmConfig,
        fresh_uuid: Uuid,
        is_whole: bool,
        out: &mut Vec<Action>,
    ) {
        let uuid = config.uuid.unwrap_or(fresh_uuid);
        let faults = self.refusals(&config, uuid);
        let own = self.vms.domains().clone();
        let work = QueryWork::Check { config: Arc::new(config), uuid, is_whole, own };
        self.query(client, Query::Check { faults }, work, out);
    }
}
