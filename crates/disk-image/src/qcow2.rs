//! Reads QEMU's qcow2 images, versions 2 and 3.
//!
//! Source: qemu `docs/interop/qcow2.txt`. Only images that stand alone are read: no backing file, no external data file, no
//! encryption. Every offset is checked against the file's length, and no table is read whole but the first level's.

use crate::{ImageError, ReadAt, Sink, cut_off};

pub(crate) const MAGIC: &[u8; 4] = b"QFI\xfb";
const HEADER_BYTES: usize = 112;
/// QEMU's limits.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
const L1_BYTES_MAX: u64 = 32 << 20;

// Incompatible features: bits of which a reader must know each.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// How compressed clusters are packed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Compression {
    Deflate,
    Zstd,
}

/// An image that stands alone.
#[derive(Debug)]
pub(crate) struct Qcow2 {
    /// Virtual size.
    pub(crate) bytes: u64,
    version: u32,
    cluster_bits: u32,
    compression: Compression,
    /// Offsets of the tables of the second level; 0 for none.
    l1: Vec<u64>,
    file_bytes: u64,
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().fold(0, |all, &byte| (all << 8) | u64::from(byte))
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn refused(what: &str) -> ImageError {
    ImageError::Refused(format!(
        "{what}; `qemu-img convert -O qcow2` makes an image that stands alone"
    ))
}

fn check_features(features: u64) -> Result<(), ImageError> {
    if features & DATA_FILE != 0 {
        return Err(refused("the image keeps its data in another file"));
    }
    if features & CORRUPT != 0 {
        return Err(ImageError::damaged("it is marked as corrupt; `qemu-img check` repairs it"));
    }
    if features & EXTENDED_L2 != 0 {
        return Err(refused("the image has subclusters (extended_l2), which are not read"));
    }
    let unknown = features & !(DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2);
    if unknown != 0 {
        return Err(refused(&format!("the image has features that are not known ({unknown:#x})")));
    }
    Ok(())
}

impl Qcow2 {
    /// Reads the header and the table of the first level.
    pub(crate) fn open(file: &dyn ReadAt, bytes_max: u64) -> Result<Self, ImageError> {
        let file_bytes = file.bytes()?;
        let mut header = [0; HEADER_BYTES];
        // Version 2 has 72 bytes, and no file is as short as the longer header.
        file.read_at(&mut header, 0).map_err(cut_off("the header"))?;
        let version = number32(&header, 4);
        if version != 2 && version != 3 {
            return Err(refused(&format!(
                "the image has version {version} of qcow2; 2 and 3 are read"
            )));
        }
        if number(&header, 8, 8) != 0 {
            return Err(refused("the image has a backing file, which is not part of it"));
        }
        if number32(&header, 32) != 0 {
            return Err(refused("the image is encrypted"));
        }
        let features = if version == 2 { 0 } else { number(&header, 72, 8) };
        check_features(features)?;
        let compression = match header[104] {
            _ if features & COMPRESSION == 0 => Compression::Deflate,
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            other => {
                return Err(refused(&format!(
                    "the image is packed by method {other}, which is not known"
                )));
            }
        };
        let cluster_bits = number32(&header, 20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(ImageError::damaged(format!("clusters of 2^{cluster_bits} bytes")));
        }
        let bytes = number(&header, 24, 8);
        if bytes > bytes_max {
            return Err(ImageError::Refused(format!(
                "the image is of a disk of {bytes} bytes; more than {bytes_max} are not taken (--max)"
            )));
        }
        let mut image =
            Self { bytes, version, cluster_bits, compression, l1: Vec::new(), file_bytes };
        image.l1 = image.read_l1(file, &header)?;
        Ok(image)
    }

    /// Bytes that a table of the second level stands for.
    fn l2_span(&self) -> u64 {
        // An entry has eight bytes, and a table is a cluster.
        1 << (2 * self.cluster_bits - 3)
    }

    fn read_l1(&self, file: &dyn ReadAt, header: &[u8]) -> Result<Vec<u64>, ImageError> {
        let needed = self.bytes.div_ceil(self.l2_span());
        if needed.saturating_mul(8) > L1_BYTES_MAX {
            return Err(ImageError::damaged("the disk is too large for its clusters"));
        }
        if u64::from(number32(header, 36)) < needed {
            return Err(ImageError::damaged("its first table is too short"));
        }
        let mut table = vec![0; usize::try_from(needed * 8).expect("at most 32 MiB")];
        file.read_at(&mut table, number(header, 40, 8)).map_err(cut_off("its first table"))?;
        Ok(table.chunks_exact(8).map(|entry| number(entry, 0, 8) & OFFSET).collect())
    }

    /// Passes all data on.
    pub(crate) fn read(&self, file: &dyn ReadAt, sink: Sink<'_>) -> Result<(), ImageError> {
        let cluster_bytes = 1_usize << self.cluster_bits;
        let mut table = vec![0; cluster_bytes];
        let mut cluster = vec![0; cluster_bytes];
        for (index, &at) in self.l1.iter().enumerate().filter(|(_, at)| **at != 0) {
            file.read_at(&mut table, at).map_err(cut_off("a table"))?;
            let start = index as u64 * self.l2_span();
            for (index, entry) in table.chunks_exact(8).enumerate() {
                let at = start + ((index as u64) << self.cluster_bits);
                if at >= self.bytes {
                    break;
                }
                if self.read_cluster(file, number(entry, 0, 8), &mut cluster)? {
                    let left = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
                    sink(at, &cluster[..cluster_bytes.min(left)])?;
                }
            }
        }
        Ok(())
    }

