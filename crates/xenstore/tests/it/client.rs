//! The client, over a transport that calls the server directly.

use std::cell::RefCell;
use std::rc::Rc;

use xen::{DomId, Errno, EvtchnPort, Gfn};
use xenstore::client::{Batch, Client, ClientError, Nodes, Transport, WatchEvent};
use xenstore::server::ConnId;
use xenstore::{Access, Error, Permission, Quota};

use crate::world::World;

/// Bytes go straight into the store and come straight out of it.
#[derive(Clone)]
struct Direct {
    world: Rc<RefCell<World>>,
    id: ConnId,
}

impl Transport for Direct {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let World { server, machine, .. } = &mut *self.world.borrow_mut();
        server.receive(machine, self.id, bytes).map_err(|_| Errno::EIO)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let server = &mut self.world.borrow_mut().server;
        let bytes = server.output(self.id);
        if bytes.is_empty() {
            // A real transport would wait for ever.
            return Err(Errno::EAGAIN);
        }
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        server.consume(self.id, length);
        Ok(length)
    }
}

struct Bench {
    world: Rc<RefCell<World>>,
    client: Client<Direct>,
    other: Client<Direct>,
}

fn bench() -> Bench {
    let world = Rc::new(RefCell::new(World::new(Quota::default())));
    let connect = || {
        let id = world.borrow_mut().server.connect_socket();
        Client::new(Direct { world: Rc::clone(&world), id })
    };
    let (client, other) = (connect(), connect());
    Bench { world, client, other }
}

