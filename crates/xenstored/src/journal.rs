//! The journal's files, which let the store survive the process.
//!
//! `<rundir>/journal` has a checkpoint of the store and every change since, in the format of
//! `xenstore::server::Replay`. It is written through memory ([`AppendFile`]), so a change survives
//! the process as soon as it is copied; nothing is ever synced, since after a power failure there
//! are no guests. When the changes outgrow the state, a new journal is written next to it, piece by
//! piece between turns, and replaces it.

mod frame;
mod reserve;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use xen_linux::{AppendFile, HostError, RetiredFile};
use xenstore::RECORD_VERSION;
use xenstore::server::{Checkpoint, Progress, Replay, Server};

use crate::guard::{Guard, Verdict};
use crate::log::Log;
use reserve::{Exchanged, MARGIN_BYTES, Reserve, beside, exchange};

/// Minimum size of changes before a journal is rewritten, however small the store is.
const CHANGES_BYTES_MIN: u64 = 2 << 20;
/// Maximum size of changes, relative to the checkpoint.
const CHANGES_TIMES: u64 = 2;
/// Bytes of a checkpoint per turn: a few hundred nodes, in less than a tenth of a millisecond.
const PIECE_BYTES: usize = 32 * 1024;
/// Limit of changes buffered while a checkpoint is written.
const TAIL_BYTES_MAX: usize = 64 << 20;
/// Bytes of these changes per turn, in addition to twice the new ones.
const TAIL_PIECE_BYTES: usize = 128 * 1024;
/// Bytes of an old journal freed per turn, in about a tenth of a millisecond.
const FREED_BYTES: u64 = 256 << 10;
/// Delay after a journal could not be written.
const PAUSE: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 8] = b"xyjournl";
/// Version flag: records are in frames with checksums. A daemon without support refuses such a
/// journal.
const FRAMED: u32 = 1 << 16;
const BOOT_BYTES: usize = 36;
/// Where the header's checksum is in it.
const CHECKSUM_AT: usize = 16 + BOOT_BYTES;

/// Whether the file is complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Validity {
    Whole,
    /// Changes were lost, or the daemon continues without it.
    Lost,
}

/// What to do with an existing journal at startup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Start {
    /// Continue with its store.
    Continue,
    /// Begin with an empty store.
    Fresh,
    /// The same, without a journal.
    WithoutJournal,
}

/// What to do with a damaged journal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Damage {
    /// Continue with the store before the damage.
    Continue,
    Refuse,
}

/// An existing journal that cannot be continued; a restart would not help.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(why) = self;
        write!(
            f,
            "{why}; with --fresh the store begins empty, by which every running guest loses its devices"
        )
    }
}

impl std::error::Error for Refused {}

/// A new journal being written next to the current one.
struct Next {
    file: AppendFile,
    /// `None` when it is completely in the file.
    checkpoint: Option<Checkpoint>,
    checkpoint_bytes: u64,
    tail: Tail,
}

/// Changes since a checkpoint's snapshot that are not in its file yet.
#[derive(Default)]
struct Tail {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// New bytes since the last turn.
    came: usize,
}

impl Tail {
    fn push(&mut self, records: &[u8]) {
        match self.pieces.back_mut() {
            Some(last) if last.len() < TAIL_PIECE_BYTES => last.extend_from_slice(records),
            _ => self.pieces.push_back(records.to_vec()),
        }
        self.bytes += records.len();
        self.came += records.len();
    }

    /// Writes more than was added since the last turn. `Done`: the file is complete.
    fn write_some(&mut self, file: &mut AppendFile) -> Result<Progress, HostError> {
        let wanted = TAIL_PIECE_BYTES + 2 * std::mem::take(&mut self.came);
        let mut written = 0;
        while written < wanted {
            let Some(piece) = self.pieces.pop_front() else { return Ok(Progress::Done) };
            frame::append(file, &piece)?;
            written += piece.len();
            self.bytes -= piece.len();
        }
        Ok(if self.pieces.is_empty() { Progress::Done } else { Progress::More })
    }
}

pub(crate) struct Journal {
    /// `None`: crash safety is off.
    path: Option<PathBuf>,
    boot: [u8; BOOT_BYTES],
    /// `None` while it cannot be written.
    file: Option<AppendFile>,
    /// Whether its records are in frames, which is not so for the first release.
    is_framed: bool,
    checkpoint_bytes: u64,
    next: Option<Next>,
    reserve: Reserve,
    /// The reserve has more to do.
    reserves: bool,
    /// The previous journal, freed in pieces.
    old: Option<RetiredFile>,
    retry: Option<Instant>,
    piece: Vec<u8>,
    guard: Guard,
}

