//! What a page has for a test: its blocks, and the marks before them.

use super::output::Class;

/// A block of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Block {
    pub(super) line: usize,
    pub(super) role: Role,
    pub(super) text: String,
}

/// What a block is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// Commands that the page shows.
    Commands(Run),
    /// Commands of the test, which the page does not show.
    Hidden,
    /// What the commands before it print; these things may differ.
    Output(Vec<Class>),
    /// None of these: a file, a picture, forms of commands.
    Other,
}

/// Where commands are run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Run {
    Everywhere,
    OnDebian,
    /// In a terminal, until it shows this text; then Ctrl-] is typed.
    InTerminal(String),
    Nowhere,
}

/// What is wrong in a line of a page.
pub(super) type Finding = (usize, String);

/// What a fence may say of its block, beside `sh`.
const OTHER_FENCES: [&str; 4] = ["cfg", "json", "text", USAGE];
/// Forms of commands, with names in the place of words.
const USAGE: &str = "usage";

/// Programs whose name at the beginning of a line makes it a command.
const PROGRAMS: [&str; 9] =
    ["apt", "apt-get", "cargo", "journalctl", "ssh", "systemctl", "xl", "xy", "xylemd"];

/// A mark: what it says of the next block.
fn mark(line: &str) -> Option<Result<Role, String>> {
    let says = line.strip_prefix("<!-- ")?;
    let Some(says) = says.strip_suffix(" -->") else {
        return Some(Err("a mark has one line, and ends with -->".to_owned()));
    };
    Some(match says.split_once(": ").map_or((says, None), |(word, rest)| (word, Some(rest))) {
        ("run", None) => Ok(Role::Commands(Run::Everywhere)),
        ("run on debian", None) => Ok(Role::Commands(Run::OnDebian)),
        ("run in a terminal until", Some(text)) => {
            Ok(Role::Commands(Run::InTerminal(text.to_owned())))
        }
        ("not run", Some(_why)) => Ok(Role::Commands(Run::Nowhere)),
        ("output", None) => Ok(Role::Output(Vec::new())),
        ("output, but for", Some(list)) => {
            list.split(", ").map(Class::named).collect::<Result<_, _>>().map(Role::Output)
        }
        _ => Err(format!("there is no mark '{says}'")),
    })
}

/// The blocks of a page, and what is wrong with them.
pub(super) fn read(page: &str) -> (Vec<Block>, Vec<Finding>) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut findings = Vec::new();
    let mut marked: Option<Role> = None;
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let number = index + 1;
        let mut until = |end: &str| -> String {
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != end);
            text.map(|line| format!("{line}\n")).collect()
        };
        if line == "<!-- lab" {
            blocks.push(Block { line: number, role: Role::Hidden, text: until("-->") });
        } else if let Some(fence) = line.trim_start().strip_prefix("```") {
            let indent = &line[..line.len() - fence.len() - 3];
            let text = until(&format!("{indent}```"));
            match role(fence, marked.take(), &text, &blocks) {
                Ok(role) => blocks.push(Block { line: number, role, text }),
                Err(what) => findings.push((number, what)),
            }
        } else if let Some(mark) = mark(line) {
            match mark {
                Ok(role) => marked = Some(role),
                Err(what) => findings.push((number, what)),
            }
        } else if marked.take().is_some() {
            findings.push((number, "a mark stands right before its block".to_owned()));
        }
    }
    (blocks, findings)
}

/// The role of a block with this fence and mark, behind those before it.
fn role(fence: &str, mark: Option<Role>, text: &str, before: &[Block]) -> Result<Role, String> {
    match (fence, mark) {
        ("sh", Some(Role::Commands(run))) => commands(text).map(|_| Role::Commands(run)),
        ("sh", _) => Err("these commands have no mark".to_owned()),
        ("text", Some(Role::Output(classes))) => {
            let shown = before.iter().rfind(|block| block.role != Role::Hidden);
            match shown.map(|block| &block.role) {
                Some(Role::Commands(Run::Everywhere | Run::OnDebian)) => Ok(Role::Output(classes)),
                _ => Err("no commands that are run stand before this output".to_owned()),
            }
        }
        (_, Some(_)) => Err(format!("this mark is not for a block '{fence}'")),
        (USAGE, None) => Ok(Role::Other),
        (other, None) if OTHER_FENCES.contains(&other) => match text.lines().find(is_command) {
            Some(line) => Err(format!("'{line}' is a command, but its block is not sh")),
            None => Ok(Role::Other),
        },
        (other, None) => Err(format!(
            "a block is sh or {}, and says so; this one says '{other}'",
            OTHER_FENCES.join(", ")
        )),
    }
}