    /// Reads a cluster; false if it is zeros.
    fn read_cluster(
        &self,
        file: &dyn ReadAt,
        entry: u64,
        into: &mut [u8],
    ) -> Result<bool, ImageError> {
        if entry & COMPRESSED != 0 {
            return self.unpack(file, entry, into).map(|()| true);
        }
        let at = entry & OFFSET;
        if at == 0 || (self.version > 2 && entry & ZEROS != 0) {
            return Ok(false);
        }
        let left = self.file_bytes.saturating_sub(at);
        // The last cluster of a file may be cut: what is missing was never written.
        let there = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        if there == 0 {
            return Err(ImageError::damaged("a cluster lies behind the end of the file"));
        }
        into[there..].fill(0);
        file.read_at(&mut into[..there], at).map_err(cut_off("a cluster"))?;
        Ok(true)
    }

    fn unpack(&self, file: &dyn ReadAt, entry: u64, into: &mut [u8]) -> Result<(), ImageError> {
        const SECTOR: u64 = 512;
        let length_at = 62 - (self.cluster_bits - 8);
        let at = entry & ((1 << length_at) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> length_at;
        let bytes = ((sectors + 1) * SECTOR - at % SECTOR).min(self.file_bytes.saturating_sub(at));
        // At most two clusters: the field has that many bits.
        let mut packed = vec![0; usize::try_from(bytes).expect("some MiB")];
        file.read_at(&mut packed, at).map_err(cut_off("a compressed cluster"))?;
        let whole = match self.compression {
            Compression::Deflate => inflated(&packed, into),
            Compression::Zstd => unzstd(&packed, into),
        };
        if whole {
            Ok(())
        } else {
            Err(ImageError::damaged("a compressed cluster cannot be unpacked"))
        }
    }
}

/// Whether `packed` begins with a whole cluster.
fn inflated(packed: &[u8], into: &mut [u8]) -> bool {
    use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (_, _, written) = decompress(&mut DecompressorOxide::new(), packed, into, 0, flags);
    written == into.len()
}

/// The same; what follows the frame in its sector is ignored.
fn unzstd(packed: &[u8], into: &mut [u8]) -> bool {
    use std::io::Read as _;
    zstd::stream::read::Decoder::with_buffer(packed)
        .and_then(|decoder| decoder.single_frame().read_exact(into))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: usize = 512;

    /// An image of four clusters: data, zeros, compressed, nothing.
    fn small() -> Vec<u8> {
        let mut image = vec![0; CLUSTER * 4];
        let mut put = |at: usize, value: &[u8]| image[at..at + value.len()].copy_from_slice(value);
        put(0, MAGIC);
        put(4, &3_u32.to_be_bytes());
        put(20, &9_u32.to_be_bytes());
        put(24, &(4 * CLUSTER as u64 - 100).to_be_bytes());
        put(36, &1_u32.to_be_bytes());
        put(40, &512_u64.to_be_bytes());
        put(100, &104_u32.to_be_bytes());
        put(512, &1024_u64.to_be_bytes());
        put(1024, &(1536_u64 | 1 << 63).to_be_bytes());
        put(1032, &ZEROS.to_be_bytes());
        let packed = miniz_oxide::deflate::compress_to_vec(&[7; CLUSTER], 6);
        put(1040, &(COMPRESSED | 2048).to_be_bytes());
        put(1536, &[5; CLUSTER]);
        image.extend(packed);
        image
    }

    fn contents(image: &[u8]) -> Result<Vec<(u64, u8, usize)>, String> {
        let mut pieces = Vec::new();
        let open = Qcow2::open(&image, 1 << 20).map_err(|error| error.to_string())?;
        open.read(&image, &mut |at, bytes| {
            pieces.push((at, bytes[0], bytes.len()));
            Ok(())
        })
        .map_err(|error| error.to_string())?;
        Ok(pieces)
    }

    #[test]
    fn data_zeros_and_packed_clusters_are_read() {
        assert_eq!(contents(&small()), Ok(vec![(0, 5, 512), (1024, 7, 512)]));
    }

    #[test]
    fn what_is_not_all_its_own_is_refused() {
        let with = |at: usize, value: u64| {
            let mut image = small();
            image[at..at + 8].copy_from_slice(&value.to_be_bytes());
            contents(&image).unwrap_err()
        };
        assert!(with(8, 0x70).starts_with("the image has a backing file"), "{}", with(8, 0x70));
        assert!(with(72, DATA_FILE).starts_with("the image keeps its data in another file"));
        assert!(with(72, EXTENDED_L2).contains("extended_l2"));
        assert!(with(72, 1 << 40).contains("not known (0x10000000000)"));
        assert!(with(24, 1 << 50).starts_with("the image is of a disk of 1125899906842624 bytes"));
        assert_eq!(with(28, 1).split(";").next(), Some("the image is encrypted"));
        assert!(with(40, u64::MAX).contains("first table is not all there"));
        assert!(with(512, OFFSET).contains("a table is not all there"));
        assert!(with(1024, 1 << 40).contains("behind the end"));
        assert!(with(1040, COMPRESSED | 1536).contains("cannot be unpacked"));
    }

    #[test]
    fn an_image_cut_off_anywhere_is_an_error_or_shorter_but_never_a_panic() {
        let whole = small();
        for end in 0..whole.len() {
            let _error = contents(&whole[..end]);
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_images_never_panic(at in 0_usize..2100, value: [u8; 8]) {
            let mut image = small();
            let end = (at + 8).min(image.len());
            if at < end {
                image[at..end].copy_from_slice(&value[..end - at]);
            }
            let _error = contents(&image);
        }
    }
}
