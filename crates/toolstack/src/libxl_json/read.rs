//! JSON to a configuration.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use xen::{DomainKind, Uuid};
use xen_build::{CpuidRegister, NO_SUBLEAF};

use super::write::{LMCE, register_name, shutdown_action, tsc_mode, vga};
use super::{ImportError, Imported};
use super::{machine, pci, served};
use crate::config::{
    AffinityConfig, Bios, Bootloader, ClockOffset, CpuLists, CpuidConfig, DiskBus, DiskConfig,
    GuestOptions, HardwareAccess, HvmSettings, ImageFormat, IoMemory, IoPorts, Mac, MachineOptions,
    Mode, ModelUser, Origin, Rate, Shim, ShutdownAction, ShutdownPolicy, SmbiosText, SoundCard,
    Spice, Trust, TscMode, UsbVersion, Vdev, Vga, VifConfig, VmConfig, Vnc,
};
use crate::hotplug;
use crate::layout::kind_name;
use crate::tuning::{CpuList, FIRST_POOL};
use crate::xlcfg::{self, MEMORY_MIB_MAX, Source, shown, viridian_default, viridian_mask};

/// Devices that Xylem does not have. A VM with one would miss it.
const DEVICES: &[&str] = &[
    "rdms",
    "dtdevs",
    "vtpms",
    "pvcallsifs",
    "vdispls",
    "vsnds",
    "usbctrls",
    "usbdevs",
    "virtios",
];
/// Lists and texts in `b_info` without which the VM would be another.
const REFUSED: &[(&str, &str)] = &[
    ("device_tree", "only for Arm"),
    ("vnuma_nodes", "virtual NUMA nodes are not supported"),
    ("stubdomain_kernel", "device models in domains of their own are not supported"),
];
/// What differs from the default there, and is no more than advice to a host.
const WARNED: &[(&str, &str)] = &[("exec_ssid_label", "security labels are ignored")];

pub(super) type Result<T> = std::result::Result<T, ImportError>;

/// Reads a configuration, of `file` for messages.
///
/// # Errors
/// It is no such configuration, or has something that the VM needs and that is not supported.
pub fn from_json(file: &str, text: &str) -> Result<Imported> {
    let error = |problem| ImportError { file: file.to_owned(), field: String::new(), problem };
    let value: Value = serde_json::from_str(text)
        .map_err(|fault| error(format!("the configuration is not JSON: {fault}")))?;
    let Value::Object(map) = &value else {
        return Err(error("the configuration is not one of libxl".to_owned()));
    };
    let root = Node { file, path: String::new(), map };
    let mut warnings = Vec::new();
    let config = config(&root, &mut warnings)?;
    // As a file, it is checked like any other.
    let text = config.to_cfg_text();
    let checked = xlcfg::parse(Source { file, text: &text, overrides: &[] })
        .map_err(|fault| error(fault.without_place()))?;
    let checked =
        VmConfig { origin: Origin { file: file.to_owned(), ..Origin::default() }, ..checked };
    if checked != config {
        return Err(error(
            "a text in the configuration has a comma or quote that it cannot have".to_owned(),
        ));
    }
    Ok(Imported { config: checked, warnings })
}

