//! The hypercalls this guest makes, typed; the page they go through is filled by the builder
//! (PV) or by [`install`] (PVH).
//!
//! Source: xen `xen.h`, `sched.h`, `event_channel.h`, `memory.h`, `grant_table.h`,
//! `hvm/hvm_op.h`, `arch-x86/cpuid.h`.

use core::arch::asm;
use core::arch::x86_64::__cpuid;

unsafe extern "C" {
    static hypercall_page: [u8; 4096];
}

const MEMORY_OP: usize = 12;
const UPDATE_VA_MAPPING: usize = 14;
const XEN_VERSION: usize = 17;
const GRANT_TABLE_OP: usize = 20;
const SCHED_OP: usize = 29;
const EVENT_CHANNEL_OP: usize = 32;
const HVM_OP: usize = 34;

const DOMID_SELF: u16 = 0x7ff0;

/// Xen's error: a negative `errno`.
#[derive(Clone, Copy, Debug)]
pub struct Errno(#[expect(dead_code, reason = "shown by Debug in a panic message")] pub i64);

/// # Safety
/// The arguments must be what hypercall `number` expects: pointers among them valid for what it
/// reads and writes.
unsafe fn call(number: usize, arguments: [u64; 3]) -> Result<u64, Errno> {
    let entry = (&raw const hypercall_page).addr() + number * 32;
    let result: i64;
    // SAFETY: the entry is a stub of Xen's that follows the hypercall ABI: it changes rax, rcx
    // and r11, and in debug builds of Xen the arguments. The caller answers for the arguments.
    unsafe {
        asm!(
            "call {entry}",
            entry = in(reg) entry,
            inlateout("rdi") arguments[0] => _,
            inlateout("rsi") arguments[1] => _,
            inlateout("rdx") arguments[2] => _,
            lateout("rax") result,
            lateout("rcx") _,
            lateout("r10") _,
            lateout("r8") _,
            lateout("r9") _,
            lateout("r11") _,
        );
    }
    u64::try_from(result).map_err(|_| Errno(result))
}

fn address<T>(value: &mut T) -> u64 {
    (&raw mut *value).addr() as u64
}

/// PVH: asks Xen to fill the hypercall page. `None` if there is no Xen underneath.
pub fn install() -> Option<()> {
    const FIRST_LEAF: u32 = 0x4000_0000;
    const SIGNATURE: [u32; 3] = [0x566e_6558, 0x6558_4d4d, 0x4d4d_566e];
    // With Viridian extensions Xen's leaves start one or more steps later.
    let base = (FIRST_LEAF..FIRST_LEAF + 0x1_0000).step_by(0x100).find(|leaf| {
        let words = __cpuid(*leaf);
        [words.ebx, words.ecx, words.edx] == SIGNATURE
    })?;
    let msr = __cpuid(base + 2).ebx;
    let page = (&raw const hypercall_page).addr() as u64;
    let (low, high) = (page & 0xffff_ffff, page >> 32);
    // SAFETY: the MSR that Xen named takes the physical address of the page, which is its virtual
    // one too; Xen writes that page only, and nothing else lives in it.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") low, in("edx") high, options(nostack));
    }
    Some(())
}

/// Version of the hypervisor: major, minor.
pub fn xen_version() -> (u64, u64) {
    // SAFETY: XENVER_version (0) takes no pointer.
    let version = unsafe { call(XEN_VERSION, [0, 0, 0]) }.unwrap_or(0);
    (version >> 16, version & 0xffff)
}

/// Why a domain stops.
#[derive(Clone, Copy, Debug)]
pub enum Reason {
    Poweroff = 0,
    Reboot = 1,
    Suspend = 2,
    Crash = 3,
}

/// Stops the domain. `extra` is the machine frame of `start_info` for a PV suspend, else 0.
/// Returns only from a suspend: 0 in the restored domain, 1 if it was called off.
pub fn shutdown(reason: Reason, extra: u64) -> u64 {
    const SHUTDOWN: u64 = 2;
    let mut reason = reason as u32;
    // SAFETY: the argument is `struct sched_shutdown`, one word.
    unsafe { call(SCHED_OP, [SHUTDOWN, address(&mut reason), extra]) }.unwrap_or(1)
}

/// Sleeps until one of the ports is pending or the system time passes `until_ns` (0: never).
pub fn poll(ports: &[u32], until_ns: u64) {
    const POLL: u64 = 3;
    const PORTS_MAX: usize = 128;
    #[repr(C)]
    struct SchedPoll {
        ports: *const u32,
        count: u32,
        timeout: u64,
    }
    debug_assert!(ports.len() <= PORTS_MAX);
    let count = u32::try_from(ports.len()).unwrap_or(0);
    let mut poll = SchedPoll { ports: ports.as_ptr(), count, timeout: until_ns };
    // SAFETY: the argument is `struct sched_poll`; it borrows `ports` until the call returns.
    let result = unsafe { call(SCHED_OP, [POLL, address(&mut poll), 0]) };
    // A refused port would turn the main loop into a busy one.
    assert!(result.is_ok(), "Xen refused to wait for ports {ports:?}: {result:?}");
}

