//! Log-ins of browsers by a provider of OpenID Connect: the way there, and the way back.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
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

/// Why nobody was logged in. A program gets it in words, and a person's browser shows the page, which has words for the
/// code: nothing that came from the provider, or in the address, is in it.
struct Failed {
    problem: Problem,
    code: &'static str,
}

impl From<OidcError> for Failed {
    fn from(error: OidcError) -> Self {
        let detail = error.to_string();
        let (code, problem) = match error {
            OidcError::Busy => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                ("busy", Problem { status, detail, retry_after_s: Some(1) })
            }
            OidcError::Provider(_) => ("provider", Problem::new(StatusCode::BAD_GATEWAY, detail)),
            OidcError::Refused(_) => ("refused", Problem::new(StatusCode::UNAUTHORIZED, detail)),
            OidcError::Stale => ("stale", Problem::new(StatusCode::UNAUTHORIZED, detail)),
        };
        Self { problem, code }
    }
}

impl Failed {
    fn of(code: &'static str) -> impl Fn(Problem) -> Self {
        move |problem| Self { problem, code }
    }

    fn into_response(self, head: &Parts) -> Response {
        let accept = head.headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
        let is_browser = accept.into_iter().any(|it| it.contains("text/html"));
        let page = is_browser.then(|| sent_to(&format!("/#log-in={}", self.code), &[]).ok());
        page.flatten().unwrap_or_else(|| self.problem.into_response())
    }
}

fn provider(shared: &Shared) -> Result<&Arc<Oidc>, Failed> {
    let none = || Problem::not_found("this host has no provider of OpenID Connect");
    shared.oidc.get().ok_or_else(none).map_err(Failed::of("none"))
}

/// `GET /v1/session/oidc`: sends a browser to the provider.
pub(crate) async fn begin(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    let (head, _) = request.into_parts();
    Ok(begun(&shared, address).await.unwrap_or_else(|failed| failed.into_response(&head)))
}

async fn begun(shared: &Shared, address: IpAddr) -> Result<Response, Failed> {
    stranger(shared, address).map_err(Failed::of("busy"))?;
    let (to, browser) = provider(shared)?.begin().await?;
    let secure = if shared.is_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={browser}; Path={RETURN_PATH}; HttpOnly; SameSite=Lax; Max-Age={COOKIE_S}{secure}"
    );
    sent_to(&to, &[cookie]).map_err(Failed::of("provider"))
}

/// `GET /v1/session/oidc/callback`: the browser comes back, with a code.
pub(crate) async fn end(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    let (head, _) = request.into_parts();
    let ended = ended(&shared, &head, address).await;
    Ok(ended.unwrap_or_else(|failed| failed.into_response(&head)))
}

async fn ended(shared: &Shared, head: &Parts, address: IpAddr) -> Result<Response, Failed> {
    stranger(shared, address).map_err(Failed::of("busy"))?;
    let provider = provider(shared)?;
    let query = head.uri.query().unwrap_or_default();
    let value = |key: &str| value_of(query, key);
    let browser = cookie(&head.headers, COOKIE).unwrap_or_default();
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
        let problem = Problem::forbidden(format!("{why}: {called}"));
        return Err(Failed { problem, code: "unknown" });
    };
    let session = cookie_of_session(shared, &who).map_err(Failed::of("busy"))?;
    note(&who.name, "", "ok");
    // Nothing that came with the request says where this leads.
    let gone = format!("{COOKIE}=; Path={RETURN_PATH}; HttpOnly; SameSite=Lax; Max-Age=0");
    sent_to("/", &[session, gone]).map_err(Failed::of("provider"))
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