#[test]
fn nodes_are_read_and_written() {
    let mut client = bench().client;
    client.write("/a/b", b"value").unwrap();
    client.mkdir("/a/c").unwrap();
    assert_eq!(client.read("/a/b"), Ok(b"value".to_vec()));
    assert_eq!(client.read_text("/a/b"), Ok("value".to_owned()));
    assert_eq!(client.read_optional("/a/nowhere"), Ok(None));
    assert_eq!(client.directory("/a"), Ok(vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!(client.directory("/a/c"), Ok(vec![]));
    let list =
        [Permission::new(Access::None, DomId(0)), Permission::new(Access::ReadWrite, DomId(3))];
    client.set_perms("/a", &list).unwrap();
    assert_eq!(client.get_perms("/a"), Ok(list.to_vec()));
    client.rm("/a").unwrap();
    let error = client.read("/a/b").unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "xenstore read /a/b: no such node (ENOENT)");
    client.write("/bytes", b"\xff\xfe").unwrap();
    assert_eq!(client.read_text("/bytes"), Err(ClientError::NotText { path: "/bytes".to_owned() }));
}

#[test]
fn a_listing_of_any_length_comes_whole() {
    let mut client = bench().client;
    let names: Vec<String> = (0..3000).map(|i| format!("name-{i}")).collect();
    for name in &names {
        client.write(&format!("/d/{name}"), b"").unwrap();
    }
    assert_eq!(client.directory("/d"), Ok(names));
}

#[test]
fn a_batch_is_one_round_trip() {
    let mut client = bench().client;
    let mut batch = Batch::new();
    batch.write("/a", "1");
    let read = batch.read("/a");
    let missing = batch.read("/nowhere");
    batch.mkdir("/d");
    let listing = batch.directory("/");
    client.counters = Default::default();
    let replies = client.run(&batch).unwrap();
    assert_eq!((client.counters.messages, client.counters.round_trips), (5, 1));
    assert_eq!(replies.get(read), Ok(&b"1"[..]));
    assert_eq!(replies.get_optional(missing), Ok(None));
    assert_eq!(replies.get(listing), Ok(&b"tool\0a\0d\0"[..]));
    let refused = replies.all_ok().unwrap_err();
    assert_eq!(refused.to_string(), "xenstore read /nowhere: no such node (ENOENT)");
}

#[test]
fn a_batch_of_any_length_is_answered_in_order() {
    let mut client = bench().client;
    let mut batch = Batch::new();
    for i in 0..300 {
        batch.write("/counter", i.to_string());
        batch.read("/counter");
    }
    let replies = client.run(&batch).unwrap();
    for i in 0..300 {
        assert_eq!(replies.get(2 * i + 1), Ok(i.to_string().as_bytes()));
    }
}

#[test]
fn a_transaction_is_tried_again_until_nothing_interferes() {
    let Bench { mut client, mut other, .. } = bench();
    client.write("/n", b"0").unwrap();
    let mut interferences = 3;
    let result = client.transaction(|transaction| {
        let value: u32 = transaction.read_text("/n")?.parse().expect("a number");
        if interferences > 0 {
            interferences -= 1;
            other.write("/n", (value + 10).to_string().as_bytes())?;
        }
        transaction.write("/n", (value + 1).to_string().as_bytes())?;
        Ok::<_, ClientError>(value)
    });
    assert_eq!(result, Ok(30));
    assert_eq!(client.read_text("/n"), Ok("31".to_owned()));
    assert_eq!((client.counters.transactions, client.counters.conflicts), (4, 3));
}

#[test]
fn an_error_inside_a_transaction_leaves_nothing() {
    let Bench { world, mut client, .. } = bench();
    let result: Result<(), ClientError> = client.transaction(|transaction| {
        transaction.write("/a", b"1")?;
        transaction.read("/nowhere").map(|_| ())
    });
    assert!(result.unwrap_err().is_not_found());
    assert_eq!(client.read_optional("/a"), Ok(None));
    assert!(world.borrow().server.stats().contains("\"transactions_open\":0"));
}

#[test]
fn a_committed_batch_is_all_or_nothing() {
    let mut client = bench().client;
    let mut batch = Batch::new();
    batch.write("/a", "1");
    batch.set_perms("/nowhere", &[Permission::new(Access::Read, DomId(0))]);
    assert_eq!(client.commit(&batch).unwrap_err().refusal(), Some(Error::ENOENT));
    assert_eq!(client.read_optional("/a"), Ok(None));
    let mut batch = Batch::new();
    batch.write("/a", "1");
    let read = batch.read("/a");
    let replies = client.commit(&batch).unwrap();
    assert_eq!(replies.get(read), Ok(&b"1"[..]));
}

#[test]
fn a_conflict_without_end_is_reported() {
    let Bench { mut client, mut other, .. } = bench();
    let result: Result<(), ClientError> = client.transaction(|transaction| {
        transaction.read_optional("/n")?;
        transaction.write("/m", b"")?;
        let value = other.read_optional("/n")?.unwrap_or_default();
        other.write(
            "/n",
            &[value, b"x".to_vec()].concat()[..].iter().copied().take(2000).collect::<Vec<_>>(),
        )?;
        Ok(())
    });
    assert_eq!(result, Err(ClientError::Conflict { attempts: 1000 }));
}

#[test]
fn events_wait_until_somebody_asks() {
    let Bench { mut client, mut other, .. } = bench();
    client.watch("/a", "token").unwrap();
    client.watch_depth("/a", "shallow", 0).unwrap();
    other.write("/a/b", b"").unwrap();
    client.read_optional("/a/b").unwrap();
    let event = |path: &str, token: &str| WatchEvent { path: path.into(), token: token.into() };
    assert_eq!(client.next_event(), Ok(event("/a", "token")));
    assert_eq!(client.poll_event(), Some(event("/a", "shallow")));
    assert_eq!(client.poll_event(), Some(event("/a/b", "token")));
    assert_eq!(client.poll_event(), None);
    assert_eq!(client.receive(), Ok(false));
    other.write("/a/b", b"").unwrap();
    assert_eq!(client.receive(), Ok(true));
    assert_eq!(client.poll_event(), Some(event("/a/b", "token")));
    assert_eq!(client.counters.events, 4);
    client.unwatch("/a", "token").unwrap();
    client.reset_watches().unwrap();
    other.write("/a/b", b"").unwrap();
    assert_eq!(client.receive(), Ok(false));
}

#[test]
fn domains_are_introduced_and_released() {
    let Bench { world, mut client, .. } = bench();
    world.borrow_mut().create_domain(1);
    world.borrow_mut().create_domain(2);
    for domid in [1, 2] {
        assert_eq!(client.is_introduced(DomId(domid)), Ok(false));
        client.introduce(DomId(domid), Gfn(5), EvtchnPort(7)).unwrap();
        assert_eq!(client.is_introduced(DomId(domid)), Ok(true));
    }
    assert_eq!(client.get_domain_path(DomId(1)), Ok("/local/domain/1".to_owned()));
    client.set_target(DomId(2), DomId(1)).unwrap();
    client.resume(DomId(1)).unwrap();
    client.release(DomId(1)).unwrap();
    let error = client.release(DomId(1)).unwrap_err();
    assert_eq!(error.to_string(), "xenstore release 1: no such node (ENOENT)");
    let error = client.introduce(DomId(9), Gfn(5), EvtchnPort(7)).unwrap_err();
    assert_eq!(error.refusal(), Some(Error::EINVAL));
    assert_eq!(client.control(&["check"]), Ok("OK".to_owned()));
    assert!(client.control(&["help"]).unwrap().contains("check"));
}

#[test]
fn a_request_that_fits_into_no_message_is_refused_by_itself() {
    let mut client = bench().client;
    let error = client.write("/a", &[0; 5000]).unwrap_err();
    assert_eq!(error.refusal(), Some(Error::E2BIG));
    let mut batch = Batch::new();
    batch.write("/a", [0; 5000]);
    let good = batch.write("/b", "1");
    let replies = client.run(&batch).unwrap();
    assert_eq!(replies.get(good), Ok(&b"OK\0"[..]));
    assert_eq!(replies.get(0).unwrap_err().refusal(), Some(Error::E2BIG));
    assert_eq!(client.read("/b"), Ok(b"1".to_vec()));
}
