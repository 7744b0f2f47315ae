//! VMs, running or not, and what is part of them.

use api::{CheckpointRow, DomainRow, VmObject, VmSizes};
use xen::Uuid;

use crate::model::Class;
use crate::objects::Records;
use crate::records::{Draft, View, device};
use crate::refs::{derived, opaque};
use crate::value::Value;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// What is behind a console.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shown {
    /// A screen that the VM has.
    Screen,
    /// The text of a terminal.
    Text,
    /// That text on a screen that is made for it: most clients know screens alone.
    Drawn,
}

impl Shown {
    pub(crate) const ALL: [Self; 3] = [Self::Screen, Self::Drawn, Self::Text];

    /// References to consoles follow from it.
    fn name(self) -> &'static str {
        match self {
            Self::Screen => "Screen",
            Self::Text => "Text",
            Self::Drawn => "Drawn",
        }
    }

    fn protocol(self) -> &'static str {
        match self {
            Self::Screen | Self::Drawn => "rfb",
            Self::Text => "vt100",
        }
    }
}

/// The four states of XenAPI.
pub(crate) fn power_state(vm: &VmObject) -> &'static str {
    match vm.state.as_str() {
        // A domain that has stopped and is kept does not run; it has to be destroyed.
        "paused" | "preserved" => "Paused",
        "suspended" => "Suspended",
        "running" | "stopping" => "Running",
        "stuck" if vm.domid.is_some() => "Running",
        _ => "Halted",
    }
}

/// An operation of the daemon in the words of XenAPI; `None` if it is one on a device.
pub(crate) fn operation_word(what: &str) -> Option<&'static str> {
    Some(match what {
        "start" => "start",
        "stop" => "clean_shutdown",
        "reboot" => "clean_reboot",
        "suspend" => "suspend",
        "save" => "checkpoint",
        "dump" => "export",
        "migrate" => "pool_migrate",
        "receive" => "import",
        "undo" => "hard_shutdown",
        _ => return None,
    })
}

/// What may be done with a VM in this state.
pub(crate) fn allowed(state: &str, vm: &VmObject, is_template: bool) -> Vec<&'static str> {
    let mut allowed = match (state, vm.state.as_str()) {
        (_, "preserved" | "stuck") => return vec!["hard_shutdown"],
        ("Running", _) => vec![
            "clean_shutdown",
            "hard_shutdown",
            "clean_reboot",
            "pause",
            "suspend",
            "checkpoint",
            "snapshot",
            "changing_dynamic_range",
            "changing_VCPUs_live",
        ],
        ("Paused", _) => vec!["unpause", "hard_shutdown"],
        ("Suspended", _) => vec!["resume", "hard_shutdown"],
        _ if is_template => return vec!["clone", "copy", "provision", "destroy"],
        _ => vec!["start", "start_on", "clone", "copy", "provision", "destroy"],
    };
    if vm.defined && state == "Running" {
        allowed.push("hard_reboot");
    }
    allowed
}

