//! Converts the machine's values to the API's.

use api::{
    BlockRow, BuildInfo, ChannelRow, Cost, CreateInfo, CreateReport, Disk, DomainConfig, Fields,
    KeyboardRow, ListedConfig, NetworkRow, Nic, Stage, VcpuRow,
};
use serde_json::Value;
use toolstack::checkpoint::{Checkpoint, SavedDisk};
use toolstack::config::{Access, DiskConfig, TscMode, VifConfig, VmConfig};
use toolstack::layout::{DeviceKind, kind_name};
use toolstack::scheduler::{Class, Limits};
use toolstack::work::{DeviceReading, HostInfo, VcpuReading, VcpuReadings};
use toolstack::{Created, DomainRow};
use xen::{BitSet, DomId, DomainKind, Uuid, VersionInfo};

use crate::Kernel;

const KIB_PER_PAGE: u64 = 4;
const KIB_PER_MIB: u64 = 1024;

pub(crate) fn cost(cost: &toolstack::work::Cost) -> Cost {
    Cost {
        hypercalls: cost.hypercalls.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        store_messages: cost.store_messages,
        store_round_trips: cost.store_round_trips,
        transactions: cost.transactions,
        conflicts: cost.conflicts,
    }
}

pub(crate) fn limits(limits: &Limits, waiting: usize, under_way: usize) -> api::Limits {
    api::Limits {
        host: limits.host,
        vm: limits.vm,
        sr: limits.sr,
        backend: limits.backend,
        storage: limits.classes.get(&Class::Storage).copied(),
        domain: limits.classes.get(&Class::Domain).copied(),
        scan: limits.classes.get(&Class::Scan).copied(),
        change: limits.classes.get(&Class::Change).copied(),
        memory: limits.classes.get(&Class::Memory).copied(),
        send: limits.classes.get(&Class::Send).copied(),
        receive: limits.classes.get(&Class::Receive).copied(),
        waiting,
        under_way,
    }
}

/// Stages in the order of their start; overlapping steps of one stage are one span.
pub(crate) fn create_report(created: &Created) -> CreateReport {
    let us = |moment: toolstack::Instant| moment.0.saturating_sub(created.started.0) / 1000;
    let mut stages: Vec<Stage> = Vec::new();
    for time in &created.steps {
        let ended = time.ended.unwrap_or(created.ended);
        // A stage's time includes waiting for workers.
        let (name, start_us, end_us) = (time.step.stage(), us(time.ready), us(ended));
        match stages.iter_mut().find(|stage| stage.name == name) {
            Some(stage) => {
                stage.start_us = stage.start_us.min(start_us);
                stage.end_us = stage.end_us.max(end_us);
            }
            None => stages.push(Stage { name: name.to_owned(), start_us, end_us }),
        }
    }
    stages.sort_by_key(|stage| (stage.start_us, stage.end_us));
    CreateReport {
        name: created.name.clone(),
        domid: created.domid.0,
        uuid: created.uuid.to_string(),
        stages,
        cost: cost(&created.cost),
    }
}

/// Progress of an operation on a VM.
pub(crate) fn progress(vm: &str, far: &toolstack::Progress) -> api::Progress {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let names: Vec<String> = far.waits_for.iter().map(ToString::to_string).collect();
    api::Progress {
        vm: vm.to_owned(),
        done: number(far.done),
        total: number(far.total),
        step: far.ended.map(|step| step.to_string()).unwrap_or_default(),
        waits_for: names.join(", "),
    }
}

pub(crate) fn vm_row(row: &toolstack::VmRow) -> api::VmRow {
    api::VmRow {
        name: row.name.clone(),
        uuid: row.uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
        state: row.state.to_string(),
        reason: row.reason.clone(),
        domid: row.domid.map(|domid| domid.0),
        defined: row.defined,
        autostart: row.autostart,
    }
}

pub(crate) fn started_all(all: &toolstack::StartedAll) -> api::StartedAll {
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let failed =
        |(vm, why): &(String, String)| api::StartFailure { vm: vm.clone(), why: why.clone() };
    api::StartedAll {
        started: number(all.started),
        running: number(all.running),
        failed: all.failed.iter().map(failed).collect(),
    }
}

