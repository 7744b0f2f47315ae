//! The conformance suite of [`Hypervisor`]: cases that run on real Xen and on the simulator. It is no feature: what
//! cargo builds with another feature it builds again, and with it all that uses this crate.
//!
//! Each case creates and removes its own domains. The machine should be idle otherwise: the last
//! case compares the domain list with the one at the start.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::{
    CpuPolicy, CreateDomain, CreateOptions, DomId, DomainInfo, DomainKind, E820Entry, E820Kind,
    Errno, EvtchnPeer, EvtchnPort, GrantRef, HvmParam, Hypervisor, PAGE_BYTES, PAUSE_COUNT_MAX,
    Placement, ShutdownReason, Uuid, Xen,
};

mod devices;
mod host;
mod migration;
mod physmap;
mod vcpus;

/// How one case went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// What holds for a hypervisor that passes.
    pub case: &'static str,
    /// The deviation.
    pub result: Result<(), String>,
}

type Checked = Result<(), String>;
type Case<H> = (&'static str, fn(&mut Xen<H>) -> Checked);

/// Runs every case and returns the outcomes.
pub fn run<H: Hypervisor>(xen: &mut Xen<H>) -> Vec<Outcome> {
    let before = xen.domains();
    let mut outcomes: Vec<Outcome> =
        cases::<H>().iter().map(|&(case, check)| Outcome { case, result: check(xen) }).collect();
    let after = xen.domains();
    let identity = |list: Result<Vec<DomainInfo>, Errno>| {
        list.map(|list| list.iter().map(|info| (info.domid, info.handle)).collect::<Vec<_>>())
    };
    outcomes.push(Outcome {
        case: "the cases leave no domain behind",
        result: same("domains", &identity(after), &identity(before)),
    });
    outcomes
}

fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    let mut cases: Vec<Case<H>> = vec![
        ("the probed interface fits the release", probed_interface),
        ("the list ascends, names dom0 and takes one hypercall", list),
        ("a domain that does not exist is not found, even below one that does", miss),
        ("a new domain is paused, empty and has its handle", create),
        ("a domain without vCPUs cannot be created", create_without_vcpus),
        ("pauses are counted, up to a limit", pause),
        ("a handle can be changed", handle),
        ("as many vCPUs are allocated as were announced", vcpus),
        ("memory grows up to its limit, extent by extent", memory_limit),
        ("memory can be populated in extents of many pages", memory_extents),
        ("memory comes on demand, from what the domain has", memory_on_demand),
        ("a claim shrinks as memory is populated", claim),
        ("memory claimed by one domain is not given to another", claimed_by_another),
        ("event channel ports are allocated in order, up to a limit", event_channels),
        ("destroying a domain twice is no error, and its domid is free afterwards", destroy),
        ("a domain cannot pause or destroy itself", self_control),
        ("the first reason of a shutdown stays until the domain is resumed", shutdown),
        ("a translated domain's parameters are kept, some of them permanently", hvm_params),
        ("Hyper-V's enlightenments need the base group", viridian),
        ("grant tables have a version that Xen supports", grant_versions),
        ("a PV domain has no parameters, p2m pool or HVM context", pv_has_no_hvm_parts),
        ("a PV domain is 64 bits wide", address_size),
        ("the p2m pool is sized in pages", paging_pool),
        ("the HVM context can be read and loaded again", hvm_context),
        ("the CPUID policy can be set until the domain first runs", cpuid_policy),
        ("the time stamp counter has three modes", tsc_mode),
        ("a memory map has a limit", memory_map),
        ("the machine has a memory map", machine_memory_map),
        ("the shared info page can be mapped into a translated domain", shared_info),
        ("foreign memory reads back as written, across pages", foreign_memory),
        ("foreign memory that does not exist is refused", foreign_memory_missing),
        ("a new domain's grants can be seeded", grants),
        ("the machine's memory adds up", physical_memory),
    ];
    cases.extend(vcpus::cases());
    cases.extend(devices::cases());
    cases.extend(migration::cases());
    cases.extend(physmap::cases());
    cases.extend(host::cases());
    cases
}

/// Fails with the name `what` unless both sides are equal.
fn same<T: PartialEq + core::fmt::Debug + ?Sized>(what: &str, seen: &T, wanted: &T) -> Checked {
    if seen == wanted { Ok(()) } else { Err(format!("{what}: {seen:?} instead of {wanted:?}")) }
}

