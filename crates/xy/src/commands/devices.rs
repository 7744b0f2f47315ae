//! Commands for a domain's devices.

use api::{Request, Target};

use super::{expect_done, expect_reply};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn block_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::BlockList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Blocks);
    print_rows(session, options, &rows, columns::block_list);
    Ok(())
}

pub(crate) fn network_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::NetworkList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Networks);
    print_rows(session, options, &rows, columns::network_list);
    Ok(())
}

pub(crate) fn channel_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::ChannelList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Channels);
    print_rows(session, options, &rows, columns::channel_list);
    Ok(())
}

pub(crate) fn vkb_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::KeyboardList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Keyboards);
    print_rows(session, options, &rows, columns::vkb_list);
    Ok(())
}

fn print_rows<R: serde::Serialize>(
    session: &mut Session,
    options: &Options,
    rows: &[R],
    in_columns: fn(&[R]) -> String,
) {
    match options.has("json") {
        true => session.print_json(&rows),
        false => session.print(&in_columns(rows)),
    }
}

pub(crate) fn working_directory() -> Result<String, Failure> {
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::failed(format!("cannot find the working directory: {error}")))?;
    Ok(cwd.to_string_lossy().into_owned())
}

/// The domain, and the other operands joined into one specification.
fn target_and_spec(options: &Options) -> (Target, String) {
    let (target, components) = options.operands.split_first().expect("at least one operand");
    (Target(target.clone()), components.join(","))
}

pub(crate) fn block_attach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, disk) = target_and_spec(options);
    let (cwd, progress) = (working_directory()?, session.draws_progress());
    let request = Request::BlockAttach { target, disk, cwd, progress };
    expect_done(&session.call(&request)?)
}

pub(crate) fn block_detach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, disk) = target_and_spec(options);
    let (force, progress) = (options.has("force"), session.draws_progress());
    let request = Request::BlockDetach { target, disk, force, progress };
    expect_done(&session.call(&request)?)
}

pub(crate) fn network_attach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, vif) = target_and_spec(options);
    expect_done(&session.call(&Request::NetworkAttach { target, vif })?)
}

pub(crate) fn network_detach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, vif) = target_and_spec(options);
    let request = Request::NetworkDetach { target, vif, force: options.has("force") };
    expect_done(&session.call(&request)?)
}

pub(crate) fn vkb_attach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, keyboard) = target_and_spec(options);
    expect_done(&session.call(&Request::KeyboardAttach { target, keyboard })?)
}

pub(crate) fn vkb_detach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, keyboard) = target_and_spec(options);
    let request = Request::KeyboardDetach { target, keyboard, force: options.has("force") };
    expect_done(&session.call(&request)?)
}

pub(crate) fn cd_insert(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let [target, drive, path] = options.operands.as_slice() else {
        return Err(Failure::usage("cd-insert: expected a domain, a drive and a path"));
    };
    let (target, drive, path) = (Target(target.clone()), drive.clone(), path.clone());
    let (cwd, force) = (working_directory()?, options.has("force"));
    expect_done(&session.call(&Request::CdInsert { target, drive, path, cwd, force })?)
}

pub(crate) fn cd_eject(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let [target, drive] = options.operands.as_slice() else {
        return Err(Failure::usage("cd-eject: a domain and a drive are wanted"));
    };
    let (target, drive) = (Target(target.clone()), drive.clone());
    expect_done(&session.call(&Request::CdEject { target, drive, force: options.has("force") })?)
}
