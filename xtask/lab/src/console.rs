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

/// What killed the host, if its console says so.
pub(crate) fn cause_of_death(console: &str) -> Option<&'static str> {
    DEATHS
        .iter()
        .filter_map(|(mark, meaning)| console.find(mark).map(|at| (at, *meaning)))
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
        assert_eq!(cause_of_death(console), Some("dom0's kernel oopsed"));
        assert_eq!(cause_of_death("(XEN) all is well"), None);
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
