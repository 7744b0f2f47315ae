//! The client, over a transport that calls the server directly.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use xen::{DomId, Errno, EvtchnPort, Gfn};
use xenstore::client::{Batch, Client, ClientError, HasChildren, Nodes, Transport, WatchEvent};
use xenstore::server::ConnId;
use xenstore::{Access, Error, Permission, Quota};

use crate::world::World;

const EPIPE: Errno = Errno(32);

/// Bytes go straight into the store and come straight out of it.
#[derive(Clone)]
struct Direct {
    world: Rc<RefCell<World>>,
    id: ConnId,
    link: Rc<Cell<Link>>,
}

/// What happens to the connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Link {
    #[default]
    Works,
    /// The store goes away before it sees the request that is sent after so many others.
    BreaksBefore(u32),
    /// The store answers that request, but nobody hears it.
    BreaksAfter(u32),
    /// The next that is received is the end.
    Closing,
    /// So many new connections are to a store that is just ending.
    Ending(u32),
    /// Nothing answers, and no new connection can be made.
    Dead,
}

impl Direct {
    fn break_off(&mut self) {
        self.world.borrow_mut().server.disconnect(self.id);
        self.link.set(Link::Works);
    }
}

impl Transport for Direct {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        match self.link.get() {
            Link::Dead => return Err(EPIPE),
            Link::BreaksBefore(0) => {
                self.break_off();
                return Err(EPIPE);
            }
            Link::BreaksBefore(more) => self.link.set(Link::BreaksBefore(more - 1)),
            Link::BreaksAfter(0) => self.link.set(Link::Closing),
            Link::BreaksAfter(more) => self.link.set(Link::BreaksAfter(more - 1)),
            Link::Works | Link::Closing | Link::Ending(_) => {}
        }
        let World { server, machine, .. } = &mut *self.world.borrow_mut();
        server.receive(machine, self.id, bytes).map_err(|_| Errno::EIO)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        match self.link.get() {
            Link::Dead => return Err(EPIPE),
            Link::Ending(0) => self.link.set(Link::Works),
            Link::Ending(more) => {
                self.link.set(Link::Ending(more - 1));
                return Ok(0);
            }
            Link::Closing => {
                self.break_off();
                return Ok(0);
            }
            _ => {}
        }
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

