//! Settings to a [`VmConfig`]: the values of each key, and consistency checks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use xen::{DomainKind, Uuid};

use super::keys::{self, Treatment, Unknown};
use super::syntax::{Place, Setting, Settings, Value};
use super::{ConfigError, HostDefaults, disk, integer, shown, vif};
use crate::config::{
    DiskConfig, GuestOptions, Origin, ShutdownAction, ShutdownPolicy, TscMode, VifConfig, VmConfig,
};

/// 16 TiB, the range of 44-bit addresses.
pub(crate) const MEMORY_MIB_MAX: u32 = 16 << 20;
/// `HVM_MAX_VCPUS`; Xen allows more for PV, but nothing boots that way.
const VCPUS_MAX: i64 = 128;
/// What a xenstore client can expect to read as one line.
const NAME_BYTES_MAX: usize = 255;

/// Why no VM can have this name.
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > NAME_BYTES_MAX {
        Some("is longer than 255 bytes")
    } else if name.contains('/') {
        Some("contains a /")
    } else if name.contains(char::is_control) {
        Some("contains a control character")
    } else if name.trim() != name {
        Some("begins or ends with a space")
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        Some("would be read as a domain ID")
    } else if name.contains('-') && name.parse::<Uuid>().is_ok() {
        Some("would be read as a UUID")
    } else {
        None
    }
}

pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    pub(super) settings: &'a Settings,
    pub(super) defaults: &'a HostDefaults,
}

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// All faults and warnings of a configuration.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) faults: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigError>,
    /// Keys that are probably misspelt.
    misspelt: Vec<&'static str>,
}

impl Findings {
    fn drop_what_only_seems_missing(&mut self) {
        let Self { faults, misspelt, .. } = self;
        faults.retain(|fault| {
            let is_misspelt = misspelt.iter().any(|name| fault.key.as_deref() == Some(*name));
            fault.place.is_some() || !is_misspelt
        });
    }

    /// The value; on an error, records the fault and returns the default.
    pub(super) fn take<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|fault| {
            self.faults.push(fault);
            T::default()
        })
    }
}

