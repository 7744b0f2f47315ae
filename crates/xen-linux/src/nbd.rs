//! Network block devices: connects `/dev/nbdN` to a socket, by generic netlink.
//!
//! The kernel keeps the socket, so a device outlives the process that connected it. Source: Linux
//! `uapi/linux/nbd-netlink.h`, `uapi/linux/genetlink.h`.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::HostError;
use crate::error::Refused;
use crate::netlink::{
    Attributes, Message, NLA_F_NESTED, NLM_F_ACK, end, half, messages, put_attribute,
};

/// The control family, which resolves the other families' numbers.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NBD_CMD_CONNECT: u8 = 1;
const NBD_CMD_DISCONNECT: u8 = 2;
const NBD_ATTR_INDEX: u16 = 1;
const NBD_ATTR_SIZE_BYTES: u16 = 2;
const NBD_ATTR_BLOCK_SIZE_BYTES: u16 = 3;
const NBD_ATTR_TIMEOUT: u16 = 4;
const NBD_ATTR_SERVER_FLAGS: u16 = 5;
const NBD_ATTR_SOCKETS: u16 = 7;
const NBD_SOCK_ITEM: u16 = 1;
const NBD_SOCK_FD: u16 = 1;

/// `struct genlmsghdr`
const GENERIC_BYTES: usize = 4;
/// Answers are a few attributes, and errors repeat the request.
const ANSWER_BYTES_MAX: usize = 8 * 1024;

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// A stream whose other end has entered the transmission phase.
    pub socket: BorrowedFd<'a>,
    pub bytes: u64,
    /// 512 to the size of a page, a power of two.
    pub block_bytes: u32,
    /// The server's transmission flags.
    pub flags: u16,
    /// Timeout of a request.
    pub timeout_s: u64,
}

/// A connection to the kernel's driver.
#[derive(Debug)]
pub struct NetworkBlockDevices {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl NetworkBlockDevices {
    /// # Errors
    /// ENOENT if the kernel has no such driver.
    pub fn open() -> Result<Self, HostError> {
        let refused = || "cannot reach the kernel's network block devices (modprobe nbd)";
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))
            .and_then(|socket| bind(&socket, &SocketAddrNetlink::new(0, 0)).map(|()| socket))
            .refused(refused)?;
        let mut devices = Self { socket, family: GENL_ID_CTRL, sequence: 0 };
        let name = |message: Message| message.attribute(CTRL_ATTR_FAMILY_NAME, b"nbd\0");
        let answer = devices.exchange(CTRL_CMD_GETFAMILY, 1, name).refused(refused)?;
        devices.family = family(&answer).ok_or(Errno::PROTO).refused(refused)?;
        Ok(devices)
    }

    /// Connects `/dev/nbdINDEX` to a socket.
    ///
    /// # Errors
    /// EBUSY if it is connected already.
    pub fn connect(&mut self, index: u32, served: &Served<'_>) -> Result<(), HostError> {
        self.exchange(NBD_CMD_CONNECT, 1, |message| connect(message, index, served))
            .refused(|| format!("cannot connect /dev/nbd{index}"))
            .map(drop)
    }

    /// Disconnects the device: processes that still have it open get I/O errors. A device that is
    /// not connected is no error.
    ///
    /// # Errors
    /// Any other errno of the kernel.
    pub fn disconnect(&mut self, index: u32) -> Result<(), HostError> {
        let number = |message: Message| message.attribute(NBD_ATTR_INDEX, &index.to_ne_bytes());
        match self.exchange(NBD_CMD_DISCONNECT, 1, number) {
            // There is no such device.
            Err(Errno::INVAL) => Ok(()),
            other => other.refused(|| format!("cannot disconnect /dev/nbd{index}")).map(drop),
        }
    }

    /// Sends a request and returns the answer that came before its end.
    fn exchange(
        &mut self,
        command: u8,
        version: u8,
        fill: impl FnOnce(Message) -> Message,
    ) -> Result<Vec<u8>, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let head = [command, version, 0, 0];
        let message = fill(Message::new(self.family, NLM_F_ACK, self.sequence, &head));
        send(&self.socket, &message.done(), SendFlags::empty())?;
        let mut answer = Vec::new();
        let mut buffer = [0; ANSWER_BYTES_MAX];
        loop {
            let length = match recv(&self.socket, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let datagram = buffer.get(..length).ok_or(Errno::MSGSIZE)?;
            for (kind, payload) in messages(datagram, self.sequence) {
                match end(kind, payload) {
                    Some(result) => return result.map(|()| answer),
                    None => answer = payload.to_vec(),
                }
            }
        }
    }
}

