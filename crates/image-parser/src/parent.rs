//! The daemon's side: passes an image to a confined process and validates its result.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read as _, Seek as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use xen_build::{DescriptionError, KernelImage};

use crate::{ANSWER_BYTES_MAX, ANSWER_ERROR, ANSWER_OK, REQUEST};

/// Interval of checks of a parser's CPU time.
const LOOK: Duration = Duration::from_millis(20);

/// The longest description: that of an ELF file with all the headers it can have.
const DESCRIPTION_BYTES_MAX: usize = 4 << 20;

/// Bounds of a parser.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The largest file that is parsed.
    pub file_bytes: u64,
    /// Total memory of the process: file, unpacked kernel and a decoder's window.
    pub memory_mib: u64,
    /// CPU time for any file.
    pub cpu: Duration,
    /// Additional CPU time for each MiB of the file.
    pub cpu_per_mib: Duration,
    /// The most CPU time for any file, however large.
    pub cpu_most: Duration,
    /// For a parser that blocks.
    pub wall: Duration,
}

impl Default for Limits {
    /// An emulated CPU, 20 times slower than others, unpacks Debian's kernel in half of this. Small
    /// files have some seconds too: on a busy virtual machine CPU time also counts stolen time.
    fn default() -> Self {
        Self {
            file_bytes: 256 << 20,
            memory_mib: 1536,
            cpu: Duration::from_secs(5),
            cpu_per_mib: Duration::from_secs(4),
            cpu_most: Duration::from_secs(60),
            wall: Duration::from_secs(600),
        }
    }
}

/// Why a kernel cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The parser's error message.
    #[error("{0}")]
    Image(String),
    #[error("a file of {mib} MiB; kernels of up to {mib_max} MiB are read")]
    TooLarge { mib: u64, mib_max: u64 },
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error(
        "parsing takes more than {seconds:.1} s of CPU time; use a kernel that is not compressed, or with gzip or lz4"
    )]
    Slow { seconds: f64 },
    #[error("the parser did not answer within {seconds} s; is the host overloaded?")]
    Silent { seconds: u64 },
    #[error(
        "the parser ended with {how}: the file is damaged, or takes more than {memory_mib} MiB to unpack"
    )]
    Ended { how: String, memory_mib: u64 },
    #[error("the parser's answer is invalid: {0}")]
    Nonsense(String),
    #[error("the parser cannot be started: {0}")]
    Start(io::Error),
}

impl From<DescriptionError> for ParseError {
    fn from(error: DescriptionError) -> Self {
        Self::Nonsense(error.to_string())
    }
}

/// Starts confined processes and passes each of them an image.
#[derive(Debug)]
pub struct Parser {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: Limits,
    processes: Mutex<Processes>,
}

#[derive(Debug, Default)]
struct Processes {
    /// Started and waiting for an image.
    spare: Option<Process>,
    /// Those that parse, which are not waited for while they are here.
    at_work: BTreeSet<u32>,
    /// No further one is started.
    have_ended: bool,
}

/// A running parser.
#[derive(Debug)]
struct Process {
    child: Child,
    socket: OwnedFd,
}

