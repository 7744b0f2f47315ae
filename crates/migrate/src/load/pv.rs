//! What a PV domain has besides memory, and its page tables: frame numbers of the guest become
//! machine frames again.

use std::collections::BTreeMap;

use xen::{DomId, ExtState, Hypervisor, Mfn, Msr, PAGE_BYTES, PAGE_SHIFT, Xen};

use super::memory::{Memory, NONE};
use super::{LoadError, Target, disconnect_console};
use crate::capture::gdt_frames;
use crate::frames::FrameSet;
use crate::layout::{
    PTE_FRAME, PTE_PRESENT, PTES, context, put_u32_at, put_u64_at, shared, start, u64_at,
};
use crate::libxc::{P2mFrames, PageData, PageType, VcpuBlob, VcpuState};

const ENTRIES: u64 = PTES as u64;

/// The state as it came.
#[derive(Debug)]
pub(super) struct Pv {
    vcpus_max: u32,
    has_width: bool,
    /// Frames of the guest's own list, by their place in it.
    p2m: Option<Vec<u64>>,
    pub(super) shared_info: Option<Box<[u8]>>,
    vcpus: BTreeMap<u32, Vcpu>,
    /// Frames that are page tables.
    tables: BTreeMap<u64, Table>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Table {
    level: u8,
    is_pinned: bool,
}

#[derive(Debug, Default)]
struct Vcpu {
    basic: Option<Vec<u8>>,
    extended: Option<Vec<u8>>,
    xsave: Option<Vec<u8>>,
    msrs: Option<Vec<u8>>,
}

impl Pv {
    pub(super) fn new(vcpus_max: u32) -> Self {
        Self {
            vcpus_max,
            has_width: false,
            p2m: None,
            shared_info: None,
            vcpus: BTreeMap::new(),
            tables: BTreeMap::new(),
        }
    }

    pub(super) fn set_width(&mut self, width: u8) -> Result<(), LoadError> {
        if width != 8 {
            return Err(LoadError::Width { bits: u32::from(width) * 8 });
        }
        self.has_width = true;
        Ok(())
    }

    pub(super) fn expect_width(&self) -> Result<(), LoadError> {
        if self.has_width { Ok(()) } else { Err(LoadError::Missing { what: "the guest's width" }) }
    }

    /// Whether it is known where the guest's list of its frames is.
    pub(super) fn knows_p2m(&self) -> bool {
        self.p2m.is_some()
    }

    pub(super) fn set_p2m(
        &mut self,
        memory: &mut Memory,
        frames: &P2mFrames,
    ) -> Result<(), LoadError> {
        let unusable = |what, value| LoadError::P2m { what, value };
        let (first, last) = (u64::from(frames.start) / ENTRIES, u64::from(frames.end) / ENTRIES);
        if frames.start > frames.end || last - first + 1 != frames.frames.len() as u64 {
            return Err(unusable("it has too many or too few frames", frames.frames.len() as u64));
        }
        let list = self.p2m.get_or_insert_default();
        if first > list.len() as u64 {
            return Err(unusable("a part of it is missing", list.len() as u64));
        }
        list.truncate(usize::try_from(first).expect("at most its length"));
        list.extend_from_slice(&frames.frames);
        memory.extend(frames.end.into());
        Ok(())
    }

    /// Keeps a part of a vCPU's state for the end.
    pub(super) fn set_vcpu(&mut self, blob: VcpuBlob) -> Result<(), LoadError> {
        const EXTENDED_BYTES_MAX: usize = 128;
        const XSAVE_BYTES_MIN: usize = 16;
        /// Five times that of today's processors. They are kept for each vCPU.
        const XSAVE_BYTES_MAX: usize = 64 << 10;
        const MSR_BYTES: usize = 16;
        const MSRS_MAX: usize = 256;
        let VcpuBlob { state, vcpu, bytes } = blob;
        let wrong = |what| Err(LoadError::Vcpu { vcpu, what, value: bytes.len() as u64 });
        if vcpu >= self.vcpus_max {
            let value = self.vcpus_max.into();
            return Err(LoadError::Vcpu { vcpu, what: "the domain has no such vCPU", value });
        }
        match state {
            VcpuState::Basic if bytes.len() != context::BYTES => {
                return wrong("its registers are of another length");
            }
            VcpuState::Extended if !(8..=EXTENDED_BYTES_MAX).contains(&bytes.len()) => {
                return wrong("its extended registers are of another length");
            }
            VcpuState::Xsave if bytes.len() < XSAVE_BYTES_MIN => {
                return wrong("its floating point state is too short");
            }
            VcpuState::Xsave if bytes.len() > XSAVE_BYTES_MAX => {
                return wrong("its floating point state is too long");
            }
            VcpuState::Msrs if !bytes.len().is_multiple_of(MSR_BYTES) => {
                return wrong("its model specific registers are of another length");
            }
            VcpuState::Msrs if bytes.len() > MSRS_MAX * MSR_BYTES => {
                return wrong("it has too many model specific registers");
            }
            _ => {}
        }
        let kept = self.vcpus.entry(vcpu).or_default();
        let part = match state {
            VcpuState::Basic => &mut kept.basic,
            VcpuState::Extended => &mut kept.extended,
            VcpuState::Xsave => &mut kept.xsave,
            VcpuState::Msrs => &mut kept.msrs,
        };
        *part = Some(bytes);
        Ok(())
    }

