//! A network between two hosts: connections whose packets take time, and that can be lost, delayed,
//! cut and throttled.
//!
//! It only computes: it is told the time at each call. Whoever runs the hosts sees to it that none
//! of them lives further than what another may still send it: see [`Line`](crate::Line).

use std::collections::{BTreeMap, VecDeque};

use toolstack::channel::{Broken, Received};

use crate::agenda::Time;
use crate::prng::Prng;

/// What is between the hosts.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    pub latency_ns: u64,
    /// Up to so much more, at random.
    pub jitter_ns: u64,
    /// Throughput of each direction of a connection.
    pub bytes_per_second: u64,
    /// Bytes that a connection takes in each direction before they are received.
    pub buffer_bytes: usize,
    /// How long each end of a dead connection believes in it: ssh's client asks for signs of life,
    /// its server waits for what TCP says.
    pub patience_ns: [u64; 2],
    /// After this time a lost packet is sent again.
    pub resend_ns: u64,
    /// How long an attempt to connect takes that fails.
    pub connect_ns: u64,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            latency_ns: 200_000,
            jitter_ns: 50_000,
            bytes_per_second: 1 << 30,
            buffer_bytes: 1 << 20,
            patience_ns: [15 * SECOND, 120 * SECOND],
            resend_ns: 200_000_000,
            connect_ns: 10 * SECOND,
        }
    }
}

const SECOND: u64 = 1_000_000_000;
/// The largest packet. What is longer is sent as several.
const PACKET_BYTES: usize = 64 << 10;
const TIMED_OUT: &str = "Connection timed out";
/// Never, as a time.
pub const NEVER: Time = Time(u64::MAX);

/// What happens to a packet, or to its connection with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PacketFate {
    /// It is sent again: it and what follows come later.
    Lost,
    /// It and what follows come so many nanoseconds later.
    Late(u64),
    /// From it on nothing passes in any connection, until the network is mended.
    Cut,
    /// The same, and it is mended after so many nanoseconds.
    CutFor(u64),
    /// Its connection is reset: the packet does not arrive, and both ends learn that.
    Reset,
    /// Half of it arrives, and then its connection is reset.
    Torn,
}

/// One end of a connection: that of the host which made it, or the other.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum End {
    Near,
    Far,
}

impl End {
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

/// A connection of a network.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct CableId(pub u64);

/// What an end waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// Something to receive.
    Input,
    /// Room for more to send.
    Room,
}

/// A packet on its way.
#[derive(Debug)]
struct Packet {
    arrives: Time,
    bytes: Vec<u8>,
}

/// What an end receives.
#[derive(Debug, Default)]
struct Direction {
    packets: VecDeque<Packet>,
    /// Bytes of all packets, arrived or not.
    bytes: usize,
    /// The line is busy until then.
    busy: Time,
    arrives_last: Time,
    /// The sender has closed, and when that arrives.
    closes: Option<Time>,
    /// The sender was refused for want of room.
    is_refused: bool,
    /// When the sender learns of new room.
    room: Option<Time>,
}

/// One connection.
#[derive(Debug)]
struct Cable {
    /// By the receiving end.
    towards: [Direction; 2],
    /// When each end learns that the connection is dead, and why.
    dead: [Option<(Time, &'static str)>; 2],
    is_closed: [bool; 2],
}

/// All connections between two hosts.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    prng: Prng,
    cables: BTreeMap<CableId, Cable>,
    cable_last: u64,
    /// Packets so far, of all connections.
    packets: u64,
    fates: BTreeMap<u64, PacketFate>,
    /// The network is cut since then, and mended at a time that is known or not.
    cut: Option<(Time, Option<Time>)>,
}

fn broken(why: &str) -> Broken {
    Broken(why.to_owned())
}

impl Network {
    #[must_use]
    pub fn new(config: NetworkConfig, seed: u64) -> Self {
        Self {
            config,
            prng: Prng::new(seed),
            cables: BTreeMap::new(),
            cable_last: 0,
            packets: 0,
            fates: BTreeMap::new(),
            cut: None,
        }
    }

    #[must_use]
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Packets so far, of all connections.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The `k`-th packet from now on, counted from 1, has this fate.
    pub fn strike(&mut self, k: u64, fate: PacketFate) {
        assert!(k > 0, "packets are counted from 1");
        self.fates.insert(self.packets + k, fate);
    }

    /// No packet has a fate any more.
    pub fn spare(&mut self) {
        self.fates.clear();
    }

    /// Connects the hosts. With a network that is cut, the connection fails later.
    pub fn connect(&mut self, now: Time) -> CableId {
        self.heal(now);
        self.cable_last += 1;
        let id = CableId(self.cable_last);
        let fails = self.cut.map(|_| (now.after(self.config.connect_ns), TIMED_OUT));
        let towards = [Direction::default(), Direction::default()];
        let dead = [fails, fails];
        self.cables.insert(id, Cable { towards, dead, is_closed: [false; 2] });
        id
    }

