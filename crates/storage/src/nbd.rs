//! The client side of the NBD handshake: lists and describes exports.
//!
//! "Fixed newstyle", without TLS; numbers are big-endian. The server is not trusted: lengths and
//! the number of replies are bounded. Source: `doc/proto.md` of NetworkBlockDevice/nbd.

use crate::{Connection, HostError};

/// Default port of a server.
pub(crate) const PORT: u16 = 10809;

const GREETING: [u8; 8] = *b"NBDMAGIC";
const OPTION: [u8; 8] = *b"IHAVEOPT";
const REPLY: u64 = 0x0003_e889_0455_65a9;

/// The server continues after an unknown option.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const ERR_UNSUPPORTED: u32 = REP_ERROR | 1;
const ERR_POLICY: u32 = REP_ERROR | 2;
const ERR_TLS_REQUIRED: u32 = REP_ERROR | 5;
const ERR_UNKNOWN: u32 = REP_ERROR | 6;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Longest accepted payload of a reply: names have up to 4096 bytes.
const REPLY_BYTES_MAX: u32 = 16 << 10;
/// Most replies to one option.
const REPLIES_MAX: u32 = 1 << 16;

/// A disconnect request, with all other fields zero.
const REQUEST: u32 = 0x2560_9513;
const CMD_DISC: u16 = 2;
const REQUEST_BYTES: usize = 28;

const FLAG_READ_ONLY: u16 = 2;
/// Smallest block size, in bytes.
const SECTOR_BYTES: u32 = 512;

/// An export as its server describes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NbdExport {
    pub bytes: u64,
    /// The protocol's transmission flags.
    pub flags: u16,
    /// Its minimum block size.
    pub block_bytes: u32,
}

impl NbdExport {
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags & FLAG_READ_ONLY != 0
    }

    /// The same, read-only.
    pub(crate) fn read_only(mut self) -> Self {
        self.flags |= FLAG_READ_ONLY;
        self
    }
}

/// A server in the option haggling phase.
pub(crate) struct Handshake<'a>(&'a mut dyn Connection);

type Result<T> = std::result::Result<T, HostError>;

fn refused<T>(words: impl Into<String>) -> Result<T> {
    Err(HostError::Refused(words.into()))
}

fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn strange<T>(what: &str) -> Result<T> {
    refused(format!("is no NBD server that we understand: {what}"))
}

