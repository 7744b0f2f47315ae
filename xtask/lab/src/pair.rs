//! Two Xen hosts on one virtual network, and a scenario on the first of them that also rules the network and the
//! second one's power.
//!
//! ```text
//!  scenario on a --orders (a virtio port)--> this process --> network; power of b
//!       |                                        |
//!       +-- ssh: commands, migrations --- switch, link --- host b
//! ```
//! Each host has two cards: the first on the link, bridged with the guests' network, the second on a network that
//! nothing disturbs, for the scenario's own commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, bail, ensure};

use super::machine::Wiring;
use super::network::{Network, Side};
use super::session::{Host, Plan, ScratchFolder};
use super::{Mode, Options, Outcome, Scenario, addition, host_tools};

/// What every host of a pair has beside what its scenario asks for.
const ADDITION: &str = "pair";

/// What host b runs: it waits for commands.
const WAITING: &str = "while :; do sleep 3600; done\n";

/// Bytes of the disk that outlives a host's power.
const DISK_BYTES: u64 = 256 << 20;

/// A host's place in a pair.
pub(crate) struct Membership {
    pub side: Side,
    pub keys: Keys,
}

/// The key of the hosts and of root on both, made for one run.
#[derive(Clone)]
pub(crate) struct Keys {
    pub private: Vec<u8>,
    pub public: String,
}

impl Keys {
    fn make(folder: &Path) -> Result<Self> {
        host_tools::require_ssh_keygen()?;
        let file = folder.join("key");
        let status = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "xylem-lab", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .status()
            .context("ssh-keygen does not start")?;
        ensure!(status.success(), "ssh-keygen makes no key");
        let public = std::fs::read_to_string(file.with_extension("pub"))?;
        Ok(Self { private: std::fs::read(&file)?, public: public.trim().to_owned() })
    }
}

/// What only the session's own loop can do.
struct Order {
    verb: Verb,
    answer: Sender<Result<String>>,
}

#[derive(Clone, Copy)]
enum Verb {
    CutPower,
    PowerOn,
}

/// Boots two hosts, runs the scenario on the first and hands each line it prints to `on_line`.
/// `options` are those of a and b; results go into the folders `a` and `b` of the first one's.
///
/// # Errors
/// A [`Failure`](super::Failure) that names the host that died or hung; another error if they could not be set up.
pub fn run(
    options: &[Options; 2],
    scenario: &Scenario,
    arguments: &[String],
    on_line: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let results = options[0].results.clone();
    let mut options = options.clone();
    for side in Side::BOTH {
        options[side.index()].results = results.join(side.to_string());
    }
    // What was built for one is built for the other.
    options[1].build = super::Build::AsIs;
    let modes = [
        Mode::Scenario { text: scenario.text.clone(), arguments: arguments.to_vec() },
        Mode::Scenario { text: WAITING.to_owned(), arguments: Vec::new() },
    ];
    let scratch = ScratchFolder::create()?;
    let keys = Keys::make(&scratch.0)?;
    let additions = addition::wanted(&format!("# lab-addition: {ADDITION}\n{}", scenario.text));
    let mut plans = Vec::new();
    for side in Side::BOTH {
        let folder = scratch.0.join(side.to_string());
        std::fs::create_dir(&folder)?;
        make_disk(&disk(&folder))?;
        let member = Membership { side, keys: keys.clone() };
        let at = side.index();
        plans.push(Plan::prepare(&options[at], &modes[at], &additions, Some(&member), &folder)?);
    }
    Pair::start(&plans, scratch.0.clone())?.run(&results, on_line)
}

fn disk(folder: &Path) -> PathBuf {
    folder.join("disk.img")
}

fn make_disk(path: &Path) -> Result<()> {
    std::fs::File::create(path)?.set_len(DISK_BYTES)?;
    let program = host_tools::find("mke2fs").context("mke2fs is missing")?;
    let status = Command::new(program).args(["-q", "-F", "-t", "ext4"]).arg(path).status()?;
    ensure!(status.success(), "mke2fs cannot make the disk of a host");
    Ok(())
}

/// The running hosts.
struct Pair<'a> {
    plans: &'a [Plan<'a>],
    scratch: PathBuf,
    link: Network,
    steady: Network,
    orders: Receiver<Order>,
    a: Host<'a>,
    /// None while it has no power.
    b: Option<Host<'a>>,
}

