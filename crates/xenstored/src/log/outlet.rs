//! Non-blocking standard error: its reader may be slow, gone, or hang.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::stdio::stderr;
use service_manager::{Journal, Priority};
use xen::DomId;

/// Longest line in bytes: a write up to `PIPE_BUF` is atomic.
const LINE_BYTES_MAX: usize = 4000;

/// What the lines begin with.
const NAME: &str = "xylem-xenstored";

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Standard error.
#[derive(Debug)]
pub(super) struct Outlet {
    way: Way,
    /// Has a priority and fields for each line, where standard error is only a stream.
    journal: Option<Journal>,
    /// Lines dropped since the last written one.
    lost: u64,
}

#[derive(Debug)]
enum Way {
    /// As journald's.
    Socket,
    /// A pipe or a terminal, opened again, so that its O_NONBLOCK does not affect other processes.
    Again(File),
    /// Anything that does not block, or cannot be opened again.
    Other,
}

impl Outlet {
    pub(super) fn of_standard_error() -> Self {
        let kind = fstat(stderr()).map(|found| FileType::from_raw_mode(found.st_mode));
        let way = match kind {
            Ok(FileType::Socket) => Way::Socket,
            Ok(FileType::Fifo | FileType::CharacterDevice) => {
                let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
                let again =
                    OpenOptions::new().write(true).custom_flags(flags).open("/proc/self/fd/2");
                again.map_or(Way::Other, Way::Again)
            }
            _ => Way::Other,
        };
        Self { way, journal: Journal::of_standard_error(NAME), lost: 0 }
    }

    /// Writes a line, or counts it as dropped.
    pub(super) fn write(&mut self, priority: Priority, domid: Option<DomId>, line: &str) {
        if self.lost > 0 {
            let told = format!("{} lines are missing here: nobody took them", self.lost);
            if self.put(Priority::Warning, None, &told) {
                self.lost = 0;
            }
        }
        if !self.put(priority, domid, line) {
            self.lost += 1;
        }
    }

    /// Whether somebody takes it.
    fn put(&self, priority: Priority, domid: Option<DomId>, line: &str) -> bool {
        let domid = domid.map(|domid| ("DOMID", domid.to_string()));
        let journal = self.journal.as_ref();
        journal.is_some_and(|it| it.send(priority, cut(line.to_owned()).as_str(), domid).is_ok())
            || self.way.write(&framed(line)).is_ok()
    }
}

/// Writes a line before the log is open, or where it is not available.
pub(crate) fn complain(line: &str) {
    let outlet = Outlet { way: Way::Other, journal: Journal::of_standard_error(NAME), lost: 0 };
    // A failure here cannot be reported.
    let _lost = outlet.put(Priority::Error, None, line);
}

fn framed(line: &str) -> String {
    let mut text = cut(format!("{NAME}: {line}"));
    text.push('\n');
    text
}

fn cut(mut text: String) -> String {
    if text.len() >= LINE_BYTES_MAX {
        let most = (0..=LINE_BYTES_MAX - 5).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(most.unwrap_or_default());
        text.push_str(" ...");
    }
    text
}

impl Way {
    fn write(&self, text: &str) -> Result<(), Errno> {
        let bytes = text.as_bytes();
        let written = match self {
            Self::Socket => {
                rustix::net::send(stderr(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Self::Again(file) => rustix::io::write(file, bytes),
            Self::Other => {
                let errors = stderr();
                let mut files = [PollFd::from_borrowed_fd(errors.as_fd(), PollFlags::OUT)];
                match poll(&mut files, Some(&NOW)) {
                    Ok(0) => Err(Errno::AGAIN),
                    Ok(_) => rustix::io::write(errors, bytes),
                    Err(errno) => Err(errno),
                }
            }
        };
        match written? {
            length if length == bytes.len() => Ok(()),
            _ => Err(Errno::AGAIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_off_between_two_characters() {
        for line in ["short", &"é".repeat(3000), &format!("x{}", "é".repeat(3000))] {
            let text = framed(line);
            assert!(text.len() <= LINE_BYTES_MAX && text.ends_with('\n'), "{}", text.len());
            assert_eq!(text.trim_end().ends_with("..."), line.len() > 100);
        }
    }
}
