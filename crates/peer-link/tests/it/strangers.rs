use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use peer_link::dial::check;
use peer_link::listen::Limits;

use crate::hosts::{Host, hasty};

/// Sends bytes and reads what comes back until the connection closes.
fn answer(host: &Host, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(host.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // It may close the connection before it has read all.
    let _closed = stream.write_all(bytes);
    let mut come = Vec::new();
    match stream.read_to_end(&mut come) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    come
}

fn refused(host: &Host) -> String {
    let line = host.logged();
    line.strip_prefix("peers: 127.0.0.1 was refused: ").unwrap().to_owned()
}

#[test]
fn one_without_tls_is_told_nothing() {
    let host = Host::start("plain", hasty());
    for text in ["GET / HTTP/1.1\r\n\r\n", "xylem-peer 1 check\n", "SSH-2.0-OpenSSH_9.2\r\n"] {
        assert_eq!(answer(&host, text.as_bytes()), b"");
        assert_eq!(refused(&host), "it does not speak TLS");
    }
}

/// A hello of TLS 1.2: no extension names a later version.
fn hello_of_tls_1_2() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    // No session; ECDHE with AES-128-GCM; no compression; supported groups and signatures.
    body.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 8, 7];
    body.extend([0, u8::try_from(extensions.len()).unwrap()]);
    body.extend(extensions);
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[test]
fn one_with_tls_1_2_is_told_nothing() {
    let host = Host::start("old", hasty());
    assert_eq!(answer(&host, &hello_of_tls_1_2()), b"");
    assert_eq!(refused(&host), "it does not speak TLS 1.3");
}

#[test]
fn garbage_is_told_nothing_and_harms_nobody() {
    let host = Host::start("garbage", Limits { lines_max: 1000, ..hasty() });
    let mut state = 88_172_645_463_325_252_u64;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    for round in 0..40_u8 {
        let mut bytes: Vec<u8> = (0..usize::from(round) * 20).map(|_| byte()).collect();
        if round % 2 == 0 {
            // As if it were a handshake.
            bytes.splice(0..0, [22, 3, 1, 0, 200, 1, 0, 0, 196]);
        }
        let answer = answer(&host, &bytes);
        assert_eq!(answer, b"", "{bytes:?}");
        refused(&host);
    }
    let other = Host::start("garbage-other", hasty());
    host.add(other.as_peer("b"));
    check(&other.identity, &host.as_peer("a")).unwrap();
}

#[test]
fn a_slow_handshake_ends_and_delays_nobody() {
    let [host, other] = [Host::start("slow", hasty()), Host::start("slow-other", hasty())];
    host.add(other.as_peer("b"));
    let mut slow = TcpStream::connect(host.address).unwrap();
    let started = Instant::now();
    // A byte at a time: each comes before the last one is too old.
    let mut hello = [22, 3, 1, 2, 0].into_iter().chain(std::iter::repeat(0));
    check(&other.identity, &host.as_peer("a")).unwrap();
    while slow.write_all(&[hello.next().unwrap()]).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(refused(&host), "no handshake within 300ms");
}

#[test]
fn one_that_says_nothing_is_not_waited_for() {
    let host = Host::start("silent", hasty());
    assert_eq!(answer(&host, b""), b"");
    assert_eq!(refused(&host), "no handshake within 300ms");
}

#[test]
fn a_long_handshake_is_not_read() {
    let host = Host::start("long", Limits { patience: Duration::from_secs(20), ..hasty() });
    // Records of a handshake message that would be 64 KiB long.
    let mut record = vec![22, 3, 1, 4, 0, 1, 0, 255, 255];
    record.resize(5 + 1024, 0);
    let mut bytes = record.clone();
    for _ in 0..60 {
        bytes.extend([22, 3, 1, 4, 0]);
        bytes.resize(bytes.len() + 1024, 0);
    }
    assert_eq!(answer(&host, &bytes), b"");
    assert_eq!(refused(&host), "a handshake of more than 4096 bytes");
}

#[test]
fn too_many_strangers_do_not_keep_a_peer_out() {
    let limits = Limits { expected_max: 3, ..hasty() };
    let [host, other] = [Host::start("many", limits), Host::start("many-other", hasty())];
    let strangers: Vec<_> = (0..4).map(|_| TcpStream::connect(host.address).unwrap()).collect();
    // The fifth is closed at once.
    let mut fifth = TcpStream::connect(host.address).unwrap();
    fifth.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(fifth.read(&mut [0]).unwrap_or_default(), 0);
    assert_eq!(refused(&host), "too many handshakes at a time");
    drop(strangers);
    host.add(other.as_peer("b"));
    // As soon as the others' time is over.
    let deadline = Instant::now() + Duration::from_secs(20);
    while check(&other.identity, &host.as_peer("a")).is_err() {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_connection_that_is_cut_in_the_handshake_is_given_up() {
    let host = Host::start("cut", hasty());
    let mut stream = TcpStream::connect(host.address).unwrap();
    stream.write_all(&[22, 3, 1, 0, 200, 1, 0]).unwrap();
    drop(stream);
    assert_eq!(refused(&host), "it closed the connection in the handshake");
}
