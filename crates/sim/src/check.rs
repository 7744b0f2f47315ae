//! Snapshots of everything that could be leaked on a host, to compare before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use xen::{DomId, EvtchnPort, Uuid};
use xenstore::client::{Client, ClientError, Nodes as _, Transport};

use crate::machine::{Channel, Machine};
use crate::os::{LoopDevice, SimOs};

/// Everything that an operation could leak.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    pub domains: Vec<DomId>,
    pub pages_free: u64,
    pub pages_claimed: u64,
    /// Foreign and grant mappings: owner and machine frame.
    pub mappings: Vec<(DomId, u64)>,
    pub dom0_ports: Vec<(EvtchnPort, Channel)>,
    /// Store nodes and their values.
    pub nodes: BTreeMap<String, Vec<u8>>,
    pub loops: BTreeMap<u32, LoopDevice>,
    /// Files of VDIs in use.
    pub attached: Vec<String>,
    /// Files of disk claims.
    pub claimed: Vec<String>,
    /// libxl's files of domains.
    pub userdata: Vec<(DomId, Uuid)>,
    /// Files about VMs that move.
    pub transfers: BTreeMap<String, String>,
    /// Open connections to other hosts.
    pub channels: usize,
    pub links: BTreeSet<String>,
    /// What hotplug scripts have connected.
    pub scripts: Vec<String>,
    pub networks: Vec<String>,
    /// Running device models, by pid.
    pub models: Vec<u32>,
    pub bridges: BTreeMap<String, BTreeSet<String>>,
    pub backends: usize,
    pub consoles: usize,
}

impl Snapshot {
    pub(crate) fn take<T: Transport>(
        machine: &Machine,
        os: &SimOs,
        store: &mut Client<T>,
        backends: usize,
        consoles: usize,
    ) -> Result<Self, ClientError> {
        let mut nodes = BTreeMap::new();
        let mut open = vec!["/".to_owned()];
        while let Some(path) = open.pop() {
            let value = store.read(&path)?;
            for child in store.directory(&path)? {
                open.push(format!("{}/{child}", path.trim_end_matches('/')));
            }
            nodes.insert(path, value);
        }
        let xen = machine.get();
        let state = os.get();
        Ok(Self {
            domains: xen.domains().map(|domain| domain.domid).collect(),
            pages_free: xen.pages_free(),
            pages_claimed: xen.pages_claimed(),
            mappings: xen.mappings().map(|mapping| (mapping.owner, mapping.mfn)).collect(),
            dom0_ports: xen.channels(DomId::DOM0),
            nodes,
            loops: state.loops().clone(),
            attached: state.attached_vdis(),
            claimed: state.claimed_disks(),
            userdata: os.libxl_json().into_keys().collect(),
            transfers: os.transfers(),
            channels: os.channels(),
            links: state.links().clone(),
            scripts: state.connected_by_scripts().iter().cloned().collect(),
            networks: state.networks.lines().into_iter().collect(),
            models: state.models().iter().map(|it| it.process.pid).collect(),
            bridges: state.bridges().clone(),
            backends,
            consoles,
        })
    }

    /// What was added or lost since `before`: one line each.
    #[must_use]
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        compare("domain", &before.domains, &self.domains, &mut lines);
        compare("mapping", &before.mappings, &self.mappings, &mut lines);
        compare("dom0 port", &before.dom0_ports, &self.dom0_ports, &mut lines);
        compare("store node", before.nodes.iter(), self.nodes.iter(), &mut lines);
        compare("loop device", before.loops.iter(), self.loops.iter(), &mut lines);
        compare("attached VDI", &before.attached, &self.attached, &mut lines);
        compare("claim of a disk", &before.claimed, &self.claimed, &mut lines);
        compare("file of libxl", &before.userdata, &self.userdata, &mut lines);
        compare("file of a move", before.transfers.iter(), self.transfers.iter(), &mut lines);
        compare("device model", &before.models, &self.models, &mut lines);
        compare("device of a script", &before.scripts, &self.scripts, &mut lines);
        compare("network", &before.networks, &self.networks, &mut lines);
        compare("link", &before.links, &self.links, &mut lines);
        compare("bridge", before.bridges.iter(), self.bridges.iter(), &mut lines);
        for (what, before, now) in [
            ("free pages", before.pages_free, self.pages_free),
            ("claimed pages", before.pages_claimed, self.pages_claimed),
            ("backends", before.backends as u64, self.backends as u64),
            ("connections", before.channels as u64, self.channels as u64),
            ("consoles", before.consoles as u64, self.consoles as u64),
        ] {
            if before != now {
                lines.push(format!("{what}: {before} before, {now} now"));
            }
        }
        lines
    }
}

fn compare<T: fmt::Debug + PartialEq>(
    what: &str,
    before: impl IntoIterator<Item = T>,
    now: impl IntoIterator<Item = T>,
    lines: &mut Vec<String>,
) {
    let (before, now): (Vec<T>, Vec<T>) = (before.into_iter().collect(), now.into_iter().collect());
    if before == now {
        return;
    }
    lines.extend(
        now.iter().filter(|it| !before.contains(it)).map(|it| format!("new {what} {it:?}")),
    );
    lines.extend(
        before.iter().filter(|it| !now.contains(it)).map(|it| format!("lost {what} {it:?}")),
    );
}
