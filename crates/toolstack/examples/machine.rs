//! What the machine alone takes for one VM beside 1, 1000 and 10,000 others: no Xen, no store, no host.
//!
//! Prints samples as `cargo xtask bench machine` reads them: a name, a size and nanoseconds.

#![expect(clippy::disallowed_types, reason = "it measures time")]

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolstack::plan::Start;
use toolstack::work::{
    AdoptionWork, Cost, CreateWork, DeviceWork, Images, LeftFiles, NewDomain, Output, QueryWork,
    Survey, Work,
};
use toolstack::{Action, ClientId, Event, Reply, Request, Toolstack, VmState, xlcfg};
use xen::{DomId, DomainRef, EvtchnPort, Life, Uuid};
use xen_build::{Built, KernelImage};
use xenstore::client::DomainUpdate;
use xenstore::wire::changes::{DomainChange, DomainIdentity, Standing};

const SIZES: [u16; 3] = [1, 1000, 10_000];
/// Another domain than those of any VM.
const OTHER: u16 = 30_000;

/// A machine with VMs, and everything that it asks for done at once.
struct Host {
    machine: Toolstack,
    images: Images,
    now: u64,
    domains: u16,
    actions: Vec<Action>,
}

fn uuid(number: u16) -> Uuid {
    let mut bytes = [7; 16];
    bytes[..2].copy_from_slice(&number.to_le_bytes());
    Uuid(bytes)
}

/// The smallest kernel there is: one segment of nothing.
fn images() -> Images {
    let mut file = vec![0; 64 + 56];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    for (at, value) in [(16, 2_u16), (18, 62), (54, 56), (56, 1)] {
        file[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    file[32] = 64;
    file[64] = 1;
    file[64 + 40] = 1;
    let kernel = KernelImage::parse(&file).expect("a kernel");
    Images::Kernel { kernel: Arc::new(kernel), ramdisk: None, cmdline: None, shimmed: None }
}

impl Host {
    fn with(vms: u16) -> Self {
        let mut host = Self {
            machine: Toolstack::new(),
            images: images(),
            now: 0,
            domains: 0,
            actions: Vec::new(),
        };
        host.drive(Event::Started);
        (0..vms).for_each(|number| host.create(number));
        host
    }

    fn output(&mut self, work: &Work) -> Output {
        match work {
            Work::Adoption(AdoptionWork::Observe) => Output::Observed {
                left: LeftFiles::default(),
                survey: Survey::default(),
                records: Vec::new(),
                loops: Vec::new(),
                unique_ids: BTreeMap::new(),
                received: Vec::new(),
                models: Vec::new(),
            },
            Work::Create(CreateWork::LoadImages { .. }) => Output::Images(self.images.clone()),
            Work::Create(CreateWork::CreateDomain { uuid, .. }) => {
                self.domains += 1;
                let life = Life::Counted { handle: *uuid, generation: self.domains.into() };
                Output::Domain(NewDomain {
                    domain: DomainRef { domid: DomId(self.domains), life },
                    store_port: EvtchnPort(1),
                    console_port: EvtchnPort(2),
                    generation_id: None,
                })
            }
            Work::Create(CreateWork::Build { .. }) => Output::Built(Built {
                store_frame: 1,
                console_frame: 2,
                entry: 0,
                pages: 0,
                tables: xen_build::Tables::default(),
            }),
            Work::Device(DeviceWork::CloseAll { .. }) => Output::Closing { unseen: Vec::new() },
            Work::Query(QueryWork::ReadConsole { .. }) => Output::Console(None),
            Work::Query(QueryWork::Check { own, .. }) => {
                black_box(own);
                Output::Checked(Vec::new())
            }
            Work::Query(QueryWork::Find { .. }) => Output::Looked { info: None, name: None },
            _ => Output::Done,
        }
    }

    /// Takes an event in and does all that follows. Returns the last reply.
    fn drive(&mut self, event: Event) -> Option<Reply> {
        let mut events = VecDeque::from([event]);
        let mut last = None;
        while let Some(event) = events.pop_front() {
            self.now += 1000;
            let mut actions = std::mem::take(&mut self.actions);
            self.machine.handle(toolstack::Instant(self.now), event, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Work { id, work } => {
                        let result = Ok(self.output(&work));
                        events.push_back(Event::Worked { work: id, result, cost: Cost::default() });
                    }
                    Action::Reply { reply, .. } => last = Some(reply),
                    _ => {}
                }
            }
            self.actions = actions;
        }
        last
    }

    fn ask(&mut self, request: Request) -> Option<Reply> {
        self.drive(Event::Request { client: ClientId(1), request })
    }

    /// A VM without devices that runs.
    fn create(&mut self, number: u16) {
        let text = format!("name = 'vm{number}'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n");
        let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
        let config = Box::new(xlcfg::parse(source).expect("a configuration"));
        let fresh_uuid = uuid(number);
        let reply = self.ask(Request::Create { config, fresh_uuid, start: Start::Running });
        assert!(matches!(reply, Some(Reply::Created(_))), "{reply:?}");
    }
}

/// What is measured: one VM's operation beside others.
type Operation = fn(&mut Host);

fn target(host: &Host) -> String {
    format!("vm{}", host.domains - 1)
}

fn create_and_destroy(host: &mut Host) {
    host.create(OTHER);
    let reply = host.ask(Request::Destroy { target: format!("vm{OTHER}") });
    assert!(matches!(reply, Some(Reply::Gone { .. })), "{reply:?}");
    host.domains -= 1;
}

fn lookup(host: &mut Host) {
    let reply = host.ask(Request::Resolve { target: target(host) });
    assert!(matches!(reply, Some(Reply::Resolved { .. })), "{reply:?}");
}

fn lookup_of_nobody(host: &mut Host) {
    let reply = host.ask(Request::Resolve { target: "nobody".to_owned() });
    assert!(matches!(reply, Some(Reply::Failed(_))), "{reply:?}");
}

fn console(host: &mut Host) {
    let reply = host.ask(Request::Console { target: target(host), kind: None, number: 0 });
    assert!(matches!(reply, Some(Reply::Console { .. })), "{reply:?}");
}

/// Like an attach, it takes along which domains are ours.
fn check(host: &mut Host) {
    let text = "name = 'new'\nkernel = '/kernel'\nmemory = 8\ndisk = ['/x,raw,xvda,w']\n";
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).expect("a configuration"));
    let request = Request::Check { config, fresh_uuid: uuid(OTHER), is_whole: true };
    let reply = host.ask(request);
    assert!(matches!(reply, Some(Reply::Checked { .. })), "{reply:?}");
}

