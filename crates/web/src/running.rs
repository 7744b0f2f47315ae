//! Tasks, and what runs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use api::{Answer, Role};
use gate::Tasks;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::daemon::CallError;
use crate::limited::Permitted;
use crate::shared::{Shared, lock, unix_ms};

/// Tasks of one client that are with the daemon; further ones wait.
const OF_A_CLIENT_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Running {
    pub(crate) tasks: Mutex<Tasks>,
    handles: Mutex<BTreeMap<u64, AbortHandle>>,
    /// By client, of whom there are as many as in the file of clients.
    lanes: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl Running {
    /// Cancels a task: its connection to the daemon is closed. Returns whether it was in progress.
    pub(crate) fn cancel(&self, number: u64) -> bool {
        let was_pending = lock(&self.tasks).cancel(number, unix_ms());
        if let Some(handle) = lock(&self.handles).remove(&number) {
            handle.abort();
        }
        was_pending
    }
}

/// Who asks, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    pub(crate) who: String,
    pub(crate) from: String,
    pub(crate) role: Role,
}

/// Starts a task. `None` if there are too many.
pub(crate) fn start(shared: &Arc<Shared>, asks: Asks, permitted: Permitted) -> Option<u64> {
    let what = api::name_of(&permitted.request);
    let number = lock(&shared.tasks.tasks).begin(&what, &asks.who, permitted.of(), unix_ms())?;
    let for_task = Arc::clone(shared);
    let lane = Arc::clone(
        lock(&shared.tasks.lanes)
            .entry(asks.who.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(OF_A_CLIENT_MAX))),
    );
    // Taken here if it is free, so that tasks get theirs in the order in which they were asked for.
    let place = Arc::clone(&lane).try_acquire_owned();
    // The lock is held until the handle is there, so that the task's end finds it.
    let mut handles = lock(&shared.tasks.handles);
    let handle = tokio::spawn(async move {
        let shared = for_task;
        let _place = match place {
            Ok(place) => Ok(place),
            Err(_) => lane.acquire_owned().await,
        };
        let request = &permitted.request;
        let result = run(&shared, number, &permitted, asks.role).await;
        let words = result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        if Role::needed(request) > Role::Viewer {
            shared.own_writes.note(&asks.who);
            shared.audit.note(
                &asks.who,
                &asks.from,
                &what,
                &crate::routes::subject(request),
                &words,
            );
        }
        let result = permitted.show(&shared, result).map_err(|error| error.to_string());
        lock(&shared.tasks.tasks).end(number, result, unix_ms());
        lock(&shared.tasks.handles).remove(&number);
    });
    handles.insert(number, handle.abort_handle());
    Some(number)
}

async fn run(
    shared: &Shared,
    number: u64,
    permitted: &Permitted,
    role: Role,
) -> Result<api::Reply, CallError> {
    let holds = || permitted.holds(shared);
    let mut call = shared.daemon.begin_patiently(&permitted.request, role, holds).await?;
    loop {
        match call.next().await? {
            Answer::Ok(reply) => return Ok(reply),
            Answer::Error(why) => return Err(CallError::Refused(why)),
            Answer::Progress(far) => lock(&shared.tasks.tasks).went_on(number, far),
            Answer::Event(_) | Answer::Warning(_) | Answer::Changed(_) => {}
        }
    }
}
