//! The log, and the trace of requests.
//!
//! Neither ever blocks the store: writes to standard error are non-blocking, and lines that do not
//! fit are dropped and counted. Lines caused by guests are rate-limited per guest.

mod outlet;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;
use service_manager::Priority;
use xen::DomId;
use xenstore::Error;

use crate::confinement::Account;
use crate::files::{self, Content};
use outlet::Outlet;
pub(crate) use outlet::complain;

/// Lines about one domain, and about all together, in each [`PERIOD`].
const LINES_PER_DOMAIN: u32 = 10;
const LINES: u32 = 600;
const PERIOD: Duration = Duration::from_secs(60);

pub(crate) struct Log {
    path: Option<PathBuf>,
    pub(crate) trace: Option<File>,
    outlet: Outlet,
    all: Allowance,
    by_domain: BTreeMap<DomId, Allowance>,
}

impl Log {
    /// Opens the trace file, if configured. `account` is the daemon's future account.
    pub(crate) fn open(path: Option<PathBuf>, account: Option<Account>) -> anyhow::Result<Self> {
        let first =
            |path| files::open(path, Content::Kept, account).with_context(|| no_trace(path));
        let trace = path.as_deref().map(first).transpose()?;
        let (all, by_domain) = (Allowance::default(), BTreeMap::new());
        Ok(Self { path, trace, outlet: Outlet::of_standard_error(), all, by_domain })
    }

    /// Standard error was redirected.
    pub(crate) fn errors_changed(&mut self) {
        self.outlet = Outlet::of_standard_error();
    }

    /// Reopens the trace file after rotation.
    pub(crate) fn reopen(&mut self) {
        match self.path.as_deref().map(open).transpose() {
            Ok(trace) => self.trace = trace,
            Err(error) => self.line(&format!("{error:#}")),
        }
    }

    /// Opens another trace file on a client's request, or reopens the current one.
    pub(crate) fn open_trace(&mut self, path: Option<&Path>) -> Result<(), Error> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            // Without a file the lines are dropped, which is no error.
            None => match &self.path {
                Some(path) => path.clone(),
                None => return Ok(()),
            },
        };
        match open(&path) {
            Ok(trace) => {
                self.trace = Some(trace);
                self.path = Some(path);
                Ok(())
            }
            Err(error) => {
                self.line(&format!("{error:#}"));
                Err(Error::EIO)
            }
        }
    }

    /// Appends a client's report to a file.
    pub(crate) fn write_report(&mut self, path: Option<&Path>, text: &str) -> Result<(), Error> {
        let path = path.or(self.path.as_deref()).ok_or(Error::EINVAL)?.to_path_buf();
        let written = appended(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| {
            self.line(&format!("cannot write a report to {}: {error}", path.display()));
            Error::EIO
        })
    }

    /// A line for an operator to look at.
    pub(crate) fn line(&mut self, line: &str) {
        self.put(Priority::Warning, None, line);
    }

    /// A line about what went as it should.
    pub(crate) fn note(&mut self, line: &str) {
        self.put(Priority::Info, None, line);
    }

    fn put(&mut self, priority: Priority, domid: Option<DomId>, line: &str) {
        if let Some(left_out) = self.all.take(Instant::now(), LINES) {
            self.outlet.write(priority, domid, &with_count(line, left_out));
        }
    }

    /// A line that this domain may have caused.
    pub(crate) fn about(&mut self, domid: DomId, line: &str) {
        let now = Instant::now();
        self.by_domain.retain(|_, allowance| !allowance.is_over(now));
        let allowance = self.by_domain.entry(domid).or_default();
        if let Some(left_out) = allowance.take(now, LINES_PER_DOMAIN) {
            self.put(Priority::Warning, Some(domid), &with_count(line, left_out));
        }
    }
}

fn with_count(line: &str, left_out: u64) -> String {
    match left_out {
        0 => line.to_owned(),
        left_out => format!("{line} ({left_out} lines before this one were left out)"),
    }
}

/// Rate limit of lines in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Allowance {
    /// Whether a further line is allowed; with the number of lines dropped since the last one.
    fn take(&mut self, now: Instant, most: u32) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            self.since = Some(now);
            self.written = 0;
        }
        if self.written >= most {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// Whether it can be removed.
    fn is_over(&self, now: Instant) -> bool {
        let is_old = self.since.is_some_and(|since| now.duration_since(since) >= PERIOD);
        is_old && self.left_out == 0
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    appended(path).with_context(|| no_trace(path))
}

/// A pipe without a reader is an error instead of blocking.
fn appended(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().create(true).append(true).custom_flags(flags).open(path)
}

fn no_trace(path: &Path) -> String {
    format!("cannot open the trace file {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_causes_so_many_lines_in_a_minute_and_the_rest_is_counted() {
        let mut allowance = Allowance::default();
        let start = Instant::now();
        for _ in 0..LINES_PER_DOMAIN {
            assert_eq!(allowance.take(start, LINES_PER_DOMAIN), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(allowance.take(start + PERIOD / 2, LINES_PER_DOMAIN), None);
        }
        assert!(!allowance.is_over(start + PERIOD), "what was left out is still to be told");
        assert_eq!(allowance.take(start + PERIOD, LINES_PER_DOMAIN), Some(1000));
        assert_eq!(allowance.take(start + PERIOD, LINES_PER_DOMAIN), Some(0));
        assert!(allowance.is_over(start + 2 * PERIOD));
    }
}
