//! The commands, their lookup by name, and their help.
//!
//! Names, options and output that scripts may depend on are xl's: xen `tools/xl/xl_cmdtable.c`.

mod completion;
#[cfg(test)]
mod docs;
mod help;
mod manual;
mod table;
pub(crate) mod xl;

use crate::commands::{image, peer, store};
use crate::options::{Flag, Options};
use crate::remote::Place;
use crate::session::{Failure, ProgressDisplay, Session};
use table::COMMANDS;

type Run = fn(&mut Session, &Options) -> Result<(), Failure>;

/// An entry of the table.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) about: &'static str,
    pub(crate) flags: &'static [Flag],
    /// Minimum and maximum number of operands.
    pub(crate) operands: (usize, usize),
    pub(crate) dry_run: DryRun,
    pub(crate) run: Run,
}

/// Meaning of the global option `-N` for a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DryRun {
    Possible,
    Impossible,
}

pub(crate) const JSON: Flag = Flag::new('\0', "json", "Print JSON.");
pub(crate) const MANY: usize = usize::MAX;

/// Commands with a first word in common.
struct Group {
    name: &'static str,
    about: &'static str,
    commands: &'static [Command],
    /// Ends its help.
    more: &'static str,
}

const GROUPS: &[Group] = &[
    Group {
        name: "image",
        about: "Images of disks that VMs are made from.",
        commands: image::COMMANDS,
        more: "An image is a read-only VDI, image-NAME, of an SR. 'xy vm-create' makes VMs from it.",
    },
    Group {
        name: "store",
        about: "Read and change the store.",
        commands: store::COMMANDS,
        more: "Options, output and exit status are those of xenstore-ls, xenstore-read and so on.\n\
               The store is found at XENSTORED_PATH, or at XENSTORED_RUNDIR/socket, by default\n\
               /run/xenstored/socket.",
    },
    Group {
        name: "peer",
        about: "Hosts to and from which VMs move by TLS.",
        commands: peer::COMMANDS,
        more: "Two hosts are told of each other's keys: 'xy peer key' on each prints one, and 'xy peer add' on\n\
               the other makes it known. 'xylemd --peer-listen' opens the port.",
    },
];

