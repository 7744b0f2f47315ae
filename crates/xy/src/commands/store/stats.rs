//! `xy store stats`: the daemon's counters as a table.
//!
//! The daemon returns a JSON object: in full at its status socket, a short form by `CONTROL stats`.
//! All its members are shown: numbers as lines, objects as sections, lists as tables, so that a
//! newer daemon's counters need no newer `xy`.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use api::{Request, StoreRequest};
use serde_json::Value;

use super::connect;
use crate::commands::expect_reply;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(super) fn stats(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if session.remote.is_some() {
        return far_stats(session, options);
    }
    if options.has("metrics") {
        let Some(metrics) = ask_status("metrics") else {
            return Err(Failure::failed("the store has no status socket that tells metrics"));
        };
        session.print(&metrics);
        return Ok(());
    }
    let value = match ask_status("json") {
        Some(text) => parse(&text)?,
        None => short_form()?,
    };
    show(session, options, &value);
    Ok(())
}

fn far_stats(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("metrics") {
        let metrics = session.call(&Request::Store(StoreRequest::Metrics))?;
        session.print(&expect_reply!(metrics, Text));
        return Ok(());
    }
    let stats = session.call(&Request::Store(StoreRequest::Stats))?;
    show(session, options, &expect_reply!(stats, StoreStats));
    Ok(())
}

fn show(session: &mut Session, options: &Options, value: &Value) {
    if options.has("json") {
        session.print_json(value);
    } else {
        session.print(&render(value));
    }
}

fn unknown() -> Failure {
    Failure::failed("this store tells no statistics: it is not xylem-xenstored")
}

fn parse(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|_| unknown())
}

/// The answer of the status socket next to the store's to `word`, if there is one.
fn ask_status(word: &str) -> Option<String> {
    let path = xenstore_socket::default_path().with_file_name("status");
    let mut stream = UnixStream::connect(path).ok()?;
    stream.write_all(format!("{word}\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}

fn short_form() -> Result<Value, Failure> {
    match connect()?.control(&["stats"]) {
        Err(error) if error.refusal().is_some() => Err(unknown()),
        // oxenstored answers OK to unknown requests.
        reply => parse(&reply?),
    }
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
    let histograms: Vec<(&String, Histogram)> =
        members.iter().filter_map(|(key, value)| Some((key, Histogram::read(value)?))).collect();
    if !histograms.is_empty() {
        histogram_table(sections, name, &histograms);
    }
    for (key, value) in by_size(members) {
        match value {
            Value::Object(_) if Histogram::read(value).is_some() => {}
            Value::Object(sample) if sample.contains_key("sampled_each") => {
                let (each, types) = (&sample["sampled_each"], sample.get("types"));
                let name = format!("{} (one of {each} is measured)", words(name, key));
                section(&mut String::new(), sections, &name, types.unwrap_or(&Value::Null));
            }
            Value::Object(_) => {
                let (mut inner, mut deeper) = (String::new(), String::new());
                section(&mut inner, &mut deeper, &words(name, key), value);
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

/// The members, the largest first if all are numbers of the same kind: requests by type.
fn by_size(members: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut sorted: Vec<_> = members.iter().collect();
    if members.keys().any(|key| key == "read") {
        sorted.sort_by_key(|(_, value)| std::cmp::Reverse(value.as_u64()));
    }
    sorted
}

/// A latency histogram.
struct Histogram {
    count: u64,
    sum: u64,
    /// Upper bounds in nanoseconds, with counts.
    up_to: Vec<(u64, u64)>,
}

impl Histogram {
    fn read(value: &Value) -> Option<Self> {
        let number = |key: &str| value.get(key)?.as_u64();
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        let up_to = value.get("up_to")?.as_array()?.iter().map(pair).collect::<Option<_>>()?;
        Some(Self { count: number("count")?, sum: number("sum")?, up_to })
    }

    /// The bound of a per-mille quantile; the last bound if it is beyond all.
    fn quantile(&self, of_thousand: u64) -> String {
        let wanted = self.count.saturating_mul(of_thousand).div_ceil(1000);
        match self.up_to.iter().find(|(_, within)| *within >= wanted) {
            Some((bound, _)) => format!("< {}", micros(*bound)),
            None => format!("> {}", micros(self.up_to.last().map_or(0, |(bound, _)| *bound))),
        }
    }
}

fn micros(nanoseconds: u64) -> String {
    format!("{}.{}", nanoseconds / 1000, nanoseconds % 1000 / 100)
}

fn histogram_table(text: &mut String, title: &str, histograms: &[(&String, Histogram)]) {
    let title = title.replace("nanoseconds", "times in microseconds");
    let _ = write!(
        text,
        "\n{title}\n{:<26} {:>16} {:>10} {:>10} {:>10}\n",
        "", "count", "mean", "50 %", "99 %"
    );
    for (name, histogram) in histograms {
        let mean = micros(histogram.sum.checked_div(histogram.count).unwrap_or(0));
        let _ = writeln!(
            text,
            "{:<26} {:>16} {mean:>10} {:>10} {:>10}",
            name.replace('_', " "),
            grouped(&histogram.count.to_string()),
            histogram.quantile(500),
            histogram.quantile(990),
        );
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
    // The name comes first.
    let mut keys: Vec<&String> = first.keys().collect();
    keys.sort_by_key(|key| !matches!(key.as_str(), "domid" | "connection"));
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

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => grouped(&number.to_string()),
        other => other.to_string(),
    }
}

/// An integer with spaces between thousands.
fn grouped(text: &str) -> String {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let mut grouped = String::new();
    for (i, digit) in text.chars().enumerate() {
        if i > 0 && (text.len() - i).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn whatever_the_daemon_tells_has_its_place() {
        let value = serde_json::json!({
            "nodes": 1_234_567,
            "requests": { "read": 5, "write": 1000, "set_perms": 7 },
            "journal": { "state": "kept", "bytes": 4096 },
            "by_domain": [
                { "domid": 1, "nodes": 30, "bytes": 12_000 },
                { "domid": 12, "nodes": 4, "bytes": 90 },
            ],
            "request_nanoseconds": {
                "sampled_each": 64,
                "types": {
                    "read": { "count": 200, "sum": 90_000, "up_to": [[500, 150], [1000, 199]] },
                },
            },
        });
        expect![[r#"
            nodes                             1 234 567

            by domain
            domid   bytes  nodes
                1  12 000     30
               12      90      4

            journal
            bytes                                 4 096
            state                                  kept

            request times in microseconds (one of 64 is measured)
                                                  count       mean       50 %       99 %
            read                                    200        0.4      < 0.5      < 1.0

            requests
            write                                 1 000
            set perms                                 7
            read                                      5
        "#]]
        .assert_eq(&render(&value));
    }
}
