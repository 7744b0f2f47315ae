//! A guest that serves devices of others: its kernel's backends, and `xl devd`, which runs scripts and removes what has
//! closed. Source: xen `tools/libs/light/libxl_device.c`.

use std::collections::BTreeMap;

use xen::{DomId, EvtchnPort, GrantRef, XenbusState};
use xenstore::client::{Batch, Client, ClientError, Nodes as _, Transport};

use crate::machine::{Machine, MappingId};

/// What it does with devices.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Serves {
    Well,
    /// Its kernel has backends, and nothing removes them.
    WithoutScripts,
    /// Hostile: changes the state of its backends again and again.
    Toggles,
    /// Never closes a device.
    Holds,
}

impl Serves {
    /// The value of `sim.serves` on its command line.
    pub(super) fn of(word: &str) -> Option<Self> {
        match word {
            "well" => Some(Self::Well),
            "without-scripts" => Some(Self::WithoutScripts),
            "toggles" => Some(Self::Toggles),
            "holds" => Some(Self::Holds),
            _ => None,
        }
    }
}

/// Toggles at most: the world must come to rest.
const TOGGLES_MAX: u32 = 300;

#[derive(Debug)]
struct Served {
    frontend: String,
    frontend_id: DomId,
    is_disk: bool,
    state: XenbusState,
    mappings: Vec<MappingId>,
    ports: Vec<EvtchnPort>,
}

/// Its backends, by their directories as its own kernel names them.
#[derive(Debug)]
pub(super) struct Driver {
    domid: DomId,
    machine: Machine,
    serves: Serves,
    served: BTreeMap<String, Served>,
    toggles: u32,
}

