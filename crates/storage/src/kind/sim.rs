//! Files as in an SR of kind `file`, with simulated delays, failures and hangs: for benchmarks and
//! trials.
//!
//! The outcome of a step is drawn from the seed, the VDI, the step and the number of earlier calls
//! in this daemon. So it does not depend on concurrent work, and the next daemon gets the same
//! outcomes.

use super::file::{File, Format};
use super::{Driver, Place, Result, Source};
use crate::{Access, BlockDevice, Repository, Space, StorageError, Vdi};

/// Timeout of a call that hangs: the same as for a file system whose server is lost.
const HANG_SECONDS: u64 = 30;
/// Longest delay; no step of a plan should take longer.
const DELAY_NS_MAX: u64 = 600 * SECOND_NS;
const SECOND_NS: u64 = 1_000_000_000;
/// Steps, which `fail` and `hang` may name. Each is also a setting: its duration.
const STEPS: [&str; 10] = [
    "attach",
    "activate",
    "deactivate",
    "detach",
    "scan",
    "create",
    "destroy",
    "resize",
    "snapshot",
    "clone",
];
pub(super) struct Sim;

static FILES: File = File(Format::Raw);

/// Names of the settings.
pub(super) fn settings() -> Vec<&'static str> {
    ["path"].into_iter().chain(STEPS).chain(["tail", "fail", "hang", "seed"]).collect()
}

/// Delays in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Delay {
    Always(u64),
    /// Uniformly distributed between the two.
    Uniform(u64, u64),
    /// Exponential, with this mean.
    Exponential(u64),
}

/// Numbers from 0 to 1, determined by a name and a seed. Algorithms: FNV-1a, SplitMix64.
struct Draws(u64);

impl Draws {
    fn new(seed: u64, name: &str) -> Self {
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a float has room for")]
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Delay {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None => Self::Always(time(text)?),
            Some(("exp", mean)) => Self::Exponential(time(mean)?),
            Some(("uniform", range)) => {
                let (least, most) = range.split_once('-')?;
                let (least, most) = (time(least)?, time(most)?);
                if least > most {
                    return None;
                }
                Self::Uniform(least, most)
            }
            Some(_) => return None,
        })
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "minutes in nanoseconds, never negative"
    )]
    fn draw(self, draws: &mut Draws) -> u64 {
        let part = draws.next();
        let drawn = match self {
            Self::Always(time) => return time,
            Self::Uniform(least, most) => least as f64 + (most - least) as f64 * part,
            Self::Exponential(mean) => -(mean as f64) * (1.0 - part).ln(),
        };
        (drawn as u64).min(DELAY_NS_MAX)
    }
}

/// `20ms`, `1.5s`, `300us`, in nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
fn time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let unit_ns = match &text[digits.len()..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let ns = digits.parse::<f64>().ok().filter(|_| plain)? * unit_ns;
    (ns <= 600.0 * 1e9).then_some(ns as u64)
}

/// `1%`, `0.1%`, as a part of 1.
fn part(text: &str) -> Option<f64> {
    let digits = text.strip_suffix('%')?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let percent = digits.parse::<f64>().ok().filter(|_| plain)?;
    (percent <= 100.0).then_some(percent / 100.0)
}

/// `attach:1%,detach:2%`
fn parts(text: &str) -> Option<Vec<(&str, f64)>> {
    let one = |it: &'_ str| -> Option<_> {
        let (step, percent) = it.split_once(':')?;
        let step = STEPS.into_iter().find(|known| *known == step)?;
        Some((step, part(percent)?))
    };
    text.split(',').map(one).collect()
}

/// `1%:5s`
fn tail(text: &str) -> Option<(f64, u64)> {
    let (percent, long) = text.split_once(':')?;
    Some((part(percent)?, time(long)?))
}

/// A setting read by `parse`, if it is there.
fn setting<'a, T>(
    sr: &'a Repository,
    key: &str,
    expected: &str,
    parse: impl FnOnce(&'a str) -> Option<T>,
) -> Result<Option<T>> {
    let Some(text) = sr.config.get(key) else { return Ok(None) };
    parse(text).map(Some).ok_or_else(|| {
        StorageError::refused(format!("{}: {key}={text:?}: expected {expected}", sr.name))
    })
}

