//! Remote clients: `xylem-web` before a simulated host of 1000 VMs, and a server with nothing behind it.

mod http;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::client::Client;
use api::{Create, Define, Request, Target};
use lab::cargo::{self, Target as Program};
use serde_json::json;

use self::http::Http;
use super::{Better, Row};
use crate::web_host::{DOOR, HOST, Options, Server, WebHost};

const BARE: Program<'_> = Program::Example("bare");

/// Connections that ask all the time.
const CONNECTIONS: usize = 4;
/// Clients that are busy while a VM is created, and what each asks for in a second.
const BUSY: usize = 100;
const BUSY_PER_SECOND: u32 = 5;
/// Create latency beside them, to that without.
const GOAL_CREATE: f64 = 1.1;

/// Lists by XenAPI one after the other.
const RECORDS: usize = 50;

/// Scrapes one after the other, and what one may take.
const SCRAPES: usize = 100;
const GOAL_SCRAPE_MS: f64 = 50.0;

/// VMs of the published figure of XAPI, and what `xe vm-list` took there, in ms: xapi-project/xen-api#4876, patched, with 12
/// CPUs. That is the same call, made and printed by a program of its own.
const PUBLISHED_VMS: u32 = 512;
const PUBLISHED_LIST_MS: f64 = 449.0;

/// How much there is of everything.
struct Size {
    vms: u32,
    seconds: f64,
    readers: usize,
    changes: usize,
    creates: usize,
}

impl Size {
    fn of(is_quick: bool) -> Self {
        if is_quick {
            Self { vms: 20, seconds: 0.2, readers: 20, changes: 2, creates: 5 }
        } else {
            Self { vms: 1000, seconds: 5.0, readers: 1000, changes: 20, creates: 200 }
        }
    }
}

/// A simulated host and its door.
struct Bed(WebHost);

pub(super) fn run(is_quick: bool) -> Result<Vec<Row>> {
    let size = Size::of(is_quick);
    cargo::build(&[HOST, DOOR, BARE])?;
    let bed = Bed::make(size.vms)?;
    let list = bed.http(0)?.ask("GET", "/v1/vms", "")?;
    let one = bed.http(0)?.ask("GET", "/v1/vms/web-0", "")?;
    let mut rows = Vec::new();
    for (what, path, bytes) in [
        (format!("list of {} VMs", size.vms), "/v1/vms", list.len()),
        ("one VM".to_owned(), "/v1/vms/web-0", one.len()),
    ] {
        let (_server, bare) = bare(bytes)?;
        // In turn, so that both have the same machine.
        let mut ours = Load::default();
        let mut theirs = Load::default();
        for _ in 0..3 {
            ours.add(load(bed.0.address(), &bed.0.tokens, size.seconds / 3.0, path)?);
            theirs.add(load(&bare, &bed.0.tokens, size.seconds / 3.0, "/")?);
        }
        ours.rows(&what, Some(&theirs), &mut rows);
    }
    rows.extend(scrapes(&bed, &size)?);
    rows.extend(starts(&bed, &size)?);
    rows.extend(fan_out(&bed, &size)?);
    rows.extend(creates(&bed, &size)?);
    rows.extend(xen_api(&bed, size.vms, None)?);
    drop(bed);
    // A host that is as large as the one that the figure is of.
    let vms = if is_quick { size.vms } else { PUBLISHED_VMS };
    let published = [("xapi 23, as published", PUBLISHED_LIST_MS)].into();
    rows.extend(xen_api(&Bed::make(vms)?, vms, Some(published))?);
    Ok(rows)
}

