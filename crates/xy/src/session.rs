//! What one run of `xy` carries along: global options, the connection, the output so far.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

use api::client::{Client, News, socket_path};
use api::{Progress, Reply, Request};
use rustix::termios::tcgetwinsize;

use crate::progress;

/// Why a command failed: the exit status and what to say, one line each.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// The arguments make no sense.
    Usage(String),
    /// The work failed; several objects may each have a line.
    Failed(Vec<String>),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(vec![message.into()])
    }

    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    pub(crate) fn messages(&self) -> &[String] {
        match self {
            Self::Usage(message) => std::slice::from_ref(message),
            Self::Failed(messages) => messages,
        }
    }
}

/// How progress is shown, on the standard error.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum ProgressDisplay {
    #[default]
    Hidden,
    /// A line for each step (`-v`).
    Lines,
    /// One line, written over and over (`-t`).
    Overwritten,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) progress: ProgressDisplay,
    /// Messages begin with the time since the start (`-T`).
    pub(crate) timestamps: bool,
    pub(crate) dry_run: bool,
    start: Instant,
    client: Option<Client>,
    output: Vec<u8>,
    /// A line of progress stands on the terminal.
    is_drawn: Cell<bool>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            progress: ProgressDisplay::default(),
            timestamps: false,
            dry_run: false,
            start: Instant::now(),
            client: None,
            output: Vec::new(),
            is_drawn: Cell::new(false),
        }
    }
}

impl Session {
    /// Somebody looks on: without other wishes, progress is drawn for them. Says whether any is shown.
    pub(crate) fn draws_progress(&mut self) -> bool {
        if self.progress == ProgressDisplay::Hidden && std::io::stderr().is_terminal() {
            self.progress = ProgressDisplay::Overwritten;
        }
        self.progress != ProgressDisplay::Hidden
    }

    /// Sends `request` and returns its reply; progress is shown as the options say.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Reply, Failure> {
        self.call_with(request, |_, _| ())
    }

    /// As `call`, where `on_event` hears what happens to domains.
    pub(crate) fn call_with(
        &mut self,
        request: &Request,
        mut on_event: impl FnMut(&Self, api::DomainEvent),
    ) -> Result<Reply, Failure> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&socket_path()).map_err(|e| Failure::failed(e.to_string()))?,
        };
        let reply = client.call(request, |news| match news {
            News::Progress(progress) => self.show(&progress),
            News::Event(event) => on_event(self, event),
            News::Warning(line) => self.tell(&one_line(&line)),
        });
        self.wipe();
        self.client = Some(client);
        reply.map_err(|error| Failure::failed(one_line(&error.to_string())))
    }

    /// Prints `text` when the command is done.
    pub(crate) fn print(&mut self, text: &str) {
        self.print_bytes(text.as_bytes());
    }

    /// Prints bytes that need not be text.
    pub(crate) fn print_bytes(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Prints a value as JSON, indented by four as xl does.
    pub(crate) fn print_json(&mut self, value: &impl serde::Serialize) {
        let mut json = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut json, formatter);
        value.serialize(&mut serializer).expect("api types always serialise");
        self.output.extend_from_slice(&json);
        self.output.push(b'\n');
    }

    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Writes what was printed so far, for a command that goes on for long.
    pub(crate) fn flush(&mut self) {
        // A reader that has gone is met again by the next output.
        let _unread = self.try_flush();
    }

    /// As `flush`, for a command that nobody needs once its reader has gone.
    pub(crate) fn try_flush(&mut self) -> std::io::Result<()> {
        let output = self.take_output();
        let mut stdout = std::io::stdout();
        stdout.write_all(&output)?;
        stdout.flush()
    }

    /// Tells the user something at once, on the standard error.
    pub(crate) fn tell(&self, message: &str) {
        self.wipe();
        let stamp = self.stamp();
        let _ = writeln!(std::io::stderr(), "{stamp}{message}");
    }

    /// Takes the line of progress away: what is told comes in its place.
    fn wipe(&self) {
        if self.is_drawn.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn show(&self, it: &Progress) {
        // Lines are told of what has ended.
        let ended = || one_line(&format!("{}: {}/{} {}", it.vm, it.done, it.total, it.step));
        match self.progress {
            ProgressDisplay::Hidden => {}
            ProgressDisplay::Lines if it.step.is_empty() => {}
            ProgressDisplay::Lines => self.tell(&ended()),
            ProgressDisplay::Overwritten => {
                let mut stderr = std::io::stderr();
                if stderr.is_terminal() {
                    let columns = tcgetwinsize(&stderr).map_or(80, |size| size.ws_col.max(20));
                    let line = progress::line(it, usize::from(columns) - 1);
                    let _ = write!(stderr, "\r{line}\x1b[K");
                    self.is_drawn.set(true);
                } else {
                    // Blanks wipe out what a longer step left behind.
                    let _ = writeln!(stderr, "\r{}{:<70}", self.stamp(), ended());
                }
                let _ = stderr.flush();
            }
        }
    }

    fn stamp(&self) -> String {
        if self.timestamps {
            format!("[{:9.3}] ", self.start.elapsed().as_secs_f64())
        } else {
            String::new()
        }
    }
}

/// An answer of another kind than the request asked for.
pub(crate) fn unexpected(reply: &Reply) -> Failure {
    let kind = format!("{reply:?}");
    let kind: String = kind.chars().take_while(char::is_ascii_alphanumeric).collect();
    Failure::failed(format!("unexpected answer from xylemd: {kind}"))
}

/// What came from elsewhere must neither break the line nor speak to the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
