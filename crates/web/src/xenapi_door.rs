//! XenAPI, for clients that speak to XAPI.

mod contents;
mod updates;
mod visitor;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::{Answer, RelayRequest, Request as ApiRequest, Role, Target};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State, WebSocketUpgrade};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use futures_util::StreamExt as _;
use gate::{Scope, Who};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use xenapi::{Asking, Facade, Identity, Login, Moment, Outcome, Shown, Waiting, rpc};

use crate::admit::{cookie, pace, peer, stranger};
use crate::consoles::{Look, Viewer, attach, upgrade_of};
use crate::first_copy::{FIRST_COPY, nothing_yet};
use crate::problem::Problem;
use crate::routes::{log_in, page, subject, value_of};
use crate::running::Asks;
use crate::shared::{Shared, lock, random, unix_ms, unix_s};

/// How often it is looked whether a question to the daemon is due.
const POLL: Duration = Duration::from_millis(200);
/// How often it is looked whether the host is known, while it is not.
const LOOK: Duration = Duration::from_millis(20);
/// Between attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(500);
/// Calls that are answered or waited for at a time.
const CALLS_MAX: usize = 1024;
/// What a client still sends of a call that is too long is taken for so long.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// The usual port.
const HTTPS: u16 = 443;
/// Of a client's words in an error.
const WHY: &str = "malformed";

type Answering = Pin<Box<dyn Future<Output = xenapi::Answer> + Send>>;

pub(crate) struct Door {
    shared: Arc<Shared>,
    facade: Mutex<Facade>,
    /// The façade's revision.
    changed: watch::Sender<u64>,
    calls: tokio::sync::Semaphore,
    /// Where labels are kept, and which were written last.
    labels: Option<PathBuf>,
    began: Instant,
}

