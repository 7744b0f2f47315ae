//! Export as a trace for Perfetto and Chrome.

use serde_json::{Value, json};

use crate::{Outcome, Timeline};

/// Nanoseconds as the format's microseconds.
fn micros(ns: u64) -> Value {
    let text = format!("{}.{:03}", ns / 1000, ns % 1000);
    text.parse::<serde_json::Number>().map_or(Value::Null, Value::Number)
}

/// The JSON that Perfetto and `chrome://tracing` read: "Trace Event Format", complete events (`ph`
/// = `X`, microseconds), with a thread for each lane of a track, since spans of one thread must not
/// overlap.
#[must_use]
pub fn chrome(timeline: &Timeline) -> String {
    let (first, _) = timeline.range();
    let mut events = vec![json!({
        "ph": "M", "pid": 1, "name": "process_name", "args": {"name": timeline.title},
    })];
    let mut thread = 0;
    for (track, spans) in timeline.tracks() {
        // Where the last span of each lane of this track ended.
        let mut lanes: Vec<u64> = Vec::new();
        let base = thread;
        for span in spans {
            let lane = match lanes.iter().position(|end| *end <= span.start_ns) {
                Some(lane) => lane,
                None => {
                    lanes.push(0);
                    events.push(json!({
                        "ph": "M", "pid": 1, "tid": base + lanes.len(), "name": "thread_name",
                        "args": {"name": track},
                    }));
                    lanes.len() - 1
                }
            };
            lanes[lane] = span.end_ns.max(span.start_ns);
            let outcome = match span.outcome {
                Outcome::Ended => "ended",
                Outcome::Failed => "failed",
                Outcome::Underway => "underway",
            };
            events.push(json!({
                "ph": "X", "pid": 1, "tid": base + lane + 1,
                "name": span.name, "cat": span.kind,
                "ts": micros(span.start_ns.saturating_sub(first)),
                "dur": micros(span.took_ns()),
                "args": {
                    "waited_us": micros(span.waited_ns()),
                    "waited_for": span.waited_for,
                    "outcome": outcome,
                },
            }));
        }
        thread += lanes.len();
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}
