//! A host with a daemon on it, ready for VMs.

use std::collections::BTreeMap;

use live::Cursor;
use sim::{Daemon, Faults, HostConfig, MachineConfig, Release, SimHost, Snapshot, Time};
use toolstack::plan::Start;
use toolstack::{
    Classes, ClientId, ObjectChange, ObjectClass, Objects, Reply, ReplyWhen, Request,
    ShutdownRequest, VmState, xlcfg,
};
use xen::{DomId, Uuid};

/// Virtual time that an operation may take at most, in nanoseconds.
const PATIENCE_NS: u64 = 300_000_000_000;

/// Long enough for a guest to write something.
pub(crate) const A_WHILE: u64 = 300_000_000;

pub(crate) struct Lab {
    pub(crate) host: SimHost,
    pub(crate) daemon: Daemon,
    /// The host before the first VM.
    pub(crate) before: Snapshot,
    vms: u16,
}

pub(crate) fn host(config: HostConfig) -> SimHost {
    let host = SimHost::boot(config);
    let os = host.os();
    os.add_file("/kernel", sim::kernel_image());
    os.add_file("/no-kernel", vec![7; 9000]);
    os.add_file("/initrd", vec![0x1f; 20_000]);
    os.add_disk("/disk.raw", 1 << 20);
    os.add_disk("/neighbour.raw", 1 << 20);
    os.add_directory("/directory");
    os.add_bridge("xenbr0");
    host
}

impl Lab {
    pub(crate) fn new(config: HostConfig) -> Self {
        let host = host(config);
        let before = host.snapshot().unwrap();
        let daemon = Daemon::start(&host).unwrap();
        let mut lab = Self { host, daemon, before, vms: 0 };
        lab.settle();
        lab
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self::new(HostConfig { seed, ..HostConfig::default() })
    }

    pub(crate) fn of_release(release: Release) -> Self {
        let machine = MachineConfig { release, ..MachineConfig::default() };
        Self::new(HostConfig { machine, ..HostConfig::default() })
    }

    pub(crate) fn until(&self) -> Time {
        Time(self.host.now().0 + PATIENCE_NS)
    }

    /// Lets everything happen that is under way.
    pub(crate) fn settle(&mut self) {
        let until = self.until();
        assert!(self.daemon.run_until_quiet(until).unwrap(), "the host does not come to rest");
    }

    /// Lets so much time pass: guests that write never come to rest.
    pub(crate) fn pass(&mut self, ns: u64) {
        let until = Time(self.host.now().0 + ns);
        while self.daemon.step(until).unwrap() {}
        self.host.sleep_until(until);
    }

    /// The state of a VM, as a reader of events is told.
    pub(crate) fn state(&mut self, name: &str) -> VmState {
        match self.ask(Request::Events { since: None, waits: false }) {
            Reply::Changes(changes) => {
                let states = changes.snapshot.expect("without a revision");
                states.iter().find(|it| it.name == name).map_or(VmState::Gone, |it| it.state)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, request: Request) -> Reply {
        let client = self.daemon.request(request).unwrap();
        self.wait(client)
    }

    pub(crate) fn wait(&mut self, client: ClientId) -> Reply {
        let until = self.until();
        self.daemon.wait(client, until).unwrap().expect("an answer in time")
    }

    pub(crate) fn create_request(&mut self, text: &str) -> Request {
        let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
        let config = xlcfg::parse(source).unwrap_or_else(|error| panic!("{error}"));
        self.vms += 1;
        let [low, high] = self.vms.to_le_bytes();
        let fresh_uuid =
            Uuid(core::array::from_fn(|at| low.wrapping_add(if at == 15 { high } else { 0 })));
        Request::Create { config: Box::new(config), fresh_uuid, start: Start::Running }
    }

    pub(crate) fn create(&mut self, text: &str) -> Result<DomId, String> {
        let request = self.create_request(text);
        match self.ask(request) {
            Reply::Created(created) => Ok(created.domid),
            Reply::Failed(message) => Err(message),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn destroy(&mut self, target: &str) -> Reply {
        self.ask(Request::Destroy { target: target.to_owned() })
    }

    pub(crate) fn shutdown_request(target: &str, how: ShutdownRequest) -> Request {
        Request::Shutdown { target: target.to_owned(), how, reply: ReplyWhen::Gone }
    }

    /// Everything must be as it was before the first VM.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&mut self) {
        self.assert_nothing_left_but("(nothing)");
    }

    /// Everything but store nodes under `path` must be as it was before the first VM.
    #[track_caller]
    pub(crate) fn assert_nothing_left_but(&mut self, path: &str) {
        self.settle();
        let mut now = self.host.snapshot().unwrap();
        now.nodes.retain(|node, _| !node.starts_with(path));
        let left = now.differences(&self.before);
        assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
        self.host.check_store().unwrap();
    }
}

/// A unikernel of the given type and behaviour.
pub(crate) fn unikernel(name: &str, kind: &str, behaviour: &str) -> String {
    format!(
        "name = '{name}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\n\
         extra = 'sim.behaviour={behaviour}'\n"
    )
}

/// A guest with a disk and a network interface.
pub(crate) fn linux(name: &str, kind: &str, behaviour: &str) -> String {
    format!(
        "name = '{name}'\ntype = '{kind}'\nkernel = '/kernel'\nramdisk = '/initrd'\nmemory = 16\n\
         vcpus = 2\nextra = 'sim.kind=linux sim.behaviour={behaviour}'\n\
         disk = ['/disk.raw,raw,xvda,rw']\nvif = ['bridge=xenbr0']\n"
    )
}

pub(crate) fn with_faults(plan: impl FnOnce(&mut Faults)) -> HostConfig {
    let mut faults = Faults::default();
    plan(&mut faults);
    HostConfig { faults, ..HostConfig::default() }
}

pub(crate) fn objects(reply: Reply) -> Objects {
    match reply {
        Reply::Objects(objects) => *objects,
        other => panic!("{other:?}"),
    }
}

/// Knows the objects of one class by what it was told, each as a line.
pub(crate) struct Follower {
    class: ObjectClass,
    /// An object's name and what it is like, unless it is gone.
    shown: fn(&ObjectChange) -> (String, Option<String>),
    cursor: Option<Cursor>,
    known: BTreeMap<String, String>,
}

impl Follower {
    pub(crate) fn new(
        class: ObjectClass,
        shown: fn(&ObjectChange) -> (String, Option<String>),
    ) -> Self {
        Self { class, shown, cursor: None, known: BTreeMap::new() }
    }

    fn request(&self, waits: bool) -> Request {
        let classes = Classes::from([self.class]);
        Request::Objects { cursor: self.cursor, classes, waits }
    }

    pub(crate) fn read(&mut self, lab: &mut Lab) -> String {
        let reply = lab.ask(self.request(false));
        self.take(&objects(reply))
    }

    pub(crate) fn begin_to_wait(&self, lab: &mut Lab) -> ClientId {
        lab.daemon.request(self.request(true)).unwrap()
    }

    pub(crate) fn take(&mut self, told: &Objects) -> String {
        self.cursor = Some(told.next);
        for change in &told.items {
            match (self.shown)(change) {
                (name, Some(it)) => self.known.insert(name, it),
                (name, None) => self.known.remove(&name),
            };
        }
        let lines: Vec<_> = self.known.iter().map(|(name, it)| format!("{name}: {it}")).collect();
        lines.join("\n")
    }
}
