//! `cargo xtask book`: the pages of `docs/`, and a host on which their commands are run.
//!
//! A page is plain Markdown. What stands before a block says what becomes of it in a test:
//!
//! ```text
//! <!-- run -->                             a block of shell commands: each must succeed
//! <!-- run on debian -->                   on a Debian host only
//! <!-- run in a terminal until: TEXT -->   there, until it shows TEXT; then Ctrl-] is typed
//! <!-- not run: WHY -->                    what no lab has
//! <!-- output -->                          a block of text: what the commands before it print, line by line;
//!                                          `...` is any lines
//! <!-- output, but for: numbers, dates --> these may differ (also sizes, ids, states)
//! <!-- lab                                 commands for the test that the page does not show
//! -->
//! ```
//! Shell commands without such a mark are a finding, and so is a block that does not say what it is.

mod output;
mod page;
mod script;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use lab::workspace;
use lexopt::prelude::*;

use page::{Block, Finding, Role, Run};
use script::Host;

const HELP: &str = "\
cargo xtask book           render docs/ to target/book (needs mdbook)
cargo xtask book --check   every page is listed, every command marked, every link leads somewhere
cargo xtask book --try     run the commands of all pages in a lab, a page after the other, and compare what they
                           print with what the pages show
cargo xtask book --try --debian [SUITE]   those of getting-started.md and install.md on a Debian host

  --no-build          take the programs as they were built last
  --packages FOLDER   where Xylem's packages for a Debian host are, as for `cargo xtask lab debian`
  --timeout SECONDS   for all of them (default 1800, on a Debian host 3600)

What was typed and printed is left in target/lab/book/transcript.txt, on a Debian host in target/lab/debian-book.";

/// The pages of somebody who has a Debian host and nothing else.
const ON_DEBIAN: [&str; 2] = ["getting-started.md", "install.md"];

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    match parser.next()? {
        None => render(),
        Some(Long("check")) => {
            let findings = findings()?;
            findings.iter().for_each(|finding| println!("book: {finding}"));
            println!("book: {} findings", findings.len());
            Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Long("try")) => try_it(&Trial::parse(parser)?),
        Some(Short('h') | Long("help")) => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(other.unexpected().into()),
    }
}

/// A run of the book's commands.
struct Trial {
    host: Host,
    /// For the Debian host.
    suite: Option<String>,
    packages: Option<PathBuf>,
    seconds: Option<u32>,
    no_build: bool,
}

impl Trial {
    fn parse(parser: &mut lexopt::Parser) -> Result<Self> {
        let mut trial =
            Self { host: Host::Small, suite: None, packages: None, seconds: None, no_build: false };
        while let Some(argument) = parser.next()? {
            match argument {
                Long("debian") => {
                    trial.host = Host::Debian;
                    trial.suite = parser.optional_value().map(ValueExt::string).transpose()?;
                }
                Value(suite) if trial.host == Host::Debian && trial.suite.is_none() => {
                    trial.suite = Some(suite.string()?);
                }
                Long("packages") => trial.packages = Some(parser.value()?.into()),
                Long("no-build") => trial.no_build = true,
                Long("timeout") => trial.seconds = Some(parser.value()?.parse()?),
                other => return Err(other.unexpected().into()),
            }
        }
        ensure!(
            trial.host == Host::Debian || trial.packages.is_none(),
            "--packages is for a host of --debian"
        );
        Ok(trial)
    }

