//! Requests to the daemon.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use api::{Answer, Reply, Request, Role, StorageRequest, Target, Targets, Wait};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use gate::{Repeat, Stored};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::objects::uuid_of;
use crate::admit::Caller;
use crate::daemon::{Call, CallError};
use crate::limited::{Leave, Permitted, permit};
use crate::problem::Problem;
use crate::running;
use crate::shared::{Shared, lock, unix_s};
use crate::turns::Turn;

/// Longest key of a client's request.
const KEY_BYTES_MAX: usize = 128;

/// `POST /v1/requests/{op}`: a request as on the host itself.
pub(crate) async fn ask(
    State(shared): State<Arc<Shared>>,
    Path(op): Path<String>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut fields = fields(&body)?;
    fields.insert("op".to_owned(), Value::from(op.as_str()));
    let request = serde_json::from_value::<Request>(Value::Object(fields));
    let request = request.map_err(|error| match error.to_string() {
        // The rest of the message names all that there are.
        why if why.starts_with(&format!("unknown variant `{op}`")) => {
            Problem::not_found(format!("{op:?} is no request; see /v1/openapi.json"))
        }
        why => Problem::bad_request(why),
    })?;
    give(&shared, &caller, &headers, request).await
}

/// The fields of a request; no body means none.
fn fields(body: &[u8]) -> Result<Map<String, Value>, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Problem::bad_request("the body is not a JSON object")),
        Err(error) => Err(Problem::bad_request(format!("the body is not JSON: {error}"))),
    }
}

/// What can be said with an action on a VM.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ActionFields {
    wait: Wait,
    acpi: bool,
    paused: bool,
}

/// `POST /v1/vms/{vm}/{action}`.
pub(crate) async fn act(
    State(shared): State<Arc<Shared>>,
    Path((vm, action)): Path<(String, String)>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let said = serde_json::from_value(Value::Object(fields(&body)?))
        .map_err(|error| Problem::bad_request(error.to_string()))?;
    // A VM that is not known here is not known to the daemon either, whose words are better.
    let target = Target(uuid_of(&shared.mirror_of(&caller.who.scope), &vm)?);
    let request = action_of(&action, target, &said).ok_or_else(|| {
        let all = ACTIONS.join(", ");
        Problem::not_found(format!("{action:?} is nothing to do with a VM; there are {all}"))
    })?;
    give(&shared, &caller, &headers, request).await
}

/// What can be done with a VM at `/v1/vms/{vm}`.
pub(crate) const ACTIONS: [&str; 8] =
    ["start", "shutdown", "reboot", "destroy", "pause", "unpause", "suspend", "resume"];

fn action_of(action: &str, target: Target, said: &ActionFields) -> Option<Request> {
    let ActionFields { wait, acpi, paused } = *said;
    let targets = || Targets::These(vec![target.clone()]);
    Some(match action {
        "start" => Request::Start { target, paused, progress: true },
        "shutdown" => Request::Shutdown { targets: targets(), wait, acpi, progress: true },
        "reboot" => Request::Reboot { targets: targets(), wait, acpi },
        "destroy" => Request::Destroy { target },
        "pause" => Request::Pause { target },
        "unpause" => Request::Unpause { target },
        "suspend" => Request::Suspend { target },
        "resume" => Request::Resume { target },
        _ => return None,
    })
}

/// `GET /v1/operations/{id}`: where its time goes.
pub(crate) async fn operation(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let _turn = shared.turns.take(&caller.who.name)?;
    let trace = match permit(&shared, &caller, Request::Trace { target: id })? {
        Leave::Ask(permitted) => {
            let ended = shared.daemon.call(&permitted.request, caller.who.role).await;
            permitted.show(&shared, ended)
        }
        Leave::Answer(reply) => Ok(reply),
    };
    match trace {
        Ok(Reply::Trace(trace)) => Ok(axum::Json(trace).into_response()),
        Ok(_) => Err(Problem::new(StatusCode::BAD_GATEWAY, "xylemd gave another answer")),
        Err(CallError::Refused(why)) => Err(Problem::not_found(why)),
        Err(error) => Err(error.into()),
    }
}

