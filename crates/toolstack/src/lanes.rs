//! Further connections of a move: they carry pages only, and each is worked on beside the others.
//!
//! What is done with the pages is here; the host gives each connection a thread, if it has such. Which pages a connection
//! carries, and how rounds stay in order, is `migrate::image`'s.

use std::sync::Arc;

use migrate::Input;
use migrate::image::{Codec, Item, Limits, StreamReader, Token, Writer};
pub use migrate::image::{Lane, Lanes};
use migrate::libxc::PageData;
use xen::Uuid;

use crate::channel::{Broken, Channel, Received};

/// Connections of one move, the first included, that a receiver takes.
pub const LANES_MAX: u8 = 8;

/// How often a wait looks whether it is to end.
const LOOK_NS: u64 = 50_000_000;
const SECOND: u64 = 1_000_000_000;
/// How long the other end may take nothing.
const TAKES_NOTHING_SECONDS: u64 = 60;
const READ_BYTES: usize = 256 << 10;

/// Something that a connection sends.
#[derive(Clone, Debug)]
pub enum LaneJob {
    /// Of these the ones that it carries.
    Pages(Arc<PageData>, Codec),
    EndOfRound,
    End,
}

/// What it has sent so far, and how long that took.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LaneCounts {
    /// Of pages with contents, before and after.
    pub raw: u64,
    pub stored: u64,
    /// That left.
    pub bytes: u64,
    pub pack_ns: u64,
    pub send_ns: u64,
}

/// A connection on which pages leave.
pub trait LaneOut {
    /// Gives it something to send. It comes back if there is no room for it in time.
    ///
    /// # Errors
    /// The connection has broken.
    fn give(&mut self, job: LaneJob, timeout_ns: u64) -> Result<Option<LaneJob>, Broken>;

    fn counts(&self) -> LaneCounts;
}

/// What came on a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LaneItem {
    Pages(PageData),
    EndOfRound(u32),
    End,
}

/// A connection on which pages come.
pub trait LaneIn {
    /// The next item, if it comes in time.
    ///
    /// # Errors
    /// The connection has broken, or what came on it makes no sense.
    fn next(&mut self, timeout_ns: u64) -> Result<Option<LaneItem>, Broken>;
}

/// A connection of a move to a peer, to be opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaneCall {
    pub transfer: Uuid,
    pub lane: Lane,
    /// What the receiver knows its connections by.
    pub token: [u8; 16],
}

/// Packs pages and sends them.
pub struct LaneSender<C> {
    channel: C,
    /// `None` once it has ended.
    writer: Option<Writer>,
    out: Vec<u8>,
    counts: LaneCounts,
}

impl<C: Channel> LaneSender<C> {
    pub fn new(channel: C, call: &LaneCall) -> Self {
        let mut out = Vec::new();
        let token: Token = call.transfer.0;
        let writer = Some(Writer::further(call.lane, &token, Codec::Lz4, &mut out));
        Self { channel, writer, out, counts: LaneCounts::default() }
    }

    pub fn counts(&self) -> LaneCounts {
        self.counts
    }

    /// Does it. `now` is a clock in nanoseconds; `stop` is asked while it waits.
    ///
    /// # Errors
    /// The connection has broken, or it was to end.
    pub fn perform(
        &mut self,
        job: LaneJob,
        now: &dyn Fn() -> u64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let began = now();
        let before = writer.counts();
        match job {
            LaneJob::Pages(pages, codec) => {
                writer.set_codec(codec);
                writer.pages(&pages, &mut self.out);
            }
            LaneJob::EndOfRound => writer.end_round(&mut self.out),
            LaneJob::End => {
                self.writer.take().expect("looked at above").finish(&mut self.out);
            }
        }
        if let Some(writer) = &self.writer {
            let counts = writer.counts();
            self.counts.raw += counts.raw_bytes - before.raw_bytes;
            self.counts.stored += counts.stored_bytes - before.stored_bytes;
        }
        let packed = now();
        self.counts.pack_ns += packed.saturating_sub(began);
        let sent = self.send(stop);
        self.counts.send_ns += now().saturating_sub(packed);
        self.counts.bytes += self.out.len() as u64;
        self.out.clear();
        sent
    }

    fn send(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        let (mut sent, mut waited) = (0, 0);
        while sent < self.out.len() {
            match self.channel.send(&self.out[sent..], LOOK_NS)? {
                0 => waited += LOOK_NS,
                count => (sent, waited) = (sent + count, 0),
            }
            if waited >= TAKES_NOTHING_SECONDS * SECOND {
                return Err(Broken(format!("it has taken nothing for {TAKES_NOTHING_SECONDS} s")));
            }
            if sent < self.out.len() && stop() {
                return Err(Broken("it was ended".to_owned()));
            }
        }
        Ok(())
    }
}

/// Receives pages and unpacks them.
pub struct LaneReceiver<C> {
    channel: C,
    number: u8,
    transfer: Uuid,
    reader: StreamReader,
    input: Input,
    bytes: Vec<u8>,
}

