//! A VM goes from the left host to the right one, and something goes wrong at any moment.
//!
//! Whatever it is, the VM never runs twice and is never lost: at the end one host has it, and the
//! other has nothing of it.

use std::panic;

use migrate::peer::Arrival;
use sim::{PacketFate, Prng, ScriptFate, SimHost};
use storage::DeviceNumber;
use toolstack::channel::ChannelId;
use toolstack::moves::{MigrateRequest, Pace, Reach, ReceiveRequest, Speaks, Verdict, Wishes};
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
    /// The same over several connections.
    Lanes,
    /// It is suspended before it is sent.
    Stopped,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::File, Self::Live, Self::Lanes, Self::Stopped];

    fn pace(self) -> Pace {
        match self {
            Self::Live | Self::Lanes => Pace::Live,
            Self::File | Self::Stopped => Pace::Stopped,
        }
    }

    /// Whether a guest can go so.
    #[must_use]
    pub fn takes(self, guest: Guest) -> bool {
        // Xen cannot log what a PV guest writes without shadow paging.
        self.pace() == Pace::Stopped || guest != Guest::Pv
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Live => "live",
            Self::Lanes => "lanes",
            Self::Stopped => "stopped",
        }
    }
}

/// The VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guest {
    Pv,
    Pvh,
    /// Its device model's state goes with it.
    Hvm,
    /// A PVH guest with an interface and a disk that hotplug scripts connect, and an interface on a switch.
    Scripted,
}

impl Guest {
    pub const ALL: [Self; 4] = [Self::Pv, Self::Pvh, Self::Hvm, Self::Scripted];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pv => "pv",
            Self::Pvh => "pvh",
            Self::Hvm => "hvm",
            Self::Scripted => "scripted",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Scripted => "pvh",
            other => other.as_str(),
        }
    }

    /// One that writes to its memory all the time and checks it in its new domain.
    fn text(self) -> String {
        let (boots, vif) = match self {
            // What it is comes with its firmware.
            Self::Hvm => ("memory = 16".to_owned(), "bridge=xenbr0,type=vif"),
            Self::Scripted => {
                let vifs = "script=wire', 'script=vif-openvswitch,bridge=ovs0,antispoof=1";
                (format!("kernel = '/kernel'\nmemory = 8\nextra = '{BEHAVIOUR}'"), vifs)
            }
            _ => {
                (format!("kernel = '/kernel'\nmemory = 8\nextra = '{BEHAVIOUR}'"), "bridge=xenbr0")
            }
        };
        format!(
            "name = 'vm'\nuuid = '{UUID}'\ntype = '{}'\n{boots}\n\
             disk = ['{},raw,xvda,w', '{}']\nvif = ['{vif}']\n",
            self.kind(),
            self.first_disk(),
            self.second_disk()
        )
    }

    /// A file is attached when the other host has let go of it, which a device model never does; a device before that.
    fn first_disk(self) -> &'static str {
        match self {
            Self::Hvm => OTHER_DEVICE,
            Self::Pv | Self::Pvh | Self::Scripted => FILE_DISK,
        }
    }

    fn second_disk(self) -> String {
        match self {
            Self::Scripted => format!("vdev=xvdb,script=wire,target={DEVICE}"),
            Self::Pv | Self::Pvh | Self::Hvm => format!("{DEVICE},raw,xvdb,w"),
        }
    }

    /// As backends name them.
    fn disks_used(self) -> [&'static str; 2] {
        let first = match self {
            Self::Hvm => OTHER_DEVICE_USED,
            Self::Pv | Self::Pvh | Self::Scripted => FILE_DISK,
        };
        [first, DEVICE_USED]
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

/// Whether the VM is defined.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Defined {
    No,
    Yes,
    /// It starts with its host.
    Autostart,
}

/// What is done about a PV guest that was taken back after its devices were closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rescue {
    /// It goes on in its domain, by an operator's wish.
    Here,
    /// It is saved, and restored in a new one.
    NewDomain,
}

impl Plan {
    /// The point at which something goes wrong, or something that differs as much.
    fn point(&self) -> u64 {
        let k = match self.trouble {
            Trouble::Nothing => 0,
            Trouble::Destroy(us) => us / 500,
            Trouble::Kill(_, k)
            | Trouble::KillBoth(k, _)
            | Trouble::Crash(_, k)
            | Trouble::Packet(k, _) => k,
        };
        self.seed.wrapping_add(k)
    }