/// An object, with its place for messages.
pub(super) struct Node<'a> {
    file: &'a str,
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Node<'a> {
    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> ImportError {
        let field = format!("{}{key}: ", self.path);
        ImportError { file: self.file.to_owned(), field, problem: problem.into() }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// What is missing is empty.
    pub(super) fn object(&self, key: &str) -> Result<Option<Node<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Node { file: self.file, path: format!("{}{key}.", self.path), map }))
            }
            Some(_) => Err(self.error(key, "expected an object")),
        }
    }

    pub(super) fn needed(&self, key: &str) -> Result<Node<'a>> {
        self.object(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    pub(super) fn list(&self, key: &str) -> Result<&'a [Value]> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.error(key, "expected a list")),
        }
    }

    pub(super) fn objects(&self, key: &str) -> Result<Vec<Node<'a>>> {
        let items = self.list(key)?.iter().zip(0..);
        items
            .map(|(item, number)| match item {
                Value::Object(map) => Ok(Node {
                    file: self.file,
                    path: format!("{}{key}[{number}].", self.path),
                    map,
                }),
                _ => Err(self.error(key, "expected a list of objects")),
            })
            .collect()
    }

    /// An empty text counts as none.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|it| !it.is_empty())),
            Some(_) => Err(self.error(key, "expected a text")),
        }
    }

    pub(super) fn owned(&self, key: &str) -> Result<Option<String>> {
        Ok(self.text(key)?.map(str::to_owned))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>> {
        let text = |item: &Value| item.as_str().map(str::to_owned);
        let texts = self.list(key)?.iter().map(text).collect::<Option<_>>();
        texts.ok_or_else(|| self.error(key, "expected a list of texts"))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            // libxl's words for "default".
            Some(value) if value.as_i64() == Some(-1) || value.as_u64() == Some(u64::MAX) => {
                Ok(None)
            }
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.error(key, "expected a whole number")),
            },
        }
    }

    pub(super) fn narrow<T: TryFrom<u64>>(&self, key: &str) -> Result<Option<T>> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        match T::try_from(number) {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.error(key, format!("{number} is out of range"))),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::Number(number)) => Ok(Some(number.as_u64() != Some(0))),
            Some(Value::String(word)) => match word.as_str() {
                "True" => Ok(Some(true)),
                "False" => Ok(Some(false)),
                "<default>" => Ok(None),
                other => Err(self.error(key, format!("{}: expected True or False", shown(other)))),
            },
            Some(_) => Err(self.error(key, "expected True or False")),
        }
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        all: &[T],
        word: fn(T) -> &'static str,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let found = all.iter().copied().find(|it| word(*it) == text);
        let known = || all.iter().map(|it| word(*it)).collect::<Vec<_>>().join(", ");
        found
            .map(Some)
            .ok_or_else(|| self.error(key, format!("{}: expected one of {}", shown(text), known())))
    }

    pub(super) fn refuse_if(&self, key: &str, is_set: bool, problem: &str) -> Result<()> {
        if is_set { Err(self.error(key, problem)) } else { Ok(()) }
    }

    /// The driver domain: its name, because its number was that of one of its incarnations.
    fn backend(&self) -> Result<Option<String>> {
        let name = self.owned("backend_domname")?.filter(|it| !it.is_empty());
        let domid = self.number("backend_domid")?.filter(|domid| *domid != 0);
        let backend = name.or(domid.map(|domid| domid.to_string()));
        Ok(backend.filter(|it| !xlcfg::is_domain_0(it)))
    }

    /// A backend in another domain than domain 0.
    pub(super) fn refuse_other_backend(&self) -> Result<()> {
        let has_one = self.backend()?.is_some();
        self.refuse_if("backend_domname", has_one, "QEMU serves it, which runs in domain 0")
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        match self.get(key) {
            None | Some(Value::Null) => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Number(number)) => number.as_u64() != Some(0),
            Some(Value::Bool(flag)) => *flag,
        }
    }
}

