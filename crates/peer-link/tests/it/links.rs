use std::thread;
use std::time::Duration;

use peer_link::dial::{DialError, check};
use peer_link::{Come, Lane, Peers, Service, dial};

use crate::hosts::{Host, acquainted, hasty, receive};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_end_knows_the_other_and_says_what_it_wants() {
    let [a, b] = acquainted("services");
    let lane = Lane { transfer: [7; 16], number: 2, token: [9; 16] };
    for service in [Service::Receive, Service::Question, Service::Lane(lane)] {
        let answer = thread::scope(|scope| {
            scope.spawn(|| {
                let call = b.call();
                assert_eq!((&*call.from.name, call.service), ("a", service));
                call.accept().unwrap().send(b"banner\n").unwrap();
            });
            let (mut link, welcome) = dial(&a.identity, &b.as_peer("b"), &service).unwrap();
            assert_eq!((&*welcome.known_as, &*welcome.release), ("a", "1.2.3"));
            receive(&mut link, 7)
        });
        assert_eq!(answer, b"banner\n");
    }
}

#[test]
fn a_check_tells_how_far_a_peer_is_and_as_whom_it_knows_us() {
    let [a, b] = acquainted("check");
    let distance = check(&a.identity, &b.as_peer("b")).unwrap();
    assert_eq!(distance.welcome.known_as, "a");
    assert_eq!(*b.log.lock().unwrap(), [""; 0]);
}

#[test]
fn a_refusal_is_told_to_a_peer() {
    let [a, b] = acquainted("refusal");
    thread::scope(|scope| {
        scope.spawn(|| b.call().refuse("there is no such transfer"));
        let error = dial(&a.identity, &b.as_peer("b"), &Service::Receive).unwrap_err();
        assert_eq!(error.to_string(), "b: there is no such transfer");
    });
}

#[test]
fn much_goes_both_ways_unchanged_and_what_is_given_back_comes_first() {
    let [a, b] = acquainted("much");
    let bytes: Vec<u8> = (0..5_000_003_u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut link = b.call().accept().unwrap();
            let come = receive(&mut link, bytes.len());
            link.send(&come).unwrap();
        });
        let (mut link, _) = dial(&a.identity, &b.as_peer("b"), &Service::Receive).unwrap();
        link.send(&bytes).unwrap();
        let mut come = receive(&mut link, 10);
        link.unread(&come[4..]);
        link.unread(b"xy");
        come.truncate(4);
        assert_eq!(receive(&mut link, 2), b"xy");
        come.extend(receive(&mut link, bytes.len() - 4));
        assert!(come == bytes);
        echo.join().unwrap();
        // It has said that this is all.
        assert_eq!(link.receive(&mut [0; 9], SECOND).unwrap(), Come::End);
        assert_eq!(link.receive(&mut [0; 9], SECOND).unwrap(), Come::End);
    });
}

#[test]
fn nothing_comes_until_something_is_sent() {
    let [a, b] = acquainted("nothing");
    thread::scope(|scope| {
        let other = scope.spawn(|| b.call().accept().unwrap());
        let (mut link, _) = dial(&a.identity, &b.as_peer("b"), &Service::Receive).unwrap();
        let mut other = other.join().unwrap();
        let soon = Duration::from_millis(10);
        assert_eq!(link.receive(&mut [0; 9], soon).unwrap(), Come::Nothing);
        other.send(b"now").unwrap();
        assert_eq!(receive(&mut link, 3), b"now");
        assert_eq!(link.receive(&mut [0; 9], soon).unwrap(), Come::Nothing);
        drop(link);
        assert_eq!(other.receive(&mut [0; 9], SECOND).unwrap(), Come::End);
        // The other end is closed: some send says so.
        assert!((0..100).any(|_| {
            thread::sleep(Duration::from_millis(5));
            other.send(&[0; 4096]).is_err()
        }));
    });
}

#[test]
fn a_host_that_is_another_is_not_talked_to() {
    let [a, b] = acquainted("another");
    let error = dial(&a.identity, &b.with_key_of("b", &a), &Service::Receive).unwrap_err();
    assert!(
        matches!(&error, DialError::OtherKey { shown, .. } if *shown == b.identity.fingerprint())
    );
    assert!(error.to_string().contains("'xy peer remove b'"), "{error}");
    let expected =
        "peers: 127.0.0.1 was refused: it does not accept this host's key, or the handshake";
    assert_eq!(b.logged(), expected);
}

