//! A VM goes from the left host to the right one, and something goes wrong at any moment.
//!
//! Whatever it is, the VM never runs twice and is never lost: at the end one host has it, and the
//! other has nothing of it.

use std::panic;

use migrate::peer::Arrival;
use sim::{PacketFate, SimHost};
use toolstack::channel::ChannelId;
use toolstack::moves::{MigrateRequest, Pace, Reach, ReceiveRequest, Speaks, Wishes};
use toolstack::plan::Start;
use toolstack::saved::{AfterSave, FileFormat, SaveTo};
use toolstack::{Reply, Request, VmState, xlcfg};
use xen::{DomId, Uuid};

use crate::{AfterDeath, Pair, PairConfig, Side, checks};

/// How the VM gets there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// It is saved to a file that both hosts share, and restored from it.
    File,
    /// It is sent over the network while it runs.
    Live,
    /// It is suspended before it is sent.
    Stopped,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::File, Self::Live, Self::Stopped];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Live => "live",
            Self::Stopped => "stopped",
        }
    }
}

/// The VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guest {
    Pv,
    Pvh,
}

impl Guest {
    pub const ALL: [Self; 2] = [Self::Pv, Self::Pvh];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pv => "pv",
            Self::Pvh => "pvh",
        }
    }

    /// One that writes to its memory all the time and checks it in its new domain.
    fn text(self) -> String {
        format!(
            "name = 'vm'\nuuid = '{UUID}'\ntype = '{}'\nkernel = '/kernel'\nmemory = 8\n\
             extra = 'sim.kind=linux sim.writes=20 sim.rests-after=6000'\n\
             disk = ['{DISK},raw,xvda,w']\nvif = ['bridge=xenbr0']\n",
            self.as_str()
        )
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    Nothing,
    /// The daemon is killed at its k-th action, and another starts.
    Kill(Side, u64),
    /// Both are killed, each at an action of its own.
    KillBoth(u64, u64),
    /// The host loses power at the daemon's k-th action.
    Crash(Side, u64),
    /// Something happens to the k-th packet. A cut network is mended when all have given up.
    Packet(u64, PacketFate),
    /// Somebody destroys the VM after so many microseconds.
    Destroy(u64),
}

/// One run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Plan {
    pub way: Way,
    pub guest: Guest,
    pub trouble: Trouble,
    pub seed: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// The host on which the VM runs; none if it was lost with its host.
    pub runs_on: Option<Side>,
    /// Whether the trouble came: the run was long enough for it.
    pub was_hit: bool,
}

const SECOND: u64 = 1_000_000_000;
const UUID: Uuid = Uuid([0x11; 16]);
const TRANSFER: Uuid = Uuid([0x44; 16]);
const DISK: &str = "/shared/disk.raw";
const FILE: &str = "/shared/vm.saved";
/// Nodes that stay after the first move.
const EMPTY: [&str; 2] = ["\"/xylem\", []", "\"/xylem/received\", []"];
/// How long a daemon or a host takes to come back.
const BACK_NS: u64 = 3 * SECOND;
/// In this time everything that waits for something has given up.
const PATIENCE_NS: u64 = 900 * SECOND;

fn prepare(host: &SimHost) {
    let os = host.os();
    os.add_file("/kernel", sim::kernel_image());
    os.add_disk(DISK, 1 << 20);
    os.add_disk("/own.raw", 1 << 20);
    os.add_bridge("xenbr0");
}

fn create(text: &str, uuid: Uuid) -> Result<Request, String> {
    let source = xlcfg::Source { file: "moves.cfg", text, overrides: &[] };
    let config = xlcfg::parse(source).map_err(|error| error.to_string())?;
    let (config, start) = (Box::new(config), Start::Running);
    Ok(Request::Create { config, fresh_uuid: uuid, start })
}

/// A connection has come from the other host.
fn receive(channel: ChannelId) -> Request {
    let (speaks, arrival, transfer) = (Speaks::Own, Arrival::Runs, Uuid([0x33; 16]));
    Request::Receive(ReceiveRequest { channel, speaks, arrival, transfer })
}

