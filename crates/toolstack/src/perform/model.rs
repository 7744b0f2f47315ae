//! The device model of a domain that is saved or restored: it is stopped while its guest is suspended, and says its state.

use migrate::libxl::{self, Emulator};
use storage::HostError;
use xen::{DomId, Hypervisor, Uuid};
use xenstore::client::{Nodes as _, Transport};

use super::{Performer, failure, store};
use crate::channel::Received;
use crate::device_model::{self, ModelState, Process};
use crate::host::Host;
use crate::layout::{self, Nodes};
use crate::plan::Unplug;
use crate::qmp::{
    self, Command, GoesOn, LOCKED, Lines, LogWrites, MissingCpu, ModelSocket, Passed, Said, Spoken,
};
use crate::work::Failure;

const SECOND: u64 = 1_000_000_000;
/// How long one that was just started may take until it can be spoken with.
const STARTS_NS: u64 = 60 * SECOND;
/// How long one that runs may take to take a connection.
const CONNECTS_NS: u64 = 5 * SECOND;
/// How often it is asked whether it has loaded its state.
const ASKS_AGAIN_NS: u64 = SECOND / 20;
/// How long a guest may take to unlock a drive, and how often it is looked.
const UNLOCKS_NS: u64 = 10 * SECOND;
const LOOKS_AGAIN_NS: u64 = SECOND / 4;
/// How long it may take for a command, as in libxl.
const ANSWERS_NS: u64 = 10 * SECOND;

/// What was done to the device model of a guest that is saved or sent, and has to be undone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) logs_writes: bool,
    pub(super) is_stopped: bool,
}

impl Told {
    /// By a daemon that was killed.
    pub(super) const ANYTHING: Self = Self { logs_writes: true, is_stopped: true };
}

/// A conversation with a device model.
struct Monitor {
    socket: Box<dyn ModelSocket>,
    lines: Lines,
}

