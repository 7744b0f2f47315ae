//! A VM goes from host to host while something goes wrong at every point: `moves [--seed FIRST] [--seeds N] [--first K]
//! [--stride N] [--only WORDS] [--at K] [--walks N] [--seconds N]`. With `--at`, only the K-th point of each sweep, and
//! everything that happens. With `--walks`, so many random walks of several moves back and forth, and no sweep. With
//! `--seconds`, it stops after about so long, and begins with
//! another sweep for each seed.

use std::time::{Duration, Instant};

use sim::PacketFate;
use sim_pair::Side;
use sim_pair::moves::{self, Guest, Plan, Trouble, Way};

const SECOND: u64 = 1_000_000_000;

#[expect(clippy::disallowed_methods, reason = "how long the trials take is no part of them")]
fn real_now() -> Instant {
    Instant::now()
}

/// What goes wrong, by its name, at the k-th point.
type Sweep = (&'static str, fn(u64) -> Trouble);

const KILLS: [Sweep; 5] = [
    ("kill of the left daemon", |k| Trouble::Kill(Side::Left, k)),
    ("kill of the right daemon", |k| Trouble::Kill(Side::Right, k)),
    ("kill of both daemons", |k| Trouble::KillBoth(k, k)),
    ("crash of the left host", |k| Trouble::Crash(Side::Left, k)),
    ("crash of the right host", |k| Trouble::Crash(Side::Right, k)),
];

const PACKETS: [Sweep; 6] = [
    ("destroy", |k| Trouble::Destroy(k * 500)),
    ("lost packet", |k| Trouble::Packet(k, PacketFate::Lost)),
    ("short cut", |k| Trouble::Packet(k, PacketFate::CutFor(5 * SECOND))),
    ("cut", |k| Trouble::Packet(k, PacketFate::Cut)),
    ("reset", |k| Trouble::Packet(k, PacketFate::Reset)),
    ("torn packet", |k| Trouble::Packet(k, PacketFate::Torn)),
];

/// Prints what both hosts did, by time, and how it ended.
fn tell(plan: &Plan) {
    let (result, [left, right]) = moves::run_traced(plan);
    let mut lines: Vec<(String, String)> = left
        .into_iter()
        .map(|line| (line, "left ".to_owned()))
        .chain(right.into_iter().map(|line| (line, "right".to_owned())))
        .collect();
    lines.sort_by(|a, b| a.0.split_whitespace().next().cmp(&b.0.split_whitespace().next()));
    for (line, side) in lines {
        println!("{side} {line}");
    }
    println!("{plan:?}: {result:?}");
}

/// Random walks of VMs; how many went wrong.
fn walk(seeds: std::ops::Range<u64>, until: Option<Instant>) -> usize {
    let (mut walks, mut moves, mut broken) = (0, 0, 0);
    for seed in seeds {
        if until.is_some_and(|until| real_now() >= until) {
            break;
        }
        // PVH guests, which can do all, twice as often.
        let guest = [Guest::Pv, Guest::Pvh, Guest::Hvm, Guest::Pvh][(seed % 4) as usize];
        match std::panic::catch_unwind(|| moves::walk(guest, seed)) {
            Ok(Ok(places)) => moves += places.len(),
            Ok(Err(why)) => {
                broken += 1;
                println!("WRONG: walk of a {} guest with seed {seed}: {why}", guest.as_str());
            }
            Err(_) => {
                broken += 1;
                println!(
                    "WRONG: walk of a {} guest with seed {seed}: a host panicked",
                    guest.as_str()
                );
            }
        }
        walks += 1;
    }
    println!("{walks} walks, {moves} moves, {broken} went wrong");
    broken
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut seed, mut seeds, mut first, mut stride, mut at) = (1_u64, 1_u64, 1, 1, None);
    let (mut only, mut walks, mut until) = (Vec::new(), 0, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match argument.as_str() {
            "--seed" => seed = value.parse()?,
            "--seeds" => seeds = value.parse()?,
            "--walks" => walks = value.parse()?,
            "--seconds" => until = Some(real_now() + Duration::from_secs(value.parse()?)),
            "--stride" => stride = value.parse::<u64>()?.max(1),
            "--first" => first = value.parse()?,
            "--at" => at = Some(value.parse::<u64>()?),
            "--only" => only.push(value),
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let is_wanted = |text: &str| only.iter().all(|it| text.contains(it.as_str()));
    if walks > 0 {
        return match walk(seed..seed + walks, until) {
            0 => Ok(()),
            broken => Err(format!("{broken} walks went wrong").into()),
        };
    }
    let mut broken = 0;
    println!(
        "{:<7} {:<5} {:<26} {:>5} {:>6} {:>6} {:>6} {:>5}",
        "way", "guest", "trouble", "seed", "runs", "left", "right", "lost"
    );
    let all = Way::ALL.into_iter().flat_map(|way| Guest::ALL.map(|guest| (way, guest)));
    let mut sweeps = Vec::new();
    for (way, guest) in all.filter(|(way, guest)| way.takes(*guest)) {
        let packets: &[Sweep] = if way == Way::File { &[] } else { &PACKETS };
        let name = |what: &str| format!("{} {} {what}", way.as_str(), guest.as_str());
        let wanted = KILLS.iter().chain(packets).filter(|(what, _)| is_wanted(&name(what)));
        sweeps.extend(wanted.map(|(what, trouble)| (way, guest, *what, *trouble)));
    }
    if until.is_some() && !sweeps.is_empty() {
        // Each seed comes to others in its time.
        let begin = usize::try_from(seed)? % sweeps.len();
        sweeps.rotate_left(begin);
    }
    for (way, guest, name, trouble) in sweeps {
        for seed in seed..seed + seeds {
            if until.is_some_and(|until| real_now() >= until) {
                println!("the rest is left out: the time is over");
                return if broken == 0 { Ok(()) } else { Err(went_wrong(broken)) };
            }
            let plan = Plan { way, guest, trouble: Trouble::Nothing, seed };
            if let Some(k) = at {
                tell(&Plan { trouble: trouble(k), ..plan });
                continue;
            }
            let it = moves::sweep(plan, trouble, first, stride);
            println!(
                "{:<7} {:<5} {name:<26} {seed:>5} {:>6} {:>6} {:>6} {:>5}",
                way.as_str(),
                guest.as_str(),
                it.runs,
                it.on_left,
                it.on_right,
                it.nowhere
            );
            broken += it.wrong.len();
            for why in &it.wrong {
                println!("WRONG: {why}");
            }
        }
    }
    if broken == 0 { Ok(()) } else { Err(went_wrong(broken)) }
}

fn went_wrong(runs: usize) -> Box<dyn std::error::Error> {
    format!("{runs} runs went wrong").into()
}
