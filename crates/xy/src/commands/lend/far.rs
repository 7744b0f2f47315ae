//! A VDI of another host, as a file here: fetched before it is read, and sent when it was written. Only what is not zeros goes
//! by the network, and takes space here.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use api::{PIECE_BYTES_MAX, PIECE_HEADER_BYTES as HEADER_BYTES, PieceHeader};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::Errno;

use super::Use;
use crate::commands::console::escaped;
use crate::remote::Remote;
use crate::session::{Failure, one_line};

/// Where such a file is, unless TMPDIR says otherwise: not in memory.
const FOLDER: &str = "/var/tmp";

pub(super) fn lend<T>(
    remote: &Remote,
    vdi: &str,
    how: Use,
    work: impl FnOnce(&File) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(one_line(&format!("{vdi}: {error}")));
    let file = temporary().map_err(|error| failed(&error))?;
    let path = format!("/v1/vdis/{}/data", escaped(vdi));
    match how {
        Use::Read => {
            let from = remote.get(&path).map_err(|why| Failure::failed(one_line(&why)))?;
            fetch(from, &file).map_err(|error| failed(&error))?;
            work(&file)
        }
        Use::Write => {
            let done = work(&file)?;
            let sent = remote.put(&path, Pieces::of(&file));
            sent.map_err(|why| Failure::failed(one_line(&why)))?;
            Ok(done)
        }
    }
}

/// A file without a name, which ends with this process.
fn temporary() -> io::Result<File> {
    let folder = std::env::var_os("TMPDIR").filter(|it| !it.is_empty());
    let folder = folder.unwrap_or_else(|| FOLDER.into());
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(&folder, flags, Mode::RUSR | Mode::WUSR);
    file.map(File::from)
        .map_err(|error| io::Error::other(format!("no file in {}: {error}", folder.display())))
}

fn fetch(from: impl Read, file: &File) -> io::Result<()> {
    let mut from = BufReader::with_capacity(256 << 10, from);
    let mut piece = vec![0; PIECE_BYTES_MAX];
    loop {
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header)?;
        let PieceHeader { at, count } = PieceHeader::decode(header);
        let piece = usize::try_from(count).ok().and_then(|count| piece.get_mut(..count));
        let piece = piece.ok_or_else(|| io::Error::other("the host has sent nonsense"))?;
        if piece.is_empty() {
            return file.set_len(at);
        }
        from.read_exact(piece)?;
        file.write_all_at(piece, at)?;
    }
}

/// What was written to a file, as pieces.
struct Pieces<'a> {
    file: &'a File,
    /// How far it was read, and where the data ends that is there.
    at: u64,
    end: u64,
    piece: Vec<u8>,
    /// Of the piece, what was taken.
    taken: usize,
    is_last: bool,
}

impl<'a> Pieces<'a> {
    fn of(file: &'a File) -> Self {
        Self { file, at: 0, end: 0, piece: Vec::new(), taken: 0, is_last: false }
    }

    /// Makes the next piece.
    fn make(&mut self) -> io::Result<()> {
        if self.at == self.end {
            match seek(self.file, SeekFrom::Data(self.at)) {
                Ok(data) => {
                    self.at = data;
                    self.end = seek(self.file, SeekFrom::Hole(data))?;
                }
                // No more.
                Err(Errno::NXIO) => self.is_last = true,
                Err(error) => return Err(error.into()),
            }
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(PIECE_BYTES_MAX);
        let count = left.min(PIECE_BYTES_MAX);
        let place = if self.is_last { 0 } else { self.at };
        self.taken = 0;
        self.piece.clear();
        self.piece.extend(PieceHeader::of(place, count).encode());
        self.piece.resize(HEADER_BYTES + count, 0);
        self.file.read_exact_at(&mut self.piece[HEADER_BYTES..], self.at)?;
        self.at += count as u64;
        Ok(())
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            if self.is_last {
                return Ok(0);
            }
            self.make()?;
        }
        let count = into.len().min(self.piece.len() - self.taken);
        into[..count].copy_from_slice(&self.piece[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_and_fetched_without_its_holes() {
        let (from, to) = (temporary().unwrap(), temporary().unwrap());
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(&vec![7; 3 << 20], 10 << 20).unwrap();
        from.write_all_at(b"end", (64 << 20) - 3).unwrap();
        let mut pieces = Vec::new();
        Pieces::of(&from).read_to_end(&mut pieces).unwrap();
        assert!(pieces.len() < 8 << 20, "{}", pieces.len());
        // The end has the size if the host sends it.
        let end = pieces.len() - HEADER_BYTES;
        pieces[end..end + 8].copy_from_slice(&(64_u64 << 20).to_le_bytes());
        fetch(&pieces[..], &to).unwrap();
        let all = |file: &File| {
            let mut all = vec![0; 64 << 20];
            file.read_exact_at(&mut all, 0).unwrap();
            all
        };
        assert!(all(&from) == all(&to));
        assert!(fetch(&pieces[..end], &to).is_err());
        let mut nothing = Vec::new();
        Pieces::of(&temporary().unwrap()).read_to_end(&mut nothing).unwrap();
        assert_eq!(nothing, [0; HEADER_BYTES]);
    }
}
