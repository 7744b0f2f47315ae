//! `cargo xtask store-take-over`: a running store goes from Xen's daemon to ours, on to another of ours
//! and back, while everybody works: clients of the socket, guests on rings, one who has sent half a
//! request, one who reads nothing, one with a transaction open.
//!
//! Everybody knows what every answer and event has to be, so whatever is lost or comes twice is seen.
//! The servers run on a host made of files, Xen's under the shim of `lab/xsfake.c`.

mod bystanders;
mod workers;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;
use xenstore::wire::MessageType as M;

use crate::crash::seed_of_clock;
use crate::stores::{Connection, Daemon, Placement, Programs};
use bystanders::Bystanders;
use lab::Store;
use workers::Scene;

const HELP: &str = "\
cargo xtask store-take-over [options]

Hands a running store from C xenstored 4.17 to ours, to ours again and back by live update, under clients
and guests that know what every answer has to be. Ends with 1 if one of them is told anything else.

  --rounds N    how often there and back under load (default 1)
  --guests N    guests on rings (default 4)
  --sockets N   clients of the socket (default 4)
  --nodes N     further nodes in the store (default 2000)
  --seed N      of where requests are cut (default from the clock)";

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub rounds: u32,
    pub guests: u16,
    pub sockets: u16,
    pub nodes: u32,
    pub seed: u64,
}

impl Options {
    pub fn new() -> Result<Self> {
        Ok(Self { rounds: 1, guests: 4, sockets: 4, nodes: 2000, seed: seed_of_clock()? })
    }
}

/// # Errors
/// A server is missing, or a client got a wrong answer.
pub fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut options = Options::new()?;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("guests") => options.guests = parser.value()?.parse()?,
            Long("sockets") => options.sockets = parser.value()?.parse()?,
            Long("nodes") => options.nodes = parser.value()?.parse()?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(options)?;
    Ok(ExitCode::SUCCESS)
}

/// Whom the store is handed to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum To {
    /// C xenstored, which the process becomes.
    C,
    /// Ours, beside the one that serves if that is ours, too.
    Ours,
    /// Ours, which the process becomes: it reads version 2 of the state, which 4.17 does not know.
    OursByVersion2,
    /// A program that ends at once, and one that ends when it should serve.
    Nobody,
    NobodyLate,
}

const UNDER_LOAD: [To; 7] =
    [To::Ours, To::Nobody, To::Ours, To::OursByVersion2, To::NobodyLate, To::C, To::Ours];
const AT_REST: [To; 4] = [To::C, To::Ours, To::Ours, To::OursByVersion2];

/// For the one that serves to say who it is.
const PATIENCE: Duration = Duration::from_secs(120);

/// How our daemon marks itself as one that can be started beside another.
const SUCCESSOR_MARK: &str = "xylem-xenstored successor, version 3";

/// What serves now, and what could.
struct Served {
    daemon: Daemon,
    store: Store,
    xylem: PathBuf,
    c: PathBuf,
    /// The packaged xenstore-control.
    clients: PathBuf,
}

/// # Errors
/// As for [`main`].
pub fn run(options: Options) -> Result<()> {
    let programs = Programs::prepare(&[Store::Xylem, Store::C])?;
    let clients = crate::clients::unpack()?;
    let daemon = Daemon::start(&programs, Store::C, Placement::default(), &[])?;
    let xylem = programs.path_of(Store::Xylem)?;
    let c = programs.path_of(Store::C)?;
    let mut served = Served { daemon, store: Store::C, xylem, c, clients };
    let outcome = drive(&mut served, options);
    let output = served.daemon.output();
    outcome.with_context(|| format!("seed {}; the servers said: {output}", options.seed))
}

