//! `cargo xtask book`: the pages of `docs/`, and a host on which their commands are run.
//!
//! A page is plain Markdown. What stands before a block of shell commands says what becomes of it in a test:
//!
//! ```text
//! <!-- run -->             it must succeed
//! <!-- run on debian -->   on a Debian host only
//! <!-- not run: WHY -->    what no lab has
//! <!-- lab                 commands for the test that the page does not show
//! -->
//! ```
//! A block of shell commands without such a line is a finding.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use lab::workspace;
use lexopt::prelude::*;

const HELP: &str = "\
cargo xtask book           render docs/ to target/book (needs mdbook)
cargo xtask book --check   every page is listed, every command marked, every link leads somewhere
cargo xtask book --try     run the commands of all pages in a lab, a page after the other
cargo xtask book --try --debian [SUITE]   those of getting-started.md on a Debian host";

/// What is fetched from elsewhere comes from the host itself in a lab.
const ELSEWHERE: [(&str, &str); 1] =
    [("https://cloud.debian.org/images/cloud/bookworm/latest", "http://127.0.0.1:8000")];

/// The page of somebody who has a Debian host and nothing else.
const FIRST: &str = "getting-started.md";

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    match parser.next()? {
        None => render(),
        Some(Long("check")) => {
            let findings = findings()?;
            findings.iter().for_each(|finding| println!("book: {finding}"));
            println!("book: {} findings", findings.len());
            Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Long("try")) => match parser.next()? {
            None => try_it(Host::Small, None),
            Some(Long("debian")) => {
                let joined = parser.optional_value();
                let suite = match (joined, parser.next()?) {
                    (None, Some(Value(suite))) | (Some(suite), None) => Some(suite.string()?),
                    (None, None) => None,
                    (_, Some(other)) => return Err(other.unexpected().into()),
                };
                try_it(Host::Debian, suite)
            }
            Some(other) => Err(other.unexpected().into()),
        },
        Some(Short('h') | Long("help")) => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(other.unexpected().into()),
    }
}

fn docs() -> PathBuf {
    workspace().join("docs")
}

fn render() -> Result<ExitCode> {
    let target = lab::target_directory()?.join("book");
    let status =
        Command::new("mdbook").arg("build").arg(docs()).arg("--dest-dir").arg(&target).status();
    let status = status.context(
        "mdbook does not start; `cargo install mdbook` has it. The pages read without it",
    )?;
    println!("book: {}", target.join("index.html").display());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A host of the lab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Host {
    Small,
    Debian,
}

/// What a mark says of the block behind it.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Mark {
    Run,
    OnDebian,
    Not,
}

impl Mark {
    fn parse(line: &str) -> Option<Self> {
        match line.strip_prefix("<!-- ")?.strip_suffix(" -->")? {
            "run" => Some(Self::Run),
            "run on debian" => Some(Self::OnDebian),
            why => why.strip_prefix("not run: ").map(|_| Self::Not),
        }
    }
}

/// Commands in a page.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Block {
    line: usize,
    /// `None` for one without a mark.
    mark: Option<Mark>,
    /// The page does not show it.
    hidden: bool,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut mark = None;
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let mut until = |end: &str| -> String {
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != end);
            text.map(|line| format!("{line}\n")).collect()
        };
        if line == "<!-- lab" {
            let text = until("-->");
            all.push(Block { line: index + 1, mark: Some(Mark::Run), hidden: true, text });
        } else if line == "```sh" {
            let text = until("```");
            all.push(Block { line: index + 1, mark: mark.take(), hidden: false, text });
        } else if let Some(found) = Mark::parse(line) {
            mark = Some(found);
        } else if line.starts_with("```") {
            let _other = until("```");
        }
    }
    all
}

/// The pages in the order of the book.
fn pages() -> Result<Vec<String>> {
    let summary = std::fs::read_to_string(docs().join("SUMMARY.md"))?;
    let links = summary.lines().filter_map(|line| line.split_once("](")?.1.split_once(')'));
    Ok(links.map(|(page, _)| page.to_owned()).collect())
}

fn findings() -> Result<Vec<String>> {
    let listed = pages()?;
    let mut findings = Vec::new();
    for entry in std::fs::read_dir(docs())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "SUMMARY.md" && !listed.contains(&name) {
            findings.push(format!("docs/{name}: SUMMARY.md does not list it"));
        }
    }
    for page in listed {
        let Ok(text) = std::fs::read_to_string(docs().join(&page)) else {
            findings.push(format!("docs/SUMMARY.md: there is no {page}"));
            continue;
        };
        for block in blocks(&text).iter().filter(|block| block.mark.is_none()) {
            findings.push(format!("docs/{page}:{}: these commands have no mark", block.line));
        }
        for link in dead_links(&text) {
            findings.push(format!("docs/{page}: the link to {link} leads nowhere"));
        }
    }
    Ok(findings)
}

