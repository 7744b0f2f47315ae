//! Guests on rings: every answer and every event is known before it comes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use file_host::Guest;
use xen::DomId;
use xenstore::Error;
use xenstore::client::{Client, ClientMachine, Nodes};
use xenstore::wire::MessageType;

use super::Scene;
use super::clients::{self, Mail};

/// Answers that take longer are lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// A written node is removed so many rounds later.
const LIFETIME: u64 = 6;
/// Domids of those that come and go begin here.
const VISITORS: u16 = 1000;

type Reply = std::result::Result<Vec<u8>, Error>;

/// A guest that lives as long as the test.
pub(super) struct Worker<'a> {
    scene: &'a Scene,
    guest: Guest,
    machine: ClientMachine,
    round: u64,
    counter: u64,
    /// Events of its own changes, in their order.
    own_events: VecDeque<String>,
    mail: &'a Mail,
}

impl<'a> Worker<'a> {
    pub(super) fn new(scene: &'a Scene, domid: u16, mail: &'a Mail) -> Result<Self> {
        let guest = Guest::create(&scene.host, DomId(domid), u64::from(domid))?;
        clients::introduce(scene, domid)?;
        let mut worker = Self {
            scene,
            guest,
            machine: ClientMachine::new(),
            round: 0,
            counter: 0,
            own_events: VecDeque::new(),
            mail,
        };
        for path in ["data", "mail"] {
            worker.ask(MessageType::Mkdir, 0, &[path.as_bytes(), b"\0"])?;
            worker.ask(MessageType::Watch, 0, &[path.as_bytes(), b"\0", path.as_bytes(), b"\0"])?;
            worker.answer()??;
            worker.answer()??;
        }
        worker.ask(MessageType::Write, 0, &[b"counter\0", b"0"])?;
        worker.answer()??;
        worker.own_events.push_back("data".to_owned());
        Ok(worker)
    }

    pub(super) fn run(&mut self) -> Result<()> {
        while !self.scene.is_over() {
            self.round += 1;
            self.write_and_read().with_context(|| format!("round {}", self.round))?;
            if self.round.is_multiple_of(5) {
                self.count_up().with_context(|| format!("transaction {}", self.counter))?;
            }
        }
        Ok(())
    }

    /// Many requests at once, with values longer than the ring now and then.
    fn write_and_read(&mut self) -> Result<()> {
        let path = format!("data/{}", self.round);
        let letter = b'a' + (self.round % 26).to_le_bytes()[0];
        let bytes = if self.round.is_multiple_of(9) { 1500 } else { 20 };
        let value = vec![letter; bytes];
        self.ask(MessageType::Write, 0, &[path.as_bytes(), b"\0", &value])?;
        self.own_events.push_back(path.clone());
        self.ask(MessageType::Read, 0, &[path.as_bytes(), b"\0"])?;
        let old = format!("data/{}", self.round.saturating_sub(LIFETIME));
        let removes = self.round > LIFETIME;
        if removes {
            self.ask(MessageType::Rm, 0, &[old.as_bytes(), b"\0"])?;
            self.own_events.push_back(old.clone());
            self.ask(MessageType::Read, 0, &[old.as_bytes(), b"\0"])?;
        }
        self.ask(MessageType::Directory, 0, &[b"data\0"])?;
        expect(&self.answer()?, &Ok(b"OK\0".to_vec()))?;
        expect(&self.answer()?, &Ok(value))?;
        if removes {
            expect(&self.answer()?, &Ok(b"OK\0".to_vec()))?;
            expect(&self.answer()?, &Err(Error::ENOENT))?;
        }
        let first = if removes { self.round - LIFETIME + 1 } else { 1 };
        let names = (first..=self.round).map(|round| format!("{round}\0")).collect::<String>();
        expect(&self.answer()?, &Ok(names.into_bytes()))?;
        self.take_events()?;
        ensure!(self.own_events.is_empty(), "events did not come: {:?}", self.own_events);
        Ok(())
    }

