//! What the host does, asked for every few seconds, however many want to know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use api::{DomainRow, Info, LimitChanges, Object, Reply, Request, Role, Traffic};
use axum::extract::{MatchedPath, State};
use axum::middleware::Next;
use axum::response::Response;
use gate::Scope;
use metrics::{History, Host, Own, Sample};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::daemon::CallError;
use crate::first_copy::{self, FIRST_COPY};
use crate::mirror::Mirror;
use crate::shared::{READERS_MAX, Shared, lock, unix_ms, unix_s};

/// Between samples: the step of the finest history.
const EVERY_MS: u64 = 5000;
/// Samples that the daemon is asked about the host for once: that takes hypercalls besides the listing's.
const HOST_EVERY: u32 = 12;
/// A sample that takes longer than this is none.
const WAIT: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    last: watch::Sender<Arc<Sample>>,
    history: RwLock<History>,
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    paced: AtomicU64,
}

/// What is not asked for each time.
#[derive(Debug, Default)]
struct Known {
    rounds: u32,
    release: String,
    host: Option<Host>,
    /// Memory of all domains when the host was asked for.
    kib: u64,
}

impl Metrics {
    pub(crate) fn last(&self) -> Arc<Sample> {
        Arc::clone(&self.last.borrow())
    }

    /// Waits for the first sample, if it comes soon. Returns whether there is one.
    pub(crate) async fn first(&self) -> bool {
        let mut last = self.last.subscribe();
        let sampled = last.wait_for(|it| it.unix_s > 0);
        timeout(FIRST_COPY, sampled).await.is_ok_and(|it| it.is_ok())
    }

    fn set(&self, sample: Sample) {
        self.last.send_replace(Arc::new(sample));
    }

    pub(crate) fn history(&self) -> RwLockReadGuard<'_, History> {
        self.history.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, sample: Sample) {
        self.history.write().unwrap_or_else(PoisonError::into_inner).take(&sample);
        self.set(sample);
    }

    /// A request was refused because its client asks too often.
    pub(crate) fn paced(&self) {
        self.paced.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is counted here.
pub(crate) fn own(shared: &Shared) -> Own {
    let history = shared.metrics.history();
    let (history_vms, history_bytes) = (history.vms(), history.bytes());
    drop(history);
    Own {
        release: env!("CARGO_PKG_VERSION"),
        connections: shared.open.count(),
        readers: READERS_MAX.saturating_sub(shared.readers.available_permits()),
        requests: lock(&shared.metrics.requests).clone(),
        paced: shared.metrics.paced.load(Ordering::Relaxed),
        traces: shared.traces.outcomes(),
        traces_waiting: shared.traces.waiting(),
        history_vms,
        history_bytes,
    }
}

/// Counts a request by what it asks for, never by whom or with what.
pub(crate) async fn count(
    State(shared): State<Arc<Shared>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|it| it.as_str().to_owned());
    let response = next.run(request).await;
    let key = (route.unwrap_or_else(|| "other".to_owned()), response.status().as_u16());
    *lock(&shared.metrics.requests).entry(key).or_default() += 1;
    response
}

/// Asks for as long as this process lives.
pub(crate) async fn follow(shared: &Arc<Shared>) {
    let mut known = Known::default();
    let mut least_ms = EVERY_MS;
    // A sample counts what the copy knows.
    let _late = first_copy::wait(&shared.mirror).await;
    loop {
        let asked = timeout(WAIT, ask(shared, &mut known)).await;
        match asked {
            Ok(Ok(sample)) => shared.metrics.take(sample),
            // Its release may be another one when it answers again, and its host.
            _ => {
                known = Known::default();
                let last = shared.metrics.last();
                shared.metrics.set(Sample { release: None, ..(*last).clone() });
            }
        }
        sleep(Duration::from_millis(until_next(unix_ms(), least_ms))).await;
        least_ms = EVERY_MS / 5;
    }
}

/// How long to wait for the middle of a step of the history, where no delay leads into the next.
fn until_next(now_ms: u64, least_ms: u64) -> u64 {
    let since_middle = (now_ms + EVERY_MS / 2) % EVERY_MS;
    let wait = EVERY_MS - since_middle;
    if wait < least_ms { wait + EVERY_MS } else { wait }
}

