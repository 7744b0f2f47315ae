//! The audit log: a file, to which each line is added at once, and the standard error, which the journal keeps.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use gate::{Chain, Record};

use crate::shared::{lock, unix_ms};

/// Longer than any line: what clients say is cut.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// Of what a client or the daemon said.
const TEXT_BYTES_MAX: usize = 512;

#[derive(Debug, Default)]
struct Log {
    chain: Chain,
    file: Option<File>,
}

#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<Log>);

impl Audit {
    /// Goes on with the file at this path.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o640);
        let mut file =
            options.open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(bytes.saturating_sub(LINE_BYTES_MAX)))?;
        let mut end = String::new();
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        end.push_str(&String::from_utf8_lossy(&tail));
        if !end.is_empty() && !end.ends_with('\n') {
            // A line that was cut short by a crash. The next one is not to be a part of it.
            file.write_all(b"\n")?;
        }
        let chain = end.lines().last().map(Chain::after).unwrap_or_default();
        Ok(Self(Mutex::new(Log { chain, file: Some(file) })))
    }

    /// What somebody asked for, and what came of it.
    pub(crate) fn note(&self, who: &str, from: &str, what: &str, of: &str, result: &str) {
        let record = Record {
            number: 0,
            unix_ms: unix_ms(),
            who: who.to_owned(),
            from: from.to_owned(),
            what: cut(what),
            of: cut(of),
            result: cut(result),
            before: String::new(),
        };
        let mut log = lock(&self.0);
        let line = log.chain.line(record);
        if let Some(file) = &mut log.file
            && let Err(error) = file.write_all(line.as_bytes())
        {
            eprintln!("<3>the audit log cannot be written: {error}");
        }
        drop(log);
        let of = if of.is_empty() { String::new() } else { format!(" {}", cut(of)) };
        // Control characters of clients could look like other lines.
        let text = format!("{who} from {from}: {}{of}: {}", cut(what), cut(result));
        let text: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        eprintln!("<5>{text}");
    }
}

fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_on_over_restarts_and_lines_that_were_cut() {
        let path = std::env::temp_dir().join(format!("xylem-audit-{}", std::process::id()));
        let _left_over = std::fs::remove_file(&path);
        for what in ["start", "pause"] {
            let audit = Audit::open(&path).unwrap();
            audit.note("ann", "127.0.0.1", what, &"w".repeat(2000), "ok");
            audit.note("ann", "127.0.0.1", what, "", "no VM named \u{fc}\n");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(gate::check_chain(&text, None), Ok(4));
        std::fs::write(&path, format!("{text}{{\"number\":")).unwrap();
        Audit::open(&path).unwrap().note("ann", "::1", "stop", "", "ok");
        let text = std::fs::read_to_string(&path).unwrap();
        gate::check_chain(&text, None).unwrap_err();
        assert_eq!(gate::check_chain(text.lines().last().unwrap(), None), Ok(1));
        std::fs::remove_file(path).unwrap();
    }
}
