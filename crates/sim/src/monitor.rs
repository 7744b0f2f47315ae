//! The monitors of simulated device models: what QEMU answers, byte by byte.
//!
//! A model's state is real: it says the VM's UUID and a count of what the model has done, and another model takes it only
//! whole. So a lost or mixed-up state is seen.

use std::cell::RefCell;
use std::rc::Rc;

use storage::HostError;
use toolstack::channel::Received;
use toolstack::device_model::Process;
use toolstack::qmp::{ModelSocket, Passed};

use crate::machine::Machine;
use crate::models;
use crate::os::SimOs;

/// How monitors behave from now on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MonitorFate {
    #[default]
    Answers,
    /// Nothing is ever said.
    Silent,
    /// The model dies at this command.
    DiesAt(&'static str),
    /// This command is refused.
    Refuses(&'static str),
    /// What is said is no QMP.
    Garbage,
    /// It says that it has saved its state, and has not.
    SavesNothing,
}

const GREETING: &str =
    "{\"QMP\": {\"version\": {\"qemu\": {\"major\": 7}}, \"capabilities\": []}}\r\n";
/// What a command takes, in nanoseconds.
const COMMAND_NS: u64 = 2_000_000;

/// A connection to one.
#[derive(Debug)]
pub(crate) struct SimMonitor {
    os: SimOs,
    machine: Machine,
    process: Process,
    /// Bytes that were said and not heard.
    said: Vec<u8>,
    written: Option<Rc<RefCell<Vec<u8>>>>,
    to_read: Option<Vec<u8>>,
    /// A disk in a set of files.
    disk: Option<String>,
}

impl SimMonitor {
    pub(crate) fn new(os: SimOs, machine: Machine, process: Process) -> Self {
        let said = match os.get().models.monitor() {
            MonitorFate::Silent => Vec::new(),
            MonitorFate::Garbage => {
                b"QEMU 7.2 monitor - type 'help' for more information\n".to_vec()
            }
            _ => GREETING.as_bytes().to_vec(),
        };
        Self { os, machine, process, said, written: None, to_read: None, disk: None }
    }

    fn say(&mut self, text: &str) {
        self.said.extend_from_slice(text.as_bytes());
        self.said.extend_from_slice(b"\r\n");
    }

    fn refuse(&mut self, why: &str) {
        let text = format!("{{\"error\": {{\"class\": \"GenericError\", \"desc\": \"{why}\"}}}}");
        self.say(&text);
    }

    fn carry_out(&mut self, line: &str) {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
        let name =
            after("\"execute\":\"").and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let fate = self.os.get().models.monitor();
        match fate {
            MonitorFate::Silent => return,
            MonitorFate::DiesAt(command) if command == name => {
                let os = &mut *self.os.get_mut();
                return models::end(os, self.process, "was ended by signal 11");
            }
            MonitorFate::Refuses(command) if command == name => return self.refuse("no"),
            _ => {}
        }
        let os = self.os.clone();
        let mut os = os.get_mut();
        let Some(model) = os.models.living(self.process) else { return };
        match name {
            "qmp_capabilities" => self.say("{\"return\": {}}"),
            "stop" => {
                model.is_stopped = true;
                self.say(
                    "{\"event\": \"STOP\", \"timestamp\": {\"seconds\": 1, \"microseconds\": 2}}",
                );
                self.say("{\"return\": {}}");
            }
            "cont" => {
                model.is_stopped = false;
                self.say("{\"return\": {}}");
            }
            "add-fd" if self.written.is_some() || self.disk.is_some() => {
                self.say("{\"return\": {\"fdset-id\": 0, \"fd\": 9}}");
            }
            "xen-save-devices-state" if !model.is_stopped => self.refuse("it is not stopped"),
            "xen-save-devices-state" if line.contains("/dev/fdset/0") => {
                if let Some(file) =
                    self.written.as_ref().filter(|_| fate != MonitorFate::SavesNothing)
                {
                    *file.borrow_mut() = model.state();
                }
                self.say("{\"return\": {}}");
            }
            "remove-fd" => {
                self.disk = None;
                self.say("{\"return\": {}}");
            }
            "getfd" if self.to_read.is_some() => self.say("{\"return\": {}}"),
            "migrate-incoming" => match self.to_read.take() {
                Some(state) if model.load(&state) => self.say("{\"return\": {}}"),
                _ => self.refuse("it expects no state, or another one"),
            },
            "query-status" => {
                let status = model.status();
                self.say(&format!("{{\"return\": {{\"status\": \"{status}\"}}}}"));
            }
            "xen-set-global-dirty-log"
                if line.contains("\"enable\":false") && !model.logs_writes =>
            {
                models::end(&mut os, self.process, "was ended by signal 6");
            }
            "xen-set-global-dirty-log" => {
                model.logs_writes = line.contains("\"enable\":true");
                self.say("{\"return\": {}}");
            }
            "system_wakeup" => self.say(model.wake()),
            _ => {
                drop(os);
                self.change_hardware(name, line);
            }
        }
    }

    /// Commands about what the guest has, and from people.
    fn change_hardware(&mut self, name: &str, line: &str) {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
        let os = self.os.clone();
        let mut os = os.get_mut();
        let Some(model) = os.models.living(self.process) else { return };
        match name {
            "human-monitor-command" => {
                let command = after("\"command-line\":\"").and_then(|rest| rest.split('"').next());
                let command = command.unwrap_or_default();
                let text = format!("{{\"return\": \"you said: {command}\\r\\n\"}}");
                self.say(&text);
            }
            "query-pci" => self.say(&format!("{{\"return\": [{}]}}", model.buses())),
            "query-chardev" => self.say(&format!("{{\"return\": [{}]}}", model.terminals())),
            "eject" | "blockdev-change-medium" => {
                let drive = after("\"id\":\"").and_then(|rest| rest.split('"').next());
                let disk = self.disk.clone().filter(|_| name == "blockdev-change-medium");
                let has_one = (name == "eject") != disk.is_some();
                match has_one && models::change(&mut os, self.process, drive, disk.as_deref()) {
                    true => self.say("{\"return\": {}}"),
                    false => self.refuse("no such drive, no such disk or a disk in it"),
                }
            }
            "query-hotpluggable-cpus" => {
                self.say(&format!("{{\"return\": [{}]}}", model.cpu_list()));
            }
            "device_add" if model.add_cpu(line) => self.say("{\"return\": {}}"),
            "device_add" => self.refuse("no such CPU, or it is there already"),
            _ => self.refuse("The command has not been found"),
        }
    }
}

impl ModelSocket for SimMonitor {
    fn send(&mut self, bytes: &[u8], passed: Passed<'_>, _: u64) -> Result<(), HostError> {
        self.os.act()?;
        match passed {
            Passed::Nothing => {}
            Passed::ToWrite => self.written = Some(Rc::default()),
            Passed::ToRead(contents) => self.to_read = Some(contents.to_vec()),
            Passed::Disk(path) => self.disk = Some(path.to_owned()),
        }
        self.machine.get_mut().spend(COMMAND_NS);
        for line in String::from_utf8_lossy(bytes).lines() {
            self.carry_out(line);
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, HostError> {
        self.os.act()?;
        if !self.said.is_empty() {
            // In pieces, as from a socket.
            let count = self.said.len().min(into.len()).min(40);
            into[..count].copy_from_slice(&self.said[..count]);
            self.said.drain(..count);
            return Ok(Received::Bytes(count));
        }
        if self.os.get_mut().models.living(self.process).is_none() {
            return Ok(Received::End);
        }
        let xen = &mut *self.machine.get_mut();
        xen.now = xen.now.after(timeout_ns);
        Ok(Received::Nothing)
    }

    fn written(&mut self) -> Result<Vec<u8>, HostError> {
        let file = self.written.take().ok_or_else(|| HostError::Refused("no file".to_owned()))?;
        Ok(file.take())
    }
}
