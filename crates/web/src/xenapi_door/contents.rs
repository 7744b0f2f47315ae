//! The contents of VDIs for clients of XAPI.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{PIECE_HEADER_BYTES, PieceHeader};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use gate::{Scope, Who};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use xenapi::{Broken, Contents, InOrder, Run, Wanted, Way};

use super::visitor::visitor;
use super::{Door, open_to_pages};
use crate::admit::{Caller, peer};
use crate::daemon::Joined;
use crate::problem::Problem;
use crate::routes::disks::{Passed, SILENCE_MAX};
use crate::routes::value_of;
use crate::shared::{lock, unix_ms};

/// Of zeros, and of what is read at once.
const PART_BYTES: usize = 256 << 10;
static ZEROS: [u8; PART_BYTES] = [0; PART_BYTES];
/// What a client still sends of a VDI that could not be opened is taken for so long, so that it reads its task.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// A client that has sent nothing for so long waits for its answer.
const FIRST_MAX: Duration = Duration::from_millis(200);
const GONE: &str = "the client went away";
const SILENT: &str = "the client sends nothing more";
const TASK_ID: HeaderName = HeaderName::from_static("task-id");

/// Contents that are passed.
struct Passing {
    door: Arc<Door>,
    contents: Contents,
    way: Way,
    hundredths: u8,
    is_over: bool,
}

impl Passing {
    /// What the client has asked for, unless it is refused.
    async fn begin(
        door: &Arc<Door>,
        head: &Parts,
        address: IpAddr,
        way: Way,
    ) -> Result<(Self, Who), Problem> {
        let (who, role) = visitor(door, head, address, "this is for whole disks").await?;
        let query = head.uri.query().unwrap_or_default();
        let value = |key| value_of(query, key);
        let (vdi, format, task) = (value("vdi"), value("format"), value("task_id"));
        let moment = door.moment().map_err(|it| problem(500, &it))?;
        let wanted = Wanted {
            way,
            who: &who,
            role,
            vdi: vdi.as_deref(),
            format: format.as_deref(),
            task: task.as_deref(),
            bytes: length(&head.headers).filter(|_| !is_in_pieces(head)),
        };
        let begun = door.with(|facade| facade.begin_contents(&wanted, &moment));
        let contents = begun.map_err(|it| problem(it.status, &it.failure))?;
        let door = Arc::clone(door);
        let passing = Self { door, contents, way, hundredths: 0, is_over: false };
        Ok((passing, Who { name: who, role, expires: None, scope: Scope::Host }))
    }

    /// Has the daemon open the VDI.
    async fn open(&mut self, who: Who, address: IpAddr) -> Result<(Passed, Joined), Problem> {
        let shared = Arc::clone(&self.door.shared);
        let caller = Caller { who, address, session: None };
        let vdi = self.contents.vdi.clone();
        let begun = Passed::begin(shared, caller, vdi, self.way == Way::Import).await;
        begun.inspect_err(|problem| {
            let _failed = self.end(Err(Broken::Closed(problem.detail.clone())));
        })
    }

    /// The VDI once it is open for writing, or what the client is answered who has no task to look at.
    async fn opened(&mut self, who: Who, address: IpAddr) -> Result<(Passed, Joined), Problem> {
        let (passed, mut joined) = self.open(who, address).await?;
        match heard(joined.stream.read_u8()).await {
            Ok(_) => Ok((passed, joined)),
            Err(_) => Err(self.closed(passed, joined).await),
        }
    }

    /// The VDI could not be opened: what the client is answered who has no task to look at.
    async fn closed(&mut self, mut passed: Passed, joined: Joined) -> Problem {
        let why = passed.refused(joined).await.to_string();
        match self.end(Err(Broken::Closed(why))) {
            Err(failure) => problem(500, &failure),
            Ok(_) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be opened"),
        }
    }

    fn advance(&mut self, bytes: u64) {
        let share = u128::from(bytes) * 100 / u128::from(self.contents.bytes.max(1));
        let hundredths = u8::try_from(share.min(100)).unwrap_or(100);
        if hundredths > self.hundredths {
            self.hundredths = hundredths;
            self.door.with(|facade| facade.advance_contents(&self.contents, hundredths));
        }
    }

