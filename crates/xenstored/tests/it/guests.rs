//! Guests on real ring pages and real wake-ups, which happen to be files and datagrams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use file_host::{Guest, State};
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::client::{Client, ClientError, Nodes, Transport};
use xenstore::ring::{RING_BYTES, RingPage, field};
use xenstore::wire::{self, MessageType};
use xenstore::{Access, Error, Permission};

use crate::process::Daemon;

/// A guest with a home, as a toolstack makes it.
fn guest_at_home(daemon: &Daemon, domid: u16) -> Client<Guest> {
    let guest = daemon.guest(domid);
    let home = format!("/local/domain/{domid}");
    let mut dom0 = daemon.client();
    dom0.write(&home, b"").unwrap();
    dom0.set_perms(&home, &[Permission::new(Access::None, DomId(domid))]).unwrap();
    guest
}

/// Waits for events until something holds, which the daemon makes true.
fn wait_until(guest: &Guest, mut holds: impl FnMut(&Guest) -> bool) {
    while !holds(guest) {
        assert!(guest.wait(Duration::from_secs(120)).unwrap(), "the daemon has forgotten us");
    }
}

fn read_request(id: u32, path: &str) -> Vec<u8> {
    let mut request = Vec::new();
    wire::encode(&mut request, MessageType::Read.code(), id, 0, &[path.as_bytes(), b"\0"]);
    request
}

#[test]
fn a_guest_reads_writes_and_watches_through_its_ring() {
    let daemon = Daemon::start_confined("guest", &[]);
    let mut dom0 = daemon.client();
    let mut guest = guest_at_home(&daemon, 1);
    assert_eq!(guest.write("/data", b"1").unwrap_err().refusal(), Some(Error::EACCES));
    guest.watch("data", "token").unwrap();
    assert_eq!(guest.next_event().unwrap().path, "data");
    guest
        .transaction(|transaction| {
            transaction.write("data/a", b"1")?;
            transaction.write("data/b", &[b'v'; 1500])?;
            Ok::<_, ClientError>(())
        })
        .unwrap();
    for path in ["data/a", "data/b"] {
        assert_eq!(guest.next_event().unwrap().path, path);
    }
    // Longer than the ring.
    assert_eq!(guest.read("data/b"), Ok(vec![b'v'; 1500]));
    assert_eq!(dom0.read("/local/domain/1/data/a"), Ok(b"1".to_vec()));
}

#[test]
fn dom0s_kernel_is_served_through_its_own_ring() {
    let daemon = Daemon::start_confined("dom0", &[]);
    let host = daemon.host();
    let ring = xenstore::ring::ClientRing::new(host.map_ring(DomId::DOM0).unwrap());
    let mut request = Vec::new();
    xenstore::wire::encode(&mut request, 2, 7, 0, &[b"/\0"]);
    let events = host.bind_guest_events(DomId::DOM0).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(ring.put_requests(&request), Ok(17 + 1));
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let datagram = file_host::HostFolder::datagram_of_domain(DomId::DOM0);
    socket.send_to(&datagram, host.daemon_events()).unwrap();
    events.recv(&mut [0]).unwrap();
    let mut reply = [0; 64];
    assert_eq!(ring.take_replies(&mut reply), Ok(16));
    assert_eq!(reply[4], 7);
}

#[test]
fn a_shutdown_and_a_death_are_reported_once_each() {
    let daemon = Daemon::start_confined("fates", &[]);
    let mut dom0 = daemon.client();
    let guest = daemon.guest(1);
    dom0.watch("@releaseDomain", "token").unwrap();
    dom0.next_event().unwrap();
    dom0.write("/x", b"").unwrap();
    guest.transport().set_state(State::Shutdown).unwrap();
    daemon.host().raise_exception().unwrap();
    assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
    guest.transport().destroy().unwrap();
    daemon.host().raise_exception().unwrap();
    assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
    assert_eq!(dom0.is_introduced(DomId(1)), Ok(false));
    dom0.write("/y", b"").unwrap();
    assert_eq!(dom0.poll_event(), None);
}

#[test]
fn a_message_that_is_too_long_ends_the_service_until_the_domain_dies() {
    let daemon = Daemon::start_confined("ringlong", &[]);
    let mut guest = daemon.guest(1);
    let header: Vec<u8> = [2u32, 1, 0, 4097].iter().flat_map(|word| word.to_ne_bytes()).collect();
    guest.transport_mut().send(&header).unwrap();
    assert!(guest.read("/").is_err());
    assert_eq!(guest.transport().ring().error(), 3);
    assert_eq!(daemon.client().is_introduced(DomId(1)), Ok(true));
}