    /// Nothing passes any more.
    pub fn cut(&mut self, now: Time, mended: Option<Time>) {
        if self.cut.is_some() {
            return;
        }
        self.cut = Some((now, mended));
        for cable in self.cables.values_mut() {
            for direction in &mut cable.towards {
                direction.hold(now, NEVER);
            }
            for (dead, patience) in cable.dead.iter_mut().zip(self.config.patience_ns) {
                let learns = now.after(patience);
                if dead.is_none() && mended.is_none_or(|mended| mended > learns) {
                    *dead = Some((learns, TIMED_OUT));
                }
            }
        }
        if let Some(mended) = mended {
            self.release(mended);
        }
    }

    /// Packets pass again. Those of connections that are still alive are sent again.
    pub fn mend(&mut self, now: Time) {
        if self.cut.take().is_none() {
            return;
        }
        for cable in self.cables.values_mut() {
            for dead in &mut cable.dead {
                if dead.is_some_and(|(learns, why)| learns > now && why == TIMED_OUT) {
                    *dead = None;
                }
            }
        }
        self.release(now);
    }

    /// What was held arrives after the network is mended.
    fn release(&mut self, mended: Time) {
        let arrives = mended.after(self.config.latency_ns + self.config.resend_ns);
        for cable in self.cables.values_mut() {
            for direction in &mut cable.towards {
                direction.hold_back_to(arrives);
            }
        }
    }

    /// Forgets a cut whose end has passed.
    fn heal(&mut self, now: Time) {
        if self.cut.is_some_and(|(_, mended)| mended.is_some_and(|mended| mended <= now)) {
            self.cut = None;
        }
    }

    /// Whether nothing passes now.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    fn chance(&mut self, limit: u64) -> u64 {
        self.prng.below(limit + 1)
    }

    /// The end sends bytes. Returns how many were taken: none if there is no room.
    ///
    /// # Errors
    /// The connection is dead, as far as this end knows.
    pub fn send(
        &mut self,
        id: CableId,
        end: End,
        now: Time,
        bytes: &[u8],
    ) -> Result<usize, Broken> {
        self.heal(now);
        let receiver = end.other();
        let room = self.config.buffer_bytes;
        let cable = self.cables.get_mut(&id).ok_or_else(|| broken("no such connection"))?;
        cable.check(end, now)?;
        if cable.towards[end.index()].closes.is_some_and(|closes| closes <= now) {
            return Err(broken("Broken pipe"));
        }
        let direction = &mut cable.towards[receiver.index()];
        direction.is_refused = false;
        direction.room = None;
        let room = room.saturating_sub(direction.bytes);
        let count = bytes.len().min(room).min(PACKET_BYTES);
        if count == 0 && !bytes.is_empty() {
            direction.is_refused = true;
            return Ok(0);
        }
        self.packets += 1;
        let fate = self.fates.remove(&self.packets);
        self.dispatch(id, end, now, &bytes[..count], fate)?;
        Ok(count)
    }

    fn dispatch(
        &mut self,
        id: CableId,
        end: End,
        now: Time,
        bytes: &[u8],
        fate: Option<PacketFate>,
    ) -> Result<(), Broken> {
        let mut late = self.chance(self.config.jitter_ns);
        match fate {
            Some(PacketFate::Cut) => self.cut(now, None),
            Some(PacketFate::CutFor(duration)) => self.cut(now, Some(now.after(duration))),
            Some(PacketFate::Reset) => {
                self.reset(id, end, now);
                return Err(broken("Connection reset by peer"));
            }
            Some(PacketFate::Torn) => {
                self.put(id, end, now, late, &bytes[..bytes.len() / 2]);
                self.reset(id, end, now);
                return Err(broken("Connection reset by peer"));
            }
            Some(PacketFate::Late(nanoseconds)) => late += nanoseconds,
            Some(PacketFate::Lost) => late += self.config.resend_ns,
            None => {}
        }
        self.put(id, end, now, late, bytes);
        Ok(())
    }

    fn put(&mut self, id: CableId, end: End, now: Time, late_ns: u64, bytes: &[u8]) {
        let (cut, config) = (self.cut, &self.config);
        let Some(cable) = self.cables.get_mut(&id) else { return };
        let direction = &mut cable.towards[end.other().index()];
        let begins = now.max(direction.busy);
        let takes = (bytes.len() as u64).saturating_mul(SECOND) / config.bytes_per_second.max(1);
        direction.busy = begins.after(takes);
        let arrives = match cut {
            None => direction.busy.after(config.latency_ns + late_ns),
            Some((_, None)) => NEVER,
            Some((_, Some(mended))) => mended.after(config.latency_ns + config.resend_ns),
        };
        let arrives = arrives.max(direction.arrives_last);
        direction.arrives_last = arrives;
        direction.bytes += bytes.len();
        direction.packets.push_back(Packet { arrives, bytes: bytes.to_vec() });
    }