impl Monitor {
    /// Takes in what is said, if something is said in time.
    fn listen(&mut self, timeout_ns: u64) -> Result<(), HostError> {
        let mut bytes = [0; 4096];
        match self.socket.receive(&mut bytes, timeout_ns)? {
            Received::Bytes(count) => self.lines.feed(&bytes[..count]),
            Received::Nothing => {}
            Received::End => return Err(HostError::Refused("it closed its monitor".to_owned())),
        }
        Ok(())
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn monitor(
        &mut self,
        domid: DomId,
        process: Process,
        timeout_ns: u64,
    ) -> Result<Monitor, HostError> {
        let socket = self.host.model_socket(domid, process, timeout_ns)?;
        let mut monitor = Monitor { socket, lines: Lines::default() };
        match self.hear(&mut monitor)? {
            Said::Greeting => {}
            Said::Done(_) | Said::Refused(_) => {
                return Err(HostError::Refused("its monitor did not greet".to_owned()));
            }
        }
        self.command(&mut monitor, Command::Capabilities, Passed::Nothing)?;
        Ok(monitor)
    }

    fn hear(&mut self, monitor: &mut Monitor) -> Result<Said, HostError> {
        let until = self.xen.now_ns() + ANSWERS_NS;
        loop {
            let said = monitor.lines.next();
            if let Some(said) = said.map_err(|error| HostError::Refused(error.to_string()))? {
                return Ok(said);
            }
            let left = until.saturating_sub(self.xen.now_ns());
            if left == 0 {
                let seconds = ANSWERS_NS / SECOND;
                return Err(HostError::Refused(format!("it did not answer within {seconds} s")));
            }
            monitor.listen(left)?;
        }
    }

    fn command(
        &mut self,
        monitor: &mut Monitor,
        command: Command,
        passed: Passed<'_>,
    ) -> Result<serde_json::Value, HostError> {
        self.say(monitor, command.name(), &command.encode(), passed)
    }

    fn say(
        &mut self,
        monitor: &mut Monitor,
        name: &str,
        bytes: &[u8],
        passed: Passed<'_>,
    ) -> Result<serde_json::Value, HostError> {
        monitor.socket.send(bytes, passed, ANSWERS_NS)?;
        match self.hear(monitor)? {
            Said::Done(result) => Ok(result),
            Said::Refused(why) => Err(HostError::Refused(format!("{name}: {why}"))),
            Said::Greeting => Err(HostError::Refused("its monitor greeted twice".to_owned())),
        }
    }

    /// Stops the device model of a suspended guest, if it has one, and asks for its state.
    pub(super) fn stop_model(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        told: &mut Told,
    ) -> Result<Option<ModelState>, Failure> {
        let Some(process) = model else { return Ok(None) };
        told.is_stopped = true;
        let context = self.stop_and_save(domid, process);
        let context = context.map_err(|error| model_failure(domid, error))?;
        let nodes = self.model_nodes(domid)?;
        Ok(Some(ModelState { nodes, context }))
    }

    fn stop_and_save(&mut self, domid: DomId, process: Process) -> Result<Vec<u8>, HostError> {
        let mut monitor = self.monitor(domid, process, CONNECTS_NS)?;
        self.command(&mut monitor, Command::Stop, Passed::Nothing)?;
        let set = self.command(&mut monitor, Command::AddFile, Passed::ToWrite)?;
        let set = file_set(&set)?;
        self.command(&mut monitor, Command::SaveState(set), Passed::Nothing)?;
        self.command(&mut monitor, Command::CloseFile(set), Passed::Nothing)?;
        let context = monitor.socket.written()?;
        match context.is_empty() {
            true => Err(HostError::Refused("it saved no state".to_owned())),
            false => Ok(context),
        }
    }

    /// Lets it go on.
    pub(super) fn continue_model(&mut self, domid: DomId, process: Process) -> Result<(), Failure> {
        let went_on = self
            .monitor(domid, process, CONNECTS_NS)
            .and_then(|mut it| self.command(&mut it, Command::Continue, Passed::Nothing));
        went_on.map(drop).map_err(|error| model_failure(domid, error))
    }

    /// Ends its guest's ACPI sleep.
    pub(super) fn wake_model(&mut self, domid: DomId, process: Process) -> Result<(), Failure> {
        let woken = self
            .monitor(domid, process, CONNECTS_NS)
            .and_then(|mut it| self.command(&mut it, Command::WakeUp, Passed::Nothing));
        woken.map(drop).map_err(|error| model_failure(domid, error))
    }

    /// Adds what it lacks of so many CPUs. It cannot take any away.
    pub(super) fn add_model_cpus(
        &mut self,
        domid: DomId,
        process: Process,
        count: u32,
    ) -> Result<(), Failure> {
        let added = self.monitor(domid, process, CONNECTS_NS).and_then(|mut monitor| {
            let all = self.command(&mut monitor, Command::Cpus, Passed::Nothing)?;
            let missing = MissingCpu::below(count, &all).ok_or_else(|| {
                HostError::Refused(format!("it does not know how to have {count} CPUs"))
            })?;
            missing.iter().try_for_each(|cpu| {
                let name = MissingCpu::COMMAND;
                self.say(&mut monitor, name, &cpu.encode(), Passed::Nothing).map(drop)
            })
        });
        added.map_err(|error| model_failure(domid, error))
    }

    fn ask_model(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        command: Command,
    ) -> Result<serde_json::Value, Failure> {
        let mut monitor = self.told_monitor(domid, model)?;
        let answer = self.command(&mut monitor, command, Passed::Nothing);
        answer.map_err(|error| model_failure(domid, error))
    }

    /// Writes to the store which pseudo-terminals its serial ports are, where consoles look for them.
    pub(crate) fn note_terminals(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        model: Option<Process>,
    ) -> Result<(), Failure> {
        let answer = self.ask_model(domid, model, Command::Terminals)?;
        let mut nodes = Nodes::default();
        for (port, path) in qmp::terminals(&answer) {
            nodes.put(format!("/local/domain/{domid}/serial/{port}/tty"), path);
        }
        store::add_device(&mut self.store, domid, uuid, &nodes)
    }

    /// Where on the guest's bus its devices of the host are, for those who list them.
    pub(crate) fn note_pci_places(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        model: Option<Process>,
    ) -> Result<(), Failure> {
        let answer = self.ask_model(domid, model, Command::Buses)?;
        let mut nodes = Nodes::default();
        for (index, device) in self.devices_of(domid)?.iter().enumerate() {
            let name = device_model::host_device_name(device.address);
            if let Some(place) = qmp::pci_place(&answer, &name) {
                let node = format!("{}/vdevfn-{index}", layout::pci_backend(domid));
                nodes.put(node, format!("{place:x}"));
            }
        }
        store::add_device(&mut self.store, domid, uuid, &nodes)
    }

    /// Takes the CD from an emulated drive, which may be empty. If its guest has locked it, QEMU tells the guest, which may
    /// open it then.
    pub(crate) fn eject_cd(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        drive: u32,
        how: Unplug,
    ) -> Result<(), Failure> {
        let mut monitor = self.told_monitor(domid, model)?;
        let until = self.xen.now_ns() + UNLOCKS_NS;
        loop {
            let command = Command::Eject { drive, how };
            let error = match self.command(&mut monitor, command, Passed::Nothing) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let is_locked = how == Unplug::Clean && error.to_string().contains(LOCKED);
            if !is_locked {
                return Err(model_failure(domid, error));
            }
            if self.xen.now_ns() >= until {
                let drive = crate::xlcfg::vdev_name(drive);
                return Err(Failure(format!(
                    "the guest has locked its drive {drive}; is its CD mounted? --force ejects it anyway"
                )));
            }
            monitor.listen(LOOKS_AGAIN_NS).map_err(|error| model_failure(domid, error))?;
        }
    }

    /// Puts a CD into an emulated drive that is empty. QEMU gets it opened, since it sees no files.
    pub(crate) fn insert_cd(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        drive: u32,
        path: &str,
    ) -> Result<(), Failure> {
        let mut monitor = self.told_monitor(domid, model)?;
        let inserted = (|| {
            let set = self.command(&mut monitor, Command::AddFile, Passed::Disk(path))?;
            let set = file_set(&set)?;
            let inserted =
                self.command(&mut monitor, Command::Insert { drive, set }, Passed::Nothing);
            // What is in the drive has a descriptor of its own.
            self.command(&mut monitor, Command::CloseFile(set), Passed::Nothing)?;
            inserted.map(drop)
        })();
        inserted.map_err(|error| model_failure(domid, error))
    }

    /// Gives it a command of its monitor for people, and returns what it prints.
    pub(super) fn speak_to_model(
        &mut self,
        domid: DomId,
        model: Process,
        command: String,
    ) -> Result<String, Failure> {
        let mut monitor = self.told_monitor(domid, Some(model))?;
        monitor.lines.allow_text();
        let bytes = Spoken(command).encode();
        let told = self.say(&mut monitor, Spoken::COMMAND, &bytes, Passed::Nothing);
        let told = told.and_then(|answer| {
            Spoken::text(&answer)
                .ok_or_else(|| HostError::Refused("it answered no text".to_owned()))
        });
        told.map_err(|error| model_failure(domid, error))
    }

    fn told_monitor(&mut self, domid: DomId, model: Option<Process>) -> Result<Monitor, Failure> {
        let process = model.ok_or_else(|| HostError::Refused("has ended".to_owned()));
        let monitor = process.and_then(|process| self.monitor(domid, process, CONNECTS_NS));
        monitor.map_err(|error| model_failure(domid, error))
    }

    /// From now on a device model logs what it writes to the guest's memory, which Xen does not see by itself.
    pub(super) fn begin_model_log(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        told: &mut Told,
    ) -> Result<(), Failure> {
        let Some(process) = model else { return Ok(()) };
        told.logs_writes = true;
        self.log_model_writes(domid, process, LogWrites::On)
    }

    fn log_model_writes(
        &mut self,
        domid: DomId,
        process: Process,
        wanted: LogWrites,
    ) -> Result<(), Failure> {
        // QEMU dies of the end of a log that it does not keep, and who settles a killed daemon's save does not know. To begin
        // one again does nothing.
        let steps = match wanted {
            LogWrites::On => &[LogWrites::On][..],
            LogWrites::Off => &[LogWrites::On, LogWrites::Off],
        };
        let logs = self.monitor(domid, process, CONNECTS_NS).and_then(|mut monitor| {
            steps.iter().try_for_each(|step| {
                self.command(&mut monitor, Command::LogWrites(*step), Passed::Nothing).map(drop)
            })
        });
        logs.map_err(|error| model_failure(domid, error))
    }

    /// Undoes what it was told: it no longer logs what it writes, and goes on if its guest does.
    pub(super) fn release_model(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        told: Told,
        goes_on: GoesOn,
    ) -> Result<(), Failure> {
        let Some(model) = model else { return Ok(()) };
        let mut ends = Ok(());
        if told.logs_writes {
            ends = self.log_model_writes(domid, model, LogWrites::Off);
        }
        if told.is_stopped && goes_on == GoesOn::Here {
            ends = ends.and(self.continue_model(domid, model));
        }
        ends
    }

    /// The same at the end of a save or move, whose result it is if nothing else failed.
    pub(super) fn end_with_model(
        &mut self,
        domid: DomId,
        model: Option<Process>,
        told: Told,
        goes_on: GoesOn,
        result: Result<(), Failure>,
    ) -> Result<(), Failure> {
        match (result, self.release_model(domid, model, told, goes_on)) {
            (Err(Failure(why)), Err(Failure(more))) => {
                Err(Failure(format!("{why}; and then: {more}")))
            }
            (result, released) => result.and(released),
        }
    }

    /// Gives the state of another one to one that was started for it, and waits until it has loaded it. Then it is noted in
    /// the store that it runs: one without rights does so when it starts by itself, but from its chroot cannot any more.
    pub(super) fn load_model(
        &mut self,
        domid: DomId,
        process: Process,
        context: &[u8],
    ) -> Result<(), HostError> {
        let mut monitor = self.monitor(domid, process, STARTS_NS)?;
        self.command(&mut monitor, Command::GetFile, Passed::ToRead(context))?;
        self.command(&mut monitor, Command::LoadState, Passed::Nothing)?;
        let until = self.xen.now_ns() + STARTS_NS;
        loop {
            let status = self.command(&mut monitor, Command::Status, Passed::Nothing)?;
            match status.get("status").and_then(serde_json::Value::as_str) {
                Some("running") => break,
                Some("inmigrate") if self.xen.now_ns() < until => {}
                Some("inmigrate") => {
                    let seconds = STARTS_NS / SECOND;
                    let why = format!("it has not loaded its state within {seconds} s");
                    return Err(HostError::Refused(why));
                }
                other => {
                    let why =
                        format!("it is {} after it has loaded its state", other.unwrap_or("lost"));
                    return Err(HostError::Refused(why));
                }
            }
            monitor.listen(ASKS_AGAIN_NS)?;
        }
        let noted = self.store.write(&device_model::state_node(domid), b"running");
        noted.map_err(|error| HostError::Refused(error.to_string()))
    }

    /// Where QEMU has put parts of the guest's memory, if it keeps that in the store, as those for Xen before 4.10 do.
    fn model_nodes(&mut self, domid: DomId) -> Result<Vec<(String, String)>, Failure> {
        let root = device_model::folder(domid);
        let entries = match self.store.directory(&format!("{root}/{}", ModelState::PLACES)) {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut nodes = Vec::new();
        for entry in entries {
            for key in ModelState::PLACE_KEYS {
                let path = format!("{}/{entry}/{key}", ModelState::PLACES);
                let value = self.store.read(&format!("{root}/{path}"))?;
                nodes.push((path, String::from_utf8_lossy(&value).into_owned()));
            }
        }
        Ok(nodes)
    }
}

/// The number of the set in which it keeps a file, by its answer.
fn file_set(answer: &serde_json::Value) -> Result<u64, HostError> {
    let set = answer.get("fdset-id").and_then(serde_json::Value::as_u64);
    set.ok_or_else(|| HostError::Refused("add-fd: no set of files".to_owned()))
}

fn model_failure(domid: DomId, error: HostError) -> Failure {
    failure(format_args!("the device model of domain {domid}"), error)
}

impl ModelState {
    /// As records of a stream.
    pub(super) fn records(&self) -> [libxl::Record; 2] {
        let (emulator, index) = (Emulator::Qemu, 0);
        [
            libxl::Record::EmulatorNodes { emulator, index, nodes: self.nodes.clone() },
            libxl::Record::EmulatorContext { emulator, index, bytes: self.context.clone() },
        ]
    }
}

/// Collects what a stream has of a device model.
#[derive(Debug, Default)]
pub(super) struct ModelRecords(ModelState);

impl ModelRecords {
    /// Takes a record, if it is of a device model.
    pub(super) fn take(&mut self, record: libxl::Record) -> Result<(), String> {
        let (emulator, index) = match &record {
            libxl::Record::EmulatorNodes { emulator, index, .. }
            | libxl::Record::EmulatorContext { emulator, index, .. } => (*emulator, *index),
            libxl::Record::End | libxl::Record::LibxcContext | libxl::Record::CheckpointEnd => {
                return Ok(());
            }
        };
        if (emulator, index) != (Emulator::Qemu, 0) {
            return Err("it has the state of a device model other than QEMU".to_owned());
        }
        match record {
            libxl::Record::EmulatorNodes { nodes, .. } => {
                if let Some((path, _)) = nodes.iter().find(|(path, _)| !ModelState::is_place(path))
                {
                    let path = path.escape_debug();
                    return Err(format!("it has a node of a device model named \"{path}\""));
                }
                self.0.nodes = nodes;
            }
            libxl::Record::EmulatorContext { bytes, .. } => self.0.context = bytes,
            _ => {}
        }
        Ok(())
    }

    /// All of it, for a VM that has a device model or has not.
    pub(super) fn finish(
        self,
        config: &crate::config::VmConfig,
    ) -> Result<Option<ModelState>, String> {
        match (config.hvm.is_some(), self.0.context.is_empty()) {
            (true, false) => Ok(Some(self.0)),
            (true, true) => {
                Err("it has no state of a device model: it is not an HVM guest's".to_owned())
            }
            (false, true) => Ok(None),
            (false, false) => {
                Err("it has the state of a device model: it is an HVM guest's".to_owned())
            }
        }
    }
}
