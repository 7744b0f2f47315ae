//! Ethernet frames: enough to be found (ARP) and to answer a ping (ICMP echo).
//!
//! No fragments, no IPv4 options in answers, no routes: replies go back to the sender's MAC.
//! Source: RFC 826, RFC 791, RFC 792.

use core::fmt;

/// Largest frame taken or sent, without the check sequence.
pub const FRAME_BYTES_MAX: usize = 1514;
/// Shorter frames are padded with zeros.
const FRAME_BYTES_MIN: usize = 60;

const ETHERNET_BYTES: usize = 14;
const ARP_END: usize = ETHERNET_BYTES + 28;
const IPV4_END: usize = ETHERNET_BYTES + 20;
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// Ethernet and IPv4, with their address lengths.
const ARP_KINDS: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];
const PROTOCOL_ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const BROADCAST: Mac = Mac([0xff; 6]);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Six pairs of hexadecimal digits, separated by colons.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|byte| *byte == b':');
        let mut bytes = [0; 6];
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2)?;
            *byte = hex_digit(part[0])? << 4 | hex_digit(part[1])?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4(pub [u8; 4]);

impl Ipv4 {
    /// Four decimal numbers, separated by dots.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|byte| *byte == b'.');
        let mut bytes = [0; 4];
        for byte in &mut bytes {
            *byte = u8::try_from(crate::text::decimal(parts.next()?)?).ok()?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a}.{b}.{c}.{d}")
    }
}

/// One station: its address on the wire and, if it has one, its address above it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Station {
    pub mac: Mac,
    pub ip: Option<Ipv4>,
}

impl Station {
    /// The frame that tells a bridge and its neighbours where this station is; its length.
    pub fn announce(&self, out: &mut [u8; FRAME_BYTES_MAX]) -> usize {
        // Without an address this is an ARP probe for 0.0.0.0: still a frame to learn the MAC from.
        let ip = self.ip.unwrap_or(Ipv4([0; 4]));
        self.arp(out, ARP_REQUEST, BROADCAST, Mac([0; 6]), ip, ip)
    }

    /// Writes the answer to `frame`, if it wants one from this station; its length.
    pub fn answer(&self, frame: &[u8], out: &mut [u8; FRAME_BYTES_MAX]) -> Option<usize> {
        let ip = self.ip?;
        match frame.get(12..14)? {
            kind if kind == TYPE_ARP => {
                let arp = frame.get(ETHERNET_BYTES..ARP_END)?;
                let asks = arp[..6] == ARP_KINDS && arp[6..8] == ARP_REQUEST;
                let (mac, from) = (Mac(array(&arp[8..14])?), Ipv4(array(&arp[14..18])?));
                let wanted = asks && arp[24..28] == ip.0 && from != ip;
                wanted.then(|| self.arp(out, ARP_REPLY, mac, mac, ip, from))
            }
            kind if kind == TYPE_IPV4 => self.echo(ip, frame, out),
            _ => None,
        }
    }

    fn arp(
        &self,
        out: &mut [u8; FRAME_BYTES_MAX],
        operation: [u8; 2],
        to: Mac,
        target: Mac,
        from_ip: Ipv4,
        to_ip: Ipv4,
    ) -> usize {
        out[..FRAME_BYTES_MIN].fill(0);
        self.ethernet(out, to, TYPE_ARP);
        let arp = &mut out[ETHERNET_BYTES..ARP_END];
        arp[..6].copy_from_slice(&ARP_KINDS);
        arp[6..8].copy_from_slice(&operation);
        arp[8..14].copy_from_slice(&self.mac.0);
        arp[14..18].copy_from_slice(&from_ip.0);
        arp[18..24].copy_from_slice(&target.0);
        arp[24..28].copy_from_slice(&to_ip.0);
        FRAME_BYTES_MIN
    }

    fn echo(&self, ip: Ipv4, frame: &[u8], out: &mut [u8; FRAME_BYTES_MAX]) -> Option<usize> {
        let header = frame.get(ETHERNET_BYTES..IPV4_END)?;
        let header_bytes = usize::from(header[0] & 0x0f) * 4;
        let total_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // The "more fragments" bit or an offset: not a whole datagram.
        let fragment = header[6] & 0x3f != 0 || header[7] != 0;
        if header[0] >> 4 != 4
            || header_bytes < 20
            || fragment
            || header[9] != PROTOCOL_ICMP
            || header[16..20] != ip.0
        {
            return None;
        }
        let icmp_start = ETHERNET_BYTES + header_bytes;
        let icmp = frame.get(icmp_start..ETHERNET_BYTES + total_bytes)?;
        if icmp.len() < 8 || icmp[0] != ECHO_REQUEST || icmp[1] != 0 || checksum(icmp) != 0 {
            return None;
        }
        let end = IPV4_END + icmp.len();
        let datagram_bytes = u16::try_from(20 + icmp.len()).ok()?;
        if end > out.len() {
            return None;
        }

        out[..FRAME_BYTES_MIN].fill(0);
        self.ethernet(out, Mac(array(&frame[6..12])?), TYPE_IPV4);
        let reply = &mut out[ETHERNET_BYTES..IPV4_END];
        reply[0] = 0x45;
        reply[2..4].copy_from_slice(&datagram_bytes.to_be_bytes());
        reply[8] = 64;
        reply[9] = PROTOCOL_ICMP;
        reply[12..16].copy_from_slice(&ip.0);
        reply[16..20].copy_from_slice(&header[12..16]);
        let sum = checksum(reply);
        reply[10..12].copy_from_slice(&sum.to_be_bytes());

        let reply = &mut out[IPV4_END..end];
        reply.copy_from_slice(icmp);
        reply[0] = ECHO_REPLY;
        reply[2..4].fill(0);
        let sum = checksum(reply);
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        Some(end.max(FRAME_BYTES_MIN))
    }