    /// Both ends learn that the connection is gone: this one now.
    fn reset(&mut self, id: CableId, end: End, now: Time) {
        let later = now.after(self.config.latency_ns);
        let Some(cable) = self.cables.get_mut(&id) else { return };
        let arrived = cable.towards[end.other().index()].arrives_last;
        let why = "Connection reset by peer";
        cable.dead[end.index()] = Some((now, why));
        let learns = if arrived == NEVER { later } else { later.max(arrived) };
        cable.dead[end.other().index()].get_or_insert((learns, why));
    }

    /// The end receives what has arrived.
    ///
    /// # Errors
    /// The connection is dead, as far as this end knows.
    pub fn receive(
        &mut self,
        id: CableId,
        end: End,
        now: Time,
        into: &mut [u8],
    ) -> Result<Received, Broken> {
        self.heal(now);
        let latency_ns = self.config.latency_ns;
        let cable = self.cables.get_mut(&id).ok_or_else(|| broken("no such connection"))?;
        let direction = &mut cable.towards[end.index()];
        let mut count = 0;
        while let Some(packet) = direction.packets.front_mut() {
            if packet.arrives > now || count == into.len() {
                break;
            }
            let taken = packet.bytes.len().min(into.len() - count);
            into[count..count + taken].copy_from_slice(&packet.bytes[..taken]);
            packet.bytes.drain(..taken);
            count += taken;
            if packet.bytes.is_empty() {
                direction.packets.pop_front();
            }
        }
        if count > 0 {
            direction.bytes -= count;
            if direction.is_refused {
                direction.room.get_or_insert(now.after(latency_ns));
            }
            return Ok(Received::Bytes(count));
        }
        let closes = direction.closes;
        cable.check(end, now)?;
        Ok(match closes {
            Some(closes) if closes <= now => Received::End,
            _ => Received::Nothing,
        })
    }

    /// When something changes at this end, as far as is known: now or later.
    #[must_use]
    pub fn next_change(&self, id: CableId, end: End, want: Want) -> Option<Time> {
        let cable = self.cables.get(&id)?;
        let dead = cable.dead[end.index()].map(|(learns, _)| learns);
        let change = match want {
            Want::Input => {
                let direction = &cable.towards[end.index()];
                let arrives = direction.packets.front().map(|packet| packet.arrives);
                arrives.or(direction.closes)
            }
            Want::Room => cable.towards[end.other().index()].room,
        };
        [change, dead].into_iter().flatten().min().filter(|change| *change != NEVER)
    }

    /// The end's host has lost power: what is on its way to it is lost, and the other end waits for
    /// signs of life.
    pub fn vanish(&mut self, id: CableId, end: End, now: Time) {
        let patience_ns = self.config.patience_ns[end.other().index()];
        let Some(cable) = self.cables.get_mut(&id) else { return };
        if std::mem::replace(&mut cable.is_closed[end.index()], true) {
            return;
        }
        let learns = now.after(patience_ns);
        let dead = &mut cable.dead[end.other().index()];
        if dead.is_none_or(|(earlier, _)| earlier > learns) {
            // It is not mended: nobody is there any more.
            *dead = Some((learns, "No route to host"));
        }
        cable.towards[end.index()] = Direction::default();
    }

    /// The end closes: what it has sent still arrives, and then the end of it.
    pub fn close(&mut self, id: CableId, end: End, now: Time) {
        let latency_ns = self.config.latency_ns;
        let cut = self.cut;
        let Some(cable) = self.cables.get_mut(&id) else { return };
        if std::mem::replace(&mut cable.is_closed[end.index()], true) {
            return;
        }
        let direction = &mut cable.towards[end.other().index()];
        let arrives = match cut {
            Some((_, None)) => NEVER,
            Some((_, Some(mended))) => mended.after(latency_ns),
            None => now.after(latency_ns),
        };
        direction.closes = Some(arrives.max(direction.arrives_last));
    }
}

impl Cable {
    fn check(&self, end: End, now: Time) -> Result<(), Broken> {
        match self.dead[end.index()] {
            Some((learns, why)) if learns <= now => Err(broken(why)),
            _ => Ok(()),
        }
    }
}

impl Direction {
    /// What has not arrived by `now` arrives then.
    fn hold(&mut self, now: Time, until: Time) {
        let times = self.packets.iter_mut().map(|packet| &mut packet.arrives);
        for time in times.chain(&mut self.closes) {
            if *time > now {
                *time = until;
                self.arrives_last = until;
            }
        }
    }

    /// What would never arrive does so at this time.
    fn hold_back_to(&mut self, arrives: Time) {
        let times = self.packets.iter_mut().map(|packet| &mut packet.arrives);
        for time in times.chain(&mut self.closes) {
            if *time == NEVER {
                *time = arrives;
            }
        }
        if self.arrives_last == NEVER {
            self.arrives_last = arrives;
        }
    }
}
