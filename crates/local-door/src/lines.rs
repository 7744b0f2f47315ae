//! The lines of a client, and the descriptors that it sends along with them.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Descriptors of a connection to another host: what comes from there, and what goes there.
pub type ChannelEnds = [OwnedFd; 2];

/// Most descriptors that are kept for a line; further ones are closed.
const DESCRIPTORS_MAX: usize = 2;

/// Reads from a client's socket.
struct Socket<'a> {
    stream: &'a UnixStream,
    /// What has come since the last line was taken.
    descriptors: &'a RefCell<Vec<OwnedFd>>,
}

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let parts = &mut [IoSliceMut::new(into)];
            match recvmsg(self.stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                let mut kept = self.descriptors.borrow_mut();
                // The rest is closed as it is dropped.
                let room = DESCRIPTORS_MAX.saturating_sub(kept.len());
                kept.extend(descriptors.take(room));
            }
        }
        Ok(received.bytes)
    }
}

/// The lines of one client.
pub(crate) struct Lines<'a> {
    reader: BufReader<Socket<'a>>,
    descriptors: &'a RefCell<Vec<OwnedFd>>,
}

impl<'a> Lines<'a> {
    pub(crate) fn of(stream: &'a UnixStream, descriptors: &'a RefCell<Vec<OwnedFd>>) -> Self {
        Self { reader: BufReader::new(Socket { stream, descriptors }), descriptors }
    }

    /// The next line, of which at most `bytes_max` are read. Empty at the end. With the channel that came with it.
    pub(crate) fn next(
        &mut self,
        bytes_max: u64,
    ) -> std::io::Result<(Vec<u8>, Option<ChannelEnds>)> {
        let mut line = Vec::new();
        self.reader.by_ref().take(bytes_max).read_until(b'\n', &mut line)?;
        let descriptors = self.descriptors.take();
        Ok((line, descriptors.try_into().ok()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use api::client::Client;
    use api::{Answer, Reply, Request};

    use super::*;

    #[test]
    fn a_channel_comes_with_its_line_and_others_come_without() {
        let folder = std::env::temp_dir().join(format!("xylemd-lines-{}", std::process::id()));
        let _left_over = std::fs::remove_file(&folder);
        let listener = std::os::unix::net::UnixListener::bind(&folder).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let descriptors = RefCell::default();
            let mut lines = Lines::of(&stream, &descriptors);
            let mut with = Vec::new();
            for _ in 0..3 {
                let (line, channel) = lines.next(1 << 20).unwrap();
                assert_eq!(api::decode_request(&line).unwrap(), Request::Info);
                if let Some([from, to]) = &channel {
                    let mut byte = [0];
                    std::fs::File::from(from.try_clone().unwrap()).read_exact(&mut byte).unwrap();
                    std::fs::File::from(to.try_clone().unwrap()).write_all(&byte).unwrap();
                }
                with.push(channel.is_some());
                let answer = api::encode_answer(&Answer::Ok(Reply::Done));
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
            with
        });
        let mut client = Client::connect(&folder).unwrap();
        client.call(&Request::Info, |_| ()).unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"x").unwrap();
        let ends = [there.try_clone().unwrap().into(), there.into()];
        client.call_with_channel(&Request::Info, ends, |_| ()).unwrap();
        let mut come = Vec::new();
        here.read_to_end(&mut come).unwrap();
        assert_eq!(come, b"x");
        client.call(&Request::Info, |_| ()).unwrap();
        assert_eq!(server.join().unwrap(), [false, true, false]);
        std::fs::remove_file(folder).unwrap();
    }
}
