//! Numbers at offsets of byte arrays, and a digest over bytes.
//!
//! The simulator does not use the `xen` crate's encoders for the interface's structures, so that a
//! wrong offset there is not repeated here.

/// Converts a size or offset to `usize`. A value that does not fit is beyond every buffer anyway.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

pub(crate) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

pub(crate) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    put(bytes, offset, &value.to_le_bytes());
}

pub(crate) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    put(bytes, offset, &value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], offset: usize, value: u64) {
    put(bytes, offset, &value.to_le_bytes());
}

/// A running digest of bytes (FNV-1a over 64-bit words and the rest).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let chunks = bytes.chunks_exact(8);
        for &byte in chunks.remainder() {
            self.word(byte.into());
        }
        for chunk in chunks {
            self.word(u64_at(chunk, 0));
        }
        self.word(bytes.len() as u64);
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