impl Bed {
    fn make(vms: u32) -> Result<Self> {
        let clients = (0..=BUSY).map(|number| (format!("client-{number}"), "admin")).collect();
        let web = ["--xenapi", "--rate", "1000000"].map(str::to_owned).to_vec();
        let bed = Self(WebHost::start(&Options { clients, web, ..Options::with_vms(vms) })?);
        let deadline = Instant::now() + Duration::from_secs(60);
        while bed.http(0)?.ask("GET", "/v1/vms/web-0", "").is_err() {
            ensure!(Instant::now() < deadline, "xylem-web knows no VMs");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(bed)
    }

    fn http(&self, client: usize) -> Result<Http> {
        Http::connect(self.0.address(), &self.0.tokens[client])
    }
}

fn bare(bytes: usize) -> Result<(Server, String)> {
    let mut command = lab::bound(cargo::path(BARE)?);
    let (server, line) = Server::start(command.arg(bytes.to_string()))?;
    Ok((server, line.trim_start_matches("http://").to_owned()))
}

/// How long answers took, in seconds.
#[derive(Default)]
struct Load {
    seconds: f64,
    times: Vec<f64>,
}

impl Load {
    fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.times.extend(other.times);
    }

    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.seconds
    }

    fn rows(mut self, what: &str, bare: Option<&Self>, rows: &mut Vec<Row>) {
        let peers = |value: f64| [("bare axum", value)].into();
        let (ours, theirs) = (self.per_second(), bare.map(Self::per_second));
        let row = |what: String, unit, ours: f64, theirs: Option<f64>, better| {
            Row::against(what, unit, ours, theirs.map(peers).unwrap_or_default(), better)
        };
        rows.push(row(format!("{what}, answers in a second"), "1/s", ours, theirs, Better::More));
        self.times.sort_by(f64::total_cmp);
        let mut other = bare.map(|it| it.times.clone()).unwrap_or_default();
        other.sort_by(f64::total_cmp);
        for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
            let theirs = bare.map(|_| at(&other, part) * 1e3);
            let ours = at(&self.times, part) * 1e3;
            rows.push(row(format!("{what}, {name}"), "ms", ours, theirs, Better::Less));
        }
    }
}

/// The value that this part of all is below.
fn at(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a length"
    )]
    let place = (last as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or_default()
}

/// Asks for this all the time.
fn load(address: &str, tokens: &[String], seconds: f64, path: &str) -> Result<Load> {
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(seconds);
    let ask = |token: &str| -> Result<Vec<f64>> {
        let mut http = Http::connect(address, token)?;
        let mut times = Vec::new();
        while Instant::now() < end {
            let asked = Instant::now();
            http.ask("GET", path, "")?;
            times.push(asked.elapsed().as_secs_f64());
        }
        Ok(times)
    };
    let times = thread::scope(|scope| {
        let ask = &ask;
        let all: Vec<_> =
            tokens.iter().take(CONNECTIONS).map(|token| scope.spawn(move || ask(token))).collect();
        all.into_iter().map(|it| it.join().expect("it does not panic")).collect::<Result<Vec<_>>>()
    })?;
    Ok(Load { seconds: began.elapsed().as_secs_f64(), times: times.concat() })
}

/// What Prometheus asks for now and then, one after the other.
fn scrapes(bed: &Bed, size: &Size) -> Result<Vec<Row>> {
    let mut http = bed.http(0)?;
    let began = Instant::now();
    let is_sampled = |text: &[u8]| String::from_utf8_lossy(text).contains("\nxylem_up 1\n");
    while !is_sampled(&http.ask("GET", "/metrics", "")?) {
        ensure!(began.elapsed() < Duration::from_secs(30), "xylem-web has sampled nothing");
        thread::sleep(Duration::from_millis(50));
    }
    let mut load = Load::default();
    for _ in 0..SCRAPES {
        let asked = Instant::now();
        http.ask("GET", "/metrics", "")?;
        load.times.push(asked.elapsed().as_secs_f64());
    }
    load.times.sort_by(f64::total_cmp);
    let row = |name: &str, part| {
        let what = format!("scrape of {} VMs, {name}", size.vms);
        let row = Row::against(what, "ms", at(&load.times, part) * 1e3, [].into(), Better::Less);
        row.at_most(GOAL_SCRAPE_MS)
    };
    Ok(vec![row("p50", 0.5), row("p99", 0.99)])
}

