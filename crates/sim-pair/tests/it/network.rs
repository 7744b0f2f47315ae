//! The network: what is said on it arrives, late or not at all.

use migrate::Input;
use migrate::peer::Message;
use sim::{End, NetworkConfig, PacketFate};
use sim_pair::{Lab, Pair, Side, Task};
use toolstack::channel::{Channel, ChannelId, Received};
use xen::Uuid;

use crate::support::{seeded, with_network};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// What one side heard at last.
type Heard = Result<Vec<u8>, String>;

/// Receives until there are so many bytes.
fn hear(channel: &mut dyn Channel, count: usize, timeout_ns: u64) -> Heard {
    let mut bytes = vec![0; 256 << 10];
    let mut heard = Vec::new();
    while heard.len() < count {
        let room = bytes.len().min(count - heard.len());
        match channel.receive(&mut bytes[..room], timeout_ns) {
            Ok(Received::Bytes(come)) => heard.extend_from_slice(&bytes[..come]),
            Ok(Received::Nothing) => return Err("nothing in time".to_owned()),
            Ok(Received::End) => return Err("closed".to_owned()),
            Err(broken) => return Err(broken.to_string()),
        }
    }
    Ok(heard)
}

/// Sends all of it.
fn send(channel: &mut dyn Channel, bytes: &[u8]) -> Result<(), String> {
    match channel.send(bytes, 60_000_000_000) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err("it has taken nothing for 60 s".to_owned()),
        Err(broken) => Err(broken.to_string()),
    }
}

/// Sends back `count` bytes, and closes.
fn echo(pair: &mut Pair, [_, far]: [ChannelId; 2], count: usize, timeout_ns: u64) -> Task<Heard> {
    pair.begin(Side::Right, move |lab: &mut Lab| {
        let mut channel = lab.host.os().open_channel(far).expect("it is open");
        let heard = hear(&mut channel, count, timeout_ns).and_then(|heard| {
            send(&mut channel, &heard)?;
            Ok(heard)
        });
        lab.host.os().close_channel(far);
        heard
    })
}

/// Sends bytes and hears as many; and how long that took.
fn call(
    pair: &mut Pair,
    [near, _]: [ChannelId; 2],
    bytes: Vec<u8>,
    timeout_ns: u64,
) -> Task<(Heard, u64)> {
    pair.begin(Side::Left, move |lab: &mut Lab| {
        let began = lab.host.now();
        let mut channel = lab.host.os().open_channel(near).expect("it is open");
        let heard = send(&mut channel, &bytes);
        let heard = heard.and_then(|()| hear(&mut channel, bytes.len(), timeout_ns));
        (heard, lab.host.now().0 - began.0)
    })
}

fn numbered(count: usize) -> Vec<u8> {
    (0..count).flat_map(|it| u32::try_from(it).unwrap().to_le_bytes()).collect()
}

/// What both sides heard, and how long the left one waited.
fn round_trip(pair: &mut Pair, bytes: &[u8], timeout_ns: u64) -> (Heard, Heard, u64) {
    let channels = pair.connect();
    let right = echo(pair, channels, bytes.len(), timeout_ns);
    let left = call(pair, channels, bytes.to_vec(), timeout_ns);
    let (heard, took) = pair.finish(&left);
    (heard, pair.finish(&right), took)
}

#[test]
fn what_is_sent_comes_back_in_order_after_two_latencies() {
    let mut pair = seeded(1);
    let bytes = numbered(300_000);
    let (left, right, took) = round_trip(&mut pair, &bytes, SECOND);
    assert_eq!((left, right), (Ok(bytes.clone()), Ok(bytes)));
    assert!((400_000..20 * MS).contains(&took), "{took} ns");
}

#[test]
fn messages_pass_as_the_hosts_say_them() {
    let mut pair = seeded(2);
    let message = Message::Question { transfer: Uuid([7; 16]) };
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let (left, _, _) = round_trip(&mut pair, &bytes, SECOND);
    let mut input = Input::new();
    input.feed(&left.unwrap());
    assert_eq!(Message::parse(&mut input), Ok(Some(message)));
}

#[test]
fn a_slow_network_makes_the_sender_wait() {
    let network = NetworkConfig { bytes_per_second: 1 << 20, ..NetworkConfig::default() };
    let mut pair = with_network(3, network);
    let bytes = numbered(1 << 20);
    let (left, _, took) = round_trip(&mut pair, &bytes, 10 * SECOND);
    assert_eq!(left, Ok(bytes));
    // There and back: four MiB each way.
    assert!((8 * SECOND..9 * SECOND).contains(&took), "{took} ns");
}

#[test]
fn a_lost_packet_is_sent_again_and_a_late_one_holds_up_what_follows() {
    for (fate, least) in [(PacketFate::Lost, 200 * MS), (PacketFate::Late(SECOND), SECOND)] {
        let mut pair = seeded(4);
        pair.network(|network| network.strike(2, fate));
        let bytes = numbered(100_000);
        let (left, _, took) = round_trip(&mut pair, &bytes, 10 * SECOND);
        assert_eq!(left, Ok(bytes));
        assert!((least..least + 50 * MS).contains(&took), "{fate:?}: {took} ns");
    }
}

