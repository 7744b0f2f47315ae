//! libxl's stream, version 2: libxc's stream, and what belongs to the device model.

use crate::bytes::{Fields, put_record, put_u32};
use crate::error::{Fault, StreamError};
use crate::input::Input;
use crate::libxc;

const IDENT: [u8; 8] = *b"LibxlFmt";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 16;
const BIG_ENDIAN: u32 = 1;
/// It was converted from a stream of Xen 4.5.
const LEGACY: u32 = 2;
/// Records with this bit may be skipped by readers that do not know them.
const OPTIONAL: u32 = 1 << 31;

/// The longest body: a device model's state.
const BYTES_MAX: usize = 64 << 20;

const END: u32 = 0;
const LIBXC_CONTEXT: u32 = 1;
const EMULATOR_XENSTORE_DATA: u32 = 2;
const EMULATOR_CONTEXT: u32 = 3;
const CHECKPOINT_END: u32 = 4;
const CHECKPOINT_STATE: u32 = 5;

fn name(kind: u32) -> &'static str {
    match kind {
        END => "END",
        LIBXC_CONTEXT => "LIBXC_CONTEXT",
        EMULATOR_XENSTORE_DATA => "EMULATOR_XENSTORE_DATA",
        EMULATOR_CONTEXT => "EMULATOR_CONTEXT",
        CHECKPOINT_END => "CHECKPOINT_END",
        CHECKPOINT_STATE => "CHECKPOINT_STATE",
        _ => "of an unknown type",
    }
}

/// A device model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Emulator {
    /// In converted streams.
    Unknown,
    QemuTraditional,
    Qemu,
}

impl Emulator {
    fn decode(code: u32) -> Option<Self> {
        [Self::Unknown, Self::QemuTraditional, Self::Qemu].into_iter().find(|it| it.code() == code)
    }

    fn code(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::QemuTraditional => 1,
            Self::Qemu => 2,
        }
    }
}

/// What is in libxl's stream, but for libxc's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Record {
    End,
    /// libxc's stream follows.
    LibxcContext,
    /// Nodes of the device model in the store: relative path and value.
    EmulatorNodes {
        emulator: Emulator,
        index: u32,
        nodes: Vec<(String, String)>,
    },
    /// The device model's own state.
    EmulatorContext {
        emulator: Emulator,
        index: u32,
        bytes: Vec<u8>,
    },
    /// The end of a checkpoint.
    CheckpointEnd,
}

impl Record {
    /// `None` for one that may be skipped.
    pub(crate) fn decode(kind: u32, body: &[u8]) -> Result<Option<Self>, Fault> {
        let wrong = Fault::Length(body.len() as u64);
        let empty = |record| if body.is_empty() { Ok(record) } else { Err(wrong.clone()) };
        let of_emulator = || {
            let mut fields = Fields(body);
            let (code, index) =
                fields.u32().zip(fields.u32()).ok_or(Fault::Length(body.len() as u64))?;
            let emulator = Emulator::decode(code);
            let emulator = emulator.ok_or(Fault::Unknown("the device model", code.into()))?;
            Ok((emulator, index, fields.rest()))
        };
        Ok(Some(match kind {
            END => empty(Self::End)?,
            LIBXC_CONTEXT => empty(Self::LibxcContext)?,
            EMULATOR_XENSTORE_DATA => {
                let (emulator, index, rest) = of_emulator()?;
                Self::EmulatorNodes { emulator, index, nodes: decode_nodes(rest)? }
            }
            EMULATOR_CONTEXT => {
                let (emulator, index, rest) = of_emulator()?;
                Self::EmulatorContext { emulator, index, bytes: rest.to_vec() }
            }
            CHECKPOINT_END => empty(Self::CheckpointEnd)?,
            optional if optional & OPTIONAL != 0 => return Ok(None),
            // States of a checkpoint are sent by both sides of COLO alone.
            _ => return Err(Fault::UnknownRecord),
        }))
    }

    /// Whether it says nothing. Such a record is left out and skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::EmulatorNodes { nodes, .. } => nodes.is_empty(),
            Self::EmulatorContext { bytes, .. } => bytes.is_empty(),
            Self::End | Self::LibxcContext | Self::CheckpointEnd => false,
        }
    }

    /// Appends it to a stream, unless it is empty.
    ///
    /// # Panics
    /// If it is longer than [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX).
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::End => put_record(out, END, |_| {}),
            Self::LibxcContext => put_record(out, LIBXC_CONTEXT, |_| {}),
            Self::CheckpointEnd => put_record(out, CHECKPOINT_END, |_| {}),
            empty if empty.is_empty() => {}
            Self::EmulatorNodes { emulator, index, nodes } => {
                put_record(out, EMULATOR_XENSTORE_DATA, |out| {
                    put_u32(out, emulator.code());
                    put_u32(out, *index);
                    for text in nodes.iter().flat_map(|(path, value)| [path, value]) {
                        out.extend_from_slice(text.as_bytes());
                        out.push(0);
                    }
                });
            }
            Self::EmulatorContext { emulator, index, bytes } => {
                put_record(out, EMULATOR_CONTEXT, |out| {
                    put_u32(out, emulator.code());
                    put_u32(out, *index);
                    out.extend_from_slice(bytes);
                });
            }
        }
    }
}

