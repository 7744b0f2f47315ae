//! A host that says what no host of ours would.

use migrate::Input;
use migrate::peer::{self, Message, Offer};
use sim_pair::{Lab, Pair, Side, Task};
use toolstack::channel::{Channel, ChannelId, Received};
use toolstack::moves::{Arrival, ReceiveRequest, Speaks};
use toolstack::{Reply, Request};
use xen::Uuid;

use crate::support::{seeded, unikernel};

const SECOND: u64 = 1_000_000_000;

/// Sends these bytes, each time after a while, and hears the first message of the other side.
fn say(
    pair: &mut Pair,
    near: ChannelId,
    pieces: Vec<Vec<u8>>,
    every_ns: u64,
) -> Task<Option<Message>> {
    pair.begin(Side::Left, move |lab: &mut Lab| {
        let mut channel = lab.host.os().open_channel(near).expect("it is open");
        let (mut input, mut bytes) = (Input::new(), vec![0; 4096]);
        let mut hear = |channel: &mut dyn Channel, timeout_ns: u64| {
            match channel.receive(&mut bytes, timeout_ns) {
                Ok(Received::Bytes(count)) => input.feed(&bytes[..count]),
                Ok(Received::Nothing) => return Ok(None),
                Ok(Received::End) | Err(_) => return Err(()),
            }
            let banner = input.unparsed_bytes().iter().position(|byte| *byte == b'\n');
            if let Some(end) = banner.filter(|_| input.offset() == 0) {
                assert_eq!(input.take(end + 1), peer::BANNER.as_bytes());
            }
            Ok(Message::parse(&mut input).expect("it keeps to the protocol"))
        };
        for piece in pieces {
            if channel.send(&piece, SECOND).is_err() {
                return None;
            }
            match hear(&mut channel, every_ns) {
                Ok(None) => {}
                Ok(said) => return said,
                Err(()) => return None,
            }
        }
        loop {
            match hear(&mut channel, 300 * SECOND) {
                Ok(None) => {}
                Ok(said) => return said,
                Err(()) => return None,
            }
        }
    })
}

fn receive(channel: ChannelId) -> Request {
    let (speaks, arrival) = (Speaks::Own, Arrival::Runs);
    Request::Receive(ReceiveRequest { channel, speaks, arrival, transfer: Uuid([3; 16]) })
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn offer(text: &str, uuid: u8) -> Offer {
    Offer {
        transfer: Uuid([4; 16]),
        name: "vm".to_owned(),
        uuid: Uuid([uuid; 16]),
        config: text.to_owned(),
        from: "left".to_owned(),
        ..Offer::default()
    }
}

#[test]
fn an_offer_that_contradicts_itself_is_refused() {
    let text = unikernel("vm", "pvh");
    let other = format!("{text}uuid = '00000000-0000-0000-0000-000000000001'\n");
    for (offer, expected) in [
        (offer(&unikernel("other", "pvh"), 5), "the offer of vm is about other"),
        (offer(&text, 0), "the offer of vm is about another VM's UUID"),
        (offer(&other, 5), "the offer of vm is about another VM's UUID"),
        (offer("name = 'vm'", 5), "the offer: "),
    ] {
        let mut pair = seeded(1);
        let [near, far] = pair.connect();
        let served = pair.ask(Side::Right, receive(far));
        let said = say(&mut pair, near, vec![encoded(&Message::Offer(Box::new(offer)))], SECOND);
        let said = pair.finish(&said);
        let Some(Message::Refused { why }) = said else { panic!("{expected}: {said:?}") };
        assert!(why.contains(expected), "{why}");
        let reply = pair.wait(served, 10 * SECOND);
        assert!(matches!(&reply, Some(Reply::Failed(_))), "{reply:?}");
    }
}

#[test]
fn a_byte_now_and_then_holds_no_connection_open() {
    let mut pair = seeded(1);
    let [near, far] = pair.connect();
    let served = pair.ask(Side::Right, receive(far));
    let bytes = encoded(&Message::Offer(Box::new(offer(&unikernel("vm", "pvh"), 5))));
    let pieces = bytes.iter().map(|byte| vec![*byte]).collect();
    let began = pair.now();
    let said = say(&mut pair, near, pieces, 2 * SECOND);
    assert_eq!(pair.finish(&said), None);
    let reply = pair.wait(served, SECOND);
    assert!(matches!(&reply, Some(Reply::Failed(it)) if it.contains("60 s")), "{reply:?}");
    assert!(pair.now().0 - began.0 < 70 * SECOND);
}
