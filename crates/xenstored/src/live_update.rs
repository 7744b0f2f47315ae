//! Live update: the store continues in another program without disconnecting clients.
//!
//! `xenstore-control live-update FILE` names a program, perhaps a command line, and starts. Two ways:
//!
//! * The program is a build of this daemon. It is started beside us and loads the nodes while we
//!   serve; then we stop, hand over what is left and every descriptor, and end when it has given its
//!   first answer (`handover.rs`, `successor.rs`). It is another process: the service manager is told,
//!   and the pid file written again. If it fails before that answer, we go on.
//! * It is another daemon, such as C xenstored. We write `<rundir>/state_dump` as that one does, and
//!   become it by `exec` (`foreign.rs`), once no transaction is open.
//!
//! Taking over from another daemon is the second way seen from its end: it executes us with `-U`.

pub(crate) mod channel;
pub(crate) mod foreign;
pub(crate) mod handover;
pub(crate) mod successor;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use xenstore::Error;
use xenstore::server::ConnId;
use xenstore::state::Form;

/// In the file of every build that can be a successor of this one.
pub(crate) const SUCCESSOR_MARK: &str = "xylem-xenstored successor, version 3";

/// C xenstored's default timeout for transactions.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What to do about transactions that do not end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Patience {
    GiveUp,
    /// Drop them.
    Drop,
}

/// An operator's settings, from several commands.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: ConnId,
    pub(crate) program: PathBuf,
    command_line: Option<String>,
    pub(crate) start: Option<Start>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) since: Instant,
    pub(crate) timeout: Duration,
    pub(crate) patience: Patience,
    /// The form that the other daemon reads.
    pub(crate) form: Form,
}

/// How the program takes over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    Beside,
    Exec,
}

#[derive(Debug, Default)]
pub(crate) struct LiveUpdate {
    session: Option<Session>,
}

impl LiveUpdate {
    /// One command. `None`: it is answered when the update is over.
    ///
    /// # Errors
    /// `EINVAL` for an unknown command.
    pub(crate) fn command(
        &mut self,
        client: ConnId,
        words: &[&str],
    ) -> Result<Option<String>, Error> {
        let answer = match words {
            ["-a"] => match self.session.take() {
                Some(_) => "OK",
                None => "No live-update session active.",
            },
            ["-f", file] => self.choose(client, Path::new(file)),
            ["-c", command_line] => match self.session_of(client) {
                Some(session) => {
                    session.command_line = Some((*command_line).to_owned());
                    "OK"
                }
                None => "Not in live-update session.",
            },
            ["-s", options @ ..] => {
                let start = start(options).ok_or(Error::EINVAL)?;
                match self.session_of(client) {
                    Some(session) => {
                        session.start = Some(start);
                        return Ok(None);
                    }
                    None => "Not in live-update session.",
                }
            }
            _ => return Err(Error::EINVAL),
        };
        Ok(Some(answer.to_owned()))
    }

    fn choose(&mut self, client: ConnId, program: &Path) -> &'static str {
        match std::fs::metadata(program) {
            Err(_) => return "File not accessible.",
            Ok(file) if !file.is_file() || file.permissions().mode() & 0o111 == 0 => {
                return "File not executable.";
            }
            Ok(_) => {}
        }
        if self.session.is_some() {
            return "live-update session already active.";
        }
        let program = program.to_owned();
        self.session = Some(Session { client, program, command_line: None, start: None });
        "OK"
    }

    fn session_of(&mut self, client: ConnId) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| session.client == client)
    }

    /// The update in progress.
    pub(crate) fn started(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.start.is_some())
    }

    pub(crate) fn end(&mut self) {
        self.session = None;
    }
}

/// The arguments of `-s`.
fn start(words: &[&str]) -> Option<Start> {
    let mut start = Start {
        since: Instant::now(),
        timeout: TIMEOUT,
        patience: Patience::GiveUp,
        form: Form::Version1,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "-F" => start.patience = Patience::Drop,
            "-t" => start.timeout = Duration::from_secs(words.next()?.parse::<u32>().ok()?.into()),
            "-v" => {
                start.form = match *words.next()? {
                    "1" => Form::Version1,
                    "2" => Form::Version2,
                    _ => return None,
                };
            }
            _ => return None,
        }
    }
    Some(start)
}

impl Session {
    /// The program's arguments: the given ones, or ours.
    pub(crate) fn arguments(&self) -> Vec<std::ffi::OsString> {
        match &self.command_line {
            Some(line) => line.split_whitespace().map(Into::into).collect(),
            None => std::env::args_os()
                .skip(1)
                .filter(|word| {
                    let ours = ["-U", "--live-update", crate::options::SUCCESSOR_ARGUMENT];
                    !ours.iter().any(|own| word == own)
                })
                .collect(),
        }
    }

    /// Whether the program can be started next to us: only our own builds have the mark in their
    /// file.
    pub(crate) fn way(&self) -> std::io::Result<Way> {
        let file = std::fs::read(&self.program)?;
        let mark = SUCCESSOR_MARK.as_bytes();
        let is_ours = file.windows(mark.len()).any(|window| window == mark);
        Ok(if is_ours { Way::Beside } else { Way::Exec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> ConnId {
        ConnId::of_number(number)
    }

    #[test]
    fn a_session_belongs_to_the_client_that_began_it() {
        let mut update = LiveUpdate::default();
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let mut say = |number, words: &[&str]| update.command(client(number), words);
        let said = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(say(1, &["-s"]), said("Not in live-update session."));
        assert_eq!(say(1, &["-f", "/no/such/file"]), said("File not accessible."));
        assert_eq!(say(1, &["-f", "/dev/null"]), said("File not executable."));
        assert_eq!(say(1, &["-f", own]), said("OK"));
        assert_eq!(say(2, &["-f", own]), said("live-update session already active."));
        assert_eq!(say(2, &["-c", "-N"]), said("Not in live-update session."));
        assert_eq!(say(1, &["-c", "-N  -T x"]), said("OK"));
        assert_eq!(say(1, &["-s", "-t"]), Err(Error::EINVAL));
        assert_eq!(say(1, &["-s", "-t", "5", "-F", "-v", "2"]), Ok(None));
        let session = update.started().unwrap();
        let start = session.start.unwrap();
        assert_eq!(start.timeout, Duration::from_secs(5));
        assert_eq!((start.patience, start.form), (Patience::Drop, Form::Version2));
        assert_eq!(session.arguments(), ["-N", "-T", "x"]);
        assert_eq!(update.command(client(2), &["-a"]), said("OK"));
        assert_eq!(update.command(client(2), &["-a"]), said("No live-update session active."));
    }

    #[test]
    fn our_own_kind_is_told_by_its_mark() {
        let program = std::env::current_exe().unwrap();
        let session =
            |program| Session { client: client(1), program, command_line: None, start: None };
        assert_eq!(session(program).way().unwrap(), Way::Beside);
        assert_eq!(session("/bin/sh".into()).way().unwrap(), Way::Exec);
    }
}