fn group(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

/// `xy store` without a command.
fn store_alone(session: &mut Session, options: &Options) -> Result<(), Failure> {
    alone(session, options, "store")
}

/// `xy peer` without a command.
fn peer_alone(session: &mut Session, options: &Options) -> Result<(), Failure> {
    alone(session, options, "peer")
}

/// `xy image` without a command.
fn image_alone(session: &mut Session, options: &Options) -> Result<(), Failure> {
    alone(session, options, "image")
}

/// `xy completion`: what a shell sources.
fn completion_script(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let shell = &options.operands[0];
    let script = completion::script(shell);
    let script = script.ok_or_else(|| {
        Failure::usage(format!("completion: {shell}: there is a script for bash, zsh and fish"))
    })?;
    session.print(script);
    Ok(())
}

/// `xy complete`: what that script runs.
#[expect(clippy::unnecessary_wraps, reason = "all commands look alike")]
fn complete(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let text = completion::complete(session, &options.operands);
    session.print(&text);
    Ok(())
}

/// `xy manual`: xy(1).
#[expect(clippy::unnecessary_wraps, reason = "all commands look alike")]
fn manual_page(session: &mut Session, _options: &Options) -> Result<(), Failure> {
    session.print(&manual::page());
    Ok(())
}

fn alone(session: &mut Session, _options: &Options, name: &str) -> Result<(), Failure> {
    session.print(&group(name).map(help::group).unwrap_or_default());
    Err(Failure::usage(format!("{name}: a command is missing")))
}

/// Runs the command in `arguments`, after the global options.
pub(crate) fn run(session: &mut Session, arguments: Vec<String>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter();
    let mut place = Place::default();
    let word = loop {
        let Some(argument) = arguments.next() else {
            session.print(&help::all());
            return Err(Failure::usage("a command is missing"));
        };
        match argument.as_str() {
            "-h" | "--help" => {
                session.print(&help::all());
                return Ok(());
            }
            "--version" => {
                // The commit is known to what `cargo xtask package` builds.
                let commit = option_env!("XYLEM_COMMIT").map(|it| format!(" ({it})"));
                let commit = commit.unwrap_or_default();
                session.print(&format!("xy {}{commit}\n", env!("CARGO_PKG_VERSION")));
                return Ok(());
            }
            _ if argument.starts_with("--") => {
                read_place(&mut place, &argument, &mut arguments)?;
            }
            _ if argument.starts_with('-') => read_global_options(session, &argument)?,
            _ => break argument,
        }
    };
    let mut arguments: Vec<_> = arguments.collect();
    if word == "help" {
        return help(session, &arguments);
    }
    let mut command = lookup(&word)?;
    if let Some(group) = group(command.name)
        && arguments.first().is_some_and(|first| !first.starts_with('-'))
    {
        command = lookup_in(group, &arguments.remove(0))?;
    }
    if command.name == "xl" {
        return xl::run(session, arguments);
    }
    if is_help(&arguments) {
        session.print(&help::of(command));
        return Ok(());
    }
    if session.dry_run && command.dry_run == DryRun::Impossible {
        return Err(Failure::usage(format!("{}: cannot be run dry (-N)", command.name)));
    }
    let options = Options::parse(command, arguments)?;
    session.remote = place.find()?;
    if let Some(why) = session.remote.as_ref().and_then(|remote| remote.refusal(command.name)) {
        return Err(Failure::failed(why));
    }
    (command.run)(session, &options).map_err(Failure::without_xl)
}

/// Reads a global option that says which host is meant.
fn read_place(
    place: &mut Place,
    argument: &str,
    rest: &mut impl Iterator<Item = String>,
) -> Result<(), Failure> {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (argument, None),
    };
    let mut value = || {
        let value = value.clone().or_else(|| rest.next());
        value.ok_or_else(|| Failure::usage(format!("{name}: a value is missing")))
    };
    match name {
        "--host" => place.url = Some(value()?),
        "--token-file" => place.token_file = Some(value()?.into()),
        "--ca" => place.ca = Some(value()?.into()),
        _ => {
            return Err(Failure::usage(format!(
                "{argument}: unknown global option; see 'xy help'"
            )));
        }
    }
    Ok(())
}

/// Whether help is asked for.
fn is_help(arguments: &[String]) -> bool {
    arguments.iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help")
}

fn read_global_options(session: &mut Session, letters: &str) -> Result<(), Failure> {
    let unknown = || Failure::usage(format!("{letters}: unknown global option; see 'xy help'"));
    let letters = letters.strip_prefix('-').filter(|rest| !rest.is_empty()).ok_or_else(unknown)?;
    set_global_options(session, letters).ok_or_else(unknown)
}

/// Sets xl's global options, which are letters; `None` if one is unknown.
fn set_global_options(session: &mut Session, letters: &str) -> Option<()> {
    for letter in letters.chars() {
        match letter {
            'v' => session.progress = ProgressDisplay::Lines,
            't' => session.progress = ProgressDisplay::Overwritten,
            'T' => session.timestamps = true,
            'N' => session.dry_run = true,
            // Accepted for xl compatibility (ignore the lock), ignored.
            'f' => {}
            _ => return None,
        }
    }
    Some(())
}

/// Finds a command by its name or an unambiguous prefix.
fn lookup(word: &str) -> Result<&'static Command, Failure> {
    find(COMMANDS, "", word)
}

/// Finds a command of a group, likewise.
fn lookup_in(group: &Group, word: &str) -> Result<&'static Command, Failure> {
    find(group.commands, &format!("{} ", group.name), word)
}

fn find(
    commands: &'static [Command],
    prefix: &str,
    word: &str,
) -> Result<&'static Command, Failure> {
    let short = |command: &Command| command.name.strip_prefix(prefix).unwrap_or(command.name);
    if let Some(command) = commands.iter().find(|command| short(command) == word) {
        return Ok(command);
    }
    let matching: Vec<_> =
        commands.iter().filter(|command| short(command).starts_with(word)).collect();
    match matching.as_slice() {
        [command] if !word.is_empty() => Ok(command),
        [] => {
            let help = format!("xy help {prefix}");
            Err(Failure::usage(format!("{word:?} is no command; see '{}'", help.trim_end())))
        }
        several => {
            let names: Vec<_> = several.iter().map(|command| short(command)).collect();
            Err(Failure::usage(format!("{word:?} is ambiguous: {}", names.join(", "))))
        }
    }
}

