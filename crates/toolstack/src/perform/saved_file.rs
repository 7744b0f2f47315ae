//! The bytes of files of saved VMs, in whichever format.

use migrate::image::{
    self, Codec, Effort, Fact, FileReader, Head, ImageError, Limits, ReadAt, ReadError, Weight,
    Writer,
};
use migrate::libxc::{self, Headers, PageData, Record};
use migrate::{Input, StreamError, libxl, save_file};
use xen::{DomainInfo, Uuid};

use super::failure;
use crate::checkpoint::{SavedDisk, decode_disks, encode_disks};
use crate::config::VmConfig;
use crate::device_model::ModelState;
use crate::host::{ImageSink, ImageSource};
use crate::libxl_json;
use crate::saved::{FileFormat, SaveTo};
use crate::work::Failure;

/// Bytes of one write or read. The kernel makes larger ones of them; memory that is new to the process is dearer than calls.
const CHUNK_BYTES: usize = 512 << 10;
/// After so many bytes in the file it is looked at whether the disk or packing was slower. Not fewer than are written before
/// the disk is waited for.
const EFFORT_BYTES: u64 = 64 << 20;

/// The snapshots that belong to a checkpoint: its memory fits no others.
const DISKS: &str = "disks";
/// The fact that tells the files of two saves apart.
const SAVE_ID: &str = "save-id";
/// Likewise in libxl's JSON, whose readers skip what they do not know.
const SAVE_ID_KEY: &str = "xylem_save_id";

/// Highest page of a file that is read: 16 TiB, as much as a host can have.
const PFN_MAX: u64 = (1 << 32) - 1;
const LIMITS: Limits = Limits { pfn_max: PFN_MAX, known_facts: &[SAVE_ID, DISKS] };

/// What the file of a saved VM begins with.
pub(super) struct Beginning<'a> {
    pub(super) to: &'a SaveTo,
    pub(super) config: &'a VmConfig,
    pub(super) uuid: Uuid,
    pub(super) info: &'a DomainInfo,
    pub(super) headers: Headers,
    /// In seconds since 1970.
    pub(super) created: u64,
}

impl Beginning<'_> {
    fn head(&self) -> Head {
        let id = Fact {
            key: SAVE_ID.to_owned(),
            value: self.to.id.0.to_vec(),
            weight: Weight::Optional,
        };
        let mut facts = vec![id];
        if !self.to.disks.is_empty() {
            let value = encode_disks(&self.to.disks).into_bytes();
            facts.push(Fact { key: DISKS.to_owned(), value, weight: Weight::Essential });
        }
        Head {
            name: self.config.name.clone(),
            uuid: self.uuid.0,
            config: self.config.to_cfg_text(),
            headers: self.headers,
            pages_max: self.info.pages_max,
            vcpus: self.config.vcpus_max,
            created: self.created,
            facts,
        }
    }

    /// Everything up to libxc's first record.
    fn xl(&self, out: &mut Vec<u8>) -> Result<(), Failure> {
        let config = VmConfig { uuid: Some(self.uuid), ..self.config.clone() };
        let json = libxl_json::to_json(&config).map_err(|error| failure(&config.name, error))?;
        let id = format!("{{\n    \"{SAVE_ID_KEY}\": \"{}\",", self.to.id);
        save_file::encode(&json.replacen('{', &id, 1), out);
        libxl::encode_header(out);
        libxl::Record::LibxcContext.encode(out);
        self.headers.encode(out);
        Ok(())
    }
}

enum Format {
    Xylem(Box<Writer>),
    Xl,
}

/// A file that is being written.
pub(super) struct SaveWriter {
    path: String,
    sink: Box<dyn ImageSink>,
    /// `None` once it has ended.
    format: Option<Format>,
    out: Vec<u8>,
    /// Bytes that were in it and are in the file.
    written: u64,
    /// So much is kept before it is written.
    held: usize,
    effort: Effort,
    /// How long packing and writing took since `judged` bytes were written.
    packed_ns: u64,
    written_ns: u64,
    judged: u64,
}

