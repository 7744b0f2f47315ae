//! How the host's end of a vif is connected: by a bridge of Linux, by Open vSwitch, by routes, with NAT or without. What Xen's
//! scripts of these names do is done without them; any other script is run.
//!
//! Sources: xen `tools/hotplug/Linux/vif-bridge`, `vif-openvswitch`, `vif-route` and `vif-nat`.

mod address;
mod connect;
mod filter;
mod ovsdb;

use core::net::{IpAddr, Ipv4Addr};

use storage::HostError;
use xen::{DomId, Uuid};

pub use address::Prefix;
pub use filter::{Filter, FilterChange};

pub(crate) use connect::{check, connect, disconnect, forget_dead, switches};

use crate::around::HostLink;
use crate::config::{Mac, VifConfig, VmConfig};
use crate::device_model;
use crate::host::Link;
use crate::hotplug;
use crate::layout::{self, default_mac};

pub const OPENVSWITCH: &str = "/etc/xen/scripts/vif-openvswitch";
pub const ROUTE: &str = "/etc/xen/scripts/vif-route";
pub const NAT: &str = "/etc/xen/scripts/vif-nat";
/// Whose address a routed guest's end has, unless `gatewaydev` names another.
const GATEWAY_DEFAULT: &str = "eth0";
/// Of VLANs, as Open vSwitch has it.
const VLAN_MAX: u16 = 4095;
/// An emulated card's interface is used while there is one.
const METRIC_EMULATED: u32 = 1;
const METRIC: u32 = 2;

/// The networks of this host.
pub trait Networks {
    /// Waits for an interface and gives it its name. Idempotent.
    ///
    /// # Errors
    /// [`HostError::Busy`] if another interface has the name; otherwise an errno of the kernel.
    fn name_link(&mut self, link: &Link) -> Result<(), HostError>;

    /// Brings an interface up, with nothing but these addresses and routes. Returns its MTU. Idempotent.
    ///
    /// # Errors
    /// [`HostError::Busy`] if there is another route to one of these destinations; otherwise an errno of the kernel.
    fn raise_link(&mut self, name: &str, with: &LinkUse) -> Result<u32, HostError>;

    /// The first IPv4 address of an interface.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such interface.
    fn address_of(&mut self, link: &str) -> Result<Option<Ipv4Addr>, HostError>;

    /// Checks that packets can be filtered here.
    ///
    /// # Errors
    /// [`HostError::Missing`] without the program for it.
    fn check_filter(&mut self) -> Result<(), HostError>;

    /// Changes what is filtered, as a whole or not at all. Idempotent.
    ///
    /// # Errors
    /// What the kernel refuses.
    fn filter(&mut self, change: &FilterChange) -> Result<(), HostError>;

    /// The host's interfaces, without the ends of domains'.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn links(&mut self) -> Result<Vec<HostLink>, HostError>;

    /// Sends a request of JSON-RPC to Open vSwitch's database, and returns the answer.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it does not run.
    fn ovsdb(&mut self, request: &str) -> Result<String, HostError>;
}

/// What an interface that is no port of a bridge has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LinkUse {
    pub mtu: Option<u32>,
    /// Of the host; with one it answers for all addresses that the host has routes to (proxy ARP).
    pub address: Option<Ipv4Addr>,
    pub routes: Vec<Prefix>,
    pub metric: u32,
}

/// A port of an Open vSwitch bridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SwitchPort {
    pub bridge: String,
    /// Its VLAN.
    pub tag: Option<u16>,
    /// The VLANs whose frames it has tagged; all if there is neither.
    pub trunks: Vec<u16>,
}

/// `BRIDGE[.VLAN][:VLAN...]`, as vif-openvswitch reads it.
impl std::str::FromStr for SwitchPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected BRIDGE[.VLAN][:VLAN...], a bridge of Open vSwitch, with VLANs of 0 to 4095";
        let vlan = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
            let number = text.parse().ok().filter(|it: &u16| digits && *it <= VLAN_MAX);
            number.ok_or(EXPECTED)
        };
        let (port, trunks) = match text.split_once(':') {
            None => (text, Vec::new()),
            Some((port, trunks)) => (port, trunks.split(':').map(vlan).collect::<Result<_, _>>()?),
        };
        let (bridge, tag) = match port.split_once('.') {
            None => (port, None),
            Some((bridge, tag)) => (bridge, Some(vlan(tag)?)),
        };
        if bridge.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        Ok(Self { bridge: bridge.to_owned(), tag, trunks })
    }
}