/// What each client of XenAPI begins with: all records of all VMs, one after the other.
fn xen_api(bed: &Bed, vms: u32, peers: Option<BTreeMap<&'static str, f64>>) -> Result<Vec<Row>> {
    let mut http = bed.http(0)?;
    let mut call = |method: &str, params: &[&str]| -> Result<serde_json::Value> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = http.ask("POST", "/jsonrpc", &body.to_string())?;
        let mut answer: serde_json::Value = serde_json::from_slice(&answer)?;
        ensure!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        Ok(answer["result"].take())
    };
    let session = call("session.login_with_password", &["client-0", &bed.0.tokens[0]])?;
    let session = session.as_str().context("a session is no text")?;
    let mut times = Vec::new();
    for _ in 0..RECORDS {
        let asked = Instant::now();
        let records = call("VM.get_all_records", &[session])?;
        times.push(asked.elapsed().as_secs_f64());
        let count = records.as_object().map_or(0, serde_json::Map::len);
        ensure!(count >= vms as usize, "records of {count} VMs");
    }
    times.sort_by(f64::total_cmp);
    let what = format!("VM.get_all_records of {vms} VMs by XenAPI");
    let row = |name: &str, part, peers| {
        let what = format!("{what}, {name}");
        Row::against(what, "ms", at(&times, part) * 1e3, peers, Better::Less)
    };
    Ok(vec![row("p50", 0.5, peers.unwrap_or_default()), row("p99", 0.99, [].into())])
}

/// VMs that are started and destroyed, by REST and on the host itself.
fn starts(bed: &Bed, size: &Size) -> Result<Vec<Row>> {
    let mut local = Client::connect(&bed.0.socket)?;
    let config_text = "name = 'bench'\nkernel = '/boot/vmlinuz'\nmemory = 8\n".to_owned();
    let (file, cwd) = ("bench.cfg".to_owned(), "/".to_owned());
    local.call(&Request::Define(Define { file, config_text, cwd, ..Define::default() }), |_| ())?;
    let target = || Target("bench".to_owned());
    let mut http = bed.http(0)?;
    let began = Instant::now();
    // A VM that was just defined is known there a moment later.
    while http.ask("GET", "/v1/vms/bench", "").is_err() {
        ensure!(began.elapsed() < Duration::from_secs(5), "xylem-web does not hear of a new VM");
        http = bed.http(0)?;
    }
    let (mut ours, mut here) = (Load::default(), Load::default());
    for _ in 0..size.creates {
        let asked = Instant::now();
        http.ask("POST", "/v1/vms/bench/start", "")?;
        http.ask("POST", "/v1/vms/bench/destroy", "")?;
        ours.times.push(asked.elapsed().as_secs_f64());
        let asked = Instant::now();
        let (paused, progress) = (false, true);
        local.call(&Request::Start { target: target(), paused, progress }, |_| ())?;
        local.call(&Request::Destroy { target: target() }, |_| ())?;
        here.times.push(asked.elapsed().as_secs_f64());
    }
    ours.times.sort_by(f64::total_cmp);
    here.times.sort_by(f64::total_cmp);
    let row = |name: &str, part| {
        let what = format!("start and destroy of a VM, {name}");
        let peers = [("local socket", at(&here.times, part) * 1e3)].into();
        Row::against(what, "ms", at(&ours.times, part) * 1e3, peers, Better::Less)
    };
    Ok(vec![row("p50", 0.5), row("p99", 0.99)])
}

/// From a change until the last reader of events has heard of it.
fn fan_out(bed: &Bed, size: &Size) -> Result<Vec<Row>> {
    let mut readers = Vec::new();
    for number in 0..size.readers {
        let mut http = bed.http(number % bed.0.tokens.len())?;
        http.send("GET", "/v1/events?class=vm", "")?;
        let (status, _) = http.head()?;
        ensure!(status == 200, "a reader of events is answered {status}");
        let mut stream = http.into_stream();
        until_current(&mut stream)?;
        readers.push(stream);
    }
    let mut http = bed.http(0)?;
    let mut load = Load::default();
    for change in 0..size.changes {
        let action = ["pause", "unpause"][change % 2];
        let asked = Instant::now();
        http.ask("POST", &format!("/v1/vms/web-0/{action}"), "")?;
        for reader in &mut readers {
            until_current(reader)?;
        }
        load.times.push(asked.elapsed().as_secs_f64());
        // Whatever else of it is told later.
        thread::sleep(Duration::from_millis(300));
        readers.iter_mut().try_for_each(drain)?;
    }
    load.times.sort_by(f64::total_cmp);
    let what = format!("a change told to {} readers of events", size.readers);
    let row = |name: &str, part| {
        let what = format!("{what}, {name}");
        Row::against(what, "ms", at(&load.times, part) * 1e3, [].into(), Better::Less)
    };
    Ok(vec![row("p50", 0.5), row("longest", 1.0)])
}

