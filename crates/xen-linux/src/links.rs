//! [`Links`]: network interfaces, bridge ports, addresses and routes, by route netlink.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::HostError;
use crate::error::Refused;
use crate::netlink::{NLM_F_ACK, NLM_F_DUMP};
use crate::rtnetlink::{self, Answer, NAME_BYTES_MAX, RTM_GETLINK, RTM_SETLINK, Request, answers};

/// A network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// The alias; [`Links::rename`] keeps the original name there.
    pub alias: Option<String>,
    /// Its MAC address, if it has one.
    pub address: Option<[u8; 6]>,
    /// Administratively up, with or without carrier.
    pub up: bool,
    pub mtu: u32,
    /// Index of the bridge (or bond) it is a port of.
    pub master: Option<u32>,
    /// `bridge`, `veth`, ...; physical interfaces and vifs have none.
    pub kind: Option<String>,
}

impl Link {
    #[must_use]
    pub fn is_bridge(&self) -> bool {
        self.kind.as_deref() == Some("bridge")
    }
}

/// A route by an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// An address, or a network of this many bits.
    pub destination: IpAddr,
    pub bits: u8,
    /// The address that this host uses there.
    pub from: Option<Ipv4Addr>,
    /// Of two to the same destination, the one with the lower metric is taken.
    pub metric: u32,
}

/// Longest datagram of the kernel's answers, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Multicast group of link notifications.
const GROUP_LINK: u32 = 1;

