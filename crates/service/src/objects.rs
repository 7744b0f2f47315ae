//! The live model, for subscribers.

use core::fmt;
use core::str::FromStr;

use live::{Cursor, Revision};
use toolstack::around::HostFacts;
use toolstack::layout::{DeviceRef, kind_name};
use toolstack::{Classes, Object, ObjectChange, ObjectClass, ObjectKey, Reply, Request};

use crate::storage::Listed;
use crate::{Failed, Kernel, Service, render, unexpected};

/// A cursor as clients have it.
struct CursorText(Cursor);

impl fmt::Display for CursorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor { at, began } = self.0;
        write!(f, "{}-{}", at.0, began.0)
    }
}

impl FromStr for CursorText {
    type Err = Failed;

    fn from_str(text: &str) -> Result<Self, Failed> {
        let cursor = || {
            let (at, began) = text.split_once('-')?;
            let revision = |text: &str| text.parse().ok().map(Revision);
            Some(Self(Cursor { at: revision(at)?, began: revision(began)? }))
        };
        cursor().ok_or_else(|| {
            Failed::Told(format!("{text:?} is no cursor: give one of an earlier answer, or none"))
        })
    }
}

fn class(word: &str) -> Result<ObjectClass, Failed> {
    let found = ObjectClass::ALL.into_iter().find(|it| it.as_str() == word);
    found.ok_or_else(|| {
        let all: Vec<_> = ObjectClass::ALL.iter().map(|it| it.as_str()).collect();
        Failed::Told(format!("{word:?} is no class of objects; there are {}", all.join(", ")))
    })
}

impl Service<'_> {
    pub(crate) fn objects(
        &self,
        cursor: Option<String>,
        classes: &[String],
        waits: bool,
    ) -> Result<api::Reply, Failed> {
        let cursor = cursor.map(|it| it.parse::<CursorText>()).transpose()?.map(|it| it.0);
        let classes = classes.iter().map(|it| class(it)).collect::<Result<Classes, Failed>>()?;
        let objects = match self.wait(Request::Objects { cursor, classes, waits }, None)? {
            Some(Reply::Objects(objects)) => objects,
            Some(other) => return Err(unexpected(&other)),
            None => return Err(Failed::Gone),
        };
        let mut listed = self.listed();
        let changes = objects.items.iter().map(|it| self.change(it, &mut listed));
        Ok(api::Reply::Objects(api::Objects {
            cursor: CursorText(objects.next).to_string(),
            is_last: objects.is_last,
            starts_again: objects.starts_again,
            changes: changes.collect(),
        }))
    }

    fn change(&self, it: &ObjectChange, listed: &mut Listed) -> api::ObjectChange {
        let object = match (&it.key, it.object.as_deref()) {
            (ObjectKey::Vm(_), Some(Object::Vm(vm))) => {
                api::Object::Vm(Some(Box::new(self::vm(vm))))
            }
            (ObjectKey::Device(uuid, _), Some(Object::Device(device))) => {
                api::Object::Device(Some(self::device(*uuid, device)))
            }
            (ObjectKey::Domain(domid), Some(Object::Domain { name, uuid })) => {
                let (name, uuid) = (name.clone(), uuid.to_string());
                api::Object::Domain(Some(api::DomainObject { domid: domid.0, name, uuid }))
            }
            (ObjectKey::Operation(_), Some(Object::Operation(operation))) => {
                api::Object::Operation(Some(Box::new(self::operation(operation, |at| {
                    self.daemon.unix_ms(at)
                }))))
            }
            (ObjectKey::Sr(name), Some(Object::Sr { problem })) => {
                api::Object::Sr(listed.sr(name, problem.as_deref()))
            }
            (ObjectKey::Sr(_), _) => api::Object::Sr(None),
            (ObjectKey::Vdi(name), Some(Object::Vdi(vdi))) => {
                api::Object::Vdi(Some(listed.vdi(name, vdi)))
            }
            (ObjectKey::Vdi(_), _) => api::Object::Vdi(None),
            (ObjectKey::Network(name), Some(Object::Network(network))) => {
                api::Object::Network(Some(self::network(name, network)))
            }
            (ObjectKey::Network(_), _) => api::Object::Network(None),
            (ObjectKey::Host, Some(Object::Host(facts))) => {
                let (kernel, release) = (self.daemon.kernel(), self.daemon.pong().release);
                api::Object::Host(Some(Box::new(host(facts, kernel, release))))
            }
            (ObjectKey::Host, _) => api::Object::Host(None),
            (ObjectKey::Vm(_), _) => api::Object::Vm(None),
            (ObjectKey::Device(..), _) => api::Object::Device(None),
            (ObjectKey::Domain(_), _) => api::Object::Domain(None),
            (ObjectKey::Operation(_), _) => api::Object::Operation(None),
        };
        api::ObjectChange { revision: it.revision.0, key: key(&it.key), object }
    }
}

