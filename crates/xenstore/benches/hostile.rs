//! What hostile guests cost others: the longest requests, writes beside everybody's watches, memory.
//!
//! `cargo bench -p xenstore --bench hostile`.
#![expect(clippy::disallowed_types, reason = "a benchmark looks at the clock; the store does not")]

use std::time::{Duration, Instant};

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::server::{ConnId, Host, Server};
use xenstore::wire::{HEADER_BYTES, MessageType as M, encode};
use xenstore::{Error, Quota};

#[derive(Default)]
struct Machine {
    last_ring: Option<ConnId>,
}

impl Host for Machine {
    fn connect_ring(&mut self, id: ConnId, _: DomId, _: Gfn, _: EvtchnPort) -> Result<(), Error> {
        self.last_ring = Some(id);
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
    machine: Machine,
    dom0: ConnId,
    now: Duration,
    reply: Vec<u8>,
}

impl Bench {
    fn new(quota: Quota) -> Self {
        let mut server = Server::new(quota);
        let dom0 = server.connect_socket();
        let (machine, now) = (Machine::default(), Duration::ZERO);
        Self { server, machine, dom0, now, reply: Vec::new() }
    }

    fn read_all(&mut self, id: ConnId) {
        self.reply.clear();
        loop {
            let bytes = self.server.output(id);
            let length = bytes.len();
            if length == 0 {
                return;
            }
            self.reply.extend_from_slice(bytes);
            self.server.consume(id, length);
        }
    }

    /// Makes a request, reads everything, and says how long the store worked.
    fn ask(&mut self, id: ConnId, kind: M, transaction: u32, payload: &str) -> Duration {
        let mut message = Vec::new();
        encode(&mut message, kind.code(), 1, transaction, &[payload.as_bytes()]);
        // Nobody is held back for writing fast.
        self.now += Duration::from_secs(1);
        self.server.advance(&mut self.machine, self.now);
        let begun = Instant::now();
        self.server.receive(&mut self.machine, id, &message).expect("a good message");
        let took = begun.elapsed();
        self.read_all(id);
        took
    }

    fn guest(&mut self, domid: u16) -> ConnId {
        let dom0 = self.dom0;
        self.ask(dom0, M::Introduce, 0, &format!("{domid}\x001\x001\0"));
        let home = format!("/local/domain/{domid}\0");
        self.ask(dom0, M::Mkdir, 0, &home);
        self.ask(dom0, M::SetPerms, 0, &format!("{home}n{domid}\0"));
        self.machine.last_ring.expect("introduced just now")
    }
}

/// The largest commit that a guest can ask for: as many nodes as it may touch, each as deep as it may be.
fn commit() {
    let mut bench = Bench::new(Quota::default());
    let guests: Vec<ConnId> = (1..=16).map(|domid| bench.guest(domid)).collect();
    let long = "d/".repeat(28);
    let mut times = Vec::new();
    for (i, &guest) in guests.iter().enumerate() {
        bench.ask(guest, M::Write, 0, &format!("{long}x\0v"));
        bench.ask(guest, M::TransactionStart, 0, "\0");
        for node in 0..1_000 {
            bench.ask(guest, M::Read, 1, &format!("{long}{node}\0"));
        }
        bench.ask(guest, M::Write, 1, "own\0v");
        // Something else changed, so that the commit has to look.
        bench.ask(bench.dom0, M::Write, 0, &format!("/other\0{i}"));
        times.push(bench.ask(guest, M::TransactionEnd, 1, "T\0"));
        assert_eq!(bench.reply[0], 7, "the commit is answered");
    }
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("largest commit: median {median:?}, longest {longest:?}");
}

/// A write of the control domain's beside a thousand guests that watch everything.
fn watches() {
    for watched in [0, 128] {
        let mut bench = Bench::new(Quota::default());
        for domid in 1..=1_000 {
            let guest = bench.guest(domid);
            for token in 0..watched {
                bench.ask(guest, M::Watch, 0, &format!("/\0{token}\0"));
            }
        }
        let dom0 = bench.dom0;
        let times = (0..1_000).map(|i| bench.ask(dom0, M::Write, 0, &format!("/tool/x\0{i}")));
        let mean = times.sum::<Duration>() / 1_000;
        println!("WRITE beside 1000 guests with {watched} watches on /: {mean:?}");
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) * 1024
}

/// What guests that fill every limit take, and what is accounted for them.
fn memory() {
    const GUESTS: u16 = 40;
    let mut bench = Bench::new(Quota::default());
    let guests: Vec<ConnId> = (1..=GUESTS).map(|domid| bench.guest(domid)).collect();
    let before = resident_bytes();
    for (i, &guest) in guests.iter().enumerate() {
        let domid = i + 1;
        for watch in 0..128 {
            // No two share a name, and each is longer than a node has place for.
            let names = (0..8).map(|name| format!("{watch}-{name}-{}", "n".repeat(20)));
            let path = names.collect::<Vec<_>>().join("/");
            bench.ask(guest, M::Watch, 0, &format!("{path}\0token\0"));
        }
        for node in 0..500 {
            bench.ask(guest, M::Write, 0, &format!("{node}/x\0v"));
            let path = format!("/local/domain/{domid}/{node}/x");
            bench.ask(guest, M::SetPerms, 0, &format!("{path}\0n{domid}\0r1\0r2\0r3\0r4\0"));
        }
        for transaction in 1..=10 {
            bench.ask(guest, M::TransactionStart, 0, "\0");
            for node in 0..500 {
                bench.ask(guest, M::Write, transaction, &format!("{node}/x\0w"));
            }
        }
    }
    let held = resident_bytes().saturating_sub(before);
    let dom0 = bench.dom0;
    bench.ask(dom0, M::Control, 0, "memreport\0");
    let report = String::from_utf8_lossy(&bench.reply[HEADER_BYTES..]).into_owned();
    let of_domain = |line: &str| -> Option<usize> {
        let (_, rest) = line.strip_prefix("domain ")?.split_once(": ")?;
        rest.split(' ').next()?.parse().ok()
    };
    let accounted: usize = report.lines().filter_map(of_domain).sum();
    println!(
        "{GUESTS} guests at their limits: {} KiB held each, {} KiB accounted each",
        held / 1024 / usize::from(GUESTS),
        accounted / 1024 / usize::from(GUESTS)
    );
}

fn main() {
    // First, while the process has freed nothing that could be used again.
    memory();
    commit();
    watches();
}