impl Journal {
    pub(crate) fn none() -> Self {
        Self {
            path: None,
            boot: [0; BOOT_BYTES],
            file: None,
            is_framed: true,
            checkpoint_bytes: 0,
            next: None,
            reserve: Reserve::default(),
            reserves: false,
            old: None,
            retry: None,
            piece: Vec::new(),
            guard: Guard::default(),
        }
    }

    /// Waits until a killed daemon has exited. Its file is not read yet: it may be another user's.
    pub(crate) fn wait_for_predecessor(path: &Path) -> anyhow::Result<()> {
        make_folder_of(path)?;
        Ok(AppendFile::wait_until_free(path)?)
    }

    /// Whether this file begins as a journal does.
    pub(crate) fn is_journal(file: &std::fs::File) -> bool {
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, AppendFile::HEADER_AT).is_ok() && magic == *MAGIC
    }

    /// Opens the journal at `path`, waiting for a killed daemon to exit, and returns its store.
    pub(crate) fn open(
        path: &Path,
        start: Start,
        damage: Damage,
        log: &mut Log,
    ) -> anyhow::Result<(Self, Option<Server>)> {
        make_folder_of(path)?;
        let mut journal = Self::without_file(path);
        let name = path.display();
        if start != Start::Continue {
            // Whatever is in the file: it may be what keeps a daemon from starting.
            AppendFile::wait_until_free(path)?;
            if start == Start::Fresh {
                return Ok((journal, None));
            }
            // It would later be mistaken for the current store.
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {name}"))
                }
                _ => Ok((Self::none(), None)),
            };
        }
        let opened = AppendFile::open(path).map_err(|error| Refused(error.to_string()))?;
        let Some(mut file) = opened else { return Ok((journal, None)) };
        match judge(&file.header(), &journal.boot) {
            Judgement::Continue => {}
            Judgement::Ignore(why) => {
                log.line(&format!("{name} is not used, the store begins empty: {why}"));
                return Ok((journal, None));
            }
            Judgement::Refuse(why) => return Err(Refused(format!("{name} {why}")).into()),
        }
        let (guard, told) = Guard::read(&file.notes());
        // First, since it may crash this daemon too.
        guard.write(&mut file);
        journal.guard = guard;
        if let Some(told) = told {
            log.line(&told);
        }
        journal.is_framed = is_framed(&file.header());
        let records = file.read_all().with_context(|| format!("cannot read {name}"))?;
        if file.length() == 0 || checkpoint_bytes(&file.header()) == 0 {
            return Err(Refused(format!("{name} has lost its beginning")).into());
        }
        let (records, is_damaged) = match journal.is_framed {
            true => {
                let checkpoint_bytes = checkpoint_bytes(&file.header());
                whole_part(&records, file.missing(), checkpoint_bytes, damage, path, log)?
            }
            false if file.missing() > 0 => {
                return Err(Refused(format!("{name} has lost its end")).into());
            }
            false => (records, false),
        };
        let mut replay = Replay::new();
        replay
            .apply(&records)
            .map_err(|error| Refused(format!("the records of {name} cannot be read: {error}")))?;
        journal.checkpoint_bytes = checkpoint_bytes(&file.header()).min(file.length());
        // Nothing after the damage could be read: write a new journal.
        journal.file = (!is_damaged).then_some(file);
        Ok((journal, Some(replay.finish())))
    }

    /// Takes over the journal of the previous daemon.
    pub(crate) fn adopt(path: &Path, file: OwnedFd) -> anyhow::Result<Self> {
        let mut journal = Self::without_file(path);
        let mut file = AppendFile::adopt(file)?;
        // Another program, in which the crash may be fixed.
        journal.guard.write(&mut file);
        if judge(&file.header(), &journal.boot) == Judgement::Continue {
            journal.is_framed = is_framed(&file.header());
            // Unknown until the next checkpoint.
            journal.checkpoint_bytes = file.length();
            journal.file = Some(file);
        }
        Ok(journal)
    }

    /// A journal before [`begin`](Self::begin).
    pub(crate) fn without_file(path: &Path) -> Self {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.first_chunk().copied().unwrap_or([b'-'; BOOT_BYTES]);
        Self { path: Some(path.to_owned()), boot, ..Self::none() }
    }

    /// Whether the journal is recording.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.is_some()
    }

    /// Prepares the takeover by another process: nothing is rewritten or recorded until that
    /// process has failed. Returns the file.
    pub(crate) fn lend(&mut self) -> Option<BorrowedFd<'_>> {
        // It is written again when the journal is too long. The other process keeps space from now on.
        self.next = None;
        self.reserve = Reserve::default();
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Another daemon continues the store without a journal: this journal must not be used again.
    pub(crate) fn end(&mut self) {
        self.next = None;
        self.file = None;
        self.reserve = Reserve::default();
        if let Some(path) = &self.path {
            for path in [beside(path), path.clone()] {
                // It may not be there.
                let _gone = std::fs::remove_file(path);
            }
        }
    }

    /// Records this store, which is not from the journal, from now on.
    pub(crate) fn begin(&mut self, server: &mut Server, log: &mut Log) {
        if self.path.is_none() {
            return;
        }
        server.start_recording();
        self.start_next(server, log);
        while self.next.is_some() {
            self.write_piece(log);
        }
    }

    /// Commits pending records. Call it before any of their effects are visible.
    pub(crate) fn commit(&mut self, server: &mut Server, log: &mut Log) {
        let records = server.recorded();
        if records.is_empty() {
            return;
        }
        let is_framed = self.is_framed;
        let append = |file: &mut AppendFile| match is_framed {
            true => frame::append(file, records),
            false => file.append(records),
        };
        if let Some(Err(error)) = self.file.as_mut().map(append) {
            self.ran_out(&error, server, log);
        } else if self.is_short() && !self.write_again(server, log) {
            self.retry = Some(Instant::now() + PAUSE);
        }
        let records = server.recorded();
        if let Some(next) = &mut self.next {
            next.tail.push(records);
            if next.tail.bytes > TAIL_BYTES_MAX {
                self.give_up("more changes than can be kept while it is written", log);
            }
        }
        server.clear_recorded();
    }

    /// Begins requests of a ring at this index.
    pub(crate) fn begin_turn(&mut self, index: u32) {
        self.guard.begin_turn(index);
    }

    /// Begins the execution of a request, unless it crashes daemons, or there is no room for what it changes. `ring` is 0 for
    /// sockets.
    pub(crate) fn begin_request(
        &mut self,
        ring: u64,
        code: u32,
        payload: &[u8],
        log: &mut Log,
    ) -> Verdict {
        let (Some(file), Some(path)) = (&mut self.file, &self.path) else {
            return Verdict::Execute;
        };
        if self.reserve.refuses(path, file.room(), code, log) {
            return Verdict::NoRoom;
        }
        self.guard.begin(file, ring, code, payload)
    }

    pub(crate) fn end_request(&mut self) {
        if let Some(file) = &mut self.file {
            Guard::end(file);
        }
    }

    /// Background work, a little in each turn.
    pub(crate) fn work(&mut self, server: &Server, log: &mut Log) {
        self.old = self.old.take().and_then(|old| old.shrink(FREED_BYTES));
        if self.next.is_some() {
            self.write_piece(log);
            return;
        }
        self.reserves = match (&self.path, &mut self.file) {
            (Some(path), Some(file)) => self.reserve.work(path, file, log),
            _ => false,
        };
        let changes = self.file.as_ref().map(|file| file.length() - self.checkpoint_bytes);
        let is_long = changes.is_some_and(|changes| {
            changes > CHANGES_BYTES_MIN.max(CHANGES_TIMES * self.checkpoint_bytes)
        });
        // One without checksums is replaced soon.
        let is_old = self.file.is_some() && !self.is_framed;
        let is_off = self.file.is_none() && self.path.is_some();
        // Without space that is done at once, when nothing else helps.
        if ((is_long && !self.reserve.is_needed()) || is_off || is_old) && self.may_try() {
            self.start_next(server, log);
        }
    }

    fn may_try(&self) -> bool {
        self.retry.is_none_or(|retry| retry <= Instant::now())
    }

    /// When [`work`](Self::work) must be called again.
    pub(crate) fn wakeup(&self) -> Option<Duration> {
        if self.next.is_some() || self.old.is_some() || self.reserves {
            return Some(Duration::ZERO);
        }
        if self.file.is_some() {
            return self.reserve.due();
        }
        self.retry.map(|retry| retry.saturating_duration_since(Instant::now()))
    }

    fn start_next(&mut self, server: &Server, log: &mut Log) {
        let Some(path) = &self.path else { return };
        match self.reserve.take(path) {
            Ok(file) => self.next = Some(Next::of(file, server)),
            Err(error) => self.give_up(&format!("{error}"), log),
        }
    }

    fn write_piece(&mut self, log: &mut Log) {
        let Some(next) = &mut self.next else { return };
        match next.write_piece(&mut self.piece) {
            Ok(Progress::More) => {}
            Ok(Progress::Done) => {
                self.switch(log);
            }
            Err(error) => self.give_up(&format!("{error}"), log),
        }
    }

    /// Replaces the old journal by the new one.
    fn switch(&mut self, log: &mut Log) -> bool {
        let (Some(path), Some(mut next)) = (&self.path, self.next.take()) else { return false };
        next.file.set_header(&header(&self.boot, Validity::Whole, next.checkpoint_bytes));
        let exchanged = match exchange(path) {
            Ok(exchanged) => exchanged,
            Err(error) => {
                self.give_up(&format!("cannot rename it: {error}"), log);
                return false;
            }
        };
        self.guard.write(&mut next.file);
        if self.retry.take().is_some() && self.file.is_none() {
            log.note("the store is safe against crashes again");
        }
        self.checkpoint_bytes = next.checkpoint_bytes;
        self.is_framed = true;
        match (self.file.replace(next.file), exchanged) {
            (Some(old), Exchanged::Swapped) => self.reserve.keep(old),
            // Two replacements in quick succession only happen when there is little to free.
            (Some(old), Exchanged::Replaced) => self.old = Some(old.retire()),
            (None, _) => {}
        }
        true
    }

    /// The journal cannot be extended: the store goes on in the space that is kept.
    fn ran_out(&mut self, error: &HostError, server: &mut Server, log: &mut Log) {
        if let Some(path) = &self.path {
            self.reserve.ran_out(path, error, log);
        }
        if !self.write_again(server, log) {
            self.lose(&format!("{error}"), log);
        }
    }

    /// Whether little space is left, of which a journal of the store as it is now would need less.
    fn is_short(&self) -> bool {
        self.reserve.is_needed()
            && self.may_try()
            && self.file.as_ref().is_some_and(|file| {
                let changes = file.length() - self.checkpoint_bytes;
                file.room() < MARGIN_BYTES && changes > MARGIN_BYTES / 2
            })
    }

    /// Writes the store as it is now, with what was just changed, to the space that is kept.
    fn write_again(&mut self, server: &mut Server, log: &mut Log) -> bool {
        let begun = self.next.take().map(|next| next.file);
        let Some(file) = begun.or_else(|| self.reserve.take_kept()) else { return false };
        self.reserve.keep(file);
        self.start_next(server, log);
        while let Some(next) = &mut self.next {
            match next.write_piece(&mut self.piece) {
                Ok(Progress::More) => {}
                Ok(Progress::Done) => {
                    server.clear_recorded();
                    return self.switch(log);
                }
                Err(_) => {
                    if let Some(next) = self.next.take() {
                        self.reserve.keep(next.file);
                    }
                }
            }
        }
        false
    }

    /// A new journal could not be written; the old one, if there is one, is continued.
    fn give_up(&mut self, why: &str, log: &mut Log) {
        if let Some(next) = self.next.take() {
            self.reserve.keep(next.file);
        }
        if let (Some(path), None) = (&self.path, &self.file) {
            // An old one must not be mistaken for the current store.
            let _gone = std::fs::remove_file(path);
        }
        if self.file.is_none() && self.retry.is_none() {
            log.line(&format!("the store will not survive a crash of this daemon: {why}"));
        }
        self.retry = Some(Instant::now() + PAUSE);
    }

    /// Changes are lost from here on: the file must never be used.
    fn lose(&mut self, why: &str, log: &mut Log) {
        if let Some(mut file) = self.file.take() {
            file.set_header(&header(&self.boot, Validity::Lost, 0));
        }
        log.line(&format!("the store will not survive a crash of this daemon: {why}"));
        self.retry = Some(Instant::now() + PAUSE);
    }
}

