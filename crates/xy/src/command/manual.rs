//! The manual page, from the tables of commands.

use roff::{Inline, Roff, bold, italic, roman};

use super::{COMMANDS, Command, GROUPS, help};

/// xy(1), in roff.
pub(super) fn page() -> String {
    let mut page = Roff::new();
    let release = concat!("Xylem ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["XY", "1", "", release, "Xylem"]);
    page.control("SH", ["NAME"]);
    page.text([roman("xy - manage the VMs of a Xen host")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([
        bold("xy"),
        roman(" [-vfNtT] "),
        italic("command"),
        roman(" [options] [arguments]"),
    ]);
    page.control("br", []);
    page.text([bold("xy help"), roman(" ["), italic("command"), roman("]")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "xy asks xylemd, the toolstack daemon of this host, to do something with VMs, and prints what it answers. Commands, \
         options, columns and configuration files are those of xl(1), with more of each. A command may be shortened as \
         long as it stays unambiguous.",
    )]);
    page.control("SH", ["GLOBAL OPTIONS"]);
    for (option, about) in help::GLOBAL_OPTIONS {
        item(&mut page, &[bold(option)], about);
    }
    page.control("SH", ["COMMANDS"]);
    let whole = COMMANDS.iter().filter(|command| super::group(command.name).is_none());
    whole.for_each(|command| one(&mut page, command));
    for group in GROUPS {
        page.control("SH", [format!("COMMANDS OF {}", group.name.to_uppercase()).as_str()]);
        page.text([roman(group.about)]);
        group.commands.iter().for_each(|command| one(&mut page, command));
        page.control("PP", []);
        page.text([roman(group.more)]);
    }
    page.control("SH", ["EXIT STATUS"]);
    page.text([roman("0: done. 1: it failed; messages say why. 2: wrong usage.")]);
    page.control("SH", ["ENVIRONMENT"]);
    item(
        &mut page,
        &[bold(api::SOCKET_VARIABLE)],
        &format!("Where xylemd is reached, by default {}.", api::SOCKET_PATH),
    );
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("xylemd"),
        roman("(8), "),
        bold("xylem-xenstored"),
        roman("(8), "),
        bold("xl.cfg"),
        roman("(5), "),
        bold("xl-disk-configuration"),
        roman("(5), "),
        bold("xl-network-configuration"),
        roman("(5)"),
    ]);
    page.render()
}

fn one(page: &mut Roff, command: &Command) {
    let title = [bold(command.name), roman(" "), italic(command.usage)];
    item(page, &title, &format!("{}.", command.about));
    if command.flags.is_empty() {
        return;
    }
    page.control("RS", []);
    for flag in command.flags {
        item(page, &[bold(flag.synopsis())], flag.about);
    }
    page.control("RE", []);
}

fn item(page: &mut Roff, title: &[Inline], about: &str) {
    page.control("TP", []);
    page.text(title);
    page.text([roman(about)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_with_its_options() {
        let page = page().replace("\\-", "-").replace("\\*(Aq", "'");
        let whole = COMMANDS.iter().filter(|command| super::super::group(command.name).is_none());
        for command in whole.chain(GROUPS.iter().flat_map(|group| group.commands)) {
            assert!(page.contains(command.about), "{}", command.name);
            for flag in command.flags {
                let about = flag.about.trim_end_matches('.').replace('\\', "\\\\");
                assert!(page.contains(&about), "{}: {about}", command.name);
            }
        }
    }
}
