//! `cargo xtask clicks` and `views`, and what CI looks at: the page in a browser, before a simulated host or a real one.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lexopt::prelude::*;

use lab::cargo::{self, Target};

use crate::page;
use crate::web_host::{self, Options, WebHost};

const HELP: &str = "\
cargo xtask clicks [--seconds N] [--seed N] [--vms N]

Clicks and types at random in the page, before a simulated host whose VMs change, and fails at the first error in the
browser's console. The same seed clicks in the same places, as far as the page is the same by then.

  --seconds N  [600]
  --seed N     [1]
  --vms N      VMs of the host [1000]";

const VIEWS_HELP: &str = "\
cargo xtask views [--lab] [--vms N] [--view NAME]...

Opens each view of the page, or those that are named, at two sizes and in both themes, and checks it; pictures are left in
target/page. Then does what people do with the page (the view `use`).

  --lab        before a real host, in the lab, by TLS; pictures in target/page-on-xen
  --vms N      VMs of the simulated host [300]";

/// What the lab's scenario prints before the token and the certificate.
const PAGE: &str = "page: ";
/// How long a real host waits for all views.
const ON_XEN: Duration = Duration::from_secs(5400);
const XY: Target<'_> = Target::Program("xy");

/// The browser, with the Debian package it comes in.
const BROWSER: (&str, &str) = ("/usr/bin/chromium", "chromium");

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let (mut seconds, mut seed, mut vms) = (600, 1, 1000);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seconds") => seconds = parser.value()?.parse()?,
            Long("seed") => seed = parser.value()?.parse()?,
            Long("vms") => vms = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Bed::start(vms)?.click(seconds, seed)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `views` with the rest of the command line.
///
/// # Errors
/// A view has a fault, or the command line is wrong.
pub(crate) fn views(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let (mut is_lab, mut vms, mut views) = (false, 300, Vec::new());
    while let Some(argument) = parser.next()? {
        match argument {
            Long("lab") => is_lab = true,
            Long("vms") => vms = parser.value()?.parse()?,
            Long("view") => views.extend(["--view".to_owned(), parser.value()?.string()?]),
            Short('h') | Long("help") => {
                println!("{VIEWS_HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let views: Vec<&str> = views.iter().map(String::as_str).collect();
    match is_lab {
        true => on_xen(&views)?,
        false => Bed::start(vms)?.look_at(&views)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Boots a host, and looks at the page before it from outside.
fn on_xen(views: &[&str]) -> Result<()> {
    prepare()?;
    cargo::build(&[XY])?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let scenario = lab::Scenario::find("web-page")?;
    let mut options = lab::Options::new(&scenario.name)?;
    options.forward = Some(port);
    options.timeout = ON_XEN;
    let (sender, announced) = channel::<String>();
    let outcome = thread::scope(|scope| {
        let looker = scope.spawn(move || match announced.recv() {
            Ok(announced) => look_from_outside(port, &announced, views),
            Err(_) => bail!("the host never had a page"),
        });
        let outcome =
            lab::run(&options, &scenario, &[], &mut |line| match line.strip_prefix(PAGE) {
                // If nobody waits, the host is ended by its limit.
                Some(announced) => drop(sender.send(announced.to_owned())),
                None => println!("{line}"),
            });
        drop(sender);
        let looked = looker.join().unwrap_or_else(|_| bail!("the browser's thread has panicked"));
        outcome.and_then(|outcome| looked.map(|()| outcome))
    })?;
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    Ok(())
}

/// Opens the page that a host announces, by a token and a certificate in one line, and tells the host when all was seen.
fn look_from_outside(port: u16, announced: &str, views: &[&str]) -> Result<()> {
    let (token, certificate) = announced.split_once(' ').context("no token and certificate")?;
    let url = format!("https://127.0.0.1:{port}");
    let shots = shots("page-on-xen")?;
    let words = [&["--shots", &shots, "--insecure"], views].concat();
    let looked = test(&format!("{url}/#token={token}"), &words);
    let ca = lab::target_directory()?.join("page-on-xen").join("web.pem");
    std::fs::write(&ca, certificate.replace('|', "\n"))?;
    let mut xy = Command::new(cargo::path(XY)?);
    xy.args(["--host", &url, "destroy", "the-end"]).env("XYLEM_TOKEN", token).env("XYLEM_CA", ca);
    cargo::run(&mut xy, "xy --host cannot destroy the-end")?;
    looked
}

/// A folder for pictures.
fn shots(name: &str) -> Result<String> {
    let folder = lab::target_directory()?.join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder.to_str().context("the target folder's name is no text")?.to_owned())
}

/// The page, and a browser.
fn prepare() -> Result<()> {
    page::build()?;
    if !Path::new(BROWSER.0).exists() {
        lab::install(&[BROWSER.1])?;
    }
    Ok(())
}

fn test(url: &str, more: &[&str]) -> Result<()> {
    let words = ["run", "--silent", "test:browser", "--", "--url", url];
    let words = [&words[..], &["--chromium", BROWSER.0], more].concat();
    page::npm(&words, "the page has a fault in a browser")
}

/// A simulated host, the page before it, and a browser to look at it.
pub(crate) struct Bed(WebHost);

impl Bed {
    /// A host of which one VM or another changes all the time.
    pub(crate) fn start(vms: u32) -> Result<Self> {
        prepare()?;
        web_host::build()?;
        let mut options = Options::with_vms(vms);
        options.host.push("--busy".to_owned());
        Ok(Self(WebHost::start(&options)?))
    }

    /// Each view at the sizes of a telephone and of a desk, in both themes, unless more words say otherwise; with pictures.
    pub(crate) fn look_at(&self, more: &[&str]) -> Result<()> {
        test(&self.0.url, &[&["--shots", &shots("page")?], more].concat())
    }

    pub(crate) fn click(&self, seconds: u32, seed: u32) -> Result<()> {
        test(&self.0.url, &["--clicks", &seconds.to_string(), "--seed", &seed.to_string()])
    }
}
