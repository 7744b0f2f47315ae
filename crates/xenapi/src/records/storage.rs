//! Storage repositories and their images.

use std::collections::{BTreeMap, BTreeSet};

use api::{DeviceObject, SrRow, VdiRow};
use xen::Uuid;

use crate::model::Class;
use crate::objects::Records;
use crate::records::device::device_uuid;
use crate::records::{Draft, View};
use crate::refs::derived;
use crate::spec::Spec;
use crate::value::Value;

/// The kinds of SRs that Xylem has, and whether a snapshot can be taken there.
const KINDS: [(&str, bool); 9] = [
    ("file", true),
    ("nfs", true),
    ("qcow2", true),
    ("lvm", false),
    ("lvmthin", true),
    ("iscsi", false),
    ("nbd", false),
    ("program", true),
    ("sim", true),
];

/// The VDI of a disk, or its path.
fn target_of(it: &DeviceObject) -> Option<&str> {
    Some(it).filter(|it| it.kind == "vbd").and_then(|it| Spec(&it.config).get("target"))
}

/// The snapshots of each VDI of an SR.
fn snapshots_of(sr: Uuid, vdis: Option<&BTreeMap<String, VdiRow>>) -> BTreeMap<&str, Vec<Uuid>> {
    let mut found: BTreeMap<&str, Vec<Uuid>> = BTreeMap::new();
    for it in vdis.into_iter().flat_map(|it| it.values()) {
        if let Some(of) = &it.snapshot_of {
            found.entry(of).or_default().push(derived(sr, "vdi", &it.name));
        }
    }
    found
}

