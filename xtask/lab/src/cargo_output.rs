//! Reads what cargo says while it builds: how far it is, and what somebody has to read.

use std::time::Duration;

use crate::times::spoken;

/// A piece of cargo's standard error, up to an end of line or a carriage return.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Said<'a> {
    /// So many crates of so many are built.
    Built { done: u32, of: u32 },
    /// What is downloaded, as cargo says it.
    Downloading(&'a str),
    /// What it does now. Nobody has to read it.
    Status,
    /// A warning, an error, or a wait for another cargo.
    Other(&'a str),
}

/// Words with which cargo says what it does.
const STATUS: [&str; 16] = [
    "Adding",
    "Building",
    "Checking",
    "Compiling",
    "Dirty",
    "Doc-tests",
    "Documenting",
    "Downloaded",
    "Downloading",
    "Executable",
    "Finished",
    "Fresh",
    "Installing",
    "Locking",
    "Running",
    "Updating",
];

pub(crate) fn read(piece: &str) -> Said<'_> {
    let text = piece.trim();
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    if first == "Building"
        && let Some((done, of)) = progress(rest)
    {
        return Said::Built { done, of };
    }
    if first == "Downloading" && rest.contains("remaining bytes") {
        return Said::Downloading(rest);
    }
    // They are moved to the right; what a compiler says begins at the left.
    if text.is_empty() || (piece.starts_with(' ') && STATUS.contains(&first)) {
        Said::Status
    } else {
        Said::Other(piece)
    }
}

/// `[====>    ] 12/345: xen, toolstack`
fn progress(text: &str) -> Option<(u32, u32)> {
    let numbers = text.split_once("] ")?.1.split(':').next()?;
    let (done, of) = numbers.trim().split_once('/')?;
    Some((done.parse().ok()?, of.parse().ok()?))
}

/// How far a build is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Those that were there before.
    fresh: Option<u32>,
    done: u32,
    of: u32,
}

/// After so many crates their own rate says more than the one of another time.
const ENOUGH: u32 = 10;

impl Progress {
    pub(crate) fn built(&mut self, done: u32, of: u32) {
        self.fresh.get_or_insert(done);
        (self.done, self.of) = (done, of);
    }

    /// Crates that this build has compiled.
    pub(crate) fn compiled(&self) -> u32 {
        self.done.saturating_sub(self.fresh.unwrap_or(self.done))
    }

    /// Seconds that a crate took, if there were enough.
    pub(crate) fn rate(&self, elapsed: Duration) -> Option<f64> {
        (self.compiled() >= ENOUGH).then(|| elapsed.as_secs_f64() / f64::from(self.compiled()))
    }

    /// One line about it; `earlier` are seconds that a crate took here before.
    pub(crate) fn line(&self, elapsed: Duration, earlier: Option<f64>) -> String {
        if self.fresh.is_none() {
            return format!("begun {} ago", spoken(elapsed));
        }
        let left = self.of.saturating_sub(self.done);
        let estimate = self.rate(elapsed).or(earlier).map(|rate| rate * f64::from(left));
        let left = estimate.map_or(String::new(), |seconds| {
            format!(", about {} left", spoken(Duration::from_secs_f64(seconds)))
        });
        format!("{} of {} crates after {}{left}", self.done, self.of, spoken(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_bar_says_how_far_it_is() {
        let bar = "    Building [=======>            ] 12/345: xen, toolstack(test)";
        assert_eq!(read(bar), Said::Built { done: 12, of: 345 });
        let bar = " Downloading 3 crates, remaining bytes: 1.2MiB";
        assert_eq!(read(bar), Said::Downloading("3 crates, remaining bytes: 1.2MiB"));
        for status in
            ["   Compiling xen v0.1.0", "    Finished `dev` profile", " Downloaded a v1", ""]
        {
            assert_eq!(read(status), Said::Status, "{status}");
        }
    }

    #[test]
    fn what_somebody_has_to_read_is_left() {
        for other in [
            "error[E0425]: cannot find value",
            "Compiling is no word of cargo's here",
            "    Blocking waiting for file lock on build directory",
            "   | ^^^ not found",
        ] {
            assert_eq!(read(other), Said::Other(other));
        }
    }

    #[test]
    fn an_estimate_follows_the_builds_own_rate_once_it_has_one() {
        let mut progress = Progress::default();
        let at = Duration::from_secs;
        assert_eq!(progress.line(at(5), Some(2.0)), "begun 5 s ago");
        progress.built(100, 200);
        assert_eq!(progress.line(at(5), None), "100 of 200 crates after 5 s");
        assert_eq!(
            progress.line(at(5), Some(2.0)),
            "100 of 200 crates after 5 s, about 3 min left"
        );
        progress.built(150, 200);
        assert_eq!(
            progress.line(at(50), Some(2.0)),
            "150 of 200 crates after 50 s, about 50 s left"
        );
        assert_eq!(progress.rate(at(50)), Some(1.0));
    }
}
