//! Commands for defined VMs.

use std::fmt::Write as _;

use api::{Define, Request, StartedAll, Target, VmRow};

use super::{create, expect_done, expect_reply};
use crate::columns::{self, shown};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn define(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (file, overrides) = create::file_and_overrides(options)?;
    let (config_text, cwd) = create::read(&file)?;
    let order = options.value("order").map(|text| number("define", "--order", text)).transpose()?;
    let autostart = match (options.has("autostart"), order) {
        (_, Some(order)) => Some(order),
        (true, None) => Some(0),
        (false, None) => None,
    };
    let strict = options.has("strict");
    let warnings = true;
    let replaces = None;
    let define =
        Define { file, config_text, overrides, cwd, strict, warnings, autostart, replaces };
    match session.call(&Request::Define(define))? {
        api::Reply::Defined { uuid } => {
            session.print(&format!("{uuid}\n"));
            Ok(())
        }
        other => Err(crate::session::unexpected(&other)),
    }
}

pub(super) fn number<T: std::str::FromStr>(
    command: &str,
    option: &str,
    text: &str,
) -> Result<T, Failure> {
    let wrong = |_| Failure::usage(format!("{command}: {option} {text:?} is not a number"));
    text.parse().map_err(wrong)
}

pub(crate) fn undefine(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for target in options.targets() {
        expect_done(&session.call(&Request::Undefine { target })?)?;
    }
    Ok(())
}

pub(crate) fn vm_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = expect_reply!(session.call(&Request::Vms)?, Vms);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&vms(&rows));
    }
    Ok(())
}

fn vms(rows: &[VmRow]) -> String {
    let mut out = format!(
        "{:<32} {:<36} {:>5} {:<9} {:<7} {}\n",
        "Name", "UUID", "ID", "State", "Defined", "Autostart"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<32} {:<36} {:>5} {:<9} {:<7} {}{}",
            shown(&row.name),
            row.uuid,
            row.domid.map_or("-".to_owned(), |domid| domid.to_string()),
            row.state,
            if row.defined { "yes" } else { "no" },
            row.autostart.map_or("-".to_owned(), |order| order.to_string()),
            if row.reason.is_empty() { String::new() } else { format!("  {}", shown(&row.reason)) },
        );
    }
    out
}

pub(crate) fn start(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("all") {
        if !options.operands.is_empty() {
            return Err(Failure::usage("start: either --all or the names of VMs"));
        }
        session.draws_progress();
        let all = expect_reply!(session.call(&Request::StartAll)?, StartedAll);
        return told(session, &all);
    }
    if options.operands.is_empty() {
        return Err(Failure::usage(
            "start: requires --all or the name of a VM; see 'xy help start'",
        ));
    }
    let mut messages = Vec::new();
    for target in options.targets() {
        let progress = session.draws_progress();
        let request = Request::Start { target, paused: options.has("p"), progress };
        match session.call(&request) {
            Ok(reply) => {
                let report = expect_reply!(reply, Created);
                if options.has("stages") {
                    session.print(&columns::stages(&report));
                }
            }
            Err(Failure::Failed(more)) => messages.extend(more),
            Err(usage) => return Err(usage),
        }
    }
    if messages.is_empty() { Ok(()) } else { Err(Failure::Failed(messages)) }
}

pub(crate) fn told(session: &mut Session, all: &StartedAll) -> Result<(), Failure> {
    session.print(&format!(
        "{} started, {} running already, {} failed\n",
        all.started,
        all.running,
        all.failed.len()
    ));
    if all.failed.is_empty() {
        return Ok(());
    }
    let line = |it: &api::StartFailure| format!("{}: {}", shown(&it.vm), shown(&it.why));
    Err(Failure::Failed(all.failed.iter().map(line).collect()))
}

pub(crate) fn wait(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let [target, state] = options.operands.as_slice() else {
        return Err(Failure::usage("wait: requires a VM and a state; see 'xy help wait'"));
    };
    let timeout_s =
        options.value("timeout").map(|it| number("wait", "--timeout", it)).transpose()?;
    let (target, state) = (Target(target.clone()), state.clone());
    expect_done(&session.call(&Request::WaitFor { target, state, timeout_s })?)
}
