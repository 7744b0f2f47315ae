//! The scenario that runs the pages' commands.

use std::fmt::Write as _;

use super::Page;
use super::page::{Block, Role, Run, commands};

/// A host of the lab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Host {
    Small,
    Debian,
}

const FUNCTIONS: &str = include_str!("../../../lab/book.sh");

/// What is fetched from elsewhere comes from the host itself in a lab.
const ELSEWHERE: [(&str, &str); 1] =
    [("https://cloud.debian.org/images/cloud/bookworm/latest", "http://127.0.0.1:8000")];

const SMALL: &str = r#"# lab-addition: grub-xen
# lab-addition: qemu
# lab-addition: terminal
. /lab/lib.sh
book_host="the lab's small host"
start_xylemd
ip link set dev lo up
mkdir -p /var/tmp
"#;

const DEBIAN: &str = r#"# lab-guest: cloud
. /lab/lib-debian.sh
book_host=$(. /etc/os-release && echo "$PRETTY_NAME")
cd /root
"#;

/// What the transcript begins with.
const TITLE: &str = r#"
tell <<TITLE
The book's commands, run on $book_host with Xen $(xl info | awk '/^xen_version/ { print $3 }'), emulated by QEMU without
hardware support: many times slower than a machine. What is fetched from the network comes from the host itself.
TITLE
"#;

/// A block by its place, as the results name it.
pub(super) fn place(page: &str, block: &Block) -> String {
    format!("{page}:{}", block.line)
}

impl Run {
    fn is_on(&self, host: Host) -> bool {
        match self {
            Self::Everywhere | Self::InTerminal(_) => true,
            Self::OnDebian => host == Host::Debian,
            Self::Nowhere => false,
        }
    }
}

/// A scenario of the pages' commands.
pub(super) fn script(pages: &[Page], host: Host) -> String {
    let mut script = String::from(match host {
        Host::Small => SMALL,
        Host::Debian => DEBIAN,
    });
    script += FUNCTIONS;
    script += TITLE;
    for page in pages {
        let _ = writeln!(script, "page '{}'", page.name);
        for block in &page.blocks {
            match &block.role {
                Role::Hidden => script += &block.text,
                Role::Commands(run) if run.is_on(host) => put(&mut script, page, block, run),
                Role::Commands(_) | Role::Output(_) | Role::Other => {}
            }
        }
    }
    script
}

fn put(script: &mut String, page: &Page, block: &Block, run: &Run) {
    let mut shell = String::from("set -e\n");
    for command in commands(&block.text).unwrap_or_default() {
        let command = as_in_a_lab(&command);
        let _ = write!(shell, "cat <<'SHOWN'\n{}SHOWN\n{command}", shown(&command));
    }
    let place = place(&page.name, block);
    let _ = write!(script, "cat >/tmp/block <<'BOOK'\n{shell}BOOK\n");
    let _ = match run {
        Run::InTerminal(text) => {
            writeln!(script, "in_terminal '{place}' '{}'", text.replace('\'', r"'\''"))
        }
        _ => writeln!(script, "block '{place}'"),
    };
}

fn as_in_a_lab(command: &str) -> String {
    ELSEWHERE.iter().fold(command.to_owned(), |text, (there, here)| text.replace(there, here))
}

/// A command as a terminal shows it.
fn shown(command: &str) -> String {
    let lines = command.lines().enumerate();
    lines.map(|(index, line)| format!("{} {line}\n", if index == 0 { '$' } else { '>' })).collect()
}

/// What a block printed, without the commands that are shown between.
pub(super) fn without_commands(printed: &str, block: &Block) -> String {
    let all = commands(&block.text).unwrap_or_default();
    let mut left = printed.to_owned();
    for command in all {
        let shown = shown(&as_in_a_lab(&command));
        if let Some(at) = left.find(&shown) {
            left.replace_range(at..at + shown.len(), "");
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
<!-- run -->
```sh
xy list
cat >x <<END
in it
END
```
<!-- lab
cp a b
-->
<!-- not run: it needs a network -->
```sh
curl x
```
<!-- run in a terminal until: it's login: -->
```sh
xy console web
```
<!-- run on debian -->
```sh
apt install x
```
";

    #[test]
    fn a_script_has_what_its_host_runs() {
        let pages = [Page::new("a.md", TEXT)];
        let small = script(&pages, Host::Small);
        for part in [
            "cat <<'SHOWN'\n$ xy list\nSHOWN\nxy list\n",
            "\n> in it\n> END\nSHOWN\n",
            "block 'a.md:2'",
            "\ncp a b\n",
            r"in_terminal 'a.md:16' 'it'\''s login:'",
        ] {
            assert!(small.contains(part), "{part} is not in {small}");
        }
        assert!(!small.contains("curl") && !small.contains("apt"), "{small}");
        assert!(script(&pages, Host::Debian).contains("apt install x"));
    }

    #[test]
    fn what_was_printed_is_left_when_the_commands_are_gone() {
        let page = Page::new("a.md", TEXT);
        let printed = "$ xy list\nName ID\n$ cat >x <<END\n> in it\n> END\n";
        assert_eq!(without_commands(printed, &page.blocks[0]), "Name ID\n");
    }
}