fn number(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn children<T: Transport>(store: &mut Client<T>, path: &str) -> Result<Vec<String>, ClientError> {
    match store.directory(path) {
        Err(error) if error.refusal().is_some() => Ok(Vec::new()),
        other => other,
    }
}

/// The backend's directory that a path below `backend` belongs to.
fn directory(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    let at = parts.iter().position(|part| *part == "backend")?;
    let parts = parts.get(at..at + 4)?;
    Some(parts.join("/"))
}

impl Driver {
    pub(super) fn new(domid: DomId, machine: Machine, serves: Serves) -> Self {
        Self { domid, machine, serves, served: BTreeMap::new(), toggles: 0 }
    }

    /// Sets its watch; new devices are seen by it.
    pub(super) fn start<T: Transport>(store: &mut Client<T>) -> Result<(), ClientError> {
        store.watch("backend", "backend")
    }

    /// Handles a change, if it is one of a backend or of its frontend. Returns a line for the console.
    pub(super) fn handle<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        token: &str,
        path: &str,
    ) -> Result<Option<String>, ClientError> {
        let Some(backend) = directory(if token == "backend" { path } else { token }) else {
            // Something above them.
            return self.look_for_all(store);
        };
        if self.serves == Serves::Toggles && self.served.contains_key(&backend) {
            self.toggle(store, &backend)?;
        }
        match self.served.contains_key(&backend) {
            false => self.probe(store, &backend),
            true => self.follow(store, &backend),
        }
    }

    /// Forgets what the toolstack has removed, and looks at what was there before it.
    fn look_for_all<T: Transport>(
        &mut self,
        store: &mut Client<T>,
    ) -> Result<Option<String>, ClientError> {
        let all: Vec<String> = self.served.keys().cloned().collect();
        for backend in all {
            if store.read_optional(&backend)?.is_none() {
                self.forget(store, &backend)?;
            }
        }
        let mut text = String::new();
        for kind in ["backend/vbd", "backend/vif"] {
            for domid in children(store, kind)? {
                for devid in children(store, &format!("{kind}/{domid}"))? {
                    let backend = format!("{kind}/{domid}/{devid}");
                    if !self.served.contains_key(&backend) {
                        text.extend(self.probe(store, &backend)?);
                    }
                }
            }
        }
        Ok((!text.is_empty()).then_some(text))
    }

    fn probe<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
    ) -> Result<Option<String>, ClientError> {
        let mut look = Batch::new();
        for key in ["state", "frontend", "frontend-id", "script"] {
            look.read(&format!("{backend}/{key}"));
        }
        let replies = store.run(&look)?;
        let (Ok(b"1"), Ok(frontend), Ok(id)) = (replies.get(0), replies.get(1), replies.get(2))
        else {
            return Ok(None);
        };
        let has_script = replies.get(3).is_ok_and(|script| !script.is_empty());
        let frontend_id = number(id).and_then(|id| u16::try_from(id).ok()).map(DomId);
        let served = Served {
            frontend: String::from_utf8_lossy(frontend).into_owned(),
            frontend_id: frontend_id.unwrap_or_default(),
            is_disk: backend.starts_with("backend/vbd/"),
            state: XenbusState::InitWait,
            mappings: Vec::new(),
            ports: Vec::new(),
        };
        let mut features = Batch::new();
        features.write(&format!("{backend}/feature-of-driver-domain"), "1");
        if has_script && self.serves != Serves::WithoutScripts {
            // What the script writes.
            match served.is_disk {
                true => features.write(&format!("{backend}/physical-device"), "ca:0"),
                false => features.write(&format!("{backend}/hotplug-status"), "connected"),
            };
        }
        features.write(&format!("{backend}/state"), XenbusState::InitWait.as_str());
        store.run(&features)?.all_ok()?;
        store.watch(&format!("{}/state", served.frontend), backend)?;
        self.served.insert(backend.to_owned(), served);
        Ok(Some(format!("{backend}: is there\n")))
    }

    fn follow<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
    ) -> Result<Option<String>, ClientError> {
        let served = &self.served[backend];
        let mut look = Batch::new();
        look.read(&format!("{backend}/state"));
        look.read(&format!("{backend}/online"));
        look.read(&format!("{}/state", served.frontend));
        let replies = store.run(&look)?;
        let Ok(_) = replies.get(0) else {
            // The toolstack has removed it.
            self.forget(store, backend)?;
            return Ok(Some(format!("{backend}: was removed\n")));
        };
        let mine = served.state;
        let is_offline = replies.get(1).is_ok_and(|online| online == b"0");
        let other = replies.get(2).map_or(XenbusState::Unknown, XenbusState::decode);
        match other {
            XenbusState::Initialised | XenbusState::Connected
                if mine == XenbusState::InitWait && self.connect(store, backend)? =>
            {
                self.switch(store, backend, XenbusState::Connected)?;
                return Ok(Some(format!("{backend}: connected\n")));
            }
            XenbusState::Closed | XenbusState::Unknown if self.serves != Serves::Holds => {
                if is_offline && self.serves == Serves::Well {
                    store.rm(backend)?;
                    self.forget(store, backend)?;
                    return Ok(Some(format!("{backend}: removed\n")));
                }
                self.disconnect(backend);
                self.switch(store, backend, XenbusState::Closed)?;
            }
            _ => {}
        }
        Ok(None)
    }

    fn switch<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
        state: XenbusState,
    ) -> Result<(), ClientError> {
        let served = self.served.get_mut(backend).expect("looked at");
        if served.state != state {
            served.state = state;
            store.write(&format!("{backend}/state"), state.as_str().as_bytes())?;
        }
        Ok(())
    }

    /// Maps the frontend's rings and binds its channels.
    fn connect<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
    ) -> Result<bool, ClientError> {
        let served = self.served.get_mut(backend).expect("looked at");
        let (rings, channels): (&[&str], &[&str]) = match served.is_disk {
            true => (&["ring-ref"], &["event-channel"]),
            false => (
                &["tx-ring-ref", "rx-ring-ref"],
                &["event-channel", "event-channel-tx", "event-channel-rx"],
            ),
        };
        let mut look = Batch::new();
        for key in rings.iter().chain(channels) {
            look.read(&format!("{}/{key}", served.frontend));
        }
        let replies = store.run(&look)?;
        let mut xen = self.machine.get_mut();
        for index in 0..rings.len() + channels.len() {
            let Some(number) = replies.get(index).ok().and_then(number) else { continue };
            let done = if index < rings.len() {
                let mapping = xen.map_grant(self.domid, served.frontend_id, GrantRef(number));
                mapping.map(|mapping| served.mappings.push(mapping)).is_ok()
            } else {
                let port = EvtchnPort(number);
                let port = xen.evtchn_bind_interdomain(self.domid, served.frontend_id, port);
                port.map(|port| served.ports.push(port)).is_ok()
            };
            if !done {
                return Ok(false);
            }
        }
        drop(xen);
        if served.is_disk {
            store.write(&format!("{backend}/sectors"), b"2048")?;
        }
        Ok(true)
    }

    fn disconnect(&mut self, backend: &str) {
        let served = self.served.get_mut(backend).expect("looked at");
        let mut xen = self.machine.get_mut();
        for mapping in served.mappings.drain(..) {
            xen.unmap(mapping);
        }
        for port in served.ports.drain(..) {
            xen.evtchn_close(self.domid, port).expect("a port of one's own");
        }
    }

    fn forget<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
    ) -> Result<(), ClientError> {
        self.disconnect(backend);
        let served = self.served.remove(backend).expect("looked at");
        match store.unwatch(&format!("{}/state", served.frontend), backend) {
            Err(error) if error.refusal().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    fn toggle<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        backend: &str,
    ) -> Result<(), ClientError> {
        if self.toggles >= TOGGLES_MAX {
            return Ok(());
        }
        self.toggles += 1;
        let value: &[u8] = match self.toggles % 4 {
            0 => b"4",
            1 => b"2",
            2 => b"5",
            _ => b"\x1b[31m",
        };
        match store.write(&format!("{backend}/state"), value) {
            Err(error) if error.refusal().is_some() => Ok(()),
            other => other,
        }
    }
}