/// Strings with a NUL each: path, value, path, value.
fn decode_nodes(bytes: &[u8]) -> Result<Vec<(String, String)>, Fault> {
    let Some(bytes) = bytes.strip_suffix(b"\0") else {
        return if bytes.is_empty() { Ok(Vec::new()) } else { Err(Fault::Pairs) };
    };
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::Pairs)?;
    let mut strings = text.split('\0');
    let mut nodes = Vec::new();
    while let Some(path) = strings.next() {
        let value = strings.next().ok_or(Fault::Pairs)?;
        nodes.push((path.to_owned(), value.to_owned()));
    }
    Ok(nodes)
}

/// Appends the header of a stream.
pub fn encode_header(out: &mut Vec<u8>) {
    out.extend_from_slice(&IDENT);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// What a parser found next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    Record(Record),
    Libxc(libxc::Item),
}

#[derive(Debug)]
enum State {
    Header,
    Records,
    Libxc(libxc::Parser),
    Ended,
}

/// Parses a stream with libxc's inside.
#[derive(Debug)]
pub struct Parser {
    pfn_max: u64,
    state: State,
    records: u64,
    has_context: bool,
}

impl Parser {
    /// For a domain whose highest page is at most this.
    #[must_use]
    pub fn new(pfn_max: u64) -> Self {
        Self { pfn_max, state: State::Header, records: 0, has_context: false }
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The next item, once its bytes have come; always `None` after the end.
    ///
    /// # Errors
    /// The stream is damaged, foreign, or not for this version. It cannot be read further.
    pub fn next(&mut self, input: &mut Input) -> Result<Option<Item>, StreamError> {
        loop {
            match &mut self.state {
                State::Ended => return Ok(None),
                State::Header => {
                    if !parse_header(input)? {
                        return Ok(None);
                    }
                    self.state = State::Records;
                }
                State::Libxc(parser) => {
                    let item = parser.next(input)?;
                    if parser.has_ended() {
                        self.state = State::Records;
                    }
                    return Ok(item.map(Item::Libxc));
                }
                State::Records => {
                    let Some(raw) = input.record(self.records, name, |_| BYTES_MAX)? else {
                        return Ok(None);
                    };
                    let error = |fault| StreamError {
                        place: format!(
                            "record {} ({}) of libxl at byte {}",
                            self.records,
                            name(raw.kind),
                            raw.offset
                        ),
                        fault,
                    };
                    let decoded = Record::decode(raw.kind, &raw.body).map_err(error)?;
                    let wrong = match &decoded {
                        Some(Record::LibxcContext) if self.has_context => Some(Fault::Twice),
                        Some(Record::End) if !self.has_context => {
                            Some(Fault::Before("LIBXC_CONTEXT"))
                        }
                        _ => None,
                    };
                    if let Some(fault) = wrong {
                        return Err(error(fault));
                    }
                    self.records += 1;
                    let Some(record) = decoded.filter(|record| !record.is_empty()) else {
                        continue;
                    };
                    match record {
                        Record::LibxcContext => {
                            self.has_context = true;
                            self.state = State::Libxc(libxc::Parser::new(self.pfn_max));
                        }
                        Record::End => self.state = State::Ended,
                        _ => {}
                    }
                    return Ok(Some(Item::Record(record)));
                }
            }
        }
    }
}

/// Whether the header has come.
fn parse_header(input: &mut Input) -> Result<bool, StreamError> {
    const WHAT: &str = "the header of libxl's stream";
    let Some(bytes) = input.peek(HEADER_BYTES, WHAT)? else { return Ok(false) };
    let word = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("inside"));
    let (version, options) = (word(8), word(12));
    let fault = if bytes[..8] != IDENT {
        Some(Fault::NotOne("a stream of libxl from Xen 4.6 or newer"))
    } else if version != VERSION {
        Some(Fault::Version(version))
    } else if options & BIG_ENDIAN != 0 {
        Some(Fault::BigEndian)
    } else if options & !LEGACY != 0 {
        Some(Fault::Unknown("the option word", options.into()))
    } else {
        None
    };
    match fault {
        Some(fault) => Err(input.error(WHAT, fault)),
        None => {
            input.consume(HEADER_BYTES);
            Ok(true)
        }
    }
}
