//! The door for local clients: a unix socket, and a thread for each client, which reads its requests and sends what the
//! service answers.
//!
//! Whatever stands behind it is a [`Served`]: `xylemd`, or a daemon on a simulated host.

mod answers;
mod disks;
mod lines;
mod relays;
mod reports;
mod seats;
mod who;

use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::Answer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use service::{Daemon, Gone, Role, Service};
use toolstack::Asker;
use toolstack::channel::ChannelId;

pub use crate::answers::{Answered, Waiting, reply, reply_in_time};
pub use crate::disks::{open_disk, pass_disk};
pub use crate::lines::ChannelEnds;
use crate::lines::Lines;
pub use crate::relays::{Relays, open_place};
pub use crate::reports::Reports;
use crate::seats::Seats;
use crate::who::Who;
pub use crate::who::group;

/// Connections served at a time; further ones are refused.
const CLIENTS_MAX: usize = 256;
/// Bytes of a request by somebody who is not an admin, and has no configurations to send.
const LINE_OF_A_USER_BYTES_MAX: usize = 64 << 10;
/// Idle threads kept ready for clients, since creating a thread would delay them.
const THREADS_WAITING: usize = 4;
/// Timeout for the lock: a child that a killed daemon was just starting holds it until its exec.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A daemon that local clients ask.
pub trait Served: Daemon + Send + Sync {
    /// Keeps a connection to another host that came with a request; `None` if it is of no use.
    fn keep(&self, ends: ChannelEnds) -> Option<ChannelId>;
}

/// Makes sure that no other daemon serves this socket: of several that are started at once one gets
/// the lock. It is held while the file is open.
///
/// # Errors
/// Another one has it, or there can be no such file.
pub fn lock(socket: &Path) -> Result<File> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let path = socket.with_extension("lock");
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => bail!("another xylemd serves {} already", socket.display()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Binds the socket, for root alone. The caller must hold the [`lock`].
///
/// # Errors
/// Another daemon serves it, or there can be no such socket.
pub fn listen(path: &Path) -> Result<UnixListener> {
    // A daemon of an earlier release has no lock.
    if UnixStream::connect(path).is_ok() {
        bail!("another xylemd serves {} already", path.display());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // The socket is stale.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {}", path.display()))?;
    Ok(listener)
}

/// Lets the members of a group, by its number, open a socket.
///
/// # Errors
/// The kernel's.
pub fn open_to(path: &Path, group: u32) -> Result<()> {
    std::os::unix::fs::chown(path, None, Some(group))
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)))
        .with_context(|| format!("cannot open {} to group {group}", path.display()))
}

/// Accepts clients on the threads that serve them, so that there is always one ready.
///
/// # Errors
/// No thread can be started.
pub fn serve(listener: UnixListener, daemon: Arc<dyn Served>) -> std::io::Result<()> {
    let door = Arc::new(Door {
        listener,
        daemon,
        waiting: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
        seats: Mutex::default(),
    });
    (0..THREADS_WAITING).try_for_each(|_| add_thread(&door))
}

/// Accepts clients.
struct Door {
    listener: UnixListener,
    daemon: Arc<dyn Served>,
    /// Threads that wait for a client, or are about to.
    waiting: AtomicUsize,
    /// Clients being served.
    open: AtomicUsize,
    /// Those of users who are not admins.
    seats: Mutex<Seats>,
}

impl Door {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        // Every change of it is a single one.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a client, if it may do anything here. A broken connection only ends this client.
    fn serve(&self, stream: &UnixStream) {
        match who::is_at(stream) {
            Ok(Who { asker, role: Role::Admin }) => drop(self.run(stream, asker, Role::Admin)),
            Ok(Who { asker, role }) => {
                let seat = self.seats().take(asker.uid);
                match seat {
                    Ok(()) => {
                        let _broken = self.run(stream, asker, role);
                        self.seats().give_back(asker.uid);
                    }
                    Err(why) => refuse(stream, why),
                }
            }
            Err(why) => refuse(stream, why),
        }
    }

    fn run(&self, stream: &UnixStream, asker: Asker, role: Role) -> std::io::Result<()> {
        let daemon = &*self.daemon;
        Client { stream, channel: RefCell::default(), daemon }.run(asker, role)
    }
}

fn refuse(mut stream: &UnixStream, why: String) {
    let refusal = api::encode_answer(&Answer::Error(why));
    let _gone = stream.write_all(refusal.as_bytes());
}

