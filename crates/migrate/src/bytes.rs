//! Little-endian fields.

/// Reads fields one after the other. Whoever makes one has checked the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a record: its type, the length of its body, the body, padding to eight bytes.
///
/// # Panics
/// If the body is longer than a record may be.
pub(crate) fn put_record(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    put_u32(out, kind);
    let length_at = out.len();
    put_u32(out, 0);
    let body_at = out.len();
    body(out);
    let length = out.len() - body_at;
    assert!(length <= crate::RECORD_BYTES_MAX, "a record of {length} bytes");
    let length_bytes = u32::try_from(length).expect("checked above").to_le_bytes();
    out[length_at..body_at].copy_from_slice(&length_bytes);
    out.resize(body_at + length.next_multiple_of(8), 0);
}