/// A route netlink connection.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Links {
    /// # Errors
    /// If the kernel has no route netlink.
    pub fn open() -> Result<Self, HostError> {
        let socket = route_socket(0).refused(|| "cannot open a route netlink socket")?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; ANSWER_BYTES_MAX] })
    }

    /// All interfaces, by index.
    ///
    /// # Errors
    /// Any errno of the kernel; none is expected.
    pub fn all(&mut self) -> Result<Vec<Link>, HostError> {
        let mut links = self
            .exchange(|sequence| Request::new(RTM_GETLINK, NLM_F_DUMP, sequence, 0))
            .refused(|| "cannot list the network interfaces")?;
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    /// The interface of this name, if there is one.
    ///
    /// # Errors
    /// Any errno of the kernel but ENODEV.
    pub fn find(&mut self, name: &str) -> Result<Option<Link>, HostError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Ok(None);
        }
        match self.exchange(|sequence| Request::new(RTM_GETLINK, NLM_F_ACK, sequence, 0).name(name))
        {
            Ok(links) => Ok(links.into_iter().next()),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno).refused(|| format!("cannot look up network interface {name}")),
        }
    }

    /// The bridge of this name.
    ///
    /// # Errors
    /// ENODEV if there is none, EINVAL if the interface is something else.
    pub fn bridge(&mut self, name: &str) -> Result<Link, HostError> {
        let advice = "create it with: ip link add NAME type bridge";
        let link = self.find(name)?;
        let link =
            link.ok_or(Errno::NODEV).refused(|| format!("there is no bridge {name} ({advice})"))?;
        if link.is_bridge() {
            Ok(link)
        } else {
            Err(Errno::INVAL).refused(|| format!("network interface {name} is not a bridge"))
        }
    }

    /// The ports of a bridge, by index.
    ///
    /// # Errors
    /// As [`Links::bridge`].
    pub fn ports(&mut self, bridge: &str) -> Result<Vec<Link>, HostError> {
        let index = self.bridge(bridge)?.index;
        let mut links = self.all()?;
        links.retain(|link| link.master == Some(index));
        Ok(links)
    }

    /// Adds an interface to a bridge, with the bridge's MTU, which is returned, and sets it up.
    ///
    /// # Errors
    /// If either does not exist, or the kernel refuses (the error names both).
    pub fn add_port(&mut self, bridge: &str, port: &str) -> Result<u32, HostError> {
        let master = self.bridge(bridge)?;
        let link = self.existing(port)?;
        self.exchange(|sequence| {
            let request = Request::new(RTM_SETLINK, NLM_F_ACK, sequence, link.index);
            let request = if link.mtu == master.mtu { request } else { request.mtu(master.mtu) };
            request.bridge(master.index).up()
        })
        .refused(|| format!("cannot add {port} to bridge {bridge}"))?;
        Ok(master.mtu)
    }

    /// Renames an interface that is down, and keeps the original name as its alias.
    ///
    /// # Errors
    /// If it does not exist, or the name is in use.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        self.exchange(|sequence| {
            Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).name(new).alias(name)
        })
        .refused(|| match self.find(new) {
            Ok(Some(_)) => {
                format!("cannot rename {name}: an interface {new} exists already")
            }
            _ => format!("cannot rename {name} to {new}"),
        })
        .map(drop)
    }

    /// Removes an interface from its bridge, if it is in one.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn remove_port(&mut self, port: &str) -> Result<(), HostError> {
        let index = self.existing(port)?.index;
        self.exchange(|sequence| Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).bridge(0))
            .refused(|| format!("cannot remove {port} from its bridge"))
            .map(drop)
    }

    /// Sets the MAC address of an interface, which may have to be down.
    ///
    /// # Errors
    /// If it does not exist, or does not change its address now.
    pub fn set_mac(&mut self, name: &str, address: [u8; 6]) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        self.exchange(|sequence| {
            Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).address(address)
        })
        .refused(|| format!("cannot set the MAC address of {name}"))
        .map(drop)
    }

    /// Sets the largest packet an interface carries, in bytes.
    ///
    /// # Errors
    /// If it does not exist, or cannot carry that much.
    pub fn set_mtu(&mut self, name: &str, bytes: u32) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        self.exchange(|sequence| Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).mtu(bytes))
            .refused(|| format!("cannot set the MTU of {name} to {bytes}"))
            .map(drop)
    }

    /// Sets an interface down. Its routes go with that.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn lower(&mut self, name: &str) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        self.exchange(|sequence| Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).down())
            .refused(|| format!("cannot set {name} down"))
            .map(drop)
    }

    /// Sets an interface up. It may answer ARP for all addresses that this host has routes to.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn raise(&mut self, name: &str, proxy_arp: bool) -> Result<Link, HostError> {
        let index = self.existing(name)?.index;
        self.exchange(|sequence| {
            let request = Request::new(RTM_SETLINK, NLM_F_ACK, sequence, index).up();
            if proxy_arp { request.proxy_arp() } else { request }
        })
        .refused(|| format!("cannot set {name} up"))?;
        self.existing(name)
    }

    /// Gives an interface an IPv4 address of its own, with no network. Idempotent.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn add_address(&mut self, name: &str, address: Ipv4Addr) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        self.exchange_bytes(|sequence| rtnetlink::new_address(sequence, index, address))
            .refused(|| format!("cannot give {name} the address {address}"))
            .map(drop)
    }

    /// The first IPv4 address of an interface.
    ///
    /// # Errors
    /// ENODEV if there is no such interface.
    pub fn address_of(&mut self, name: &str) -> Result<Option<Ipv4Addr>, HostError> {
        let index = self.existing(name)?.index;
        let mut first = None;
        self.exchange_with(rtnetlink::get_addresses, |answer| {
            if let Answer::Address { index: of, address } = answer
                && of == index
            {
                first = first.or(Some(address));
            }
        })
        .refused(|| format!("cannot list the addresses of {name}"))?;
        Ok(first)
    }

    /// Adds a route by an interface that is up.
    ///
    /// # Errors
    /// EEXIST if there is one to the same destination with the same metric.
    pub fn add_route(&mut self, name: &str, route: &Route) -> Result<(), HostError> {
        let index = self.existing(name)?.index;
        let Route { destination, bits, .. } = route;
        let added = self.exchange_bytes(|sequence| rtnetlink::new_route(sequence, index, route));
        let is_taken = matches!(added, Err(Errno::EXIST));
        added
            .refused(|| match is_taken {
                true => format!("another route goes to {destination}/{bits}; `ip route` shows it"),
                false => format!("cannot add a route to {destination}/{bits} by {name}"),
            })
            .map(drop)
    }

    /// Waits until there is an interface of this name, such as a backend's `vif3.0`.
    ///
    /// # Errors
    /// ETIMEDOUT if it does not appear in time.
    pub fn wait_for(&mut self, name: &str, timeout: Duration) -> Result<Link, HostError> {
        let refused = || format!("cannot wait for network interface {name}");
        let deadline = Instant::now() + timeout;
        // Subscribed before the lookup, so that its appearance cannot be missed.
        let news = route_socket(GROUP_LINK).refused(refused)?;
        loop {
            if let Some(link) = self.find(name)? {
                return Ok(link);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT).refused(|| {
                    format!(
                        "network interface {name} did not appear within {} s",
                        timeout.as_secs()
                    )
                });
            }
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&left)) {
                // The content of notifications does not matter, nor whether some were lost
                // (ENOBUFS).
                Ok(_) => match recv(&news, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                    Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {}
                    Err(errno) => return Err(errno).refused(refused),
                },
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).refused(refused),
            }
        }
    }

    fn existing(&mut self, name: &str) -> Result<Link, HostError> {
        self.find(name)?
            .ok_or(Errno::NODEV)
            .refused(|| format!("there is no network interface {name}"))
    }

    /// Sends a request and collects its answer. An inconsistent dump is accepted.
    fn exchange(&mut self, request: impl FnOnce(u32) -> Request) -> Result<Vec<Link>, Errno> {
        self.exchange_bytes(|sequence| request(sequence).done())
    }

    fn exchange_bytes(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Vec<Link>, Errno> {
        let mut links = Vec::new();
        self.exchange_with(request, |answer| {
            if let Answer::Link(link) = answer {
                links.push(link);
            }
        })?;
        Ok(links)
    }

    fn exchange_with(
        &mut self,
        request: impl FnOnce(u32) -> Vec<u8>,
        mut take: impl FnMut(Answer),
    ) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        send(&self.socket, &request(sequence), SendFlags::empty())?;
        loop {
            let length = match recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let datagram = self.buffer.get(..length).ok_or(Errno::MSGSIZE)?;
            for answer in answers(datagram, sequence) {
                match answer {
                    Answer::End(result) => return result,
                    answer => take(answer),
                }
            }
        }
    }
}