pub(crate) fn checkpoint_row(it: &Checkpoint) -> api::CheckpointRow {
    let disk = |it: &SavedDisk| api::CheckpointDisk {
        vdi: it.vdi.to_string(),
        snapshot: it.snapshot.to_string(),
    };
    api::CheckpointRow {
        vm: it.vm.clone(),
        uuid: it.uuid.to_string(),
        name: it.name.clone(),
        created: it.created,
        bytes: it.bytes,
        disks: it.disks.iter().map(disk).collect(),
        fault: it.fault.clone().unwrap_or_default(),
    }
}

/// Changes of VMs' states; `unix_ms` converts the machine's time.
pub(crate) fn changes(
    it: &toolstack::StateChanges,
    unix_ms: impl Fn(toolstack::Instant) -> u64,
) -> api::StateChanges {
    let status = |it: &toolstack::VmStatus| api::VmStatus {
        name: it.name.clone(),
        uuid: it.uuid.to_string(),
        domid: it.domid.map(|domid| domid.0),
        state: it.state.to_string(),
        revision: it.revision,
    };
    let change = |it: &toolstack::StateChange| api::StateChange {
        revision: it.revision,
        unix_ms: unix_ms(it.at),
        vm: it.name.clone(),
        uuid: it.uuid.to_string(),
        domid: it.domid.map(|domid| domid.0),
        before: it.before.to_string(),
        after: it.after.to_string(),
        reason: it.reason.clone(),
    };
    api::StateChanges {
        revision: it.revision,
        too_old: it.too_old,
        snapshot: it.snapshot.as_ref().map(|states| states.iter().map(status).collect()),
        changes: it.changes.iter().map(change).collect(),
    }
}

/// One line of `trace`.
pub(crate) fn operation_row(it: &toolstack::Summary) -> api::TraceRow {
    api::TraceRow {
        id: it.id,
        what: it.what.to_owned(),
        vm: it.vm.clone(),
        started_ns: it.started.0,
        ended_ns: it.ended.map(|ended| ended.0),
        failure: it.failure.clone(),
        steps: u64::try_from(it.planned).unwrap_or(u64::MAX),
        done: u64::try_from(it.done).unwrap_or(u64::MAX),
    }
}

/// An operation with its steps.
pub(crate) fn operation_trace(now: toolstack::Instant, it: &toolstack::Trace) -> api::Trace {
    let step = |step: &toolstack::StepTime| api::TraceStep {
        name: step.step.to_string(),
        stage: step.step.stage().to_owned(),
        ready_ns: step.ready.0,
        started_ns: step.started.0,
        ended_ns: step.ended.map(|ended| ended.0),
        waited_for: step.waited_for.clone(),
        failed: step.failed,
    };
    let done = it.steps.iter().filter(|step| step.ended.is_some()).count();
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    api::Trace {
        now_ns: now.0,
        uuid: it.uuid.to_string(),
        operation: api::TraceRow {
            id: it.id,
            what: it.what.to_owned(),
            vm: it.vm.clone(),
            started_ns: it.started.0,
            ended_ns: it.ended.map(|ended| ended.0),
            failure: it.failure.clone(),
            steps: number(it.planned),
            done: number(done),
        },
        steps: it.steps.iter().map(step).collect(),
        cost: cost(&it.cost),
    }
}

pub(crate) fn domain_row(row: &DomainRow) -> api::DomainRow {
    let info = &row.info;
    api::DomainRow {
        name: row.name.clone(),
        domid: info.domid.0,
        uuid: info.handle.to_string(),
        kind: kind_name(info.kind()).to_owned(),
        mem_kib: (info.pages + info.pages_outstanding) * KIB_PER_PAGE,
        claimed_kib: info.pages_outstanding * KIB_PER_PAGE,
        shared_kib: info.pages_shared * KIB_PER_PAGE,
        mem_max_kib: info.pages_max.saturating_mul(KIB_PER_PAGE),
        vcpus_online: info.vcpus_online,
        running: info.flags.running(),
        blocked: info.flags.blocked(),
        paused: info.flags.paused(),
        shutdown_reason: info.flags.shutdown().map(xen::ShutdownReason::code),
        dying: info.flags.dying(),
        cpu_time_ns: info.cpu_time_ns,
        cpupool: info.cpupool,
        started_unix_s: None,
        managed: row.config.is_some(),
    }
}

