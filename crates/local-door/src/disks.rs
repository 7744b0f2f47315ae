//! The bytes of a disk on a client's connection, in [pieces](api::PieceHeader).

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use api::{PIECE_BYTES_MAX, PIECE_HEADER_BYTES as HEADER_BYTES, PieceHeader};
use rustix::fs::OFlags;
use service::Passing;

use crate::ChannelEnds;
use crate::relays::be_patient;

/// Said to a client that is to send a disk: it is open.
const BEGIN: u8 = b'+';
/// For a client to send or take anything.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// Opens a disk that nobody else has.
///
/// # Errors
/// The kernel's, in words.
pub fn open_disk(device: &Path, how: Passing) -> Result<File, String> {
    let exclusive = i32::try_from(OFlags::EXCL.bits()).expect("a flag of open(2)");
    let mut options = File::options();
    let opened = match how {
        Passing::Out => options.read(true).open(device),
        Passing::In => options.write(true).custom_flags(exclusive).open(device),
    };
    opened.map_err(|error| format!("cannot open {}: {error}", device.display()))
}

/// Passes all of a disk to the client, or from it. What came is on the disk's storage then.
///
/// # Errors
/// Says what went wrong.
pub fn pass_disk(disk: &File, [from, to]: ChannelEnds, how: Passing) -> Result<(), String> {
    let socket = |end| {
        let socket = UnixStream::from(end);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        socket.set_write_timeout(Some(SILENCE_MAX))?;
        Ok::<_, io::Error>(socket)
    };
    let pass = || {
        be_patient();
        match how {
            Passing::Out => send(disk, socket(to)?),
            Passing::In => {
                socket(to)?.write_all(&[BEGIN])?;
                receive(disk, socket(from)?)
            }
        }
    };
    // The client's own thread goes on to other requests.
    let passed = thread::scope(|scope| scope.spawn(pass).join())
        .unwrap_or_else(|_| Err(io::Error::other("they were not passed to their end")));
    passed.map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "the client has sent a part of the disk only".to_owned(),
        io::ErrorKind::WouldBlock => "the client is silent".to_owned(),
        _ => format!("a disk's bytes: {error}"),
    })
}

fn bytes_of(mut disk: &File) -> io::Result<u64> {
    disk.seek(SeekFrom::End(0))
}

fn send(disk: &File, mut to: impl Write) -> io::Result<()> {
    let bytes = bytes_of(disk)?;
    let mut piece = vec![0; HEADER_BYTES + PIECE_BYTES_MAX];
    let mut at = 0;
    while at < bytes {
        let left = usize::try_from(bytes - at).unwrap_or(PIECE_BYTES_MAX);
        let end = HEADER_BYTES + left.min(PIECE_BYTES_MAX);
        disk.read_exact_at(&mut piece[HEADER_BYTES..end], at)?;
        let count = end - HEADER_BYTES;
        if piece[HEADER_BYTES..end].iter().any(|&byte| byte != 0) {
            piece[..HEADER_BYTES].copy_from_slice(&PieceHeader::of(at, count).encode());
            to.write_all(&piece[..end])?;
        }
        at += count as u64;
    }
    to.write_all(&PieceHeader::of(bytes, 0).encode())
}

fn receive(disk: &File, mut from: impl Read) -> io::Result<()> {
    let bytes = bytes_of(disk)?;
    let mut piece = vec![0; PIECE_BYTES_MAX];
    loop {
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header)?;
        let PieceHeader { at, count } = PieceHeader::decode(header);
        let piece = usize::try_from(count).ok().and_then(|count| piece.get_mut(..count));
        let is_inside = at.checked_add(count.into()).is_some_and(|end| end <= bytes);
        let Some(piece) = piece.filter(|_| is_inside) else {
            return Err(io::Error::other(format!(
                "a piece of {count} bytes at {at}, of a disk of {bytes}"
            )));
        };
        if piece.is_empty() {
            return disk.sync_all();
        }
        from.read_exact(piece)?;
        disk.write_all_at(piece, at)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, bytes: u64) -> File {
        let name = format!("xylem-disk-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    #[test]
    fn a_disk_is_passed_without_its_zeros() {
        let (from, to) = (disk("from", 5 << 20), disk("to", 5 << 20));
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(&vec![7; 1 << 20], (3 << 20) - 5).unwrap();
        from.write_all_at(b"end", (5 << 20) - 3).unwrap();
        let mut pieces = Vec::new();
        send(&from, &mut pieces).unwrap();
        assert_eq!(pieces.len(), 5 * HEADER_BYTES + (4 << 20));
        receive(&to, &pieces[..]).unwrap();
        let all = |disk: &File| {
            let mut all = vec![0; 5 << 20];
            disk.read_exact_at(&mut all, 0).unwrap();
            all
        };
        assert!(all(&from) == all(&to));
        // An end is needed.
        for end in [0, 5, HEADER_BYTES + 3, pieces.len() - 1] {
            let error = receive(&to, &pieces[..end]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_piece_beyond_the_disk_is_refused() {
        let to = disk("small", 1 << 20);
        for (at, count) in
            [(1 << 20, 1), (0, PIECE_BYTES_MAX + 1), (u64::MAX, 1), ((1 << 20) + 1, 0)]
        {
            let mut piece = vec![0; HEADER_BYTES + count];
            let header = PieceHeader { at, count: u32::try_from(count).unwrap() };
            piece[..HEADER_BYTES].copy_from_slice(&header.encode());
            let error = receive(&to, &piece[..]).unwrap_err().to_string();
            assert!(error.ends_with("of a disk of 1048576"), "{error}");
        }
    }
}
