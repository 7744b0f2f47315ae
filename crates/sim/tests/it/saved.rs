//! A domain's state, read, made into bytes, and loaded into another domain.

use migrate::libxc::{DomainType, Headers, Item, PageData, PageType, Parser, Record};
use migrate::{
    Capture, CaptureError, Channel, Input, Load, LoadError, Loaded, Round, StreamError, Target,
};
use sim::{Machine, Prng, Release, SimHypervisor, Time};
use toolstack::Request;
use xen::{
    CreateDomain, CreateOptions, DomId, DomainKind, Errno, EvtchnPeer, PAGE_BYTES, ShutdownReason,
    Uuid, Xen,
};
use xenstore::client::Nodes as _;
use xenstore::{Access, Permission};

use crate::support::Lab;

const MS: u64 = 1_000_000;
const PFN_MAX: u64 = 1 << 32;

fn xen_of(lab: &Lab) -> Xen<SimHypervisor> {
    Xen::probe(lab.host.hypervisor()).unwrap()
}

/// A guest of 16 MiB with these words on its command line.
fn vm(kind: &str, words: &str) -> String {
    format!(
        "name = 'one'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 16\nvcpus = 2\n\
         extra = '{words}'\n"
    )
}

fn kind_of(word: &str) -> DomainKind {
    match word {
        "pv" => DomainKind::Pv,
        "pvh" => DomainKind::Pvh,
        _ => DomainKind::Hvm,
    }
}

/// Lets the host run for a while.
fn pass(lab: &mut Lab, ns: u64) {
    let until = Time(lab.host.now().0 + ns);
    while lab.daemon.step(until).unwrap() {}
    lab.host.sleep_until(until);
}

fn suspend(lab: &mut Lab) {
    let reply = lab.ask(Request::Suspend { target: "one".to_owned() });
    assert!(matches!(reply, toolstack::Reply::Done { .. }), "{reply:?}");
}

/// Creates a guest that has run for a while.
fn start(release: Release, kind: &str, words: &str) -> (Lab, DomId) {
    let mut lab = Lab::of_release(release);
    let text = if kind == "hvm" {
        sim::add_hvm_files(lab.host.os(), words);
        "name = 'one'\ntype = 'hvm'\nmemory = 32\nvcpus = 2\n".to_owned()
    } else {
        vm(kind, words)
    };
    let domid = lab.create(&text).unwrap();
    pass(&mut lab, 900 * MS);
    (lab, domid)
}

fn started(kind: &str, words: &str) -> (Lab, DomId) {
    start(Release::Xen4_17, kind, words)
}

/// The pages of a round.
fn round(
    xen: &mut Xen<SimHypervisor>,
    capture: &mut Capture,
    round: Round,
    out: &mut Vec<u8>,
) -> Result<u64, CaptureError> {
    let (pages, mut batch) = (capture.begin_round(xen, round)?, PageData::default());
    while capture.next_batch(xen, &mut batch)? {
        Record::PageData(batch.clone()).encode(out);
    }
    Ok(pages)
}

fn finished(xen: &mut Xen<SimHypervisor>, capture: &mut Capture, out: &mut Vec<u8>) {
    for record in capture.tail(xen).unwrap() {
        record.encode(out);
    }
    Record::End.encode(out);
    capture.end(xen);
}

fn begun(xen: &mut Xen<SimHypervisor>, domid: DomId) -> (Capture, Vec<u8>) {
    let capture = Capture::prepare(xen, domid).unwrap();
    let mut out = Vec::new();
    capture.headers().encode(&mut out);
    capture.head().iter().for_each(|record| record.encode(&mut out));
    (capture, out)
}

/// The stream of a suspended domain.
fn saved(xen: &mut Xen<SimHypervisor>, domid: DomId) -> Vec<u8> {
    let (mut capture, mut out) = begun(xen, domid);
    round(xen, &mut capture, Round::Last, &mut out).unwrap();
    finished(xen, &mut capture, &mut out);
    out
}

