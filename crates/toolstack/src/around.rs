//! What a daemon sees when it looks around on its host: what may change there without its doing.

use std::collections::BTreeMap;
use std::sync::Arc;

use xen::VersionInfo;

use crate::network::Network;

/// How often a daemon looks while somebody follows.
pub const LOOKS_EVERY_NS: u64 = 5_000_000_000;
/// How often it reads what SRs hold.
pub const READINGS_EVERY_NS: u64 = 60_000_000_000;
/// Networks of the host that are taken note of. There are a few, unless somebody makes them without end.
pub const NETWORKS_MAX: usize = 1024;
/// Ports of a network that are named.
const PORTS_MAX: usize = 128;
/// What all bridges of Open vSwitch are ports of.
const SWITCH: &str = "ovs-system";
/// Guests behind NAT share the host's addresses, whichever they are.
const NAT: &str = "nat:host";

/// All of it. What could not be read is `None`, and stays as it was.
#[derive(Clone, Debug, Default)]
pub struct Around {
    pub host: Option<HostFacts>,
    pub networks: Option<BTreeMap<Arc<str>, HostNetwork>>,
}

/// The host, by what changes while it runs, and by what does not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostFacts {
    pub version: Arc<VersionInfo>,
    pub cpus: u32,
    pub nodes: u32,
    pub cores_per_socket: u32,
    pub threads_per_core: u32,
    pub cpu_khz: u32,
    pub memory_mib: u64,
    /// Which no domain has or was promised.
    pub memory_free_mib: u64,
    pub dom0_memory_mib: u64,
    pub dom0_vcpus: u32,
    /// In milliseconds since 1970.
    pub booted_unix_ms: u64,
}

/// How a network connects interfaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkKind {
    Bridge,
    Switch,
    Routed,
    Nat,
}

impl NetworkKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Switch => "openvswitch",
            Self::Routed => "routed",
            Self::Nat => "nat",
        }
    }
}

/// A network that the host has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostNetwork {
    pub kind: NetworkKind,
    pub is_up: bool,
    pub mtu: Option<u32>,
    /// Its ports beside the interfaces of domains: cards, bonds, VLANs.
    pub ports: Vec<String>,
}

/// A network interface of the host that is no domain's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostLink {
    pub name: String,
    pub is_bridge: bool,
    /// The bridge, bond or switch that it is a port of.
    pub master: Option<String>,
    pub mtu: Option<u32>,
    pub is_up: bool,
}

/// Whether the kernel's name of an interface is that of a backend's end, or of an emulated card's.
#[must_use]
pub fn is_of_domain(link: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let place = link.strip_suffix("-emu").unwrap_or(link).strip_prefix("vif");
    let place = place.and_then(|it| it.split_once('.'));
    link.ends_with("-emu")
        || place.is_some_and(|(domid, devid)| is_number(domid) && is_number(devid))
}

/// The network that a vif is to be on: its key among all, and of which kind it is taken to be. No name of an interface
/// has a colon, so no bridge has a key of the other kinds.
#[must_use]
pub fn place_of(network: &Network) -> (Arc<str>, NetworkKind) {
    match network {
        Network::Bridge(name) => (name.as_str().into(), NetworkKind::Bridge),
        Network::Switch(port) => (port.bridge.as_str().into(), NetworkKind::Switch),
        Network::Routed { gateway, .. } => (routed(gateway), NetworkKind::Routed),
        Network::Nat { .. } => (NAT.into(), NetworkKind::Nat),
    }
}

fn routed(gateway: &str) -> Arc<str> {
    format!("routed:{gateway}").into()
}

