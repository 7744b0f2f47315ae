//! Who asks for what is served beside calls.

use std::net::IpAddr;

use api::Role;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use base64ct::{Base64, Encoding as _};
use gate::{Scope, not_for_limited};

use super::{Door, sent_session};
use crate::admit::{by_token, pace, stranger};
use crate::problem::Problem;
use crate::routes::{log_in, value_of};

/// Who asks: by a session, in the query or as a cookie, by a password, or by a token. `why` says what is nothing for clients
/// that are limited.
pub(super) async fn visitor(
    door: &Door,
    head: &Parts,
    address: IpAddr,
    why: &str,
) -> Result<(String, Role), Problem> {
    let Some(found) = find(door, head, address, why).await? else {
        stranger(&door.shared, address)?;
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "log in first, and send session_id"));
    };
    pace(&door.shared, &found.0)?;
    Ok(found)
}

/// `None` of somebody who says nothing, or of a session that is over.
async fn find(
    door: &Door,
    head: &Parts,
    address: IpAddr,
    why: &str,
) -> Result<Option<(String, Role)>, Problem> {
    let shared = &door.shared;
    let query = head.uri.query().unwrap_or_default();
    let session = value_of(query, "session_id").or_else(|| sent_session(&head.headers));
    if let Some(session) = session {
        return Ok(door.known_user(&session));
    }
    let given = head.headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
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
        return Err(Problem::forbidden(not_for_limited(why)));
    }
    Ok(Some((who.name, who.role)))
}
