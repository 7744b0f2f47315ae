//! QMP, the protocol of QEMU's monitor: the commands that a save and a restore need, and what QEMU answers.
//!
//! Source: QEMU 7.2's `docs/interop/qmp-spec.txt` and `qapi/migration.json`. A device model reads its guest's bytes, so
//! nothing that it says is believed: lines are bounded, and what is not expected is an error.

use serde_json::{Value, json};
use storage::HostError;

use crate::channel::Received;
use crate::device_model::drive_name;
use crate::plan::Unplug;

/// Longest line of a device model. Its greeting and answers are a few hundred bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest text for people: `info qtree` and `info mtree` have some tens of KiB.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Longest state of a device model: its disks' contents and its guest's memory are not in it. A real one is 50 to 300 KiB.
pub const STATE_BYTES_MAX: usize = 16 << 20;
/// Name under which a file is handed over for one command.
const FILE: &str = "xylem";

/// What goes with a command.
#[derive(Clone, Copy, Debug)]
pub enum Passed<'a> {
    Nothing,
    /// A new file that the device model may write. See [`ModelSocket::written`].
    ToWrite,
    /// A file with these bytes.
    ToRead(&'a [u8]),
    /// The host's block device of this path, which it may read.
    Disk(&'a str),
}

/// A connection to a device model's monitor.
pub trait ModelSocket {
    /// Sends all of it, waiting for at most this long.
    ///
    /// # Errors
    /// The device model is gone, or takes nothing.
    fn send(&mut self, bytes: &[u8], passed: Passed<'_>, timeout_ns: u64) -> Result<(), HostError>;

    /// Receives some bytes, waiting for at most this long.
    ///
    /// # Errors
    /// The connection has broken.
    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, HostError>;

    /// What it has written to the file that it was given.
    ///
    /// # Errors
    /// It was given none, or it is longer than [`STATE_BYTES_MAX`].
    fn written(&mut self) -> Result<Vec<u8>, HostError>;
}

/// Whether a guest goes on elsewhere or here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GoesOn {
    /// In this device model too: it keeps its disks.
    Here,
    /// Only in another one: this one lets go of its disks.
    Elsewhere,
}

/// Whether it tells Xen what it writes to the guest's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogWrites {
    On,
    Off,
}

/// A command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Command {
    /// Ends the negotiation of capabilities; none are asked for.
    Capabilities,
    Stop,
    Continue,
    /// Takes the file that comes with it into a set of its own.
    AddFile,
    CloseFile(u64),
    /// Writes its state to a file of such a set.
    SaveState(u64),
    /// Takes the file that comes with it under [`FILE`].
    GetFile,
    /// Loads its state from that.
    LoadState,
    /// Answers with its state: `inmigrate` until it has loaded one, then `running`.
    Status,
    LogWrites(LogWrites),
    /// Ends its guest's ACPI sleep.
    WakeUp,
    /// Answers with all CPUs that it has or could have.
    Cpus,
    /// Answers with all character devices.
    Terminals,
    /// Answers with all devices on PCI buses.
    Buses,
    /// Takes the CD from a drive, by force even if the guest has locked it.
    Eject {
        drive: u32,
        how: Unplug,
    },
    /// Puts the disk of a set of files into a drive.
    Insert {
        drive: u32,
        set: u64,
    },
}

/// A command of QEMU's monitor for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Spoken(pub(crate) String);

impl Spoken {
    pub(crate) const COMMAND: &'static str = "human-monitor-command";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let arguments = json!({ "command-line": self.0 });
        let command = json!({ "execute": Self::COMMAND, "arguments": arguments });
        format!("{command}\n").into_bytes()
    }

    /// The text of an answer, in lines. Its guest has influence on it, so nothing in it can command a terminal.
    pub(crate) fn text(answer: &Value) -> Option<String> {
        let shown = |it: char| if it.is_control() && !"\n\t".contains(it) { '?' } else { it };
        Some(answer.as_str()?.replace("\r\n", "\n").chars().map(shown).collect())
    }
}

/// How QEMU says that the guest has locked a drive, which the guest has been told about.
pub(crate) const LOCKED: &str = "is locked";