fn make_folder_of(path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder of {}", path.display()))
}

impl Next {
    fn of(file: AppendFile, server: &Server) -> Self {
        let checkpoint = Some(server.checkpoint());
        Self { file, checkpoint, checkpoint_bytes: 0, tail: Tail::default() }
    }

    /// Writes a piece of the checkpoint, or of the changes after it. `Done`: the file is complete.
    fn write_piece(&mut self, piece: &mut Vec<u8>) -> Result<Progress, HostError> {
        if let Some(checkpoint) = &mut self.checkpoint {
            piece.clear();
            let progress = checkpoint.write(piece, PIECE_BYTES);
            frame::append(&mut self.file, piece)?;
            if progress == Progress::Done {
                self.checkpoint = None;
                self.checkpoint_bytes = self.file.length();
            }
            return Ok(Progress::More);
        }
        self.tail.write_some(&mut self.file)
    }
}

fn header(boot: &[u8; BOOT_BYTES], validity: Validity, checkpoint_bytes: u64) -> [u8; 64] {
    let mut header = [0; 64];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&(RECORD_VERSION | FRAMED).to_le_bytes());
    header[12] = u8::from(validity == Validity::Whole);
    header[16..16 + BOOT_BYTES].copy_from_slice(boot);
    header[56..].copy_from_slice(&checkpoint_bytes.to_le_bytes());
    let checksum = header_checksum(&header);
    header[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Of the header without itself. Never 0, which says that there is none, as in journals of earlier
/// daemons.
fn header_checksum(header: &[u8; 64]) -> u32 {
    let mut bare = *header;
    bare[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    crc32fast::hash(&bare).max(1)
}

fn is_header_damaged(header: &[u8; 64]) -> bool {
    let found = *header[CHECKSUM_AT..].first_chunk().expect("inside");
    let found = u32::from_le_bytes(found);
    found != 0 && found != header_checksum(header)
}

fn version(header: &[u8; 64]) -> u32 {
    u32::from_le_bytes([header[8], header[9], header[10], header[11]])
}

fn is_framed(header: &[u8; 64]) -> bool {
    version(header) & FRAMED != 0
}

/// The records before the first damaged frame, if they are sufficient.
fn whole_part(
    bytes: &[u8],
    missing: u64,
    checkpoint_bytes: u64,
    damage: Damage,
    path: &Path,
    log: &mut Log,
) -> anyhow::Result<(Vec<u8>, bool)> {
    let unframed = frame::unframe(bytes);
    let at = match unframed.damaged_at {
        None if missing == 0 => return Ok((unframed.records, false)),
        None => bytes.len(),
        Some(at) => at,
    };
    let total = bytes.len() as u64 + missing;
    let lost = total - at as u64;
    let found = format!("{} is damaged at byte {at} of {total}", path.display());
    if (at as u64) < checkpoint_bytes {
        return Err(Refused(format!("{found}, in the state that its changes begin with")).into());
    }
    if damage == Damage::Refuse {
        return Err(Refused(found).into());
    }
    log.line(&format!(
        "ALARM: {found}. The store goes on as it was before its last {lost} bytes of changes; guests whose devices \
         changed in them may need to be restarted. Check the memory and whatever writes to this file"
    ));
    Ok((unframed.records, true))
}

/// How much of the journal is its checkpoint.
fn checkpoint_bytes(header: &[u8; 64]) -> u64 {
    header.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Whether a file's store may be continued.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Judgement {
    Continue,
    /// Its store is gone.
    Ignore(&'static str),
    /// Its store exists but cannot be read: the operator must decide.
    Refuse(String),
}

fn judge(found: &[u8; 64], boot: &[u8; BOOT_BYTES]) -> Judgement {
    let version = version(found) & !FRAMED;
    if found[..8] != *MAGIC {
        return Judgement::Refuse("is no journal of this daemon".to_owned());
    }
    // Before anything in it is believed: otherwise a changed bit could make it another boot's.
    if is_header_damaged(found) {
        return Judgement::Refuse("has a damaged header".to_owned());
    }
    if found[16..16 + BOOT_BYTES] != *boot {
        return Judgement::Ignore("it is from before the host was started");
    }
    if version != RECORD_VERSION {
        return Judgement::Refuse(format!(
            "has version {version} and this daemon reads {RECORD_VERSION}: start the version that \
             wrote it and update that one live"
        ));
    }
    if found[12] == 0 {
        return Judgement::Ignore("there was no room for all changes before the daemon ended");
    }
    Judgement::Continue
}

#[cfg(test)]
mod tests;
