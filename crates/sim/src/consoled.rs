//! xenconsoled: creates a pty for each domain's console and logs its output.
//!
//! Source: xen `tools/console/daemon/io.c`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use xen::{DomId, EvtchnPort, GrantRef};
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};

use crate::guest::console_drain;
use crate::machine::{Dying, Machine, MappingId};
use crate::store::SocketTransport;

#[derive(Debug)]
struct Console {
    unique_id: u64,
    ring: Option<Ring>,
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    mapping: MappingId,
    port: EvtchnPort,
    terminal: u32,
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct Consoled {
    store: Client<SocketTransport>,
    machine: Machine,
    consoles: BTreeMap<DomId, Console>,
    /// Ports back to domains.
    ports: BTreeMap<EvtchnPort, DomId>,
    logs: BTreeMap<DomId, String>,
}

fn console_path(domid: DomId) -> String {
    format!("/local/domain/{domid}/console")
}

impl Consoled {
    pub(crate) fn start(
        mut store: Client<SocketTransport>,
        machine: Machine,
    ) -> Result<Self, ClientError> {
        store.watch("@introduceDomain", "domlist")?;
        store.watch("@releaseDomain", "domlist")?;
        Ok(Self {
            store,
            machine,
            consoles: BTreeMap::new(),
            ports: BTreeMap::new(),
            logs: BTreeMap::new(),
        })
    }

    pub(crate) fn transport(&self) -> &SocketTransport {
        self.store.transport()
    }

    /// A domain's console output, by its current or last domid.
    pub(crate) fn log(&self, domid: DomId) -> &str {
        self.logs.get(&domid).map_or("", String::as_str)
    }

    /// Whether the domain is there and has a console.
    pub(crate) fn serves(&self, domid: DomId) -> bool {
        self.consoles.get(&domid).is_some_and(|console| console.ring.is_some())
    }

    pub(crate) fn consoles(&self) -> usize {
        self.ports.len()
    }

    pub(crate) fn owns(&self, port: EvtchnPort) -> bool {
        self.ports.contains_key(&port)
    }

    /// Handles what the store reported.
    pub(crate) fn run(&mut self) -> Result<(), ClientError> {
        loop {
            let event = match self.store.poll_event() {
                Some(event) => event,
                None => {
                    self.store.receive()?;
                    let Some(event) = self.store.poll_event() else { return Ok(()) };
                    event
                }
            };
            self.handle(&event)?;
        }
    }

    fn handle(&mut self, event: &WatchEvent) -> Result<(), ClientError> {
        if event.token == "domlist" {
            return self.list_domains();
        }
        match event.token.strip_prefix("dom").and_then(|text| text.parse().ok()) {
            Some(domid) => self.update_console(DomId(domid)),
            None => Ok(()),
        }
    }

    fn list_domains(&mut self) -> Result<(), ClientError> {
        let alive: BTreeMap<DomId, u64> = self
            .machine
            .get()
            .domains()
            .filter(|domain| domain.dying == Dying::Alive && domain.domid != DomId::DOM0)
            .map(|domain| (domain.domid, domain.unique_id))
            .collect();
        let gone: Vec<DomId> = self
            .consoles
            .iter()
            .filter(|(domid, console)| alive.get(domid) != Some(&console.unique_id))
            .map(|(domid, _)| *domid)
            .collect();
        for domid in gone {
            self.forget(domid)?;
        }
        for (domid, unique_id) in alive {
            if let Entry::Vacant(entry) = self.consoles.entry(domid) {
                entry.insert(Console { unique_id, ring: None });
                self.logs.insert(domid, String::new());
                self.store.watch(&console_path(domid), &format!("dom{domid}"))?;
            }
        }
        Ok(())
    }

    /// Connects a domain's console as soon as its nodes exist.
    fn update_console(&mut self, domid: DomId) -> Result<(), ClientError> {
        let Some(console) = self.consoles.get(&domid) else { return Ok(()) };
        if console.ring.is_some() {
            return Ok(());
        }
        let port = self.store.read_optional(&format!("{}/port", console_path(domid)))?;
        let port = port.and_then(|text| String::from_utf8_lossy(&text).parse().ok());
        let Some(remote_port) = port.map(EvtchnPort) else { return Ok(()) };
        let connected = {
            let mut xen = self.machine.get_mut();
            xen.map_grant(DomId::DOM0, domid, GrantRef::CONSOLE).ok().and_then(|mapping| {
                let port = xen.evtchn_bind_interdomain(DomId::DOM0, domid, remote_port);
                if port.is_err() {
                    xen.unmap(mapping);
                }
                Some((mapping, port.ok()?))
            })
        };
        let Some((mapping, port)) = connected else {
            let xen = &mut *self.machine.get_mut();
            xen.trace.note(xen.now, format_args!("xenconsoled: no console for domain {domid}"));
            return Ok(());
        };
        let mut terminals: Vec<u32> = self
            .consoles
            .values()
            .filter_map(|console| console.ring.map(|ring| ring.terminal))
            .collect();
        terminals.sort_unstable();
        let terminal = (0..).zip(&terminals).find(|(number, taken)| number != *taken);
        let terminal =
            terminal.map_or(u32::try_from(terminals.len()).unwrap_or(u32::MAX), |(free, _)| free);
        let console = self.consoles.get_mut(&domid).expect("it was there above");
        console.ring = Some(Ring { mapping, port, terminal });
        self.ports.insert(port, domid);
        let tty = format!("/dev/pts/{terminal}");
        self.store.write(&format!("{}/tty", console_path(domid)), tty.as_bytes())?;
        self.drain(port);
        Ok(())
    }

    /// Handles an event on a console's channel: reads the output.
    pub(crate) fn drain(&mut self, port: EvtchnPort) {
        let Some(domid) = self.ports.get(&port) else { return };
        let ring = self.consoles.get(domid).and_then(|console| console.ring);
        let Some(ring) = ring else { return };
        let bytes = {
            let mut xen = self.machine.get_mut();
            xen.evtchn_take(DomId::DOM0, port);
            console_drain(xen.mapped_page(ring.mapping))
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let xen = &mut *self.machine.get_mut();
        for line in text.lines() {
            xen.trace.note(xen.now, format_args!("console of {domid}: {line}"));
        }
        self.logs.entry(*domid).or_default().push_str(&text);
    }

    fn forget(&mut self, domid: DomId) -> Result<(), ClientError> {
        if let Some(Ring { mapping, port, .. }) =
            self.consoles.get(&domid).and_then(|console| console.ring)
        {
            self.drain(port);
            self.ports.remove(&port);
            let mut xen = self.machine.get_mut();
            xen.unmap(mapping);
            xen.evtchn_close(DomId::DOM0, port).expect("a port of dom0's own");
        }
        self.consoles.remove(&domid);
        self.store.unwatch(&console_path(domid), &format!("dom{domid}"))
    }
}
