//! What is measured: each section makes some rows of the table.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xenstore::wire::MessageType as M;
use xenstore::wire::batch::{self, EntryKind, Refusal};

use super::super::{Better, Row};
use super::field::{Bench, Entry, Figures};
use super::load::{Same, Sequence, Step, measure};
use lab::Store;
use store_trials::stores::{Connection, Daemon, request};

/// As many times worse, at most, counts as the same.
const FLAT: f64 = 1.15;

/// A section's name, and what measures its rows.
type Named = (&'static str, Section);
type Section = fn(&Bench) -> Result<Vec<Row>>;

/// Sections by name, in the order of the table.
pub(super) const SECTIONS: &[Named] = &[
    ("requests", requests),
    ("pipelined", pipelined),
    ("transactions", transactions),
    ("conflicts", conflicts),
    ("query", query),
    ("watches", watches),
    ("fan-out", fan_out),
    ("idle", idle),
    ("death", death),
    ("live-update", live_update),
    ("memory", memory),
    ("journal", journal),
];

pub(super) fn names() -> String {
    let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn string(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

fn write(path: &str, value: &str) -> Vec<u8> {
    [path.as_bytes(), b"\0", value.as_bytes()].concat()
}

fn connect(daemon: &Daemon, count: usize) -> Result<Vec<Connection>> {
    (0..count).map(|_| daemon.connect()).collect()
}

/// `count` nodes of 30-byte paths and 16-byte values, a hundred in each domain's folder.
fn fill(daemon: &Daemon, count: usize) -> Result<()> {
    let payload = |i: usize| {
        write(&format!("/local/domain/{:05}/data/n-{:03}", i / 100, i % 100), "sixteen bytes...")
    };
    daemon.connect()?.call_all(M::Write, (0..count).map(payload))
}

fn requests(bench: &Bench) -> Result<Vec<Row>> {
    let path = |i: usize| format!("/local/domain/{i}/device/vif/0/state");
    let prepare = |daemon: &Daemon, _| {
        let mut connections = connect(daemon, 8)?;
        let client = &mut connections[0];
        client.call_all(M::Write, (0..8).map(|i| write(&path(i), "4")))?;
        let child = |i: usize| write(&format!("/listed/{}/child-{}", i / 10, i % 10), "");
        client.call_all(M::Write, (0..80).map(child))?;
        Ok(connections)
    };
    let figures =
        bench.in_turn_for(&bench.lineup_with_bare(), prepare, |daemon, connections| {
            let mut cost = |payload_of: &dyn Fn(usize) -> (M, Vec<u8>)| {
                let load = |i| {
                    let (kind, payload) = payload_of(i);
                    Same::new(kind, &payload)
                };
                let mut loads: Vec<Same> = (0..8).map(load).collect();
                measure(daemon, connections, &mut loads, 1, bench.slice).map(|done| done.cpu_us)
            };
            Ok(vec![
                cost(&|i| (M::Read, string(&path(i))))?,
                cost(&|i| (M::Write, write(&path(i), "4")))?,
                cost(&|i| (M::Directory, string(&format!("/listed/{i}"))))?,
            ])
        })?;
    let mut rows = Vec::new();
    for (column, name) in ["READ", "WRITE", "DIRECTORY of 10"].into_iter().enumerate() {
        let what = format!("server CPU per {name}, 8 connections");
        rows.push(figures.row((0, column), &what, "us", Better::Less)?.at_least(2.5));
    }
    Ok(rows)
}

fn pipelined(bench: &Bench) -> Result<Vec<Row>> {
    const PATH: &str = "/local/domain/1/device/vif/0/state";
    let prepare = |daemon: &Daemon, _| {
        let mut connections = connect(daemon, 1)?;
        connections[0].call(M::Write, 0, &write(PATH, "4"))?;
        Ok(connections)
    };
    let figures =
        bench.in_turn_for(&bench.lineup_with_bare(), prepare, |daemon, connections| {
            let mut read = [Same::new(M::Read, &string(PATH))];
            let mut write = [Same::new(M::Write, &write(PATH, "4"))];
            let read = measure(daemon, connections, &mut read, 16, bench.slice)?;
            let write = measure(daemon, connections, &mut write, 16, bench.slice)?;
            Ok(vec![read.per_second, write.per_second])
        })?;
    let mut rows = Vec::new();
    for (column, name) in ["READ", "WRITE"].into_iter().enumerate() {
        let what = format!("{name}s a second, one connection, 16 in flight");
        rows.push(figures.row((0, column), &what, "1/s", Better::More)?.at_least(3.0));
    }
    Ok(rows)
}

fn transactions(bench: &Bench) -> Result<Vec<Row>> {
    const SMALL: usize = 200;
    let large = bench.size(100_000);
    let huge = bench.size(1_000_000);
    let prepare = |daemon: &Daemon, nodes| {
        fill(daemon, nodes)?;
        let mut connections = connect(daemon, 8)?;
        let node = |i: usize| write(&format!("/transacted/{}/{}", i / 2, i % 2), "old");
        connections[0].call_all(M::Write, (0..16).map(node))?;
        Ok(connections)
    };
    let sample = |daemon: &Daemon, connections: &mut Vec<Connection>| {
        let sequence = |i| {
            Sequence::new(vec![
                Step::Start,
                Step::Inside(M::Read, string(&format!("/transacted/{i}/0"))),
                Step::Inside(M::Write, write(&format!("/transacted/{i}/1"), "new")),
                Step::Commit,
            ])
        };
        let mut loads: Vec<Sequence> = (0..8).map(sequence).collect();
        Ok(vec![measure(daemon, connections, &mut loads, 1, bench.slice)?.cpu_us])
    };
    let figures = bench.in_turn(&[large], prepare, sample)?;
    let what = "server CPU per start+read+write+commit, 8 connections, 100k nodes";
    let mut rows = vec![figures.row((large, 0), what, "us", Better::Less)?.at_least(3.0)];
    drop(figures);
    let figures = bench.in_turn_for(
        &[SMALL, huge].map(|nodes| Entry::new(Store::Xylem, nodes)),
        prepare,
        sample,
    )?;
    let what = "the same, 1M nodes (ratio: 1M / 200 nodes)";
    rows.push(figures.row_with((huge, 0), (SMALL, 0), what, ("us", Better::Less), FLAT)?);
    Ok(rows)
}

/// What a client writes in a round.
type PathsOf = fn(usize, usize) -> Vec<String>;

/// Percentage of commits that fail when 8 clients start, then each works, then each commits.
fn conflicts(bench: &Bench) -> Result<Vec<Row>> {
    const CLIENTS: usize = 8;
    let works: [(&str, PathsOf); 3] = [
        ("own subtrees", |client, round| vec![format!("/own/{client}/node-{round}")]),
        ("siblings in one directory", |client, round| vec![format!("/siblings/{client}-{round}")]),
        ("front and back ends of devices", |client, round| {
            vec![
                format!("/local/domain/{client}/device/vbd/{round}/state"),
                format!("/local/domain/0/backend/vbd/{client}/{round}/state"),
            ]
        }),
    ];
    let rounds = bench.size(50);
    let prepare = |daemon: &Daemon, _| {
        let mut connections = connect(daemon, CLIENTS)?;
        for path in ["/own", "/siblings", "/local/domain/0/backend/vbd"] {
            connections[0].call(M::Write, 0, &write(path, ""))?;
        }
        Ok((connections, 0))
    };
    let figures = bench.in_turn(&[0], prepare, |_, (connections, done)| {
        let mut values = Vec::new();
        for (_, work) in works {
            let mut failed = 0;
            for _ in 0..rounds {
                *done += 1;
                failed += lock_step(connections, |client| work(client, *done))?;
            }
            values.push(100.0 * f64::from(failed) / (rounds * CLIENTS) as f64);
        }
        Ok(values)
    })?;
    let mut rows = Vec::new();
    for (column, (name, _)) in works.into_iter().enumerate() {
        let what = format!("EAGAIN, 8 writers in lock step: {name}");
        rows.push(figures.row((0, column), &what, "%", Better::Less)?.at_most(0.0));
    }
    Ok(rows)
}

fn lock_step(connections: &mut [Connection], paths: impl Fn(usize) -> Vec<String>) -> Result<u32> {
    let mut ids = Vec::new();
    for connection in &mut *connections {
        let id = connection.call(M::TransactionStart, 0, b"\0")?;
        ids.push(String::from_utf8_lossy(&id).trim_end_matches('\0').parse()?);
    }
    for (client, connection) in connections.iter_mut().enumerate() {
        for path in paths(client) {
            connection.call(M::Write, ids[client], &write(&path, "1"))?;
        }
    }
    let mut failed = 0;
    for (client, connection) in connections.iter_mut().enumerate() {
        match connection.call_raw(M::TransactionEnd.code(), ids[client], b"T\0")? {
            Ok(_) => {}
            Err(error) => {
                ensure!(error == "EAGAIN", "a commit fails with {error}");
                failed += 1;
            }
        }
    }
    Ok(failed)
}

/// The domain query: 30 values of one domain, asked for by one client and by eight. With one, most
/// of the cost is going to sleep and waking the client after each message.
fn query(bench: &Bench) -> Result<Vec<Row>> {
    const READS: usize = 30;
    let path = |i: usize| format!("/local/domain/7/data/value-{i}");
    let prepare = |daemon: &Daemon, clients| {
        let mut connections = connect(daemon, clients)?;
        let values = (0..READS).map(|i| write(&path(i), "sixteen bytes..."));
        connections[0].call_all(M::Write, values)?;
        Ok(connections)
    };
    let in_transactions = |reads_each| {
        let mut steps = Vec::new();
        for first in (0..READS).step_by(reads_each) {
            steps.push(Step::Start);
            let reads = first..first + reads_each;
            steps.extend(reads.map(|i| Step::Inside(M::Read, string(&path(i)))));
            steps.push(Step::Commit);
        }
        Sequence::new(steps)
    };
    let mut batch = batch::Request::default();
    for i in 0..READS {
        let pushed = batch.push(EntryKind::Read, Refusal::OfAll, &string(&path(i)));
        ensure!(pushed.is_ok(), "30 reads fit into a batch");
    }
    let clients = [1, 8];
    let figures = bench.in_turn(&clients, prepare, |daemon, connections| {
        let mut values = Vec::new();
        for reads_each in [1, 15] {
            let mut loads: Vec<_> =
                connections.iter().map(|_| in_transactions(reads_each)).collect();
            values.push(measure(daemon, connections, &mut loads, 1, bench.slice)?.cpu_us);
        }
        if daemon.store == Store::Xylem {
            let load = |_| Same::new(M::Batch, batch.payload());
            let mut loads: Vec<_> = connections.iter().map(load).collect();
            values.push(measure(daemon, connections, &mut loads, 1, bench.slice)?.cpu_us);
        }
        Ok(values)
    })?;
    let mut rows = Vec::new();
    for clients in clients {
        for (column, name) in ["30 transactions", "2 transactions"].into_iter().enumerate() {
            let what =
                format!("server CPU per query of a domain (30 reads), {name}, {clients} client(s)");
            let row = figures.row((clients, column), &what, "us", Better::Less)?;
            rows.push(row.at_least(3.0));
        }
        let what =
            format!("the same, ours in 1 batch, the peers in 2 transactions, {clients} client(s)");
        let ours = figures.value(Store::Xylem, clients, 2)?;
        let row = Row::against(what, "us", ours, figures.peers(clients, 1), Better::Less);
        rows.push(row.at_least(20.0));
    }
    Ok(rows)
}

/// Others' watches: `count` of them, spread over 100 connections.
fn add_watches(daemon: &Daemon, count: usize) -> Result<Vec<Connection>> {
    let holders = count.min(100);
    let mut connections = connect(daemon, holders)?;
    for (i, connection) in connections.iter_mut().enumerate() {
        let watch = |w: usize| string(&format!("/watched/{}/state\0token", w * holders + i));
        connection.call_all(M::Watch, (0..count / holders).map(watch))?;
        connection.take_events();
    }
    Ok(connections)
}

/// One watch with no, and with 10 000 others: how soon its event comes, and the cost of unwatched
/// writes.
fn watches(bench: &Bench) -> Result<Vec<Row>> {
    let others = bench.size(10_000);
    let events = bench.size(2000);
    let path = |i: usize| format!("/local/domain/{i}/data/unwatched");
    let prepare = |daemon: &Daemon, count| {
        let holders = add_watches(daemon, count)?;
        let mut watcher = daemon.connect()?;
        watcher.call(M::Write, 0, &write("/seen/state", "0"))?;
        watcher.call(M::Watch, 0, &string("/seen/state\0mine"))?;
        watcher.wait_message()?;
        let mut connections = connect(daemon, 8)?;
        connections[0].call_all(M::Write, (0..8).map(|i| write(&path(i), "1")))?;
        Ok((holders, watcher, connections))
    };
    let figures = bench.in_turn(&[0, others], prepare, |daemon, (_, watcher, connections)| {
        let mut bytes = Vec::new();
        request(&mut bytes, M::Write, 0, 0, &[&write("/seen/state", "1")]);
        let mut latencies = Vec::with_capacity(events);
        for _ in 0..events {
            let started = Instant::now();
            connections[0].send(&bytes)?;
            let (code, _) = watcher.wait_message()?;
            latencies.push(started.elapsed().as_secs_f64() * 1e6);
            ensure!(code == M::WatchEvent.code(), "message {code} is no event");
            connections[0].wait_message()?;
        }
        latencies.sort_by(f64::total_cmp);
        let mut loads: Vec<Same> =
            (0..8).map(|i| Same::new(M::Write, &write(&path(i), "1"))).collect();
        let writes = measure(daemon, connections, &mut loads, 1, bench.slice)?;
        let at = |share: usize| latencies[(latencies.len() - 1) * share / 100];
        Ok(vec![at(50), at(99), writes.per_second, writes.cpu_us])
    })?;
    let columns = [
        (0, "watch latency, median", "us", Better::Less),
        (1, "watch latency, p99", "us", Better::Less),
        (2, "unwatched WRITEs a second, 8 connections", "1/s", Better::More),
        (3, "server CPU per unwatched WRITE", "us", Better::Less),
    ];
    let mut rows = Vec::new();
    for (column, name, unit, better) in columns {
        let what = format!("{name}, 10k other watches (ratio: with / without them)");
        rows.push(figures.row_with((others, column), (0, column), &what, (unit, better), FLAT)?);
        let what = format!("{name}, 10k other watches, the peers without them");
        let ours = figures.value(Store::Xylem, others, column)?;
        let row = Row::against(what, unit, ours, figures.peers(0, column), better);
        rows.push(row.at_least(1.0));
    }
    Ok(rows)
}

/// One write that 4000 watches of one client wait for.
fn fan_out(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.size(4000);
    let prepare = |daemon: &Daemon, _| {
        let mut watcher = daemon.connect()?;
        let mut writer = daemon.connect()?;
        writer.call(M::Write, 0, &write("/hot", "0"))?;
        watcher.call_all(M::Watch, (0..count).map(|i| string(&format!("/hot\0token-{i}"))))?;
        // The first event of each watch.
        settle_events(&mut watcher, count)?;
        Ok((watcher, writer))
    };
    let figures = bench.in_turn(&[0], prepare, |_, (watcher, writer)| {
        watcher.set_patience(Duration::from_secs(2))?;
        let started = Instant::now();
        writer.call(M::Write, 0, &write("/hot", "1"))?;
        let mut came = 0;
        while came < count {
            if watcher.next_message()?.is_some() {
                came += 1;
            } else if watcher.receive().is_err() {
                // Not all of them come: no figure.
                return Ok(vec![f64::NAN]);
            }
        }
        Ok(vec![started.elapsed().as_secs_f64() * 1e3])
    })?;
    let mut row = figures.row(
        (0, 0),
        "one WRITE, 4000 watches on its node: all events there",
        "ms",
        Better::Less,
    )?;
    if bench.stores().any(|store| store == Store::Oxen) && !row.peers.contains_key("oxen") {
        row.what += " (oxen: never all)";
    }
    Ok(vec![row.at_least(5.0)])
}

/// Takes the events that adding watches caused, as far as they did not come before the replies.
fn settle_events(watcher: &mut Connection, count: usize) -> Result<()> {
    let mut came = watcher.take_events().len();
    watcher.set_patience(Duration::from_secs(2))?;
    while came < count {
        if watcher.next_message()?.is_some() {
            came += 1;
        } else {
            watcher.receive()?;
        }
    }
    Ok(())
}

/// READs of 8 clients while others are connected and silent.
fn idle(bench: &Bench) -> Result<Vec<Row>> {
    let others = bench.size(500);
    let prepare = |daemon: &Daemon, count| {
        let sleepers = connect(daemon, count)?;
        let mut connections = connect(daemon, 8)?;
        connections[0].call(M::Write, 0, &write("/read", "1"))?;
        Ok((sleepers, connections))
    };
    let figures = bench.in_turn(&[0, others], prepare, |daemon, (_, connections)| {
        let mut loads: Vec<Same> = (0..8).map(|_| Same::new(M::Read, &string("/read"))).collect();
        let eight = measure(daemon, connections, &mut loads, 1, bench.slice)?.cpu_us;
        let (one, load) = (&mut connections[..1], &mut loads[..1]);
        Ok(vec![measure(daemon, one, load, 1, bench.slice)?.cpu_us, eight])
    })?;
    let mut rows = Vec::new();
    for (column, clients) in ["1 busy client", "8 busy clients"].into_iter().enumerate() {
        let what =
            format!("server CPU per READ, 500 idle sockets, {clients} (ratio: with / without)");
        rows.push(figures.row_with(
            (others, column),
            (0, column),
            &what,
            ("us", Better::Less),
            FLAT,
        )?);
    }
    Ok(rows)
}

/// Longest READ of the control domain while a domain dies that owns 100k nodes.
fn death(bench: &Bench) -> Result<Vec<Row>> {
    let nodes = bench.size(100_000);
    let prepare = |daemon: &Daemon, _| Ok((daemon.connect()?, 0_u16));
    let figures = bench.in_turn(&[0], prepare, |daemon, (client, last)| {
        *last += 1;
        let domid = *last;
        let guest = daemon.introduce(client, domid)?;
        let home = format!("/local/domain/{domid}");
        client.call(M::Write, 0, &write(&home, ""))?;
        // What the control domain makes below belongs to the guest as well, and no limit applies.
        client.call(M::SetPerms, 0, &string(&format!("{home}\0n{domid}")))?;
        let payload = |i: usize| {
            write(&format!("{home}/data/{:04}/n-{:03}", i / 100, i % 100), "sixteen bytes...")
        };
        client.call_all(M::Write, (0..nodes).map(payload))?;
        guest.destroy()?;
        std::thread::sleep(Duration::from_millis(20));
        daemon.raise()?;
        let question = string(&domid.to_string());
        let longest = longest_read(client, |client| {
            Ok(client.call(M::IsDomainIntroduced, 0, &question)? == b"F\0")
        })?;
        let left =
            client.call_raw(M::Read.code(), 0, &string(&format!("{home}/data/0000/n-000")))?;
        if daemon.store == Store::Xylem {
            ensure!(
                left == Err("ENOENT".to_owned()),
                "the dead domain's nodes are there: {left:?}"
            );
        }
        Ok(vec![longest.as_secs_f64() * 1e3])
    })?;
    let what = "longest READ of dom0 at the death of a domain that owns 100k nodes";
    Ok(vec![figures.row((0, 0), what, "ms", Better::Less)?.at_most(1.0)])
}

/// READs one after the other, until `is_over` and for a while after; how long the longest took.
fn longest_read(
    client: &mut Connection,
    is_over: impl Fn(&mut Connection) -> Result<bool>,
) -> Result<Duration> {
    /// What is left to do afterwards would show within this time.
    const AFTER: Duration = Duration::from_millis(200);
    let mut longest = Duration::ZERO;
    let mut over_since: Option<Instant> = None;
    while over_since.is_none_or(|since| since.elapsed() < AFTER) {
        let started = Instant::now();
        client.call(M::Read, 0, b"/\0")?;
        longest = longest.max(started.elapsed());
        if over_since.is_none() {
            let started = Instant::now();
            if is_over(client)? {
                over_since = Some(Instant::now());
            }
            longest = longest.max(started.elapsed());
        }
    }
    Ok(longest)
}

/// Longest READ while a server with 100k nodes is replaced by a new process of the same program.
fn live_update(bench: &Bench) -> Result<Vec<Row>> {
    let nodes = bench.size(100_000);
    let prepare = |daemon: &Daemon, _| {
        fill(daemon, nodes)?;
        Ok((daemon.connect()?, daemon.connect()?))
    };
    // oxenstored waits for a pause in requests, for minutes, and gives up.
    let takes_part = |store: &Store| *store != Store::Oxen;
    let lineup: Vec<Entry> =
        bench.stores().filter(takes_part).map(|store| Entry::new(store, 0)).collect();
    let figures = bench.in_turn_for(&lineup, prepare, |daemon, (client, operator)| {
        let program = daemon.program();
        let command = |words: &[&str]| [words.join("\0").as_bytes(), b"\0"].concat();
        let file = command(&["live-update", "-f", program]);
        if operator.call_raw(M::Control.code(), 0, &file)? != Ok(b"OK\0".to_vec()) {
            // It does not know how: no figure, and no goal met.
            return Ok(vec![f64::NAN]);
        }
        operator.set_patience(Duration::from_secs(120))?;
        client.set_patience(Duration::from_secs(120))?;
        std::thread::scope(|scope| {
            // Waits for its answer, which comes from the new process.
            let start = command(&["live-update", "-s", "-t", "30"]);
            let update = scope.spawn(move || operator.call(M::Control, 0, &start));
            let longest = longest_read(client, |_| Ok(update.is_finished()));
            let answer = update.join().map_err(|_| anyhow::anyhow!("the operator panicked"))??;
            ensure!(answer.starts_with(b"OK"), "{}", String::from_utf8_lossy(&answer));
            Ok(vec![longest?.as_secs_f64() * 1e3])
        })
    })?;
    let what =
        "longest READ of dom0 during a live update, 100k nodes (oxen: BUSY while anybody asks)";
    let ours = figures.value(Store::Xylem, 0, 0).unwrap_or(f64::NAN);
    let row = Row::against(what.to_owned(), "ms", ours, figures.peers(0, 0), Better::Less);
    Ok(vec![row.at_most(40.0)])
}

/// Memory above an empty store.
fn memory(bench: &Bench) -> Result<Vec<Row>> {
    const MIB: f64 = 1024.0 * 1024.0;
    let mut rows = Vec::new();
    let sizes = [(100_000, "100k", 15.0), (1_000_000, "1M", 150.0)];
    for (count, name, limit) in sizes {
        let mut figures = Figures::new();
        for store in bench.stores() {
            // The packaged C server takes minutes to fill that far.
            if count > 100_000 && store != Store::Xylem {
                continue;
            }
            let daemon = bench.start(store)?;
            let empty = daemon.resident_bytes()?;
            fill(&daemon, bench.size(count))?;
            let full = daemon.resident_bytes()?;
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 bytes")]
            figures.push(store, full.saturating_sub(empty) as f64 / MIB);
        }
        let what = format!("memory above empty, {name} nodes of 30-byte paths, 16-byte values");
        rows.push(figures.row((0, 0), &what, "MiB", Better::Less)?.at_most(limit));
    }
    Ok(rows)
}

/// What crash safety, which is always on, costs WRITEs.
fn journal(bench: &Bench) -> Result<Vec<Row>> {
    const OFF: usize = 0;
    const ON: usize = 1;
    let path = |i: usize| format!("/local/domain/{i}/device/vif/0/state");
    let lineup = [
        Entry { store: Store::Xylem, variant: OFF, options: &["--no-journal"] },
        Entry::new(Store::Xylem, ON),
    ];
    let prepare = |daemon: &Daemon, _| {
        let mut connections = connect(daemon, 8)?;
        connections[0].call_all(M::Write, (0..8).map(|i| write(&path(i), "4")))?;
        Ok(connections)
    };
    let figures = bench.in_turn_for(&lineup, prepare, |daemon, connections| {
        let load = |i| Same::new(M::Write, &write(&path(i), "4"));
        let mut loads: Vec<Same> = (0..8).map(load).collect();
        let eight = measure(daemon, connections, &mut loads, 1, bench.slice)?;
        let (one, load) = (&mut connections[..1], &mut loads[..1]);
        let pipelined = measure(daemon, one, load, 16, bench.slice)?;
        Ok(vec![eight.per_second, pipelined.per_second])
    })?;
    let mut rows = Vec::new();
    for (column, clients) in ["8 connections", "1 connection, 16 in flight"].into_iter().enumerate()
    {
        let what = format!("WRITEs a second with crash safety, {clients} (ratio: without / with)");
        let kind = ("1/s", Better::More);
        // A share of 15 % of the throughput.
        rows.push(figures.row_with((ON, column), (OFF, column), &what, kind, 1.0 / 0.85)?);
    }
    Ok(rows)
}
