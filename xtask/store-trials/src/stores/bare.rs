//! A server that receives and answers, and has no store: what its requests cost, the system costs.
//!
//! It waits, reads and writes as `xylem-xenstored` does: one epoll with edges, one read and one write
//! for each client in a turn. Every request is answered with `OK`.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net;
use xenstore::wire::{self, HEADER_BYTES, Header};

const LISTENER: u64 = 0;

/// As the daemon's.
const READ_BYTES: usize = 16 * 1024;

struct Client {
    fd: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Serves until it is killed.
///
/// # Errors
/// It cannot listen at `path`.
pub fn serve(path: &Path) -> Result<()> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let listener =
        net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
    net::bind(&listener, &net::SocketAddrUnix::new(path)?).context("cannot listen")?;
    net::listen(&listener, 128)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = vec![None];
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; READ_BYTES];
    let mut asked = Vec::new();
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in &events {
            if event.data.u64() == LISTENER {
                accept(&epoll, &listener, &mut clients)?;
                continue;
            }
            let at = usize::try_from(event.data.u64())?;
            let Some(client) = &mut clients[at] else { continue };
            match net::recv(&client.fd, &mut buffer[..], net::RecvFlags::empty()) {
                Ok((0, _)) => clients[at] = None,
                Ok((length, _)) => {
                    client.answer(&buffer[..length])?;
                    asked.push(at);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => clients[at] = None,
            }
        }
        for at in asked.drain(..) {
            let Some(client) = &mut clients[at] else { continue };
            // A client that does not read is dropped.
            net::send(&client.fd, &client.output, net::SendFlags::NOSIGNAL)?;
            client.output.clear();
        }
    }
}

fn accept(epoll: &OwnedFd, listener: &OwnedFd, clients: &mut Vec<Option<Client>>) -> Result<()> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    while let Ok(fd) = net::accept_with(listener, flags) {
        let token = epoll::EventData::new_u64(clients.len() as u64);
        let edges = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(epoll, &fd, token, edges)?;
        clients.push(Some(Client { fd, input: Vec::new(), output: Vec::new() }));
    }
    Ok(())
}

impl Client {
    fn answer(&mut self, bytes: &[u8]) -> Result<()> {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(header) = Header::decode_with_batches(&self.input[at..])? {
            let end = at + HEADER_BYTES + header.payload_bytes();
            if end > self.input.len() {
                break;
            }
            let (id, transaction) = (header.request_id, header.transaction_id);
            wire::encode(&mut self.output, header.code, id, transaction, &[b"OK\0"]);
            at = end;
        }
        self.input.drain(..at);
        Ok(())
    }
}