/// Outcome of one step.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Goes { delay_ns: u64 },
    Fails { delay_ns: u64 },
    Hangs,
}

fn fate(sr: &Repository, step: &str, name: &str) -> Result<Fate> {
    let seed = setting(sr, "seed", "a number", |it| it.parse().ok())?.unwrap_or(0);
    let steps = "steps and how many of a hundred, such as attach:1%,detach:0.5%";
    let delays = "a time such as 20ms, exp:20ms or uniform:5ms-1s, up to 600s";
    let delay = setting(sr, step, delays, Delay::parse)?;
    let tail = setting(sr, "tail", "how many of a hundred take how long, such as 1%:5s", tail)?;
    // Each is drawn even if unused, so that changing one setting does not affect the others.
    let mut draws = Draws::new(seed, name);
    let [hang, fail, long] = [(); 3].map(|()| draws.next());
    let meets = |key, drawn: f64| -> Result<bool> {
        let chances = setting(sr, key, steps, parts)?.unwrap_or_default();
        Ok(chances.into_iter().any(|(it, chance)| it == step && drawn < chance))
    };
    if meets("hang", hang)? {
        return Ok(Fate::Hangs);
    }
    let delay_ns = match (delay, tail) {
        (None, _) => 0,
        (Some(_), Some((chance, long_ns))) if long < chance => long_ns,
        (Some(delay), _) => delay.draw(&mut draws),
    };
    Ok(if meets("fail", fail)? { Fate::Fails { delay_ns } } else { Fate::Goes { delay_ns } })
}

/// Applies the delay, failure or hang of a step before its work.
fn meet(place: &mut Place<'_>, step: &str, vdi: &str) -> Result<()> {
    let object = if vdi.is_empty() { place.sr.name.clone() } else { place.name(vdi) };
    let times = place.system.count(&format!("sim/{object}/{step}"));
    match fate(place.sr, step, &format!("{vdi}/{step}/{times}"))? {
        Fate::Goes { delay_ns } => {
            place.system.sleep(delay_ns);
            Ok(())
        }
        Fate::Fails { delay_ns } => {
            place.system.sleep(delay_ns);
            let words = "was made to fail by the SR's setting fail";
            Err(StorageError::refused(format!("{object}: {step} {words}")))
        }
        Fate::Hangs => {
            place.system.sleep(HANG_SECONDS * SECOND_NS);
            Err(StorageError::refused(format!(
                "{object}: no answer within {HANG_SECONDS} s ({step})"
            )))
        }
    }
}

/// Checks that all settings are valid.
fn check(sr: &Repository) -> Result<()> {
    STEPS.into_iter().try_for_each(|step| fate(sr, step, "").map(drop))
}

