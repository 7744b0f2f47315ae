//! A VM with its disks as one file.
//!
//! ```text
//! "XYLEM-VM" | version: u32 | length of the header: u32 | header: JSON | pieces | end
//! piece: disk: u16 | bytes: u32 | packed bytes: u32 | offset: u64 | packed (zstd)
//! end:   0xffff | SHA-256 of all before (32 bytes)
//! ```
//! Numbers are little-endian. Pieces of a disk have growing offsets; what lies between is zeros. A file is written and read in
//! one pass, and nothing of it counts before its end was seen.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ImageError;

const MAGIC: &[u8; 8] = b"XYLEM-VM";
pub const VERSION: u32 = 1;
const HEADER_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a disk in one piece.
pub const PIECE_BYTES: usize = 1 << 20;
const DISKS_MAX: usize = 255;
const SUM_BYTES: usize = 32;
const END: u16 = u16::MAX;
const LEVEL: i32 = 3;

/// What a file says of its VM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Header {
    pub name: String,
    /// As in a configuration file.
    pub config: String,
    /// In the order of the configuration; an empty drive has no disk.
    pub disks: Vec<Disk>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Disk {
    /// Where it was, as the configuration names it.
    pub target: String,
    pub bytes: u64,
}

/// Writes a file.
pub struct Writer<W> {
    out: W,
    sum: Sha256,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of the output.
    pub fn begin(out: W, header: &Header) -> io::Result<Self> {
        let mut it = Self { out, sum: Sha256::new() };
        let text = serde_json::to_vec(header)?;
        let length = u32::try_from(text.len()).ok().filter(|&length| length <= HEADER_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("the configuration is too long"))?;
        it.put(MAGIC)?;
        it.put(&VERSION.to_le_bytes())?;
        it.put(&length.to_le_bytes())?;
        it.put(&text)?;
        Ok(it)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }

    /// Writes a piece of a disk, unless it is zeros.
    ///
    /// # Errors
    /// Those of the output.
    pub fn piece(&mut self, disk: u16, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len() <= PIECE_BYTES && disk != END, "a piece has its limits");
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let packed = zstd::bulk::compress(bytes, LEVEL)?;
        let mut head = disk.to_le_bytes().to_vec();
        for length in [bytes.len(), packed.len()] {
            head.extend(u32::try_from(length).map_err(io::Error::other)?.to_le_bytes());
        }
        head.extend(at.to_le_bytes());
        self.put(&head)?;
        self.put(&packed)
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self) -> io::Result<W> {
        self.put(&END.to_le_bytes())?;
        let sum = self.sum.finalize();
        self.out.write_all(&sum)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads what it sums up.
struct Summed<R> {
    file: R,
    sum: Sha256,
}

impl<R: Read> Summed<R> {
    fn take(&mut self, into: &mut [u8]) -> Result<(), ImageError> {
        self.file.read_exact(into).map_err(crate::cut_off("the file"))?;
        self.sum.update(&*into);
        Ok(())
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], ImageError> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }
}

/// Receives pieces: disk, offset, bytes.
pub type Pieces<'a> = &'a mut dyn FnMut(u16, u64, &[u8]) -> io::Result<()>;

