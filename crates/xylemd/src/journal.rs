//! The daemon's log: to the journal if it reads our standard error, otherwise to standard error
//! with timestamps. Never to both.

use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use service_manager::{Journal, Priority};
use toolstack::{Level, LogRecord};

/// Writes a record.
pub(crate) fn write(record: &LogRecord) {
    static JOURNAL: OnceLock<Option<Journal>> = OnceLock::new();
    let journal = JOURNAL.get_or_init(|| Journal::of_standard_error("xylemd")).as_ref();
    let sent = journal.map(|it| it.send(priority(record.level), &record.message, fields(record)));
    if !matches!(sent, Some(Ok(()))) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = format!("{} xylemd: {}\n", timestamp(now.as_secs()), one_line(&record.message));
        // One write, so that lines of several threads do not mix.
        let _closed = std::io::stderr().write_all(line.as_bytes());
    }
}

fn priority(level: Level) -> Priority {
    match level {
        Level::Info => Priority::Info,
        Level::Warning => Priority::Warning,
        Level::Error => Priority::Error,
    }
}

/// What a reader of the journal may search for.
fn fields(record: &LogRecord) -> Vec<(&'static str, String)> {
    let LogRecord { level: _, message: _, vm, uuid, domid, operation, asker, took_ns } = record;
    let fields = [
        ("VM", vm.clone()),
        ("VM_UUID", uuid.map(|it| it.to_string())),
        ("DOMID", domid.map(|it| it.to_string())),
        ("OPERATION", operation.clone()),
        ("ASKED_BY_UID", asker.map(|it| it.uid.to_string())),
        ("ASKED_BY_PID", asker.map(|it| it.pid.to_string())),
        ("DURATION_USEC", took_ns.map(|ns| (ns / 1000).to_string())),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A VM's name can contain anything, but a log record is one line.
fn one_line(message: &str) -> String {
    message
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// Seconds since 1970 in RFC 3339 format, in UTC.
fn timestamp(unix_s: u64) -> String {
    let (days, clock) = (unix_s / 86_400, unix_s % 86_400);
    // Days since 0000-03-01, in eras of 400 years; a year that begins in March has its leap day at its end.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        clock / 3600,
        clock / 60 % 60,
        clock % 60
    )
}

#[cfg(test)]
mod tests {
    use toolstack::Asker;
    use xen::DomId;

    use super::*;

    #[test]
    fn a_record_has_fields_to_search_for() {
        let record = LogRecord {
            level: Level::Warning,
            message: "web: destroy failed".to_owned(),
            vm: Some("web".to_owned()),
            uuid: None,
            domid: Some(DomId(7)),
            operation: Some("destroy".to_owned()),
            asker: Some(Asker { uid: 0, pid: 12 }),
            took_ns: Some(5_000_000),
        };
        let expected = [
            ("VM", "web"),
            ("DOMID", "7"),
            ("OPERATION", "destroy"),
            ("ASKED_BY_UID", "0"),
            ("ASKED_BY_PID", "12"),
            ("DURATION_USEC", "5000"),
        ];
        assert_eq!(fields(&record), expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(one_line("a\nVM=forged"), "a\\nVM=forged");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), expected);
        }
    }
}
