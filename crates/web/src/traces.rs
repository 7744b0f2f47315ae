//! Operations that have ended, as traces for a collector of OpenTelemetry.
//!
//! A task follows the mirror and asks the daemon for the steps of each; a thread sends what has been collected. What is too
//! much for either is dropped and counted: nobody waits for a collector.

mod sender;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::{Object, OperationObject, Reply, Request, Role, Trace, TraceStep};
use timeline::otlp::{Operation, Resource};
use timeline::{Outcome, Span};
use tokio::time::sleep;

use crate::mirror::Class;
use crate::shared::{Shared, lock, unix_ms};
use sender::Sender;

/// Operations that wait to be sent, and their steps.
const OPERATIONS_MAX: usize = 1024;
const SPANS_MAX: usize = 40_000;
/// Of a request to the collector.
const BATCH_SPANS_MAX: usize = 4096;
/// For how long a request waits for more operations.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Objects that are read from the mirror at once.
const PAGE: usize = 256;
/// Between questions to the daemon: it has more to do.
const QUESTION_EVERY: Duration = Duration::from_millis(2);
/// Operations of which it is known that they were sent; the daemon remembers fewer.
const KNOWN_MAX: usize = 4096;

const NS_PER_MS: u64 = 1_000_000;

/// Where traces go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Collector {
    pub(crate) url: String,
    /// Signs its certificate, in PEM; the host's own otherwise.
    pub(crate) ca: Option<std::path::PathBuf>,
}

impl Collector {
    /// The place for traces at this address, which may be that of all signals.
    pub(crate) fn at(url: &str) -> Result<Self> {
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = host.filter(|it| !it.is_empty() && !it.starts_with('/'));
        let host = host.with_context(|| format!("{url:?} is no URL of http or https"))?;
        let url = match host.trim_end_matches('/').contains('/') {
            true => url.to_owned(),
            false => format!("{}/v1/traces", url.trim_end_matches('/')),
        };
        Ok(Self { url, ca: None })
    }
}

#[derive(Debug, Default)]
struct Waiting {
    operations: VecDeque<Operation>,
    spans: usize,
}

/// What waits to be sent, and what became of all others.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    waiting: Mutex<Waiting>,
    more: Condvar,
    sent: AtomicU64,
    refused: AtomicU64,
    overflowed: AtomicU64,
    missed: AtomicU64,
}

impl Traces {
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.waiting).operations.len()
    }

    /// How many had which outcome.
    pub(crate) fn outcomes(&self) -> [(&'static str, u64); 4] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("sent", of(&self.sent)),
            ("refused", of(&self.refused)),
            ("overflowed", of(&self.overflowed)),
            ("missed", of(&self.missed)),
        ]
    }

    /// The earliest make room.
    fn put(&self, operation: Operation) {
        let mut waiting = lock(&self.waiting);
        waiting.spans += operation.spans.len();
        waiting.operations.push_back(operation);
        while waiting.operations.len() > OPERATIONS_MAX
            || (waiting.spans > SPANS_MAX && waiting.operations.len() > 1)
        {
            let earliest = waiting.operations.pop_front();
            waiting.spans -= earliest.map_or(0, |it| it.spans.len());
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        self.more.notify_one();
    }

    /// Waits for some.
    fn take(&self) -> Vec<Operation> {
        let waiting = lock(&self.waiting);
        let is_empty = |it: &mut Waiting| it.operations.is_empty();
        drop(self.more.wait_while(waiting, is_empty).unwrap_or_else(PoisonError::into_inner));
        thread::sleep(BATCH_WAIT);
        let mut waiting = lock(&self.waiting);
        let (mut batch, mut spans) = (Vec::new(), 0);
        while let Some(next) = waiting.operations.front().map(|it| it.spans.len())
            && (batch.is_empty() || spans + next < BATCH_SPANS_MAX)
        {
            spans += next + 1;
            waiting.spans -= next;
            batch.extend(waiting.operations.pop_front());
        }
        batch
    }
}

/// Sends traces for as long as this process lives.
pub(crate) fn begin(shared: &Arc<Shared>, collector: Option<&Collector>) -> Result<()> {
    let Some(collector) = collector else { return Ok(()) };
    let sender = Sender::new(collector)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let resource = Resource { host, release: env!("CARGO_PKG_VERSION").to_owned() };
    let for_thread = Arc::clone(shared);
    thread::Builder::new().name("traces".to_owned()).spawn(move || {
        let traces = &for_thread.traces;
        loop {
            let batch = traces.take();
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            let is_sent = sender.send(&timeline::otlp::otlp(&resource, &batch));
            let counter = if is_sent { &traces.sent } else { &traces.refused };
            counter.fetch_add(count, Ordering::Relaxed);
        }
    })?;
    let shared = Arc::clone(shared);
    tokio::spawn(async move { follow(&shared).await });
    Ok(())
}

/// Collects operations that end from now on.
async fn follow(shared: &Arc<Shared>) {
    let classes = BTreeSet::from([Class::Operation]);
    let mut watch = shared.mirror.watch();
    let mut known = Known::since(unix_ms());
    let mut cursor = None;
    loop {
        let changes = shared.mirror.changes(cursor, &classes, PAGE);
        cursor = Some(changes.at);
        for (_, _, kept) in &changes.items {
            if let Some(Object::Operation(Some(operation))) = kept.as_ref().map(|it| &it.object)
                && known.is_due(operation)
            {
                collect(shared, operation).await;
                sleep(QUESTION_EVERY).await;
            }
        }
        if changes.is_last && watch.changed().await.is_err() {
            return;
        }
    }
}

