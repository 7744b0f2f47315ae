//! `xylemd-sim`: Xylem on a host that is only simulated, for trying it out and for writing clients.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use lexopt::ValueExt as _;
use sim_daemon::{Population, SimDaemon, WorldConfig};

const USAGE: &str = "\
Usage: xylemd-sim [options]

Serves a simulated Xen host as xylemd serves a real one, without Xen and without root.
Clients find it by the variable XYLEMD_SOCKET.

      --socket PATH    Where to serve (default: xylemd-sim.sock in XDG_RUNTIME_DIR or /tmp)
      --store-socket PATH
                       Where to serve its store, which clients find by the variable XENSTORED_PATH (default: nowhere)
      --disks FOLDER   Where files named SR:VDI have the bytes of VDIs (default: they have none)
  -n, --vms N          VMs to begin with (default: 20)
      --busy           Change one VM or another all the time
      --memory MIB     Memory of the host (default: 65536)
      --cpus N         CPUs of the host (default: 16)
      --seed N         Of the simulation and of what --busy does (default: 1)
  -h, --help           Print this
";

struct Options {
    socket: PathBuf,
    store_socket: Option<PathBuf>,
    disks: Option<PathBuf>,
    vms: u32,
    busy: bool,
    world: WorldConfig,
}

fn options() -> Result<Option<Options>> {
    use lexopt::prelude::{Long, Short};
    let folder = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into());
    let mut options = Options {
        socket: PathBuf::from(folder).join("xylemd-sim.sock"),
        store_socket: None,
        disks: None,
        vms: 20,
        busy: false,
        world: WorldConfig { seed: 1, memory_mib: 65_536, cpus: 16 },
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("socket") => options.socket = parser.value()?.into(),
            Long("store-socket") => options.store_socket = Some(parser.value()?.into()),
            Long("disks") => options.disks = Some(parser.value()?.into()),
            Short('n') | Long("vms") => options.vms = parser.value()?.parse()?,
            Long("busy") => options.busy = true,
            Long("memory") => options.world.memory_mib = parser.value()?.parse()?,
            Long("cpus") => options.world.cpus = parser.value()?.parse()?,
            Long("seed") => options.world.seed = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                print!("{USAGE}");
                return Ok(None);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let WorldConfig { memory_mib, cpus, .. } = options.world;
    if !(512..=16_777_216).contains(&memory_mib) {
        bail!("--memory {memory_mib}: 512 to 16777216 MiB are possible");
    }
    if !(1..=64).contains(&cpus) {
        bail!("--cpus {cpus}: 1 to 64 are possible");
    }
    Ok(Some(options))
}

fn main() -> Result<()> {
    let Some(options) = options()? else { return Ok(()) };
    let _lock = local_door::lock(&options.socket)?;
    let listener = local_door::listen(&options.socket)?;
    let mut daemon = SimDaemon::start(options.world).context("cannot boot the simulated host")?;
    if let Some(folder) = options.disks {
        daemon = daemon.with_disks(folder);
    }
    if let Some(path) = &options.store_socket {
        let listener = local_door::listen(path)?;
        daemon.serve_store(listener).context("cannot serve the store")?;
    }
    local_door::serve(listener, Arc::new(daemon)).context("cannot serve clients")?;
    let mut population = Population::at(&options.socket, options.world.seed)?;
    population.make(options.vms, |made| {
        if made.is_multiple_of(100) {
            eprintln!("{made} of {} VMs are made", options.vms);
        }
    })?;
    println!("A simulated host with {} VMs is served; end it with Ctrl-C. Try:", options.vms);
    let socket = options.socket.display();
    for command in ["list", "objects --follow", "top", "sr-list"] {
        println!("  XYLEMD_SOCKET={socket} xy {command}");
    }
    loop {
        if options.busy {
            population.live_on()?;
        } else {
            std::thread::park();
        }
    }
}
