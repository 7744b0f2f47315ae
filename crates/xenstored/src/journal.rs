//! The journal's files: what of the store survives the process, and how it is found again.
//!
//! `<rundir>/journal` has a checkpoint of the store and every change since, in the format of
//! `xenstore::server::Replay`. It is written through memory ([`AppendFile`]), so a change is safe
//! against the end of the process as soon as it was copied; nothing is ever synced, since the store of
//! a host that lost its power has no guests. When the changes outgrow the state, a new checkpoint is
//! written beside it, piece by piece between turns, and takes its place.

mod frame;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use xen_linux::{AppendFile, HostError, RetiredFile};
use xenstore::RECORD_VERSION;
use xenstore::server::{Checkpoint, Progress, Replay, Server};

use crate::guard::{Guard, Verdict};
use crate::log::Log;

/// A journal is not made anew before so many bytes of changes, however small the store is.
const CHANGES_BYTES_MIN: u64 = 8 << 20;
/// Changes may be so many times as long as the checkpoint before them.
const CHANGES_TIMES: u64 = 2;
/// Of a checkpoint in one turn: a few hundred nodes, in less than a tenth of a millisecond.
const PIECE_BYTES: usize = 32 * 1024;
/// Changes while a checkpoint is written wait in memory, up to so many.
const TAIL_BYTES_MAX: usize = 64 << 20;
/// Of these changes in one turn, beside twice as many as came in the meantime.
const TAIL_PIECE_BYTES: usize = 128 * 1024;
/// Of an old journal in one turn, in about a tenth of a millisecond.
const FREED_BYTES: u64 = 256 << 10;
/// Until the next try after there was no room.
const PAUSE: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 8] = b"xyjournl";
/// In the version: records are in frames with a checksum. A daemon that knows none refuses such a journal.
const FRAMED: u32 = 1 << 16;
const BOOT_BYTES: usize = 36;

/// Whether what the file says is the whole truth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Validity {
    Whole,
    /// Changes were lost, or the daemon goes on without it.
    Lost,
}

/// What to do about a journal that is there when the daemon starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Start {
    /// Go on with the store that it describes.
    Continue,
    /// Begin with an empty store.
    Fresh,
    /// The same, and keep no journal.
    WithoutJournal,
}

/// What to do about a journal with changes that are damaged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Damage {
    /// Go on with the store as it was before them.
    Continue,
    Refuse,
}

/// A journal that is there and cannot be gone on with: to start again is of no use.
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

/// A journal in the making beside the present one.
struct Next {
    file: AppendFile,
    /// `None` when all of it is in the file.
    checkpoint: Option<Checkpoint>,
    checkpoint_bytes: u64,
    tail: Tail,
}

/// Changes since a checkpoint's moment that are not in its file.
#[derive(Default)]
struct Tail {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Of them since the last turn.
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

