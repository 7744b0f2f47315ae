//! The broker: a process that makes hypercalls for the daemon, which makes none.
//!
//! `/dev/xen/privcmd` has no permissions: a process that has it open controls the host. Every guest
//! talks to the store daemon, and all that it needs is to poll domains. So the daemon executes
//! itself again before it confines itself (`broker/process.rs`). That process opens the device,
//! drops everything else, and serves two requests: the states of the domains, and the state of one
//! domain (`broker/protocol.rs`). It understands no others, so the protocol is the policy.
//!
//! ```text
//!   daemon (`Broker`)                      broker (`process::serve`)
//!     │ Look                                 │
//!     ├────────────────────────────────────> │ the hypercalls of a look
//!     │              News, so many entries   │ entries into memory that both have
//!     │ <────────────────────────────────────┤
//! ```
//!
//! It exits when the last daemon with its socket does, however that ends. A daemon whose broker
//! exits starts another one if it still may; see `Daemon::replace_broker`.

pub(crate) mod process;
mod protocol;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use xen::DomId;
use xenstore::server::{DomainNews, DomainState, PollScope};

use crate::broker::protocol::{Answer, ENTRY_BYTES, MESSAGE_BYTES_MAX, Question};
use crate::confinement::Account;
use crate::options::BROKER_ARGUMENT;

/// Timeout for an answer; the daemon serves no one meanwhile. A poll of a full host takes some
/// milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Timeouts in a row after which the broker counts as dead.
const LATE_MAX: u32 = 3;

/// Timeout for the start of a broker.
const START_TIME: Duration = Duration::from_secs(60);

/// Timeout for the exit of a broker.
const END_TIME: Duration = Duration::from_millis(100);

/// Most entries of one poll: there are at most half as many domains, and each may appear twice.
const ENTRIES_MAX: usize = 1 << 16;

/// Name of the process in `ps`.
const NAME: &str = "xylem-broker";

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum AskError {
    /// A hypercall failed.
    Refused(xen::Errno),
    /// The request timed out; a late answer is ignored.
    Late,
    /// The broker is gone.
    Lost(anyhow::Error),
}

impl From<anyhow::Error> for AskError {
    fn from(error: anyhow::Error) -> Self {
        Self::Lost(error)
    }
}

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct Broker {
    socket: OwnedFd,
    /// Shared memory for the result of a poll.
    entries: File,
    /// `None` if a previous daemon started it.
    process: Option<Child>,
    /// Number of the next request; one that timed out may be answered later.
    next: u64,
    is_ready: bool,
    has_answered: bool,
    /// Timeouts in a row.
    late: u32,
    /// CPU time of the last poll in the broker.
    poll_cpu: Duration,
}

