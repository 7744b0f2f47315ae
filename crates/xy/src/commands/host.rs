//! Commands for the host and the daemon.

use std::collections::BTreeMap;

use api::{HostRequest, Request};

use super::{expect_reply, pools};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn info(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let is_whole = options.operands.is_empty() && !options.has("json");
    if options.has("numa") && !is_whole {
        return Err(Failure::usage("info: -n prints a table; use it without KEY and --json"));
    }
    let info = expect_reply!(session.call(&Request::Info)?, Info);
    match options.operands.first() {
        Some(key) => {
            let value = info.0.iter().find(|(name, _)| name == key).map(|(_, value)| value);
            let value = value.ok_or_else(|| Failure::failed(format!("info has no {key:?}")))?;
            session.print(&format!("{value}\n"));
        }
        None if options.has("json") => {
            let by_key: BTreeMap<_, _> = info.0.into_iter().collect();
            session.print_json(&by_key);
        }
        None if options.has("numa") => {
            let request = Request::Host(HostRequest::Topology { pci: pci_devices() });
            let topology = expect_reply!(session.call(&request)?, Topology);
            session.print(&columns::host::info_with_topology(&info, &topology));
        }
        None => session.print(&columns::info(&info)),
    }
    Ok(())
}

/// The machine's PCI devices; none without a PCI bus.
fn pci_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

pub(crate) fn dmesg(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::Host(HostRequest::Console { clear: options.has("clear") });
    let text = expect_reply!(session.call(&request)?, Text);
    session.print(&text);
    Ok(())
}

pub(crate) fn debug_keys(session: &mut Session, options: &Options) -> Result<(), Failure> {
    pools::ask(session, HostRequest::DebugKeys { keys: options.operands[0].clone() })
}

pub(crate) fn counters(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let counters = expect_reply!(session.call(&Request::Counters)?, Counters);
    if options.has("json") {
        session.print_json(&counters);
        return Ok(());
    }
    let counts = counters.counts.iter().map(|(name, &count)| (name.as_str(), count));
    session.print(&columns::cost(&counters.cost));
    session.print(&columns::counts(counts));
    Ok(())
}
