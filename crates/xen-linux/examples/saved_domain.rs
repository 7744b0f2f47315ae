//! Reads a domain's state into a file and loads it into a new domain, without a toolstack. For a lab
//! host.
//!
//! ```text
//! saved_domain capture DOMID FILE [ROUNDS]        the guest must have suspended; with rounds it runs
//!                                                 during them, and is waited for afterwards
//! saved_domain load FILE NAME MEMORY_MIB VCPUS    prints the domid; the domain runs
//! saved_domain check FILE MEMORY_MIB VCPUS        as an HVM domain, which is destroyed: there is no
//!                                                 device model for it
//! ```
//! The file is a stream of libxc or, if its name ends in `.save`, one of `xl save`, whose configuration
//! is empty: `xl restore` is given another. Both print what they took.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use migrate::libxc::{DomainType, Item, PageData, Parser, Record};
use migrate::{Capture, Channel, Input, Load, Loaded, Round, Target, libxl, save_file};
use xen::{
    ARENA_BYTES_FULL, CreateDomain, CreateOptions, DomId, DomainKind, EvtchnPeer, Gfn,
    ShutdownReason, Uuid, Xen,
};
use xen_linux::LinuxHypervisor;
use xenstore::client::Nodes as _;
use xenstore::{Access, Permission};
use xenstore_socket::StoreSocket;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type OnXen = Xen<LinuxHypervisor>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("saved_domain: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    let mut xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
    match words {
        ["capture", domid, file, rounds @ ..] => {
            let rounds = rounds.first().map_or(Ok(0), |rounds| rounds.parse())?;
            capture(&mut xen, DomId(domid.parse()?), Path::new(file), rounds)
        }
        ["load", file, name, memory_mib, vcpus] => {
            let (kind, memory_mib) = (DomainKind::Pvh, memory_mib.parse()?);
            let target = load(&mut xen, Path::new(file), kind, memory_mib, vcpus.parse()?)?;
            let started = introduce(&target.0, &target.1, name)
                .and_then(|()| Ok(xen.unpause_domain(target.0.domid)?));
            if started.is_err() {
                xen.destroy_domain(target.0.domid)?;
            }
            started?;
            println!("domid {}", target.0.domid);
            Ok(())
        }
        ["check", file, memory_mib, vcpus] => {
            let (kind, memory_mib) = (DomainKind::Hvm, memory_mib.parse()?);
            let (target, _) = load(&mut xen, Path::new(file), kind, memory_mib, vcpus.parse()?)?;
            Ok(xen.destroy_domain(target.domid)?)
        }
        _ => Err("capture DOMID FILE [ROUNDS] | load FILE NAME MEMORY_MIB VCPUS".into()),
    }
}

fn capture(xen: &mut OnXen, domid: DomId, file: &Path, rounds: u32) -> Result<()> {
    let mut out = Vec::new();
    let mut capture = Capture::prepare(xen, domid)?;
    capture.headers().encode(&mut out);
    capture.head().iter().for_each(|record| record.encode(&mut out));
    xen.take_counters();
    let read = read(xen, &mut capture, domid, rounds, &mut out);
    capture.end(xen);
    read?;
    if is_of_xl(file) {
        let mut outer = Vec::new();
        save_file::encode("{}", &mut outer);
        libxl::encode_header(&mut outer);
        libxl::Record::LibxcContext.encode(&mut outer);
        outer.append(&mut out);
        libxl::Record::End.encode(&mut outer);
        out = outer;
    }
    fs::write(file, out)?;
    Ok(())
}

fn is_of_xl(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "save")
}

/// What a file has of libxc.
fn items(file: &Path) -> Result<Vec<Item>> {
    const PFN_MAX: u64 = 1 << 32;
    let mut input = Input::new();
    input.feed(&fs::read(file)?);
    input.end();
    let mut items = Vec::new();
    if is_of_xl(file) {
        save_file::parse(&mut input)?;
        let mut parser = libxl::Parser::new(PFN_MAX);
        while let Some(item) = parser.next(&mut input)? {
            if let libxl::Item::Libxc(item) = item {
                items.push(item);
            }
        }
    } else {
        let mut parser = Parser::new(PFN_MAX);
        while let Some(item) = parser.next(&mut input)? {
            items.push(item);
        }
    }
    Ok(items)
}

