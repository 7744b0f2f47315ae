//! What stands against a VM before anything of it is made: for a create, and for those who only ask.

use std::sync::Arc;

use xen::Uuid;

use super::{Action, ClientId, Query, Toolstack, policy};
use crate::config::VmConfig;
use crate::work::QueryWork;

impl Toolstack {
    /// Why no VM of this configuration can be created now, as far as this machine knows by itself.
    pub(super) fn refusals(&self, config: &VmConfig, uuid: Uuid) -> Vec<String> {
        let mut refusals = policy::refusals(config);
        let name = config.name.as_str();
        let place = config.origin.at("name");
        let is_defined = self.defined(name).is_some() || self.definitions.contains_key(&uuid);
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

    /// Finds all that a create of this configuration would be refused for. The host is asked for what only
    /// it knows. Of a configuration that is not whole, only what could be read is checked.
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
        let work = QueryWork::Check { config: Arc::new(config), uuid, is_whole };
        self.query(client, Query::Check { faults }, work, out);
    }
}
