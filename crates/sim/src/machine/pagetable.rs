//! Page tables of PV domains: Xen's validation, and translation.
//!
//! A page is either mapped writable or used as a page table, never both. Sources:
//! `xen/arch/x86/mm.c` (`promote_l4_table` and below), `xen/include/public/xen.h` (`mmuext_op`).

use std::collections::BTreeMap;

use xen::{DomId, Errno, PAGE_BYTES};

use super::SimXen;
use super::hypercall::{Arena, Call, ERESTART};
use crate::bytes::{index, u32_at, u64_at};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const SUPERPAGE: u64 = 0x80;
const ENTRIES: usize = PAGE_BYTES / 8;
const FRAME_MASK: u64 = 0x000f_ffff_ffff_f000;
/// Slots of a top-level table that Xen uses itself.
const XEN_SLOTS: core::ops::Range<usize> = 256..272;

fn frame_of(entry: u64) -> u64 {
    (entry & FRAME_MASK) >> xen::PAGE_SHIFT
}

/// A tree of tables under validation: the use of each frame.
#[derive(Default)]
struct Walk {
    tables: BTreeMap<u64, u8>,
    writable: Vec<u64>,
}

impl SimXen {
    pub(super) fn mmuext_op(
        &mut self,
        caller: DomId,
        arena: &Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        const OP_BYTES: u64 = 24;
        const PIN_L1: u32 = 0;
        const PIN_L4: u32 = 3;
        const UNPIN: u32 = 4;
        if caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        let domid = u16::try_from(call.args[3]).map(DomId).map_err(|_| Errno::EINVAL)?;
        if self.live(domid)?.is_translated() {
            return Err(Errno::EINVAL);
        }
        // Validating a tree of tables takes long: there is a preemption point before each op.
        let mut may_stop = !call.goes_on;
        while call.args[1] > 0 {
            if std::mem::replace(&mut may_stop, true) && self.is_preempted() {
                return Err(ERESTART);
            }
            let op = arena.get(call.args[0], index(OP_BYTES))?;
            let (cmd, mfn) = (u32_at(op, 0), u64_at(op, 8));
            match cmd {
                PIN_L1..=PIN_L4 => {
                    let level = u8::try_from(cmd + 1).expect("a level of 1 to 4");
                    if self.live(domid)?.pinned.contains(&mfn) {
                        return Err(Errno::EINVAL);
                    }
                    self.validate(domid, mfn, level)?;
                    self.live(domid)?.pinned.insert(mfn);
                }
                UNPIN => {
                    if !self.live(domid)?.pinned.remove(&mfn) {
                        return Err(Errno::EINVAL);
                    }
                }
                _ => return Err(Errno::ENOSYS),
            }
            call.args[0] = call.args[0].checked_add(OP_BYTES).ok_or(Errno::EFAULT)?;
            call.args[1] -= 1;
        }
        Ok(0)
    }

    /// Whether the domain uses the frame as a page table.
    pub(super) fn is_table(&self, domid: DomId, mfn: u64) -> bool {
        self.domains.get(&domid).is_some_and(|domain| domain.tables.contains_key(&mfn))
    }

    /// What a vCPU's cr3 must be: a valid top-level table, validated now if it was not before.
    pub(super) fn check_base_table(&mut self, domid: DomId, mfn: u64) -> Result<(), Errno> {
        match self.live(domid)?.tables.get(&mfn) {
            Some(4) => Ok(()),
            Some(_) => Err(Errno::EINVAL),
            None => self.validate(domid, mfn, 4),
        }
    }

    fn validate(&mut self, domid: DomId, mfn: u64, level: u8) -> Result<(), Errno> {
        let mut walk = Walk::default();
        self.walk_tables(domid, mfn, level, &mut walk)?;
        let known = &self.live(domid)?.tables;
        let clash = walk
            .tables
            .iter()
            .find(|(mfn, level)| known.get(mfn).is_some_and(|known_level| known_level != *level));
        let writable = walk
            .writable
            .iter()
            .find(|mfn| walk.tables.contains_key(mfn) || known.contains_key(mfn));
        if let Some((mfn, _)) = clash {
            return self.refuse(domid, *mfn, "is a page table of two levels");
        }
        if let Some(mfn) = writable {
            return self.refuse(domid, *mfn, "is a page table and mapped writable");
        }
        self.spend(walk.tables.len() as u64 * 1500);
        self.live(domid)?.tables.extend(walk.tables);
        Ok(())
    }

    fn walk_tables(
        &mut self,
        domid: DomId,
        mfn: u64,
        level: u8,
        walk: &mut Walk,
    ) -> Result<(), Errno> {
        if self.frames.owner(mfn) != Some(domid) || self.frames.is_xens(mfn) {
            return self.refuse(domid, mfn, "is not the domain's memory");
        }
        match walk.tables.insert(mfn, level) {
            Some(seen) if seen == level => return Ok(()),
            Some(_) => return self.refuse(domid, mfn, "is a page table of two levels"),
            None => {}
        }
        let mut page = [0; PAGE_BYTES];
        self.frames.read(mfn, 0, &mut page);
        for slot in 0..ENTRIES {
            let entry = u64_at(&page, slot * 8);
            if entry & PRESENT == 0 || (level == 4 && XEN_SLOTS.contains(&slot)) {
                continue;
            }
            let target = frame_of(entry);
            if level > 1 {
                if entry & SUPERPAGE != 0 {
                    return self.refuse(domid, target, "is mapped as a superpage");
                }
                self.walk_tables(domid, target, level - 1, walk)?;
                continue;
            }
            if self.frames.owner(target) != Some(domid) {
                return self.refuse(domid, target, "is mapped and not the domain's");
            }
            if entry & WRITABLE != 0 {
                walk.writable.push(target);
            }
        }
        Ok(())
    }

    /// Adds Xen's console message to the trace.
    fn refuse(&mut self, domid: DomId, mfn: u64, why: &str) -> Result<(), Errno> {
        self.trace.note(self.now, format_args!("xen: page tables of {domid}: {mfn:#x} {why}"));
        Err(Errno::EINVAL)
    }

    /// The machine frame of a virtual address, by the tables under `root`.
    #[must_use]
    pub(crate) fn translate(&self, root: u64, address: u64) -> Option<u64> {
        let mut table = root;
        for level in (1..=4).rev() {
            let slot = (address >> (12 + 9 * (level - 1))) & 511;
            let entry = self.frames.u64(table, usize::try_from(slot).ok()?);
            if entry & PRESENT == 0 {
                return None;
            }
            table = frame_of(entry);
        }
        Some(table)
    }
}