#[test]
fn a_host_that_does_not_know_us_says_nothing_and_logs_it() {
    let [a, b] = acquainted("unknown");
    Peers::remove(&b.folder.0.join("peers"), "a").unwrap();
    let own = a.identity.fingerprint();
    let error = dial(&a.identity, &b.as_peer("b"), &Service::Receive).unwrap_err();
    assert!(
        matches!(error, DialError::NotKnownThere { own: shown, .. } if shown == own),
        "{error}"
    );
    let expected =
        format!("peers: 127.0.0.1 was refused: it shows the key {own}, which no peer has");
    assert_eq!(b.logged(), expected);
}

#[test]
fn a_changed_key_is_logged_as_one() {
    let [a, b] = acquainted("changed");
    let again = Host::start("changed-again", hasty());
    let error = dial(&again.identity, &b.as_peer("b"), &Service::Check).unwrap_err();
    assert!(matches!(error, DialError::NotKnownThere { .. }), "{error}");
    let line = b.logged();
    let [old, new] = [&a, &again].map(|host| host.identity.fingerprint().to_string());
    assert!(
        line.contains(&old) && line.contains(&new) && line.contains("xy peer remove a"),
        "{line}"
    );
}

#[test]
fn a_wrong_line_among_the_peers_keeps_everybody_out() {
    let [a, b] = acquainted("wrong-line");
    let path = b.folder.0.join("peers");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}nonsense\n")).unwrap();
    assert!(dial(&a.identity, &b.as_peer("b"), &Service::Check).is_err());
    let line = b.logged();
    assert!(line.contains("peers:5: a line is a name, an address and a key"), "{line}");
    std::fs::write(&path, text).unwrap();
    check(&a.identity, &b.as_peer("b")).unwrap();
}

#[test]
fn a_peer_that_is_let_in_and_says_nothing_is_not_waited_for() {
    let [a, b] = [Host::start("mute-a", hasty()), Host::start("mute-b", hasty())];
    b.add(a.as_peer("a"));
    // Two that are answered hold the threads of the listener; a third call is served all the same.
    let held: Vec<_> = (0..2)
        .map(|_| {
            thread::scope(|scope| {
                let other = scope.spawn(|| b.call().accept().unwrap());
                let (link, _) = dial(&a.identity, &b.as_peer("b"), &Service::Receive).unwrap();
                (link, other.join().unwrap())
            })
        })
        .collect();
    check(&a.identity, &b.as_peer("b")).unwrap();
    drop(held);
}

/// What a relay does to what goes from the caller to the listener, after the handshake.
#[derive(Clone, Copy)]
enum Tamper {
    Cut,
    Change,
}

/// Relays one connection to `to`, and tampers with the byte of that number.
fn relay(to: std::net::SocketAddr, byte: usize, tamper: Tamper) -> std::net::SocketAddr {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut called = std::net::TcpStream::connect(to).unwrap();
        let (mut back, mut from) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from, &mut back));
        let (mut at, mut bytes) = (0, [0; 1000]);
        while let Ok(count @ 1..) = caller.read(&mut bytes) {
            if let (true, Some(place)) = (at <= byte && byte < at + count, byte.checked_sub(at)) {
                match tamper {
                    Tamper::Cut => break,
                    Tamper::Change => bytes[place] ^= 1,
                }
            }
            called.write_all(&bytes[..count]).unwrap();
            at += count;
        }
        let _gone = called.shutdown(std::net::Shutdown::Both);
    });
    address
}

#[test]
fn a_connection_that_is_cut_or_changed_on_the_way_is_not_taken_for_a_whole_one() {
    for (tamper, expected) in [
        (Tamper::Cut, "the connection was cut off"),
        (Tamper::Change, "cannot decrypt peer's message"),
    ] {
        let [a, b] = acquainted("tampered");
        let mut peer = b.as_peer("b");
        peer.address = relay(b.address, 20_000, tamper).to_string().parse().unwrap();
        thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut link = b.call().accept().unwrap();
                let mut bytes = [0; 4096];
                loop {
                    match link.receive(&mut bytes, SECOND * 20) {
                        Ok(Come::Bytes(_)) => {}
                        other => break other.unwrap_err().to_string(),
                    }
                }
            });
            let (mut link, _) = dial(&a.identity, &peer, &Service::Receive).unwrap();
            link.send(&[0; 40_000]).unwrap();
            assert_eq!(taker.join().unwrap(), expected);
        });
    }
}
