//! A store under attack.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use file_host::{Guest, HostFolder};
use xen::DomId;
use xenstore::Quota;
use xenstore::wire::MessageType as M;

use super::attacker::{Attacker, SharedTally};
use super::others::{Bystanders, KEPT, KEPT_VALUE, OPEN};
use crate::stores::{Connection, Daemon};

/// The guest that must not notice.
pub(super) const NEIGHBOUR: u16 = 2;
/// Attackers' domids begin here.
pub(super) const FIRST: u16 = 10;

/// What the store's lines in its log may come to, whatever is tried.
const LOG_BYTES_MAX: usize = 256 * 1024;

pub(super) struct Scene {
    pub(super) daemon: Daemon,
    pub(super) host: HostFolder,
    pub(super) dom0: Connection,
    pub(super) tally: SharedTally,
    pub(super) others: Arc<Bystanders>,
    length: Duration,
    until: Cell<Option<Instant>>,
    rss_before: Cell<u64>,
    /// Those whose limits are checked at the end.
    domids: Vec<u16>,
}

impl Scene {
    pub(super) fn new(daemon: Daemon, length: Duration) -> Result<Self> {
        let mut dom0 = daemon.connect()?;
        for (path, value) in [(KEPT, KEPT_VALUE), (OPEN, b"0")] {
            dom0.call(M::Write, 0, &[path.as_bytes(), b"\0", value].concat())?;
        }
        dom0.call(M::SetPerms, 0, format!("{OPEN}\0r0\0").as_bytes())?;
        dom0.call(M::Write, 0, b"/tool/hostile/secret/node\0hidden")?;
        Ok(Self {
            host: HostFolder::existing(daemon.folder()),
            daemon,
            dom0,
            tally: Rc::default(),
            others: Arc::default(),
            length,
            until: Cell::new(None),
            rss_before: Cell::new(0),
            domids: Vec::new(),
        })
    }

    /// A domain with a home of its own, introduced.
    pub(super) fn guest(&mut self, domid: u16) -> Result<Guest> {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let guest = Guest::create(&self.host, DomId(domid), life)?;
        self.introduce(domid)?;
        self.make_home(domid)?;
        Ok(guest)
    }

    pub(super) fn introduce(&mut self, domid: u16) -> Result<()> {
        self.dom0.call(M::Introduce, 0, format!("{domid}\x005\x007\0").as_bytes())?;
        Ok(())
    }

    pub(super) fn make_home(&mut self, domid: u16) -> Result<()> {
        let home = format!("/local/domain/{domid}");
        self.dom0.call(M::Mkdir, 0, format!("{home}\0").as_bytes())?;
        self.dom0.call(M::SetPerms, 0, format!("{home}\0n{domid}\0").as_bytes())?;
        Ok(())
    }

    pub(super) fn attacker(&mut self, domid: u16) -> Result<Attacker> {
        let guest = self.guest(domid)?;
        if !self.domids.contains(&domid) {
            self.domids.push(domid);
        }
        Ok(Attacker::new(guest, Rc::clone(&self.tally)))
    }

    pub(super) fn attackers(&mut self, count: u16) -> Result<Vec<Attacker>> {
        (FIRST..FIRST + count).map(|domid| self.attacker(domid)).collect()
    }

