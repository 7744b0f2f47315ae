//! A guest's image as it leaves for another host: packed by what the link takes.

use migrate::image::{Codec, CodecChoice, Sample, Writer};
use migrate::libxc::{PageData, Record};
use migrate::libxl;
use migrate::peer::DATA_BYTES_MAX;
use migrate::rounds;

use crate::channel::{Conversation, Silence};
use crate::work::Flow;

/// Asked while something waits: whether it is to end.
pub(super) type Stop<'a> = &'a mut dyn FnMut() -> bool;

/// Whose form the image has.
pub(super) enum Form {
    Own(Writer),
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
}

/// Long enough for the buffers of sockets not to matter.
const WINDOW_NS: u64 = 100_000_000;
const MICROSECOND: u64 = 1000;
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
}

impl<'a> Outgoing<'a> {
    /// With which one begins.
    pub(super) const CODEC: Codec = Codec::Lz4;

    pub(super) fn begin(with: &'a mut Conversation, form: Form, out: Vec<u8>) -> Self {
        Self {
            with,
            form: Some(form),
            out,
            bytes: 0,
            choice: CodecChoice::new(1),
            window: Window::default(),
            since: Window::default(),
            idle: 0,
        }
    }

    fn form(&mut self) -> &mut Form {
        self.form.as_mut().expect("it has not ended")
    }

    /// Bytes that have left.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn record(&mut self, record: &Record) {
        let mut out = std::mem::take(&mut self.out);
        match self.form() {
            Form::Own(writer) => writer.record(record, &mut out),
            Form::Xl => record.encode(&mut out),
        }
        self.out = out;
    }

    /// The pages come back as they were.
    pub(super) fn pages(&mut self, pages: &mut PageData) {
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
    }

    pub(super) fn end_round(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        match self.form() {
            Form::Own(writer) => writer.end_round(&mut out),
            Form::Xl => {}
        }
        self.out = out;
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

    pub(super) fn end(mut self, stop: Stop<'_>) -> Result<(), Silence> {
        match self.form.take().expect("it ends once") {
            Form::Own(writer) => writer.finish(&mut self.out),
            Form::Xl => {
                Record::End.encode(&mut self.out);
                libxl::Record::End.encode(&mut self.out);
                self.form = Some(Form::Xl);
            }
        }
        self.flush(stop)
    }

    /// What is told of it.
    pub(super) fn flow(&self, rounds: rounds::Progress) -> Flow {
        let codec = match self.form {
            Some(Form::Own(_)) | None => Some(self.choice.codec()),
            Some(Form::Xl) => None,
        };
        Flow { rounds, codec, lanes: 1 }
    }

    /// A batch has left. Chooses the codec for those that follow.
    pub(super) fn took(&mut self, took: Took) {
        let Some(Form::Own(writer)) = &mut self.form else { return };
        let window = &mut self.window;
        window.took.copy_ns += took.copy_ns;
        window.took.pack_ns += took.pack_ns;
        window.took.send_ns += took.send_ns;
        let total_ns = window.took.copy_ns + window.took.pack_ns + window.took.send_ns;
        if total_ns < WINDOW_NS {
            return;
        }
        let counts = writer.counts();
        window.raw = counts.raw_bytes - self.since.raw;
        window.stored = counts.stored_bytes - self.since.stored;
        window.bytes = self.bytes - self.since.bytes;
        let window = std::mem::take(window);
        self.since.raw += window.raw;
        self.since.stored += window.stored;
        self.since.bytes += window.bytes;
        learn(&mut self.choice, &mut self.idle, window);
        writer.set_codec(self.choice.choose());
    }
}

/// Takes over what was measured. A link that had to wait for pages says only that it is as fast as they came.
fn learn(choice: &mut CodecChoice, idle: &mut u32, window: Window) {
    let Window { took, raw, stored, bytes } = window;
    let micros = |ns: u64| ns / MICROSECOND;
    let packed = Sample { bytes_in: raw, bytes_out: stored, micros: micros(took.pack_ns) };
    choice.compressed(choice.codec(), packed);
    let total_ns = took.copy_ns + took.pack_ns + took.send_ns;
    let sent = |ns: u64| Sample { bytes_in: 0, bytes_out: bytes, micros: micros(ns).max(1) };
    if took.send_ns * 2 >= total_ns {
        *idle = 0;
        return choice.sent(sent(total_ns));
    }
    *idle += 1;
    if *idle >= IDLE_MAX {
        *idle = 0;
        choice.forget_link();
    }
    match choice.link() {
        // Fast, as far as can be seen: whether it is will be seen with less packing.
        None => choice.sent(sent(took.send_ns)),
        Some(link)
            if u128::from(bytes) * 1_000_000_000 > u128::from(link) * u128::from(total_ns) =>
        {
            choice.sent(sent(total_ns));
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
            learn(choice, &mut idle, Window { took, raw, stored, bytes: stored });
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
