//! A disk's bytes between a host and its client, in pieces: a place (8 bytes, little endian), a count (4 bytes), and so many
//! bytes. A piece of none ends, and its place is the disk's size. What is in no piece is zeros.

/// Of a piece, before its bytes.
pub const PIECE_HEADER_BYTES: usize = 12;
/// Most bytes of a piece, without its header.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// What is said of a piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PieceHeader {
    pub at: u64,
    pub count: u32,
}

impl PieceHeader {
    /// One of so many bytes, which are at most [`PIECE_BYTES_MAX`].
    ///
    /// # Panics
    /// If they are more than a piece may have.
    #[must_use]
    pub fn of(at: u64, count: usize) -> Self {
        assert!(count <= PIECE_BYTES_MAX, "a piece is short");
        Self { at, count: u32::try_from(count).expect("it is short") }
    }

    #[must_use]
    pub fn encode(self) -> [u8; PIECE_HEADER_BYTES] {
        let mut bytes = [0; PIECE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    #[must_use]
    pub fn decode(bytes: [u8; PIECE_HEADER_BYTES]) -> Self {
        let (at, count) = bytes.split_at(8);
        Self {
            at: u64::from_le_bytes(at.try_into().expect("8 bytes")),
            count: u32::from_le_bytes(count.try_into().expect("4 bytes")),
        }
    }
}