impl Door {
    /// Labels are kept in this file.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        address: String,
        port: u16,
        labels: Option<PathBuf>,
    ) -> Result<Self> {
        let kept = match &labels {
            Some(path) => read(path)?,
            None => serde_json::Value::Null,
        };
        let uname = rustix::system::uname();
        let now_s = unix_s();
        let uptime = u64::try_from(rustix::system::sysinfo().uptime).unwrap_or_default();
        let identity = Identity {
            host: host_uuid(),
            hostname: uname.nodename().to_string_lossy().into_owned(),
            authority: authority(&address, port),
            address,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: now_s,
            booted_unix_s: now_s.saturating_sub(uptime),
        };
        let facade = Facade::new(identity, unix_ms().saturating_mul(1000), &kept);
        let (changed, _) = watch::channel(facade.revision());
        let calls = tokio::sync::Semaphore::new(CALLS_MAX);
        let (shared, facade) = (Arc::clone(shared), Mutex::new(facade));
        let began = Instant::now();
        Ok(Self { shared, facade, changed, calls, labels, began })
    }

    /// What is done with the façade may have changed it: whoever waits for that is told.
    fn with<T>(&self, work: impl FnOnce(&mut Facade) -> T) -> T {
        let mut facade = lock(&self.facade);
        let done = work(&mut facade);
        let revision = facade.revision();
        drop(facade);
        self.changed.send_if_modified(|last| std::mem::replace(last, revision) != revision);
        done
    }

    /// Waits until the host is known, if that comes soon: a client that followed an earlier process comes back at once, and
    /// takes what is missing for gone, or a refusal for a reason to stay away for long.
    async fn first_copy(&self) {
        let is_known = || {
            let facade = lock(&self.facade);
            facade.is_known() || (facade.is_whole() && self.began.elapsed() >= FIRST_COPY)
        };
        let known = async {
            while !is_known() {
                sleep(LOOK).await;
            }
        };
        let _late = timeout(FIRST_COPY, known).await;
    }

    /// Follows the daemon for as long as this process lives.
    pub(crate) async fn follow(&self) {
        tokio::join!(self.follow_objects(), self.poll(), self.keep_labels());
    }

    async fn follow_objects(&self) {
        loop {
            let request = self.with(|facade| facade.follow());
            match self.shared.daemon.follow(&request).await {
                Ok(reply) => self.with(|facade| facade.learn(&request, &reply)),
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    async fn poll(&self) {
        // What a daemon that is not there is asked would not be asked again for long, or at all.
        while !lock(&self.facade).is_whole() {
            sleep(LOOK).await;
        }
        loop {
            while let Some(request) = self.with(|facade| facade.due(unix_ms())) {
                match self.shared.daemon.follow(&request).await {
                    Ok(reply) => self.with(|facade| facade.learn(&request, &reply)),
                    // It will be due again.
                    Err(_) => sleep(RETRY).await,
                }
            }
            sleep(POLL).await;
        }
    }

    async fn keep_labels(&self) {
        let Some(path) = &self.labels else { return };
        let mut kept = lock(&self.facade).labels_revision();
        loop {
            sleep(Duration::from_secs(1)).await;
            let (revision, labels) = {
                let facade = lock(&self.facade);
                if facade.labels_revision() == kept {
                    continue;
                }
                facade.labels()
            };
            match write(path, &labels) {
                Ok(()) => kept = revision,
                Err(error) => eprintln!("<3>labels of XenAPI cannot be kept: {error:#}"),
            }
        }
    }

    /// Whoever waits for events is told that its session is over, and begins a new one with the next process. Hung up on, or
    /// told anything else, Xen Orchestra would stay away for a minute.
    pub(crate) fn end_sessions(&self) {
        self.with(Facade::end_sessions);
        self.changed.send_modify(|_| ());
    }

    /// Does what comes of a call until there is an answer.
    fn carry_out(self: Arc<Self>, outcome: Outcome, from: String) -> Answering {
        Box::pin(async move {
            let mut outcome = outcome;
            loop {
                outcome = match outcome {
                    Outcome::Reply(answer) => return answer,
                    Outcome::Authenticate(login) => {
                        let user = self.authenticate(&login, &from).await;
                        let moment = self.moment()?;
                        self.with(|it| it.authenticated(login, user, &moment))
                    }
                    Outcome::Ask(asking) => {
                        let replies = self.ask(&asking, &from).await;
                        self.with(|facade| facade.answered(asking, replies, unix_ms()))
                    }
                    Outcome::Wait(waiting) => self.wait(waiting).await,
                    Outcome::Started { task, work } => {
                        // Nobody waits for its answer: its task has it.
                        let _going_on = tokio::spawn(Arc::clone(&self).carry_out(*work, from));
                        return Ok(task);
                    }
                }
            }
        })
    }

    /// Waits until what is waited for may have come.
    async fn wait(&self, waiting: Waiting) -> Outcome {
        let mut changed = self.changed.subscribe();
        let left = waiting.deadline_unix_ms.saturating_sub(unix_ms());
        // It may have changed before we watched.
        match self.with(|facade| facade.woken(waiting, unix_ms())) {
            Outcome::Wait(waiting) => {
                let _late = timeout(Duration::from_millis(left), changed.changed()).await;
                self.with(|facade| facade.woken(waiting, unix_ms()))
            }
            other => other,
        }
    }

    fn moment(&self) -> Result<Moment, xenapi::Failure> {
        let fresh = random::<16>().map_err(|error| {
            xenapi::Failure::new("INTERNAL_ERROR", [error.to_string().as_str()])
        })?;
        Ok(Moment { unix_ms: unix_ms(), fresh: xen::Uuid::of_random(fresh) })
    }

    /// A user with a password, or a client with its token in place of one.
    async fn authenticate(&self, login: &Login, from: &str) -> Option<(String, Role)> {
        let said = log_in(&self.shared, &login.name, &login.password, from).await;
        let who = said.ok()?;
        // The façade tells of the whole host.
        (who.scope == Scope::Host).then_some((who.name, who.role))
    }

    /// Asks the daemon for all of these, up to the first that fails.
    async fn ask(self: &Arc<Self>, asking: &Asking, from: &str) -> Vec<Result<api::Reply, String>> {
        let mut replies = Vec::new();
        for request in &asking.requests {
            let reply = match asking.role.refusal(request) {
                Some(why) => Err(why),
                None => self.ask_one(asking, request).await,
            };
            if Role::needed(request) > Role::Viewer {
                let result = reply.as_ref().map_or_else(String::as_str, |_| "ok");
                let (what, of) = (api::name_of(request), subject(request));
                self.shared.audit.note(&asking.who, from, &what, &of, result);
            }
            let failed = reply.is_err();
            replies.push(reply);
            if failed {
                break;
            }
        }
        replies
    }

    async fn ask_one(&self, asking: &Asking, request: &ApiRequest) -> Result<api::Reply, String> {
        let words = |error: crate::daemon::CallError| error.to_string();
        let holds = || self.is_known(&asking.who, asking.role);
        let begun = self.shared.daemon.begin_patiently(request, asking.role, holds).await;
        let mut call = begun.map_err(words)?;
        let mut changed = self.changed.subscribe();
        loop {
            let answer = tokio::select! {
                answer = call.next() => answer.map_err(words)?,
                _ = changed.changed() => {
                    if lock(&self.facade).is_given_up(asking) {
                        return Err("it was cancelled".to_owned());
                    }
                    continue;
                }
            };
            match answer {
                Answer::Ok(reply) => return Ok(reply),
                Answer::Error(why) => return Err(why),
                Answer::Progress(_)
                | Answer::Event(_)
                | Answer::Warning(_)
                | Answer::Changed(_) => {}
            }
        }
    }

    fn is_known(&self, who: &str, role: Role) -> bool {
        let scope = Scope::Host;
        self.shared.knows(&Who { name: who.to_owned(), role, expires: None, scope })
    }

    /// Whose session this is. Whoever was removed from the file is out, whatever sessions there are.
    fn known_user(&self, session: &str) -> Option<(String, Role)> {
        let user = self.with(|facade| facade.user(session, unix_ms())).ok();
        user.filter(|(who, role)| self.is_known(who, *role))
    }

    /// Whether this call may come now: those of a session are counted for its user, others for their address. If the user
    /// is not let in any more, or has another role, what the client is answered.
    fn may_come(
        &self,
        session: &str,
        from: &crate::admit::Peer,
    ) -> Result<Option<xenapi::Failure>, Problem> {
        let Ok((who, role)) = self.with(|facade| facade.user(session, unix_ms())) else {
            return stranger(&self.shared, from.address).map(|()| None);
        };
        pace(&self.shared, &who)?;
        let is_out = !self.is_known(&who, role);
        Ok(is_out.then(|| xenapi::Failure::new("SESSION_INVALID", [session])))
    }
}

/// What is posted to a path of no other, and what browsers ask before they post it.
pub(crate) fn router(door: Arc<Door>) -> Router {
    let (export, import) = (get(contents::export), put(contents::import));
    Router::new()
        .route("/rrd_updates", get(updates::serve))
        .route("/export_raw_vdi", export.clone())
        .route("/export_raw_vdi/", export)
        .route("/import_raw_vdi", import.clone())
        .route("/import_raw_vdi/", import)
        .fallback(serve)
        .with_state(door)
}

async fn serve(State(door): State<Arc<Door>>, request: Request) -> Response {
    let is_api = request.uri().path().starts_with("/v1/");
    let mut response = match *request.method() {
        Method::POST if !is_api => match answer(&door, request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        Method::GET if request.uri().path() == "/console" => {
            console(&door, request).await.unwrap_or_else(IntoResponse::into_response)
        }
        Method::OPTIONS if !is_api => StatusCode::OK.into_response(),
        _ => {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            return page::file(method, uri, request.headers().clone()).await;
        }
    };
    open_to_pages(&mut response);
    response
}

/// Pages from elsewhere may call: a session is named in the call, never by what a browser sends on its own.
fn open_to_pages(response: &mut Response) {
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "X-Requested-With, Content-Type"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

/// The body of a call.
async fn body_of(request: Request) -> Result<Vec<u8>, Problem> {
    let mut parts = request.into_body().into_data_stream();
    let mut body = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| Problem::bad_request(error.to_string()))?;
        if body.len() + part.len() > rpc::BODY_BYTES_MAX {
            contents::take_leave(&mut parts, LEAVE_MAX).await;
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too long a call"));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

async fn answer(door: &Arc<Door>, request: Request) -> Result<Response, Problem> {
    let peer = peer(&request)?;
    let path = request.uri().path().to_owned();
    let Ok(_turn) = door.calls.try_acquire() else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many calls; try again"));
    };
    let body = body_of(request).await?;
    let Ok((call, form)) = rpc::decode(&path, &body) else {
        stranger(&door.shared, peer.address)?;
        // As XAPI answers.
        let text = format!("<html><body>{WHY}</body></html>");
        let kind = [(header::CONTENT_TYPE, "text/html")];
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, kind, text).into_response());
    };
    let from = peer.address.to_string();
    let session = call.params.first().and_then(xenapi::Value::as_str).unwrap_or_default();
    let answer = match (door.may_come(session, &peer)?, door.moment()) {
        (Some(ended), _) => Err(ended),
        (None, Ok(moment)) => {
            if !["session.", "system."].iter().any(|it| call.method.starts_with(it)) {
                door.first_copy().await;
            }
            let outcome = door.with(|facade| facade.call(&call, &moment));
            Arc::clone(door).carry_out(outcome, from).await
        }
        (None, Err(failure)) => Err(failure),
    };
    let mut response = Response::new(Body::from(form.encode(&answer)));
    let kind = HeaderValue::from_static(form.content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// `GET /console?uuid=..&session_id=..`: a console or a screen, by WebSocket. A page names its session in the query, so
/// that no other site can use it; programs, Xen Orchestra's server for one, may send it as a cookie.
async fn console(door: &Arc<Door>, request: Request) -> Result<Response, Problem> {
    let peer = peer(&request)?;
    let query = request.uri().query().unwrap_or_default();
    let value = |key| value_of(query, key).unwrap_or_default();
    let session = value_of(query, "session_id").or_else(|| sent_session(request.headers()));
    let session = session.unwrap_or_default();
    let name = value_of(query, "uuid").unwrap_or(value("ref"));
    let is_out = door.may_come(&session, &peer)?.is_some();
    let user = door.with(|facade| facade.user(&session, unix_ms()));
    let Some((who, role)) = user.ok().filter(|_| !is_out) else {
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "this session_id is not known"));
    };
    door.first_copy().await;
    if !lock(&door.facade).is_whole() {
        return Err(nothing_yet(&door.shared.mirror));
    }
    let found = lock(&door.facade).console(&name);
    let (vm, shown) =
        found.ok_or_else(|| Problem::not_found(format!("{name} is not a console here")))?;
    let target = Target(vm.to_string());
    let text = |target| RelayRequest::Console { target, kind: None, number: 0 };
    let (relay, look) = match shown {
        Shown::Screen => (RelayRequest::Screen { target }, Look::Plain),
        Shown::Text => (text(target), Look::Plain),
        Shown::Drawn => (text(target), Look::Drawn),
    };
    let (mut parts, _) = request.into_parts();
    let upgrade = upgrade_of(WebSocketUpgrade::from_request_parts(&mut parts, &()).await)?;
    let asks = Asks { who: who.clone(), from: peer.address.to_string(), role };
    let looks = Arc::clone(door);
    let is_let_in = move || looks.known_user(&session).is_some_and(|it| it == (who.clone(), role));
    let viewer = Viewer { asks, is_let_in: Box::new(is_let_in) };
    attach(&door.shared, viewer, ApiRequest::Relay(relay), look, upgrade).await
}

/// The session in a cookie, which a browser would send for any page: browsers say which one that is.
fn sent_session(headers: &HeaderMap) -> Option<String> {
    let is_browser = headers.contains_key(header::ORIGIN);
    cookie(headers, "session_id").filter(|_| !is_browser)
}

/// An address and a port as they are in a URL.
fn authority(address: &str, port: u16) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    if port == HTTPS { host } else { format!("{host}:{port}") }
}

/// The host's, which stays the same: it follows from the machine's own, which is not for others to know.
fn host_uuid() -> xen::Uuid {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    xenapi::derived(xen::Uuid([0; 16]), "host", id.trim())
}

fn read(path: &Path) -> Result<serde_json::Value> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn write(path: &Path, labels: &serde_json::Value) -> Result<()> {
    let new = path.with_extension("new");
    let written =
        std::fs::write(&new, labels.to_string()).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _none = std::fs::remove_file(&new);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}
