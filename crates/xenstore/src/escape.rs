//! Values as text: bytes other than printable ASCII are C escapes.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// The value for people: `\t \n \r \\`, `\001` below 8 and `\xff` for everything else.
#[must_use]
pub fn escape(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for &byte in value {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(byte.into()),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            // Writing to a String cannot fail.
            0..=7 => _ = write!(text, "\\{byte:03o}"),
            _ => _ = write!(text, "\\x{byte:02x}"),
        }
    }
    text
}

/// Decodes a text with escapes. A backslash before any other character stands for that character,
/// and at the end for a NUL.
#[must_use]
pub fn unescape(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut value = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        let Some((&letter, after)) = rest.split_first() else {
            value.push(0);
            break;
        };
        value.push(match letter {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                rest = after;
                number(&mut rest, 16, 2).unwrap_or(b'x')
            }
            b'0'..=b'7' => number(&mut rest, 8, 3).unwrap_or(letter),
            other => other,
        });
        if !matches!(letter, b'x' | b'0'..=b'7') {
            rest = after;
        }
    }
    value
}

/// Parses at most `digits_max` leading digits; returns the number's lowest byte.
fn number(rest: &mut &[u8], radix: u32, digits_max: usize) -> Option<u8> {
    let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
    let count = rest.iter().take(digits_max).take_while(is_digit).count();
    let (digits, after) = rest.split_at(count);
    let digits = core::str::from_utf8(digits).ok()?;
    let number = u32::from_str_radix(digits, radix).ok()?;
    *rest = after;
    Some(number.to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_escaped_to_printable_text_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = escape(&all);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert!(
            text.starts_with(
                "\\000\\001\\002\\003\\004\\005\\006\\007\\x08\\t\\n\\x0b\\x0c\\r\\x0e"
            )
        );
        assert!(text.contains("[\\\\]") && text.contains("~\\x7f\\x80"));
        assert_eq!(unescape(&text), all);
    }

    #[test]
    fn other_escapes_are_read_as_the_tools_read_them() {
        for (text, value) in [
            ("\\x41", &b"A"[..]),
            ("\\x4", b"\x04"),
            ("\\x414", b"A4"),
            ("\\xg", b"xg"),
            ("\\101", b"A"),
            ("\\1018", b"A8"),
            ("\\8", b"8"),
            ("\\777", b"\xff"),
            ("\\\"", b"\""),
            ("a\\", b"a\0"),
            ("\u{e9}", b"\xc3\xa9"),
        ] {
            assert_eq!(unescape(text), value, "{text}");
        }
    }
}
