//! The bytes of files of saved VMs, in whichever format.

use migrate::image::{
    Codec, Fact, FileReader, Head, ImageError, Limits, ReadAt, ReadError, Weight, Writer,
};
use migrate::libxc::{Headers, PageData, Record};
use xen::{DomainInfo, Uuid};

use super::failure;
use crate::config::VmConfig;
use crate::host::{ImageSink, ImageSource};
use crate::saved::{FileFormat, SaveTo};
use crate::work::Failure;

/// Bytes of one write: the disk is at its best with few large ones.
const WRITE_BYTES: usize = 4 << 20;

/// The fact that tells the files of two saves apart.
pub(super) const SAVE_ID: &str = "save-id";

/// Highest page of a file that is read: 16 TiB, as much as a host can have.
pub(super) const LIMITS: Limits = Limits { pfn_max: (1 << 32) - 1, known_facts: &[SAVE_ID] };

/// A file that is being written.
pub(super) struct SaveWriter {
    path: String,
    sink: Box<dyn ImageSink>,
    /// `None` once it has ended.
    writer: Option<Writer>,
    out: Vec<u8>,
    /// Bytes that were in it and are in the file.
    written: u64,
    /// So much is kept before it is written.
    held: usize,
}

impl SaveWriter {
    /// Begins with what does not change: `of` is the domain, its headers and the time, in seconds.
    pub(super) fn new(
        sink: Box<dyn ImageSink>,
        to: &SaveTo,
        config: &VmConfig,
        uuid: Uuid,
        (info, headers, created): (&DomainInfo, Headers, u64),
    ) -> Result<Self, Failure> {
        if to.format == FileFormat::Xl {
            return Err(Failure(format!("{}: xl's format is not written yet", to.path)));
        }
        let id =
            Fact { key: SAVE_ID.to_owned(), value: to.id.0.to_vec(), weight: Weight::Optional };
        let head = Head {
            name: config.name.clone(),
            uuid: uuid.0,
            config: config.to_cfg_text(),
            headers,
            pages_max: info.pages_max,
            vcpus: config.vcpus_max,
            created,
            facts: vec![id],
        };
        let mut out = Vec::with_capacity(WRITE_BYTES + (1 << 20));
        let writer = Some(Writer::file(&head, Codec::Lz4, &mut out));
        Ok(Self { path: to.path.clone(), sink, writer, out, written: 0, held: WRITE_BYTES })
    }

    /// Bytes so far, those that are kept included.
    pub(super) fn bytes(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Keeps up to this much before it is written.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held = bytes;
    }

    fn with(&mut self, put: impl FnOnce(&mut Writer, &mut Vec<u8>)) -> Result<(), Failure> {
        put(self.writer.as_mut().expect("it has not ended"), &mut self.out);
        if self.out.len() >= self.held { self.flush() } else { Ok(()) }
    }

    pub(super) fn record(&mut self, record: &Record) -> Result<(), Failure> {
        self.with(|writer, out| writer.record(record, out))
    }

    pub(super) fn pages(&mut self, pages: &PageData) -> Result<(), Failure> {
        self.with(|writer, out| writer.pages(pages, out))
    }

    pub(super) fn end_round(&mut self) -> Result<(), Failure> {
        self.with(|writer, out| writer.end_round(out))
    }

    /// All was said.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        self.writer.take().expect("it ends once").finish(&mut self.out);
        if self.out.len() >= self.held { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        for chunk in self.out.chunks(WRITE_BYTES) {
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
    pub(super) fn reader(&self) -> Result<FileReader, ImageError> {
        FileReader::open(self, LIMITS)
    }
}

/// Of the save that wrote a file.
pub(super) fn save_id(head: &Head) -> Option<Uuid> {
    Some(Uuid(head.fact(SAVE_ID)?.try_into().ok()?))
}