    /// Ends a domain and waits until the store has heard of it.
    pub(super) fn destroy(&mut self, attacker: &Attacker) -> Result<()> {
        attacker.guest.destroy()?;
        self.daemon.raise()?;
        let domid = attacker.guest.domid();
        let begun = Instant::now();
        while self.dom0.call(M::IsDomainIntroduced, 0, format!("{domid}\0").as_bytes())? != b"F\0" {
            ensure!(begun.elapsed() < Duration::from_secs(10), "domain {domid} stays introduced");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.domids.retain(|known| *known != domid.0);
        Ok(())
    }

    /// All is prepared: from now on times count.
    pub(super) fn begin(&self) -> Result<()> {
        self.rss_before.set(self.daemon.resident_bytes()?);
        self.until.set(Some(Instant::now() + self.length));
        self.others.counts.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn has_begun(&self) -> bool {
        self.until.get().is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.get().is_some_and(|until| Instant::now() >= until)
    }

    pub(super) fn rss_before(&self) -> u64 {
        self.rss_before.get()
    }

    /// Begins, and asks again and again; `next` says what, by the number of the request.
    pub(super) fn storm(
        &self,
        attacker: &mut Attacker,
        mut next: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<()> {
        if !self.has_begun() {
            self.begin()?;
        }
        let mut number = 0;
        while !self.is_over() {
            attacker.send(&next(number))?;
            number += 1;
        }
        attacker.drain()
    }

    /// Waits until the time is over.
    pub(super) fn rest(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn note(&self, what: &str, count: u64) {
        self.tally.borrow_mut().add(what, count);
    }

    // What must hold in the end

    /// The store serves, counts right, kept everybody's nodes, and no attacker has more than it may.
    pub(super) fn check(&mut self) -> Result<()> {
        let mut fresh = self.daemon.connect().context("the store does not serve any more")?;
        let counted = fresh.call(M::Control, 0, b"check\0")?;
        ensure!(counted == b"OK\0", "a recount: {}", String::from_utf8_lossy(&counted));
        let value = fresh.call(M::Read, 0, format!("{KEPT}\0").as_bytes())?;
        ensure!(value == KEPT_VALUE, "dom0's node was changed");
        let kept = format!("/local/domain/{NEIGHBOUR}/kept\0");
        let value = fresh.call(M::Read, 0, kept.as_bytes())?;
        ensure!(value == KEPT_VALUE, "the other guest's node was changed");
        for domid in self.domids.clone() {
            self.check_limits(domid).with_context(|| format!("domain {domid}"))?;
        }
        let said = self.daemon.output();
        ensure!(said.len() <= LOG_BYTES_MAX, "the log has {} bytes", said.len());
        ensure!(!said.contains("panic"), "the store panicked: {said}");
        let measured = self.others.measured.lock().expect("not poisoned");
        ensure!(measured.reads.count() > 0, "dom0 read nothing meanwhile");
        ensure!(measured.guest.count() > 0, "the other guest was not served meanwhile");
        ensure!(measured.commits > 0, "no transaction of dom0 was committed meanwhile");
        Ok(())
    }

    /// The most that a domain ever used of each limit, beside the limit.
    fn check_limits(&mut self, domid: u16) -> Result<()> {
        let report = self.dom0.call(M::Control, 0, format!("quota\0{domid}\0").as_bytes())?;
        let report = String::from_utf8_lossy(&report).into_owned();
        let quota = Quota::default();
        let mut seen = 0;
        for line in report.lines() {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let Some((_, most)) = rest.split_once("(max") else { continue };
            let most: u32 = most.trim_matches([' ', ')']).parse().context("a number")?;
            let limit = quota.get(name.trim()).with_context(|| format!("limit {name}"))?;
            // Reads are answered at the limit too, and some events always fit: see docs/store.md.
            let beyond = if name.trim() == "memory" { beyond_memory(&quota) } else { 0 };
            ensure!(most <= limit + beyond, "{name}: {most} of {limit}");
            seen += 1;
        }
        ensure!(seen >= 4, "no limits in {report:?}");
        Ok(())
    }
}

/// Bytes that the store may hold for a guest beyond its limit of memory: events that always fit, a
/// request under way, and the replies that the guest has not read.
fn beyond_memory(quota: &Quota) -> u32 {
    const EVENTS: u32 = 8 * 1024;
    const MESSAGE: u32 = 16 + 4096;
    EVENTS + MESSAGE * (1 + quota.get("outstanding").unwrap_or(0))
}
