//! What keys of a keyboard, by their symbols in X11, are on a terminal.

use crate::terminal::Modes;

const CONTROL: [u32; 2] = [0xffe3, 0xffe4];
const ALT: [u32; 4] = [0xffe7, 0xffe8, 0xffe9, 0xffea];
/// From here on a symbol is a character of Unicode.
const UNICODE: u32 = 0x0100_0000;

#[derive(Debug, Default)]
pub(crate) struct Keys {
    has_control: bool,
    has_alt: bool,
}

impl Keys {
    pub(crate) fn key(&mut self, is_down: bool, symbol: u32, modes: Modes, to: &mut Vec<u8>) {
        if CONTROL.contains(&symbol) {
            self.has_control = is_down;
        } else if ALT.contains(&symbol) {
            self.has_alt = is_down;
        } else if is_down {
            let text = self.text(symbol, modes);
            if self.has_alt && !text.is_empty() {
                to.push(0x1b);
            }
            to.extend(text.as_bytes());
        }
    }

    fn text(&self, symbol: u32, modes: Modes) -> String {
        if let Some(text) = named(symbol, modes) {
            return text;
        }
        let text = match symbol {
            0x20..=0x7e | 0xa0..=0xff => char::from_u32(symbol),
            // Digits and signs beside them.
            0xffaa..=0xffb9 => char::from_u32(symbol - 0xff80),
            _ => symbol.checked_sub(UNICODE).and_then(char::from_u32),
        };
        match text {
            Some(it @ ('@'..='_' | 'a'..='z')) if self.has_control => {
                let code = u32::from(it) & 0x1f;
                char::from_u32(code).map(String::from).unwrap_or_default()
            }
            Some(' ') if self.has_control => "\0".to_owned(),
            Some(it) => it.to_string(),
            None => String::new(),
        }
    }
}

fn named(symbol: u32, modes: Modes) -> Option<String> {
    let start = if modes.application_cursor { "\x1bO" } else { "\x1b[" };
    let of_cursor = |letter: &str| Some(format!("{start}{letter}"));
    let numbered = |number: u32| Some(format!("\x1b[{number}~"));
    let same = |text: &str| Some(text.to_owned());
    match symbol {
        0xff08 => same("\x7f"),
        0xff09 | 0xff89 => same("\t"),
        0xfe20 => same("\x1b[Z"),
        0xff0d | 0xff8d => same("\r"),
        0xff1b => same("\x1b"),
        0xff51 | 0xff96 => of_cursor("D"),
        0xff52 | 0xff97 => of_cursor("A"),
        0xff53 | 0xff98 => of_cursor("C"),
        0xff54 | 0xff99 => of_cursor("B"),
        0xff50 | 0xff95 => of_cursor("H"),
        0xff57 | 0xff9c => of_cursor("F"),
        0xff63 | 0xff9e => numbered(2),
        0xffff | 0xff9f => numbered(3),
        0xff55 | 0xff9a => numbered(5),
        0xff56 | 0xff9b => numbered(6),
        0xffbe => same("\x1bOP"),
        0xffbf => same("\x1bOQ"),
        0xffc0 => same("\x1bOR"),
        0xffc1 => same("\x1bOS"),
        // As terminals have it, with a gap after each five or so.
        0xffc2 => numbered(15),
        0xffc3..=0xffc7 => numbered(symbol - 0xffc3 + 17),
        0xffc8..=0xffc9 => numbered(symbol - 0xffc8 + 23),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send() {
        let mut keys = Keys::default();
        let mut typed = |down: &[u32], is_application: bool| {
            let mut to = Vec::new();
            let modes = Modes { application_cursor: is_application };
            down.iter().for_each(|it| keys.key(true, *it, modes, &mut to));
            down.iter().for_each(|it| keys.key(false, *it, modes, &mut to));
            String::from_utf8(to).expect("it is text")
        };
        for (down, text) in [
            (&[0x61][..], "a"),
            (&[0xff0d], "\r"),
            (&[0xff08], "\x7f"),
            (&[0xffe3, 0x63], "\x03"),
            (&[0xffe3, 0x40], "\0"),
            (&[0xffe9, 0x78], "\x1bx"),
            (&[0xe4], "ä"),
            (&[0x0100_20ac], "€"),
            (&[0xffb7], "7"),
            (&[0xffab], "+"),
            (&[0xff52], "\x1b[A"),
            (&[0xffc3], "\x1b[17~"),
            (&[0xffc9], "\x1b[24~"),
            (&[0xffe1], ""),
            (&[0xff67], ""),
        ] {
            assert_eq!(typed(down, false), text, "{down:x?}");
        }
        assert_eq!(typed(&[0xff52], true), "\x1bOA");
    }
}