fn change(host: &mut Host) {
    let who = DomainIdentity { domid: DomId(OTHER), unique_id: None, handle: uuid(OTHER) };
    let change = DomainChange { who, before: Standing::Alive, after: Standing::Dead };
    host.drive(Event::Domains(DomainUpdate::Changes(vec![change])));
}

fn introduction(host: &mut Host) {
    host.drive(Event::Introduced { domid: Some(DomId(1)) });
}

/// What any event costs while many clients wait for a state.
fn with_waiters(host: &mut Host) {
    host.drive(Event::Tick);
}

/// Nanoseconds of one operation: the median of samples of about a millisecond each.
fn measure(host: &mut Host, operation: Operation) -> f64 {
    const SAMPLES: usize = 21;
    let time = |host: &mut Host, times: u32| {
        let began = Instant::now();
        (0..times).for_each(|_| operation(black_box(host)));
        began.elapsed() / times
    };
    let once = time(host, 3).as_nanos().max(1);
    let times = u32::try_from(1_000_000 / once).unwrap_or(u32::MAX).clamp(1, 10_000);
    let mut samples: Vec<Duration> = (0..SAMPLES).map(|_| time(host, times)).collect();
    samples.sort();
    samples[SAMPLES / 2].as_secs_f64() * 1e9
}

const OPERATIONS: [(&str, Operation); 7] = [
    ("create-destroy", create_and_destroy),
    ("lookup", lookup),
    ("lookup-of-nobody", lookup_of_nobody),
    ("console", console),
    ("check", check),
    ("change", change),
    ("introduction", introduction),
];

fn main() {
    for size in SIZES {
        let mut host = Host::with(size);
        for (name, operation) in OPERATIONS {
            println!("SAMPLE {name}-{size} {:.1}", measure(&mut host, operation));
        }
        // Clients that wait for something that does not come.
        for _ in 0..100 {
            let target = target(&host);
            host.ask(Request::Wait { target, state: VmState::Down });
        }
        println!("SAMPLE waiters-{size} {:.1}", measure(&mut host, with_waiters));
    }
}
