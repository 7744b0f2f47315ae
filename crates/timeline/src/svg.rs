//! The picture.

use std::fmt::Write as _;

use crate::{Nanoseconds, Outcome, Span, Timeline, scaled};

const WIDTH: u64 = 1200;
const LEFT: u64 = 140;
const RIGHT: u64 = 20;
const TOP: u64 = 62;
const BOTTOM: u64 = 24;
/// Most rows that are labelled.
const NAMED_ROWS: u64 = 80;
/// Maximum height of all rows; more rows are drawn thinner.
const HEIGHT_MAX: u64 = 1400;

/// Colours that can be told apart, also with red-green colour blindness.
const COLOURS: [&str; 12] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#994455",
    "#004488", "#999933", "#44aa99", "#882255",
];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A step of the axis that gives four to ten marks: 1, 2 or 5 times a power of ten.
fn tick(range: u64) -> u64 {
    let mut step = 1;
    for factor in [2, 5, 10].iter().cycle() {
        if range / step <= 10 {
            break;
        }
        let decade = 10_u64.pow(step.ilog10());
        step = decade * factor;
    }
    step
}

/// Rows with their names. Spans of a track that overlap get a row each. With more rows than can be
/// labelled, tracks that do not overlap share rows.
fn rows(timeline: &Timeline) -> Vec<(&str, Vec<&Span>)> {
    let rows: Vec<_> = timeline.tracks().into_iter().flat_map(|it| rows_of(it.0, it.1)).collect();
    if rows.len() <= usize::try_from(NAMED_ROWS).unwrap_or(usize::MAX) {
        return rows;
    }
    let whole = timeline.tracks().into_iter().filter_map(|(_, spans)| {
        let first = spans.iter().map(|span| begin(span)).min()?;
        let last = spans.iter().map(|span| span.end_ns).max()?;
        Some((first, last, spans))
    });
    lanes(whole).into_iter().flat_map(|spans| rows_of("", spans)).collect()
}

/// When a span becomes visible.
fn begin(span: &Span) -> u64 {
    span.ready_ns.min(span.start_ns)
}

fn rows_of<'a>(track: &'a str, mut spans: Vec<&'a Span>) -> Vec<(&'a str, Vec<&'a Span>)> {
    spans.sort_by_key(|span| begin(span));
    let lanes = lanes(spans.into_iter().map(|span| (begin(span), span.end_ns, vec![span])));
    let named = lanes.into_iter().enumerate();
    named.map(|(index, spans)| (if index == 0 { track } else { "" }, spans)).collect()
}

/// Puts each item into the first lane that is free at its start.
fn lanes<'a>(all: impl Iterator<Item = (u64, u64, Vec<&'a Span>)>) -> Vec<Vec<&'a Span>> {
    let mut lanes: Vec<(u64, Vec<&Span>)> = Vec::new();
    for (first, last, spans) in all {
        match lanes.iter_mut().find(|(end, _)| *end <= first) {
            Some((end, lane)) => {
                *end = last;
                lane.extend(spans);
            }
            None => lanes.push((last, spans)),
        }
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

/// A picture: a row for each lane of each track, time from left to right; waiting is a thin grey line, failed
/// spans have a red edge. Pointing at a span shows its figures.
#[must_use]
pub fn svg(timeline: &Timeline) -> String {
    let rows = rows(timeline);
    let picture = Picture::of(timeline, rows.len());
    let mut out = String::new();
    picture.open(&timeline.title, &mut out);
    picture.legend(&mut out);
    picture.ticks(&mut out);
    for (row, (track, spans)) in (0..).zip(&rows) {
        let y = TOP + row * picture.row_height;
        picture.name(track, y, &mut out);
        for span in spans {
            picture.span(span, y, &mut out);
        }
    }
    out.push_str("</svg>\n");
    out
}

/// The scale of a picture.
struct Picture<'a> {
    first_ns: u64,
    range_ns: u64,
    kinds: Vec<&'a str>,
    is_named: bool,
    row_height: u64,
    height: u64,
}

