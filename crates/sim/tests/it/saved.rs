//! A domain's state, read, made into bytes, and loaded into another domain.

use migrate::libxc::{
    DomainType, Headers, Item, P2mFrames, PageData, PageType, Parser, Record, VcpuBlob, VcpuState,
};
use migrate::{
    Capture, CaptureError, Channel, Input, Load, LoadError, Loaded, Round, StreamError, Target,
};
use sim::{Calls, HostConfig, Machine, MachineConfig, Prng, Release, SimHypervisor, Time};
use toolstack::Request;
use xen::{
    CreateDomain, CreateOptions, DomId, DomainKind, Errno, EvtchnPeer, PAGE_BYTES, Uuid, Xen,
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

/// A suspended guest of 8 MiB, its stream, and how many pages of the host are free.
fn suspended(kind: &str) -> (Lab, Vec<u8>, u64) {
    let mut lab = Lab::seeded(1);
    let domid = lab.create(&vm(kind, "").replace("memory = 16", "memory = 8")).unwrap();
    lab.settle();
    suspend(&mut lab);
    let stream = saved(&mut xen_of(&lab), domid);
    let pages_free = lab.host.machine().get().pages_free();
    (lab, stream, pages_free)
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

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("there are no headers")]
    Cut,
}

fn loaded(xen: &mut Xen<SimHypervisor>, target: Target, stream: &[u8]) -> Result<Loaded, Refused> {
    let (mut input, mut parser) = (Input::new(), Parser::new(PFN_MAX));
    input.feed(stream);
    input.end();
    let mut load = None;
    while let Some(item) = parser.next(&mut input)? {
        match (item, &mut load) {
            (Item::Headers(headers), load) => {
                *load = Some(Load::new(target, headers)?);
            }
            (Item::Record(record), Some(load)) => {
                load.apply(xen, record)?;
            }
            (Item::Record(_), None) => unreachable!("headers come first"),
        }
    }
    Ok(load.ok_or(Refused::Cut)?.finish(xen)?)
}

const PAGES_MAX: u64 = 10_000;