    /// Loads pages. Frames that page tables lead to are allocated, even before their own content
    /// comes.
    pub(super) fn load<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        memory: &mut Memory,
        mut data: PageData,
        zero: &[u64],
    ) -> Result<(), LoadError> {
        if self.p2m.is_none() {
            return Err(LoadError::Missing { what: "the guest's list of machine frames" });
        }
        let mut targets = FrameSet::default();
        for (pfn, kind, content) in data.iter() {
            match kind {
                PageType::Table { level, is_pinned } => {
                    self.tables.insert(pfn, Table { level, is_pinned });
                    let entries = content.unwrap_or_default().chunks_exact(8);
                    for (slot, entry) in entries.map(|entry| u64_at(entry, 0)).enumerate() {
                        let target = (entry & PTE_FRAME) >> PAGE_SHIFT;
                        if entry & PTE_PRESENT == 0 || memory.name(target).is_some() {
                            continue;
                        }
                        if target > memory.last() {
                            let why = "beyond the guest's memory";
                            return Err(LoadError::Table { pfn, slot, target, why });
                        }
                        targets.insert(target);
                    }
                }
                _ => {
                    self.tables.remove(&pfn);
                }
            }
        }
        for pfn in zero {
            self.tables.remove(pfn);
        }
        memory.allocate(xen, targets)?;
        localise(memory, &mut data);
        memory.load(xen, &data, zero)
    }

    /// Loads everything else; returns the frames of the store's and the console's ring.
    pub(super) fn finish<H: Hypervisor>(
        mut self,
        xen: &mut Xen<H>,
        target: &Target,
        memory: &Memory,
    ) -> Result<(u64, u64), LoadError> {
        let domid = target.domid;
        let page = self.shared_info.take();
        let page = page.ok_or(LoadError::Missing { what: "the shared info page" })?;
        let info = xen.domain(domid).map_err(LoadError::refused("ask for its shared info"))?;
        let info = info.ok_or(LoadError::Missing { what: "the domain" })?;
        write_shared_info(xen, domid, info.shared_info_frame, &page)?;

        let first = self.vcpus.get_mut(&0).and_then(|vcpu| vcpu.basic.as_mut());
        let first = first.ok_or(LoadError::Missing { what: "the registers of vCPU 0" })?;
        let start_info = u64_at(first, context::RDX);
        let frame = self.page("start_info", start_info, memory)?;
        let rings = self.fill_start_info(xen, target, memory, frame, info.shared_info_frame)?;
        self.write_p2m(xen, domid, memory)?;
        self.pin(xen, domid, memory)?;
        for (vcpu, mut state) in std::mem::take(&mut self.vcpus) {
            if let Some(registers) = &mut state.basic {
                self.localise_registers(vcpu, registers, memory)?;
            }
            load_vcpu(xen, domid, vcpu, &state)?;
        }
        Ok(rings)
    }

    /// The machine frame of a page of the guest that is no page table.
    fn page(&self, what: &'static str, pfn: u64, memory: &Memory) -> Result<u64, LoadError> {
        let name = memory.name(pfn).filter(|_| !self.tables.contains_key(&pfn));
        name.ok_or(LoadError::NoSuchFrame { what, pfn })
    }