struct Trial {
    pair: Pair,
    /// What the sender was told.
    told: Option<Reply>,
}

impl Trial {
    fn boot(plan: &Plan) -> Self {
        let config =
            PairConfig { seed: plan.seed, prepare, visit: Some(receive), ..PairConfig::default() };
        Self { pair: Pair::boot(&config), told: None }
    }

    fn say(&mut self, side: Side, request: Request) -> Result<Reply, String> {
        let letter = self.pair.ask(side, request);
        let reply = self.pair.wait(letter, PATIENCE_NS);
        reply.ok_or_else(|| format!("the {side:?} daemon does not answer"))
    }

    /// Makes something go wrong from now on.
    fn plan(&mut self, trouble: Trouble) {
        let mut kill = |side, k, after| {
            self.pair.on(side, move |lab| {
                lab.after_death = after;
                lab.kill_at(k);
            });
        };
        let restart = AfterDeath::Restart(BACK_NS);
        match trouble {
            Trouble::Nothing | Trouble::Destroy(_) => {}
            Trouble::Kill(side, k) => kill(side, k, restart),
            Trouble::KillBoth(left, right) => {
                kill(Side::Left, left, restart);
                kill(Side::Right, right, restart);
            }
            Trouble::Crash(side, k) => kill(side, k, AfterDeath::Reboot(BACK_NS)),
            Trouble::Packet(k, fate) => self.pair.network(|network| network.strike(k, fate)),
        }
    }

    /// Nothing goes wrong any more; what did is over.
    fn calm(&mut self) -> bool {
        self.pair.mend();
        let mut deaths = 0;
        for side in Side::BOTH {
            deaths += self.pair.on(side, |lab| {
                lab.host.machine().get_mut().faults_mut().revive_toolstack();
                lab.deaths
            });
        }
        deaths > 0
    }

    fn state(&mut self, side: Side) -> Result<VmState, String> {
        match self.say(side, Request::Events { since: None, waits: false })? {
            Reply::Changes(changes) => {
                let states = changes.snapshot.ok_or("no snapshot")?;
                let found = states.iter().find(|it| it.uuid == UUID);
                Ok(found.map_or(VmState::Gone, |it| it.state))
            }
            other => Err(format!("{side:?}: {other:?}")),
        }
    }

