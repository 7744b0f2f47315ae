//! What a request costs in the store itself, without a socket: nanoseconds a request, best of several.
//!
//! `cargo bench -p xenstore [-- NODES]`. Under `valgrind --tool=callgrind` the same program tells where
//! the instructions go, which a busy machine does not disturb.
#![expect(clippy::disallowed_types, reason = "a benchmark looks at the clock; the store does not")]

use std::time::Instant;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::server::{ConnId, Host, Server};
use xenstore::wire::{HEADER_BYTES, MessageType, encode};
use xenstore::{Error, Quota};

const CLIENTS: usize = 8;
const ROUNDS: u32 = 2_000;
const REPEATS: usize = 15;
const VALUE: &str = "0123456789abcdef";

struct Nowhere;

impl Host for Nowhere {
    fn connect_ring(&mut self, _: ConnId, _: DomId, _: Gfn, _: EvtchnPort) -> Result<(), Error> {
        Ok(())
    }

    fn reset_ring(&mut self, _: DomId, _: EvtchnPort) -> Result<(), Error> {
        Ok(())
    }

    fn disconnect_ring(&mut self, _: DomId) {}

    fn domain_exists(&mut self, _: DomId) -> bool {
        true
    }

    fn log(&mut self, _: &str) {}
}

struct Bench {
    server: Server,
    clients: Vec<ConnId>,
    reply: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let mut server = Server::new(Quota::default());
        let clients = (0..CLIENTS).map(|_| server.connect_socket()).collect();
        Self { server, clients, reply: Vec::new() }
    }

    /// One request of one client, with what a shell does for it.
    fn ask(&mut self, client: usize, message: &[u8]) {
        let id = self.clients[client];
        self.server.receive(&mut Nowhere, id, message).expect("the message is well-formed");
        self.reply.clear();
        for id in self.server.take_ready() {
            loop {
                let bytes = self.server.output(id);
                let length = bytes.len();
                if length == 0 {
                    break;
                }
                self.reply.extend_from_slice(bytes);
                self.server.consume(id, length);
            }
        }
        assert_ne!(self.reply[0], 16, "{}", String::from_utf8_lossy(&self.reply[HEADER_BYTES..]));
    }

    fn measure(&mut self, name: &str, mut round: impl FnMut(&mut Self, usize)) {
        let mut best = f64::INFINITY;
        for _ in 0..REPEATS {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                for client in 0..CLIENTS {
                    round(self, client);
                }
            }
            let nanoseconds = start.elapsed().as_secs_f64() * 1e9;
            best = best.min(nanoseconds / f64::from(ROUNDS) / CLIENTS as f64);
        }
        println!("{name:<40} {best:>8.0} ns");
    }
}

fn message(kind: MessageType, transaction: u32, payload: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, kind.code(), 1, transaction, &[payload.as_bytes()]);
    bytes
}

fn number(reply: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(&reply[HEADER_BYTES..]);
    text.trim_end_matches('\0').parse().expect("a transaction's number")
}

fn main() {
    use MessageType as M;
    let nodes: usize =
        std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    let mut bench = Bench::new();
    for i in 0..nodes {
        let payload = format!("/fill/group{:05}/entry{i:08}\0{VALUE}", i / 100);
        bench.ask(0, &message(M::Write, 0, &payload));
    }
    println!("{nodes} nodes");
    for client in 0..CLIENTS {
        bench.ask(client, &message(M::Write, 0, &format!("/bench/{client}/value\0{VALUE}")));
        for child in 0..10 {
            let payload = format!("/bench/dir{client}/child{child}\0x");
            bench.ask(client, &message(M::Write, 0, &payload));
        }
    }
    let each = |kind, payload: &dyn Fn(usize) -> String| -> Vec<Vec<u8>> {
        (0..CLIENTS).map(|client| message(kind, 0, &payload(client))).collect()
    };
    let read = each(M::Read, &|client| format!("/bench/{client}/value\0"));
    bench.measure("READ", |bench, client| bench.ask(client, &read[client]));
    let write = each(M::Write, &|client| format!("/bench/{client}/value\0{VALUE}"));
    bench.measure("WRITE", |bench, client| bench.ask(client, &write[client]));
    let directory = each(M::Directory, &|client| format!("/bench/dir{client}\0"));
    bench.measure("DIRECTORY of 10", |bench, client| bench.ask(client, &directory[client]));
    let create = each(M::Write, &|client| format!("/bench/{client}/new\0{VALUE}"));
    let remove = each(M::Rm, &|client| format!("/bench/{client}/new\0"));
    bench.measure("WRITE that creates, RM", |bench, client| {
        bench.ask(client, &create[client]);
        bench.ask(client, &remove[client]);
    });

    let start = message(M::TransactionStart, 0, "\0");
    bench.measure("start, read, write, commit", |bench, client| {
        bench.ask(client, &start);
        let id = number(&bench.reply);
        bench.ask(client, &message(M::Read, id, &format!("/bench/{client}/value\0")));
        bench.ask(client, &message(M::Write, id, &format!("/bench/{client}/value\0{VALUE}")));
        bench.ask(client, &message(M::TransactionEnd, id, "T\0"));
    });
    // In step: every commit but the first finds a store that others changed.
    let mut ids = [0; CLIENTS];
    bench.measure("the same, 8 open at a time", |bench, client| {
        if client > 0 {
            return;
        }
        for (client, id) in ids.iter_mut().enumerate() {
            bench.ask(client, &start);
            *id = number(&bench.reply);
        }
        for (client, &id) in ids.iter().enumerate() {
            bench.ask(client, &message(M::Read, id, &format!("/bench/{client}/value\0")));
        }
        for (client, &id) in ids.iter().enumerate() {
            let payload = format!("/bench/{client}/value\0{VALUE}");
            bench.ask(client, &message(M::Write, id, &payload));
        }
        for (client, &id) in ids.iter().enumerate() {
            bench.ask(client, &message(M::TransactionEnd, id, "T\0"));
        }
    });
}
