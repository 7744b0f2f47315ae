//! What the builder set up, PV or PVH, behind one face: rings, ports, frames, command line.
//!
//! In both modes a virtual address is also the pseudo-physical one (PV: the image asks for
//! VIRT_BASE 0; PVH: the entry code maps the first 4 GiB onto themselves).

use guest_proto::boot::{
    HVM_START_INFO_BYTES, PV_CONSOLE_MFN, PV_START_INFO_BYTES, PV_STORE_MFN, PvStart, PvhStart,
    until_nul,
};
use guest_proto::options::{Options, SuspendBy};

use crate::console;
use crate::evtchn::{self, P2M_LIST_LIST, P2M_PAGES, SHARED_INFO};
use crate::grant::GRANT_FRAME;
use crate::hypercall::{self, HvmParam, Reason, Space};
use crate::page::{Frame, PAGE_BYTES, Page};

/// Xen shows PV guests the machine to pseudo-physical table here.
const M2P: usize = 0xffff_8000_0000_0000;
/// Page table entry bits: present, writable, accessed, dirty.
const MAPPED: u64 = 0x63;
const CMDLINE_BYTES_MAX: usize = 1024;
/// Beyond this nothing is mapped for a PVH guest.
const PVH_MAPPED_END: usize = 1 << 32;

/// Frames of the p2m list, for a save of this domain: a list of the frames of a list of the
/// frames of the list itself. One page of each level covers 1 GiB of memory.
static P2M_FRAMES: Frame = Frame::new();
static P2M_FRAMES_FRAMES: Frame = Frame::new();
const ENTRIES_PER_PAGE: usize = PAGE_BYTES / 8;

/// Where this guest finds itself after it asked to be suspended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resumed {
    /// In a new domain: new frames, no ports, no grants, no watches.
    Elsewhere,
    /// Where it was: the suspend was called off or was only for a copy.
    Here,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    Pv,
    Pvh,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pv => "pv",
            Self::Pvh => "pvh",
        }
    }
}

/// The page and the port of a ring that the builder made.
#[derive(Clone, Copy)]
pub struct Ring {
    pub page: Page,
    pub port: u32,
}

pub struct Machine {
    pub mode: Mode,
    pub store: Ring,
    pub options: Options,
    pub pages: u64,
    /// Address of the block that the builder left.
    start_info: usize,
}

impl Machine {
    /// Reads what a PV builder left and maps what Xen offers.
    ///
    /// # Safety
    /// `start_info` must be what Xen's PV boot protocol passes in rsi.
    pub unsafe fn pv(start_info: usize) -> Option<Self> {
        let bytes = core::ptr::with_exposed_provenance::<[u8; PV_START_INFO_BYTES]>(start_info);
        // SAFETY: the builder maps `start_info` and nobody changes it while the guest runs.
        let start = PvStart::decode(unsafe { &*bytes })?;
        // First the console: whatever fails after this can be told.
        let console = pv_ring(start.console_mfn, start.console_port)?;
        console::open(console.page, console.port);

        // SAFETY: both pages exist to be mapped over.
        let mapped = unsafe { map_pv(SHARED_INFO.page(), start.shared_info) };
        assert!(mapped, "Xen refused to map the shared info page at {:#x}", start.shared_info);
        evtchn::mask_all();
        let frame = hypercall::setup_grant_table().expect("Xen refused to set up a grant table");
        // SAFETY: as above.
        let mapped = unsafe { map_pv(GRANT_FRAME.page(), frame * PAGE_BYTES as u64) };
        assert!(mapped, "Xen refused to map the grant table at frame {frame:#x}");

        let machine = Self {
            mode: Mode::Pv,
            store: pv_ring(start.store_mfn, start.store_port)
                .expect("start_info names a store frame that is not ours"),
            options: Options::parse(start.cmdline),
            pages: start.pages,
            start_info,
        };
        machine.publish_p2m();
        Some(machine)
    }

