//! `create` and `check`: the file is read here, the daemon creates or checks the VM.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use api::{Checked, Create, CreateReport, Reply, Request};

use super::{console, expect_reply, vnc};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, ProgressDisplay, Session, one_line};

/// Poll interval of `-F`.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (file, overrides) = file_and_overrides(options)?;
    if options.has("d") && session.progress == ProgressDisplay::Hidden {
        session.progress = ProgressDisplay::Lines;
    }
    let (config_text, cwd) = read(&file)?;
    if !options.has("quiet") {
        session.tell(&format!("Parsing config from {file}"));
    }
    let strict = options.has("strict");
    if session.dry_run || options.has("dryrun") {
        let create = Create { cwd, file, config_text, overrides, strict, ..Create::default() };
        return dry_run(session, create);
    }
    // With a console, the domain starts once the console is attached, so that no output is lost.
    let paused = options.has("p") || options.has("c");
    let progress = match options.has("quiet") {
        true => session.progress != ProgressDisplay::Hidden,
        false => session.draws_progress(),
    };
    let reply = session.call(&Request::Create(Create {
        cwd,
        file,
        config_text,
        overrides,
        paused,
        strict,
        warnings: true,
        progress,
        ..Create::default()
    }))?;
    let report = expect_reply!(reply, Created);
    if options.has("json") {
        session.print_json(&report);
    } else if options.has("stages") {
        session.print(&columns::stages(&report));
    }
    follow(session, options, &report)
}

/// Prints the resulting configuration, as far as valid, and all faults.
fn dry_run(session: &mut Session, create: Create) -> Result<(), Failure> {
    let checked = expect_reply!(session.call(&Request::Check(create))?, Checked);
    for warning in &checked.warnings {
        session.tell(&one_line(warning));
    }
    if let Some(config) = &checked.config {
        session.print_json(&config.config);
    }
    if checked.faults.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(checked.faults.iter().map(|fault| one_line(fault)).collect()))
}

/// Checks files one after the other. Nothing is created.
pub(crate) fn check(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (overrides, files): (Vec<_>, Vec<_>) =
        options.operands.iter().cloned().partition(|operand| operand.contains('='));
    if files.is_empty() {
        return Err(Failure::usage("check: a configuration file is missing; see 'xy help check'"));
    }
    let mut faulty = 0;
    let mut all = BTreeMap::new();
    for file in files {
        let checked = check_file(session, &file, &overrides, options.has("strict"))?;
        faulty += usize::from(!checked.faults.is_empty());
        if options.has("json") {
            all.insert(file, checked);
            continue;
        }
        for line in checked.faults.iter().chain(&checked.warnings) {
            session.print(&format!("{}\n", one_line(line)));
        }
        if checked.faults.is_empty() && !options.has("quiet") {
            session.print(&format!("{}: ok\n", one_line(&file)));
        }
        session.flush();
    }
    if options.has("json") {
        session.print_json(&all);
    }
    match faulty {
        0 => Ok(()),
        1 => Err(Failure::failed("check: 1 file has faults")),
        many => Err(Failure::failed(format!("check: {many} files have faults"))),
    }
}

/// An unreadable file has just that fault.
fn check_file(
    session: &mut Session,
    file: &str,
    overrides: &[String],
    strict: bool,
) -> Result<Checked, Failure> {
    let (config_text, cwd) = match read(file) {
        Ok(both) => both,
        Err(failure) => {
            return Ok(Checked { faults: failure.messages().to_vec(), ..Checked::default() });
        }
    };
    let create = Create {
        cwd,
        file: file.to_owned(),
        config_text,
        overrides: overrides.to_vec(),
        strict,
        ..Create::default()
    };
    Ok(*expect_reply!(session.call(&Request::Check(create))?, Checked))
}

/// The file's content, and the directory for relative paths in it.
pub(crate) fn read(file: &str) -> Result<(String, String), Failure> {
    let config_text = text(file)?;
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::failed(format!("cannot find the working directory: {error}")))?;
    Ok((config_text, cwd.to_string_lossy().into_owned()))
}

pub(super) fn text(file: &str) -> Result<String, Failure> {
    std::fs::read(file)
        .map_err(|error| Failure::failed(format!("cannot read {file}: {error}")))
        .and_then(|bytes| {
            String::from_utf8(bytes).map_err(|_| Failure::failed(format!("{file}: not UTF-8 text")))
        })
}

/// The file to read and the overriding `key=value` settings.
pub(crate) fn file_and_overrides(options: &Options) -> Result<(String, Vec<String>), Failure> {
    let (file, overrides) = operands(options).map_err(|operand| {
        let problem = format!("create: {operand:?} is one file too many; see 'xy help create'");
        Failure::usage(problem)
    })?;
    let file = file.ok_or_else(|| {
        Failure::usage("create: a configuration file is missing; see 'xy help create'")
    })?;
    Ok((file, overrides))
}

/// The same, where the file may be missing. The error is the operand that is one too many.
pub(super) fn operands(options: &Options) -> Result<(Option<String>, Vec<String>), &String> {
    let mut file = options.value("defconfig").map(str::to_owned);
    let mut overrides = Vec::new();
    for operand in &options.operands {
        // As in xl: an operand with = is not a file name.
        if operand.contains('=') {
            overrides.push(operand.clone());
        } else if file.is_none() {
            file = Some(operand.clone());
        } else {
            return Err(operand);
        }
    }
    Ok((file, overrides))
}

/// Handles `-c` and `-F` after the create.
pub(crate) fn follow(
    session: &mut Session,
    options: &Options,
    report: &CreateReport,
) -> Result<(), Failure> {
    let has_viewer = options.has("vncviewer") || options.has("vncviewer-autopass");
    let viewer = has_viewer.then(|| vnc::start_viewer(session, report.domid, &report.uuid));
    if options.has("c") {
        session.flush();
        let target = api::Target(report.uuid.clone());
        let unpause = |session: &mut Session| {
            if options.has("p") {
                return Ok(());
            }
            session.call(&Request::Unpause { target: target.clone() }).map(|_| ())
        };
        console::attach(
            session,
            &console::primary(&target),
            crate::console::ESCAPE_DEFAULT,
            unpause,
        )?;
    }
    if options.has("F") {
        session.flush();
        while is_there(session, report)? {
            thread::sleep(FOREGROUND_INTERVAL);
        }
    }
    // It shows the screen of another host through this process.
    match viewer.flatten().map(thread::JoinHandle::join) {
        Some(Ok(Err(why))) => Err(Failure::failed(why)),
        _ => Ok(()),
    }
}

fn is_there(session: &mut Session, report: &CreateReport) -> Result<bool, Failure> {
    match session.call(&Request::List { targets: Vec::new() })? {
        Reply::Domains(rows) => Ok(rows.iter().any(|row| row.domid == report.domid)),
        other => Err(crate::session::unexpected(&other)),
    }
}