fn add_thread(door: &Arc<Door>) -> std::io::Result<()> {
    door.waiting.fetch_add(1, Ordering::Relaxed);
    let door = Arc::clone(door);
    thread::Builder::new().name("client".to_owned()).spawn(move || welcome(&door)).map(drop)
}

/// Serves clients one after another, until enough other threads are idle.
fn welcome(door: &Arc<Door>) {
    loop {
        let Ok((stream, _)) = door.listener.accept() else {
            // Out of descriptors: wait for a client to disconnect.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if door.open.fetch_add(1, Ordering::Relaxed) < CLIENTS_MAX {
            if door.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                // No thread is idle any more. Without a further one the next client only waits for
                // this one.
                let _later = add_thread(door);
            }
            door.serve(&stream);
            door.open.fetch_sub(1, Ordering::Relaxed);
            if door.waiting.fetch_add(1, Ordering::Relaxed) >= THREADS_WAITING {
                door.waiting.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        } else {
            door.open.fetch_sub(1, Ordering::Relaxed);
            refuse(&stream, format!("{CLIENTS_MAX} clients are connected already; try again"));
        }
    }
}

/// Who is at the other end of a connection.
struct Client<'a> {
    stream: &'a UnixStream,
    /// What came with the request that is being answered.
    channel: RefCell<Option<ChannelEnds>>,
    daemon: &'a dyn Served,
}

impl Client<'_> {
    /// Serves requests until the connection ends.
    fn run(&self, asker: Asker, role: Role) -> std::io::Result<()> {
        let bytes_max = match role {
            Role::Admin => api::LINE_BYTES_MAX,
            Role::Viewer | Role::Operator => LINE_OF_A_USER_BYTES_MAX,
        };
        let descriptors = RefCell::default();
        let mut lines = Lines::of(self.stream, &descriptors);
        loop {
            let (line, channel) = lines.next(bytes_max as u64 + 1)?;
            if line.is_empty() {
                return Ok(());
            }
            if line.len() > bytes_max {
                return self
                    .send(&Answer::Error(format!("a request is {bytes_max} bytes long at most")));
            }
            *self.channel.borrow_mut() = channel;
            let answer = match api::decode_asked(&line) {
                Ok(asked) => match self.service(asker, role, asked.role).answer(asked.request) {
                    Ok(answer) => answer,
                    Err(Gone) => return Ok(()),
                },
                Err(error) => Answer::Error(error.to_string()),
            };
            self.send(&answer)?;
        }
    }

    /// What serves a request; of one for somebody else, with the lesser of both roles.
    fn service(&self, asker: Asker, role: Role, other: Option<Role>) -> Service<'_> {
        let role = other.map_or(role, |other| other.min(role));
        Service { daemon: self.daemon, door: self, asker: Some(asker), role }
    }

    fn send(&self, answer: &Answer) -> std::io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(api::encode_answer(answer).as_bytes())
    }
}

impl service::Door for Client<'_> {
    fn tell(&self, answer: &Answer) -> Result<(), Gone> {
        self.send(answer).map_err(|_| Gone)
    }

    fn channel(&self) -> Option<ChannelId> {
        self.daemon.keep(self.channel.take()?)
    }

    fn has_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_daemons_that_are_started_at_once_one_serves() {
        let folder = std::env::temp_dir().join(format!("xylemd-lock-{}", std::process::id()));
        let socket = folder.join("xylemd.sock");
        let start = |_| {
            let socket = socket.clone();
            thread::spawn(move || lock(&socket).and_then(|lock| Ok((lock, listen(&socket)?))))
        };
        let started: Vec<_> = (0..16)
            .map(start)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect();
        let refused = started.iter().filter_map(|it| it.as_ref().err());
        let expected = format!("another xylemd serves {} already", socket.display());
        assert!(refused.clone().all(|it| it.to_string() == expected), "{started:?}");
        assert_eq!(refused.count(), 15);
        // The next one takes over when it has exited.
        drop(started);
        lock(&socket).and_then(|_| listen(&socket)).unwrap();
        // Links are not followed.
        std::fs::remove_file(socket.with_extension("lock")).unwrap();
        std::os::unix::fs::symlink("/dev/null", socket.with_extension("lock")).unwrap();
        assert!(lock(&socket).unwrap_err().to_string().starts_with("cannot open"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
