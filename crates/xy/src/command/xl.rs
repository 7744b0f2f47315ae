//! `xy xl`, and a link to `xy` named `xl`: xl's place for scripts.
//!
//! The commands are those of `xy`, but only xl's, found by xl's names and their beginnings. Exit status and what is said
//! about a wrong command line are xl's. docs/verbs.md has the list, and a test compares.
//!
//! Sources: xen `tools/xl/xl.c`, `xl_cmdtable.c` of 4.17 to staging.

use std::fmt::Write as _;

use super::{COMMANDS, Command, DryRun, Options, help, is_help, set_global_options};
use crate::session::{Failure, Session};

/// A verb of xl.
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// Its options of one letter, which the command has too.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the test that compares"))]
    letters: &'static str,
    /// Why there is none here, if there is none.
    absent: Option<&'static str>,
}

const fn there(name: &'static str, letters: &'static str) -> Verb {
    Verb { name, letters, absent: None }
}

const fn absent(name: &'static str, why: &'static str) -> Verb {
    Verb { name, letters: "", absent: Some(why) }
}

const USB: &str = "Xylem has no PV USB; HVM domains have usbdevice=";
const VTPM: &str = "Xylem has no vTPM devices";
const VDISPL: &str = "Xylem has no PV displays";
const VSND: &str = "Xylem has no PV sound cards";
const QUOTA: &str = "'xenstore-control quota' has the same of our store";

/// In the order of xl's own list.
pub(super) const VERBS: &[Verb] = &[
    there("create", "cdeFfnpqVAi"),
    there("config-update", "fdq"),
    there("list", "lvZcn"),
    there("destroy", "f"),
    there("shutdown", "aFw"),
    there("reboot", "aFw"),
    there("pci-attach", ""),
    there("pci-detach", "f"),
    there("pci-list", ""),
    there("pci-assignable-add", "n"),
    there("pci-assignable-remove", "r"),
    there("pci-assignable-list", "n"),
    there("pause", ""),
    there("unpause", ""),
    there("console", "tn"),
    there("vncviewer", "a"),
    there("save", "cpD"),
    there("migrate", "CsepD"),
    there("restore", "FcpdeVA"),
    there("migrate-receive", "edp"),
    there("suspend", ""),
    there("resume", ""),
    there("dump-core", ""),
    there("cd-insert", ""),
    there("cd-eject", ""),
    there("mem-max", ""),
    there("mem-set", ""),
    there("button-press", ""),
    there("vcpu-list", ""),
    there("vcpu-pin", "fi"),
    there("vcpu-set", "i"),
    there("vm-list", ""),
    there("info", "n"),
    there("sharing", ""),
    there("sched-credit", "dwcptrms"),
    there("sched-credit2", "dwcprs"),
    there("sched-rtds", "dpbevc"),
    there("domid", ""),
    there("domname", ""),
    there("rename", ""),
    there("trigger", ""),
    there("sysrq", ""),
    there("debug-keys", ""),
    there("set-parameters", ""),
    there("dmesg", "c"),
    there("top", ""),
    there("network-attach", ""),
    there("network-list", ""),
    there("network-detach", ""),
    there("channel-list", ""),
    there("block-attach", ""),
    there("block-list", ""),
    there("block-detach", "f"),
    absent("vtpm-attach", VTPM),
    absent("vtpm-list", VTPM),
    absent("vtpm-detach", VTPM),
    there("vkb-attach", ""),
    there("vkb-list", ""),
    there("vkb-detach", ""),
    absent("vdispl-attach", VDISPL),
    absent("vdispl-list", VDISPL),
    absent("vdispl-detach", VDISPL),
    absent("vsnd-attach", VSND),
    absent("vsnd-list", VSND),
    absent("vsnd-detach", VSND),
    there("uptime", "s"),
    there("claims", ""),
    there("cpupool-create", "nf"),
    there("cpupool-list", "c"),
    there("cpupool-destroy", ""),
    there("cpupool-rename", ""),
    there("cpupool-cpu-add", ""),
    there("cpupool-cpu-remove", ""),
    there("cpupool-migrate", ""),
    there("cpupool-numa-split", ""),
    there("getenforce", ""),
    there("setenforce", ""),
    there("loadpolicy", ""),
    absent(
        "remus",
        "Xylem does not replicate running domains; see 'xy help checkpoint' and 'xy help migrate'",
    ),
    absent(
        "devd",
        "it runs in a driver domain, where xl's own does the work, for Xylem's guests too; see docs/networking.md",
    ),
    there("psr-hwinfo", "mab"),
    there("psr-cmt-attach", ""),
    there("psr-cmt-detach", ""),
    there("psr-cmt-show", ""),
    there("psr-cat-set", "slcd"),
    there("psr-cat-show", "l"),
    there("psr-mba-set", "s"),
    there("psr-mba-show", ""),
    absent("usbctrl-attach", USB),
    absent("usbctrl-detach", USB),
    absent("usbdev-attach", USB),
    absent("usbdev-detach", USB),
    absent("usb-list", USB),
    there("qemu-monitor-command", ""),
    absent("dt-overlay", "it is for ARM"),
    absent("xenstore-quota-get", QUOTA),
    absent("xenstore-quota-set", QUOTA),
];