/// Tells the other end of an event channel. A port whose other end is gone is no error.
pub fn send(port: u32) {
    const SEND: u64 = 4;
    let mut port = port;
    // SAFETY: the argument is `struct evtchn_send`, one word.
    let _ = unsafe { call(EVENT_CHANNEL_OP, [SEND, address(&mut port), 0]) };
}

/// A port that `remote` may bind to.
pub fn alloc_unbound(remote: u16) -> Result<u32, Errno> {
    const ALLOC_UNBOUND: u64 = 6;
    #[repr(C)]
    struct AllocUnbound {
        domid: u16,
        remote: u16,
        port: u32,
    }
    let mut alloc = AllocUnbound { domid: DOMID_SELF, remote, port: 0 };
    // SAFETY: the argument is `struct evtchn_alloc_unbound`.
    unsafe { call(EVENT_CHANNEL_OP, [ALLOC_UNBOUND, address(&mut alloc), 0]) }?;
    Ok(alloc.port)
}

pub fn close(port: u32) {
    const CLOSE: u64 = 3;
    let mut port = port;
    // SAFETY: the argument is `struct evtchn_close`, one word.
    let _ = unsafe { call(EVENT_CHANNEL_OP, [CLOSE, address(&mut port), 0]) };
}

/// Pages that belong to this domain.
pub fn current_reservation() -> Result<u64, Errno> {
    const CURRENT_RESERVATION: u64 = 3;
    let mut domid = DOMID_SELF;
    // SAFETY: the argument is a `domid_t`.
    unsafe { call(MEMORY_OP, [CURRENT_RESERVATION, address(&mut domid), 0]) }
}

/// What Xen keeps for a guest and shows it at a guest frame of its choice.
#[derive(Clone, Copy, Debug)]
pub enum Space {
    SharedInfo = 0,
    GrantTable = 1,
}

/// PVH: replaces guest frame `frame` by page `index` of `space`.
///
/// # Safety
/// Nothing may live in that frame any more.
pub unsafe fn add_to_physmap(space: Space, index: u64, frame: u64) -> Result<(), Errno> {
    const ADD_TO_PHYSMAP: u64 = 7;
    #[repr(C)]
    struct AddToPhysmap {
        domid: u16,
        size: u16,
        space: u32,
        index: u64,
        frame: u64,
    }
    let mut add = AddToPhysmap { domid: DOMID_SELF, size: 0, space: space as u32, index, frame };
    // SAFETY: the argument is `struct xen_add_to_physmap`; the caller gave the frame up.
    unsafe { call(MEMORY_OP, [ADD_TO_PHYSMAP, address(&mut add), 0]) }.map(|_| ())
}

/// PV: makes virtual page `page` show what `entry` (a page table entry) says.
///
/// # Safety
/// Nothing may live in that page any more.
pub unsafe fn update_va_mapping(page: usize, entry: u64) -> Result<(), Errno> {
    const FLUSH_THIS_PAGE: u64 = 2;
    // SAFETY: no pointer is passed; the caller gave the page up.
    unsafe { call(UPDATE_VA_MAPPING, [page as u64, entry, FLUSH_THIS_PAGE]) }.map(|_| ())
}

/// PV: gives the domain a grant table of one frame, and says which machine frame that is.
pub fn setup_grant_table() -> Result<u64, Errno> {
    const SETUP_TABLE: u64 = 2;
    #[repr(C)]
    struct SetupTable {
        domid: u16,
        frames: u32,
        status: i16,
        list: *mut u64,
    }
    let mut frame = 0u64;
    let list = &raw mut frame;
    let mut setup = SetupTable { domid: DOMID_SELF, frames: 1, status: 0, list };
    // SAFETY: the argument is one `struct gnttab_setup_table`, whose list has room for one frame.
    unsafe { call(GRANT_TABLE_OP, [SETUP_TABLE, address(&mut setup), 1]) }?;
    if setup.status == 0 { Ok(frame) } else { Err(Errno(i64::from(setup.status))) }
}

/// The parameters through which the builder tells a PVH guest its rings.
#[derive(Clone, Copy, Debug)]
pub enum HvmParam {
    StorePfn = 1,
    StorePort = 2,
    ConsolePfn = 17,
    ConsolePort = 18,
}

#[repr(C)]
struct Param {
    domid: u16,
    padding: u16,
    index: u32,
    value: u64,
}

pub fn hvm_param(param: HvmParam) -> Result<u64, Errno> {
    const GET_PARAM: u64 = 1;
    let mut get = Param { domid: DOMID_SELF, padding: 0, index: param as u32, value: 0 };
    // SAFETY: the argument is `struct xen_hvm_param`.
    unsafe { call(HVM_OP, [GET_PARAM, address(&mut get), 0]) }?;
    Ok(get.value)
}

/// PVH: names an interrupt vector for events.
pub fn set_event_vector() -> Result<(), Errno> {
    const SET_PARAM: u64 = 0;
    const CALLBACK_IRQ: u32 = 0;
    /// Kind 2, a vector, in the top byte.
    const VECTOR: u64 = 2 << 56 | 0xf3;
    let mut set = Param { domid: DOMID_SELF, padding: 0, index: CALLBACK_IRQ, value: VECTOR };
    // SAFETY: the argument is `struct xen_hvm_param`.
    unsafe { call(HVM_OP, [SET_PARAM, address(&mut set), 0]) }.map(|_| ())
}