/// Reads a whole file. Only if this succeeds, the pieces are what was written.
///
/// # Errors
/// It is none, or damaged, or `pieces` fails.
pub fn read(file: impl Read, pieces: Pieces<'_>) -> Result<Header, ImageError> {
    let mut file = Summed { file, sum: Sha256::new() };
    if file.number::<8>()? != *MAGIC {
        return Err(ImageError::Refused("not a file of `xy export`".to_owned()));
    }
    let version = u32::from_le_bytes(file.number()?);
    if version != VERSION {
        return Err(ImageError::Refused(format!("has version {version}; {VERSION} is known here")));
    }
    let header = read_header(&mut file)?;
    let mut next = vec![0_u64; header.disks.len()];
    let mut packed = Vec::new();
    loop {
        let disk = u16::from_le_bytes(file.number()?);
        if disk == END {
            break;
        }
        let length = u32::from_le_bytes(file.number()?) as usize;
        let packed_length = u32::from_le_bytes(file.number()?) as usize;
        let at = u64::from_le_bytes(file.number()?);
        let end = at.checked_add(length as u64);
        let known = header.disks.get(usize::from(disk)).zip(next.get_mut(usize::from(disk)));
        let (Some((of, next)), Some(end)) = (known, end) else {
            return Err(ImageError::damaged("a piece of no disk"));
        };
        let fits = at >= *next && end <= of.bytes && length <= PIECE_BYTES;
        if !fits || packed_length > zstd::zstd_safe::compress_bound(PIECE_BYTES) {
            return Err(ImageError::damaged("a piece that its disk cannot have"));
        }
        *next = end;
        packed.resize(packed_length, 0);
        file.take(&mut packed)?;
        let piece = zstd::bulk::decompress(&packed, length).ok().filter(|it| it.len() == length);
        let piece = piece.ok_or_else(|| ImageError::damaged("a piece cannot be unpacked"))?;
        pieces(disk, at, &piece)?;
    }
    let found: [u8; SUM_BYTES] = file.sum.finalize().into();
    let mut sum = [0; SUM_BYTES];
    file.file.read_exact(&mut sum).map_err(crate::cut_off("its checksum"))?;
    if sum != found {
        return Err(ImageError::damaged("its checksum is another"));
    }
    match file.file.read(&mut [0])? {
        0 => Ok(header),
        _ => Err(ImageError::damaged("something follows its end")),
    }
}

fn read_header<R: Read>(file: &mut Summed<R>) -> Result<Header, ImageError> {
    let length = u32::from_le_bytes(file.number()?);
    if length > HEADER_BYTES_MAX {
        return Err(ImageError::damaged("its header is too long"));
    }
    let mut text = vec![0; length as usize];
    file.take(&mut text)?;
    let header: Header = serde_json::from_slice(&text)
        .map_err(|error| ImageError::damaged(format!("its header cannot be read: {error}")))?;
    match header.disks.len() <= DISKS_MAX {
        true => Ok(header),
        false => Err(ImageError::damaged("more disks than a VM has")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let disk = |bytes| Disk { target: "local:a".to_owned(), bytes };
        Header {
            name: "web".to_owned(),
            config: "memory = 1\n".to_owned(),
            disks: vec![disk(2 << 20), disk(512)],
        }
    }

    fn file() -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
        writer.piece(0, 0, &[7; PIECE_BYTES]).unwrap();
        writer.piece(0, 1 << 20, &[0; PIECE_BYTES]).unwrap();
        writer.piece(1, 0, &[9; 512]).unwrap();
        writer.end().unwrap()
    }

    fn content(file: &[u8]) -> Result<Vec<(u16, u64, u8, usize)>, String> {
        let mut all = Vec::new();
        let read = read(file, &mut |disk, at, bytes| {
            all.push((disk, at, bytes[0], bytes.len()));
            Ok(())
        });
        match read {
            Ok(found) if found == header() => Ok(all),
            Ok(found) => Err(format!("{found:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_file_comes_back_without_its_zeros() {
        assert_eq!(content(&file()), Ok(vec![(0, 0, 7, PIECE_BYTES), (1, 0, 9, 512)]));
    }

    #[test]
    fn a_file_with_any_byte_missing_changed_or_added_is_refused() {
        let whole = file();
        for at in 0..whole.len() {
            assert!(content(&whole[..at]).is_err(), "cut at {at}");
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            assert!(content(&changed).is_err(), "changed at {at}");
        }
        assert!(content(&[&whole[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_piece_stays_in_its_disk() {
        for (disk, at, length) in
            [(2, 0, 512), (1, 512, 512), (1, u64::MAX, 512), (0, (2 << 20) - 511, 512)]
        {
            let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
            writer.piece(disk, at, &vec![1; length]).unwrap();
            let error = content(&writer.end().unwrap()).unwrap_err();
            assert!(error.contains("piece"), "{disk} {at}: {error}");
        }
    }
}
