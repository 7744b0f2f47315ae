//! Whether we and the daemon are there.

use std::sync::Arc;

use api::{Pong, Reply, Request, Role};
use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::problem::Problem;
use crate::shared::Shared;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Health {
    /// Of this door.
    pub(crate) release: &'static str,
    /// `null` if it does not answer.
    pub(crate) daemon: Option<Pong>,
    /// Whether a browser may log in at `/v1/session/oidc`.
    pub(crate) oidc: bool,
}

pub(crate) async fn health(
    State(shared): State<Arc<Shared>>,
    request: axum::extract::Request,
) -> Result<Json<Health>, Problem> {
    crate::admit::stranger(&shared, crate::admit::peer(&request)?.address)?;
    let daemon = match shared.daemon.call(&Request::Ping, Role::Viewer).await {
        Ok(Reply::Pong(pong)) => Some(pong),
        _ => None,
    };
    let oidc = shared.oidc.get().is_some();
    Ok(Json(Health { release: env!("CARGO_PKG_VERSION"), daemon, oidc }))
}
