//! The part of the route netlink protocol that links need: encodes requests, decodes links.
//!
//! Pure: `links.rs` owns the socket. Source: Linux `uapi/linux/rtnetlink.h`, `if_link.h`.

use rustix::io::Errno;

use crate::Link;
use crate::netlink::{self, Attributes, HEADER_BYTES, Message, text, word};

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_SETLINK: u16 = 19;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_INFO_KIND: u16 = 1;

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

    /// The bridge to join; 0 is none.
    pub(crate) fn bridge(self, index: u32) -> Self {
        self.attribute(IFLA_MASTER, &index.to_ne_bytes())
    }

    pub(crate) fn mtu(self, bytes: u32) -> Self {
        self.attribute(IFLA_MTU, &bytes.to_ne_bytes())
    }

    pub(crate) fn up(mut self) -> Self {
        for at in [HEADER_BYTES + 8, HEADER_BYTES + 12] {
            self.0.0[at..at + 4].copy_from_slice(&IFF_UP.to_ne_bytes());
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

/// One message of an answer.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Link(Link),
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
        None => Answer::Other,
    }
}

fn link(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: word(payload, 4)?,
        name: String::new(),
        alias: None,
        up: word(payload, 8)? & IFF_UP != 0,
        mtu: 0,
        master: None,
        kind: None,
    };
    for (kind, value) in Attributes(payload.get(LINK_BYTES..)?) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_IFALIAS => link.alias = Some(text(value)),
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
    use crate::netlink::NLM_F_ACK;

    const NLMSG_ERROR: u16 = 2;

    /// A link as the kernel announces it; built with the request encoder, whose layout is the same.
    fn announced(sequence: u32) -> Vec<u8> {
        Request::new(RTM_NEWLINK, 0, sequence, 7)
            .up()
            .name("xenbr0")
            .alias("vif3.0")
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