/// A VM for `list -l` and dry runs.
pub(crate) fn listed_config(domid: Option<u16>, uuid: Option<Uuid>, vm: &VmConfig) -> ListedConfig {
    let uuid = uuid.or(vm.uuid).map(|uuid| uuid.to_string()).unwrap_or_default();
    let mut fields = toolstack::libxl_json::fields(vm);
    let disks = of_devices(&mut fields, "disks");
    let nics = of_devices(&mut fields, "nics");
    let mut more = |key| match fields.remove(key) {
        Some(Value::Object(fields)) => fields,
        _ => Fields::new(),
    };
    let (mut create, mut build) = (more("c_info"), more("b_info"));
    if vm.kind != DomainKind::Pv {
        create.entry("hap").or_insert_with(|| "True".into());
    }
    for key in ["localtime", "disable_migrate"] {
        build.entry(key).or_insert_with(|| "False".into());
    }
    omit(&mut create, &["type", "name", "uuid"]);
    let typed = ["max_vcpus", "avail_vcpus", "max_memkb", "target_memkb", "tsc_mode", "kernel"];
    omit(&mut build, &typed);
    omit(&mut build, &["cmdline", "ramdisk", "max_grant_frames"]);
    let mut action = |key| match fields.remove(key) {
        Some(Value::String(action)) => Some(action),
        _ => None,
    };
    // In libxl's words, which differ from those of a file.
    let [on_poweroff, on_reboot, on_watchdog, on_crash, on_soft_reset] =
        ["on_poweroff", "on_reboot", "on_watchdog", "on_crash", "on_soft_reset"].map(&mut action);
    // libxl leaves out what a new domain has anyway.
    let [on_poweroff, on_watchdog, on_crash] = [on_poweroff, on_watchdog, on_crash]
        .map(|action| action.filter(|action| action != "destroy"));
    let tsc_mode = match vm.tsc_mode {
        TscMode::Default => None,
        TscMode::AlwaysEmulate => Some("always_emulate"),
        TscMode::Native => Some("native"),
    };
    let config = DomainConfig {
        c_info: CreateInfo {
            kind: kind_name(vm.kind).to_owned(),
            name: vm.name.clone(),
            uuid,
            more: create,
        },
        b_info: BuildInfo {
            max_vcpus: vm.vcpus_max,
            avail_vcpus: (0..vm.vcpus).collect(),
            max_memkb: vm.memory_max_mib * KIB_PER_MIB,
            target_memkb: vm.memory_mib * KIB_PER_MIB,
            tsc_mode: tsc_mode.map(str::to_owned),
            kernel: vm.kernel.clone(),
            cmdline: (!vm.cmdline.is_empty()).then(|| vm.cmdline.clone()),
            ramdisk: vm.ramdisk.clone(),
            max_grant_frames: vm.grant_frames_max.map(u32::from),
            more: build,
        },
        disks: vm.disks.iter().zip(disks).map(listed_disk).collect(),
        nics: vm.vifs.iter().zip(nics).map(listed_nic).collect(),
        on_poweroff,
        on_reboot,
        on_watchdog,
        on_crash,
        on_soft_reset,
        more: fields,
    };
    ListedConfig { domid, config }
}

/// With the fields that libxl has of it.
fn listed_disk((disk, mut more): (&DiskConfig, Fields)) -> Disk {
    let format = more.get("format").and_then(Value::as_str).unwrap_or("raw").to_owned();
    omit(&mut more, &["pdev_path", "vdev", "format", "readwrite", "is_cdrom"]);
    Disk {
        pdev_path: disk.target.clone(),
        vdev: disk.vdev.name.clone(),
        backend: "phy".to_owned(),
        format,
        readwrite: u32::from(disk.access() == Access::ReadWrite),
        is_cdrom: u32::from(disk.cdrom),
        more,
    }
}

