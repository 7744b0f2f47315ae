//! `xy store stats`: the daemon's counters as a table.
//!
//! The daemon tells a JSON object (`CONTROL stats`). Whatever it holds is shown: numbers as lines,
//! objects as sections, so that a newer daemon's counters need no newer `xy`.

use std::fmt::Write as _;

use serde_json::Value;

use super::connect;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(super) fn stats(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mut store = connect()?;
    let unknown = || Failure::failed("this store tells no statistics: it is not xylem-xenstored");
    let reply = match store.control(&["stats"]) {
        Err(error) if error.refusal().is_some() => return Err(unknown()),
        other => other?,
    };
    // oxenstored answers OK to whatever it does not know.
    let value: Value = serde_json::from_str(&reply).map_err(|_| unknown())?;
    if options.has("json") {
        session.print_json(&value);
    } else {
        session.print(&render(&value));
    }
    Ok(())
}

/// Lines of the top level, then a section for each object and for each list of objects.
fn render(value: &Value) -> String {
    let mut text = String::new();
    let mut sections = String::new();
    section(&mut text, &mut sections, "", value);
    text.push_str(&sections);
    text
}

fn section(lines: &mut String, sections: &mut String, name: &str, value: &Value) {
    let Value::Object(members) = value else {
        line(lines, name, value);
        return;
    };
    for (key, value) in members {
        match value {
            Value::Object(_) => {
                let (mut inner, mut deeper) = (String::new(), String::new());
                section(&mut inner, &mut deeper, key, value);
                if !inner.is_empty() {
                    let _ = write!(sections, "\n{}\n{inner}", words(name, key));
                }
                sections.push_str(&deeper);
            }
            Value::Array(rows) if rows.iter().all(Value::is_object) => {
                table(sections, &words(name, key), rows);
            }
            _ => line(lines, key, value),
        }
    }
}

fn words(name: &str, key: &str) -> String {
    let words = if name.is_empty() { key.to_owned() } else { format!("{name} {key}") };
    words.replace('_', " ")
}

fn line(text: &mut String, key: &str, value: &Value) {
    let _ = writeln!(text, "{:<26} {:>16}", key.replace('_', " "), scalar(value));
}

/// One line for each object, one column for each member of the first.
fn table(text: &mut String, title: &str, rows: &[Value]) {
    let Some(Value::Object(first)) = rows.first() else { return };
    let keys: Vec<&String> = first.keys().collect();
    let mut cells = vec![keys.iter().map(|key| key.replace('_', " ")).collect::<Vec<_>>()];
    for row in rows {
        cells.push(
            keys.iter().map(|key| row.get(key.as_str()).map_or_else(String::new, scalar)).collect(),
        );
    }
    let widths: Vec<usize> = (0..keys.len())
        .map(|column| cells.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let _ = write!(text, "\n{title}\n");
    for row in &cells {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let _ = writeln!(text, "{}", padded.join("  "));
    }
}

/// Numbers with a blank between thousands.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            let text = number.to_string();
            if !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return text;
            }
            let mut grouped = String::new();
            for (i, digit) in text.chars().enumerate() {
                if i > 0 && (text.len() - i) % 3 == 0 {
                    grouped.push(' ');
                }
                grouped.push(digit);
            }
            grouped
        }
        other => other.to_string(),
    }
}
