//! What happened, as lines: bit-identical for the same seed.
//!
//! Small events only go into the digest, so that a run of a thousand VMs can be compared without
//! keeping every hypercall in memory.

use core::fmt::{self, Write};

use crate::agenda::Time;
use crate::bytes::Digest;

/// The log of a run.
#[derive(Debug, Default)]
pub struct Trace {
    lines: Vec<String>,
    digest: Digest,
    scratch: String,
    /// Keep small events as lines too.
    detailed: bool,
    /// How many lines are kept at least, if not all.
    kept: Option<usize>,
}

impl Trace {
    /// Keeps every small event as a line from now on.
    pub fn keep_details(&mut self) {
        self.detailed = true;
    }

    /// Keeps only about the last `lines` from now on.
    pub fn keep_last(&mut self, lines: usize) {
        self.kept = Some(lines);
    }

    /// The lines so far: time and what happened.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// A number that differs as soon as two runs differ in anything, small events included.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Notes something worth reading.
    pub(crate) fn note(&mut self, when: Time, what: fmt::Arguments<'_>) {
        let line = format!("{when} {what}");
        self.digest.bytes(line.as_bytes());
        self.lines.push(line);
        if let Some(kept) = self.kept
            && self.lines.len() > 2 * kept
        {
            self.lines.drain(..kept);
        }
    }

    /// Notes something small.
    pub(crate) fn detail(&mut self, when: Time, what: fmt::Arguments<'_>) {
        if self.detailed {
            return self.note(when, what);
        }
        self.scratch.clear();
        // Writing to a String cannot fail.
        let _ = self.scratch.write_fmt(what);
        self.digest.word(when.0);
        self.digest.bytes(self.scratch.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_event_leaves_no_line_but_changes_the_digest() {
        let run = |small: &str| {
            let mut trace = Trace::default();
            trace.note(Time(0), format_args!("start"));
            trace.detail(Time(1), format_args!("{small}"));
            (trace.lines().len(), trace.digest())
        };
        assert_eq!(run("x"), run("x"));
        assert_eq!(run("x").0, 1);
        assert_ne!(run("x").1, run("y").1);
    }
}