/// Likewise.
fn listed_nic((vif, mut more): (&VifConfig, Fields)) -> Nic {
    let typed = ["devid", "mac", "mtu", "bridge", "rate_bytes_per_interval", "rate_interval_usecs"];
    omit(&mut more, &typed);
    Nic {
        devid: vif.devid,
        mac: vif.mac.map(|mac| mac.to_string()),
        mtu: vif.mtu,
        bridge: vif.bridge.clone(),
        rate_bytes_per_interval: vif.rate.map(|rate| rate.bytes),
        rate_interval_usecs: vif.rate.map(|rate| rate.interval_us),
        more,
    }
}

/// The fields of each device of a kind.
fn of_devices(fields: &mut Fields, key: &str) -> impl Iterator<Item = Fields> + use<> {
    let devices = match fields.remove(key) {
        Some(Value::Array(devices)) => devices,
        _ => Vec::new(),
    };
    devices.into_iter().map(|device| match device {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    })
}

/// Leaves out what has a type of its own.
fn omit(fields: &mut Fields, typed: &[&str]) {
    for key in typed {
        fields.remove(*key);
    }
}

/// A domain of another toolstack: only its name and UUID are known.
pub(crate) fn listed_foreign(row: &DomainRow) -> ListedConfig {
    let config = DomainConfig {
        c_info: CreateInfo {
            kind: kind_name(row.info.kind()).to_owned(),
            name: row.name.clone().unwrap_or_default(),
            uuid: row.info.handle.to_string(),
            ..CreateInfo::default()
        },
        b_info: BuildInfo {
            max_vcpus: row.info.vcpu_count(),
            avail_vcpus: (0..row.info.vcpus_online).collect(),
            max_memkb: row.info.pages_max.saturating_mul(KIB_PER_PAGE),
            target_memkb: row.info.pages * KIB_PER_PAGE,
            ..BuildInfo::default()
        },
        ..DomainConfig::default()
    };
    ListedConfig { domid: Some(row.info.domid.0), config }
}

fn unsigned(number: Option<i64>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok())
}

pub(crate) fn block_rows(domid: u16, readings: &[DeviceReading]) -> Vec<BlockRow> {
    let vbds = readings.iter().filter(|reading| reading.device.kind == DeviceKind::Vbd);
    vbds.map(|reading| BlockRow {
        vdev: reading.device.devid,
        backend_domid: reading.backend_domid.0,
        frontend_domid: domid,
        state: reading.state,
        evtchn: unsigned(reading.event_channel),
        ring_ref: unsigned(reading.ring_ref),
        backend_path: reading.backend.clone(),
    })
    .collect()
}

pub(crate) fn network_rows(readings: &[DeviceReading]) -> Vec<NetworkRow> {
    let vifs = readings.iter().filter(|reading| reading.device.kind == DeviceKind::Vif);
    vifs.map(|reading| NetworkRow {
        devid: reading.device.devid,
        backend_domid: reading.backend_domid.0,
        mac: reading.mac.clone().unwrap_or_default(),
        state: reading.state,
        evtchn: unsigned(reading.event_channel),
        tx_ring_ref: unsigned(reading.ring_ref),
        rx_ring_ref: unsigned(reading.rx_ring_ref),
        backend_path: reading.backend.clone(),
    })
    .collect()
}

pub(crate) fn channel_rows(readings: &[DeviceReading]) -> Vec<ChannelRow> {
    let consoles = readings.iter().filter(|reading| reading.device.kind == DeviceKind::Console);
    consoles
        .map(|reading| ChannelRow {
            devid: reading.device.devid.saturating_sub(1),
            name: reading.name.clone().unwrap_or_default(),
            backend_domid: 0,
            state: reading.state,
            evtchn: unsigned(reading.event_channel),
            ring_ref: unsigned(reading.ring_ref),
            connection: reading.connection.clone().unwrap_or_default(),
            tty: reading.tty.clone().filter(|tty| !tty.is_empty()),
        })
        .collect()
}