fn drive(served: &mut Served, options: Options) -> Result<()> {
    let mut operator = served.daemon.connect()?;
    fill(&mut operator, options.nodes)?;
    let scene = Scene::new(options.seed);
    let mut prepared = Vec::new();
    for domid in 1..=options.guests {
        let guest = served.daemon.introduce(&mut operator, domid)?;
        let home = format!("/local/domain/{domid}");
        operator.call(M::Write, 0, format!("{home}\0").as_bytes())?;
        operator.call(M::SetPerms, 0, format!("{home}\0n{domid}\0").as_bytes())?;
        prepared.push(workers::of_guest(&scene, domid, guest));
    }
    for number in 0..options.sockets {
        prepared.push(workers::of_socket(&scene, number, served.daemon.connect()?));
    }
    let mut bystanders = Bystanders::new(&served.daemon)?;
    let began = Instant::now();
    let updates = std::thread::scope(|threads| {
        let workers: Vec<_> = prepared
            .into_iter()
            .map(|mut worker| threads.spawn(|| worker.run().map(|()| worker)))
            .collect();
        let mut updates = 0;
        let mut load = || -> Result<()> {
            for _ in 0..options.rounds {
                // Each round begins with C.
                if served.store != Store::C {
                    update_under_load(served, &mut operator, &scene, &mut bystanders, To::C)?;
                    updates += 1;
                }
                for to in UNDER_LOAD {
                    update_under_load(served, &mut operator, &scene, &mut bystanders, to)?;
                    updates += 1;
                }
            }
            scene.wait_for_progress()
        };
        let outcome = load();
        scene.end();
        for worker in workers {
            let worker = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            worker?.check_end()?;
        }
        outcome.map(|()| updates)
    })?;
    bystanders.check_end()?;
    // Nothing changes any more: the whole tree, with permissions, is as it was.
    for to in AT_REST {
        let before = tree(&mut operator)?;
        let child = served.begin_update(to)?;
        let took = served.end_update(&mut operator, to, child)?;
        let after = tree(&mut operator)?;
        let differs = before.iter().zip(&after).find(|(before, after)| before != after);
        ensure!(before == after, "{to:?} changed the tree: {differs:?}");
        println!("store-take-over: at rest, to {to:?}: {} nodes alike, {took:?}", after.len());
    }
    println!(
        "store-take-over: {} updates in {:.1} s, {updates} of them under {} guests and {} sockets: \
         {} requests and {} events as they have to be; seed {}",
        updates + AT_REST.len(),
        began.elapsed().as_secs_f64(),
        options.guests,
        options.sockets,
        scene.requests(),
        scene.events() + bystanders.events(),
        options.seed,
    );
    Ok(())
}

fn update_under_load(
    served: &mut Served,
    operator: &mut Connection,
    scene: &Scene,
    bystanders: &mut Bystanders,
    to: To,
) -> Result<()> {
    let from = served.store;
    let context = || format!("from {from} to {to:?}");
    scene.wait_for_progress()?;
    // C waits for the rest of a message whose header is complete, and serves no client meanwhile.
    let half = if from == Store::C || to == To::C { 11 } else { 21 };
    bystanders.begin(operator, half).with_context(context)?;
    scene.forget_longest();
    // No transaction is carried by an exec: it waits until they are over.
    let by_exec = from == Store::C || matches!(to, To::C | To::OursByVersion2);
    let took = if matches!(to, To::Nobody | To::NobodyLate) {
        let before = served.daemon.serving_process()?;
        let answer = served.ask(operator, to)?;
        ensure!(answer.contains("the other daemon has"), "{to:?} was answered with '{answer}'");
        ensure!(served.daemon.serving_process()? == before, "another process serves");
        None
    } else {
        let child = served.begin_update(to)?;
        if by_exec {
            bystanders.commit().with_context(context)?;
        }
        Some(served.end_update(operator, to, child).with_context(context)?)
    };
    if !by_exec {
        bystanders.commit().with_context(context)?;
    }
    bystanders.go_on().with_context(context)?;
    scene.wait_for_progress().with_context(context)?;
    let longest = scene.longest();
    match took {
        Some(took) => println!(
            "store-take-over: {from} to {to:?}: {took:?}; the longest that anybody waited: {longest:?}"
        ),
        None => println!("store-take-over: {from} to {to:?}: {from} continues; {longest:?}"),
    }
    Ok(())
}

/// An update on its way.
struct Begun {
    since: Instant,
    /// Who served before.
    process: u32,
    tool: Option<Child>,
    /// A client that requested the update without the tool, and waits for the reply.
    asked: Option<Connection>,
}

impl Served {
    fn options_of(&self, to: To) -> String {
        match to {
            To::C => "-N --quota memory=0".to_owned(),
            _ => {
                let folder = self.daemon.folder().display();
                format!("--no-fork --host dir:{folder} --pid-file {folder}/pid")
            }
        }
    }

    fn program(&self, to: To) -> Result<PathBuf> {
        let ours = self.xylem.display();
        let text = match to {
            To::C => return Ok(self.c.clone()),
            To::Ours => return Ok(self.xylem.clone()),
            To::OursByVersion2 => format!("#!/bin/sh\nexec '{ours}' \"$@\"\n"),
            To::Nobody => format!("#!/bin/sh\n# {SUCCESSOR_MARK}\nexit 1\n"),
            To::NobodyLate => format!(
                "#!/bin/sh\n# {SUCCESSOR_MARK}\nexec '{ours}' \"$@\" --trace-file /no/such/folder/f\n"
            ),
        };
        use std::os::unix::fs::PermissionsExt;
        let path = self.daemon.folder().join(format!("{to:?}"));
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(path)
    }

