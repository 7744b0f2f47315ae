//! The memory and state of PV domains. A stream contains frame numbers of the guest where its memory
//! has machine frames.

use xen::{DomId, DomainInfo, FrameUse, Hypervisor, PAGE_BYTES, PAGE_SHIFT, Xen};

use super::p2m::P2m;
use super::{CaptureError, Round, fill};
use crate::frames::FrameSet;
use crate::layout::{
    PTE_FRAME, PTE_LARGE, PTE_PRESENT, PTES, XEN_SLOTS, context, put_u64_at, u64_at,
};
use crate::libxc::{P2mFrames, PageData, PageType, Record, VcpuBlob, VcpuState};

/// What is known of a PV domain's frames.
#[derive(Debug)]
pub(super) struct Pv {
    p2m: P2m,
    /// Page tables that led out of the guest when it ran. They are read again when it is suspended.
    deferred: FrameSet,
}

impl Pv {
    pub(super) fn prepare<H: Hypervisor>(
        xen: &mut Xen<H>,
        info: &DomainInfo,
    ) -> Result<Self, CaptureError> {
        let domid = info.domid;
        let refused = CaptureError::refused(domid, "ask for its address size");
        let bits = xen.address_size(domid).map_err(refused)?;
        if bits != 64 {
            return Err(CaptureError::Width { domid, bits });
        }
        Ok(Self { p2m: read_p2m(xen, info)?, deferred: FrameSet::default() })
    }

    pub(super) fn pages(&self) -> u64 {
        self.p2m.pages()
    }

    pub(super) fn p2m_frames(&self) -> P2mFrames {
        self.p2m.frames()
    }

    pub(super) fn all(&self) -> FrameSet {
        self.p2m.pfns().collect()
    }

    /// The frames to read again.
    pub(super) fn dirtied(&mut self, dirty: impl Iterator<Item = u64>) -> FrameSet {
        let deferred = std::mem::take(&mut self.deferred);
        dirty.filter(|pfn| self.p2m.mfn(*pfn).is_some()).chain(deferred.iter()).collect()
    }

