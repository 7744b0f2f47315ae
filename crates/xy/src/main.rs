//! The command line: xl's verbs and columns, for `xylemd`.
//!
//! It makes no decisions: it reads arguments and files, makes requests of [`api`], and renders the
//! answers. Exit status: 0 ok, 1 failure, 2 wrong usage.

mod columns;
mod command;
mod commands;
mod console;
mod options;
mod progress;
mod remote;
mod session;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use session::{Failure, Session};

fn main() -> ExitCode {
    if let Some(status) = commands::image::become_worker() {
        return status;
    }
    let mut session = Session::default();
    let result = arguments().and_then(|arguments| run(&mut session, arguments));
    let output = session.take_output();
    // A reader that closes our output, as in `xy list | head -1`, is not a failure.
    let _ = std::io::stdout().write_all(&output);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for message in failure.messages() {
                // Nothing can be done if even that fails.
                let _ = writeln!(std::io::stderr(), "{}: {message}", session.program);
            }
            ExitCode::from(failure.status())
        }
    }
}

/// A link named xl takes xl's place.
fn run(session: &mut Session, arguments: Vec<String>) -> Result<(), Failure> {
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called).file_name().is_some_and(|name| name == "xl") {
        command::xl::run(session, arguments)
    } else {
        command::run(session, arguments)
    }
}

fn arguments() -> Result<Vec<String>, Failure> {
    std::env::args_os()
        .skip(1)
        .map(|argument| {
            argument
                .into_string()
                .map_err(|argument| Failure::usage(format!("{}: not UTF-8", argument.display())))
        })
        .collect()
}
