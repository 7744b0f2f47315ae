//! The trace of a run, as lines: identical for the same seed.
//!
//! Details only go into the digest, so that a run of a thousand VMs can be compared without keeping
//! every hypercall in memory.

use core::fmt::{self, Write};

use crate::agenda::Time;
use crate::bytes::Digest;

/// The log of a run.
#[derive(Debug, Default)]
pub struct Trace {
    lines: Vec<String>,
    digest: Digest,
    scratch: String,
    /// Keep details as lines too.
    detailed: bool,
    /// Least number of lines kept, if limited.
    kept: Option<usize>,
}

impl Trace {
    /// Keeps details as lines from now on.
    pub fn keep_details(&mut self) {
        self.detailed = true;
    }

    /// Keeps only about the last `lines` from now on.
    pub fn keep_last(&mut self, lines: usize) {
        self.kept = Some(lines);
    }

    /// The lines so far: time and event.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// A digest that differs if two runs differ in anything, details included.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Adds a line.
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

    /// Adds a detail.
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
    fn a_detail_adds_no_line_but_changes_the_digest() {
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
