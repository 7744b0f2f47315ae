//! `cargo xtask clicks`, and what CI looks at: the page in a browser, before a simulated host.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use lexopt::prelude::*;

use crate::page;
use crate::web_host::{self, Options, WebHost};

const HELP: &str = "\
cargo xtask clicks [--seconds N] [--seed N] [--vms N]

Clicks and types at random in the page, before a simulated host whose VMs change, and fails at the first error in the
browser's console. The same seed clicks in the same places, as far as the page is the same by then.

  --seconds N  [600]
  --seed N     [1]
  --vms N      VMs of the host [1000]";

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

/// A simulated host, the page before it, and a browser to look at it.
pub(crate) struct Bed(WebHost);

impl Bed {
    /// A host of which one VM or another changes all the time.
    pub(crate) fn start(vms: u32) -> Result<Self> {
        page::build()?;
        web_host::build()?;
        if !Path::new(BROWSER.0).exists() {
            lab::install(&[BROWSER.1])?;
        }
        let mut options = Options::with_vms(vms);
        options.host.push("--busy".to_owned());
        Ok(Self(WebHost::start(&options)?))
    }

    /// Each view, at the sizes of a telephone and of a desk, in both themes; with pictures.
    pub(crate) fn look_at_views(&self) -> Result<()> {
        let pictures = lab::target_directory()?.join("page");
        std::fs::create_dir_all(&pictures)?;
        let pictures = pictures.to_str().context("the target folder's name is no text")?;
        self.test(&["--shots", pictures])
    }

    pub(crate) fn click(&self, seconds: u32, seed: u32) -> Result<()> {
        self.test(&["--clicks", &seconds.to_string(), "--seed", &seed.to_string()])
    }

    fn test(&self, more: &[&str]) -> Result<()> {
        let words = ["run", "--silent", "test:browser", "--", "--url", &self.0.url];
        let words = [&words[..], &["--chromium", BROWSER.0], more].concat();
        page::npm(&words, "the page has a fault in a browser")
    }
}
