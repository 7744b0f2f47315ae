//! What the builder tells a guest at its start: `start_info` (PV) and `hvm_start_info` (PVH).
//!
//! Written by the domain's builder, which the guest must trust; a wrong magic is refused all
//! the same, because it means that the builder started the image in a way it was not made for.
//! Source: xen `xen.h` (`struct start_info`), `arch-x86/hvm/start_info.h`.

pub const PV_START_INFO_BYTES: usize = 1168;
pub const PV_STORE_MFN: usize = 56;
pub const PV_CONSOLE_MFN: usize = 72;
pub const HVM_START_INFO_BYTES: usize = 56;

const PV_CMDLINE: usize = 128;
const PV_CMDLINE_BYTES: usize = 1024;
const HVM_MAGIC: u32 = 0x336e_c578;

/// The parts of `start_info` that this guest uses. Frames are machine frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PvStart<'a> {
    pub pages: u64,
    /// Machine address of the shared info page.
    pub shared_info: u64,
    pub store_mfn: u64,
    pub store_port: u32,
    pub console_mfn: u64,
    pub console_port: u32,
    /// Virtual address of the pseudo-physical to machine list.
    pub p2m: usize,
    pub cmdline: &'a [u8],
}

impl<'a> PvStart<'a> {
    /// `None` if the block does not start with `xen-`.
    #[must_use]
    pub fn decode(bytes: &'a [u8; PV_START_INFO_BYTES]) -> Option<Self> {
        if !bytes.starts_with(b"xen-") {
            return None;
        }
        Some(Self {
            pages: u64_at(bytes, 32),
            shared_info: u64_at(bytes, 40),
            store_mfn: u64_at(bytes, PV_STORE_MFN),
            store_port: u32_at(bytes, 64),
            console_mfn: u64_at(bytes, PV_CONSOLE_MFN),
            console_port: u32_at(bytes, 80),
            p2m: usize::try_from(u64_at(bytes, 104)).ok()?,
            cmdline: until_nul(&bytes[PV_CMDLINE..PV_CMDLINE + PV_CMDLINE_BYTES]),
        })
    }
}

/// The parts of `hvm_start_info` that this guest uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PvhStart {
    /// Physical address of the NUL-ended command line, 0 if there is none.
    pub cmdline: usize,
}

impl PvhStart {
    /// `None` if the magic is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8; HVM_START_INFO_BYTES]) -> Option<Self> {
        if u32_at(bytes, 0) != HVM_MAGIC {
            return None;
        }
        Some(Self { cmdline: usize::try_from(u64_at(bytes, 24)).ok()? })
    }
}

/// The bytes before the first NUL, or all.
#[must_use]
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pv_fields_lie_where_xen_puts_them() {
        let mut bytes = [0; PV_START_INFO_BYTES];
        bytes[..11].copy_from_slice(b"xen-3.0-x86");
        for (at, value) in [(32, 1), (40, 2), (56, 3), (64, 4), (72, 5), (80, 6), (104, 7)] {
            bytes[at] = value;
        }
        bytes[128..131].copy_from_slice(b"a=b");
        let start = PvStart::decode(&bytes).unwrap();
        assert_eq!(
            start,
            PvStart {
                pages: 1,
                shared_info: 2,
                store_mfn: 3,
                store_port: 4,
                console_mfn: 5,
                console_port: 6,
                p2m: 7,
                cmdline: b"a=b",
            }
        );
    }

    #[test]
    fn a_wrong_magic_is_refused() {
        assert_eq!(PvStart::decode(&[0; PV_START_INFO_BYTES]), None);
        let mut bytes = [0; HVM_START_INFO_BYTES];
        assert_eq!(PvhStart::decode(&bytes), None);
        bytes[..4].copy_from_slice(&HVM_MAGIC.to_le_bytes());
        bytes[25] = 1;
        assert_eq!(PvhStart::decode(&bytes), Some(PvhStart { cmdline: 256 }));
    }

    #[test]
    fn a_command_line_that_fills_its_space_has_no_end_mark() {
        let mut bytes = [b'x'; PV_START_INFO_BYTES];
        bytes[..4].copy_from_slice(b"xen-");
        assert_eq!(PvStart::decode(&bytes).unwrap().cmdline.len(), 1024);
        assert_eq!(until_nul(b"ab\0c"), b"ab");
    }
}