/// Names the call that failed.
trait Doing<T> {
    fn doing(self, what: &str) -> Result<T, String>;
}

impl<T, E: core::fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: &str) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

const HANDLE: Uuid = Uuid(*b"conformance-case");
const EVTCHN_PORT_MAX: u32 = 4;

fn wanted(kind: DomainKind) -> CreateDomain {
    CreateDomain {
        kind,
        handle: HANDLE,
        vcpus_max: 2,
        evtchn_port_max: EVTCHN_PORT_MAX,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    }
}

/// Runs a check on a fresh domain with its vCPUs allocated, and removes the domain afterwards.
fn with_domain<H: Hypervisor>(
    xen: &mut Xen<H>,
    kind: DomainKind,
    check: impl FnOnce(&mut Xen<H>, DomId) -> Checked,
) -> Checked {
    let domid = xen.create_domain(&wanted(kind)).doing("createdomain")?;
    let checked = xen
        .set_vcpus_max(domid, 2)
        .doing("max_vcpus")
        .and_then(|()| if kind == DomainKind::Pvh { give_pool(xen, domid) } else { Ok(()) })
        .and_then(|()| check(xen, domid));
    let removed = remove(xen, domid);
    checked.and(removed)
}

/// A p2m pool that is large enough for every case.
fn give_pool<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Checked {
    xen.set_paging_pool(domid, 2 << 20).doing("set_paging_mempool_size")
}

/// Destroys a domain and waits until its entry is gone.
fn remove<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Checked {
    /// Xen drops the entry some time after destroydomain; this many polls take seconds.
    const QUESTIONS: u32 = 100_000;
    xen.destroy_domain(domid).doing("destroydomain")?;
    for _ in 0..QUESTIONS {
        if info(xen, domid)?.is_none() {
            return Ok(());
        }
    }
    Err(format!("domain {domid} is still listed long after its destruction"))
}

fn info<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Result<Option<DomainInfo>, String> {
    xen.domain(domid).doing("getdomaininfo")
}

fn existing<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Result<DomainInfo, String> {
    info(xen, domid)?.ok_or_else(|| format!("domain {domid} is missing"))
}

/// An identifier that no domain has, with none above it.
fn unused<H: Hypervisor>(xen: &mut Xen<H>) -> Result<DomId, String> {
    let last = xen.domains().doing("getdomaininfolist")?.last().map(|info| info.domid.0);
    Ok(DomId(last.unwrap_or_default() + 1))
}

fn probed_interface<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let abi = xen.abi();
    let version = xen.version_info().doing("xen_version")?;
    same("release", &(version.major, version.minor), &abi.xen)?;
    same("page size", &version.pagesize_bytes, &(PAGE_BYTES as u64))?;
    let expected = match abi.xen {
        (4, 17) => Some((0x15, 0x15)),
        (4, 18) => Some((0x16, 0x15)),
        (4, 19 | 20) => Some((0x17, 0x15)),
        (4, 21) => Some((0x17, 0x16)),
        (4, 22) => Some((0x18, 0x16)),
        _ => None,
    };
    match expected {
        Some(expected) => same("domctl and sysctl", &(abi.domctl.0, abi.sysctl.0), &expected),
        None => Ok(()),
    }
}

fn list<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let issued = xen.counters().total();
        let list = xen.domains().doing("getdomaininfolist")?;
        same("hypercalls", &(xen.counters().total() - issued), &1)?;
        let ids: Vec<DomId> = list.iter().map(|info| info.domid).collect();
        same("ascending without repeats", &ids.is_sorted_by(|a, b| a < b), &true)?;
        same("first domain", &ids.first(), &Some(&DomId::DOM0))?;
        same("contains the new domain", &ids.contains(&domid), &true)?;
        let listed = list.into_iter().find(|info| info.domid == domid);
        same("entry in the list", &listed, &Some(existing(xen, domid)?))
    })
}

