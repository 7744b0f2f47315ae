//! HVM only: hvmloader, a BIOS and a device model.

use std::sync::Arc;

use storage::{FileKind, HostError};
use xen::{DomId, DomainRef, Hypervisor, Uuid};
use xen_build::KernelImage;
use xenstore::client::{Nodes as _, Transport};

use super::{Performer, failure, refused, store};
use crate::config::{Bios, HvmSettings, VmConfig};
use crate::device_model::{self, Launch, Process};
use crate::host::{Host, KernelError};
use crate::layout;
use crate::work::{Failure, Images};

/// Firmware folders of Xen's own build and of distributions; `{}` is Xen's version.
const FIRMWARE_FOLDERS: [&str; 4] = [
    "/usr/lib/xen-{}/boot",
    "/usr/lib/xen/boot",
    "/usr/local/lib/xen/boot",
    "/usr/libexec/xen/boot",
];
const LOADER: &str = "hvmloader";
const SHIM: &str = "xen-shim";

/// Paths of a BIOS in distributions, and its name in a firmware folder.
fn bios_files(bios: Bios) -> (&'static [&'static str], &'static str) {
    match bios {
        Bios::SeaBios => {
            (&["/usr/share/seabios/bios-256k.bin", "/usr/share/qemu/bios-256k.bin"], "seabios.bin")
        }
        Bios::Ovmf => (&["/usr/share/ovmf/OVMF.fd", "/usr/share/qemu/OVMF.fd"], "ovmf.bin"),
    }
}

