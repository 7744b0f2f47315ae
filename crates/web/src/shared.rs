//! What all requests share.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use gate::{Access, AccessError, Lockout, Pace, Rate, Repeats, Scope, Sessions, Tags, Who};
use tokio::sync::{Semaphore, watch};

use crate::audit::Audit;
use crate::daemon::Daemon;
use crate::mirror::Mirror;
use crate::oidc::Oidc;
use crate::own_writes::OwnWrites;
use crate::running::Running;
use crate::sampler::Metrics;
use crate::serve::Open;
use crate::traces::Traces;
use crate::turns::{CONSOLES_MAX, REQUESTS_MAX, Turns};
use crate::views::Views;

/// Of what a client may ask for in a second, so many times as much at once.
const BURST_S: u32 = 4;
/// Of an address from which somebody comes who is not known.
const STRANGER_RATE: Rate = Rate { per_second: 5, burst: 40 };
/// Readers of events.
pub(crate) const READERS_MAX: usize = 2048;
/// How often it is looked whether a client that reads or looks on is still let in.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Passwords that are checked at a time: each takes a CPU and 19 MiB for a moment.
const PASSWORDS_MAX: usize = 2;

/// When a file was changed, and its size; `None` of one that is not there.
type Seen = Option<(SystemTime, u64)>;

/// A file that is read again when it was changed.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// One that is not there has no lines.
    may_be_missing: bool,
    /// As it was when read last, and understood.
    seen: Mutex<Option<Seen>>,
}

impl File {
    fn new(path: PathBuf, may_be_missing: bool) -> Self {
        Self { path, may_be_missing, seen: Mutex::default() }
    }

    /// What it says, unless it is as it was. One that could not be read or understood is read again the next time.
    fn read<T>(&self, parse: fn(&str) -> Result<T, AccessError>) -> Result<Option<T>> {
        let mut seen = lock(&self.seen);
        let before = seen.take();
        let read = || -> io::Result<(Seen, String)> {
            let now = match fs::metadata(&self.path) {
                Ok(metadata) => Some((metadata.modified()?, metadata.len())),
                Err(error) if self.may_be_missing && error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let is_read = now.is_some() && before != Some(now);
            Ok((now, if is_read { fs::read_to_string(&self.path)? } else { String::new() }))
        };
        let path = self.path.display();
        let (now, text) = read().with_context(|| format!("cannot read {path}"))?;
        let is_new = before != Some(now);
        let parsed = is_new.then(|| parse(&text).with_context(|| path.to_string())).transpose()?;
        *seen = Some(now);
        Ok(parsed)
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) mirror: Arc<Mirror>,
    /// What clients see that are limited.
    pub(crate) views: Views,
    /// The tags of VMs, which decide what that is.
    pub(crate) tags: watch::Sender<Arc<Tags>>,
    pub(crate) lockout: Mutex<Lockout>,
    pub(crate) pace: Mutex<Pace>,
    pub(crate) strangers: Mutex<Pace>,
    pub(crate) sessions: Mutex<Sessions>,
    pub(crate) repeats: Mutex<Repeats>,
    pub(crate) tasks: Running,
    pub(crate) turns: Turns,
    pub(crate) consoles: Turns,
    pub(crate) audit: Audit,
    pub(crate) own_writes: OwnWrites,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    pub(crate) open: Open,
    /// Who else tells us who somebody is.
    pub(crate) oidc: OnceLock<Arc<Oidc>>,
    pub(crate) readers: Arc<Semaphore>,
    pub(crate) passwords: Semaphore,
    /// Browsers have to send cookies over TLS only.
    pub(crate) is_tls: bool,
    access_file: Option<File>,
    access: RwLock<Access>,
    tags_file: Option<File>,
    began: Instant,
}

impl Shared {
    pub(crate) fn new(
        socket: PathBuf,
        access_path: Option<PathBuf>,
        tags_path: Option<PathBuf>,
        audit: Audit,
        is_tls: bool,
        per_second: u32,
    ) -> Result<Self> {
        let rate = Rate { per_second, burst: per_second.saturating_mul(BURST_S) };
        let instance = base16ct::lower::encode_string(&random::<4>()?);
        Ok(Self {
            daemon: Arc::new(Daemon::new(socket)),
            mirror: Arc::new(Mirror::new(instance)),
            views: Views::default(),
            tags: watch::channel(Arc::default()).0,
            lockout: Mutex::default(),
            pace: Mutex::new(Pace::new(rate)),
            strangers: Mutex::new(Pace::new(STRANGER_RATE)),
            sessions: Mutex::default(),
            repeats: Mutex::default(),
            tasks: Running::default(),
            turns: Turns::new(REQUESTS_MAX, "requests in progress; wait for one"),
            consoles: Turns::new(CONSOLES_MAX, "consoles open; close one"),
            audit,
            own_writes: OwnWrites::default(),
            metrics: Metrics::default(),
            traces: Traces::default(),
            open: Open::default(),
            oidc: OnceLock::new(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            passwords: Semaphore::new(PASSWORDS_MAX),
            is_tls,
            access_file: access_path.map(|path| File::new(path, false)),
            access: RwLock::default(),
            tags_file: tags_path.map(|path| File::new(path, true)),
            began: Instant::now(),
        })
    }

    /// Looks into the file of clients, if it was changed since the last time. If it cannot be read, nobody is let in.
    pub(crate) fn refresh_access(&self) -> Result<()> {
        let read = self.access_file.as_ref().map_or(Ok(None), |file| file.read(Access::parse));
        let (access, result) = match read {
            Ok(None) => return Ok(()),
            Ok(Some(access)) => (access, Ok(())),
            Err(error) => (Access::default(), Err(error)),
        };
        self.set_access(access);
        result
    }

    /// Looks into the file of tags, if it was changed since the last time. If it cannot be read, no VM has any.
    pub(crate) fn refresh_tags(&self) -> Result<()> {
        let read = self.tags_file.as_ref().map_or(Ok(None), |file| file.read(Tags::parse));
        let (tags, result) = match read {
            Ok(None) => return Ok(()),
            Ok(Some(tags)) => (tags, Ok(())),
            Err(error) => (Tags::default(), Err(error)),
        };
        self.tags.send_if_modified(|last| {
            let is_new = **last != tags;
            if is_new {
                *last = Arc::new(tags);
            }
            is_new
        });
        result
    }

    pub(crate) fn tags(&self) -> Arc<Tags> {
        Arc::clone(&self.tags.borrow())
    }

    /// What a client with this scope sees of the host.
    pub(crate) fn mirror_of(&self, scope: &Scope) -> Arc<Mirror> {
        match scope {
            Scope::Host => Arc::clone(&self.mirror),
            Scope::Tagged(_) => self.views.of(scope, &self.mirror, &self.tags()),
        }
    }

    /// Whether a client is still let in, as it was.
    pub(crate) fn knows(&self, who: &Who) -> bool {
        self.with_access(|it| {
            let known = it.named(&who.name, unix_s());
            known.is_some_and(|it| it.role == who.role && it.scope == who.scope)
        })
    }

    /// Takes these clients in place of a file's.
    pub(crate) fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
    }

    pub(crate) fn with_access<T>(&self, look: impl FnOnce(&Access) -> T) -> T {
        look(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Of a clock that only goes forward.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

pub(crate) fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of what is behind it is a single one.
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn unix_s() -> u64 {
    since_1970().as_secs()
}

pub(crate) fn unix_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let given = rustix::rand::getrandom(&mut bytes, flags).context("no random numbers")?;
    anyhow::ensure!(given == N, "no random numbers");
    Ok(bytes)
}