fn config(root: &Node<'_>, warnings: &mut Vec<String>) -> Result<VmConfig> {
    let create = root.needed("c_info")?;
    let build = root.needed("b_info")?;
    let kinds = [DomainKind::Pv, DomainKind::Pvh, DomainKind::Hvm];
    let kind = create.choice("type", &kinds, kind_name)?;
    let kind = kind.ok_or_else(|| create.error("type", "is missing"))?;
    for key in DEVICES {
        root.refuse_if(key, root.is_set(key), "such devices are not supported")?;
    }
    let mut warn = |key: &str, problem: &str| {
        warnings.push(format!("{}: warning: {key}: {problem}", root.file));
    };
    for (key, problem) in REFUSED {
        build.refuse_if(key, build.is_set(key), problem)?;
    }
    for (key, problem) in WARNED.iter().filter(|(key, _)| build.is_set(key)) {
        warn(&format!("b_info.{key}"), problem);
    }
    const STUBDOMAIN: &str = "device models in domains of their own are not supported";
    let has_stubdomain = build.flag("device_model_stubdomain")? == Some(true);
    build.refuse_if("device_model_stubdomain", has_stubdomain, STUBDOMAIN)?;
    let uuid = create.text("uuid")?.map(str::parse::<Uuid>).transpose();
    let uuid = uuid.map_err(|error| create.error("uuid", error.to_string()))?;
    let (memory_mib, memory_max_mib) = memory(&build)?;
    let vcpus_max: u32 = build.narrow("max_vcpus")?.unwrap_or(1);
    let vcpus = u32::try_from(build.list("avail_vcpus")?.len()).unwrap_or(u32::MAX);
    let (cpuid, msrs) = cpuid(&build)?;
    if msrs {
        warn("b_info.cpuid.msr", "ignored from the VM's next start on");
    }
    let own = build.object(&format!("type.{}", kind_name(kind)))?;
    let own = own.unwrap_or(Node { file: root.file, path: String::new(), map: &EMPTY });
    let disks = root.objects("disks")?.iter().map(disk).collect::<Result<Vec<_>>>()?;
    let nics = root.objects("nics")?;
    let vifs = nics.iter().zip(0..).map(|(nic, index)| vif(nic, index, kind));
    let served = served::read(root, &build, kind)?;
    let mut hvm = match kind {
        DomainKind::Hvm => Some(Box::new(hvm(&build, &own)?)),
        DomainKind::Pv | DomainKind::Pvh => None,
    };
    // libxl's serves them unrestricted.
    if let Some(hvm) = hvm.as_deref_mut().filter(|_| served.any()) {
        hvm.model_user = ModelUser::Root;
    }
    Ok(VmConfig {
        origin: Origin { file: root.file.to_owned(), ..Origin::default() },
        name: create.owned("name")?.ok_or_else(|| create.error("name", "is missing"))?,
        uuid: uuid.filter(|uuid| *uuid != Uuid::default()),
        kind,
        kernel: build.owned("kernel")?,
        ramdisk: build.owned("ramdisk")?,
        cmdline: build.owned("cmdline")?.unwrap_or_default(),
        memory_mib,
        memory_max_mib,
        vcpus: vcpus.clamp(1, vcpus_max.max(1)),
        vcpus_max,
        disks,
        vifs: vifs.collect::<Result<Vec<_>>>()?,
        served,
        policy: policy(root)?,
        tsc_mode: mode_of_tsc(&build)?,
        grant_frames_max: build.narrow("max_grant_frames")?,
        options: GuestOptions {
            cpuid,
            machine: machine::read(&create, &build, &own, kind)?,
            shim: shim(&own, kind)?,
            pci: pci::read(root)?,
            host_map: kind == DomainKind::Pv && own.flag("e820_host")? == Some(true),
            ..guest_options(&build, &create, kind, vcpus_max)?
        },
        hvm,
    })
}

fn shim(own: &Node<'_>, kind: DomainKind) -> Result<Option<Box<Shim>>> {
    if kind != DomainKind::Pvh || own.flag("pvshim")? != Some(true) {
        return Ok(None);
    }
    let cmdline = own.text("pvshim_cmdline")?.unwrap_or(Shim::CMDLINE);
    let cmdline = match own.text("pvshim_extra")? {
        Some(extra) => format!("{cmdline} {extra}"),
        None => cmdline.to_owned(),
    };
    Ok(Some(Box::new(Shim { path: own.owned("pvshim_path")?, cmdline })))
}