    fn reconnect(&mut self) -> Result<(), Errno> {
        if self.link.get() == Link::Dead {
            return Err(EPIPE);
        }
        self.id = self.world.borrow_mut().server.connect_socket();
        Ok(())
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
        Client::new(Direct { world: Rc::clone(&world), id, link: Rc::default() })
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

/// A connection on which batches are unknown, as they are to every other store.
fn client_of_another_store(world: &Rc<RefCell<World>>) -> Client<Direct> {
    let id = world.borrow_mut().server.connect_control_domain();
    Client::new(Direct { world: Rc::clone(world), id, link: Rc::default() })
}

#[test]
fn reads_alone_are_one_message_where_batches_are_known() {
    let Bench { mut client, .. } = bench();
    let mut writes = Batch::new();
    let mut reads = Batch::new();
    for i in 0..1500 {
        writes.write(&format!("/d/n{i}"), i.to_string());
        reads.read(&format!("/d/n{i}"));
    }
    let missing = reads.read("/nowhere");
    let listing = reads.directory("/d");
    client.run(&writes).unwrap().all_ok().unwrap();
    client.counters = Default::default();
    let replies = client.run(&reads).unwrap();
    assert_eq!((client.counters.messages, client.counters.round_trips), (2, 2));
    assert_eq!(replies.get(1499), Ok(&b"1499"[..]));
    assert_eq!(replies.get_optional(missing), Ok(None));
    assert!(replies.get(listing).unwrap().ends_with(b"n1499\0"));
}

#[test]
fn a_reply_that_is_cut_is_continued() {
    let Bench { mut client, .. } = bench();
    let value = [b'v'; 4000];
    let mut reads = Batch::new();
    for i in 0..40 {
        client.write(&format!("/n{i}"), &value).unwrap();
        reads.read(&format!("/n{i}"));
    }
    client.counters = Default::default();
    let replies = client.run(&reads).unwrap();
    assert_eq!(replies.results(), vec![Ok(value.to_vec()); 40]);
    assert_eq!(client.counters.messages, 3);
}

#[test]
fn reads_at_once_are_of_one_state_whether_they_fit_a_message_or_not() {
    let Bench { world, client, mut other } = bench();
    let mut another = client_of_another_store(&world);
    let mut client = client;
    let value = [b'v'; 4000];
    let mut many = Batch::new();
    for i in 0..40 {
        other.write(&format!("/n{i}"), &value).unwrap();
        many.read(&format!("/n{i}"));
    }
    let mut few = Batch::new();
    few.read("/n0");
    few.read("/nowhere");
    for client in [&mut client, &mut another] {
        assert_eq!(client.run_at_once(&many).unwrap().results(), vec![Ok(value.to_vec()); 40]);
        let replies = client.run_at_once(&few).unwrap();
        assert_eq!(replies.get_optional(1), Ok(None));
        assert_eq!(client.run_at_once(&Batch::new()).unwrap().results(), []);
    }
    assert_eq!((client.counters.transactions, another.counters.transactions), (1, 2));
}

#[test]
fn a_store_without_batches_is_asked_once_and_served_as_ever() {
    let world = Rc::new(RefCell::new(World::new(Quota::default())));
    let mut client = client_of_another_store(&world);
    let mut batch = Batch::new();
    for i in 0..500 {
        // Longer than a message there may be.
        batch.write(&format!("/d/n{i}"), i.to_string());
    }
    client.run(&batch).unwrap().all_ok().unwrap();
    let unknown = || world.borrow().server.counters().requests_unknown;
    assert_eq!(unknown(), 1);
    client.commit(&batch).unwrap();
    assert_eq!((unknown(), client.counters.transactions), (1, 1));
    assert_eq!(client.read("/d/n499"), Ok(b"499".to_vec()));
    let id = world.borrow_mut().server.connect_socket();
    let direct = Direct { world: Rc::clone(&world), id, link: Rc::default() };
    let mut client = Client::without_batches(direct);
    client.commit(&batch).unwrap();
    assert_eq!((unknown(), client.counters.transactions), (1, 1));
}

#[test]
fn a_commit_is_guarded_alike_with_and_without_batches() {
    let Bench { world, client, mut other } = bench();
    let mut clients = [client, client_of_another_store(&world)];
    for client in &mut clients {
        client.write("/d/n", b"1").unwrap();
        let mut look = Batch::new();
        let generation = look.directory_generation("/d");
        let (generation, has_children) = client.run(&look).unwrap().generation(generation).unwrap();
        assert_eq!(has_children, HasChildren::Yes);
        let guarded = |build: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new();
            batch.write("/w", "1");
            build(&mut batch);
            batch.write("/w", "2");
            batch
        };
        let good = guarded(&|batch| {
            batch.guard_present("/d");
            batch.guard_absent("/e");
            batch.guard_value("/d/n", "1");
            batch.guard_children("/d", &generation);
        });
        assert_eq!(client.commit(&good).map(drop), Ok(()));
        assert_eq!(client.read("/w"), Ok(b"2".to_vec()));
        client.rm("/w").unwrap();
        for (bad, message) in [
            (guarded(&|b| _ = b.guard_present("/e")), "guard present /e: no such node (ENOENT)"),
            (guarded(&|b| _ = b.guard_absent("/d")), "guard absent /d: exists already (EEXIST)"),
            (
                guarded(&|b| _ = b.guard_value("/d/n", "2")),
                "guard value /d/n: the transaction conflicts with another change (EAGAIN)",
            ),
            (guarded(&|b| _ = b.guard_value("/e", "2")), "guard value /e: no such node (ENOENT)"),
            (
                guarded(&|b| _ = b.guard_children("/d", "99999")),
                "guard children /d: the transaction conflicts with another change (EAGAIN)",
            ),
        ] {
            let error = client.commit(&bad).unwrap_err();
            assert_eq!(error.to_string(), format!("xenstore {message}"));
            assert_eq!(other.read_optional("/w"), Ok(None));
        }
        let replies = client.run(&good).unwrap();
        assert_eq!(replies.all_ok(), Ok(()));
        client.rm("/w").unwrap();
    }
    assert_eq!((clients[0].counters.transactions, clients[1].counters.transactions), (0, 6));
}

#[test]
fn a_prepared_commit_takes_effect_by_one_message() {
    let Bench { world, client, mut other } = bench();
    for mut client in [client, client_of_another_store(&world)] {
        client.write("/d/n", b"1").unwrap();
        let mut batch = Batch::new();
        batch.guard_value("/d/n", "1");
        batch.write("/w", "2");
        let prepared = client.prepare_commit(batch.clone()).unwrap();
        assert_eq!(other.read_optional("/w"), Ok(None));
        client.counters = Default::default();
        client.commit_prepared(prepared).unwrap();
        assert_eq!((client.counters.messages, client.counters.round_trips), (1, 1));
        assert_eq!(other.read("/w"), Ok(b"2".to_vec()));
        other.rm("/w").unwrap();
        // What is dropped leaves nothing.
        let prepared = client.prepare_commit(batch.clone()).unwrap();
        client.discard(prepared);
        assert_eq!(other.read_optional("/w"), Ok(None));
        // The connection is another one meanwhile.
        let prepared = client.prepare_commit(batch.clone()).unwrap();
        breaks(&client, Link::BreaksBefore(0));
        client.read("/d/n").unwrap();
        client.commit_prepared(prepared).unwrap();
        assert_eq!(other.read("/w"), Ok(b"2".to_vec()));
        other.rm("/w").unwrap();
        // The guard holds until it takes effect.
        let prepared = client.prepare_commit(batch).unwrap();
        other.write("/d/n", b"3").unwrap();
        let error = client.commit_prepared(prepared).unwrap_err();
        assert_eq!(error.refusal(), Some(Error::EAGAIN));
        assert_eq!(other.read_optional("/w"), Ok(None));
    }
}

#[test]
fn an_empty_list_of_children_says_so() {
    let Bench { mut client, .. } = bench();
    client.mkdir("/d").unwrap();
    let mut look = Batch::new();
    look.directory_generation("/d");
    let (_, has_children) = client.run(&look).unwrap().generation(0).unwrap();
    assert_eq!(has_children, HasChildren::No);
}

/// Requests of one type do not reach the store, or something happens before they do.
struct Between<F> {
    direct: Direct,
    before: F,
}

impl<F: FnMut(&mut Vec<u8>)> Transport for Between<F> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let mut bytes = bytes.to_vec();
        (self.before)(&mut bytes);
        self.direct.send(&bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        self.direct.recv(into)
    }
}