/// The networks that these interfaces are, with the bridges of Open vSwitch and their ports. An interface that VMs could be
/// routed by is one that `is_used` says they are.
#[must_use]
pub fn networks(
    links: &[HostLink],
    switches: &BTreeMap<String, Vec<String>>,
    is_used: impl Fn(&str) -> bool,
) -> BTreeMap<Arc<str>, HostNetwork> {
    let mut ports: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for link in links {
        if let Some(master) = &link.master {
            let ports = ports.entry(master).or_default();
            if ports.len() < PORTS_MAX {
                ports.push(link.name.clone());
            }
        }
    }
    let mut found = BTreeMap::new();
    let network = |kind, link: Option<&HostLink>, ports| HostNetwork {
        kind,
        is_up: link.is_some_and(|it| it.is_up),
        mtu: link.and_then(|it| it.mtu),
        ports,
    };
    for (name, ports) in switches {
        let link = links.iter().find(|it| it.name == *name);
        let mut ports: Vec<String> =
            ports.iter().filter(|it| *it != name && !is_of_domain(it)).cloned().collect();
        ports.sort_unstable();
        ports.truncate(PORTS_MAX);
        found.insert(name.as_str().into(), network(NetworkKind::Switch, link, ports));
    }
    for link in links {
        if link.is_bridge && link.name != SWITCH {
            let mut ports = ports.remove(link.name.as_str()).unwrap_or_default();
            ports.sort_unstable();
            found
                .insert(link.name.as_str().into(), network(NetworkKind::Bridge, Some(link), ports));
        }
        let key = routed(&link.name);
        if is_used(&key) {
            let ports = vec![link.name.clone()];
            found.insert(key, network(NetworkKind::Routed, Some(link), ports));
        }
    }
    if is_used(NAT) {
        let nat = HostNetwork { kind: NetworkKind::Nat, is_up: true, mtu: None, ports: Vec::new() };
        found.insert(NAT.into(), nat);
    }
    while found.len() > NETWORKS_MAX {
        found.pop_last();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, is_bridge: bool, master: Option<&str>) -> HostLink {
        let master = master.map(str::to_owned);
        HostLink { name: name.to_owned(), is_bridge, master, mtu: Some(1500), is_up: true }
    }

    #[test]
    fn bridges_have_the_hosts_ports_and_routes_are_networks_once_they_are_used() {
        let links = [
            link("eth0", false, Some("xenbr0")),
            link("eth1", false, None),
            link("ovs0", false, None),
            link(SWITCH, true, None),
            link("xenbr0", true, None),
        ];
        let ports = ["ovs0", "eth2", "vif3.0", "mine-emu"].map(str::to_owned).to_vec();
        let switches = BTreeMap::from([("ovs0".to_owned(), ports)]);
        let found = networks(&links, &switches, |key| key == "routed:eth1" || key == NAT);
        let shown: Vec<String> = found
            .iter()
            .map(|(key, it)| format!("{key} {} {}", it.kind.as_str(), it.ports.join(",")))
            .collect();
        let expected = [
            "nat:host nat ",
            "ovs0 openvswitch eth2",
            "routed:eth1 routed eth1",
            "xenbr0 bridge eth0",
        ];
        assert_eq!(shown, expected);
        assert_eq!(found["ovs0"].mtu, Some(1500));
    }

    #[test]
    fn a_host_with_networks_without_end_is_not_followed_to_it() {
        let links: Vec<HostLink> =
            (0..NETWORKS_MAX + 10).map(|at| link(&format!("br{at}"), true, None)).collect();
        assert_eq!(networks(&links, &BTreeMap::new(), |_| false).len(), NETWORKS_MAX);
        let ports: Vec<HostLink> =
            (0..500).map(|at| link(&format!("p{at}"), false, Some("br"))).collect();
        let links = [ports, vec![link("br", true, None)]].concat();
        let found = networks(&links, &BTreeMap::new(), |_| false);
        assert_eq!(found["br"].ports.len(), PORTS_MAX);
    }

    #[test]
    fn ends_of_domains_are_told_by_their_names() {
        for (name, expected) in [
            ("vif1.0", true),
            ("vif12.3-emu", true),
            ("inside-emu", true),
            ("vif", false),
            ("vif1", false),
            ("vifx.0", false),
            ("eth0", false),
        ] {
            assert_eq!(is_of_domain(name), expected, "{name}");
        }
    }
}