    /// Starts an update that is meant to succeed.
    fn begin_update(&self, to: To) -> Result<Begun> {
        let (since, process) = (Instant::now(), self.daemon.serving_process()?);
        if to == To::OursByVersion2 {
            let mut client = self.daemon.connect()?;
            self.choose(&mut client, to)?;
            let mut bytes = Vec::new();
            let payload = b"live-update\0-s\0-v\x002\0-t\x0060\0";
            crate::stores::request(&mut bytes, M::Control, 1, 0, &[payload]);
            client.send(&bytes)?;
            return Ok(Begun { since, process, tool: None, asked: Some(client) });
        }
        let tool = Command::new(self.clients.join("usr/lib/xen-4.17/bin/xenstore-control"))
            .args(["live-update", "-c", &self.options_of(to), "-t", "60"])
            .arg(self.program(to)?)
            .env("LD_LIBRARY_PATH", self.clients.join("usr/lib/x86_64-linux-gnu"))
            .env("XENSTORED_RUNDIR", self.daemon.folder())
            .env_remove("XENSTORED_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("xenstore-control does not start")?;
        Ok(Begun { since, process, tool: Some(tool), asked: None })
    }

    /// Waits for its answer, and for the daemon to serve.
    fn end_update(&mut self, operator: &mut Connection, to: To, begun: Begun) -> Result<Duration> {
        if let Some(tool) = begun.tool {
            let output = tool.wait_with_output()?;
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            ensure!(output.status.success(), "xenstore-control says: {}", said.trim());
        }
        if let Some(mut client) = begun.asked {
            let (code, payload) = client.wait_message()?;
            let text = String::from_utf8_lossy(&payload).into_owned();
            ensure!((code, text.as_str()) == (M::Control.code(), "OK\0"), "answered with {text}");
        }
        // Somebody who was there before is answered.
        operator.call(M::Directory, 0, b"/\0")?;
        let took = begun.since.elapsed();
        let is_beside = self.store == Store::Xylem && to == To::Ours;
        self.store = if to == To::C { Store::C } else { Store::Xylem };
        let wanted = std::fs::canonicalize(if to == To::C { &self.c } else { &self.xylem })?;
        // Who takes over beside another one says so only once everybody is served.
        loop {
            let process = self.daemon.serving_process().unwrap_or(begun.process);
            let serves = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
            if serves == wanted && (process != begun.process) == is_beside {
                break;
            }
            let (serves, wanted) = (serves.display(), wanted.display());
            ensure!(begun.since.elapsed() < PATIENCE, "{serves} serves instead of {wanted}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(took)
    }

    /// Names the program and its options.
    fn choose(&self, client: &mut Connection, to: To) -> Result<()> {
        let program = self.program(to)?;
        for (word, value) in [("-f", program.display().to_string()), ("-c", self.options_of(to))] {
            let payload = format!("live-update\0{word}\0{value}\0");
            let answer = client.call(M::Control, 0, payload.as_bytes())?;
            ensure!(answer == b"OK\0", "{word}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }

    /// A whole update by requests; gives its answer.
    fn ask(&self, client: &mut Connection, to: To) -> Result<String> {
        self.choose(client, to)?;
        let answer = client.call(M::Control, 0, b"live-update\0-s\0")?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Nodes of many shapes.
fn fill(client: &mut Connection, nodes: u32) -> Result<()> {
    let long = "x".repeat(3000);
    client.call_all(
        M::Write,
        (0..nodes).map(|i| {
            let value = match i % 50 {
                0 => long.as_str(),
                1 => "",
                2 => "a\0b\n",
                _ => "0123456789abcdef",
            };
            format!("/filling/{}/{i}\0{value}", i / 100).into_bytes()
        }),
    )?;
    client.call_all(
        M::SetPerms,
        (0..nodes).step_by(7).map(|i| {
            let letter = ["n", "r", "w", "b"][(i as usize / 7) % 4];
            format!("/filling/{}/{i}\0{letter}0\0r{}\0", i / 100, 1 + i % 3).into_bytes()
        }),
    )?;
    let deep: String = (0..60).map(|i| format!("/level{i}")).collect();
    client.call(M::Write, 0, format!("/filling{deep}\0down here").as_bytes())?;
    Ok(())
}

#[derive(Debug, Eq, PartialEq)]
struct Found {
    path: String,
    value: Vec<u8>,
    permissions: Vec<u8>,
}

/// Every node.
fn tree(client: &mut Connection) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut pending = vec!["/".to_owned()];
    while let Some(path) = pending.pop() {
        let payload = format!("{path}\0").into_bytes();
        let value = client.call(M::Read, 0, &payload)?;
        let permissions = client.call(M::GetPerms, 0, &payload)?;
        for name in children(client, &path)? {
            let slash = if path == "/" { "" } else { "/" };
            pending.push(format!("{path}{slash}{name}"));
        }
        found.push(Found { path, value, permissions });
    }
    Ok(found)
}

fn children(client: &mut Connection, path: &str) -> Result<Vec<String>> {
    let answer = client.call_raw(M::Directory.code(), 0, format!("{path}\0").as_bytes())?;
    match answer {
        Ok(names) => {
            let names = String::from_utf8(names)?;
            Ok(names.split_terminator('\0').map(str::to_owned).collect())
        }
        Err(error) => bail!("{path} cannot be listed: {error}"),
    }
}