fn miss<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let nobody = unused(xen)?;
    same("beyond the last domain", &info(xen, nobody)?, &None)?;
    for reserved in [DomId(DomId::FIRST_RESERVED - 1), DomId::ANY] {
        // The last ordinary domid may be in use on a host that has made that many domains.
        if info(xen, reserved).is_ok_and(|info| info.is_some_and(|info| info.domid != reserved)) {
            return Err(format!("domain {reserved} was answered with another"));
        }
    }
    let lower = xen.create_domain(&wanted(DomainKind::Pv)).doing("createdomain")?;
    let checked = with_domain(xen, DomainKind::Pv, |xen, upper| {
        remove(xen, lower)?;
        same("a gap in front of another domain", &info(xen, lower)?, &None)?;
        same("domain behind the gap", &existing(xen, upper)?.domid, &upper)
    });
    // Only if the case ended early.
    if info(xen, lower)?.is_some() {
        remove(xen, lower)?;
    }
    checked?;
    same("pausing nobody", &xen.pause_domain(nobody), &Err(Errno::ESRCH))?;
    same("destroying nobody", &xen.destroy_domain(nobody), &Err(Errno::ESRCH))?;
    same(
        "shutting nobody down",
        &xen.remote_shutdown(nobody, ShutdownReason::Reboot),
        &Err(Errno::ESRCH),
    )
}

fn create<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        let domid = xen.create_domain(&wanted(kind)).doing("createdomain")?;
        let checked = existing(xen, domid).and_then(|info| {
            same("ordinary identifier", &domid.is_ordinary(), &true)?;
            same("kind", &info.kind(), &kind)?;
            same("handle", &info.handle, &HANDLE)?;
            same("paused", &info.flags.paused(), &true)?;
            same("blocked", &info.flags.blocked(), &false)?;
            same("running", &info.flags.running(), &false)?;
            same("dying", &info.flags.dying(), &false)?;
            same("shutdown", &info.flags.shutdown(), &None)?;
            same("pages", &info.pages, &0)?;
            same("pages_outstanding", &info.pages_outstanding, &0)?;
            same("cpu_time_ns", &info.cpu_time_ns, &0)?;
            same("vcpus_online", &info.vcpus_online, &0)?;
            same("vcpu_id_max", &info.vcpu_id_max, &None)
        });
        remove(xen, domid)?;
        checked?;
    }
    Ok(())
}

fn create_without_vcpus<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let none = CreateDomain { vcpus_max: 0, ..wanted(DomainKind::Pv) };
    same("createdomain", &xen.create_domain(&none), &Err(Errno::EINVAL))
}

fn pause<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        for _ in 1..PAUSE_COUNT_MAX {
            xen.pause_domain(domid).doing("pausedomain")?;
        }
        same("one pause too many", &xen.pause_domain(domid), &Err(Errno::EOVERFLOW))?;
        for _ in 1..PAUSE_COUNT_MAX {
            xen.unpause_domain(domid).doing("unpausedomain")?;
        }
        same("paused before the last", &existing(xen, domid)?.flags.paused(), &true)?;
        xen.unpause_domain(domid).doing("unpausedomain")?;
        same("paused after the last", &existing(xen, domid)?.flags.paused(), &false)?;
        same("one unpause too many", &xen.unpause_domain(domid), &Err(Errno::EINVAL))
    })
}

fn handle<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let other = Uuid([0xa5; 16]);
        xen.set_handle(domid, other).doing("setdomainhandle")?;
        same("handle", &existing(xen, domid)?.handle, &other)?;
        let nobody = unused(xen)?;
        same("handle of nobody", &xen.set_handle(nobody, other), &Err(Errno::ESRCH))
    })
}

fn vcpus<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let domid = xen.create_domain(&wanted(DomainKind::Pv)).doing("createdomain")?;
    let check = |xen: &mut Xen<H>| {
        same("too few", &xen.set_vcpus_max(domid, 1), &Err(Errno::EINVAL))?;
        same("too many", &xen.set_vcpus_max(domid, 3), &Err(Errno::EINVAL))?;
        same("vCPU not there yet", &xen.vcpu_info(domid, 0).err(), &Some(Errno::ESRCH))?;
        xen.set_vcpus_max(domid, 2).doing("max_vcpus")?;
        xen.set_vcpus_max(domid, 2).doing("max_vcpus again")?;
        let info = existing(xen, domid)?;
        same("vcpu_id_max", &info.vcpu_id_max, &Some(1))?;
        same("vcpus_online", &info.vcpus_online, &0)?;
        for vcpu in 0..2 {
            let info = xen.vcpu_info(domid, vcpu).doing("getvcpuinfo")?;
            same("online", &(info.online, info.running, info.cpu_time_ns), &(false, false, 0))?;
        }
        same("vCPU beyond the last", &xen.vcpu_info(domid, 2).err(), &Some(Errno::EINVAL))
    };
    let checked = check(xen);
    remove(xen, domid)?;
    checked
}

