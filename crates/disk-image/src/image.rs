//! An image of any format that is taken, found out from its first bytes.

use std::fmt;
use std::io::{self, Read};

use crate::qcow2::{self, Qcow2};
use crate::{ImageError, ReadAt, Sink, gzip, xz};

/// The format of an image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    Raw,
    Qcow2,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

/// What is around an image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Packing {
    Plain,
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    fn of(start: &[u8]) -> Self {
        if start.starts_with(gzip::MAGIC) {
            Self::Gzip
        } else if start.starts_with(xz::MAGIC) {
            Self::Xz
        } else if start.starts_with(b"\x28\xb5\x2f\xfd") {
            Self::Zstd
        } else {
            Self::Plain
        }
    }
}

/// Bytes that are passed on at once.
const CHUNK_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;

/// Formats of other programs, by their first bytes: a raw disk never begins so.
const OTHERS: [(&[u8], &str); 4] =
    [(b"QED\0", "QED"), (b"KDMV", "VMDK"), (b"vhdxfile", "VHDX"), (b"conectix", "VHD")];

/// An image whose first bytes have been read.
pub struct Image<'a> {
    file: &'a dyn ReadAt,
    /// The most bytes that its disk may have.
    bytes_max: u64,
    packing: Packing,
    qcow2: Option<Qcow2>,
}

impl fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("format", &self.format()).finish_non_exhaustive()
    }
}

/// Reads a file from its start.
struct FromStart<'a> {
    file: &'a dyn ReadAt,
    at: u64,
    bytes: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        let count = left.min(into.len());
        self.file.read_at(&mut into[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<'a> Image<'a> {
    /// Finds out what the file is.
    ///
    /// # Errors
    /// It is none that is taken.
    pub fn open(file: &'a dyn ReadAt, bytes_max: u64) -> Result<Self, ImageError> {
        let mut start = [0; 8];
        let bytes = file.bytes()?;
        if bytes < SECTOR_BYTES && Packing::of(&first(file, bytes)?) == Packing::Plain {
            return Err(ImageError::Refused(format!(
                "{bytes} bytes long; an image of a disk has at least one sector of {SECTOR_BYTES} bytes"
            )));
        }
        start.copy_from_slice(&first(file, bytes)?);
        refuse_others(&start)?;
        let packing = Packing::of(&start);
        let qcow2 = match start.starts_with(qcow2::MAGIC) {
            true => Some(Qcow2::open(file, bytes_max)?),
            false => None,
        };
        Ok(Self { file, bytes_max, packing, qcow2 })
    }

    #[must_use]
    pub fn format(&self) -> Format {
        if self.qcow2.is_some() { Format::Qcow2 } else { Format::Raw }
    }

    #[must_use]
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// The size of the disk, in whole sectors. A packed image is unpacked to find out.
    ///
    /// # Errors
    /// The image is damaged, or too large.
    pub fn disk_bytes(&self) -> Result<u64, ImageError> {
        let bytes = match (&self.qcow2, self.packing) {
            (Some(image), _) => image.bytes,
            (None, Packing::Plain) => self.file.bytes()?,
            (None, _) => self.read_stream(&mut |_, _| Ok(()))?,
        };
        if bytes > self.bytes_max {
            return Err(too_large(bytes, self.bytes_max));
        }
        if bytes == 0 {
            return Err(ImageError::Refused("the image is of a disk of no bytes".to_owned()));
        }
        Ok(bytes.next_multiple_of(SECTOR_BYTES))
    }

    /// Passes all data on, without zeros.
    ///
    /// # Errors
    /// The image is damaged, or `sink` fails.
    pub fn read(&self, sink: Sink<'_>) -> Result<(), ImageError> {
        let mut without_zeros = |at: u64, bytes: &[u8]| match bytes.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => sink(at, bytes),
        };
        match &self.qcow2 {
            Some(image) => image.read(self.file, &mut without_zeros),
            None => self.read_stream(&mut without_zeros).map(drop),
        }
    }

    /// Passes all bytes on, unpacked. Returns their number.
    fn read_stream(&self, sink: Sink<'_>) -> Result<u64, ImageError> {
        let file = FromStart { file: self.file, at: 0, bytes: self.file.bytes()? };
        let mut stream: Box<dyn Read + '_> = match self.packing {
            Packing::Plain => Box::new(file),
            Packing::Gzip => Box::new(gzip::Gzip::new(file)),
            Packing::Xz => Box::new(xz::Xz::new(file)),
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(file)?),
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            let count = fill(&mut *stream, &mut chunk).map_err(|error| match self.packing {
                Packing::Plain => error.into(),
                _ => ImageError::damaged(format!("it cannot be unpacked: {error}")),
            })?;
            if count == 0 {
                return Ok(at);
            }
            if at == 0 && self.packing != Packing::Plain {
                refuse_packed(&chunk[..count])?;
            }
            if at + count as u64 > self.bytes_max {
                return Err(too_large(at + count as u64, self.bytes_max));
            }
            sink(at, &chunk[..count])?;
            at += count as u64;
        }
    }
}

