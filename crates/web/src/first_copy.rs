//! A door that has just begun knows nothing yet, which is not the same as nothing there: whoever reads its copy waits for the
//! first whole one, for a short time, and is told then that there is none.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gate::Scope;
use tokio::time::timeout;

use crate::admit::Caller;
use crate::mirror::Mirror;
use crate::problem::Problem;
use crate::shared::Shared;

/// The first whole copy is waited for so long. A host that answers tells all in a fraction of that.
pub(crate) const FIRST_COPY: Duration = Duration::from_secs(5);
/// It makes sense to try again after so many seconds.
const RETRY_AFTER_S: u64 = 1;

/// Waits until all was here once, if that comes soon.
pub(crate) async fn wait(mirror: &Mirror) -> Result<(), Problem> {
    let mut told = mirror.told();
    let whole = timeout(FIRST_COPY, told.wait_for(Option::is_some)).await;
    if whole.is_ok_and(|it| it.is_ok()) {
        return Ok(());
    }
    Err(nothing_yet(mirror))
}

/// What a client is told of whom it asks too early.
pub(crate) fn nothing_yet(mirror: &Mirror) -> Problem {
    let why = mirror.watch().borrow().offline.clone();
    let why = why.unwrap_or_else(|| "xylemd has not told all of it yet".to_owned());
    Problem {
        status: StatusCode::SERVICE_UNAVAILABLE,
        detail: format!("nothing is known of this host yet: {why}"),
        retry_after_s: Some(RETRY_AFTER_S),
    }
}

/// Before objects are read, or found by name.
pub(crate) async fn of_all(
    State(shared): State<Arc<Shared>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    match wait(&shared.mirror).await {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Before it is decided by tags what a client may do: of a VM that is not known here yet it would be told that there is none.
pub(crate) async fn of_limited(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    if caller.who.scope != Scope::Host
        && let Err(problem) = wait(&shared.mirror).await
    {
        return problem.into_response();
    }
    next.run(request).await
}
