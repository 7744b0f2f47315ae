//! Files of saved VMs: what they say of themselves, and how their state gets into a new domain.

use std::ops::ControlFlow;

use migrate::image::{FileReader, ImageError, is_image};
use migrate::libxc::{DomainType, Record};
use migrate::{Channel, Load, LoadError, Target};
use storage::HostError;
use xen::{DomId, DomainKind, Hypervisor, Uuid};
use xen_build::{Built, RestoredConfig};
use xenstore::client::Transport;

use super::build::{PAGES_PER_MIB, memory_failure};
use super::saved_file::{OpenFile, save_id};
use super::{Performer, failure};
use crate::config::VmConfig;
use crate::host::Host;
use crate::saved::{FileFormat, SavedFile, Saving};
use crate::work::{Failure, NewDomain, Part, WorkMonitor};

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn open_saved(&mut self, path: &str) -> Result<OpenFile, Failure> {
        let source = self.host.open_image(path);
        source.map(OpenFile).map_err(|error| failure(path, error))
    }

    /// What a file says of itself. It is checked to be whole; its pages are when they are loaded.
    pub(crate) fn read_saved(&mut self, path: &str) -> Result<SavedFile, Failure> {
        let file = self.open_saved(path)?;
        let reader = open(path, &file)?;
        let head = reader.head();
        Ok(SavedFile {
            path: path.to_owned(),
            bytes: file.0.bytes(),
            format: FileFormat::Xylem,
            id: save_id(head),
            name: head.name.clone(),
            uuid: Uuid(head.uuid),
            config_text: head.config.clone(),
            headers: head.headers,
            vcpus: head.vcpus,
            pages_max: head.pages_max,
        })
    }

    /// Checks that the file is still the one that was read, and that the host has the memory.
    pub(crate) fn check_saved(
        &mut self,
        config: &VmConfig,
        file: &SavedFile,
    ) -> Result<(), Failure> {
        if self.read_saved(&file.path)? != *file {
            return Err(Failure(format!("{}: has changed meanwhile; try again", file.path)));
        }
        let needs = xen_build::check_restored(&restored(config));
        let needs = needs.map_err(|error| failure(config.origin.at("memory"), error))?;
        let physical =
            self.xen.phys_info().map_err(|errno| failure("the host's free memory", errno))?;
        let unclaimed = physical.pages_free.saturating_sub(physical.pages_outstanding);
        match needs.host_pages > unclaimed {
            true => Err(memory_failure(config, needs.host_pages, &physical)),
            false => Ok(()),
        }
    }

    /// Fills a new domain with a saved one's state.
    pub(crate) fn load_state(
        &mut self,
        config: &VmConfig,
        file: &SavedFile,
        domain: NewDomain,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Built, Failure> {
        let path = &file.path;
        let source = self.open_saved(path)?;
        let reader = open(path, &source)?;
        if save_id(reader.head()) != file.id || source.0.bytes() != file.bytes {
            return Err(Failure(format!("{path}: has changed meanwhile; try again")));
        }
        let channel = |port| Channel { port, backend: DomId::DOM0 };
        let domid = domain.domain.domid;
        let target = Target {
            domid,
            domain: match config.kind {
                DomainKind::Pv => DomainType::Pv,
                DomainKind::Pvh | DomainKind::Hvm => DomainType::Hvm,
            },
            pages_max: restored(config).pages_max(),
            vcpus_max: config.vcpus_max,
            store: channel(domain.store_port),
            console: channel(domain.console_port),
        };
        let load = Load::new(target, file.headers).map_err(|error| failure(path, error))?;
        let loaded = self.load_parts(path, (&source, &reader), load, monitor);
        xen_build::end_claim(&mut self.xen, domid);
        loaded
    }

    fn load_parts(
        &mut self,
        path: &str,
        (source, reader): (&OpenFile, &FileReader),
        mut load: Load,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Built, Failure> {
        let damaged = |error: ImageError| unreadable(path, &error);
        let refused = |error: LoadError| failure(path, error);
        for record in reader.before_pages(source).map_err(damaged)? {
            load.apply(&mut self.xen, record).map_err(refused)?;
        }
        let total = source.0.bytes().div_ceil(1 << 20);
        let mut bytes = 0;
        for part in 0..reader.parts() {
            let pages = reader.part(source, part).map_err(damaged)?.into_page_data();
            load.apply(&mut self.xen, Record::PageData(pages)).map_err(refused)?;
            bytes += reader.part_bytes(part);
            let part = Part { done: bytes >> 20, total, unit: "MiB" };
            if monitor.reached(part) == ControlFlow::Break(()) {
                return Err(Failure(format!("{path}: the restore was cancelled")));
            }
        }
        let (records, _emulators) = reader.after_pages(source).map_err(damaged)?;
        for record in records.into_iter().chain([Record::End]) {
            load.apply(&mut self.xen, record).map_err(refused)?;
        }
        let loaded = load.finish(&mut self.xen).map_err(refused)?;
        let (store_frame, console_frame) = (loaded.store_frame, loaded.console_frame);
        Ok(Built { store_frame, console_frame, entry: 0, pages: loaded.pages })
    }

    /// Whether a file is whole and was written by this save.
    pub(super) fn is_of_save(&mut self, saving: &Saving) -> Result<bool, Failure> {
        let path = &saving.path;
        let file = match self.host.open_image(path) {
            Ok(source) => OpenFile(source),
            Err(HostError::Missing) => return Ok(false),
            Err(error) => return Err(failure(path, error)),
        };
        match file.reader() {
            Ok(reader) => Ok(save_id(reader.head()) == Some(saving.id)),
            Err(ImageError::Stream(_)) => Ok(false),
            Err(error @ ImageError::Read(_)) => Err(unreadable(path, &error)),
        }
    }
}

fn open(path: &str, file: &OpenFile) -> Result<FileReader, Failure> {
    let mut start = [0; 8];
    let read = file.0.read_at(0, &mut start).map_err(|error| failure(path, error))?;
    if !is_image(&start[..read]) {
        return Err(Failure(format!("{path}: is not the file of a saved VM")));
    }
    file.reader().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &str, error: &ImageError) -> Failure {
    match error {
        ImageError::Read(error) => failure(path, error),
        ImageError::Stream(error) => {
            Failure(format!("{path}: is damaged or incomplete, and cannot be restored: {error}"))
        }
    }
}

/// The sizes of the domain.
pub(super) fn restored(config: &VmConfig) -> RestoredConfig {
    RestoredConfig {
        kind: config.kind,
        memory_pages: config.memory_mib * PAGES_PER_MIB,
        memory_pages_max: config.memory_max_mib * PAGES_PER_MIB,
        vcpus: config.vcpus_max,
    }
}