/// Gives a request to the daemon, in the way that the client wants.
async fn give(
    shared: &Arc<Shared>,
    caller: &Caller,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let leave = may_ask(shared, caller, request)?;
    let has = |name: header::HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|it| it.to_str().ok());
        values.into_iter().any(|it| it.contains(word))
    };
    let is_lines = has(header::ACCEPT, "application/x-ndjson");
    let permitted = match leave {
        Leave::Ask(permitted) => permitted,
        Leave::Answer(reply) => return answered(reply, is_lines),
    };
    let turn = shared.turns.take(&caller.who.name)?;
    let prefer = header::HeaderName::from_static("prefer");
    if let Some(key) = headers.get("idempotency-key").filter(|_| permitted.may_be_kept()) {
        let key = key.to_str().ok().filter(|it| !it.is_empty() && it.len() <= KEY_BYTES_MAX);
        let key = key.ok_or_else(|| {
            Problem::bad_request(format!(
                "Idempotency-Key: up to {KEY_BYTES_MAX} characters of ASCII"
            ))
        })?;
        return once(shared, caller, key, permitted, has(prefer, "respond-async"), turn).await;
    }
    if has(prefer, "respond-async") {
        return background(shared, caller, permitted).map(Done::into_response);
    }
    if is_lines {
        let call = shared.daemon.begin(&permitted.request, caller.who.role).await?;
        let (shared, caller) = (Arc::clone(shared), caller.clone());
        return lines(Follow { shared, caller, permitted, call, is_noted: false, _turn: turn });
    }
    foreground(shared, caller, permitted).await.map(Done::into_response)
}

/// An answer that the daemon was not asked for.
fn answered(reply: Reply, is_lines: bool) -> Result<Response, Problem> {
    let (kind, end) =
        if is_lines { ("application/x-ndjson", "\n") } else { ("application/json", "") };
    let text = serde_json::to_string(&Answer::Ok(reply)).unwrap_or_default() + end;
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Whether this client may ask for this, and anybody here.
fn may_ask(shared: &Shared, caller: &Caller, request: Request) -> Result<Leave, Problem> {
    let needs_descriptors = matches!(
        request,
        Request::MigrateReceive { .. }
            | Request::Relay(_)
            | Request::Storage(StorageRequest::VdiLend { .. } | StorageRequest::VdiPass { .. })
    );
    if needs_descriptors {
        // Whoever may not ask for it at all is told that.
        permit(shared, caller, request.clone())?;
        let what = api::name_of(&request);
        return Err(Problem::bad_request(format!("{what} works on the host itself only")));
    }
    permit(shared, caller, request)
}

/// An answer, before it is one of HTTP.
struct Done {
    status: StatusCode,
    body: String,
    location: Option<String>,
}

impl Done {
    /// One that was given before; where its task is, if it is one, is in its body.
    fn of_task(status: StatusCode, body: String) -> Self {
        let task = serde_json::from_str::<Value>(&body).ok();
        let task = task.as_ref().and_then(|it| it.get("task")?.as_str());
        let location = task.map(|number| format!("/v1/tasks/{number}"));
        Self { status, body, location }
    }

    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/json");
        let mut response = (self.status, self.body).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(location) = self.location.and_then(|it| HeaderValue::try_from(it).ok()) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }
}

async fn foreground(
    shared: &Arc<Shared>,
    caller: &Caller,
    permitted: Permitted,
) -> Result<Done, Problem> {
    let request = &permitted.request;
    // A client that goes away meanwhile cancels what can be cancelled; the log has it all the same.
    let watched = Watched { shared, caller, request, is_noted: false };
    let reply = shared.daemon.call(request, caller.who.role).await;
    watched.end(&reply);
    let reply = permitted.show(shared, reply);
    let body = serde_json::to_string(&Answer::Ok(reply?)).unwrap_or_default();
    Ok(Done { status: StatusCode::OK, body, location: None })
}

/// A request that is noted in the log when it ends, also if nobody waits for it any more.
struct Watched<'a> {
    shared: &'a Shared,
    caller: &'a Caller,
    request: &'a Request,
    is_noted: bool,
}

impl Watched<'_> {
    fn end(mut self, reply: &Result<Reply, CallError>) {
        let words = reply.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        note_change(self.shared, self.caller, self.request, &words);
        self.is_noted = true;
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if !self.is_noted {
            note_change(self.shared, self.caller, self.request, "the client went away");
        }
    }
}

fn background(
    shared: &Arc<Shared>,
    caller: &Caller,
    permitted: Permitted,
) -> Result<Done, Problem> {
    let number = running::start(shared, caller.asks(), permitted).ok_or_else(|| {
        Problem::too_many("there are too many tasks in progress; wait for one", 1)
    })?;
    let body = format!(r#"{{"task":"{number}"}}"#);
    let location = Some(format!("/v1/tasks/{number}"));
    Ok(Done { status: StatusCode::ACCEPTED, body, location })
}

/// Does a request that has a key, unless it has been done.
async fn once(
    shared: &Arc<Shared>,
    caller: &Caller,
    key: &str,
    permitted: Permitted,
    in_background: bool,
    _turn: Turn,
) -> Result<Response, Problem> {
    let name = &caller.who.name;
    let mut hasher = DefaultHasher::new();
    permitted.fingerprint().hash(&mut hasher);
    match lock(&shared.repeats).begin(name, key, hasher.finish(), unix_s()) {
        Repeat::New => {}
        Repeat::Answered(Stored { status, body }) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let mut response = Done::of_task(status, body).into_response();
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
            return Ok(response);
        }
        Repeat::UnderWay => {
            return Err(Problem::new(StatusCode::CONFLICT, "this request is in progress"));
        }
        Repeat::OtherRequest => {
            let why = "this Idempotency-Key was used for another request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why));
        }
        Repeat::TooMany => return Err(Problem::too_many("too many requests with keys", 1)),
    }
    // A client that hangs up, since it is about to ask again, does not end it.
    let (shared, caller, key) = (Arc::clone(shared), caller.clone(), key.to_owned());
    let work = tokio::spawn(async move {
        let done = if in_background {
            background(&shared, &caller, permitted)
        } else {
            foreground(&shared, &caller, permitted).await
        };
        let stored = match &done {
            Ok(done) => Some(Stored { status: done.status.as_u16(), body: done.body.clone() }),
            // The daemon has refused it: the next attempt is a new one.
            Err(_) => None,
        };
        lock(&shared.repeats).end(&caller.who.name, &key, stored);
        done
    });
    let done = work.await;
    done.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "it was cut off"))?
        .map(Done::into_response)
}

