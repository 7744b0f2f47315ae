//! Dom0's networks beside bridges: addresses, routes, filters, and a database of Open vSwitch.
//!
//! Routes go with their interface; rows of the database and filters stay until somebody removes them.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use storage::HostError;
use toolstack::around::HostLink;
use toolstack::host::Link;
use toolstack::network::{Filter, FilterChange, LinkUse, Networks, Prefix};

use crate::os::SimOs;

/// Of every bridge and interface.
pub(crate) const MTU: u32 = 1500;

/// What is not a bridge.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkState {
    /// Interfaces of the host, with their addresses.
    cards: BTreeMap<String, Option<Ipv4Addr>>,
    /// Those that are ports of a bridge, and of which.
    ports: BTreeMap<String, String>,
    raised: BTreeMap<String, LinkUse>,
    filters: BTreeMap<String, Filter>,
    translated: BTreeSet<Ipv4Addr>,
    has_nft: bool,
    switch: Option<Switch>,
}

/// Open vSwitch. Its daemon takes note of its database one look late, if it does.
#[derive(Clone, Debug, Default)]
struct Switch {
    ids: u64,
    /// Bridges, and the ports that they refer to.
    bridges: BTreeMap<String, BTreeSet<String>>,
    /// Rows of ports by identifier, each with the row of its interface.
    ports: BTreeMap<String, (Value, Value)>,
    next_cfg: i64,
    cur_cfg: i64,
    is_deaf: bool,
    complaint: Option<String>,
}

impl NetworkState {
    /// Its routes, and its name, are gone.
    pub(crate) fn forget_link(&mut self, name: &str) {
        self.raised.remove(name);
    }

    /// The host has lost power; the database is a file.
    pub(crate) fn forget(&mut self) {
        self.raised.clear();
        self.filters.clear();
        self.translated.clear();
    }

    /// What there is, a line each.
    pub(crate) fn lines(&self) -> BTreeSet<String> {
        let raised = self.raised.iter().map(|(name, with)| {
            let routes: Vec<String> = with.routes.iter().map(Prefix::to_string).collect();
            let from = with.address.map(|it| format!(" from {it}")).unwrap_or_default();
            let to = if routes.is_empty() { "" } else { " to " };
            format!("{name} is up{from}{to}{}", routes.join(" "))
        });
        let filters = self.filters.values().map(|it| {
            let allowed: Vec<String> = it.allowed.iter().map(Prefix::to_string).collect();
            format!("{} may send {} {}", it.link, it.mac, allowed.join(" ")).trim_end().to_owned()
        });
        let translated = self.translated.iter().map(|it| format!("{it} is translated"));
        let ports = self.switch.iter().flat_map(|switch| {
            switch.bridges.iter().flat_map(move |(bridge, ports)| {
                ports.iter().map(move |id| {
                    let (port, interface) = &switch.ports[id];
                    let vlan = |key| port.get(key).map(|it| format!(" {key} {it}"));
                    let vlans = [vlan("tag"), vlan("trunks")].map(Option::unwrap_or_default);
                    let name = interface["name"].as_str().unwrap_or_default();
                    format!("{name} is a port of {bridge}{}", vlans.concat())
                })
            })
        });
        raised.chain(filters).chain(translated).chain(ports).collect()
    }
}

impl SimOs {
    /// Adds an interface of the host.
    pub fn add_card(&self, name: &str, address: Option<Ipv4Addr>) {
        self.get_mut().networks.cards.insert(name.to_owned(), address);
    }

    /// Makes an interface of the host a port of a bridge.
    pub fn add_port(&self, card: &str, bridge: &str) {
        self.get_mut().networks.ports.insert(card.to_owned(), bridge.to_owned());
    }

    /// Installs nft.
    pub fn add_nft(&self) {
        self.get_mut().networks.has_nft = true;
    }

    /// Starts Open vSwitch with a bridge.
    pub fn add_switch(&self, bridge: &str) {
        let mut os = self.get_mut();
        let switch = os.networks.switch.get_or_insert_default();
        switch.bridges.insert(bridge.to_owned(), BTreeSet::new());
    }

