//! Relays: bytes between clients' connections and the consoles and screens of VMs, each on a thread of its own.
//!
//! What a guest says is not looked at. A client that does not read holds up its own relay, and with that at most what is
//! printed on this console.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, major};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use service::{Outlet, Place};
use xen::Uuid;

use crate::ChannelEnds;

/// Relays at a time.
const RELAYS_MAX: usize = 64;
/// Of one VM.
const OF_A_VM_MAX: usize = 8;
/// Bytes on their way in one direction.
const BUFFER_BYTES: usize = 16 << 10;
/// For a relay, which keeps its bytes elsewhere.
const STACK_BYTES: usize = 64 << 10;
/// A server on this host answers at once, or does not live.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// When one side has ended, how long the other may take for what is still on its way to it.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// Major numbers of pseudo-terminals (Linux, `Documentation/admin-guide/devices.txt`).
const PTYS: Range<u32> = 136..144;

/// All relays of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Relays(Arc<Mutex<BTreeMap<Uuid, usize>>>);

/// A relay's place among them.
#[derive(Debug)]
struct Seat {
    relays: Relays,
    vm: Uuid,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.relays.all();
        if let Some(count) = all.get_mut(&self.vm) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.vm);
            }
        }
    }
}

impl Relays {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, usize>> {
        // Every change of it is a single one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(&self, vm: Uuid) -> Result<Seat, String> {
        let mut all = self.all();
        let count = all.get(&vm).copied().unwrap_or_default();
        if count >= OF_A_VM_MAX {
            return Err(format!(
                "{OF_A_VM_MAX} clients are attached to consoles of this VM already"
            ));
        }
        if all.values().sum::<usize>() >= RELAYS_MAX {
            return Err(format!("{RELAYS_MAX} clients are attached to consoles already"));
        }
        all.insert(vm, count + 1);
        Ok(Seat { relays: self.clone(), vm })
    }

    /// Opens a console or a screen, unless there are too many relays, and copies bytes between it and a client until either
    /// side ends.
    ///
    /// # Errors
    /// Says what cannot be opened, and why.
    pub fn begin(
        &self,
        to: &Outlet,
        client: ChannelEnds,
        open: impl FnOnce() -> Result<OwnedFd, String>,
    ) -> Result<(), String> {
        let seat = self.seat(to.vm)?;
        let outlet = open()?;
        let cannot = |error: io::Error| format!("cannot relay for domain {}: {error}", to.domid);
        for end in client.iter().chain([&outlet]) {
            let flags = fcntl_getfl(end).map_err(|error| cannot(error.into()))?;
            fcntl_setfl(end, flags | OFlags::NONBLOCK).map_err(|error| cannot(error.into()))?;
        }
        let thread = thread::Builder::new().name("relay".to_owned()).stack_size(STACK_BYTES);
        let relay = move || {
            be_patient();
            Relay::new(&client, &outlet).run();
            drop((client, outlet));
            drop(seat);
        };
        thread.spawn(relay).map(drop).map_err(cannot)
    }
}

/// The daemon comes before others; what guests print does not.
pub(crate) fn be_patient() {
    if rustix::process::getpriority_process(None).is_ok_and(|niceness| niceness < 0) {
        let _refused = rustix::process::setpriority_process(None, 0);
    }
}

/// Opens a console's pseudo-terminal, raw, or connects to a screen's server.
///
/// # Errors
/// Says what cannot be opened, and why.
pub fn open_place(of: &Outlet) -> Result<OwnedFd, String> {
    let domid = of.domid;
    match &of.place {
        Place::Terminal(path) => open_terminal(path)
            .map_err(|error| format!("cannot open the console of domain {domid}, {path}: {error}")),
        Place::Server(address) => connect(address).map_err(|error| {
            format!("cannot reach the screen of domain {domid} at {address}: {error}")
        }),
    }
}

fn open_terminal(path: &str) -> io::Result<OwnedFd> {
    let flags =
        OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let terminal = rustix::fs::open(path, flags, Mode::empty())?;
    let is_pty = PTYS.contains(&major(fstat(&terminal)?.st_rdev));
    if !is_pty {
        return Err(io::Error::other("it is no pseudo-terminal"));
    }
    let mut modes = tcgetattr(&terminal)?;
    // It stays so afterwards, as xenconsoled also sets it.
    modes.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;
    Ok(terminal)
}