    fn ethernet(&self, out: &mut [u8; FRAME_BYTES_MAX], to: Mac, kind: [u8; 2]) {
        out[..6].copy_from_slice(&to.0);
        out[6..12].copy_from_slice(&self.mac.0);
        out[12..14].copy_from_slice(&kind);
    }
}

/// The Internet checksum; 0 over data that already holds a right one.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Folded after each addition, the sum fits 16 bits.
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: Station = Station { mac: Mac([2; 6]), ip: Some(Ipv4([10, 0, 0, 1])) };
    const US: Station =
        Station { mac: Mac([0, 0x16, 0x3e, 1, 2, 3]), ip: Some(Ipv4([10, 0, 0, 2])) };

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        let mut out = [0xee; FRAME_BYTES_MAX];
        US.answer(frame, &mut out).map(|bytes| out[..bytes].to_vec())
    }

    fn arp_request(wanted: Ipv4) -> Vec<u8> {
        let mut out = [0; FRAME_BYTES_MAX];
        let from = ASKER.ip.unwrap();
        let bytes = ASKER.arp(&mut out, ARP_REQUEST, BROADCAST, Mac([0; 6]), from, wanted);
        out[..bytes].to_vec()
    }

    fn echo_request(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; IPV4_END + 8];
        frame[..6].copy_from_slice(&US.mac.0);
        frame[6..12].copy_from_slice(&ASKER.mac.0);
        frame[12..14].copy_from_slice(&TYPE_IPV4);
        frame[14] = 0x45;
        let total = u16::try_from(28 + payload.len()).unwrap();
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[23] = PROTOCOL_ICMP;
        frame[26..30].copy_from_slice(&ASKER.ip.unwrap().0);
        frame[30..34].copy_from_slice(&US.ip.unwrap().0);
        frame[34] = ECHO_REQUEST;
        frame[38..42].copy_from_slice(&[1, 2, 3, 4]);
        frame.extend_from_slice(payload);
        let sum = checksum(&frame[34..]);
        frame[36..38].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        let text = "00:16:3e:0a:fF:00";
        let mac = Mac::parse(text.as_bytes()).unwrap();
        assert_eq!(mac.to_string(), text.to_lowercase());
        for bad in ["", "00:16:3e:0a:ff", "00:16:3e:0a:ff:00:01", "0:16:3e:0a:ff:00"] {
            assert_eq!(Mac::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Ipv4::parse(b"10.0.0.255").unwrap().to_string(), "10.0.0.255");
        for bad in ["", "10.0.0", "10.0.0.256", "10.0.0.1.1", "10.0.0.1/8"] {
            assert_eq!(Ipv4::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn an_arp_request_for_our_address_is_answered() {
        let reply = answer(&arp_request(US.ip.unwrap())).unwrap();
        assert_eq!(reply.len(), FRAME_BYTES_MIN);
        assert_eq!(reply[..6], ASKER.mac.0);
        assert_eq!(reply[20..22], ARP_REPLY);
        assert_eq!(reply[22..28], US.mac.0);
        assert_eq!(reply[28..32], US.ip.unwrap().0);
        assert_eq!(reply[38..42], ASKER.ip.unwrap().0);
    }

    #[test]
    fn questions_for_others_stay_unanswered() {
        assert_eq!(answer(&arp_request(Ipv4([10, 0, 0, 3]))), None);
        let mut out = [0; FRAME_BYTES_MAX];
        let silent = Station { ip: None, ..US };
        assert_eq!(silent.answer(&arp_request(US.ip.unwrap()), &mut out), None);
        // Our own announcement, sent back by a bridge.
        let bytes = US.announce(&mut out);
        assert_eq!(answer(&out[..bytes]), None);
    }

    #[test]
    fn an_echo_comes_back_with_the_same_data_and_right_sums() {
        let payload: Vec<u8> = (0..57).collect();
        let reply = answer(&echo_request(&payload)).unwrap();
        assert_eq!(reply.len(), IPV4_END + 8 + payload.len());
        assert_eq!(reply[..6], ASKER.mac.0);
        assert_eq!(checksum(&reply[14..34]), 0);
        assert_eq!(checksum(&reply[34..]), 0);
        assert_eq!(reply[34], ECHO_REPLY);
        assert_eq!(reply[38..42], [1, 2, 3, 4]);
        assert_eq!(reply[42..], payload);
    }

    #[test]
    fn a_short_echo_is_padded() {
        let reply = answer(&echo_request(b"")).unwrap();
        assert_eq!(reply.len(), FRAME_BYTES_MIN);
        assert_eq!(reply[42..], [0; FRAME_BYTES_MIN - 42]);
    }

    #[test]
    fn a_broken_echo_stays_unanswered() {
        let good = echo_request(b"abcd");
        // Version, header length, fragment, protocol, address, ICMP kind and code, checksum.
        for (at, value) in
            [(14, 0x65), (14, 0x44), (20, 0x20), (21, 1), (23, 17), (33, 9), (34, 0), (43, 0)]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(answer(&bad), None, "byte {at}");
        }
        for bytes in 0..good.len() {
            assert_eq!(answer(&good[..bytes]), None, "{bytes} bytes");
        }
    }
}