    /// Reads the list of frames again, which may have other content by now, but not another place: that
    /// was told at the head of the stream.
    pub(super) fn reread<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        info: &DomainInfo,
    ) -> Result<(), CaptureError> {
        let p2m = read_p2m(xen, info)?;
        if !p2m.is_where(&self.p2m) {
            return Err(CaptureError::P2mMoved { domid: info.domid });
        }
        self.p2m = p2m;
        Ok(())
    }

    /// Reads frames into a batch.
    pub(super) fn read<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        domid: DomId,
        round: Round,
        frames: &[u64],
        batch: &mut PageData,
    ) -> Result<(), CaptureError> {
        let in_list = frames.iter().map(|pfn| (*pfn, self.p2m.mfn(*pfn).unwrap_or(u64::MAX)));
        let (pfns, mfns): (Vec<u64>, Vec<u64>) = in_list.unzip();
        let refused = CaptureError::refused(domid, "ask for the use of its frames");
        let uses = xen.frame_uses(domid, &mfns).map_err(refused)?;
        let mut names = Vec::with_capacity(mfns.len());
        for ((pfn, mfn), is) in pfns.into_iter().zip(mfns).zip(uses) {
            let kind = match is {
                FrameUse::Memory => PageType::Normal,
                FrameUse::Table { level, is_pinned } => PageType::Table { level, is_pinned },
                FrameUse::Broken => PageType::Broken,
                FrameUse::None => PageType::Invalid,
            };
            if kind.has_data() {
                names.push(mfn);
            }
            batch.pages.push((pfn, kind));
        }
        match (fill(xen, domid, &names, batch), round) {
            (Ok(()), _) => {}
            // One of them has just gone: all come again.
            (Err(_), Round::Live) => {
                batch.pages.clear();
                batch.data.clear();
                for pfn in frames {
                    self.deferred.insert(*pfn);
                }
                return Ok(());
            }
            (Err(error), Round::Last) => return Err(error),
        }
        self.normalise(domid, round, batch)
    }

    /// Puts frame numbers into the page tables of a batch.
    fn normalise(
        &mut self,
        domid: DomId,
        round: Round,
        batch: &mut PageData,
    ) -> Result<(), CaptureError> {
        let mut deferred = Vec::new();
        let mut contents = batch.data.chunks_exact_mut(PAGE_BYTES);
        for (pfn, kind) in &batch.pages {
            let Some(content) = kind.has_data().then(|| contents.next()).flatten() else {
                continue;
            };
            let PageType::Table { level, .. } = *kind else { continue };
            match self.normalise_table(level, content) {
                Ok(()) => {}
                Err(_) if round == Round::Live => deferred.push(*pfn),
                Err((slot, what)) => {
                    return Err(CaptureError::Table { domid, pfn: *pfn, level, slot, what });
                }
            }
        }
        drop(contents);
        for pfn in deferred {
            leave_out(batch, pfn);
            self.deferred.insert(pfn);
        }
        Ok(())
    }

    fn normalise_table(&self, level: u8, table: &mut [u8]) -> Result<(), (usize, &'static str)> {
        for slot in 0..PTES {
            let entry = u64_at(table, slot * 8);
            if level == 4 && XEN_SLOTS.contains(&slot) {
                // Xen puts its own there.
                put_u64_at(table, slot * 8, 0);
                continue;
            }
            if entry & PTE_PRESENT == 0 {
                continue;
            }
            if level > 1 && entry & PTE_LARGE != 0 {
                return Err((slot, "maps a large page, which cannot be saved"));
            }
            let mfn = (entry & PTE_FRAME) >> PAGE_SHIFT;
            let pfn = self.p2m.pfn(mfn);
            let pfn = pfn.ok_or((slot, "leads to a frame that is not the guest's"))?;
            put_u64_at(table, slot * 8, entry & !PTE_FRAME | pfn << PAGE_SHIFT);
        }
        Ok(())
    }

    /// Shared info and the vCPUs' registers.
    pub(super) fn state<H: Hypervisor>(
        &self,
        xen: &mut Xen<H>,
        info: &DomainInfo,
    ) -> Result<Vec<Record>, CaptureError> {
        let mut state = vec![Record::SharedInfo(shared_info(xen, info)?.into())];
        for vcpu in 0..info.vcpu_count() {
            let domid = info.domid;
            let refused = CaptureError::refused(domid, "read a vCPU's state");
            if !xen.vcpu_info(domid, vcpu).map_err(&refused)?.online {
                continue;
            }
            let mut add = |state_is, bytes| {
                state.push(Record::Vcpu(VcpuBlob { state: state_is, vcpu, bytes }));
            };
            let mut registers = xen.vcpu_context(domid, vcpu).map_err(&refused)?;
            self.normalise_registers(domid, vcpu, &mut registers)?;
            add(VcpuState::Basic, registers);
            add(VcpuState::Extended, xen.ext_vcpu_bytes(domid, vcpu).map_err(&refused)?);
            add(VcpuState::Xsave, xen.ext_state(domid, vcpu).map_err(&refused)?.bytes);
            let mut msrs = Vec::new();
            for msr in xen.vcpu_msrs(domid, vcpu).map_err(&refused)? {
                msrs.extend_from_slice(&u64::from(msr.index).to_le_bytes());
                msrs.extend_from_slice(&msr.value.to_le_bytes());
            }
            add(VcpuState::Msrs, msrs);
        }
        Ok(state)
    }

    fn normalise_registers(
        &self,
        domid: DomId,
        vcpu: u32,
        registers: &mut [u8],
    ) -> Result<(), CaptureError> {
        let refused = |what, value| CaptureError::Register { domid, vcpu, what, value };
        let pfn = |what, mfn| self.p2m.pfn(mfn).ok_or(refused(what, mfn));
        if vcpu == 0 {
            // Its suspend call was given this.
            let start_info = u64_at(registers, context::RDX);
            put_u64_at(registers, context::RDX, pfn("start_info frame", start_info)?);
        }
        let entries = u64_at(registers, context::GDT_ENTRIES);
        if entries > context::GDT_ENTRIES_MAX {
            return Err(refused("number of GDT entries", entries));
        }
        for frame in 0..gdt_frames(entries) {
            let at = context::GDT_FRAMES + frame * 8;
            let mfn = u64_at(registers, at);
            put_u64_at(registers, at, pfn("GDT frame", mfn)?);
        }
        let root = u64_at(registers, context::CR3) >> PAGE_SHIFT;
        put_u64_at(registers, context::CR3, pfn("cr3", root)? << PAGE_SHIFT);
        let user_root = u64_at(registers, context::CR1);
        if user_root != 0 {
            let pfn = pfn("cr1", user_root >> PAGE_SHIFT)?;
            put_u64_at(registers, context::CR1, pfn << PAGE_SHIFT | 1);
        }
        Ok(())
    }
}

/// Frames that hold this many entries of a GDT.
pub(crate) fn gdt_frames(entries: u64) -> usize {
    usize::try_from(entries.div_ceil(512)).expect("the number was checked")
}

/// Takes a page out of a batch.
fn leave_out(batch: &mut PageData, pfn: u64) {
    let Some(at) = batch.pages.iter().position(|(other, _)| *other == pfn) else { return };
    let before = batch.pages[..at].iter().filter(|(_, kind)| kind.has_data()).count();
    let (_, kind) = batch.pages.remove(at);
    if kind.has_data() {
        batch.data.drain(before * PAGE_BYTES..(before + 1) * PAGE_BYTES);
    }
}

fn shared_info<H: Hypervisor>(
    xen: &mut Xen<H>,
    info: &DomainInfo,
) -> Result<Vec<u8>, CaptureError> {
    let mut page = vec![0; PAGE_BYTES];
    xen.read_foreign(info.domid, &[info.shared_info_frame], 0, &mut page)?;
    Ok(page)
}

fn read_p2m<H: Hypervisor>(xen: &mut Xen<H>, info: &DomainInfo) -> Result<P2m, CaptureError> {
    let shared_info = shared_info(xen, info)?;
    P2m::read(xen, info, &shared_info)
}
