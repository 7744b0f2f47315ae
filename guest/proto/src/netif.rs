//! Network ring messages without extra information, scatter-gather or checksum offload.
//!
//! Source: xen `io/netif.h`.

pub const TX_SLOT_BYTES: usize = 12;
pub const TX_RESPONSE_BYTES: usize = 4;
pub const RX_SLOT_BYTES: usize = 8;
pub const RX_RESPONSE_BYTES: usize = 8;

const RX_FLAG_MORE_DATA: u16 = 4;
const RX_FLAG_EXTRA_INFO: u16 = 8;

/// One frame to send, whole in one granted page.
#[must_use]
pub fn encode_tx(id: u16, grant: u32, bytes: u16) -> [u8; TX_SLOT_BYTES] {
    let mut slot = [0; TX_SLOT_BYTES];
    slot[0..4].copy_from_slice(&grant.to_le_bytes());
    slot[8..10].copy_from_slice(&id.to_le_bytes());
    slot[10..12].copy_from_slice(&bytes.to_le_bytes());
    slot
}

/// Which sent frame's page is ours again; whether it was sent does not matter here.
#[must_use]
pub fn decode_tx_id(slot: &[u8; TX_RESPONSE_BYTES]) -> u16 {
    u16::from_le_bytes([slot[0], slot[1]])
}

/// One granted page for the backend to fill.
#[must_use]
pub fn encode_rx(id: u16, grant: u32) -> [u8; RX_SLOT_BYTES] {
    let mut slot = [0; RX_SLOT_BYTES];
    slot[0..2].copy_from_slice(&id.to_le_bytes());
    slot[4..8].copy_from_slice(&grant.to_le_bytes());
    slot
}

/// What the backend did with a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// A whole frame at this place of page `id`; `offset + bytes <= 4096`.
    Frame { id: u16, offset: usize, bytes: usize },
    /// Nothing usable: an error, a part of a larger frame, or nonsense.
    Nothing { id: u16 },
}

impl Received {
    #[must_use]
    pub fn decode(slot: &[u8; RX_RESPONSE_BYTES]) -> Self {
        let [i0, i1, o0, o1, f0, f1, s0, s1] = *slot;
        let id = u16::from_le_bytes([i0, i1]);
        let offset = usize::from(u16::from_le_bytes([o0, o1]));
        let flags = u16::from_le_bytes([f0, f1]);
        let partial = flags & (RX_FLAG_MORE_DATA | RX_FLAG_EXTRA_INFO) != 0;
        match usize::try_from(i16::from_le_bytes([s0, s1])) {
            Ok(bytes) if bytes > 0 && offset + bytes <= 4096 && !partial => {
                Self::Frame { id, offset, bytes }
            }
            _ => Self::Nothing { id },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(offset: u16, flags: u16, status: i16) -> Received {
        let mut slot = [0; RX_RESPONSE_BYTES];
        slot[0] = 3;
        slot[2..4].copy_from_slice(&offset.to_le_bytes());
        slot[4..6].copy_from_slice(&flags.to_le_bytes());
        slot[6..8].copy_from_slice(&status.to_le_bytes());
        Received::decode(&slot)
    }

    #[test]
    fn requests_lie_where_the_backend_looks() {
        assert_eq!(encode_tx(2, 0x0104, 60), [4, 1, 0, 0, 0, 0, 0, 0, 2, 0, 60, 0]);
        assert_eq!(encode_rx(2, 0x0104), [2, 0, 0, 0, 4, 1, 0, 0]);
    }

    #[test]
    fn only_a_whole_frame_inside_its_page_is_taken() {
        assert_eq!(response(0, 0, 60), Received::Frame { id: 3, offset: 0, bytes: 60 });
        assert_eq!(response(4000, 0, 96), Received::Frame { id: 3, offset: 4000, bytes: 96 });
        for (offset, flags, status) in
            [(4000, 0, 97), (u16::MAX, 0, i16::MAX), (0, 4, 60), (0, 8, 60), (0, 0, 0), (0, 0, -1)]
        {
            assert_eq!(response(offset, flags, status), Received::Nothing { id: 3 });
        }
    }
}
