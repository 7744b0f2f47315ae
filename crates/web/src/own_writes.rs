//! Whoever has changed something reads what came of it: objects are read from a copy, which follows the host within a
//! fraction of a second, and a client's next read waits for that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::{Reply, Request, Role};
use axum::Extension;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;

use crate::admit::Caller;
use crate::shared::{Shared, lock};

/// The daemon tells of a change within 50 ms. The copy has one that is older than this.
const TOLD_WITHIN: Duration = Duration::from_millis(500);

/// When each client's last change ended.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites(Mutex<BTreeMap<String, Instant>>);

impl OwnWrites {
    /// A change of this client has ended.
    pub(crate) fn note(&self, client: &str) {
        let mut ended = lock(&self.0);
        ended.retain(|_, at| at.elapsed() < TOLD_WITHIN);
        ended.insert(client.to_owned(), Instant::now());
    }

    /// Whether this client's next read has to wait, and for how long at most.
    fn take(&self, client: &str) -> Option<Duration> {
        let ended = lock(&self.0).remove(client)?;
        TOLD_WITHIN.checked_sub(ended.elapsed())
    }
}

/// Waits until the copy has all that has happened so far. To be asked makes the daemon tell those who wait, and so the copy, what
/// it collects for them.
async fn catch_up(shared: &Shared, client: &str) {
    let mut told = shared.mirror.told();
    loop {
        let cursor = told.borrow_and_update().clone();
        let request = Request::Objects { cursor, classes: Vec::new(), wait: false };
        let Ok(_turn) = shared.turns.take(client) else { return };
        match shared.daemon.call(&request, Role::Viewer).await {
            Ok(Reply::Objects(objects)) if !objects.changes.is_empty() => {}
            _ => return,
        }
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// Before objects are read, or found by name.
pub(crate) async fn settle(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let client = &caller.who.name;
    if let Some(at_most) = shared.own_writes.take(client) {
        let _late = tokio::time::timeout(at_most, catch_up(&shared, client)).await;
    }
    next.run(request).await
}