#[test]
fn indexes_that_cannot_be_end_the_service_and_the_death_is_still_reported() {
    let daemon = Daemon::start_confined("index", &[]);
    let mut dom0 = daemon.client();
    let mut other = daemon.guest(2);
    for (domid, offset) in [(10, field::REQUEST_PRODUCER), (11, field::REPLY_CONSUMER)] {
        let mut guest = daemon.guest(domid);
        dom0.watch("@releaseDomain", "token").unwrap();
        dom0.next_event().unwrap();
        assert_eq!(guest.transport().ring().features(), 15);
        let page = guest.transport().page();
        page.store_u32(offset, page.load_u32(offset).wrapping_add(1 << 20));
        guest.transport().kick().unwrap();
        wait_until(guest.transport(), |guest| guest.ring().error() == 2);
        // Nothing but its death ends this, and nobody else notices.
        guest.transport().page().store_u32(offset, 0);
        let again = dom0.introduce(DomId(domid), Gfn(1), EvtchnPort(1));
        assert_eq!(again.unwrap_err().refusal(), Some(Error::EIO));
        assert!(guest.read("/").is_err());
        assert!(other.get_domain_path(DomId(5)).is_ok());
        guest.transport().destroy().unwrap();
        daemon.host().raise_exception().unwrap();
        assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
        dom0.unwatch("@releaseDomain", "token").unwrap();
        assert_eq!(dom0.poll_event(), None);
    }
}

#[test]
fn a_full_ring_is_served_like_any_other() {
    let daemon = Daemon::start_confined("fullring", &[]);
    let client = guest_at_home(&daemon, 1);
    let guest = client.transport();
    // Requests wait in the ring before the daemon looks at it.
    let mut requests = Vec::new();
    wire::encode(&mut requests, MessageType::Write.code(), 1, 0, &[b"a\0", &[b'v'; 700]]);
    let mut count = 1;
    while requests.len() < RING_BYTES {
        let rest = RING_BYTES - requests.len();
        count += 1;
        // 19 bytes each, and one that fills the ring to its last byte.
        let path = if rest < 2 * 19 { "/".repeat(rest - 17) } else { "a1".to_owned() };
        requests.extend(read_request(count, &path));
    }
    assert_eq!(guest.ring().put_requests(&requests), Ok(RING_BYTES));
    assert_eq!(guest.ring().put_requests(b"x"), Ok(0));
    guest.kick().unwrap();
    let mut answered = 0;
    let mut machine = Vec::new();
    while answered < count {
        let mut bytes = [0; RING_BYTES];
        wait_until(guest, |guest| {
            let taken = guest.try_recv(&mut bytes).unwrap();
            machine.extend_from_slice(&bytes[..taken]);
            taken > 0
        });
        while let Ok(Some(header)) = wire::Header::decode(&machine)
            && machine.len() >= wire::HEADER_BYTES + header.payload_bytes()
        {
            answered += 1;
            assert_eq!(header.request_id, answered);
            machine.drain(..wire::HEADER_BYTES + header.payload_bytes());
        }
    }
}

#[test]
fn a_guest_that_asks_for_a_new_start_gets_one() {
    let daemon = Daemon::start_confined("reconnect", &[]);
    let mut client = guest_at_home(&daemon, 1);
    client.watch("a", "token").unwrap();
    client.next_event().unwrap();
    // Half a message, which nobody will complete.
    client.transport_mut().send(&read_request(1, "a")[..17]).unwrap();
    client.transport().ring().ask_reconnect();
    client.transport().kick().unwrap();
    wait_until(client.transport(), |guest| guest.ring().is_connected());
    for index in [field::REQUEST_CONSUMER, field::REQUEST_PRODUCER, field::REPLY_CONSUMER] {
        assert_eq!(client.transport().page().load_u32(index), 0);
    }
    assert_eq!(client.write("a", b"1"), Ok(()));
    assert_eq!(client.poll_event(), None);
    assert_eq!(client.unwatch("a", "token").unwrap_err().refusal(), Some(Error::ENOENT));
}

#[test]
fn a_second_introduction_begins_anew_without_an_event() {
    let daemon = Daemon::start_confined("again", &[]);
    let mut dom0 = daemon.client();
    let mut client = guest_at_home(&daemon, 1);
    client.watch("a", "token").unwrap();
    client.next_event().unwrap();
    client.transport_mut().send(&read_request(1, "a")[..17]).unwrap();
    dom0.watch("@introduceDomain", "token").unwrap();
    dom0.next_event().unwrap();
    dom0.introduce(DomId(1), Gfn(1), EvtchnPort(2)).unwrap();
    assert_eq!(client.write("a", b"1"), Ok(()));
    assert_eq!(client.poll_event(), None);
    assert_eq!(client.unwatch("a", "token").unwrap_err().refusal(), Some(Error::ENOENT));
    assert_eq!(dom0.read("/local/domain/1/a"), Ok(b"1".to_vec()));
    assert_eq!(dom0.poll_event(), None);
}

#[test]
fn a_domain_without_a_ring_cannot_be_introduced() {
    let daemon = Daemon::start_confined("noring", &[]);
    let mut dom0 = daemon.client();
    let mut introduce =
        |domid| dom0.introduce(DomId(domid), Gfn(1), EvtchnPort(1)).unwrap_err().refusal();
    assert_eq!(introduce(3), Some(Error::EINVAL));
    let host = daemon.host();
    std::fs::write(host.ring(DomId(4)), [0; 100]).unwrap();
    assert_eq!(introduce(4), Some(Error::EINVAL));
}