fn dead_links(page: &str) -> Vec<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|it| !it.contains("://") && !it.starts_with('#'));
    let files = local.map(|it| it.split('#').next().unwrap_or_default());
    files.filter(|file| !docs().join(file).exists()).map(str::to_owned).collect()
}

/// A scenario of the pages' commands.
fn script(pages: &[(String, String)], host: Host) -> String {
    let mut script = String::from(match host {
        Host::Small => {
            "# lab-addition: grub-xen\n# lab-addition: qemu\n. /lab/lib.sh\nstart_xylemd\nip link set dev lo up\n"
        }
        Host::Debian => ". /lab/lib-debian.sh\nexport DEBIAN_FRONTEND=noninteractive\ncd /root\n",
    });
    for (page, text) in pages {
        let _ = writeln!(script, "echo '== {page}'");
        for block in blocks(text) {
            let runs = match block.mark {
                Some(Mark::Run) => true,
                Some(Mark::OnDebian) => host == Host::Debian,
                Some(Mark::Not) | None => false,
            };
            if runs {
                put(&mut script, page, &block);
            }
        }
    }
    script
}

fn put(script: &mut String, page: &str, block: &Block) {
    let mut text = block.text.clone();
    for (there, here) in ELSEWHERE {
        text = text.replace(there, here);
    }
    if block.hidden {
        let _ = writeln!(script, "{text}");
        return;
    }
    let place = format!("{page}:{}", block.line);
    for line in text.lines() {
        let _ = writeln!(script, "cat <<'BOOK'\n$ {line}\nBOOK");
    }
    // What a block prints is the transcript.
    let _ = write!(
        script,
        "cat >/tmp/block <<'BOOK'\nset -e\n{text}BOOK\n\
         start=$(now)\ncheck '{place}' sh /tmp/block\n\
         echo \"$lab_output\"\necho \"-- $(seconds_since \"$start\") s\"\n"
    );
}

fn try_it(host: Host, suite: Option<String>) -> Result<ExitCode> {
    let found = findings()?;
    ensure!(found.is_empty(), "the book has findings: {}", found.join("; "));
    let names = match host {
        Host::Small => pages()?,
        Host::Debian => vec![FIRST.to_owned()],
    };
    let mut texts = Vec::new();
    for name in names {
        let text = std::fs::read_to_string(docs().join(&name)).with_context(|| name.clone())?;
        texts.push((name, text));
    }
    let folder = lab::target_directory()?.join("book-scenarios");
    std::fs::create_dir_all(&folder)?;
    let (name, verb) = match host {
        Host::Small => ("book.sh", "run"),
        Host::Debian => ("debian-book.sh", "debian"),
    };
    let path = folder.join(name);
    std::fs::write(&path, script(&texts, host))?;
    let status = run(verb, &path, suite)?;
    Ok(if status { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(verb: &str, path: &Path, suite: Option<String>) -> Result<bool> {
    let this = std::env::current_exe()?;
    let mut command = Command::new(this);
    command.args(["lab", verb, "--dom0-mem", "1536", "--timeout", "1800"]);
    match (verb, suite) {
        ("debian", Some(suite)) => drop(command.args(["--suite", &suite])),
        (_, None) => {}
        (verb, Some(_)) => bail!("{verb} has no suites"),
    }
    Ok(command.arg(path).status()?.success())
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
<!-- lab
cp a b
-->
<!-- not run: it needs a network -->
```sh
curl x
```
```text
no command
```
<!-- run on debian -->
```sh
apt install x
```
```sh
xy forgotten
```
";

    #[test]
    fn the_book_has_no_findings() {
        assert_eq!(findings().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn blocks_have_the_mark_before_them() {
        let found: Vec<_> =
            blocks(PAGE).into_iter().map(|it| (it.line, it.mark, it.hidden)).collect();
        assert_eq!(
            found,
            [
                (3, Some(Mark::Run), false),
                (6, Some(Mark::Run), true),
                (10, Some(Mark::Not), false),
                (17, Some(Mark::OnDebian), false),
                (20, None, false),
            ]
        );
    }

    #[test]
    fn a_script_has_what_its_host_runs() {
        let pages = [("a.md".to_owned(), PAGE.to_owned())];
        let small = script(&pages, Host::Small);
        assert!(
            small.contains("check 'a.md:3' sh /tmp/block") && small.contains("\ncp a b\n"),
            "{small}"
        );
        assert!(!small.contains("curl") && !small.contains("apt"), "{small}");
        assert!(script(&pages, Host::Debian).contains("apt install x"));
    }
}
