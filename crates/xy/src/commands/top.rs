//! `top`: use of the host, repeatedly, in xentop's columns.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use api::{DomainRow, HostRequest, Request};

use super::expect_reply;
use crate::columns::top::{Key, Line, table};
use crate::options::Options;
use crate::session::{Failure, Session};

/// Clears the terminal and moves the cursor home.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Options of the command line.
struct Wanted {
    is_batch: bool,
    rounds: Option<u64>,
    delay: Duration,
    key: Key,
    filter: String,
    limit: usize,
    is_full_name: bool,
}

impl Wanted {
    fn of(options: &Options) -> Result<Self, Failure> {
        let number = |name: &str, least: u64| -> Result<Option<u64>, Failure> {
            let Some(text) = options.value(name) else { return Ok(None) };
            let number = text.parse().ok().filter(|number| *number >= least);
            let wrong = || Failure::usage(format!("top: --{name} {text}: not a valid number"));
            number.map(Some).ok_or_else(wrong)
        };
        let delay = match options.value("delay").unwrap_or("3").parse() {
            Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Duration::from_secs_f64(seconds),
            _ => return Err(Failure::usage("top: --delay takes seconds, up to a day")),
        };
        let key = match options.value("sort") {
            None => Key::Cpu,
            Some(word) => Key::find(word).ok_or_else(|| {
                Failure::usage(format!("top: cannot sort by {word:?}; by {}", Key::words()))
            })?,
        };
        let limit = number("limit", 1)?.and_then(|limit| usize::try_from(limit).ok());
        Ok(Self {
            is_batch: options.has("batch"),
            rounds: number("iterations", 1)?,
            delay,
            key,
            filter: options.value("filter").unwrap_or_default().to_owned(),
            limit: limit.unwrap_or(usize::MAX),
            is_full_name: options.has("full-name"),
        })
    }
}

pub(crate) fn top(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let wanted = Wanted::of(options)?;
    let memory_kib = host_memory_kib(session)?;
    let is_screen = !wanted.is_batch && std::io::stdout().is_terminal();
    let mut before: Option<(Instant, BTreeMap<u16, u64>)> = None;
    let mut round = 0;
    loop {
        let rows = expect_reply!(session.call(&Request::List { targets: Vec::new() })?, Domains);
        let now = Instant::now();
        let elapsed = before.as_ref().map(|(then, _)| now.duration_since(*then));
        let times: BTreeMap<u16, u64> =
            rows.iter().map(|row| (row.domid, row.cpu_time_ns)).collect();
        let percent = |row: &DomainRow| {
            let (_, old) = before.as_ref()?;
            let used = row.cpu_time_ns.checked_sub(*old.get(&row.domid)?)?;
            let seconds = Duration::from_nanos(used).as_secs_f64();
            Some(100.0 * seconds / elapsed?.as_secs_f64().max(1e-9))
        };
        let asked = session.call(&Request::Host(HostRequest::Traffic))?;
        let traffic = expect_reply!(asked, Traffic);
        let total = rows.len();
        let mut lines: Vec<Line> = rows
            .iter()
            .filter(|row| row.name.as_deref().unwrap_or_default().contains(&wanted.filter))
            .map(|row| Line::new(row, percent(row).unwrap_or(0.0), memory_kib, &traffic))
            .collect();
        wanted.key.sort(&mut lines);
        lines.truncate(wanted.limit);
        if is_screen {
            session.print(&format!("{CLEAR}{total} domains, sorted by {}\n", wanted.key.word()));
        }
        session.print(&table(&lines, wanted.is_full_name));
        round += 1;
        // Stop when the reader has closed our output.
        if session.try_flush().is_err() || wanted.rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(());
        }
        before = Some((now, times));
        std::thread::sleep(wanted.delay);
    }
}

fn host_memory_kib(session: &mut Session) -> Result<u64, Failure> {
    let info = expect_reply!(session.call(&Request::Info)?, Info);
    let mib = info.0.iter().find(|(key, _)| key == "total_memory");
    Ok(mib.and_then(|(_, value)| value.parse::<u64>().ok()).unwrap_or_default() * 1024)
}
