//! Writes a domain's memory to a core file.
//!
//! A file has its name when it is whole. A guest that is paused for it goes on in any case: its record says so, in case
//! this daemon is killed.

use std::ops::ControlFlow;

use migrate::libxc::PageData;
use migrate::{CaptureError, Dump};
use storage::HostError;
use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::build::PAGES_PER_MIB;
use super::save::PATH_BYTES_MAX;
use super::{Performer, failure, refused, store};
use crate::host::{Host, ImageSink};
use crate::saved::{AfterSave, DUMP_FOLDER, DumpTo, FileFormat, Guest, SaveEnd, SaveStage, Saving};
use crate::work::{Failure, IdentityCheck, Part, WorkMonitor};

/// A VM to be dumped, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DumpOf<'a> {
    pub(crate) domain: DomainRef,
    pub(crate) uuid: Uuid,
    pub(crate) name: &'a str,
    pub(crate) to: &'a DumpTo,
}

impl DumpOf<'_> {
    fn read<T>(&self, result: Result<T, CaptureError>) -> Result<T, Failure> {
        result.map_err(|error| failure(format_args!("{}: cannot be dumped", self.name), error))
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Writes a core file. After a failure there is none, and the guest is as before.
    pub(crate) fn dump(
        &mut self,
        of: DumpOf<'_>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let DumpOf { domain, uuid, name, to } = of;
        let domid = domain.domid;
        self.check_identity(domain, IdentityCheck::Needed)?;
        if to.path.len() > PATH_BYTES_MAX {
            return Err(Failure(format!("{}: the path is too long", to.path)));
        }
        if to.path.starts_with(DUMP_FOLDER) {
            let made = self.host.system().make_folder(DUMP_FOLDER);
            made.map_err(|error| failure(DUMP_FOLDER, error))?;
        }
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.ok_or_else(|| Failure(format!("{name}: its domain is gone")))?;
        let runs = !info.flags.paused() && info.flags.shutdown().is_none();
        let pauses = runs && to.guest == Guest::Pauses;
        let after = if pauses { AfterSave::Running } else { AfterSave::Paused };
        let stage = SaveStage::Dumping;
        let (format, id, path) = (FileFormat::Xylem, to.id, to.path.clone());
        let dumping = Saving { stage, after, format, id, path };
        // First, so that a later daemon lets the guest go on and finds what is left of the file.
        store::keep_saving(&mut self.store, domid, uuid, &dumping)?;
        let mut result = match pauses {
            true => self.xen.pause_domain(domid).map_err(refused("pause", domid)),
            false => Ok(()),
        };
        if result.is_ok() {
            result = self.write_dump(of, monitor);
            if pauses {
                let unpaused = self.xen.unpause_domain(domid).map_err(refused("unpause", domid));
                result = result.and(unpaused);
            }
        }
        let _settled_later = store::forget_saving(&mut self.store, uuid);
        result
    }

    fn write_dump(&mut self, of: DumpOf<'_>, monitor: &mut dyn WorkMonitor) -> Result<(), Failure> {
        let path = &of.to.path;
        let mut dump = of.read(Dump::prepare(&mut self.xen, of.domain.domid))?;
        let mut sink = self.host.create_image(path).map_err(|error| match error {
            HostError::Busy => failure(path, "somebody else is writing it now"),
            error => failure(path, error),
        })?;
        let put = |sink: &mut Box<dyn ImageSink>, bytes: &[u8]| {
            sink.write(bytes).map_err(|error| failure(path, error))
        };
        put(&mut sink, dump.head())?;
        let total = dump.pages().div_ceil(PAGES_PER_MIB);
        let (mut batch, mut done) = (PageData::default(), 0);
        while of.read(dump.next(&mut self.xen, &mut batch))? {
            put(&mut sink, &batch.data)?;
            done += batch.pages.len() as u64;
            let part = Part { done: (done / PAGES_PER_MIB).min(total), total, unit: "MiB" };
            if monitor.reached(part) == ControlFlow::Break(()) {
                return Err(Failure(format!("{}: the dump was cancelled", of.name)));
            }
        }
        for piece in dump.tail() {
            put(&mut sink, &piece)?;
        }
        sink.commit().map_err(|error| failure(path, error))
    }

    /// Lets a guest go on that a killed daemon was dumping, and removes its file unless that is whole.
    pub(super) fn settle_dump(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        saving: &Saving,
    ) -> Result<SaveEnd, Failure> {
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let is_paused = info.is_some_and(|info| info.flags.paused());
        if saving.after == AfterSave::Running && is_paused {
            self.xen.unpause_domain(domid).map_err(refused("unpause", domid))?;
        }
        self.remove_unfinished(&saving.path)?;
        store::forget_saving(&mut self.store, uuid)?;
        Ok(if saving.after == AfterSave::Running { SaveEnd::RunsOn } else { SaveEnd::IsAsBefore })
    }
}
