//! Plans, and what current operations wait for.

use std::fmt::Write as _;

use api::{Create, LimitChanges, Planned, Request, Target};

use super::devices::working_directory;
use super::expect_reply;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn explain(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for target in options.targets() {
        let text = expect_reply!(session.call(&Request::Explain { target })?, Text);
        session.print(&text);
    }
    Ok(())
}

pub(crate) fn plan(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (what, operands) = options.operands.split_first().expect("at least two operands");
    let (first, rest) = operands.split_first().expect("likewise");
    let target = Target(first.clone());
    let planned = match what.as_str() {
        "create" => Planned::Create(Create {
            file: first.clone(),
            config_text: std::fs::read_to_string(first)
                .map_err(|error| Failure::failed(format!("cannot read {first}: {error}")))?,
            overrides: rest.to_vec(),
            cwd: working_directory()?,
            ..Create::default()
        }),
        "reboot" => Planned::Reboot { target },
        "shutdown" => Planned::Shutdown { target },
        "destroy" => Planned::Destroy { target },
        "block-attach" => Planned::BlockAttach { disk: operands.join(",") },
        "network-attach" => Planned::NetworkAttach { vif: operands.join(",") },
        "block-detach" => Planned::BlockDetach {
            target,
            disk: rest
                .first()
                .cloned()
                .ok_or_else(|| Failure::usage("plan block-detach: expected a domain and a disk"))?,
            force: options.has("force"),
        },
        other => {
            return Err(Failure::usage(format!("{other:?} has no plan; see 'xy help plan'")));
        }
    };
    let text = expect_reply!(session.call(&Request::Plan { of: planned })?, Text);
    session.print(&text);
    Ok(())
}

pub(crate) fn limits(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let number = |name: &str| {
        let value = options.value(name).map(|text| match text.parse() {
            Ok(number) if number > 0_usize => Ok(number),
            _ => Err(Failure::usage(format!("--{name} {text}: expected a number of at least 1"))),
        });
        value.transpose()
    };
    let changes = LimitChanges {
        host: number("host")?,
        vm: number("vm")?,
        sr: number("sr")?,
        backend: number("backend")?,
        storage: number("storage")?,
        domain: number("domain")?,
        scan: number("scan")?,
        change: number("change")?,
        memory: number("memory")?,
        send: number("send")?,
        receive: number("receive")?,
    };
    let limits = expect_reply!(session.call(&Request::Limits(changes))?, Limits);
    if options.has("json") {
        session.print_json(&limits);
        return Ok(());
    }
    let mut text = String::new();
    for (name, limit) in [
        ("host", Some(limits.host)),
        ("vm", Some(limits.vm)),
        ("sr", Some(limits.sr)),
        ("backend", Some(limits.backend)),
        ("storage", limits.storage),
        ("domain", limits.domain),
        ("scan", limits.scan),
        ("change", limits.change),
        ("memory", limits.memory),
        ("send", limits.send),
        ("receive", limits.receive),
        ("waiting", Some(limits.waiting)),
        ("under way", Some(limits.under_way)),
    ] {
        let limit = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let _ = writeln!(text, "{name:<22} : {limit}");
    }
    session.print(&text);
    Ok(())
}
