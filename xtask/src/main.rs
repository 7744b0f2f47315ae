//! The one door to everything that is done with this workspace: `cargo xtask COMMAND`.

mod bench;
mod book;
mod browser;
mod churn;
mod ci;
mod demo;
mod flamegraph;
mod fuzz;
mod images;
mod kills;
mod layouts;
mod messages;
mod moves;
mod package;
mod page;
mod tidy;
mod web_host;
mod worlds;

use std::process::ExitCode;

use anyhow::{Result, bail};
use lexopt::prelude::*;

const HELP: &str = "\
cargo xtask COMMAND

  demo    20 VMs on a real Xen in QEMU; with --sim, 1000 on a simulated host
  ci      format, lints, tests, simulation seeds, scenarios on real Xen
  lab     boot a real Xen host in QEMU and run a scenario in its dom0
  bench   ours and the peer, measured in turn
  book    docs/ as a book, and its commands run in a lab
  fuzz    arbitrary bytes for the store, with libFuzzer
  clicks  random clicks in the web page, in a browser, before a simulated host
  views   each view of the web page in a browser, before a simulated host or a real one
  images  VMs of damaged kernels and ramdisks on the simulated host
  churn   days of a simulated host's life with all kinds of trouble
  kills   kills the toolstack daemon at every step, on the simulated host
  moves   moves a VM between two simulated hosts while daemons, hosts and the network fail
  package Debian packages and a tarball of the last commit
  worlds  random worlds on the simulated host, in which as much goes wrong as can
  store-clients   packaged clients, run on our store and on the packaged one
  store-diff      a random script, asked of our store and of the packaged one
  store-hostile   guests and clients that break every rule, and what the others notice of it
  store-scripts   conformance scripts, asked of our store and of the packaged one
  store-crash     kills our store again and again under guests and clients that must not notice
  store-take-over hands a running store from Xen's daemon to ours and back under clients and guests
  store-unit      our store's systemd unit, run by a systemd in namespaces of its own
  layouts our structures against the headers of each Xen that Debian has
  messages every sentence that an operator can meet, in one list
  tidy    rules of this workspace that no compiler checks

`cargo xtask COMMAND --help` says more.";

fn main() -> ExitCode {
    match dispatch() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<ExitCode> {
    let mut parser = lexopt::Parser::from_env();
    match parser.next()? {
        Some(Value(command)) => match command.string()?.as_str() {
            "demo" => demo::main(&mut parser),
            "ci" => ci::main(&mut parser),
            "bench" => bench::main(&mut parser),
            "book" => book::main(&mut parser),
            "churn" => churn::main(&mut parser),
            "clicks" => browser::main(&mut parser),
            "views" => browser::views(&mut parser),
            "kills" => kills::main(&mut parser),
            "moves" => moves::main(&mut parser),
            "package" => package::main(&mut parser),
            "worlds" => worlds::main(&mut parser),
            "fuzz" => fuzz::main(&mut parser),
            "images" => images::main(&mut parser),
            "store-clients" => store_trials::clients::main(&mut parser),
            "store-diff" => store_trials::diff::main(&mut parser),
            "store-hostile" => store_trials::hostile::main(&mut parser),
            "store-crash" => store_trials::crash::main(&mut parser),
            "store-scripts" => store_trials::scripts::main(&mut parser),
            "store-take-over" => store_trials::take_over::main(&mut parser),
            "store-unit" => store_trials::unit::main(),
            store_trials::unit::LIVE_UPDATE => {
                let socket = parser.value()?;
                store_trials::unit::update(
                    std::path::Path::new(&socket),
                    &parser.value()?.string()?,
                )
            }
            "layouts" => layouts::main(),
            "messages" => messages::main(&mut parser),
            "tidy" => tidy::main(),
            store_trials::stores::BARE_STORE => {
                store_trials::stores::serve_without_a_store(std::path::Path::new(
                    &parser.value()?,
                ))?;
                Ok(ExitCode::SUCCESS)
            }
            "lab" => lab::command::main(&mut parser, package::build_all),
            other => bail!("there is no command '{other}'\n{HELP}"),
        },
        Some(Short('h') | Long("help")) | None => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(other.unexpected().into()),
    }
}
