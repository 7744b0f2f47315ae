//! Messages between two hosts: there and back, in pieces, and damaged.

use migrate::Input;
use migrate::peer::{Arrival, DATA_BYTES_MAX, Fate, Message, Offer};
use proptest::prelude::*;
use xen::Uuid;

fn offer() -> Offer {
    Offer {
        transfer: Uuid([7; 16]),
        name: "web1".to_owned(),
        uuid: Uuid([9; 16]),
        config: "name = 'web1'\nmemory = 128\n".to_owned(),
        arrival: Arrival::StaysPaused,
        from: "alpha".to_owned(),
        defined: Some(Some(3)),
        lanes: 4,
        domid: Some(77),
    }
}

fn samples() -> Vec<Message> {
    let transfer = Uuid([1; 16]);
    let why = || "there is no bridge 'xenbr7'".to_owned();
    vec![
        Message::Offer(Box::new(offer())),
        Message::Offer(Box::new(Offer { defined: Some(None), domid: None, ..offer() })),
        Message::Offer(Box::new(Offer { defined: None, arrival: Arrival::Runs, ..offer() })),
        Message::Data(vec![5; 10_000]),
        Message::Whole,
        Message::Go,
        Message::GiveUp { why: why() },
        Message::Question { transfer },
        Message::Forget { transfer },
        Message::Accepted { lanes: 2, token: [3; 16] },
        Message::Refused { why: why() },
        Message::Reached { rounds: 7 },
        Message::Loaded,
        Message::Running,
        Message::Failed { why: why() },
        Message::Answer { fate: Fate::Running },
        Message::Answer { fate: Fate::Never },
        Message::Answer { fate: Fate::NotYet },
        Message::Alive,
    ]
}

#[test]
fn messages_arrive_as_they_were_sent_in_any_pieces() {
    let mut bytes = Vec::new();
    samples().iter().for_each(|message| message.encode(&mut bytes));
    for piece in [1, 7, 4096, bytes.len()] {
        let mut input = Input::new();
        let mut come = Vec::new();
        for part in bytes.chunks(piece) {
            input.feed(part);
            while let Some(message) = Message::parse(&mut input).unwrap() {
                come.push(message);
            }
        }
        assert_eq!(come, samples(), "in pieces of {piece}");
        assert_eq!(input.unparsed(), 0);
    }
}

#[test]
fn a_connection_that_ends_inside_a_message_is_an_error() {
    let mut bytes = Vec::new();
    Message::Offer(Box::new(offer())).encode(&mut bytes);
    for cut in 1..bytes.len() {
        let mut input = Input::new();
        input.feed(&bytes[..cut]);
        input.end();
        let error = Message::parse(&mut input).unwrap_err().to_string();
        assert!(error.contains("it was cut off"), "after {cut}: {error}");
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_before_it_has_come() {
    for (kind, length) in [(2_u32, DATA_BYTES_MAX + 1), (4, 5000), (1, 6 << 20), (99, 5000)] {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        let mut input = Input::new();
        input.feed(&bytes);
        let error = Message::parse(&mut input).unwrap_err().to_string();
        assert!(error.contains("more than a record may be"), "{error}");
    }
}

#[test]
fn a_reason_is_cut_between_characters() {
    let why = "ü".repeat(4000);
    let mut bytes = Vec::new();
    Message::Refused { why }.encode(&mut bytes);
    let mut input = Input::new();
    input.feed(&bytes);
    let come = Message::parse(&mut input).unwrap();
    assert_eq!(come, Some(Message::Refused { why: "ü".repeat(2048) }));
}

#[test]
fn an_offer_may_have_fields_of_later_versions_unless_they_are_essential() {
    let mut bytes = Vec::new();
    Message::Offer(Box::new(offer())).encode(&mut bytes);
    let with = |kind: u32| {
        let mut bytes = bytes.clone();
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&[2, 0, 0, 0, 1, 2]);
        let length = u32::try_from(bytes.len() - 8).unwrap();
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        let mut input = Input::new();
        input.feed(&bytes);
        Message::parse(&mut input)
    };
    assert_eq!(with(77), Ok(Some(Message::Offer(Box::new(offer())))));
    let refused = with(77 | 1 << 31).unwrap_err().to_string();
    assert!(refused.contains("a field of the offer has a value that is not known"), "{refused}");
}

proptest! {
    #[test]
    fn bytes_of_anybody_are_messages_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut input = Input::new();
        input.feed(&bytes);
        input.end();
        while let Ok(Some(_)) = Message::parse(&mut input) {}
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0_usize..200, value in any::<u8>()) {
        let mut bytes = Vec::new();
        samples().iter().for_each(|message| message.encode(&mut bytes));
        bytes[at] = value;
        let mut input = Input::new();
        input.feed(&bytes);
        input.end();
        while let Ok(Some(_)) = Message::parse(&mut input) {}
    }
}