impl View<'_> {
    /// All records of a VM; none if it is not there.
    pub(crate) fn vm_records(&self, uuid: Uuid) -> Records {
        let mut records = Records::new();
        if let Some(vm) = self.mirror.live.vms.get(&uuid) {
            self.vm(uuid, vm, &mut records);
        } else if let Some(domain) = self.mirror.foreign(uuid) {
            let is_control = domain.domid == 0;
            let own = if is_control { self.control_domain() } else { uuid };
            self.foreign_vm(own, domain, &mut records);
        }
        // Checkpoints outlive their VM.
        for row in self.mirror.checkpoints.get(&uuid).into_iter().flatten() {
            self.snapshot(uuid, row, &mut records);
        }
        records
    }

    fn vm(&self, uuid: Uuid, vm: &VmObject, records: &mut Records) {
        let state = power_state(vm);
        let mut draft = Draft::of(Class::Vm, uuid);
        self.common(&mut draft, &vm.name);
        let row = vm.domid.and_then(|domid| self.mirror.row(domid, &vm.uuid));
        draft.set("power_state", state);
        // The domain of a suspended VM is there, but nobody else may use it.
        let domid = vm.domid.filter(|_| state != "Halted");
        draft.set("domid", domid.map_or(-1, i64::from));
        draft.point("resident_on", domid.map(|_| self.host()));
        draft.set("domain_type", kind(vm.config.as_ref().map_or("", |it| it.kind.as_str())));
        self.sizes(&mut draft, vm.config.as_ref());
        self.operations(&mut draft, uuid, vm, state);
        draft.point("metrics", Some(self.vm_metrics(uuid, vm.config.as_ref(), row, records)));
        let devices = self.devices(uuid, vm, records);
        draft.point_all("VBDs", devices.vbds);
        draft.point_all("VIFs", devices.vifs);
        // Many clients take the first.
        let screen = if devices.has_screen { Shown::Screen } else { Shown::Drawn };
        let consoles =
            domid.map(|_| [screen, Shown::Text].map(|it| self.console(uuid, it, records)));
        draft.point_all("consoles", consoles.into_iter().flatten());
        let checkpoints = self.mirror.checkpoints.get(&uuid).into_iter().flatten();
        draft.point_all("snapshots", checkpoints.map(|row| checkpoint_uuid(uuid, &row.name)));
        draft.finish(self.labels, records);
    }

    /// A domain of another toolstack, or domain 0.
    fn foreign_vm(&self, uuid: Uuid, domain: &api::DomainObject, records: &mut Records) {
        let is_control = domain.domid == 0;
        let row = self.mirror.row(domain.domid, &domain.uuid);
        let mut draft = Draft::of(Class::Vm, uuid);
        let fallback = format!("domain {}", domain.domid);
        self.common(&mut draft, domain.name.as_ref().unwrap_or(&fallback));
        draft.set("is_control_domain", is_control);
        draft
            .set("power_state", if row.is_some_and(|it| it.paused) { "Paused" } else { "Running" });
        draft.set("domid", u32::from(domain.domid));
        draft.point("resident_on", Some(self.host()));
        let sizes = row.map(|row| VmSizes {
            kind: row.kind.clone(),
            memory_mib: row.mem_kib / KIB,
            memory_max_mib: if is_control { row.mem_kib / KIB } else { row.mem_max_kib / KIB },
            vcpus: row.vcpus_online,
            vcpus_max: row.vcpus_online,
        });
        draft.set("domain_type", kind(row.map_or("", |it| it.kind.as_str())));
        self.sizes(&mut draft, sizes.as_ref());
        draft.point("metrics", Some(self.vm_metrics(uuid, sizes.as_ref(), row, records)));
        draft.finish(self.labels, records);
    }

    fn common(&self, draft: &mut Draft, name: &str) {
        draft.set("name_label", name);
        draft.set("HVM_shadow_multiplier", Value::Float(1.0));
        draft.set("affinity", Value::null());
        draft.set("hardware_platform_version", Value::Int(0));
        draft.set("actions_after_crash", "destroy");
        draft.set("reference_label", "");
    }

    fn sizes(&self, draft: &mut Draft, sizes: Option<&VmSizes>) {
        let Some(sizes) = sizes else { return };
        let (memory, memory_max) = (sizes.memory_mib * MIB, sizes.memory_max_mib * MIB);
        draft.set("memory_static_max", memory_max);
        draft.set("memory_dynamic_max", memory);
        draft.set("memory_dynamic_min", memory);
        draft.set("memory_target", memory);
        draft.set("VCPUs_max", sizes.vcpus_max);
        draft.set("VCPUs_at_startup", sizes.vcpus);
        // The guest sees one socket. Xen Orchestra sets it, again and again, of VMs that do not say so.
        let cores = sizes.vcpus_max.to_string();
        draft.set("platform", Value::texts([("cores-per-socket", cores)]));
    }

    fn operations(&self, draft: &mut Draft, uuid: Uuid, vm: &VmObject, state: &str) {
        let mut current: Vec<(String, &'static str)> =
            self.tasks.on(uuid).map(|(task, what)| (opaque(task.id), what)).collect();
        if current.is_empty() {
            let ids = vm.operations.iter();
            let known = ids.filter_map(|id| Some((*id, self.mirror.live.operations.get(id)?)));
            current.extend(known.filter_map(|(id, it)| {
                Some((opaque(self.operation_task(id)), operation_word(&it.row.what)?))
            }));
        }
        let allowed = match current.is_empty() {
            true => allowed(state, vm, self.is_template(uuid)),
            false => Vec::new(),
        };
        draft.set("allowed_operations", allowed.into_iter().collect::<Value>());
        draft.set("current_operations", Value::texts(current));
    }

    /// Clients say which of the VMs that are defined others are made from.
    pub(crate) fn is_template(&self, vm: Uuid) -> bool {
        self.labels.get((Class::Vm, vm), "is_a_template") == Some(&Value::Bool(true))
    }

    /// The task that stands for an operation of the daemon.
    pub(crate) fn operation_task(&self, id: u64) -> Uuid {
        self.of_host("operation", &id.to_string())
    }

    fn vm_metrics(
        &self,
        vm: Uuid,
        sizes: Option<&VmSizes>,
        row: Option<&DomainRow>,
        records: &mut Records,
    ) -> Uuid {
        let uuid = derived(vm, "metrics", "");
        let mut draft = Draft::of(Class::VmMetrics, uuid);
        if let Some(row) = row {
            draft.set("memory_actual", row.mem_kib * KIB);
            draft.set("VCPUs_number", row.vcpus_online);
            let start = row.started_unix_s.and_then(|it| i64::try_from(it).ok());
            draft.set("start_time", Value::Date(start.unwrap_or_default()));
        } else if let Some(sizes) = sizes {
            draft.set("VCPUs_number", sizes.vcpus);
        }
        let kind_now = row.map_or("", |it| it.kind.as_str());
        draft.set("hvm", kind_now == "hvm");
        draft.set("current_domain_type", kind(kind_now));
        draft.finish(self.labels, records);
        uuid
    }

    fn console(&self, vm: Uuid, shown: Shown, records: &mut Records) -> Uuid {
        let uuid = console_uuid(vm, shown);
        let mut draft = Draft::of(Class::Console, uuid);
        let authority = &self.identity.authority;
        draft.set("protocol", shown.protocol());
        draft.set("location", format!("https://{authority}/console?uuid={uuid}"));
        draft.point("VM", Some(vm));
        draft.finish(self.labels, records);
        uuid
    }

    fn snapshot(&self, vm: Uuid, row: &CheckpointRow, records: &mut Records) {
        let uuid = checkpoint_uuid(vm, &row.name);
        let mut draft = Draft::of(Class::Vm, uuid);
        self.common(&mut draft, &row.name);
        let of = self.mirror.live.vms.get(&vm);
        // A checkpoint has the guest's memory, so it is a VM that was suspended.
        draft.set("power_state", "Suspended");
        draft.set("domid", Value::Int(-1));
        draft.set("is_a_template", true);
        draft.set("is_a_snapshot", true);
        draft.point("snapshot_of", of.map(|_| vm));
        let created = i64::try_from(row.created).unwrap_or_default();
        draft.set("snapshot_time", Value::Date(created));
        draft.set("snapshot_info", Value::texts([("power-state-at-snapshot", "Running")]));
        draft.set("name_description", row.fault.as_str());
        let sizes = of.and_then(|it| it.config.as_ref());
        draft.set("domain_type", kind(sizes.map_or("", |it| it.kind.as_str())));
        self.sizes(&mut draft, sizes);
        let allowed = ["revert", "destroy", "hard_shutdown"];
        draft.set("allowed_operations", allowed.into_iter().collect::<Value>());
        draft.point("metrics", Some(self.vm_metrics(uuid, sizes, None, records)));
        draft.finish(self.labels, records);
    }

    fn devices(&self, uuid: Uuid, vm: &VmObject, records: &mut Records) -> device::Devices {
        let mut devices = device::Devices::default();
        for it in self.devices_of(uuid) {
            self.device(uuid, vm, it, records, &mut devices);
        }
        devices
    }
}

/// The UUID of a VM's console.
pub(crate) fn console_uuid(vm: Uuid, shown: Shown) -> Uuid {
    derived(vm, "console", shown.name())
}

/// The UUID of a VM's checkpoint.
pub(crate) fn checkpoint_uuid(vm: Uuid, name: &str) -> Uuid {
    derived(vm, "checkpoint", name)
}

fn kind(kind: &str) -> &'static str {
    match kind {
        "pv" => "pv",
        "pvh" => "pvh",
        "hvm" => "hvm",
        _ => "unspecified",
    }
}
