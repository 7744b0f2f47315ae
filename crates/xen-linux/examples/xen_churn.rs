//! Checks what may be relied on while domains are created and destroyed as fast as possible.
//!
//! `xen_churn listings COUNT SECONDS` lists all domains COUNT times, for at most SECONDS, while a
//! second connection creates and destroys bare domains, and checks each list: ascending, without
//! duplicates, with every domain that existed before and after it. `xen_churn take DOMID` creates a
//! domain with exactly this domid, prints `taken` or the error, and destroys it again. `xen_churn
//! destroy DOMID` destroys a domain as any other toolstack may. `xen_churn state DOMID` prints
//! `alive`, `dead` or `none`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use xen::{
    ARENA_BYTES_FULL, ARENA_BYTES_MIN, CreateDomain, CreateOptions, DomId, DomainKind, Errno, Uuid,
    Xen,
};
use xen_linux::LinuxHypervisor;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str =
    "usage: xen_churn listings COUNT SECONDS | take DOMID | destroy DOMID | state DOMID";

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xen_churn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["listings", count, seconds] => listings(count.parse()?, seconds.parse()?),
        ["take", domid] => take(DomId(domid.parse()?)),
        ["destroy", domid] => {
            connect(ARENA_BYTES_MIN)?.destroy_domain(DomId(domid.parse()?))?;
            Ok("destroyed".to_owned())
        }
        ["state", domid] => {
            let info = connect(ARENA_BYTES_MIN)?.domain(DomId(domid.parse()?))?;
            Ok(match info {
                None => "none",
                Some(info) if info.flags.dying() => "dead",
                Some(_) => "alive",
            }
            .to_owned())
        }
        _ => Err(USAGE.into()),
    }
}

fn connect(arena_bytes: usize) -> Outcome<Xen<LinuxHypervisor>> {
    Ok(Xen::probe(LinuxHypervisor::open(arena_bytes)?)?)
}

/// The smallest possible domain: no memory, one vCPU that is never allocated.
fn bare() -> CreateDomain {
    CreateDomain {
        kind: DomainKind::Pv,
        handle: Uuid([0xcc; 16]),
        vcpus_max: 1,
        evtchn_port_max: 15,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    }
}

fn take(domid: DomId) -> Outcome<String> {
    let mut xen = connect(ARENA_BYTES_MIN)?;
    match xen.create_domain_as(domid, &bare()) {
        Ok(domid) => {
            xen.destroy_domain(domid)?;
            Ok("taken".to_owned())
        }
        Err(errno) => Ok(errno.to_string()),
    }
}

/// Creates and destroys domains until stopped; returns how many.
fn churn(stop: &AtomicBool) -> Outcome<u64> {
    let mut xen = connect(ARENA_BYTES_MIN)?;
    let mut alive = Vec::new();
    let mut count = 0;
    let outcome = loop {
        if stop.load(Ordering::Relaxed) {
            break Ok(count);
        }
        // A few at a time, so that domids below and above the stable ones come and go.
        match xen.create_domain(&bare()) {
            Ok(domid) => alive.push(domid),
            // Xen frees a dead domain's memory a little later.
            Err(Errno::ENOMEM) => thread::sleep(Duration::from_millis(1)),
            Err(errno) => break Err(errno),
        }
        if alive.len() > 6 {
            let victim = alive.swap_remove(usize::try_from(count % 7)?);
            if let Err(errno) = xen.destroy_domain(victim) {
                break Err(errno);
            }
        }
        count += 1;
    };
    for domid in alive {
        xen.destroy_domain(domid)?;
    }
    Ok(outcome?)
}

fn listings(count: u64, seconds: u64) -> Outcome<String> {
    let mut xen = connect(ARENA_BYTES_FULL)?;
    let stable: BTreeSet<u16> = xen.domains()?.iter().map(|info| info.domid.0).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let churner = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || churn(&stop))
    };
    let begun = Instant::now();
    let mut listed = 0;
    let mut outcome = Ok(());
    let mut sizes = BTreeSet::new();
    while listed < count && begun.elapsed() < Duration::from_secs(seconds) {
        let calls = xen.counters().total();
        let ids: Vec<u16> = xen.domains()?.iter().map(|info| info.domid.0).collect();
        listed += 1;
        sizes.insert(ids.len());
        let ascends = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let missing = stable.iter().find(|id| ids.binary_search(id).is_err());
        if !ascends {
            outcome = Err(format!("list {listed} is unsorted or has a duplicate: {ids:?}"));
        } else if let Some(missing) = missing {
            outcome = Err(format!("list {listed} lacks domain {missing}: {ids:?}"));
        } else if xen.counters().total() - calls != 1 {
            outcome = Err(format!("list {listed} took more than one hypercall"));
        } else {
            continue;
        }
        break;
    }
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let churned = churner.join().map_err(|_| "the churning thread failed")??;
    outcome?;
    if sizes.len() < 2 || churned == 0 {
        return Err("no domain was created or destroyed meanwhile".into());
    }
    Ok(format!(
        "listings {listed} seconds {:.1} creates-and-destroys {churned} stable {} sizes {}..{}",
        took.as_secs_f64(),
        stable.len(),
        sizes.first().unwrap_or(&0),
        sizes.last().unwrap_or(&0)
    ))
}
