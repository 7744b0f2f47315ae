//! What a guest has in its memory besides its kernel: what it needs to go on in another domain, the
//! list of its frames, and pages that it writes all the time.
//!
//! ```text
//!   ... written pages | what it keeps | generations | two pages of lists | pages for rings
//! ```
//! Each written page has its number, a generation and a filling made of both; the generations are also
//! in a page of their own, so that a guest that wakes up elsewhere notices a page that is not its newest.

use xen::{DomId, PAGE_BYTES, PAGE_SHIFT};

use super::boot::{Boot, Crash, PvPlaces, text};
use super::{Goes, Next, image, word};
use crate::bytes::{index, put, put_u32, put_u64, u32_at, u64_at};
use crate::machine::Machine;
use crate::prng::split_mix;

const MAGIC: &[u8; 16] = b"XYLEM-SIM-KEEPS\0";
/// Pages of its own, the first of the spare ones.
const OWN_PAGES: u64 = 4;
const GENERATIONS: u64 = 1;
const LISTS: u64 = 2;
/// Most pages that are written.
const WRITTEN_MAX: u64 = 512;
/// Pages written at a time, and the time between, in nanoseconds.
const WRITES: u64 = 4;
const WRITE_NS: u64 = 1_000_000;

/// What a guest keeps in its memory.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(super) cmdline: String,
    pub(super) spare_pages: u64,
    pub(super) goes: Goes,
    /// Pages written so far.
    writes: u64,
}

impl Kept {
    pub(super) fn decode(page: &[u8]) -> Result<Self, Crash> {
        if page[..16] != MAGIC[..] {
            return Err("it has forgotten what it was doing");
        }
        let goes = match u32_at(page, 16) {
            0 => Goes::Suspends,
            1 => Goes::Bare,
            2 => Goes::Silent,
            _ => return Err("it does not know any more where it was"),
        };
        let (spare_pages, writes) = (u64_at(page, 24), u64_at(page, 32));
        Ok(Self { cmdline: text(&page[40..]), spare_pages, goes, writes })
    }

    fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        put(&mut page, 0, MAGIC);
        put_u32(&mut page, 16, self.goes as u32);
        put_u64(&mut page, 24, self.spare_pages);
        put_u64(&mut page, 32, self.writes);
        put(&mut page, 40, self.cmdline.as_bytes());
        page
    }
}

/// A guest's memory, as far as it uses it itself.
#[derive(Debug)]
pub(super) struct Memory {
    machine: Machine,
    domid: DomId,
    cmdline: String,
    pv: Option<PvPlaces>,
    spare: (u64, u64),
    /// How many pages it writes, and how often it has.
    written_pages: u64,
    writes: u64,
    /// It rests after so many writes.
    rests_after: u64,
    /// The frames of the rings in start info, while those are given as the guest's own numbers.
    rings: Option<[u64; 2]>,
}

impl Memory {
    pub(super) fn new(machine: Machine, domid: DomId, boot: &Boot) -> Self {
        let written = word(&boot.cmdline, "sim.writes").parse().unwrap_or(0_u64);
        Self {
            machine,
            domid,
            cmdline: boot.cmdline.clone(),
            pv: boot.pv,
            spare: boot.spare,
            written_pages: written.min(WRITTEN_MAX).min(boot.spare.0 / 2),
            writes: boot.woken.as_ref().map_or(0, |kept| kept.writes),
            rests_after: word(&boot.cmdline, "sim.rests-after").parse().unwrap_or(u64::MAX),
            rings: None,
        }
    }

    /// Pages for rings: first and number.
    pub(super) fn spare(&self) -> (u64, u64) {
        (self.spare.0 + OWN_PAGES, self.spare.1.saturating_sub(OWN_PAGES))
    }

    fn put(&self, pfn: u64, offset: usize, bytes: &[u8]) {
        let there = self.machine.get_mut().guest_write(self.domid, pfn, offset, bytes);
        assert!(there, "a page of its own");
    }

