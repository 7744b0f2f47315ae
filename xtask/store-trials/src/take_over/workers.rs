//! Clients and guests that ask all the time and know what they have to be told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xenstore::wire::MessageType as M;

use crate::crash::Random;
use crate::stores::{Connection, Guest, Message, request};

/// A store with no progress in this time is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rounds that everybody makes between two updates.
const ROUNDS: u64 = 3;

/// What all who take part share.
pub(super) struct Scene {
    seed: u64,
    is_over: AtomicBool,
    /// Rounds of each worker.
    rounds: std::sync::Mutex<BTreeMap<String, u64>>,
    requests: AtomicU64,
    events: AtomicU64,
    longest: AtomicU64,
}

impl Scene {
    pub(super) fn new(seed: u64) -> Self {
        let zero = AtomicU64::default;
        let (requests, events, longest) = (zero(), zero(), zero());
        let rounds = std::sync::Mutex::default();
        Self { seed, is_over: AtomicBool::new(false), rounds, requests, events, longest }
    }

    fn rounds(&self) -> Result<BTreeMap<String, u64>> {
        let rounds = self.rounds.lock().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
        Ok(rounds.clone())
    }

    /// Waits until everybody has made some rounds more.
    pub(super) fn wait_for_progress(&self) -> Result<()> {
        let before = self.rounds()?;
        let began = Instant::now();
        loop {
            let now = self.rounds()?;
            let behind = before.iter().find(|(name, rounds)| now[*name] < *rounds + ROUNDS);
            let Some((name, _)) = behind else { return Ok(()) };
            ensure!(!self.is_over.load(Ordering::Relaxed), "{name} got a wrong answer");
            ensure!(began.elapsed() < PATIENCE, "{name} makes no progress");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    pub(super) fn forget_longest(&self) {
        self.longest.store(0, Ordering::Relaxed);
    }

    /// The longest that anybody waited for an answer since.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }
}

/// Where messages come from and go to.
enum Wire {
    Socket(Connection),
    Ring(Box<Guest>),
}

impl Wire {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Socket(socket) => socket.send(bytes),
            Self::Ring(guest) => guest.send(bytes),
        }
    }

    fn receive(&mut self) -> Result<()> {
        match self {
            Self::Socket(socket) => socket.receive(),
            Self::Ring(guest) => guest.receive(),
        }
    }

    fn next_message(&mut self) -> Result<Option<Message<'_>>> {
        match self {
            Self::Socket(socket) => socket.next_message(),
            Self::Ring(guest) => guest.next_message(),
        }
    }
}

pub(super) struct Worker<'a> {
    scene: &'a Scene,
    name: String,
    wire: Wire,
    /// Its nodes are below this.
    area: String,
    random: Random,
    last_request: u32,
    round: u64,
}

pub(super) fn of_guest(scene: &Scene, domid: u16, guest: Guest) -> Worker<'_> {
    let wire = Wire::Ring(Box::new(guest));
    worker(scene, format!("domain {domid}"), wire, "data".to_owned(), domid.into())
}

pub(super) fn of_socket(scene: &Scene, number: u16, socket: Connection) -> Worker<'_> {
    let name = format!("client {number}");
    worker(scene, name, Wire::Socket(socket), format!("/area/{number}"), 1000 + u64::from(number))
}

fn worker(scene: &Scene, name: String, wire: Wire, area: String, number: u64) -> Worker<'_> {
    if let Ok(mut rounds) = scene.rounds.lock() {
        rounds.insert(name.clone(), 0);
    }
    let random = Random((scene.seed ^ (number << 32)) | 1);
    Worker { scene, name, wire, area, random, last_request: 0, round: 0 }
}

/// A request with what has to come of it.
struct Asked {
    kind: M,
    transaction: u32,
    payload: String,
    /// The event that has to come before the answer.
    event: Option<String>,
    /// `None`: anything but an error.
    answer: Option<Vec<u8>>,
}

impl Asked {
    fn new(kind: M, payload: String, answer: &str) -> Self {
        let answer = Some(answer.as_bytes().to_vec());
        Self { kind, transaction: 0, payload, event: None, answer }
    }

    fn with_event(mut self, path: &str) -> Self {
        self.event = Some(path.to_owned());
        self
    }

    fn in_transaction(mut self, transaction: u32) -> Self {
        self.transaction = transaction;
        self
    }
}

const OK: &str = "OK\0";
const TOKEN: &str = "told";

