//! The client library against the running daemon: batches, listings, conflicts, restarts.

use std::thread;
use std::time::Duration;

use xenstore::client::{Batch, Client, ClientError, Nodes as _, WatchEvent};
use xenstore_socket::StoreSocket;

use crate::process::Daemon;

fn connect(daemon: &Daemon) -> Client<StoreSocket> {
    StoreSocket::connect_patiently(&daemon.folder.path().join("socket"), Duration::from_secs(120))
        .unwrap()
}

#[test]
fn a_batch_of_tens_of_kilobytes_is_one_message_each_way() {
    let daemon = Daemon::start("batch", &[]);
    let mut client = connect(&daemon);
    let mut writes = Batch::new();
    let mut reads = Batch::new();
    for i in 0..500 {
        writes.write(&format!("/batch/node-{i}"), format!("{i:080}"));
        reads.read(&format!("/batch/node-{i}"));
    }
    // Found out by an empty one, because this is longer than other stores allow.
    client.commit(&writes).unwrap();
    assert_eq!(client.counters.messages, 2);
    let replies = client.run_at_once(&reads).unwrap();
    assert_eq!(client.counters.messages, 3);
    for i in 0..500 {
        assert_eq!(replies.get(i), Ok(format!("{i:080}").as_bytes()));
    }
}

#[test]
fn clients_that_connect_all_at_once_are_all_served() {
    let daemon = Daemon::start("crowd", &[]);
    // More than are accepted in one turn, and all of them before the first is answered.
    let mut clients: Vec<_> = (0..100).map(|_| connect(&daemon)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write(&format!("/crowd/{number}"), b"here").unwrap();
    }
    assert_eq!(clients[0].directory("/crowd").unwrap().len(), 100);
}

#[test]
fn a_long_listing_and_a_long_value_arrive_whole() {
    let daemon = Daemon::start("long", &[]);
    let mut client = connect(&daemon);
    let names: Vec<String> = (0..20_000).map(|i| format!("some-name-{i}")).collect();
    let mut batch = Batch::new();
    for name in &names {
        batch.mkdir(&format!("/long/{name}"));
    }
    client.run(&batch).unwrap().all_ok().unwrap();
    assert_eq!(client.directory("/long").unwrap(), names);
    let value = [b'v'; 4090];
    client.write("/long", &value[..4090]).unwrap();
    assert_eq!(client.read("/long").unwrap(), value);
}

#[test]
fn guests_have_no_batches_and_commit_all_the_same() {
    let daemon = Daemon::start("guest-batch", &[]);
    let mut guest = daemon.guest(1);
    let mut client = connect(&daemon);
    client.write("/local/domain/1/data", b"").unwrap();
    let permissions = [xenstore::Permission::new(xenstore::Access::None, xen::DomId(1))];
    client.set_perms("/local/domain/1/data", &permissions).unwrap();
    let mut batch = Batch::new();
    batch.guard_absent("data/a");
    batch.write("data/a", "1");
    batch.write("data/b", "2");
    guest.commit(&batch).unwrap();
    assert_eq!(guest.counters.transactions, 1);
    assert_eq!(client.read("/local/domain/1/data/b").unwrap(), b"2");
    let error = guest.commit(&batch).unwrap_err();
    assert_eq!(error.to_string(), "xenstore guard absent data/a: exists already (EEXIST)");
}

#[test]
fn transactions_of_many_clients_all_come_through() {
    let daemon = Daemon::start("conflicts", &[]);
    connect(&daemon).write("/counter", b"0").unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = connect(&daemon);
                for _ in 0..50 {
                    let result: Result<(), ClientError> = client.transaction(|transaction| {
                        let count: u32 = transaction.read_text("/counter")?.parse().unwrap();
                        transaction.write("/counter", (count + 1).to_string().as_bytes())
                    });
                    result.unwrap();
                }
            });
        }
    });
    assert_eq!(connect(&daemon).read("/counter").unwrap(), b"200");
}

#[test]
fn clients_outlive_a_killed_daemon() {
    let mut daemon = Daemon::start("outlive", &[]);
    let (mut client, mut other) = (connect(&daemon), connect(&daemon));
    client.watch("/a", "token").unwrap();
    client.write("/a/b", b"1").unwrap();
    let event = |path: &str| WatchEvent { path: path.to_owned(), token: "token".to_owned() };
    assert_eq!(client.next_event().unwrap(), event("/a"));
    assert_eq!(client.next_event().unwrap(), event("/a/b"));
    for round in 0..3 {
        daemon.kill();
        let waiting = thread::spawn(move || {
            let event = client.next_event().unwrap();
            (client, event)
        });
        daemon.restart(&[]);
        // The watch is there again, and says: look at everything.
        let (returned, first) = waiting.join().unwrap();
        client = returned;
        assert_eq!(first, event("/a"));
        assert_eq!(client.read("/a/b").unwrap(), b"1");
        let mut batch = Batch::new();
        batch.write("/a/c", format!("{round}"));
        batch.write("/b", format!("{round}"));
        other.commit(&batch).unwrap();
        assert_eq!(client.next_event().unwrap(), event("/a/c"));
        assert_eq!((client.counters.transactions, other.counters.transactions), (0, 0));
    }
    daemon.kill();
    daemon.restart(&[]);
    assert_eq!(connect(&daemon).read("/b").unwrap(), b"2");
    assert_eq!((client.counters.reconnects, other.counters.reconnects), (3, 3));
}
