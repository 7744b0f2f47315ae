//! The help texts, from the tables of commands.

use std::fmt::Write as _;

use super::{COMMANDS, Command, DryRun, Group};

/// What may stand before the command.
pub(super) const GLOBAL_OPTIONS: [(&str, &str); 8] = [
    ("-v", "Print each step."),
    ("-t", "Print each step on one line, with carriage returns."),
    ("-T", "Prefix messages with the time since the start."),
    ("-N", "Dry run: check everything, do nothing."),
    ("-f", "Accepted for xl compatibility, ignored."),
    ("--host URL", "Ask another host, by its xylem-web (XYLEM_HOST)."),
    ("--token-file FILE", "Its token (XYLEM_TOKEN, or ~/.config/xylem/token)."),
    ("--ca FILE", "Who signs its certificate, in PEM (XYLEM_CA)."),
];

pub(super) fn of(command: &Command) -> String {
    super::group(command.name).map_or_else(|| one("xy", command), group)
}

pub(super) fn group(of: &Group) -> String {
    let Group { name: first, about, commands, more } = of;
    let mut text = format!("Usage: xy {first} <command> [args]\n\n{about}\n\n");
    for command in *commands {
        let name = command.name.split_once(' ').map_or(command.name, |(_, name)| name);
        let _ = writeln!(text, " {name:<19} {}", command.about);
    }
    let _ = writeln!(text, "\n{more} 'xy help {first} <command>' says more.");
    text
}

pub(super) fn all() -> String {
    let mut text = "Usage xy [-vfNtT] <subcommand> [args]\n\n\
                    xy full list of subcommands:\n\n"
        .to_owned();
    for command in COMMANDS {
        let _ = writeln!(text, " {:<19} {}", command.name, command.about);
    }
    text.push_str(
        "\nA subcommand may be shortened as long as it stays unambiguous.\n\nGlobal options:\n\n",
    );
    for (option, about) in GLOBAL_OPTIONS {
        let _ = writeln!(text, "{option:<23} {about}");
    }
    text
}

/// `program` is xy, or xl in its place.
pub(super) fn one(program: &str, command: &Command) -> String {
    let dry = if command.dry_run == DryRun::Possible { "N" } else { "" };
    let mut text = format!(
        "Usage: {program} [-vtT{dry}] {} {}\n\n{}.\n\n",
        command.name, command.usage, command.about
    );
    if !command.flags.is_empty() {
        text.push_str("Options:\n\n");
        for flag in command.flags {
            let synopsis = flag.synopsis();
            // The text of a long option starts on the next line, in the same column.
            let separator =
                if synopsis.len() > 23 { format!("\n{:24}", "") } else { " ".to_owned() };
            let _ = writeln!(text, "{synopsis:<23}{separator}{}", flag.about);
        }
    }
    text
}
