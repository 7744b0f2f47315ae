//! Changes of objects as they happen, for browsers and others (server-sent events).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use gate::Who;
use live::Cursor;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::objects::{change_json, classes_of, value_of};
use crate::admit::Caller;
use crate::mirror::{Class, Mirror, News};
use crate::problem::Problem;
use crate::shared::{LOOKS_EVERY, Shared};

/// Objects in one piece.
const PIECE: usize = 256;
/// A sign of life, so that a connection that is no more is noticed.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

struct Reader {
    shared: Arc<Shared>,
    /// Who reads, for as long as it is let in as it was.
    who: Who,
    mirror: Arc<Mirror>,
    classes: BTreeSet<Class>,
    cursor: Option<Cursor>,
    news: watch::Receiver<News>,
    /// What it was last told of the daemon.
    offline: Option<String>,
    knows_all: bool,
    _seat: OwnedSemaphorePermit,
}

pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query = query.unwrap_or_default();
    let classes = classes_of(&query)?;
    // A browser that connects again sends what it was told last.
    let last = headers.get("last-event-id").and_then(|it| it.to_str().ok().map(str::to_owned));
    let cursor = last.or_else(|| value_of(&query, "since"));
    let mirror = shared.mirror_of(&caller.who.scope);
    let cursor = cursor.and_then(|it| mirror.cursor(&it));
    let seat = Arc::clone(&shared.readers).try_acquire_owned().map_err(|_| Problem {
        status: StatusCode::SERVICE_UNAVAILABLE,
        detail: "too many clients read events; try again".to_owned(),
        retry_after_s: Some(5),
    })?;
    let news = mirror.watch();
    let reader = Reader {
        shared,
        who: caller.who,
        mirror,
        classes,
        cursor,
        news,
        offline: None,
        knows_all: false,
        _seat: seat,
    };
    let pieces = stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(piece)), reader))
    });
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        // Proxies are not to keep it back.
        .header("x-accel-buffering", "no")
        .body(Body::from_stream(pieces));
    response.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

impl Reader {
    /// What it has to be told next; `None` when there is no mirror any more, or the client is not let in as it was.
    async fn next(&mut self) -> Option<String> {
        let mut silent = Duration::ZERO;
        loop {
            if !self.shared.knows(&self.who) {
                return None;
            }
            let offline = self.news.borrow_and_update().offline.clone();
            let mut piece = String::new();
            if offline != self.offline {
                tell_of_daemon(&mut piece, offline.as_deref());
                self.offline = offline;
            }
            // Until the daemon has been reached for the first time nothing is known, which is not the same as nothing there.
            if self.shared.mirror.is_whole() {
                self.tell_changes(&mut piece);
            }
            if !piece.is_empty() {
                return Some(piece);
            }
            match timeout(LOOKS_EVERY, self.news.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) if silent + LOOKS_EVERY < SIGN_OF_LIFE => silent += LOOKS_EVERY,
                Err(_) => return Some(": alive\n\n".to_owned()),
            }
        }
    }

    fn tell_changes(&mut self, piece: &mut String) {
        let changes = self.mirror.changes(self.cursor, &self.classes, PIECE);
        if changes.starts_again {
            piece.push_str("event: reset\ndata: {}\n\n");
        }
        for (revision, key, kept) in &changes.items {
            let data = change_json(*revision, key, kept.as_deref());
            // Only the last of a piece says where to go on.
            let _infallible = write!(piece, "event: change\ndata: {data}\n\n");
        }
        let said_something = changes.starts_again || !changes.items.is_empty();
        if said_something || !self.knows_all {
            let cursor = &changes.cursor;
            let event = if changes.is_last { "current" } else { "more" };
            let _infallible = write!(
                piece,
                "event: {event}\nid: {cursor}\ndata: {{\"cursor\":\"{cursor}\"}}\n\n"
            );
        }
        self.knows_all = changes.is_last;
        self.cursor = Some(changes.at);
    }
}

fn tell_of_daemon(piece: &mut String, offline: Option<&str>) {
    let _infallible = match offline {
        None => write!(piece, "event: online\ndata: {{}}\n\n"),
        Some(why) => {
            let data = serde_json::json!({ "detail": why });
            write!(piece, "event: offline\ndata: {data}\n\n")
        }
    };
}
