//! The bytes of disks, between `xylemd` and clients.

use std::sync::Arc;
use std::time::Duration;

use api::{Request, StorageRequest};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::admit::Caller;
use crate::daemon::{CallError, Joined};
use crate::limited::permit;
use crate::problem::Problem;
use crate::shared::Shared;
use crate::turns::Turn;

const READ_BYTES: usize = 256 << 10;
/// For a client to send something, or for the host's storage.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A disk that is passed, and what is noted of it in the end.
pub(crate) struct Passed {
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    is_noted: bool,
    _turn: Turn,
}

impl Passed {
    /// Begins to pass one.
    pub(crate) async fn begin(
        shared: Arc<Shared>,
        caller: Caller,
        vdi: String,
        write: bool,
    ) -> Result<(Self, Joined), Problem> {
        let request = Request::Storage(StorageRequest::VdiPass { vdi, write });
        permit(&shared, &caller, request.clone())?;
        let turn = shared.turns.take(&caller.who.name)?;
        let passed = Self { shared, caller, request, is_noted: false, _turn: turn };
        let role = passed.caller.who.role;
        let joined = passed.shared.daemon.join(&passed.request, role).await?;
        Ok((passed, joined))
    }

    /// Why it is not passed at all.
    pub(crate) async fn refused(&mut self, joined: Joined) -> CallError {
        let closed = || CallError::Unreachable("it has closed the connection".to_owned());
        let why = joined.ended().await.err().unwrap_or_else(closed);
        self.note(&why.to_string());
        why
    }

    pub(crate) fn note(&mut self, result: &str) {
        self.is_noted = true;
        super::requests::note(&self.shared, &self.caller, &self.request, result);
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if !self.is_noted {
            self.note("the client went away");
        }
    }
}

/// `GET /v1/vdis/{vdi}/data`.
pub(crate) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(vdi): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let (mut passed, mut joined) = Passed::begin(shared, caller, vdi, false).await?;
    // What cannot be read is refused before there is an answer.
    let first = match next(&mut joined).await {
        Ok(Some(first)) => first,
        _ => return Err(passed.refused(joined).await.into()),
    };
    let state = Some((passed, joined, Some(first)));
    let pieces = stream::unfold(state, |state| async {
        let (mut passed, mut joined, first) = state?;
        if let Some(first) = first {
            return Some((Ok(first), Some((passed, joined, None))));
        }
        match next(&mut joined).await {
            Ok(Some(piece)) => Some((Ok(piece), Some((passed, joined, None)))),
            Ok(None) => match joined.ended().await {
                Ok(()) => {
                    passed.note("ok");
                    None
                }
                Err(error) => {
                    passed.note(&error.to_string());
                    Some((Err(std::io::Error::other(error)), None))
                }
            },
            Err(error) => Some((Err(error), None)),
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

/// The next bytes of a disk.
async fn next(joined: &mut Joined) -> std::io::Result<Option<Bytes>> {
    let mut piece = vec![0; READ_BYTES];
    let read = timeout(SILENCE_MAX, joined.stream.read(&mut piece)).await;
    let count = read.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
    piece.truncate(count);
    Ok((count > 0).then(|| Bytes::from(piece)))
}

/// `PUT /v1/vdis/{vdi}/data`.
pub(crate) async fn write(
    State(shared): State<Arc<Shared>>,
    Path(vdi): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, Problem> {
    let (mut passed, mut joined) = Passed::begin(shared, caller, vdi, true).await?;
    // A client that expects to be told to go on (100) has sent nothing yet if it is refused.
    if !matches!(timeout(SILENCE_MAX, joined.stream.read_u8()).await, Ok(Ok(_))) {
        return Err(passed.refused(joined).await.into());
    }
    let mut body = body.into_data_stream();
    let mut lost = None;
    loop {
        match timeout(SILENCE_MAX, body.next()).await {
            Ok(None) => break,
            Ok(Some(Ok(piece))) => {
                // The daemon says why it takes no more.
                if joined.stream.write_all(&piece).await.is_err() {
                    break;
                }
            }
            Ok(Some(Err(_))) => {
                lost = Some("the client went away");
                break;
            }
            Err(_) => {
                lost = Some("the client sends nothing more");
                break;
            }
        }
    }
    let _closed = joined.stream.shutdown().await;
    let ended = joined.ended().await;
    if let Some(why) = lost {
        passed.note(why);
        return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, why));
    }
    passed.note(&ended.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned()));
    ended?;
    Ok(axum::Json(serde_json::json!({ "ok": "done" })).into_response())
}
