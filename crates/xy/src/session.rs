//! State of one run of `xy`: global options, the connection, the output so far.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use api::client::{CallError, Client, News, socket_path};
use api::{Progress, Reply, Request};
use rustix::termios::tcgetwinsize;

use crate::progress;
use crate::remote::Remote;

/// Why a command failed: exit status and messages, one line each.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// Invalid arguments.
    Usage(String),
    /// The command failed; several objects may each have a line.
    Failed(Vec<String>),
    /// The same, with the status that xl has in its place.
    AsXl(u8, String),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(vec![message.into()])
    }

    /// As a command of `xy` has it, whose statuses do not depend on the command.
    pub(crate) fn without_xl(self) -> Self {
        match self {
            Self::AsXl(2, message) => Self::Usage(message),
            Self::AsXl(_, message) => Self::failed(message),
            other => other,
        }
    }

    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
            Self::AsXl(status, _) => *status,
        }
    }

    pub(crate) fn messages(&self) -> &[String] {
        match self {
            Self::Usage(message) | Self::AsXl(_, message) => std::slice::from_ref(message),
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
    /// One line, overwritten (`-t`).
    Overwritten,
}

/// Between lines about one step.
const FAR_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Session {
    /// What messages begin with: xy, or xl in its place.
    pub(crate) program: &'static str,
    pub(crate) progress: ProgressDisplay,
    /// Messages begin with the time since the start (`-T`).
    pub(crate) timestamps: bool,
    pub(crate) dry_run: bool,
    /// The host that is asked, if it is not this one.
    pub(crate) remote: Option<Remote>,
    start: Instant,
    client: Option<Client>,
    output: Vec<u8>,
    /// A progress line is on the terminal.
    is_drawn: Cell<bool>,
    /// When a line last said how far a step is.
    told_far: Cell<Option<Instant>>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            program: "xy",
            progress: ProgressDisplay::default(),
            timestamps: false,
            dry_run: false,
            remote: None,
            start: Instant::now(),
            client: None,
            output: Vec::new(),
            is_drawn: Cell::new(false),
            told_far: Cell::new(None),
        }
    }
}

impl Session {
    /// Shows progress on a terminal unless options say otherwise. Returns whether any is shown.
    pub(crate) fn draws_progress(&mut self) -> bool {
        if self.progress == ProgressDisplay::Hidden && std::io::stderr().is_terminal() {
            self.progress = ProgressDisplay::Overwritten;
        }
        self.progress != ProgressDisplay::Hidden
    }

    /// Sends `request` and returns its reply; progress is shown according to the options.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Reply, Failure> {
        self.call_with(request, |_, _| ())
    }

    /// As `call`, where `on_event` receives events of domains.
    pub(crate) fn call_with(
        &mut self,
        request: &Request,
        mut on_event: impl FnMut(&Self, api::DomainEvent),
    ) -> Result<Reply, Failure> {
        let on_news = |session: &Self, news| match news {
            News::Progress(progress) => session.show(&progress),
            News::Event(event) => on_event(session, event),
            // Only of a watch, which is followed elsewhere.
            News::Changed(_) => {}
            News::Warning(line) => session.tell(&one_line(&line)),
        };
        let reply = match &self.remote {
            Some(remote) => {
                let mut on_news = on_news;
                remote.call(request, |news| on_news(self, news))
            }
            None => self.call_here(request, on_news)?,
        };
        self.wipe();
        reply.map_err(|error| Failure::failed(one_line(&error.to_string())))
    }

    /// Asks this host's daemon, on the connection that there is.
    fn call_here(
        &mut self,
        request: &Request,
        mut on_news: impl FnMut(&Self, News),
    ) -> Result<Result<Reply, CallError>, Failure> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&socket_path()).map_err(|e| Failure::failed(e.to_string()))?,
        };
        let reply = client.call(request, |news| on_news(self, news));
        self.client = Some(client);
        Ok(reply)
    }

    /// As `call`, and hands a connection to another host to the daemon.
    pub(crate) fn call_with_channel(
        &mut self,
        request: &Request,
        ends: [OwnedFd; 2],
    ) -> Result<Reply, CallError> {
        let mut client = Client::connect(&socket_path())?;
        let reply = client.call_with_channel(request, ends, |news| match news {
            News::Progress(progress) => self.show(&progress),
            News::Event(_) | News::Changed(_) => {}
            News::Warning(line) => self.tell(&one_line(&line)),
        });
        self.wipe();
        reply
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

    /// Flushes the output so far, for a long-running command.
    pub(crate) fn flush(&mut self) {
        // A closed output is noticed by the next write.
        let _unread = self.try_flush();
    }

    /// As `flush`, for a command that stops when its reader has closed the output.
    pub(crate) fn try_flush(&mut self) -> std::io::Result<()> {
        let output = self.take_output();
        let mut stdout = std::io::stdout();
        stdout.write_all(&output)?;
        stdout.flush()
    }

    /// Prints a message at once, on standard error.
    pub(crate) fn tell(&self, message: &str) {
        self.wipe();
        let stamp = self.stamp();
        let _ = writeln!(std::io::stderr(), "{stamp}{message}");
    }

    /// Erases the progress line before other output.
    fn wipe(&self) {
        if self.is_drawn.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn show(&self, it: &Progress) {
        // Prints a line for a finished step.
        let ended = || one_line(&format!("{}: {}/{} {}", it.vm, it.done, it.total, it.step));
        match self.progress {
            ProgressDisplay::Hidden => {}
            ProgressDisplay::Lines if it.step.is_empty() => self.show_far(it),
            ProgressDisplay::Lines => self.tell(&ended()),
            ProgressDisplay::Overwritten => {
                let mut stderr = std::io::stderr();
                if stderr.is_terminal() {
                    let columns = tcgetwinsize(&stderr).map_or(80, |size| size.ws_col.max(20));
                    let line = progress::line(it, usize::from(columns) - 1);
                    let _ = write!(stderr, "\r{line}\x1b[K");
                    self.is_drawn.set(true);
                } else {
                    // Spaces erase the rest of a longer line.
                    let _ = writeln!(stderr, "\r{}{:<70}", self.stamp(), ended());
                }
                let _ = stderr.flush();
            }
        }
    }

    /// How far a long step is, a line each second.
    fn show_far(&self, it: &Progress) {
        let now = Instant::now();
        if it.waits_for.contains('(') && self.told_far.get().is_none_or(|at| now - at >= FAR_EVERY)
        {
            self.told_far.set(Some(now));
            self.tell(&one_line(&format!("{}: {}/{} {}", it.vm, it.done, it.total, it.waits_for)));
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

/// An answer of an unexpected kind.
pub(crate) fn unexpected(reply: &Reply) -> Failure {
    let kind = format!("{reply:?}");
    let kind: String = kind.chars().take_while(char::is_ascii_alphanumeric).collect();
    Failure::failed(format!("unexpected answer from xylemd: {kind}"))
}

/// Untrusted text: control characters and line breaks are escaped.
pub(crate) fn one_line(text: &str) -> String {
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