    /// Reads what a PVH builder left and asks Xen for the rest.
    ///
    /// # Safety
    /// `start_info` must be what Xen's PVH boot protocol passes in ebx.
    pub unsafe fn pvh(start_info: usize) -> Option<Self> {
        hypercall::install()?;
        let console = pvh_ring(HvmParam::ConsolePfn, HvmParam::ConsolePort)?;
        console::open(console.page, console.port);

        let bytes = core::ptr::with_exposed_provenance::<[u8; HVM_START_INFO_BYTES]>(start_info);
        // SAFETY: the builder left the block in memory below 4 GiB, which is mapped.
        let start = PvhStart::decode(unsafe { &*bytes })?;
        map_pvh();
        evtchn::mask_all();
        let options = pvh_options(start.cmdline);
        if options.suspend != SuspendBy::Xen {
            // Never delivered, since interrupts stay off; but only a guest with an event vector is
            // told when a suspend is called off.
            hypercall::set_event_vector().expect("Xen refused an event vector");
        }

        let pages = hypercall::current_reservation().expect("Xen refused to tell our size");
        Some(Self {
            mode: Mode::Pvh,
            store: pvh_ring(HvmParam::StorePfn, HvmParam::StorePort)
                .expect("the builder made no store ring"),
            options,
            pages,
            start_info,
        })
    }

    /// Stops until the domain is restored, or the suspend is called off.
    pub fn suspend(&mut self) -> Resumed {
        match self.mode {
            Mode::Pv => self.suspend_pv(),
            Mode::Pvh => self.suspend_pvh(),
        }
    }

    fn suspend_pv(&mut self) -> Resumed {
        // The saver follows our page tables and knows only our own frames: what Xen lent must be
        // unmapped, and the frames in `start_info` given as places in our own memory.
        let fields = [PV_STORE_MFN, PV_CONSOLE_MFN].map(|field| self.start_field(field));
        // SAFETY: the fields lie in `start_info`, which nobody else reads now; the frames are
        // ours. The two pages are not accessed before they are mapped again.
        let (mfns, unmapped) = unsafe {
            let mfns = fields.map(|field| field.read_volatile());
            for (field, mfn) in fields.into_iter().zip(mfns) {
                field.write_volatile(pfn_of(mfn) as u64);
            }
            let pages = [SHARED_INFO.page(), GRANT_FRAME.page()].map(Page::address);
            (mfns, pages.map(|page| hypercall::update_va_mapping(page, 0)))
        };
        assert!(unmapped.iter().all(Result::is_ok), "Xen refused to unmap its pages");

        let resumed = suspend(self.mfn_of(self.start_info / PAGE_BYTES));
        if resumed == Resumed::Here {
            for (field, mfn) in fields.into_iter().zip(mfns) {
                // SAFETY: as above.
                unsafe { field.write_volatile(mfn) };
            }
        }
        // SAFETY: `start_info` is where it was; a restore filled it in again.
        *self = unsafe { Self::pv(self.start_info) }.expect("start_info survives a suspend");
        resumed
    }

    fn suspend_pvh(&mut self) -> Resumed {
        let resumed = suspend(0);
        if resumed == Resumed::Elsewhere {
            // SAFETY: the builder's block is in memory that has not been reused.
            let machine = unsafe { Self::pvh(self.start_info) };
            *self = machine.expect("hvm_start_info survives a suspend");
        }
        resumed
    }

    /// Lets a saver find the p2m list. More memory than one page of frames covers, or a list that
    /// does not start a page, cannot be saved; no builder does that to this guest.
    fn publish_p2m(&self) {
        let list = self.start().p2m;
        let pages = usize::try_from(self.pages).unwrap_or(usize::MAX);
        let list_pages = pages.div_ceil(ENTRIES_PER_PAGE);
        if list % PAGE_BYTES != 0 || list_pages > ENTRIES_PER_PAGE {
            return;
        }
        let (frames, frames_frames) = (P2M_FRAMES.page(), P2M_FRAMES_FRAMES.page());
        for index in 0..list_pages {
            frames.store_long(index * 8, self.mfn_of(list / PAGE_BYTES + index));
        }
        frames_frames.store_long(0, self.frame_of(frames));
        SHARED_INFO.page().store_long(P2M_LIST_LIST, self.frame_of(frames_frames));
        SHARED_INFO.page().store_long(P2M_PAGES, self.pages);
    }