impl<'a> Pair<'a> {
    fn start(plans: &'a [Plan<'a>], scratch: PathBuf) -> Result<Self> {
        let (link, steady) = (Network::default(), Network::default());
        let (ours, theirs) = UnixStream::pair().context("no socket for orders")?;
        let (sender, orders) = channel();
        let network = link.clone();
        std::thread::spawn(move || take_orders(ours, &network, &sender));
        let a = start_host(Side::A, plans, &scratch, [&link, &steady], Some(theirs))?;
        let b = start_host(Side::B, plans, &scratch, [&link, &steady], None)?;
        Ok(Self { plans, scratch, link, steady, orders, a, b: Some(b) })
    }

    fn run(mut self, results: &Path, on_line: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let end = self.until_the_end(on_line);
        // Whatever happened, each host that is well hands out its logs.
        if end.is_err() {
            self.a.let_go(on_line);
        }
        self.a.close(on_line);
        let mut collected = self.a.collect();
        if let Some(b) = &mut self.b {
            b.let_go(&mut |_| {});
            b.close(&mut |_| {});
            collected = collected.and(b.collect());
        }
        let status = end?;
        collected?;
        Ok(Outcome {
            status,
            results: results.to_owned(),
            boot: self.a.boot.unwrap_or_default(),
            elapsed: self.a.started.elapsed(),
        })
    }

    /// The scenario's status.
    fn until_the_end(&mut self, on_line: &mut dyn FnMut(&str)) -> Result<i32> {
        loop {
            while let Ok(order) = self.orders.try_recv() {
                // A scenario that has ended needs no answer.
                let _ = order.answer.send(self.obey(order.verb));
            }
            if self.a.pass_on(on_line) {
                continue;
            }
            if let Some(status) = self.a.status()? {
                return Ok(status);
            }
            self.a.check_time()?;
            if let Some(b) = &mut self.b
                && let Some(status) = b.status()?
            {
                bail!("host b has ended with {status}, which nobody asked it to");
            }
        }
    }

    fn obey(&mut self, verb: Verb) -> Result<String> {
        match (verb, &mut self.b) {
            (Verb::CutPower, Some(b)) => {
                b.cut_power();
                self.b = None;
            }
            (Verb::CutPower, None) => bail!("host b has no power"),
            (Verb::PowerOn, Some(_)) => bail!("host b has power"),
            (Verb::PowerOn, None) => {
                let networks = [&self.link, &self.steady];
                self.b = Some(start_host(Side::B, self.plans, &self.scratch, networks, None)?);
            }
        }
        Ok(String::new())
    }
}

fn start_host<'a>(
    side: Side,
    plans: &'a [Plan<'a>],
    scratch: &Path,
    networks: [&Network; 2],
    orders: Option<UnixStream>,
) -> Result<Host<'a>> {
    let mut cards = Vec::new();
    for (number, network) in networks.into_iter().enumerate() {
        cards.push((network.plug(side)?, format!("52:54:00:00:0{number}:0{side}")));
    }
    let wiring = Wiring { cards, orders, disk: Some(disk(&scratch.join(side.to_string()))) };
    Host::start(&plans[side.index()], &wiring)
}

/// Obeys the scenario line by line and answers each: `ok ...`, or `error ...` in one line.
fn take_orders(socket: UnixStream, link: &Network, session: &Sender<Order>) {
    let Ok(mut writer) = socket.try_clone() else { return };
    for line in BufReader::new(socket).lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["link", ref words @ ..] => link.obey(words),
            ["power", "cut", "b"] => ask(session, Verb::CutPower),
            ["power", "on", "b"] => ask(session, Verb::PowerOn),
            ["power", _, "a"] => Err(anyhow::anyhow!("the scenario runs on a: it ends with it")),
            _ => Err(anyhow::anyhow!("nobody knows '{line}'")),
        };
        let text = match answer {
            Ok(text) => format!("ok {text}\n"),
            Err(error) => format!("error {error:#}\n").replace('\n', " ") + "\n",
        };
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn ask(session: &Sender<Order>, verb: Verb) -> Result<String> {
    let (answer, answered) = channel();
    session.send(Order { verb, answer }).context("the session ends")?;
    answered.recv().context("the session ends")?
}
