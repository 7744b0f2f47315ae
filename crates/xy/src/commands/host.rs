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

pub(crate) fn set_parameters(session: &mut Session, options: &Options) -> Result<(), Failure> {
    pools::ask(session, HostRequest::SetParameters { text: options.operands[0].clone() })
}

pub(crate) fn getenforce(session: &mut Session, _options: &Options) -> Result<(), Failure> {
    let request = Request::Host(HostRequest::Enforcing);
    let enforcing = expect_reply!(session.call(&request)?, Enforcing);
    session.print(match enforcing {
        None => "Flask XSM Disabled\n",
        Some(true) => "Enforcing\n",
        Some(false) => "Permissive\n",
    });
    // As xl, which returns the mode itself.
    match enforcing {
        None => Err(Failure::AsXl(255, "Xen runs without the security module Flask".to_owned())),
        Some(true) if session.program == "xl" => Err(Failure::Failed(Vec::new())),
        Some(_) => Ok(()),
    }
}

pub(crate) fn setenforce(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mode = options.operands[0].as_str();
    let enforcing = match mode {
        "1" => true,
        "0" => false,
        _ if mode.eq_ignore_ascii_case("enforcing") => true,
        _ if mode.eq_ignore_ascii_case("permissive") => false,
        _ => {
            let problem = format!("setenforce: {mode:?} is none of 1, 0, Enforcing and Permissive");
            return Err(Failure::AsXl(2, problem));
        }
    };
    pools::ask(session, HostRequest::SetEnforcing { enforcing }).map_err(as_of_flask)
}

pub(crate) fn loadpolicy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let path = &options.operands[0];
    let policy = std::fs::read(path)
        .map_err(|error| Failure::AsXl(255, format!("{path}: cannot be read: {error}")))?;
    let policy = base16ct::lower::encode_string(&policy);
    pools::ask(session, HostRequest::LoadPolicy { policy }).map_err(as_of_flask)?;
    session.print("Successfully loaded policy.\n");
    Ok(())
}

/// The status of xl, which returns -1.
fn as_of_flask(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(messages) => Failure::AsXl(255, messages.join("; ")),
        other => other,
    }
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