    fn start_field(&self, offset: usize) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(self.start_info + offset)
    }

    pub fn memory_kib(&self) -> u64 {
        self.pages * (PAGE_BYTES as u64 / 1024)
    }

    /// The frame to put into a grant entry: machine frame (PV) or guest frame (PVH).
    pub fn frame_of(&self, page: Page) -> u64 {
        let pfn = page.address() / PAGE_BYTES;
        match self.mode {
            Mode::Pv => self.mfn_of(pfn),
            Mode::Pvh => pfn as u64,
        }
    }

    fn mfn_of(&self, pfn: usize) -> u64 {
        assert!((pfn as u64) < self.pages, "page {pfn:#x} lies outside our memory");
        let entry = self.start().p2m + pfn * 8;
        // SAFETY: the builder made a list of `pages` entries and mapped it.
        unsafe { core::ptr::with_exposed_provenance::<u64>(entry).read_volatile() }
    }

    fn start(&self) -> PvStart<'_> {
        let bytes =
            core::ptr::with_exposed_provenance::<[u8; PV_START_INFO_BYTES]>(self.start_info);
        // SAFETY: only PV code comes here; `pv` was given the block, and it does not move.
        PvStart::decode(unsafe { &*bytes }).expect("start_info was read at boot")
    }
}

/// # Safety
/// Nothing but Xen's page may be expected at `page` afterwards.
unsafe fn map_pv(page: Page, machine_address: u64) -> bool {
    // SAFETY: handed on to the caller.
    unsafe { hypercall::update_va_mapping(page.address(), machine_address | MAPPED) }.is_ok()
}

fn map_pvh() {
    for (space, page) in
        [(Space::SharedInfo, SHARED_INFO.page()), (Space::GrantTable, GRANT_FRAME.page())]
    {
        let frame = (page.address() / PAGE_BYTES) as u64;
        // SAFETY: both pages exist to be mapped over.
        let mapped = unsafe { hypercall::add_to_physmap(space, 0, frame) };
        assert!(mapped.is_ok(), "Xen refused to map {space:?}: {mapped:?}");
    }
}

fn suspend(start_info_frame: u64) -> Resumed {
    match hypercall::shutdown(Reason::Suspend, start_info_frame) {
        0 => Resumed::Elsewhere,
        _ => Resumed::Here,
    }
}

/// A ring in one of our own pages, named by its machine frame.
fn pv_ring(mfn: u64, port: u32) -> Option<Ring> {
    let address = pfn_of(mfn).checked_mul(PAGE_BYTES)?;
    // SAFETY: the builder maps its special pages into the first page tables.
    let page = unsafe { Page::at(address) };
    Some(Ring { page, port })
}

/// PV: where a machine frame lies in our memory.
fn pfn_of(mfn: u64) -> usize {
    // 52 bits of physical address: the table's index cannot overflow.
    assert!(mfn < 1 << 40, "machine frame {mfn:#x} cannot be");
    let entry = M2P + usize::try_from(mfn).unwrap_or(0) * 8;
    // SAFETY: Xen maps this table, read-only, for each frame of the machine; the builder names a
    // frame that exists.
    unsafe { core::ptr::with_exposed_provenance::<usize>(entry).read_volatile() }
}

fn pvh_ring(pfn: HvmParam, port: HvmParam) -> Option<Ring> {
    let pfn = usize::try_from(hypercall::hvm_param(pfn).ok()?).ok()?;
    let port = u32::try_from(hypercall::hvm_param(port).ok()?).ok()?;
    if pfn == 0 || pfn >= PVH_MAPPED_END / PAGE_BYTES {
        return None;
    }
    // SAFETY: the builder put a page of ours there, and memory below 4 GiB is mapped.
    let page = unsafe { Page::at(pfn * PAGE_BYTES) };
    Some(Ring { page, port })
}

fn pvh_options(cmdline: usize) -> Options {
    if cmdline == 0 || cmdline > PVH_MAPPED_END - CMDLINE_BYTES_MAX {
        return Options::default();
    }
    let bytes = core::ptr::with_exposed_provenance::<[u8; CMDLINE_BYTES_MAX]>(cmdline);
    // SAFETY: below 4 GiB everything is mapped, and reading past the line's end does no harm.
    Options::parse(until_nul(unsafe { &*bytes }))
}
