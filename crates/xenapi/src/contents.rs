//! The contents of VDIs: what a client that fetches or sends them asks for, the task that tells how far that is, and bytes
//! made of pieces.
//!
//! A shell serves `GET /export_raw_vdi` and `PUT /import_raw_vdi`. It knows the client, has [`Facade::begin_contents`]
//! decide, passes the bytes, and says what came of it.

use api::{PIECE_BYTES_MAX, PieceHeader, Role};
use xen::Uuid;

use crate::calls;
use crate::facade::{Facade, Moment};
use crate::failure::Failure;
use crate::model::Class;
use crate::refs::{derived, opaque, uuid_in};
use crate::tasks::{Doer, Status, Task};
use crate::value::{Answer, Value};

/// The forms in which contents are passed.
const FORMATS: [&str; 1] = ["raw"];

/// Where the bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// To the client.
    Export,
    /// From it.
    Import,
}

impl Way {
    fn label(self) -> &'static str {
        match self {
            Self::Export => "Exporting raw VDI",
            Self::Import => "Importing raw VDI",
        }
    }

    /// What XAPI calls the right to it.
    fn permission(self) -> &'static str {
        match self {
            Self::Export => "http/get_export_raw_vdi",
            Self::Import => "http/put_import_raw_vdi",
        }
    }
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub way: Way,
    pub who: &'a str,
    pub role: Role,
    /// A reference or a UUID.
    pub vdi: Option<&'a str>,
    pub format: Option<&'a str>,
    /// A task of the client's own.
    pub task: Option<&'a str>,
    /// How many bytes it says that it sends.
    pub bytes: Option<u64>,
}

/// A client that cannot know how much it will send announces this, and hangs up in the end: `xen-api` of npm.
const UNKNOWN_BYTES_MIN: u64 = 1 << 50;

/// Contents that may be passed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Contents {
    /// As the daemon knows it.
    pub vdi: String,
    pub uuid: Uuid,
    pub bytes: u64,
    task: Uuid,
    /// Whether the client has named it.
    is_clients: bool,
}

impl Contents {
    /// The reference of its task.
    #[must_use]
    pub fn task(&self) -> String {
        opaque(self.task)
    }
}

/// Why they are not passed, and the status that XAPI answers with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub failure: Failure,
}

impl Refusal {
    fn new(status: u16, failure: Failure) -> Self {
        Self { status, failure }
    }
}

impl Facade {
    /// Whether a client may have them. From then on the client's task, or one of the façade's, tells how far they are;
    /// a task whose contents are refused has failed.
    ///
    /// # Errors
    /// Says why not.
    pub fn begin_contents(
        &mut self,
        wanted: &Wanted<'_>,
        moment: &Moment,
    ) -> Result<Contents, Refusal> {
        if !self.mirror.is_whole {
            return Err(Refusal::new(503, Failure::new("HOST_STILL_BOOTING", [""; 0])));
        }
        let task = wanted.task.map(|it| self.own_of(it, wanted)).transpose()?;
        match self.may_pass(wanted) {
            Ok((uuid, vdi, bytes)) => {
                let begun = task.map_or_else(|| self.own_task(wanted, moment), Ok);
                let task = begun.map_err(|failure| Refusal::new(503, failure))?;
                self.tasks_changed(None);
                Ok(Contents { vdi, uuid, bytes, task, is_clients: wanted.task.is_some() })
            }
            Err(refusal) => {
                let failed = Err(refusal.failure.clone());
                self.end(task, failed, moment.unix_ms);
                Err(refusal)
            }
        }
    }

    /// The client's task, which the shell moves on from now on.
    fn own_of(&mut self, reference: &str, wanted: &Wanted<'_>) -> Result<Uuid, Refusal> {
        let none = || Refusal::new(400, Failure::no_handle(Class::Task, reference));
        let id = self.find(Class::Task, reference).map_err(|_| none())?;
        let task = self.tasks.get_mut(id).filter(|it| it.doer == Doer::Client).ok_or_else(none)?;
        if task.who != wanted.who && wanted.role != Role::Admin {
            return Err(Refusal::new(403, Failure::permission(wanted.way.permission())));
        }
        if !task.is_under_way() {
            return Err(Refusal::new(400, Failure::not_allowed("the task has ended")));
        }
        task.doer = Doer::Patient;
        Ok(id)
    }

