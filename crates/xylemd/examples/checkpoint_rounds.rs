//! Checkpoints of a guest by the shipped code: `checkpoint_rounds ROUNDS MILLISECONDS DOMID`. Its memory
//! is read once while it runs; then, with MILLISECONDS between two rounds, it is suspended, what it has
//! written since is copied, and it goes on.
//!
//! Prints `SAMPLE checkpoint-O-WHAT VALUE`: `suspend` and `pause`, in microseconds from the trigger until
//! the suspend is confirmed and until the guest goes on; `pages` copied meanwhile; `hypercalls` meanwhile.
//! With `XYLEM_MARK` set, each pause begins and ends with a `getppid`, for who counts system calls.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use migrate::libxc::PageData;
use migrate::{Capture, Round};
use rustix::process::setpriority_process;
use toolstack::perform::{Performer, PreparedSuspend};
use xen::{ARENA_BYTES_FULL, DomId, Xen};
use xen_linux::LinuxHypervisor;
use xenstore_socket::StoreSocket;

type Shipped = Performer<LinuxHypervisor, StoreSocket, ()>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("checkpoint_rounds: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, interval, domid] = &arguments[..] else {
        bail!("usage: checkpoint_rounds ROUNDS MILLISECONDS DOMID");
    };
    let (rounds, interval) = (rounds.parse()?, Duration::from_millis(interval.parse()?));
    let domid = DomId(domid.parse()?);
    // As xylemd.
    let _refused = setpriority_process(None, -10);
    let xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
    let store = StoreSocket::connect(&xenstore_socket::default_path())?;
    let mut by = Performer { xen, store, host: () };
    let info = by.xen.domain(domid)?.context("there is no such domain")?;
    let domain = by.xen.identify(domid, info.handle, 0)?;
    let prepared = by.prepare_suspend(domain, info.handle, &format!("domain {domid}"))?;
    let mut suspend = prepared.context("it is suspended")?;
    let mut capture = Capture::prepare(&mut by.xen, domid)?;
    capture.start_live(&mut by.xen)?;
    let mut copy = Copy::default();
    copy.round(&mut by, &mut capture, Round::Live)?;
    for _ in 0..rounds {
        thread::sleep(interval);
        checkpoint(&mut by, domid, &mut suspend, &mut capture, &mut copy)?;
    }
    capture.end(&mut by.xen);
    by.end_suspend(suspend);
    Ok(())
}

fn checkpoint(
    by: &mut Shipped,
    domid: DomId,
    suspend: &mut PreparedSuspend,
    capture: &mut Capture,
    copy: &mut Copy,
) -> Result<()> {
    by.arm_suspend(suspend)?;
    by.xen.take_counters();
    mark();
    let begun = Instant::now();
    by.trigger_suspend(suspend, &mut ())?;
    let confirmed = Instant::now();
    let pages = copy.round(by, capture, Round::Last)?;
    let tail = capture.tail(&mut by.xen)?;
    by.resume_at_once(suspend)?;
    let resumed = Instant::now();
    mark();
    let hypercalls = by.xen.take_counters().total();
    by.tell_resumed(domid)?;
    drop(tail);
    let us = |to: Instant| (to - begun).as_secs_f64() * 1e6;
    println!("SAMPLE checkpoint-O-suspend {:.1}", us(confirmed));
    println!("SAMPLE checkpoint-O-pause {:.1}", us(resumed));
    println!("SAMPLE checkpoint-O-pages {pages}");
    println!("SAMPLE checkpoint-O-hypercalls {hypercalls}");
    Ok(())
}

fn mark() {
    if std::env::var_os("XYLEM_MARK").is_some() {
        let _unused = std::os::unix::process::parent_id();
    }
}

/// Memory for what is copied while the guest is suspended; it is used again and again.
#[derive(Default)]
struct Copy {
    batches: Vec<PageData>,
}

impl Copy {
    /// Copies all pages of a round and says how many they are. Of the first one, only the last batch is kept.
    fn round(&mut self, by: &mut Shipped, capture: &mut Capture, round: Round) -> Result<u64> {
        let pages = capture.begin_round(&mut by.xen, round)?;
        for index in 0.. {
            let place = if round == Round::Last { index } else { 0 };
            if self.batches.len() <= place {
                self.batches.push(PageData::default());
            }
            if !capture.next_batch(&mut by.xen, &mut self.batches[place])? {
                break;
            }
        }
        Ok(pages)
    }
}
