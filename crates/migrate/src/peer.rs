//! What two Xylem hosts say to each other while a VM moves, over any connection that keeps order.
//!
//! ```text
//!   sender                                   receiver
//!                                            banner
//!   Offer (transfer, configuration)     -->
//!                                       <--  Accepted, or Refused
//!   Data ... (an image, in rounds)      -->
//!                                       <--  Reached: a round is here, and loaded; for each while the guest runs
//!   Whole (the guest is suspended)      -->
//!                                       <--  Loaded: all of it is here and sound
//!   Go (from here on never runs it)     -->
//!                                       <--  Running, or Failed (and never runs it)
//!   Forget                              -->
//!                                       <--  Answer: Never (forgotten; the sender says it again otherwise)
//!
//!   on a later connection, if Go was sent and nothing came back:
//!   Question (transfer)                 -->
//!                                       <--  Answer: Running, Never, or NotYet
//! ```
//! Before `Go` the sender decides alone: it may resume the guest at any time, and the receiver never runs it. After
//! `Go` only the receiver may, and the sender asks until it knows. Every message but [`Message::Data`] is small.

use xen::Uuid;

use crate::bytes::{Fields, put_u32};
use crate::error::{Fault, StreamError};
use crate::input::Input;

/// What the receiver says first.
pub const BANNER: &str = "xylem migration receiver, protocol 1\n";

/// Longest banner that a sender reads before it gives up: a shell may have printed something else.
pub const BANNER_BYTES_MAX: usize = 256;

/// Most bytes of an image in one message. The receiver holds one.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Longest of all others: it has a configuration.
const MESSAGE_BYTES_MAX: usize = 5 << 20;
const HEADER_BYTES: usize = 8;

/// Fields of an offer that a receiver must know have this bit.
const ESSENTIAL: u32 = 1 << 31;

const FIELD_NAME: u32 = 1 | ESSENTIAL;
const FIELD_UUID: u32 = 2 | ESSENTIAL;
const FIELD_CONFIG: u32 = 3 | ESSENTIAL;
const FIELD_START: u32 = 4 | ESSENTIAL;
const FIELD_FROM: u32 = 5;
const FIELD_DEFINED: u32 = 6;
const FIELD_LANES: u32 = 7;
const FIELD_DOMID: u32 = 8 | ESSENTIAL;

/// What the receiver does with the guest once it has it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Arrival {
    #[default]
    Runs,
    StaysPaused,
}

/// A VM that is offered to another host.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Offer {
    /// Names this move: it is asked for by it.
    pub transfer: Uuid,
    pub name: String,
    pub uuid: Uuid,
    /// The VM's configuration, as in its record.
    pub config: String,
    pub arrival: Arrival,
    /// The sending host, for the operator.
    pub from: String,
    /// It is defined there, and starts with the host in this place, if at all.
    pub defined: Option<Option<u32>>,
    /// Further connections that the sender would open.
    pub lanes: u32,
    /// The number that the VM's domain must have.
    pub domid: Option<u16>,
}

/// What became of a transfer at the receiver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The VM is the receiver's: it runs there, or has run.
    Running,
    /// It is not there and will never be.
    Never,
    /// It is still being decided: ask again.
    NotYet,
}

/// One message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    Offer(Box<Offer>),
    /// Bytes of the image.
    Data(Vec<u8>),
    /// All of the image has been sent.
    Whole,
    Go,
    GiveUp {
        why: String,
    },
    Question {
        transfer: Uuid,
    },
    Forget {
        transfer: Uuid,
    },
    Accepted {
        /// Further connections that the receiver takes.
        lanes: u32,
        /// Who opens them knows this.
        token: [u8; 16],
    },
    Refused {
        why: String,
    },
    /// So many rounds are loaded: nothing of them is under way.
    Reached {
        rounds: u32,
    },
    Loaded,
    Running,
    Failed {
        why: String,
    },
    Answer {
        fate: Fate,
    },
    /// The other side still works.
    Alive,
}

const OFFER: u32 = 1;
const DATA: u32 = 2;
const WHOLE: u32 = 3;
const GO: u32 = 4;
const GIVE_UP: u32 = 5;
const QUESTION: u32 = 6;
const FORGET: u32 = 7;
const ACCEPTED: u32 = 0x101;
const REFUSED: u32 = 0x102;
const LOADED: u32 = 0x103;
const RUNNING: u32 = 0x104;
const FAILED: u32 = 0x105;
const ANSWER: u32 = 0x106;
const REACHED: u32 = 0x107;
const ALIVE: u32 = 0x200;

