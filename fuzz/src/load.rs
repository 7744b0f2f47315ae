//! Records of a saved domain, from a stream that may be anybody's, loaded into a domain of the
//! simulated Xen.

use std::cell::RefCell;

use migrate::libxc::{
    CpuidLeaf, DomainType, Headers, MsrEntry, P2mFrames, PAGE_BYTES, PageData, PageType, Record,
    Tsc, VcpuBlob, VcpuState,
};
use migrate::{Channel, Load, Target};
use sim::{Faults, Machine, MachineConfig, SimHypervisor, SimXen};
use xen::{CreateDomain, CreateOptions, DomId, DomainKind, EvtchnPeer, Uuid, Xen};

use crate::input::Input;

const PAGES_MAX: u64 = 96;

struct Host {
    machine: Machine,
    xen: Xen<SimHypervisor>,
    pages_free: u64,
}

thread_local! {
    /// Booting one takes longer than an input.
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

fn boot() -> Host {
    let config = MachineConfig { pages: 1 << 14, dom0_pages: 1 << 10, ..MachineConfig::default() };
    let machine = Machine::new(SimXen::new(config, Faults::default(), 1));
    let xen = Xen::probe(machine.hypervisor()).expect("dom0 controls the host");
    let pages_free = machine.get().pages_free();
    Host { machine, xen, pages_free }
}

/// Loads records until one is refused; whatever happens, the domain has no more than it may have, and
/// leaves nothing behind.
///
/// # Panics
/// On a finding.
pub fn run(data: &[u8]) {
    HOST.with_borrow_mut(|host| {
        let mut now = host.take().unwrap_or_else(boot);
        load(&mut now, &mut Input::new(data));
        // Not after a panic: what is left of it is not known.
        *host = Some(now);
    });
}

fn load(host: &mut Host, input: &mut Input<'_>) {
    let kind = [DomainKind::Pv, DomainKind::Pvh, DomainKind::Hvm][input.choice(3)];
    let version = 2 + u32::from(input.byte() & 1);
    let target = domain(&mut host.xen, kind);
    let headers = Headers { version, domain: target.domain, xen_version: (4, 17) };
    let mut load = Load::new(target, headers).expect("of the same type");
    let mut result = Ok(());
    while result.is_ok() && !input.is_empty() {
        let record = record(&mut host.xen, target.domid, input);
        result = load.apply(&mut host.xen, record);
    }
    if result.is_ok() {
        result = load.finish(&mut host.xen).map(drop);
    }
    if let Err(error) = result {
        assert!(!error.to_string().is_empty());
    }
    let info = host.xen.domain(target.domid).expect("asked").expect("it exists");
    assert!(info.pages <= PAGES_MAX, "it has {} pages", info.pages);
    host.xen.destroy_domain(target.domid).expect("destroyed");
    host.machine.get_mut().pass_time();
    assert_eq!(host.machine.get().pages_free(), host.pages_free, "pages are left");
}

fn domain(xen: &mut Xen<SimHypervisor>, kind: DomainKind) -> Target {
    const VCPUS: u32 = 2;
    let wanted = CreateDomain {
        kind,
        handle: Uuid([3; 16]),
        vcpus_max: VCPUS,
        evtchn_port_max: 63,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    };
    let domid = xen.create_domain(&wanted).expect("there is room");
    xen.set_vcpus_max(domid, VCPUS).expect("as announced");
    xen.set_memory_max(domid, PAGES_MAX * 4).expect("set");
    let domain = match kind {
        DomainKind::Pv => DomainType::Pv,
        DomainKind::Pvh | DomainKind::Hvm => {
            xen.set_paging_pool(domid, 1 << 20).expect("set");
            DomainType::Hvm
        }
    };
    let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
    let mut channel =
        || Channel { port: xen.alloc_unbound(peer).expect("new"), backend: DomId::DOM0 };
    let (store, console) = (channel(), channel());
    Target { domid, domain, pages_max: PAGES_MAX, vcpus_max: VCPUS, store, console }
}

/// Mostly a small number, sometimes any.
fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        255 => u64::from(input.word()) << 32 | u64::from(input.word()),
        254 => u64::from(input.word()),
        small => small.into(),
    }
}

