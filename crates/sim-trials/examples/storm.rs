//! Attaches in virtual time, ours and the peer's: `storm [--quick]`. Prints `SAMPLE NAME SECONDS` lines.

use sim::AttachTimes;
use sim_trials::storm::{BootStorm, PEER_CHUNK, PEER_POOL, attach_span, list_schedule};
use toolstack::scheduler::Limits;

const SECOND_NS: u64 = 1_000_000_000;

fn limits(host: usize, vm: usize) -> Limits {
    Limits { host, vm, sr: host, backend: host, ..Limits::default() }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn sample(name: &str, nanoseconds: u64) {
    println!("SAMPLE {name} {}", nanoseconds as f64 / SECOND_NS as f64);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (vms_wide, vms_many, seeds) = if quick { (13, 50, 1) } else { (125, 1000, 5) };

    // The table of the announcement: every attach takes one second.
    let even =
        AttachTimes { seed: 1, usual_ns: SECOND_NS, spread: 0, tail_ns: 0, tail_per_mille: 0 };
    for disks in [1, 2, 5, 8, 10, 20, 50, 100, 255] {
        let (ours, _) = attach_span(&BootStorm::new(even, &limits(64, 10))?.create(disks)?);
        let (one_by_one, _) = attach_span(&BootStorm::new(even, &limits(64, 1))?.create(disks)?);
        sample(&format!("table-ours-{disks}"), ours);
        sample(&format!("table-sequential-{disks}"), one_by_one);
    }

    // One of a hundred attaches takes five seconds.
    for seed in 1..=seeds {
        let times = AttachTimes {
            seed,
            usual_ns: SECOND_NS / 10,
            spread: 50,
            tail_ns: 5 * SECOND_NS,
            tail_per_mille: 10,
        };
        let mut storm = BootStorm::new(times, &limits(64, 10))?;
        let ideal = list_schedule(&storm.attach_times(0, 255), 10);
        let (ours, most) = attach_span(&storm.create(255)?);
        if most > 10 {
            return Err(format!("{most} attaches of one VM at a time, limit 10").into());
        }
        let mut peer = BootStorm::new(times, &limits(PEER_POOL, PEER_CHUNK))?;
        let mut wide_peer = BootStorm::new(times, &limits(PEER_CHUNK, PEER_CHUNK))?;
        sample("tail-ours", ours);
        sample("tail-ideal", ideal);
        sample("tail-peer", peer.plug_in_chunks(255, PEER_CHUNK)?);
        sample("tail-peer-wide", wide_peer.plug_in_chunks(255, PEER_CHUNK)?);
    }

    // Boot storms: ours with its default, the peer with four VMs and four attaches at a time.
    let times =
        AttachTimes { seed: 9, usual_ns: SECOND_NS / 4, spread: 50, tail_ns: 0, tail_per_mille: 0 };
    for (name, vms, disks) in [("wide", vms_wide, 8), ("many", vms_many, 1)] {
        let host = Limits::default().host;
        let mut ours = BootStorm::new(times, &limits(host, 10))?;
        let all: Vec<u64> = (0..vms).flat_map(|vm| ours.attach_times(vm as u64, disks)).collect();
        sample(&format!("storm-{name}-ours"), ours.create_many(vms, disks, vms)?);
        sample(&format!("storm-{name}-ideal"), list_schedule(&all, host));
        let mut peer = BootStorm::new(times, &limits(PEER_POOL, PEER_CHUNK))?;
        sample(&format!("storm-{name}-peer"), peer.create_many(vms, disks, PEER_POOL)?);
    }

    // Dependence on the number of running VMs. Disks are fast here, so that their time does not
    // hide the rest.
    let quick_disks = AttachTimes { usual_ns: SECOND_NS / 10_000, ..even };
    let mut storm = BootStorm::new(quick_disks, &limits(64, 10))?;
    storm.create(0)?;
    for name in ["start-at-1", "start-at-many"] {
        for _ in 0..9 {
            let created = storm.create(8)?;
            sample(name, created.ended.0 - created.started.0);
        }
        if name == "start-at-1" {
            storm.create_many(vms_many, 0, 16)?;
        }
    }
    Ok(())
}
