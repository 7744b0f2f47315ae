//! The generation of an HVM guest: a number by which it notices that its memory is older than the world around it.
//!
//! Source: Microsoft's "Virtual Machine Generation ID", xen `tools/libs/light/libxl_genid.c`, which hvmloader reads.

use std::fmt;
use std::str::FromStr;

/// That number, as it is in the guest's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GenerationId(pub [u8; 16]);

/// As hvmloader reads it: its halves as numbers.
impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.0.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16"));
        write!(f, "{}:{}", half(low), half(high))
    }
}

/// Not written by us.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no generation ID")]
pub struct ParseGenerationIdError;

impl FromStr for GenerationId {
    type Err = ParseGenerationIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (low, high) = text.split_once(':').ok_or(ParseGenerationIdError)?;
        let half = |text: &str| text.parse::<u64>().map_err(|_| ParseGenerationIdError);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half(low)?.to_le_bytes());
        bytes[8..].copy_from_slice(&half(high)?.to_le_bytes());
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_hvmloader_reads_it() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let id = GenerationId(bytes);
        assert_eq!(id.to_string(), "1:18446744073709551615");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "1", "1:", "1:x", "1:2:3", "1:18446744073709551616"] {
            assert_eq!(text.parse::<GenerationId>(), Err(ParseGenerationIdError), "{text}");
        }
    }
}
