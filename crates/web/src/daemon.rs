//! Connections to `xylemd`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::client::Client;
use api::{Answer, LINE_BYTES_MAX, Reply, Request, Role, StorageRequest, StoreRequest, Wait};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Requests to the daemon at a time, of which one follows its objects. It gives a user who is no admin 32 connections.
const CALLS_MAX: usize = 30;
/// Of these, such as may take long: quick ones always find a turn.
const LONG_CALLS_MAX: usize = 14;
/// Connections that are kept for later requests.
const IDLE_MAX: usize = 16;
/// How long a request waits for its turn if a client waits for it.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// And if nobody does.
const LONG_TURN_WAIT: Duration = Duration::from_secs(600);

/// Why there is no reply.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum CallError {
    #[error("xylemd does not answer: {0}")]
    Unreachable(String),
    #[error("too many requests are in progress; try again")]
    Busy,
    /// The daemon's words.
    #[error("{0}")]
    Refused(String),
    /// It is not for the client to know.
    #[error("{0}")]
    Unknown(String),
}

/// The daemon behind its socket.
#[derive(Debug)]
pub(crate) struct Daemon {
    path: PathBuf,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
    turns: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// One of those that may take long, and one of all.
type Turns = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// Whether a request may take long by its nature: it waits for something, or copies memory or disks.
fn may_take_long(request: &Request) -> bool {
    match request {
        Request::WaitFor { .. }
        | Request::Events { wait: true, .. }
        | Request::Objects { wait: true, .. }
        | Request::Migrate(_)
        | Request::Save(_)
        | Request::Restore(_)
        | Request::DumpCore(_)
        | Request::HostShutdown { .. }
        | Request::Checkpoint(_)
        | Request::StartAll
        | Request::Store(StoreRequest::Watch { .. }) => true,
        Request::Shutdown { wait, .. } | Request::Reboot { wait, .. } => *wait != Wait::Asked,
        Request::Storage(request) => !matches!(request, StorageRequest::SrList),
        _ => false,
    }
}

impl Daemon {
    pub(crate) fn new(path: PathBuf) -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self { path, idle: Mutex::default(), turns: of(CALLS_MAX), long: of(LONG_CALLS_MAX) }
    }

    /// Asks for something, in the name of somebody with this role.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        request: &Request,
        role: Role,
    ) -> Result<Call, CallError> {
        self.begin_within(TURN_WAIT, may_take_long(request), request, role).await
    }

    /// As `begin`, for a task. Its turn may come late: it is asked whether it may still be done.
    pub(crate) async fn begin_patiently(
        self: &Arc<Self>,
        request: &Request,
        role: Role,
        holds: impl Fn() -> bool,
    ) -> Result<Call, CallError> {
        let turns = self.turn(LONG_TURN_WAIT, true).await?;
        if !holds() {
            return Err(CallError::Unknown("it is not permitted any more".to_owned()));
        }
        self.begin_in(turns, request, role).await
    }

    /// A turn, and one of those that may take long if it is such.
    async fn turn(&self, wait: Duration, is_long: bool) -> Result<Turns, CallError> {
        let take = |of: &Arc<Semaphore>| timeout(wait, Arc::clone(of).acquire_owned());
        let busy = |_| CallError::Busy;
        let long = match is_long {
            true => Some(take(&self.long).await.map_err(busy)?.map_err(|_| CallError::Busy)?),
            false => None,
        };
        let turn = take(&self.turns).await.map_err(busy)?.map_err(|_| CallError::Busy)?;
        Ok((long, turn))
    }

    /// Has a new connection joined to a console or a screen, in the name of somebody with this role. Returns our end.
    pub(crate) async fn relay(
        &self,
        request: &Request,
        role: Role,
    ) -> Result<UnixStream, CallError> {
        // A new domain has its console after some seconds.
        let turn = self.turn(TURN_WAIT, true).await?;
        let (path, request) = (self.path.clone(), request.clone());
        let (ours, theirs) = UnixStream::pair().map_err(|error| unreachable(&error))?;
        let called = tokio::task::spawn_blocking(move || {
            // Kept by the call if nobody waits for it any more.
            let _turn = turn;
            call_with(&path, &request, role, theirs)
        });
        Joined { stream: ours, call: called }.begun().await
    }

    /// As `relay`, of what is passed until the request is answered.
    pub(crate) async fn join(&self, request: &Request, role: Role) -> Result<Joined, CallError> {
        let turn = self.turn(TURN_WAIT, true).await?;
        let (path, request) = (self.path.clone(), request.clone());
        let (stream, theirs) = UnixStream::pair().map_err(|error| unreachable(&error))?;
        let call = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            call_with(&path, &request, role, theirs)
        });
        Ok(Joined { stream, call })
    }

    async fn begin_within(
        self: &Arc<Self>,
        wait: Duration,
        is_long: bool,
        request: &Request,
        role: Role,
    ) -> Result<Call, CallError> {
        let turns = self.turn(wait, is_long).await?;
        self.begin_in(turns, request, role).await
    }

    async fn begin_in(
        self: &Arc<Self>,
        turns: Turns,
        request: &Request,
        role: Role,
    ) -> Result<Call, CallError> {
        let mut stream = match self.kept() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        let line = api::encode_asked(request, role);
        stream.write_all(line.as_bytes()).await.map_err(|error| unreachable(&error))?;
        let daemon = Arc::clone(self);
        Ok(Call { daemon, stream: Some(stream), line: Vec::new(), _turns: turns })
    }

    /// As `begin`, for what this process itself follows.
    pub(crate) async fn follow(self: &Arc<Self>, request: &Request) -> Result<Reply, CallError> {
        let call = self.begin_within(LONG_TURN_WAIT, false, request, Role::Viewer).await?;
        call.reply().await
    }

    /// The final answer to a request.
    pub(crate) async fn call(
        self: &Arc<Self>,
        request: &Request,
        role: Role,
    ) -> Result<Reply, CallError> {
        self.begin(request, role).await?.reply().await
    }

    async fn connect(&self) -> Result<BufReader<UnixStream>, CallError> {
        let stream = UnixStream::connect(&self.path).await;
        stream
            .map(BufReader::new)
            .map_err(|error| CallError::Unreachable(format!("{}: {error}", self.path.display())))
    }

    /// An idle connection that the daemon has not closed.
    fn kept(&self) -> Option<BufReader<UnixStream>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(stream) = idle.pop() {
            let silent = stream.get_ref().try_read(&mut [0]);
            if silent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
                return Some(stream);
            }
        }
        None
    }

    fn keep(&self, stream: BufReader<UnixStream>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(stream);
        }
    }
}