fn memory_limit<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            let pfns: Vec<u64> = (0..32).collect();
            same("pages without a limit set", &xen.populate(domid, 0, &pfns), &Ok(vec![]))?;
            xen.set_memory_max(domid, 16 * 4 + 3).doing("max_mem")?;
            same("pages_max", &existing(xen, domid)?.pages_max, &16)?;
            let frames = xen.populate(domid, 0, &pfns).doing("populate_physmap")?;
            same("extents", &frames.len(), &16)?;
            same("pages", &existing(xen, domid)?.pages, &16)?;
            match kind {
                DomainKind::Pv => distinct(&frames)?,
                _ => same("frames", &frames, &pfns[..16].to_vec())?,
            }
            // Below the current use: pages are neither taken away nor added.
            xen.set_memory_max(domid, 8 * 4).doing("max_mem")?;
            same("pages beyond the limit", &xen.populate(domid, 0, &pfns[16..]), &Ok(vec![]))?;
            let info = existing(xen, domid)?;
            same("pages and limit", &(info.pages, info.pages_max), &(16, 8))?;
            xen.set_memory_max(domid, 32 * 4).doing("max_mem")?;
            let rest = xen.populate(domid, 0, &pfns[16..]).doing("populate_physmap")?;
            same("extents of the rest", &rest.len(), &16)
        })?;
    }
    Ok(())
}

fn distinct(frames: &[u64]) -> Checked {
    let mut sorted = frames.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    same("distinct frames", &sorted.len(), &frames.len())
}

fn memory_extents<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        let frames = xen.populate(domid, 4, &[0, 16]).doing("populate_physmap")?;
        same("extents", &frames.len(), &2)?;
        same("aligned frames", &frames.iter().all(|frame| frame % 16 == 0), &true)?;
        same("pages", &existing(xen, domid)?.pages, &32)?;
        // The third extent fits, the fourth does not: an extent is never split.
        let frames = xen.populate(domid, 4, &[32, 48, 64]).doing("populate_physmap")?;
        same("extents within the limit", &frames.len(), &2)?;
        same("pages", &existing(xen, domid)?.pages, &64)?;
        // Frames in the middle of an extent are accessible like the first.
        let middle = frames[0] + 7;
        xen.write_foreign(domid, &[middle], 0, b"middle").doing("write_foreign")?;
        let mut seen = [0; 6];
        xen.read_foreign(domid, &[middle], 0, &mut seen).doing("read_foreign")?;
        same("bytes in the middle of an extent", &seen, b"middle")
    })
}

fn memory_on_demand<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_memory_max(domid, 64).doing("max_mem")?;
        same("a target of a PV domain", &xen.set_pod_target(domid, 16), &Err(Errno::EINVAL))
    })?;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 16 * 4).doing("max_mem")?;
        same("a target beyond the limit", &xen.set_pod_target(domid, 17), &Err(Errno::EINVAL))?;
        xen.claim_pages(domid, 16).doing("claim_pages")?;
        xen.set_pod_target(domid, 12).doing("set_pod_target")?;
        xen.set_pod_target(domid, 16).doing("set_pod_target")?;
        let info = existing(xen, domid)?;
        same("pages and rest of the claim", &(info.pages, info.pages_outstanding), &(16, 0))?;
        let marked = xen.populate_placed(domid, 3, &[0, 8, 16], Placement::OnDemand);
        same("extents on demand", &marked.map(|frames| frames.len()), &Ok(3))?;
        same("pages", &existing(xen, domid)?.pages, &16)?;
        same("the last frame", &xen.last_frame(domid), &Ok(23))?;
        // Memory that comes is empty, and the domain's own.
        let mut seen = [1; 4];
        xen.read_foreign(domid, &[21], 0, &mut seen).doing("read_foreign")?;
        same("memory that nobody wrote", &seen, &[0; 4])?;
        xen.write_foreign(domid, &[20], 0, b"kept").doing("write_foreign")?;
        xen.read_foreign(domid, &[20], 0, &mut seen).doing("read_foreign")?;
        same("memory as written", &seen, b"kept")?;
        same("pages", &existing(xen, domid)?.pages, &16)?;
        // As a balloon driver: first frames that there is no memory for, then one that there is.
        let first: Vec<u64> = (0..8).collect();
        same("frames given back", &xen.decrease_reservation(domid, 0, &first), &Ok(8))?;
        same("pages", &existing(xen, domid)?.pages, &16)?;
        same("a frame given back", &xen.decrease_reservation(domid, 0, &[8]), &Ok(1))?;
        same("pages", &existing(xen, domid)?.pages, &15)
    })
}

