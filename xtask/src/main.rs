//! The one door to everything that is done with this workspace: `cargo xtask COMMAND`.

mod lab;

use std::process::ExitCode;

use anyhow::{Result, bail};
use lexopt::prelude::*;

const HELP: &str = "\
cargo xtask COMMAND

  lab     boot a real Xen host in QEMU and run a scenario in its dom0

`cargo xtask COMMAND --help` says more.";

fn main() -> ExitCode {
    match dispatch() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<ExitCode> {
    let mut parser = lexopt::Parser::from_env();
    match parser.next()? {
        Some(Value(command)) => match command.string()?.as_str() {
            "lab" => lab::command::main(&mut parser),
            other => bail!("there is no command '{other}'\n{HELP}"),
        },
        Some(Short('h') | Long("help")) | None => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(other.unexpected().into()),
    }
}