impl Broker {
    /// Starts a broker as this account. It is not [ready](Self::wait) immediately.
    pub(crate) fn start(account: Account) -> anyhow::Result<Self> {
        let (socket, theirs) = pair().context("cannot make a pair of sockets")?;
        let entries = memory().context("cannot make memory for a list of domains")?;
        // This very program, even if its file was replaced.
        let process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .arg(format!("{BROKER_ARGUMENT}={account}"))
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(entries.try_clone()?))
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the broker of hypercalls")?;
        let mut broker = Self::with(socket, entries);
        broker.process = Some(process);
        Ok(broker)
    }

    /// Takes over the broker of a previous daemon, which [lent](Self::lend) it.
    pub(crate) fn lent(socket: OwnedFd, entries: OwnedFd) -> Self {
        let mut broker = Self::with(socket, entries.into());
        broker.is_ready = true;
        broker
    }

    fn with(socket: OwnedFd, entries: File) -> Self {
        // Distinct from the numbers of other daemons with the same broker.
        let next = u64::from(std::process::id()) << 32;
        Self {
            socket,
            entries,
            process: None,
            next,
            is_ready: false,
            has_answered: false,
            late: 0,
            poll_cpu: Duration::ZERO,
        }
    }

    /// Waits until a new broker is ready and confined.
    pub(crate) fn wait(&mut self) -> anyhow::Result<()> {
        if self.is_ready {
            return Ok(());
        }
        match self
            .receive(Instant::now() + START_TIME)?
            .context("the broker of hypercalls does not start")?
        {
            (0, Answer::Ready) => {
                self.is_ready = true;
                Ok(())
            }
            (0, Answer::Failed(reason)) => bail!("{reason}"),
            _ => bail!("the broker of hypercalls does not say that it is ready"),
        }
    }

    /// Polls the domains.
    pub(crate) fn poll(&mut self, what: PollScope) -> Result<DomainNews, AskError> {
        let Answer::News { scope, count, cpu } = self.ask(Question::Poll(what))? else {
            return Err(nonsense().into());
        };
        self.poll_cpu = cpu;
        if count > ENTRIES_MAX {
            return Err(nonsense().into());
        }
        let mut bytes = vec![0; count * ENTRY_BYTES];
        self.entries.read_exact_at(&mut bytes, 0).context("the broker left no list of domains")?;
        Ok(protocol::news(scope, &bytes).ok_or_else(nonsense)?)
    }

    /// CPU time of the last poll in the broker.
    pub(crate) fn poll_cpu(&self) -> Duration {
        self.poll_cpu
    }

    /// Polls one domain.
    pub(crate) fn domain(&mut self, domid: DomId) -> Result<Option<DomainState>, AskError> {
        match self.ask(Question::Domain(domid))? {
            Answer::Domain(state) => Ok(state),
            _ => Err(nonsense().into()),
        }
    }

    fn ask(&mut self, question: Question) -> Result<Answer, AskError> {
        self.next += 1;
        let number = self.next;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.socket, &question.encode(number), flags).map_err(|_| ended())?;
        // The first poll may take longer, and no client is served yet.
        let time = if self.has_answered { ANSWER_TIME } else { START_TIME };
        let deadline = Instant::now() + time;
        loop {
            let Some((answered, answer)) = self.receive(deadline)? else {
                self.late += 1;
                if self.late < LATE_MAX {
                    return Err(AskError::Late);
                }
                let silence = ANSWER_TIME * LATE_MAX;
                return Err(
                    anyhow::anyhow!("the broker of hypercalls was silent for {silence:?}").into()
                );
            };
            if answered != number {
                // A late answer, or one for a previous daemon.
                continue;
            }
            self.late = 0;
            self.has_answered = true;
            return match answer {
                Answer::Refused(errno) => Err(AskError::Refused(errno)),
                answer => Ok(answer),
            };
        }
    }

    /// Its next message; `None` after the deadline.
    fn receive(&self, deadline: Instant) -> anyhow::Result<Option<(u64, Answer)>> {
        let mut message = [0; MESSAGE_BYTES_MAX];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).expect("a minute fits");
            let mut files = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut files, Some(&wait)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("cannot wait for the broker"),
            }
            return match recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Ok((0, _)) | Err(_) => Err(ended()),
                Ok((length, _)) => {
                    Answer::decode(&message[..length]).ok_or_else(nonsense).map(Some)
                }
            };
        }
    }

    /// Whether it has ever answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Descriptors for a daemon that takes over, see [`lent`](Self::lent).
    pub(crate) fn lend(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.entries.as_fd()]
    }

    /// Leaves it to the daemon that [borrowed](Self::lend) it: it does not exit with this process.
    pub(crate) fn leave(mut self) {
        self.process = None;
    }
}