/// Operations that were looked at, by their number, with when they began: a new daemon counts anew.
#[derive(Debug)]
struct Known {
    since_unix_ms: u64,
    operations: BTreeMap<u64, u64>,
}

impl Known {
    fn since(since_unix_ms: u64) -> Self {
        Self { since_unix_ms, operations: BTreeMap::new() }
    }

    /// Whether it has ended, not before this began, and was not due yet.
    fn is_due(&mut self, operation: &OperationObject) -> bool {
        let OperationObject { row, started_unix_ms, .. } = operation;
        let Some(ended_ns) = row.ended_ns else { return false };
        let took_ms = ended_ns.saturating_sub(row.started_ns) / NS_PER_MS;
        let is_new = self.operations.insert(row.id, *started_unix_ms) != Some(*started_unix_ms);
        if self.operations.len() > KNOWN_MAX {
            self.operations.pop_first();
        }
        is_new && started_unix_ms.saturating_add(took_ms) >= self.since_unix_ms
    }
}

async fn collect(shared: &Arc<Shared>, operation: &OperationObject) {
    let request = Request::Trace { target: operation.row.id.to_string() };
    let traces = &shared.traces;
    match shared.daemon.call(&request, Role::Viewer).await {
        Ok(Reply::Trace(trace)) if trace.operation.started_ns == operation.row.started_ns => {
            traces.put(traced(&trace, operation.started_unix_ms));
        }
        // It is remembered no more, or the daemon has gone.
        _ => {
            traces.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn traced(trace: &Trace, started_unix_ms: u64) -> Operation {
    let row = &trace.operation;
    // The daemon's clock in whole milliseconds begins with its own 0.
    let epoch_unix_ms = started_unix_ms.saturating_sub(row.started_ns / NS_PER_MS);
    let ended_ns = row.ended_ns.unwrap_or(trace.now_ns);
    let span = |step: &TraceStep| Span {
        track: row.vm.clone(),
        name: step.name.clone(),
        kind: step.stage.clone(),
        ready_ns: step.ready_ns,
        start_ns: step.started_ns,
        end_ns: step.ended_ns.unwrap_or(ended_ns),
        waited_for: step.waited_for.clone(),
        outcome: match step.ended_ns {
            None => Outcome::Underway,
            Some(_) if step.failed => Outcome::Failed,
            Some(_) => Outcome::Ended,
        },
    };
    Operation {
        id: row.id,
        what: row.what.clone(),
        vm: row.vm.clone(),
        uuid: trace.uuid.clone(),
        epoch_unix_ns: epoch_unix_ms.saturating_mul(NS_PER_MS),
        started_ns: row.started_ns,
        ended_ns,
        failure: row.failure.clone(),
        planned: row.steps,
        spans: trace.steps.iter().map(span).collect(),
    }
}

#[cfg(test)]
mod tests {
    use api::TraceRow;

    use super::*;

    #[test]
    fn an_address_without_a_path_is_that_of_all_signals() {
        let at = |url: &str| Collector::at(url).map(|it| it.url);
        assert_eq!(at("http://[::1]:4318").unwrap(), "http://[::1]:4318/v1/traces");
        assert_eq!(at("https://otel/").unwrap(), "https://otel/v1/traces");
        assert_eq!(at("https://otel/a/v1/traces").unwrap(), "https://otel/a/v1/traces");
        for wrong in ["otel:4318", "http://", "https:///v1/traces", "grpc://otel"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    fn ended(id: u64, started_unix_ms: u64, ended_ns: Option<u64>) -> OperationObject {
        let row = TraceRow { id, ended_ns, ..TraceRow::default() };
        OperationObject { row, started_unix_ms, ..OperationObject::default() }
    }

    #[test]
    fn each_operation_that_ends_is_due_once() {
        let mut known = Known::since(1000);
        assert!(!known.is_due(&ended(1, 990, None)), "it goes on");
        assert!(known.is_due(&ended(1, 990, Some(10 * NS_PER_MS))));
        assert!(!known.is_due(&ended(1, 990, Some(10 * NS_PER_MS))), "it was told again");
        assert!(!known.is_due(&ended(2, 900, Some(NS_PER_MS))), "it had ended before");
        // The daemon was started anew.
        assert!(known.is_due(&ended(1, 2000, Some(0))));
        assert!((0..10_000).all(|id| known.is_due(&ended(id, 3000, Some(0)))));
        assert_eq!(known.operations.len(), KNOWN_MAX);
    }

    fn with_steps(id: u64, steps: usize) -> Operation {
        let span = Span {
            track: String::new(),
            name: String::new(),
            kind: String::new(),
            ready_ns: 0,
            start_ns: 0,
            end_ns: 0,
            waited_for: None,
            outcome: Outcome::Ended,
        };
        Operation { id, spans: vec![span; steps], ..Operation::default() }
    }

    #[test]
    fn what_waits_is_bounded_by_operations_and_by_steps() {
        let traces = Traces::default();
        (0..1500).for_each(|id| traces.put(with_steps(id, 1)));
        assert_eq!((traces.waiting(), traces.outcomes()[2]), (1024, ("overflowed", 476)));
        traces.put(with_steps(1500, SPANS_MAX - 10));
        assert_eq!(traces.waiting(), 11);
        let batch = traces.take();
        assert_eq!((batch.len(), batch[0].id), (10, 1490));
        assert_eq!(traces.take()[0].id, 1500, "what is too large for a batch is one by itself");
        assert_eq!((traces.waiting(), lock(&traces.waiting).spans), (0, 0));
    }
}