pub(crate) fn keyboard_rows(readings: &[DeviceReading]) -> Vec<KeyboardRow> {
    let keyboards = readings.iter().filter(|reading| reading.device.kind == DeviceKind::Vkbd);
    keyboards
        .map(|reading| KeyboardRow {
            devid: reading.device.devid,
            backend_domid: 0,
            state: reading.state,
            evtchn: unsigned(reading.event_channel),
            ring_ref: unsigned(reading.ring_ref),
            unique_id: reading.name.clone(),
            backend_path: reading.backend.clone(),
        })
        .collect()
}

/// A domain's vCPUs; none if it no longer exists.
pub(crate) fn vcpu_rows(row: &DomainRow, readings: &VcpuReadings) -> Vec<VcpuRow> {
    let domid = row.info.domid;
    let vcpus = readings.domains.get(&domid).map(Vec::as_slice).unwrap_or_default();
    (0..)
        .zip(vcpus)
        .map(|(vcpu, VcpuReading { info, affinity })| VcpuRow {
            name: row.name.clone(),
            domid: domid.0,
            vcpu,
            online: info.online,
            running: info.running,
            blocked: info.blocked,
            cpu: info.cpu,
            cpu_time_ns: info.cpu_time_ns,
            affinity_hard: cpu_ranges(&affinity.hard, readings.cpus),
            affinity_soft: cpu_ranges(&affinity.soft, readings.cpus),
        })
        .collect()
}

/// CPUs as xl prints them: `all`, `none`, or ranges as in `0-3,8`.
fn cpu_ranges(set: &BitSet, cpus: u32) -> String {
    ranges(set.iter(), cpus)
}

/// The same for ascending numbers of anything of which there are so many.
pub(crate) fn ranges(numbers: impl IntoIterator<Item = u32>, count: u32) -> String {
    let numbers: Vec<u32> = numbers.into_iter().take_while(|number| *number < count).collect();
    match numbers.len() {
        0 => "none".to_owned(),
        all if u32::try_from(all) == Ok(count) => "all".to_owned(),
        _ => toolstack::tuning::ranges(numbers),
    }
}

/// Xen's version in a word.
pub(crate) fn xen_version(it: &VersionInfo) -> String {
    format!("{}.{}{}", it.major, it.minor, it.extra)
}