    fn end(&mut self, ended: Result<(), Broken>) -> xenapi::Answer {
        self.is_over = true;
        let (contents, way) = (&self.contents, self.way);
        self.door.with(|facade| facade.end_contents(contents, way, ended, unix_ms()))
    }

    fn end_unused(&mut self, ended: Result<(), Broken>) {
        self.is_over = true;
        let (contents, way) = (&self.contents, self.way);
        self.door.with(|facade| facade.end_unused_contents(contents, way, ended, unix_ms()));
    }

    /// What comes of some work, unless the client gives it up by its task.
    async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let mut changed = self.door.changed.subscribe();
        let mut work = std::pin::pin!(work);
        loop {
            if lock(&self.door.facade).is_cancelled(&self.contents) {
                return Err("it was cancelled".to_owned());
            }
            tokio::select! {
                done = &mut work => return done,
                _ = changed.changed() => {}
            }
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.is_over {
            let _failed = self.end(Err(Broken::Off(GONE.to_owned())));
        }
    }
}

fn problem(status: u16, failure: &xenapi::Failure) -> Problem {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Problem::new(status, failure.to_string())
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether a client sends pieces, as the daemon takes them: XAPI's own protocol for parts of a disk, which it calls chunked.
fn is_in_pieces(head: &Parts) -> bool {
    value_of(head.uri.query().unwrap_or_default(), "chunked").is_some()
}

/// The answer that a task belongs to.
fn answer(task: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    if let Ok(task) = HeaderValue::try_from(task) {
        response.headers_mut().insert(TASK_ID, task);
    }
    response
}

/// `GET /export_raw_vdi`.
pub(super) async fn export(State(door): State<Arc<Door>>, request: Request) -> Response {
    let exported = exported(&door, request).await;
    let mut response = exported.unwrap_or_else(Problem::into_response);
    open_to_pages(&mut response);
    response
}

async fn exported(door: &Arc<Door>, request: Request) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    let (head, _) = request.into_parts();
    if head.method != Method::GET {
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "only GET exports a VDI"));
    }
    let (mut passing, who) = Passing::begin(door, &head, address, Way::Export).await?;
    let (passed, mut joined) = passing.open(who, address).await?;
    // A VDI that cannot be opened is refused before there is an answer.
    let Ok(first) = header_of(&mut joined).await else {
        return Err(passing.closed(passed, joined).await);
    };
    let task = passing.contents.task();
    let name = format!("attachment; filename=\"{}.raw\"", passing.contents.uuid);
    let run = Run { zeros: 0, count: 0, is_last: false };
    let export =
        Export { passing, passed, joined, order: InOrder::default(), run, first: Some(first) };
    let parts = stream::unfold(Some(export), |export| async {
        let mut export = export?;
        match export.part().await {
            Ok(Some(part)) => Some((Ok(part), Some(export))),
            Ok(None) => export.end().await.err().map(|error| (Err(error), None)),
            Err(why) => Some((Err(export.break_off(why)), None)),
        }
    });
    let mut response = answer(&task, Body::from_stream(parts));
    if let Ok(name) = HeaderValue::try_from(name) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

struct Export {
    passing: Passing,
    passed: Passed,
    joined: Joined,
    order: InOrder,
    /// What is left of the last piece.
    run: Run,
    /// The first piece's header, which tells that there are pieces.
    first: Option<PieceHeader>,
}

impl Export {
    /// The next bytes.
    async fn part(&mut self) -> Result<Option<Bytes>, String> {
        let Self { passing, joined, order, run, first, .. } = self;
        let next = async {
            loop {
                if run.zeros > 0 {
                    let count = usize::try_from(run.zeros).unwrap_or(PART_BYTES).min(PART_BYTES);
                    run.zeros -= count as u64;
                    return Ok(Some(Bytes::from_static(&ZEROS[..count])));
                }
                if run.count > 0 {
                    let mut part = vec![0; run.count.min(PART_BYTES)];
                    heard(joined.stream.read_exact(&mut part)).await?;
                    run.count -= part.len();
                    return Ok(Some(Bytes::from(part)));
                }
                if run.is_last {
                    return Ok(None);
                }
                let header = match first.take() {
                    Some(first) => first,
                    None => header_of(joined).await?,
                };
                *run = order.next(header)?;
            }
        };
        let part = passing.unless_cancelled(next).await?;
        let left = self.run.zeros + self.run.count as u64;
        self.passing.advance(self.order.bytes().saturating_sub(left));
        Ok(part)
    }