impl<'a> Picture<'a> {
    fn of(timeline: &'a Timeline, rows: usize) -> Self {
        let (first_ns, last_ns) = timeline.range();
        let rows = u64::try_from(rows).unwrap_or(u64::MAX).max(1);
        let is_named = rows <= NAMED_ROWS;
        let row_height = if is_named { 16 } else { (HEIGHT_MAX / rows).clamp(1, 15) };
        Self {
            first_ns,
            range_ns: (last_ns - first_ns).max(1),
            kinds: timeline.kinds(),
            is_named,
            row_height,
            height: TOP + rows * row_height + BOTTOM,
        }
    }

    /// The x coordinate of a time.
    fn x(&self, moment_ns: u64) -> u64 {
        let since = moment_ns.saturating_sub(self.first_ns);
        LEFT + scaled(since, self.range_ns, WIDTH - LEFT - RIGHT)
    }

    fn open(&self, title: &str, out: &mut String) {
        let height = self.height;
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"18\" font-size=\"14\">{} ({})</text>",
            escaped(title),
            Nanoseconds(self.range_ns),
        );
    }

    fn legend(&self, out: &mut String) {
        let mut x = 10;
        for (index, kind) in self.kinds.iter().enumerate() {
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"27\" width=\"10\" height=\"10\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"36\">{}</text>",
                COLOURS[index % COLOURS.len()],
                x + 14,
                escaped(kind),
            );
            x += 14 + 7 * u64::try_from(kind.chars().count()).unwrap_or(0) + 12;
        }
    }

    fn ticks(&self, out: &mut String) {
        let step = tick(self.range_ns);
        for mark in (0..).map(|n| n * step).take_while(|mark| *mark <= self.range_ns) {
            let x = self.x(self.first_ns + mark);
            let _ = writeln!(
                out,
                "<line x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{}\" stroke=\"#dddddd\"/>\
                 <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
                TOP - 4,
                self.height - BOTTOM,
                TOP - 8,
                Nanoseconds(mark),
            );
        }
    }

    /// The name of a track, if there is room for names.
    fn name(&self, track: &str, y: u64, out: &mut String) {
        if !self.is_named || track.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 6,
            y + self.row_height * 3 / 4,
            escaped(track),
        );
    }

    fn span(&self, span: &Span, y: u64, out: &mut String) {
        let bar = (self.row_height * 4 / 5).max(1);
        let (ready, start, end) =
            (self.x(span.ready_ns), self.x(span.start_ns), self.x(span.end_ns));
        if ready < start {
            let middle = y + bar / 2;
            let _ = writeln!(
                out,
                "<line x1=\"{ready}\" x2=\"{start}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#aaaaaa\"/>"
            );
        }
        let kind = self.kinds.iter().position(|kind| *kind == span.kind).unwrap_or(0);
        let edge = match span.outcome {
            Outcome::Ended => "",
            Outcome::Failed => " stroke=\"red\"",
            Outcome::Underway => " stroke=\"black\" stroke-dasharray=\"2\"",
        };
        let waited_for = span.waited_for.as_deref().unwrap_or("its turn");
        let waited = match span.waited_ns() {
            0 => String::new(),
            ns => format!(", after waiting {} for {waited_for}", Nanoseconds(ns)),
        };
        let _ = writeln!(
            out,
            "<rect x=\"{start}\" y=\"{y}\" width=\"{}\" height=\"{bar}\" fill=\"{}\"{edge}>\
             <title>{}: {}, {}{}</title></rect>",
            (end - start).max(1),
            COLOURS[kind % COLOURS.len()],
            escaped(&span.track),
            escaped(&span.name),
            Nanoseconds(span.took_ns()),
            escaped(&waited),
        );
    }
}