impl Reader<'_> {
    /// The valid parts, unless the domain type is unclear, and all faults.
    pub(super) fn vm_config(&self) -> (Option<VmConfig>, Findings) {
        let mut found = Findings::default();
        self.check_keys_known(&mut found);
        let kind = match self.kind() {
            Ok(kind) => kind,
            Err(fault) => {
                found.faults.push(fault);
                return (None, found);
            }
        };
        self.check_keys_supported(kind, &mut found);
        let name = found.take(self.name());
        let (memory_mib, memory_max_mib) = found.take(self.memory());
        let (vcpus, vcpus_max) = found.take(self.vcpus());
        let disks = self.disks(kind, &mut found);
        let vifs = self.vifs(kind, &mut found);
        let hvm = self.hvm(kind, &disks, &mut found);
        let served = self.served(kind, hvm.as_deref(), &mut found);
        let options = found.take(self.guest_options());
        let bootloader = self.bootloader(kind, &disks, &mut found);
        let hardware = self.hardware(&mut found);
        let machine = self.machine(kind, &mut found);
        let modes = (options.nested_virt, options.shadow_paging);
        self.check_machine(&machine, modes, (memory_mib, memory_max_mib), kind, &mut found);
        let rdm = found.take(self.rdm(kind));
        let pci = self.pci(kind, rdm, memory_mib < memory_max_mib, &mut found);
        self.check_passthrough(machine.passthrough, &pci, &mut found);
        let has_devices = !pci.is_empty();
        let options = GuestOptions {
            bootloader,
            hardware,
            machine,
            pci,
            rdm,
            host_map: found.take(self.host_map(kind, has_devices)),
            shim: found.take(self.shim(kind)),
            ..options
        };
        let cmdline = self.cmdline(&mut found);
        let grant_frames_max = self.number("max_grant_frames", 1..=i64::from(u16::MAX));
        let config = VmConfig {
            origin: self.origin(),
            name,
            uuid: found.take(self.uuid()),
            kind,
            kernel: found.take(self.kernel(kind, options.bootloader.is_some())),
            ramdisk: found.take(self.path("ramdisk")).map(str::to_owned),
            cmdline: found.take(cmdline),
            memory_mib,
            memory_max_mib,
            vcpus,
            vcpus_max,
            disks,
            vifs,
            served,
            policy: self.policy(&mut found),
            tsc_mode: found.take(self.tsc_mode()),
            grant_frames_max: found
                .take(grant_frames_max)
                .and_then(|frames| u16::try_from(frames).ok())
                .or(self.defaults.grant_frames_max),
            options,
            hvm,
        };
        found.drop_what_only_seems_missing();
        (Some(config), found)
    }

    pub(super) fn error(&self, key: &str, place: Place, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            place: Some(place),
            key: Some(key.to_owned()),
            problem: problem.into(),
        }
    }

    pub(super) fn missing(&self, key: &str, problem: &str) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            place: None,
            key: Some(key.to_owned()),
            problem: problem.to_owned(),
        }
    }

    fn check_keys_known(&self, found: &mut Findings) {
        for (key, setting) in self.settings {
            if keys::treatment(key).is_some() {
                continue;
            }
            let error = |problem: String| self.error(key, setting.place, problem);
            match keys::unknown(key) {
                Unknown::Typo(name) => {
                    found.misspelt.push(name);
                    found.faults.push(error(format!("unknown key; did you mean {name}?")));
                }
                Unknown::Foreign { instead: Some(name) } => {
                    found.warnings.push(error(format!("ignored, as xl ignores it; use {name}")));
                }
                Unknown::Foreign { instead: None } => {
                    found.warnings.push(error("ignored, as xl ignores it".to_owned()));
                }
                Unknown::Other => {
                    found.warnings.push(error("unknown key, ignored".to_owned()));
                }
            }
        }
    }

    fn check_keys_supported(&self, kind: DomainKind, found: &mut Findings) {
        for (key, setting) in self.settings {
            match (keys::treatment(key), kind) {
                (Some(Treatment::Refused { harmless, reason }), _)
                | (Some(Treatment::RefusedForPvh { harmless, reason }), DomainKind::Pvh) => {
                    found.faults.extend(self.unless_harmless(key, setting, harmless, reason));
                }
                (Some(Treatment::Tolerated { harmless, reason }), _) => {
                    found.warnings.extend(self.unless_harmless(key, setting, harmless, reason));
                }
                (_, _) => {}
            }
        }
    }

    /// The error, unless the value has no effect or is the default.
    pub(super) fn unless_harmless(
        &self,
        key: &str,
        Setting { value, place }: &Setting,
        harmless: &[&str],
        reason: &str,
    ) -> Option<ConfigError> {
        let is_harmless = match value {
            Value::Atom(text) => text.is_empty() || harmless.contains(&text.as_str()),
            Value::List(items) => items.is_empty(),
        };
        (!is_harmless).then(|| self.error(key, *place, reason))
    }

    pub(super) fn atom(&self, key: &str) -> Result<Option<(&str, Place)>> {
        match self.settings.get(key) {
            None => Ok(None),
            Some(Setting { value: Value::Atom(text), place }) => Ok(Some((text, *place))),
            Some(Setting { place, .. }) => {
                Err(self.error(key, *place, "expected one value instead of a list"))
            }
        }
    }

    /// A text without control characters.
    fn line(&self, key: &str) -> Result<Option<&str>> {
        match self.atom(key)? {
            Some((text, place)) if text.contains(char::is_control) => {
                let problem = format!("{}: expected no control characters", shown(text));
                Err(self.error(key, place, problem))
            }
            Some((text, _)) => Ok(Some(text)),
            None => Ok(None),
        }
    }

    /// As `line`, where an empty text counts as absent.
    pub(super) fn path(&self, key: &str) -> Result<Option<&str>> {
        Ok(self.line(key)?.filter(|path| !path.is_empty()))
    }

    pub(super) fn number(&self, key: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some((text, place)) = self.atom(key)? else { return Ok(None) };
        match integer(text) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(number) => {
                let (start, end) = range.into_inner();
                let problem = format!("{number} is out of range; expected {start} to {end}");
                Err(self.error(key, place, problem))
            }
            None => Err(self.error(key, place, format!("{} is not a whole number", shown(text)))),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<Vec<(String, &str, Place)>> {
        let (items, place) = match self.settings.get(key) {
            None => return Ok(Vec::new()),
            Some(Setting { value: Value::List(items), place }) => (items, *place),
            Some(Setting { place, .. }) => {
                let problem = format!("expected a list, as in {key} = [ '...' ]");
                return Err(self.error(key, *place, problem));
            }
        };
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let name = format!("{key}[{index}]");
            match &item.value {
                Value::Atom(text) => texts.push((name, text.as_str(), item.place)),
                Value::List(_) => {
                    return Err(self.error(&name, place, "expected a string instead of a list"));
                }
            }
        }
        Ok(texts)
    }

    fn kind(&self) -> Result<DomainKind> {
        let kind = match self.atom("type")? {
            None => None,
            Some(("pv", _)) => Some(DomainKind::Pv),
            Some(("pvh", _)) => Some(DomainKind::Pvh),
            Some(("hvm", _)) => Some(DomainKind::Hvm),
            Some((other, place)) => {
                let problem =
                    format!("{} is not a domain type; expected pv, pvh or hvm", shown(other));
                return Err(self.error("type", place, problem));
            }
        };
        match (self.atom("builder")?, kind) {
            (None, kind) => Ok(kind.unwrap_or(DomainKind::Pv)),
            (Some(("generic" | "linux", _)), None | Some(DomainKind::Pv)) => Ok(DomainKind::Pv),
            (Some(("hvm", _)), None | Some(DomainKind::Hvm)) => Ok(DomainKind::Hvm),
            (Some(("generic" | "linux" | "hvm", place)), Some(_)) => {
                Err(self.error("builder", place, "contradicts type; leave builder out"))
            }
            (Some((other, place)), _) => {
                let problem =
                    format!("{} is not a builder; use type = \"pv\" instead", shown(other));
                Err(self.error("builder", place, problem))
            }
        }
    }

    fn name(&self) -> Result<String> {
        let Some(name) = self.line("name")? else {
            return Err(self.missing("name", "missing; every VM has one, as in name = \"guest\""));
        };
        match name_problem(name) {
            None => Ok(name.to_owned()),
            Some(problem) => {
                let problem = format!("{} {problem}", shown(name));
                Err(self.error("name", self.place("name"), problem))
            }
        }
    }

    /// The place of a key that is set.
    pub(super) fn place(&self, key: &str) -> Place {
        self.settings.get(key).map_or(Place::CommandLine, |setting| setting.place)
    }

    fn uuid(&self) -> Result<Option<Uuid>> {
        let Some((text, place)) = self.atom("uuid")? else { return Ok(None) };
        match text.parse::<Uuid>() {
            Ok(uuid) if uuid == Uuid::default() => {
                Err(self.error("uuid", place, "all zeros is domain 0's UUID"))
            }
            Ok(uuid) => Ok(Some(uuid)),
            Err(error) => Err(self.error("uuid", place, format!("{}: {error}", shown(text)))),
        }
    }

    fn kernel(&self, kind: DomainKind, has_bootloader: bool) -> Result<Option<String>> {
        let kernel = match self.grub(kind)? {
            Some(path) => Some(path.to_owned()),
            None => self.path("kernel")?.map(str::to_owned),
        };
        if kernel.is_none() && kind != DomainKind::Hvm && !has_bootloader {
            return Err(self.missing(
                "kernel",
                "missing; name the guest's kernel image, as in kernel = \"/boot/vmlinuz\"",
            ));
        }
        Ok(kernel)
    }

    /// `cmdline`, or otherwise `root=ROOT EXTRA`.
    fn cmdline(&self, found: &mut Findings) -> Result<String> {
        let (root, extra) = (self.line("root")?, self.line("extra")?);
        let Some(cmdline) = self.line("cmdline")? else {
            return Ok(match (root, extra) {
                (Some(root), Some(extra)) => format!("root={root} {extra}"),
                (Some(root), None) => format!("root={root}"),
                (None, extra) => extra.unwrap_or_default().to_owned(),
            });
        };
        let place = self.place("cmdline");
        for key in ["root", "extra"] {
            let replaced = place == Place::CommandLine && self.place(key) != Place::CommandLine;
            if self.settings.contains_key(key) && !replaced {
                let problem = "ignored: cmdline is the whole command line";
                found.warnings.push(self.error(key, self.place(key), problem));
            }
        }
        Ok(cmdline.to_owned())
    }

    /// Memory at the start and at most, in MiB.
    fn memory(&self) -> Result<(u64, u64)> {
        let range = 1..=i64::from(MEMORY_MIB_MAX);
        let memory = self.number("memory", range.clone())?;
        let max = self.number("maxmem", range)?;
        let (memory, max) = match (memory, max) {
            (None, None) => {
                return Err(self.missing("memory", "missing; in MiB, as in memory = 512"));
            }
            (Some(one), None) | (None, Some(one)) => (one, one),
            (Some(memory), Some(max)) => (memory, max),
        };
        if memory > max {
            let problem = format!("{max} MiB is less than memory, {memory} MiB");
            return Err(self.error("maxmem", self.place("maxmem"), problem));
        }
        Ok((memory.unsigned_abs(), max.unsigned_abs()))
    }

    /// vCPUs at the start and at most.
    pub(super) fn vcpus(&self) -> Result<(u32, u32)> {
        let vcpus = self.number("vcpus", 1..=VCPUS_MAX)?.unwrap_or(1);
        let max = self.number("maxvcpus", 1..=VCPUS_MAX)?.unwrap_or(vcpus);
        if vcpus > max {
            let problem = format!("{max} is less than vcpus, {vcpus}");
            return Err(self.error("maxvcpus", self.place("maxvcpus"), problem));
        }
        let narrow = |count: i64| u32::try_from(count).unwrap_or(1);
        Ok((narrow(vcpus), narrow(max)))
    }

    fn disks(&self, kind: DomainKind, found: &mut Findings) -> Vec<DiskConfig> {
        let mut disks = Vec::new();
        let mut taken: BTreeMap<u32, String> = BTreeMap::new();
        for (key, text, place) in found.take(self.list("disk")) {
            let mut fail = |problem| found.faults.push(self.error(&key, place, problem));
            let disk = match disk::parse(text).and_then(|disk| match disk.drive_problem(kind) {
                Some(problem) => Err(problem.to_owned()),
                None => Ok(disk),
            }) {
                Ok(disk) => disk,
                Err(problem) => {
                    fail(problem);
                    continue;
                }
            };
            match taken.insert(disk.vdev.number, key.clone()) {
                Some(other) => {
                    fail(format!("vdev {} is used by {other} already", disk.vdev.name));
                }
                None => disks.push(disk),
            }
        }
        disks
    }

    fn vifs(&self, kind: DomainKind, found: &mut Findings) -> Vec<VifConfig> {
        let mut vifs: Vec<VifConfig> = Vec::new();
        for ((key, text, place), index) in found.take(self.list("vif")).into_iter().zip(0..) {
            let vif = vif::parse(text, index, kind, &self.defaults.vif)
                .and_then(|vif| vif::check_distinct(&vif, &vifs).map(|()| vif));
            match vif {
                Ok(vif) => vifs.push(vif),
                Err(problem) => found.faults.push(self.error(&key, place, problem)),
            }
        }
        vifs
    }

    fn policy(&self, found: &mut Findings) -> ShutdownPolicy {
        let mut policy = ShutdownPolicy::default();
        for (key, action) in [
            ("on_poweroff", &mut policy.poweroff),
            ("on_reboot", &mut policy.reboot),
            ("on_crash", &mut policy.crash),
            ("on_watchdog", &mut policy.watchdog),
            ("on_soft_reset", &mut policy.soft_reset),
        ] {
            match self.action(key, *action) {
                Ok(wanted) => *action = wanted,
                Err(fault) => found.faults.push(fault),
            }
        }
        policy
    }

    fn action(&self, key: &str, default: ShutdownAction) -> Result<ShutdownAction> {
        let Some((word, place)) = self.atom(key)? else { return Ok(default) };
        ShutdownAction::ALL.into_iter().find(|action| action.as_str() == word).ok_or_else(|| {
            let words = ShutdownAction::ALL.map(ShutdownAction::as_str).join(", ");
            let problem = format!("{} is not an action; expected one of {words}", shown(word));
            self.error(key, place, problem)
        })
    }

    fn tsc_mode(&self) -> Result<TscMode> {
        match self.atom("tsc_mode")? {
            None | Some(("default" | "0", _)) => Ok(TscMode::Default),
            Some(("always_emulate" | "1", _)) => Ok(TscMode::AlwaysEmulate),
            Some(("native" | "2", _)) => Ok(TscMode::Native),
            Some(("native_paravirt" | "3", place)) => Err(self.error(
                "tsc_mode",
                place,
                "native_paravirt is gone from Xen; expected default, always_emulate or native",
            )),
            Some((other, place)) => {
                let problem = format!(
                    "{} is not a mode; expected default, always_emulate or native",
                    shown(other)
                );
                Err(self.error("tsc_mode", place, problem))
            }
        }
    }

    fn origin(&self) -> Origin {
        let mut lines = BTreeMap::new();
        let mut note = |key: String, place: Place| {
            if let Place::Line(line) = place {
                lines.insert(key, line);
            }
        };
        for (key, setting) in self.settings {
            note(key.clone(), setting.place);
            if let Value::List(items) = &setting.value {
                for (index, item) in items.iter().enumerate() {
                    note(format!("{key}[{index}]"), item.place);
                }
            }
        }
        Origin { file: self.file.to_owned(), lines }
    }
}