fn page_type(input: &mut Input<'_>) -> PageType {
    match input.byte() {
        0..=127 => PageType::Normal,
        code @ 128..=223 => PageType::Table { level: 1 + (code & 3), is_pinned: code & 4 != 0 },
        224..=234 => PageType::Broken,
        235..=245 => PageType::AllocateOnly,
        _ => PageType::Invalid,
    }
}

/// Bytes, of which a few words are not zero.
fn words(input: &mut Input<'_>, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for _ in 0..input.byte() & 7 {
        let at = usize::from(input.byte()) << 8 | usize::from(input.byte());
        let value = match input.byte() & 1 {
            0 => number(input),
            // An entry of a page table.
            _ => number(input) << 12 | number(input),
        };
        let at = at * 8 % bytes.max(8);
        if let Some(word) = all.get_mut(at..at + 8) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    all
}

fn record(xen: &mut Xen<SimHypervisor>, domid: DomId, input: &mut Input<'_>) -> Record {
    match input.choice(16) {
        0..=4 => pages(input),
        5 => Record::PvInfo { width: if input.byte() == 9 { 4 } else { 8 }, levels: 4 },
        6 => Record::StaticDataEnd,
        7 => {
            let (start, end) = (number(input), number(input));
            let frames = (0..input.byte() & 3).map(|_| number(input)).collect();
            let cut = |value: u64| u32::try_from(value & 0xffff_ffff).expect("masked");
            Record::P2mFrames(P2mFrames { start: cut(start), end: cut(end), frames })
        }
        8 | 9 => {
            let (state, bytes) = match input.choice(4) {
                0 => (VcpuState::Basic, 5168),
                1 => (VcpuState::Extended, 64),
                2 => (VcpuState::Xsave, 848),
                _ => (VcpuState::Msrs, 32),
            };
            let bytes = if input.byte() == 255 { usize::from(input.byte()) } else { bytes };
            Record::Vcpu(VcpuBlob { state, vcpu: input.byte().into(), bytes: words(input, bytes) })
        }
        10 => Record::SharedInfo(words(input, PAGE_BYTES).into()),
        11 => {
            let params = (0..input.byte() & 7).map(|_| (number(input), number(input))).collect();
            Record::HvmParams(params)
        }
        12 => {
            let mut context = xen.hvm_context(domid).unwrap_or_default();
            for _ in 0..input.byte() & 3 {
                let at = usize::from(input.byte()) << 8 | usize::from(input.byte());
                let byte = input.byte();
                if let Some(there) = context.get_mut(at) {
                    *there = byte;
                }
            }
            Record::HvmContext(context)
        }
        13 => Record::Tsc(Tsc { mode: input.byte().into(), khz: input.word(), ..Tsc::default() }),
        14 => match input.choice(4) {
            0 => {
                Record::CpuidPolicy(vec![CpuidLeaf { leaf: input.word(), ..CpuidLeaf::default() }])
            }
            1 => Record::MsrPolicy(vec![MsrEntry { index: input.word(), ..MsrEntry::default() }]),
            2 => Record::Verify,
            _ => Record::Checkpoint,
        },
        _ => Record::End,
    }
}

fn pages(input: &mut Input<'_>) -> Record {
    let (mut pages, mut data) = (Vec::new(), Vec::new());
    for _ in 0..=input.byte() & 15 {
        let page = (number(input), page_type(input));
        if page.1.has_data() {
            data.extend(words(input, PAGE_BYTES));
        }
        pages.push(page);
    }
    // Whoever calls may be wrong about the content.
    if input.byte() == 255 {
        data.truncate(PAGE_BYTES);
    }
    Record::PageData(PageData { pages, data })
}
