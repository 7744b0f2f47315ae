//! `create`: reads the file here, has the VM made there.

use std::thread;
use std::time::Duration;

use api::{Create, CreateReport, Reply, Request};

use super::{console, expect_reply};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, ProgressDisplay, Session};

/// How often `-F` looks whether the domain is still there.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("vncviewer") || options.has("vncviewer-autopass") {
        return Err(Failure::usage("create: there is no VNC display to connect to yet"));
    }
    let (file, overrides) = file_and_overrides(options)?;
    if options.has("d") && session.progress == ProgressDisplay::Hidden {
        session.progress = ProgressDisplay::Lines;
    }
    let (config_text, cwd) = read(&file)?;
    if !options.has("quiet") {
        session.tell(&format!("Parsing config from {file}"));
    }
    let dry_run = session.dry_run || options.has("dryrun");
    // With a console, the domain starts once somebody listens, so that no line of it is lost.
    let paused = options.has("p") || options.has("c");
    let progress = match options.has("quiet") || dry_run {
        true => session.progress != ProgressDisplay::Hidden,
        false => session.draws_progress(),
    };
    let reply = session.call(&Request::Create(Create {
        cwd,
        file,
        config_text,
        overrides,
        paused,
        dry_run,
        progress,
    }))?;
    if dry_run {
        let configs = expect_reply!(reply, Configs);
        for config in &configs {
            session.print_json(config);
        }
        return Ok(());
    }
    let report = expect_reply!(reply, Created);
    if options.has("json") {
        session.print_json(&report);
    } else if options.has("stages") {
        session.print(&columns::stages(&report));
    }
    follow(session, options, &report)
}

/// What the file says, and where relative paths in it begin.
pub(crate) fn read(file: &str) -> Result<(String, String), Failure> {
    let config_text = std::fs::read(file)
        .map_err(|error| Failure::failed(format!("cannot read {file}: {error}")))
        .and_then(|bytes| {
            String::from_utf8(bytes)
                .map_err(|_| Failure::failed(format!("{file}: not a text in UTF-8")))
        })?;
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::failed(format!("cannot find the working directory: {error}")))?;
    Ok((config_text, cwd.to_string_lossy().into_owned()))
}

/// The file to read and the `key=value` settings that go over it.
pub(crate) fn file_and_overrides(options: &Options) -> Result<(String, Vec<String>), Failure> {
    let mut file = options.value("defconfig").map(str::to_owned);
    let mut overrides = Vec::new();
    for operand in &options.operands {
        // The same word decides it as in xl: a file's name has no = in it.
        if operand.contains('=') {
            overrides.push(operand.clone());
        } else if file.is_none() {
            file = Some(operand.clone());
        } else {
            let problem = format!("create: {operand:?} is one file too many; see 'xy help create'");
            return Err(Failure::usage(problem));
        }
    }
    let file = file.ok_or_else(|| {
        Failure::usage("create: a configuration file is missing; see 'xy help create'")
    })?;
    Ok((file, overrides))
}

/// What `-c` and `-F` do once the domain is there.
fn follow(session: &mut Session, options: &Options, report: &CreateReport) -> Result<(), Failure> {
    if options.has("c") {
        session.flush();
        let target = api::Target(report.domid.to_string());
        let unpause = |session: &mut Session| {
            if options.has("p") {
                return Ok(());
            }
            session.call(&Request::Unpause { target: target.clone() }).map(|_| ())
        };
        console::attach(session, &target, crate::console::ESCAPE_DEFAULT, unpause)?;
    }
    if options.has("F") {
        session.flush();
        while is_there(session, report)? {
            thread::sleep(FOREGROUND_INTERVAL);
        }
    }
    Ok(())
}

fn is_there(session: &mut Session, report: &CreateReport) -> Result<bool, Failure> {
    match session.call(&Request::List { targets: Vec::new() })? {
        Reply::Domains(rows) => Ok(rows.iter().any(|row| row.domid == report.domid)),
        other => Err(crate::session::unexpected(&other)),
    }
}
