//! What can be asked for over HTTP.

mod consoles;
pub(crate) mod disks;
mod events;
mod health;
mod metrics;
mod objects;
mod oidc;
mod openapi;
pub(crate) mod page;
mod reports;
mod requests;
mod session;
mod tasks;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};

use crate::admit::admit;
use crate::first_copy;
use crate::mirror::Class;
use crate::own_writes::settle;
use crate::problem::Problem;
use crate::sampler::count;
use crate::shared::Shared;

pub(crate) use objects::value_of;
pub(crate) use requests::{note, subject};
pub(crate) use session::log_in;

/// Of a request: a configuration and what belongs to it.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Who sends what where; what is none of these is for `rest`.
pub(crate) fn router(shared: &Arc<Shared>, rest: Option<Router>) -> Router {
    let objects = Router::new()
        .route("/v1/objects", get(objects::changes))
        .route("/v1/vms", get(objects::all(Class::Vm)))
        .route("/v1/vms/{vm}", get(objects::vm))
        .route("/v1/vms/{vm}/devices", get(objects::devices))
        .route("/v1/vms/{vm}/{action}", post(requests::act))
        .route("/v1/domains", get(objects::all(Class::Domain)))
        .route("/v1/srs", get(objects::all(Class::Sr)))
        .route("/v1/vdis", get(objects::all(Class::Vdi)))
        .route("/v1/vdis/{vdi}", get(objects::one_of(Class::Vdi, objects::no_vdi)))
        .route("/v1/host", get(objects::host))
        .route("/v1/networks", get(objects::all(Class::Network)))
        .route("/v1/networks/{network}", get(objects::one_of(Class::Network, objects::no_network)))
        .route("/v1/networks/{network}/interfaces", get(objects::interfaces))
        .route("/v1/operations", get(objects::all(Class::Operation)))
        .layer(from_fn_with_state(Arc::clone(shared), first_copy::of_all));
    let passed_on = Router::new()
        .route("/v1/vms/{vm}/console", get(consoles::console))
        .route("/v1/vms/{vm}/screen", get(consoles::screen))
        .route("/v1/doctor", get(reports::doctor))
        .route("/v1/bugreport", get(reports::bugreport))
        .route("/v1/vdis/{vdi}/data", get(disks::read).put(disks::write));
    let asked = Router::new()
        .merge(passed_on.layer(from_fn_with_state(Arc::clone(shared), settle)))
        .route("/v1/operations/{id}", get(requests::operation))
        .route("/v1/requests/{op}", post(requests::ask))
        .layer(from_fn_with_state(Arc::clone(shared), first_copy::of_limited));
    let known = Router::new()
        .merge(objects.layer(from_fn_with_state(Arc::clone(shared), settle)))
        .merge(asked)
        .route("/v1/events", get(events::events))
        .route("/metrics", get(metrics::scrape))
        .route("/v1/history", get(metrics::history))
        .route("/v1/tasks", get(tasks::list))
        .route("/v1/tasks/{id}", get(tasks::one).delete(tasks::cancel))
        .route("/v1/session", get(session::is).delete(session::end))
        .layer(from_fn_with_state(Arc::clone(shared), admit));
    let rest = rest.unwrap_or_else(|| Router::new().fallback(page::file));
    Router::new()
        .merge(known)
        .route("/v1/session", post(session::begin))
        .route("/v1/session/oidc", get(oidc::begin))
        .route(crate::oidc::RETURN_PATH, get(oidc::end))
        .route("/v1/health", get(health::health))
        .route("/v1/openapi.json", get(openapi::document))
        .fallback_service(rest)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn(protect))
        .layer(from_fn_with_state(Arc::clone(shared), count))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::clone(shared))
}

async fn not_allowed() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this cannot be done with that; see /v1/openapi.json",
    )
}

/// What browsers are told of every answer.
async fn protect(request: axum::extract::Request, next: middleware::Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert_with(|| HeaderValue::from_static("no-store"));
    response
}