fn help(session: &mut Session, words: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words[..] {
        [] | ["help", ..] => help::all(),
        [word] => help::of(lookup(word)?),
        [first, word, ..] => match group(lookup(first)?.name) {
            Some(group) => help::one("xy", lookup_in(group, word)?),
            None => help::of(lookup(first)?),
        },
    };
    session.print(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn found(word: &str) -> String {
        match lookup(word) {
            Ok(command) => command.name.to_owned(),
            Err(failure) => failure.messages().join("\n"),
        }
    }

    #[test]
    fn a_beginning_that_is_unambiguous_finds_its_command() {
        for (word, expected) in [
            ("list", "list"),
            ("lis", "list"),
            ("cr", "create"),
            ("unp", "unpause"),
            ("un", "\"un\" is ambiguous: unpause, undefine"),
            ("dom", "\"dom\" is ambiguous: domid, domname, dominfo"),
            (
                "c",
                "\"c\" is ambiguous: create, check, checkpoint, checkpoint-list, checkpoint-destroy, clone, console, channel-list, \
                 cd-insert, cd-eject, config-update, claims, cpupool-create, cpupool-list, cpupool-destroy, cpupool-rename, \
                 cpupool-cpu-add, cpupool-cpu-remove, cpupool-migrate, cpupool-numa-split, counters, completion, complete",
            ),
            ("migrate", "migrate"),
            ("migr", "\"migr\" is ambiguous: migrate, migrate-receive"),
            ("lists", "\"lists\" is no command; see 'xy help'"),
        ] {
            assert_eq!(found(word), expected, "{word}");
        }
    }

    #[test]
    fn every_command_is_found_by_its_own_name_and_has_distinct_options() {
        for command in COMMANDS {
            assert_eq!(found(command.name), command.name);
            for (i, flag) in command.flags.iter().enumerate() {
                for other in &command.flags[..i] {
                    assert!(flag.short == '\0' || flag.short != other.short, "{}", command.name);
                    assert!(flag.long.is_empty() || flag.long != other.long, "{}", command.name);
                }
            }
        }
    }

    /// Commands that print nothing of their own when all goes well.
    const SILENT: &[&str] = &[
        "pci-assignable-add",
        "pci-assignable-remove",
        "psr-cmt-attach",
        "psr-cmt-detach",
        "psr-cat-set",
        "psr-mba-set",
        "pci-attach",
        "pci-detach",
        "adopt",
        "disown",
        "destroy",
        "shutdown",
        "reboot",
        "pause",
        "unpause",
        "dump-core",
        "save",
        "host-shutdown",
        "checkpoint-destroy",
        "suspend",
        "resume",
        "migrate",
        "mem-max",
        "mem-set",
        "vcpu-set",
        "vcpu-pin",
        "rename",
        "trigger",
        "sysrq",
        "button-press",
        "sr-create",
        "sr-introduce",
        "sr-forget",
        "sr-destroy",
        "vdi-create",
        "vdi-destroy",
        "vdi-resize",
        "vdi-snapshot",
        "vdi-clone",
        "vdi-move",
        "export",
        "image remove",
        "block-attach",
        "block-detach",
        "network-attach",
        "network-detach",
        "vkb-attach",
        "vkb-detach",
        "cd-insert",
        "cd-eject",
        "debug-keys",
        "cpupool-destroy",
        "cpupool-rename",
        "cpupool-cpu-add",
        "cpupool-cpu-remove",
        "cpupool-migrate",
        "cpupool-numa-split",
        "set-parameters",
        "setenforce",
        "undefine",
        "wait",
        "peer add",
        "peer remove",
        "store write",
        "store rm",
        "store exists",
        "store chmod",
    ];

    /// Commands whose output is something else by its nature, or one word.
    const OTHERWISE: &[(&str, &str)] = &[
        ("migrate-receive", "the other host's protocol"),
        ("console", "the guest's bytes"),
        ("vncviewer", "a viewer; -p prints one word"),
        ("checkpoint", "one word: its name"),
        ("define", "one word: the UUID"),
        ("vm-create", "one word: the UUID"),
        ("import", "one word: the UUID"),
        ("image import", "a sentence; 'image list --json' has what it says"),
        ("image pull", "a sentence; 'image list --json' has what it says"),
        ("template-list", "names, with what their authors say"),
        ("image", "a group"),
        ("clone", "what 'start -a' prints: a line of progress for each"),
        ("start", "the stages of a start, for people; 'create --json' has them"),
        ("explain", "sentences"),
        ("plan", "sentences"),
        ("dmesg", "Xen's own text"),
        ("getenforce", "one word, as xl prints it"),
        ("loadpolicy", "a sentence, as xl prints it"),
        ("qemu-monitor-command", "QEMU's own text"),
        ("config-update", "nothing; -d prints what 'create -n' does"),
        ("cpupool-create", "xl's lines about its configuration"),
        ("bugreport", "a tar file"),
        ("top", "a screen"),
        ("xl", "xl's own forms"),
        ("peer", "a group"),
        ("store", "a group"),
        ("completion", "a script"),
        ("complete", "words for a shell"),
        ("manual", "a page for man(1)"),
        ("store ls", "xenstore-ls's form"),
        ("store list", "xenstore-list's form"),
        ("store read", "the node's bytes"),
        ("store watch", "xenstore-watch's form"),
    ];

    #[test]
    fn every_command_that_prints_has_json() {
        let all = COMMANDS.iter().chain(GROUPS.iter().flat_map(|group| group.commands));
        for command in all {
            let has_json = command.flags.iter().any(|flag| flag.long == "json");
            let is_silent = SILENT.contains(&command.name);
            let is_other = OTHERWISE.iter().any(|(name, _)| *name == command.name);
            let places = [has_json, is_silent, is_other].iter().filter(|it| **it).count();
            assert_eq!(places, 1, "{}: --json, or a place in one of the two lists", command.name);
        }
    }

    #[test]
    fn help_reads_like_that_of_xl() {
        expect![[r#"
            Usage: xy [-vtT] shutdown [options] <-a|Domain ...>

            Issue a shutdown signal to a domain.

            Options:

            -a, --all               Shutdown all domains that xylemd manages.
            -F                      Fallback to ACPI power event for HVM guests with no PV drivers.
            -w, --wait              Wait for guest(s) to shutdown; twice: until they are gone.
        "#]]
        .assert_eq(&help::one("xy", lookup("shutdown").unwrap_or(&COMMANDS[0])));
    }

    fn options(command: &str, arguments: &[&str]) -> Result<Options, Failure> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Options::parse(lookup(command)?, arguments)
    }

    #[test]
    fn options_may_stand_anywhere_and_in_one_word() {
        let given = options("shutdown", &["a", "-aw", "b", "--wait"]).unwrap();
        assert_eq!(given.operands, ["a", "b"]);
        assert!(given.has("all"));
        assert!(!given.has("F"));
        assert_eq!(given.count("wait"), 2);
        let given = options("create", &["-f", "g.cfg", "-pq", "memory=3"]).unwrap();
        assert_eq!(given.value("defconfig"), Some("g.cfg"));
        assert!(given.has("p") && given.has("quiet"));
        let given = options("create", &["--defconfig=g.cfg", "--", "-x"]).unwrap();
        assert_eq!(given.value("defconfig"), Some("g.cfg"));
        assert_eq!(given.operands, ["-x"]);
    }

    #[test]
    fn wrong_options_are_usage_errors_that_name_the_command() {
        for (command, arguments, expected) in [
            ("destroy", &[][..], "destroy: requires at least 1 argument; see 'xy help destroy'"),
            ("domid", &["a", "b"], "domid: \"b\" is one argument too many; see 'xy help domid'"),
            ("list", &["-x"], "list: invalid option '-x'; see 'xy help list'"),
            ("list", &["--lng"], "list: invalid option '--lng'; see 'xy help list'"),
            (
                "list",
                &["--long=3"],
                "list: unexpected argument for option '--long': \"3\"; see 'xy help list'",
            ),
            ("create", &["-f"], "create: missing argument for option '-f'; see 'xy help create'"),
        ] {
            assert_eq!(options(command, arguments), Err(Failure::usage(expected)));
        }
    }
}
