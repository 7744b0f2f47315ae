//! Log-ins of browsers.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use gate::Who;
use serde::{Deserialize, Serialize};

use crate::admit::{COOKIE, Caller, by_token, is_ours, peer, stranger};
use crate::problem::Problem;
use crate::shared::{Shared, lock, random, unix_s};

/// Of a log-in.
const BODY_BYTES_MAX: usize = 4096;

/// By a token, or by name and password.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogIn {
    token: Option<String>,
    name: Option<String>,
    password: Option<String>,
}

/// Who one is.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Session {
    who: String,
    role: api::Role,
    /// Of the token, the password or the certificate.
    expires_unix_s: Option<u64>,
    /// Of the VMs that one is limited to; left out of who is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

impl From<&Who> for Session {
    fn from(who: &Who) -> Self {
        let tags = who.scope.tags().map(str::to_owned).collect();
        Self { who: who.name.clone(), role: who.role, expires_unix_s: who.expires, tags }
    }
}

pub(crate) async fn is(Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(Session::from(&caller.who))
}

/// `POST /v1/session`.
pub(crate) async fn begin(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    is_ours(request.headers())?;
    stranger(&shared, address)?;
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await;
    let body = body.map_err(|error| Problem::bad_request(error.to_string()))?;
    let said: LogIn = serde_json::from_slice(&body).map_err(|error| {
        Problem::bad_request(format!("a log-in has a token, or a name and a password: {error}"))
    })?;
    let who = match (said.token, said.name, said.password) {
        (Some(token), None, None) => by_token(&shared, &token, address)?,
        (None, Some(name), Some(password)) => {
            by_password(&shared, name, password, address.to_string()).await?
        }
        _ => return Err(Problem::bad_request("a log-in has a token, or a name and a password")),
    };
    let cookie = cookie_of_session(&shared, &who)?;
    shared.audit.note(&who.name, &address.to_string(), "log in", "", "ok");
    let mut response = Json(Session::from(&who)).into_response();
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// A session begins.
pub(super) fn cookie_of_session(shared: &Shared, who: &Who) -> Result<String, Problem> {
    let random = random::<32>()
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let key = lock(&shared.sessions).begin(&who.name, &random, unix_s());
    let secure = if shared.is_tls { "; Secure" } else { "" };
    Ok(format!("{COOKIE}={key}; Path=/; HttpOnly; SameSite=Strict{secure}"))
}

/// Somebody with a name and a password, which may be a token.
pub(crate) async fn log_in(
    shared: &Arc<Shared>,
    name: &str,
    password: &str,
    address: &str,
) -> Result<Who, Problem> {
    let token = shared.with_access(|access| access.token(password, unix_s()).cloned());
    match token.filter(|who| who.name == name) {
        Some(who) => Ok(who),
        None => by_password(shared, name.to_owned(), password.to_owned(), address.to_owned()).await,
    }
}

/// Wrong passwords lock out the name and the address.
async fn by_password(
    shared: &Arc<Shared>,
    name: String,
    password: String,
    address: String,
) -> Result<Who, Problem> {
    let now_s = unix_s();
    // A name is locked out for one address alone: nobody can lock out somebody else.
    let of = [format!("{name} from {address}"), address.clone()];
    let remaining = {
        let lockout = lock(&shared.lockout);
        of.iter().map(|of| lockout.remaining_s(of, now_s)).max().unwrap_or_default()
    };
    if remaining > 0 {
        let why = format!("too many log-ins have failed; try again in {remaining} s");
        return Err(Problem::too_many(why, remaining));
    }
    let Ok(_permit) = shared.passwords.acquire().await else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again"));
    };
    let check = Arc::clone(shared);
    let said = name.clone();
    let found = tokio::task::spawn_blocking(move || {
        check.with_access(|access| access.password(&said, &password, now_s).cloned())
    });
    if let Ok(Some(who)) = found.await {
        let mut lockout = lock(&shared.lockout);
        lockout.succeeded(&of[0]);
        return Ok(who);
    }
    let mut lockout = lock(&shared.lockout);
    of.iter().for_each(|of| lockout.failed(of, now_s));
    drop(lockout);
    shared.audit.note(&name, &address, "log in", "", "wrong name or password");
    Err(Problem::new(StatusCode::UNAUTHORIZED, "wrong name or password"))
}

/// `DELETE /v1/session`.
pub(crate) async fn end(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    if let Some(key) = &caller.session {
        lock(&shared.sessions).end(key);
        shared.audit.note(&caller.who.name, &caller.address.to_string(), "log out", "", "ok");
    }
    let cookie = format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