    /// A file has no definition, and whoever restores it elsewhere has to see to that.
    fn defined(&self) -> Defined {
        match self.point() % 3 {
            _ if self.way == Way::File => Defined::No,
            0 => Defined::No,
            1 => Defined::Yes,
            _ => Defined::Autostart,
        }
    }

    fn rescue(&self) -> Rescue {
        if self.point().is_multiple_of(2) { Rescue::Here } else { Rescue::NewDomain }
    }
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
const BEHAVIOUR: &str = "sim.kind=linux sim.writes=20 sim.rests-after=6000";
const UUID: Uuid = Uuid([0x11; 16]);
const TRANSFER: Uuid = Uuid([0x44; 16]);
const FILE_DISK: &str = "/shared/disk.raw";
const DEVICE: &str = "/shared/device";
const DEVICE_USED: &str = "block 8:16";
const OTHER_DEVICE: &str = "/shared/other";
const OTHER_DEVICE_USED: &str = "block 8:32";
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
    sim::add_hvm_files(os, BEHAVIOUR);
    os.add_disk(FILE_DISK, 1 << 20);
    os.add_block_device(DEVICE, DeviceNumber { major: 8, minor: 16 });
    os.add_block_device(OTHER_DEVICE, DeviceNumber { major: 8, minor: 32 });
    os.add_disk("/own.raw", 1 << 20);
    os.add_bridge("xenbr0");
    os.add_switch("ovs0");
    os.add_nft();
    os.add_script("/etc/xen/scripts/wire", ScriptFate::Works);
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
    /// So far.
    moves: u8,
}

impl Trial {
    fn boot(plan: &Plan) -> Self {
        let config =
            PairConfig { seed: plan.seed, prepare, visit: Some(receive), ..PairConfig::default() };
        Self { pair: Pair::boot(&config), told: None, moves: 0 }
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
    fn calm(&mut self) {
        self.pair.mend();
        self.pair.network(|network| network.spare());
        for side in Side::BOTH {
            self.pair.on(side, |lab| {
                lab.host.machine().get_mut().faults_mut().revive_toolstack();
            });
        }
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
        let letter = self.pair.ask(Side::Left, Self::save());
        self.pair.wait(letter, 200 * SECOND);
        // Whoever was killed is back.
        self.pair.pass(60 * SECOND);
        if self.state(Side::Left)? != VmState::Gone {
            return Ok(());
        }
        // A daemon that is killed while it restores leaves the file.
        for _ in 0..2 {
            if self.restore(Side::Right)?.is_none() {
                self.pair.pass(60 * SECOND);
            }
            if self.state(Side::Right)? == VmState::Running {
                break;
            }
        }
        Ok(())
    }

    /// Sends the VM from one host to the other.
    fn by_network(&mut self, from: Side, way: Way, trouble: Trouble) {
        let ends = self.pair.connect();
        let (near, far) = (ends[from.index()], ends[from.other().index()]);
        self.moves += 1;
        let mut transfer = TRANSFER;
        transfer.0[15] = self.moves;
        let name = |side: Side| if side == Side::Left { "left" } else { "right" };
        let (peer, lanes) = match way {
            Way::Lanes => (Reach::Peer(name(from.other()).to_owned()), Some(3)),
            _ => (Reach::Command(format!("ssh {}", name(from.other()))), None),
        };
        let request = MigrateRequest {
            target: "vm".to_owned(),
            channel: near,
            to: name(from.other()).to_owned(),
            from: name(from).to_owned(),
            peer: Some(peer),
            transfer,
            pace: way.pace(),
            downtime_ms: None,
            arrival: Arrival::Runs,
            wishes: Wishes { lanes, ..Wishes::default() },
        };
        self.pair.ask(from.other(), receive(far));
        let letter = self.pair.ask(from, Request::Migrate(Box::new(request)));
        if let Trouble::Destroy(after_us) = trouble {
            let destroy = Request::Destroy { target: "vm".to_owned() };
            self.pair.ask_after(from, after_us * 1000, destroy);
        }
        self.told = self.pair.wait(letter, PATIENCE_NS);
        let told = format!("{:?}", self.told);
        self.pair.on(from, move |lab| lab.host.note(format_args!("the sender is told {told}")));
        // Whoever was killed is back.
        self.pair.pass(60 * SECOND);
    }

    /// Whether the sender was told that the VM has moved.
    fn is_told_moved(&self) -> bool {
        matches!(self.told, Some(Reply::Ok))
    }

    /// What must never have been so.
    fn check_history(&mut self, guest: Guest) -> Result<(), String> {
        let mut lines = checks::twice(&self.pair.runs());
        for disk in guest.disks_used() {
            lines.extend(checks::written_twice(&self.pair.disk_uses(), disk));
        }
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
    }

    /// Creates the VM on the left host.
    fn begin(&mut self, plan: &Plan) -> Result<(), String> {
        let create = create(&plan.guest.text(), UUID)?;
        let autostart = match plan.defined() {
            Defined::No => None,
            Defined::Yes => Some(None),
            Defined::Autostart => Some(Some(7)),
        };
        let begin = match (autostart, create) {
            (Some(autostart), Request::Create { config, fresh_uuid, start }) => {
                let define = Request::Define { config, fresh_uuid, autostart };
                match self.say(Side::Left, define)? {
                    Reply::Defined { .. } => {}
                    other => return Err(format!("not defined: {other:?}")),
                }
                Request::Start { target: "vm".to_owned(), start }
            }
            (_, create) => create,
        };
        match self.say(Side::Left, begin)? {
            Reply::Created(_) => Ok(()),
            other => Err(format!("not created: {other:?}")),
        }
    }

    /// The definition is where the VM is, and nowhere else.
    fn check_definition(&mut self, plan: &Plan, runs_on: Option<Side>) -> Result<(), String> {
        let defined_on: Vec<Side> = Side::BOTH
            .into_iter()
            .filter(|side| self.pair.on(*side, |lab| !lab.host.os().definitions().is_empty()))
            .collect();
        let is_right = match plan.defined() {
            Defined::No => defined_on.is_empty(),
            Defined::Yes | Defined::Autostart => {
                defined_on.len() == 1 && runs_on.is_none_or(|side| defined_on == [side])
            }
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("it is on {runs_on:?}, and defined on {defined_on:?}")),
        }
    }

