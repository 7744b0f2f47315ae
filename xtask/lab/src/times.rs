//! What took how long on this machine, for estimates. Kept beside what cargo builds, so that it goes with it.

use std::path::PathBuf;
use std::time::Duration;

use crate::target_directory;

/// A file for each thing: several processes remember at a time.
fn file(what: &str) -> Option<PathBuf> {
    let name: String = what.chars().map(|it| if it.is_alphanumeric() { it } else { '-' }).collect();
    Some(target_directory().ok()?.join("xtask-times").join(name))
}

/// What it took here the last time, in seconds.
#[must_use]
pub fn earlier(what: &str) -> Option<f64> {
    let seconds: f64 = std::fs::read_to_string(file(what)?).ok()?.trim().parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Keeps what it took. An estimate is worth no error.
pub fn remember(what: &str, seconds: f64) {
    let Some(path) = file(what) else { return };
    if path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok()) {
        let _ = std::fs::write(path, format!("{seconds:.3}\n"));
    }
}

/// A time as people say it: `45 s`, `3 min`.
#[must_use]
pub fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

/// What something will take, in parentheses: as here before, or as `typical` says, or nothing.
#[must_use]
pub fn expected(what: &str, typical: &str) -> String {
    match earlier(what) {
        Some(seconds) => {
            format!("(the last time here: {})", spoken(Duration::from_secs_f64(seconds)))
        }
        None => format!("({typical})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spoken_in_seconds_and_then_in_minutes() {
        let spoken = |seconds| spoken(Duration::from_secs(seconds));
        assert_eq!(
            [0, 89, 90, 149, 150, 3600].map(spoken),
            ["0 s", "89 s", "2 min", "2 min", "3 min", "60 min"]
        );
    }

    #[test]
    fn what_was_remembered_is_known_and_other_things_are_not() {
        let what = format!("test of {}", std::process::id());
        assert_eq!(earlier(&what), None);
        remember(&what, 12.5);
        assert_eq!(earlier(&what), Some(12.5));
        assert_eq!(expected(&what, "a minute"), "(the last time here: 12 s)");
        std::fs::remove_file(file(&what).unwrap()).unwrap();
        assert_eq!(expected(&what, "a minute"), "(a minute)");
    }
}
