//! Text in fixed space, and numbers out of text: the guest has no heap.

use core::fmt;

/// Text of at most `N` bytes. What does not fit is cut at a character and remembered.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
    cut: bool,
}

impl<const N: usize> Text<N> {
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], used: 0, cut: false }
    }

    /// The arguments as text: `Text::of(format_args!("{a}/{b}"))`.
    #[must_use]
    pub fn of(arguments: fmt::Arguments<'_>) -> Self {
        let mut text = Self::new();
        // Writing into `Text` never fails: it cuts.
        let _ = fmt::write(&mut text, arguments);
        text
    }

    /// A copy of bytes that a peer wrote; `None` if they are not text or do not fit.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = Self::of(format_args!("{}", core::str::from_utf8(bytes).ok()?));
        (!text.cut).then_some(text)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.used]).unwrap_or_default()
    }

    /// Whether something did not fit.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.used + character.len_utf8();
            if self.cut || end > N {
                self.cut = true;
                break;
            }
            character.encode_utf8(&mut self.bytes[self.used..end]);
            self.used = end;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A decimal number without sign, blanks or anything else; `None` on overflow too.
#[must_use]
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A decimal number that fits 32 bits.
#[must_use]
pub fn decimal_u32(bytes: &[u8]) -> Option<u32> {
    decimal(bytes).and_then(|number| u32::try_from(number).ok())
}

/// Foreign bytes for a line of the console: one line, no control characters, no quote.
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            let shown = matches!(byte, b' '..=b'~') && *byte != b'"';
            fmt::Write::write_char(f, if shown { char::from(*byte) } else { '.' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_cut_at_a_character() {
        let text = Text::<4>::of(format_args!("ab\u{20ac}c"));
        assert_eq!((text.as_str(), text.is_cut()), ("ab", true));
        let text = Text::<5>::of(format_args!("ab{}", '\u{20ac}'));
        assert_eq!((text.as_str(), text.is_cut()), ("ab\u{20ac}", false));
    }

    #[test]
    fn foreign_bytes_are_text_only_if_they_are_utf8_and_fit() {
        assert_eq!(Text::<3>::from_bytes(b"abc").unwrap().as_str(), "abc");
        assert!(Text::<3>::from_bytes(b"abcd").is_none());
        assert!(Text::<3>::from_bytes(b"\xff").is_none());
    }

    #[test]
    fn a_number_is_digits_only_and_fits() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(decimal_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(decimal_u32(b"4294967296"), None);
        for bad in [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x1", b"1\0"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn foreign_bytes_cannot_forge_a_console_line() {
        assert_eq!(format!("{}", Printable(b"ok\n\"\x1b[\xff~")), "ok...[.~");
    }
}
