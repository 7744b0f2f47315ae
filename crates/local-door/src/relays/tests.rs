//! Relays between clients and consoles that are played.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

const VM: Uuid = Uuid([7; 16]);

/// Whoever serves a console, and the place.
fn console() -> (File, Outlet) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (File::from(master), Outlet { vm: VM, domid: 3, place: Place::Terminal(path) })
}

/// Both ends of a connection, of which one is a client's.
fn connection() -> (ChannelEnds, UnixStream) {
    let (ours, clients) = UnixStream::pair().unwrap();
    clients.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    ([ours.try_clone().unwrap().into(), ours.into()], clients)
}

fn attach(relays: &Relays, to: &Outlet) -> Result<UnixStream, String> {
    let (ends, client) = connection();
    relays.begin(to, ends, || open_place(to)).map(|()| client)
}

fn hear(from: &mut impl io::Read, expected: &[u8]) {
    let mut come = vec![0; expected.len()];
    from.read_exact(&mut come).unwrap();
    assert_eq!(come, expected);
}

fn wait_until_none(relays: &Relays) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !relays.all().is_empty() {
        assert!(Instant::now() < deadline, "a relay goes on");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn bytes_go_both_ways_as_they_are_until_the_guest_ends() {
    let relays = Relays::default();
    let (mut guest, place) = console();
    let mut client = attach(&relays, &place).unwrap();
    // Neither echo nor other habits of terminals.
    let bytes: Vec<u8> = (0..=255).collect();
    client.write_all(&bytes).unwrap();
    hear(&mut guest, &bytes);
    guest.write_all(&bytes).unwrap();
    hear(&mut client, &bytes);
    drop(guest);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    wait_until_none(&relays);
}

#[test]
fn a_client_that_leaves_has_said_what_it_said() {
    let relays = Relays::default();
    let (mut guest, place) = console();
    let mut client = attach(&relays, &place).unwrap();
    client.write_all(b"halt\n").unwrap();
    drop(client);
    hear(&mut guest, b"halt\n");
    wait_until_none(&relays);
    // The console is there for the next one.
    let mut next = attach(&relays, &place).unwrap();
    guest.write_all(b"halting").unwrap();
    hear(&mut next, b"halting");
}

#[test]
fn a_client_that_says_no_more_still_hears() {
    let relays = Relays::default();
    let (mut guest, place) = console();
    let mut client = attach(&relays, &place).unwrap();
    client.write_all(b"date\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    hear(&mut guest, b"date\n");
    guest.write_all(b"Sunday").unwrap();
    hear(&mut client, b"Sunday");
}

#[test]
fn a_client_that_does_not_read_holds_up_itself_alone() {
    let relays = Relays::default();
    let (guest, place) = console();
    let (mut other_guest, other_place) = console();
    let mut slow = attach(&relays, &place).unwrap();
    let mut other = attach(&relays, &other_place).unwrap();
    let writer = thread::spawn(move || {
        let mut guest = guest;
        for _ in 0..1024 {
            guest.write_all(&[b'x'; 4096]).unwrap();
        }
        guest
    });
    other_guest.write_all(b"hello").unwrap();
    hear(&mut other, b"hello");
    assert!(!writer.is_finished(), "all of it was taken");
    let mut come = vec![0; 4 << 20];
    slow.read_exact(&mut come).unwrap();
    assert!(come.iter().all(|it| *it == b'x'));
    drop(writer.join().unwrap());
}

#[test]
fn a_guest_that_ends_does_not_wait_for_a_client_that_does_not_read() {
    let relays = Relays::default();
    let (guest, place) = console();
    let client = attach(&relays, &place).unwrap();
    // As much as there is room for on the way.
    let flags = fcntl_getfl(&guest).unwrap();
    fcntl_setfl(&guest, flags | OFlags::NONBLOCK).unwrap();
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(500) {
        let _full = (&guest).write(&[b'x'; 4096]);
    }
    drop(guest);
    wait_until_none(&relays);
    drop(client);
}

#[test]
fn there_are_so_many_relays_of_a_vm_and_in_all() {
    let relays = Relays::default();
    let (_guest, place) = console();
    let mut clients: Vec<_> = (0..OF_A_VM_MAX).map(|_| attach(&relays, &place).unwrap()).collect();
    assert_eq!(
        attach(&relays, &place).unwrap_err(),
        "8 clients are attached to consoles of this VM already"
    );
    let seats: Vec<_> = (OF_A_VM_MAX..RELAYS_MAX)
        .map(|at| relays.seat(Uuid([u8::try_from(at).unwrap(); 16])).unwrap())
        .collect();
    let of_another = relays.seat(Uuid([200; 16])).unwrap_err();
    assert_eq!(of_another, "64 clients are attached to consoles already");
    drop(seats);
    clients.pop();
    let deadline = Instant::now() + Duration::from_secs(30);
    while attach(&relays, &place).is_err() {
        assert!(Instant::now() < deadline, "its place is not free");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_pseudo_terminals_are_consoles() {
    let relays = Relays::default();
    let (_guest, place) = console();
    let Place::Terminal(path) = &place.place else { unreachable!("it is a terminal") };
    let link = std::env::temp_dir().join(format!("relay-link-{}", std::process::id()));
    let _left_over = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(path, &link).unwrap();
    for (path, expected) in [
        ("/dev/null", "it is no pseudo-terminal"),
        ("/etc/hostname/none", "Not a directory (os error 20)"),
        (link.to_str().unwrap(), "Too many levels of symbolic links (os error 40)"),
    ] {
        let place = Outlet { place: Place::Terminal(path.to_owned()), ..place.clone() };
        let expected = format!("cannot open the console of domain 3, {path}: {expected}");
        assert_eq!(attach(&relays, &place).unwrap_err(), expected);
    }
    std::fs::remove_file(link).unwrap();
    wait_until_none(&relays);
}

#[test]
fn a_screen_is_a_server_that_speaks_first() {
    let relays = Relays::default();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let place = Outlet { vm: VM, domid: 3, place: Place::Server(address) };
    let mut client = attach(&relays, &place).unwrap();
    let (mut screen, _) = server.accept().unwrap();
    screen.write_all(b"RFB 003.008\n").unwrap();
    hear(&mut client, b"RFB 003.008\n");
    client.write_all(b"RFB 003.008\n").unwrap();
    hear(&mut screen, b"RFB 003.008\n");
    // What it said at last arrives.
    let last = vec![7; 100_000];
    let saying = thread::spawn(move || drop(screen.write_all(&last)));
    let mut come = Vec::new();
    client.read_to_end(&mut come).unwrap();
    assert_eq!(come.len(), 100_000);
    saying.join().unwrap();
    drop(server);
    let error = attach(&relays, &place).unwrap_err();
    assert!(error.starts_with("cannot reach the screen of domain 3 at 127.0.0.1:"), "{error}");
    assert!(error.ends_with("Connection refused (os error 111)"), "{error}");
}
