//! Protection against requests that crash the daemon, so that they do not crash its successors too.
//!
//! While a request is executed, the journal's header contains the beginning of the request: like
//! the journal it survives the process. So a daemon knows during which request its predecessor
//! died. A request in which the daemon panicked twice is refused from then on, and so is everything
//! from a guest whose requests caused five panics; all others are served. A killed daemon may have
//! been executing any request: then three deaths at the same position of the same ring are needed.

use std::sync::Mutex;

use xen_linux::{AppendFile, Flag};
use xenstore::wire::MessageType;

use crate::log;

/// Bytes of a request's payload by which it is recognised.
const BEGINNING_BYTES: usize = 40;
const CULPRIT_BYTES: usize = 24 + BEGINNING_BYTES;
const SUSPECT_BYTES: usize = CULPRIT_BYTES + 8;
const SUSPECTS_MAX: usize = 8;

/// In the notes of the journal's header: the request that is executed, whether there is one, and what
/// ended daemons before.
const STATE_AT: usize = CULPRIT_BYTES;
const SUSPECTS_AT: usize = 128;

const IDLE: u8 = 0;
const EXECUTING: u8 = 1;
const PANICKED: u8 = 2;

/// Deaths until a request is refused.
const PANICS_MAX: u8 = 2;
const KILLS_MAX: u8 = 3;
/// Panics until all requests of a guest are refused.
const PANICS_OF_RING_MAX: u32 = 5;

/// Identification of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Culprit {
    /// The ring's connection; 0 for sockets, whose clients have another number after each restart.
    ring: u64,
    /// The ring's position and the request's number since then: the same after a restart.
    place: u64,
    code: u32,
    payload_bytes: u32,
    beginning: [u8; BEGINNING_BYTES],
}

impl Culprit {
    fn new(ring: u64, place: u64, code: u32, payload: &[u8]) -> Self {
        let mut beginning = [0; BEGINNING_BYTES];
        let length = payload.len().min(BEGINNING_BYTES);
        beginning[..length].copy_from_slice(&payload[..length]);
        let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Self { ring, place, code, payload_bytes, beginning }
    }

    fn is_same_request(&self, other: &Self) -> bool {
        let what = |it: &Self| (it.ring, it.code, it.payload_bytes, it.beginning);
        what(self) == what(other)
    }

    fn encode(&self) -> [u8; CULPRIT_BYTES] {
        let mut bytes = [0; CULPRIT_BYTES];
        bytes[..8].copy_from_slice(&self.ring.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.place.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.code.to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.payload_bytes.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.beginning);
        bytes
    }

    fn decode(bytes: &[u8; CULPRIT_BYTES]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("inside"));
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("inside"));
        let beginning = *bytes.last_chunk().expect("inside");
        let (ring, place) = (long(0), long(8));
        Self { ring, place, code: word(16), payload_bytes: word(20), beginning }
    }

    /// For the log.
    fn describe(&self) -> String {
        let kind = MessageType::from_code(self.code).map_or("unknown", MessageType::label);
        let length = self.beginning.len().min(self.payload_bytes as usize);
        let text = self.beginning[..length].escape_ascii();
        let who = match self.ring {
            0 => "a client of the control domain".to_owned(),
            ring => format!("the guest at ring {ring}"),
        };
        format!("{kind} {text} of {who}")
    }
}

/// A request that crashed daemons, and how often.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Suspect {
    culprit: Culprit,
    panics: u8,
    /// Other deaths during its execution, at the same position.
    kills: u8,
}

impl Suspect {
    fn is_refused(&self) -> bool {
        self.panics >= PANICS_MAX || self.kills >= KILLS_MAX
    }
}

/// Known requests that crashed daemons.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    suspects: Vec<Suspect>,
    /// Whether any request is refused.
    refuses: bool,
    /// Of the next request.
    place: u64,
}

/// Decision on a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Execute,
    /// Description for the log.
    Refuse(String),
    /// The store may not grow.
    NoRoom,
}

