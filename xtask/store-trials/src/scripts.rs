//! `cargo xtask store-scripts`: the conformance scripts of `crates/xenstore/tests/scripts`, asked of
//! running servers: ours and the packaged C xenstored.
//!
//! The store's own tests run the same scripts inside one process; the first lines of
//! `crates/xenstore/tests/it/scripts.rs` say how they are written. Here they keep us honest: where the
//! packaged server, which is some releases older, answers otherwise, the row says so in its comment:
//!
//! ```text
//! dom0 watch /a t 1    -> OK      # 4.17: EINVAL (no depth)
//! dom0 introduced 0    -> F       # daemon: T
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;
use xenstore::wire::MessageType as M;

use crate::stores::{Answer, Programs, Stage, Transition, domid_of};
use lab::Store;
use lab::workspace;

const HELP: &str = "\
cargo xtask store-scripts [--stores xylem,c] [SCRIPT...]

Runs conformance scripts against running servers; without names, all of them. Ends with 1 if an
answer is not the expected one.

  --lab            on real Xen: in the lab's dom0, each script on an empty store
  --socket PATH    on the store of this host, which has to be ours and empty: clients of the socket
                   only. A script ends at the first row that needs a guest's ring or a domain's death.";

/// Where the scripts are, from the workspace's root.
const FOLDER: &str = "crates/xenstore/tests/scripts";

/// Stands in a row's comment where the server is not to be asked, since that would be its end.
const NOT_ASKED: &str = "not asked";
/// Stands in a row's comment where the script ends for this server.
const STOP: &str = "stop";
/// Stands in a row's comment instead of an error that is a different one each time.
const ANY_ERROR: &str = "E*";

/// A row that was answered otherwise than expected.
struct Finding {
    place: String,
    row: String,
    expected: String,
    found: String,
}

/// # Errors
/// A server is missing, or a script is invalid.
pub fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut stores = vec![Store::Xylem, Store::C];
    let mut names = Vec::new();
    let mut socket = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(name) => names.push(name.string()?),
            Long("stores") => {
                let text = parser.value()?.string()?;
                stores = text.split(',').map(str::parse).collect::<Result<_>>()?;
            }
            Long("lab") => return on_real_xen(),
            Long("socket") => socket = Some(PathBuf::from(parser.value()?)),
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let findings = match socket {
        None => run(&stores, &names)?,
        Some(socket) => run_on_host(&socket, &names)?,
    };
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the scripts and prints what was not as expected; returns how much that was.
///
/// # Errors
/// As for [`main`].
pub fn run(stores: &[Store], names: &[String]) -> Result<usize> {
    let programs = Programs::prepare(stores)?;
    let mut findings = 0;
    for &store in stores {
        let mut rows = 0;
        for (name, text) in scripts(names)? {
            let mut script = Script::new(&programs, store)?;
            let outcome = script.run(&name, &text);
            rows += script.rows;
            print_findings(store, &script.findings);
            findings += script.findings.len();
            outcome.with_context(|| format!("{store} server"))?;
        }
        println!("store-scripts: {store}: {rows} answers");
    }
    println!("store-scripts: {findings} not as expected");
    Ok(findings)
}

/// The clients' part of the scripts, on the store of this host.
fn run_on_host(socket: &Path, names: &[String]) -> Result<usize> {
    let mut findings = 0;
    for (name, text) in scripts(names)? {
        let stage = Stage::on_host(socket)?;
        let mut script = Script::on(stage, None);
        script.run(&name, &text)?;
        let is_row = |line: &&str| {
            let row = Row::parse(line, Store::Xylem).request;
            !row.is_empty() && !row.starts_with("xen ") && !row.ends_with(" close")
        };
        let all = text.lines().filter(is_row).count();
        println!("store-scripts: {name}: {} of {all} answers asked", script.rows);
        print_findings(Store::Xylem, &script.findings);
        findings += script.findings.len();
    }
    Ok(findings)
}

/// Runs the lab's scenario, which calls this program in dom0.
///
/// # Errors
/// The host does not come up, or an answer is not the expected one.
pub fn on_real_xen() -> Result<ExitCode> {
    let mut options = lab::Options::new("store-scripts")?;
    options.files.push(lab::ExtraFile {
        host: std::env::current_exe()?,
        dom0: "/root/xtask/store-scripts".to_owned(),
    });
    for entry in std::fs::read_dir(workspace().join(FOLDER))? {
        let host = entry?.path();
        let name = host.file_name().unwrap_or_default().to_string_lossy().into_owned();
        options.files.push(lab::ExtraFile { host, dom0: format!("/root/{FOLDER}/{name}") });
    }
    let scenario = lab::Scenario::find("store-scripts")?;
    let outcome = lab::run(&options, &scenario, &[], &mut |line| println!("{line}"))?;
    Ok(if outcome.status == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_findings(store: Store, findings: &[Finding]) {
    for Finding { place, row, expected, found } in findings {
        println!("{store}: {place}: {row}\n    expected {expected}\n    found    {found}");
    }
}

fn scripts(names: &[String]) -> Result<Vec<(String, String)>> {
    let folder = workspace().join(FOLDER);
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        files.push(entry?.path());
    }
    files.sort();
    let mut scripts = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if names.is_empty() || names.contains(&name) {
            scripts.push((name, std::fs::read_to_string(&file)?));
        }
    }
    ensure!(!scripts.is_empty(), "there is no such script in {}", folder.display());
    Ok(scripts)
}