    /// Runs the scenario of this path in the lab; says whether it succeeded.
    fn run(&self, scenario: &Path, results: &Path) -> Result<bool> {
        let mut command = Command::new(std::env::current_exe()?);
        let (verb, seconds) = match self.host {
            Host::Small => ("run", 1800),
            Host::Debian => ("debian", 3600),
        };
        command.args(["lab", verb, "--dom0-mem", "1536", "--timeout"]);
        command.arg(self.seconds.unwrap_or(seconds).to_string());
        if self.no_build {
            command.arg("--no-build");
        }
        if let Some(suite) = &self.suite {
            command.args(["--suite", suite]);
        }
        if let Some(packages) = &self.packages {
            command.arg("--packages").arg(packages);
        }
        Ok(command.arg("--results").arg(results).arg(scenario).status()?.success())
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

/// A page that was read.
struct Page {
    name: String,
    text: String,
    blocks: Vec<Block>,
    findings: Vec<Finding>,
}

impl Page {
    fn new(name: &str, text: &str) -> Self {
        let (blocks, findings) = page::read(text);
        Self { name: name.to_owned(), text: text.to_owned(), blocks, findings }
    }

    fn read(name: &str) -> Result<Self> {
        let path = docs().join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self::new(name, &text))
    }
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
    for name in listed {
        let Ok(page) = Page::read(&name) else {
            findings.push(format!("docs/SUMMARY.md: there is no {name}"));
            continue;
        };
        for (line, what) in &page.findings {
            findings.push(format!("docs/{name}:{line}: {what}"));
        }
        for link in page::links(&page.text).filter(|file| !docs().join(file).exists()) {
            findings.push(format!("docs/{name}: the link to {link} leads nowhere"));
        }
    }
    Ok(findings)
}

fn try_it(trial: &Trial) -> Result<ExitCode> {
    let found = findings()?;
    ensure!(found.is_empty(), "the book has findings: {}", found.join("; "));
    let (names, title) = match trial.host {
        Host::Small => (pages()?, "book"),
        Host::Debian => (ON_DEBIAN.map(str::to_owned).to_vec(), "debian-book"),
    };
    let pages = names.iter().map(|name| Page::read(name)).collect::<Result<Vec<_>>>()?;
    let target = lab::target_directory()?;
    let folder = target.join("book-scenarios");
    std::fs::create_dir_all(&folder)?;
    let scenario = folder.join(format!("{title}.sh"));
    std::fs::write(&scenario, script::script(&pages, trial.host))?;
    let results = target.join("lab").join(title);
    let succeeded = trial.run(&scenario, &results)?;
    let differences = differences(&pages, &results.join("book"));
    differences.iter().for_each(|it| println!("book: {it}"));
    println!("book: {} outputs differ from the pages", differences.len());
    println!("book: the transcript is {}", results.join("transcript.txt").display());
    Ok(if succeeded && differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where pages show what was not printed. What was not run on this host does not count.
fn differences(pages: &[Page], results: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for page in pages {
        let mut commands = None;
        for block in &page.blocks {
            match (&block.role, commands) {
                (Role::Commands(run), _) => commands = (*run != Run::Nowhere).then_some(block),
                (Role::Output(classes), Some(of)) => {
                    let place = script::place(&page.name, of);
                    let Ok(printed) = std::fs::read_to_string(results.join(place)) else {
                        continue;
                    };
                    let printed = script::without_commands(&printed, of);
                    if let Some(what) = output::difference(&block.text, &printed, classes) {
                        all.push(format!("docs/{}:{}: {what}", page.name, block.line));
                    }
                }
                _ => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_has_no_findings() {
        assert_eq!(findings().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn outputs_are_compared_with_what_their_commands_printed() {
        let text = "<!-- run -->\n```sh\nxy list\n```\n<!-- output, but for: numbers -->\n```text\nweb 1\n```\n";
        let pages = [Page::new("a.md", text)];
        let results = tempfile::tempdir().unwrap();
        let printed = results.path().join("a.md:2");
        // Not run here.
        assert_eq!(differences(&pages, results.path()), Vec::<String>::new());
        std::fs::write(&printed, "$ xy list\nweb 12\n").unwrap();
        assert_eq!(differences(&pages, results.path()), Vec::<String>::new());
        std::fs::write(&printed, "$ xy list\nsomething else\n").unwrap();
        assert_eq!(
            differences(&pages, results.path()),
            ["docs/a.md:6: 'web NUMBER' was not printed"]
        );
    }
}
