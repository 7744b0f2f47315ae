//! A tar file of plain files, in the format of POSIX (`ustar`).

use std::io::{self, Read, Write};

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

/// Copies a file of such entries to its end; returns how many there are.
pub(super) fn copy(mut from: impl Read, to: &mut impl Write) -> io::Result<u64> {
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("the host has sent a part of it only"),
        _ => error,
    };
    let mut block = [0; BLOCK];
    let mut entries = 0;
    loop {
        from.read_exact(&mut block).map_err(cut)?;
        if block == [0; BLOCK] {
            // A second one follows.
            from.read_exact(&mut block).map_err(cut)?;
            to.write_all(&END)?;
            return Ok(entries);
        }
        to.write_all(&block)?;
        let digits = str::from_utf8(&block[124..135]).unwrap_or_default();
        let wrong = || io::Error::other("what the host has sent is no tar file");
        let bytes = u64::from_str_radix(digits, 8).map_err(|_| wrong())?;
        let padded = bytes.next_multiple_of(BLOCK as u64);
        if io::copy(&mut from.by_ref().take(padded), to)? < padded {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        entries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_copied_whole_or_not_at_all() {
        let mut file = entry("a", b"x", 1);
        file.extend(entry("b", &[7; 1000], 1));
        file.extend(END);
        let mut copied = Vec::new();
        assert_eq!(copy(&file[..], &mut copied).unwrap(), 2);
        assert_eq!(copied, file);
        for end in [0, 100, 512, 600, 1024, 2000, file.len() - 1] {
            let error = copy(&file[..end], &mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), "the host has sent a part of it only", "{end}");
        }
        assert!(copy(&[b'x'; 2048][..], &mut Vec::new()).is_err());
    }

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