    /// A transaction that reads what it writes. A refused commit is a legal answer and is counted.
    fn count_up(&mut self) -> Result<()> {
        self.ask(MessageType::TransactionStart, 0, &[b"\0"])?;
        let id = self.answer()??;
        let id: u32 = std::str::from_utf8(&id)?.trim_end_matches('\0').parse()?;
        let (now, next) = (self.counter.to_string(), (self.counter + 1).to_string());
        self.ask(MessageType::Read, id, &[b"counter\0"])?;
        self.ask(MessageType::Write, id, &[b"counter\0", next.as_bytes()])?;
        self.ask(MessageType::Read, id, &[b"counter\0"])?;
        self.ask(MessageType::Read, 0, &[b"counter\0"])?;
        self.ask(MessageType::TransactionEnd, id, &[b"T\0"])?;
        self.ask(MessageType::Read, 0, &[b"counter\0"])?;
        expect(&self.answer()?, &Ok(now.clone().into_bytes()))?;
        expect(&self.answer()?, &Ok(b"OK\0".to_vec()))?;
        let inside = self.answer()?;
        expect(&self.answer()?, &Ok(now.clone().into_bytes()))?;
        match self.answer()? {
            Ok(_) => {
                expect(&inside, &Ok(next.clone().into_bytes()))?;
                self.counter += 1;
            }
            Err(Error::EAGAIN) => {
                self.scene.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => bail!("the commit failed: {error}"),
        }
        let after = self.answer()?;
        expect(&after, &Ok(self.counter.to_string().into_bytes()))
    }

    fn ask(&mut self, kind: MessageType, transaction: u32, parts: &[&[u8]]) -> Result<()> {
        self.scene.requests.fetch_add(1, Ordering::Relaxed);
        Ok(self.machine.request(kind, transaction, parts)?)
    }

    /// The next answer, which the machine has checked to be that of the next request.
    fn answer(&mut self) -> Result<Reply> {
        let began = Instant::now();
        loop {
            if let Some(reply) = self.machine.poll_reply() {
                return Ok(reply);
            }
            let mut moved = self.guest.try_send(self.machine.outgoing())?;
            self.machine.sent(moved);
            let mut bytes = [0; 1024];
            let taken = self.guest.try_recv(&mut bytes)?;
            self.machine.handle_bytes(&bytes[..taken])?;
            moved += taken;
            if moved == 0 {
                self.guest.wait(Duration::from_millis(500))?;
                let waited = began.elapsed();
                ensure!(
                    waited < PATIENCE,
                    "no answer to {} requests in {waited:?}",
                    self.machine.in_flight()
                );
            }
        }
    }

    fn take_events(&mut self) -> Result<()> {
        while let Some(event) = self.machine.poll_event() {
            self.scene.events.fetch_add(1, Ordering::Relaxed);
            if event.token == "mail" {
                self.mail.receive(&event.path);
                continue;
            }
            let expected = self.own_events.pop_front();
            ensure!(expected.as_deref() == Some(&*event.path), "{event:?}, not {expected:?}");
        }
        Ok(())
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // Mail that came after the last round.
        let began = Instant::now();
        let mut bytes = [0; 1024];
        while began.elapsed() < Duration::from_millis(200) {
            let taken = self.guest.try_recv(&mut bytes).unwrap_or(0);
            if self.machine.handle_bytes(&bytes[..taken]).is_err() {
                return;
            }
            while let Some(event) = self.machine.poll_event() {
                self.mail.receive(&event.path);
            }
            if taken == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn expect(found: &Reply, expected: &Reply) -> Result<()> {
    let show = |reply: &Reply| match reply {
        Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Err(error) => error.to_string(),
    };
    ensure!(found == expected, "answered {:?}, not {:?}", show(found), show(expected));
    Ok(())
}

/// Domains that are made, used and destroyed, whatever the daemon does meanwhile.
pub(super) fn come_and_go(scene: &Scene) -> Result<()> {
    let mut life = 0_u64;
    while !scene.is_over() {
        for domid in [VISITORS, VISITORS + 1] {
            life += 1;
            visit(scene, domid, 1_000_000 + life)
                .with_context(|| format!("life {life} of domain {domid}"))?;
        }
    }
    Ok(())
}

fn visit(scene: &Scene, domid: u16, unique_id: u64) -> Result<()> {
    let guest = Guest::create(&scene.host, DomId(domid), unique_id)?;
    clients::introduce(scene, domid)?;
    let mut client = Client::new(guest);
    let left = client.read_optional("left-behind");
    ensure!(matches!(left, Ok(None)), "an earlier domain's node: {left:?}");
    client.write("left-behind", unique_id.to_string().as_bytes())?;
    client.watch("left-behind", "t")?;
    client.next_event()?;
    ensure!(client.read("left-behind")? == unique_id.to_string().into_bytes(), "another value");
    client.transport().destroy()?;
    // Without a daemon the next one sees it by itself.
    let _heard = scene.host.raise_exception();
    clients::wait_until_gone(scene, domid)
}
