//! `cargo xtask store-crash`: the store daemon is killed again and again while guests and clients work,
//! and none of them may notice more than a closed socket.
//!
//! Guests on ring pages know what every answer has to be and when which event comes; clients of the
//! socket know what was acknowledged; domains come and go. The daemon gets SIGKILL at random moments
//! and is started again at once.

mod clients;
mod daemon;
mod guests;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lexopt::prelude::*;

use daemon::Daemon;

const HELP: &str = "\
cargo xtask store-crash [options]

Kills xylem-xenstored while guests on rings and clients of the socket work, and checks that nothing is
lost and nothing happens twice. Ends with 1 if something is.

  --kills N     how often (default 500)
  --guests N    guests on rings (default 50)
  --sockets N   clients of the socket (default 8)
  --nodes N     further nodes in the store, so that checkpoints take long (default 2000)
  --seed N      of the moments (default from the clock)";

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub kills: u32,
    pub guests: u16,
    pub sockets: u16,
    pub nodes: u32,
    pub seed: u64,
}

/// A seed that is another one each time.
pub fn seed_of_clock() -> Result<u64> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(clock.subsec_nanos().into())
}

/// # Errors
/// The daemon does not start, or something was lost.
pub fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let seed = seed_of_clock()?;
    let mut options = Options { kills: 500, guests: 50, sockets: 8, nodes: 2000, seed };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("kills") => options.kills = parser.value()?.parse()?,
            Long("guests") => options.guests = parser.value()?.parse()?,
            Long("sockets") => options.sockets = parser.value()?.parse()?,
            Long("nodes") => options.nodes = parser.value()?.parse()?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(options)?;
    Ok(ExitCode::SUCCESS)
}

/// What all who take part share.
pub struct Scene {
    pub host: file_host::HostFolder,
    /// Everybody comes to an end.
    pub stop: AtomicBool,
    pub requests: AtomicU64,
    pub events: AtomicU64,
    pub closed: AtomicU64,
    pub conflicts: AtomicU64,
    /// The first thing that went wrong.
    failure: Mutex<Option<String>>,
}

impl Scene {
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn note<T>(&self, who: &str, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let mut failure = self.failure.lock().expect("not poisoned");
                failure.get_or_insert_with(|| format!("{who}: {error:#}"));
                self.stop.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

/// # Errors
/// As for [`main`].
pub fn run(options: Options) -> Result<()> {
    let mut daemon = Daemon::prepare()?;
    daemon.start()?;
    let scene = Scene {
        host: daemon.host()?,
        stop: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        events: AtomicU64::new(0),
        closed: AtomicU64::new(0),
        conflicts: AtomicU64::new(0),
        failure: Mutex::new(None),
    };
    clients::fill(&scene, options.nodes)?;
    let mail: Vec<clients::Mail> = (0..options.guests).map(|_| clients::Mail::default()).collect();
    let mut prepared = Vec::new();
    for (index, mail) in mail.iter().enumerate() {
        let domid = 1 + u16::try_from(index)?;
        prepared.push((domid, guests::Worker::new(&scene, domid, mail)?));
    }
    let began = Instant::now();
    let mut downtimes = Vec::new();
    let killed = std::thread::scope(|threads| {
        for (domid, mut worker) in prepared {
            let scene = &scene;
            threads.spawn(move || scene.note(&format!("domain {domid}"), worker.run()));
        }
        for socket in 0..options.sockets {
            let (scene, mail) = (&scene, &mail);
            threads.spawn(move || {
                scene.note(&format!("client {socket}"), clients::work(scene, socket, mail))
            });
        }
        threads.spawn(|| scene.note("domains that come and go", guests::come_and_go(&scene)));
        let killed = kill(&mut daemon, &scene, options, &mut downtimes);
        scene.stop.store(true, Ordering::Relaxed);
        killed
    });
    if let Some(failure) = scene.failure.lock().expect("all threads ended").take() {
        daemon.keep();
        anyhow::bail!("{failure} (seed {}; the files are in {})", options.seed, daemon.place());
    }
    killed?;
    clients::check_end(&scene, &mail)?;
    downtimes.sort_unstable();
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let index = ((downtimes.len() - 1) as f64 * share) as usize;
        downtimes.get(index).copied().unwrap_or_default().as_secs_f64() * 1000.0
    };
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "store-crash: {} kills in {:.1} s with {} guests and {} sockets: {} requests and {} events \
         as they have to be, {} sockets closed, {} commits refused; from the kill to the first \
         answer {:.1} ms (median), {:.1} ms (longest); journal {} KiB at most; seed {}",
        options.kills,
        began.elapsed().as_secs_f64(),
        options.guests,
        options.sockets,
        count(&scene.requests),
        count(&scene.events),
        count(&scene.closed),
        count(&scene.conflicts),
        at(0.5),
        at(1.0),
        daemon.journal_bytes_max / 1024,
        options.seed,
    );
    Ok(())
}

fn kill(
    daemon: &mut Daemon,
    scene: &Scene,
    options: Options,
    downtimes: &mut Vec<Duration>,
) -> Result<()> {
    let mut random = Random(options.seed | 1);
    for number in 1..=options.kills {
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        if scene.is_over() {
            break;
        }
        daemon.kill()?;
        let began = Instant::now();
        // Sometimes there is no daemon for a while.
        if number % 10 == 0 {
            std::thread::sleep(Duration::from_millis(random.below(30)));
        }
        daemon.start().with_context(|| format!("after {number} kills"))?;
        if number % 10 != 0 {
            downtimes.push(began.elapsed());
        }
    }
    // Everybody gets somewhere after the last one.
    std::thread::sleep(Duration::from_millis(300));
    ensure!(daemon.is_running()?, "the daemon ended by itself: {}", daemon.words());
    Ok(())
}

/// Numbers that follow from a seed (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
