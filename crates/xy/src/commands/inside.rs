//! Commands that look into a running domain.

use api::{ConfigUpdate, DumpCore, Request, Target, TuneRequest};

use super::create;
use super::save::cwd;
use super::{expect_done, expect_reply};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn dump_core(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::DumpCore(DumpCore {
        target: Target(options.operands[0].clone()),
        path: options.operands[1].clone(),
        cwd: cwd()?,
        live: options.has("live"),
        progress: session.draws_progress(),
    });
    expect_done(&session.call(&request)?)
}

pub(crate) fn qemu_monitor_command(
    session: &mut Session,
    options: &Options,
) -> Result<(), Failure> {
    let target = Target(options.operands[0].clone());
    let command = options.operands[1].clone();
    let reply = session.call(&Request::QemuMonitorCommand { target, command })?;
    let text = expect_reply!(reply, Text);
    // With an empty line, as xl has it.
    session.print(&format!("{text}\n"));
    Ok(())
}

pub(crate) fn config_update(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (overrides, mut words): (Vec<_>, Vec<_>) =
        options.operands[1..].iter().cloned().partition(|operand| operand.contains('='));
    words.extend(options.value("defconfig").map(str::to_owned));
    let [file] = words.as_slice() else {
        let problem =
            "config-update: one configuration file is needed; see 'xy help config-update'";
        return Err(Failure::usage(problem));
    };
    let (config_text, cwd) = create::read(file)?;
    let target = Target(options.operands[0].clone());
    let mut update =
        ConfigUpdate { target, file: file.clone(), config_text, overrides, cwd, dry_run: true };
    if options.has("d") || session.dry_run {
        let request = Request::Tune(TuneRequest::ConfigUpdate(update.clone()));
        for config in expect_reply!(session.call(&request)?, Configs) {
            session.print_json(&config);
        }
    }
    if session.dry_run {
        return Ok(());
    }
    update.dry_run = false;
    expect_done(&session.call(&Request::Tune(TuneRequest::ConfigUpdate(update)))?)
}