/// What a vif is connected to, without a script.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Network {
    Bridge(String),
    Switch(SwitchPort),
    /// The guest has these addresses; its end here has that of `gateway`, an interface of the host.
    Routed {
        gateway: String,
        addresses: Vec<Prefix>,
    },
    /// The same with an address of its own for either end, and what the guest sends elsewhere has the host's.
    Nat {
        guest: Option<Ipv4Addr>,
    },
}

impl Network {
    /// What this vif is to be connected to; `None` if that is not ours to do.
    ///
    /// # Errors
    /// Its parameters do not say it; the error names the one.
    pub fn of(vif: &VifConfig) -> Result<Option<Self>, String> {
        if vif.backend.is_some() {
            return Ok(None);
        }
        let Some(script) = &vif.script else { return Ok(Some(Self::Bridge(vif.bridge.clone()))) };
        Ok(Some(match hotplug::path(script).as_str() {
            OPENVSWITCH => {
                let port = vif.bridge.parse();
                Self::Switch(port.map_err(|problem| format!("bridge={:?}: {problem}", vif.bridge))?)
            }
            ROUTE => {
                let gateway = vif.gateway.clone().unwrap_or_else(|| GATEWAY_DEFAULT.to_owned());
                let addresses = addresses(vif)?;
                if let Some(odd) = addresses.iter().find(|it| **it != it.network()) {
                    return Err(format!(
                        "ip={odd}: a route goes to a network ({}) or to an address",
                        odd.network()
                    ));
                }
                Self::Routed { gateway, addresses }
            }
            NAT => Self::Nat { guest: guest_of_nat(vif)? },
            _ => return Ok(None),
        }))
    }
}

/// The addresses of `ip=`.
fn addresses(vif: &VifConfig) -> Result<Vec<Prefix>, String> {
    let words = vif.ip.iter().flat_map(|it| it.split_ascii_whitespace());
    let parse = |word: &str| word.parse().map_err(|problem| format!("ip={word:?}: {problem}"));
    words.map(parse).collect()
}

fn guest_of_nat(vif: &VifConfig) -> Result<Option<Ipv4Addr>, String> {
    let refuse = |reason| Err(format!("ip={:?}: {reason}", vif.ip.as_deref().unwrap_or_default()));
    match addresses(vif)?.as_slice() {
        [] => Ok(None),
        [Prefix { address: IpAddr::V4(guest), .. }] if nat_gateway(*guest).is_some() => {
            Ok(Some(*guest))
        }
        [Prefix { address: IpAddr::V4(_), .. }] => refuse(
            "the host's end has the last number plus 127 with vif-nat; expected one of at most 128",
        ),
        _ => refuse("a guest behind NAT has one IPv4 address"),
    }
}

/// The address of the host's end: vif-nat's choice, which guests have in their configuration.
fn nat_gateway(guest: Ipv4Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d] = guest.octets();
    Some(Ipv4Addr::new(a, b, c, d.checked_add(127)?))
}

/// The address of a guest behind NAT that is told none, as vif-nat has it.
fn nat_guest(domid: DomId, devid: u32) -> Ipv4Addr {
    let [high, low] = domid.0.to_be_bytes();
    // A tenth of these would have no address for the host's end.
    let last = u8::try_from(devid + 1).ok().filter(|it| *it <= 128).unwrap_or(1);
    Ipv4Addr::new(10, high, low, last)
}

/// What is wrong with the parameters of a vif whose network is ours, or which may not send what it likes. The error names
/// the parameter.
pub(crate) fn problem(vif: &VifConfig) -> Result<(), String> {
    let network = Network::of(vif)?;
    if !vif.antispoof {
        return Ok(());
    }
    if vif.backend.is_some() {
        return Err("antispoof: the packets of a driver domain are not seen here".to_owned());
    }
    if let Some(name) = vif.name.as_ref().filter(|name| !filter::is_plain(name)) {
        return Err(format!(
            "vifname={name:?}: with antispoof, expected letters, digits, '.', '-' and '_'"
        ));
    }
    match network {
        Some(_) => addresses(vif).map(drop),
        None => Err("antispoof: a script of another's connects this interface".to_owned()),
    }
}