fn first(file: &dyn ReadAt, bytes: u64) -> Result<[u8; 8], ImageError> {
    let mut start = [0; 8];
    let count = usize::try_from(bytes).map_or(start.len(), |bytes| bytes.min(start.len()));
    file.read_at(&mut start[..count], 0)?;
    Ok(start)
}

fn too_large(bytes: u64, bytes_max: u64) -> ImageError {
    ImageError::Refused(format!(
        "the image is of a disk of {bytes} bytes or more; more than {bytes_max} are not taken (--max)"
    ))
}

fn refuse_others(start: &[u8]) -> Result<(), ImageError> {
    match OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        None => Ok(()),
        Some((_, name)) => Err(ImageError::Refused(format!(
            "an image in format {name}; raw and qcow2 are taken, and `qemu-img convert -O qcow2` makes one"
        ))),
    }
}

/// A disk may be packed, nothing else: raw bytes are all that can be read from their start.
fn refuse_packed(start: &[u8]) -> Result<(), ImageError> {
    refuse_others(start)?;
    if start.starts_with(qcow2::MAGIC) {
        return Err(ImageError::Refused(
            "a packed image in format qcow2; unpack it first".to_owned(),
        ));
    }
    if start.len() > 262 && start[257..262] == *b"ustar" {
        return Err(ImageError::Refused(
            "an archive (tar); unpack it, and take the image in it".to_owned(),
        ));
    }
    Ok(())
}

/// Reads until `into` is full or the stream ends.
fn fill(stream: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < into.len() {
        match stream.read(&mut into[count..])? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Vec<u8> {
        let mut disk = vec![0; 3 << 20];
        disk[..4].copy_from_slice(b"boot");
        disk[(2 << 20) + 5] = 1;
        disk
    }

    fn read(file: &[u8]) -> Result<(u64, Vec<u64>), String> {
        let work = || -> Result<(u64, Vec<u64>), ImageError> {
            let image = Image::open(&file, 4 << 20)?;
            let mut pieces = Vec::new();
            let bytes = image.disk_bytes()?;
            image.read(&mut |at, _| {
                pieces.push(at);
                Ok(())
            })?;
            Ok((bytes, pieces))
        };
        work().map_err(|error| error.to_string())
    }

    #[test]
    fn a_raw_disk_is_taken_plain_and_packed_without_its_zeros() {
        let expected = Ok((3 << 20, vec![0, 2 << 20]));
        assert_eq!(read(&disk()), expected);
        let mut packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec();
        packed.extend(miniz_oxide::deflate::compress_to_vec(&disk(), 6));
        packed.extend([0; 8]);
        assert_eq!(read(&packed), expected);
        assert_eq!(read(&zstd::encode_all(&disk()[..], 1).unwrap()), expected);
        assert!(read(&packed[..2000]).unwrap_err().contains("cannot be unpacked"));
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let sector = |start: &[u8]| {
            let mut file = vec![0; 512];
            file[..start.len()].copy_from_slice(start);
            read(&file).unwrap_err()
        };
        assert!(sector(b"KDMV").starts_with("an image in format VMDK"));
        assert!(sector(b"conectix").starts_with("an image in format VHD;"));
        assert!(read(b"short").unwrap_err().starts_with("5 bytes long"));
        let qcow2 = zstd::encode_all(&[&b"QFI\xfb"[..], &[0; 600]].concat()[..], 1).unwrap();
        assert!(read(&qcow2).unwrap_err().starts_with("a packed image in format qcow2"));
    }

    #[test]
    fn a_small_file_of_a_large_disk_is_refused() {
        let bomb = zstd::encode_all(&vec![0; 5 << 20][..], 1).unwrap();
        assert!(bomb.len() < 4096);
        assert!(read(&bomb).unwrap_err().contains("more than 4194304 are not taken"));
    }
}