    /// The switch's daemon takes no note of its database from now on.
    pub fn deafen_switch(&self) {
        self.get_mut().networks.switch.as_mut().expect("there is one").is_deaf = true;
    }

    /// The switch cannot use the interfaces that it is given from now on.
    pub fn have_switch_complain(&self, why: &str) {
        let complaint = Some(why.to_owned());
        self.get_mut().networks.switch.as_mut().expect("there is one").complaint = complaint;
    }

    /// What is connected, filtered and translated beside bridges, a line each.
    #[must_use]
    pub fn networks(&self) -> Vec<String> {
        self.get().networks.lines().into_iter().collect()
    }

    /// Gives an interface its name, and returns that.
    pub(crate) fn named(&self, link: &Link) -> Result<String, HostError> {
        self.act()?;
        let mut os = self.get_mut();
        let name = link.rename.as_ref().unwrap_or(&link.name);
        let alias = os.renamed.get(name) == Some(&link.name);
        if !alias && *name != link.name {
            if os.links.contains(name) || os.bridges.contains_key(name) {
                return Err(HostError::Busy);
            }
            if !os.links.remove(&link.name) {
                return Err(HostError::Missing);
            }
            os.links.insert(name.clone());
            os.renamed.insert(name.clone(), link.name.clone());
        }
        if !os.links.contains(name) {
            return Err(HostError::Missing);
        }
        Ok(name.clone())
    }
}

impl Networks for SimOs {
    fn name_link(&mut self, link: &Link) -> Result<(), HostError> {
        self.named(link).map(drop)
    }

    fn raise_link(&mut self, name: &str, with: &LinkUse) -> Result<u32, HostError> {
        self.act()?;
        let mut os = self.get_mut();
        if !os.links.contains(name) {
            return Err(HostError::Missing);
        }
        let others = os.networks.raised.iter().filter(|(other, _)| *other != name);
        let taken = others
            .filter(|(_, it)| it.metric == with.metric)
            .any(|(_, it)| it.routes.iter().any(|route| with.routes.contains(route)));
        if taken {
            return Err(HostError::Refused("another route goes there".to_owned()));
        }
        os.networks.raised.insert(name.to_owned(), with.clone());
        Ok(with.mtu.unwrap_or(MTU))
    }

    fn address_of(&mut self, link: &str) -> Result<Option<Ipv4Addr>, HostError> {
        self.get().networks.cards.get(link).copied().ok_or(HostError::Missing)
    }

    fn check_filter(&mut self) -> Result<(), HostError> {
        match self.get().networks.has_nft {
            true => Ok(()),
            false => Err(HostError::Missing),
        }
    }

    fn filter(&mut self, change: &FilterChange) -> Result<(), HostError> {
        self.act()?;
        self.check_filter()?;
        let mut os = self.get_mut();
        match change {
            FilterChange::Set(filter) if !os.links.contains(&filter.link) => {
                return Err(HostError::Refused(format!("no interface {}", filter.link)));
            }
            FilterChange::Set(filter) => {
                os.networks.filters.insert(filter.chain.clone(), filter.clone());
            }
            FilterChange::Remove(chain) => drop(os.networks.filters.remove(chain)),
            FilterChange::Translate(guest) => drop(os.networks.translated.insert(*guest)),
            FilterChange::TranslateNoMore(guest) => drop(os.networks.translated.remove(guest)),
        }
        drop(os);
        self.act()
    }

    fn links(&mut self) -> Result<Vec<HostLink>, HostError> {
        let os = self.get();
        let link = |name: &String, is_bridge| HostLink {
            name: name.clone(),
            is_bridge,
            master: os.networks.ports.get(name).cloned(),
            mtu: Some(MTU),
            is_up: true,
        };
        let bridges = os.bridges.keys().map(|name| link(name, true));
        Ok(bridges.chain(os.networks.cards.keys().map(|name| link(name, false))).collect())
    }

