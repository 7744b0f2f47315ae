//! Copies bytes between the user's terminal and a domain's pty.

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// Control and `]`, as with telnet and xenconsole.
pub(crate) const ESCAPE_DEFAULT: u8 = 0x1d;

/// Most pending input for a guest that does not read, in bytes.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// `^]` or a single character.
pub(crate) fn escape_byte(text: &str) -> Option<u8> {
    match *text.as_bytes() {
        [byte] => Some(byte),
        [b'^', byte @ b'@'..=b'_'] => Some(byte & 0x1f),
        [b'^', byte @ b'a'..=b'z'] => Some(byte & 0x1f),
        _ => None,
    }
}

/// Opens a pty, non-blocking and not as our controlling terminal.
pub(crate) fn open(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Sets raw mode; returns the previous modes, or `None` if `fd` is not a terminal.
fn make_raw(fd: BorrowedFd<'_>) -> io::Result<Option<Termios>> {
    if !isatty(fd) {
        return Ok(None);
    }
    let before = tcgetattr(fd)?;
    let mut raw = before.clone();
    raw.make_raw();
    tcsetattr(fd, OptionalActions::Now, &raw)?;
    Ok(Some(before))
}

/// The user's terminal, raw until this is dropped.
struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    /// `None` if it is not a terminal.
    before: Option<Termios>,
}

impl<'a> RawMode<'a> {
    fn enter(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        Ok(Self { terminal, before: make_raw(terminal)? })
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone; then there is nothing to restore.
            let _ = tcsetattr(self.terminal, OptionalActions::Now, before);
        }
    }
}

/// Copies bytes both ways until the user types `escape` or the console closes.
///
/// Input that is not a terminal may end earlier: output continues.
pub(crate) fn attach(tty: &OwnedFd, escape: u8) -> io::Result<()> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let _raw_stdin = RawMode::enter(stdin.as_fd())?;
    // The console's own line discipline must be raw too. It stays so afterwards, as xenconsoled
    // also sets it.
    make_raw(tty.as_fd())?;
    let input = if stdin.is_terminal() { Input::Typed } else { Input::Piped };
    Link {
        input: stdin.as_fd(),
        output: stdout.as_fd(),
        tty: tty.as_fd(),
        kind: input,
        escape,
        pending: Vec::new(),
        input_open: true,
        leaving: false,
    }
    .run()
}

/// Kind of the user's input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Input {
    /// A terminal: input that the guest does not read is dropped, so that the escape is always
    /// handled.
    Typed,
    /// A pipe or file: no byte is dropped.
    Piped,
}

struct Link<'a> {
    input: BorrowedFd<'a>,
    output: BorrowedFd<'a>,
    tty: BorrowedFd<'a>,
    kind: Input,
    escape: u8,
    /// Bytes not yet written to the console.
    pending: Vec<u8>,
    input_open: bool,
    /// The escape was read; earlier input must still be sent.
    leaving: bool,
}

/// Whether to continue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    Continue,
    Stop,
}

impl Link<'_> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let room = self.pending.len() < PENDING_BYTES_MAX;
            let wants_input = self.input_open && (room || self.kind == Input::Typed);
            let mut tty_events = PollFlags::IN;
            if !self.pending.is_empty() {
                tty_events |= PollFlags::OUT;
            }
            let mut fds = vec![PollFd::from_borrowed_fd(self.tty, tty_events)];
            if wants_input {
                fds.push(PollFd::from_borrowed_fd(self.input, PollFlags::IN));
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let tty_ready = fds[0].revents();
            let input_ready = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            if tty_ready.contains(PollFlags::OUT) {
                self.send()?;
            }
            let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
            if tty_ready.intersects(readable) && self.receive()? == Next::Stop {
                return Ok(());
            }
            if input_ready {
                self.read_input()?;
            }
            if self.leaving && (self.kind == Input::Typed || self.pending.is_empty()) {
                return Ok(());
            }
        }
    }

    /// Console to user.
    fn receive(&mut self) -> io::Result<Next> {
        let mut buffer = [0; 4096];
        match rustix::io::read(self.tty, &mut buffer) {
            // The other end closed it: the domain is gone.
            Ok(0) | Err(Errno::IO) => Ok(Next::Stop),
            Ok(count) => match write_all(self.output, &buffer[..count]) {
                Ok(()) => Ok(Next::Continue),
                // The reader has closed our output.
                Err(Errno::PIPE) => Ok(Next::Stop),
                Err(error) => Err(error.into()),
            },
            Err(Errno::AGAIN | Errno::INTR) => Ok(Next::Continue),
            Err(error) => Err(error.into()),
        }
    }

    /// User to pending input.
    fn read_input(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let count = match rustix::io::read(self.input, &mut buffer) {
            Ok(0) => {
                self.input_open = false;
                return Ok(());
            }
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = &buffer[..count];
        if let Some(end) = bytes.iter().position(|&byte| byte == self.escape) {
            bytes = &bytes[..end];
            self.leaving = true;
            self.input_open = false;
        }
        if self.kind == Input::Piped || self.pending.len() < PENDING_BYTES_MAX {
            self.pending.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Pending input to the console.
    fn send(&mut self) -> io::Result<()> {
        match rustix::io::write(self.tty, &self.pending) {
            Ok(count) => {
                self.pending.drain(..count);
                Ok(())
            }
            // EIO: the other end is gone, which the read side notices too.
            Err(Errno::AGAIN | Errno::INTR | Errno::IO) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // A terminal that another process made non-blocking: wait until it is writable.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None).map(|_| ())?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_is_a_character_or_a_control() {
        for (text, byte) in [
            ("^]", Some(ESCAPE_DEFAULT)),
            ("^A", Some(1)),
            ("^a", Some(1)),
            ("~", Some(b'~')),
            ("^", Some(b'^')),
            ("", None),
            ("^5", None),
            ("ab", None),
            ("é", None),
        ] {
            assert_eq!(escape_byte(text), byte, "{text}");
        }
    }
}