fn call_with(
    path: &Path,
    request: &Request,
    role: Role,
    theirs: UnixStream,
) -> Result<Reply, api::client::CallError> {
    let theirs = theirs.into_std().map_err(api::client::CallError::Broken)?;
    let other = theirs.try_clone().map_err(api::client::CallError::Broken)?;
    let ends = [other.into(), theirs.into()];
    Client::connect(path)?.call_with_channel_as(role, request, ends, |_| ())
}

/// A connection that the daemon has, and the request that it came with.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) stream: UnixStream,
    call: JoinHandle<Result<Reply, api::client::CallError>>,
}

impl Joined {
    /// What came of the request.
    pub(crate) async fn ended(self) -> Result<(), CallError> {
        drop(self.stream);
        answer_of(self.call).await
    }

    /// The connection, once the request is answered.
    async fn begun(self) -> Result<UnixStream, CallError> {
        answer_of(self.call).await.map(|()| self.stream)
    }
}

async fn answer_of(
    call: JoinHandle<Result<Reply, api::client::CallError>>,
) -> Result<(), CallError> {
    match call.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(api::client::CallError::Refused(why))) => Err(CallError::Refused(why)),
        Ok(Err(error)) => Err(CallError::Unreachable(error.to_string())),
        Err(error) => Err(CallError::Unreachable(error.to_string())),
    }
}

/// A request in progress. The daemon notices when this is dropped before its end, and cancels what can be cancelled.
#[derive(Debug)]
pub(crate) struct Call {
    daemon: Arc<Daemon>,
    /// `None` after the final answer.
    stream: Option<BufReader<UnixStream>>,
    /// What has come of the next line. It outlives a reader that is cancelled.
    line: Vec<u8>,
    _turns: Turns,
}

impl Call {
    /// The final answer.
    async fn reply(mut self) -> Result<Reply, CallError> {
        loop {
            match self.next().await? {
                Answer::Ok(reply) => return Ok(reply),
                Answer::Error(why) => return Err(CallError::Refused(why)),
                Answer::Progress(_)
                | Answer::Event(_)
                | Answer::Warning(_)
                | Answer::Changed(_) => {}
            }
        }
    }

    /// The next answer. There is none after the final one.
    pub(crate) async fn next(&mut self) -> Result<Answer, CallError> {
        let ended = || CallError::Unreachable("it has closed the connection".to_owned());
        let stream = self.stream.as_mut().ok_or_else(ended)?;
        let left = (LINE_BYTES_MAX + 1).saturating_sub(self.line.len());
        let mut bounded = stream.take(left as u64);
        bounded.read_until(b'\n', &mut self.line).await.map_err(|error| unreachable(&error))?;
        if self.line.pop() != Some(b'\n') {
            return Err(ended());
        }
        let answer = api::decode_answer(&self.line)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        self.line.clear();
        if matches!(answer, Answer::Ok(_) | Answer::Error(_))
            && let Some(stream) = self.stream.take()
        {
            self.daemon.keep(stream);
        }
        Ok(answer)
    }
}

fn unreachable(error: &std::io::Error) -> CallError {
    CallError::Unreachable(error.to_string())
}
