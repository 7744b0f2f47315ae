//! Requests that bring a configuration: create, check, define, adopt and their plans.

use std::path::Path;
use std::sync::Arc;

use api::{Answer, Target};
use toolstack::config::{Connection, VmConfig};
use toolstack::plan::{Start, Unplug, plan_create, plan_plug};
use toolstack::xlcfg::{self, HostDefaults};
use toolstack::{Device, PlanOf, Reply, Request, libxl_json};
use xen::Uuid;

use crate::{Failed, Progress, Service, devices, render, unexpected};

impl Service<'_> {
    pub(crate) fn create(&self, create: &api::Create) -> Result<api::Reply, Failed> {
        if create.dry_run {
            let checked = self.check(create)?;
            return match checked.faults.into_iter().next() {
                Some(fault) => Err(Failed::Told(fault)),
                None => Ok(api::Reply::Configs(checked.config.into_iter().collect())),
            };
        }
        let config = self.parsed(create)?;
        let start = if create.paused { Start::Paused } else { Start::Running };
        let vm = config.name.clone();
        let config = Box::new(config);
        let request = Request::Create { config, fresh_uuid: self.fresh_uuid()?, start };
        self.created(&vm, request, create.progress.into())
    }

    /// Asks for a start and reports on it.
    pub(crate) fn created(
        &self,
        vm: &str,
        request: Request,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        match self.ask_telling(vm, request, progress)? {
            Reply::Created(created) => Ok(api::Reply::Created(render::create_report(&created))),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn fresh_uuid(&self) -> Result<Uuid, Failed> {
        self.daemon.fresh_uuid().map_err(Failed::Told)
    }

    /// All faults of a configuration, by itself and on this host.
    pub(crate) fn check(&self, create: &api::Create) -> Result<api::Checked, Failed> {
        let api::Create { file, config_text, overrides, strict, .. } = create;
        let source = xlcfg::Source { file, text: config_text, overrides };
        let defaults = self.host_defaults()?;
        let reading = xlcfg::read_on(&defaults, source, strictness(*strict));
        let mut faults: Vec<String> = reading.faults.iter().map(ToString::to_string).collect();
        let mut listed = None;
        if let Some(mut config) = reading.config {
            resolve_paths(&mut config, Path::new(&create.cwd));
            listed = Some(render::listed_config(None, None, &config));
            let request = Request::Check {
                config: Box::new(config),
                fresh_uuid: self.fresh_uuid()?,
                is_whole: faults.is_empty(),
            };
            match self.ask(request)? {
                Reply::Checked { faults: more } => faults.extend(more),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(api::Checked { faults, warnings: reading.warnings, config: listed })
    }

    pub(crate) fn define(&self, define: &api::Define) -> Result<api::Reply, Failed> {
        let api::Define { file, config_text, overrides, cwd, strict, warnings, .. } = define;
        let source = xlcfg::Source { file, text: config_text, overrides };
        let config = Box::new(self.configuration(source, cwd, *strict, *warnings)?);
        let request = match &define.replaces {
            Some(before) => Request::Redefine { config, before: before.clone() },
            None => {
                let (fresh_uuid, autostart) = (self.fresh_uuid()?, define.autostart);
                Request::Define { config, fresh_uuid, autostart }
            }
        };
        match self.ask(request)? {
            Reply::Defined { uuid } => Ok(api::Reply::Defined { uuid: uuid.to_string() }),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn adopt(&self, adopt: api::Adopt) -> Result<api::Reply, Failed> {
        let read = |text: String| {
            let source = xlcfg::Source { file: &adopt.file, text: &text, overrides: &[] };
            self.configuration(source, &adopt.cwd, false, false).map(Box::new)
        };
        let base = match (adopt.config_text, adopt.libxl_json) {
            (Some(text), _) => Some(read(text)?),
            (None, Some(json)) => {
                let imported = libxl_json::from_json(&adopt.file, &json).map_err(|error| {
                    Failed::Told(format!("{error}; --config names a file that says it otherwise"))
                })?;
                for warning in imported.warnings {
                    self.door.tell(&Answer::Warning(warning))?;
                }
                Some(Box::new(imported.config))
            }
            (None, None) => None,
        };
        self.done(Request::Adopt { target: adopt.target.0, base })
    }

    pub(crate) fn plan(&self, planned: api::Planned) -> Result<api::Reply, Failed> {
        let (Target(target), what) = match planned {
            api::Planned::Create(create) => {
                let plan = plan_create(&self.parsed(&create)?, Start::Running);
                return Ok(api::Reply::Text(plan.to_string()));
            }
            api::Planned::BlockAttach { disk } => {
                let device = devices::disk(&disk, Path::new("/")).map_err(Failed::Told)?;
                return Ok(plan_of_plug(&Device::Disk(device)));
            }
            api::Planned::NetworkAttach { vif } => {
                let defaults = self.host_defaults()?;
                let vif = xlcfg::parse_vif_on(&defaults, &vif, 0).map_err(Failed::Told)?;
                return Ok(plan_of_plug(&Device::Vif(vif)));
            }
            api::Planned::Reboot { target } => (target, PlanOf::Reboot),
            api::Planned::Shutdown { target } | api::Planned::Destroy { target } => {
                (target, PlanOf::Teardown)
            }
            api::Planned::BlockDetach { target, disk, force } => {
                let how = if force { Unplug::Forced } else { Unplug::Clean };
                let device = devices::disk_ref(&disk).map_err(Failed::Told)?;
                (target, PlanOf::Unplug(device, how))
            }
        };
        self.text(Request::Plan { target, what })
    }

    /// The configuration in a client's file.
    fn parsed(&self, create: &api::Create) -> Result<VmConfig, Failed> {
        let api::Create { file, config_text, overrides, cwd, strict, warnings, .. } = create;
        let source = xlcfg::Source { file, text: config_text, overrides };
        self.configuration(source, cwd, *strict, *warnings)
    }

    pub(crate) fn host_defaults(&self) -> Result<Arc<HostDefaults>, Failed> {
        self.daemon.host_defaults().map_err(Failed::Told)
    }

    /// Parses a client's file, and sends warnings if requested.
    pub(crate) fn configuration(
        &self,
        source: xlcfg::Source<'_>,
        cwd: &str,
        strict: bool,
        warnings: bool,
    ) -> Result<VmConfig, Failed> {
        let defaults = self.host_defaults()?;
        self.accepted(xlcfg::read_on(&defaults, source, strictness(strict)), cwd, warnings)
    }

    /// Parses what was recorded with a VM's state: `xl.conf` may have changed since.
    pub(crate) fn recorded(
        &self,
        source: xlcfg::Source<'_>,
        cwd: &str,
        warnings: bool,
    ) -> Result<VmConfig, Failed> {
        self.accepted(xlcfg::read(source, xlcfg::Strictness::Tolerant), cwd, warnings)
    }

    fn accepted(
        &self,
        reading: xlcfg::Reading,
        cwd: &str,
        warnings: bool,
    ) -> Result<VmConfig, Failed> {
        for warning in reading.warnings.into_iter().filter(|_| warnings) {
            self.door.tell(&Answer::Warning(warning))?;
        }
        if let Some(fault) = reading.faults.first() {
            let more = match reading.faults.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more; `xy check` shows all)"),
            };
            return Err(Failed::Told(format!("{fault}{more}")));
        }
        let mut config = reading.config.expect("what has no fault can be read");
        resolve_paths(&mut config, Path::new(cwd));
        Ok(config)
    }
}

fn strictness(strict: bool) -> xlcfg::Strictness {
    if strict { xlcfg::Strictness::Strict } else { xlcfg::Strictness::Tolerant }
}

/// A path as it is seen from `cwd`.
pub(crate) fn absolute(cwd: &Path, path: &str) -> String {
    // Both came as text, so nothing is lost on the way back.
    cwd.join(path).to_string_lossy().into_owned()
}

/// Relative paths are relative to the client's directory.
fn resolve_paths(config: &mut VmConfig, cwd: &Path) {
    let resolve = |path: &mut String| *path = absolute(cwd, path);
    config.kernel.iter_mut().for_each(resolve);
    config.ramdisk.iter_mut().for_each(resolve);
    config.served.program.iter_mut().for_each(resolve);
    for folder in &mut config.served.folders {
        resolve(&mut folder.path);
    }
    for channel in &mut config.served.channels {
        if let Connection::Socket(path) = &mut channel.connection {
            resolve(path);
        }
    }
    if let Some(hvm) = &mut config.hvm {
        for path in [
            &mut hvm.loader,
            &mut hvm.bios_path,
            &mut hvm.model,
            &mut hvm.acpi_tables,
            &mut hvm.smbios_structures,
        ] {
            path.iter_mut().for_each(resolve);
        }
    }
    for disk in &mut config.disks {
        if disk.is_attached_first() && ::storage::VdiName::parse(&disk.target).is_none() {
            resolve(&mut disk.target);
        }
    }
}

fn plan_of_plug(device: &Device) -> api::Reply {
    api::Reply::Text(plan_plug(device.id(), device.connected_by()).to_string())
}