impl<'a> Handshake<'a> {
    pub(crate) fn begin(connection: &'a mut dyn Connection) -> Result<Self> {
        let mut greeting = [0; 18];
        connection.receive(&mut greeting)?;
        if greeting[..8] != GREETING || greeting[8..16] != OPTION {
            return strange("its greeting is another");
        }
        let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
        if flags & FIXED_NEWSTYLE == 0 {
            return strange("it is older than the protocol's fixed newstyle");
        }
        let ours = u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES));
        connection.send(&ours.to_be_bytes())?;
        Ok(Self(connection))
    }

    /// Names of all exports. A name that is not UTF-8 is omitted.
    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.ask(OPT_LIST, &[], |kind, payload| {
            if kind == REP_SERVER
                && let Some(length) = number(payload, 0).map(u32::from_be_bytes)
                && let Ok(length) = usize::try_from(length)
                && let Some(name) = payload[4..].get(..length)
                && let Ok(name) = std::str::from_utf8(name)
            {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Describes an export; [`HostError::Missing`] if there is none of this name. Some servers send
    /// the size only on NBD_OPT_GO: then it is 0.
    pub(crate) fn describe(&mut self, name: &str) -> Result<NbdExport> {
        self.export(OPT_INFO, name)
    }

    /// Enters the transmission phase of an export.
    pub(crate) fn enter(mut self, name: &str) -> Result<NbdExport> {
        self.export(OPT_GO, name)
    }

    /// Ends the handshake with NBD_OPT_ABORT.
    pub(crate) fn end(self) {
        // The server also notices when the connection closes.
        let _told = self.0.send(&request(OPT_ABORT, &[]));
    }

    fn export(&mut self, option: u32, name: &str) -> Result<NbdExport> {
        let (mut export, mut block_bytes) = (None, None);
        self.ask(option, &wanted(name), |kind, payload| {
            let what = number(payload, 0).map(u16::from_be_bytes);
            match what.filter(|_| kind == REP_INFO) {
                Some(INFO_EXPORT) => {
                    let bytes = number(payload, 2).map(u64::from_be_bytes);
                    export = bytes.zip(number(payload, 10).map(u16::from_be_bytes));
                }
                Some(INFO_BLOCK_SIZE) => {
                    block_bytes = number(payload, 2).map(u32::from_be_bytes);
                }
                _ => {}
            }
        })?;
        let Some((bytes, flags)) = export else {
            return strange(&format!("it does not say how long {name} is"));
        };
        let block_bytes = block_bytes.unwrap_or(SECTOR_BYTES).max(SECTOR_BYTES);
        Ok(NbdExport { bytes, flags, block_bytes })
    }

    /// Sends an option and passes on the replies before the final one.
    fn ask(&mut self, option: u32, data: &[u8], mut hear: impl FnMut(u32, &[u8])) -> Result<()> {
        self.0.send(&request(option, data))?;
        for _ in 0..REPLIES_MAX {
            let (kind, payload) = self.reply(option)?;
            match kind {
                REP_ACK => return Ok(()),
                kind if kind & REP_ERROR != 0 => return Err(error(option, kind, &payload)),
                kind => hear(kind, &payload),
            }
        }
        strange("its replies have no end")
    }

    fn reply(&mut self, option: u32) -> Result<(u32, Vec<u8>)> {
        let mut head = [0; 20];
        self.0.receive(&mut head)?;
        let word = |at| number(&head, at).map_or(0, u32::from_be_bytes);
        if number(&head, 0).map(u64::from_be_bytes) != Some(REPLY) || word(8) != option {
            return strange("its reply is to something else");
        }
        let (kind, length) = (word(12), word(16));
        if length > REPLY_BYTES_MAX {
            return strange("its reply is too long");
        }
        let mut payload = vec![0; length as usize];
        self.0.receive(&mut payload)?;
        Ok((kind, payload))
    }
}

/// Leaves an export that was entered.
pub(crate) fn leave(connection: &mut dyn Connection) {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&REQUEST.to_be_bytes());
    request[6..8].copy_from_slice(&CMD_DISC.to_be_bytes());
    // The server also notices when the connection closes.
    let _told = connection.send(&request);
}

fn request(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("our options are short");
    let mut bytes = OPTION.to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// An export's name, with a request for its block size.
fn wanted(name: &str) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).expect("names are short").to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(1_u16.to_be_bytes());
    data.extend(INFO_BLOCK_SIZE.to_be_bytes());
    data
}

