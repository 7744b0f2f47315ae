//! Connecting, and the opposite: what is done in which order.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;

use storage::HostError;
use xen::{DomId, Uuid};

use super::{Connection, FilterChange, LinkUse, Network, Prefix, nat_gateway, ovsdb};
use crate::host::Host;

/// How often Open vSwitch is asked whether it has taken note, and for how long.
const ASK_EVERY_NS: u64 = 10_000_000;
const ASKS_MAX: u32 = 3000;

/// Checks that this host has such a network, before anything is made of the VM. The error is without the place.
pub(crate) fn check(
    host: &mut impl Host,
    network: &Network,
    is_filtered: bool,
) -> Result<(), String> {
    let nft = "the program nft is not on this host; on Debian, `apt install nftables`";
    let needs_filter = is_filtered || matches!(network, Network::Nat { .. });
    if needs_filter {
        host.networks().check_filter().map_err(|error| match error {
            HostError::Missing => nft.to_owned(),
            error => format!("nft: {error}"),
        })?;
    }
    match network {
        Network::Bridge(bridge) => host.check_bridge(bridge).map_err(|error| match error {
            HostError::Missing => format!(
                "no bridge named {bridge} on this host; `ip link add {bridge} type bridge` makes one"
            ),
            error => format!("bridge {bridge}: {error}"),
        }),
        Network::Switch(port) => {
            let bridge = &port.bridge;
            let look = |host: &mut dyn super::Networks| ovsdb::seen(&host.ovsdb(&ovsdb::look(bridge, ""))?);
            match look(host.networks()) {
                Ok(seen) if seen.has_bridge => Ok(()),
                Ok(_) => Err(format!(
                    "no bridge named {bridge} in Open vSwitch; `ovs-vsctl add-br {bridge}` makes one"
                )),
                Err(HostError::Missing) => Err("Open vSwitch does not run on this host".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        }
        Network::Routed { gateway, .. } => address_of(host, gateway).map(drop).map_err(|it| it.to_string()),
        Network::Nat { .. } => Ok(()),
    }
}

/// The bridges of Open vSwitch, with their ports that are not ours; none where it does not run.
pub(crate) fn switches(host: &mut impl Host) -> Result<BTreeMap<String, Vec<String>>, HostError> {
    match host.networks().ovsdb(&ovsdb::look_at_all()) {
        Ok(answer) => ovsdb::all(&answer),
        Err(HostError::Missing) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn address_of(host: &mut impl Host, gateway: &str) -> Result<Ipv4Addr, HostError> {
    let refused = |problem| Err(HostError::Refused(format!("gatewaydev={gateway}: {problem}")));
    match host.networks().address_of(gateway) {
        Ok(Some(address)) => Ok(address),
        Ok(None) => refused("this interface of the host has no IPv4 address".to_owned()),
        Err(HostError::Missing) => refused("no such interface on this host".to_owned()),
        Err(error) => refused(error.to_string()),
    }
}

/// Connects an interface, and returns the MTU that it has by then. Nothing of the guest has passed before it is filtered.
pub(crate) fn connect(host: &mut impl Host, connection: &Connection) -> Result<u32, HostError> {
    let name = connection.name();
    host.networks().name_link(&connection.link)?;
    if let Some(filter) = &connection.filter {
        host.networks().filter(&FilterChange::Set(filter.clone()))?;
    }
    let (mtu, metric) = (connection.mtu, connection.metric);
    match &connection.network {
        Network::Bridge(bridge) => host.join_bridge(bridge, &connection.link, mtu),
        Network::Switch(port) => {
            let seen = ovsdb::seen(&host.networks().ovsdb(&ovsdb::look(&port.bridge, name))?)?;
            if !seen.has_bridge {
                return Err(HostError::Refused(format!(
                    "no bridge named {} in Open vSwitch",
                    port.bridge
                )));
            }
            let added = host.networks().ovsdb(&ovsdb::add(&seen, port, name, &connection.owner))?;
            await_notice(host, name, ovsdb::number(&added)?)?;
            host.networks().raise_link(name, &LinkUse { mtu, ..LinkUse::default() })
        }
        Network::Routed { gateway, addresses } => {
            let address = Some(address_of(host, gateway)?);
            let routes = addresses.clone();
            host.networks().raise_link(name, &LinkUse { mtu, address, routes, metric })
        }
        Network::Nat { guest } => {
            let guest = guest.expect("known with the domain");
            let routes = vec![Prefix::of(IpAddr::V4(guest))];
            let used = LinkUse { mtu, address: nat_gateway(guest), routes, metric };
            let mtu = host.networks().raise_link(name, &used)?;
            host.networks().filter(&FilterChange::Translate(guest))?;
            Ok(mtu)
        }
    }
}

fn await_notice(host: &mut impl Host, name: &str, number: i64) -> Result<(), HostError> {
    for _ in 0..ASKS_MAX {
        let answer = host.networks().ovsdb(&ovsdb::progress(name))?;
        if ovsdb::has_noticed(&answer, number)? {
            return Ok(());
        }
        host.system().sleep(ASK_EVERY_NS);
    }
    Err(HostError::Refused("ovs-vswitchd does not take note of its database".to_owned()))
}

/// Undoes what does not go with the interface. All of it is tried; the first error is returned.
pub(crate) fn disconnect(host: &mut impl Host, connection: &Connection) -> Result<(), HostError> {
    let mut done = match &connection.network {
        Network::Bridge(_) | Network::Routed { .. } => Ok(()),
        Network::Switch(port) => remove_port(host, &port.bridge, connection.name()),
        Network::Nat { guest } => {
            let guest = guest.expect("known with the domain");
            undo(host, &FilterChange::TranslateNoMore(guest))
        }
    };
    if let Some(filter) = &connection.filter {
        done = done.and(undo(host, &FilterChange::Remove(filter.chain.clone())));
    }
    done
}

/// A host without the program for it has nothing filtered, as with an adopted domain of xl.
fn undo(host: &mut impl Host, change: &FilterChange) -> Result<(), HostError> {
    match host.networks().filter(change) {
        Err(HostError::Missing) => Ok(()),
        done => done,
    }
}

/// Removes the ports of domains that do not live: a switch keeps them over the end of its host.
pub(crate) fn forget_dead(
    host: &mut impl Host,
    lives: impl Fn(DomId, Uuid) -> bool,
) -> Result<(), HostError> {
    remove_ports(host, &ovsdb::look_for_ours(), |answer| ovsdb::dead(answer, lives))
}

fn remove_port(host: &mut impl Host, bridge: &str, name: &str) -> Result<(), HostError> {
    remove_ports(host, &ovsdb::look(bridge, name), ovsdb::seen)
}

/// Removes what is found by this question. The switch takes note when it does: nobody waits for it.
fn remove_ports(
    host: &mut impl Host,
    question: &str,
    found: impl FnOnce(&str) -> Result<ovsdb::Seen, HostError>,
) -> Result<(), HostError> {
    let seen = match host.networks().ovsdb(question) {
        // A switch that does not run has nothing connected, and forgets what it cannot find.
        Err(HostError::Missing) => return Ok(()),
        answer => found(&answer?)?,
    };
    if !seen.has_port() {
        return Ok(());
    }
    host.networks().ovsdb(&ovsdb::remove(&seen)).and_then(|answer| ovsdb::number(&answer)).map(drop)
}
