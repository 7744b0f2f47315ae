//! Hotplug scripts of devices.

use storage::HostError;
use xen::{DomId, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Performer, store};
use crate::host::Host;
use crate::hotplug::{self, Mark, ScriptEnd, ScriptRun, Scripts, Way};
use crate::layout::{DeviceKind, DeviceRef};
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
        let found = store::script_mark(&mut self.store, domid, uuid, device)?;
        let mark = match (found, way) {
            (Some(mark), _) => mark,
            // It never was, or nothing is left of it.
            (None, Way::Disconnect) => return Ok(Output::Done),
            (None, Way::Connect) => return Err(store::taken_down(domid)),
        };
        let mut trouble = None;
        for next in hotplug::needed(mark, way) {
            let ended = match next {
                Way::Connect => {
                    store::mark_script(&mut self.store, domid, uuid, device, Mark::Begun)?;
                    // The rest of a device that cannot be connected would be no use.
                    let mut runs = scripts.of(*next).iter();
                    runs.try_for_each(|run| self.run_script(domid, device, run))?;
                    Mark::Connected
                }
                Way::Disconnect => {
                    for run in scripts.of(*next) {
                        let failed = self.run_script(domid, device, run).err();
                        // Half of a script that was killed need not be undoable.
                        trouble = trouble.or(failed.filter(|_| way == Way::Disconnect));
                    }
                    Mark::Disconnected
                }
            };
            store::mark_script(&mut self.store, domid, uuid, device, ended)?;
        }
        match (trouble, way, device.kind) {
            (Some(trouble), ..) => Err(trouble),
            (None, Way::Disconnect, _) => Ok(Output::Done),
            (None, Way::Connect, DeviceKind::Vbd) => {
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
            (None, Way::Connect, _) => Ok(Output::Connected(None)),
        }
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
