//! `save` and `restore`.

use api::{AfterSave, Request, Restore, Save, SavedFormat, Target};

use super::{create, expect_done, expect_reply};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, ProgressDisplay, Session};

pub(crate) fn save(session: &mut Session, options: &Options) -> Result<(), Failure> {
    // As in xl, -p prevails.
    let after = match (options.has("p"), options.has("c")) {
        (true, _) => AfterSave::Paused,
        (false, true) => AfterSave::Running,
        (false, false) => AfterSave::Destroyed,
    };
    let format = match options.value("format") {
        None | Some("xylem") => SavedFormat::Xylem,
        Some("xl") => SavedFormat::Xl,
        Some(other) => {
            let problem = format!("save: {other:?} is no format of files; it can be xylem or xl");
            return Err(Failure::usage(problem));
        }
    };
    let (file, config_text) = match options.operands.get(2) {
        Some(file) => (file.clone(), Some(create::read(file)?.0)),
        None => (String::new(), None),
    };
    let request = Request::Save(Save {
        target: Target(options.operands[0].clone()),
        path: options.operands[1].clone(),
        cwd: cwd()?,
        after,
        format,
        file,
        config_text,
        progress: session.draws_progress(),
    });
    expect_done(&session.call(&request)?)
}

pub(crate) fn restore(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("d") && session.progress == ProgressDisplay::Hidden {
        session.progress = ProgressDisplay::Lines;
    }
    let (file, config_text, path) = match options.operands.as_slice() {
        [file, path] => (file.clone(), Some(create::read(file)?.0), path),
        [path, ..] => (String::new(), None, path),
        [] => unreachable!("the table says how many operands there are"),
    };
    let progress = session.draws_progress();
    let reply = session.call(&Request::Restore(Restore {
        path: path.clone(),
        cwd: cwd()?,
        file,
        config_text,
        paused: options.has("p") || options.has("c"),
        warnings: true,
        progress,
    }))?;
    let report = expect_reply!(reply, Created);
    if options.has("json") {
        session.print_json(&report);
    } else if options.has("stages") {
        session.print(&columns::stages(&report));
    }
    create::follow(session, options, &report)
}

pub(crate) fn cwd() -> Result<String, Failure> {
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::failed(format!("cannot find the working directory: {error}")))?;
    Ok(cwd.to_string_lossy().into_owned())
}