    fn page(&self, pfn: u64) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        // One that is missing is one that is not as it was written.
        let _there = self.machine.get().guest_read(self.domid, pfn, 0, &mut page);
        page
    }

    fn content(pfn: u64, generation: u64) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        let mut state = pfn << 32 ^ generation;
        for at in (16..PAGE_BYTES).step_by(8) {
            put_u64(&mut page, at, split_mix(&mut state));
        }
        put_u64(&mut page, 0, pfn);
        put_u64(&mut page, 8, generation);
        page
    }

    /// Writes the next few pages, if it does that at all.
    pub(super) fn write(&mut self) -> Next {
        if self.written_pages == 0 || self.writes >= self.rests_after {
            return Next::Block;
        }
        for _ in 0..WRITES {
            let number = self.writes % self.written_pages;
            let generation = self.writes / self.written_pages + 1;
            let pfn = self.spare.0 - 1 - number;
            self.put(pfn, 0, &Self::content(pfn, generation));
            let place = index(number * 8);
            self.put(self.spare.0 + GENERATIONS, place, &generation.to_le_bytes());
            self.writes += 1;
        }
        self.machine.get_mut().use_cpu(self.domid, WRITE_NS);
        Next::Sleep(WRITE_NS * self.slowness() / 100)
    }

    /// How much longer everything takes it, in percent: its scheduler may have capped it.
    fn slowness(&self) -> u64 {
        let machine = self.machine.get();
        let domain = machine.domain(self.domid);
        let cap = domain.map_or(0, |domain| u64::from(domain.cap()));
        let most = domain.map_or(100, |domain| 100 * domain.vcpus.len() as u64);
        if cap == 0 || cap >= most { 100 } else { 100 * most / cap }
    }

    /// Compares what it has written with what is there.
    pub(super) fn check(&self) -> String {
        let generations = self.page(self.spare.0 + GENERATIONS);
        for number in 0..self.written_pages.min(self.writes) {
            let pfn = self.spare.0 - 1 - number;
            let wanted = (self.writes - 1 - number) / self.written_pages + 1;
            let noted = u64_at(&generations, index(number * 8));
            let page = self.page(pfn);
            if noted != wanted || page != Self::content(pfn, wanted) {
                let is = u64_at(&page, 8);
                return format!("memory: page {pfn:#x} is of generation {is}, not {wanted}\n");
            }
        }
        format!("memory: as written, {} times\n", self.writes)
    }

    /// Prepares for going on in another domain.
    pub(super) fn keep(&mut self, goes: Goes) {
        let kept = Kept {
            cmdline: self.cmdline.clone(),
            spare_pages: self.spare.1,
            goes,
            writes: self.writes,
        };
        self.put(self.spare.0, 0, &kept.encode());
        let virt = if self.pv.is_some() { image::VIRT_BASE } else { 0 };
        let rip = virt + image::LOAD_ADDRESS + image::WAKE;
        let start_info = self.pv.map_or(0, |pv| pv.start_info_mfn);
        self.machine.get_mut().set_wake(self.domid, rip, self.spare.0, start_info);
        self.name_rings();
    }

    /// In the start info of a suspended PV guest the rings' frames are its own numbers.
    fn name_rings(&mut self) {
        const FIELDS: [usize; 2] = [56, 72];
        let Some(pv) = self.pv else { return };
        let xen = &mut *self.machine.get_mut();
        let mut mfns = [0; 2];
        for (mfn, field) in mfns.iter_mut().zip(FIELDS) {
            let page = xen.guest_frame_mut(self.domid, pv.start_info_mfn);
            *mfn = u64_at(page, field);
            let pfn = xen.pfn_of_mfn(*mfn).unwrap_or(u64::MAX);
            put_u64(xen.guest_frame_mut(self.domid, pv.start_info_mfn), field, pfn);
        }
        self.rings = Some(mfns);
    }

    /// The suspend was called off.
    pub(super) fn go_on(&mut self) {
        if let (Some(pv), Some([store, console])) = (self.pv, self.rings.take()) {
            let xen = &mut *self.machine.get_mut();
            let page = xen.guest_frame_mut(self.domid, pv.start_info_mfn);
            put_u64(page, 56, store);
            put_u64(page, 72, console);
        }
    }

    /// Whether the start info of a PV guest that was told that its domain is a new one names the rings' frames. They are
    /// the same as before if the domain is.
    pub(super) fn has_own_rings(&mut self) -> bool {
        let (Some(pv), Some(rings)) = (self.pv, self.rings.take()) else { return true };
        let xen = &mut *self.machine.get_mut();
        let page = xen.guest_frame_mut(self.domid, pv.start_info_mfn);
        [u64_at(page, 56), u64_at(page, 72)] == rings
    }

    /// Lets a saver find the frames of a PV guest: by the page tables that map their list, or by
    /// lists of lists.
    pub(super) fn publish_p2m(&self) {
        const ENTRIES: u64 = 512;
        const PAGES: usize = 3088;
        const LIST_LIST: usize = 3096;
        const ROOT: usize = 3112;
        const ADDRESS: usize = 3120;
        let Some(pv) = self.pv else { return };
        let xen = &mut *self.machine.get_mut();
        let Some(domain) = xen.domain(self.domid) else { return };
        let shared_info = domain.shared_info;
        let own = |page: u64| domain.mfn_of_pfn(self.spare.0 + page);
        let (Some(lists), Some(list)) = (own(LISTS), own(LISTS + 1)) else { return };
        let by_lists = word(&self.cmdline, "sim.p2m") == "lists";
        put_u64(xen.frame_mut(shared_info), PAGES, pv.pages);
        if !by_lists {
            let page = xen.frame_mut(shared_info);
            put_u64(page, ROOT, pv.root << PAGE_SHIFT);
            put_u64(page, ADDRESS, pv.p2m);
            return;
        }
        for leaf in 0..pv.pages.div_ceil(ENTRIES) {
            let mfn = xen.translate(pv.root, pv.p2m + leaf * PAGE_BYTES as u64);
            let page = xen.guest_frame_mut(self.domid, list);
            put_u64(page, index(leaf * 8), mfn.unwrap_or(u64::MAX));
        }
        put_u64(xen.guest_frame_mut(self.domid, lists), 0, list);
        put_u64(xen.frame_mut(shared_info), LIST_LIST, lists);
    }
}
