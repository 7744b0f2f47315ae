//! Space that is kept for the store's journal while there is some, so that it is written also where its file system is full.
//!
//! Beside the journal lies an empty file, in which the store and more than a turn's changes have room. When the journal cannot
//! be extended, the store is written to that file, which becomes the journal; the journal's own file becomes the empty one. So
//! a store that does not grow goes on like this for ever. What would make it grow is refused when there is no more room in
//! either.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use xen_linux::{AppendFile, HostError};
use xenstore::wire::MessageType;

use crate::log::Log;

/// Room that is kept in both files beyond the journal's length.
const RESERVE_BYTES: u64 = 3 << 20;
/// The part of it that is for what cannot be refused: changes of a turn, deaths of domains, removals, transactions that have
/// begun.
pub(super) const MARGIN_BYTES: u64 = 1 << 20;
/// Delay after running out of space.
const PAUSE: Duration = Duration::from_secs(5);

/// How a new journal took the place of the old one.
pub(super) enum Exchanged {
    /// The old one has the new one's name.
    Swapped,
    /// The old one has no name.
    Replaced,
}

#[derive(Default)]
pub(super) struct Reserve {
    /// The empty file, unless it is being written.
    file: Option<AppendFile>,
    /// When space is to be asked for again, if there was none.
    retry: Option<Instant>,
    /// It was said that changes are refused.
    told_refusals: bool,
}

/// Where the empty file lies, and where a journal is written before it is one.
pub(super) fn beside(journal: &Path) -> PathBuf {
    journal.with_extension("new")
}

fn folder(journal: &Path) -> std::path::Display<'_> {
    journal.parent().unwrap_or(journal).display()
}

impl Reserve {
    /// Whether the file system has no more room.
    pub(super) fn is_needed(&self) -> bool {
        self.retry.is_some()
    }

    /// A file to write a journal to: the one that is kept, or a new one.
    pub(super) fn take(&mut self, journal: &Path) -> Result<AppendFile, HostError> {
        match self.file.take() {
            Some(file) => Ok(file),
            None => AppendFile::reuse(&beside(journal)),
        }
    }

    /// The file that is kept, if it is there.
    pub(super) fn take_kept(&mut self) -> Option<AppendFile> {
        self.file.take()
    }

    pub(super) fn keep(&mut self, mut file: AppendFile) {
        file.clear();
        self.file = Some(file);
    }

    /// Sees to it that there is enough space, a little at each call. True if there is more to do.
    pub(super) fn work(&mut self, path: &Path, journal: &mut AppendFile, log: &mut Log) -> bool {
        if self.retry.is_some_and(|retry| retry > Instant::now()) {
            return false;
        }
        match self.extend(path, journal) {
            Ok(is_enough) => {
                if is_enough && self.retry.take().is_some() {
                    self.told_refusals = false;
                    log.note(&format!(
                        "there is room for the store's journal in {} again",
                        folder(path)
                    ));
                }
                !is_enough
            }
            Err(error) => {
                self.ran_out(path, &error, log);
                false
            }
        }
    }

    fn extend(&mut self, path: &Path, journal: &mut AppendFile) -> Result<bool, HostError> {
        if !journal.make_room(RESERVE_BYTES)? {
            return Ok(false);
        }
        // The store is not larger than a journal of it.
        let wanted = journal.length() + RESERVE_BYTES;
        let Some(file) = &mut self.file else {
            self.file = Some(AppendFile::reuse(&beside(path))?);
            return Ok(false);
        };
        if file.give_room_back(wanted) {
            return Ok(false);
        }
        file.make_room(wanted)
    }

    /// There is no more space.
    pub(super) fn ran_out(&mut self, path: &Path, error: &HostError, log: &mut Log) {
        if self.retry.replace(Instant::now() + PAUSE).is_none() {
            let folder = folder(path);
            log.line(&format!(
                "ALARM: {folder} is full: {error}. The store goes on in the space that it keeps there, and refuses changes \
                 when that is used up. Make room: `df {folder}` names the file system, and `du -xh` on it what takes it"
            ));
        }
    }

    /// When [`work`](Self::work) wants to be called again, if it has nothing to do now.
    pub(super) fn due(&self) -> Option<Duration> {
        self.retry.map(|retry| retry.saturating_duration_since(Instant::now()))
    }

    /// Asks for space at the next call.
    #[cfg(test)]
    pub(super) fn try_now(&mut self) {
        self.retry = self.retry.map(|_| Instant::now());
    }

    /// Whether a request is refused, since the store may not grow.
    pub(super) fn refuses(&mut self, path: &Path, room: u64, code: u32, log: &mut Log) -> bool {
        if !self.is_needed() || room >= MARGIN_BYTES || !grows(code) {
            return false;
        }
        if !std::mem::replace(&mut self.told_refusals, true) {
            log.line(&format!(
                "ALARM: no space is left for the store in {}: changes are refused (ENOSPC) until there is some",
                folder(path)
            ));
        }
        true
    }
}

/// Whether a request may make the store larger. The end of a transaction is none: its changes were requests before.
fn grows(code: u32) -> bool {
    use MessageType::{Batch, Introduce, Mkdir, SetPerms, Watch, Write};
    let kind = MessageType::from_code(code);
    matches!(kind, Some(Batch | Introduce | Mkdir | SetPerms | Watch | Write))
}

/// Gives the file beside it the journal's name.
pub(super) fn exchange(journal: &Path) -> Result<Exchanged, rustix::io::Errno> {
    let new = beside(journal);
    if renameat_with(CWD, &new, CWD, journal, RenameFlags::EXCHANGE).is_ok() {
        return Ok(Exchanged::Swapped);
    }
    // There is no old one, or the file system cannot exchange names.
    rustix::fs::rename(&new, journal).map(|()| Exchanged::Replaced)
}