#[test]
fn domains_that_die_together_are_each_reported() {
    let daemon = Daemon::start_confined("together", &[]);
    let mut dom0 = daemon.client();
    // A guest and the stubdomain that serves it, in both orders of their numbers.
    for (stubdomain, target) in [(1, 2), (4, 3)] {
        let guests = [stubdomain, target].map(|domid| guest_at_home(&daemon, domid));
        dom0.set_target(DomId(stubdomain), DomId(target)).unwrap();
        dom0.watch("@releaseDomain", "token").unwrap();
        dom0.next_event().unwrap();
        for guest in guests {
            guest.transport().destroy().unwrap();
        }
        daemon.host().raise_exception().unwrap();
        for _ in [stubdomain, target] {
            assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
        }
        for domid in [stubdomain, target] {
            assert_eq!(dom0.is_introduced(DomId(domid)), Ok(false));
            assert_eq!(dom0.read_optional(&format!("/local/domain/{domid}")), Ok(None));
        }
        dom0.unwatch("@releaseDomain", "token").unwrap();
        assert_eq!(dom0.poll_event(), None);
    }
}

#[test]
fn another_domain_of_the_same_number_inherits_nothing() {
    let daemon = Daemon::start_confined("second", &[]);
    let mut dom0 = daemon.client();
    let mut first = guest_at_home(&daemon, 1);
    first.write("a", b"1").unwrap();
    dom0.watch("@releaseDomain", "token").unwrap();
    dom0.next_event().unwrap();
    // It dies and another one takes its number before the daemon looks.
    first.transport().destroy().unwrap();
    let mut second = Client::new(daemon.stranger(1, 77));
    daemon.host().raise_exception().unwrap();
    assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
    assert_eq!(dom0.read_optional("/local/domain/1/a"), Ok(None));
    dom0.introduce(DomId(1), Gfn(1), EvtchnPort(1)).unwrap();
    dom0.write("/local/domain/1", b"").unwrap();
    assert_eq!(second.write("a", b"1").unwrap_err().refusal(), Some(Error::EACCES));
}

#[test]
fn a_guest_that_never_reads_costs_little_and_holds_nobody_up() {
    let daemon = Daemon::start_confined("mute", &[]);
    let mut dom0 = daemon.client();
    let mut mute = guest_at_home(&daemon, 1);
    for i in 0..100 {
        mute.watch("a", &format!("{i:01000}")).unwrap();
        mute.next_event().unwrap();
    }
    let mut other = guest_at_home(&daemon, 2);
    let before = daemon.resident_kib();
    // 300 changes would be 30 MB of events, and requests go on although no answer is taken.
    let mut pending: Vec<u8> = (0..200).flat_map(|id| read_request(id, "a")).collect();
    for i in 0..300 {
        dom0.write(&format!("/local/domain/1/a/{i}"), b"").unwrap();
        let sent = mute.transport().try_send(&pending).unwrap();
        pending.drain(..sent);
        other.write("a", b"1").unwrap();
        assert_eq!(other.read("a"), Ok(b"1".to_vec()));
    }
    assert!(!pending.is_empty(), "every request of a guest that reads nothing was taken");
    let grown = daemon.resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "a guest that reads nothing made the daemon grow by {grown} KiB");
    assert_eq!(dom0.control(&["check"]), Ok("OK".to_owned()));
}

#[test]
fn words_of_a_page_that_change_all_the_time_upset_nobody_else() {
    let daemon = Daemon::start_confined("flip", &[]);
    let mut dom0 = daemon.client();
    let mut other = guest_at_home(&daemon, 2);
    for round in 0..20u32 {
        let bad = daemon.guest(1);
        let host = daemon.host();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let page = host.map_ring(DomId(1)).unwrap();
                let mut seed = round;
                while !stop.load(Ordering::Relaxed) {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let offset = 4 * ((seed >> 8) as usize % 8);
                    // Small steps are believed for a while, large ones end the service.
                    let value = if round % 2 == 0 { seed >> 21 } else { seed };
                    page.store_u32(field::REQUEST_CONSUMER + offset, value);
                    page.store_u32(4 * ((seed >> 4) as usize % (RING_BYTES / 4)), seed >> 28);
                }
            });
            for _ in 0..50 {
                bad.transport().kick().unwrap();
                other.write("a", b"1").unwrap();
                assert_eq!(other.read("a"), Ok(b"1".to_vec()));
            }
            stop.store(true, Ordering::Relaxed);
        });
        dom0.watch("@releaseDomain", "token").unwrap();
        dom0.next_event().unwrap();
        bad.transport().destroy().unwrap();
        daemon.host().raise_exception().unwrap();
        assert_eq!(dom0.next_event().unwrap().path, "@releaseDomain");
        dom0.unwatch("@releaseDomain", "token").unwrap();
        assert_eq!(dom0.poll_event(), None);
    }
    assert_eq!(dom0.control(&["check"]), Ok("OK".to_owned()));
}