fn is_command(line: &&str) -> bool {
    let line = line.trim_start().trim_start_matches(['#', '$']).trim_start();
    PROGRAMS.contains(&line.split(' ').next().unwrap_or_default())
}

/// The commands of a block, each with the lines that belong to it.
///
/// # Errors
/// The last one has no end.
pub(super) fn commands(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let mut command = format!("{line}\n");
        let mut last = line;
        while last.ends_with('\\') {
            last = lines.next().ok_or("a command ends with a backslash")?;
            command += &format!("{last}\n");
        }
        if let Some((_, rest)) = command.split_once("<<") {
            let word = rest.split_whitespace().next().unwrap_or_default();
            let end = word.trim_matches('\'').to_owned();
            loop {
                let line = lines.next().ok_or_else(|| format!("no line {end} ends a document"))?;
                command += &format!("{line}\n");
                if line == end {
                    break;
                }
            }
        }
        all.push(command);
    }
    Ok(all)
}

/// Links of a page to files beside it.
pub(super) fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|it| !it.contains("://") && !it.starts_with('#'));
    local.map(|it| it.split('#').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# A page
<!-- run -->
```sh
xy list
```
<!-- output, but for: numbers, states -->
```text
Name ID
```
<!-- lab
cp a b
-->
<!-- not run: it needs a network -->
```sh
curl x
```
<!-- run in a terminal until: login: -->
```sh
xy console web
```
```usage
xy save VM FILE
```
<!-- run on debian -->
```sh
apt install x
```
";

    #[test]
    fn blocks_have_the_mark_before_them() {
        let (blocks, findings) = read(PAGE);
        assert_eq!(findings, []);
        let found: Vec<_> = blocks.into_iter().map(|it| (it.line, it.role)).collect();
        assert_eq!(
            found,
            [
                (3, Role::Commands(Run::Everywhere)),
                (7, Role::Output(vec![Class::Numbers, Class::States])),
                (10, Role::Hidden),
                (14, Role::Commands(Run::Nowhere)),
                (18, Role::Commands(Run::InTerminal("login:".to_owned()))),
                (21, Role::Other),
                (25, Role::Commands(Run::OnDebian)),
            ]
        );
    }

    #[test]
    fn what_would_escape_the_test_is_a_finding() {
        let found = |page| read(page).1.into_iter().map(|(_, what)| what).collect::<Vec<_>>();
        for page in [
            "```sh\nxy list\n```",
            "```\nxy list\n```",
            "```text\n# xy list\n```",
            "```cfg\nxl list\n```",
            "<!-- output -->\n```text\nNone\n```",
            "<!-- not run: why -->\n```sh\na\n```\n<!-- output -->\n```text\nNone\n```",
            "<!-- run -->\n\n```sh\nxy list\n```",
            "<!-- run here -->\n",
            "<!-- output, but for: anything -->\n",
            "<!-- run -->\n```text\na\n```",
            "<!-- run -->\n```sh\ncat <<END\n```",
        ] {
            assert!(!found(page).is_empty(), "{page}");
        }
        assert_eq!(found("```text\nxylem is no command\n```"), Vec::<String>::new());
    }

    #[test]
    fn a_command_has_its_further_lines() {
        let text = "one\n\ntwo \\\n  more\ncat >x <<'END'\nin it\nEND\nthree\n";
        let wanted = ["one\n", "two \\\n  more\n", "cat >x <<'END'\nin it\nEND\n", "three\n"];
        assert_eq!(commands(text).unwrap(), wanted);
        commands("cat <<END\nno end\n").unwrap_err();
    }
}
