//! The command line. Options that other xenstored daemons have mean the same here.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use lexopt::prelude::*;
use xenstore::Quota;

use crate::journal::{Damage, Start};

pub(crate) const HELP: &str = "\
xylem-xenstored: the xenstore daemon of Xylem

Usage: xylem-xenstored [options]

  -N, --no-fork              stay in the foreground
  -D, --no-domain-init       serve sockets only: for machines without Xen
      --user NAME            once everything is open, become this user without capabilities and
                             with few system calls; UID:GID is a user as well
      --host dir:PATH        serve fake guests, which are files in the folder PATH: for tests
  -F, --pid-file FILE        write the process id to FILE once clients are served
  -P, --output-pid           print the process id
  -T, --trace-file FILE      append a line for each request to FILE, with its time in
                             seconds since 1970; SIGHUP opens it again
  -E, --entry-nb N           nodes a guest may own
  -S, --entry-size N         bytes in a node of a guest
  -W, --watch-nb N           watches of a guest
  -t, --transaction N        open transactions of a guest
  -A, --perm-nb N            permissions of a guest's node
  -M, --path-max N           bytes in a path of a guest
  -Q, --quota NAME=N         any limit by its name
  -q, --quota-soft NAME=N    any soft limit by its name
  -w, --timeout watch-event=S
                             events wait so long for a guest that does not read (20)
      --fresh                begin with an empty store, whatever a daemon before this one had
      --damaged-journal WHAT continue: go on as it was before the damage (default); refuse: end with status 78
      --no-journal           keep no journal: whoever ends this daemon ends the store
  -U, --live-update          take over the store that another daemon left in state_dump, if it did
  -I, -K, -L, -R, -V         accepted and without effect: they are about what is not here
      --help                 this text
      --version              the version

Socket, journal and state_dump are in $XENSTORED_RUNDIR (/run/xenstored); the socket may be at
$XENSTORED_PATH instead. A daemon that is started again goes on with the store of the one before,
limits included. A limit of 0 is none. At 'status' beside the socket, one line 'json' or 'metrics', or
GET /metrics over HTTP, is answered with counters of everything.
";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    Foreground,
    Background,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Domains {
    OfXen,
    /// Fake guests in this folder.
    OfFolder(PathBuf),
    None,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Output {
    Quiet,
    ProcessId,
}

/// Whose store the daemon goes on with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// Its own: of the journal, or a new one.
    Own,
    /// That of the program that this process was before, if it left one.
    SameProcess,
    /// That of the daemon at the other end of standard input.
    Predecessor,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) place: Place,
    pub(crate) domains: Domains,
    pub(crate) output: Output,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) trace_file: Option<PathBuf>,
    pub(crate) quota: Quota,
    /// What survives this process.
    pub(crate) journal: PathBuf,
    pub(crate) start: Start,
    pub(crate) damage: Damage,
    /// How long an event waits for a guest that does not read.
    pub(crate) event_timeout: Option<Duration>,
    /// Whom to become, and what to give up with it.
    pub(crate) user: Option<String>,
    /// Where the daemon tells about itself.
    pub(crate) status: PathBuf,
    /// Where clients connect.
    pub(crate) socket: PathBuf,
    /// Whose store to go on with.
    pub(crate) origin: Origin,
    /// Where the state of another daemon is found, and left.
    pub(crate) rundir: PathBuf,
    /// Set for the process that the foreground part starts: say on standard output when ready.
    pub(crate) tells_parent: bool,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Wanted {
    Serve(Box<Options>),
    /// To be the broker of hypercalls of the daemon that started this process, as this account.
    Broker(String),
    Help,
    Version,
}

/// The environment variables that matter, read by the caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) path: Option<PathBuf>,
    pub(crate) rundir: Option<PathBuf>,
}

pub(crate) const READY_OPTION: &str = "tell-parent";
const SUCCESSOR_OPTION: &str = "successor";
/// Given by a daemon that is about to be followed.
pub(crate) const SUCCESSOR_ARGUMENT: &str = "--successor";
const BROKER_OPTION: &str = "broker";
/// Given by a daemon to the broker that it starts.
pub(crate) const BROKER_ARGUMENT: &str = "--broker";