    /// Writes more than came since the last turn. `Done`: the file has everything.
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
    /// `None`: crash safety is switched off.
    path: Option<PathBuf>,
    boot: [u8; BOOT_BYTES],
    /// `None` while it cannot be written.
    file: Option<AppendFile>,
    /// Whether its records are in frames. Those of the first release are not.
    is_framed: bool,
    checkpoint_bytes: u64,
    next: Option<Next>,
    /// The journal before this one, which is freed in pieces.
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
            old: None,
            retry: None,
            piece: Vec::new(),
            guard: Guard::default(),
        }
    }

    /// Waits until a daemon that was killed is gone. What it left is not looked at yet: it may have been anybody's.
    pub(crate) fn wait_for_predecessor(path: &Path) -> anyhow::Result<()> {
        make_folder_of(path)?;
        Ok(AppendFile::wait_until_free(path)?)
    }

    /// Takes the journal at `path`, waiting for a killed daemon to be gone, and gives the store that it
    /// describes.
    pub(crate) fn open(
        path: &Path,
        start: Start,
        damage: Damage,
        log: &mut Log,
    ) -> anyhow::Result<(Self, Option<Server>)> {
        make_folder_of(path)?;
        let mut journal = Self::without_file(path);
        let opened = AppendFile::open(path).map_err(|error| Refused(error.to_string()))?;
        let Some(mut file) = opened else {
            return Ok((if start == Start::WithoutJournal { Self::none() } else { journal }, None));
        };
        let name = path.display();
        match start {
            Start::Continue => {}
            Start::Fresh => return Ok((journal, None)),
            Start::WithoutJournal => {
                // It would be taken for the present store later.
                std::fs::remove_file(path).with_context(|| format!("cannot remove {name}"))?;
                return Ok((Self::none(), None));
            }
        }
        match judge(&file.header(), &journal.boot) {
            Judgement::Continue => {}
            Judgement::Ignore(why) => {
                log.line(&format!("{name} is not used, the store begins empty: {why}"));
                return Ok((journal, None));
            }
            Judgement::Refuse(why) => return Err(Refused(format!("{name} {why}")).into()),
        }
        let (guard, told) = Guard::read(&file.notes());
        // Before anything else, as it may be what ends this one.
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
            true => whole_part(&records, checkpoint_bytes(&file.header()), damage, path, log)?,
            false => (records, false),
        };
        let mut replay = Replay::new();
        replay
            .apply(&records)
            .map_err(|error| Refused(format!("the records of {name} cannot be read: {error}")))?;
        journal.checkpoint_bytes = checkpoint_bytes(&file.header()).min(file.length());
        // Behind damage nothing is found again: that journal is to be made anew.
        journal.file = (!is_damaged).then_some(file);
        Ok((journal, Some(replay.finish())))
    }

    /// Goes on with the journal of the daemon before this one, which handed it over.
    pub(crate) fn adopt(path: &Path, file: OwnedFd) -> anyhow::Result<Self> {
        let mut journal = Self::without_file(path);
        let mut file = AppendFile::adopt(file)?;
        // Another program: what ended the one before may be mended.
        journal.guard.write(&mut file);
        if judge(&file.header(), &journal.boot) == Judgement::Continue {
            journal.is_framed = is_framed(&file.header());
            // The next checkpoint tells what is the state and what are changes.
            journal.checkpoint_bytes = file.length();
            journal.file = Some(file);
        }
        Ok(journal)
    }

    /// A journal that is to [begin](Self::begin).
    pub(crate) fn without_file(path: &Path) -> Self {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.first_chunk().copied().unwrap_or([b'-'; BOOT_BYTES]);
        Self { path: Some(path.to_owned()), boot, ..Self::none() }
    }

    /// Whether there is a journal that records.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.is_some()
    }

    /// Another process is about to append: nothing is begun anew, and nothing may be recorded until
    /// that process turns out to have failed. Gives the file.
    pub(crate) fn lend(&mut self) -> Option<BorrowedFd<'_>> {
        if self.next.take().is_some()
            && let Some(path) = &self.path
        {
            // It is made again when the journal is too long.
            let _gone = std::fs::remove_file(beside(path));
        }
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Another daemon goes on with the store, without a journal: this one must not be continued.
    pub(crate) fn end(&mut self) {
        self.next = None;
        self.file = None;
        if let Some(path) = &self.path {
            for path in [beside(path), path.clone()] {
                // It may not be there.
                let _gone = std::fs::remove_file(path);
            }
        }
    }

    /// Records this store from now on, which did not come from the journal.
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

    /// Makes safe what was recorded. To be called before anything that follows from it is visible.
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
            self.lose(&format!("{error}"), log);
        }
        if let Some(next) = &mut self.next {
            next.tail.push(records);
            if next.tail.bytes > TAIL_BYTES_MAX {
                self.give_up("more changes than can be kept while it is written", log);
            }
        }
        server.clear_recorded();
    }

    /// Requests of a ring follow, which stands here.
    pub(crate) fn begin_turn(&mut self, index: u32) {
        self.guard.begin_turn(index);
    }

    /// Notes that a request is about to be executed, unless it is one that ends daemons. `ring` is 0
    /// for sockets.
    pub(crate) fn begin_request(&mut self, ring: u64, code: u32, payload: &[u8]) -> Verdict {
        match &mut self.file {
            Some(file) => self.guard.begin(file, ring, code, payload),
            None => Verdict::Execute,
        }
    }

    pub(crate) fn end_request(&mut self) {
        if let Some(file) = &mut self.file {
            Guard::end(file);
        }
    }

    /// What there is to do besides, a little in each turn.
    pub(crate) fn work(&mut self, server: &Server, log: &mut Log) {
        self.old = self.old.take().and_then(|old| old.shrink(FREED_BYTES));
        if self.next.is_some() {
            self.write_piece(log);
            return;
        }
        let changes = self.file.as_ref().map(|file| file.length() - self.checkpoint_bytes);
        let is_long = changes.is_some_and(|changes| {
            changes > CHANGES_BYTES_MIN.max(CHANGES_TIMES * self.checkpoint_bytes)
        });
        // One without checksums does not stay for long.
        let is_old = self.file.is_some() && !self.is_framed;
        let may_try = self.retry.is_none_or(|retry| retry <= Instant::now());
        let is_off = self.file.is_none() && self.path.is_some();
        if (is_long || is_off || is_old) && may_try {
            self.start_next(server, log);
        }
    }

    /// When [`work`](Self::work) wants to be called again without other reason.
    pub(crate) fn wakeup(&self) -> Option<Duration> {
        if self.next.is_some() || self.old.is_some() {
            return Some(Duration::ZERO);
        }
        if self.file.is_some() {
            return None;
        }
        self.retry.map(|retry| retry.saturating_duration_since(Instant::now()))
    }

    fn start_next(&mut self, server: &Server, log: &mut Log) {
        let Some(path) = &self.path else { return };
        match AppendFile::create(&beside(path)) {
            Ok(file) => {
                self.next = Some(Next {
                    file,
                    checkpoint: Some(server.checkpoint()),
                    checkpoint_bytes: 0,
                    tail: Tail::default(),
                });
            }
            Err(error) => self.give_up(&format!("{error}"), log),
        }
    }

    fn write_piece(&mut self, log: &mut Log) {
        let Some(next) = &mut self.next else { return };
        match next.write_piece(&mut self.piece) {
            Ok(Progress::More) => {}
            Ok(Progress::Done) => self.switch(log),
            Err(error) => self.give_up(&format!("{error}"), log),
        }
    }

    /// The new journal takes the place of the old one.
    fn switch(&mut self, log: &mut Log) {
        let (Some(path), Some(mut next)) = (&self.path, self.next.take()) else { return };
        next.file.set_header(&header(&self.boot, Validity::Whole, next.checkpoint_bytes));
        if let Err(error) = std::fs::rename(beside(path), path) {
            return self.give_up(&format!("cannot rename it: {error}"), log);
        }
        self.guard.write(&mut next.file);
        if self.retry.take().is_some() {
            log.line("the store is safe against crashes again");
        }
        self.checkpoint_bytes = next.checkpoint_bytes;
        self.is_framed = true;
        // Two in a row follow each other so soon only where there is little to free.
        self.old = self.file.replace(next.file).map(AppendFile::retire);
    }

    /// A new journal could not be written; the old one, if there is one, goes on.
    fn give_up(&mut self, why: &str, log: &mut Log) {
        self.next = None;
        if let Some(path) = &self.path {
            // It may not be there; if it cannot be removed the next try says so.
            let _gone = std::fs::remove_file(beside(path));
            if self.file.is_none() {
                // An old one must not be taken for the store that is served now.
                let _gone = std::fs::remove_file(path);
            }
        }
        if self.file.is_none() && self.retry.is_none() {
            log.line(&format!("the store will not survive a crash of this daemon: {why}"));
        }
        self.retry = Some(Instant::now() + PAUSE);
    }

    /// Changes are lost from here on: what the file says must never be taken for the truth.
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
    /// Writes a piece of the checkpoint, or of the changes behind it. `Done`: the file has everything.
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

fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn header(boot: &[u8; BOOT_BYTES], validity: Validity, checkpoint_bytes: u64) -> [u8; 64] {
    let mut header = [0; 64];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&(RECORD_VERSION | FRAMED).to_le_bytes());
    header[12] = u8::from(validity == Validity::Whole);
    header[16..16 + BOOT_BYTES].copy_from_slice(boot);
    header[56..].copy_from_slice(&checkpoint_bytes.to_le_bytes());
    header
}

fn version(header: &[u8; 64]) -> u32 {
    u32::from_le_bytes([header[8], header[9], header[10], header[11]])
}

fn is_framed(header: &[u8; 64]) -> bool {
    version(header) & FRAMED != 0
}

/// The records before the first damaged frame, if there is one and they are enough to go on with.
fn whole_part(
    bytes: &[u8],
    checkpoint_bytes: u64,
    damage: Damage,
    path: &Path,
    log: &mut Log,
) -> anyhow::Result<(Vec<u8>, bool)> {
    let unframed = frame::unframe(bytes);
    let Some(at) = unframed.damaged_at else { return Ok((unframed.records, false)) };
    let lost = bytes.len() - at;
    let found = format!("{} is damaged at byte {at} of {}", path.display(), bytes.len());
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

/// Whether the store of a file may be continued.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Judgement {
    Continue,
    /// What it describes is gone.
    Ignore(&'static str),
    /// What it describes is there and cannot be read: an operator decides.
    Refuse(String),
}

fn judge(found: &[u8; 64], boot: &[u8; BOOT_BYTES]) -> Judgement {
    let version = version(found) & !FRAMED;
    if found[..8] != *MAGIC {
        return Judgement::Refuse("is no journal of this daemon".to_owned());
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
mod tests {
    use super::*;
    use crate::guard;
    use crate::rings::Rings;
    use xenstore::server::ConnId;
    use xenstore::wire::MessageType;

    const BOOT: [u8; BOOT_BYTES] = [b'b'; BOOT_BYTES];

    /// Sends requests of one kind and takes the replies.
    fn ask(
        server: &mut Server,
        rings: &mut Rings,
        id: ConnId,
        kind: MessageType,
        payloads: impl Iterator<Item = String>,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in payloads {
            xenstore::wire::encode(&mut bytes, kind.code(), 0, 0, &[payload.as_bytes()]);
        }
        server.receive(rings, id, &bytes).expect("whole messages");
        rings.commit(server);
        let mut replies = Vec::new();
        while !server.output(id).is_empty() {
            let piece = server.output(id).to_vec();
            server.consume(id, piece.len());
            replies.extend(piece);
        }
        replies
    }

    fn values(server: &mut Server, rings: &mut Rings, id: ConnId) -> Vec<u8> {
        let paths = (0..NODES).map(|i| format!("/values/{i}\0"));
        ask(server, rings, id, MessageType::Read, paths)
    }

    const NODES: usize = 700;

    #[test]
    fn a_journal_that_is_made_anew_between_turns_has_every_change() {
        let folder = std::env::temp_dir().join(format!("journal-anew-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("journal");
        let mut log = Log::open(None, None).unwrap();
        let (journal, none) =
            Journal::open(&path, Start::Continue, Damage::Continue, &mut log).unwrap();
        assert!(none.is_none());
        let mut rings = Rings::new(None, journal, log);
        let mut server = Server::new(xenstore::Quota::default());
        rings.begin_journal(&mut server);
        let id = server.connect_socket();
        let (mut was_behind, mut was_old) = (false, false);
        let mut turn = 0;
        // Until one was made while the store was written to.
        while !was_old {
            let nodes = (16 * turn..16 * turn + 16).map(|i| i % NODES);
            let writes = nodes.map(|i| format!("/values/{i}\0{turn:04000}"));
            ask(&mut server, &mut rings, id, MessageType::Write, writes);
            rings.work_on_journal(&mut server);
            let next = rings.journal.next.as_ref();
            was_behind |= next.is_some_and(|next| next.checkpoint.is_none());
            was_old = rings.journal.old.is_some();
            turn += 1;
        }
        // The one before it is freed.
        while rings.work_on_journal(&mut server).is_some() {}
        assert!(rings.journal.old.is_none());
        assert!(was_behind, "the changes meanwhile fitted into one piece");
        let before = values(&mut server, &mut rings, id);
        assert!(before.len() > 2_000_000);
        drop(rings);
        guard::forget_file();
        let mut log = Log::open(None, None).unwrap();
        let (journal, server) =
            Journal::open(&path, Start::Continue, Damage::Continue, &mut log).unwrap();
        let mut server = server.expect("a store");
        let mut rings = Rings::new(None, journal, log);
        let id = server.connect_socket();
        assert!(before == values(&mut server, &mut rings, id));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_journal_without_checksums_is_read_and_made_anew_with_them() {
        let folder = std::env::temp_dir().join(format!("journal-bare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("journal");
        let mut log = Log::open(None, None).unwrap();
        // As the first release wrote it.
        let mut rings = Rings::new(None, Journal::none(), Log::open(None, None).unwrap());
        let mut server = Server::new(xenstore::Quota::default());
        let id = server.connect_socket();
        ask(
            &mut server,
            &mut rings,
            id,
            MessageType::Write,
            ["/kept\0here".to_owned()].into_iter(),
        );
        let (mut checkpoint, mut piece) = (server.checkpoint(), Vec::new());
        while checkpoint.write(&mut piece, PIECE_BYTES) == Progress::More {}
        let boot = Journal::without_file(&path).boot;
        let mut file = AppendFile::create(&path).unwrap();
        file.append(&piece).unwrap();
        let mut bare = header(&boot, Validity::Whole, file.length());
        bare[8..12].copy_from_slice(&RECORD_VERSION.to_le_bytes());
        file.set_header(&bare);
        drop(file);

        for is_framed in [false, true] {
            let opened = Journal::open(&path, Start::Continue, Damage::Refuse, &mut log).unwrap();
            let (journal, server) = opened;
            assert_eq!(journal.is_framed, is_framed);
            let mut server = server.expect("a store");
            server.start_recording();
            let mut rings = Rings::new(None, journal, Log::open(None, None).unwrap());
            let id = server.connect_socket();
            let read = |server: &mut Server, rings: &mut Rings, path: &str| {
                let paths = [format!("{path}\0")].into_iter();
                String::from_utf8_lossy(&ask(server, rings, id, MessageType::Read, paths))
                    .into_owned()
            };
            assert!(read(&mut server, &mut rings, "/kept").ends_with("here"));
            // A change before it is made anew, and one after.
            let change = |text: &str| [format!("/change{is_framed}\0{text}")].into_iter();
            ask(&mut server, &mut rings, id, MessageType::Write, change("before"));
            while rings.work_on_journal(&mut server).is_some() {}
            assert!(rings.journal.is_framed);
            ask(&mut server, &mut rings, id, MessageType::Write, change("after"));
            if is_framed {
                assert!(read(&mut server, &mut rings, "/changefalse").ends_with("after"));
            }
            drop(rings);
            guard::forget_file();
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_a_whole_journal_of_this_boot_and_version_is_continued() {
        let whole = header(&BOOT, Validity::Whole, 77);
        assert_eq!(judge(&whole, &BOOT), Judgement::Continue);
        assert_eq!(checkpoint_bytes(&whole), 77);
        assert!(matches!(judge(&whole, &[b'c'; BOOT_BYTES]), Judgement::Ignore(_)));
        let lost = header(&BOOT, Validity::Lost, 0);
        assert!(matches!(judge(&lost, &BOOT), Judgement::Ignore(_)));
        for at in [0, 8] {
            let mut other = whole;
            other[at] ^= 0x40;
            assert!(matches!(judge(&other, &BOOT), Judgement::Refuse(_)), "byte {at}");
        }
    }
}
