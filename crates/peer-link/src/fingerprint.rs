//! A public key in a form that people compare.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};

/// 160 bits: nobody finds another key for it, and it fits on a line.
const BYTES: usize = 20;
const GROUP_CHARS: usize = 4;
/// Of RFC 4648, in lower case: no digit that looks like a letter.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The start of the SHA-256 of a public key, with its algorithm. Written in base 32, in groups of four.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Fingerprint([u8; BYTES]);

/// A text that is none.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "'{0}' is no key: one is eight groups of four letters and digits, as 'xy peer key' prints it"
)]
pub struct NoFingerprint(String);

impl Fingerprint {
    /// Of a `SubjectPublicKeyInfo` in DER.
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        let hash = digest(&SHA256, public_key);
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&hash.as_ref()[..BYTES]);
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Five bytes are eight characters.
        for (at, five) in self.0.chunks(5).enumerate() {
            let number = five.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            for place in 0..8 {
                if place % GROUP_CHARS == 0 && (at, place) != (0, 0) {
                    f.write_str("-")?;
                }
                let digit = (number >> (35 - 5 * place)) & 31;
                let digit = usize::try_from(digit).expect("five bits");
                write!(f, "{}", char::from(ALPHABET[digit]))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    /// Upper case and other grouping are accepted: it may have been typed.
    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let wrong = || NoFingerprint(text.chars().take(80).collect());
        let mut bytes = [0; BYTES];
        let (mut bits, mut count) = (0_u32, 0);
        let mut at = 0;
        for char in text.bytes().filter(|byte| *byte != b'-') {
            let char = char.to_ascii_lowercase();
            let digit = ALPHABET.iter().position(|it| *it == char).ok_or_else(wrong)?;
            bits = bits << 5 | u32::try_from(digit).expect("five bits");
            count += 5;
            if count >= 8 {
                count -= 8;
                *bytes.get_mut(at).ok_or_else(wrong)? = (bits >> count & 0xff).to_le_bytes()[0];
                at += 1;
            }
        }
        if at == BYTES && count == 0 { Ok(Self(bytes)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_written_and_as_it_may_be_typed() {
        let key = Fingerprint::of(b"a key");
        let text = key.to_string();
        // The first 20 bytes of `printf 'a key' | sha256sum`, by `base32`.
        assert_eq!(text, "r6r2-vmx2-vg3z-4cqd-tdnf-wwv5-a6ab-ijcc");
        for typed in [text.clone(), text.to_uppercase(), text.replace('-', "")] {
            assert_eq!(typed.parse(), Ok(key), "{typed}");
        }
        assert_ne!(Fingerprint::of(b"a kez"), key);
    }

    #[test]
    fn what_is_no_fingerprint_is_refused() {
        let good = Fingerprint::of(b"x").to_string();
        let long = format!("{good}a");
        let umlaut = good.replacen('-', "ä", 1);
        for bad in ["", "-", "abcd", &good[1..], &long, &format!("{good}-{good}"), &umlaut] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
        let digit = format!("0{}", &good[1..]).parse::<Fingerprint>().unwrap_err();
        assert!(digit.to_string().contains("is no key"), "{digit}");
    }
}
