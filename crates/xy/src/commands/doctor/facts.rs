//! What is the case on this host.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use api::client::socket_path;
use api::{HostRequest, Reply, Request};
use xenstore::client::Nodes as _;

use crate::commands::adopt::monitor::runs;
use crate::commands::{expect_reply, store};
use crate::session::{Failure, Session, unexpected};

/// Facts that the findings are made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Facts {
    /// Whether this kernel runs on Xen.
    pub(super) on_xen: bool,
    /// Whether it runs in the domain that controls the host.
    pub(super) controls: bool,
    /// Xen's release.
    pub(super) release: Option<(u32, u32)>,
    /// The modes of files and sockets that exist.
    pub(super) modes: BTreeMap<&'static str, u32>,
    /// Drivers of backends that the kernel has.
    pub(super) backends: Vec<String>,
    /// The store answers, or why not.
    pub(super) store: Result<(), String>,
    pub(super) consoled: bool,
    /// What `xylemd` says, or why it says nothing.
    pub(super) xylemd: Result<Told, String>,
    /// UUIDs with a record in the store.
    pub(super) records: Vec<String>,
    /// libxl's files, by the UUID of their domain.
    pub(super) kept: Vec<(String, String)>,
    /// What bridges forward passes the host's own rules.
    pub(super) filters_bridges: bool,
}

impl Facts {
    /// Of a machine without Xen.
    pub(super) fn without_xen() -> Self {
        Self {
            on_xen: false,
            controls: false,
            release: None,
            modes: BTreeMap::new(),
            backends: Vec::new(),
            store: Err(String::new()),
            consoled: false,
            xylemd: Err(String::new()),
            records: Vec::new(),
            kept: Vec::new(),
            filters_bridges: false,
        }
    }
}

/// What the daemon knows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Told {
    pub(super) release: String,
    pub(super) info: BTreeMap<String, String>,
    pub(super) dom0_kib: u64,
    /// UUIDs of all domains.
    pub(super) domains: Vec<String>,
    pub(super) vms: Vec<Vm>,
    /// The bridge of interfaces that name none, or what is wrong with `xl.conf`.
    pub(super) bridge: Result<Bridge, String>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Bridge {
    pub(super) name: String,
    pub(super) exists: bool,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Vm {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) state: String,
}

/// Files whose absence or mode says something.
pub(super) const PRIVCMD: &str = "/dev/xen/privcmd";
pub(super) const HYPERCALL: &str = "/dev/xen/hypercall";
pub(super) const EVTCHN: &str = "/dev/xen/evtchn";
pub(super) const GNTDEV: &str = "/dev/xen/gntdev";
pub(super) const LOOP: &str = "/dev/loop-control";
/// Whether the host's rules for what it forwards hold for what bridges forward, too.
const BRIDGE_FILTER: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
/// Stands for wherever the daemon's socket is.
pub(super) const SOCKET: &str = "the socket of xylemd";

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Names in a folder; none if it cannot be read.
fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn message(failure: &Failure) -> String {
    failure.messages().join("; ")
}

pub(super) fn read(session: &mut Session) -> Facts {
    let is_xen = text("/sys/hypervisor/type").is_some_and(|name| name == "xen");
    let on_xen = is_xen || Path::new("/proc/xen/capabilities").exists();
    if !on_xen {
        return Facts::without_xen();
    }
    let number = |name: &str| text(&format!("/sys/hypervisor/version/{name}"))?.parse().ok();
    let mode = |path: &Path| Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o777);
    let mut modes: BTreeMap<_, _> = [PRIVCMD, HYPERCALL, EVTCHN, GNTDEV, LOOP]
        .into_iter()
        .filter_map(|path| Some((path, mode(Path::new(path))?)))
        .collect();
    modes.extend(mode(&socket_path()).map(|mode| (SOCKET, mode)));
    let (store, records) = read_store();
    Facts {
        on_xen,
        controls: text("/proc/xen/capabilities").is_some_and(|it| it.contains("control_d")),
        release: number("major").zip(number("minor")),
        modes,
        backends: names("/sys/bus/xen-backend/drivers"),
        store,
        consoled: runs("xenconsoled"),
        xylemd: ask(session).map_err(|failure| message(&failure)),
        records,
        filters_bridges: text(BRIDGE_FILTER).is_some_and(|it| it == "1"),
        kept: names("/var/lib/xen").iter().filter_map(|name| of_domain(name)).collect(),
    }
}

fn read_store() -> (Result<(), String>, Vec<String>) {
    let read = || -> Result<Vec<String>, String> {
        let mut store = store::connect().map_err(|failure| message(&failure))?;
        match store.directory("/xylem/vm") {
            Ok(records) => Ok(records),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        }
    };
    match read() {
        Ok(records) => (Ok(()), records),
        Err(problem) => (Err(problem), Vec::new()),
    }
}

/// The file's name and the UUID in it: `userdata-d.3.UUID.libxl-json`.
fn of_domain(name: &str) -> Option<(String, String)> {
    let uuid = name.strip_prefix("userdata-")?.split('.').nth(2)?;
    (uuid.len() == 36).then(|| (name.to_owned(), uuid.to_owned()))
}

fn ask(session: &mut Session) -> Result<Told, Failure> {
    let pong = expect_reply!(session.call(&Request::Ping)?, Pong);
    let info = expect_reply!(session.call(&Request::Info)?, Info);
    let list = Request::List { targets: Vec::new() };
    let domains = expect_reply!(session.call(&list)?, Domains);
    let vms = expect_reply!(session.call(&Request::Vms)?, Vms);
    let bridge = match session.call(&Request::Host(HostRequest::Defaults)) {
        Ok(Reply::Defaults { bridge }) => {
            let exists = Path::new(&format!("/sys/class/net/{bridge}/bridge")).exists();
            Ok(Bridge { name: bridge, exists })
        }
        Ok(other) => return Err(unexpected(&other)),
        Err(failure) => Err(message(&failure)),
    };
    let vm = |row: api::VmRow| Vm { name: row.name, uuid: row.uuid, state: row.state };
    Ok(Told {
        release: pong.release,
        info: info.0.into_iter().collect(),
        dom0_kib: domains.iter().filter(|row| row.domid == 0).map(|row| row.mem_kib).sum(),
        domains: domains.into_iter().map(|row| row.uuid).collect(),
        vms: vms.into_iter().map(vm).collect(),
        bridge,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_libxl_name_their_domain() {
        let uuid = "01010101-0101-0101-0101-010101010101";
        let name = format!("userdata-d.3.{uuid}.libxl-json");
        assert_eq!(of_domain(&name), Some((name.clone(), uuid.to_owned())));
        for other in ["qemu-save.3", "userdata-d.3", "userdata-d.3.short.xl", ""] {
            assert_eq!(of_domain(other), None, "{other}");
        }
    }
}
