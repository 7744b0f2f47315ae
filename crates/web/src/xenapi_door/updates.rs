//! The history for clients that draw graphs of hosts of XAPI.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use metrics::{Ask, Form, updates};
use tokio::task::spawn_blocking;

use super::visitor::visitor;
use super::{Door, host_uuid, open_to_pages};
use crate::admit::peer;
use crate::first_copy;
use crate::problem::Problem;
use crate::routes::value_of;
use crate::shared::unix_s;

/// `GET /rrd_updates`.
pub(super) async fn serve(State(door): State<Arc<Door>>, request: Request) -> Response {
    let from = peer(&request).map(|it| it.address);
    let (head, _) = request.into_parts();
    let answered = match from {
        Ok(from) => answer(&door, &head, from).await,
        Err(problem) => Err(problem),
    };
    let mut response = answered.unwrap_or_else(Problem::into_response);
    open_to_pages(&mut response);
    response
}

async fn answer(door: &Door, head: &Parts, address: IpAddr) -> Result<Response, Problem> {
    let query = head.uri.query().unwrap_or_default();
    visitor(door, head, address, "this tells of all VMs").await?;
    if !door.shared.metrics.first().await {
        return Err(first_copy::nothing_yet(&door.shared.mirror));
    }
    let is = |key: &str| value_of(query, key).is_some_and(|it| it == "true");
    let ask = Ask {
        start_unix_s: start(query, unix_s())?,
        interval_s: number(query, "interval")?,
        host: is("host").then(|| host_uuid().to_string()),
        vm: value_of(query, "vm_uuid").filter(|it| !it.is_empty() && it != "all"),
    };
    let form = if is("json") { Form::Json } else { Form::Xml };
    let shared = Arc::clone(&door.shared);
    // Of many VMs it is megabytes, for which other clients are not to wait.
    let written = spawn_blocking(move || updates(&shared.metrics.history(), &ask, form)).await;
    let text = written
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, form.content_type())], text).into_response())
}

fn number(query: &str, key: &str) -> Result<u64, Problem> {
    let text = value_of(query, key).unwrap_or_else(|| "0".to_owned());
    text.parse().map_err(|_| Problem::bad_request(format!("{key}={text}: not a number")))
}

/// A negative start is so long ago.
fn start(query: &str, now_s: u64) -> Result<u64, Problem> {
    match value_of(query, "start").as_deref().and_then(|it| it.strip_prefix('-')) {
        Some(ago) => {
            let ago: u64 = ago.parse().map_err(|_| Problem::bad_request("start: not a number"))?;
            Ok(now_s.saturating_sub(ago))
        }
        None => number(query, "start"),
    }
}
