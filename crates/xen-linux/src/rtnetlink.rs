//! The part of the route netlink protocol that links need: encodes requests, decodes links and addresses.
//!
//! Pure: `links.rs` owns the socket. Source: Linux `uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`, `ip.h`.

use std::net::{IpAddr, Ipv4Addr};

use rustix::io::Errno;

use crate::netlink::{
    self, Attributes, HEADER_BYTES, Message, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, put_attribute,
    text, word,
};
use crate::{Link, Route};

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_SETLINK: u16 = 19;

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_PROXY_ARP: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RT_TABLE_MAIN: u8 = 254;
/// Of what programs add, as ip(8) does.
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
/// `struct ifaddrmsg`
const ADDRESS_BYTES: usize = 8;

const IFF_UP: u32 = 1;

/// `struct ifinfomsg`
const LINK_BYTES: usize = 16;
/// Longest name of an interface, in bytes, without the terminating zero.
pub(crate) const NAME_BYTES_MAX: usize = 15;

/// A request about links, under construction.
pub(crate) struct Request(Message);

impl Request {
    /// A request about the link of this index; 0 is no particular one.
    pub(crate) fn new(kind: u16, flags: u16, sequence: u32, index: u32) -> Self {
        // Address family "unspecified" and link type; flags to set, and their mask.
        let mut body = [0; LINK_BYTES];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        Self(Message::new(kind, flags, sequence, &body))
    }

    pub(crate) fn name(self, name: &str) -> Self {
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        self.attribute(IFLA_IFNAME, &text)
    }

    /// The alias.
    pub(crate) fn alias(self, text: &str) -> Self {
        self.attribute(IFLA_IFALIAS, text.as_bytes())
    }

    pub(crate) fn address(self, address: [u8; 6]) -> Self {
        self.attribute(IFLA_ADDRESS, &address)
    }

    /// The bridge to join; 0 is none.
    pub(crate) fn bridge(self, index: u32) -> Self {
        self.attribute(IFLA_MASTER, &index.to_ne_bytes())
    }

    pub(crate) fn mtu(self, bytes: u32) -> Self {
        self.attribute(IFLA_MTU, &bytes.to_ne_bytes())
    }

    pub(crate) fn up(self) -> Self {
        self.flags([IFF_UP, IFF_UP])
    }

    pub(crate) fn down(self) -> Self {
        self.flags([0, IFF_UP])
    }

    /// Answers ARP for what this host has routes to.
    pub(crate) fn proxy_arp(self) -> Self {
        let mut values = Vec::new();
        put_attribute(&mut values, IPV4_DEVCONF_PROXY_ARP, &1_u32.to_ne_bytes());
        let mut inet = Vec::new();
        put_attribute(&mut inet, IFLA_INET_CONF | NLA_F_NESTED, &values);
        let mut families = Vec::new();
        put_attribute(&mut families, u16::from(AF_INET) | NLA_F_NESTED, &inet);
        self.attribute(IFLA_AF_SPEC | NLA_F_NESTED, &families)
    }

    /// These flags, and those of them that change.
    fn flags(mut self, words: [u32; 2]) -> Self {
        for (at, word) in [HEADER_BYTES + 8, HEADER_BYTES + 12].into_iter().zip(words) {
            self.0.0[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        self
    }

    fn attribute(self, kind: u16, payload: &[u8]) -> Self {
        Self(self.0.attribute(kind, payload))
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0.done()
    }
}

/// An address for an interface, which is a network of its own.
pub(crate) fn new_address(sequence: u32, index: u32, address: Ipv4Addr) -> Vec<u8> {
    let mut body = [AF_INET, 32, 0, RT_SCOPE_UNIVERSE, 0, 0, 0, 0];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let octets = address.octets();
    Message::new(RTM_NEWADDR, flags, sequence, &body)
        .attribute(IFA_LOCAL, &octets)
        .attribute(IFA_ADDRESS, &octets)
        .done()
}

/// All IPv4 addresses of this host.
pub(crate) fn get_addresses(sequence: u32) -> Vec<u8> {
    Message::new(RTM_GETADDR, NLM_F_DUMP, sequence, &[AF_INET, 0, 0, 0, 0, 0, 0, 0]).done()
}

/// A route to what is directly at an interface.
pub(crate) fn new_route(sequence: u32, index: u32, route: &Route) -> Vec<u8> {
    let (family, scope) = match route.destination {
        IpAddr::V4(_) => (AF_INET, RT_SCOPE_LINK),
        IpAddr::V6(_) => (AF_INET6, RT_SCOPE_UNIVERSE),
    };
    // Its source and its type of service are any, and it has no flags.
    let body =
        [family, route.bits, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST, 0, 0, 0, 0];
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let message = Message::new(RTM_NEWROUTE, flags, sequence, &body);
    let message = match route.destination {
        IpAddr::V4(address) => message.attribute(RTA_DST, &address.octets()),
        IpAddr::V6(address) => message.attribute(RTA_DST, &address.octets()),
    };
    let message = match route.from {
        Some(address) => message.attribute(RTA_PREFSRC, &address.octets()),
        None => message,
    };
    message
        .attribute(RTA_OIF, &index.to_ne_bytes())
        .attribute(RTA_PRIORITY, &route.metric.to_ne_bytes())
        .done()
}

/// One message of an answer.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Link(Link),
    /// One of an interface.
    Address {
        index: u32,
        address: Ipv4Addr,
    },
    /// The request is done, or it failed.
    End(Result<(), Errno>),
    /// Something else, ignored.
    Other,
}

/// The messages in a datagram that answer the request with this sequence number.
pub(crate) fn answers(datagram: &[u8], sequence: u32) -> Vec<Answer> {
    let found = netlink::messages(datagram, sequence);
    found.into_iter().map(|(kind, payload)| answer(kind, payload)).collect()
}

fn answer(kind: u16, payload: &[u8]) -> Answer {
    match netlink::end(kind, payload) {
        Some(end) => Answer::End(end),
        None if kind == RTM_NEWLINK => link(payload).map_or(Answer::Other, Answer::Link),
        None if kind == RTM_NEWADDR => address(payload).unwrap_or(Answer::Other),
        None => Answer::Other,
    }
}

fn address(payload: &[u8]) -> Option<Answer> {
    let index = word(payload, 4)?;
    let mut attributes = Attributes(payload.get(ADDRESS_BYTES..)?);
    let (_, value) = attributes.find(|(kind, _)| *kind == IFA_LOCAL)?;
    let octets: [u8; 4] = value.try_into().ok()?;
    Some(Answer::Address { index, address: Ipv4Addr::from(octets) })
}

fn link(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: word(payload, 4)?,
        name: String::new(),
        alias: None,
        address: None,
        up: word(payload, 8)? & IFF_UP != 0,
        mtu: 0,
        master: None,
        kind: None,
    };
    for (kind, value) in Attributes(payload.get(LINK_BYTES..)?) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_IFALIAS => link.alias = Some(text(value)),
            IFLA_ADDRESS => link.address = value.try_into().ok(),
            IFLA_MTU => link.mtu = word(value, 0)?,
            IFLA_MASTER => link.master = word(value, 0),
            IFLA_LINKINFO => {
                let kind = Attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                link.kind = kind.map(|(_, value)| text(value));
            }
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NLMSG_ERROR: u16 = 2;