impl SaveWriter {
    pub(super) fn new(
        sink: Box<dyn ImageSink>,
        beginning: &Beginning<'_>,
    ) -> Result<Self, Failure> {
        let mut out = Vec::with_capacity(CHUNK_BYTES + (1 << 20));
        let format = match beginning.to.format {
            FileFormat::Xylem => {
                Format::Xylem(Box::new(Writer::file(&beginning.head(), Codec::Zstd, &mut out)))
            }
            FileFormat::Xl => {
                beginning.xl(&mut out)?;
                Format::Xl
            }
        };
        let path = beginning.to.path.clone();
        Ok(Self {
            path,
            sink,
            format: Some(format),
            out,
            written: 0,
            held: CHUNK_BYTES,
            effort: Effort::OF_A_FILE,
            packed_ns: 0,
            written_ns: 0,
            judged: 0,
        })
    }

    /// Bytes so far, those that are kept included.
    pub(super) fn bytes(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Keeps up to this much before it is written.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held = bytes;
    }

    fn with(&mut self, put: impl FnOnce(&mut Format, &mut Vec<u8>)) -> Result<(), Failure> {
        put(self.format.as_mut().expect("it has not ended"), &mut self.out);
        self.write()
    }

    pub(super) fn record(&mut self, record: &Record) -> Result<(), Failure> {
        self.with(|format, out| match format {
            Format::Xylem(writer) => writer.record(record, out),
            Format::Xl => record.encode(out),
        })
    }

    /// Packs pages, which come back as they were. What has become enough is [written](Self::write).
    pub(super) fn pages(&mut self, pages: &mut PageData) {
        match self.format.as_mut().expect("it has not ended") {
            Format::Xylem(writer) => writer.pages(pages, &mut self.out),
            Format::Xl => {
                let record = Record::PageData(std::mem::take(pages));
                record.encode(&mut self.out);
                let Record::PageData(same) = record else { unreachable!("as made above") };
                *pages = same;
            }
        }
    }

    /// How long packing and writing took of what came since the last time.
    pub(super) fn took(&mut self, packed_ns: u64, written_ns: u64) {
        self.packed_ns += packed_ns;
        self.written_ns += written_ns;
        if self.written - self.judged < EFFORT_BYTES {
            return;
        }
        self.judged = self.written;
        let (packed_ns, written_ns) =
            (std::mem::take(&mut self.packed_ns), std::mem::take(&mut self.written_ns));
        if let Some(Format::Xylem(writer)) = &mut self.format {
            self.effort = self.effort.after(packed_ns, written_ns);
            writer.set_effort(self.effort);
        }
    }

    pub(super) fn end_round(&mut self) -> Result<(), Failure> {
        self.with(|format, out| match format {
            Format::Xylem(writer) => writer.end_round(out),
            Format::Xl => {}
        })
    }

    /// All was said, but for the state of a device model.
    pub(super) fn end(&mut self, model: Option<&ModelState>) -> Result<(), Failure> {
        let records = model.map(ModelState::records);
        let records = records.iter().flatten();
        match self.format.take().expect("it ends once") {
            Format::Xylem(mut writer) => {
                records.for_each(|record| writer.emulator(record, &mut self.out));
                writer.finish(&mut self.out);
            }
            Format::Xl => {
                Record::End.encode(&mut self.out);
                records.for_each(|record| record.encode(&mut self.out));
                libxl::Record::End.encode(&mut self.out);
            }
        }
        self.write()
    }

    /// Writes what was packed, if it has become enough.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        if self.out.len() >= self.held { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        for chunk in self.out.chunks(CHUNK_BYTES) {
            self.sink.write(chunk).map_err(|error| failure(&self.path, error))?;
        }
        self.written += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Gives the file its name.
    pub(super) fn commit(mut self) -> Result<(), Failure> {
        self.flush()?;
        self.sink.commit().map_err(|error| failure(&self.path, error))
    }
}

/// A file that is being read.
pub(super) struct OpenFile(pub(super) Box<dyn ImageSource>);

impl ReadAt for OpenFile {
    fn length(&self) -> Result<u64, ReadError> {
        Ok(self.0.bytes())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        match self.0.read_at(offset, bytes) {
            Ok(read) if read == bytes.len() => Ok(()),
            Ok(_) => Err(ReadError("it has become shorter".to_owned())),
            Err(error) => Err(ReadError(error.to_string())),
        }
    }
}

