//! Frames around the records of a journal, with length and checksum, so that damage is detected.
//!
//! ```text
//!   4 bytes  length of the records, little-endian
//!   4 bytes  CRC-32 of length and records
//!   ...      records
//! ```

use xen_linux::{AppendFile, HostError};

const HEADER_BYTES: usize = 8;

/// Appends records in a frame, or nothing.
pub(super) fn append(file: &mut AppendFile, records: &[u8]) -> Result<(), HostError> {
    if records.is_empty() {
        return Ok(());
    }
    let length = u32::try_from(records.len()).expect("a turn's records are no 4 GiB");
    let length = length.to_le_bytes();
    let checksum = checksum(length, records).to_le_bytes();
    file.append_parts(&[&length, &checksum, records])
}

fn checksum(length: [u8; 4], records: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(records);
    hasher.finalize()
}

/// The content of a journal's frames.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Unframed {
    /// The records of all frames before the first damaged one.
    pub(super) records: Vec<u8>,
    /// Offset of the first damaged one.
    pub(super) damaged_at: Option<usize>,
}

/// Extracts records from frames, up to the first damaged one.
pub(super) fn unframe(bytes: &[u8]) -> Unframed {
    let mut unframed = Unframed::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        match first(rest) {
            Some((records, after)) => {
                unframed.records.extend_from_slice(records);
                rest = after;
            }
            None => {
                unframed.damaged_at = Some(bytes.len() - rest.len());
                break;
            }
        }
    }
    unframed
}

/// The records of the first frame and the rest; `None` if it is damaged.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let (length, expected) = (*header.first_chunk()?, *header.last_chunk()?);
    let (records, after) = rest.split_at_checked(u32::from_le_bytes(length) as usize)?;
    (checksum(length, records) == u32::from_le_bytes(expected)).then_some((records, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(pieces: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for records in pieces {
            let length = u32::try_from(records.len()).unwrap().to_le_bytes();
            bytes.extend(length);
            bytes.extend(checksum(length, records).to_le_bytes());
            bytes.extend_from_slice(records);
        }
        bytes
    }

    #[test]
    fn a_changed_bit_anywhere_is_found_and_what_is_before_it_is_kept() {
        let whole = framed(&[b"first", b"second", b"third"]);
        let all = Unframed { records: b"firstsecondthird".to_vec(), damaged_at: None };
        assert_eq!(unframe(&whole), all);
        let second = HEADER_BYTES + 5;
        let third = second + HEADER_BYTES + 6;
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (kept, at): (&[u8], _) = match bit / 8 {
                byte if byte < second => (b"", 0),
                byte if byte < third => (b"first", second),
                _ => (b"firstsecond", third),
            };
            let expected = Unframed { records: kept.to_vec(), damaged_at: Some(at) };
            assert_eq!(unframe(&damaged), expected, "bit {bit}");
        }
    }

    #[test]
    fn a_frame_that_ends_too_early_is_damaged() {
        let whole = framed(&[b"first", b"second"]);
        for length in 1..whole.len() {
            let unframed = unframe(&whole[..length]);
            let is_between = length == HEADER_BYTES + 5;
            assert_eq!(unframed.damaged_at.is_none(), is_between, "{length}");
        }
        assert_eq!(unframe(b""), Unframed::default());
    }
}
