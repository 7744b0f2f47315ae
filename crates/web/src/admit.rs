//! Who a request comes from, and whether it is let in.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gate::Who;

use crate::problem::Problem;
use crate::running::Asks;
use crate::shared::{Shared, lock, unix_s};

/// The cookie of a session.
pub(crate) const COOKIE: &str = "xylem-session";
/// What a page has to send along with a cookie, and no other site can.
pub(crate) const OWN_REQUEST: &str = "xylem-request";

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Its certificate, which our CA has signed.
    pub(crate) certificate: Option<Arc<[u8]>>,
}

/// A client that was let in.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) who: Who,
    pub(crate) address: IpAddr,
    /// The session's key, if that is how it is known.
    pub(crate) session: Option<String>,
}

impl Caller {
    pub(crate) fn asks(&self) -> Asks {
        Asks { who: self.who.name.clone(), from: self.address.to_string(), role: self.who.role }
    }
}

/// Lets a request in, or answers it.
pub(crate) async fn admit(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    match caller(&shared, &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

pub(crate) fn peer(request: &Request) -> Result<Peer, Problem> {
    let known = request.extensions().get::<Peer>().cloned();
    known.ok_or_else(|| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "nobody is there"))
}

fn caller(shared: &Shared, request: &Request) -> Result<Caller, Problem> {
    let peer = peer(request)?;
    let headers = request.headers();
    is_ours(headers)?;
    let caller = match identify(shared, headers, &peer)? {
        Some(caller) => caller,
        None => {
            stranger(shared, peer.address)?;
            return Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "log in first: send a token as \"Authorization: Bearer TOKEN\"",
            ));
        }
    };
    // A form or a script of another site can neither read this page's cookie nor send this header with it.
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if caller.session.is_some() && !is_read && !headers.contains_key(OWN_REQUEST) {
        return Err(Problem::forbidden("with a session, requests need the header Xylem-Request"));
    }
    // A WebSocket is asked for by reading, does more than that, and browsers name the page's site.
    let is_socket = headers.contains_key(header::UPGRADE);
    if caller.session.is_some() && is_socket && !headers.contains_key(header::ORIGIN) {
        return Err(Problem::forbidden("with a session, a WebSocket needs the header Origin"));
    }
    pace(shared, &caller.who.name)?;
    Ok(caller)
}

/// Counts a request of somebody who is known.
pub(crate) fn pace(shared: &Shared, who: &str) -> Result<(), Problem> {
    let now = shared.now_ns();
    let taken = lock(&shared.pace).take(who, now);
    taken.map_err(|wait_ns| too_often(shared, who, wait_ns))
}

fn too_often(shared: &Shared, who: &str, wait_ns: u64) -> Problem {
    shared.metrics.paced();
    let seconds = wait_ns.div_ceil(1_000_000_000);
    Problem::too_many(format!("{who} asks too often; try again"), seconds)
}

/// A page of another site names itself in `Origin`; a name of ours that leads elsewhere shows in `Host`.
pub(crate) fn is_ours(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let origin = origin.to_str().unwrap_or_default();
    let site = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    if site == Some(host) && !host.is_empty() {
        Ok(())
    } else {
        Err(Problem::forbidden("this comes from a page of another site"))
    }
}

/// Counts a request of somebody who is not known.
pub(crate) fn stranger(shared: &Shared, address: IpAddr) -> Result<(), Problem> {
    let now = shared.now_ns();
    let from = address.to_string();
    let taken = lock(&shared.strangers).take(&from, now);
    taken.map_err(|wait_ns| too_often(shared, &from, wait_ns))
}

fn identify(shared: &Shared, headers: &HeaderMap, peer: &Peer) -> Result<Option<Caller>, Problem> {
    let now_s = unix_s();
    let known = |who: Who, session| Some(Caller { who, address: peer.address, session });
    if let Some(given) = headers.get(header::AUTHORIZATION) {
        let token =
            given.to_str().ok().and_then(|it| it.strip_prefix("Bearer ")).unwrap_or_default();
        return by_token(shared, token.trim(), peer.address).map(|who| known(who, None));
    }
    if let Some(key) = cookie(headers, COOKIE) {
        let name = lock(&shared.sessions).go_on(&key, now_s).map(str::to_owned);
        // Whoever was removed from the file is out, whatever sessions there are.
        let who = name.and_then(|name| shared.with_access(|it| it.named(&name, now_s).cloned()));
        return Ok(who.and_then(|who| known(who, Some(key))));
    }
    let certificate = peer.certificate.as_ref();
    let who =
        certificate.and_then(|der| shared.with_access(|it| it.certificate(der, now_s).cloned()));
    Ok(who.and_then(|who| known(who, None)))
}

/// Whose token this is. Those who guess are locked out, by their address.
pub(crate) fn by_token(shared: &Shared, token: &str, address: IpAddr) -> Result<Who, Problem> {
    let now_s = unix_s();
    let of = address.to_string();
    let remaining = lock(&shared.lockout).remaining_s(&of, now_s);
    if let Some(who) = shared.with_access(|it| it.token(token, now_s).cloned()) {
        // Nobody guesses a token of 256 bits: the lock-out is not for those who have one.
        return Ok(who);
    }
    if remaining > 0 {
        return Err(Problem::too_many(
            format!("{address} has shown wrong tokens; it is locked out for {remaining} s"),
            remaining,
        ));
    }
    lock(&shared.lockout).failed(&of, now_s);
    shared.audit.note("", &of, "log in by token", "", "this token is not known, or has expired");
    Err(Problem::new(StatusCode::UNAUTHORIZED, "this token is not known, or has expired"))
}

/// The value of a cookie.
pub(crate) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let pairs = cookies.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}
