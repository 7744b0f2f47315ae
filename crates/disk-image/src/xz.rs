//! A reader of xz files.

use std::io::{self, BufRead, BufReader, Read};

use lzma_rust2::{Action, Status, XzStream};

pub(crate) const MAGIC: &[u8; 6] = b"\xfd7zXZ\0";
/// Limit of the stream's dictionary; xz's presets end at 64 MiB.
const MEMORY_KIB_MAX: u32 = 160 << 10;

pub(crate) struct Xz<R> {
    file: BufReader<R>,
    stream: XzStream,
    ended: bool,
}

impl<R: Read> Xz<R> {
    pub(crate) fn new(file: R) -> Self {
        let stream = XzStream::new_mem_limit(true, MEMORY_KIB_MAX);
        Self { file: BufReader::with_capacity(256 << 10, file), stream, ended: false }
    }
}

impl<R: Read> Read for Xz<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.ended && !into.is_empty() {
            let input = self.file.fill_buf()?;
            let at_end = input.is_empty();
            let action = if at_end { Action::Finish } else { Action::Run };
            let step = self.stream.process(input, into, action).map_err(|error| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the xz file is damaged: {error:?}"),
                )
            })?;
            self.file.consume(step.bytes_consumed);
            match step.status {
                Status::StreamEnd => self.ended = true,
                Status::Ok if at_end && step.bytes_produced == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Status::Ok => {}
            }
            if step.bytes_produced > 0 {
                return Ok(step.bytes_produced);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `head -c 100000 /dev/zero | xz -9e`
    const ZEROS: &[u8] = include_bytes!("../tests/zeros.xz");

    #[test]
    fn a_file_is_unpacked_and_a_cut_one_refused() {
        let unpacked = |file: &[u8]| {
            let mut all = Vec::new();
            Xz::new(file).read_to_end(&mut all).map(|_| all)
        };
        assert_eq!(unpacked(ZEROS).unwrap(), vec![0; 100_000]);
        for end in [20, ZEROS.len() / 2, ZEROS.len() - 1] {
            assert!(unpacked(&ZEROS[..end]).is_err(), "{end}");
        }
        let mut damaged = ZEROS.to_vec();
        damaged[30] ^= 1;
        assert!(unpacked(&damaged).is_err());
    }
}