impl Guard {
    /// Reads the notes of the previous daemon; returns the request during which it died, if any.
    pub(crate) fn read(notes: &[u8]) -> (Self, Option<String>) {
        let mut guard = Self::default();
        for bytes in notes[SUSPECTS_AT..].chunks_exact(SUSPECT_BYTES).take(SUSPECTS_MAX) {
            let culprit = Culprit::decode(bytes.first_chunk().expect("inside"));
            let (panics, kills) = (bytes[CULPRIT_BYTES], bytes[CULPRIT_BYTES + 1]);
            if panics > 0 || kills > 0 {
                guard.suspects.push(Suspect { culprit, panics, kills });
            }
        }
        let culprit = Culprit::decode(notes.first_chunk().expect("inside"));
        let found = guard.accuse(culprit, notes[STATE_AT]);
        guard.refuses = guard.suspects.iter().any(Suspect::is_refused);
        (guard, found)
    }

    fn accuse(&mut self, culprit: Culprit, state: u8) -> Option<String> {
        // A socket client's request is gone with it, unless it is known to be the cause.
        if state == IDLE || (state == EXECUTING && culprit.ring == 0) {
            return None;
        }
        let known = self.suspects.iter().position(|it| it.culprit.is_same_request(&culprit));
        let mut suspect = match known {
            Some(at) => self.suspects.remove(at),
            None => Suspect { culprit, panics: 0, kills: 0 },
        };
        if state == PANICKED {
            suspect.panics = suspect.panics.saturating_add(1);
        } else {
            let is_here = suspect.culprit.place == culprit.place;
            suspect.kills = if is_here { suspect.kills.saturating_add(1) } else { 1 };
        }
        suspect.culprit = culprit;
        if self.suspects.len() == SUSPECTS_MAX {
            // Replace the oldest that is not refused, if there is one.
            let innocent = self.suspects.iter().position(|it| !it.is_refused());
            self.suspects.remove(innocent.unwrap_or(0));
        }
        self.suspects.push(suspect);
        let how = if state == PANICKED { "panicked" } else { "ended" };
        let then = if suspect.is_refused() { "; it is refused from now on" } else { "" };
        Some(format!("the daemon before this one {how} in {}{then}", culprit.describe()))
    }

    /// Writes the notes into the header of a journal, without a current request.
    pub(crate) fn write(&self, file: &mut AppendFile) {
        file.set_note(STATE_AT, &[IDLE]);
        let mut bytes = [0; SUSPECTS_MAX * SUSPECT_BYTES];
        for (suspect, into) in self.suspects.iter().zip(bytes.chunks_exact_mut(SUSPECT_BYTES)) {
            into[..CULPRIT_BYTES].copy_from_slice(&suspect.culprit.encode());
            into[CULPRIT_BYTES] = suspect.panics;
            into[CULPRIT_BYTES + 1] = suspect.kills;
        }
        file.set_note(SUSPECTS_AT, &bytes);
        match file.flag(STATE_AT) {
            Ok(flag) => *EXECUTED.lock().expect("not poisoned") = Some(flag),
            // Then a panic counts like any other death.
            Err(_) => *EXECUTED.lock().expect("not poisoned") = None,
        }
    }

    /// Begins requests of a ring at this index.
    pub(crate) fn begin_turn(&mut self, index: u32) {
        self.place = u64::from(index) << 32;
    }

    /// Begins the execution of a request. `ring` is 0 for sockets.
    pub(crate) fn begin(
        &mut self,
        file: &mut AppendFile,
        ring: u64,
        code: u32,
        payload: &[u8],
    ) -> Verdict {
        let culprit = Culprit::new(ring, self.place, code, payload);
        self.place = self.place.wrapping_add(1);
        if self.refuses && self.is_refused(&culprit) {
            return Verdict::Refuse(culprit.describe());
        }
        file.set_note(0, &culprit.encode());
        file.set_note(STATE_AT, &[EXECUTING]);
        Verdict::Execute
    }

    fn is_refused(&self, culprit: &Culprit) -> bool {
        let of_ring =
            self.suspects.iter().filter(|it| culprit.ring != 0 && it.culprit.ring == culprit.ring);
        let panics: u32 = of_ring.map(|it| u32::from(it.panics)).sum();
        panics >= PANICS_OF_RING_MAX
            || self.suspects.iter().any(|it| it.is_refused() && it.culprit.is_same_request(culprit))
    }

    /// Ends its execution.
    pub(crate) fn end(file: &mut AppendFile) {
        file.set_note(STATE_AT, &[IDLE]);
    }
}

/// Whether a request is being executed, for [`note_panics`].
static EXECUTED: Mutex<Option<Flag>> = Mutex::new(None);

