//! A bystander on the network that asks a guest for a sign of life, again and again, and notes the longest silence.
//!
//! It is outside of both emulated machines: its clock is this machine's, whatever theirs do.
//! Sources: RFC 826 (ARP), RFC 791 (IPv4), RFC 792 (echo).

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Its own addresses.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const CARD: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
const EVERYBODY: [u8; 6] = [0xff; 6];

const TYPE_IPV4: [u8; 2] = [8, 0];
const TYPE_ARP: [u8; 2] = [8, 6];
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// What is known of one guest.
#[derive(Debug)]
pub(crate) struct Observer {
    guest: Ipv4Addr,
    pub begun: Instant,
    /// The guest's card, once it has said so.
    card: Option<[u8; 6]>,
    asked: u16,
    answered_at: Option<Instant>,
    questions: u32,
    answers: u32,
    longest_silence: Duration,
}

impl Observer {
    pub(crate) fn new(guest: Ipv4Addr, now: Instant) -> Self {
        Self {
            guest,
            begun: now,
            card: None,
            asked: 0,
            answered_at: None,
            questions: 0,
            answers: 0,
            longest_silence: Duration::ZERO,
        }
    }

    /// The next frame to send: an echo request, or who has the guest's address.
    pub(crate) fn question(&mut self) -> Vec<u8> {
        let Some(card) = self.card else {
            return arp(ARP_REQUEST, EVERYBODY, [0; 6], self.guest);
        };
        self.asked = self.asked.wrapping_add(1);
        self.questions += 1;
        echo_request(card, self.guest, self.asked)
    }

    /// Takes note of a frame; what it has to say to it.
    pub(crate) fn see(&mut self, frame: &[u8], now: Instant) -> Option<Vec<u8>> {
        let source: [u8; 6] = part(frame, 6)?;
        match part(frame, 12)? {
            TYPE_ARP => {
                let [_, operation] = part(frame, 20)?;
                let sender = Ipv4Addr::from(part::<4>(frame, 28)?);
                let wanted = Ipv4Addr::from(part::<4>(frame, 38)?);
                if sender == self.guest {
                    self.card = Some(part(frame, 22)?);
                }
                (operation == ARP_REQUEST && wanted == ADDRESS)
                    .then(|| arp(ARP_REPLY, source, source, sender))
            }
            TYPE_IPV4 => {
                let sender = Ipv4Addr::from(part::<4>(frame, 26)?);
                let receiver = Ipv4Addr::from(part::<4>(frame, 30)?);
                let is_echo = part(frame, 23)? == [1] && part(frame, 34)? == [ECHO_REPLY];
                if is_echo && sender == self.guest && receiver == ADDRESS {
                    self.longest_silence = self.longest_silence.max(self.silence(now));
                    self.answered_at = Some(now);
                    self.answers += 1;
                }
                None
            }
            _ => None,
        }
    }

    fn silence(&self, now: Instant) -> Duration {
        self.answered_at.map_or(Duration::ZERO, |then| now.saturating_duration_since(then))
    }

    /// What was seen since the last report; a silence that lasts counts.
    pub(crate) fn report(&mut self, now: Instant) -> String {
        let longest = self.longest_silence.max(self.silence(now)).as_millis();
        let text = format!("{longest} {} {}", self.answers, self.questions);
        self.longest_silence = Duration::ZERO;
        self.answers = 0;
        self.questions = 0;
        text
    }
}

/// Bytes of a frame, if it has them.
fn part<const LENGTH: usize>(frame: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    frame.get(at..at + LENGTH)?.try_into().ok()
}

fn arp(operation: u8, to: [u8; 6], card: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = [to, CARD].concat();
    frame.extend(TYPE_ARP);
    frame.extend(ARP_HEAD);
    frame.extend([0, operation]);
    frame.extend(CARD);
    frame.extend(ADDRESS.octets());
    frame.extend(card);
    frame.extend(address.octets());
    frame
}

fn echo_request(to: [u8; 6], address: Ipv4Addr, number: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend(ADDRESS.octets());
    packet.extend(address.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    let [high, low] = number.to_be_bytes();
    let mut echo = [ECHO_REQUEST, 0, 0, 0, b'x', b'y', high, low];
    let sum = checksum(&echo);
    echo[2..4].copy_from_slice(&sum);
    let mut frame = [to, CARD].concat();
    frame.extend(TYPE_IPV4);
    frame.extend(packet);
    frame.extend(echo);
    frame
}

/// The internet's checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
    const GUESTS_CARD: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 5];

    fn said(frame: &[u8], operation: u8) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[6..12].copy_from_slice(&GUESTS_CARD);
        frame[21] = operation;
        frame[22..28].copy_from_slice(&GUESTS_CARD);
        frame[28..32].copy_from_slice(&GUEST.octets());
        frame[38..42].copy_from_slice(&ADDRESS.octets());
        frame
    }

    #[test]
    fn the_longest_time_between_two_answers_is_told() {
        let begun = Instant::now();
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let mut observer = Observer::new(GUEST, begun);
        let who_has = observer.question();
        assert_eq!(who_has[..6], EVERYBODY);
        assert_eq!(observer.see(&said(&who_has, ARP_REPLY), at(1)), None);
        let mut answer = observer.question();
        assert_eq!(answer[..6], GUESTS_CARD);
        assert_eq!(checksum(&answer[14..34]), [0, 0]);
        assert_eq!(checksum(&answer[34..42]), [0, 0]);
        answer[26..30].copy_from_slice(&GUEST.octets());
        answer[30..34].copy_from_slice(&ADDRESS.octets());
        answer[34] = ECHO_REPLY;
        for milliseconds in [10, 30, 530, 550] {
            observer.see(&answer, at(milliseconds));
        }
        assert_eq!(observer.report(at(560)), "500 4 1");
        assert_eq!(observer.report(at(1560)), "1010 0 0");
    }

    #[test]
    fn it_answers_who_asks_for_its_address() {
        let mut observer = Observer::new(GUEST, Instant::now());
        let asked = said(&observer.question(), ARP_REQUEST);
        let answer = observer.see(&asked, Instant::now()).unwrap();
        assert_eq!((&answer[..6], answer[21]), (&GUESTS_CARD[..], ARP_REPLY));
    }

    #[test]
    fn a_cut_off_frame_says_nothing() {
        let mut observer = Observer::new(GUEST, Instant::now());
        let frame = said(&observer.question(), ARP_REQUEST);
        for length in 0..frame.len() {
            assert_eq!(observer.see(&frame[..length], Instant::now()), None);
        }
    }
}