struct Script {
    /// To start the server again, should it die.
    programs: Option<Programs>,
    stage: Stage,
    transactions: BTreeMap<String, u32>,
    findings: Vec<Finding>,
    rows: usize,
}

/// A row without its comment, and what the comment says of this server.
struct Row<'a> {
    request: &'a str,
    expected: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str, store: Store) -> Self {
        let (body, comment) = line.split_once('#').unwrap_or((line, ""));
        let (request, expected) = match body.split_once("->") {
            Some((request, expected)) => (request.trim(), Some(expected.trim())),
            None => (body.trim(), None),
        };
        let marker = if store == Store::Xylem { "daemon:" } else { "4.17:" };
        let special = comment.split(';').find_map(|part| part.trim().strip_prefix(marker));
        let special = special.map(|text| text.split(" (").next().unwrap_or_default().trim());
        Self { request, expected: special.or(expected) }
    }
}

impl Script {
    fn new(programs: &Programs, store: Store) -> Result<Self> {
        Ok(Self::on(Stage::start(programs, store)?, Some(programs.clone())))
    }

    fn on(stage: Stage, programs: Option<Programs>) -> Self {
        Self { programs, stage, transactions: BTreeMap::new(), findings: Vec::new(), rows: 0 }
    }

    fn run(&mut self, name: &str, text: &str) -> Result<()> {
        for (number, line) in text.lines().enumerate() {
            let row = Row::parse(line, self.stage.store());
            if row.request.is_empty() {
                continue;
            }
            let who = row.request.split([' ', ':']).next().unwrap_or_default();
            let needs_domains = who == "xen" || domid_of(who).is_some();
            if row.expected == Some(STOP) || (needs_domains && !self.stage.has_domains()) {
                break;
            }
            let place = format!("{name}.txt:{}", number + 1);
            self.row(&place, &row).with_context(|| place.clone())?;
        }
        Ok(())
    }

    fn row(&mut self, place: &str, row: &Row<'_>) -> Result<()> {
        let mut words = row.request.split_whitespace();
        let who = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        if who == "xen" {
            return self.xen(&words);
        }
        let (who, transaction) = match who.split_once(':') {
            // A transaction that this server did not start has a number that none has.
            Some((who, name)) => (who, self.transactions.get(name).copied().unwrap_or(u32::MAX)),
            None => (who, 0),
        };
        if who.starts_with('s') {
            self.stage.connect(who)?;
        }
        let (expected, found) = match words[..] {
            ["close"] => {
                self.stage.close(who);
                return Ok(());
            }
            ["events", ref expected @ ..] => {
                self.stage.settle()?;
                let events = self.stage.take_events(who);
                let found: Vec<String> =
                    events.iter().map(|event| format!("{}:{}", event.path, event.token)).collect();
                let expected = row.expected.map_or_else(|| expected.join(" "), str::to_owned);
                (expected, found.join(" "))
            }
            _ if !self.stage.is_served(who) => {
                (row.expected.unwrap_or_default().to_owned(), { "(not served)".to_owned() })
            }
            _ if row.expected == Some(NOT_ASKED) => return Ok(()),
            _ => {
                let expected = row.expected.context("what is the answer?")?;
                let found = match self.ask(who, transaction, &words) {
                    Ok(found) => found,
                    Err(error) if self.stage.has_died() => {
                        let programs = self.programs.as_ref().context("it was not started here")?;
                        self.stage = Stage::start(programs, self.stage.store())?;
                        format!("(the server dies: {error:#})")
                    }
                    Err(error) => return Err(error),
                };
                (expected.to_owned(), found)
            }
        };
        self.rows += 1;
        let (expected, found) = match self.stage.store() {
            Store::Xylem => (expected, found),
            _ => (known(&words, &expected), known(&words, &found)),
        };
        let is_error = |text: &str| text.len() > 1 && text.starts_with('E') && !text.contains(' ');
        if expected != found && !(expected == ANY_ERROR && is_error(&found)) {
            let (place, row) = (place.to_owned(), row.request.to_owned());
            self.findings.push(Finding { place, row, expected, found });
        }
        Ok(())
    }

