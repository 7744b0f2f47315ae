//! The terminal: what Linux' console and usual programs write, as `xterm` and `vt100` understand it.

pub(crate) const ROWS: usize = 24;
pub(crate) const COLUMNS: usize = 80;
/// Numbers in a sequence; more are not kept.
const NUMBERS_MAX: usize = 16;
const TAB: usize = 8;
/// White on black.
const FRONT: u8 = 7;
const BACK: u8 = 0;
const BRIGHT: u8 = 8;
/// What cannot be decoded.
const UNKNOWN: char = '\u{fffd}';

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cell {
    pub text: char,
    pub front: u8,
    pub back: u8,
}

/// Of what is written next.
#[derive(Clone, Copy, Debug)]
struct Pen {
    front: u8,
    back: u8,
    is_bold: bool,
    is_inverse: bool,
}

impl Default for Pen {
    fn default() -> Self {
        Self { front: FRONT, back: BACK, is_bold: false, is_inverse: false }
    }
}

impl Pen {
    fn cell(self, text: char) -> Cell {
        let bright = if self.is_bold && self.front < BRIGHT { BRIGHT } else { 0 };
        let (front, back) = (self.front + bright, self.back);
        if self.is_inverse {
            Cell { text, front: back, back: front }
        } else {
            Cell { text, front, back }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Place {
    row: usize,
    /// As many as there are columns after the last one: the next character begins a line.
    column: usize,
}

/// Numbers of a control sequence.
#[derive(Clone, Debug, Default)]
struct Numbers {
    all: [u16; NUMBERS_MAX],
    /// Of which the last is being read.
    count: usize,
    /// It has `?` or the like, which makes it another one.
    is_private: bool,
    /// It has a sign that nothing here has.
    is_strange: bool,
}

impl Numbers {
    fn get(&self, at: usize) -> usize {
        usize::from(self.all.get(at).copied().unwrap_or_default())
    }

    /// A count: nothing said is one.
    fn count_at(&self, at: usize) -> usize {
        self.get(at).max(1)
    }

    fn digit(&mut self, byte: u8) {
        self.count = self.count.max(1);
        if let Some(number) = self.all.get_mut(self.count - 1) {
            *number = number.saturating_mul(10).saturating_add(u16::from(byte - b'0'));
        }
    }

    fn next(&mut self) {
        self.count = self.count.max(1).saturating_add(1);
    }

    fn each(&self) -> &[u16] {
        &self.all[..self.count.clamp(1, NUMBERS_MAX)]
    }
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// Bytes of a character that are still to come, and its value so far.
    Character {
        left: u8,
        value: u32,
    },
    Escape,
    Sequence(Numbers),
    /// A title and the like, up to a bell or an escape.
    Words,
    /// One more byte means nothing here.
    Skip,
}

/// What changes how keys are told.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Modes {
    pub application_cursor: bool,
}

#[derive(Clone, Debug)]
struct Page {
    cells: [[Cell; COLUMNS]; ROWS],
    at: Place,
}

impl Default for Page {
    fn default() -> Self {
        Self { cells: [[Pen::default().cell(' '); COLUMNS]; ROWS], at: Place::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Terminal {
    page: Page,
    /// What programs that take the whole screen have found there.
    below: Option<Page>,
    kept: (Place, Pen),
    pen: Pen,
    state: State,
    modes: Modes,
    hides_cursor: bool,
    /// First and last row of what scrolls.
    region: (usize, usize),
    changed: [bool; ROWS],
    /// Where the cursor was shown.
    shown: Option<Place>,
}

impl Default for Terminal {
    fn default() -> Self {
        Self {
            page: Page::default(),
            below: None,
            kept: (Place::default(), Pen::default()),
            pen: Pen::default(),
            state: State::Text,
            modes: Modes::default(),
            hides_cursor: false,
            region: (0, ROWS - 1),
            changed: [true; ROWS],
            shown: None,
        }
    }
}

impl Terminal {
    pub(crate) fn modes(&self) -> Modes {
        self.modes
    }

    pub(crate) fn row(&self, row: usize) -> [Cell; COLUMNS] {
        let mut cells = self.page.cells[row];
        if let Some(cursor) = self.cursor().filter(|it| it.row == row) {
            let cell = &mut cells[cursor.column];
            (cell.front, cell.back) = (cell.back, cell.front);
        }
        cells
    }

    fn cursor(&self) -> Option<Place> {
        let Place { row, column } = self.page.at;
        (!self.hides_cursor).then(|| Place { row, column: column.min(COLUMNS - 1) })
    }

    pub(crate) fn touch_all(&mut self) {
        self.changed = [true; ROWS];
    }

    /// Rows that look other than when this was last asked.
    pub(crate) fn changed(&mut self) -> Vec<usize> {
        let cursor = self.cursor();
        if cursor != self.shown {
            for place in [cursor, self.shown].into_iter().flatten() {
                self.changed[place.row] = true;
            }
            self.shown = cursor;
        }
        let rows = (0..ROWS).filter(|row| self.changed[*row]).collect();
        self.changed = [false; ROWS];
        rows
    }

    pub(crate) fn hear(&mut self, byte: u8, answer: &mut Vec<u8>) {
        match std::mem::take(&mut self.state) {
            State::Character { left, value } if byte & 0xc0 == 0x80 => {
                let value = value << 6 | u32::from(byte & 0x3f);
                match left {
                    0 | 1 => self.put(char::from_u32(value).unwrap_or(UNKNOWN)),
                    _ => self.state = State::Character { left: left - 1, value },
                }
            }
            State::Text | State::Character { .. } => self.text(byte),
            State::Escape => self.escape(byte),
            State::Sequence(numbers) => self.sequence(numbers, byte, answer),
            State::Words => {
                self.state = match byte {
                    0x07 => State::Text,
                    0x1b => State::Escape,
                    _ => State::Words,
                }
            }
            State::Skip => {}
        }
    }

    fn text(&mut self, byte: u8) {
        match byte {
            b'\r' => self.page.at.column = 0,
            0x0a..=0x0c => self.line_feed(),
            0x08 => self.page.at.column = self.column().saturating_sub(1),
            b'\t' => self.page.at.column = ((self.column() / TAB + 1) * TAB).min(COLUMNS - 1),
            0x1b => self.state = State::Escape,
            0x00..=0x1f | 0x7f => {}
            0x20..=0x7e => self.put(char::from(byte)),
            0xc2..=0xdf => self.state = State::Character { left: 1, value: u32::from(byte & 0x1f) },
            0xe0..=0xef => self.state = State::Character { left: 2, value: u32::from(byte & 0x0f) },
            0xf0..=0xf4 => self.state = State::Character { left: 3, value: u32::from(byte & 0x07) },
            _ => self.put(UNKNOWN),
        }
    }

    fn escape(&mut self, byte: u8) {
        match byte {
            b'[' => self.state = State::Sequence(Numbers::default()),
            b']' | b'P' | b'X' | b'^' | b'_' => self.state = State::Words,
            b'(' | b')' | b'*' | b'+' | b'#' | b'%' | b' ' => self.state = State::Skip,
            0x1b => self.state = State::Escape,
            b'D' => self.line_feed(),
            b'E' => {
                self.page.at.column = 0;
                self.line_feed();
            }
            b'M' => self.line_back(),
            b'7' => self.kept = (self.page.at, self.pen),
            b'8' => (self.page.at, self.pen) = self.kept,
            b'c' => *self = Self { shown: self.shown, ..Self::default() },
            _ => {}
        }
    }

    fn sequence(&mut self, mut numbers: Numbers, byte: u8, answer: &mut Vec<u8>) {
        match byte {
            b'0'..=b'9' => numbers.digit(byte),
            b';' | b':' => numbers.next(),
            b'?' => numbers.is_private = true,
            0x20..=0x3e => numbers.is_strange = true,
            0x40..=0x7e if numbers.is_strange => return,
            0x40..=0x7e if numbers.is_private => return self.mode(&numbers, byte),
            0x40..=0x7e => return self.control(&numbers, byte, answer),
            0x1b => {
                self.state = State::Escape;
                return;
            }
            // Control characters do what they do, also in the middle of a sequence.
            0x00..=0x1f => self.text(byte),
            _ => return,
        }
        self.state = State::Sequence(numbers);
    }

    fn mode(&mut self, numbers: &Numbers, byte: u8) {
        let is_on = byte == b'h';
        if !is_on && byte != b'l' {
            return;
        }
        for number in numbers.each() {
            match number {
                1 => self.modes.application_cursor = is_on,
                25 => self.hides_cursor = !is_on,
                47 | 1047 | 1049 => self.set_other_page(is_on),
                _ => {}
            }
        }
    }

    fn set_other_page(&mut self, is_on: bool) {
        if is_on && self.below.is_none() {
            let at = self.page.at;
            let fresh = Page { at, ..Page::default() };
            self.below = Some(std::mem::replace(&mut self.page, fresh));
        } else if !is_on && let Some(below) = self.below.take() {
            self.page = below;
        }
        self.touch_all();
    }

    fn control(&mut self, numbers: &Numbers, byte: u8, answer: &mut Vec<u8>) {
        let count = numbers.count_at(0);
        let Place { row, .. } = self.page.at;
        let column = self.column();
        match byte {
            b'A' => self.go(row.saturating_sub(count), column),
            b'B' | b'e' => self.go(row.saturating_add(count), column),
            b'C' | b'a' => self.go(row, column.saturating_add(count)),
            b'D' => self.go(row, column.saturating_sub(count)),
            b'E' => self.go(row.saturating_add(count), 0),
            b'F' => self.go(row.saturating_sub(count), 0),
            b'G' | b'`' => self.go(row, count - 1),
            b'd' => self.go(count - 1, column),
            b'H' | b'f' => self.go(count - 1, numbers.count_at(1) - 1),
            b'J' => self.erase_page(numbers.get(0)),
            b'K' => self.erase_line(numbers.get(0)),
            b'X' => self.erase(row, column, column.saturating_add(count)),
            b'P' => self.remove(count),
            b'@' => self.insert(count),
            b'L' if self.is_in_region() => self.scroll_down(row, count),
            b'M' if self.is_in_region() => self.scroll_up(row, count),
            b'S' => self.scroll_up(self.region.0, count),
            b'T' => self.scroll_down(self.region.0, count),
            b'm' => self.paint(numbers.each()),
            b's' => self.kept = (self.page.at, self.pen),
            b'u' => (self.page.at, self.pen) = self.kept,
            b'r' => self.set_region(numbers),
            b'n' if numbers.get(0) == 6 => {
                answer.extend(format!("\x1b[{};{}R", row + 1, column + 1).as_bytes());
            }
            b'n' if numbers.get(0) == 5 => answer.extend(b"\x1b[0n"),
            b'c' => answer.extend(b"\x1b[?6c"),
            _ => {}
        }
    }

    fn set_region(&mut self, numbers: &Numbers) {
        let bottom = if numbers.get(1) == 0 { ROWS } else { numbers.get(1).min(ROWS) };
        let top = numbers.count_at(0) - 1;
        if top + 1 < bottom {
            self.region = (top, bottom - 1);
            self.go(0, 0);
        }
    }

    /// Colours, and what is bold or inverse.
    fn paint(&mut self, numbers: &[u16]) {
        let mut rest = numbers.iter().copied();
        while let Some(number) = rest.next() {
            let low = u8::try_from(number % 10).unwrap_or_default();
            match number {
                0 => self.pen = Pen::default(),
                1 => self.pen.is_bold = true,
                22 => self.pen.is_bold = false,
                7 => self.pen.is_inverse = true,
                27 => self.pen.is_inverse = false,
                30..=37 => self.pen.front = low,
                39 => self.pen.front = FRONT,
                40..=47 => self.pen.back = low,
                49 => self.pen.back = BACK,
                90..=97 => self.pen.front = low + BRIGHT,
                100..=107 => self.pen.back = low + BRIGHT,
                // Of the 256 colours there are the first 16; others leave the pen as it is.
                38 | 48 => {
                    let colour = match rest.next() {
                        Some(5) => rest.next().and_then(|it| u8::try_from(it).ok()),
                        Some(2) => rest.nth(2).and(None),
                        _ => None,
                    };
                    if let Some(colour) = colour.filter(|it| *it < 16) {
                        *(if number == 38 { &mut self.pen.front } else { &mut self.pen.back }) =
                            colour;
                    }
                }
                _ => {}
            }
        }
    }

    fn column(&self) -> usize {
        self.page.at.column.min(COLUMNS - 1)
    }

    fn go(&mut self, row: usize, column: usize) {
        self.page.at = Place { row: row.min(ROWS - 1), column: column.min(COLUMNS - 1) };
    }

    fn is_in_region(&self) -> bool {
        (self.region.0..=self.region.1).contains(&self.page.at.row)
    }

    fn put(&mut self, text: char) {
        if self.page.at.column >= COLUMNS {
            self.page.at.column = 0;
            self.line_feed();
        }
        let Place { row, column } = self.page.at;
        self.page.cells[row][column] = self.pen.cell(text);
        self.changed[row] = true;
        self.page.at.column += 1;
    }

    fn line_feed(&mut self) {
        let row = self.page.at.row;
        if row == self.region.1 {
            self.scroll_up(self.region.0, 1);
        } else {
            self.page.at.row = (row + 1).min(ROWS - 1);
        }
    }

    fn line_back(&mut self) {
        let row = self.page.at.row;
        if row == self.region.0 {
            self.scroll_down(row, 1);
        } else {
            self.page.at.row = row.saturating_sub(1);
        }
    }

    fn blank(&self) -> Cell {
        Pen { is_inverse: false, ..self.pen }.cell(' ')
    }

    /// Lines from this one to the end of the region.
    fn scroll_up(&mut self, top: usize, count: usize) {
        let lines = &mut self.page.cells[top..=self.region.1];
        let count = count.min(lines.len());
        lines.rotate_left(count);
        self.clear_rows(self.region.1 + 1 - count, self.region.1 + 1);
        self.changed[top..=self.region.1].fill(true);
    }

    fn scroll_down(&mut self, top: usize, count: usize) {
        let lines = &mut self.page.cells[top..=self.region.1];
        let count = count.min(lines.len());
        lines.rotate_right(count);
        self.clear_rows(top, top + count);
        self.changed[top..=self.region.1].fill(true);
    }

    fn clear_rows(&mut self, from: usize, to: usize) {
        for row in from..to {
            self.erase(row, 0, COLUMNS);
        }
    }

    fn erase(&mut self, row: usize, from: usize, to: usize) {
        let blank = self.blank();
        self.page.cells[row][from..to.min(COLUMNS)].fill(blank);
        self.changed[row] = true;
    }

    fn erase_line(&mut self, what: usize) {
        let (row, column) = (self.page.at.row, self.column());
        match what {
            0 => self.erase(row, column, COLUMNS),
            1 => self.erase(row, 0, column + 1),
            _ => self.erase(row, 0, COLUMNS),
        }
    }

    fn erase_page(&mut self, what: usize) {
        let row = self.page.at.row;
        match what {
            0 => {
                self.erase_line(0);
                self.clear_rows(row + 1, ROWS);
            }
            1 => {
                self.erase_line(1);
                self.clear_rows(0, row);
            }
            _ => self.clear_rows(0, ROWS),
        }
    }

    /// Characters of this line, from the cursor on.
    fn remove(&mut self, count: usize) {
        let (row, column) = (self.page.at.row, self.column());
        let rest = &mut self.page.cells[row][column..];
        let count = count.min(rest.len());
        rest.rotate_left(count);
        self.erase(row, COLUMNS - count, COLUMNS);
    }

    fn insert(&mut self, count: usize) {
        let (row, column) = (self.page.at.row, self.column());
        let rest = &mut self.page.cells[row][column..];
        let count = count.min(rest.len());
        rest.rotate_right(count);
        self.erase(row, column, column + count);
    }
}
