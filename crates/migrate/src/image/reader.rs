//! Reads a file or stream in order.

use crate::bytes::Fields;
use crate::error::{Fault, StreamError};
use crate::input::Input;
use crate::libxc::order::Order;
use crate::{libxc, libxl};

use super::frame::{self, Frame, HEADER_BYTES, Kind, PREAMBLE_BYTES, TRAILER_BYTES, Trailer};
use super::head::Head;
use super::index::Index;
use super::lanes::{Lane, Token};
use super::pages::{Directory, Pages};

/// What a reader accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Highest page that the domain may have.
    pub pfn_max: u64,
    /// Keys of facts that the caller understands: others must not be essential.
    pub known_facts: &'static [&'static str],
}

/// What a reader found next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    /// First, but on connections from 1 on.
    Head(Box<Head>),
    /// On connections. What comes first on those from 1 on.
    Lane(Lane, Token),
    /// Never pages, the end or a checkpoint.
    Record(libxc::Record),
    Pages(Pages),
    Emulator(libxl::Record),
    /// The round with this number has come, as far as this connection carries it.
    EndOfRound(u32),
    /// All before is consistent.
    Checkpoint,
    /// The last. Of a file, the index was checked, too.
    End,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Preamble,
    /// The head or the lane comes first.
    First,
    Frames,
    Index {
        frames: u32,
        end: u64,
        start: u64,
    },
    Trailer {
        end: u64,
        start: u64,
    },
    Ended,
}

/// Reads one file or connection.
#[derive(Debug)]
pub struct StreamReader {
    limits: Limits,
    state: State,
    frames: u64,
    epoch: u32,
    pages_of_round: u64,
    lane: Lane,
    /// `None` on connections from 1 on, which have no records.
    order: Option<Order>,
}

