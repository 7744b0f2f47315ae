//! `trace`: timing of the daemon's operations.

use std::fmt::Write as _;

use api::{Operations, Request, Trace, TraceRow};
use timeline::{Nanoseconds, Outcome, Span, Timeline};

use super::expect_reply;
use crate::columns::shown;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn trace(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("all") {
        return all(session, options);
    }
    let Some(target) = options.operands.first() else {
        if options.has("chrome") || options.has("svg") {
            return Err(Failure::usage("trace: name the operation to draw; 'xy trace' lists them"));
        }
        let list = expect_reply!(session.call(&Request::Operations)?, Operations);
        if options.has("json") {
            session.print_json(&list);
        } else {
            session.print(&operations(&list));
        }
        return Ok(());
    };
    let request = Request::Trace { target: target.clone() };
    let trace = expect_reply!(session.call(&request)?, Trace);
    if options.has("json") {
        session.print_json(&trace);
    } else if options.has("chrome") {
        session.print(&timeline::chrome(&timeline_of(&trace)));
        session.print("\n");
    } else if options.has("svg") {
        session.print(&timeline::svg(&timeline_of(&trace)));
    } else {
        session.print(&timeline::text(&timeline_of(&trace)));
        session.print(&outcome(&trace));
    }
    Ok(())
}

/// All kept operations, or those of a kind, together: a track for each VM.
fn all(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let list = expect_reply!(session.call(&Request::Operations)?, Operations);
    let wanted = options.operands.first();
    let mut rows = list.rows;
    let since = match options.value("since").map(|text| (text, text.parse::<u64>())) {
        Some((text, Err(_))) => {
            return Err(Failure::usage(format!("trace: --since {text:?} is not a number")));
        }
        Some((_, Ok(since))) => since,
        None => 0,
    };
    rows.retain(|row| row.id > since && wanted.is_none_or(|what| row.what == *what));
    if rows.is_empty() {
        let what = wanted.map_or(String::new(), |what| format!(" of the kind {what:?}"));
        return Err(Failure::failed(format!("no such operation{what} is kept; see 'xy trace'")));
    }
    let what = wanted.map_or(String::new(), |what| format!("{what}, "));
    let title = format!("{what}{} operations", rows.len());
    let mut timeline = Timeline { title, spans: Vec::new() };
    for row in &rows {
        let request = Request::Trace { target: row.id.to_string() };
        let trace = expect_reply!(session.call(&request)?, Trace);
        timeline.spans.extend(spans(&trace, &row.vm));
    }
    if options.has("chrome") {
        session.print(&timeline::chrome(&timeline));
        session.print("\n");
    } else if options.has("svg") {
        session.print(&timeline::svg(&timeline));
    } else if options.has("json") {
        return Err(Failure::usage("trace: --all cannot print JSON; use --chrome"));
    } else {
        session.print(&timeline::overview(&timeline));
    }
    Ok(())
}

fn spans(trace: &Trace, track: &str) -> Vec<Span> {
    let span = |step: &api::TraceStep| Span {
        track: track.to_owned(),
        name: step.name.clone(),
        kind: step.stage.clone(),
        ready_ns: step.ready_ns,
        start_ns: step.started_ns,
        end_ns: step.ended_ns.unwrap_or(trace.now_ns),
        waited_for: step.waited_for.clone(),
        outcome: match step.ended_ns {
            None => Outcome::Underway,
            Some(_) if step.failed => Outcome::Failed,
            Some(_) => Outcome::Ended,
        },
    };
    trace.steps.iter().map(span).collect()
}

fn timeline_of(trace: &Trace) -> Timeline {
    let it = &trace.operation;
    Timeline {
        title: format!("operation {}: {} {}", it.id, it.what, it.vm),
        spans: spans(trace, ""),
    }
}

/// Result or progress of an operation.
fn state(it: &TraceRow) -> String {
    match (&it.ended_ns, &it.failure) {
        (None, None) => "under way".to_owned(),
        (None, Some(why)) => format!("failing: {why}"),
        (Some(_), None) => "done".to_owned(),
        (Some(_), Some(why)) => format!("failed: {why}"),
    }
}

fn operations(list: &Operations) -> String {
    let mut out = format!(
        "{:>6} {:<8} {:<32} {:>10} {:>10} {:>9}  {}\n",
        "ID", "WHAT", "VM", "BEGAN", "TOOK", "STEPS", "STATE"
    );
    for it in &list.rows {
        let took = it.ended_ns.unwrap_or(list.now_ns).saturating_sub(it.started_ns);
        let _ = writeln!(
            out,
            "{:>6} {:<8} {:<32} {:>10} {:>10} {:>9}  {}",
            it.id,
            it.what,
            shown(&it.vm),
            // Age.
            format!("-{}", Nanoseconds(list.now_ns.saturating_sub(it.started_ns))),
            Nanoseconds(took),
            format!("{}/{}", it.done, it.steps),
            shown(&state(it)),
        );
    }
    out
}

/// The line below the drawing.
fn outcome(trace: &Trace) -> String {
    let (it, cost) = (&trace.operation, &trace.cost);
    format!(
        "{} of {} steps, {}\n{} hypercalls, {} store messages in {} round trips, {} transactions\n",
        it.done,
        it.steps,
        shown(&state(it)),
        cost.hypercalls.values().sum::<u64>(),
        cost.store_messages,
        cost.store_round_trips,
        cost.transactions,
    )
}