    /// A PV guest that was taken back late is suspended, which the daemon says. It must have lost nothing.
    fn rescue(&mut self, from: Side, plan: &Plan) -> Result<(), String> {
        let Some((_, false)) = self.domain(from)? else { return Ok(()) };
        if plan.guest != Guest::Pv || self.state(from)? != VmState::Suspended {
            return Ok(());
        }
        if plan.rescue() == Rescue::Here {
            let settle = Request::Settle { target: "vm".to_owned(), verdict: Verdict::Here };
            return match self.say(from, settle)? {
                Reply::Ok => {
                    self.pair.pass(60 * SECOND);
                    Ok(())
                }
                other => Err(format!("it does not go on: {other:?}")),
            };
        }
        match self.say(from, Self::save())? {
            Reply::Failed(why) => return Err(format!("it cannot be saved: {why}")),
            _ => self.pair.pass(SECOND),
        }
        match self.restore(from)? {
            Some(_) => Ok(()),
            None => Err("it cannot be restored".to_owned()),
        }
    }

    fn save() -> Request {
        let to = SaveTo {
            path: FILE.to_owned(),
            after: AfterSave::Destroyed,
            format: FileFormat::Xylem,
            config: None,
            id: Uuid([0x22; 16]),
            checkpoint: None,
            disks: Vec::new(),
        };
        Request::Save { target: "vm".to_owned(), to: Box::new(to) }
    }

    /// Restores the VM from its file; `None` if there is none.
    fn restore(&mut self, side: Side) -> Result<Option<()>, String> {
        let file = match self.say(side, Request::ReadSaved { path: FILE.to_owned() })? {
            Reply::SavedFile(file) => file,
            Reply::Failed(_) => return Ok(None),
            other => return Err(format!("no file: {other:?}")),
        };
        let text = file.config_text.clone();
        let source = xlcfg::Source { file: FILE, text: &text, overrides: &[] };
        let config = Box::new(xlcfg::parse(source).map_err(|error| error.to_string())?);
        let restore = Request::Restore { file, config, start: Start::Running };
        let letter = self.pair.ask(side, restore);
        self.pair.wait(letter, 200 * SECOND);
        self.pair.pass(60 * SECOND);
        Ok(Some(()))
    }

