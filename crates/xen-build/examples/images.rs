//! Creates VMs from damaged kernels and ramdisks on a simulated host: `images [--count N] [--seed
//! N] [--seconds N] [--case N] [kernel=FILE|ramdisk=FILE]...`
//!
//! Each image goes through the toolstack's own code. For every image: no crash; at most a second of
//! CPU time (or three times that of the undamaged image, if that is more); an error that names the
//! file or the bad value; and a clean host once the VM is destroyed. The same seed damages the same
//! files in the same way; `--case` repeats one case.

#[expect(dead_code, reason = "the tests need more kinds of kernels")]
#[path = "../tests/it/kernels.rs"]
mod kernels;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sim::{Daemon, HostConfig, Prng, SimHost, Snapshot, Time};
use toolstack::plan::Start;
use toolstack::{Reply, Request, xlcfg};
use xen::Uuid;
use xen_build::Compression;

type Failure = Box<dyn std::error::Error>;

/// Limit of CPU time.
const BOUND: Duration = Duration::from_secs(1);
/// Images per simulated host, whose trace grows with each.
const PER_HOST: u64 = 250;
/// Virtual time that an operation may take, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;
/// Path of the image on the simulated host.
const PATH: &str = "/images/damaged";
/// Files above this size are damaged rarely, since they take most of the time.
const LARGE_BYTES: usize = 1 << 20;
/// One image in this many is a large one.
const LARGE_EVERY: u64 = 40;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Kernel,
    Ramdisk,
}

/// An undamaged file.
struct Original {
    name: String,
    role: Role,
    bytes: Vec<u8>,
    /// CPU time of creating a VM from the undamaged file.
    whole: Duration,
}

struct Options {
    count: u64,
    seed: u64,
    budget: Option<Duration>,
    only: Option<u64>,
    files: Vec<(Role, String)>,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options { count: 10_000, seed: 1, budget: None, only: None, files: vec![] };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64, Failure> {
            Ok(arguments.next().ok_or(format!("{argument} wants a number"))?.parse()?)
        };
        match argument.as_str() {
            "--count" => options.count = number()?,
            "--seed" => options.seed = number()?,
            "--seconds" => options.budget = Some(Duration::from_secs(number()?)),
            "--case" => options.only = Some(number()?),
            other => match other.split_once('=') {
                Some(("kernel", file)) => options.files.push((Role::Kernel, file.to_owned())),
                Some(("ramdisk", file)) => options.files.push((Role::Ramdisk, file.to_owned())),
                _ => return Err(format!("unknown argument {other}").into()),
            },
        }
    }
    Ok(options)
}

/// CPU time of this thread. Source: Linux `Documentation/scheduler/sched-stats.rst`.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(ns.unwrap_or_default())
}

/// Hand-made kernels, and those of the command line: as they are and, if small, compressed in every
/// format.
fn originals(files: &[(Role, String)]) -> Result<Vec<Original>, Failure> {
    let packings = [
        Compression::Gzip,
        Compression::Xz,
        Compression::Zstd,
        Compression::Lz4,
        Compression::None,
    ];
    let mut all = Vec::new();
    let mut add = |name: String, role, bytes| {
        all.push(Original { name, role, bytes, whole: Duration::ZERO });
    };
    let mut plain = vec![
        ("hand-made".to_owned(), kernels::unikernel().bytes()),
        ("hand-made, 32 bits".to_owned(), kernels::unikernel().bytes_32(62)),
        ("simulated".to_owned(), sim::kernel_image()),
    ];
    for (role, file) in files {
        let bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let name = file.rsplit('/').next().unwrap_or(file).to_owned();
        let is_small_elf = bytes.starts_with(b"\x7fELF") && bytes.len() < LARGE_BYTES;
        match role {
            Role::Kernel if is_small_elf => plain.push((name, bytes)),
            role => add(name, *role, bytes),
        }
    }
    // Only the guest unpacks it.
    let ramdisk = kernels::pack(&kernels::code(20_000), Compression::Gzip);
    for _ in 0..2 {
        add("ramdisk".to_owned(), Role::Ramdisk, ramdisk.clone());
    }
    for (name, elf) in plain {
        for packing in packings {
            let bytes = kernels::bzimage(&kernels::pack(&elf, packing));
            add(format!("{name}, {packing} in a bzImage"), Role::Kernel, bytes);
        }
        let gzip = kernels::pack(&elf, Compression::Gzip);
        add(format!("{name}, gzip"), Role::Kernel, gzip);
        // Uncompressed files three times: all damage to them reaches the code behind decompression.
        for _ in 0..3 {
            add(name.clone(), Role::Kernel, elf.clone());
        }
    }
    Ok(all)
}

fn below(prng: &mut Prng, bound: usize) -> usize {
    let bound = u64::try_from(bound.max(1)).expect("fits");
    usize::try_from(prng.next_u64() % bound).expect("below a usize")
}

