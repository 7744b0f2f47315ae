//! A reader of gzip files, of one member or several.
//!
//! Source: RFC 1952. A member's CRC is not checked: images come with a checksum of the whole file.

use std::io::{self, BufRead, BufReader, Read};

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

pub(crate) const MAGIC: &[u8; 2] = b"\x1f\x8b";
const TRAILER_BYTES: usize = 8;

pub(crate) struct Gzip<R> {
    file: BufReader<R>,
    /// Of the present member; `None` between members.
    member: Option<Box<InflateState>>,
}

impl<R: Read> Gzip<R> {
    pub(crate) fn new(file: R) -> Self {
        Self { file: BufReader::with_capacity(256 << 10, file), member: None }
    }

    /// Begins the next member; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        if self.file.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut header = [0; 10];
        self.file.read_exact(&mut header)?;
        let [first, second, method, flags, ..] = header;
        if [first, second] != *MAGIC || method != 8 || flags & 0xe0 != 0 {
            return Err(damaged());
        }
        if flags & 4 != 0 {
            let mut length = [0; 2];
            self.file.read_exact(&mut length)?;
            let length = u64::from(u16::from_le_bytes(length));
            if io::copy(&mut self.file.by_ref().take(length), &mut io::sink())? != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        // A name and a comment, each ended by a zero.
        for flag in [8, 16] {
            if flags & flag != 0 {
                self.skip_text()?;
            }
        }
        if flags & 2 != 0 {
            self.file.read_exact(&mut [0; 2])?;
        }
        self.member = Some(InflateState::new_boxed(DataFormat::Raw));
        Ok(true)
    }

    fn skip_text(&mut self) -> io::Result<()> {
        loop {
            let mut byte = [0];
            self.file.read_exact(&mut byte)?;
            if byte == [0] {
                return Ok(());
            }
        }
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the gzip file is damaged")
}

impl<R: Read> Read for Gzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if self.member.is_none() && !self.begin()? {
                return Ok(0);
            }
            let Some(state) = &mut self.member else { continue };
            let input = self.file.fill_buf()?;
            let at_end = input.is_empty();
            let result = inflate(state, input, into, MZFlush::None);
            self.file.consume(result.bytes_consumed);
            match result.status {
                Ok(MZStatus::StreamEnd) => {
                    self.file.read_exact(&mut [0; TRAILER_BYTES])?;
                    self.member = None;
                }
                Ok(_) => {}
                Err(miniz_oxide::MZError::Buf) if !at_end => {}
                Err(_) if at_end => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(_) => return Err(damaged()),
            }
            if result.bytes_written > 0 {
                return Ok(result.bytes_written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(flags: u8, extra: &[u8], content: &[u8]) -> Vec<u8> {
        let mut file = vec![0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3];
        file.extend(extra);
        file.extend(miniz_oxide::deflate::compress_to_vec(content, 6));
        file.extend([0; 8]);
        file
    }

    fn unpacked(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Gzip::new(file).read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn members_follow_each_other() {
        let content = vec![3; 1 << 20];
        let mut file = member(0, b"", &content);
        file.extend(member(4 | 8 | 16 | 2, b"\x02\x00ababc\x00d\x00xx", b"end"));
        let all = unpacked(&file).unwrap();
        assert_eq!((all.len(), &all[1 << 20..]), ((1 << 20) + 3, &b"end"[..]));
        for end in 1..file.len() {
            let short = unpacked(&file[..end]);
            assert!(short.is_err() || short.unwrap().len() == 1 << 20, "{end}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(unpacked(b"\x1f\x8b\x07\0\0\0\0\0\0\0").is_err());
        assert!(unpacked(&[&member(0, b"", b"a")[..], b"rubbish after it"].concat()).is_err());
        let mut file = member(0, b"", &[9; 4000]);
        file[10] = 0xff;
        assert!(unpacked(&file).is_err());
    }
}