fn claim<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_memory_max(domid, 16 * 4).doing("max_mem")?;
        same("claim beyond the limit", &xen.claim_pages(domid, 17), &Err(Errno::EINVAL))?;
        xen.claim_pages(domid, 16).doing("claim_pages")?;
        same("pages_outstanding", &existing(xen, domid)?.pages_outstanding, &16)?;
        same("a second claim", &xen.claim_pages(domid, 8), &Err(Errno::EINVAL))?;
        xen.populate(domid, 0, &[0, 1, 2, 3]).doing("populate_physmap")?;
        let info = existing(xen, domid)?;
        same("pages and rest of the claim", &(info.pages, info.pages_outstanding), &(4, 12))?;
        // Up to 4.21 pages given back while a claim is active are claimed again; do not rely on it.
        let frames = xen.populate(domid, 0, &[4]).doing("populate_physmap")?;
        same("pages given back", &xen.decrease_reservation(domid, 0, &frames), &Ok(1))?;
        let info = existing(xen, domid)?;
        same("pages", &info.pages, &4)?;
        same("rest of the claim", &(11..=12).contains(&info.pages_outstanding), &true)?;
        xen.claim_pages(domid, 0).doing("claim_pages")?;
        same("pages_outstanding", &existing(xen, domid)?.pages_outstanding, &0)?;
        // Xen counts a domain's pages in 32 bits; half of that is more than any machine has.
        xen.set_memory_max(domid, 1 << 42).doing("max_mem")?;
        same("pages_max", &existing(xen, domid)?.pages_max, &u64::from(u32::MAX))?;
        same("claim beyond the machine", &xen.claim_pages(domid, 1 << 31), &Err(Errno::ENOMEM))
    })
}

/// Claims nearly all free memory for a short time.
fn claimed_by_another<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const ORDER: u32 = 9;
    /// More than Xen itself allocates meanwhile, less than an extent.
    const LEFT_PAGES: u64 = 256;
    with_domain(xen, DomainKind::Pv, |xen, first| {
        with_domain(xen, DomainKind::Pv, |xen, second| {
            for domid in [first, second] {
                xen.set_memory_max(domid, 1 << 42).doing("max_mem")?;
            }
            let before = xen.phys_info().doing("physinfo")?;
            let free = before.pages_free.saturating_sub(before.pages_outstanding);
            let claim = free.saturating_sub(LEFT_PAGES);
            xen.claim_pages(first, claim).doing("claim_pages")?;
            let refused = xen.populate(second, ORDER, &[0]);
            let outstanding = xen.phys_info().map(|info| info.pages_outstanding);
            let own = xen.populate(first, ORDER, &[0]);
            let rest = xen.domain(first).map(|info| info.map(|info| info.pages_outstanding));
            xen.claim_pages(first, 0).doing("claim_pages")?;
            let now = xen.populate(second, ORDER, &[0]);
            same("what others have claimed", &refused, &Ok(Vec::new()))?;
            same("claims of the machine", &outstanding, &Ok(before.pages_outstanding + claim))?;
            same("extents from an own claim", &own.map(|frames| frames.len()), &Ok(1))?;
            same("rest of the claim", &rest, &Ok(Some(claim - (1 << ORDER))))?;
            same("extents once it is given back", &now.map(|frames| frames.len()), &Ok(1))
        })
    })
}