/// A boundary value that a check may have missed.
fn limit(prng: &mut Prng, length: usize) -> u64 {
    let length = length as u64;
    let numbers = [
        0,
        1,
        4,
        0xfff,
        0x1000,
        length - length.min(1),
        length,
        length + 1,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 32,
        1 << 47,
        i64::MAX.cast_unsigned(),
        1 << 63,
        u64::MAX - 0xfff,
        u64::MAX,
    ];
    numbers[below(prng, numbers.len())]
}

/// Damages the file in one way and returns a description.
fn damage(prng: &mut Prng, file: &mut Vec<u8>, other: &[u8]) -> &'static str {
    /// The headers of all formats are within this range.
    const HEADERS: usize = 2048;
    if file.is_empty() {
        return "nothing";
    }
    let length = file.len();
    match below(prng, 9) {
        0 => {
            for _ in 0..=below(prng, 32) {
                let at = below(prng, length);
                file[at] ^= 1 << below(prng, 8);
            }
            "bits flipped"
        }
        1 => {
            for _ in 0..=below(prng, 4) {
                let at = below(prng, length.min(HEADERS));
                file[at] ^= 1 << below(prng, 8);
            }
            "bits of the headers flipped"
        }
        2 => {
            file.truncate(below(prng, length));
            "cut off"
        }
        3 | 4 => {
            for _ in 0..=below(prng, 3) {
                let width = [1, 2, 4, 8][below(prng, 4)];
                let slots = (length.min(HEADERS) / width).max(1);
                let at = below(prng, slots) * width;
                let value = limit(prng, length).to_le_bytes();
                let end = (at + width).min(length);
                file[at..end].copy_from_slice(&value[..end - at]);
            }
            "numbers of the headers at their limits"
        }
        5 => {
            let bytes = below(prng, other.len().min(HEADERS)).min(length);
            file[..bytes].copy_from_slice(&other[..bytes]);
            "another file's headers"
        }
        6 => {
            let (from, to) = (below(prng, length), below(prng, length));
            let bytes = below(prng, HEADERS).min(length - from.max(to));
            file.copy_within(from..from + bytes, to);
            "a part copied elsewhere"
        }
        7 => {
            let at = length.saturating_sub(1 + below(prng, 16));
            let value = limit(prng, length).to_le_bytes();
            let end = (at + 4).min(length);
            file[at..end].copy_from_slice(&value[..end - at]);
            "the size at the end wrong"
        }
        _ => {
            let at = below(prng, length);
            let bytes = below(prng, 512).min(length - at);
            for byte in &mut file[at..at + bytes] {
                *byte = prng.next_u64().to_le_bytes()[0];
            }
            "a part overwritten with noise"
        }
    }
}

/// A simulated host.
struct Host {
    host: SimHost,
    daemon: Daemon,
    before: Snapshot,
    vms: u64,
}

impl Host {
    fn boot(seed: u64) -> Result<Self, Failure> {
        let host = SimHost::boot(HostConfig { seed, ..HostConfig::default() });
        host.os().add_file("/images/kernel", sim::kernel_image());
        let mut daemon = Daemon::start(&host)?;
        daemon.run_until_quiet(Time(host.now().0 + PATIENCE_NS))?;
        let before = host.snapshot()?;
        Ok(Self { host, daemon, before, vms: 0 })
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        let client = self.daemon.request(request)?;
        let until = Time(self.host.now().0 + PATIENCE_NS);
        Ok(self.daemon.wait(client, until)?.ok_or("there was no answer")?)
    }

    /// Creates a VM from the image and destroys it. Returns how the create ended and its CPU time.
    fn try_out(
        &mut self,
        role: Role,
        image: Vec<u8>,
        kind: &str,
        memory_mib: u64,
    ) -> Result<(Result<(), String>, Duration), Failure> {
        self.host.os().add_file(PATH, image);
        let (kernel, ramdisk) = match role {
            Role::Kernel => (PATH, String::new()),
            Role::Ramdisk => ("/images/kernel", format!("ramdisk = '{PATH}'\n")),
        };
        let text = format!(
            "name = 'vm'\ntype = '{kind}'\nkernel = '{kernel}'\n{ramdisk}memory = {memory_mib}\n"
        );
        let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
        let config = Box::new(xlcfg::parse(source)?);
        self.vms += 1;
        let mut uuid = [0xd0; 16];
        uuid[..8].copy_from_slice(&self.vms.to_le_bytes());
        let request = Request::Create { config, fresh_uuid: Uuid(uuid), start: Start::Paused };
        let began = cpu_time();
        let made = self.ask(request)?;
        let took = cpu_time().saturating_sub(began);
        let outcome = match made {
            Reply::Created(_) => {
                let gone = self.ask(Request::Destroy { target: "vm".to_owned() })?;
                if !matches!(gone, Reply::Done { .. } | Reply::Gone { .. }) {
                    return Err(format!("the VM does not go: {gone:?}").into());
                }
                Ok(())
            }
            Reply::Failed(message) => Err(message),
            other => return Err(format!("create was answered with {other:?}").into()),
        };
        self.daemon.run_until_quiet(Time(self.host.now().0 + PATIENCE_NS))?;
        self.host.os().add_file(PATH, Vec::new());
        let left = self.host.snapshot()?.differences(&self.before);
        if !left.is_empty() {
            return Err(format!("left behind: {}", left.join("; ")).into());
        }
        Ok((outcome, took))
    }
}

