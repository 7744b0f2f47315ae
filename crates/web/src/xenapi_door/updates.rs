//! The history for clients that draw graphs of hosts of XAPI.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64ct::{Base64, Encoding as _};
use gate::{Scope, not_for_limited};
use metrics::{Ask, Form, updates};
use tokio::task::spawn_blocking;

use super::{Door, host_uuid, open_to_pages};
use crate::admit::{by_token, pace, peer, stranger};
use crate::first_copy;
use crate::problem::Problem;
use crate::routes::{log_in, value_of};
use crate::shared::{unix_ms, unix_s};

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
    let Some(who) = user(door, query, &head.headers, address).await? else {
        stranger(&door.shared, address)?;
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "log in first, and send session_id"));
    };
    pace(&door.shared, &who)?;
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

/// Who asks: by a session, a password, or a token. `None` of somebody who says nothing.
async fn user(
    door: &Door,
    query: &str,
    headers: &HeaderMap,
    address: IpAddr,
) -> Result<Option<String>, Problem> {
    let shared = &door.shared;
    if let Some(session) = value_of(query, "session_id") {
        let Ok((who, role)) = door.with(|facade| facade.user(&session, unix_ms())) else {
            return Ok(None);
        };
        // Whoever was removed from the file is out, whatever sessions there are.
        return Ok(door.is_known(&who, role).then_some(who));
    }
    let given = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let who = match given.and_then(|it| it.split_once(' ')) {
        Some(("Bearer", token)) => by_token(shared, token.trim(), address)?,
        Some(("Basic", coded)) => {
            let bytes = Base64::decode_vec(coded.trim()).unwrap_or_default();
            let text = String::from_utf8(bytes).unwrap_or_default();
            let (name, password) = text.split_once(':').unwrap_or_default();
            log_in(shared, name, password, &address.to_string()).await?
        }
        _ => return Ok(None),
    };
    if who.scope != Scope::Host {
        return Err(Problem::forbidden(not_for_limited("this tells of all VMs")));
    }
    Ok(Some(who.name))
}
