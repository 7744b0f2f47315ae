//! A guest's image as it leaves for another host: packed by what the link takes.

use std::sync::Arc;

use migrate::image::{Codec, CodecChoice, Sample, Writer};
use migrate::libxc::{PageData, Record};
use migrate::libxl;
use migrate::peer::{DATA_BYTES_MAX, Message};
use migrate::rounds;

use crate::channel::{Broken, Conversation, Silence};
use crate::device_model::ModelState;
use crate::lanes::{LaneCounts, LaneJob, LaneOut};
use crate::work::Flow;

/// Asked while something waits: whether it is to end.
pub(super) type Stop<'a> = &'a mut dyn FnMut() -> bool;

/// Whose form the image has.
pub(super) enum Form {
    Own(Box<Writer>),
    /// That of `xl save`.
    Xl,
}

/// How long the parts of a batch took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Took {
    pub(super) copy_ns: u64,
    pub(super) pack_ns: u64,
    pub(super) send_ns: u64,
}

/// What was measured since the last choice of a codec.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    took: Took,
    /// Of pages with contents, before and after.
    raw: u64,
    stored: u64,
    /// That left.
    bytes: u64,
    /// How long it was, where connections are worked on beside each other.
    wall_ns: u64,
}

/// Long enough for the buffers of sockets not to matter.
const WINDOW_NS: u64 = 100_000_000;
const MICROSECOND: u64 = 1000;
/// How often a wait for a connection looks whether it is to end.
const LOOK_NS: u64 = 20_000_000;
/// Windows in which the link had to wait, after which it may have become faster: it is measured anew.
const IDLE_MAX: u32 = 64;

/// The image as it goes out.
pub(super) struct Outgoing<'a> {
    with: &'a mut Conversation,
    /// `None` once it has ended.
    form: Option<Form>,
    out: Vec<u8>,
    bytes: u64,
    choice: CodecChoice,
    window: Window,
    /// What the writer and the counter had at the beginning of the window.
    since: Window,
    /// Windows in a row in which the link had to wait.
    idle: u32,
    /// Further connections.
    lanes: Vec<Box<dyn LaneOut>>,
    /// Batches that they may still read.
    lent: Vec<Arc<PageData>>,
}

impl<'a> Outgoing<'a> {
    /// With which one begins.
    pub(super) const CODEC: Codec = Codec::Lz4;

    pub(super) fn begin(
        with: &'a mut Conversation,
        lanes: Vec<Box<dyn LaneOut>>,
        form: Form,
        out: Vec<u8>,
    ) -> Self {
        let threads = u32::try_from(lanes.len() + 1).expect("a few");
        Self {
            with,
            form: Some(form),
            out,
            bytes: 0,
            choice: CodecChoice::new(threads),
            window: Window::default(),
            since: Window::default(),
            idle: 0,
            lanes,
            lent: Vec::new(),
        }
    }

    fn form(&mut self) -> &mut Form {
        self.form.as_mut().expect("it has not ended")
    }