impl Command {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "qmp_capabilities",
            Self::Stop => "stop",
            Self::Continue => "cont",
            Self::AddFile => "add-fd",
            Self::CloseFile(_) => "remove-fd",
            Self::SaveState(_) => "xen-save-devices-state",
            Self::GetFile => "getfd",
            Self::LoadState => "migrate-incoming",
            Self::Status => "query-status",
            Self::LogWrites(_) => "xen-set-global-dirty-log",
            Self::WakeUp => "system_wakeup",
            Self::Cpus => "query-hotpluggable-cpus",
            Self::Terminals => "query-chardev",
            Self::Buses => "query-pci",
            Self::Eject { .. } => "eject",
            Self::Insert { .. } => "blockdev-change-medium",
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let arguments = match self {
            Self::Capabilities
            | Self::Stop
            | Self::Continue
            | Self::AddFile
            | Self::Status
            | Self::WakeUp
            | Self::Cpus
            | Self::Terminals
            | Self::Buses => Value::Null,
            Self::CloseFile(set) => json!({ "fdset-id": set }),
            // Not "live", for which QEMU gives its disks up at once and refuses if something else has one open.
            Self::SaveState(set) => {
                json!({ "filename": format!("/dev/fdset/{set}"), "live": false })
            }
            Self::GetFile => json!({ "fdname": FILE }),
            Self::LoadState => json!({ "uri": format!("fd:{FILE}") }),
            Self::LogWrites(wanted) => json!({ "enable": wanted == LogWrites::On }),
            Self::Eject { drive, how } => {
                json!({ "id": drive_name(drive), "force": how == Unplug::Forced })
            }
            // Named as a block device: from its empty root QEMU sees nothing of what it is.
            Self::Insert { drive, set } => json!({
                "id": drive_name(drive),
                "filename": format!("host_device:/dev/fdset/{set}"),
                "format": "raw",
                "read-only-mode": "read-only",
            }),
        };
        let mut command = json!({ "execute": self.name() });
        if !arguments.is_null() {
            command["arguments"] = arguments;
        }
        format!("{command}\n").into_bytes()
    }
}

/// A CPU that a device model could have and has not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct MissingCpu {
    number: u64,
    driver: String,
}

impl MissingCpu {
    pub(crate) const COMMAND: &'static str = "device_add";

    /// Those below `count`, by the answer to [`Command::Cpus`]. `None` if it is none, or there are not so many.
    pub(crate) fn below(count: u32, answer: &Value) -> Option<Vec<Self>> {
        let all = answer.as_array()?;
        let mut missing = Vec::new();
        for number in 0..u64::from(count) {
            let of = |it: &&Value| it["props"]["socket-id"].as_u64() == Some(number);
            let found = all.iter().find(of)?;
            // Where it is, if it is there.
            if found.get("qom-path").is_none() {
                missing.push(Self { number, driver: found["type"].as_str()?.to_owned() });
            }
        }
        Some(missing)
    }

    /// The command that adds it. Its VM has sockets of one core and one thread.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { number, driver } = self;
        let arguments = json!({
            "id": format!("cpu-{number}"),
            "driver": driver,
            "socket-id": number,
            "core-id": 0,
            "thread-id": 0,
        });
        let command = json!({ "execute": Self::COMMAND, "arguments": arguments });
        format!("{command}\n").into_bytes()
    }
}

/// Numbers of serial ports that are pseudo-terminals, and their paths, by the answer to [`Command::Terminals`]. What has another
/// form is left out: whoever uses a path trusts it.
pub(crate) fn terminals(answer: &Value) -> Vec<(u32, String)> {
    let one = |device: &Value| {
        let label = device.get("label")?.as_str()?;
        let path = device.get("filename")?.as_str()?.strip_prefix("pty:")?;
        let is_number = |text: &str| {
            (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let port = label.strip_prefix("serial").filter(|it| is_number(it))?;
        let is_terminal = path.strip_prefix("/dev/pts/").is_some_and(is_number);
        Some((port.parse().ok()?, path.to_owned())).filter(|_| is_terminal)
    };
    answer.as_array().into_iter().flatten().filter_map(one).collect()
}

/// The slot and function of the device of this name, by the answer to [`Command::Buses`].
pub(crate) fn pci_place(answer: &Value, name: &str) -> Option<u8> {
    let buses = answer.as_array()?.iter();
    let mut devices = buses.filter_map(|bus| bus["devices"].as_array()).flatten();
    let device = devices.find(|device| device["qdev_id"].as_str() == Some(name))?;
    let number = |key: &str, most: u64| device[key].as_u64().filter(|number| *number <= most);
    let (slot, function) = (number("slot", 31)?, number("function", 7)?);
    u8::try_from(slot << 3 | function).ok()
}

/// What a device model says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// Once, at the beginning.
    Greeting,
    /// A command was carried out.
    Done(Value),
    /// A command failed; why.
    Refused(String),
}

/// What a device model says that is not QMP.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum QmpError {
    #[error("its monitor said a line that is too long")]
    TooLong,
    #[error("its monitor said something that is not QMP")]
    NotQmp,
}

