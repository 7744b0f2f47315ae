//! Characters as dots, and dots as viewers want them.

use font8x8::UnicodeFonts as _;

use crate::terminal::{COLUMNS, Cell};

pub(crate) const CELL_WIDTH: u16 = 8;
pub(crate) const CELL_HEIGHT: u16 = 16;
/// Each line of a character is drawn so many times.
const LINE_HEIGHT: u8 = 2;
/// Lines of a character.
const LINES: usize = 8;
/// Characters beside each other in a tile of 16 by 16 dots.
const CELLS: usize = 2;
const TILE_WIDTH: usize = CELLS * LINES;

/// The usual 16 colours.
const COLOURS: [[u8; 3]; 16] = [
    [0x00, 0x00, 0x00],
    [0xaa, 0x00, 0x00],
    [0x00, 0xaa, 0x00],
    [0xaa, 0x55, 0x00],
    [0x33, 0x55, 0xcc],
    [0xaa, 0x00, 0xaa],
    [0x00, 0xaa, 0xaa],
    [0xaa, 0xaa, 0xaa],
    [0x55, 0x55, 0x55],
    [0xff, 0x55, 0x55],
    [0x55, 0xff, 0x55],
    [0xff, 0xff, 0x55],
    [0x77, 0x99, 0xff],
    [0xff, 0x55, 0xff],
    [0x55, 0xff, 0xff],
    [0xff, 0xff, 0xff],
];

/// How a viewer wants its dots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// One, two or four.
    pub bytes: usize,
    pub is_big_endian: bool,
    /// Of red, green and blue: the brightest, and where it is.
    pub most: [u16; 3],
    pub shift: [u8; 3],
}

impl Default for Format {
    fn default() -> Self {
        Self { bytes: 4, is_big_endian: false, most: [255; 3], shift: [16, 8, 0] }
    }
}

/// The colours as a viewer wants them.
pub(crate) struct Palette {
    dots: [[u8; 4]; COLOURS.len()],
    /// Of those.
    bytes: usize,
}

impl Palette {
    pub(crate) fn of(format: &Format) -> Self {
        let bytes = format.bytes.min(4);
        let dots = COLOURS.map(|colour| {
            let [.., a, b, c, d] = format.value(colour).to_be_bytes();
            let mut dot = [a, b, c, d];
            if format.is_big_endian {
                dot.rotate_left(4 - bytes);
            } else {
                dot.reverse();
            }
            dot
        });
        Self { dots, bytes }
    }

    fn dot(&self, colour: u8) -> &[u8] {
        &self.dots[usize::from(colour & 0x0f)][..self.bytes]
    }
}

impl Format {
    fn value(&self, colour: [u8; 3]) -> u64 {
        let parts = colour.into_iter().zip(self.most).zip(self.shift);
        let each = parts.map(|((part, most), shift)| {
            (u64::from(part) * u64::from(most) / 255) << u32::from(shift.min(31))
        });
        each.fold(0, |value, it| value | it)
    }
}

/// Lines of eight dots, of which the lowest bit is the left one.
fn glyph(text: char) -> [u8; LINES] {
    let of_box = || font8x8::BOX_FONTS.get(text);
    let of_block = || font8x8::BLOCK_FONTS.get(text);
    let of_latin = || font8x8::LATIN_FONTS.get(text);
    let basic = font8x8::BASIC_FONTS.get(text);
    let found = basic.or_else(of_latin).or_else(of_box).or_else(of_block);
    found.or_else(|| font8x8::BASIC_FONTS.get('?')).unwrap_or_default()
}

/// A tile's colours, line by line.
fn tile(cells: &[Cell]) -> [[u8; TILE_WIDTH]; LINES] {
    let mut tile = [[0; TILE_WIDTH]; LINES];
    for (at, cell) in cells.iter().take(CELLS).enumerate() {
        for (line, dots) in glyph(cell.text).into_iter().enumerate() {
            for bit in 0..LINES {
                let is_front = dots >> bit & 1 == 1;
                tile[line][at * LINES + bit] = if is_front { cell.front } else { cell.back };
            }
        }
    }
    tile
}

/// A row dot by dot.
pub(crate) fn raw(row: &[Cell; COLUMNS], palette: &Palette, to: &mut Vec<u8>) {
    let tiles: Vec<_> = row.chunks(CELLS).map(tile).collect();
    for line in 0..LINES {
        for _ in 0..LINE_HEIGHT {
            let dots = tiles.iter().flat_map(|it| it[line]);
            dots.for_each(|colour| to.extend_from_slice(palette.dot(colour)));
        }
    }
}

/// A row as tiles of one colour with bars of others, which is a tenth of that.
pub(crate) fn hextile(row: &[Cell; COLUMNS], palette: &Palette, to: &mut Vec<u8>) {
    const HAS_BACK: u8 = 2;
    const HAS_FRONT: u8 = 4;
    const HAS_BARS: u8 = 8;
    const BARS_ARE_COLOURED: u8 = 16;
    for cells in row.chunks(CELLS) {
        let back = cells[0].back;
        let bars = bars(&tile(cells), back);
        let Some((front, _)) = bars.first() else {
            to.push(HAS_BACK);
            to.extend(palette.dot(back));
            continue;
        };
        let is_one = bars.iter().all(|(colour, _)| colour == front);
        let kind = if is_one { HAS_FRONT } else { BARS_ARE_COLOURED };
        to.push(HAS_BACK | HAS_BARS | kind);
        to.extend(palette.dot(back));
        if is_one {
            to.extend(palette.dot(*front));
        }
        to.push(u8::try_from(bars.len()).expect("eight lines have at most 64"));
        for (colour, place) in bars {
            if !is_one {
                to.extend(palette.dot(colour));
            }
            to.extend(place);
        }
    }
}

/// Dots of one colour beside each other that is not this one: the colour, then where they are and how large, as hextile
/// has it.
fn bars(tile: &[[u8; TILE_WIDTH]; LINES], back: u8) -> Vec<(u8, [u8; 2])> {
    let mut bars = Vec::new();
    for (y, line) in (0..).step_by(usize::from(LINE_HEIGHT)).zip(tile) {
        let mut x = 0_u8;
        for same in line.chunk_by(|a, b| a == b) {
            let width = u8::try_from(same.len()).expect("at most 16");
            if same[0] != back {
                let size = (width - 1) << 4 | (LINE_HEIGHT - 1);
                bars.push((same[0], [x << 4 | y, size]));
            }
            x += width;
        }
    }
    bars
}