    /// Bytes that have left.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.counts().bytes
    }

    /// Of all further connections.
    fn counts(&self) -> LaneCounts {
        self.lanes.iter().map(|lane| lane.counts()).fold(LaneCounts::default(), |sum, it| {
            LaneCounts {
                raw: sum.raw + it.raw,
                stored: sum.stored + it.stored,
                bytes: sum.bytes + it.bytes,
                pack_ns: sum.pack_ns + it.pack_ns,
                send_ns: sum.send_ns + it.send_ns,
            }
        })
    }

    /// Gives all further connections the same to do.
    fn give(&mut self, job: &LaneJob, stop: Stop<'_>) -> Result<(), Silence> {
        let given = self.give_all(job, stop);
        if matches!(given, Err(Silence::Broken(_))) {
            self.with.lane_broke();
        }
        given
    }

    fn give_all(&mut self, job: &LaneJob, stop: Stop<'_>) -> Result<(), Silence> {
        for (lane, number) in self.lanes.iter_mut().zip(2..) {
            let broken = |Broken(why)| Silence::Broken(format!("connection {number}: {why}"));
            let mut left = lane.give(job.clone(), LOOK_NS).map_err(broken)?;
            while let Some(job) = left {
                if stop() {
                    return Err(Silence::Cancelled);
                }
                left = lane.give(job, LOOK_NS).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// A batch that nobody reads any more.
    fn unused(&mut self) -> PageData {
        let at = self.lent.iter().position(|batch| Arc::strong_count(batch) == 1);
        let batch = at.map(|at| self.lent.swap_remove(at));
        batch.and_then(|batch| Arc::try_unwrap(batch).ok()).unwrap_or_default()
    }

    pub(super) fn record(&mut self, record: &Record) {
        let mut out = std::mem::take(&mut self.out);
        match self.form() {
            Form::Own(writer) => writer.record(record, &mut out),
            Form::Xl => record.encode(&mut out),
        }
        self.out = out;
    }

    /// What comes back may be filled again.
    pub(super) fn pages(&mut self, pages: &mut PageData, stop: Stop<'_>) -> Result<(), Silence> {
        if !self.lanes.is_empty() {
            let batch = Arc::new(std::mem::replace(pages, self.unused()));
            self.give(&LaneJob::Pages(Arc::clone(&batch), self.choice.codec()), stop)?;
            let mut out = std::mem::take(&mut self.out);
            if let Form::Own(writer) = self.form() {
                writer.pages(&batch, &mut out);
            }
            self.out = out;
            self.lent.push(batch);
            return Ok(());
        }
        let mut out = std::mem::take(&mut self.out);
        match self.form() {
            Form::Own(writer) => writer.pages(pages, &mut out),
            Form::Xl => {
                let record = Record::PageData(std::mem::take(pages));
                record.encode(&mut out);
                let Record::PageData(same) = record else { unreachable!("as made above") };
                *pages = same;
            }
        }
        self.out = out;
        Ok(())
    }

    pub(super) fn end_round(&mut self, stop: Stop<'_>) -> Result<(), Silence> {
        self.give(&LaneJob::EndOfRound, stop)?;
        let mut out = std::mem::take(&mut self.out);
        match self.form() {
            Form::Own(writer) => writer.end_round(&mut out),
            Form::Xl => {}
        }
        self.out = out;
        Ok(())
    }

    /// Waits until all rounds so far are loaded, so that the next has no bytes of theirs to wait for. Returns what the
    /// other end said instead. xl's has no word for it.
    pub(super) fn await_round(
        &mut self,
        seconds: u64,
        stop: Stop<'_>,
    ) -> Result<Option<Message>, Silence> {
        self.flush(stop)?;
        let Some(Form::Own(writer)) = &self.form else { return Ok(None) };
        loop {
            match self.with.hear(seconds, stop)? {
                Message::Reached { rounds } if rounds < writer.epoch() => {}
                Message::Reached { .. } => return Ok(None),
                other => return Ok(Some(other)),
            }
        }
    }

    /// Sends what there is.
    pub(super) fn flush(&mut self, stop: Stop<'_>) -> Result<(), Silence> {
        for chunk in self.out.chunks(DATA_BYTES_MAX) {
            match &self.form {
                Some(Form::Xl) => self.with.send_unless(chunk, stop)?,
                Some(Form::Own(_)) | None => self.with.say_data(chunk, stop)?,
            }
        }
        self.bytes += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// All was said, but for the state of a device model. Further connections are to be kept until all has arrived.
    pub(super) fn end(
        mut self,
        model: Option<&ModelState>,
        stop: Stop<'_>,
    ) -> Result<Vec<Box<dyn LaneOut>>, Silence> {
        self.give(&LaneJob::End, stop)?;
        let records = model.map(ModelState::records);
        let records = records.iter().flatten();
        match self.form.take().expect("it ends once") {
            Form::Own(mut writer) => {
                records.for_each(|record| writer.emulator(record, &mut self.out));
                writer.finish(&mut self.out);
            }
            Form::Xl => {
                Record::End.encode(&mut self.out);
                records.for_each(|record| record.encode(&mut self.out));
                libxl::Record::End.encode(&mut self.out);
                self.form = Some(Form::Xl);
            }
        }
        self.flush(stop)?;
        Ok(self.lanes)
    }

    /// What is told of it.
    pub(super) fn flow(&self, rounds: rounds::Progress) -> Flow {
        let codec = match self.form {
            Some(Form::Own(_)) | None => Some(self.choice.codec()),
            Some(Form::Xl) => None,
        };
        let lanes = u8::try_from(self.lanes.len() + 1).unwrap_or(u8::MAX);
        Flow { rounds, codec, lanes }
    }

    /// A batch has left. Chooses the codec for those that follow.
    pub(super) fn took(&mut self, took: Took) {
        let lanes = self.counts();
        let Some(Form::Own(writer)) = &mut self.form else { return };
        let window = &mut self.window;
        window.took.copy_ns += took.copy_ns;
        window.took.pack_ns += took.pack_ns;
        window.took.send_ns += took.send_ns;
        window.wall_ns += took.copy_ns + took.pack_ns + took.send_ns;
        if window.wall_ns < WINDOW_NS {
            return;
        }
        let mut window = std::mem::take(window);
        let counts = writer.counts();
        let mut now = Window {
            raw: counts.raw_bytes,
            stored: counts.stored_bytes,
            bytes: self.bytes + lanes.bytes,
            ..Window::default()
        };
        if !self.lanes.is_empty() {
            // This thread waits for the others, too: theirs say how long packing and sending take.
            (now.raw, now.stored) = (lanes.raw, lanes.stored);
            now.took = Took { copy_ns: 0, pack_ns: lanes.pack_ns, send_ns: lanes.send_ns };
            window.took = Took {
                copy_ns: 0,
                pack_ns: lanes.pack_ns - self.since.took.pack_ns,
                send_ns: lanes.send_ns - self.since.took.send_ns,
            };
        }
        window.raw = now.raw - self.since.raw;
        window.stored = now.stored - self.since.stored;
        window.bytes = now.bytes - self.since.bytes;
        self.since = now;
        learn(&mut self.choice, &mut self.idle, window);
        writer.set_codec(self.choice.choose());
    }
}

/// Takes over what was measured. A link that had to wait for pages says only that it is as fast as they came.
fn learn(choice: &mut CodecChoice, idle: &mut u32, window: Window) {
    let Window { took, raw, stored, bytes, wall_ns } = window;
    let micros = |ns: u64| ns / MICROSECOND;
    let packed = Sample { bytes_in: raw, bytes_out: stored, micros: micros(took.pack_ns) };
    choice.compressed(choice.codec(), packed);
    let total_ns = took.copy_ns + took.pack_ns + took.send_ns;
    let sent = |ns: u64| Sample { bytes_in: 0, bytes_out: bytes, micros: micros(ns).max(1) };
    if took.send_ns * 2 >= total_ns {
        *idle = 0;
        return choice.sent(sent(wall_ns));
    }
    *idle += 1;
    if *idle >= IDLE_MAX {
        *idle = 0;
        choice.forget_link();
    }
    match choice.link() {
        // Fast, as far as can be seen: whether it is will be seen with less packing.
        None => choice.sent(sent(wall_ns.min(took.send_ns))),
        Some(link)
            if u128::from(bytes) * 1_000_000_000 > u128::from(link) * u128::from(wall_ns) =>
        {
            choice.sent(sent(wall_ns));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a host measures that copies, packs and sends one after the other: bytes per second that a CPU packs, with
    /// which gain in tenths, and that the link takes. The codec after so many windows.
    fn settle(choice: &mut CodecChoice, link: u64, windows: u32) -> Codec {
        let mut idle = 0;
        for _ in 0..windows {
            let (rate, gain) = match choice.codec() {
                Codec::None => (4000, 10),
                Codec::Lz4 => (400, 18),
                Codec::Zstd => (220, 25),
            };
            let raw = 40_000_000_u64;
            let stored = raw * 10 / gain;
            let [copy_ns, pack_ns] = [2000, rate].map(|rate| raw * 1000 / rate);
            // The link drains its buffer while the next pages are packed.
            let send_ns = (stored * 1000 / link).saturating_sub(copy_ns + pack_ns).max(stored / 4);
            let took = Took { copy_ns, pack_ns, send_ns };
            let wall_ns = copy_ns + pack_ns + send_ns;
            learn(choice, &mut idle, Window { took, raw, stored, bytes: stored, wall_ns });
            choice.choose();
        }
        choice.codec()
    }

    #[test]
    fn a_slow_link_gets_what_packs_best_and_a_fast_one_what_costs_least() {
        for (link, expected) in
            [(10, Codec::Zstd), (60, Codec::Zstd), (150, Codec::Lz4), (1200, Codec::None)]
        {
            assert_eq!(settle(&mut CodecChoice::new(1), link, 50), expected, "{link} MB/s");
        }
    }

    #[test]
    fn a_link_that_becomes_faster_or_slower_is_noticed() {
        let mut choice = CodecChoice::new(1);
        assert_eq!(settle(&mut choice, 1200, 50), Codec::None);
        assert_eq!(settle(&mut choice, 20, 50), Codec::Zstd);
        assert_eq!(settle(&mut choice, 1200, 2 * IDLE_MAX), Codec::None);
    }
}