fn route_socket(groups: u32) -> Result<OwnedFd, Errno> {
    // Protocol 0 of this family is "route".
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_in_the_list() {
        let mut links = Links::open().unwrap();
        let lo = links.find("lo").unwrap().expect("every network namespace has lo");
        assert_eq!((lo.name.as_str(), lo.is_bridge()), ("lo", false));
        assert!(links.all().unwrap().contains(&lo));
    }

    #[test]
    fn an_impossible_interface_name_is_not_found() {
        let mut links = Links::open().unwrap();
        for name in ["", "no-such-link", "a-name-far-too-long-for-linux"] {
            assert_eq!(links.find(name).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn a_missing_bridge_and_an_interface_that_is_not_one_are_named() {
        let mut links = Links::open().unwrap();
        let error = links.bridge("nobr0").unwrap_err();
        assert_eq!(error.errno(), xen::Errno::ENODEV);
        assert!(error.to_string().starts_with("there is no bridge nobr0"), "{error}");
        let error = links.add_port("lo", "lo").unwrap_err();
        assert!(error.to_string().starts_with("network interface lo is not a bridge"), "{error}");
    }

    #[test]
    fn waiting_for_a_missing_interface_times_out() {
        let mut links = Links::open().unwrap();
        let error = links.wait_for("vif9999.9", Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.errno(), xen::Errno(110));
        assert!(error.to_string().contains("vif9999.9"), "{error}");
    }
}