    fn own_task(&mut self, wanted: &Wanted<'_>, moment: &Moment) -> Result<Uuid, Failure> {
        let label = wanted.way.label();
        let id = derived(moment.fresh, "task", label);
        self.tasks.begin(Task {
            id,
            name: label.to_owned(),
            description: String::new(),
            who: wanted.who.to_owned(),
            doer: Doer::Patient,
            works_on: None,
            status: Status::Pending,
            progress: 0.0,
            created_unix_ms: moment.unix_ms,
            ended_unix_ms: None,
            result: String::new(),
            error_info: Vec::new(),
        })?;
        Ok(id)
    }

    /// The VDI, its name for the daemon, and its size.
    fn may_pass(&self, wanted: &Wanted<'_>) -> Result<(Uuid, String, u64), Refusal> {
        if wanted.role < Role::Admin {
            return Err(Refusal::new(403, Failure::permission(wanted.way.permission())));
        }
        let format = wanted.format.unwrap_or("raw").to_ascii_lowercase();
        if !FORMATS.contains(&format.as_str()) {
            let why =
                format!("the format {format} is not supported; there is {}", FORMATS.join(", "));
            return Err(Refusal::new(404, Failure::internal(&why)));
        }
        let missing = || Refusal::new(400, Failure::new("VDI_MISSING", [""; 0]));
        let name = wanted.vdi.ok_or_else(missing)?;
        let none = || match name.parse::<Uuid>() {
            Ok(_) => Refusal::new(400, Failure::no_uuid(Class::Vdi, name)),
            Err(_) => Refusal::new(400, Failure::no_handle(Class::Vdi, name)),
        };
        let uuid = uuid_in(name).or_else(|| name.parse().ok()).ok_or_else(none)?;
        let (sr, vdi) = self.view().vdi_name(uuid).ok_or_else(none)?;
        let row = self.mirror.vdi(&sr, &vdi).ok_or_else(none)?;
        let sent = wanted.bytes.filter(|it| *it < UNKNOWN_BYTES_MIN);
        if let Some(sent) = sent.filter(|it| *it > row.bytes) {
            let why = format!("{sent} bytes do not fit into a VDI of {}", row.bytes);
            return Err(Refusal::new(400, Failure::new("VDI_IO_ERROR", [why])));
        }
        if wanted.way == Way::Import && row.snapshot_of.is_some() {
            let reference = opaque(uuid);
            return Err(Refusal::new(400, Failure::new("VDI_READONLY", [reference])));
        }
        Ok((uuid, format!("{sr}:{vdi}"), row.bytes))
    }

    /// So much of them has been passed, in hundredths.
    pub fn advance_contents(&mut self, contents: &Contents, hundredths: u8) {
        if let Some(task) = self.tasks.get_mut(contents.task).filter(|it| it.is_under_way()) {
            task.progress = (f64::from(hundredths) / 100.0).clamp(task.progress, 1.0);
            self.tasks_changed(None);
        }
    }

    /// Whether their task was cancelled, which may change with [`Facade::revision`].
    #[must_use]
    pub fn is_cancelled(&self, contents: &Contents) -> bool {
        self.tasks.get(contents.task).is_some_and(|it| it.status == Status::Cancelling)
    }

    /// They have been passed, or why not in the daemon's words before they were begun.
    pub fn end_contents(
        &mut self,
        contents: &Contents,
        way: Way,
        ended: Result<(), Broken>,
        now_unix_ms: u64,
    ) -> Answer {
        let vdi = (Class::Vdi, contents.uuid);
        let answer = match ended {
            _ if self.is_cancelled(contents) => {
                Err(Failure::new("TASK_CANCELLED", [contents.task()]))
            }
            Ok(()) if way == Way::Import => Ok(Value::from(opaque(contents.uuid))),
            Ok(()) => Ok(Value::void()),
            Err(Broken::Closed(why)) => Err(calls::refused(&why, Some(vdi))),
            Err(Broken::Off(why)) => Err(Failure::new("VDI_IO_ERROR", [why])),
        };
        self.end(Some(contents.task), answer.clone(), now_unix_ms);
        answer
    }

    /// The client has sent nothing: it has only looked whether it may. A task that it has not named is forgotten.
    pub fn end_unused_contents(
        &mut self,
        contents: &Contents,
        way: Way,
        ended: Result<(), Broken>,
        now_unix_ms: u64,
    ) {
        let _answer = self.end_contents(contents, way, ended, now_unix_ms);
        if !contents.is_clients {
            self.tasks.destroy(contents.task);
            self.tasks_changed(None);
        }
    }
}