fn error(option: u32, kind: u32, words: &[u8]) -> HostError {
    let words = String::from_utf8_lossy(words);
    let words: String = words.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    HostError::Refused(match (kind, option) {
        (ERR_UNKNOWN, _) => return HostError::Missing,
        (ERR_TLS_REQUIRED, _) => "wants TLS, which is not done here".to_owned(),
        (ERR_UNSUPPORTED, OPT_LIST) | (ERR_POLICY, OPT_LIST) => {
            "does not list its exports; let it (nbd-server: allowlist = true)".to_owned()
        }
        (ERR_UNSUPPORTED, _) => "is too old: it does not know NBD_OPT_GO".to_owned(),
        (kind, _) => format!("refuses with error {}: {}", kind & !REP_ERROR, words.trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A server with scripted replies, whatever it receives.
    #[derive(Default)]
    struct Script {
        says: VecDeque<u8>,
        heard: Vec<u8>,
    }

    impl Script {
        fn new() -> Self {
            let mut script = Self::default();
            script.says.extend(GREETING.into_iter().chain(OPTION).chain([0, 3]));
            script
        }

        fn reply(mut self, option: u32, kind: u32, payload: &[u8]) -> Self {
            self.says.extend(REPLY.to_be_bytes());
            for word in [option, kind, u32::try_from(payload.len()).unwrap()] {
                self.says.extend(word.to_be_bytes());
            }
            self.says.extend(payload);
            self
        }
    }

    impl Connection for Script {
        fn send(&mut self, bytes: &[u8]) -> Result<()> {
            self.heard.extend(bytes);
            Ok(())
        }

        fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
            for byte in bytes {
                *byte =
                    self.says.pop_front().ok_or_else(|| HostError::Refused("end".to_owned()))?;
            }
            Ok(())
        }
    }

    fn described() -> Script {
        let export = [&[0, 0][..], &(4_u64 << 20).to_be_bytes(), &[0, 3]].concat();
        let blocks = [&[0, 3][..], &[0, 0, 0x10, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]].concat();
        Script::new()
            .reply(OPT_INFO, REP_INFO, &export)
            .reply(OPT_INFO, REP_INFO, &[0, 9, 1, 2, 3])
            .reply(OPT_INFO, REP_INFO, &blocks)
            .reply(OPT_INFO, REP_ACK, &[])
    }

    #[test]
    fn an_export_is_queried_by_name_and_described() {
        let mut script = described();
        let export = Handshake::begin(&mut script).unwrap().describe("web").unwrap();
        assert_eq!(export, NbdExport { bytes: 4 << 20, flags: 3, block_bytes: 4096 });
        assert!(export.is_read_only());
        let asked = b"\0\0\0\x03IHAVEOPT\0\0\0\x06\0\0\0\x0b\0\0\0\x03web\0\x01\0\x03";
        assert_eq!(script.heard, asked);
    }

    #[test]
    fn exports_are_listed_without_names_that_are_not_utf8() {
        let mut script = Script::new()
            .reply(OPT_LIST, REP_SERVER, b"\0\0\0\x03one")
            .reply(OPT_LIST, REP_SERVER, b"\0\0\0\x02\xff\xff")
            .reply(OPT_LIST, REP_SERVER, b"\xff\xff\xff\xfftwo")
            .reply(OPT_LIST, REP_SERVER, b"\0\0\0\x03twoand more")
            .reply(OPT_LIST, REP_ACK, &[]);
        assert_eq!(Handshake::begin(&mut script).unwrap().names().unwrap(), ["one", "two"]);
    }

    #[test]
    fn truncated_input_is_an_error() {
        let whole: Vec<u8> = described().says.into();
        for length in 0..whole.len() {
            let mut script = Script { says: whole[..length].to_vec().into(), heard: vec![] };
            let result = Handshake::begin(&mut script).and_then(|mut it| it.describe("web"));
            assert!(result.is_err(), "{length} bytes");
        }
    }

    #[test]
    fn refusals_have_messages() {
        let ask = |option, kind, words: &[u8]| {
            let mut script = Script::new().reply(option, kind, words);
            let mut handshake = Handshake::begin(&mut script).unwrap();
            let result = match option {
                OPT_LIST => handshake.names().map(drop),
                _ => handshake.describe("web").map(drop),
            };
            result.unwrap_err().to_string()
        };
        assert_eq!(ask(OPT_INFO, ERR_UNKNOWN, b""), HostError::Missing.to_string());
        assert!(ask(OPT_INFO, ERR_TLS_REQUIRED, b"").contains("TLS"));
        assert!(ask(OPT_LIST, ERR_POLICY, b"").contains("allowlist"));
        assert_eq!(ask(OPT_INFO, REP_ERROR | 4, b"no\nroom"), "refuses with error 4: no room");
    }

    #[test]
    fn another_protocol_and_endless_replies_are_refused() {
        let mut script =
            Script { says: b"SSH-2.0-OpenSSH_9.2p1 Debian".to_vec().into(), heard: vec![] };
        assert!(Handshake::begin(&mut script).is_err());
        let mut script = Script::new();
        script.says.extend(REPLY.to_be_bytes());
        for word in [OPT_INFO, REP_INFO, u32::MAX] {
            script.says.extend(word.to_be_bytes());
        }
        let error = Handshake::begin(&mut script).unwrap().describe("web").unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