/// All but the CPU policy, how the machine is run, and a shim.
fn guest_options(
    build: &Node<'_>,
    create: &Node<'_>,
    kind: DomainKind,
    vcpus_max: u32,
) -> Result<GuestOptions> {
    let shares = build.object("sched_params")?;
    let cap_max = u16::try_from(u64::from(vcpus_max) * 100).unwrap_or(u16::MAX);
    let share = |key, most: u16| -> Result<Option<u16>> {
        let number = shares.as_ref().map_or(Ok(None), |shares| shares.narrow::<u16>(key))?;
        Ok(number.filter(|number| *number > 0).map(|number| number.min(most)))
    };
    Ok(GuestOptions {
        evtchn_port_max: build.narrow("event_channels")?.filter(|ports| *ports != 0),
        maptrack_frames_max: build.narrow("max_maptrack_frames")?,
        grant_version_max: build.narrow("max_grant_version")?,
        nested_virt: kind != DomainKind::Pv && build.flag("nested_hvm")? == Some(true),
        shadow_paging: kind != DomainKind::Pv && create.flag("hap")? == Some(false),
        cpuid: None,
        cpu_weight: share("weight", u16::MAX)?,
        cpu_cap: share("cap", cap_max)?,
        affinity: affinity(build, vcpus_max)?,
        never_moves: build.flag("disable_migrate")? == Some(true),
        clock: ClockOffset {
            seconds: build
                .narrow::<u32>("rtc_timeoffset")?
                .map(u32::cast_signed)
                .unwrap_or_default(),
            is_local: build.flag("localtime")? == Some(true),
        },
        // libxl has no word for it.
        on_host_shutdown: None,
        pool: create.owned("pool_name")?.filter(|it| !FIRST_POOL.contains(&it.as_str())),
        bootloader: bootloader(build, kind)?,
        paging_pool_mib: paging_pool(build, kind)?,
        msr_relaxed: match build.object("arch_x86")? {
            Some(x86) => x86.flag("msr_relaxed")? == Some(true),
            None => false,
        },
        hardware: hardware(build)?,
        machine: MachineOptions::default(),
        pci: Vec::new(),
        // Devices say what they have reserved.
        rdm: None,
        // Read beside them, from the part that is for the kind.
        host_map: false,
        shim: None,
        is_driver_domain: create.flag("driver_domain")? == Some(true),
    })
}

/// libxl writes the one that it computed, too.
fn paging_pool(build: &Node<'_>, kind: DomainKind) -> Result<Option<u32>> {
    let kib = build.number("shadow_memkb")?.filter(|_| kind != DomainKind::Pv);
    let (max, vcpus) = (build.number("max_memkb")?, build.number("max_vcpus")?.unwrap_or(1));
    let Some(kib) = kib.filter(|kib| *kib > 0) else { return Ok(None) };
    // Source: libxl_get_required_shadow_memory.
    let computed = 4 * (256 * vcpus + 2 * (max.unwrap_or_default() / 1024));
    let mib = u32::try_from(kib.div_ceil(1024)).ok().filter(|mib| *mib <= MEMORY_MIB_MAX);
    let mib = mib.ok_or_else(|| build.error("shadow_memkb", format!("{kib} is out of range")))?;
    Ok((kib != computed).then_some(mib))
}

fn hardware(build: &Node<'_>) -> Result<Option<Box<HardwareAccess>>> {
    let mut hardware = HardwareAccess::default();
    for node in build.objects("ioports")? {
        let (first, count): (Option<u32>, Option<u32>) =
            (node.narrow("first")?, node.narrow("number")?);
        let (Some(first), Some(count @ 1..)) = (first, count) else {
            return Err(node.error("number", "expected a first port and how many"));
        };
        hardware.ports.push(IoPorts { first, last: first.saturating_add(count - 1) });
    }
    for item in build.list("irqs")? {
        let number = item.as_u64().and_then(|number| u32::try_from(number).ok());
        hardware.interrupts.push(number.ok_or_else(|| build.error("irqs", "expected numbers"))?);
    }
    for node in build.objects("iomem")? {
        let (Some(first), Some(frames @ 1..)) = (node.number("start")?, node.number("number")?)
        else {
            return Err(node.error("number", "expected a first frame and how many"));
        };
        let gfn = node.number("gfn")?.filter(|gfn| *gfn != first);
        hardware.memory.push(IoMemory { first, frames, gfn });
    }
    Ok((hardware != HardwareAccess::default()).then(|| Box::new(hardware)))
}