impl View<'_> {
    pub(crate) fn storage_records(&self) -> Records {
        let mut records = Records::new();
        let vbds = self.vbds_by_target();
        for (name, row) in &self.mirror.live.srs {
            self.sr_record(name, row, &mut records);
            let sr = self.sr(name);
            let vdis = self.mirror.live.vdis.get(name);
            let snapshots = snapshots_of(sr, vdis);
            for vdi in vdis.into_iter().flat_map(|it| it.values()) {
                let target = format!("{name}:{}", vdi.name);
                let vbds = vbds.get(target.as_str()).map(Vec::as_slice).unwrap_or_default();
                let snapshots = snapshots.get(vdi.name.as_str());
                let snapshots = snapshots.map(Vec::as_slice).unwrap_or_default();
                self.vdi_record(sr, vdi, vbds, snapshots, &mut records);
            }
        }
        for (kind, takes_snapshots) in KINDS {
            self.sm_record(kind, takes_snapshots, &mut records);
        }
        records
    }

    /// Those of VDIs that disks name, as they name them.
    pub(crate) fn vdi_records(&self, targets: &BTreeSet<String>) -> Records {
        let mut records = Records::new();
        for target in targets {
            let Some((sr, name)) = target.split_once(':') else { continue };
            let Some(vdi) = self.mirror.vdi(sr, name) else { continue };
            let uuid = self.sr(sr);
            let vdis = self.mirror.live.vdis.get(sr);
            let all = self.all_devices().filter(|(_, it)| target_of(it) == Some(target));
            let vbds: Vec<_> = all.map(|(vm, it)| device_uuid(vm, "vbd", it.devid)).collect();
            let all = vdis.into_iter().flat_map(|it| it.values());
            let snapshots = all.filter(|it| it.snapshot_of.as_deref() == Some(name));
            let snapshots: Vec<_> = snapshots.map(|it| derived(uuid, "vdi", &it.name)).collect();
            self.vdi_record(uuid, vdi, &vbds, &snapshots, &mut records);
        }
        records
    }

    fn vbds_by_target(&self) -> BTreeMap<&str, Vec<Uuid>> {
        let mut found: BTreeMap<&str, Vec<Uuid>> = BTreeMap::new();
        for (vm, it) in self.all_devices() {
            if let Some(target) = target_of(it) {
                found.entry(target).or_default().push(device_uuid(vm, "vbd", it.devid));
            }
        }
        found
    }

    fn sr_record(&self, name: &str, row: &SrRow, records: &mut Records) {
        let (uuid, pbd) = (self.sr(name), self.of_host("pbd", name));
        let mut draft = Draft::of(Class::Sr, uuid);
        draft.set("name_label", name);
        draft.set("name_description", row.problem.as_deref().unwrap_or_default());
        draft.set("type", row.kind.as_str());
        draft.set("content_type", "user");
        let is_remote = matches!(row.kind.as_str(), "nfs" | "iscsi" | "nbd");
        draft.set("shared", is_remote);
        let vdis: Vec<_> =
            self.mirror.live.vdis.get(name).into_iter().flat_map(|it| it.values()).collect();
        draft.point_all("VDIs", vdis.iter().map(|it| derived(uuid, "vdi", &it.name)));
        draft.point_all("PBDs", [pbd]);
        let space = self.mirror.spaces.get(name);
        let (size, free) = space
            .map_or((0, 0), |it| (it.bytes.unwrap_or_default(), it.free_bytes.unwrap_or_default()));
        draft.set("physical_size", size);
        draft.set("physical_utilisation", size.saturating_sub(free));
        draft.set("virtual_allocation", vdis.iter().map(|it| it.bytes).sum::<u64>());
        let allowed = ["scan", "vdi_create", "vdi_destroy", "vdi_resize", "forget", "destroy"];
        draft.set("allowed_operations", allowed.into_iter().collect::<Value>());
        draft.finish(self.labels, records);
        let mut draft = Draft::of(Class::Pbd, pbd);
        draft.point("host", Some(self.host()));
        draft.point("SR", Some(uuid));
        draft.set("device_config", Value::texts(row.config.clone()));
        draft.set("currently_attached", row.problem.is_none());
        draft.finish(self.labels, records);
    }

    fn vdi_record(
        &self,
        sr: Uuid,
        row: &VdiRow,
        vbds: &[Uuid],
        snapshots: &[Uuid],
        records: &mut Records,
    ) {
        let mut draft = Draft::of(Class::Vdi, derived(sr, "vdi", &row.name));
        draft.set("name_label", row.name.as_str());
        draft.set("location", row.name.as_str());
        draft.point("SR", Some(sr));
        draft.point_all("VBDs", vbds.iter().copied());
        draft.set("virtual_size", row.bytes);
        draft.set("physical_utilisation", row.used_bytes.unwrap_or(row.bytes));
        draft.set("managed", true);
        let is_snapshot = row.snapshot_of.is_some();
        draft.set("is_a_snapshot", is_snapshot);
        draft.set("read_only", is_snapshot);
        let parent = row.snapshot_of.as_ref();
        let parent = parent.filter(|it| self.mirror.vdi(&row.sr, it).is_some());
        draft.point("snapshot_of", parent.map(|it| derived(sr, "vdi", it)));
        draft.point_all("snapshots", snapshots.iter().copied());
        let allowed: &[&str] = if row.users.is_empty() {
            &["snapshot", "clone", "resize", "destroy"]
        } else {
            &["snapshot", "clone"]
        };
        draft.set("allowed_operations", allowed.iter().copied().collect::<Value>());
        draft.finish(self.labels, records);
    }

    fn sm_record(&self, kind: &str, takes_snapshots: bool, records: &mut Records) {
        let mut draft = Draft::of(Class::Sm, self.of_host("sm", kind));
        draft.set("name_label", kind);
        draft.set("type", kind);
        draft.set("vendor", "Xylem");
        draft.set("version", self.identity.release.as_str());
        let all = ["VDI_CREATE", "VDI_DELETE", "VDI_ATTACH", "VDI_DETACH", "VDI_CLONE"];
        let snapshot = takes_snapshots.then_some("VDI_SNAPSHOT");
        let capabilities: Vec<_> = all.into_iter().chain(snapshot).collect();
        draft.set("capabilities", capabilities.iter().copied().collect::<Value>());
        let features = capabilities.iter().map(|it| ((*it).to_owned(), Value::Int(1)));
        draft.set("features", Value::Map(features.collect()));
        draft.finish(self.labels, records);
    }

    /// The SR and the name in it of a VDI.
    pub(crate) fn vdi_name(&self, uuid: Uuid) -> Option<(String, String)> {
        self.mirror.live.vdis.iter().find_map(|(sr, vdis)| {
            let of = self.sr(sr);
            let name = vdis.keys().find(|name| derived(of, "vdi", name) == uuid)?;
            Some((sr.clone(), name.clone()))
        })
    }

    pub(crate) fn sr_name(&self, uuid: Uuid) -> Option<String> {
        self.mirror.live.srs.keys().find(|name| self.sr(name) == uuid).cloned()
    }
}