fn run_case(
    originals: &[Original],
    (seed, case): (u64, u64),
    host: &mut Host,
) -> Result<(String, Result<(), String>, Duration), Failure> {
    let mut prng = Prng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ case);
    let want_large = case % LARGE_EVERY == LARGE_EVERY - 1;
    let chosen: Vec<&Original> =
        originals.iter().filter(|it| (it.bytes.len() > LARGE_BYTES) == want_large).collect();
    // There may be no large files.
    let chosen = if chosen.is_empty() { originals.iter().collect() } else { chosen };
    let original = chosen[below(&mut prng, chosen.len())];
    let other = &originals[below(&mut prng, originals.len())].bytes;
    let mut image = original.bytes.clone();
    let mut what = original.name.clone();
    for _ in 0..=below(&mut prng, 3) {
        what = what + ", " + damage(&mut prng, &mut image, other);
    }
    let kind = ["pv", "pvh"][below(&mut prng, 2)];
    let memory_mib = if want_large { 256 } else { [4, 8, 32][below(&mut prng, 3)] };
    let (outcome, took) = host
        .try_out(original.role, image, kind, memory_mib)
        .map_err(|error| format!("case {case} ({what}; {kind}): {error}"))?;
    let bound = BOUND.max(original.whole * 3);
    if took > bound {
        return Err(format!("case {case} ({what}; {kind}) took {took:?} of CPU time").into());
    }
    if let Err(message) = &outcome {
        let is_named = message.contains(PATH) || message.contains(": memory: ");
        if !is_named {
            return Err(
                format!("case {case} ({what}; {kind}) fails without a name: {message}").into()
            );
        }
    }
    Ok((what, outcome, took))
}

/// A message without its numbers.
fn class(message: &str) -> String {
    let words = message.rsplit(&format!("{PATH}: ")).next().unwrap_or(message);
    // Bytes of the file may follow.
    let words = words.split("starts with").next().unwrap_or(words);
    words.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(60).collect()
}

/// The current case, for the panic message.
static CASE: Mutex<u64> = Mutex::new(0);

fn main() -> Result<(), Failure> {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        eprintln!("that was case {}", CASE.lock().unwrap_or_else(PoisonError::into_inner));
    }));
    let options = options()?;
    let mut originals = originals(&options.files)?;
    let began = Instant::now();
    let mut host = Host::boot(options.seed)?;
    for original in &mut originals {
        let memory_mib = if original.bytes.len() > LARGE_BYTES { 256 } else { 32 };
        let (outcome, took) =
            host.try_out(original.role, original.bytes.clone(), "pvh", memory_mib)?;
        outcome.map_err(|message| format!("{}, whole: {message}", original.name))?;
        original.whole = took;
    }
    println!("{} files, whole: a VM of each was made", originals.len());
    if let Some(case) = options.only {
        let (what, outcome, took) = run_case(&originals, (options.seed, case), &mut host)?;
        println!("case {case}: {what}: {outcome:?} after {took:?}");
        return Ok(());
    }
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    let (mut done, mut made, mut slowest) = (0, 0, (Duration::ZERO, String::new()));
    for case in 0..options.count {
        if options.budget.is_some_and(|budget| began.elapsed() > budget) {
            break;
        }
        if case % PER_HOST == PER_HOST - 1 {
            host = Host::boot(options.seed)?;
        }
        *CASE.lock().unwrap_or_else(PoisonError::into_inner) = case;
        let (what, outcome, took) = run_case(&originals, (options.seed, case), &mut host)?;
        done += 1;
        match outcome {
            Ok(()) => made += 1,
            Err(message) => *classes.entry(class(&message)).or_default() += 1,
        }
        if took > slowest.0 {
            slowest = (took, format!("case {case}: {what}"));
        }
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (class, count) in classes {
        println!("{count:>6}  {class}");
    }
    println!(
        "{done} damaged images of seed {}: {made} still made a VM, {} were refused by name; \
         no crash, nothing left behind; the slowest took {:.3} s of CPU time ({}); {:.1} s in all",
        options.seed,
        done - made,
        slowest.0.as_secs_f64(),
        slowest.1,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