/// Why contents were not passed to their end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Broken {
    /// The VDI could not be opened.
    Closed(String),
    /// They were begun.
    Off(String),
}

/// Pieces of a disk, in the order in which its bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder {
    at: u64,
}

/// What a piece comes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// Zeros come first,
    pub zeros: u64,
    /// then so many bytes,
    pub count: usize,
    /// and that is all.
    pub is_last: bool,
}

impl InOrder {
    /// How many bytes there were.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// The next piece.
    ///
    /// # Errors
    /// It does not follow the one before.
    pub fn next(&mut self, piece: PieceHeader) -> Result<Run, String> {
        let count = usize::try_from(piece.count).unwrap_or(usize::MAX);
        let zeros = piece.at.checked_sub(self.at).filter(|_| count <= PIECE_BYTES_MAX);
        let end = piece.at.checked_add(piece.count.into());
        match zeros.zip(end) {
            Some((zeros, end)) => {
                self.at = end;
                Ok(Run { zeros, count, is_last: count == 0 })
            }
            None => Err(format!("a piece of {count} bytes at {}, after {}", piece.at, self.at)),
        }
    }

    /// The pieces that these bytes are, which follow those before.
    pub fn pieces<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (PieceHeader, &'a [u8])> + use<'a> {
        let at = self.at;
        self.at += bytes.len() as u64;
        let parts = bytes.chunks(PIECE_BYTES_MAX);
        parts.enumerate().map(move |(number, part)| {
            let at = at + (number * PIECE_BYTES_MAX) as u64;
            (PieceHeader::of(at, part.len()), part)
        })
    }

    /// The piece that ends them.
    #[must_use]
    pub fn end(&self) -> PieceHeader {
        PieceHeader::of(self.at, 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All bytes of pieces.
    fn spread(pieces: &[(PieceHeader, &[u8])], end: PieceHeader) -> Result<Vec<u8>, String> {
        let (mut order, mut all) = (InOrder::default(), Vec::new());
        let end = std::iter::once((end, &[][..]));
        for (header, bytes) in pieces.iter().copied().chain(end) {
            let run = order.next(header)?;
            all.resize(all.len() + usize::try_from(run.zeros).unwrap(), 0);
            all.extend_from_slice(&bytes[..run.count]);
        }
        Ok(all)
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_that_they_were_made_of(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            left_out in any::<u32>(),
        ) {
            let mut order = InOrder::default();
            let pieces: Vec<_> = parts.iter().flat_map(|it| order.pieces(it)).collect();
            prop_assert_eq!(spread(&pieces, order.end()).unwrap(), parts.concat());
            // What is in no piece is zeros.
            let is_left_out = |number: usize| left_out & (1 << (number % 32)) != 0;
            let some = pieces.iter().enumerate().filter(|(number, _)| !is_left_out(*number));
            let some: Vec<_> = some.map(|(_, it)| *it).collect();
            let mut all = parts.concat();
            for (number, (header, bytes)) in pieces.iter().enumerate() {
                let at = usize::try_from(header.at).unwrap();
                if is_left_out(number) {
                    all[at..at + bytes.len()].fill(0);
                }
            }
            prop_assert_eq!(spread(&some, order.end()).unwrap(), all);
        }

        #[test]
        fn no_header_goes_back_or_beyond_all_numbers(headers in prop::collection::vec((any::<u64>(), any::<u32>()), 1..9)) {
            let mut order = InOrder::default();
            for (at, count) in headers {
                let before = order.bytes();
                match order.next(PieceHeader { at, count }) {
                    Ok(run) => prop_assert_eq!(order.bytes(), before + run.zeros + u64::from(count)),
                    Err(_) => prop_assert_eq!(order.bytes(), before),
                }
            }
        }
    }

    #[test]
    fn much_at_once_is_cut_into_pieces() {
        let mut order = InOrder { at: 7 };
        let bytes = vec![1; PIECE_BYTES_MAX + 3];
        let found: Vec<_> = order.pieces(&bytes).map(|(it, part)| (it.at, part.len())).collect();
        assert_eq!(found, [(7, PIECE_BYTES_MAX), (7 + PIECE_BYTES_MAX as u64, 3)]);
        assert_eq!(order.end().at, 10 + PIECE_BYTES_MAX as u64);
    }
}
