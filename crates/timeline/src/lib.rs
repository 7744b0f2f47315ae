//! Timelines of operations: spans on tracks, rendered for a terminal, as SVG, as a trace for
//! Perfetto and Chrome, and as traces of OpenTelemetry.
//!
//! All times are nanoseconds since an epoch chosen by the caller.

mod chrome;
pub mod otlp;
mod overview;
mod svg;
mod text;

pub use chrome::chrome;
pub use overview::overview;
pub use svg::svg;
pub use text::text;

use std::fmt;

/// A span's outcome.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Ended,
    Failed,
    /// Not finished; its end is the time of the snapshot.
    Underway,
}

/// One step of an operation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Span {
    /// What the step belongs to: a VM, a device. Spans of one track are drawn together.
    pub track: String,
    pub name: String,
    /// Spans of one kind share a colour.
    pub kind: String,
    /// When all its dependencies had ended.
    pub ready_ns: u64,
    /// When it began; the time in between was spent waiting, see [`waited_for`](Self::waited_for).
    pub start_ns: u64,
    pub end_ns: u64,
    /// What it waited for before its start.
    pub waited_for: Option<String>,
    pub outcome: Outcome,
}

impl Span {
    /// Time between being ready and the start.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.start_ns.saturating_sub(self.ready_ns)
    }

    /// Time between start and end.
    #[must_use]
    pub fn took_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// A set of spans.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Timeline {
    pub title: String,
    pub spans: Vec<Span>,
}

impl Timeline {
    /// The earliest and the latest time.
    fn range(&self) -> (u64, u64) {
        let first = self.spans.iter().map(|span| span.ready_ns.min(span.start_ns)).min();
        let last = self.spans.iter().map(|span| span.end_ns).max();
        let first = first.unwrap_or(0);
        (first, last.unwrap_or(0).max(first))
    }

    /// Tracks by start time, each with its spans by start time.
    fn tracks(&self) -> Vec<(&str, Vec<&Span>)> {
        let mut sorted: Vec<&Span> = self.spans.iter().collect();
        sorted.sort_by_key(|span| (span.start_ns, span.end_ns));
        let mut tracks: Vec<(&str, Vec<&Span>)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        for span in sorted {
            let place = *places.entry(span.track.as_str()).or_insert_with(|| {
                tracks.push((span.track.as_str(), Vec::new()));
                tracks.len() - 1
            });
            tracks[place].1.push(span);
        }
        tracks
    }

    /// Kinds in the order in which they first appear.
    fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for (_, spans) in self.tracks() {
            for span in spans {
                if !kinds.contains(&span.kind.as_str()) {
                    kinds.push(&span.kind);
                }
            }
        }
        kinds
    }
}

/// A duration for people: `850 us`, `12.3 ms`, `4.56 s`.
#[derive(Clone, Copy, Debug)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(ns) = *self;
        let text = match ns {
            0..1_000_000 => format!("{} us", ns / 1000),
            1_000_000..1_000_000_000 => {
                format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10)
            }
            _ => format!("{}.{:02} s", ns / 1_000_000_000, ns / 10_000_000 % 100),
        };
        f.pad(&text)
    }
}

/// `part` of `whole`, scaled to `units`.
fn scaled(part: u64, whole: u64, units: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from(u128::from(part) * u128::from(units) / whole).unwrap_or(units)
}
