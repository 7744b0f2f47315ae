//! The parser as a separate program, for tests. Daemons execute themselves again instead.

use std::process::ExitCode;

fn main() -> ExitCode {
    image_parser::serve()
}
