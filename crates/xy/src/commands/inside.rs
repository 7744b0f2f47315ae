//! Commands that look into a running domain.

use api::{DumpCore, Request, Target};

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
