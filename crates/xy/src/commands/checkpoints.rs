//! `checkpoint`, `checkpoint-list`, `checkpoint-destroy`, `revert` and `clone`.

use api::{CheckpointRequest, MakeCheckpoint, MakeCopies, Reply, Request, Revert, Target};

use super::{create, expect_done, expect_reply, save, vms};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

fn ask(session: &mut Session, request: CheckpointRequest) -> Result<Reply, Failure> {
    session.call(&Request::Checkpoint(request))
}

pub(crate) fn checkpoint(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = CheckpointRequest::Checkpoint(MakeCheckpoint {
        target: Target(options.operands[0].clone()),
        name: options.operands.get(1).cloned(),
        progress: session.draws_progress(),
    });
    match ask(session, request)? {
        Reply::Checkpointed { name } => {
            session.print(&format!("{name}\n"));
            Ok(())
        }
        other => Err(crate::session::unexpected(&other)),
    }
}

pub(crate) fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let vms = options.targets();
    let rows = expect_reply!(ask(session, CheckpointRequest::CheckpointList { vms })?, Checkpoints);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::storage::checkpoint_list(&rows));
    }
    Ok(())
}

pub(crate) fn destroy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let vm = Target(options.operands[0].clone());
    let mut messages = Vec::new();
    for name in &options.operands[1..] {
        let request = CheckpointRequest::CheckpointDestroy { vm: vm.clone(), name: name.clone() };
        match ask(session, request) {
            Ok(reply) => expect_done(&reply)?,
            Err(Failure::Failed(more)) => messages.extend(more),
            Err(usage) => return Err(usage),
        }
    }
    if messages.is_empty() { Ok(()) } else { Err(Failure::Failed(messages)) }
}

pub(crate) fn revert(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let progress = session.draws_progress();
    let reply = ask(
        session,
        CheckpointRequest::Revert(Revert {
            vm: Target(options.operands[0].clone()),
            name: options.operands[1].clone(),
            paused: options.has("p") || options.has("c"),
            progress,
        }),
    )?;
    let report = expect_reply!(reply, Created);
    if options.has("json") {
        session.print_json(&report);
    } else if options.has("stages") {
        session.print(&columns::stages(&report));
    }
    create::follow(session, options, &report)
}

pub(crate) fn clone(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let count = match options.value("count").map(str::parse) {
        None => 1,
        Some(Ok(count)) => count,
        Some(Err(_)) => return Err(Failure::usage("clone: --count is not a number")),
    };
    session.draws_progress();
    let request = CheckpointRequest::Clone(MakeCopies {
        of: options.operands[0].clone(),
        cwd: save::cwd()?,
        count,
        pattern: options.value("name").map(str::to_owned),
    });
    let all = expect_reply!(ask(session, request)?, StartedAll);
    vms::told(session, &all)
}
