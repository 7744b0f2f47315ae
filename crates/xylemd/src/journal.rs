//! The daemon's log: to the journal if it reads our standard error, otherwise to standard error
//! with timestamps. Never to both.
//!
//! Source: systemd's "Native Journal Protocol", and `JOURNAL_STREAM` in `systemd.exec(5)`.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use toolstack::{Level, LogRecord};

const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// Writes a record.
pub(crate) fn write(record: &LogRecord) {
    static JOURNAL: OnceLock<Option<UnixDatagram>> = OnceLock::new();
    // A journal that hangs or restarts must not block this daemon.
    let sent = JOURNAL.get_or_init(connect).as_ref().map(|it| it.send(&datagram(record)));
    if !matches!(sent, Some(Ok(_))) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = format!("{} xylemd: {}\n", timestamp(now.as_secs()), one_line(&record.message));
        // One write, so that lines of several threads do not mix.
        let _closed = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The journal's socket, if the journal reads our standard error.
fn connect() -> Option<UnixDatagram> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let own = std::fs::metadata("/proc/self/fd/2").ok()?;
    if !is_stream(&stream, own.dev(), own.ino()) {
        return None;
    }
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(JOURNAL_SOCKET).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

fn is_stream(text: &str, device: u64, inode: u64) -> bool {
    text.split_once(':')
        .is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

/// A message to the journal: a line for each field; a multi-line value is prefixed with its length.
fn datagram(record: &LogRecord) -> Vec<u8> {
    let LogRecord { level, message, vm, uuid, domid, asker, took_ns } = record;
    let priority = match level {
        Level::Info => "6",
        Level::Warning => "4",
    };
    let mut out = Vec::new();
    let mut field = |name: &str, value: Option<String>| {
        let Some(value) = value else { return };
        out.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            out.push(b'\n');
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            out.push(b'=');
        }
        out.extend_from_slice(value.as_bytes());
        out.push(b'\n');
    };
    field("MESSAGE", Some(message.clone()));
    field("PRIORITY", Some(priority.to_owned()));
    field("SYSLOG_IDENTIFIER", Some("xylemd".to_owned()));
    field("VM", vm.clone());
    field("VM_UUID", uuid.map(|it| it.to_string()));
    field("DOMID", domid.map(|it| it.to_string()));
    field("ASKED_BY_UID", asker.map(|it| it.uid.to_string()));
    field("ASKED_BY_PID", asker.map(|it| it.pid.to_string()));
    field("DURATION_USEC", took_ns.map(|ns| (ns / 1000).to_string()));
    out
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
    fn a_record_is_a_datagram_of_fields() {
        let mut record = LogRecord {
            level: Level::Warning,
            message: "web: destroy failed".to_owned(),
            vm: Some("web".to_owned()),
            uuid: None,
            domid: Some(DomId(7)),
            asker: Some(Asker { uid: 0, pid: 12 }),
            took_ns: Some(5_000_000),
        };
        let text = String::from_utf8(datagram(&record)).unwrap();
        assert_eq!(
            text,
            "MESSAGE=web: destroy failed\nPRIORITY=4\nSYSLOG_IDENTIFIER=xylemd\nVM=web\nDOMID=7\n\
             ASKED_BY_UID=0\nASKED_BY_PID=12\nDURATION_USEC=5000\n"
        );
        record.message = "a\nVM=forged".to_owned();
        let bytes = datagram(&record);
        assert!(bytes.starts_with(b"MESSAGE\n\x0b\0\0\0\0\0\0\0a\nVM=forged\nPRIORITY=4\n"));
        assert_eq!(one_line(&record.message), "a\\nVM=forged");
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

    #[test]
    fn the_journal_reads_our_errors_only_if_it_is_the_same_stream() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["8:1235", "9:1234", "8", "", ":", "8:1234:"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }
}