impl Worker<'_> {
    /// Until the end of the scene.
    pub(super) fn run(&mut self) -> Result<()> {
        let outcome = self.work().with_context(|| format!("{}, round {}", self.name, self.round));
        if outcome.is_err() {
            self.scene.end();
        }
        outcome
    }

    fn work(&mut self) -> Result<()> {
        let watch = Asked::new(M::Watch, format!("{}\0{TOKEN}\0", self.area), OK);
        self.ask(&[watch])?;
        // Its first event comes at once, behind the answer.
        let first = format!("{}\0{TOKEN}\0", self.area);
        loop {
            if let Some(message) = self.wire.next_message()? {
                let found = String::from_utf8_lossy(message.payload);
                ensure!(message.is_event() && found == first, "the first event is {found:?}");
                break;
            }
            self.wire.receive()?;
        }
        while !self.scene.is_over.load(Ordering::Relaxed) {
            self.change_nodes()?;
            self.commit()?;
            self.round += 1;
            if let Ok(mut rounds) = self.scene.rounds.lock() {
                rounds.insert(self.name.clone(), self.round);
            }
        }
        Ok(())
    }

    /// Requests that are sent together: a new node, and the end of an old one.
    fn change_nodes(&mut self) -> Result<()> {
        let (area, round) = (&self.area, self.round);
        let node = |round: u64| format!("{area}/n{round}");
        let mut asked = vec![
            Asked::new(M::Write, format!("{}\0{round}", node(round)), OK).with_event(&node(round)),
            Asked::new(M::Read, format!("{}\0", node(round)), &round.to_string()),
        ];
        if let Some(old) = round.checked_sub(3) {
            let remove = Asked::new(M::Rm, format!("{}\0", node(old)), OK);
            asked.push(remove.with_event(&node(old)));
            asked.push(Asked::new(M::Read, format!("{}\0", node(old)), "ENOENT"));
        }
        self.ask(&asked)?;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let (one, two) = (format!("{}/one", self.area), format!("{}/two", self.area));
        let value = self.round.to_string();
        let mut start = Asked::new(M::TransactionStart, "\0".to_owned(), "");
        start.answer = None;
        // A request behind one that may have to wait.
        let newest = format!("{}/n{value}\0", self.area);
        let answers = self.ask(&[start, Asked::new(M::Read, newest, &value)])?;
        let id = String::from_utf8_lossy(&answers[0]).trim_end_matches('\0').parse()?;
        self.ask(&[
            Asked::new(M::Write, format!("{one}\0{value}"), OK).in_transaction(id),
            Asked::new(M::Write, format!("{two}\0{value}"), OK).in_transaction(id),
            Asked::new(M::Read, format!("{one}\0"), &value).in_transaction(id),
        ])?;
        let end = Asked::new(M::TransactionEnd, "T\0".to_owned(), OK).in_transaction(id);
        // The commit tells of both nodes; the second event is counted with the read behind it.
        self.ask(&[
            end.with_event(&one),
            Asked::new(M::Read, format!("{two}\0"), &value).with_event(&two),
        ])?;
        Ok(())
    }

    /// Sends all of them, cut anywhere, and waits until each was answered; gives the answers.
    fn ask(&mut self, asked: &[Asked]) -> Result<Vec<Vec<u8>>> {
        let mut bytes = Vec::new();
        let first = self.last_request + 1;
        for it in asked {
            self.last_request += 1;
            let payload = it.payload.as_bytes();
            request(&mut bytes, it.kind, self.last_request, it.transaction, &[payload]);
        }
        let began = Instant::now();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = 1 + usize::try_from(self.random.below(60))?;
            let (piece, later) = rest.split_at(length.min(rest.len()));
            self.wire.send(piece)?;
            rest = later;
        }
        let mut answers: Vec<Option<Vec<u8>>> = vec![None; asked.len()];
        let mut events: Vec<String> = Vec::new();
        let mut told = 0;
        while answers.iter().any(Option::is_none) {
            let Some(message) = self.wire.next_message()? else {
                self.wire.receive()?;
                continue;
            };
            if message.is_event() {
                events.push(String::from_utf8_lossy(message.payload).into_owned());
                continue;
            }
            let index = message.request_id.wrapping_sub(first) as usize;
            let (Some(slot), Some(asked)) = (answers.get_mut(index), asked.get(index)) else {
                bail!("an answer to request {} came twice", message.request_id);
            };
            let shown = || format!("{:?} {:?}", asked.kind, asked.payload);
            ensure!(slot.is_none(), "{} was answered twice", shown());
            let found = match message.answer() {
                Ok(payload) => {
                    ensure!(message.code == asked.kind.code(), "{}: another type", shown());
                    payload
                }
                Err(error) if asked.answer.is_none() => bail!("{}: {error}", shown()),
                Err(error) => error.into_bytes(),
            };
            if let Some(expected) = &asked.answer {
                let text = String::from_utf8_lossy(&found);
                ensure!(expected == &found, "{} was answered with {text:?}", shown());
            }
            if let Some(path) = &asked.event {
                let wanted = format!("{path}\0{TOKEN}\0");
                let found = events.iter().filter(|event| **event == wanted).count();
                ensure!(found == 1, "{} was told {found} times in {events:?}", shown());
                told += 1;
            }
            *slot = Some(found);
        }
        ensure!(events.len() == told, "{told} events were due, and these came: {events:?}");
        let waited = u64::try_from(began.elapsed().as_micros())?;
        self.scene.longest.fetch_max(waited, Ordering::Relaxed);
        self.scene.requests.fetch_add(asked.len() as u64, Ordering::Relaxed);
        self.scene.events.fetch_add(told as u64, Ordering::Relaxed);
        Ok(answers.into_iter().flatten().collect())
    }

    /// Everything is as this worker left it.
    pub(super) fn check_end(&mut self) -> Result<()> {
        let last = self.round.saturating_sub(1).to_string();
        let mut names: Vec<String> = (self.round.saturating_sub(3)..self.round)
            .map(|round| format!("n{round}"))
            .chain(["one", "two"].map(str::to_owned))
            .collect();
        names.sort();
        let mut asked: Vec<Asked> = ["one", "two"]
            .map(|name| Asked::new(M::Read, format!("{}/{name}\0", self.area), &last))
            .into();
        let mut list = Asked::new(M::Directory, format!("{}\0", self.area), "");
        list.answer = None;
        asked.push(list);
        let answers = self.ask(&asked).with_context(|| self.name.clone())?;
        let list = answers.last().context("a list")?;
        let list = String::from_utf8_lossy(list).into_owned();
        let mut found: Vec<&str> = list.split_terminator('\0').collect();
        found.sort_unstable();
        ensure!(found == names, "{}: its nodes are {found:?} and not {names:?}", self.name);
        Ok(())
    }
}