    fn fill_start_info<H: Hypervisor>(
        &self,
        xen: &mut Xen<H>,
        target: &Target,
        memory: &Memory,
        frame: u64,
        shared_info_frame: u64,
    ) -> Result<(u64, u64), LoadError> {
        let mut info = [0; start::BYTES];
        xen.read_foreign(target.domid, &[frame], 0, &mut info)?;
        let pfn = u64_at(&info, start::STORE_FRAME);
        let store = self.page("the store's ring page", pfn, memory)?;
        let pfn = u64_at(&info, start::CONSOLE_FRAME);
        let console = self.page("the console's ring page", pfn, memory)?;
        put_u64_at(&mut info, start::STORE_FRAME, store);
        put_u32_at(&mut info, start::STORE_PORT, target.store.port.0);
        put_u64_at(&mut info, start::CONSOLE_FRAME, console);
        put_u32_at(&mut info, start::CONSOLE_PORT, target.console.port.0);
        put_u64_at(&mut info, start::PAGES, memory.last() + 1);
        put_u64_at(&mut info, start::SHARED_INFO, shared_info_frame << PAGE_SHIFT);
        put_u32_at(&mut info, start::FLAGS, 0);
        xen.write_foreign(target.domid, &[frame], 0, &info)?;
        // What the store had said to the suspended guest is no answer in this domain, and may be half a message.
        xen.write_foreign(target.domid, &[store], 0, &[0; PAGE_BYTES])?;
        disconnect_console(xen, target.domid, console)?;
        Ok((store, console))
    }

    /// Writes the guest's list of its machine frames over the old one.
    fn write_p2m<H: Hypervisor>(
        &self,
        xen: &mut Xen<H>,
        domid: DomId,
        memory: &Memory,
    ) -> Result<(), LoadError> {
        const FRAMES: usize = 512;
        let list = self.p2m.as_deref().unwrap_or_default();
        // A frame without entries may be there many times.
        let mut written = BTreeMap::new();
        let (mut frames, mut bytes) = (Vec::new(), Vec::new());
        for (number, pfn) in (0..).zip(list.iter().copied()) {
            let block = memory.block(number);
            match written.get(&pfn) {
                Some(None) if block.is_none() => continue,
                Some(_) => {
                    return Err(LoadError::P2m { what: "one frame is two of its", value: pfn });
                }
                None => {}
            }
            written.insert(pfn, block.as_ref().map(|_| ()));
            let what = "the guest's list of machine frames";
            frames.push(self.page(what, pfn, memory)?);
            let entries = block.unwrap_or_else(|| Box::new([NONE; PTES]));
            bytes.extend(entries.iter().flat_map(|mfn| mfn.to_le_bytes()));
            if frames.len() == FRAMES {
                xen.write_foreign(domid, &frames, 0, &bytes)?;
                frames.clear();
                bytes.clear();
            }
        }
        if !frames.is_empty() {
            xen.write_foreign(domid, &frames, 0, &bytes)?;
        }
        Ok(())
    }

    fn pin<H: Hypervisor>(
        &self,
        xen: &mut Xen<H>,
        domid: DomId,
        memory: &Memory,
    ) -> Result<(), LoadError> {
        let pinned = self.tables.iter().filter(|(_, table)| table.is_pinned);
        let mut pins = Vec::new();
        for (&pfn, table) in pinned {
            let name = memory.name(pfn);
            let name = name.ok_or(LoadError::NoSuchFrame { what: "a page table", pfn })?;
            pins.push((table.level, Mfn(name)));
        }
        for pins in pins.chunks(Xen::<H>::PINS_MAX) {
            xen.pin_tables(domid, pins).map_err(LoadError::refused("pin its page tables"))?;
        }
        Ok(())
    }