fn read(
    xen: &mut OnXen,
    capture: &mut Capture,
    domid: DomId,
    rounds: u32,
    out: &mut Vec<u8>,
) -> Result<()> {
    if rounds > 0 {
        capture.start_live(xen)?;
        for _ in 0..rounds {
            round(xen, capture, Round::Live, out)?;
        }
        println!("suspend it now");
        let until = Instant::now() + Duration::from_secs(60);
        while xen.domain(domid)?.and_then(|it| it.flags.shutdown()) != Some(ShutdownReason::Suspend)
        {
            if Instant::now() > until {
                return Err("it does not suspend".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    round(xen, capture, Round::Last, out)?;
    let begun = Instant::now();
    capture.tail(xen)?.iter().for_each(|record| record.encode(out));
    println!("state: {} us", begun.elapsed().as_micros());
    Record::End.encode(out);
    Ok(())
}

fn round(xen: &mut OnXen, capture: &mut Capture, round: Round, out: &mut Vec<u8>) -> Result<()> {
    xen.take_counters();
    let begun = Instant::now();
    let pages = capture.begin_round(xen, round)?;
    let found = begun.elapsed();
    let mut batch = PageData::default();
    while capture.next_batch(xen, &mut batch)? {
        // Its buffer is used again.
        let record = Record::PageData(std::mem::take(&mut batch));
        record.encode(out);
        if let Record::PageData(data) = record {
            batch = data;
        }
    }
    let (all, calls) = (begun.elapsed(), xen.take_counters());
    println!(
        "{round:?}: {pages} pages, found in {} us, read in {} us, {} hypercalls",
        found.as_micros(),
        (all - found).as_micros(),
        calls.total()
    );
    Ok(())
}

/// Loads a file into a new domain, of this kind if it is translated, which is still paused.
fn load(
    xen: &mut OnXen,
    file: &Path,
    kind: DomainKind,
    memory_mib: u64,
    vcpus: u32,
) -> Result<(Target, Loaded)> {
    /// Rings, tables and ROMs beside the memory.
    const EXTRA_PAGES: u64 = 512;
    let mut items = items(file)?.into_iter();
    let Some(Item::Headers(headers)) = items.next() else {
        return Err("the stream has no headers".into());
    };
    let pages_max = memory_mib * 256 + EXTRA_PAGES;
    let target = create(xen, headers.domain, kind, pages_max, vcpus)?;
    xen.take_counters();
    let begun = Instant::now();
    let mut load = Load::new(target, headers)?;
    let loaded = (|| -> Result<Loaded> {
        for item in items {
            if let Item::Record(record) = item {
                load.apply(xen, record)?;
            }
        }
        Ok(load.finish(xen)?)
    })();
    match loaded {
        Ok(loaded) => {
            println!(
                "loaded {} pages in {} us, {} hypercalls",
                loaded.pages,
                begun.elapsed().as_micros(),
                xen.take_counters().total()
            );
            Ok((target, loaded))
        }
        Err(error) => {
            xen.destroy_domain(target.domid)?;
            Err(error)
        }
    }
}

fn create(
    xen: &mut OnXen,
    domain: DomainType,
    translated: DomainKind,
    pages_max: u64,
    vcpus: u32,
) -> Result<Target> {
    let kind = match domain {
        DomainType::Pv => DomainKind::Pv,
        DomainType::Hvm => translated,
    };
    let wanted = CreateDomain {
        kind,
        handle: Uuid(*b"saved-domain-lab"),
        vcpus_max: vcpus,
        evtchn_port_max: 1023,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    };
    let domid = xen.create_domain(&wanted)?;
    xen.set_vcpus_max(domid, vcpus)?;
    xen.set_memory_max(domid, pages_max * 4)?;
    if kind != DomainKind::Pv {
        xen.set_paging_pool(domid, (256 * u64::from(vcpus) + pages_max / 128) * 4096)?;
    }
    let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
    let mut channel = || -> Result<Channel> {
        Ok(Channel { port: xen.alloc_unbound(peer)?, backend: DomId::DOM0 })
    };
    let (store, console) = (channel()?, channel()?);
    Ok(Target { domid, domain, pages_max, vcpus_max: vcpus, store, console })
}

/// The nodes that a guest and the console daemon need.
fn introduce(target: &Target, loaded: &Loaded, name: &str) -> Result<()> {
    let mut store = StoreSocket::connect(&xenstore_socket::default_path())?;
    let home = format!("/local/domain/{}", target.domid);
    for (node, value) in [
        ("", String::new()),
        ("/name", name.to_owned()),
        ("/domid", target.domid.to_string()),
        ("/control", String::new()),
        ("/control/shutdown", String::new()),
        ("/device", String::new()),
        ("/device/suspend/event-channel", String::new()),
        ("/data", String::new()),
        ("/console/type", "xenconsoled".to_owned()),
        ("/console/output", "pty".to_owned()),
        ("/console/limit", "1048576".to_owned()),
        ("/console/tty", String::new()),
        ("/console/ring-ref", loaded.console_frame.to_string()),
        ("/console/port", target.console.port.to_string()),
    ] {
        let path = format!("{home}{node}");
        store.write(&path, value.as_bytes())?;
        store.set_perms(&path, &[Permission::new(Access::None, target.domid)])?;
    }
    Ok(store.introduce(target.domid, Gfn(loaded.store_frame), target.store.port)?)
}
