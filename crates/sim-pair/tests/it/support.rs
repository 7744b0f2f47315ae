//! Pairs of hosts, ready for VMs.

use sim::{NetworkConfig, SimHost};
use sim_pair::{Pair, PairConfig, Side};
use toolstack::moves::{Arrival, MigrateRequest, Pace, ReceiveRequest, Speaks, Wishes};
use toolstack::plan::Start;
use toolstack::{Request, xlcfg};
use xen::Uuid;

/// Of such a move.
pub(crate) const TRANSFER: Uuid = Uuid([0x44; 16]);
/// A shared disk.
pub(crate) const DISK: &str = "/shared/disk.raw";

fn prepare(host: &SimHost) {
    let os = host.os();
    os.add_file("/kernel", sim::kernel_image());
    os.add_file("/initrd", vec![0x1f; 20_000]);
    os.add_disk(DISK, 1 << 20);
    os.add_bridge("xenbr0");
}

pub(crate) fn seeded(seed: u64) -> Pair {
    with_network(seed, NetworkConfig::default())
}

pub(crate) fn with_network(seed: u64, network: NetworkConfig) -> Pair {
    Pair::boot(&PairConfig { seed, network, prepare, ..PairConfig::default() })
}

/// A unikernel of this type.
pub(crate) fn unikernel(name: &str, kind: &str) -> String {
    format!(
        "name = '{name}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\n\
         extra = 'sim.behaviour=normal'\n"
    )
}

/// What the left host is to be asked for, to move a VM; the right host waits for it.
pub(crate) fn migration(pair: &mut Pair) -> MigrateRequest {
    let [channel, far] = pair.connect();
    let receive = ReceiveRequest {
        channel: far,
        speaks: Speaks::Own,
        arrival: Arrival::Runs,
        transfer: Uuid([0x33; 16]),
    };
    pair.ask(Side::Right, Request::Receive(receive));
    MigrateRequest {
        target: "vm".to_owned(),
        channel,
        to: "right".to_owned(),
        from: "left".to_owned(),
        peer: None,
        transfer: TRANSFER,
        pace: Pace::Live,
        downtime_ms: None,
        arrival: Arrival::Runs,
        wishes: Wishes::default(),
    }
}

/// The request to create a VM.
pub(crate) fn create(text: &str, uuid: u8) -> Request {
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let config = xlcfg::parse(source).unwrap_or_else(|error| panic!("{error}"));
    let config = Box::new(config);
    Request::Create { config, fresh_uuid: Uuid([uuid; 16]), start: Start::Running }
}