/// `xy xl`: what `xl` would do with the same words.
pub(super) fn run_row(session: &mut Session, options: &Options) -> Result<(), Failure> {
    run(session, options.operands.clone())
}

pub(crate) fn run(session: &mut Session, arguments: Vec<String>) -> Result<(), Failure> {
    session.program = "xl";
    let mut arguments = arguments.into_iter();
    let word = loop {
        let Some(argument) = arguments.next() else {
            session.print(&list());
            return Err(Failure::Failed(Vec::new()));
        };
        match argument.strip_prefix('-') {
            None | Some("") => break argument,
            Some("-") => {}
            Some(letters) => set_global_options(session, letters)
                .ok_or_else(|| Failure::failed("unknown global option"))?,
        }
    };
    let arguments: Vec<String> = arguments.collect();
    let Some(verb) = lookup(&word) else {
        return match (word.as_str(), arguments.first()) {
            ("help", Some(of)) => {
                session.print(&help_on(of));
                Ok(())
            }
            ("help", None) => {
                session.print(&list());
                Ok(())
            }
            _ => Err(Failure::failed("command not implemented")),
        };
    };
    let command = command(verb).map_err(Failure::failed)?;
    if is_help(&arguments) {
        session.print(&help::one("xl", command));
        return Ok(());
    }
    if session.dry_run && command.dry_run == DryRun::Impossible {
        return Err(Failure::failed("command does not implement -N (dryrun) option"));
    }
    let options = Options::parse(command, arguments)?;
    let result = match verb.name {
        "vm-list" => crate::commands::domains::vm_list_of_xl(session),
        _ => (command.run)(session, &options),
    };
    // xl has 2 for wrong options and missing operands only.
    result.map_err(|failure| match failure {
        Failure::Usage(message) => Failure::failed(message),
        failed @ (Failure::Failed(_) | Failure::AsXl(..)) => failed,
    })
}

/// An exact match wins; otherwise a beginning has to be that of one verb.
fn lookup(word: &str) -> Option<&'static Verb> {
    if let Some(verb) = VERBS.iter().find(|verb| verb.name == word) {
        return Some(verb);
    }
    let mut matching = VERBS.iter().filter(|verb| verb.name.starts_with(word));
    let first = matching.next()?;
    matching.next().is_none().then_some(first)
}

fn command(verb: &Verb) -> Result<&'static Command, String> {
    let found = COMMANDS.iter().find(|command| command.name == verb.name);
    found.ok_or_else(|| format!("{}: {}", verb.name, verb.absent.unwrap_or("not implemented")))
}

fn list() -> String {
    let mut text =
        "Usage xl [-vfNtT] <subcommand> [args]\n\nxl full list of subcommands:\n\n".to_owned();
    for command in VERBS.iter().filter_map(|verb| command(verb).ok()) {
        let _ = writeln!(text, " {:<19} {}", command.name, command.about);
    }
    text
}

fn help_on(word: &str) -> String {
    match lookup(word).map(command) {
        Some(Ok(command)) => help::one("xl", command),
        Some(Err(why)) => format!("{why}\n"),
        None => format!("command \"{word}\" not implemented\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verbs.md");

    #[test]
    fn a_verb_is_in_the_table_of_commands_or_has_a_reason() {
        for verb in VERBS {
            match (command(verb), verb.absent) {
                (Ok(command), None) => {
                    for letter in verb.letters.chars() {
                        let known = command.flags.iter().any(|flag| flag.short == letter);
                        assert!(known, "{} -{letter}", verb.name);
                    }
                }
                (Err(_), Some(why)) => assert!(!why.is_empty(), "{}", verb.name),
                (Ok(_), Some(_)) => panic!("{} is there: it needs no reason", verb.name),
                (Err(_), None) => panic!("{} is not there", verb.name),
            }
        }
    }

    #[test]
    fn the_table_in_the_documents_is_this_one() {
        let docs = std::fs::read_to_string(DOCS).unwrap();
        let is_row = |line: &&str| line.contains("` | yes |") || line.contains("` | no |");
        let listed: Vec<&str> = docs.lines().filter(is_row).collect();
        let row = |verb: &Verb| match verb.absent {
            None => format!("| `{}` | yes | |", verb.name),
            Some(why) => format!("| `{}` | no | {why} |", verb.name),
        };
        let expected: Vec<String> = VERBS.iter().map(row).collect();
        assert_eq!(listed, expected, "docs/verbs.md");
    }

    #[test]
    fn a_verb_is_found_as_xl_finds_it() {
        let found = |word| lookup(word).map(|verb| verb.name);
        assert_eq!(found("list"), Some("list"));
        assert_eq!(found("migrate"), Some("migrate"));
        assert_eq!(found("cr"), Some("create"));
        assert_eq!(found("und"), None);
        assert_eq!(found("dom"), None);
        assert_eq!(found("clone"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn the_list_of_subcommands_has_only_those_of_xl() {
        let text = list();
        assert!(text.contains("\n vcpu-pin            Set which CPUs a VCPU can use\n"));
        assert!(!text.contains(" clone ") && !text.contains(" remus "));
    }
}
