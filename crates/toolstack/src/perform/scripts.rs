//! Hotplug scripts of devices, and networks of vifs.

use storage::HostError;
use xen::{DomId, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Performer, failure, store};
use crate::host::Host;
use crate::hotplug::{self, Mark, ScriptEnd, ScriptRun, Scripts, Way};
use crate::layout::{DeviceKind, DeviceRef};
use crate::network::{self, Connection};
use crate::work::{Failure, Output};

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Runs the scripts of a device that have not been run yet.
    pub(crate) fn run_scripts(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        device: DeviceRef,
        scripts: &Scripts,
        way: Way,
    ) -> Result<Output, Failure> {
        self.go(domid, uuid, device, way, |by, next| {
            let mut runs = scripts.of(next).iter();
            match next {
                // The rest of a device that cannot be connected would be no use.
                Way::Connect => runs.try_for_each(|run| by.run_script(domid, device, run)),
                Way::Disconnect => {
                    let ends: Vec<_> = runs.map(|run| by.run_script(domid, device, run)).collect();
                    ends.into_iter().collect()
                }
            }
        })?;
        match (way, device.kind) {
            (Way::Disconnect, _) => Ok(Output::Done),
            (Way::Connect, DeviceKind::Vbd) => {
                let disk = store::connected_disk(&mut self.store, domid, device)?;
                let script = &scripts.connect[0].program;
                let nameless = || {
                    let disk = device.spoken();
                    Failure(format!(
                        "{disk}: the script {script} add named no device (physical-device in the store)"
                    ))
                };
                Ok(Output::Connected(Some(disk.ok_or_else(nameless)?)))
            }
            (Way::Connect, _) => Ok(Output::Connected(None)),
        }
    }

    /// Goes one of the ways with a device as far as that is needed: `run` goes one whole way. How far it is stays in the store.
    fn go(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        device: DeviceRef,
        way: Way,
        mut run: impl FnMut(&mut Self, Way) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let found = store::script_mark(&mut self.store, domid, uuid, device)?;
        let mark = match (found, way) {
            (Some(mark), _) => mark,
            // It never was, or nothing is left of it.
            (None, Way::Disconnect) => return Ok(()),
            (None, Way::Connect) => return Err(store::taken_down(domid)),
        };
        let mut trouble = None;
        for next in hotplug::needed(mark, way) {
            let ended = match next {
                Way::Connect => {
                    store::mark_script(&mut self.store, domid, uuid, device, Mark::Begun)?;
                    run(self, *next)?;
                    Mark::Connected
                }
                Way::Disconnect => {
                    // Half of what was killed need not be undoable.
                    trouble = run(self, *next).err().filter(|_| way == Way::Disconnect);
                    Mark::Disconnected
                }
            };
            store::mark_script(&mut self.store, domid, uuid, device, ended)?;
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Connects the links of a vif to their network and tells its backend, or the opposite.
    pub(crate) fn join_network(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        device: DeviceRef,
        connections: &[Connection],
        way: Way,
    ) -> Result<Output, Failure> {
        self.go(domid, uuid, device, way, |by, next| {
            let told = |connection: &Connection, error| failure(connection.name(), error);
            let all = connections.iter();
            if next == Way::Disconnect {
                let ends =
                    all.map(|it| network::disconnect(&mut by.host, it).map_err(|e| told(it, e)));
                return ends.collect::<Vec<_>>().into_iter().collect();
            }
            let (mut told_mtu, mut found) = (None, None);
            for connection in all {
                let connected = network::connect(&mut by.host, connection);
                found = Some(connected.map_err(|error| told(connection, error))?);
                told_mtu = connection.mtu;
            }
            let ends = device.in_domain_0(domid);
            let (frontend, backend) = (device.frontend(domid), ends.backend_path());
            Ok(store::connect_vif(&mut by.store, &frontend, &backend, told_mtu, found)?)
        })?;
        Ok(Output::Done)
    }

    fn run_script(
        &mut self,
        domid: DomId,
        device: DeviceRef,
        run: &ScriptRun,
    ) -> Result<(), Failure> {
        let end = self.host.run_script(run).unwrap_or_else(|error| {
            let problem = match error {
                HostError::Missing => "is not there".to_owned(),
                error => format!("cannot be run: {error}"),
            };
            ScriptEnd { problem: Some(problem), words: String::new() }
        });
        let noted = match &end.problem {
            Some(_) => store::script_error(&mut self.store, domid, device)?,
            None => String::new(),
        };
        hotplug::failure(device, run, &end, &noted).map_or(Ok(()), |told| Err(Failure(told)))
    }
}