const DIRECTORY_PART: u8 = 22;

#[test]
fn a_listing_that_never_rests_is_given_up() {
    let Bench { client, mut other, .. } = bench();
    for i in 0..1000 {
        other.write(&format!("/d/name-{i}"), b"").unwrap();
    }
    let mut restless = other;
    let mut count = 0;
    let before = |bytes: &mut Vec<u8>| {
        if bytes[0] == DIRECTORY_PART {
            count += 1;
            restless.write(&format!("/d/more-{count}"), b"").unwrap();
        }
    };
    let mut client = Client::new(Between { direct: client.transport().clone(), before });
    let error = ClientError::Unsteady { path: "/d".into(), attempts: 100 };
    assert_eq!(client.directory("/d"), Err(error));
}

#[test]
fn a_store_that_lists_no_parts_is_an_error_with_a_reason() {
    let Bench { client, mut other, .. } = bench();
    for i in 0..1000 {
        other.write(&format!("/d/name-{i}"), b"").unwrap();
    }
    let before = |bytes: &mut Vec<u8>| {
        if bytes[0] == DIRECTORY_PART {
            bytes[0] = 99;
        }
    };
    let mut client = Client::new(Between { direct: client.transport().clone(), before });
    let error = client.directory("/d").unwrap_err();
    assert_eq!(
        error.to_string(),
        "xenstore node /d has more children than fit into one message, and this store cannot list \
         them in parts (DIRECTORY_PART)"
    );
}

// A store that goes away and comes back

fn breaks(client: &Client<Direct>, link: Link) {
    client.transport().link.set(link);
}

#[test]
fn what_was_not_answered_is_asked_again() {
    let Bench { mut client, .. } = bench();
    for link in [Link::BreaksBefore(0), Link::BreaksAfter(0)] {
        breaks(&client, link);
        client.write("/a", b"1").unwrap();
        breaks(&client, link);
        assert_eq!(client.read("/a"), Ok(b"1".to_vec()));
        for requests in [2, 300] {
            let mut batch = Batch::new();
            for i in 0..requests {
                batch.write("/a", i.to_string());
                batch.read("/a");
            }
            breaks(&client, link);
            let replies = client.run(&batch).unwrap();
            assert_eq!(replies.get(2 * requests - 1), Ok((requests - 1).to_string().as_bytes()));
        }
        let mut batch = Batch::new();
        batch.write("/a", "1");
        batch.write("/b", "2");
        breaks(&client, link);
        client.commit(&batch).unwrap();
    }
    assert_eq!(client.counters.reconnects, 10);
}

