//! Guests on real ring pages and real wake-ups, which happen to be files and datagrams.

use file_host::State;
use xen::DomId;
use xenstore::Error;
use xenstore::client::{ClientError, Nodes, Transport};

use crate::process::Daemon;

#[test]
fn a_guest_reads_writes_and_watches_through_its_ring() {
    let daemon = Daemon::start("guest", &[]);
    let mut dom0 = daemon.client();
    let mut guest = daemon.guest(1);
    assert_eq!(guest.write("data", b"1").unwrap_err().refusal(), Some(Error::EACCES));
    dom0.write("/local/domain/1", b"").unwrap();
    let own = [xenstore::Permission::new(xenstore::Access::None, DomId(1))];
    dom0.set_perms("/local/domain/1", &own).unwrap();
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
    let daemon = Daemon::start("dom0", &[]);
    let host = daemon.host();
    let ring = xenstore::ring::ClientRing::new(host.map_ring(DomId::DOM0).unwrap());
    let mut request = Vec::new();
    xenstore::wire::encode(&mut request, 2, 7, 0, &[b"/\0"]);
    assert_eq!(ring.put_requests(&request), Ok(17 + 1));
    let events = host.bind_guest_events(DomId::DOM0).unwrap();
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
    let daemon = Daemon::start("fates", &[]);
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
    let daemon = Daemon::start("ringlong", &[]);
    let mut guest = daemon.guest(1);
    let header: Vec<u8> = [2u32, 1, 0, 4097].iter().flat_map(|word| word.to_ne_bytes()).collect();
    guest.transport_mut().send(&header).unwrap();
    assert!(guest.read("/").is_err());
    assert_eq!(guest.transport().ring().error(), 3);
    assert_eq!(daemon.client().is_introduced(DomId(1)), Ok(true));
}