/// Debian's package of a BIOS.
fn bios_package(bios: Bios) -> &'static str {
    match bios {
        Bios::SeaBios => "seabios",
        Bios::Ovmf => "ovmf",
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(crate) fn load_firmware(
        &mut self,
        config: &VmConfig,
        hvm: &HvmSettings,
    ) -> Result<Images, Failure> {
        let place = |key: &str| config.origin.at(key);
        let folders = self.firmware_folders()?;
        let in_folders = |name: &str| -> Vec<String> {
            folders.iter().map(|folder| format!("{folder}/{name}")).collect()
        };
        let loaders = match &hvm.loader {
            Some(path) => vec![path.clone()],
            None => in_folders(LOADER),
        };
        let loader = first_of(&loaders, |path| self.host.loader(path)).map_err(|error| {
            let what = "hvmloader; on Debian it is in xen-utils";
            missing(&place("firmware_override"), &loaders, what, error)
        })?;
        let (files, name) = bios_files(hvm.bios);
        let paths = match &hvm.bios_path {
            Some(path) => vec![path.clone()],
            None => files.iter().map(|&path| path.to_owned()).chain(in_folders(name)).collect(),
        };
        let bios = first_of(&paths, |path| self.host.ramdisk(path)).map_err(|error| {
            let package = bios_package(hvm.bios);
            missing(&place("bios"), &paths, &format!("a BIOS; on Debian it is in {package}"), error)
        })?;
        self.check_model(config)?;
        let mut tables = |key: &str, path: &Option<String>| match path {
            None => Ok(Arc::from([])),
            Some(path) => {
                let bytes = self.host.ramdisk(path);
                bytes.map_err(|error| failure(format!("{}: {path}", place(key)), error))
            }
        };
        let acpi_tables = tables("acpi_firmware", &hvm.acpi_tables)?;
        let smbios_structures = tables("smbios_firmware", &hvm.smbios_structures)?;
        Ok(Images::Firmware { loader, bios, acpi_tables, smbios_structures })
    }

    /// Checks the requirements of the VM's device model, if it has one, which would otherwise fail only after the domain
    /// is created.
    pub(super) fn check_model(&mut self, config: &VmConfig) -> Result<(), Failure> {
        if !config.has_model() {
            return Ok(());
        }
        for (index, folder) in config.served.folders.iter().enumerate() {
            let place = format!("{}: {}", config.origin.at(&format!("p9[{index}]")), folder.path);
            match self.host.system().inspect(&folder.path) {
                Ok(FileKind::Directory) => {}
                Ok(_) => return Err(failure(place, "not a folder")),
                Err(error) => return Err(failure(place, error)),
            }
        }
        let programs = device_model::programs(config);
        let mut is_file = |path: &str| match self.host.system().inspect(path)? {
            FileKind::Regular { .. } => Ok(()),
            _ => Err(HostError::Refused("not a file".to_owned())),
        };
        first_of(&programs, &mut is_file).map_err(|error| {
            let what = "QEMU for Xen; on Debian it is in qemu-system-xen";
            missing(&config.origin.at("device_model_override"), &programs, what, error)
        })?;
        if config.hvm.is_none() {
            return Ok(());
        }
        for (key, path) in [("kernel", &config.kernel), ("ramdisk", &config.ramdisk)] {
            if let Some(path) = path {
                let place = format!("{}: {path}", config.origin.at(key));
                is_file(path).map_err(|error| failure(place, error))?;
            }
        }
        Ok(())
    }

    /// Xen's shim, of this host or of the configuration.
    pub(super) fn load_shim(&mut self, config: &VmConfig) -> Result<Arc<KernelImage>, Failure> {
        let shim = config.options.shim.as_deref().expect("asked for a guest that has one");
        if let Some(path) = &shim.path {
            return self.kernel("pvshim_path", path, config);
        }
        let folders = self.firmware_folders()?;
        let paths: Vec<String> = folders.iter().map(|it| format!("{it}/{SHIM}")).collect();
        for path in &paths {
            match self.host.kernel(path) {
                Err(KernelError::Host(HostError::Missing)) => {}
                _ => return self.kernel("pvshim", path, config),
            }
        }
        let what = "shim of Xen; on Debian it would be in xen-utils";
        Err(missing(&config.origin.at("pvshim"), &paths, what, HostError::Missing))
    }

    fn firmware_folders(&mut self) -> Result<Vec<String>, Failure> {
        let version = self.xen.version_info().map_err(|errno| failure("Xen's version", errno))?;
        let version = format!("{}.{}", version.major, version.minor);
        Ok(FIRMWARE_FOLDERS.iter().map(|folder| folder.replace("{}", &version)).collect())
    }

    pub(crate) fn start_model(
        &mut self,
        domain: DomainRef,
        launch: &Launch,
    ) -> Result<Process, Failure> {
        // Nodes left by an earlier domain with this domid would be mistaken for this one's.
        store::remove_tree(&mut self.store, &device_model::folder(domain.domid))?;
        let domid = domain.domid;
        let model = || format!("device model of domain {domid}");
        if let Some(state) = &launch.state {
            let folder = device_model::folder(domid);
            for (path, value) in &state.nodes {
                self.store.write(&format!("{folder}/{path}"), value.as_bytes())?;
            }
        }
        let started = first_of(&launch.programs, |program| self.host.start_model(program, launch));
        let process = started.map_err(|error| failure(model(), error))?;
        let Some(state) = &launch.state else { return Ok(process) };
        self.load_model(domid, process, &state.context).map_err(|error| {
            let why = failure(format_args!("{} ({})", model(), launch.log), error);
            match self.host.end_model(process) {
                Ok(()) => why,
                Err(more) => Failure(format!("{}; and it cannot be ended: {more}", why.0)),
            }
        })?;
        Ok(process)
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Kills a device model, if it is still running, and removes its nodes, unless the domid
    /// belongs to another domain by now.
    pub(crate) fn end_model(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        process: Option<Process>,
    ) -> Result<(), Failure> {
        if let Some(process) = process {
            let model = format!("device model of domain {domid} (pid {})", process.pid);
            self.host.end_model(process).map_err(|error| failure(model, error))?;
        }
        let holder = self.xen.domain(domid).map_err(refused("look up", domid))?;
        if holder.is_none_or(|info| info.handle == uuid) {
            let socket = device_model::monitor_socket(domid);
            let removed = self.host.remove_model_socket(domid);
            removed.map_err(|error| failure(socket, error))?;
            let removals = layout::removed_model_paths(domid);
            store::remove(&mut self.store, None, uuid, &removals)?;
        }
        Ok(())
    }
}

/// The first of these files that exists.
fn first_of<T>(
    paths: &[String],
    mut load: impl FnMut(&str) -> Result<T, HostError>,
) -> Result<T, HostError> {
    for path in paths {
        match load(path) {
            Err(HostError::Missing) => {}
            other => return other,
        }
    }
    Err(HostError::Missing)
}

fn missing(place: &str, paths: &[String], what: &str, error: HostError) -> Failure {
    match (paths, error) {
        ([path], error) => failure(format!("{place}: {path}"), error),
        (_, HostError::Missing) => {
            Failure(format!("{place}: this host has no {what} (none of {})", paths.join(", ")))
        }
        (_, error) => failure(format!("{place}: {what}"), error),
    }
}