/// Unmaps the journal's header, like the end of the process.
#[cfg(test)]
pub(crate) fn forget_file() {
    *EXECUTED.lock().expect("not poisoned") = None;
}

/// From now on a panic of any thread ends the process, and is distinguished from other deaths.
pub(crate) fn note_panics() {
    std::panic::set_hook(Box::new(move |panic| {
        let is_ours = std::thread::current().name() == Some("main");
        if is_ours
            && let Ok(executed) = EXECUTED.try_lock()
            && let Some(flag) = &*executed
            && flag.get() == EXECUTING
        {
            flag.set(PANICKED);
        }
        // The default report could block on its reader.
        log::complain(&format!("{panic}").replace('\n', ": "));
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES_BYTES: usize = AppendFile::NOTES_BYTES;

    /// Notes after a death, and how the next daemon reads them.
    struct Notes([u8; NOTES_BYTES]);

    impl Notes {
        fn dies(&mut self, culprit: Culprit, state: u8) -> Guard {
            self.0[..CULPRIT_BYTES].copy_from_slice(&culprit.encode());
            self.0[STATE_AT] = state;
            let (guard, _) = Guard::read(&self.0);
            let mut at = SUSPECTS_AT;
            self.0[at..].fill(0);
            for suspect in &guard.suspects {
                self.0[at..][..CULPRIT_BYTES].copy_from_slice(&suspect.culprit.encode());
                self.0[at + CULPRIT_BYTES] = suspect.panics;
                self.0[at + CULPRIT_BYTES + 1] = suspect.kills;
                at += SUSPECT_BYTES;
            }
            guard
        }
    }

    fn request(ring: u64, place: u64, payload: &str) -> Culprit {
        Culprit::new(ring, place, MessageType::Write.code(), payload.as_bytes())
    }

    #[test]
    fn a_request_that_panics_twice_is_refused_and_no_other() {
        let mut notes = Notes([0; NOTES_BYTES]);
        for ring in [0, 7] {
            let (bad, good) = (request(ring, 1, "a\0bad"), request(ring, 1, "a\0good"));
            assert!(!notes.dies(bad, PANICKED).is_refused(&bad));
            // A death between requests changes nothing.
            assert!(!notes.dies(good, IDLE).is_refused(&bad));
            let guard = notes.dies(request(ring, 2, "a\0bad"), PANICKED);
            assert!(guard.refuses && guard.is_refused(&bad) && !guard.is_refused(&good));
            assert!(!guard.is_refused(&request(8, 1, "a\0bad")));
        }
    }

    #[test]
    fn a_kill_counts_for_rings_and_three_times_at_one_place_only() {
        let mut notes = Notes([0; NOTES_BYTES]);
        let socket = request(0, 1, "/a\0bad");
        for place in [1, 2, 2, 3, 3] {
            assert!(!notes.dies(socket, EXECUTING).refuses);
            let here = request(7, place, "a\0bad");
            assert!(!notes.dies(here, EXECUTING).is_refused(&here), "{place}");
        }
        let here = request(7, 3, "a\0bad");
        assert!(notes.dies(here, EXECUTING).is_refused(&here));
    }

    #[test]
    fn a_guest_that_always_finds_another_request_is_not_heard_in_the_end() {
        let mut notes = Notes([0; NOTES_BYTES]);
        let mut guard = Guard::default();
        for i in 0..20 {
            let text = format!("a\0{i}");
            guard = notes.dies(request(7, i, &text), PANICKED);
            assert_eq!(guard.is_refused(&request(7, 0, "a\0new")), i >= 4, "{i}");
        }
        assert_eq!(guard.suspects.len(), SUSPECTS_MAX);
        assert!(!guard.is_refused(&request(8, 0, "a\0new")));
    }

    #[test]
    fn the_operator_is_told_which_request_it_was() {
        let mut notes = Notes([0; NOTES_BYTES]);
        let bad = request(7, 1, "data/x\0\u{1}");
        notes.dies(bad, PANICKED);
        let (_, told) = Guard::read(&notes.0);
        let expected = "the daemon before this one panicked in write data/x\\x00\\x01 of the guest at \
                        ring 7; it is refused from now on";
        assert_eq!(told.as_deref(), Some(expected));
    }
}
