//! The parser as a program of its own. Daemons run themselves again instead; tests run this.

use std::process::ExitCode;

fn main() -> ExitCode {
    image_parser::serve()
}
