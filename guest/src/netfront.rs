//! Network front end: one queue, whole frames, no offloads. Announces itself, answers ARP and
//! pings, drops everything else.

use guest_proto::frame::{FRAME_BYTES_MAX, Ipv4, Mac, Station};
use guest_proto::netif::{
    RX_RESPONSE_BYTES, RX_SLOT_BYTES, Received, TX_RESPONSE_BYTES, TX_SLOT_BYTES, decode_tx_id,
    encode_rx, encode_tx,
};
use guest_proto::text::Text;

use crate::channel::{Context, Lent, Misbehaved, SharedRing};
use crate::console::tell;
use crate::grant::Access;
use crate::{evtchn, hypercall};

const RX_PAGES: usize = 8;
const TX_PAGES: usize = 4;

/// A buffer is on its way to or with the backend, or ours.
#[derive(Clone, Copy)]
struct Buffer {
    lent: Lent,
    away: bool,
}

pub struct NetFront {
    number: u32,
    station: Station,
    tx: SharedRing,
    rx: SharedRing,
    tx_buffers: [Buffer; TX_PAGES],
    rx_buffers: [Buffer; RX_PAGES],
    pub port: u32,
    frames_in: u64,
    frames_out: u64,
}

impl NetFront {
    pub fn new(
        context: &mut Context<'_>,
        number: u32,
        domid: u16,
        mac: Mac,
        ip: Option<Ipv4>,
    ) -> Option<Self> {
        let tx = SharedRing::new(context, domid, TX_SLOT_BYTES)?;
        let Some(rx) = SharedRing::new(context, domid, RX_SLOT_BYTES) else {
            tx.lent.take_back(context);
            return None;
        };
        let tx_buffers = buffers::<TX_PAGES>(context, domid, Access::ReadOnly);
        let rx_buffers = buffers::<RX_PAGES>(context, domid, Access::ReadWrite);
        let port = hypercall::alloc_unbound(domid).ok();
        let (Some(tx_buffers), Some(rx_buffers), Some(port)) = (tx_buffers, rx_buffers, port)
        else {
            tx.lent.take_back(context);
            rx.lent.take_back(context);
            give_back(context, tx_buffers);
            give_back(context, rx_buffers);
            if let Some(port) = port {
                hypercall::close(port);
            }
            return None;
        };
        let station = Station { mac, ip };
        let mut front = Self {
            number,
            station,
            tx,
            rx,
            tx_buffers,
            rx_buffers,
            port,
            frames_in: 0,
            frames_out: 0,
        };
        for index in 0..RX_PAGES {
            front.post(index);
        }
        Some(front)
    }

    /// What the backend must know, to be written before our state says `Connected`.
    pub fn keys(&self) -> [(&'static str, Text<16>); 6] {
        let number = |number: u32| Text::of(format_args!("{number}"));
        [
            ("tx-ring-ref", number(self.tx.lent.grant)),
            ("rx-ring-ref", number(self.rx.lent.grant)),
            ("event-channel", number(self.port)),
            ("request-rx-copy", number(1)),
            ("feature-rx-notify", number(1)),
            ("feature-no-csum-offload", number(1)),
        ]
    }

    /// The backend is connected: shows it the receive buffers, tells the world where we are.
    pub fn connected(&mut self) {
        self.rx.publish(self.port);
        let mut frame = [0; FRAME_BYTES_MAX];
        let bytes = self.station.announce(&mut frame);
        self.send(&frame[..bytes]);
        self.tx.publish(self.port);
        let mac = self.station.mac;
        match self.station.ip {
            Some(ip) => tell!("vif {} connected mac={mac} ip={ip}", self.number),
            None => tell!("vif {} connected mac={mac} ip=none", self.number),
        }
    }

    pub fn service(&mut self) -> Result<(), Misbehaved> {
        evtchn::take(self.port);
        while let Some(slot) = self.tx.pop::<TX_RESPONSE_BYTES>()? {
            let id = usize::from(decode_tx_id(&slot));
            let buffer = self.tx_buffers.get_mut(id).filter(|buffer| buffer.away);
            buffer.ok_or(Misbehaved)?.away = false;
        }
        while let Some(slot) = self.rx.pop::<RX_RESPONSE_BYTES>()? {
            let received = Received::decode(&slot);
            let (Received::Frame { id, .. } | Received::Nothing { id }) = received;
            let index = usize::from(id);
            let buffer = self.rx_buffers.get_mut(index).filter(|buffer| buffer.away);
            let buffer = buffer.ok_or(Misbehaved)?;
            buffer.away = false;
            let page = buffer.lent.page;
            if let Received::Frame { offset, bytes, .. } = received {
                self.frames_in += 1;
                if bytes <= FRAME_BYTES_MAX {
                    let mut frame = [0; FRAME_BYTES_MAX];
                    page.read(offset, &mut frame[..bytes]);
                    self.answer(&frame[..bytes]);
                }
            }
            self.post(index);
        }
        self.rx.publish(self.port);
        self.tx.publish(self.port);
        Ok(())
    }

    pub fn close(self, context: &mut Context<'_>) {
        tell!(
            "vif {} closed frames_in={} frames_out={}",
            self.number,
            self.frames_in,
            self.frames_out
        );
        hypercall::close(self.port);
        self.tx.lent.take_back(context);
        self.rx.lent.take_back(context);
        give_back(context, [self.tx_buffers]);
        give_back(context, [self.rx_buffers]);
    }

    fn answer(&mut self, frame: &[u8]) {
        let mut reply = [0; FRAME_BYTES_MAX];
        if let Some(bytes) = self.station.answer(frame, &mut reply) {
            self.send(&reply[..bytes]);
        }
    }

    /// Sends a frame if a buffer is free; a network may lose frames.
    fn send(&mut self, frame: &[u8]) {
        let Some(index) = self.tx_buffers.iter().position(|buffer| !buffer.away) else { return };
        let (Ok(id), Ok(bytes)) = (u16::try_from(index), u16::try_from(frame.len())) else {
            return;
        };
        let buffer = &mut self.tx_buffers[index];
        buffer.lent.page.write(0, frame);
        buffer.away = self.tx.push(&encode_tx(id, buffer.lent.grant, bytes));
        self.frames_out += u64::from(buffer.away);
    }

    /// Hands a receive buffer to the backend.
    fn post(&mut self, index: usize) {
        let Ok(id) = u16::try_from(index) else { return };
        let buffer = &mut self.rx_buffers[index];
        buffer.away = self.rx.push(&encode_rx(id, buffer.lent.grant));
    }
}

/// `N` lent pages, or none.
fn buffers<const N: usize>(
    context: &mut Context<'_>,
    domid: u16,
    access: Access,
) -> Option<[Buffer; N]> {
    let mut lent = [None; N];
    for place in &mut lent {
        *place = Lent::new(context, domid, access);
    }
    if lent.iter().any(Option::is_none) {
        lent.into_iter().flatten().for_each(|lent| lent.take_back(context));
        return None;
    }
    let mut lent = lent.into_iter().flatten();
    Some(core::array::from_fn(|_| Buffer {
        lent: lent.next().expect("none is missing"),
        away: false,
    }))
}

fn give_back<const N: usize>(
    context: &mut Context<'_>,
    buffers: impl IntoIterator<Item = [Buffer; N]>,
) {
    for buffer in buffers.into_iter().flatten() {
        buffer.lent.take_back(context);
    }
}