/// What a port of a switch is said to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortOwner {
    pub vm: String,
    pub uuid: Uuid,
    pub domid: DomId,
    pub mac: Mac,
}

/// One interface of the host, and what becomes of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Connection {
    pub network: Network,
    pub link: Link,
    pub metric: u32,
    pub mtu: Option<u32>,
    pub filter: Option<Filter>,
    pub owner: PortOwner,
}

impl Connection {
    /// Its name once it is connected.
    #[must_use]
    pub fn name(&self) -> &str {
        self.link.rename.as_ref().unwrap_or(&self.link.name)
    }
}

/// The links of a vif: netback's, and that of an emulated card if there is one.
pub(crate) fn links(domid: DomId, vif: &VifConfig) -> Vec<Link> {
    let mut links = vec![Link { name: layout::vif_link(domid, vif), rename: vif.name.clone() }];
    if vif.model.is_some() {
        // The device model has named it.
        links.push(Link { name: device_model::vif_link(domid, vif), rename: None });
    }
    links
}

/// What has to be connected for a vif of a domain, if that is ours to do.
pub(crate) fn connections(
    config: &VmConfig,
    uuid: Uuid,
    domid: DomId,
    vif: &VifConfig,
) -> Vec<Connection> {
    let Ok(Some(network)) = Network::of(vif) else { return Vec::new() };
    let network = match network {
        Network::Nat { guest: None } => Network::Nat { guest: Some(nat_guest(domid, vif.devid)) },
        network => network,
    };
    let mac = vif.mac.unwrap_or_else(|| default_mac(uuid, vif.devid));
    let allowed = match (&network, addresses(vif).unwrap_or_default()) {
        (Network::Nat { guest: Some(guest) }, _) => vec![Prefix::of(IpAddr::V4(*guest))],
        (_, addresses) => addresses,
    };
    let connection = |(index, link): (usize, Link)| {
        let name = link.rename.as_ref().unwrap_or(&link.name).clone();
        let filter = Filter { chain: link.name.clone(), link: name, mac, allowed: allowed.clone() };
        Connection {
            network: network.clone(),
            metric: if index == 0 { METRIC } else { METRIC_EMULATED },
            mtu: vif.mtu,
            filter: vif.antispoof.then_some(filter),
            owner: PortOwner { vm: config.name.clone(), uuid, domid, mac },
            link,
        }
    };
    links(domid, vif).into_iter().enumerate().map(connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg;

    fn configured(vif: &str) -> VmConfig {
        let text =
            format!("name='web'\nkernel='/k'\nmemory=8\nvif=['mac=00:16:3e:01:02:03,{vif}']\n");
        xlcfg::parse(xlcfg::Source { file: "a.cfg", text: &text, overrides: &[] }).unwrap()
    }

    fn network(vif: &str) -> Option<Network> {
        Network::of(&configured(vif).vifs[0]).unwrap()
    }

    fn refusal(vif: &str) -> String {
        let text = format!("name='web'\nkernel='/k'\nmemory=8\nvif=['{vif}']\n");
        let source = xlcfg::Source { file: "a.cfg", text: &text, overrides: &[] };
        xlcfg::parse(source).unwrap_err().to_string()
    }

    #[test]
    fn xens_scripts_name_networks_and_others_are_run() {
        assert_eq!(network("bridge=br1"), Some(Network::Bridge("br1".to_owned())));
        let port = |bridge: &str, tag, trunks: &[u16]| {
            Some(Network::Switch(SwitchPort {
                bridge: bridge.to_owned(),
                tag,
                trunks: trunks.to_vec(),
            }))
        };
        assert_eq!(network("script=vif-openvswitch,bridge=ovs0"), port("ovs0", None, &[]));
        let by_path = "script=/etc/xen/scripts/vif-openvswitch,bridge=ovs0.10:20:30";
        assert_eq!(network(by_path), port("ovs0", Some(10), &[20, 30]));
        assert_eq!(network("script=/opt/vif-openvswitch,bridge=ovs0"), None);
        assert_eq!(network("script=vif-mine"), None);
        assert_eq!(network("script=vif-route,backend=net"), None);
        let Some(Network::Routed { gateway, addresses }) =
            network("script=vif-route,ip=192.0.2.7 2001:db8::/64")
        else {
            panic!("not routed")
        };
        assert_eq!(gateway, "eth0");
        let shown: Vec<String> = addresses.iter().map(Prefix::to_string).collect();
        assert_eq!(shown, ["192.0.2.7/32", "2001:db8::/64"]);
        assert_eq!(network("script=vif-nat"), Some(Network::Nat { guest: None }));
        let guest = Some(Ipv4Addr::new(10, 1, 0, 1));
        assert_eq!(network("script=vif-nat,ip=10.1.0.1/16"), Some(Network::Nat { guest }));
    }

    #[test]
    fn what_a_network_cannot_be_is_refused_with_its_parameter() {
        for (vif, expected) in [
            (
                "script=vif-openvswitch,bridge=ovs0.5000",
                "bridge=\"ovs0.5000\": expected BRIDGE[.VLAN]",
            ),
            ("script=vif-openvswitch,bridge=ovs0:", "bridge=\"ovs0:\": expected BRIDGE[.VLAN]"),
            ("script=vif-openvswitch,bridge=.5", "bridge=\".5\": expected BRIDGE[.VLAN]"),
            ("script=vif-route,ip=10.0.0.300", "ip=\"10.0.0.300\": expected an IP address"),
            (
                "script=vif-route,ip=10.0.0.5/24",
                "ip=10.0.0.5/24: a route goes to a network (10.0.0.0/24)",
            ),
            (
                "script=vif-nat,ip=10.0.0.1 10.0.0.2",
                "ip=\"10.0.0.1 10.0.0.2\": a guest behind NAT has one",
            ),
            ("script=vif-nat,ip=2001:db8::1", "ip=\"2001:db8::1\": a guest behind NAT has one"),
            ("script=vif-nat,ip=10.0.0.200", "ip=\"10.0.0.200\": the host's end has"),
            ("antispoof=1,script=vif-mine", "antispoof: a script of another's"),
            ("antispoof=1,backend=net", "antispoof: the packets of a driver domain"),
            ("antispoof=1,ip=nowhere", "ip=\"nowhere\": expected an IP address"),
            ("antispoof=1,vifname=a\"b", "with antispoof, expected letters"),
            ("antispoof=maybe", "antispoof=\"maybe\": expected 0 or 1"),
        ] {
            let told = refusal(vif);
            assert!(told.contains(expected), "{vif}: {told}");
        }
    }

    #[test]
    fn a_guest_behind_nat_has_the_addresses_that_vif_nat_gives_it() {
        for (domid, devid, guest, gateway) in [
            (7, 0, "10.0.7.1", "10.0.7.128"),
            (0x102, 3, "10.1.2.4", "10.1.2.131"),
            (7, 255, "10.0.7.1", "10.0.7.128"),
        ] {
            let found = nat_guest(DomId(domid), devid);
            assert_eq!(found.to_string(), guest);
            assert_eq!(nat_gateway(found).unwrap().to_string(), gateway);
        }
    }

    #[test]
    fn an_emulated_card_has_an_interface_of_its_own_which_comes_first() {
        let text =
            "name='w'\ntype='hvm'\nmemory=8\nvif=['antispoof=1,ip=10.0.0.5,vifname=inside']\n";
        let config = xlcfg::parse(xlcfg::Source { file: "a.cfg", text, overrides: &[] }).unwrap();
        let all = connections(&config, Uuid([7; 16]), DomId(3), &config.vifs[0]);
        let shown: Vec<_> = all
            .iter()
            .map(|it| (it.name(), it.metric, it.filter.as_ref().unwrap().chain.as_str()))
            .collect();
        assert_eq!(shown, [("inside", 2, "vif3.0"), ("inside-emu", 1, "inside-emu")]);
    }
}