fn pages_of(machine: &Machine, domid: DomId) -> Vec<u64> {
    let xen = machine.get();
    let domain = xen.domain(domid).unwrap();
    let is_memory = |pfn: &u64| domain.mfn_of_pfn(*pfn) != Some(domain.shared_info);
    domain.frame_numbers().filter(is_memory).collect()
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
    for release in [Release::Xen4_17, Release::Xen4_20, Release::Xen4_22] {
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

/// Destroys a domain and returns how many pages are free then.
fn free_without(lab: &mut Lab, xen: &mut Xen<SimHypervisor>, domid: DomId) -> u64 {
    xen.destroy_domain(domid).unwrap();
    pass(lab, 100 * MS);
    lab.host.machine().get().pages_free()
}

#[test]
fn memory_is_read_in_rounds_while_the_guest_writes_it() {
    for kind in ["pvh", "hvm"] {
        let (mut lab, from) = started(kind, "sim.writes=300");
        let mut xen = xen_of(&lab);
        let (mut capture, mut out) = begun(&mut xen, from);
        // Somebody has left it on.
        xen.enable_log_dirty(from).unwrap();
        capture.start_live(&mut xen).unwrap();
        assert_eq!(
            capture.begin_round(&mut xen, Round::Last),
            Err(CaptureError::NotSuspended { domid: from })
        );
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts.push(round(&mut xen, &mut capture, Round::Live, &mut out).unwrap());
            pass(&mut lab, 10 * MS);
        }
        let all = pages_of(lab.host.machine(), from).len() as u64;
        assert_eq!(counts[0], all);
        // Four pages each millisecond, a page of counters, and those of the rings.
        assert!(counts[1..].iter().all(|pages| (20..80).contains(pages)), "{counts:?}");
        suspend(&mut lab);
        let last = round(&mut xen, &mut capture, Round::Last, &mut out).unwrap();
        assert!((20..100).contains(&last), "{last}");
        finished(&mut xen, &mut capture, &mut out);
        capture.end(&mut xen);
        assert_eq!(xen.enable_log_dirty(from), Ok(()), "it was on after the end");
        let target = new_domain(&mut xen, kind_of(kind), PAGES_MAX);
        let done = loaded(&mut xen, target, &out).unwrap();
        let rings = [done.store_frame, done.console_frame];
        let others = differences(lab.host.machine(), from, target.domid);
        assert!(others.iter().all(|pfn| rings.contains(pfn)), "{kind} {others:x?}");
    }
}

fn kind_of(word: &str) -> DomainKind {
    match word {
        "pv" => DomainKind::Pv,
        "pvh" => DomainKind::Pvh,
        _ => DomainKind::Hvm,
    }
}

#[test]
fn pages_that_come_and_go_while_memory_is_read_are_as_they_were_at_the_end() {
    let (mut lab, from) = started("pvh", "sim.writes=20");
    let mut xen = xen_of(&lab);
    let (mut capture, mut out) = begun(&mut xen, from);
    capture.start_live(&mut xen).unwrap();
    // Some go before they are read.
    capture.begin_round(&mut xen, Round::Live).unwrap();
    assert_eq!(xen.decrease_reservation(from, 0, &[1001, 2002]), Ok(2));
    let mut batch = PageData::default();
    let mut gone = Vec::new();
    while capture.next_batch(&mut xen, &mut batch).unwrap() {
        gone.extend(batch.pages.iter().filter(|(_, kind)| !kind.has_data()).copied());
        Record::PageData(batch.clone()).encode(&mut out);
    }
    assert_eq!(gone, [1001, 2002].map(|pfn| (pfn, PageType::Invalid)));
    // Some when they were read; one comes again.
    assert_eq!(xen.decrease_reservation(from, 0, &[1500, 1501, 3000]), Ok(3));
    assert_eq!(xen.populate(from, 0, &[1001]), Ok(vec![1001]));
    xen.write_foreign(from, &[1001], 0, &[9; PAGE_BYTES]).unwrap();
    suspend(&mut lab);
    round(&mut xen, &mut capture, Round::Last, &mut out).unwrap();
    finished(&mut xen, &mut capture, &mut out);
    let target = new_domain(&mut xen, DomainKind::Pvh, PAGES_MAX);
    let done = loaded(&mut xen, target, &out).unwrap();
    assert_eq!(done.pages, xen.domain(target.domid).unwrap().unwrap().pages);
    let rings = [done.store_frame, done.console_frame];
    let others = differences(lab.host.machine(), from, target.domid);
    assert!(others.iter().all(|pfn| rings.contains(pfn)), "{others:x?}");
}

#[test]
fn after_a_failure_all_pages_come_again() {
    let (mut lab, from) = started("pvh", "sim.writes=50");
    let mut xen = xen_of(&lab);
    let (mut capture, mut out) = begun(&mut xen, from);
    let all = pages_of(lab.host.machine(), from).len() as u64;
    capture.start_live(&mut xen).unwrap();
    assert_eq!(round(&mut xen, &mut capture, Round::Live, &mut out), Ok(all));
    pass(&mut lab, 5 * MS);
    let log = Calls::Named("shadow_op");
    lab.host.machine().get_mut().faults_mut().fail(log, 1, Errno::ENOMEM);
    assert!(round(&mut xen, &mut capture, Round::Live, &mut out).is_err());
    assert_eq!(round(&mut xen, &mut capture, Round::Live, &mut out), Ok(all));
    // It was begun, and the log was cleared by that.
    capture.begin_round(&mut xen, Round::Live).unwrap();
    assert_eq!(round(&mut xen, &mut capture, Round::Live, &mut out), Ok(all));
    capture.end(&mut xen);
    capture.start_live(&mut xen).unwrap();
    assert_eq!(round(&mut xen, &mut capture, Round::Live, &mut out), Ok(all));
    capture.end(&mut xen);
    capture.end(&mut xen);
    // Without a log, all are read when the guest has suspended.
    suspend(&mut lab);
    assert_eq!(round(&mut xen, &mut capture, Round::Last, &mut out), Ok(all));
}

#[test]
fn what_cannot_be_read_while_it_runs_says_so() {
    let (lab, from) = started("pv", "");
    let mut xen = xen_of(&lab);
    let (mut capture, _) = begun(&mut xen, from);
    let error = capture.start_live(&mut xen).unwrap_err();
    assert_eq!(error, CaptureError::NoLogDirty { domid: from });
    xen.destroy_domain(from).unwrap();
    let error = capture.begin_round(&mut xen, Round::Last).unwrap_err();
    assert_eq!(error, CaptureError::Gone { domid: from });
}

#[test]
fn a_read_or_load_takes_few_hypercalls() {
    for kind in ["pvh", "pv"] {
        let (mut lab, from) = started(kind, "");
        suspend(&mut lab);
        let mut xen = xen_of(&lab);
        xen.take_counters();
        let stream = saved(&mut xen, from);
        let read = xen.take_counters();
        let target = new_domain(&mut xen, kind_of(kind), PAGES_MAX);
        xen.take_counters();
        loaded(&mut xen, target, &stream).unwrap();
        let written = xen.take_counters();
        let counts =
            |counters: &xen::Counters| -> Vec<(&'static str, u64)> { counters.iter().collect() };
        // 16 MiB: two calls for each 2 MiB, the rest once for a domain, twice for a list of frames.
        assert!(read.total() <= 52, "{kind} {:?}", counts(&read));
        assert!(written.total() <= 52, "{kind} {:?}", counts(&written));
        for name in ["map_foreign", "getpageframeinfo3", "populate_physmap"] {
            for counters in [&read, &written] {
                let count = counts(counters).into_iter().find(|(other, _)| *other == name);
                assert!(count.is_none_or(|(_, count)| count <= 24), "{kind} {count:?}");
            }
        }
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_is_refused_and_leaves_nothing() {
    for kind in ["pvh", "pv"] {
        let (mut lab, stream, before) = suspended(kind);
        let mut xen = xen_of(&lab);
        let mut prng = Prng::new(5);
        let ends = record_ends(&stream);
        let mut cuts: Vec<usize> = ends[..ends.len() - 1].to_vec();
        cuts.extend(ends.iter().map(|end| end - 1));
        cuts.extend((0..20).map(|_| usize::try_from(prng.below(stream.len() as u64)).unwrap()));
        for cut in cuts {
            let target = new_domain(&mut xen, kind_of(kind), PAGES_MAX);
            let result = loaded(&mut xen, target, &stream[..cut]);
            assert!(result.is_err(), "{kind} {cut} of {}: {result:?}", stream.len());
            assert_eq!(free_without(&mut lab, &mut xen, target.domid), before, "{kind} {cut}");
        }
    }
}

/// Where the records of a stream end.
fn record_ends(stream: &[u8]) -> Vec<usize> {
    let mut ends = vec![24, 40];
    let mut at = 40;
    while at < stream.len() {
        let length = u32::from_le_bytes(stream[at + 4..at + 8].try_into().unwrap());
        at += 8 + usize::try_from(length).unwrap().next_multiple_of(8);
        ends.push(at);
    }
    ends
}

#[test]
fn a_flipped_bit_is_refused_or_harmless_and_leaves_nothing() {
    for kind in ["pvh", "pv"] {
        let (mut lab, mut stream, before) = suspended(kind);
        let mut xen = xen_of(&lab);
        let mut prng = Prng::new(6);
        let ends = record_ends(&stream);
        let mut refused = 0;
        for number in 0..80 {
            // Most of a stream is the content of pages: half of the flips are at the heads of records.
            let (first, room) = match number % 2 {
                0 => (0, stream.len()),
                _ => (ends[usize::try_from(prng.below(ends.len() as u64 - 1)).unwrap()], 64),
            };
            let at = first + usize::try_from(prng.below(room as u64)).unwrap();
            let Some(byte) = stream.get_mut(at) else { continue };
            let bit = 1 << prng.below(8);
            *byte ^= bit;
            let target = new_domain(&mut xen, kind_of(kind), PAGES_MAX);
            if let Err(error) = loaded(&mut xen, target, &stream) {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            assert_eq!(free_without(&mut lab, &mut xen, target.domid), before, "{kind} {at}");
            stream[at] ^= bit;
        }
        assert!(refused > 15, "only {refused} were refused");
    }
}

fn page_data(pages: &[(u64, PageType)]) -> Record {
    let with_data = pages.iter().filter(|(_, kind)| kind.has_data()).count();
    Record::PageData(PageData { pages: pages.to_vec(), data: vec![6; with_data * PAGE_BYTES] })
}

/// What a domain of a type says of these records.
fn refusal(xen: &mut Xen<SimHypervisor>, kind: DomainKind, records: &[Record]) -> String {
    let target = new_domain(xen, kind, 64);
    let headers = Headers::new(target.domain, (4, 17));
    let mut load = Load::new(target, headers).unwrap();
    let applied = records.iter().try_for_each(|record| load.apply(xen, record.clone()));
    let error = applied.and_then(|()| load.finish(xen).map(drop)).expect_err("refused");
    xen.destroy_domain(target.domid).unwrap();
    error.to_string()
}

#[test]
fn whatever_a_stream_claims_is_measured_by_the_domain() {
    let lab = Lab::seeded(1);
    let mut xen = xen_of(&lab);
    let before = lab.host.machine().get().pages_free();
    let normal = |pfn| (pfn, PageType::Normal);
    let begun = Record::StaticDataEnd;
    let params = |list: &[(u64, u64)]| Record::HvmParams(list.to_vec());
    let context = Record::HvmContext(vec![1; 64]);
    let end = Record::End;
    for (records, expected) in [
        (
            vec![page_data(&[normal(0)])],
            "a record PAGE_DATA comes before the end of the static data",
        ),
        (
            vec![begun.clone(), begun.clone()],
            "a record STATIC_DATA_END comes after the end of the static data",
        ),
        (
            vec![begun.clone(), page_data(&[normal(1 << 51)])],
            "frame 0x8000000000000 lies beyond the domain's last possible one, 0x100040",
        ),
        (
            vec![begun.clone(), page_data(&(0..65).map(normal).collect::<Vec<_>>())],
            "the saved domain has more than the 64 pages that the new one may have",
        ),
        (
            vec![begun.clone(), page_data(&[(1, PageType::Table { level: 1, is_pinned: false })])],
            "a record PAGE_DATA makes no sense for a HVM or PVH domain",
        ),
        (
            vec![begun.clone(), Record::Checkpoint],
            "a record CHECKPOINT makes no sense for a HVM or PVH domain",
        ),
        (
            vec![begun.clone(), params(&[(35, 1)])],
            "the domain's parameter 35 is not part of a saved domain",
        ),
        (vec![begun.clone()], "the saved domain is incomplete, without its end"),
        (
            vec![begun.clone(), end.clone()],
            "the saved domain is incomplete, without its HVM context",
        ),
        (
            vec![begun.clone(), context.clone(), params(&[(1, 1 << 60), (17, 5)]), end.clone()],
            "the store's ring page leads to frame 0x1000000000000000, which the domain does not have",
        ),
        (
            vec![
                begun.clone(),
                page_data(&[normal(4), normal(5)]),
                context,
                params(&[(1, 4), (17, 5)]),
                end,
            ],
            "cannot load its HVM context: EINVAL: invalid argument",
        ),
    ] {
        assert_eq!(refusal(&mut xen, DomainKind::Pvh, &records), expected);
    }
    lab.host.run_until(Time(lab.host.now().0 + 1_000 * MS));
    assert_eq!(lab.host.machine().get().pages_free(), before);
}

#[test]
fn whatever_a_pv_stream_claims_is_measured_by_the_domain() {
    let lab = Lab::seeded(1);
    let mut xen = xen_of(&lab);
    let normal = |pfn| (pfn, PageType::Normal);
    let table = |level| PageType::Table { level, is_pinned: true };
    let info = Record::PvInfo { width: 8, levels: 4 };
    let p2m = |end: u32, frames: &[u64]| {
        Record::P2mFrames(P2mFrames { start: 0, end, frames: frames.to_vec() })
    };
    let vcpu = |vcpu, state, bytes| Record::Vcpu(VcpuBlob { state, vcpu, bytes: vec![0; bytes] });
    let begun = [info, Record::StaticDataEnd, p2m(31, &[9])];
    let leads = |target: u64| {
        let mut data = vec![0; PAGE_BYTES];
        data[..8].copy_from_slice(&(target << 12 | 1).to_le_bytes());
        Record::PageData(PageData { pages: vec![(3, table(1))], data })
    };
    let shared = Record::SharedInfo(vec![0; PAGE_BYTES].into());
    let registers = vcpu(0, VcpuState::Basic, 5168);
    for (records, expected) in [
        (
            vec![p2m(u32::MAX, &[1])],
            "the guest's list of machine frames: it has too many or too few frames (0x1)",
        ),
        (
            vec![page_data(&[normal(32)])],
            "frame 0x20 lies beyond the domain's last possible one, 0x1f",
        ),
        (
            vec![leads(32)],
            "entry 0 of the page table at frame 0x3 leads to frame 0x20, beyond the guest's memory",
        ),
        (
            vec![leads(1 << 39)],
            "entry 0 of the page table at frame 0x3 leads to frame 0x8000000000, beyond the guest's memory",
        ),
        (vec![vcpu(2, VcpuState::Basic, 5168)], "vCPU 2: the domain has no such vCPU (0x2)"),
        (
            vec![vcpu(1, VcpuState::Basic, 5167)],
            "vCPU 1: its registers are of another length (0x142f)",
        ),
        (
            vec![vcpu(1, VcpuState::Msrs, 17)],
            "vCPU 1: its model specific registers are of another length (0x11)",
        ),
        (vec![Record::HvmContext(vec![1])], "a record HVM_CONTEXT makes no sense for a PV domain"),
        (vec![Record::End], "the saved domain is incomplete, without the shared info page"),
        (
            vec![shared.clone(), Record::End],
            "the saved domain is incomplete, without the registers of vCPU 0",
        ),
        (
            vec![shared.clone(), registers.clone(), Record::End],
            "start_info leads to frame 0x0, which the domain does not have",
        ),
        (
            vec![page_data(&[(0, table(2))]), shared, registers, Record::End],
            "start_info leads to frame 0x0, which the domain does not have",
        ),
    ] {
        let records: Vec<Record> = begun.iter().cloned().chain(records).collect();
        assert_eq!(refusal(&mut xen, DomainKind::Pv, &records), expected);
    }
    let narrow = Record::PvInfo { width: 4, levels: 3 };
    let told = refusal(&mut xen, DomainKind::Pv, &[narrow]);
    assert_eq!(told, "a PV guest of 32 bits cannot be loaded, only one of 64 bits");
}

#[test]
fn what_is_kept_of_each_vcpu_is_bounded() {
    let lab = Lab::seeded(1);
    let mut xen = xen_of(&lab);
    let begun = [Record::PvInfo { width: 8, levels: 4 }, Record::StaticDataEnd];
    for (state, bytes, expected) in [
        (VcpuState::Msrs, 257 * 16, "it has too many model specific registers (0x1010)"),
        (VcpuState::Xsave, (64 << 10) + 1, "its floating point state is too long (0x10001)"),
    ] {
        let blob = Record::Vcpu(VcpuBlob { state, vcpu: 1, bytes: vec![0; bytes] });
        let records: Vec<Record> = begun.iter().cloned().chain([blob]).collect();
        let told = refusal(&mut xen, DomainKind::Pv, &records);
        assert_eq!(told, format!("vCPU 1: {expected}"));
    }
}

#[test]
fn a_stream_of_another_type_of_domain_is_refused() {
    let lab = Lab::seeded(1);
    let mut xen = xen_of(&lab);
    let target = new_domain(&mut xen, DomainKind::Pv, 64);
    let error = Load::new(target, Headers::new(DomainType::Hvm, (4, 17))).unwrap_err();
    assert_eq!(error.to_string(), "a saved HVM or PVH domain cannot be loaded into a PV domain");
}

/// A host whose Xen logs the writes of PV domains, with a guest on it.
fn started_on_shadow(words: &str) -> (Lab, DomId) {
    let machine = MachineConfig { has_shadow: true, ..MachineConfig::default() };
    let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    let domid = lab.create(&vm("pv", words)).unwrap();
    pass(&mut lab, 900 * MS);
    (lab, domid)
}

/// A page table of this level, by its frame number, and its first entry that maps something.
fn table_of(machine: &Machine, domid: DomId, wanted: u8) -> (u64, usize, u64) {
    let xen = machine.get();
    let mfn = xen.page_tables(domid).find(|(_, level)| *level == wanted).unwrap().0;
    let pfn = xen.frame_number(mfn).unwrap();
    let mut page = [0; PAGE_BYTES];
    assert!(xen.guest_read(domid, pfn, 0, &mut page));
    let mut entries = page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let slot = entries.position(|entry| entry & 1 != 0).unwrap();
    let entry = u64::from_le_bytes(page[slot * 8..][..8].try_into().unwrap());
    (pfn, slot, entry)
}

fn set_entry(machine: &Machine, domid: DomId, pfn: u64, slot: usize, entry: u64) {
    assert!(machine.get_mut().guest_write(domid, pfn, slot * 8, &entry.to_le_bytes()));
}

#[test]
fn a_pv_domains_memory_is_read_while_it_runs_where_xen_can() {
    let (mut lab, from) = started_on_shadow("sim.writes=200");
    let mut xen = xen_of(&lab);
    let (mut capture, mut out) = begun(&mut xen, from);
    capture.start_live(&mut xen).unwrap();
    let all = round(&mut xen, &mut capture, Round::Live, &mut out).unwrap();
    assert_eq!(all, 4096);
    // An entry in the middle of a change leads out of the guest for a while.
    let machine = lab.host.machine().clone();
    let (pfn, slot, entry) = table_of(&machine, from, 1);
    set_entry(&machine, from, pfn, slot, 1);
    pass(&mut lab, 5 * MS);
    let some = round(&mut xen, &mut capture, Round::Live, &mut out).unwrap();
    assert!((10..80).contains(&some), "{some}");
    set_entry(&machine, from, pfn, slot, entry);
    suspend(&mut lab);
    let last = round(&mut xen, &mut capture, Round::Last, &mut out).unwrap();
    assert!((1..80).contains(&last), "{last}");
    finished(&mut xen, &mut capture, &mut out);
    let target = new_domain(&mut xen, DomainKind::Pv, PAGES_MAX);
    let done = loaded(&mut xen, target, &out).unwrap();
    let tables = machine.get().page_tables(from).map(|(mfn, _)| mfn).collect::<Vec<_>>();
    let is_table =
        |pfn: &u64| tables.iter().any(|mfn| machine.get().frame_number(*mfn) == Some(*pfn));
    let others = differences(&machine, from, target.domid);
    // Machine frames are others in tables, in the list of frames (8 pages) and in start info; the store's ring is empty.
    let others: Vec<u64> = others.into_iter().filter(|pfn| !is_table(pfn)).collect();
    assert!(others.len() <= 10, "{others:x?}");
    run_on(&mut lab, &mut xen, target, done);
    let console = machine.get().frame_number(done.console_frame).unwrap();
    let told = told(&machine, target.domid, console);
    assert!(told.contains("memory: as written, "), "{told}");
}

#[test]
fn a_list_of_frames_that_moves_meanwhile_ends_the_save() {
    let (mut lab, from) = started("pv", "");
    let mut xen = xen_of(&lab);
    let (mut capture, _) = begun(&mut xen, from);
    suspend(&mut lab);
    let frame = xen.domain(from).unwrap().unwrap().shared_info_frame;
    xen.write_foreign(from, &[frame], 3088, &4000_u64.to_le_bytes()).unwrap();
    let error = capture.begin_round(&mut xen, Round::Last).unwrap_err();
    assert_eq!(error, CaptureError::P2mMoved { domid: from });
}

#[test]
fn a_damaged_pv_guest_is_not_saved_and_the_reason_is_told() {
    const PAGES: usize = 3088;
    const ROOT: usize = 3112;
    const ADDRESS: usize = 3120;
    let shared = |at: usize, value: u64| {
        move |xen: &mut Xen<SimHypervisor>, domid: DomId| {
            let frame = xen.domain(domid).unwrap().unwrap().shared_info_frame;
            xen.write_foreign(domid, &[frame], at, &value.to_le_bytes()).unwrap();
        }
    };
    let table = |level: u8, entry: fn(u64) -> u64| {
        move |xen: &mut Xen<SimHypervisor>, domid: DomId| {
            let machine = xen.hypervisor().machine().clone();
            let (pfn, slot, old) = table_of(&machine, domid, level);
            set_entry(&machine, domid, pfn, slot, entry(old));
        }
    };
    let registers = |at: usize, value: u64| {
        move |xen: &mut Xen<SimHypervisor>, domid: DomId| {
            let mut context = xen.vcpu_context(domid, 0).unwrap();
            context[at..at + 8].copy_from_slice(&value.to_le_bytes());
            xen.set_vcpu_context(domid, 0, &context).unwrap();
        }
    };
    type Damage = Box<dyn Fn(&mut Xen<SimHypervisor>, DomId)>;
    let cases: Vec<(Damage, &str)> = vec![
        (Box::new(shared(PAGES, 0)), "is not there: the guest does not support being saved (0x0)"),
        (
            Box::new(shared(PAGES, 1 << 60)),
            "is longer than that of a domain of its size (0x1000000000000000)",
        ),
        (
            Box::new(shared(PAGES, u32::MAX.into())),
            "is longer than that of a domain of its size (0xffffffff)",
        ),
        (Box::new(shared(PAGES, 1 << 28)), "is mapped at no address for it (0xffffffff80108000)"),
        (
            Box::new(shared(ROOT, 0x000f_ffff_ffff_f000)),
            "leads to a frame that the machine does not have",
        ),
        (Box::new(shared(ROOT, 0x10_0000 << 12)), "cannot map 1 frames"),
        (Box::new(shared(ROOT, 0)), "is not there: the guest does not support being saved"),
        (Box::new(shared(ADDRESS, 0x123)), "is mapped at no address for it (0x123)"),
        (Box::new(shared(ADDRESS, 1 << 46)), "is not mapped where it should be"),
        (Box::new(table(1, |_| 0x10_0000 << 12 | 1)), "leads to a frame that is not the guest's"),
        (Box::new(table(2, |entry| entry | 0x80)), "maps a large page, which cannot be saved"),
        (Box::new(registers(616, 5)), "vCPU 0: its start_info frame (0x5) is not the guest's"),
        (Box::new(registers(4960, 8000)), "its number of GDT entries (0x1f40)"),
        (Box::new(registers(4960, 1)), "its GDT frame (0x0)"),
        (Box::new(registers(4992, 0x7001)), "its cr1 (0x7)"),
    ];
    for (damage, expected) in cases {
        // The tables are damaged as such, not as the way to the list.
        let words = if expected.starts_with("maps") { "sim.p2m=lists" } else { "" };
        let (mut lab, domid) = started("pv", words);
        suspend(&mut lab);
        let mut xen = xen_of(&lab);
        damage(&mut xen, domid);
        let result = (|| {
            let mut capture = Capture::prepare(&mut xen, domid)?;
            round(&mut xen, &mut capture, Round::Last, &mut Vec::new())?;
            capture.tail(&mut xen)
        })();
        let told = result.expect_err(expected).to_string();
        assert!(told.contains(expected), "{told} instead of {expected}");
    }
}