    async fn end(self) -> std::io::Result<()> {
        let Self { mut passing, mut passed, joined, .. } = self;
        let ended = joined.ended().await;
        passed.note(&ended.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned()));
        let ended = ended.map_err(|error| Broken::Off(error.to_string()));
        passing.end(ended).map(drop).map_err(|failure| std::io::Error::other(failure.to_string()))
    }

    fn break_off(mut self, why: String) -> std::io::Error {
        self.passed.note(&why);
        let _failed = self.passing.end(Err(Broken::Off(why.clone())));
        std::io::Error::other(why)
    }
}

/// What the daemon sends in time.
async fn heard<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    let ended = |error: std::io::Error| format!("xylemd has ended it: {error}");
    let silent = |_| "the host's storage gives nothing more".to_owned();
    timeout(SILENCE_MAX, work).await.map_err(silent)?.map_err(ended)
}

async fn header_of(joined: &mut Joined) -> Result<PieceHeader, String> {
    let mut header = [0; PIECE_HEADER_BYTES];
    heard(joined.stream.read_exact(&mut header)).await?;
    Ok(PieceHeader::decode(header))
}

/// `PUT /import_raw_vdi`.
pub(super) async fn import(State(door): State<Arc<Door>>, request: Request) -> Response {
    let imported = imported(&door, request).await;
    let mut response = imported.unwrap_or_else(Problem::into_response);
    open_to_pages(&mut response);
    response
}

/// The answer begins before the bytes come, as with XAPI: there are clients that wait for it. What came of it is in the
/// task. A client that has named none may not look there, so its connection is cut if not all is well.
///
/// The VDI is opened when the client sends: Xen Orchestra looks first whether it may, by a request that it gives up when
/// it is answered, and its next one would find the VDI in use.
async fn imported(door: &Arc<Door>, request: Request) -> Result<Response, Problem> {
    let address = peer(&request)?.address;
    let (head, body) = request.into_parts();
    let (mut passing, who) = Passing::begin(door, &head, address, Way::Import).await?;
    let task = passing.contents.task();
    let query = head.uri.query().unwrap_or_default();
    let has_task = value_of(query, "task_id").is_some();
    let in_pieces = is_in_pieces(&head);
    let mut body = body.into_data_stream();
    // Some clients look whether they may, before they send anything.
    if length(&head.headers) == Some(0) {
        passing.end_unused(Ok(()));
        return Ok(answer(&task, Body::empty()));
    }
    // A client that waits to be told to go on (100) is told so when its bytes are asked for, and then it sends.
    let is_told = head.headers.contains_key(header::EXPECT);
    let mut first = None;
    if !is_told {
        match timeout(FIRST_MAX, body.next()).await {
            Ok(part) => first = part,
            Err(_) => {
                let work = tokio::spawn(import_later(passing, who, address, body, in_pieces));
                return Ok(answer(&task, end_of(work, has_task)));
            }
        }
    }
    let (passed, joined) = match passing.opened(who, address).await {
        Ok(opened) => opened,
        Err(_) if has_task => {
            let taken = async move {
                take_leave(&mut body, LEAVE_MAX).await;
                Ok::<_, std::io::Error>(Bytes::new())
            };
            return Ok(answer(&task, Body::from_stream(stream::once(taken))));
        }
        Err(problem) => return Err(problem),
    };
    if is_told {
        first = timeout(SILENCE_MAX, body.next()).await.ok().flatten();
    }
    let import = Import { passing, passed, joined, order: InOrder::default() };
    let body = Box::pin(stream::iter(first).chain(body));
    // It goes to its end also when nobody waits for the answer any more.
    let work = tokio::spawn(import.run(body, in_pieces));
    Ok(answer(&task, end_of(work, has_task)))
}