/// A new domain with room for this many pages.
fn new_domain(xen: &mut Xen<SimHypervisor>, kind: DomainKind, pages_max: u64) -> Target {
    let wanted = CreateDomain {
        kind,
        handle: Uuid([3; 16]),
        vcpus_max: 2,
        evtchn_port_max: 1023,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    };
    let domid = xen.create_domain(&wanted).unwrap();
    xen.set_vcpus_max(domid, 2).unwrap();
    // Ports are others than before.
    let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
    xen.alloc_unbound(peer).unwrap();
    let mut channel = || Channel { port: xen.alloc_unbound(peer).unwrap(), backend: DomId::DOM0 };
    let (store, console) = (channel(), channel());
    xen.set_memory_max(domid, pages_max * 4).unwrap();
    let domain = if kind == DomainKind::Pv { DomainType::Pv } else { DomainType::Hvm };
    if kind != DomainKind::Pv {
        xen.set_paging_pool(domid, 4 << 20).unwrap();
    }
    Target { domid, domain, pages_max, vcpus_max: 2, store, console }
}

#[derive(Debug)]
enum Refused {
    Stream(StreamError),
    Load(LoadError),
    Cut,
}

fn loaded(xen: &mut Xen<SimHypervisor>, target: Target, stream: &[u8]) -> Result<Loaded, Refused> {
    let (mut input, mut parser) = (Input::new(), Parser::new(PFN_MAX));
    input.feed(stream);
    input.end();
    let mut load = None;
    while let Some(item) = parser.next(&mut input).map_err(Refused::Stream)? {
        match (item, &mut load) {
            (Item::Headers(headers), load) => {
                *load = Some(Load::new(target, headers).map_err(Refused::Load)?);
            }
            (Item::Record(record), Some(load)) => {
                load.apply(xen, record).map_err(Refused::Load)?;
            }
            (Item::Record(_), None) => unreachable!("headers come first"),
        }
    }
    load.ok_or(Refused::Cut)?.finish(xen).map_err(Refused::Load)
}

const PAGES_MAX: u64 = 10_000;

fn pages_of(machine: &Machine, domid: DomId) -> Vec<u64> {
    let xen = machine.get();
    let domain = xen.domain(domid).unwrap();
    let mut byte = [0];
    (0..1_050_000_u64)
        .filter(|pfn| {
            let mfn = domain.mfn_of_pfn(*pfn);
            mfn.is_some_and(|mfn| mfn != domain.shared_info)
                && xen.guest_read(domid, *pfn, 0, &mut byte)
        })
        .collect()
}

/// Pages that differ between a suspended domain and the one it was loaded into.
fn differences(machine: &Machine, from: DomId, to: DomId) -> Vec<u64> {
    let pages = pages_of(machine, from);
    assert_eq!(pages, pages_of(machine, to));
    let xen = machine.get();
    let page = |domid, pfn| {
        let mut page = vec![0; PAGE_BYTES];
        assert!(xen.guest_read(domid, pfn, 0, &mut page));
        page
    };
    pages.into_iter().filter(|pfn| page(from, *pfn) != page(to, *pfn)).collect()
}

/// What a guest has written to its console since it was loaded.
fn told(machine: &Machine, domid: DomId, pfn: u64) -> String {
    let mut ring = [0; 2048];
    assert!(machine.get().guest_read(domid, pfn, 1024, &mut ring));
    let end = ring.iter().position(|byte| *byte == 0).unwrap_or(ring.len());
    String::from_utf8_lossy(&ring[..end]).into_owned()
}

/// Introduces a loaded domain to the store and lets it run.
fn run_on(lab: &mut Lab, xen: &mut Xen<SimHypervisor>, target: Target, loaded: Loaded) {
    let mut store = lab.host.connect();
    let home = format!("/local/domain/{}", target.domid);
    for node in ["", "/control", "/control/shutdown", "/device", "/data"] {
        store.write(&format!("{home}{node}"), b"").unwrap();
        let owner = Permission::new(Access::None, target.domid);
        store.set_perms(&format!("{home}{node}"), &[owner]).unwrap();
    }
    store.introduce(target.domid, xen::Gfn(loaded.store_frame), target.store.port).unwrap();
    xen.unpause_domain(target.domid).unwrap();
    pass(lab, 50 * MS);
}