fn connect(message: Message, index: u32, served: &Served<'_>) -> Message {
    let mut fd = Vec::new();
    put_attribute(&mut fd, NBD_SOCK_FD, &served.socket.as_raw_fd().to_ne_bytes());
    let mut sockets = Vec::new();
    put_attribute(&mut sockets, NBD_SOCK_ITEM | NLA_F_NESTED, &fd);
    message
        .attribute(NBD_ATTR_INDEX, &index.to_ne_bytes())
        .attribute(NBD_ATTR_SIZE_BYTES, &served.bytes.to_ne_bytes())
        .attribute(NBD_ATTR_BLOCK_SIZE_BYTES, &u64::from(served.block_bytes).to_ne_bytes())
        .attribute(NBD_ATTR_TIMEOUT, &served.timeout_s.to_ne_bytes())
        .attribute(NBD_ATTR_SERVER_FLAGS, &u64::from(served.flags).to_ne_bytes())
        .attribute(NBD_ATTR_SOCKETS | NLA_F_NESTED, &sockets)
}

/// The family's number in the controller's answer.
fn family(answer: &[u8]) -> Option<u16> {
    let mut attributes = Attributes(answer.get(GENERIC_BYTES..)?);
    attributes.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID).and_then(|(_, value)| half(value, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::HEADER_BYTES;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_connect_request_has_the_kernels_layout() {
        let stream = std::fs::File::open("/dev/null").unwrap();
        let served = Served {
            socket: stream.as_fd(),
            bytes: 4 << 20,
            block_bytes: 512,
            flags: 5,
            timeout_s: 20,
        };
        let message = Message::new(27, NLM_F_ACK, 3, &[NBD_CMD_CONNECT, 1, 0, 0]);
        let bytes = connect(message, 7, &served).done();
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        let fd = u32::try_from(stream.as_raw_fd()).unwrap();
        let head = [92, 5 << 16 | 27, 3, 0, 0x0101];
        let attributes = [
            1 << 16 | 8,
            7,
            2 << 16 | 12,
            4 << 20,
            0,
            3 << 16 | 12,
            512,
            0,
            4 << 16 | 12,
            20,
            0,
            5 << 16 | 12,
            5,
            0,
            0x8007 << 16 | 16,
            0x8001 << 16 | 12,
            1 << 16 | 8,
            fd,
        ];
        assert_eq!(words, [&head[..], &attributes[..]].concat());
    }

    #[test]
    fn a_family_number_is_found_but_not_in_a_truncated_answer() {
        let answer = Message::new(GENL_ID_CTRL, 0, 1, &[CTRL_CMD_GETFAMILY, 2, 0, 0])
            .attribute(CTRL_ATTR_FAMILY_NAME, b"nbd\0")
            .attribute(CTRL_ATTR_FAMILY_ID, &29_u16.to_ne_bytes())
            .done();
        let payload = &answer[HEADER_BYTES..];
        assert_eq!(family(payload), Some(29));
        for length in 0..payload.len() - 2 {
            assert_eq!(family(&payload[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_missing_driver_is_reported() {
        if let Err(error) = NetworkBlockDevices::open() {
            assert!(error.to_string().contains("modprobe nbd"), "{error}");
        }
    }
}