/// libxl runs none for HVM domains.
fn bootloader(build: &Node<'_>, kind: DomainKind) -> Result<Option<Box<Bootloader>>> {
    let program = build.owned("bootloader")?.filter(|_| kind != DomainKind::Hvm);
    let Some(program) = program else { return Ok(None) };
    let arguments = build.texts("bootloader_args")?;
    Ok(Some(Box::new(Bootloader { program, arguments, user: build.owned("bootloader_user")? })))
}

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

/// As libxl says where vCPUs may run: a list of CPUs for each.
fn affinity(build: &Node<'_>, vcpus_max: u32) -> Result<Option<Box<AffinityConfig>>> {
    let lists = |key| {
        let mut lists = Vec::new();
        for item in build.list(key)? {
            let cpu = |it: &Value| u32::try_from(it.as_u64()?).ok();
            let cpus = item.as_array().and_then(|them| them.iter().map(cpu).collect());
            let cpus: BTreeSet<u32> =
                cpus.ok_or_else(|| build.error(key, "expected lists of CPUs"))?;
            // One without any is as good as none, and so are those after it.
            let Some(list) = CpuList::of_numbers(&cpus) else { break };
            lists.push(list);
        }
        Ok(match lists.split_first() {
            None => None,
            Some((first, rest))
                if u32::try_from(lists.len()) == Ok(vcpus_max)
                    && rest.iter().all(|it| it == first) =>
            {
                Some(CpuLists::Common(first.clone()))
            }
            Some(_) => Some(CpuLists::Each(lists)),
        })
    };
    let (hard, soft) = (lists("vcpu_hard_affinity")?, lists("vcpu_soft_affinity")?);
    let affinity = AffinityConfig { hard, soft };
    Ok((affinity != AffinityConfig::default()).then(|| Box::new(affinity)))
}

/// A guest may have ballooned to any number of pages.
fn memory(build: &Node<'_>) -> Result<(u64, u64)> {
    let (target, max) = (build.number("target_memkb")?, build.number("max_memkb")?);
    let target = target.or(max).ok_or_else(|| build.error("max_memkb", "is missing"))?;
    let mib = |kib: u64| kib.div_ceil(1024);
    let max = mib(max.unwrap_or(target));
    Ok((mib(target).min(max), max))
}

fn policy(root: &Node<'_>) -> Result<ShutdownPolicy> {
    let action = |key| {
        let found = root.choice(key, &ShutdownAction::ALL, shutdown_action)?;
        Ok(found.unwrap_or(ShutdownAction::Destroy))
    };
    Ok(ShutdownPolicy {
        poweroff: action("on_poweroff")?,
        reboot: action("on_reboot")?,
        crash: action("on_crash")?,
        watchdog: action("on_watchdog")?,
        soft_reset: action("on_soft_reset")?,
    })
}

fn mode_of_tsc(build: &Node<'_>) -> Result<TscMode> {
    let all = [TscMode::Default, TscMode::AlwaysEmulate, TscMode::Native];
    Ok(build.choice("tsc_mode", &all, tsc_mode)?.unwrap_or_default())
}