fn connect(address: &str) -> io::Result<OwnedFd> {
    let mut last = io::Error::other("it is no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => {
                // Screens are small answers to small questions.
                let _slower = stream.set_nodelay(true);
                return Ok(stream.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Bytes on their way.
struct Way {
    buffer: Box<[u8]>,
    /// What was read and not yet written.
    left: Range<usize>,
    /// More may come.
    is_open: bool,
}

impl Way {
    fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into(), left: 0..0, is_open: true }
    }

    /// Whether it can be read into: one buffer is filled when all of it has been written.
    fn wants(&self) -> bool {
        self.is_open && self.left.is_empty()
    }

    fn has_ended(&self) -> bool {
        !self.is_open && self.left.is_empty()
    }

    fn fill(&mut self, from: BorrowedFd<'_>) {
        match rustix::io::read(from, &mut *self.buffer) {
            Ok(count) if count > 0 => self.left = 0..count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // EIO: the other end of a pty is closed.
            Ok(_) | Err(_) => self.is_open = false,
        }
    }

    fn drain(&mut self, to: BorrowedFd<'_>) {
        match rustix::io::write(to, &self.buffer[self.left.clone()]) {
            Ok(count) => self.left.start += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end(),
        }
    }

    /// Nobody takes it any more.
    fn end(&mut self) {
        (self.left, self.is_open) = (0..0, false);
    }
}

struct Relay<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    outlet: BorrowedFd<'a>,
    /// To the guest.
    input: Way,
    /// To the client.
    output: Way,
    is_client_there: bool,
    is_guest_there: bool,
    /// One side has ended.
    deadline: Option<Instant>,
}

impl<'a> Relay<'a> {
    fn new([from, to]: &'a ChannelEnds, outlet: &'a OwnedFd) -> Self {
        Self {
            from: from.as_fd(),
            to: to.as_fd(),
            outlet: outlet.as_fd(),
            input: Way::new(),
            output: Way::new(),
            is_client_there: true,
            is_guest_there: true,
            deadline: None,
        }
    }

    fn run(&mut self) {
        loop {
            let has_guest_ended = self.output.has_ended() && self.is_client_there;
            let has_client_ended = self.input.has_ended() && !self.is_client_there;
            if has_guest_ended || has_client_ended {
                return;
            }
            let is_ending = !self.output.is_open || !self.is_client_there || !self.is_guest_there;
            if is_ending && self.deadline.is_none() {
                self.deadline = Some(Instant::now() + LAST_WAIT);
            }
            let left = self.deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || self.step(left).is_err() {
                return;
            }
        }
    }

    /// Waits until something can be read or written, and does that.
    fn step(&mut self, left: Option<Duration>) -> Result<(), Errno> {
        let when = |is: bool, what: PollFlags| if is { what } else { PollFlags::empty() };
        let outlet = when(self.output.wants(), PollFlags::IN)
            | when(!self.input.left.is_empty(), PollFlags::OUT)
            | when(self.is_guest_there, PollFlags::RDHUP);
        let to = when(!self.output.left.is_empty(), PollFlags::OUT);
        let from = when(self.input.wants(), PollFlags::IN);
        // An end is told each time: whoever has ended, and is asked about nothing else, is left out, or this would spin.
        let mut fds = Vec::with_capacity(3);
        let mut places = [None; 3];
        let all = [
            (self.outlet, outlet, !outlet.is_empty()),
            (self.to, to, self.is_client_there),
            (self.from, from, !from.is_empty()),
        ];
        for (place, (fd, events, is_asked)) in places.iter_mut().zip(all) {
            if is_asked {
                *place = Some(fds.len());
                fds.push(PollFd::from_borrowed_fd(fd, events));
            }
        }
        let left = left.map(Timespec::try_from).transpose().map_err(|_| Errno::INVAL)?;
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error),
        }
        let [outlet, to, from] =
            places.map(|at| at.map_or(PollFlags::empty(), |at: usize| fds[at].revents()));
        let ends = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if outlet.intersects(PollFlags::RDHUP | ends) {
            self.is_guest_there = false;
        }
        if outlet.intersects(PollFlags::OUT | ends) && !self.input.left.is_empty() {
            self.input.drain(self.outlet);
        }
        if outlet.intersects(PollFlags::IN | ends) && self.output.wants() {
            self.output.fill(self.outlet);
        }
        if to.contains(PollFlags::OUT) {
            self.output.drain(self.to);
        }
        if to.intersects(ends) {
            self.is_client_there = false;
            self.output.end();
        }
        if from.intersects(PollFlags::IN | ends) && self.input.wants() {
            self.input.fill(self.from);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "relays/tests.rs"]
mod tests;