impl Message {
    fn kind(&self) -> u32 {
        match self {
            Self::Offer(_) => OFFER,
            Self::Data(_) => DATA,
            Self::Whole => WHOLE,
            Self::Go => GO,
            Self::GiveUp { .. } => GIVE_UP,
            Self::Question { .. } => QUESTION,
            Self::Forget { .. } => FORGET,
            Self::Accepted { .. } => ACCEPTED,
            Self::Refused { .. } => REFUSED,
            Self::Reached { .. } => REACHED,
            Self::Loaded => LOADED,
            Self::Running => RUNNING,
            Self::Failed { .. } => FAILED,
            Self::Answer { .. } => ANSWER,
            Self::Alive => ALIVE,
        }
    }

    /// Its name, for an error.
    #[must_use]
    pub fn name(&self) -> &'static str {
        name(self.kind())
    }

    /// Appends it to what is sent.
    ///
    /// # Panics
    /// If it is longer than a receiver takes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.kind());
        let length_at = out.len();
        put_u32(out, 0);
        self.encode_body(out);
        let length = out.len() - length_at - 4;
        assert!(length <= limit(self.kind()), "a message of {length} bytes");
        let length = u32::try_from(length).expect("checked above");
        out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Offer(offer) => offer.encode(out),
            Self::Data(bytes) => out.extend_from_slice(bytes),
            Self::Whole | Self::Go | Self::Loaded | Self::Running | Self::Alive => {}
            Self::GiveUp { why } | Self::Refused { why } | Self::Failed { why } => {
                out.extend_from_slice(cut(why).as_bytes());
            }
            Self::Question { transfer } | Self::Forget { transfer } => {
                out.extend_from_slice(&transfer.0);
            }
            Self::Accepted { lanes, token } => {
                put_u32(out, *lanes);
                out.extend_from_slice(token);
            }
            Self::Reached { rounds } => put_u32(out, *rounds),
            Self::Answer { fate } => put_u32(out, fate.code()),
        }
    }

    fn decode(kind: u32, body: &[u8]) -> Result<Self, Fault> {
        let wrong = || Fault::Length(body.len() as u64);
        let empty = |message| if body.is_empty() { Ok(message) } else { Err(wrong()) };
        let text = || String::from_utf8_lossy(body).into_owned();
        let transfer = || <[u8; 16]>::try_from(body).map(Uuid).map_err(|_| wrong());
        let number = || <[u8; 4]>::try_from(body).map(u32::from_le_bytes).map_err(|_| wrong());
        match kind {
            OFFER => Offer::decode(body).map(|offer| Self::Offer(Box::new(offer))),
            DATA => Ok(Self::Data(body.to_vec())),
            WHOLE => empty(Self::Whole),
            GO => empty(Self::Go),
            GIVE_UP => Ok(Self::GiveUp { why: text() }),
            QUESTION => Ok(Self::Question { transfer: transfer()? }),
            FORGET => Ok(Self::Forget { transfer: transfer()? }),
            ACCEPTED => {
                let mut fields = Fields(body);
                let (lanes, token) = fields.u32().zip(fields.take()).ok_or_else(wrong)?;
                if fields.is_empty() { Ok(Self::Accepted { lanes, token }) } else { Err(wrong()) }
            }
            REFUSED => Ok(Self::Refused { why: text() }),
            REACHED => Ok(Self::Reached { rounds: number()? }),
            LOADED => empty(Self::Loaded),
            RUNNING => empty(Self::Running),
            FAILED => Ok(Self::Failed { why: text() }),
            ANSWER => Ok(Self::Answer { fate: Fate::decode(number()?)? }),
            ALIVE => empty(Self::Alive),
            _ => Err(Fault::UnknownRecord),
        }
    }

    /// The next message, once all of it has come.
    ///
    /// # Errors
    /// The other side does not keep to the protocol, or the connection has ended inside a message.
    pub fn parse(input: &mut Input) -> Result<Option<Self>, StreamError> {
        let Some(header) = input.peek(HEADER_BYTES, "a message")? else { return Ok(None) };
        let mut fields = Fields(header);
        let (Some(kind), Some(length)) = (fields.u32(), fields.u32()) else {
            unreachable!("a header has two words");
        };
        let what = format!("a message ({})", name(kind));
        let length = match usize::try_from(length) {
            Ok(length) if length <= limit(kind) => length,
            _ => return Err(input.error(&what, Fault::TooLong(length.into()))),
        };
        let Some(bytes) = input.peek(HEADER_BYTES + length, &what)? else { return Ok(None) };
        let message = Self::decode(kind, &bytes[HEADER_BYTES..]);
        let message = message.map_err(|fault| input.error(&what, fault))?;
        input.consume(HEADER_BYTES + length);
        Ok(Some(message))
    }
}

/// Longest reason that is sent, in bytes: a line for an operator.
const WHY_BYTES_MAX: usize = 4096;

