//! Log-ins of browsers by a provider of OpenID Connect: the way there, and the way back.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::objects::value_of;
use super::session::cookie_of_session;
use crate::admit::{cookie, peer, stranger};
use crate::oidc::{Oidc, OidcError, RETURN_PATH};
use crate::problem::Problem;
use crate::shared::{Shared, unix_s};

/// What a browser shows when it comes back. A page of the provider sends it here, so that it cannot be `Strict`; it is good
/// for nothing else.
const COOKIE: &str = "xylem-oidc";
/// For as long as a log-in is waited for.
const COOKIE_S: u32 = 600;

impl From<OidcError> for Problem {
    fn from(error: OidcError) -> Self {
        let detail = error.to_string();
        match error {
            OidcError::Busy => {
                Self { status: StatusCode::SERVICE_UNAVAILABLE, detail, retry_after_s: Some(1) }
            }
            OidcError::Provider(_) => Self::new(StatusCode::BAD_GATEWAY, detail),
            OidcError::Refused(_) => Self::new(StatusCode::UNAUTHORIZED, detail),
        }
    }
}

fn provider(shared: &Shared) -> Result<&Arc<Oidc>, Problem> {
    let none = || Problem::not_found("this host has no provider of OpenID Connect");
    shared.oidc.get().ok_or_else(none)
}

/// `GET /v1/session/oidc`: sends a browser to the provider.
pub(crate) async fn begin(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    stranger(&shared, peer(&request)?.address)?;
    let (to, browser) = provider(&shared)?.begin().await?;
    let secure = if shared.is_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={browser}; Path={RETURN_PATH}; HttpOnly; SameSite=Lax; Max-Age={COOKIE_S}{secure}"
    );
    sent_to(&to, &[cookie])
}

/// `GET /v1/session/oidc/callback`: the browser comes back, with a code.
pub(crate) async fn end(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    stranger(&shared, address)?;
    let provider = provider(&shared)?;
    let query = request.uri().query().unwrap_or_default();
    let value = |key: &str| value_of(query, key);
    let browser = cookie(request.headers(), COOKIE).unwrap_or_default();
    let from = address.to_string();
    let ended = match (value("state"), value("code")) {
        (Some(state), Some(code)) => {
            provider.end(&state, &browser, value("iss").as_deref(), code).await
        }
        _ => Err(OidcError::Refused("the provider has logged nobody in".to_owned())),
    };
    let note = |who: &str, of: &str, result: &str| {
        shared.audit.note(who, &from, "log in by oidc", of, result);
    };
    let called = ended.inspect_err(|error| note("", "", &error.to_string()))?;
    let Some(who) = shared.with_access(|it| it.oidc(&called, unix_s()).cloned()) else {
        let why = "nobody is let in whom the provider calls so";
        note("", &called, why);
        return Err(Problem::forbidden(format!("{why}: {called}")));
    };
    let session = cookie_of_session(&shared, &who)?;
    note(&who.name, "", "ok");
    // Nothing that came with the request says where this leads.
    let gone = format!("{COOKIE}=; Path={RETURN_PATH}; HttpOnly; SameSite=Lax; Max-Age=0");
    sent_to("/", &[session, gone])
}

fn sent_to(place: &str, cookies: &[String]) -> Result<Response, Problem> {
    let value = |text: &str| {
        HeaderValue::try_from(text)
            .map_err(|error| Problem::new(StatusCode::BAD_GATEWAY, error.to_string()))
    };
    let mut response = StatusCode::SEE_OTHER.into_response();
    response.headers_mut().insert(header::LOCATION, value(place)?);
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, value(cookie)?);
    }
    Ok(response)
}
