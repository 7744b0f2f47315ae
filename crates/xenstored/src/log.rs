//! Lines for the operator, and the trace of requests.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::Context;

pub(crate) struct Log {
    path: Option<PathBuf>,
    pub(crate) trace: Option<File>,
}

impl Log {
    /// Opens the trace file, if there shall be one.
    pub(crate) fn open(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let trace = path.as_deref().map(open).transpose()?;
        Ok(Self { path, trace })
    }

    /// Opens the trace file again: somebody moved it away.
    pub(crate) fn reopen(&mut self) {
        match self.path.as_deref().map(open).transpose() {
            Ok(trace) => self.trace = trace,
            Err(error) => self.line(&format!("{error:#}")),
        }
    }

    #[expect(clippy::unused_self, reason = "whoever logs was handed the log")]
    pub(crate) fn line(&mut self, line: &str) {
        eprintln!("xylem-xenstored: {line}");
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot open the trace file {}", path.display()))
}