    /// A link as the kernel announces it; built with the request encoder, whose layout is the same.
    fn announced(sequence: u32) -> Vec<u8> {
        Request::new(RTM_NEWLINK, 0, sequence, 7)
            .up()
            .name("xenbr0")
            .alias("vif3.0")
            .address([2, 0, 0, 0, 0, 7])
            .mtu(1500)
            .bridge(3)
            .attribute(IFLA_LINKINFO | 0x8000, b"\x0b\x00\x01\x00bridge\x00\x00")
            .done()
    }

    fn expected() -> Link {
        Link {
            index: 7,
            name: "xenbr0".to_owned(),
            alias: Some("vif3.0".to_owned()),
            address: Some([2, 0, 0, 0, 0, 7]),
            up: true,
            mtu: 1500,
            master: Some(3),
            kind: Some("bridge".to_owned()),
        }
    }

    fn ended(code: i32) -> Vec<u8> {
        let mut bytes = Request::new(NLMSG_ERROR, 0, 1, 0).done();
        bytes[16..20].copy_from_slice(&code.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_request_has_the_kernels_layout() {
        let bytes = Request::new(RTM_SETLINK, NLM_F_ACK, 9, 5).up().bridge(3).done();
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [40, 5 << 16 | 19, 9, 0, 0, 5, 1, 1, 10 << 16 | 8, 3]);
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect()
    }

    #[test]
    fn an_address_and_a_route_have_the_kernels_layout() {
        let ten = u32::from_ne_bytes([10, 0, 0, 5]);
        let bytes = new_address(9, 5, Ipv4Addr::new(10, 0, 0, 5));
        assert_eq!(
            words(&bytes),
            [40, 0x505 << 16 | 20, 9, 0, 32 << 8 | 2, 5, 2 << 16 | 8, ten, 1 << 16 | 8, ten]
        );
        let mut answer = bytes.clone();
        answer[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
        let address = Ipv4Addr::new(10, 0, 0, 5);
        assert_eq!(answers(&answer, 9), [Answer::Address { index: 5, address }]);
        let route =
            Route { destination: IpAddr::V4(address), bits: 32, from: Some(address), metric: 2 };
        let head = u32::from_ne_bytes([RT_TABLE_MAIN, RTPROT_BOOT, RT_SCOPE_LINK, RTN_UNICAST]);
        assert_eq!(
            words(&new_route(9, 5, &route)),
            [
                60,
                0x605 << 16 | 24,
                9,
                0,
                32 << 8 | 2,
                head,
                0,
                1 << 16 | 8,
                ten,
                7 << 16 | 8,
                ten,
                4 << 16 | 8,
                5,
                6 << 16 | 8,
                2
            ]
        );
    }

    #[test]
    fn several_messages_of_one_datagram_are_decoded() {
        let mut datagram = announced(1);
        datagram.extend(announced(2)); // an answer to another request
        datagram.extend(ended(0));
        assert_eq!(answers(&datagram, 1), [Answer::Link(expected()), Answer::End(Ok(()))]);
    }

    #[test]
    fn an_error_is_reported_with_its_number() {
        assert_eq!(answers(&ended(-19), 1), [Answer::End(Err(Errno::NODEV))]);
    }

    #[test]
    fn a_truncated_message_neither_panics_nor_invents_a_link() {
        let whole = announced(1);
        for length in 0..whole.len() {
            assert_eq!(answers(&whole[..length], 1), [], "{length} bytes");
            // The same with a header that agrees with the length.
            let mut cut = whole[..length].to_vec();
            if length >= 4 {
                cut[..4].copy_from_slice(&u32::try_from(length).unwrap().to_ne_bytes());
                for answer in answers(&cut, 1) {
                    assert!(answer != Answer::Link(expected()), "{length} bytes");
                }
            }
        }
    }
}