    /// Its disks are connected where it runs, and nowhere else.
    fn check_disk(&mut self, guest: Guest, has_it: Option<Side>) -> Result<(), String> {
        let uses = self.pair.disk_uses();
        for side in Side::BOTH {
            for disk in guest.disks_used() {
                let open = uses[side.index()].iter();
                let open = open.filter(|it| it.what.disk == disk && it.ended.is_none()).count();
                if open != usize::from(has_it == Some(side)) {
                    return Err(format!("{side:?}: its disk {disk} is connected {open} times"));
                }
            }
        }
        Ok(())
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
            if !self.pair.on(side, |lab| lab.host.os().models_are_at_rest()) {
                return Err(format!("{side:?}: its device model was told what nobody undid"));
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
            if self.pair.on(side, |lab| !lab.host.os().definitions().is_empty()) {
                self.say(side, Request::Undefine { target: "vm".to_owned() })?;
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
        trial.begin(plan)?;
        // It has booted, and writes for some more time.
        trial.pair.pass(SECOND);
        let packets = trial.pair.network(|network| network.packets());
        trial.plan(plan.trouble);
        match plan.way {
            Way::File => trial.by_file()?,
            way => trial.by_network(Side::Left, way, plan.trouble),
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
        trial.check_history(plan.guest)?;
        trial.rescue(Side::Left, plan)?;
        let runs_on = trial.find()?;
        trial.check_disk(plan.guest, runs_on)?;
        trial.check_definition(plan, runs_on)?;
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
        trial.check_history(plan.guest)?;
        trial.finish(runs_on)?;
        Ok(Outcome { runs_on, was_hit })
    }
}

/// Moves of a walk.
const WALK_MOVES: u64 = 8;
/// Points that a move has, about: daemons' actions, and packets.
const ACTIONS: u64 = 140;
const PACKETS: u64 = 14;

/// Something that may go wrong.
fn random_trouble(prng: &mut Prng, from: Side) -> Trouble {
    let side = if prng.below(2) == 0 { from } else { from.other() };
    let action = 1 + prng.below(ACTIONS);
    let fates = [
        PacketFate::Lost,
        PacketFate::CutFor(5 * SECOND),
        PacketFate::Cut,
        PacketFate::Reset,
        PacketFate::Torn,
    ];
    match prng.below(6) {
        0 => Trouble::Nothing,
        1 => Trouble::Kill(side, action),
        2 => Trouble::KillBoth(action, 1 + prng.below(ACTIONS)),
        3 => Trouble::Crash(side, action),
        _ => {
            let fate = fates[usize::try_from(prng.below(fates.len() as u64)).unwrap_or(0)];
            Trouble::Packet(1 + prng.below(PACKETS), fate)
        }
    }
}

/// A VM goes back and forth while things go wrong at random. Returns on which host it was after each move.
///
/// # Errors
/// What went wrong, and in which move.
pub fn walk(guest: Guest, seed: u64) -> Result<Vec<Side>, String> {
    let plan = Plan { way: Way::Stopped, guest, trouble: Trouble::Nothing, seed };
    let mut trial = Trial::boot(&plan);
    trial.begin(&plan)?;
    let mut prng = Prng::new(seed ^ 0x7761_6c6b);
    let (mut is_on, mut places) = (Side::Left, Vec::new());
    for number in 1..=WALK_MOVES {
        trial.pair.pass(SECOND);
        let trouble = random_trouble(&mut prng, is_on);
        let ways = [Way::Live, Way::Stopped, Way::Lanes, Way::Stopped];
        let way = ways[usize::try_from(prng.below(4)).unwrap_or(0)];
        let way = if way.takes(guest) { way } else { Way::Stopped };
        is_on = trial
            .walk_on(&plan, is_on, way, trouble)
            .map_err(|why| format!("move {number} from {is_on:?}, {trouble:?}: {why}"))?;
        places.push(is_on);
    }
    trial.finish(Some(is_on))?;
    Ok(places)
}

impl Trial {
    /// One move of a walk. A VM that was lost with its host starts anew.
    fn walk_on(
        &mut self,
        plan: &Plan,
        from: Side,
        way: Way,
        trouble: Trouble,
    ) -> Result<Side, String> {
        self.plan(trouble);
        self.by_network(from, way, trouble);
        self.calm();
        self.pair.pass(300 * SECOND);
        self.check_history(plan.guest)?;
        self.rescue(from, &Plan { trouble, ..*plan })?;
        let found = self.find()?;
        self.check_disk(plan.guest, found)?;
        self.check_definition(plan, found)?;
        if let Some(side) = found {
            return Ok(side);
        }
        if !matches!(trouble, Trouble::Crash(..)) {
            return Err(format!("the VM is lost; the sender was told {:?}", self.told));
        }
        let defined = Side::BOTH
            .into_iter()
            .find(|side| self.pair.on(*side, |lab| !lab.host.os().definitions().is_empty()));
        let (side, request) = match defined {
            Some(side) => {
                let start = Start::Running;
                (side, Request::Start { target: "vm".to_owned(), start })
            }
            None => (from, create(&plan.guest.text(), UUID)?),
        };
        match self.say(side, request)? {
            Reply::Created(_) => Ok(side),
            other => Err(format!("it does not start anew: {other:?}")),
        }
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