fn event_channels<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        for port in 1..=EVTCHN_PORT_MAX {
            same("port", &xen.alloc_unbound(peer), &Ok(EvtchnPort(port)))?;
        }
        same("beyond the last port", &xen.alloc_unbound(peer), &Err(Errno::ENOSPC))?;
        let nobody = EvtchnPeer { owner: unused(xen)?, remote: DomId::DOM0 };
        same("port of nobody", &xen.alloc_unbound(nobody), &Err(Errno::ESRCH))
    })
}

fn destroy<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let domid = xen.create_domain(&wanted(DomainKind::Pv)).doing("createdomain")?;
    xen.set_memory_max(domid, 256).doing("max_mem")?;
    xen.populate(domid, 0, &[0, 1, 2]).doing("populate_physmap")?;
    xen.destroy_domain(domid).doing("destroydomain")?;
    match xen.destroy_domain(domid) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => return Err(format!("destroying again: {errno}")),
    }
    // While still listed it is flagged as dying.
    for _ in 0..100_000 {
        match info(xen, domid)? {
            Some(info) => same("dying", &info.flags.dying(), &true)?,
            None => return Ok(()),
        }
    }
    Err(format!("domain {domid} is still listed long after its destruction"))
}

fn self_control<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    same("pausing ourselves", &xen.pause_domain(DomId::DOM0), &Err(Errno::EINVAL))?;
    same("destroying ourselves", &xen.destroy_domain(DomId::DOM0), &Err(Errno::EINVAL))
}

fn shutdown<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.remote_shutdown(domid, ShutdownReason::Reboot).doing("remote_shutdown")?;
        xen.remote_shutdown(domid, ShutdownReason::Crash).doing("remote_shutdown")?;
        let flags = existing(xen, domid)?.flags;
        same("reason", &flags.shutdown(), &Some(ShutdownReason::Reboot))?;
        same("dying", &flags.dying(), &false)?;
        xen.resume_domain(domid).doing("resumedomain")?;
        same("reason after resuming", &existing(xen, domid)?.flags.shutdown(), &None)?;
        xen.resume_domain(domid).doing("resumedomain of a domain that is not shut down")?;
        xen.remote_shutdown(domid, ShutdownReason::Suspend).doing("remote_shutdown")?;
        let reason = existing(xen, domid)?.flags.shutdown();
        same("second reason", &reason, &Some(ShutdownReason::Suspend))
    })
}

fn hvm_params<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        same("unset", &xen.hvm_param(domid, HvmParam::StorePfn), &Ok(0))?;
        for (param, value) in [
            (HvmParam::StorePfn, 0xfeffc),
            (HvmParam::StoreEvtchn, 1),
            (HvmParam::ConsolePfn, 0xfefff),
            (HvmParam::ConsoleEvtchn, 2),
            // Can be changed until the domain has run.
            (HvmParam::StorePfn, 0xfeffd),
            // Set once; setting the same value again is allowed.
            (HvmParam::IoreqPfn, 0xfeffd),
            (HvmParam::IoreqPfn, 0xfeffd),
        ] {
            xen.set_hvm_param(domid, param, value).doing("hvm_set_param")?;
            same("value", &xen.hvm_param(domid, param), &Ok(value))?;
        }
        let again = xen.set_hvm_param(domid, HvmParam::IoreqPfn, 1);
        same("another value", &again, &Err(Errno::EEXIST))?;
        let deprecated = xen.set_hvm_param(domid, HvmParam::PaeEnabled, 1);
        same("deprecated parameter", &deprecated, &Err(Errno::EINVAL))
    })
}

fn viridian<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Hvm, |xen, domid| {
        let mut set = |mask| xen.set_hvm_param(domid, HvmParam::Viridian, mask);
        same("without the base", &set(4), &Err(Errno::EINVAL))?;
        same("an unknown group", &set(1 | 1 << 40), &Err(Errno::EINVAL))?;
        set(3).doing("hvm_set_param")?;
        same("another mask", &set(1), &Err(Errno::EEXIST))
    })
}

fn grant_versions<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let highest = xen.phys_info().doing("physinfo")?.grant_version_max();
    for grant_version_max in 0..=3 {
        let options = CreateOptions { grant_version_max, ..CreateOptions::default() };
        let created = xen.create_domain(&CreateDomain { options, ..wanted(DomainKind::Pv) });
        if (1..=highest).contains(&grant_version_max) {
            remove(xen, created.doing("createdomain")?)?;
        } else {
            same("createdomain", &created, &Err(Errno::EINVAL))?;
        }
    }
    Ok(())
}

