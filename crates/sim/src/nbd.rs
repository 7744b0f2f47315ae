//! NBD servers on other hosts, with the protocol's actual bytes.

use std::collections::{BTreeMap, VecDeque};

use storage::{Access, Connection, HostError, NbdExport};

use crate::os::SimOs;
use crate::qemu::Behind;

const REPLY: u64 = 0x0003_e889_0455_65a9;
const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const UNKNOWN: u32 = 1 << 31 | 6;
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) bytes: u64,
    pub(crate) sectors: BTreeMap<u64, u8>,
    access: Access,
}

/// Exports by server (`HOST:PORT`) and name.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    exports: BTreeMap<String, BTreeMap<String, Export>>,
    lost: bool,
    /// The size of an export is sent only on NBD_OPT_GO.
    shy: bool,
}

impl Servers {
    pub(crate) fn export(&self, server: &str, name: &str) -> Option<&Export> {
        self.exports.get(server)?.get(name)
    }

    pub(crate) fn export_mut(&mut self, server: &str, name: &str) -> Option<&mut Export> {
        self.exports.get_mut(server)?.get_mut(name)
    }
}

/// The server's side of a connection.
struct Dialled {
    os: SimOs,
    server: String,
    /// The client has sent its flags.
    greeted: bool,
    heard: Vec<u8>,
    says: VecDeque<u8>,
    /// The export in transmission phase.
    entered: Option<String>,
}

fn closed() -> HostError {
    HostError::Refused("closed the connection".to_owned())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

impl Dialled {
    fn reply(&mut self, option: u32, kind: u32, payload: &[u8]) {
        self.says.extend(REPLY.to_be_bytes());
        for word in [option, kind, u32::try_from(payload.len()).expect("it is short")] {
            self.says.extend(word.to_be_bytes());
        }
        self.says.extend(payload);
    }

    /// Takes the next complete request from the input.
    fn next(&mut self) -> Option<(u32, Vec<u8>)> {
        if !self.greeted {
            word(&self.heard, 0)?;
            self.heard.drain(..4);
            self.greeted = true;
        }
        let (option, length) = (word(&self.heard, 8)?, word(&self.heard, 12)? as usize);
        let data = self.heard.get(16..16 + length)?.to_vec();
        self.heard.drain(..16 + length);
        Some((option, data))
    }

    fn answer(&mut self, option: u32, data: &[u8]) {
        let exports = self.os.get().storage.nbd.exports.get(&self.server).cloned();
        let exports = exports.unwrap_or_default();
        let tells_length = option == 7 || !self.os.get().storage.nbd.shy;
        match option {
            3 => {
                for name in exports.keys() {
                    let length = u32::try_from(name.len()).expect("it is short").to_be_bytes();
                    self.reply(option, SERVER, &[&length, name.as_bytes()].concat());
                }
                self.reply(option, ACK, &[]);
            }
            6 | 7 => {
                let length = word(data, 0).unwrap_or_default() as usize;
                let name = String::from_utf8_lossy(data.get(4..4 + length).unwrap_or_default());
                let Some(export) = exports.get(&*name) else {
                    return self.reply(option, UNKNOWN, b"no such export");
                };
                let read_only = if export.access == Access::ReadOnly { READ_ONLY } else { 0 };
                let flags = (HAS_FLAGS | read_only).to_be_bytes();
                let bytes = if tells_length { export.bytes } else { 0 };
                let info = [&[0, 0][..], &bytes.to_be_bytes(), &flags].concat();
                self.reply(option, INFO, &info);
                self.reply(option, ACK, &[]);
                if option == 7 {
                    self.entered = Some(name.into_owned());
                }
            }
            _ => self.reply(option, ACK, &[]),
        }
    }
}

impl Connection for Dialled {
    fn send(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.os.with_state(&format!("tcp:{}", self.server), |os, _| {
            if os.storage.nbd.lost { Err(closed()) } else { Ok(()) }
        })?;
        if self.entered.is_some() {
            // Requests of the transmission phase: only a disconnect is ever sent here.
            return Ok(());
        }
        self.heard.extend(bytes);
        while let Some((option, data)) = self.next() {
            self.answer(option, &data);
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), HostError> {
        for byte in bytes {
            *byte = self.says.pop_front().ok_or_else(closed)?;
        }
        Ok(())
    }
}

pub(crate) fn dial(os: &SimOs, server: &str) -> Result<Box<dyn Connection>, HostError> {
    os.with_state(&format!("tcp:{server}"), |os, _| {
        if os.storage.nbd.lost || !os.storage.nbd.exports.contains_key(server) {
            return Err(HostError::Refused("Connection refused".to_owned()));
        }
        Ok(())
    })?;
    let says = b"NBDMAGICIHAVEOPT\0\x03".iter().copied().collect();
    Ok(Box::new(Dialled {
        os: os.clone(),
        server: server.to_owned(),
        greeted: false,
        heard: Vec::new(),
        says,
        entered: None,
    }))
}

/// The export of a connection that was passed to the kernel.
pub(crate) fn behind(
    connection: Box<dyn Connection>,
    export: &NbdExport,
) -> Result<(Behind, Access), HostError> {
    let connection: Box<dyn std::any::Any> = connection;
    let dialled = connection.downcast::<Dialled>();
    let entered = dialled.ok().and_then(|it| Some((it.server.clone(), it.entered?)));
    let Some((server, name)) = entered else {
        return Err(HostError::Refused("no export was entered".to_owned()));
    };
    let access = if export.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
    Ok((Behind::Export { server, name }, access))
}

impl SimOs {
    /// Adds an export to a server, or changes its size.
    pub fn add_export(&self, server: &str, name: &str, bytes: u64, access: Access) {
        let exports = &mut self.get_mut().storage.nbd.exports;
        let export = exports.entry(server.to_owned()).or_default().entry(name.to_owned());
        export.or_insert(Export { bytes, sectors: BTreeMap::new(), access }).bytes = bytes;
    }

    /// Makes NBD servers send the size of an export only on NBD_OPT_GO, as nbd-server does.
    pub fn set_nbd_shy(&self, shy: bool) {
        self.get_mut().storage.nbd.shy = shy;
    }

    /// Makes all NBD servers unreachable and drops their connections, or makes them reachable
    /// again.
    pub fn set_nbd_lost(&self, lost: bool) {
        let mut os = self.get_mut();
        os.storage.nbd.lost = lost;
        for served in os.storage.served.values_mut() {
            served.lives &= !lost || !matches!(served.behind, Behind::Export { .. });
        }
    }
}
