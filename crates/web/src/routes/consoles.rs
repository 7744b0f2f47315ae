//! Consoles and screens of VMs.

use std::sync::Arc;

use api::{ConsoleKind, RelayRequest, Request, Target};
use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, RawQuery, State, WebSocketUpgrade};
use axum::response::Response;

use super::objects::{uuid_of, value_of};
use crate::admit::Caller;
use crate::consoles::{Look, Viewer, attach, upgrade_of};
use crate::limited::{Leave, permit};
use crate::problem::Problem;
use crate::shared::{Shared, lock, unix_s};

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// `GET /v1/vms/{vm}/console`.
pub(crate) async fn console(
    State(shared): State<Arc<Shared>>,
    Path(vm): Path<String>,
    RawQuery(query): RawQuery,
    Extension(caller): Extension<Caller>,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let query = query.unwrap_or_default();
    let kind = match value_of(&query, "kind").as_deref() {
        None => None,
        Some("pv") => Some(ConsoleKind::Pv),
        Some("serial") => Some(ConsoleKind::Serial),
        Some(other) => {
            return Err(Problem::bad_request(format!("kind {other:?} is none of pv and serial")));
        }
    };
    let number = match value_of(&query, "number") {
        None => 0,
        Some(text) => text.parse().map_err(|_| {
            Problem::bad_request(format!("{text:?} is not a console's number, such as 0"))
        })?,
    };
    let target = target(&shared, &caller, vm);
    relay(&shared, caller, RelayRequest::Console { target, kind, number }, upgrade).await
}

/// `GET /v1/vms/{vm}/screen`.
pub(crate) async fn screen(
    State(shared): State<Arc<Shared>>,
    Path(vm): Path<String>,
    Extension(caller): Extension<Caller>,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let target = target(&shared, &caller, vm);
    relay(&shared, caller, RelayRequest::Screen { target }, upgrade).await
}

/// A VM that was made just now may not be known here yet.
fn target(shared: &Shared, caller: &Caller, vm: String) -> Target {
    Target(uuid_of(&shared.mirror_of(&caller.who.scope), &vm).unwrap_or(vm))
}

async fn relay(
    shared: &Arc<Shared>,
    caller: Caller,
    request: RelayRequest,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let permitted = match permit(shared, &caller, Request::Relay(request))? {
        Leave::Ask(permitted) => permitted,
        Leave::Answer(_) => return Err(Problem::not_found("there is nothing to look at")),
    };
    let upgrade = upgrade_of(upgrade)?;
    let (asks, request, looks) = (caller.asks(), permitted.request.clone(), Arc::clone(shared));
    let is_let_in = move || {
        // An open console counts as requests of its session do.
        let goes_on = |key: &String| lock(&looks.sessions).go_on(key, unix_s()).is_some();
        permitted.holds(&looks) && caller.session.as_ref().is_none_or(goes_on)
    };
    let viewer = Viewer { asks, is_let_in: Box::new(is_let_in) };
    attach(shared, viewer, request, Look::Plain, upgrade).await
}
