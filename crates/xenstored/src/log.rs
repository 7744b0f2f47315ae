//! Lines for the operator, and the trace of requests.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use xenstore::Error;

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

    /// A client asks for another trace file, or for the one there is to be opened again.
    pub(crate) fn open_trace(&mut self, path: Option<&Path>) -> Result<(), Error> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            // Nowhere to write to: the lines are lost, and that is no error.
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
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| {
            self.line(&format!("cannot write a report to {}: {error}", path.display()));
            Error::EIO
        })
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