/// Takes lines from bytes as they come.
#[derive(Debug)]
pub struct Lines {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self { bytes: Vec::new(), bytes_max: LINE_BYTES_MAX }
    }
}

impl Lines {
    /// From now on an answer may be long: a text for people.
    pub(crate) fn allow_text(&mut self) {
        self.bytes_max = TEXT_BYTES_MAX;
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next thing that was said. Events, which come at any time, are left out.
    ///
    /// # Errors
    /// It is no QMP. What follows cannot be understood.
    pub(crate) fn next(&mut self) -> Result<Option<Said>, QmpError> {
        loop {
            let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
                return match self.bytes.len() > self.bytes_max {
                    true => Err(QmpError::TooLong),
                    false => Ok(None),
                };
            };
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            if line.len() > self.bytes_max {
                return Err(QmpError::TooLong);
            }
            let said: Value = serde_json::from_slice(&line).map_err(|_| QmpError::NotQmp)?;
            if let Some(said) = parse(said)? {
                return Ok(Some(said));
            }
        }
    }
}

/// `None` for an event.
fn parse(mut said: Value) -> Result<Option<Said>, QmpError> {
    let object = said.as_object_mut().ok_or(QmpError::NotQmp)?;
    if object.contains_key("QMP") {
        return Ok(Some(Said::Greeting));
    }
    if let Some(result) = object.remove("return") {
        return Ok(Some(Said::Done(result)));
    }
    if let Some(error) = object.get("error") {
        let text = error.get("desc").and_then(Value::as_str).ok_or(QmpError::NotQmp)?;
        // A guest may have influence on it.
        let text: String = text.chars().take(200).collect();
        return Ok(Some(Said::Refused(text.escape_debug().to_string())));
    }
    if object.contains_key("event") { Ok(None) } else { Err(QmpError::NotQmp) }
}