pub(crate) fn parse(
    mut parser: lexopt::Parser,
    environment: Environment,
) -> anyhow::Result<Wanted> {
    let rundir = environment.rundir.unwrap_or_else(|| "/run/xenstored".into());
    let socket = environment.path.unwrap_or_else(|| rundir.join("socket"));
    let mut options = Options {
        place: Place::Background,
        domains: Domains::OfXen,
        output: Output::Quiet,
        pid_file: None,
        trace_file: None,
        quota: Quota::default(),
        journal: rundir.join("journal"),
        status: rundir.join("status"),
        start: Start::Continue,
        damage: Damage::Continue,
        event_timeout: Some(Duration::from_secs(20)),
        user: None,
        origin: Origin::Own,
        rundir,
        socket,
        tells_parent: false,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('H') => return Ok(Wanted::Help),
            Long("version") => return Ok(Wanted::Version),
            Long(name) if name == BROKER_OPTION => {
                return Ok(Wanted::Broker(parser.value()?.string()?));
            }
            _ => {}
        }
        match limit_of(&argument) {
            Some(name) => options.limit(name, &parser.value()?.string()?)?,
            // As borrowed from the parser, which is asked for the value next.
            None => match argument {
                Short(letter) => options.take(Name::Short(letter), &mut parser)?,
                Long(name) => {
                    let name = name.to_owned();
                    options.take(Name::Long(&name), &mut parser)?;
                }
                other => bail!("{}; --help lists the options", other.unexpected()),
            },
        }
    }
    Ok(Wanted::Serve(Box::new(options)))
}

/// An option's name.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    Short(char),
    Long(&'a str),
}