#[test]
fn nothing_comes_in_time_and_later_it_does() {
    let mut pair = seeded(5);
    let channels = pair.connect();
    let left = call(&mut pair, channels, vec![1; 8], 100 * MS);
    let (heard, took) = pair.finish(&left);
    assert_eq!(heard, Err("nothing in time".to_owned()));
    assert!((100 * MS..101 * MS).contains(&took), "{took} ns");
    let right = echo(&mut pair, channels, 8, SECOND);
    assert_eq!(pair.finish(&right), Ok(vec![1; 8]));
    let again = pair.on(Side::Left, move |lab| {
        let mut channel = lab.host.os().open_channel(channels[0]).unwrap();
        let heard = hear(&mut channel, 8, SECOND);
        channel.unread(&[9, 9]);
        (heard, hear(&mut channel, 3, SECOND))
    });
    // What was given back comes first; then the end.
    assert_eq!(again, (Ok(vec![1; 8]), Err("closed".to_owned())));
}

#[test]
fn a_cut_network_breaks_connections_after_each_ends_patience() {
    let mut pair = seeded(6);
    pair.network(|network| network.strike(2, PacketFate::Cut));
    let bytes = numbered(100_000);
    let channels = pair.connect();
    let right = echo(&mut pair, channels, bytes.len(), 600 * SECOND);
    let left = call(&mut pair, channels, bytes, 600 * SECOND);
    let (heard, took) = pair.finish(&left);
    assert_eq!(heard, Err("Connection timed out".to_owned()));
    assert!((15 * SECOND..16 * SECOND).contains(&took), "{took} ns");
    let before = pair.now();
    assert_eq!(pair.finish(&right), Err("Connection timed out".to_owned()));
    let later = pair.now().0 - before.0;
    assert!((104 * SECOND..106 * SECOND).contains(&later), "{later} ns");
    // New ones fail as well, until it is mended.
    let (heard, _, took) = round_trip(&mut pair, &[1; 8], 60 * SECOND);
    assert_eq!(heard, Err("Connection timed out".to_owned()));
    assert!((9 * SECOND..11 * SECOND).contains(&took), "{took} ns");
    pair.mend();
    assert_eq!(round_trip(&mut pair, &[1; 8], 60 * SECOND).0, Ok(vec![1; 8]));
}

#[test]
fn a_short_cut_only_delays() {
    for seed in 1..5 {
        let mut pair = seeded(seed);
        pair.network(|network| network.strike(seed, PacketFate::CutFor(5 * SECOND)));
        let bytes = numbered(100_000);
        let (left, _, took) = round_trip(&mut pair, &bytes, 60 * SECOND);
        assert_eq!(left, Ok(bytes));
        assert!((5 * SECOND..6 * SECOND).contains(&took), "{took} ns");
    }
}

#[test]
fn a_reset_connection_ends_at_both_ends_and_half_of_a_torn_packet_arrives() {
    for (fate, comes) in [(PacketFate::Reset, 65_536), (PacketFate::Torn, 65_536 + 32_768)] {
        let mut pair = seeded(7);
        pair.network(|network| network.strike(2, fate));
        let channels = pair.connect();
        let right = pair.begin(Side::Right, move |lab| {
            let mut channel = lab.host.os().open_channel(channels[1]).unwrap();
            let all = hear(&mut channel, comes, SECOND).map(|heard| heard.len());
            (all, hear(&mut channel, 1, SECOND))
        });
        let left = call(&mut pair, channels, numbered(100_000), SECOND);
        let reset = "Connection reset by peer".to_owned();
        assert_eq!(pair.finish(&left).0, Err(reset.clone()));
        assert_eq!(pair.finish(&right), (Ok(comes), Err(reset)));
    }
}

#[test]
fn whoever_takes_nothing_is_not_waited_for_for_ever() {
    let mut pair = seeded(8);
    let channels = pair.connect();
    let left = call(&mut pair, channels, numbered(1 << 20), SECOND);
    let (heard, took) = pair.finish(&left);
    assert_eq!(heard, Err("it has taken nothing for 60 s".to_owned()));
    assert!((60 * SECOND..61 * SECOND).contains(&took), "{took} ns");
}

#[test]
fn a_killed_daemon_sends_half_and_its_connections_are_closed() {
    let mut pair = seeded(9);
    let channels = pair.connect();
    pair.on(Side::Left, |lab| lab.kill_at(1));
    let left = call(&mut pair, channels, vec![1; 100], SECOND);
    let right = pair.begin(Side::Right, move |lab| {
        let mut channel = lab.host.os().open_channel(channels[1]).unwrap();
        (hear(&mut channel, 50, SECOND), hear(&mut channel, 1, 5 * SECOND))
    });
    assert_eq!(pair.finish(&left).0, Err("the daemon was killed".to_owned()));
    assert_eq!(pair.finish(&right), (Ok(vec![1; 50]), Err("closed".to_owned())));
    pair.settle();
    assert_eq!(pair.on(Side::Left, |lab| (lab.deaths, lab.daemon.is_some())), (1, true));
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed: u64| {
        let mut pair = seeded(seed);
        let bytes = numbered(50_000);
        pair.network(|network| network.strike(2, PacketFate::Lost));
        let (heard, _, took) = round_trip(&mut pair, &bytes, 10 * SECOND);
        assert_eq!(heard, Ok(bytes));
        (took, pair.digest(), pair.traces())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).1, run(2).1);
    assert_eq!(End::Near.other(), End::Far);
}
