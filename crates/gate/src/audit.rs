//! The audit log: what remote clients asked to be changed, and what came of it. Each line carries the hash of the one before it,
//! so that a line that was changed or removed later is found, unless all lines after it were made anew.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// One line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Record {
    /// Counted from 1.
    pub number: u64,
    /// When it ended, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The client's name; empty if it had none.
    pub who: String,
    /// Its address.
    pub from: String,
    /// What was asked for, such as `pause`.
    pub what: String,
    /// Whose, where that can be told: a VM.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// `ok`, or why it failed.
    pub result: String,
    /// SHA-256 of the line before, without its end; zeros before the first.
    pub before: String,
}

/// Why a log is not whole.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuditError {
    #[error("line {line} cannot be read: {problem}")]
    Unreadable { line: usize, problem: String },
    #[error(
        "line {line} does not follow the one before it: one of them was changed, or lines between them were removed"
    )]
    Broken { line: usize },
}

/// The end of a log, where lines are added.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chain {
    number: u64,
    before: String,
}

impl Default for Chain {
    fn default() -> Self {
        Self { number: 0, before: "0".repeat(64) }
    }
}

impl Chain {
    /// Goes on after this line. One that cannot be read begins a chain anew, which a check tells.
    #[must_use]
    pub fn after(last_line: &str) -> Self {
        match serde_json::from_str::<Record>(last_line) {
            Ok(record) => Self { number: record.number, before: hash(last_line) },
            Err(_) => Self::default(),
        }
    }

    /// The next line, with its end. Its number and the hash in it are the chain's.
    pub fn line(&mut self, record: Record) -> String {
        let number = self.number + 1;
        let record = Record { number, before: self.before.clone(), ..record };
        let mut line = serde_json::to_string(&record).expect("a record has string keys only");
        *self = Self { number, before: hash(&line) };
        line.push('\n');
        line
    }
}

fn hash(line: &str) -> String {
    base16ct::lower::encode_string(&Sha256::digest(line.as_bytes()))
}

/// Checks the lines of a log, and that they follow on a line before them, if it is given. Returns how many there are.
///
/// # Errors
/// The first line at fault.
pub fn check_chain(text: &str, last_before: Option<&str>) -> Result<u64, AuditError> {
    let mut chain = last_before.map(Chain::after);
    let mut count = 0;
    for (at, line) in text.lines().enumerate() {
        let unreadable = |problem: String| AuditError::Unreadable { line: at + 1, problem };
        let record: Record =
            serde_json::from_str(line).map_err(|error| unreadable(error.to_string()))?;
        let follows = chain
            .as_ref()
            .is_none_or(|chain| record.number == chain.number + 1 && record.before == chain.before);
        // The first line of a whole log follows on none.
        let begins =
            chain.is_some() || record.number > 1 || record.before == Chain::default().before;
        if !follows || !begins {
            return Err(AuditError::Broken { line: at + 1 });
        }
        chain = Some(Chain { number: record.number, before: hash(line) });
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<String> {
        let mut chain = Chain::default();
        let line = |what: &str, chain: &mut Chain| {
            chain.line(Record {
                number: 0,
                unix_ms: 5,
                who: "ann".to_owned(),
                from: "127.0.0.1".to_owned(),
                what: what.to_owned(),
                of: "web\n1".to_owned(),
                result: "ok".to_owned(),
                before: String::new(),
            })
        };
        let mut lines = vec![line("start", &mut chain), line("pause", &mut chain)];
        // Another process goes on.
        let mut chain = Chain::after(lines[1].trim_end());
        lines.push(line("destroy", &mut chain));
        lines
    }

    #[test]
    fn a_line_that_was_changed_or_removed_is_found() {
        let lines = log();
        assert_eq!(check_chain(&lines.concat(), None), Ok(3));
        assert_eq!(check_chain("", None), Ok(0));
        let broken = |line| Err(AuditError::Broken { line });
        assert_eq!(check_chain(&[&*lines[0], &lines[2]].concat(), None), broken(2));
        let changed = lines.concat().replacen("start", "list", 1);
        assert_eq!(check_chain(&changed, None), broken(2));
        let first = lines[0].replacen("\"number\":1", "\"number\":2", 1);
        assert_eq!(check_chain(&format!("{first}{}", lines[1]), None), broken(2));
        // A part of a log is whole in itself, or follows on the part before.
        assert_eq!(check_chain(&lines[1..].concat(), None), Ok(2));
        assert_eq!(check_chain(&lines[1..].concat(), Some(lines[0].trim_end())), Ok(2));
        assert_eq!(check_chain(&lines[2], Some(lines[0].trim_end())), broken(1));
        let cut = &lines.concat()[..lines[0].len() + 10];
        assert!(matches!(check_chain(cut, None), Err(AuditError::Unreadable { line: 2, .. })));
    }
}