#[test]
fn what_may_have_happened_is_told() {
    let Bench { mut client, .. } = bench();
    let mut batch = Batch::new();
    batch.guard_absent("/a");
    batch.write("/a", "1");
    breaks(&client, Link::BreaksAfter(0));
    let error = client.commit(&batch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store was restarted during the request batch of 2 requests: look whether it took \
         effect before you repeat it"
    );
    assert_eq!(client.read("/a"), Ok(b"1".to_vec()));
    breaks(&client, Link::BreaksAfter(0));
    let error = client.control(&["check"]).unwrap_err();
    assert_eq!(error, ClientError::OutcomeUnknown { request: "control ".into() });
    // The reply to the commit is the third of this transaction.
    breaks(&client, Link::BreaksAfter(2));
    let result: Result<(), ClientError> =
        client.transaction(|transaction| transaction.write("/a", b"2"));
    assert_eq!(result, Err(ClientError::OutcomeUnknown { request: "transaction_end".into() }));
    assert_eq!(client.read("/a"), Ok(b"2".to_vec()));
}

#[test]
fn what_was_never_sent_cannot_have_happened() {
    let Bench { mut client, .. } = bench();
    for value in ["1", "2"] {
        let mut batch = Batch::new();
        batch.guard_absent(&format!("/{value}"));
        batch.write(&format!("/{value}"), value);
        breaks(&client, Link::BreaksBefore(0));
        client.commit(&batch).unwrap();
        breaks(&client, Link::BreaksBefore(0));
        client.control(&["check"]).unwrap();
    }
    assert_eq!(client.counters.reconnects, 4);
}

#[test]
fn a_transaction_begins_again_after_its_connection_broke() {
    let Bench { mut client, .. } = bench();
    for (link, runs_expected) in [
        (Link::BreaksBefore(0), 1),
        (Link::BreaksAfter(0), 1),
        (Link::BreaksBefore(1), 2),
        (Link::BreaksAfter(1), 2),
    ] {
        breaks(&client, link);
        let mut runs = 0;
        let result: Result<(), ClientError> = client.transaction(|transaction| {
            runs += 1;
            let value = transaction.read_optional("/n")?.unwrap_or_default();
            transaction.write("/n", &[value, b"x".to_vec()].concat())
        });
        assert_eq!((result, runs), (Ok(()), runs_expected), "{link:?}");
    }
    assert_eq!(client.read("/n"), Ok(b"xxxx".to_vec()));
}

#[test]
fn watches_are_registered_again_and_report_at_once() {
    let Bench { mut client, mut other, .. } = bench();
    client.watch("/a", "all").unwrap();
    client.watch("/dropped", "t").unwrap();
    client.unwatch("/dropped", "t").unwrap();
    client.watch_depth("/a", "shallow", 0).unwrap();
    let mut batch = Batch::new();
    batch.watch("/b", "batched");
    client.run(&batch).unwrap().all_ok().unwrap();
    while client.poll_event().is_some() {}
    breaks(&client, Link::Closing);
    let event = |path: &str, token: &str| WatchEvent { path: path.into(), token: token.into() };
    let first: Vec<_> = (0..3).map(|_| client.next_event().unwrap()).collect();
    assert_eq!(first, [event("/a", "all"), event("/a", "shallow"), event("/b", "batched")]);
    other.write("/a/x", b"").unwrap();
    assert_eq!(client.next_event(), Ok(event("/a/x", "all")));
    assert_eq!(client.receive(), Ok(false));
    client.reset_watches().unwrap();
    breaks(&client, Link::Closing);
    assert_eq!(client.receive(), Ok(false));
    assert_eq!(client.counters.reconnects, 2);
}

#[test]
fn a_connection_to_a_store_that_is_just_ending_is_tried_again() {
    let Bench { mut client, .. } = bench();
    client.watch("/a", "token").unwrap();
    client.next_event().unwrap();
    for (endings, survives) in [(1, true), (50, true), (102, false)] {
        breaks(&client, Link::Ending(endings));
        assert_eq!(client.receive().is_ok(), survives, "{endings}");
    }
    breaks(&client, Link::Works);
    assert_eq!(client.read_optional("/a"), Ok(None));
    assert_eq!(client.counters.reconnects, 3);
}

#[test]
fn a_store_that_stays_away_is_reported_by_its_first_error() {
    let Bench { mut client, .. } = bench();
    breaks(&client, Link::Dead);
    assert_eq!(client.read("/a"), Err(ClientError::Transport(EPIPE)));
    assert_eq!(client.read("/a"), Err(ClientError::Closed));
    let result: Result<(), ClientError> = client.transaction(|_| Ok(()));
    assert_eq!(result, Err(ClientError::Closed));
    assert_eq!(client.receive(), Err(ClientError::Closed));
    breaks(&client, Link::Works);
    assert_eq!(client.read_optional("/a"), Ok(None));
}