impl AsFd for Broker {
    /// Hangs up when the broker ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let Some(process) = &mut self.process else { return };
        // It is another user's process: it exits when its socket is closed.
        let _closed = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let _others = process.kill();
        let deadline = Instant::now() + END_TIME;
        while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ended() -> anyhow::Error {
    anyhow::anyhow!("the broker of hypercalls has ended")
}

fn nonsense() -> anyhow::Error {
    anyhow::anyhow!("the broker of hypercalls answers nonsense")
}

fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn memory() -> rustix::io::Result<File> {
    memfd_create("xylem-domains", MemfdFlags::CLOEXEC).map(File::from)
}

#[cfg(test)]
mod tests {
    use sim::{Faults, Machine, MachineConfig, Release, SimXen};
    use xen::{CreateDomain, CreateOptions, DomainKind, Uuid, Xen};

    use super::*;
    use crate::broker::protocol::Scope;

    /// Runs `body` with a broker over a simulated Xen with this many domains besides dom0.
    fn brokered<R>(release: Release, domains: u16, body: impl FnOnce(&mut Broker) -> R) -> R {
        let prepare = |machine: &Machine| {
            machine.get_mut().evtchn_bind_dom_exc(DomId::DOM0).unwrap();
        };
        brokered_after(prepare, release, domains, body)
    }