impl Driver for Sim {
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        check(place.sr)?;
        Driver::create(&FILES, place)
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        check(place.sr)?;
        Driver::connect(&FILES, place)
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        Driver::disconnect(&FILES, place)
    }

    fn destroy(&self, place: &mut Place<'_>) -> Result<()> {
        Driver::destroy(&FILES, place)
    }

    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        FILES.space(place)
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        meet(place, "scan", "")?;
        FILES.scan(place)
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        meet(place, "create", vdi)?;
        FILES.create_vdi(place, vdi, bytes)
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        meet(place, "destroy", vdi)?;
        FILES.destroy_vdi(place, vdi)
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        meet(place, "resize", &vdi.name)?;
        FILES.grow_vdi(place, vdi, bytes, device)
    }

    fn check_snapshot(&self, place: &mut Place<'_>, from: &Vdi, source: Source) -> Result<()> {
        FILES.check_snapshot(place, from, source)
    }

    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        meet(place, "snapshot", &from.name)?;
        FILES.snapshot_vdi(place, from, to, source)
    }

    fn seal_vdi(&self, place: &mut Place<'_>, vdi: &Vdi) -> Result<()> {
        FILES.seal_vdi(place, vdi)
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()> {
        meet(place, "clone", &from.name)?;
        FILES.clone_vdi(place, from, to, source)
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        meet(place, "attach", vdi)?;
        FILES.attach(place, vdi, access)
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice> {
        meet(place, "activate", vdi)?;
        FILES.activate(place, vdi, access)
    }

    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        meet(place, "deactivate", vdi)?;
        FILES.deactivate(place, vdi, device)
    }

    fn detach(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        meet(place, "detach", vdi)?;
        Driver::detach(&FILES, place, vdi)
    }

    fn file(&self, place: &mut Place<'_>, vdi: &str) -> Result<Option<String>> {
        Driver::file(&FILES, place, vdi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn sr(settings: &[(&str, &str)]) -> Repository {
        let config = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Repository { name: "s".to_owned(), kind: Kind::Sim, config: config.collect() }
    }

    fn delays(settings: &[(&str, &str)]) -> Vec<u64> {
        let sr = sr(settings);
        let delay = |n: u32| match fate(&sr, "attach", &n.to_string()).unwrap() {
            Fate::Goes { delay_ns } | Fate::Fails { delay_ns } => delay_ns,
            Fate::Hangs => unreachable!("not asked for"),
        };
        (0..10_000).map(delay).collect()
    }

    #[test]
    fn delays_have_the_named_distribution() {
        let mean = |all: &[u64]| all.iter().sum::<u64>() / all.len() as u64 / 10_000;
        let exponential = delays(&[("attach", "exp:20ms")]);
        assert!((1900..2100).contains(&mean(&exponential)), "{}", mean(&exponential));
        let below_mean = exponential.iter().filter(|it| **it < 20_000_000).count();
        assert!((6100..6500).contains(&below_mean), "{below_mean}: 1 - 1/e of them");
        let uniform = delays(&[("attach", "uniform:10ms-30ms")]);
        assert!(uniform.iter().all(|it| (10_000_000..=30_000_000).contains(it)));
        assert!((1900..2100).contains(&mean(&uniform)));
        assert_eq!(delays(&[("attach", "1.5s")])[..2], [1_500_000_000; 2]);
        assert_eq!(delays(&[("detach", "1s")])[..2], [0; 2]);
        let tail = delays(&[("attach", "1ms"), ("tail", "1%:5s")]);
        let long = tail.iter().filter(|it| **it == 5 * SECOND_NS).count();
        assert!((70..130).contains(&long), "{long}");
    }

    #[test]
    fn outcomes_depend_on_the_seed_alone() {
        let of = |seed| delays(&[("attach", "exp:20ms"), ("seed", seed)]);
        assert_eq!(of("7"), of("7"));
        assert_ne!(of("7"), of("8"));
    }

    #[test]
    fn the_requested_share_of_the_named_steps_fails_and_hangs() {
        let sr = sr(&[("fail", "attach:10%,detach:100%"), ("hang", "attach:1%")]);
        let all: Vec<Fate> =
            (0..10_000).map(|n| fate(&sr, "attach", &n.to_string()).unwrap()).collect();
        let fail = all.iter().filter(|it| matches!(it, Fate::Fails { .. })).count();
        let hang = all.iter().filter(|it| **it == Fate::Hangs).count();
        assert!((900..1100).contains(&fail) && (60..140).contains(&hang), "{fail} {hang}");
        assert_eq!(fate(&sr, "activate", "x"), Ok(Fate::Goes { delay_ns: 0 }));
        assert_eq!(fate(&sr, "detach", "x"), Ok(Fate::Fails { delay_ns: 0 }));
    }

    #[test]
    fn an_invalid_setting_is_named() {
        for (key, value) in [
            ("attach", "20"),
            ("attach", "exp"),
            ("attach", "uniform:2s-1s"),
            ("attach", "601s"),
            ("attach", "-1s"),
            ("detach", "normal:1s"),
            ("tail", "1%"),
            ("tail", "101%:1s"),
            ("fail", "boot:1%"),
            ("hang", "attach"),
            ("seed", "x"),
        ] {
            let error = check(&sr(&[(key, value)])).unwrap_err().to_string();
            assert!(error.starts_with(&format!("s: {key}={value:?}: expected ")), "{error}");
        }
        assert!(STEPS.iter().all(|it| settings().contains(it)));
    }
}
