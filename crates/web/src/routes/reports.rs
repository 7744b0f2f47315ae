//! Reports about the host, which `xylemd` has made there.

use std::sync::Arc;
use std::time::Duration;

use api::{RelayRequest, Report, Request};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::admit::Caller;
use crate::limited::permit;
use crate::problem::Problem;
use crate::shared::Shared;
use crate::turns::Turn;

/// Of what a doctor finds.
const FINDINGS_BYTES_MAX: u64 = 1 << 20;
/// Of a bug report.
const REPORT_BYTES_MAX: usize = 256 << 20;
const READ_BYTES: usize = 64 << 10;
/// For the next bytes: a program that hangs is waited for by the report itself, but not for so long.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// `GET /v1/doctor`.
pub(crate) async fn doctor(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let (said, _turn) = begin(&shared, &caller, Report::Doctor).await?;
    let mut text = Vec::new();
    let mut said = said.take(FINDINGS_BYTES_MAX);
    let read = timeout(SILENCE_MAX, said.read_to_end(&mut text)).await;
    match read {
        Ok(Ok(count)) if count > 0 => {
            Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
        }
        _ => Err(Problem::new(StatusCode::BAD_GATEWAY, "the host's xy says nothing")),
    }
}

/// `GET /v1/bugreport`.
pub(crate) async fn bugreport(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let (said, turn) = begin(&shared, &caller, Report::Bugreport).await?;
    let pieces = stream::unfold(Some((said, turn, 0)), |state| async {
        let (mut said, turn, sent) = state?;
        let mut piece = vec![0; READ_BYTES];
        let read = timeout(SILENCE_MAX, said.read(&mut piece)).await;
        match read.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(0) => None,
            Ok(count) if sent + count <= REPORT_BYTES_MAX => {
                piece.truncate(count);
                Some((Ok(Bytes::from(piece)), Some((said, turn, sent + count))))
            }
            Ok(_) => Some((Err(std::io::Error::other("it is too long")), None)),
            Err(error) => Some((Err(error), None)),
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-tar")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

/// Has it made.
async fn begin(
    shared: &Arc<Shared>,
    caller: &Caller,
    of: Report,
) -> Result<(UnixStream, Turn), Problem> {
    let request = Request::Relay(RelayRequest::Report { of });
    let note = |result: &str| super::requests::note(shared, caller, &request, result);
    permit(shared, caller, request.clone())?;
    let turn = shared.turns.take(&caller.who.name)?;
    let said = shared.daemon.relay(&request, caller.who.role).await;
    if of == Report::Bugreport {
        note(&said.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned()));
    }
    Ok((said?, turn))
}