/// The lines of `xl info`, in its order.
pub(crate) fn host_info(info: &HostInfo, kernel: Kernel) -> Vec<(String, String)> {
    /// Bits of `XEN_SYSCTL_PHYSCAP_*` and libxl's names for them.
    const HVM: u32 = 1;
    const PV: u32 = 1 << 1;
    const DIRECTIO: u32 = 1 << 2;
    let HostInfo { version, physical, set_aside } = info;
    let has = |bits: u32| physical.capabilities & bits == bits;
    let words = [
        (has(PV), "pv"),
        (has(HVM), "hvm"),
        (has(HVM | DIRECTIO), "hvm_directio"),
        (has(PV | DIRECTIO), "pv_directio"),
        (has(1 << 3), "hap"),
        (has(1 << 4), "shadow"),
        (has(1 << 5), "iommu_hap_pt_share"),
        (has(1 << 6), "vmtrace"),
        (has(1 << 7), "vpmu"),
        (has(1 << 8), "gnttab-v1"),
        (has(1 << 9), "gnttab-v2"),
    ];
    let caps: Vec<&str> = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
    let hw_caps: Vec<String> = physical.hw_caps.iter().map(|word| format!("{word:08x}")).collect();
    let mib = |pages: u64| (pages / (KIB_PER_MIB / KIB_PER_PAGE)).to_string();
    let (major, minor) = (version.major, version.minor);
    let set_aside = set_aside.unwrap_or_default();
    let lines = [
        ("host", kernel.host),
        ("release", kernel.release),
        ("version", kernel.version),
        ("machine", kernel.machine),
        ("nr_cpus", physical.cpus.to_string()),
        ("max_cpu_id", physical.cpu_id_max.to_string()),
        ("nr_nodes", physical.nodes.to_string()),
        ("cores_per_socket", physical.cores_per_socket.to_string()),
        ("threads_per_core", physical.threads_per_core.to_string()),
        ("cpu_mhz", format!("{}.{:03}", physical.cpu_khz / 1000, physical.cpu_khz % 1000)),
        ("hw_caps", hw_caps.join(":")),
        ("virt_caps", caps.join(" ")),
        ("total_memory", mib(physical.pages)),
        ("free_memory", mib(physical.pages_free.saturating_sub(physical.pages_outstanding))),
        ("sharing_freed_memory", mib(set_aside.sharing_pages_freed)),
        ("sharing_used_memory", mib(set_aside.sharing_pages_used)),
        ("outstanding_claims", mib(physical.pages_outstanding)),
        ("free_cpus", set_aside.cpus_free.to_string()),
        ("xen_major", major.to_string()),
        ("xen_minor", minor.to_string()),
        ("xen_extra", version.extra.clone()),
        ("xen_version", xen_version(version)),
        ("xen_caps", version.capabilities.clone()),
        ("xen_scheduler", version.scheduler().to_owned()),
        ("xen_pagesize", version.pagesize_bytes.to_string()),
        ("platform_params", format!("virt_start=0x{:x}", version.virt_start)),
        ("xen_changeset", version.changeset.clone()),
        ("xen_commandline", version.commandline.clone()),
        ("cc_compiler", version.compiler.clone()),
        ("cc_compile_by", version.compile_by.clone()),
        ("cc_compile_domain", version.compile_domain.clone()),
        ("cc_compile_date", version.compile_date.clone()),
        ("build_id", version.build_id.clone()),
        ("xend_config_format", "4".to_owned()),
    ];
    lines.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Reports to a client that shuts several VMs down.
pub(crate) fn told(told: toolstack::Told, progress: bool) -> Vec<api::Answer> {
    use api::EventKind;
    use toolstack::{ShutdownRequest, Told};
    let event = |domid: DomId, kind| api::Answer::Event(api::DomainEvent { domid: domid.0, kind });
    match told {
        Told::Asked { domid, how: ShutdownRequest::Poweroff } => {
            vec![event(domid, EventKind::ShutdownRequested)]
        }
        Told::Asked { domid, how: ShutdownRequest::Reboot } => {
            vec![event(domid, EventKind::RebootRequested)]
        }
        Told::SentAcpi { domid, how: ShutdownRequest::Poweroff } => {
            vec![event(domid, EventKind::PowerButtonSent)]
        }
        Told::SentAcpi { domid, how: ShutdownRequest::Reboot } => {
            vec![event(domid, EventKind::ResetSent)]
        }
        Told::Gone { domid, reason } => {
            let stopped = reason.map(|reason| EventKind::ShutDown { reason: reason.code() });
            let kinds = stopped.into_iter().chain([EventKind::Destroyed]);
            kinds.map(|kind| event(domid, kind)).collect()
        }
        Told::Waiting { vm, done, total } if progress => {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let (done, total) = (number(done), number(total));
            let (step, waits_for) = (String::new(), "its guest to stop".to_owned());
            vec![api::Answer::Progress(api::Progress { vm, done, total, step, waits_for })]
        }
        Told::Waiting { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_printed_as_xl_prints_them() {
        for (numbers, cpus, expected) in [
            (&[0, 1, 2, 3][..], 4, "all"),
            (&[0, 1, 2, 3], 8, "0-3"),
            (&[0], 1, "all"),
            (&[0], 2, "0"),
            (&[1, 2, 5], 8, "1-2,5"),
            (&[0, 7], 8, "0,7"),
            // Xen also sets bits of absent CPUs.
            (&[0, 1, 2, 3, 4, 5], 4, "all"),
            (&[9], 4, "none"),
            (&[], 4, "none"),
        ] {
            let mut set = BitSet::default();
            numbers.iter().for_each(|cpu| set.insert(*cpu));
            assert_eq!(cpu_ranges(&set, cpus), expected, "{numbers:?} of {cpus}");
        }
    }
}
