//! Suspends of guests by the shipped code and, in turn with it, in libxl's order: how long each
//! takes from the trigger until it is confirmed.
//!
//! `suspend_rounds ROUNDS PHASE,... GUEST:ARMS:DOMID...` Phases take turns every ten rounds: in one
//! whose name starts with `loaded`, three writers keep the store busy. Arms:
//!
//! ```text
//! A  libxl's order, by the program in XLSUSPEND (lab/xlsuspend.c)
//! E  libxl's order for a guest that offers an event channel, by the same program
//! O  ours, whichever way the guest is asked
//! ```
//! Prints `SAMPLE GUEST-ARM-PHASE MICROSECONDS`, and for A `GUEST-A-ack-PHASE`: until the guest's
//! acknowledgement; for O `GUEST-O-before-PHASE` and `GUEST-O-resume-PHASE`: what is done before the
//! trigger, and the resume. The domains' daemon is not to run meanwhile: it would notice each suspend.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::setpriority_process;
use toolstack::perform::Performer;
use xen::{ARENA_BYTES_MIN, DomId, DomainRef, Uuid, Xen};
use xen_linux::LinuxHypervisor;
use xenstore::client::Nodes as _;
use xenstore_socket::StoreSocket;

/// Rounds of a phase before the next one's turn.
const TURN: u32 = 10;
/// Between a resume and the next suspend; a guest settles in it.
const SETTLE: Duration = Duration::from_millis(150);
const WRITERS: u32 = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("suspend_rounds: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, phases, guests @ ..] = &arguments[..] else {
        bail!("usage: suspend_rounds ROUNDS PHASE,... GUEST:ARMS:DOMID...");
    };
    let mut bench = Bench::open()?;
    // As xylemd; xl is at 0.
    let _refused = setpriority_process(None, -10);
    let guests = guests.iter().map(|word| bench.guest(word)).collect::<Result<Vec<_>>>()?;
    let rounds: u32 = rounds.parse()?;
    // The first suspend of a domain makes its port; what else is done once is done, too.
    for guest in &guests {
        bench.measure(guest, None)?;
    }
    let mut done = 0;
    while done < rounds {
        let turn = TURN.min(rounds - done);
        for phase in phases.split(',') {
            let _writers = phase.starts_with("loaded").then(Writers::start).transpose()?;
            for _ in 0..turn {
                for guest in &guests {
                    bench.measure(guest, Some(phase))?;
                }
            }
        }
        done += turn;
    }
    Ok(())
}

/// One that is suspended.
struct Guest {
    name: String,
    arms: String,
    domain: DomainRef,
    uuid: Uuid,
    /// Where it wants to be asked.
    port: Option<u32>,
}

struct Bench {
    ours: Performer<LinuxHypervisor, StoreSocket, ()>,
    theirs: Theirs,
    /// Suspends so far, so that they do not keep step with a guest's own timers.
    count: u64,
}

impl Bench {
    fn open() -> Result<Self> {
        let xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_MIN)?)?;
        let ours = Performer { xen, store: connect()?, host: () };
        Ok(Self { ours, theirs: Theirs::start()?, count: 0 })
    }

    fn guest(&mut self, word: &str) -> Result<Guest> {
        let parts: Vec<&str> = word.split(':').collect();
        let [name, arms, domid] = parts[..] else { bail!("{word}: is not GUEST:ARMS:DOMID") };
        let domid = DomId(domid.parse()?);
        let info = self.ours.xen.domain(domid)?.with_context(|| format!("{name} is gone"))?;
        let domain = self.ours.xen.identify(domid, info.handle, 0)?;
        let path = format!("/local/domain/{domid}/device/suspend/event-channel");
        let port = self.ours.store.read_optional(&path)?;
        let port = port.and_then(|text: Vec<u8>| String::from_utf8_lossy(&text).parse().ok());
        let (name, arms) = (name.to_owned(), arms.to_owned());
        Ok(Guest { name, arms, domain, uuid: info.handle, port })
    }

    /// Each arm once. Without a phase nothing is printed.
    fn measure(&mut self, guest: &Guest, phase: Option<&str>) -> Result<()> {
        for arm in guest.arms.chars() {
            self.count += 1;
            thread::sleep(SETTLE + Duration::from_millis(self.count * 7 % 30));
            let domid = guest.domain.domid;
            let times = match (arm, guest.port) {
                ('A', _) => self.theirs.ask(&format!("suspend {domid}"))?,
                ('E', Some(port)) => self.theirs.ask(&format!("event {domid} {port}"))?,
                ('O', _) => self.ours(guest)?,
                _ => bail!("{}: has no arm {arm}", guest.name),
            };
            let Some(phase) = phase else { continue };
            for (what, microseconds) in times {
                println!("SAMPLE {}-{arm}{what}-{phase} {microseconds:.1}", guest.name);
            }
        }
        Ok(())
    }

    fn ours(&mut self, guest: &Guest) -> Result<Vec<(&'static str, f64)>> {
        let ours = &mut self.ours;
        let begun = Instant::now();
        let prepared = ours.prepare_suspend(guest.domain, guest.uuid, &guest.name)?;
        let mut suspend = prepared.context("it is suspended")?;
        ours.arm_suspend(&mut suspend)?;
        let armed = Instant::now();
        ours.trigger_suspend(&mut suspend, &mut ())?;
        let confirmed = Instant::now();
        ours.resume_at_once(&suspend)?;
        let resumed = Instant::now();
        ours.end_suspend(suspend);
        ours.tell_resumed(guest.domain.domid)?;
        let us = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e6;
        Ok(vec![
            ("", us(armed, confirmed)),
            ("-before", us(begun, armed)),
            ("-resume", us(confirmed, resumed)),
        ])
    }
}

fn connect() -> Result<xenstore::client::Client<StoreSocket>> {
    let path = xenstore_socket::default_path();
    StoreSocket::connect(&path).with_context(|| format!("no store at {}", path.display()))
}

/// The program that does it in libxl's order.
struct Theirs {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Theirs {
    fn start() -> Result<Self> {
        let program = std::env::var_os("XLSUSPEND").context("XLSUSPEND names no program")?;
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("it has an output")?);
        Ok(Self { child, commands, answers })
    }

    fn ask(&mut self, command: &str) -> Result<Vec<(&'static str, f64)>> {
        writeln!(self.commands.as_mut().context("it has an input")?, "{command}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        ensure!(times.len() == 2, "{command}: answered '{line}'");
        Ok(vec![("", times[0]), ("-ack", times[1])])
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // It ends with its input.
        self.commands = None;
        let _status = self.child.wait();
    }
}

/// Clients that write to the store, a thousand times a second each at most.
struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 0..WRITERS {
            let mut store = connect()?;
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || {
                // As any client; the daemon's work, which is measured, is more urgent.
                let _refused = setpriority_process(None, 0);
                let path = format!("/bench/{number}");
                for value in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    store.write(&path, value.to_string().as_bytes()).expect("the store serves");
                    thread::sleep(Duration::from_millis(1));
                }
                store.rm(&path).expect("the store serves");
            }));
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a writer failed");
        }
    }
}