impl<C: Channel> LaneReceiver<C> {
    pub fn new(channel: C, transfer: Uuid, number: u8, limits: Limits) -> Self {
        let (reader, input) = (StreamReader::new(limits), Input::new());
        Self { channel, number, transfer, reader, input, bytes: vec![0; READ_BYTES] }
    }
}

impl<C: Channel> LaneIn for LaneReceiver<C> {
    fn next(&mut self, timeout_ns: u64) -> Result<Option<LaneItem>, Broken> {
        loop {
            let item = self.reader.next(&mut self.input);
            match item.map_err(|error| Broken(error.to_string()))? {
                Some(Item::Pages(pages)) => {
                    return Ok(Some(LaneItem::Pages(pages.into_page_data())));
                }
                Some(Item::EndOfRound(round)) => return Ok(Some(LaneItem::EndOfRound(round))),
                Some(Item::End) => return Ok(Some(LaneItem::End)),
                Some(Item::Lane(lane, token))
                    if lane.number == self.number && token == self.transfer.0 => {}
                Some(_) => return Err(Broken("what came is not for this connection".to_owned())),
                None => match self.channel.receive(&mut self.bytes, timeout_ns)? {
                    Received::Bytes(count) => self.input.feed(&self.bytes[..count]),
                    Received::Nothing => return Ok(None),
                    Received::End => return Err(Broken("the other end has closed it".to_owned())),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use migrate::libxc::{PAGE_BYTES, PageType};

    use super::*;

    /// A connection that takes few bytes at a time.
    #[derive(Clone, Default)]
    struct Pipe(Rc<RefCell<VecDeque<u8>>>);

    impl Channel for Pipe {
        fn send(&mut self, bytes: &[u8], _: u64) -> Result<usize, Broken> {
            let count = bytes.len().min(1000);
            self.0.borrow_mut().extend(&bytes[..count]);
            Ok(count)
        }

        fn receive(&mut self, into: &mut [u8], _: u64) -> Result<Received, Broken> {
            let mut bytes = self.0.borrow_mut();
            let count = into.len().min(bytes.len()).min(700);
            for (to, from) in into.iter_mut().zip(bytes.drain(..count)) {
                *to = from;
            }
            Ok(if count == 0 { Received::Nothing } else { Received::Bytes(count) })
        }

        fn unread(&mut self, _: &[u8]) {
            unreachable!("nothing is given back");
        }
    }

    const LIMITS: Limits = Limits { pfn_max: 1 << 20, known_facts: &[] };
    const TRANSFER: Uuid = Uuid([7; 16]);

    fn call(number: u8) -> LaneCall {
        let lane = Lanes::new(3).unwrap().iter().nth(number.into()).unwrap();
        LaneCall { transfer: TRANSFER, lane, token: [1; 16] }
    }

    #[test]
    fn each_page_comes_on_one_of_the_connections() {
        let pages: Vec<_> = (0..4096).step_by(100).map(|pfn| (pfn, PageType::Normal)).collect();
        let data =
            pages.iter().flat_map(|(pfn, _)| vec![u8::try_from(pfn / 100).unwrap(); PAGE_BYTES]);
        let batch = Arc::new(PageData { data: data.collect(), pages: pages.clone() });
        let mut come = Vec::new();
        for number in [1, 2] {
            let pipe = Pipe::default();
            let mut sender = LaneSender::new(pipe.clone(), &call(number));
            for job in
                [LaneJob::Pages(Arc::clone(&batch), Codec::None), LaneJob::EndOfRound, LaneJob::End]
            {
                sender.perform(job, &|| 0, &mut || false).unwrap();
            }
            let mut receiver = LaneReceiver::new(pipe, TRANSFER, number, LIMITS);
            let mut items = Vec::new();
            while items.last() != Some(&LaneItem::End) {
                items.extend(receiver.next(0).unwrap());
            }
            assert!(items.contains(&LaneItem::EndOfRound(0)));
            for item in items {
                if let LaneItem::Pages(data) = item {
                    come.extend(data.iter().map(|(pfn, _, bytes)| (pfn, bytes.unwrap()[0])));
                }
            }
            assert!(sender.counts().raw > 0);
        }
        // The rest is the first connection's.
        let of_first = pages.iter().filter(|(pfn, _)| call(0).lane.carries(*pfn)).count();
        assert_eq!(come.len() + of_first, pages.len());
        assert!(come.iter().all(|(pfn, byte)| pfn / 100 == u64::from(*byte)));
    }

    #[test]
    fn what_is_of_another_transfer_or_connection_is_refused() {
        for (transfer, number) in [(Uuid([8; 16]), 1), (TRANSFER, 2)] {
            let pipe = Pipe::default();
            let mut sender = LaneSender::new(pipe.clone(), &call(1));
            sender.perform(LaneJob::EndOfRound, &|| 0, &mut || false).unwrap();
            let refused = LaneReceiver::new(pipe, transfer, number, LIMITS).next(0).unwrap_err();
            assert_eq!(refused.0, "what came is not for this connection");
        }
    }
}