fn pv_has_no_hvm_parts<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let set = xen.set_hvm_param(domid, HvmParam::StorePfn, 1);
        same("hvm_set_param", &set, &Err(Errno::EINVAL))?;
        same("hvm_get_param", &xen.hvm_param(domid, HvmParam::StorePfn), &Err(Errno::EINVAL))?;
        same(
            "set_paging_mempool_size",
            &xen.set_paging_pool(domid, 4096),
            &Err(Errno::EOPNOTSUPP),
        )?;
        same("gethvmcontext", &xen.hvm_context(domid).err(), &Some(Errno::EINVAL))?;
        same("sethvmcontext", &xen.set_hvm_context(domid, &[0; 64]), &Err(Errno::EINVAL))?;
        same("map_shared_info", &xen.map_shared_info(domid, 1), &Err(Errno::EACCES))
    })
}

fn address_size<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_address_size_64(domid).doing("set_address_size")
    })?;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        same("of a translated domain", &xen.set_address_size_64(domid), &Err(Errno::EOPNOTSUPP))
    })
}

fn paging_pool<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_paging_pool(domid, 4 << 20).doing("growing")?;
        xen.set_paging_pool(domid, 3 << 20).doing("shrinking")?;
        same("half a page", &xen.set_paging_pool(domid, (4 << 20) + 2048), &Err(Errno::EINVAL))
    })
}

fn hvm_context<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    /// `HVM_SAVE_CODE(HEADER)`
    const HEADER: u16 = 1;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        let records = xen.hvm_context(domid).doing("gethvmcontext")?;
        let first = records.first_chunk().map(|code| u16::from_ne_bytes(*code));
        same("first record", &first, &Some(HEADER))?;
        // The end record: type 0, no payload.
        same("last record", &records.last_chunk::<8>(), &Some(&[0; 8]))?;
        xen.set_hvm_context(domid, &records).doing("sethvmcontext")?;
        let nonsense = xen.set_hvm_context(domid, &[0xff; 64]);
        same("records of nonsense", &nonsense.is_err(), &true)
    })
}

fn cpuid_policy<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const ERANGE: Errno = Errno(34);
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let policy = xen.cpu_policy(domid).doing("get_cpu_policy")?;
        let defaults = xen.cpu_facts(DomainKind::Pv).doing("get_cpu_policy")?.default.clone();
        same("first leaf", &policy.leaves.first().map(|leaf| leaf[0]), &Some(0))?;
        xen.set_cpu_policy(domid, &policy).doing("set_cpu_policy")?;
        same("policy as set", &xen.cpu_policy(domid), &Ok(policy.clone()))?;
        let registers = CpuPolicy { leaves: Vec::new(), msrs: policy.msrs.clone() };
        xen.set_cpu_policy(domid, &registers).doing("set_cpu_policy")?;
        same("leaves of a domain as by default", &policy.leaves.len(), &defaults.leaves.len())?;
        let unknown = CpuPolicy { leaves: vec![[0x2000_0000, 0, 0, 0, 0, 0]], msrs: Vec::new() };
        same("unknown leaf", &xen.set_cpu_policy(domid, &unknown), &Err(ERANGE))?;
        xen.unpause_domain(domid).doing("unpausedomain")?;
        same("once it runs", &xen.set_cpu_policy(domid, &policy), &Err(Errno::EEXIST))
    })
}

fn tsc_mode<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        for mode in 0..=2 {
            xen.set_tsc_mode(domid, mode).doing("settscinfo")?;
        }
        same("unknown mode", &xen.set_tsc_mode(domid, 99), &Err(Errno::EINVAL))
    })
}

fn memory_map<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let ram = |i: u64| E820Entry { address: i << 20, bytes: 1 << 20, kind: E820Kind::Ram };
        let map: Vec<E820Entry> = (0..2000).map(ram).collect();
        xen.set_memory_map(domid, &map[..2]).doing("set_memory_map")?;
        same("too many ranges", &xen.set_memory_map(domid, &map), &Err(Errno::EINVAL))
    })
}