/// The limit that an option of other daemons sets.
fn limit_of(argument: &lexopt::Arg<'_>) -> Option<&'static str> {
    match argument {
        Short('E') | Long("entry-nb") => Some("nodes"),
        Short('S') | Long("entry-size") => Some("node-size"),
        Short('W') | Long("watch-nb") => Some("watches"),
        Short('t') | Long("transaction") => Some("transactions"),
        Short('A') | Long("perm-nb") => Some("node-permissions"),
        Short('M') | Long("path-max") => Some("path-max"),
        _ => None,
    }
}

impl Options {
    fn limit(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let known = || format!("there is no limit '{name}'; known are: {}", Quota::NAMES.join(" "));
        let limit = self.quota.get_mut(name).with_context(known)?;
        *limit = value
            .parse()
            .with_context(|| format!("the limit '{name}' needs a number, not '{value}'"))?;
        Ok(())
    }

    /// Takes one option, with its value if it has one.
    fn take(&mut self, name: Name<'_>, parser: &mut lexopt::Parser) -> anyhow::Result<()> {
        use Name::{Long, Short};
        let mut value = || anyhow::Ok(parser.value()?.string()?);
        match name {
            Short('N') | Long("no-fork") => self.place = Place::Foreground,
            Short('D') | Long("no-domain-init") => self.domains = Domains::None,
            Long("user") => self.user = Some(value()?),
            Long("host") => self.domains = host(&value()?)?,
            Short('F') | Long("pid-file") => self.pid_file = Some(parser.value()?.into()),
            Short('P') | Long("output-pid") => self.output = Output::ProcessId,
            Short('T') | Long("trace-file") => self.trace_file = Some(parser.value()?.into()),
            Short('Q') | Long("quota") => {
                let value = value()?;
                let (name, value) = split(&value)?;
                self.limit(name, value)?;
            }
            Short('q') | Long("quota-soft") => {
                let value = value()?;
                let (name, value) = split(&value)?;
                self.limit(&format!("soft-{name}"), value)?;
            }
            Short('w') | Long("timeout") => self.event_timeout = event_timeout(&value()?)?,
            Short('U') | Long("live-update") => self.origin = Origin::SameProcess,
            Long(SUCCESSOR_OPTION) => self.origin = Origin::Predecessor,
            Long("fresh") => self.start = Start::Fresh,
            Long("damaged-journal") => self.damage = damage(&value()?)?,
            Long("no-journal") => self.start = Start::WithoutJournal,
            // About a store on disk, a debugging aid and a domain's leavings: there is none of that.
            Short('R' | 'L' | 'K' | 'V')
            | Long("no-recovery" | "preserve-local" | "keep-orphans" | "verbose") => {}
            Short('I') | Long("internal-db") => drop(parser.optional_value()),
            Long(READY_OPTION) => self.tells_parent = true,
            Short(letter) => bail!("invalid option '-{letter}'; --help lists the options"),
            Long(name) => bail!("invalid option '--{name}'; --help lists the options"),
        }
        Ok(())
    }
}

fn damage(text: &str) -> anyhow::Result<Damage> {
    match text {
        "continue" => Ok(Damage::Continue),
        "refuse" => Ok(Damage::Refuse),
        _ => bail!("--damaged-journal is continue or refuse, not '{text}'"),
    }
}

fn host(text: &str) -> anyhow::Result<Domains> {
    match text.strip_prefix("dir:") {
        Some(path) if !path.is_empty() => Ok(Domains::OfFolder(path.into())),
        _ => bail!("'{text}' is not a host; write --host dir:PATH"),
    }
}

/// `watch-event=SECONDS` is the only timeout there is; 0 stands for none.
fn event_timeout(text: &str) -> anyhow::Result<Option<Duration>> {
    let (name, seconds) = split(text)?;
    if name != "watch-event" {
        bail!("there is no timeout '{name}'; known is: watch-event");
    }
    let needs = || format!("the timeout '{name}' needs a number of seconds, not '{seconds}'");
    let seconds = seconds.parse::<u32>().with_context(needs)?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
}

fn split(text: &str) -> anyhow::Result<(&str, &str)> {
    text.split_once('=').with_context(|| format!("'{text}' is not of the form NAME=VALUE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> anyhow::Result<Options> {
        match parse(lexopt::Parser::from_args(arguments), Environment::default())? {
            Wanted::Serve(options) => Ok(*options),
            other => bail!("{other:?}"),
        }
    }

    #[test]
    fn options_of_other_daemons_mean_the_same() {
        let options = options(&[
            "--pid-file",
            "/run/xenstored.pid",
            "-N",
            "-E",
            "10",
            "-S",
            "20",
            "-W",
            "30",
            "-t",
            "40",
            "-A",
            "50",
            "-M",
            "60",
            "-Q",
            "outstanding=70",
            "-q",
            "memory=80",
            "-w",
            "watch-event=10",
            "-U",
            "-R",
            "-Ioff",
            "--internal-db=on",
            "-V",
        ])
        .unwrap();
        assert_eq!(options.place, Place::Foreground);
        assert_eq!(options.pid_file, Some("/run/xenstored.pid".into()));
        assert_eq!(options.event_timeout, Some(Duration::from_secs(10)));
        let limit = |name| options.quota.get(name).unwrap();
        let limits = [
            ("nodes", 10),
            ("node-size", 20),
            ("watches", 30),
            ("transactions", 40),
            ("node-permissions", 50),
            ("path-max", 60),
            ("outstanding", 70),
            ("soft-memory", 80),
        ];
        for (name, value) in limits {
            assert_eq!(limit(name), value, "{name}");
        }
    }

    #[test]
    fn the_unit_files_options_are_known() {
        let unit = include_str!("../../../dist/xylem-xenstored.service");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let words: Vec<&str> = start.split(' ').skip(1).collect();
        let options = options(&words).unwrap();
        assert_eq!((options.place, options.user.as_deref()), (Place::Foreground, Some("xenstore")));
    }

    #[test]
    fn the_socket_is_where_the_environment_says() {
        let socket = |path: Option<&str>, rundir: Option<&str>| {
            let environment =
                Environment { path: path.map(Into::into), rundir: rundir.map(Into::into) };
            let none: [&str; 0] = [];
            match parse(lexopt::Parser::from_args(none), environment).unwrap() {
                Wanted::Serve(options) => options.socket,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(socket(None, None), PathBuf::from("/run/xenstored/socket"));
        assert_eq!(socket(None, Some("/tmp/x")), PathBuf::from("/tmp/x/socket"));
        assert_eq!(socket(Some("/tmp/y"), Some("/tmp/x")), PathBuf::from("/tmp/y"));
    }

    #[test]
    fn what_is_no_option_or_no_limit_is_named() {
        for (arguments, name) in [
            (&["--no-such"][..], "--no-such"),
            (&["-Q", "no-such=1"], "no-such"),
            (&["-Q", "nodes"], "nodes"),
            (&["-E", "many"], "many"),
            (&["-w", "no-such=1"], "no-such"),
            (&["-w", "watch-event=soon"], "soon"),
            (&["--host", "elsewhere"], "elsewhere"),
            (&["--host", "dir:"], "dir:"),
        ] {
            let error = format!("{:#}", options(arguments).unwrap_err());
            assert!(error.contains(name), "{error}");
        }
    }
}