/// Leaves in xend's form, and whether there are model specific registers.
fn cpuid(build: &Node<'_>) -> Result<(Option<Box<CpuidConfig>>, bool)> {
    let (holder, key, has_msrs) = match build.get("cpuid") {
        Some(Value::Object(_)) => {
            let both = build.needed("cpuid")?;
            let has_msrs = both.is_set("msr");
            (both, "cpuid", has_msrs)
        }
        _ => (Node { file: build.file, path: build.path.clone(), map: build.map }, "cpuid", false),
    };
    let mut texts = Vec::new();
    for leaf in holder.objects(key)? {
        let number = leaf.narrow::<u32>("leaf")?;
        let number = number.ok_or_else(|| leaf.error("leaf", "is missing"))?;
        let subleaf = leaf.narrow::<u32>("subleaf")?.filter(|it| *it != NO_SUBLEAF);
        let subleaf = subleaf.map(|subleaf| format!(",{subleaf:#x}")).unwrap_or_default();
        let mut registers = Vec::new();
        for register in
            [CpuidRegister::Eax, CpuidRegister::Ebx, CpuidRegister::Ecx, CpuidRegister::Edx]
        {
            let name = register_name(register);
            registers.extend(leaf.text(name)?.map(|bits| format!("{name}={bits}")));
        }
        if !registers.is_empty() {
            texts.push(format!("{number:#x}{subleaf}:{}", registers.join(",")));
        }
    }
    let config = CpuidConfig::from_leaves(texts);
    let config = config.map_err(|problem| build.error("cpuid", problem))?;
    Ok((config.map(Box::new), has_msrs))
}

fn disk(node: &Node<'_>) -> Result<DiskConfig> {
    let vdev = node.text("vdev")?.ok_or_else(|| node.error("vdev", "is missing"))?;
    let vdev = vdev.parse::<Vdev>().map_err(|error| node.error("vdev", error.to_string()))?;
    let script = node.owned("script")?.filter(|it| hotplug::path(it) != hotplug::BLOCK);
    let backend = node.text("backend")?.unwrap_or_default();
    let unknown = matches!(backend, "tap" | "standalone");
    node.refuse_if("backend", unknown, "expected phy or qdisk")?;
    let specification = node.text("specification")?;
    let is_other = specification.is_some_and(|it| !matches!(it, "xen" | "unknown"));
    node.refuse_if("specification", is_other, "only Xen's block devices are supported")?;
    let format = node.text("format")?;
    let target = node.owned("pdev_path")?.unwrap_or_default();
    let formats = [
        ImageFormat::Raw,
        ImageFormat::Qcow,
        ImageFormat::Qcow2,
        ImageFormat::Qed,
        ImageFormat::Vhd,
    ];
    let (target, format) = match format {
        Some("empty") => (String::new(), ImageFormat::Raw),
        None | Some("unknown") => (target, ImageFormat::Raw),
        Some(_) => {
            let known = node.choice("format", &formats, ImageFormat::as_str)?;
            (target, known.unwrap_or_default())
        }
    };
    let mode = if node.flag("readwrite")? == Some(true) { Mode::ReadWrite } else { Mode::ReadOnly };
    Ok(DiskConfig {
        vdev,
        target,
        format,
        mode,
        cdrom: node.flag("is_cdrom")? == Some(true),
        discard: node.flag("discard_enable")? != Some(false),
        script,
        trust: if node.flag("trusted")? == Some(false) { Trust::Untrusted } else { Trust::Trusted },
        backend: node.backend()?,
    })
}

fn vif(node: &Node<'_>, index: u32, kind: DomainKind) -> Result<VifConfig> {
    let script = node.owned("script")?.filter(|it| hotplug::path(it) != hotplug::VIF_BRIDGE);
    node.refuse_if("vlan", node.is_set("vlan"), "VLANs of bridges are not supported")?;
    node.refuse_if("coloft_forwarddev", node.is_set("coloft_forwarddev"), "COLO is not supported")?;
    let is_untrusted = node.flag("trusted")? == Some(false);
    let mac = node.text("mac")?.filter(|it| *it != "00:00:00:00:00:00");
    let mac = mac.map(str::parse::<Mac>).transpose();
    let rate = node.number("rate_bytes_per_interval")?.filter(|bytes| *bytes != 0);
    let interval_us = node.number("rate_interval_usecs")?.unwrap_or(0);
    let backend = node.backend()?;
    let is_emulated = kind == DomainKind::Hvm
        && backend.is_none()
        && !matches!(node.text("nictype")?, Some("vif"));
    let model = node.owned("model")?.unwrap_or_else(|| "rtl8139".to_owned());
    Ok(VifConfig {
        devid: node.narrow("devid")?.unwrap_or(index),
        mac: mac.map_err(|error| node.error("mac", error.to_string()))?,
        bridge: node.owned("bridge")?.unwrap_or_else(|| "xenbr0".to_owned()),
        name: node.owned("ifname")?,
        ip: node.owned("ip")?,
        // The usual one need not be said.
        mtu: node.narrow("mtu")?.filter(|mtu| *mtu != 0),
        rate: rate.map(|bytes| Rate { bytes, interval_us }),
        model: is_emulated.then_some(model),
        script,
        gateway: node.owned("gatewaydev")?,
        trust: if is_untrusted { Trust::Untrusted } else { Trust::Trusted },
        // libxl knows nothing of it.
        antispoof: false,
        backend,
    })
}