    /// The VM's domain on a host, and whether it runs; an error if there are two.
    fn domain(&mut self, side: Side) -> Result<Option<(DomId, bool)>, String> {
        let found = self.pair.on(side, |lab| {
            let machine = lab.host.machine().get();
            let of_vm = machine.domains().filter(|it| it.handle == UUID);
            of_vm.map(|it| (it.domid, it.is_running())).collect::<Vec<_>>()
        });
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            more => Err(format!("{side:?}: domains {more:?} of one VM")),
        }
    }

    /// Saves the VM on the left; then restores it on the right, if that is where it is now.
    fn by_file(&mut self) -> Result<(), String> {
        let to = SaveTo {
            path: FILE.to_owned(),
            after: AfterSave::Destroyed,
            format: FileFormat::Xylem,
            config: None,
            id: Uuid([0x22; 16]),
        };
        let save = Request::Save { target: "vm".to_owned(), to: Box::new(to) };
        let letter = self.pair.ask(Side::Left, save);
        self.pair.wait(letter, 200 * SECOND);
        // Whoever was killed is back.
        self.pair.pass(60 * SECOND);
        if self.state(Side::Left)? != VmState::Gone {
            return Ok(());
        }
        // A daemon that is killed while it restores leaves the file.
        for _ in 0..2 {
            let file = match self.say(Side::Right, Request::ReadSaved { path: FILE.to_owned() })? {
                Reply::SavedFile(file) => file,
                Reply::Failed(_) => {
                    self.pair.pass(60 * SECOND);
                    continue;
                }
                other => return Err(format!("no file: {other:?}")),
            };
            let text = file.config_text.clone();
            let source = xlcfg::Source { file: FILE, text: &text, overrides: &[] };
            let config = Box::new(xlcfg::parse(source).map_err(|error| error.to_string())?);
            let restore = Request::Restore { file, config, start: Start::Running };
            let letter = self.pair.ask(Side::Right, restore);
            self.pair.wait(letter, 200 * SECOND);
            self.pair.pass(60 * SECOND);
            if self.state(Side::Right)? == VmState::Running {
                break;
            }
        }
        Ok(())
    }

    /// Sends the VM from the left host to the right one.
    fn by_network(&mut self, pace: Pace, trouble: Trouble) {
        let [near, far] = self.pair.connect();
        let request = MigrateRequest {
            target: "vm".to_owned(),
            channel: near,
            to: "right".to_owned(),
            from: "left".to_owned(),
            peer: Some(Reach::Command("ssh right".to_owned())),
            transfer: TRANSFER,
            pace,
            downtime_ms: None,
            arrival: Arrival::Runs,
            wishes: Wishes::default(),
        };
        self.pair.ask(Side::Right, receive(far));
        let letter = self.pair.ask(Side::Left, Request::Migrate(Box::new(request)));
        if let Trouble::Destroy(after_us) = trouble {
            let destroy = Request::Destroy { target: "vm".to_owned() };
            self.pair.ask_after(Side::Left, after_us * 1000, destroy);
        }
        self.told = self.pair.wait(letter, PATIENCE_NS);
        let told = format!("{:?}", self.told);
        self.pair
            .on(Side::Left, move |lab| lab.host.note(format_args!("the sender is told {told}")));
        // Whoever was killed is back.
        self.pair.pass(60 * SECOND);
    }

    /// Whether the sender was told that the VM has moved.
    fn is_told_moved(&self) -> bool {
        matches!(self.told, Some(Reply::Ok))
    }

    /// What must never have been so.
    fn check_history(&mut self) -> Result<(), String> {
        let mut lines = checks::twice(&self.pair.runs());
        lines.extend(checks::written_twice(&self.pair.disk_uses(), "/shared/"));
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
    }

    /// The host that has the VM, which must run and have all of its memory.
    fn find(&mut self) -> Result<Option<Side>, String> {
        let mut found = None;
        for side in Side::BOTH {
            let Some((domid, runs)) = self.domain(side)? else { continue };
            let state = self.state(side)?;
            if !runs || state != VmState::Running {
                return Err(format!("{side:?}: domain {domid} is {state:?}, runs: {runs}"));
            }
            if found.replace(side).is_some() {
                return Err("both hosts have the VM".to_owned());
            }
            // A domain that was restored has checked itself.
            let console = self.pair.on(side, move |lab| lab.host.console(domid));
            if console.contains("memory: page") {
                return Err(format!("{side:?}: its memory is not as written: {console}"));
            }
        }
        Ok(found)
    }

    /// The VM goes, and nothing is left of it.
    fn finish(&mut self, has_it: Option<Side>) -> Result<(), String> {
        if let Some(side) = has_it {
            let gone = self.say(side, Request::Destroy { target: "vm".to_owned() })?;
            if !matches!(gone, Reply::Gone { .. }) {
                return Err(format!("{side:?}: not destroyed: {gone:?}"));
            }
        }
        for side in Side::BOTH {
            // Empty directories left by a killed daemon are removed with the next VM. The disk must
            // be free.
            let text = Guest::Pv.text();
            match self.say(side, create(&text, UUID)?)? {
                Reply::Created(_) => {}
                other => {
                    return Err(format!("{side:?}: the VM cannot be created again: {other:?}"));
                }
            }
            self.pair.pass(SECOND);
            self.say(side, Request::Destroy { target: "vm".to_owned() })?;
        }
        self.pair.pass(60 * SECOND);
        for side in Side::BOTH {
            let mut left = self.pair.on(side, |lab| lab.left_behind());
            // The directory of transfers stays.
            left.retain(|line| !EMPTY.iter().any(|node| line.contains(node)));
            if !left.is_empty() {
                return Err(format!("{side:?}: left behind: {}", left.join("; ")));
            }
        }
        Ok(())
    }
}

/// One run.
///
/// # Errors
/// What is wrong at its end, or was at any moment.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    Trial::boot(plan).run(plan)
}

