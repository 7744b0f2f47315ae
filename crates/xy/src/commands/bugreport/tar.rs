//! A tar file of plain files, in the format of POSIX (`ustar`).

const BLOCK: usize = 512;

/// Ends the file.
pub(super) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// A file: its header and its bytes, up to a whole block. A longer name than 100 bytes is cut.
pub(super) fn entry(name: &str, bytes: &[u8], modified_unix_s: u64) -> Vec<u8> {
    const NAME_BYTES: usize = 100;
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name.as_bytes()[..name.len().min(NAME_BYTES)]);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", bytes.len()).as_bytes());
    put(136, format!("{modified_unix_s:011o}\0").as_bytes());
    // The sum is made with spaces in its place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = header.to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole_blocks_with_a_sum() {
        for (bytes, blocks) in [(0, 1), (1, 2), (512, 2), (513, 3)] {
            let entry = entry("a/b", &vec![b'x'; bytes], 1);
            assert_eq!(entry.len(), blocks * BLOCK);
            assert_eq!(&entry[124..135], format!("{bytes:011o}").as_bytes());
            let sum = u32::from_str_radix(str::from_utf8(&entry[148..154]).unwrap(), 8).unwrap();
            let outside = entry[..148].iter().chain(&entry[156..BLOCK]);
            let own = outside.map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
            assert_eq!(sum, own);
        }
        assert_eq!(entry(&"é".repeat(80), b"", 0)[..100], *"é".repeat(50).as_bytes());
    }
}