/// Of a client that has its answer, and has sent nothing yet.
async fn import_later(
    mut passing: Passing,
    who: Who,
    address: IpAddr,
    mut body: BodyDataStream,
    in_pieces: bool,
) -> Result<(), String> {
    let first = async {
        match timeout(SILENCE_MAX, body.next()).await {
            Ok(Some(Err(_))) => Err(GONE.to_owned()),
            Ok(first) => Ok(first),
            Err(_) => Err(SILENT.to_owned()),
        }
    };
    let first = match passing.unless_cancelled(first).await {
        Ok(first) => first,
        Err(why) => {
            passing.end_unused(Err(Broken::Off(why.clone())));
            return Err(why);
        }
    };
    match passing.opened(who, address).await {
        Ok((passed, joined)) => {
            let import = Import { passing, passed, joined, order: InOrder::default() };
            import.run(Box::pin(stream::iter(first).chain(body)), in_pieces).await
        }
        Err(problem) => {
            take_leave(&mut body, LEAVE_MAX).await;
            Err(problem.detail)
        }
    }
}

/// The rest of the answer, which is there when all has been taken.
fn end_of(work: JoinHandle<Result<(), String>>, has_task: bool) -> Body {
    let ended = async move {
        match work.await {
            Ok(Err(why)) if !has_task => Err(std::io::Error::other(why)),
            Ok(_) => Ok(Bytes::new()),
            Err(_) => Err(std::io::Error::other("it was cut off")),
        }
    };
    Body::from_stream(stream::once(ended))
}

/// Takes what a client still sends, for so long, so that it reads its answer.
pub(super) async fn take_leave(body: &mut BodyDataStream, max: Duration) {
    let deadline = Instant::now() + max;
    while let Ok(Some(Ok(_))) = timeout_at(deadline, body.next()).await {}
}

struct Import {
    passing: Passing,
    passed: Passed,
    joined: Joined,
    order: InOrder,
}

type Sent = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, axum::Error>> + Send>>;

impl Import {
    async fn run(mut self, mut body: Sent, in_pieces: bool) -> Result<(), String> {
        let mut lost = None;
        loop {
            let next = async { Ok(timeout(SILENCE_MAX, body.next()).await) };
            let part = match self.passing.unless_cancelled(next).await {
                Ok(Ok(None)) => break,
                Ok(Ok(Some(Ok(part)))) => part,
                Ok(Ok(Some(Err(_)))) => {
                    lost = Some(GONE.to_owned());
                    break;
                }
                Ok(Err(_)) => {
                    lost = Some(SILENT.to_owned());
                    break;
                }
                Err(why) => {
                    lost = Some(why);
                    break;
                }
            };
            // The daemon says why it takes no more.
            if self.pass(&part, in_pieces).await.is_err() {
                break;
            }
        }
        self.end(lost, in_pieces).await
    }

    async fn pass(&mut self, part: &[u8], in_pieces: bool) -> std::io::Result<()> {
        if in_pieces {
            return self.joined.stream.write_all(part).await;
        }
        for (header, part) in self.order.pieces(part) {
            self.joined.stream.write_all(&header.encode()).await?;
            self.joined.stream.write_all(part).await?;
        }
        self.passing.advance(self.order.bytes());
        Ok(())
    }

    async fn end(self, lost: Option<String>, in_pieces: bool) -> Result<(), String> {
        let Self { mut passing, mut passed, mut joined, order } = self;
        // What has come is there, also of a client that went away: some have no other way to say that this is all.
        if !in_pieces {
            let _closed = joined.stream.write_all(&order.end().encode()).await;
        }
        let _closed = joined.stream.shutdown().await;
        let ended = joined.ended().await.map_err(|error| error.to_string());
        let ended = lost.map_or(ended, Err);
        passed.note(&ended.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned()));
        let answer = passing.end(ended.map_err(Broken::Off));
        answer.map(drop).map_err(|failure| failure.to_string())
    }
}
