//! Configurations from xl's form to libxl's JSON and back: `libxl_json to FILE.cfg`, `libxl_json from FILE.json`.

use std::fs;
use std::process::ExitCode;

use toolstack::libxl_json::{from_json, to_json};
use toolstack::xlcfg::{Source, parse};

#[expect(clippy::disallowed_methods, reason = "an example reads its arguments and a file")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direction, file] = &arguments[..] else {
        eprintln!("usage: libxl_json to FILE.cfg | from FILE.json");
        return ExitCode::FAILURE;
    };
    let result =
        fs::read_to_string(file).map_err(|error| format!("{file}: {error}")).and_then(|text| {
            match direction.as_str() {
                "to" => parse(Source { file, text: &text, overrides: &[] })
                    .map_err(|error| error.to_string())
                    .and_then(|config| {
                        to_json(&config).map_err(|error| format!("{file}: {error}"))
                    }),
                _ => from_json(file, &text).map_err(|error| error.to_string()).map(|imported| {
                    imported.warnings.iter().for_each(|warning| eprintln!("{warning}"));
                    imported.config.to_cfg_text()
                }),
            }
        });
    match result {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