    fn ovsdb(&mut self, request: &str) -> Result<String, HostError> {
        if self.get().networks.switch.is_none() {
            return Err(HostError::Missing);
        }
        self.act()?;
        let mut os = self.get_mut();
        let switch = os.networks.switch.as_mut().ok_or(HostError::Missing)?;
        let request: Value = serde_json::from_str(request).expect("ours is JSON");
        let operations = &request["params"].as_array().expect("a list")[1..];
        let mut changed = switch.clone();
        let results: Vec<Value> = operations.iter().map(|it| changed.perform(it)).collect();
        let has_failed = results.iter().any(|it| it.get("error").is_some());
        if !has_failed {
            changed.collect();
            *switch = changed;
        }
        drop(os);
        // The caller may be killed before it knows.
        self.act()?;
        Ok(json!({ "id": request["id"], "error": null, "result": results }).to_string())
    }
}

impl Switch {
    fn perform(&mut self, operation: &Value) -> Value {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let condition = &operation["where"][0];
        let (table, wanted) = (word(&operation["table"]), &condition[2]);
        match (operation["op"].as_str().unwrap_or_default(), table.as_str()) {
            ("select", "Bridge") if condition.is_null() => {
                // Its ports are VMs', which are not asked for.
                let row = |name| json!({ "name": name, "ports": ["set", []] });
                json!({ "rows": self.bridges.keys().map(row).collect::<Vec<_>>() })
            }
            ("select", "Port") if condition[1] == "excludes" => json!({ "rows": [] }),
            ("select", "Bridge") => {
                let found = self.bridges.contains_key(&word(wanted));
                json!({ "rows": if found { vec![json!({ "_uuid": ["uuid", "b"] })] } else { vec![] } })
            }
            ("select", "Port") if condition[0] == "other_config" => {
                let row = |(id, (port, _)): (&String, &(Value, Value))| json!({ "_uuid": ["uuid", id], "external_ids": port["external_ids"] });
                json!({ "rows": self.ports.iter().map(row).collect::<Vec<_>>() })
            }
            ("select", "Port") => {
                let ports = self.ports.iter().filter(|(_, (port, _))| port["name"] == *wanted);
                let rows: Vec<Value> =
                    ports.map(|(id, _)| json!({ "_uuid": ["uuid", id] })).collect();
                json!({ "rows": rows })
            }
            ("select", "Interface") => {
                let error = self.complaint.as_ref().map_or(json!(["set", []]), |it| json!(it));
                json!({ "rows": [{ "error": error }] })
            }
            ("select", _) => {
                let row =
                    json!({ "rows": [{ "next_cfg": self.next_cfg, "cur_cfg": self.cur_cfg }] });
                if !self.is_deaf {
                    self.cur_cfg = self.next_cfg;
                }
                row
            }
            ("wait", "Bridge") => match self.bridges.contains_key(&word(wanted)) {
                true => json!({}),
                false => json!({ "error": "timed out", "details": "\"wait\" timed out" }),
            },
            ("insert", "Interface") => {
                self.ports.insert("named".to_owned(), (Value::Null, operation["row"].clone()));
                json!({ "uuid": ["uuid", "i"] })
            }
            ("insert", "Port") => {
                let (_, interface) = self.ports.remove("named").expect("its interface came first");
                self.ids += 1;
                self.ports.insert(format!("p{}", self.ids), (operation["row"].clone(), interface));
                json!({ "uuid": ["uuid", "p"] })
            }
            ("mutate", "Bridge") if operation["mutations"][0][1] == "insert" => {
                let id = format!("p{}", self.ids);
                self.bridges.get_mut(&word(wanted)).expect("waited for").insert(id);
                json!({ "count": 1 })
            }
            ("mutate", "Bridge") => {
                let id = word(&wanted[1]);
                for ports in self.bridges.values_mut() {
                    ports.remove(&id);
                }
                json!({ "count": 1 })
            }
            ("mutate", _) => {
                self.next_cfg += 1;
                json!({ "count": 1 })
            }
            (operation, table) => json!({ "error": format!("{operation} of {table}") }),
        }
    }

    /// A port that no bridge refers to is gone.
    fn collect(&mut self) {
        let referred: BTreeSet<&String> = self.bridges.values().flatten().collect();
        self.ports.retain(|id, _| referred.contains(id));
    }
}