    fn localise_registers(
        &self,
        vcpu: u32,
        registers: &mut [u8],
        memory: &Memory,
    ) -> Result<(), LoadError> {
        let wrong = |what, value| LoadError::Vcpu { vcpu, what, value };
        let root = |what, pfn| {
            let is_root = self.tables.get(&pfn).is_some_and(|table| table.level == 4);
            memory.name(pfn).filter(|_| is_root).ok_or(LoadError::NoSuchFrame { what, pfn })
        };
        let flags = u64_at(registers, context::FLAGS);
        put_u64_at(registers, context::FLAGS, flags | context::VGCF_ONLINE);
        if vcpu == 0 {
            let frame = self.page("start_info", u64_at(registers, context::RDX), memory)?;
            put_u64_at(registers, context::RDX, frame);
        }
        let entries = u64_at(registers, context::GDT_ENTRIES);
        if entries > context::GDT_ENTRIES_MAX {
            return Err(wrong("its GDT has too many entries", entries));
        }
        for frame in 0..gdt_frames(entries) {
            let at = context::GDT_FRAMES + frame * 8;
            let frame = self.page("a vCPU's GDT", u64_at(registers, at), memory)?;
            put_u64_at(registers, at, frame);
        }
        let pfn = u64_at(registers, context::CR3) >> PAGE_SHIFT;
        put_u64_at(registers, context::CR3, root("a vCPU's cr3", pfn)? << PAGE_SHIFT);
        let user = u64_at(registers, context::CR1);
        if user & 1 != 0 {
            let frame = root("a vCPU's cr1", user >> PAGE_SHIFT)?;
            put_u64_at(registers, context::CR1, frame << PAGE_SHIFT);
        }
        Ok(())
    }
}

/// Puts machine frames into the page tables of a batch, all of which are allocated.
fn localise(memory: &Memory, data: &mut PageData) {
    let mut contents = data.data.chunks_exact_mut(PAGE_BYTES);
    for (_, kind) in &data.pages {
        let Some(content) = kind.has_data().then(|| contents.next()).flatten() else { continue };
        if !matches!(kind, PageType::Table { .. }) {
            continue;
        }
        for slot in 0..PTES {
            let entry = u64_at(content, slot * 8);
            if entry & PTE_PRESENT != 0 {
                let target = memory.name((entry & PTE_FRAME) >> PAGE_SHIFT);
                let mfn = target.expect("what tables lead to was allocated");
                put_u64_at(content, slot * 8, entry & !PTE_FRAME | mfn << PAGE_SHIFT);
            }
        }
    }
}

/// Takes over what the guest knows itself; its event channels are new.
fn write_shared_info<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    frame: u64,
    saved: &[u8],
) -> Result<(), LoadError> {
    if saved.len() != PAGE_BYTES {
        return Err(LoadError::Missing { what: "a part of the shared info page" });
    }
    let mut page = vec![0; PAGE_BYTES];
    xen.read_foreign(domid, &[frame], 0, &mut page)?;
    let vcpus = 0..shared::VCPUS * shared::VCPU_BYTES;
    page[vcpus.clone()].copy_from_slice(&saved[vcpus]);
    page[shared::ARCH].copy_from_slice(&saved[shared::ARCH]);
    // Both are machine frames of the domain that was saved.
    put_u64_at(&mut page, shared::FRAME_LIST_LIST, 0);
    put_u64_at(&mut page, shared::P2M_ROOT, 0);
    for vcpu in 0..shared::VCPUS {
        put_u64_at(&mut page, vcpu * shared::VCPU_BYTES + shared::PENDING_SELECTOR, 0);
    }
    page[shared::PENDING].fill(0);
    page[shared::MASK].fill(0xff);
    Ok(xen.write_foreign(domid, &[frame], 0, &page)?)
}

fn load_vcpu<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    vcpu: u32,
    state: &Vcpu,
) -> Result<(), LoadError> {
    if let Some(registers) = &state.basic {
        xen.set_vcpu_context(domid, vcpu, registers)
            .map_err(LoadError::refused("set a vCPU's registers"))?;
    }
    if let Some(bytes) = &state.extended {
        xen.set_ext_vcpu_bytes(domid, vcpu, bytes)
            .map_err(LoadError::refused("set a vCPU's extended registers"))?;
    }
    if let Some(bytes) = &state.xsave {
        let state = ExtState { features: 0, bytes: bytes.clone() };
        xen.set_ext_state(domid, vcpu, &state)
            .map_err(LoadError::refused("set a vCPU's floating point state"))?;
    }
    if let Some(bytes) = &state.msrs {
        let msr = |entry: &[u8]| {
            let index = u32::try_from(u64_at(entry, 0) & u64::from(u32::MAX)).expect("masked");
            Msr { index, value: u64_at(entry, 8) }
        };
        let msrs: Vec<Msr> = bytes.chunks_exact(16).map(msr).collect();
        xen.set_vcpu_msrs(domid, vcpu, &msrs)
            .map_err(LoadError::refused("set a vCPU's model specific registers"))?;
    }
    Ok(())
}