fn hvm(build: &Node<'_>, own: &Node<'_>) -> Result<HvmSettings> {
    let default = HvmSettings::default();
    let is_traditional = build.text("device_model_version")? == Some("qemu_xen_traditional");
    build.refuse_if("device_model_version", is_traditional, "only qemu_xen is supported")?;
    let has_card = own.flag("gfx_passthru")? == Some(true);
    own.refuse_if("gfx_passthru", has_card, "graphics cards of the host are not supported")?;
    let cards = Vga::ALL;
    let card = own.object("vga")?.map(|it| it.choice("kind", &cards, vga)).transpose()?.flatten();
    let card = card.unwrap_or_default();
    let video = build.number("video_memkb")?.map(|kib| kib >> 10);
    let bios = [Bios::SeaBios, Bios::Ovmf];
    let mut serial = own.texts("serial_list")?;
    serial.extend(own.owned("serial")?);
    let mut usb_devices = own.texts("usbdevice_list")?;
    usb_devices.extend(own.owned("usbdevice")?);
    let mut model_arguments = build.texts("extra")?;
    model_arguments.extend(build.texts("extra_hvm")?);
    Ok(HvmSettings {
        loader: own.owned("firmware")?,
        bios: own.choice("bios", &bios, Bios::as_str)?.unwrap_or_default(),
        bios_path: own.owned("system_firmware")?,
        boot: own.owned("boot")?.unwrap_or(default.boot),
        vga: card,
        video_mib: if card == Vga::None { 0 } else { video.unwrap_or(card.video_mib().0) },
        vnc: vnc(own)?,
        spice: spice(own)?,
        nographic: own.flag("nographic")? == Some(true),
        generation_id: own.list("ms_vm_genid")?.iter().any(|it| it.as_u64() != Some(0)),
        keymap: own.owned("keymap")?,
        serial,
        usb: own.flag("usb")? == Some(true) || !usb_devices.is_empty(),
        usb_devices,
        usb_version: own.number("usbversion")?.and_then(|number| {
            UsbVersion::ALL.into_iter().find(|it| u64::from(it.number()) == number)
        }),
        sound: own.choice("soundhw", &SoundCard::ALL, SoundCard::as_str)?,
        disk_bus: own.choice("hdtype", &DiskBus::ALL, DiskBus::as_str)?.unwrap_or_default(),
        vendor_device: own.text("vendor_device")? == Some("xenserver"),
        apic: build.flag("apic")?.or(own.flag("apic")?).unwrap_or(default.apic),
        acpi: build.flag("acpi")?.or(own.flag("acpi")?).unwrap_or(default.acpi),
        acpi_s3: own.flag("acpi_s3")?.unwrap_or(default.acpi_s3),
        acpi_s4: own.flag("acpi_s4")?.unwrap_or(default.acpi_s4),
        hpet: own.flag("hpet")?.unwrap_or(default.hpet),
        viridian: viridian(own)?,
        platform_device: own.flag("xen_platform_pci")?.unwrap_or(default.platform_device),
        model: build.owned("device_model")?,
        // libxl writes for every domain that its device model is not restricted.
        model_user: match build.text("device_model_user")? {
            None => ModelUser::Restricted,
            Some("root") => ModelUser::Root,
            Some(name) => ModelUser::Named(name.to_owned()),
        },
        model_arguments,
        laptop_slate: own.flag("acpi_laptop_slate")?.unwrap_or(default.laptop_slate),
        pae: own.flag("pae")?.unwrap_or(default.pae),
        lmce: own.number("mca_caps")?.is_some_and(|bits| bits & LMCE != 0),
        hole_mib: own.narrow::<u32>("mmio_hole_memkb")?.map(|kib| kib >> 10).filter(|mib| *mib > 0),
        smbios: smbios(own)?,
        acpi_tables: own.owned("acpi_firmware")?,
        smbios_structures: own.owned("smbios_firmware")?,
    })
}