async fn ask(shared: &Arc<Shared>, known: &mut Known) -> Result<Sample, CallError> {
    let daemon = &shared.daemon;
    let call = |request| async move { daemon.call(&request, Role::Viewer).await };
    let Reply::Domains(domains) = call(Request::List { targets: Vec::new() }).await? else {
        return Err(other());
    };
    let (unix_s, at_ns) = (unix_s(), shared.now_ns());
    let Reply::Limits(limits) = call(Request::Limits(LimitChanges::default())).await? else {
        return Err(other());
    };
    let Reply::Counters(counters) = call(Request::Counters).await? else { return Err(other()) };
    let Reply::Activity(activity) = call(Request::Activity).await? else { return Err(other()) };
    let (traffic, traffic_at_ns) = traffic(shared).await?;
    let mut sample = Sample {
        unix_s,
        at_ns,
        domains,
        limits,
        counters,
        activity,
        traffic,
        traffic_at_ns,
        ..Sample::default()
    };
    if known.rounds.is_multiple_of(HOST_EVERY) {
        let Reply::Info(info) = call(Request::Info).await? else { return Err(other()) };
        let Reply::Pong(pong) = call(Request::Ping).await? else { return Err(other()) };
        learn(known, &info, pong.release, sample.kib());
    }
    known.rounds = known.rounds.wrapping_add(1);
    sample.host = known.host.map(|host| host.after(known.kib, sample.kib()));
    sample.release = Some(known.release.clone());
    count_vms(&shared.mirror, &mut sample);
    Ok(sample)
}

/// What domains have read, written, received and sent, and when that was so.
async fn traffic(shared: &Arc<Shared>) -> Result<(Traffic, u64), CallError> {
    match shared.daemon.call(&Request::Traffic, Role::Viewer).await {
        Ok(Reply::Traffic(traffic)) => {
            let at_ns = shared.now_ns().saturating_sub(traffic.age_ns);
            Ok((traffic, at_ns))
        }
        Ok(_) => Err(other()),
        // A daemon of an earlier release counts none.
        Err(CallError::Refused(_)) => Ok((Traffic::default(), 0)),
        Err(error) => Err(error),
    }
}

fn learn(known: &mut Known, info: &Info, release: String, kib: u64) {
    known.host = Host::of(info);
    known.kib = kib;
    known.release = release;
}

fn other() -> CallError {
    CallError::Refused("xylemd answers something else".to_owned())
}

/// What a limited client gets of a sample: its VMs.
pub(crate) fn of_some(shared: &Shared, scope: &Scope, whole: &Sample) -> Sample {
    let tags = shared.tags();
    let is_seen = |it: &&DomainRow| it.managed && tags.permit(scope, &it.uuid);
    let domains: Vec<DomainRow> = whole.domains.iter().filter(is_seen).cloned().collect();
    let domids: BTreeSet<u16> = domains.iter().map(|it| it.domid).collect();
    let of_all = &whole.traffic;
    let disks = of_all.disks.iter().filter(|it| domids.contains(&it.domid));
    let vifs = of_all.vifs.iter().filter(|it| domids.contains(&it.domid));
    let mut sample = Sample {
        unix_s: whole.unix_s,
        at_ns: whole.at_ns,
        release: whole.release.clone(),
        traffic: Traffic {
            age_ns: of_all.age_ns,
            disks: disks.cloned().collect(),
            vifs: vifs.cloned().collect(),
        },
        domains,
        traffic_at_ns: whole.traffic_at_ns,
        ..Sample::default()
    };
    count_vms(&shared.mirror_of(scope), &mut sample);
    sample
}

/// What the live model knows, and no listing says.
fn count_vms(mirror: &Mirror, sample: &mut Sample) {
    mirror.read(|table| {
        for (_, _, kept) in table.iter() {
            let Object::Vm(Some(vm)) = &kept.object else { continue };
            *sample.states.entry(vm.state.clone()).or_default() += 1;
            let in_progress = u64::try_from(vm.operations.len()).unwrap_or(u64::MAX);
            sample.operations.insert(vm.uuid.clone(), in_progress);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_in_the_middle_of_a_step() {
        for (now, least, expected) in [
            (0, 1000, 2500),
            (2500, 1000, 5000),
            (2499, 1000, 5001),
            (2501, 1000, 4999),
            (3000, 5000, 9500),
        ] {
            assert_eq!(until_next(now, least), expected, "{now}");
        }
    }
}
