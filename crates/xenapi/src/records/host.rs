//! The host and its pool, which has no other.

use api::Role;
use xen::Uuid;

use crate::model::Class;
use crate::objects::Records;
use crate::records::{Draft, View};
use crate::refs::opaque;
use crate::rights;
use crate::spec::Spec;
use crate::value::{Value, date_text};

const MIB: u64 = 1 << 20;

/// The version of XenAPI whose clients work here.
const API_VERSION: (i64, i64) = (2, 21);

/// Roles and what they are called in the table of roles.
pub(crate) const ROLES: [Role; 3] = Role::ALL;

impl View<'_> {
    pub(crate) fn host_records(&self) -> Records {
        let mut records = Records::new();
        self.pool_record(&mut records);
        self.host_record(&mut records);
        let mut metrics = Draft::of(Class::HostMetrics, self.of_host("metrics", ""));
        metrics.set("memory_total", self.mirror.number("total_memory") * MIB);
        metrics.set("memory_free", self.mirror.number("free_memory") * MIB);
        metrics.set("live", true);
        metrics.finish(self.labels, &mut records);
        self.cpu_records(&mut records);
        for role in ROLES {
            let mut draft = Draft::of(Class::Role, self.role(role));
            draft.set("name_label", rights::name(role));
            draft.set("name_description", rights::what(role));
            draft.finish(self.labels, &mut records);
        }
        records
    }

    pub(crate) fn role(&self, role: Role) -> Uuid {
        self.of_host("role", rights::name(role))
    }

    fn pool_record(&self, records: &mut Records) {
        let mut draft = Draft::of(Class::Pool, self.pool());
        draft.set("name_label", self.identity.hostname.as_str());
        draft.point("master", Some(self.host()));
        let first = self.mirror.live.srs.keys().next();
        for field in ["default_SR", "suspend_image_SR", "crash_dump_SR"] {
            draft.point(field, first.map(|name| self.sr(name)));
        }
        let cpus = [
            ("cpu_count", self.mirror.number("nr_cpus").to_string()),
            ("socket_count", self.sockets().to_string()),
            ("vendor", String::new()),
            ("features_pv", String::new()),
            ("features_hvm", String::new()),
        ];
        draft.set("cpu_info", Value::texts(cpus));
        draft.set("policy_no_vendor_device", true);
        draft.set("is_psr_pending", false);
        draft.finish(self.labels, records);
    }

    fn sockets(&self) -> usize {
        let mut sockets: Vec<_> = self.mirror.topology.cpus.iter().map(|cpu| cpu.socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        sockets.len().max(1)
    }

    fn versions(&self) -> Value {
        let release = self.identity.release.as_str();
        let xen = self.mirror.fact("xen_version");
        Value::texts([
            ("product_brand", "Xylem"),
            ("product_version", release),
            ("product_version_text", release),
            ("product_version_text_short", release),
            ("platform_name", "Xylem"),
            ("platform_version", release),
            ("build_number", release),
            ("xapi", release),
            ("xen", xen),
            ("linux", self.mirror.fact("release")),
            ("hostname", self.identity.hostname.as_str()),
        ])
    }

    fn cpu_info(&self) -> Value {
        let mhz = self.mirror.fact("cpu_mhz");
        Value::texts([
            ("cpu_count", self.mirror.number("nr_cpus").to_string()),
            ("socket_count", self.sockets().to_string()),
            ("threads_per_core", self.mirror.fact("threads_per_core").to_owned()),
            ("speed", mhz.to_owned()),
            ("features", self.mirror.fact("hw_caps").to_owned()),
            ("vendor", String::new()),
            ("modelname", format!("{} CPU, {mhz} MHz", self.mirror.fact("machine"))),
        ])
    }

    fn host_record(&self, records: &mut Records) {
        let mut draft = Draft::of(Class::Host, self.host());
        let hostname = self.identity.hostname.as_str();
        draft.set("name_label", hostname);
        draft.set("hostname", hostname);
        draft.set("address", self.identity.address.as_str());
        draft.set("enabled", self.is_enabled);
        draft.set("API_version_major", API_VERSION.0);
        draft.set("API_version_minor", API_VERSION.1);
        draft.set("API_version_vendor", "Xylem");
        draft.set("software_version", self.versions());
        let capabilities = self.mirror.fact("xen_caps").split_ascii_whitespace();
        draft.set("capabilities", capabilities.collect::<Value>());
        draft.set("cpu_info", self.cpu_info());
        draft.set("sched_policy", self.mirror.fact("xen_scheduler"));
        draft.set("edition", "xylem");
        let never = date_text(4_102_444_800);
        draft.set("license_params", Value::texts([("expiry", never.as_str())]));
        let license_server = [("address", "localhost"), ("port", "27000")];
        draft.set("license_server", Value::texts(license_server));
        let unknown = ["bios-vendor", "system-manufacturer", "system-product-name"];
        draft.set("bios_strings", Value::texts(unknown.map(|it| (it, "unknown"))));
        draft.set("chipset_info", Value::texts([("iommu", "false")]));
        let times = [
            ("agent_start_time", self.identity.started_unix_s.to_string()),
            ("boot_time", self.identity.booted_unix_s.to_string()),
        ];
        draft.set("other_config", Value::map());
        draft.set("multipathing", false);
        draft.set("tls_verification_enabled", true);
        draft.point("metrics", Some(self.of_host("metrics", "")));
        draft.point("control_domain", Some(self.control_domain()));
        let own = self.mirror.live.vms.iter().filter(|(_, vm)| vm.domid.is_some());
        let foreign = self.mirror.live.domains.values().map(|it| match it.domid {
            0 => self.control_domain(),
            _ => it.uuid.parse().unwrap_or_default(),
        });
        draft.point_all("resident_VMs", own.map(|(uuid, _)| *uuid).chain(foreign));
        draft.point_all("PBDs", self.mirror.live.srs.keys().map(|it| self.of_host("pbd", it)));
        let cpus = self.mirror.topology.cpus.iter().map(|it| self.cpu(it.cpu));
        draft.point_all("host_CPUs", cpus);
        draft.set("allowed_operations", ["vm_start", "vm_resume"].into_iter().collect::<Value>());
        let (host, labels) = ((Class::Host, self.host()), self.labels);
        draft.finish(labels, records);
        // What clients keep there goes beside what is known.
        if let Some(record) = records.get_mut(&host)
            && let Some(Value::Map(map)) = record.get_mut("other_config")
        {
            map.extend(times.into_iter().map(|(key, it)| (key.to_owned(), it.into())));
        }
    }

    fn cpu(&self, number: u32) -> Uuid {
        self.of_host("cpu", &number.to_string())
    }

    fn cpu_records(&self, records: &mut Records) {
        for cpu in &self.mirror.topology.cpus {
            let mut draft = Draft::of(Class::HostCpu, self.cpu(cpu.cpu));
            draft.point("host", Some(self.host()));
            draft.set("number", cpu.cpu);
            let mhz = self.mirror.fact("cpu_mhz").split('.').next().unwrap_or_default();
            draft.set("speed", mhz.parse().unwrap_or(0_i64));
            draft.finish(self.labels, records);
        }
    }

    pub(crate) fn task_records(&self) -> Records {
        let host = opaque(self.host());
        let mut records = Records::new();
        for task in self.tasks.iter() {
            let mut draft = task.record(&host);
            self.labels.label((Class::Task, task.id), &mut draft);
            records.insert((Class::Task, task.id), draft);
        }
        for (id, it) in &self.mirror.live.operations {
            let vm = it.uuid.parse().unwrap_or_default();
            if self.tasks.on(vm).next().is_none() {
                let uuid = self.operation_task(*id);
                records.insert((Class::Task, uuid), crate::tasks::of_operation(uuid, it, &host));
            }
        }
        records
    }
}

/// The bridges that VMs' interfaces are on, and the usual one.
pub(crate) fn bridges_of(view: &View<'_>) -> std::collections::BTreeSet<String> {
    let vifs = view.all_devices().map(|(_, it)| it).filter(|it| it.kind == "vif");
    let bridges = vifs.filter_map(|it| Spec(&it.config).get("bridge")).map(str::to_owned);
    let usual = std::iter::once(view.mirror.bridge.clone());
    bridges.chain(usual).filter(|it| !it.is_empty()).collect()
}
