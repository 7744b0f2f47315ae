//! Numbers for Prometheus, and their history for the page.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use gate::{Scope, not_for_limited};
use metrics::{Archive, Format, Of};
use serde::Serialize;

use super::objects::{uuid_of, value_of};
use crate::admit::Caller;
use crate::first_copy;
use crate::problem::Problem;
use crate::sampler;
use crate::shared::Shared;

/// Averages over steps.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct History {
    /// The end of the first step, in seconds since 1970.
    from: u64,
    /// In seconds; each value is of the next one.
    step: u64,
    /// `cpu` is a share of all (virtual) CPUs, `memory` and `memory_free` are bytes; `vbd_xvda_read`, `vbd_xvda_write`,
    /// `vif_0_rx` and `vif_0_tx` are of a VM's devices, in bytes per second. `null` where nothing is known.
    series: BTreeMap<Cow<'static, str>, Vec<Option<f32>>>,
}

/// `GET /metrics`: of the last sample, so that no scrape asks the daemon.
pub(crate) async fn scrape(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    // Without one it is told that the host does not answer, and what is counted here.
    let _late = shared.metrics.first().await;
    let last = shared.metrics.last();
    let age_ns = shared.now_ns().saturating_sub(last.at_ns);
    let age_s = std::time::Duration::from_nanos(age_ns).as_secs_f64();
    let text = match &caller.who.scope {
        Scope::Host => metrics::scrape(&last, &sampler::own(&shared), age_s, format),
        scope @ Scope::Tagged(_) => {
            let seen = sampler::of_some(&shared, scope, &last);
            metrics::scrape_vms(&seen, env!("CARGO_PKG_VERSION"), age_s, format)
        }
    };
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

/// `GET /v1/history`.
pub(crate) async fn history(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<History>, Problem> {
    let query = query.unwrap_or_default();
    let number = |key: &str| -> Result<u64, Problem> {
        let text = value_of(&query, key).unwrap_or_else(|| "0".to_owned());
        text.parse().map_err(|_| Problem::bad_request(format!("{key}={text}: not a number")))
    };
    let (from, step) = (number("from")?, number("step")?);
    // What was kept from earlier is told whether the daemon is there or not.
    let is_known = shared.metrics.first().await;
    let scope = &caller.who.scope;
    let whose = value_of(&query, "of").unwrap_or_else(|| "host".to_owned());
    let of = match &*whose {
        "host" => whose,
        // One that is there no more has a history for a while, by its UUID.
        vm => uuid_of(&shared.mirror_of(scope), vm).unwrap_or(whose),
    };
    let nothing = || match is_known {
        true => Problem::not_found(format!("{of}: nothing is known of it")),
        false => first_copy::nothing_yet(&shared.mirror),
    };
    if *scope != Scope::Host && !shared.tags().permit(scope, &of) {
        return Err(match &*of {
            "host" => Problem::forbidden(not_for_limited("this is about the host as a whole")),
            _ => nothing(),
        });
    }
    let history = shared.metrics.history();
    let entity = if of == "host" { Of::Host } else { Of::Vm(&of) };
    let span = history.read(entity, from, Archive::no_finer(step));
    let span = span.ok_or_else(nothing)?;
    drop(history);
    let series = span.series.into_iter().map(|it| (it.name, it.values)).collect();
    Ok(Json(History { from: span.from_unix_s, step: span.step_s, series }))
}
