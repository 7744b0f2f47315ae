//! The server's half of RFB, the protocol of VNC (RFC 6143), as far as a screen needs it that is drawn from text.

use std::fmt;

use crate::draw::{self, CELL_HEIGHT, CELL_WIDTH, Format, Palette};
use crate::terminal::{COLUMNS, ROWS, Terminal};

pub(crate) const GREETING: &[u8] = b"RFB 003.008\n";
/// What a viewer's window is called.
const NAME: &[u8] = b"console";
/// The viewer has been let in already, by whoever has it connect.
const NO_PASSWORD: u8 = 1;
const RAW: u32 = 0;
const HEXTILE: u32 = 5;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wrong(&'static str);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is not RFB: {}", self.0)
    }
}

impl std::error::Error for Wrong {}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    Key {
        is_down: bool,
        symbol: u32,
    },
    /// The viewer wants to see what has changed, or all.
    Wants {
        all: bool,
    },
    Nothing,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Version,
    Security {
        is_told: bool,
    },
    Start,
    Runs,
}

#[derive(Debug, Default)]
pub(crate) struct Viewer {
    state: State,
    heard: Vec<u8>,
    /// Of a text that is not read.
    skips: usize,
    format: Format,
    has_hextile: bool,
    waits: bool,
}

/// A number of two bytes, of bytes that are there.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A size of the screen, which is small.
fn short(size: usize) -> u16 {
    u16::try_from(size).unwrap_or(u16::MAX)
}

impl Viewer {
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        self.heard.extend(bytes);
    }

    /// The first bytes, once there are so many.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        (self.heard.len() >= len).then(|| self.heard.drain(..len).collect())
    }

    /// The next message, if it is there as a whole; what is to be answered at once goes to `to`.
    pub(crate) fn next(&mut self, to: &mut Vec<u8>) -> Result<Option<Event>, Wrong> {
        let skipped = self.skips.min(self.heard.len());
        self.heard.drain(..skipped);
        self.skips -= skipped;
        let done = match self.state {
            State::Version => self.take(GREETING.len()).map(|it| self.version(&it, to)),
            State::Security { is_told } => self.take(1).map(|it| self.security(&it, is_told, to)),
            State::Start => self.take(1).map(|_| self.start(to)),
            State::Runs => return self.message(),
        };
        done.transpose().map(|done| done.map(|()| Event::Nothing))
    }

    fn version(&mut self, said: &[u8], to: &mut Vec<u8>) -> Result<(), Wrong> {
        let minor = said.strip_prefix(b"RFB 003.").and_then(|it| it.strip_suffix(b"\n"));
        let minor = minor.and_then(|it| std::str::from_utf8(it).ok()?.parse::<u16>().ok());
        match minor.ok_or(Wrong("it begins otherwise"))? {
            // There the server says how it is.
            ..=6 => {
                to.extend(u32::from(NO_PASSWORD).to_be_bytes());
                self.state = State::Start;
            }
            minor => {
                to.extend([1, NO_PASSWORD]);
                self.state = State::Security { is_told: minor > 7 };
            }
        }
        Ok(())
    }

    fn security(&mut self, said: &[u8], is_told: bool, to: &mut Vec<u8>) -> Result<(), Wrong> {
        if said != [NO_PASSWORD] {
            return Err(Wrong("this security is not on offer"));
        }
        if is_told {
            to.extend(0_u32.to_be_bytes());
        }
        self.state = State::Start;
        Ok(())
    }

    fn start(&mut self, to: &mut Vec<u8>) -> Result<(), Wrong> {
        let (width, height) = (short(COLUMNS) * CELL_WIDTH, short(ROWS) * CELL_HEIGHT);
        to.extend(width.to_be_bytes());
        to.extend(height.to_be_bytes());
        // 32 bits, of which 24 count; little-endian; colours as they are.
        to.extend([32, 24, 0, 1]);
        to.extend(self.format.most.iter().flat_map(|it| it.to_be_bytes()));
        to.extend(self.format.shift);
        to.extend([0; 3]);
        to.extend(u32::from(short(NAME.len())).to_be_bytes());
        to.extend(NAME);
        self.state = State::Runs;
        Ok(())
    }

    fn message(&mut self) -> Result<Option<Event>, Wrong> {
        let Some(kind) = self.heard.first() else { return Ok(None) };
        let len = match kind {
            0 => 20,
            2 if self.heard.len() < 4 => return Ok(None),
            2 => 4 + 4 * usize::from(u16_at(&self.heard, 2)),
            3 => 10,
            4 | 6 => 8,
            5 => 6,
            _ => return Err(Wrong("a message of no known kind")),
        };
        let Some(message) = self.take(len) else { return Ok(None) };
        Ok(Some(match message[0] {
            0 => {
                self.format = format(&message[4..])?;
                Event::Nothing
            }
            2 => {
                let mut kinds = message[4..].chunks_exact(4).map(|it| u32_at(it, 0));
                self.has_hextile = kinds.any(|it| it == HEXTILE);
                Event::Nothing
            }
            3 => {
                self.waits = true;
                Event::Wants { all: message[1] == 0 }
            }
            4 => Event::Key { is_down: message[1] != 0, symbol: u32_at(&message, 4) },
            // Viewers send what is cut elsewhere without being asked: that is not to be typed here.
            6 => {
                self.skips = usize::try_from(u32_at(&message, 4)).unwrap_or(usize::MAX);
                Event::Nothing
            }
            _ => Event::Nothing,
        }))
    }

    /// Shows these rows; the viewer waits no more.
    pub(crate) fn update(&mut self, terminal: &Terminal, rows: &[usize], to: &mut Vec<u8>) {
        self.waits = false;
        let palette = Palette::of(&self.format);
        to.extend([0, 0]);
        to.extend(short(rows.len()).to_be_bytes());
        for row in rows {
            let (width, top) = (short(COLUMNS) * CELL_WIDTH, short(*row) * CELL_HEIGHT);
            for number in [0, top, width, CELL_HEIGHT] {
                to.extend(number.to_be_bytes());
            }
            let cells = terminal.row(*row);
            if self.has_hextile {
                to.extend(HEXTILE.to_be_bytes());
                draw::hextile(&cells, &palette, to);
            } else {
                to.extend(RAW.to_be_bytes());
                draw::raw(&cells, &palette, to);
            }
        }
    }
}

/// A pixel format as viewers say it.
fn format(said: &[u8]) -> Result<Format, Wrong> {
    let bytes = match said[0] {
        8 => 1,
        16 => 2,
        32 => 4,
        _ => return Err(Wrong("dots of that size")),
    };
    if said[3] == 0 {
        return Err(Wrong("maps of colours are not on offer"));
    }
    let most = [u16_at(said, 4), u16_at(said, 6), u16_at(said, 8)];
    let shift = [said[10], said[11], said[12]];
    Ok(Format { bytes, is_big_endian: said[2] != 0, most, shift })
}