/// Reads arbitrary bytes in pieces, for the fuzzer.
pub fn read_all(pieces: &[&[u8]]) {
    let mut lines = Lines::default();
    for piece in pieces {
        lines.feed(piece);
        while let Ok(Some(said)) = lines.next() {
            if let Said::Refused(text) = said {
                assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_what_qemu_takes() {
        let all = [
            Command::Capabilities,
            Command::Stop,
            Command::AddFile,
            Command::SaveState(3),
            Command::CloseFile(3),
            Command::Continue,
            Command::GetFile,
            Command::LoadState,
            Command::Status,
            Command::LogWrites(LogWrites::On),
            Command::WakeUp,
            Command::Cpus,
            Command::Terminals,
            Command::Eject { drive: 5632, how: Unplug::Clean },
            Command::Eject { drive: 5632, how: Unplug::Forced },
            Command::Insert { drive: 5632, set: 3 },
        ];
        let text: String = all.iter().map(|it| String::from_utf8(it.encode()).unwrap()).collect();
        expect_test::expect![[r#"
            {"execute":"qmp_capabilities"}
            {"execute":"stop"}
            {"execute":"add-fd"}
            {"arguments":{"filename":"/dev/fdset/3","live":false},"execute":"xen-save-devices-state"}
            {"arguments":{"fdset-id":3},"execute":"remove-fd"}
            {"execute":"cont"}
            {"arguments":{"fdname":"xylem"},"execute":"getfd"}
            {"arguments":{"uri":"fd:xylem"},"execute":"migrate-incoming"}
            {"execute":"query-status"}
            {"arguments":{"enable":true},"execute":"xen-set-global-dirty-log"}
            {"execute":"system_wakeup"}
            {"execute":"query-hotpluggable-cpus"}
            {"execute":"query-chardev"}
            {"arguments":{"force":false,"id":"ide-5632"},"execute":"eject"}
            {"arguments":{"force":true,"id":"ide-5632"},"execute":"eject"}
            {"arguments":{"filename":"host_device:/dev/fdset/3","format":"raw","id":"ide-5632","read-only-mode":"read-only"},"execute":"blockdev-change-medium"}
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn cpus_that_are_missing_are_added_by_the_driver_that_qemu_names() {
        let cpu = |number: u32, path: &str| json!({ "props": { "socket-id": number }, "type": "x86", path: "/machine" });
        let answer = json!([cpu(2, "other"), cpu(1, "other"), cpu(0, "qom-path")]);
        let missing = MissingCpu::below(2, &answer).unwrap();
        let text: String =
            missing.iter().map(|it| String::from_utf8(it.encode()).unwrap()).collect();
        let expected = r#"{"arguments":{"core-id":0,"driver":"x86","id":"cpu-1","socket-id":1,"thread-id":0},"execute":"device_add"}"#;
        assert_eq!(text.trim_end(), expected);
        assert_eq!(MissingCpu::below(1, &answer), Some(Vec::new()));
        assert_eq!(MissingCpu::below(4, &answer), None);
        assert_eq!(MissingCpu::below(1, &json!({})), None);
    }

    #[test]
    fn only_serial_ports_that_are_terminals_are_noted() {
        let device = |label: &str, filename: &str| json!({ "label": label, "filename": filename, "frontend-open": true });
        let answer = json!([
            device("serial1", "pty:/dev/pts/12"),
            device("serial0", "file"),
            device("serial2", "pty:/dev/pts/../tty1"),
            device("serial", "pty:/dev/pts/1"),
            device("serial3/../x", "pty:/dev/pts/1"),
            device("libxl-cmd", "unix:/run/xen/qmp-libxl-3,server=on"),
            { "label": 3 },
        ]);
        assert_eq!(terminals(&answer), [(1, "/dev/pts/12".to_owned())]);
        assert_eq!(terminals(&json!({})), []);
    }

    #[test]
    fn answers_come_in_pieces_and_events_between_them() {
        let text = "{\"QMP\": {\"version\": {}}}\r\n{\"event\": \"STOP\"}\r\n{\"return\": {\"fdset-id\": 1}}\r\n\
                    {\"error\": {\"class\": \"GenericError\", \"desc\": \"no\\n\"}}\r\n";
        for piece in [1, 7, text.len()] {
            let mut lines = Lines::default();
            let mut said = Vec::new();
            for bytes in text.as_bytes().chunks(piece) {
                lines.feed(bytes);
                while let Some(it) = lines.next().unwrap() {
                    said.push(it);
                }
            }
            let done = Said::Done(json!({ "fdset-id": 1 }));
            assert_eq!(said, [Said::Greeting, done, Said::Refused("no\\n".to_owned())]);
        }
    }

    #[test]
    fn what_people_are_told_is_long_and_cannot_command_their_terminal() {
        let said = format!("{{\"return\": \"{}\\r\\n\\u001b[2J\\tend\"}}\r\n", "x".repeat(100_000));
        let mut lines = Lines::default();
        lines.feed(said.as_bytes());
        assert_eq!(lines.next(), Err(QmpError::TooLong));
        let mut lines = Lines::default();
        lines.allow_text();
        lines.feed(said.as_bytes());
        let Ok(Some(Said::Done(answer))) = lines.next() else { panic!("no answer") };
        let text = Spoken::text(&answer).unwrap();
        assert_eq!(text[100_000..], *"\n?[2J\tend");
        assert_eq!(Spoken::text(&json!({})), None);
        let spoken = String::from_utf8(Spoken("info \"block\"\n".to_owned()).encode()).unwrap();
        assert_eq!(
            spoken.trim_end(),
            r#"{"arguments":{"command-line":"info \"block\"\n"},"execute":"human-monitor-command"}"#
        );
    }

    #[test]
    fn what_is_no_qmp_is_an_error() {
        for (text, expected) in [
            ("hello\n".to_owned(), QmpError::NotQmp),
            ("[]\n".to_owned(), QmpError::NotQmp),
            ("{\"error\": {}}\n".to_owned(), QmpError::NotQmp),
            ("x".repeat(LINE_BYTES_MAX + 1), QmpError::TooLong),
        ] {
            let mut lines = Lines::default();
            lines.feed(text.as_bytes());
            assert_eq!(lines.next(), Err(expected));
        }
    }
}