fn cut(why: &str) -> &str {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

/// Appends a message of data without a copy of it.
///
/// # Panics
/// If it is longer than a receiver takes.
pub fn encode_data(bytes: &[u8], out: &mut Vec<u8>) {
    assert!(bytes.len() <= DATA_BYTES_MAX, "{} bytes of data in one message", bytes.len());
    put_u32(out, DATA);
    put_u32(out, u32::try_from(bytes.len()).expect("checked above"));
    out.extend_from_slice(bytes);
}

fn limit(kind: u32) -> usize {
    match kind {
        DATA => DATA_BYTES_MAX,
        OFFER => MESSAGE_BYTES_MAX,
        _ => WHY_BYTES_MAX,
    }
}

fn name(kind: u32) -> &'static str {
    match kind {
        OFFER => "offer",
        DATA => "data",
        WHOLE => "whole",
        GO => "go",
        GIVE_UP => "give up",
        QUESTION => "question",
        FORGET => "forget",
        ACCEPTED => "accepted",
        REFUSED => "refused",
        REACHED => "reached",
        LOADED => "loaded",
        RUNNING => "running",
        FAILED => "failed",
        ANSWER => "answer",
        ALIVE => "alive",
        _ => "of an unknown kind",
    }
}

impl Fate {
    fn code(self) -> u32 {
        match self {
            Self::Running => 1,
            Self::Never => 2,
            Self::NotYet => 3,
        }
    }

    fn decode(code: u32) -> Result<Self, Fault> {
        [Self::Running, Self::Never, Self::NotYet]
            .into_iter()
            .find(|fate| fate.code() == code)
            .ok_or(Fault::Unknown("what became of the VM", code.into()))
    }
}

impl Offer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.transfer.0);
        put_field(out, FIELD_NAME, self.name.as_bytes());
        put_field(out, FIELD_UUID, &self.uuid.0);
        put_field(out, FIELD_CONFIG, self.config.as_bytes());
        let start = u32::from(self.arrival == Arrival::StaysPaused);
        put_field(out, FIELD_START, &start.to_le_bytes());
        put_field(out, FIELD_FROM, self.from.as_bytes());
        if let Some(order) = self.defined {
            let order = order.map(u32::to_le_bytes);
            put_field(out, FIELD_DEFINED, order.as_ref().map_or(&[], |it| it.as_slice()));
        }
        put_field(out, FIELD_LANES, &self.lanes.to_le_bytes());
        if let Some(domid) = self.domid {
            put_field(out, FIELD_DOMID, &domid.to_le_bytes());
        }
    }

    fn decode(body: &[u8]) -> Result<Self, Fault> {
        let short = || Fault::Length(body.len() as u64);
        let mut fields = Fields(body);
        let mut offer =
            Self { transfer: Uuid(fields.take().ok_or_else(short)?), ..Self::default() };
        let mut missing = vec![FIELD_NAME, FIELD_UUID, FIELD_CONFIG, FIELD_START];
        while !fields.is_empty() {
            let (kind, length) = (fields.u32(), fields.u32());
            let (Some(kind), Some(length)) = (kind, length) else { return Err(short()) };
            let (value, rest) = usize::try_from(length)
                .ok()
                .and_then(|length| fields.rest().split_at_checked(length))
                .ok_or_else(short)?;
            fields = Fields(rest);
            missing.retain(|it| *it != kind);
            offer.take_field(kind, value)?;
        }
        if missing.is_empty() { Ok(offer) } else { Err(Fault::Truncated) }
    }

    fn take_field(&mut self, kind: u32, value: &[u8]) -> Result<(), Fault> {
        let wrong = || Fault::Length(value.len() as u64);
        let text =
            || std::str::from_utf8(value).map(str::to_owned).map_err(|_| Fault::NotOne("text"));
        let number = || <[u8; 4]>::try_from(value).map(u32::from_le_bytes).map_err(|_| wrong());
        match kind {
            FIELD_NAME => self.name = text()?,
            FIELD_UUID => self.uuid = Uuid(value.try_into().map_err(|_| wrong())?),
            FIELD_CONFIG => self.config = text()?,
            FIELD_START => {
                self.arrival = match number()? {
                    0 => Arrival::Runs,
                    1 => Arrival::StaysPaused,
                    other => return Err(Fault::Unknown("the arrival", other.into())),
                };
            }
            FIELD_FROM => self.from = text()?,
            FIELD_DEFINED if value.is_empty() => self.defined = Some(None),
            FIELD_DEFINED => self.defined = Some(Some(number()?)),
            FIELD_LANES => self.lanes = number()?,
            FIELD_DOMID => {
                let domid = value.try_into().map(u16::from_le_bytes).map_err(|_| wrong())?;
                self.domid = Some(domid);
            }
            essential if essential & ESSENTIAL != 0 => {
                return Err(Fault::Unknown("a field of the offer", essential.into()));
            }
            _ => {}
        }
        Ok(())
    }
}

fn put_field(out: &mut Vec<u8>, kind: u32, value: &[u8]) {
    put_u32(out, kind);
    put_u32(out, u32::try_from(value.len()).expect("a field is some KiB long"));
    out.extend_from_slice(value);
}