impl Parser {
    /// `program` with `arguments` must call [`serve`](crate::serve). The first process is started
    /// at once.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = OsString>,
        limits: Limits,
    ) -> io::Result<Self> {
        let arguments = arguments.into_iter().collect();
        let processes = Mutex::default();
        let parser = Self { program: program.into(), arguments, limits, processes };
        parser.lock().spare = Some(parser.spawn()?);
        Ok(parser)
    }

    /// Ends all its processes and returns when they are gone. Nothing is parsed from then on.
    pub fn end(&self) {
        let mut processes = self.lock();
        processes.have_ended = true;
        processes.spare = None;
        for &number in &processes.at_work {
            let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { continue };
            // Neither fails: it is our child, and whoever waits for it takes it from here first.
            let _dead = kill_process(pid, Signal::KILL);
            let exit = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _status = waitid(WaitId::Pid(pid), exit);
        }
    }

    /// The pid of the process that waits for the next image, for tests.
    #[must_use]
    pub fn spare(&self) -> Option<u32> {
        self.lock().spare.as_ref().map(|process| process.child.id())
    }

    /// Parses a kernel, from the file's current position.
    ///
    /// # Errors
    /// [`ParseError`]; the caller names the file. The next image finds a new process.
    pub fn parse(&self, file: &File) -> Result<KernelImage, ParseError> {
        let bytes = file.metadata().map_err(ParseError::Unreadable)?.len();
        if bytes > self.limits.file_bytes {
            let mib = bytes.div_ceil(1 << 20);
            return Err(ParseError::TooLarge { mib, mib_max: self.limits.file_bytes >> 20 });
        }
        let result = memfd_create("xylem-kernel", MemfdFlags::CLOEXEC);
        let result = result.map_err(|errno| ParseError::Start(errno.into()))?;
        let mut process = self.hand_over(file, &result)?;
        // Started while that one works. Without a spare the next image only waits for a start.
        if let Ok(spare) = self.spawn() {
            let mut processes = self.lock();
            if !processes.have_ended {
                let _one_too_many = processes.spare.replace(spare);
            }
        }
        let answer = process.answer(self.cpu_for(bytes), self.limits.wall);
        self.lock().at_work.remove(&process.child.id());
        // The result is not written any more.
        let ended = process.end();
        match answer? {
            Some(answer) => understand(&answer, File::from(result)),
            None => Err(ParseError::Ended { how: how(ended), memory_mib: self.limits.memory_mib }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Processes> {
        // Held only to put and take.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) -> io::Result<Process> {
        let kind = SocketType::SEQPACKET;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .arg(self.limits.memory_mib.to_string())
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Process { child, socket })
    }

    /// Passes the file to the spare, or to a new process if the spare has died.
    fn hand_over(&self, file: &File, result: &OwnedFd) -> Result<Process, ParseError> {
        let spare = {
            let mut processes = self.lock();
            let spare = processes.spare.take();
            processes.at_work.extend(spare.as_ref().map(|it| it.child.id()));
            spare
        };
        if let Some(process) = spare {
            if process.request(file, result).is_ok() {
                return Ok(process);
            }
            self.lock().at_work.remove(&process.child.id());
        }
        let process = self.spawn().map_err(ParseError::Start)?;
        {
            let mut processes = self.lock();
            if processes.have_ended {
                return Err(ParseError::Start(io::Error::other("the daemon ends")));
            }
            processes.at_work.insert(process.child.id());
        }
        // A dead process is noticed when it does not answer.
        let _dead = process.request(file, result);
        Ok(process)
    }

    fn cpu_for(&self, bytes: u64) -> Duration {
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let scaled = self.limits.cpu.saturating_add(self.limits.cpu_per_mib.saturating_mul(mib));
        scaled.min(self.limits.cpu_most)
    }
}

impl Process {
    fn request(&self, file: &File, result: &OwnedFd) -> rustix::io::Result<()> {
        let descriptors = [file.as_fd(), result.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
        assert!(fits, "the space is for two descriptors");
        sendmsg(&self.socket, &[IoSlice::new(REQUEST)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The parser's answer; `None` if it exits without one.
    fn answer(&self, cpu: Duration, wall: Duration) -> Result<Option<Vec<u8>>, ParseError> {
        let began = Instant::now();
        let look = Timespec::try_from(LOOK).expect("less than a second");
        loop {
            let mut poll_fd = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut poll_fd, Some(&look)).is_ok_and(|ready| ready > 0) {
                let mut answer = [0; ANSWER_BYTES_MAX];
                return Ok(match recv(&self.socket, &mut answer, RecvFlags::DONTWAIT) {
                    Ok((0, _)) | Err(_) => None,
                    Ok((length, _)) => Some(answer[..length].to_vec()),
                });
            }
            let used = cpu_time(self.child.id());
            if used > cpu {
                return Err(ParseError::Slow { seconds: used.as_secs_f64() });
            }
            if began.elapsed() > wall {
                return Err(ParseError::Silent { seconds: wall.as_secs() });
            }
        }
    }

    /// Kills it and returns its exit status. A process that is about to exit by itself keeps its
    /// own status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Also one that never got an image. Neither call fails for a child that was not waited for.
        let _dead = self.child.kill();
        let _status = self.child.wait();
    }
}

/// CPU time of a process. Source: `proc_pid_stat(5)`.
fn cpu_time(pid: u32) -> Duration {
    /// `USER_HZ`, the same on every x86 kernel.
    const TICKS_PER_SECOND: u32 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain spaces.
    let numbers = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = numbers.split(' ').skip(11).take(2).filter_map(|word| word.parse::<u32>().ok());
    Duration::from_secs(1) / TICKS_PER_SECOND * ticks.sum()
}

fn how(ended: io::Result<ExitStatus>) -> String {
    match ended.map(|status| (status.signal(), status.code())) {
        Ok((Some(signal), _)) => format!("signal {signal}"),
        Ok((None, code)) => format!("status {}", code.unwrap_or_default()),
        Err(error) => error.to_string(),
    }
}

fn understand(answer: &[u8], mut result: File) -> Result<KernelImage, ParseError> {
    match answer {
        [ANSWER_ERROR, words @ ..] => {
            // The message may be an attacker's: remove control characters.
            let words = String::from_utf8_lossy(words);
            let plain = |c: char| if c.is_control() { '?' } else { c };
            Err(ParseError::Image(words.chars().map(plain).collect()))
        }
        [ANSWER_OK, length @ ..] => {
            let nonsense = |what: &str| ParseError::Nonsense(what.to_owned());
            let length = length.try_into().map_err(|_| nonsense("it has no length"))?;
            let length = usize::try_from(u64::from_le_bytes(length))
                .ok()
                .filter(|length| *length <= KernelImage::UNPACKED_BYTES_MAX)
                .ok_or(nonsense("it unpacked too much"))?;
            let size = result.metadata().map_err(ParseError::Unreadable)?.len();
            if size > (length + DESCRIPTION_BYTES_MAX) as u64 {
                return Err(nonsense("it is longer than it says"));
            }
            let mut bytes = Vec::new();
            result
                .rewind()
                .and_then(|()| result.read_to_end(&mut bytes))
                .map_err(ParseError::Unreadable)?;
            if length > bytes.len() {
                return Err(nonsense("it is shorter than it says"));
            }
            let description = bytes.split_off(length);
            Ok(KernelImage::assemble(&description, bytes)?)
        }
        _ => Err(ParseError::Nonsense("it begins otherwise".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn told(answer: &[u8], result: &[u8]) -> String {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memory);
        file.write_all(result).unwrap();
        understand(answer, file).map_or_else(|error| error.to_string(), |_| "a kernel".to_owned())
    }

    #[test]
    fn an_answer_that_makes_no_sense_makes_no_kernel() {
        let length = |bytes: u64| [&[ANSWER_OK][..], &bytes.to_le_bytes()].concat();
        let begin = "the parser's answer is invalid: ";
        for (answer, result, expected) in [
            (&b"?"[..], &b""[..], "it begins otherwise"),
            (b"+", b"", "it has no length"),
            (b"+1234567", b"", "it has no length"),
            (&length(u64::MAX), b"", "it unpacked too much"),
            (&length(1 << 40), b"", "it unpacked too much"),
            (&length(4), b"abc", "it is shorter than it says"),
            (&length(0), &vec![0; DESCRIPTION_BYTES_MAX + 1], "it is longer than it says"),
        ] {
            assert_eq!(told(answer, result), format!("{begin}{expected}"));
        }
        let nonsense = told(&length(3), b"abcXYKERNEL");
        assert!(nonsense.starts_with(&format!("{begin}invalid description")), "{nonsense}");
    }

    #[test]
    fn words_of_a_parser_do_not_speak_to_the_terminal() {
        assert_eq!(told(b"-\x1b[2Jall is well\n", b""), "?[2Jall is well?");
    }

    #[test]
    fn larger_files_get_more_time_up_to_a_bound() {
        let parser = Parser {
            program: PathBuf::new(),
            arguments: Vec::new(),
            limits: Limits::default(),
            processes: Mutex::default(),
        };
        let seconds =
            [0, 5 << 20, 200 << 20, u64::MAX].map(|bytes| parser.cpu_for(bytes).as_secs());
        assert_eq!(seconds, [5, 25, 60, 60]);
    }
}
