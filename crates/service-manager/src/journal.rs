//! The journal, record by record with fields to search for.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;

const SOCKET: &str = "/run/systemd/journal/socket";

/// How urgent a record is, as in `syslog(3)`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Priority {
    /// An operator has to do something.
    Error,
    Warning,
    Info,
}

impl Priority {
    fn number(self) -> &'static str {
        match self {
            Self::Error => "3",
            Self::Warning => "4",
            Self::Info => "6",
        }
    }
}

/// A connection to the journal.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    /// Of this program, in the place of its name.
    identifier: &'static str,
}

impl Journal {
    /// If the journal reads our standard error. Otherwise the log goes there as plain lines, to whoever does.
    #[must_use]
    pub fn of_standard_error(identifier: &'static str) -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let own = std::fs::metadata("/proc/self/fd/2").ok()?;
        if !is_stream(&stream, own.dev(), own.ino()) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        // A journal that hangs or restarts must not stop this daemon.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, identifier })
    }

    /// Sends a record. A field's name has capitals, digits and underscores only.
    ///
    /// # Errors
    /// It is not taken now: the journal is restarted, or far behind.
    pub fn send<'a>(
        &self,
        priority: Priority,
        message: &'a str,
        fields: impl IntoIterator<Item = (&'a str, String)>,
    ) -> io::Result<()> {
        self.socket.send(&record(self.identifier, priority, message, fields)).map(drop)
    }
}

fn is_stream(text: &str, device: u64, inode: u64) -> bool {
    text.split_once(':')
        .is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

/// A line for each field; a value of several lines is preceded by its length.
fn record<'a>(
    identifier: &str,
    priority: Priority,
    message: &'a str,
    fields: impl IntoIterator<Item = (&'a str, String)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let first = [
        ("MESSAGE", message.to_owned()),
        ("PRIORITY", priority.number().to_owned()),
        ("SYSLOG_IDENTIFIER", identifier.to_owned()),
    ];
    for (name, value) in first.into_iter().chain(fields) {
        out.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            out.push(b'\n');
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            out.push(b'=');
        }
        out.extend_from_slice(value.as_bytes());
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_fields_and_no_value_makes_another_one() {
        let fields = [("VM", "web".to_owned()), ("DOMID", "7".to_owned())];
        let bytes = record("xylemd", Priority::Warning, "web: destroy failed", fields.clone());
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            "MESSAGE=web: destroy failed\nPRIORITY=4\nSYSLOG_IDENTIFIER=xylemd\nVM=web\nDOMID=7\n"
        );
        let bytes = record("xylemd", Priority::Error, "a\nVM=forged", []);
        assert!(bytes.starts_with(b"MESSAGE\n\x0b\0\0\0\0\0\0\0a\nVM=forged\nPRIORITY=3\n"));
    }

    #[test]
    fn the_journal_reads_our_errors_only_if_it_is_the_same_stream() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["8:1235", "9:1234", "8", "", ":", "8:1234:"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }
}
