//! Compression of the pages of a frame.

use crate::error::Fault;

/// How the pages of a frame are stored.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Codec {
    #[default]
    None,
    Lz4,
    Zstd,
}

/// What is paid for fewer bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Effort {
    /// For links, and for disks that take less than this packs.
    #[default]
    Usual,
    /// For disks.
    Little,
    /// For disks that wait for what [`Little`](Self::Little) packs.
    Least,
}

impl Effort {
    /// What a file begins with: a small one is in the page cache before the disk has begun.
    pub const OF_A_FILE: Self = Self::Least;

    /// zstd's. Higher levels gain little on memory and cost much.
    fn level(self) -> i32 {
        match self {
            Self::Usual => 1,
            Self::Little => -10,
            Self::Least => -40,
        }
    }

    /// The next in a file, by how long pages were packed and how long the disk then took to write them.
    #[must_use]
    pub fn after(self, packed_ns: u64, written_ns: u64) -> Self {
        if written_ns > packed_ns {
            match self {
                Self::Least => Self::Little,
                Self::Little | Self::Usual => Self::Usual,
            }
        } else if written_ns < packed_ns / 4 {
            match self {
                Self::Usual => Self::Little,
                Self::Little | Self::Least => Self::Least,
            }
        } else {
            self
        }
    }
}

impl Codec {
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(crate) fn decode(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.code() == code)
    }

    /// The word in messages and options.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Compresses frames one after the other in the same memory.
#[derive(Default)]
pub(crate) struct Compressor {
    effort: Effort,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(effort: Effort) -> Self {
        Self { effort, ..Self::default() }
    }

    pub(crate) fn set_effort(&mut self, effort: Effort) {
        if self.effort != effort {
            self.effort = effort;
            self.zstd = None;
        }
    }

    /// Appends the bytes to `out`: compressed if that makes them fewer. Returns what was done.
    pub(crate) fn append(&mut self, codec: Codec, bytes: &[u8], out: &mut Vec<u8>) -> Codec {
        match self.pack(codec, bytes) {
            Some(length) if length < bytes.len() => {
                out.extend_from_slice(&self.packed[..length]);
                codec
            }
            _ => {
                out.extend_from_slice(bytes);
                Codec::None
            }
        }
    }

    /// Compresses into `packed`; the length of the result.
    fn pack(&mut self, codec: Codec, bytes: &[u8]) -> Option<usize> {
        let bound = match codec {
            Codec::None => return None,
            _ if bytes.is_empty() => return None,
            Codec::Lz4 => lz4_flex::block::get_maximum_output_size(bytes.len()),
            Codec::Zstd => zstd::zstd_safe::compress_bound(bytes.len()),
        };
        if self.packed.len() < bound {
            self.packed.resize(bound, 0);
        }
        match codec {
            Codec::None => None,
            Codec::Lz4 => lz4_flex::block::compress_into(bytes, &mut self.packed).ok(),
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(self.effort.level()).ok();
                }
                self.zstd.as_mut()?.compress_to_buffer(bytes, self.packed.as_mut_slice()).ok()
            }
        }
    }
}

/// The bytes as they were, which were this many.
pub(crate) fn unpack(codec: Codec, bytes: &[u8], length: usize) -> Result<Vec<u8>, Fault> {
    if codec == Codec::None {
        return if bytes.len() == length { Ok(bytes.to_vec()) } else { Err(Fault::Decompress) };
    }
    let mut unpacked = vec![0; length];
    let written = match codec {
        Codec::None => None,
        Codec::Lz4 => lz4_flex::block::decompress_into(bytes, &mut unpacked).ok(),
        Codec::Zstd => zstd::bulk::decompress_to_buffer(bytes, unpacked.as_mut_slice()).ok(),
    };
    if written == Some(length) { Ok(unpacked) } else { Err(Fault::Decompress) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_gets_fewer_bytes_and_a_fast_one_those_that_cost_least() {
        let settle = |mut effort: Effort, packed: fn(Effort) -> u64, written: fn(Effort) -> u64| {
            for _ in 0..8 {
                effort = effort.after(packed(effort), written(effort));
            }
            effort
        };
        // Milliseconds for 64 MiB that are written, on one core.
        let packed = |effort| match effort {
            Effort::Usual => 900,
            Effort::Little => 200,
            Effort::Least => 80,
        };
        for begin in [Effort::Usual, Effort::Little, Effort::Least] {
            assert_eq!(settle(begin, packed, |_| 1000), Effort::Usual, "65 MB/s");
            assert_eq!(settle(begin, packed, |_| 30), Effort::Least, "2 GB/s");
        }
        assert_eq!(settle(Effort::Least, packed, |_| 130), Effort::Little, "500 MB/s");
    }
}