impl OpenFile {
    /// Whose file it is; `None` if it is of no saved VM.
    pub(super) fn format(&self) -> Result<Option<FileFormat>, ReadError> {
        let mut start = [0; 32];
        let read = self.0.read_at(0, &mut start).map_err(|error| ReadError(error.to_string()))?;
        let start = &start[..read];
        Ok(if image::is_image(&start[..read.min(8)]) {
            Some(FileFormat::Xylem)
        } else if save_file::is_one(start) {
            Some(FileFormat::Xl)
        } else {
            None
        })
    }

    pub(super) fn reader(&self) -> Result<FileReader, ImageError> {
        FileReader::open(self, LIMITS)
    }

    /// Reads a file of xl up to libxc's headers.
    pub(super) fn xl(&self) -> Result<XlReader<'_>, ImageError> {
        let length = self.0.bytes();
        // The end of libxl's stream. A file that was cut off has something else there.
        let mut end = [0xff; 8];
        self.read_at(length.saturating_sub(8), &mut end)?;
        if end != [0; 8] {
            let fault = migrate::Fault::Truncated;
            return Err(StreamError { place: "the end of the file".to_owned(), fault }.into());
        }
        let (input, parser) = (Input::new(), libxl::Parser::new(PFN_MAX));
        let mut reader = XlReader {
            file: self,
            offset: 0,
            input,
            parser,
            json: String::new(),
            headers: None,
            buffer: vec![0; CHUNK_BYTES.min(usize::try_from(length).unwrap_or(CHUNK_BYTES))],
        };
        loop {
            if let Some(json) = save_file::parse(&mut reader.input)? {
                reader.json = json;
                break;
            }
            reader.feed()?;
        }
        while reader.headers.is_none() {
            match reader.next()? {
                Some(libxl::Item::Libxc(libxc::Item::Headers(headers))) => {
                    reader.headers = Some(headers);
                }
                Some(_) => {}
                None => {
                    let fault = migrate::Fault::Missing("a domain's state");
                    return Err(StreamError { place: "the file".to_owned(), fault }.into());
                }
            }
        }
        Ok(reader)
    }
}

/// Reads a file of xl in order.
pub(super) struct XlReader<'a> {
    file: &'a OpenFile,
    offset: u64,
    input: Input,
    parser: libxl::Parser,
    /// The VM's configuration.
    pub(super) json: String,
    headers: Option<Headers>,
    buffer: Vec<u8>,
}

impl XlReader<'_> {
    pub(super) fn headers(&self) -> Headers {
        self.headers.expect("read when it was opened")
    }

    /// Bytes so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Of the save that wrote it, if it was ours.
    pub(super) fn save_id(&self) -> Option<Uuid> {
        let (_, rest) = self.json.split_once(&format!("\"{SAVE_ID_KEY}\": \""))?;
        rest.split_once('"')?.0.parse().ok()
    }

    fn feed(&mut self) -> Result<(), ReadError> {
        let read = self.file.0.read_at(self.offset, &mut self.buffer);
        let read = read.map_err(|error| ReadError(error.to_string()))?;
        self.offset += read as u64;
        match read {
            0 => self.input.end(),
            read => self.input.feed(&self.buffer[..read]),
        }
        Ok(())
    }

    /// The next item; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<libxl::Item>, ImageError> {
        loop {
            if let Some(item) = self.parser.next(&mut self.input)? {
                return Ok(Some(item));
            }
            if self.parser.has_ended() {
                return Ok(None);
            }
            self.feed()?;
        }
    }
}

/// The snapshots that belong to a file; `None` if it says nothing sensible.
pub(super) fn disks(head: &Head) -> Option<Vec<SavedDisk>> {
    head.fact(DISKS).map_or(Some(Vec::new()), decode_disks)
}

/// Of the save that wrote a file.
pub(super) fn save_id(head: &Head) -> Option<Uuid> {
    Some(Uuid(head.fact(SAVE_ID)?.try_into().ok()?))
}
