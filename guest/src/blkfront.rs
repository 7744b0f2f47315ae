//! Block front end: connects, reads sector 0, says what it saw. Not a disk driver for anybody.

use guest_proto::blkif::{RESPONSE_BYTES, Read, Response, SECTOR_BYTES, SLOT_BYTES};
use guest_proto::text::{Printable, Text, decimal};

use crate::channel::{Context, Lent, Misbehaved, SharedRing};
use crate::console::{say, tell};
use crate::grant::Access;
use crate::{evtchn, hypercall};

const READ_ID: u64 = 0x5859_4c45_4d00_0001;
const SHOWN_BYTES: usize = 32;

/// Where the one read of a disk stands. Only while it is on its way does it have a page.
enum Reading {
    NotYet,
    Away(Lent),
    Over,
}

pub struct BlkFront {
    domid: u16,
    number: u32,
    ring: SharedRing,
    pub port: u32,
    sectors: u64,
    sector_bytes: u64,
    read: Reading,
}

impl BlkFront {
    pub fn new(context: &mut Context<'_>, number: u32, domid: u16) -> Option<Self> {
        let ring = SharedRing::new(context, domid, SLOT_BYTES)?;
        let Ok(port) = hypercall::alloc_unbound(domid) else {
            ring.lent.take_back(context);
            return None;
        };
        let (sectors, sector_bytes, read) = (0, 0, Reading::NotYet);
        Some(Self { domid, number, ring, port, sectors, sector_bytes, read })
    }

    /// What the backend must know, to be written before our state says `Initialised`.
    pub fn keys(&self) -> [(&'static str, Text<16>); 3] {
        [
            ("ring-ref", Text::of(format_args!("{}", self.ring.lent.grant))),
            ("event-channel", Text::of(format_args!("{}", self.port))),
            ("protocol", Text::of(format_args!("x86_64-abi"))),
        ]
    }

    /// The backend is connected: learns the disk's size.
    pub fn connected(&mut self, context: &mut Context<'_>, backend: &str) {
        let store = &mut *context.store;
        self.sectors =
            store.read(format_args!("{backend}/sectors")).ok().and_then(decimal).unwrap_or(0);
        self.sector_bytes = store
            .read(format_args!("{backend}/sector-size"))
            .ok()
            .and_then(decimal)
            .unwrap_or(SECTOR_BYTES as u64);
    }

    /// Whether it is connected and has found no page to read into.
    pub fn wants_page(&self) -> bool {
        matches!(self.read, Reading::NotYet)
    }

    /// Whether the backend owes a response.
    pub fn listens(&self) -> bool {
        matches!(self.read, Reading::Away(_))
    }

    /// Asks for the first sector: one of the disk's own, at most a page. Without a page for it, later.
    pub fn start_read(&mut self, context: &mut Context<'_>) {
        if self.sectors == 0 {
            say!("vbd {} sectors=0", self.number);
            self.read = Reading::Over;
            return;
        }
        let Some(data) = Lent::new(context, self.domid, Access::ReadWrite) else { return };
        let sectors = (self.sector_bytes / SECTOR_BYTES as u64).clamp(1, 8);
        let read = Read {
            id: READ_ID,
            // The real handle may need more bits than the field has; backends ignore it.
            handle: u16::try_from(self.number).unwrap_or(0),
            sector: 0,
            sectors: u8::try_from(sectors).unwrap_or(1),
            grant: data.grant,
        };
        self.read = Reading::Away(data);
        // The ring is empty: nothing else is ever asked for.
        self.ring.push(&read.encode());
        self.ring.publish(self.port);
    }

    pub fn service(&mut self, context: &mut Context<'_>) -> Result<(), Misbehaved> {
        evtchn::take(self.port);
        while let Some(bytes) = self.ring.pop::<RESPONSE_BYTES>()? {
            let response = Response::decode(&bytes);
            let Reading::Away(data) = core::mem::replace(&mut self.read, Reading::Over) else {
                return Err(Misbehaved);
            };
            if response.id == READ_ID && response.status == 0 {
                self.show(data);
            } else if response.id == READ_ID {
                say!("vbd {} read failed, status {}", self.number, response.status);
            }
            data.take_back(context);
            if response.id != READ_ID {
                return Err(Misbehaved);
            }
        }
        Ok(())
    }

    fn show(&self, data: Lent) {
        let mut first = [0; SHOWN_BYTES];
        data.page.read(0, &mut first);
        tell!(
            "vbd {} sectors={} sector_bytes={} first=\"{}\"",
            self.number,
            self.sectors,
            self.sector_bytes,
            Printable(&first)
        );
    }

    pub fn close(self, context: &mut Context<'_>) {
        hypercall::close(self.port);
        self.ring.lent.take_back(context);
        if let Reading::Away(data) = self.read {
            data.take_back(context);
        }
    }
}