    fn brokered_after<R>(
        prepare: impl FnOnce(&Machine) + Send,
        release: Release,
        domains: u16,
        body: impl FnOnce(&mut Broker) -> R,
    ) -> R {
        let (socket, theirs) = pair().unwrap();
        let entries = memory().unwrap();
        let their_entries = entries.try_clone().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let pages = 1 << 20;
                let config = MachineConfig { release, pages, ..MachineConfig::default() };
                let machine = Machine::new(SimXen::new(config, Faults::default(), 1));
                prepare(&machine);
                let mut xen = Xen::probe(machine.hypervisor()).unwrap();
                for number in 1..=domains {
                    xen.create_domain(&wanted(number)).unwrap();
                }
                process::answer_all(theirs.as_fd(), their_entries.as_fd(), &mut xen);
            });
            let mut broker = Broker::with(socket, entries);
            let result = body(&mut broker);
            drop(broker);
            thread.join().expect("it ends by itself when nobody can ask any more");
            result
        })
    }

    fn wanted(number: u16) -> CreateDomain {
        CreateDomain {
            kind: DomainKind::Pv,
            handle: handle(number),
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: None,
            maptrack_frames_max: None,
            options: CreateOptions::default(),
        }
    }

    fn handle(number: u16) -> Uuid {
        let mut bytes = [7; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Uuid(bytes)
    }

    fn listed(news: DomainNews) -> Vec<DomainState> {
        match news {
            DomainNews::All(states) => states,
            DomainNews::Changed(changed) => changed.into_iter().filter_map(|it| it.1).collect(),
        }
    }

    #[test]
    fn a_look_tells_all_domains_on_every_release() {
        for release in Release::ALL {
            brokered(release, 3, |broker| {
                let states = listed(broker.poll(PollScope::Everything).unwrap());
                let domids: Vec<u16> = states.iter().map(|state| state.domid.0).collect();
                assert_eq!(domids, [0, 1, 2, 3]);
                assert_eq!(states[2].handle, handle(2));
                let tells = release >= Release::Xen4_21;
                assert!(states.iter().all(|state| state.unique_id.is_some() == tells));
                assert_eq!(broker.domain(DomId(2)).unwrap(), Some(states[2]));
                assert_eq!(broker.domain(DomId(9)).unwrap(), None);
                // This number has a special meaning in Xen.
                assert_eq!(broker.domain(DomId(0x7ff4)).unwrap(), None);
                assert!(matches!(broker.poll(PollScope::Changes), Ok(DomainNews::All(_))) != tells);
            });
        }
    }

    #[test]
    fn a_host_may_be_full_of_domains() {
        for (release, count) in [(Release::Xen4_17, 32_000), (Release::Xen4_22, 1000)] {
            brokered(release, count, |broker| {
                let states = listed(broker.poll(PollScope::Everything).unwrap());
                assert_eq!(states.len(), usize::from(count) + 1);
                assert!(states.windows(2).all(|two| two[0].domid < two[1].domid));
            });
        }
    }

    #[test]
    fn what_xen_refuses_is_no_loss() {
        // Only the owner of VIRQ_DOM_EXC may query changes.
        brokered_after(
            |_| (),
            Release::Xen4_22,
            1,
            |broker| {
                let refused = broker.poll(PollScope::Changes);
                assert!(
                    matches!(refused, Err(AskError::Refused(xen::Errno::EACCES))),
                    "{refused:?}"
                );
                assert!(broker.domain(DomId(1)).unwrap().is_some());
            },
        );
    }

    #[test]
    fn nothing_else_can_be_asked() {
        brokered(Release::Xen4_22, 1, |broker| {
            let mut question = Question::Domain(DomId(1)).encode(5);
            // An invalid request type.
            question[8] = 9;
            send(&broker.socket, &question, SendFlags::NOSIGNAL).unwrap();
            let lost = broker.domain(DomId(1));
            assert!(matches!(lost, Err(AskError::Lost(_))), "{lost:?}");
        });
    }

    #[test]
    fn answers_to_a_daemon_before_are_passed_over() {
        brokered(Release::Xen4_17, 2, |broker| {
            let question = Question::Poll(PollScope::Everything).encode(broker.next + (7 << 32));
            send(&broker.socket, &question, SendFlags::NOSIGNAL).unwrap();
            assert_eq!(broker.domain(DomId(2)).unwrap().unwrap().handle, handle(2));
        });
    }

    #[test]
    fn a_broker_that_ends_is_lost() {
        let (socket, theirs) = pair().unwrap();
        let mut broker = Broker::with(socket, memory().unwrap());
        drop(theirs);
        let lost = broker.poll(PollScope::Changes);
        let Err(AskError::Lost(error)) = lost else { panic!("{lost:?}") };
        assert_eq!(error.to_string(), "the broker of hypercalls has ended");
        assert!(!broker.has_answered());
    }

    #[test]
    fn the_daemon_waits_for_milliseconds_and_passes_over_what_comes_late() {
        let (socket, theirs) = pair().unwrap();
        let mut broker = Broker::with(socket, memory().unwrap());
        broker.has_answered = true;
        let begun = Instant::now();
        assert!(matches!(broker.domain(DomId(1)), Err(AskError::Late)));
        assert!(begun.elapsed() < ANSWER_TIME * 4, "{:?}", begun.elapsed());
        let late = broker.next;
        // The late answer comes before that to the next request.
        for number in [late, late + 1] {
            send(&theirs, &Answer::Domain(None).encode(number), SendFlags::NOSIGNAL).unwrap();
        }
        assert!(matches!(broker.domain(DomId(2)), Ok(None)));
        // A broker that never answers counts as dead.
        for _ in 1..LATE_MAX {
            assert!(matches!(broker.domain(DomId(3)), Err(AskError::Late)));
        }
        assert!(matches!(broker.domain(DomId(3)), Err(AskError::Lost(_))));
    }

    #[test]
    fn nonsense_is_not_believed() {
        for answer in [&b"?"[..], &[0xff; 16], &[2; MESSAGE_BYTES_MAX]] {
            let (socket, theirs) = pair().unwrap();
            let mut broker = Broker::with(socket, memory().unwrap());
            send(&theirs, answer, SendFlags::NOSIGNAL).unwrap();
            assert!(broker.wait().is_err());
            drop(theirs);
        }
        // More entries than written, and more than possible.
        for count in [1, u32::MAX] {
            let (socket, theirs) = pair().unwrap();
            let mut broker = Broker::with(socket, memory().unwrap());
            let answer =
                Answer::News { scope: Scope::All, count: count as usize, cpu: Duration::ZERO };
            send(&theirs, &answer.encode(broker.next + 1), SendFlags::NOSIGNAL).unwrap();
            let lost = broker.poll(PollScope::Everything);
            assert!(matches!(lost, Err(AskError::Lost(_))), "{lost:?}");
        }
    }
}