#[test]
fn a_pvh_domain_goes_on_in_another_domain() {
    for release in Release::ALL {
        let (mut lab, from) = start(release, "pvh", "sim.writes=100");
        suspend(&mut lab);
        let mut xen = xen_of(&lab);
        let stream = saved(&mut xen, from);
        let target = new_domain(&mut xen, DomainKind::Pvh, PAGES_MAX);
        let done = loaded(&mut xen, target, &stream).unwrap();
        let machine = lab.host.machine().clone();
        let rings = [done.store_frame, done.console_frame];
        let others: Vec<u64> = differences(&machine, from, target.domid);
        assert!(others.iter().all(|pfn| rings.contains(pfn)), "{others:x?}");
        assert_eq!(done.pages, xen.domain(from).unwrap().unwrap().pages);
        assert_eq!(xen.cpu_policy(from), xen.cpu_policy(target.domid));
        run_on(&mut lab, &mut xen, target, done);
        let told = told(&machine, target.domid, done.console_frame);
        assert!(told.starts_with("memory: as written, "), "{told}");
        assert!(told.contains("suspend: returned 0, in a new domain"), "{told}");
        let node = format!("/local/domain/{}/control/feature-suspend", target.domid);
        assert_eq!(lab.host.connect().read(&node).unwrap(), b"1", "{told}");
    }
}

#[test]
fn a_pv_domain_goes_on_in_another_domain() {
    for release in [Release::Xen4_17, Release::Xen4_22] {
        for lists in ["tables", "lists"] {
            let (mut lab, from) = start(release, "pv", &format!("sim.writes=100 sim.p2m={lists}"));
            suspend(&mut lab);
            let mut xen = xen_of(&lab);
            let stream = saved(&mut xen, from);
            let target = new_domain(&mut xen, DomainKind::Pv, PAGES_MAX);
            let done = loaded(&mut xen, target, &stream).unwrap();
            let machine = lab.host.machine().clone();
            assert_eq!(done.pages, xen.domain(from).unwrap().unwrap().pages);
            let tables = |domid| -> Vec<(u64, u8)> {
                let xen = machine.get();
                let tables = xen.page_tables(domid);
                tables.map(|(mfn, level)| (xen.frame_number(mfn).unwrap(), level)).collect()
            };
            let mut before = tables(from);
            let mut after = tables(target.domid);
            before.sort_unstable();
            after.sort_unstable();
            assert_eq!(before, after);
            run_on(&mut lab, &mut xen, target, done);
            let console = machine.get().frame_number(done.console_frame).unwrap();
            let told = told(&machine, target.domid, console);
            assert!(told.contains("memory: as written, "), "{told}");
            assert!(told.contains("suspend: returned 0, in a new domain"), "{told}");
        }
    }
}

#[test]
fn an_hvm_domains_memory_and_parameters_are_loaded() {
    let (mut lab, from) = started("hvm", "sim.writes=100");
    suspend(&mut lab);
    let mut xen = xen_of(&lab);
    let stream = saved(&mut xen, from);
    let target = new_domain(&mut xen, DomainKind::Hvm, PAGES_MAX);
    let done = loaded(&mut xen, target, &stream).unwrap();
    let machine = lab.host.machine().clone();
    let rings = [done.store_frame, done.console_frame];
    let others: Vec<u64> = differences(&machine, from, target.domid);
    assert!(others.iter().all(|pfn| rings.contains(pfn)), "{others:x?}");
    for param in [5, 6, 12, 27, 28, 29, 32, 33] {
        let param = |domid| machine.get().domain(domid).unwrap().param(param);
        assert_eq!(param(from), param(target.domid));
    }
    assert_eq!(xen.hvm_context(from), xen.hvm_context(target.domid));
}
