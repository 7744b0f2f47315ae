//! `xylem-web`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    web::main(std::env::args_os().skip(1))
}
