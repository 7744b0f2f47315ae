//! Integers in text of operators.

/// The sign and the magnitude of an integer in one of C's bases: decimal, `0x` hexadecimal or `0` octal.
///
/// With neither white space nor a plus sign, which C would take.
#[must_use]
pub fn integer(text: &str) -> Option<(i64, u64)> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    // from_str_radix would take a plus sign.
    if digits.starts_with('+') {
        return None;
    }
    Some((sign, u64::from_str_radix(digits, radix).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_three_bases() {
        for (text, value) in [
            ("0", Some((1, 0))),
            ("-0x1f", Some((-1, 31))),
            ("0X1F", Some((1, 31))),
            ("010", Some((1, 8))),
            ("18446744073709551615", Some((1, u64::MAX))),
            ("18446744073709551616", None),
            ("08", None),
            ("", None),
            ("-", None),
            ("+5", None),
            ("-+5", None),
            ("0x", None),
            ("0x+5", None),
            ("0x-5", None),
            ("--5", None),
            ("5 ", None),
        ] {
            assert_eq!(integer(text), value, "{text}");
        }
    }
}
