//! Hotplug scripts: programs of dom0 that connect a device and say so in the store.
//!
//! What they do to the host is one thing for each device, which may be connected once only, as a port of a switch or a login
//! to a target.

use std::collections::{BTreeMap, BTreeSet};

use storage::{HostError, System};
use toolstack::hotplug::{ScriptEnd, ScriptRun};
use xenstore::client::{Client, ClientError, Nodes as _};

use crate::os::{OsState, SimOs};
use crate::store::SocketTransport;

/// How a script behaves from now on, when it connects something.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ScriptFate {
    #[default]
    Works,
    /// It gives a reason in the store, and fails.
    Fails(String),
    /// It says something, and fails.
    Says(String),
    /// It has connected its device, and does not end.
    Hangs,
    /// It succeeds without a word in the store.
    IsSilent,
}

/// All scripts.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    store: Option<Client<SocketTransport>>,
    /// By path.
    fates: BTreeMap<String, ScriptFate>,
    /// What they have connected.
    pub(crate) connected: BTreeSet<String>,
    /// A line for each run.
    runs: Vec<String>,
}

impl Scripts {
    pub(crate) fn start(&mut self, store: Client<SocketTransport>) {
        self.store = Some(store);
    }

    /// The host has lost power.
    pub(crate) fn forget(&mut self) {
        self.connected.clear();
        self.store = None;
    }
}

/// The device, or a part of it, as the script names it.
fn object(run: &ScriptRun) -> String {
    let key = match run.arguments.get(1) {
        Some(&"type_if=tap") => "INTERFACE",
        Some(_) => "vif",
        None => "XENBUS_PATH",
    };
    let found = run.environment.iter().find(|(name, _)| *name == key);
    found.map(|(_, value)| format!("{} {value}", run.program)).unwrap_or_default()
}

fn folder(run: &ScriptRun) -> String {
    let path = run.environment.iter().find(|(name, _)| *name == "XENBUS_PATH");
    format!("/local/domain/0/{}", path.map(|(_, value)| value.as_str()).unwrap_or_default())
}

fn failed(words: &str) -> ScriptEnd {
    let problem = Some("failed with status 1".to_owned());
    ScriptEnd { problem, words: format!("{words}\n") }
}

impl OsState {
    /// What scripts have connected.
    #[must_use]
    pub fn connected_by_scripts(&self) -> &BTreeSet<String> {
        &self.scripts.connected
    }
}

impl SimOs {
    /// Adds a script at `path`, or changes it.
    pub fn add_script(&self, path: &str, fate: ScriptFate) {
        self.add_file(path, *b"#!/bin/sh");
        self.get_mut().scripts.fates.insert(path.to_owned(), fate);
    }

    /// The runs of scripts so far: what was to be done, and with what.
    #[must_use]
    pub fn script_runs(&self) -> Vec<String> {
        self.get().scripts.runs.clone()
    }

    pub(crate) fn find_script(&self, path: &str) -> Result<(), HostError> {
        match self.get().scripts.fates.contains_key(path) {
            true => Ok(()),
            false => Err(HostError::Missing),
        }
    }

    /// The daemon may be killed before each thing that a script does, and the script with it.
    pub(crate) fn script(&self, run: &ScriptRun) -> Result<ScriptEnd, HostError> {
        self.act()?;
        self.find_script(&run.program)?;
        let object = object(run);
        let fate = {
            let mut os = self.get_mut();
            os.scripts.runs.push(format!("{} {object}", run.arguments[0]));
            os.scripts.fates[&run.program].clone()
        };
        let end = match run.arguments[0] {
            "online" | "add" => self.connect(run, &object, &fate)?,
            _ => {
                self.get_mut().scripts.connected.remove(&object);
                ScriptEnd { problem: None, words: String::new() }
            }
        };
        self.act()?;
        Ok(end)
    }

    fn connect(
        &self,
        run: &ScriptRun,
        object: &str,
        fate: &ScriptFate,
    ) -> Result<ScriptEnd, HostError> {
        let done = ScriptEnd { problem: None, words: String::new() };
        match fate {
            ScriptFate::Fails(why) => {
                self.write(&[(format!("{}/hotplug-error", folder(run)), why.clone())])?;
                return Ok(failed(""));
            }
            ScriptFate::Says(what) => return Ok(failed(what)),
            ScriptFate::Works | ScriptFate::Hangs | ScriptFate::IsSilent => {}
        }
        if run.arguments.get(1) == Some(&"type_if=vif") {
            let link = object.rsplit(' ').next().unwrap_or_default();
            if !self.get().links.contains(link) {
                return Ok(failed(&format!("no link {link}")));
            }
        }
        if !self.get_mut().scripts.connected.insert(object.to_owned()) {
            return Ok(failed(&format!("{object} is connected already")));
        }
        self.act()?;
        match fate {
            ScriptFate::Hangs => {
                let seconds = run.seconds;
                System::sleep(&mut self.clone(), seconds * 1_000_000_000);
                let problem = Some(format!("did not end within {seconds} s"));
                return Ok(ScriptEnd { problem, words: String::new() });
            }
            ScriptFate::IsSilent => return Ok(done),
            _ => {}
        }
        let status = (format!("{}/hotplug-status", folder(run)), "connected".to_owned());
        match run.arguments.get(1) {
            Some(&"type_if=vif") => self.write(&[status])?,
            Some(_) => {}
            None => {
                let params = self.read(&format!("{}/params", folder(run)))?;
                let Some(number) = self.get().device_at(&params) else {
                    return Ok(failed(&format!("no device {params}")));
                };
                let physical = format!("{}/physical-device", folder(run));
                // As block-common.sh has it.
                self.write(&[(physical.clone(), number.to_string())])?;
                self.act()?;
                self.write(&[(format!("{physical}-path"), params), status])?;
            }
        }
        Ok(done)
    }

    fn read(&self, path: &str) -> Result<String, HostError> {
        let mut store = self.get_mut().scripts.store.take().expect("the host is up");
        let read = store.read(path);
        self.get_mut().scripts.store = Some(store);
        let bytes = read.map_err(|error| HostError::Refused(error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, nodes: &[(String, String)]) -> Result<(), HostError> {
        let mut store = self.get_mut().scripts.store.take().expect("the host is up");
        let mut write = || -> Result<(), ClientError> {
            nodes.iter().try_for_each(|(path, value)| store.write(path, value.as_bytes()))
        };
        let written = write();
        self.get_mut().scripts.store = Some(store);
        written.map_err(|error| HostError::Refused(error.to_string()))
    }
}