type Reader = BufReader<std::net::TcpStream>;

fn until_current(reader: &mut Reader) -> Result<()> {
    let mut line = String::new();
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "events have ended");
        if line.trim_end() == "event: current" {
            return Ok(());
        }
    }
}

/// Reads what is there.
fn drain(reader: &mut Reader) -> Result<()> {
    reader.get_ref().set_nonblocking(true)?;
    loop {
        let count = match reader.fill_buf() {
            Ok(bytes) => bytes.len(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        };
        ensure!(count > 0, "events have ended");
        reader.consume(count);
    }
    Ok(reader.get_ref().set_nonblocking(false)?)
}

/// Creates by a local client, alone and beside busy remote ones.
fn creates(bed: &Bed, size: &Size) -> Result<Vec<Row>> {
    let mut local = Client::connect(&bed.0.socket)?;
    let mut create = |times: &mut Vec<f64>| -> Result<()> {
        let config_text = "name = 'created'\nkernel = '/boot/vmlinuz'\nmemory = 8\n".to_owned();
        let (file, cwd) = ("created.cfg".to_owned(), "/".to_owned());
        let asked = Instant::now();
        local.call(
            &Request::Create(Create { file, config_text, cwd, ..Create::default() }),
            |_| (),
        )?;
        times.push(asked.elapsed().as_secs_f64());
        local.call(&Request::Destroy { target: Target("created".to_owned()) }, |_| ())?;
        Ok(())
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let rounds = 4;
    for _ in 0..rounds {
        (0..size.creates / rounds).try_for_each(|_| create(&mut alone))?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            let busy: Vec<_> = (0..BUSY)
                .map(|number| {
                    let is_over = &is_over;
                    scope.spawn(move || be_busy(bed, number + 1, is_over))
                })
                .collect();
            thread::sleep(Duration::from_millis(500));
            let created = (0..size.creates / rounds).try_for_each(|_| create(&mut beside));
            is_over.store(true, Ordering::Relaxed);
            for client in busy {
                client.join().expect("it does not panic")?;
            }
            created
        })?;
    }
    alone.sort_by(f64::total_cmp);
    beside.sort_by(f64::total_cmp);
    let row = |name: &str, part| {
        let (ours, alone) = (at(&beside, part) * 1e3, at(&alone, part) * 1e3);
        let what = format!("create beside {BUSY} busy clients, {name}");
        let mut row = Row::against(what, "ms", ours, [("alone", alone)].into(), Better::Less);
        row.ratio = ours / alone;
        row.within(GOAL_CREATE)
    };
    Ok(vec![row("p50", 0.5), row("p90", 0.9)])
}

/// Looks at lists, VMs and limits, as a page and scripts do.
fn be_busy(bed: &Bed, client: usize, is_over: &AtomicBool) -> Result<()> {
    let mut http = bed.http(client)?;
    let mut asked = 0u32;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        match asked % 5 {
            0 => http.ask("GET", "/v1/vms?limit=50", "")?,
            1 => http.ask("POST", "/v1/requests/limits", "{}")?,
            2 => http.ask("GET", "/v1/operations?limit=20", "")?,
            _ => http.ask("GET", "/v1/vms/web-0", "")?,
        };
        asked += 1;
        let pause = Duration::from_secs(1) / BUSY_PER_SECOND;
        thread::sleep(pause.saturating_sub(began.elapsed()));
    }
    Ok(())
}
