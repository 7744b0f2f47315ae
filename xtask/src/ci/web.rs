//! What browsers and other remote clients make of `xylem-web`, before a simulated host.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lab::workspace;

use crate::browser::Bed;
use crate::page;
use crate::web_host::{self, Options, WebHost};

/// VMs of the host that browsers look at: more than fit on a screen.
const VMS: u32 = 300;
/// Random clicks, in seconds, and their seed.
const CLICKS: (u32, u32) = (30, 7);
/// Packages of PyPI that are clients, check what clients read, or make clients of it; with the module of each.
const OF_PYPI: [(&str, &str); 4] = [
    ("XenAPI", "XenAPI"),
    ("openapi-spec-validator", "openapi_spec_validator"),
    ("openapi-python-client==0.29.1", "openapi_python_client"),
    ("mypy==2.4.1", "mypy"),
];
/// The VM that clients of XenAPI turn on and off.
const TRIED: &str = "tried";

/// Types, tests and build of the page.
pub(super) fn page() -> Result<()> {
    page::packages()?;
    page::npm(&["run", "--silent", "check"], "types of the page are wrong")?;
    page::npm(&["test", "--silent"], "a test of the page has failed")?;
    page::build()
}

/// Each view of the page in a browser, then random clicks. `cargo xtask views` has both sizes in both themes, and `cargo xtask clicks`
/// clicks for longer.
pub(super) fn browser() -> Result<()> {
    let bed = Bed::start(VMS)?;
    bed.look_at(&["--quick"])?;
    bed.click(CLICKS.0, CLICKS.1)
}

/// Clients that others wrote, and the document that they are made from.
pub(super) fn clients() -> Result<()> {
    web_host::build()?;
    let python = python()?;
    let mut options = Options::with_vms(10);
    let clients = [("admin", "admin"), ("operator", "operator"), ("viewer", "viewer")];
    options.clients = clients.map(|(name, role)| (name.to_owned(), role)).to_vec();
    let disks = lab::target_directory()?.join("xenapi-disks");
    std::fs::create_dir_all(&disks)?;
    options.host.extend(["--disks".to_owned(), disks.display().to_string()]);
    options.web = ["--xenapi", "--rate", "100000"].map(str::to_owned).to_vec();
    let host = WebHost::start(&options)?;
    let document = lab::target_directory()?.join("openapi.json");
    fetch(&host, &document)?;
    run(Command::new(&python).args(["-m", "openapi_spec_validator"]).arg(&document))?;
    let trials = workspace().join("crates/xenapi/clients");
    let script = |name: &str| {
        let mut command = Command::new(&python);
        command.arg(trials.join("python").join(name));
        command
    };
    run(script("prepare.py").arg(&host.socket).arg(TRIED))?;
    let [admin, operator, viewer] = &host.tokens[..] else { unreachable!("three were asked for") };
    run(script("lifecycle.py").args([&host.url, "admin", admin, TRIED]))?;
    run(script("roles.py").args([&host.url, "operator", operator, "viewer", viewer, TRIED]))?;
    let node = trials.join("node");
    npm(&node, &["ci", "--no-audit", "--no-fund", "--loglevel=error"])?;
    for transport in ["json-rpc", "xml-rpc"] {
        let mut command = Command::new("node");
        command.arg("follow.mjs").args([&host.url, "admin", admin, TRIED]).arg(transport);
        run(command.current_dir(&node))?;
    }
    let mut command = Command::new("node");
    command.arg("contents.mjs").args([&host.url, "admin", admin]).arg(&disks);
    run(command.current_dir(&node))?;
    generated(&python, &document, &[&host.url, admin, TRIED])
}

/// Clients that generators make of the document, checked by their languages' compilers, and used.
fn generated(python: &Path, document: &Path, arguments: &[&str]) -> Result<()> {
    let trials = workspace().join("crates/web/clients");
    let made = lab::target_directory()?.join("python-client");
    std::fs::create_dir_all(&made)?;
    let mut generator = Command::new(python);
    generator.args(["-m", "openapi_python_client", "generate", "--meta", "none", "--overwrite"]);
    generator.arg("--fail-on-warning").arg("--path").arg(document);
    generator.arg("--config").arg(trials.join("python/generator.yml"));
    run(generator.arg("--output-path").arg(made.join("xylem_client")))?;
    let script = trials.join("python/use.py");
    let with_client = |words: &[&str]| {
        let mut command = Command::new(python);
        command.args(words).arg(&script).env("PYTHONPATH", &made).env("MYPYPATH", &made);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    run(with_client(&["-m", "mypy", "--strict", "--cache-dir=/dev/null"]).current_dir(&made))?;
    run(with_client(&[]).args(arguments))?;

    let folder = trials.join("typescript");
    npm(&folder, &["ci", "--no-audit", "--no-fund", "--loglevel=error"])?;
    let document = document.to_str().context("the document's name is no text")?;
    npm(&folder, &["exec", "--", "openapi-typescript", document, "-o", "generated/xylem.d.ts"])?;
    npm(&folder, &["exec", "--", "tsc", "-p", "."])?;
    run(Command::new("node").arg("build/use.js").args(arguments).current_dir(&folder))
}

fn npm(folder: &Path, words: &[&str]) -> Result<()> {
    run(Command::new("npm").args(words).current_dir(folder))
}

/// Python with the packages that clients need, in an environment of its own.
fn python() -> Result<PathBuf> {
    let folder = lab::target_directory()?.join("python");
    let python = folder.join("bin/python3");
    let works = |(_, module): &(&str, &str)| {
        let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
        found.is_ok_and(|output| output.status.success())
    };
    if OF_PYPI.iter().all(works) {
        return Ok(python);
    }
    let make = || Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
    if !make().is_ok_and(|output| output.status.success()) {
        lab::install(&["python3-venv"])?;
        let output = make().context("python3 does not start")?;
        ensure!(
            output.status.success(),
            "python3 -m venv: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(words).args(OF_PYPI.map(|(package, _)| package)))?;
    Ok(python)
}

fn fetch(host: &WebHost, to: &Path) -> Result<()> {
    let url = format!("{}/v1/openapi.json", host.url);
    run(Command::new("python3").args(["-c", FETCH, &url]).arg(to))
}

const FETCH: &str =
    "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])";

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
    // Tokens are in some.
    let first = arguments.first().map(|it| it.as_ref()).unwrap_or_default().to_owned();
    let status = command.status().with_context(|| format!("{name} does not start"))?;
    ensure!(status.success(), "{name} {first} has failed: {status}");
    Ok(())
}
