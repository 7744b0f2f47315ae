//! Consoles and screens of VMs.

use std::sync::Arc;

use api::{ConsoleKind, RelayRequest, Target};
use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, RawQuery, State, WebSocketUpgrade};
use axum::response::Response;

use super::objects::{uuid_of, value_of};
use crate::admit::Caller;
use crate::consoles::{Look, Viewer, attach, upgrade_of};
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
    let request = RelayRequest::Console { target: target(&shared, vm), kind, number };
    attach(&shared, viewer(&shared, caller), request, Look::Plain, upgrade_of(upgrade)?).await
}

/// `GET /v1/vms/{vm}/screen`.
pub(crate) async fn screen(
    State(shared): State<Arc<Shared>>,
    Path(vm): Path<String>,
    Extension(caller): Extension<Caller>,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let request = RelayRequest::Screen { target: target(&shared, vm) };
    attach(&shared, viewer(&shared, caller), request, Look::Plain, upgrade_of(upgrade)?).await
}

/// A VM that was made just now may not be known here yet.
fn target(shared: &Shared, vm: String) -> Target {
    Target(uuid_of(shared, &vm).unwrap_or(vm))
}

fn viewer(shared: &Arc<Shared>, caller: Caller) -> Viewer {
    let (asks, shared) = (caller.asks(), Arc::clone(shared));
    let is_let_in = move || {
        let now_s = unix_s();
        let Caller { who, session, .. } = &caller;
        let role = shared.with_access(|it| it.named(&who.name, now_s).map(|it| it.role));
        // An open console counts as requests of its session do.
        let goes_on = |key: &String| lock(&shared.sessions).go_on(key, now_s).is_some();
        role == Some(who.role) && session.as_ref().is_none_or(goes_on)
    };
    Viewer { asks, is_let_in: Box::new(is_let_in) }
}
