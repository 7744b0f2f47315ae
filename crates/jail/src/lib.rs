//! Confinement of others' programs that read a guest's bytes: device models, and servers of disk images.
//!
//! Such a program is started through the daemon's own executable, with [`WORD`] as its first argument: that process gives
//! up what the program must not have and then becomes the program. Its process id, start time and parent stay as they
//! are, so a later daemon finds it as it finds any other.
//!
//! A bootloader, whose answer is files, is started in a cell: `cell` has what it sees.
//!
//! Capabilities, resource limits, `no_new_privs` and the filter of system calls are required: without them the program
//! is not started. Namespaces and a control group are used where the kernel has them; what is missing is said on standard
//! error, which is the program's log.

mod cell;
mod filter;
mod group;
mod rights;

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

pub use cell::{Cell, DISK as CELL_DISK, FOLDER as CELL_FOLDER};
pub use group::Groups;

/// The first argument of a process that is to confine itself.
pub const WORD: &str = "--confine";
/// Ends the arguments of the confinement.
const END: &str = "--";
/// Asks for a cell, from outside and from within.
const CELL: &str = "cell";
const IN_CELL: &str = "in-cell";
/// Says that there is no control group.
const NO_GROUP: &str = "-";
/// The exit status if the program could not be confined or started, as in shells.
const NOT_STARTED: u8 = 126;

/// What a program is for, and so what it needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// QEMU for an HVM domain: opens the host's network interfaces and listens for VNC, and takes another user and root
    /// folder itself.
    DeviceModel,
    /// The same for a domain that has devices of the host: opens their configuration and maps their memory before it takes
    /// its user.
    PassthroughModel,
    /// QEMU that serves devices to a PV or PVH domain: listens for VNC, and takes another user and root folder itself, if
    /// it is told to. It opens Xen's devices there whenever its guest connects, so the root folder has them.
    DeviceServer,
    /// `qemu-nbd` for an image in a file: a block device of the kernel, no network.
    ImageServer,
}

impl Kind {
    const ALL: [Self; 4] =
        [Self::DeviceModel, Self::PassthroughModel, Self::DeviceServer, Self::ImageServer];

    fn word(self) -> &'static str {
        match self {
            Self::DeviceModel => "device-model",
            Self::PassthroughModel => "passthrough-model",
            Self::DeviceServer => "device-server",
            Self::ImageServer => "image-server",
        }
    }
}

/// How programs of others are started by this process, which must begin with [`become_program`].
#[derive(Clone, Debug, Default)]
pub struct Jail {
    /// Their control groups, if the host has such.
    pub groups: Option<Groups>,
}

impl Jail {
    /// A command that starts `program` confined. `name` names its control group and is unique on the host.
    #[must_use]
    pub fn command(&self, kind: Kind, name: &str, program: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        let group = self.groups.as_ref().map_or(NO_GROUP.to_owned(), |it| it.path(name));
        command.arg0("xylem-jail").args([WORD, kind.word(), &group, END, program]);
        command
    }

    /// A command that starts `program` in a cell, with its own exit status, or 128 and the number of the signal that
    /// ended it, and without input. It ends with the thread of this process that starts it, and takes all with it that the
    /// program started. `name` is as for `command`.
    #[must_use]
    pub fn cell_command(&self, cell: &Cell, name: &str, program: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        let group = self.groups.as_ref().map_or(NO_GROUP.to_owned(), |it| it.path(name));
        command
            .arg0("xylem-jail")
            .args([WORD, CELL, &std::process::id().to_string(), &group])
            .args(cell.words())
            .args([END, program]);
        command
    }
}

/// If the arguments of this process ask for it, confines it and executes the program. Returns only if they do not, or
/// with the exit status of a failure, which has been printed.
#[must_use]
pub fn become_program(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = arguments.into_iter().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let words: Vec<OsString> = words.collect();
    if let Some(status) = cell_of(&words) {
        return Some(status);
    }
    let error = match parse(words.into_iter()) {
        Some((kind, group, program, rest)) => match enter(kind, &group, &rest) {
            Ok(()) => {
                let error = Command::new(&program).args(rest).exec();
                format!("cannot execute {}: {error}", program.display())
            }
            Err(error) => error,
        },
        None => format!("{WORD} is for this daemon's own use"),
    };
    eprintln!("xylem-jail: {error}");
    Some(ExitCode::from(NOT_STARTED))
}