fn smbios(own: &Node<'_>) -> Result<Vec<SmbiosText>> {
    let mut texts = Vec::new();
    for node in own.objects("smbios")? {
        let key = node.choice("key", &SmbiosText::KEYS, |key| key)?;
        let (Some(key), Some(value)) = (key, node.owned("value")?) else {
            return Err(node.error("key", "expected a key and a text"));
        };
        texts.push(SmbiosText { key, value });
    }
    Ok(texts)
}

/// Whatever display libxl would have found, ours is another.
fn vnc(own: &Node<'_>) -> Result<Option<Vnc>> {
    let default = HvmSettings::default().vnc;
    let Some(vnc) = own.object("vnc")? else { return Ok(default) };
    if vnc.flag("enable")? == Some(false) {
        return Ok(None);
    }
    let listen = vnc.text("listen")?.unwrap_or("127.0.0.1");
    // It may be ADDRESS:DISPLAY.
    let (listen, with) = match listen.rsplit_once(':') {
        Some((address, display)) if !address.ends_with(':') => (address, display.parse().ok()),
        _ => (listen, None),
    };
    let is_fixed = vnc.flag("findunused")? == Some(false);
    let display = vnc.narrow("display")?.filter(|_| is_fixed).or(with);
    Ok(Some(Vnc { listen: listen.to_owned(), display, password: vnc.owned("passwd")? }))
}

fn spice(own: &Node<'_>) -> Result<Option<Spice>> {
    let Some(spice) = own.object("spice")? else { return Ok(None) };
    if spice.flag("enable")? != Some(true) {
        return Ok(None);
    }
    let is_open = spice.flag("disable_ticketing")? == Some(true);
    Ok(Some(Spice {
        host: spice.owned("host")?,
        port: spice.narrow("port")?.unwrap_or_default(),
        tls_port: spice.narrow("tls_port")?.unwrap_or_default(),
        password: spice.owned("passwd")?.filter(|_| !is_open),
        agent_mouse: spice.flag("agent_mouse")? != Some(false),
        agent: spice.flag("vdagent")? == Some(true),
        clipboard: spice.flag("clipboard_sharing")? == Some(true),
        usb_redirections: spice.narrow("usbredirection")?.unwrap_or_default(),
        image_compression: spice.owned("image_compression")?,
        streaming_video: spice.owned("streaming_video")?,
    }))
}

fn viridian(own: &Node<'_>) -> Result<u64> {
    let numbers = |key| {
        let number = |it: &Value| it.as_u64().and_then(|it| usize::try_from(it).ok());
        let numbers = own.list(key)?.iter().map(number).collect::<Option<Vec<_>>>();
        numbers.ok_or_else(|| own.error(key, "expected a list of numbers"))
    };
    let mut groups = numbers("viridian_enable")?;
    if own.flag("viridian")? == Some(true) {
        groups.extend(viridian_default());
    }
    let disabled = numbers("viridian_disable")?;
    groups.retain(|group| !disabled.contains(group));
    viridian_mask(&groups).map_err(|problem| own.error("viridian_enable", problem))
}