fn key(key: &ObjectKey) -> String {
    match key {
        ObjectKey::Vm(uuid) => uuid.to_string(),
        ObjectKey::Device(uuid, device) => {
            format!("{uuid}/{}/{}", device.kind.as_str(), device.devid)
        }
        ObjectKey::Domain(domid) => domid.to_string(),
        ObjectKey::Operation(id) => id.to_string(),
        ObjectKey::Sr(name) | ObjectKey::Network(name) => name.to_string(),
        ObjectKey::Vdi(name) => name.to_string(),
        ObjectKey::Host => "host".to_owned(),
    }
}

fn vm(it: &toolstack::VmObject) -> api::VmObject {
    let row = render::vm_row(&it.row);
    let sizes = |config: &toolstack::config::VmConfig| api::VmSizes {
        kind: kind_name(config.kind).to_owned(),
        memory_mib: config.memory_mib,
        memory_max_mib: config.memory_max_mib,
        vcpus: config.vcpus,
        vcpus_max: config.vcpus_max,
    };
    api::VmObject {
        uuid: row.uuid,
        name: row.name,
        state: row.state,
        reason: row.reason,
        domid: row.domid,
        defined: row.defined,
        autostart: row.autostart,
        config: it.config.as_deref().map(sizes),
        operations: it.operations.clone(),
    }
}

fn device(vm: xen::Uuid, it: &toolstack::DeviceObject) -> api::DeviceObject {
    let DeviceRef { kind, devid } = it.device;
    api::DeviceObject {
        vm: vm.to_string(),
        kind: kind.as_str().to_owned(),
        devid,
        name: it.name.clone(),
        config: it.config.clone(),
        state: it.state.as_str().to_owned(),
        network: it.network.as_deref().map(str::to_owned),
        operation: it.operation,
    }
}

fn network(name: &str, it: &toolstack::NetworkObject) -> api::NetworkObject {
    let host = it.host.as_ref();
    api::NetworkObject {
        name: name.to_owned(),
        kind: it.kind.as_str().to_owned(),
        exists: host.is_some(),
        up: host.is_some_and(|it| it.is_up),
        mtu: host.and_then(|it| it.mtu),
        ports: host.map(|it| it.ports.clone()).unwrap_or_default(),
        interfaces: it.interfaces as u64,
    }
}

fn host(it: &HostFacts, kernel: Kernel, release: String) -> api::HostObject {
    let version = &it.version;
    api::HostObject {
        name: kernel.host,
        kernel: kernel.release,
        machine: kernel.machine,
        release,
        xen_version: render::xen_version(version),
        scheduler: version.scheduler().to_owned(),
        cpus: it.cpus,
        nodes: it.nodes,
        cores_per_socket: it.cores_per_socket,
        threads_per_core: it.threads_per_core,
        cpu_mhz: it.cpu_khz / 1000,
        memory_mib: it.memory_mib,
        memory_free_mib: it.memory_free_mib,
        dom0_memory_mib: it.dom0_memory_mib,
        dom0_vcpus: it.dom0_vcpus,
        booted_unix_ms: it.booted_unix_ms,
    }
}

fn operation(
    it: &toolstack::OperationObject,
    unix_ms: impl Fn(toolstack::Instant) -> u64,
) -> api::OperationObject {
    api::OperationObject {
        row: render::operation_row(&it.summary),
        uuid: it.uuid.to_string(),
        started_unix_ms: unix_ms(it.summary.started),
        waits_for: it.waits_for.iter().map(ToString::to_string).collect(),
    }
}
