//! Those who must not notice: a client in dom0, whose times are taken, and a guest that minds its own business.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use file_host::Guest;
use xenstore::client::{Client, Nodes};
use xenstore::wire::MessageType as M;

use crate::stores::Connection;

/// What dom0 reads, and only dom0 may change.
pub(super) const KEPT: &str = "/tool/hostile/kept";
/// What dom0 writes: everybody may read it.
pub(super) const OPEN: &str = "/tool/hostile/open";
/// What dom0's transactions read: the first attacker may write it.
pub(super) const FLAG: &str = "/local/domain/10/flag";

pub(super) const KEPT_VALUE: &[u8] = b"nobody changes this";

/// How long those who must not notice pause between requests.
const PAUSE: Duration = Duration::from_millis(1);

/// How long requests took, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<f64>);

impl Times {
    fn push(&mut self, begun: Instant) {
        self.0.push(begun.elapsed().as_secs_f64() * 1000.0);
    }

    /// The time that this share of them did not exceed; 1 for the longest.
    pub(super) fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index of a short list"
        )]
        let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        sorted.get(index).copied().unwrap_or(0.0)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) reads: Times,
    pub(super) writes: Times,
    pub(super) guest: Times,
    pub(super) commits: u64,
    pub(super) conflicts: u64,
}

/// What the threads share.
#[derive(Debug, Default)]
pub(super) struct Bystanders {
    /// The attack has begun: from now on times count.
    pub(super) counts: AtomicBool,
    pub(super) over: AtomicBool,
    pub(super) measured: Mutex<Measured>,
    failure: Mutex<Option<String>>,
}

impl Bystanders {
    pub(super) fn note(&self, who: &str, outcome: Result<()>) {
        if let Err(error) = outcome {
            let mut failure = self.failure.lock().expect("not poisoned");
            failure.get_or_insert_with(|| format!("{who}: {error:#}"));
        }
    }

    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.lock().expect("all threads ended").take()
    }

    fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    fn record(&self, record: impl FnOnce(&mut Measured)) {
        if self.counts() {
            record(&mut self.measured.lock().expect("not poisoned"));
        }
    }

    /// dom0: reads, writes and commits, one after the other.
    pub(super) fn run_dom0(&self, socket: &Path, priority: Option<u32>) -> Result<()> {
        if let Some(priority) = priority {
            become_realtime(priority)?;
        }
        let mut client = Connection::open(socket)?;
        let mut round = 0_u64;
        while !self.over.load(Ordering::Relaxed) {
            round += 1;
            let begun = Instant::now();
            let value = client.call(M::Read, 0, format!("{KEPT}\0").as_bytes())?;
            self.record(|measured| measured.reads.push(begun));
            ensure!(value == KEPT_VALUE, "{KEPT} was changed to {value:?}");
            if round.is_multiple_of(2) {
                let begun = Instant::now();
                client.call(M::Write, 0, format!("{OPEN}\0{round}").as_bytes())?;
                self.record(|measured| measured.writes.push(begun));
            }
            if round.is_multiple_of(8) {
                self.commit(&mut client, round).context("a transaction")?;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn commit(&self, client: &mut Connection, round: u64) -> Result<()> {
        let number = client.call(M::TransactionStart, 0, b"\0")?;
        let number: u32 = std::str::from_utf8(&number)?.trim_end_matches('\0').parse()?;
        // A node that is not there is read, too.
        let _flag = client.call_raw(M::Read.code(), number, format!("{FLAG}\0").as_bytes())?;
        let write = format!("/tool/hostile/committed\0{round}");
        client.call(M::Write, number, write.as_bytes())?;
        match client.call_raw(M::TransactionEnd.code(), number, b"T\0")? {
            Ok(_) => self.record(|measured| measured.commits += 1),
            Err(error) if error == "EAGAIN" => self.record(|measured| measured.conflicts += 1),
            Err(error) => anyhow::bail!("the commit failed: {error}"),
        }
        Ok(())
    }

    /// A guest that writes and reads its own node, and knows what is in it.
    pub(super) fn run_guest(&self, guest: Guest) -> Result<()> {
        let mut client = Client::new(guest);
        client.write("kept", KEPT_VALUE)?;
        let mut round = 0_u64;
        while !self.over.load(Ordering::Relaxed) {
            round += 1;
            let begun = Instant::now();
            let value = client.read("kept")?;
            self.record(|measured| measured.guest.push(begun));
            ensure!(value == KEPT_VALUE, "its node was changed to {value:?}");
            if round.is_multiple_of(10) {
                client.write("own", round.to_string().as_bytes())?;
                ensure!(client.read("own")? == round.to_string().into_bytes(), "a lost write");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Puts the calling thread ahead of all that is not real-time.
fn become_realtime(priority: u32) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let priority = priority.to_string();
    let status =
        std::process::Command::new("chrt").args(["--fifo", "--pid", &priority, &thread]).status();
    ensure!(status.context("chrt does not start")?.success(), "chrt refuses; run as root");
    Ok(())
}
