//! Files of saved VMs: what they say of themselves, and how their state gets into a new domain.

use std::ops::ControlFlow;

use migrate::image::ImageError;
use migrate::libxc::{self, DomainType, Record};
use migrate::{Channel, Load, LoadError, Loaded, Target, libxl};
use storage::HostError;
use xen::{DomId, DomainKind, Hypervisor, Uuid};
use xen_build::{Built, RestoredConfig, Tables};
use xenstore::client::Transport;

use super::build::{PAGES_PER_MIB, more_for_pool};
use super::model::ModelRecords;
use super::saved_file::{OpenFile, disks, save_id};
use super::{Performer, failure};
use crate::config::VmConfig;
use crate::host::Host;
use crate::libxl_json;
use crate::saved::{FileFormat, HOST_FOLDER, HostSave, SavedFile, Saving};
use crate::work::{Failure, LoadedVm, NewDomain, Part, WorkMonitor};

/// The domain that a guest is loaded into.
pub(super) fn target(config: &VmConfig, domain: NewDomain) -> Target {
    let channel = |port| Channel { port, backend: DomId::DOM0 };
    Target {
        domid: domain.domain.domid,
        domain: match config.kind {
            DomainKind::Pv => DomainType::Pv,
            DomainKind::Pvh | DomainKind::Hvm => DomainType::Hvm,
        },
        pages_max: restored(config).pages_max(),
        vcpus_max: config.vcpus_max,
        store: channel(domain.store_port),
        console: channel(domain.console_port),
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn open_saved(&mut self, path: &str) -> Result<OpenFile, Failure> {
        let source = self.host.open_image(path);
        source.map(OpenFile).map_err(|error| failure(path, error))
    }

    /// What a file says of itself. It is checked to be whole; its pages are when they are loaded.
    pub(crate) fn read_saved(&mut self, path: &str) -> Result<SavedFile, Failure> {
        let file = self.open_saved(path)?;
        match file.format().map_err(|error| failure(path, error))? {
            None => Err(Failure(format!("{path}: is not the file of a saved VM"))),
            Some(FileFormat::Xylem) => read_own(path, &file),
            Some(FileFormat::Xl) => read_xl(path, &file),
        }
    }

    /// Whether there are files that were written when the host was shut down, as far as can be seen.
    pub(super) fn has_host_saves(&mut self) -> bool {
        self.host.system().list(HOST_FOLDER).map_or(true, |names| !names.is_empty())
    }

    /// What the files say that were written when the host was shut down, or why they cannot be read.
    pub(crate) fn read_host_saves(&mut self) -> Result<Vec<HostSave>, Failure> {
        let listed = self.host.system().list(HOST_FOLDER);
        let names = listed.map_err(|error| failure(HOST_FOLDER, error))?;
        let mut saves = Vec::new();
        for name in names {
            let Ok(uuid) = name.parse::<Uuid>() else { continue };
            let path = format!("{HOST_FOLDER}/{name}");
            let file = match self.read_saved(&path) {
                Ok(file) if file.uuid == uuid => Ok(Box::new(file)),
                Ok(_) => Err(format!("{path}: is another VM's")),
                Err(Failure(why)) => Err(why),
            };
            saves.push(HostSave { uuid, path, file });
        }
        Ok(saves)
    }

    /// Checks that the file is still the one that was read, and that the host has the memory.
    pub(crate) fn check_saved(
        &mut self,
        config: &VmConfig,
        file: &SavedFile,
    ) -> Result<(), Failure> {
        if self.read_saved(&file.path)? != *file {
            return Err(changed(file));
        }
        self.check_model(config)?;
        let needs = xen_build::check_restored(&restored(config));
        let needs = needs.map_err(|error| failure(config.origin.at("memory"), error))?;
        let pages = needs.host_pages + more_for_pool(config);
        self.check_room(config, pages).map(drop)
    }

    /// Fills a new domain with a saved one's state.
    pub(crate) fn load_state(
        &mut self,
        config: &VmConfig,
        file: &SavedFile,
        domain: NewDomain,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<LoadedVm, Failure> {
        let path = &file.path;
        let source = self.open_saved(path)?;
        let domid = domain.domain.domid;
        let load = Load::new(target(config, domain), file.headers)
            .map_err(|error| failure(path, error))?;
        let loaded = match file.format {
            FileFormat::Xylem => self.load_own(file, &source, load, monitor),
            FileFormat::Xl => self.load_xl(file, &source, load, monitor),
        };
        let finished = self.finish_loading(config, domid);
        let (loaded, model) = loaded?;
        finished?;
        if let Some(id) = domain.generation_id {
            self.tell_generation(domid, id)?;
        }
        let model = model.finish(config).map_err(|why| failure(path, why))?;
        Ok(LoadedVm { built: built(loaded), model })
    }

    /// However loading a domain's memory went.
    pub(super) fn finish_loading(
        &mut self,
        config: &VmConfig,
        domid: DomId,
    ) -> Result<(), Failure> {
        let finished = xen_build::finish_restored(&mut self.xen, domid, &restored(config));
        finished.map_err(|error| failure(config.origin.at("memory"), error))
    }

    /// Reads the newest copy of each page, in any order.
    fn load_own(
        &mut self,
        file: &SavedFile,
        source: &OpenFile,
        mut load: Load,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(Loaded, ModelRecords), Failure> {
        let path = file.path.as_str();
        let damaged = |error: ImageError| unreadable(path, &error);
        let refused = |error: LoadError| failure(path, error);
        let reader = source.reader().map_err(damaged)?;
        is_same(file, save_id(reader.head()), source)?;
        for record in reader.before_pages(source).map_err(damaged)? {
            load.apply(&mut self.xen, record).map_err(refused)?;
        }
        load.expect(&mut self.xen, reader.pages()).map_err(refused)?;
        let mut bytes = 0;
        for part in 0..reader.parts() {
            let pages = reader.part(source, part).map_err(damaged)?;
            load.apply_pages(&mut self.xen, pages).map_err(refused)?;
            bytes += reader.part_bytes(part);
            loaded_so_far(file, bytes, monitor)?;
        }
        let (records, emulators) = reader.after_pages(source).map_err(damaged)?;
        for record in records.into_iter().chain([Record::End]) {
            load.apply(&mut self.xen, record).map_err(refused)?;
        }
        let mut model = ModelRecords::default();
        for record in emulators {
            model.take(record).map_err(|why| failure(path, why))?;
        }
        let loaded = load.finish(&mut self.xen).map_err(refused)?;
        Ok((loaded, model))
    }

    /// Reads everything in order.
    fn load_xl(
        &mut self,
        file: &SavedFile,
        source: &OpenFile,
        mut load: Load,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(Loaded, ModelRecords), Failure> {
        let path = file.path.as_str();
        let damaged = |error: ImageError| unreadable(path, &error);
        let refused = |error: LoadError| failure(path, error);
        let mut reader = source.xl().map_err(damaged)?;
        is_same(file, reader.save_id(), source)?;
        let mut model = ModelRecords::default();
        while let Some(item) = reader.next().map_err(damaged)? {
            match item {
                libxl::Item::Libxc(libxc::Item::Record(record)) => {
                    load.apply(&mut self.xen, record).map_err(refused)?;
                    loaded_so_far(file, reader.offset(), monitor)?;
                }
                libxl::Item::Libxc(libxc::Item::Headers(_)) => {}
                libxl::Item::Record(record) => {
                    model.take(record).map_err(|why| failure(path, why))?;
                }
            }
        }
        let loaded = load.finish(&mut self.xen).map_err(refused)?;
        Ok((loaded, model))
    }

    /// Whether a file is whole and was written by this save.
    pub(super) fn is_of_save(&mut self, saving: &Saving) -> Result<bool, Failure> {
        let path = &saving.path;
        let file = match self.host.open_image(path) {
            Ok(source) => OpenFile(source),
            Err(HostError::Missing) => return Ok(false),
            Err(error) => return Err(failure(path, error)),
        };
        let id = match saving.format {
            FileFormat::Xylem => file.reader().map(|reader| save_id(reader.head())),
            FileFormat::Xl => file.xl().map(|reader| reader.save_id()),
        };
        match id {
            Ok(id) => Ok(id == Some(saving.id)),
            Err(ImageError::Stream(_)) => Ok(false),
            Err(error @ ImageError::Read(_)) => Err(unreadable(path, &error)),
        }
    }
}

fn read_own(path: &str, file: &OpenFile) -> Result<SavedFile, Failure> {
    let reader = file.reader().map_err(|error| unreadable(path, &error))?;
    let head = reader.head();
    let disks = disks(head);
    let disks = disks.ok_or_else(|| failure(path, "what it says of its disks cannot be read"))?;
    Ok(SavedFile {
        path: path.to_owned(),
        bytes: file.0.bytes(),
        format: FileFormat::Xylem,
        id: save_id(head),
        name: head.name.clone(),
        uuid: Uuid(head.uuid),
        config_text: head.config.clone(),
        warnings: Vec::new(),
        headers: head.headers,
        vcpus: head.vcpus,
        created: head.created,
        disks,
    })
}

fn read_xl(path: &str, file: &OpenFile) -> Result<SavedFile, Failure> {
    let reader = file.xl().map_err(|error| unreadable(path, &error))?;
    let imported = libxl_json::from_json(path, &reader.json);
    let imported = imported.map_err(|error| Failure(error.to_string()))?;
    let config = &imported.config;
    let uuid = config.uuid.ok_or_else(|| failure(path, "it does not say the VM's UUID"))?;
    Ok(SavedFile {
        path: path.to_owned(),
        bytes: file.0.bytes(),
        format: FileFormat::Xl,
        id: reader.save_id(),
        name: config.name.clone(),
        uuid,
        config_text: config.to_cfg_text(),
        headers: reader.headers(),
        vcpus: config.vcpus_max,
        created: 0,
        disks: Vec::new(),
        warnings: imported.warnings,
    })
}

fn changed(file: &SavedFile) -> Failure {
    Failure(format!("{}: has changed meanwhile; try again", file.path))
}

/// Checks that a file is still the one that was read.
fn is_same(file: &SavedFile, id: Option<Uuid>, source: &OpenFile) -> Result<(), Failure> {
    match id == file.id && source.0.bytes() == file.bytes {
        true => Ok(()),
        false => Err(changed(file)),
    }
}

/// Says how far a load is.
fn loaded_so_far(
    file: &SavedFile,
    bytes: u64,
    monitor: &mut dyn WorkMonitor,
) -> Result<(), Failure> {
    let part = Part { done: bytes >> 20, total: file.bytes.div_ceil(1 << 20), unit: "MiB" };
    match monitor.reached(part) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(failure(&file.path, "the restore was cancelled")),
    }
}

pub(super) fn built(loaded: Loaded) -> Built {
    let Loaded { store_frame, console_frame, pages } = loaded;
    Built { store_frame, console_frame, entry: 0, pages, tables: Tables::default() }
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