/// A request whose answers go to the client as they come.
struct Follow {
    shared: Arc<Shared>,
    caller: Caller,
    permitted: Permitted,
    call: Call,
    is_noted: bool,
    _turn: Turn,
}

impl Follow {
    fn note(&mut self, result: &str) {
        self.is_noted = true;
        note_change(&self.shared, &self.caller, &self.permitted.request, result);
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        if !self.is_noted {
            self.note("the client went away");
        }
    }
}

/// The daemon's lines, as on the host itself.
fn lines(follow: Follow) -> Result<Response, Problem> {
    let pieces = stream::unfold(Some(follow), |follow| async move {
        let mut follow = follow?;
        let answer = match follow.call.next().await {
            Ok(answer) => answer,
            Err(error) => Answer::Error(error.to_string()),
        };
        let answer = follow.permitted.answer(&follow.shared, answer);
        let line = Bytes::from(api::encode_answer(&answer));
        let rest = match &answer {
            Answer::Ok(_) => {
                follow.note("ok");
                None
            }
            Answer::Error(why) => {
                follow.note(why);
                None
            }
            Answer::Progress(_) | Answer::Event(_) | Answer::Warning(_) | Answer::Changed(_) => {
                Some(follow)
            }
        };
        Some((Ok::<_, std::convert::Infallible>(line), rest))
    });
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "application/x-ndjson")
        .body(Body::from_stream(pieces));
    response.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Requests that only look are not in the log.
fn note_change(shared: &Shared, caller: &Caller, request: &Request, result: &str) {
    if Role::needed(request) > Role::Viewer {
        shared.own_writes.note(&caller.who.name);
        note(shared, caller, request, result);
    }
}

/// Notes what was asked, and what came of it.
pub(crate) fn note(shared: &Shared, caller: &Caller, request: &Request, result: &str) {
    let (what, of) = (api::name_of(request), subject(request));
    shared.audit.note(&caller.who.name, &caller.address.to_string(), &what, &of, result);
}

/// What a request is about, for the log: names, never contents.
pub(crate) fn subject(request: &Request) -> String {
    let json = serde_json::to_value(request).unwrap_or_default();
    let of = |key: &str| match json.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(all) => {
            let all = all.iter().filter_map(|it| it.as_str().or_else(|| it.get("path")?.as_str()));
            Some(all.collect::<Vec<_>>().join(" "))
        }
        Value::Object(map) => {
            let these = map.get("these")?.as_array()?;
            Some(these.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
        }
        _ => None,
    };
    let keys =
        ["target", "targets", "vm", "vdi", "name", "pool", "file", "path", "paths", "values"];
    let found = keys.into_iter().find_map(of).filter(|it| !it.is_empty());
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_a_request_is_about_and_no_contents() {
        let target = || Target("web".to_owned());
        for (request, expected) in [
            (Request::Pause { target: target() }, "web"),
            (
                Request::Reboot {
                    targets: Targets::These(vec![target(), Target("db".to_owned())]),
                    wait: Wait::Asked,
                    acpi: false,
                },
                "web db",
            ),
            (Request::Reboot { targets: Targets::All, wait: Wait::Asked, acpi: false }, "all"),
            (
                Request::Create(api::Create {
                    file: "web.cfg".to_owned(),
                    config_text: "vncpasswd = 'secret'".to_owned(),
                    ..api::Create::default()
                }),
                "web.cfg",
            ),
            (Request::Storage(StorageRequest::VdiDestroy { vdi: "sr:a".to_owned() }), "sr:a"),
            (Request::StartAll, ""),
        ] {
            assert_eq!(subject(&request), expected);
        }
    }

    #[test]
    fn each_action_is_a_request() {
        for action in ACTIONS {
            let request = action_of(action, Target("u".to_owned()), &ActionFields::default());
            assert_eq!(api::name_of(&request.unwrap()), action);
        }
        assert_eq!(action_of("explode", Target("u".to_owned()), &ActionFields::default()), None);
    }
}