    fn xen(&mut self, words: &[&str]) -> Result<()> {
        let domids: Result<Vec<u16>, _> = words[1..].iter().map(|word| word.parse()).collect();
        let domids = domids?;
        let change = match words[0] {
            "create" => {
                return domids.iter().try_for_each(|&domid| self.stage.create_domain(domid));
            }
            "guest" => return domids.iter().try_for_each(|&domid| self.stage.add_guest(domid)),
            "ring" => {
                domids.iter().for_each(|&domid| self.stage.adopt_ring(domid));
                return Ok(());
            }
            "shutdown" => Transition::Shutdown,
            "unshutdown" => Transition::Running,
            "dying" => Transition::Dying,
            "destroy" => Transition::Destroyed,
            "shutdown-and-destroy" => {
                let [stops, goes] = domids[..] else { bail!("exactly two domains are needed") };
                let changes = [(Transition::Shutdown, stops), (Transition::Destroyed, goes)];
                return self.stage.change_all(&changes);
            }
            other => bail!("no such event '{other}'"),
        };
        self.stage.change(change, &domids)
    }

    /// Sends the request and spells the answer as scripts do.
    fn ask(&mut self, who: &str, transaction: u32, words: &[&str]) -> Result<String> {
        let joined =
            |words: &[&str]| words.iter().map(|word| format!("{word}\0")).collect::<String>();
        let of_name =
            |script: &Self, name: &str| script.transactions.get(name).copied().unwrap_or(u32::MAX);
        let (kind, payload) = match words {
            ["raw", kind, payload @ ..] => {
                let payload = payload.join(" ").replace('|', "\0");
                let code = kind.parse().context("a number of a type")?;
                return Ok(spell(self.stage.ask(who, code, transaction, payload.as_bytes())?));
            }
            ["start", name] => {
                let code = M::TransactionStart.code();
                return Ok(match self.stage.ask(who, code, transaction, b"\0")? {
                    Ok(id) => {
                        let id = String::from_utf8(id)?.trim_end_matches('\0').parse()?;
                        self.transactions.insert((*name).to_owned(), id);
                        "OK".to_owned()
                    }
                    Err(error) => error,
                });
            }
            ["commit" | "abort", name] => {
                let verdict: &[u8] = if words[0] == "commit" { b"T\0" } else { b"F\0" };
                let id = of_name(self, name);
                return Ok(spell(self.stage.ask(who, M::TransactionEnd.code(), id, verdict)?));
            }
            ["part", rest @ ..] => {
                let payload = joined(rest);
                let code = M::DirectoryPart.code();
                // Each NUL counts here.
                let answer = self.stage.ask(who, code, transaction, payload.as_bytes())?;
                return Ok(match answer {
                    Ok(payload) => String::from_utf8_lossy(&payload).replace('\0', "|"),
                    Err(error) => error,
                });
            }
            ["write", path, value @ ..] => (M::Write, format!("{path}\0{}", value.join(" "))),
            ["reset-watches"] => (M::ResetWatches, "\0".to_owned()),
            [verb, rest @ ..] => {
                let kind = kind(verb).with_context(|| format!("no such request '{verb}'"))?;
                (kind, joined(rest))
            }
            [] => bail!("no request"),
        };
        let answer = self.stage.ask(who, kind.code(), transaction, payload.as_bytes())?;
        if let (["release", domid], Ok(_)) = (words, &answer) {
            self.stage.abandon_ring(domid.parse()?);
        }
        Ok(spell(answer))
    }
}

/// The type of a request that a script names by its verb.
fn kind(verb: &str) -> Option<M> {
    Some(match verb {
        "read" => M::Read,
        "ls" => M::Directory,
        "mkdir" => M::Mkdir,
        "rm" => M::Rm,
        "perms" => M::GetPerms,
        "chmod" => M::SetPerms,
        "watch" => M::Watch,
        "unwatch" => M::Unwatch,
        "introduce" => M::Introduce,
        "introduced" => M::IsDomainIntroduced,
        "release" => M::Release,
        "resume" => M::Resume,
        "target" => M::SetTarget,
        "path" => M::GetDomainPath,
        "features" => M::GetFeature,
        "set-feature" => M::SetFeature,
        "quota" => M::GetQuota,
        "set-quota" => M::SetQuota,
        "control" => M::Control,
        _ => return None,
    })
}

/// The answer without what always differs from the packaged server's.
fn known(words: &[&str], answer: &str) -> String {
    match words {
        // Messages that came with 4.21 and later.
        ["features" | "set-feature" | "quota" | "set-quota", ..]
        | ["raw", "23" | "24" | "25" | "26", ..] => "ENOSYS".to_owned(),
        // Any number that changes with the list of children is a generation.
        ["part", ..] => match answer.split_once('|') {
            Some((_, names)) => format!("GENERATION|{names}"),
            None => answer.to_owned(),
        },
        _ => answer.to_owned(),
    }
}

/// `OK`, an error's name, or the payload: a NUL shows as a blank between strings, `""` is empty.
fn spell(answer: Answer) -> String {
    match answer {
        Err(error) => error,
        Ok(payload) if payload.is_empty() => "\"\"".to_owned(),
        Ok(payload) => {
            let text = String::from_utf8_lossy(&payload);
            text.strip_suffix('\0').unwrap_or(&text).replace('\0', " ")
        }
    }
}
