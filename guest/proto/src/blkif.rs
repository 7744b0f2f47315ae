//! One-page block ring messages of the x86-64 layout (`protocol` = `x86_64-abi`).
//!
//! Only single-segment reads: the guest proves that its disk works, it is no disk driver.
//! Source: xen `io/blkif.h`.

/// Size of a slot: the larger of request and response.
pub const SLOT_BYTES: usize = 112;
pub const RESPONSE_BYTES: usize = 16;
/// The unit of every sector number on the ring, whatever the disk's own sector size.
pub const SECTOR_BYTES: usize = 512;

const OPERATION_READ: u8 = 0;

/// A read of up to eight sectors into one granted page, from its start.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub id: u64,
    /// The device's number; backends ignore it, the format has it.
    pub handle: u16,
    pub sector: u64,
    pub sectors: u8,
    pub grant: u32,
}

impl Read {
    #[must_use]
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        debug_assert!((1..=8).contains(&self.sectors));
        let mut bytes = [0; SLOT_BYTES];
        bytes[0] = OPERATION_READ;
        bytes[1] = 1;
        bytes[2..4].copy_from_slice(&self.handle.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sector.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.grant.to_le_bytes());
        bytes[29] = self.sectors - 1;
        bytes
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Response {
    pub id: u64,
    /// 0 is success.
    pub status: i16,
}

impl Response {
    #[must_use]
    pub fn decode(bytes: &[u8; RESPONSE_BYTES]) -> Self {
        let [i0, i1, i2, i3, i4, i5, i6, i7, _, _, s0, s1, ..] = *bytes;
        Self {
            id: u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            status: i16::from_le_bytes([s0, s1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_lies_where_the_backend_looks() {
        let read = Read { id: 7, handle: 51712, sector: 0x0102, sectors: 8, grant: 0x0a0b_0c0d };
        let bytes = read.encode();
        assert_eq!(bytes[..4], [0, 1, 0x00, 0xca]);
        assert_eq!(bytes[8..10], [7, 0]);
        assert_eq!(bytes[16..18], [2, 1]);
        assert_eq!(bytes[24..32], [0x0d, 0x0c, 0x0b, 0x0a, 0, 7, 0, 0]);
    }

    #[test]
    fn a_response_carries_id_and_status() {
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[0] = 7;
        bytes[10..12].copy_from_slice(&(-1i16).to_le_bytes());
        assert_eq!(Response::decode(&bytes), Response { id: 7, status: -1 });
    }
}
