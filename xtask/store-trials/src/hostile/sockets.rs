//! Attacks at the socket: what a broken or hostile process of dom0's can do to the others.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::attacker::message;
use super::scene::Scene;

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "500 connections",
        tried: "500 clients that connect and say nothing, 500 more that come and go without a pause",
        attack: connections,
    },
    Trial {
        name: "half a header",
        tried: "200 clients that send half a header, and one that ends in the middle of a payload",
        attack: half_headers,
    },
    Trial {
        name: "dribble",
        tried: "a batch of 60 KB sent byte by byte by each of 20 clients",
        attack: dribble,
    },
    Trial {
        name: "socket answers unread",
        tried: "READs of a value of 4000 bytes without reading one answer, until the socket is full",
        attack: unread,
    },
    Trial {
        name: "lengths at the socket",
        tried: "payloads of 4097 and 4294967295 bytes, unknown message types",
        attack: lengths,
    },
];

fn open(scene: &Scene) -> Result<UnixStream> {
    let path = scene.daemon.folder().join("socket");
    UnixStream::connect(&path).context("the store takes no clients any more")
}

fn connections(scene: &mut Scene) -> Result<()> {
    let silent: Vec<UnixStream> = (0..500).map(|_| open(scene)).collect::<Result<_>>()?;
    scene.begin()?;
    let mut came = 0_u64;
    while !scene.is_over() {
        let mut client = open(scene)?;
        client.write_all(&message(M::TransactionStart, 0, b"\0"))?;
        came += 1;
    }
    scene.note("clients that came and went", came);
    scene.note("silent ones", silent.len() as u64);
    Ok(())
}

fn half_headers(scene: &mut Scene) -> Result<()> {
    let mut halves = Vec::new();
    let request = message(M::Write, 0, &[b"/x\0", &[b'v'; 3000][..]].concat());
    for _ in 0..200 {
        let mut client = open(scene)?;
        client.write_all(&request[..8])?;
        halves.push(client);
    }
    scene.begin()?;
    let mut cut = 0_u64;
    while !scene.is_over() {
        open(scene)?.write_all(&request[..100])?;
        cut += 1;
    }
    scene.note("requests cut off", cut);
    let left = scene.dom0.call_raw(M::Read.code(), 0, b"/x\0")?;
    ensure!(left == Err("ENOENT".into()), "half a write was executed");
    Ok(())
}

fn dribble(scene: &mut Scene) -> Result<()> {
    let mut clients: Vec<UnixStream> = (0..20).map(|_| open(scene)).collect::<Result<_>>()?;
    let mut header = message(M::Batch, 0, b"");
    header[12..16].copy_from_slice(&60_000_u32.to_ne_bytes());
    for client in &mut clients {
        client.write_all(&header)?;
    }
    scene.begin()?;
    let mut bytes = 0_u64;
    while !scene.is_over() && bytes < 20 * 59_000 {
        for client in &mut clients {
            client.write_all(b"x")?;
            bytes += 1;
        }
    }
    scene.rest();
    scene.note("bytes", bytes);
    Ok(())
}

fn unread(scene: &mut Scene) -> Result<()> {
    let value = [b"/tool/hostile/large\0", &[b'v'; 4000][..]].concat();
    scene.dom0.call(M::Write, 0, &value)?;
    let mut client = open(scene)?;
    client.set_nonblocking(true)?;
    let read = message(M::Read, 0, b"/tool/hostile/large\0");
    scene.begin()?;
    let (mut sent, mut rest) = (0_u64, &read[..]);
    while !scene.is_over() && sent < 20_000 {
        match client.write(rest) {
            Ok(bytes) if bytes == rest.len() => {
                sent += 1;
                rest = &read;
            }
            Ok(bytes) => rest = &rest[bytes..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("the store closed the connection"),
        }
    }
    scene.rest();
    scene.note("requests taken", sent);
    scene.note("MiB of answers unread", sent * 4016 / (1 << 20));
    Ok(())
}

fn lengths(scene: &mut Scene) -> Result<()> {
    scene.begin()?;
    let mut closed = 0;
    while !scene.is_over() {
        for (code, length) in [(2, 4097_u32), (2, u32::MAX), (999, 70_000), (0x584c_0001, u32::MAX)]
        {
            let mut client = open(scene)?;
            client.set_read_timeout(Some(Duration::from_secs(10)))?;
            let mut header = message(M::Read, 0, b"");
            header[..4].copy_from_slice(&u32::to_ne_bytes(code));
            header[12..16].copy_from_slice(&length.to_ne_bytes());
            client.write_all(&header)?;
            let read = client.read(&mut [0; 64]);
            ensure!(matches!(read, Ok(0)), "type {code}, length {length}: {read:?}");
            closed += 1;
        }
    }
    scene.note("connections closed", closed);
    Ok(())
}