/// The same, with everything that both hosts did.
pub fn run_traced(plan: &Plan) -> (Result<Outcome, String>, [Vec<String>; 2]) {
    let mut trial = Trial::boot(plan);
    for side in Side::BOTH {
        trial.pair.on(side, |lab| lab.host.keep_details());
    }
    let result = trial.run(plan);
    (result, trial.pair.traces())
}

impl Trial {
    fn run(&mut self, plan: &Plan) -> Result<Outcome, String> {
        let trial = self;
        match trial.say(Side::Left, create(&plan.guest.text(), UUID)?)? {
            Reply::Created(_) => {}
            other => return Err(format!("not created: {other:?}")),
        }
        // It has booted, and writes for some more time.
        trial.pair.pass(SECOND);
        let packets = trial.pair.network(|network| network.packets());
        trial.plan(plan.trouble);
        match plan.way {
            Way::File => trial.by_file()?,
            Way::Live => trial.by_network(Pace::Live, plan.trouble),
            Way::Stopped => trial.by_network(Pace::Stopped, plan.trouble),
        }
        let was_hit = match plan.trouble {
            Trouble::Nothing => false,
            // It came while the VM was still here.
            Trouble::Destroy(_) => !trial.is_told_moved(),
            Trouble::Packet(k, _) => trial.pair.network(|network| network.packets()) >= packets + k,
            _ => {
                trial.pair.on(Side::Left, |lab| lab.deaths)
                    + trial.pair.on(Side::Right, |lab| lab.deaths)
                    > 0
            }
        };
        trial.calm();
        trial.pair.pass(300 * SECOND);
        trial.check_history()?;
        let runs_on = trial.find()?;
        let has_arrived = !trial.pair.runs()[1].is_empty();
        let may_be_nowhere = match plan.trouble {
            Trouble::Crash(Side::Left, _) => was_hit && !has_arrived,
            Trouble::Crash(Side::Right, _) | Trouble::Destroy(_) => was_hit,
            _ => false,
        };
        if runs_on.is_none() && !may_be_nowhere {
            return Err(format!("the VM is lost; the sender was told {:?}", trial.told));
        }
        let is_moved = runs_on == Some(Side::Right);
        let is_told_moved = trial.is_told_moved();
        let is_told_not = matches!(trial.told, Some(Reply::Failed(_)));
        let is_needless =
            plan.trouble == Trouble::Nothing && plan.way != Way::File && !is_told_moved;
        if is_told_moved && !is_moved && !may_be_nowhere || is_told_not && is_moved || is_needless {
            return Err(format!("it is on {runs_on:?}; the sender was told {:?}", trial.told));
        }
        trial.finish(runs_on)?;
        Ok(Outcome { runs_on, was_hit })
    }
}

/// What many runs came to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub runs: u64,
    pub on_left: u64,
    pub on_right: u64,
    /// With a host that lost power, or destroyed.
    pub nowhere: u64,
    /// Runs that went wrong, and what was wrong.
    pub wrong: Vec<String>,
}

/// A sweep ends when so many runs have gone wrong.
const WRONG_MAX: usize = 12;

/// Runs with the trouble at each `stride`-th point from the `first` on, until there is none any more.
pub fn sweep(plan: Plan, trouble: impl Fn(u64) -> Trouble, first: u64, stride: u64) -> Tally {
    let mut tally = Tally::default();
    let mut k = first;
    while tally.wrong.len() < WRONG_MAX {
        let plan = Plan { trouble: trouble(k), ..plan };
        k += stride;
        // A host that panics is one that goes wrong.
        let result = panic::catch_unwind(|| run(&plan));
        match result.unwrap_or_else(|_| Err("a host panicked".to_owned())) {
            Ok(outcome) if !outcome.was_hit => break,
            Ok(outcome) => match outcome.runs_on {
                Some(Side::Left) => tally.on_left += 1,
                Some(Side::Right) => tally.on_right += 1,
                None => tally.nowhere += 1,
            },
            Err(why) => tally.wrong.push(format!("{plan:?}: {why}")),
        }
        tally.runs += 1;
    }
    tally
}
