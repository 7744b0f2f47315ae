//! A structure under construction; field offsets are those of its header file.

use alloc::vec;
use alloc::vec::Vec;

/// Little-endian bytes of a structure, zero where not written.
///
/// Panics on a field out of range, which is a bug.
pub(crate) struct Record(Vec<u8>);

impl Record {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    pub(crate) fn bytes(mut self, offset: usize, value: &[u8]) -> Self {
        self.0[offset..offset + value.len()].copy_from_slice(value);
        self
    }

    pub(crate) fn u8(self, offset: usize, value: u8) -> Self {
        self.bytes(offset, &[value])
    }

    pub(crate) fn u16(self, offset: usize, value: u16) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    pub(crate) fn u32(self, offset: usize, value: u32) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    pub(crate) fn u64(self, offset: usize, value: u64) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}
