//! Rendering for a terminal.

use std::fmt::Write as _;

use crate::{Nanoseconds, Outcome, Timeline, scaled};

/// Columns of the bar.
const BAR: u64 = 48;

/// A line for each span: when it began, how long it waited and took, and a bar (`.` waiting, `#`
/// running, `!` failed, `>` not finished).
#[must_use]
pub fn text(timeline: &Timeline) -> String {
    let (first, last) = timeline.range();
    let mut out = format!("{} ({})\n", timeline.title, Nanoseconds(last - first));
    let name = |track: &str, name: &str| {
        if track.is_empty() { name.to_owned() } else { format!("{track}: {name}") }
    };
    let tracks = timeline.tracks();
    let names =
        tracks.iter().flat_map(|(track, spans)| spans.iter().map(move |s| name(track, &s.name)));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0).clamp(4, 48);
    let _ = writeln!(out, "{:<width$} {:>9} {:>9} {:>9}", "step", "at", "waited", "took");
    for (track, spans) in &tracks {
        for span in spans {
            let at = |moment: u64| scaled(moment.saturating_sub(first), last - first, BAR);
            let (ready, start, end) = (at(span.ready_ns), at(span.start_ns), at(span.end_ns));
            let mark = match span.outcome {
                Outcome::Ended => '#',
                Outcome::Failed => '!',
                Outcome::Underway => '>',
            };
            // Very short spans stay visible.
            let end = end.max(start + 1).min(BAR);
            let start = start.min(end - 1);
            let bar: String = (0..BAR)
                .map(|column| match column {
                    _ if column >= start && column < end => mark,
                    _ if column >= ready && column < start => '.',
                    _ => ' ',
                })
                .collect();
            let _ = write!(
                out,
                "{:<width$} {:>9} {:>9} {:>9} |{bar}|",
                name(track, &span.name),
                Nanoseconds(span.ready_ns.saturating_sub(first)),
                Nanoseconds(span.waited_ns()),
                Nanoseconds(span.took_ns()),
            );
            if let Some(waited_for) = &span.waited_for {
                let _ = write!(out, " {waited_for}");
            }
            out.push('\n');
        }
    }
    out
}