impl StreamReader {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Preamble,
            frames: 0,
            epoch: 0,
            pages_of_round: 0,
            lane: Lane::ONLY,
            order: None,
        }
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The connection that this is, once that has come.
    #[must_use]
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The next item, once its bytes have come; always `None` after the end.
    ///
    /// # Errors
    /// The stream is damaged, foreign, or not for this version. It cannot be read further.
    pub fn next(&mut self, input: &mut Input) -> Result<Option<Item>, StreamError> {
        loop {
            match self.state {
                State::Ended => return Ok(None),
                State::Preamble => {
                    const WHAT: &str = "the beginning";
                    let Some(bytes) = input.peek(PREAMBLE_BYTES, WHAT)? else { return Ok(None) };
                    frame::check_preamble(bytes).map_err(|fault| input.error(WHAT, fault))?;
                    input.consume(PREAMBLE_BYTES);
                    self.state = State::First;
                }
                State::Index { frames: 0, end, start } => {
                    self.state = State::Trailer { end, start };
                }
                State::Trailer { end, start } => {
                    const WHAT: &str = "the trailer";
                    let Some(bytes) = input.peek(TRAILER_BYTES, WHAT)? else { return Ok(None) };
                    let length = input.offset() + TRAILER_BYTES as u64;
                    let expected = Trailer { end, index: start, length };
                    match Trailer::decode(bytes) {
                        Ok(trailer) if trailer == expected => {}
                        Ok(_) => return Err(input.error(WHAT, Fault::Mismatch("the trailer"))),
                        Err(fault) => return Err(input.error(WHAT, fault)),
                    }
                    input.consume(TRAILER_BYTES);
                    self.state = State::Ended;
                    return Ok(Some(Item::End));
                }
                State::First | State::Frames | State::Index { .. } => {
                    let Some(frame) = frame::peek(input, self.frames)? else { return Ok(None) };
                    let length = frame.length();
                    let item = self.take(&frame, input.offset()).map_err(|it| frame.error(it))?;
                    self.frames += 1;
                    input.consume(length);
                    if item.is_some() {
                        return Ok(item);
                    }
                }
            }
        }
    }

    fn take(&mut self, frame: &Frame<'_>, offset: u64) -> Result<Option<Item>, Fault> {
        let header = &frame.header;
        if header.epoch != self.epoch {
            return Err(Fault::Unknown("the round", header.epoch.into()));
        }
        if let State::Index { frames, end, start } = self.state {
            // A reader in order does not need it, but it must be whole.
            let bounds = (PREAMBLE_BYTES as u64, end);
            Index::default().add(header, frame.body, bounds, self.limits.pfn_max)?;
            self.state = State::Index { frames: frames - 1, end, start };
            return Ok(None);
        }
        if self.state == State::First {
            self.state = State::Frames;
            return self.first(frame).map(Some);
        }
        Ok(Some(match header.kind {
            Kind::Lane if self.frames == 1 && self.order.is_some() => {
                let (lane, token) = Lane::decode(frame.body)?;
                if lane.number != 0 {
                    return Err(Fault::Unknown("the connection", lane.number.into()));
                }
                self.lane = lane;
                Item::Lane(lane, token)
            }
            Kind::Head | Kind::Lane => return Err(Fault::Twice),
            Kind::Pages => Item::Pages(self.pages(frame)?),
            Kind::Record => {
                let record = record(frame.body)?;
                let order = self.order.as_mut().ok_or(Fault::UnknownRecord)?;
                order.check(&record)?;
                Item::Record(record)
            }
            Kind::Emulator if self.order.is_some() => Item::Emulator(emulator(frame.body)?),
            Kind::Emulator => return Err(Fault::UnknownRecord),
            Kind::EndOfRound => self.end_round(frame.body)?,
            Kind::Checkpoint if frame.body.is_empty() => Item::Checkpoint,
            Kind::Checkpoint => return Err(Fault::Length(frame.body.len() as u64)),
            Kind::End => return self.end(frame, offset),
            Kind::Optional => return Ok(None),
            Kind::IndexState | Kind::IndexPages => return Err(Fault::Before("END")),
        }))
    }

    fn first(&mut self, frame: &Frame<'_>) -> Result<Item, Fault> {
        match frame.header.kind {
            Kind::Head => {
                let head = Head::decode(frame.body, self.limits.known_facts)?;
                self.order = Some(Order::new(head.headers, self.limits.pfn_max));
                Ok(Item::Head(Box::new(head)))
            }
            Kind::Lane => {
                let (lane, token) = Lane::decode(frame.body)?;
                if lane.number == 0 {
                    return Err(Fault::Before("HEAD"));
                }
                self.lane = lane;
                Ok(Item::Lane(lane, token))
            }
            _ => Err(Fault::Before("HEAD")),
        }
    }

    fn pages(&mut self, frame: &Frame<'_>) -> Result<Pages, Fault> {
        let directory = Directory::decode(&frame.header, frame.body, self.limits.pfn_max)?;
        if !self.lane.carries(frame.header.first) {
            return Err(Fault::Unknown("the connection", self.lane.number.into()));
        }
        let pages = directory.unpack(&frame.header, frame.body, directory.pages)?;
        if let Some(order) = &mut self.order {
            order.check_pages(&pages.data)?;
        }
        self.pages_of_round += u64::from(frame.header.count);
        Ok(pages)
    }

    fn end_round(&mut self, body: &[u8]) -> Result<Item, Fault> {
        let mut fields = Fields(body);
        let pages = fields.u64().filter(|_| fields.is_empty());
        if pages.ok_or(Fault::Length(body.len() as u64))? != self.pages_of_round {
            return Err(Fault::Mismatch("the number of pages"));
        }
        let ended = self.epoch;
        self.epoch = ended.checked_add(1).ok_or(Fault::Unknown("the round", ended.into()))?;
        self.pages_of_round = 0;
        Ok(Item::EndOfRound(ended))
    }

    fn end(&mut self, frame: &Frame<'_>, offset: u64) -> Result<Option<Item>, Fault> {
        let mut fields = Fields(frame.body);
        let mut numbers = || {
            let numbers = (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?);
            fields.is_empty().then_some(numbers)
        };
        let wrong = Fault::Length(frame.body.len() as u64);
        let (frames, end, follows, index_frames) = numbers().ok_or(wrong)?;
        if frames != self.frames {
            return Err(Fault::Mismatch("the number of frames"));
        }
        let start = end.saturating_add(frame.length() as u64);
        match follows {
            0 => {
                self.state = State::Ended;
                Ok(Some(Item::End))
            }
            1 if end == offset => {
                self.state = State::Index { frames: index_frames, end, start };
                Ok(None)
            }
            1 => Err(Fault::Mismatch("the number of bytes")),
            other => Err(Fault::Unknown("what follows", other.into())),
        }
    }
}

/// The type and body of a record in a frame.
fn raw(body: &[u8]) -> Result<(u32, &[u8]), Fault> {
    let wrong = || Fault::Length(body.len() as u64);
    let mut fields = Fields(body);
    let (kind, length) = fields.u32().zip(fields.u32()).ok_or_else(wrong)?;
    let (record, padding) = fields.rest().split_at_checked(length as usize).ok_or_else(wrong)?;
    if padding.len() >= 8 { Err(wrong()) } else { Ok((kind, record)) }
}

pub(crate) fn record(body: &[u8]) -> Result<libxc::Record, Fault> {
    let (kind, body) = raw(body)?;
    match libxc::Record::decode(kind, body.to_vec())? {
        // They have frames of their own.
        None
        | Some(
            libxc::Record::End
            | libxc::Record::PageData(_)
            | libxc::Record::Verify
            | libxc::Record::Checkpoint,
        ) => Err(Fault::UnknownRecord),
        Some(record) => Ok(record),
    }
}

pub(crate) fn emulator(body: &[u8]) -> Result<libxl::Record, Fault> {
    let (kind, body) = raw(body)?;
    let record = libxl::Record::decode(kind, body)?;
    let is_emulators = |it: &libxl::Record| {
        matches!(it, libxl::Record::EmulatorNodes { .. } | libxl::Record::EmulatorContext { .. })
    };
    record.filter(is_emulators).ok_or(Fault::UnknownRecord)
}

const _: () = assert!(HEADER_BYTES == 48 && TRAILER_BYTES < HEADER_BYTES);