/// If they ask for a cell, the status of what ran in it, or of a failure within.
fn cell_of(words: &[OsString]) -> Option<ExitCode> {
    let (kind, rest) = words.split_first()?;
    let is_inside = kind == IN_CELL;
    if kind != CELL && !is_inside {
        return None;
    }
    let told = match parse_cell(rest) {
        None => format!("{WORD} is for this daemon's own use"),
        Some(parsed) if is_inside => become_inmate(&parsed),
        Some(parsed) => match begin_cell(&parsed, rest) {
            Ok(status) => return Some(status_of(status)),
            Err(error) => error,
        },
    };
    eprintln!("xylem-jail: {told}");
    Some(ExitCode::from(NOT_STARTED))
}

fn begin_cell(parsed: &ParsedCell<'_>, words: &[OsString]) -> Result<ExitStatus, String> {
    cell::end_with(parsed.parent)
        .map_err(|error| format!("cannot end with its parent: {error}"))?;
    join_group(&parsed.group);
    let mut inside = Command::new("/proc/self/exe");
    inside.arg0("xylem-jail").args([WORD, IN_CELL]).args(words);
    cell::run_inside(inside).map_err(|error| format!("cannot have processes of its own: {error}"))
}

/// Returns only if that fails.
fn become_inmate(parsed: &ParsedCell<'_>) -> String {
    let program = &parsed.program;
    if let Err(error) = confine_inmate(&parsed.cell, program) {
        return error;
    }
    // Its input is what this process watches its parent by.
    let error = Command::new(program).args(parsed.arguments).stdin(Stdio::null()).exec();
    format!("cannot execute {}: {error}", program.display())
}

fn confine_inmate(cell: &Cell, program: &OsString) -> Result<(), String> {
    rights::limit_resources().map_err(|error| format!("cannot limit resources: {error}"))?;
    cell::enter(cell, Path::new(program))?;
    rights::keep_none().map_err(|error| format!("cannot give up rights: {error}"))?;
    filter::apply().map_err(|error| format!("cannot filter system calls: {error}"))
}

fn status_of(status: ExitStatus) -> ExitCode {
    let signal = || status.signal().and_then(|it| u8::try_from(it).ok()).map(|it| it | 128);
    let code = status.code().and_then(|code| u8::try_from(code).ok()).or_else(signal);
    ExitCode::from(code.unwrap_or(NOT_STARTED))
}

struct ParsedCell<'a> {
    /// The process that it ends with.
    parent: u32,
    group: String,
    cell: Cell,
    program: OsString,
    arguments: &'a [OsString],
}

fn parse_cell(words: &[OsString]) -> Option<ParsedCell<'_>> {
    let text = |word: &OsString| word.clone().into_string().ok();
    let (before, program) = words.split_at_checked(words.iter().position(|it| it == END)?)?;
    let mut before = before.iter().map(text).collect::<Option<Vec<_>>>()?.into_iter();
    let (parent, group) = (before.next()?.parse().ok()?, before.next()?);
    let cell = Cell::parse(before)?;
    let (program, arguments) = program.get(1..)?.split_first()?;
    Some(ParsedCell { parent, group, cell, program: program.clone(), arguments })
}

type Parsed = (Kind, String, OsString, Vec<OsString>);

fn parse(mut words: impl Iterator<Item = OsString>) -> Option<Parsed> {
    let kind = words.next()?;
    let kind = Kind::ALL.into_iter().find(|it| kind == it.word())?;
    let group = words.next()?.into_string().ok()?;
    if words.next()? != END {
        return None;
    }
    Some((kind, group, words.next()?, words.collect()))
}

/// The root folder that QEMU will take.
fn root_of(arguments: &[OsString]) -> Option<&OsString> {
    let at = arguments.iter().position(|word| word == "-chroot")?;
    arguments.get(at + 1)
}

fn join_group(group: &str) {
    if group != NO_GROUP {
        group::join(group).unwrap_or_else(|error| {
            eprintln!("xylem-jail: without limits of memory and CPU: {group}: {error}");
        });
    }
}

fn enter(kind: Kind, group: &str, arguments: &[OsString]) -> Result<(), String> {
    join_group(group);
    let mounts = rights::leave_namespaces(kind);
    if let (Kind::DeviceServer, Some(root)) = (kind, root_of(arguments)) {
        // Nothing is to be mounted for others.
        mounts
            .and_then(|()| rights::show_xen(Path::new(root)))
            .map_err(|error| format!("cannot have Xen's devices in {}: {error}", root.display()))?;
    }
    rights::limit_resources().map_err(|error| format!("cannot limit resources: {error}"))?;
    rights::keep_capabilities(kind).map_err(|error| format!("cannot give up rights: {error}"))?;
    filter::apply().map_err(|error| format!("cannot filter system calls: {error}"))
}
