//! What Xen's console tells about a host that went wrong.

/// Marks of the end of a host, each with what happened.
const DEATHS: &[(&str, &str)] = &[
    ("Panic on CPU", "Xen panicked"),
    ("Fatal error", "Xen stopped with a fatal error"),
    ("Kernel panic - not syncing", "dom0's kernel panicked"),
    ("BUG: unable to handle", "dom0's kernel hit a bad address"),
    ("Oops:", "dom0's kernel oopsed"),
    ("Hardware Dom0 crashed", "dom0 crashed"),
    ("Domain 0 crashed", "dom0 crashed"),
    ("Hardware Dom0 shutdown", "dom0 shut down"),
    ("Out of memory: Killed process", "dom0 ran out of memory; give it more with --dom0-mem"),
];

/// What Xen says when dom0 reboots: the end of some hosts, and not of others. 4.20 says it to those that want its lesser messages.
const REBOOT: &str = "Hardware Dom0 shutdown: rebooting machine";
/// What all of them say then.
const RESET: &str = "(XEN) Resetting with ";

/// How often dom0 has rebooted.
pub(crate) fn reboots(console: &str) -> usize {
    console.matches(RESET).count()
}

/// What killed the host, if its console says so.
pub(crate) fn cause_of_death(console: &str, reboots: bool) -> Option<&'static str> {
    let is_reboot = |at: usize| console[at..].starts_with(REBOOT);
    DEATHS
        .iter()
        .filter_map(|(mark, meaning)| {
            let mut places = console.match_indices(mark).map(|(at, _)| at);
            places.find(|at| !(reboots && is_reboot(*at))).map(|at| (at, *meaning))
        })
        .min()
        .map(|(_, meaning)| meaning)
}

/// The last `count` lines, without terminal control sequences.
pub(crate) fn last_lines(console: &str, count: usize) -> String {
    let clean = plain(console);
    let lines: Vec<&str> =
        clean.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// `text` without carriage returns and escape sequences.
pub(crate) fn plain(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' => {}
            '\x1b' => {
                // Control sequence: ESC [ parameters, up to a letter or `~`.
                if characters.next_if_eq(&'[').is_some() {
                    while characters
                        .next_if(|next| !next.is_ascii_alphabetic() && *next != '~')
                        .is_some()
                    {}
                }
                characters.next();
            }
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mark_names_the_cause() {
        let console = "(XEN) x\r\n[ 1.0] Oops: 0000\r\n[ 1.1] Kernel panic - not syncing: y\r\n";
        assert_eq!(cause_of_death(console, false), Some("dom0's kernel oopsed"));
        assert_eq!(cause_of_death("(XEN) all is well", false), None);
    }

    #[test]
    fn a_reboot_is_the_end_only_of_a_host_that_does_not_come_back() {
        let reset = "(XEN) Resetting with ACPI MEMORY or I/O RESET_REG.\r\n(XEN) Xen version\r\n";
        assert_eq!(reboots(reset), 1);
        let console = format!("(XEN) {REBOOT}\r\n{reset}");
        assert_eq!(cause_of_death(&console, false), Some("dom0 shut down"));
        assert_eq!(cause_of_death(&console, true), None);
        assert_eq!(reboots(&console), 1);
        let halted = console + "(XEN) Hardware Dom0 shutdown: halting machine\r\n";
        assert_eq!(cause_of_death(&halted, true), Some("dom0 shut down"));
    }

    #[test]
    fn control_sequences_and_carriage_returns_go() {
        assert_eq!(plain("a\x1b[6n\x1b[1;31mb\x1b[0m\r\n"), "ab\n");
        assert_eq!(plain("cut \x1b["), "cut ");
    }

    #[test]
    fn only_the_last_lines_remain() {
        assert_eq!(last_lines("1\r\n2\r\n\r\n3\r\n", 2), "2\n3");
        assert_eq!(last_lines("", 2), "");
    }
}