/// What firmware says may be out of order, and may overlap.
fn machine_memory_map<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let map = xen.machine_memory_map().doing("machine_memory_map")?;
    let kib = |kind| map.iter().filter(|it| it.kind == kind).map(|it| it.bytes >> 10).sum::<u64>();
    let physical = xen.phys_info().doing("physinfo")?;
    // Xen keeps some for itself, and does not count it.
    let pages = kib(E820Kind::Ram) >> 2;
    let is_same = (physical.pages..physical.pages * 2).contains(&pages);
    same("as much memory as Xen says", &is_same, &true)?;
    same("some of it is reserved", &(kib(E820Kind::Reserved) > 0), &true)
}

fn shared_info<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 256).doing("max_mem")?;
        xen.map_shared_info(domid, 0x100).doing("add_to_physmap")?;
        same("frame", &existing(xen, domid)?.shared_info_frame, &0x100)?;
        let mut bytes = [0; 8];
        xen.read_foreign(domid, &[0x100], 0, &mut bytes).doing("read_foreign")
    })
}

fn foreign_memory<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            xen.set_memory_max(domid, 1024).doing("max_mem")?;
            let frames = xen.populate(domid, 0, &[4, 5, 6, 7]).doing("populate_physmap")?;
            same("pages", &frames.len(), &4)?;
            // In another order than they were allocated, with neither end on a page boundary.
            let shuffled = [frames[2], frames[0], frames[3]];
            let bytes: Vec<u8> =
                (0..2 * PAGE_BYTES + 100).map(|i| (i % 251).to_le_bytes()[0]).collect();
            xen.write_foreign(domid, &shuffled, 1000, &bytes).doing("write_foreign")?;
            let mut seen = vec![0; bytes.len()];
            xen.read_foreign(domid, &shuffled, 1000, &mut seen).doing("read_foreign")?;
            same("equal bytes", &(seen == bytes), &true)?;
            // The last frame alone holds the tail.
            let mut tail = [0; 100];
            xen.read_foreign(domid, &frames[3..], 900, &mut tail).doing("read_foreign")?;
            same("tail", &tail[..], &bytes[2 * PAGE_BYTES - 100..2 * PAGE_BYTES])?;
            xen.write_foreign(domid, &[], 0, &[]).doing("writing nothing")
        })?;
    }
    Ok(())
}

fn foreign_memory_missing<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 1024).doing("max_mem")?;
        xen.populate(domid, 0, &[4]).doing("populate_physmap")?;
        let mut bytes = [0; 8];
        let missing = xen.read_foreign(domid, &[9], 0, &mut bytes);
        same("a hole", &missing.is_err(), &true)?;
        let partly = xen.write_foreign(domid, &[4, 9], 0, &[0; 2 * PAGE_BYTES]);
        same("a hole after a page", &partly.is_err(), &true)?;
        let nobody = unused(xen)?;
        let missing = xen.read_foreign(nobody, &[4], 0, &mut bytes);
        same("memory of nobody", &missing.map_err(|error| error.errno), &Err(Errno::ESRCH))
    })
}

fn grants<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            xen.set_memory_max(domid, 1024).doing("max_mem")?;
            let frames = xen.populate(domid, 0, &[4, 5]).doing("populate_physmap")?;
            for (grant, frame) in [(GrantRef::CONSOLE, 0), (GrantRef::XENSTORE, 1)] {
                for _ in 0..2 {
                    xen.seed_grant(domid, grant, DomId::DOM0, frames[frame]).doing("seed_grant")?;
                }
            }
            Ok(())
        })?;
    }
    let nobody = unused(xen)?;
    let seeded = xen.seed_grant(nobody, GrantRef::CONSOLE, DomId::DOM0, 4);
    same("grant of nobody", &seeded, &Err(Errno::ESRCH))
}

fn physical_memory<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let machine = xen.phys_info().doing("physinfo")?;
    same("at least one CPU", &(machine.cpus >= 1), &true)?;
    let free = machine.pages_free;
    if free > machine.pages {
        return Err(format!("{free} pages are free of {}", machine.pages));
    }
    let owned: u64 = xen.domains().doing("getdomaininfolist")?.iter().map(|info| info.pages).sum();
    if owned + free > machine.pages {
        let pages = machine.pages;
        return Err(format!("{owned} pages are owned and {free} free of {pages}"));
    }
    Ok(())
}
