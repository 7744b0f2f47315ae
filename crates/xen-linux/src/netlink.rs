//! The encoding common to all netlink protocols: messages, attributes, end of an answer.
//!
//! Pure: the owner of a socket sends and receives the bytes. Source: Linux `uapi/linux/netlink.h`.

use rustix::io::Errno;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;

/// An attribute that consists of attributes.
pub(crate) const NLA_F_NESTED: u16 = 0x8000;
/// Flag bits of an attribute's type.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

pub(crate) const HEADER_BYTES: usize = 16;

/// A message to the kernel, under construction.
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    /// A request; `body` is the protocol's header before the attributes.
    pub(crate) fn new(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&[0; 4]); // the length, when it is known
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]); // port of the sender: the kernel fills it in
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    pub(crate) fn attribute(mut self, kind: u16, payload: &[u8]) -> Self {
        put_attribute(&mut self.0, kind, payload);
        self
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        let bytes = u32::try_from(self.0.len()).expect("our requests are short");
        self.0[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.0
    }
}

/// Appends an attribute.
pub(crate) fn put_attribute(bytes: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let length = u16::try_from(4 + payload.len()).expect("our attributes are short");
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The messages in a datagram that answer the request with this sequence number: types and
/// payloads.
pub(crate) fn messages(datagram: &[u8], sequence: u32) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    let mut rest = datagram;
    while let Some((message, tail)) = split_message(rest) {
        rest = tail;
        if let (Some(kind), Some(number)) = (half(message, 4), word(message, 8))
            && number == sequence
        {
            found.push((kind, &message[HEADER_BYTES..]));
        }
    }
    found
}

fn split_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(word(bytes, 0)?).ok()?;
    if length < HEADER_BYTES {
        return None;
    }
    let message = bytes.get(..length)?;
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The request's result, if this message ends it.
pub(crate) fn end(kind: u16, payload: &[u8]) -> Option<Result<(), Errno>> {
    match kind {
        NLMSG_DONE => Some(Ok(())),
        NLMSG_ERROR => {
            let code =
                payload.first_chunk().map_or(-libc::EPROTO, |code| i32::from_ne_bytes(*code));
            Some(match code {
                0 => Ok(()),
                code => Err(Errno::from_raw_os_error(code.wrapping_neg())),
            })
        }
        _ => None,
    }
}

/// The attributes in a byte string, up to the first truncated one.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(half(self.0, 0)?);
        let kind = half(self.0, 2)? & !ATTRIBUTE_FLAGS;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(crate) fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

pub(crate) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().copied().map(u32::from_ne_bytes)
}
