//! Settings of a domain besides memory and vCPUs: scheduling, permissions, clock, dirty pages.
//!
//! Sources: `xen/common/domctl.c`, `xen/arch/x86/domctl.c`, `xen/common/sched/`, `mm/paging.c`.

use std::collections::BTreeSet;

use toolstack::pci::PciRegion;
use xen::{BitSet, DomId, Errno, EvtchnPort, PAGE_SHIFT, Scheduler};

use super::domctl::HEADER;
use super::hypercall::{Arena, ERESTART};
use super::{Domain, SimXen};
use crate::bytes::{index, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Period, budget and flags of a vCPU under the real-time scheduler, until others are set.
const BUDGET: [u32; 3] = [10_000, 4_000, 1];
/// Number of the machine's interrupts.
const IRQS: u32 = 256;

/// Settings of one domain.
#[derive(Debug)]
pub(super) struct Settings {
    /// The power button was pressed, and the guest has not handled it yet.
    pub(super) power_button: bool,
    pub(super) weight: u16,
    pub(super) cap: u16,
    pub(super) pool: u32,
    nodes: BTreeSet<u32>,
    time_offset: i64,
    tsc_khz: u32,
    tsc_incarnation: u32,
    /// Elapsed nanoseconds, and the time when they were set.
    tsc_elapsed: Option<(u64, crate::agenda::Time)>,
    pub(super) debugged: bool,
    /// The domain's own port that is signalled when it suspends.
    pub(super) suspend_port: Option<EvtchnPort>,
    pub(super) target: Option<DomId>,
    ports_allowed: Vec<(u64, u64)>,
    frames_allowed: Vec<(u64, u64)>,
    pirqs: BTreeSet<u32>,
    dirty: Option<BTreeSet<u64>>,
    /// A preempted read of the dirty pages.
    look: Option<DirtyScan>,
}

/// Progress of a read of the dirty pages.
#[derive(Clone, Copy, Debug)]
struct DirtyScan {
    caller: DomId,
    op: u32,
    /// The next page to read.
    next: u64,
    found: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            power_button: false,
            weight: 256,
            cap: 0,
            pool: 0,
            nodes: BTreeSet::from([0]),
            time_offset: 0,
            tsc_khz: 2_400_000,
            tsc_incarnation: 0,
            tsc_elapsed: None,
            debugged: false,
            suspend_port: None,
            target: None,
            ports_allowed: Vec::new(),
            frames_allowed: Vec::new(),
            pirqs: BTreeSet::new(),
            dirty: None,
            look: None,
        }
    }
}

impl Settings {
    pub(super) fn has_pirq(&self, pirq: u32) -> bool {
        self.pirqs.contains(&pirq)
    }

    pub(super) fn is_allowed(&self, region: PciRegion) -> bool {
        let PciRegion { first, bytes, is_ports } = region;
        let last = first + bytes - 1;
        let (ranges, first, last) = match is_ports {
            true => (&self.ports_allowed, first, last),
            false => (&self.frames_allowed, first >> PAGE_SHIFT, last >> PAGE_SHIFT),
        };
        ranges.contains(&(first, last))
    }
}

/// Adds or removes a range, which must be completely in the list or not at all.
fn change(ranges: &mut Vec<(u64, u64)>, range: (u64, u64), allow: bool) {
    ranges.retain(|known| *known != range);
    if allow {
        ranges.push(range);
    }
}

/// The set in the caller's bitmap.
fn bitmap(arena: &Arena<'_>, call: &[u8], at: usize) -> Result<BTreeSet<u32>, Errno> {
    let bytes = index(u32_at(call, at + 8).into()).div_ceil(8);
    let set = BitSet::from_bytes(arena.get(u64_at(call, at), bytes)?);
    Ok(set.iter().collect())
}

/// Writes a set into the caller's bitmap, zero-extended.
pub(super) fn put_bitmap(
    arena: &mut Arena<'_>,
    call: &[u8],
    at: usize,
    set: &BTreeSet<u32>,
) -> Result<(), Errno> {
    let bits = u32_at(call, at + 8);
    let out = arena.get_mut(u64_at(call, at), index(bits.into()).div_ceil(8))?;
    out.fill(0);
    for number in set.iter().filter(|number| **number < bits) {
        out[index((number / 8).into())] |= 1 << (number % 8);
    }
    Ok(())
}

impl Domain {
    /// Marks a page as dirty, if log-dirty mode is on.
    pub(super) fn mark_dirty(&mut self, pfn: u64) {
        if let Some(dirty) = &mut self.settings.dirty {
            dirty.insert(pfn);
        }
    }

    /// Whether it was allowed ports or frames of the machine.
    pub(super) fn has_hardware(&self) -> bool {
        !self.settings.frames_allowed.is_empty() || !self.settings.ports_allowed.is_empty()
    }

    /// One more than its highest guest frame.
    pub(super) fn pfn_end(&self) -> u64 {
        let end = self.physmap.iter().next_back().map_or(0, |(first, (count, _))| first + count);
        end.max(self.pod.end())
    }
}

impl SimXen {
    /// The domctls of this file; `None` for any other.
    pub(super) fn settings_call(
        &mut self,
        caller: DomId,
        domid: DomId,
        cmd: u32,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Option<Result<u64, Errno>> {
        Some(match cmd {
            9 | 25 => self.affinity(domid, cmd == 9, call, arena),
            10 => self.log_dirty(caller, domid, call, arena),
            13 => self.vcpu_context(domid, call, arena),
            16 => self.share(domid, call, arena),
            18 => self.set(domid, |domain| domain.settings.debugged = call[HEADER] != 0),
            19 => {
                let known = u32_at(call, HEADER) < IRQS;
                if known { Ok(0) } else { Err(Errno::EINVAL) }
            }
            20 => self.allow_frames(domid, call),
            21 => self.allow_ports(domid, call),
            24 => {
                let offset = u64_at(call, HEADER).cast_signed();
                self.set(domid, |domain| domain.settings.time_offset = offset)
            }
            28 => self.send_trigger(domid, u32_at(call, HEADER), u32_at(call, HEADER + 4)),
            29 => {
                let port = EvtchnPort(u32_at(call, HEADER));
                self.set(domid, |domain| domain.settings.suspend_port = Some(port))
            }
            36 => match self.live(domid) {
                Ok(domain) if domain.is_translated() => Err(Errno::EOPNOTSUPP),
                _ => {
                    put_u32(call, HEADER, 64);
                    Ok(0)
                }
            },
            // No device is in a group.
            50 => Err(Errno::EOPNOTSUPP),
            38 | 48 => Err(Errno::EINVAL),
            39 => self.map_machine_frames(domid, call),
            40 => self.map_machine_ports(domid, call),
            42 | 43 => self.ext_vcpu_context(domid, cmd == 42, call),
            46 => self.set_target(domid, DomId(u16_at(call, HEADER))),
            55 => self.hvm_record(domid, call, arena),
            59 => self.tsc_info(domid, call),
            60 => self.set_tsc_info(caller, domid, call),
            61 => self.frame_uses(domid, call, arena),
            62 | 63 => self.ext_state(domid, cmd == 62, call, arena),
            66 => self.set_virq_handler(domid, u32_at(call, HEADER)),
            68 | 69 => self.node_affinity(domid, cmd == 68, call, arena),
            72 | 73 => self.vcpu_msrs(domid, cmd == 73, call),
            74 => self.set_vnuma(domid, call, arena),
            79 => self.soft_reset(domid),
            88 if self.release() >= super::Release::Xen4_20 => {
                if u32_at(call, HEADER) < IRQS {
                    Ok(0)
                } else {
                    Err(Errno::EINVAL)
                }
            }
            _ => return None,
        })
    }

    fn set(&mut self, domid: DomId, change: impl FnOnce(&mut Domain)) -> Result<u64, Errno> {
        change(self.live(domid)?);
        Ok(0)
    }

    fn affinity(
        &mut self,
        domid: DomId,
        is_set: bool,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        const HARD: u32 = 1;
        const SOFT: u32 = 2;
        const FORCE: u32 = 4;
        let flags = u32_at(call, HEADER + 4);
        let all: BTreeSet<u32> = (0..self.config.cpus).collect();
        let domain = self.live(domid)?;
        let number = u32_at(call, HEADER);
        if number >= domain.vcpus_max {
            return Err(Errno::EINVAL);
        }
        let vcpu = domain.vcpus.get_mut(index(number.into())).ok_or(Errno::ESRCH)?;
        let (hard_at, soft_at) = (HEADER + 8, HEADER + 24);
        if is_set {
            if flags & FORCE != 0 {
                vcpu.is_pinned_by_kernel = false;
            }
            if flags & HARD != 0 && vcpu.is_pinned_by_kernel {
                return Err(Errno::EBUSY);
            }
            let mut wanted = (vcpu.hard.clone(), vcpu.soft.clone());
            if flags & HARD != 0 {
                let hard = bitmap(arena, call, hard_at)?;
                if hard.is_disjoint(&all) {
                    return Err(Errno::EINVAL);
                }
                wanted.0 = Some(hard);
            }
            if flags & SOFT != 0 {
                wanted.1 = Some(bitmap(arena, call, soft_at)?);
            }
            (vcpu.hard, vcpu.soft) = wanted;
        }
        let mut hard = vcpu.hard.clone().unwrap_or_else(|| all.clone());
        let mut soft = vcpu.soft.clone().unwrap_or_else(|| all.clone());
        if is_set {
            // The effective sets.
            hard = &hard & &all;
            soft = &soft & &hard;
        }
        if flags & HARD != 0 {
            put_bitmap(arena, call, hard_at, &hard)?;
        }
        if flags & SOFT != 0 {
            put_bitmap(arena, call, soft_at, &soft)?;
        }
        Ok(0)
    }

    fn node_affinity(
        &mut self,
        domid: DomId,
        is_set: bool,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        let of_machine = 0..self.config.nodes;
        let settings = &mut self.live(domid)?.settings;
        if is_set {
            let nodes = bitmap(arena, call, HEADER)?;
            if !nodes.iter().any(|node| of_machine.contains(node)) {
                return Err(Errno::EINVAL);
            }
            settings.nodes = nodes;
        } else {
            put_bitmap(arena, call, HEADER, &settings.nodes)?;
        }
        Ok(0)
    }

    fn vcpu_context(
        &mut self,
        domid: DomId,
        call: &[u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        let domain = self.live(domid)?;
        let vcpu = domain.vcpus.get(index(u32_at(call, HEADER).into())).ok_or(Errno::EINVAL)?;
        let context = vcpu.guest_context().ok_or(Errno::ENODATA)?;
        arena.get_mut(u64_at(call, HEADER + 8), context.len())?.copy_from_slice(&context);
        Ok(0)
    }

    fn ext_vcpu_context(
        &mut self,
        domid: DomId,
        is_set: bool,
        call: &mut [u8],
    ) -> Result<u64, Errno> {
        const FIELDS: std::ops::Range<usize> = HEADER + 8..HEADER + 64;
        let vcpu = self.live(domid)?.vcpus.get_mut(index(u32_at(call, HEADER).into()));
        let vcpu = vcpu.ok_or(Errno::ESRCH)?;
        if is_set {
            if u32_at(call, HEADER + 4) < 56 {
                return Err(Errno::EINVAL);
            }
            let is_canonical = |address: u64| matches!(address >> 47, 0 | 0x1_ffff);
            if ![8, 16].iter().all(|at| is_canonical(u64_at(call, HEADER + at))) {
                return Err(Errno::EINVAL);
            }
            vcpu.ext_context = Some(call[FIELDS].into());
        } else {
            put_u32(call, HEADER + 4, 64);
            match &vcpu.ext_context {
                Some(fields) => call[FIELDS].copy_from_slice(fields),
                None => call[FIELDS].fill(0),
            }
        }
        Ok(0)
    }

    fn ext_state(
        &mut self,
        domid: DomId,
        is_set: bool,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        /// x87, SSE and AVX, after two words of header.
        const FEATURES: u64 = 7;
        const BYTES: usize = 16 + 576 + 256;
        let vcpu = self.live(domid)?.vcpus.get_mut(index(u32_at(call, HEADER).into()));
        let vcpu = vcpu.ok_or(Errno::ESRCH)?;
        let (size, address) = (u64_at(call, HEADER + 16), u64_at(call, HEADER + 24));
        if is_set {
            if index(size) < 16 || index(size) > BYTES {
                return Err(Errno::EINVAL);
            }
            vcpu.ext_state = Some(arena.get(address, index(size))?.into());
            return Ok(0);
        }
        if address == 0 {
            put_u64(call, HEADER + 8, FEATURES);
            put_u64(call, HEADER + 16, BYTES as u64);
            return Ok(0);
        }
        if index(size) != BYTES || u64_at(call, HEADER + 8) != FEATURES {
            return Err(Errno::EINVAL);
        }
        let out = arena.get_mut(address, BYTES)?;
        out.fill(0);
        if let Some(state) = &vcpu.ext_state {
            out[..state.len()].copy_from_slice(state);
        }
        Ok(0)
    }

    fn vcpu_msrs(&mut self, domid: DomId, is_set: bool, call: &mut [u8]) -> Result<u64, Errno> {
        /// As many as Xen would read; none of them is in use here.
        const MOST: u32 = 4;
        self.live(domid)?.vcpus.get(index(u32_at(call, HEADER).into())).ok_or(Errno::ESRCH)?;
        let (count, address) = (u32_at(call, HEADER + 4), u64_at(call, HEADER + 8));
        if is_set {
            let refused = if self.release() >= super::Release::Xen4_20 {
                Errno::ENXIO
            } else {
                Errno::EINVAL
            };
            return if count == 0 { Ok(0) } else { Err(refused) };
        }
        put_u32(call, HEADER + 4, if address == 0 { MOST } else { 0 });
        Ok(0)
    }

    fn share(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        let scheduler = u32_at(call, HEADER);
        let pool = self.live(domid)?.settings.pool;
        let of_pool = self.host.pools.get(&pool).map(|pool| pool.scheduler);
        let of_pool = of_pool.filter(|it| *it as u32 == scheduler).ok_or(Errno::EINVAL)?;
        match of_pool {
            Scheduler::Rtds => self.budgets(domid, call, arena),
            _ => self.weight_and_cap(domid, call),
        }
    }

    fn weight_and_cap(&mut self, domid: DomId, call: &mut [u8]) -> Result<u64, Errno> {
        const PUTINFO: u32 = 0;
        const GETINFO: u32 = 1;
        let settings = &mut self.live(domid)?.settings;
        let before = settings.cap;
        match u32_at(call, HEADER + 4) {
            PUTINFO => {
                // A weight of zero means unchanged.
                if u16_at(call, HEADER + 8) != 0 {
                    settings.weight = u16_at(call, HEADER + 8);
                }
                settings.cap = u16_at(call, HEADER + 10);
            }
            GETINFO => {
                put_u16(call, HEADER + 8, settings.weight);
                put_u16(call, HEADER + 10, settings.cap);
            }
            _ => return Err(Errno::EINVAL),
        }
        let cap = settings.cap;
        if cap != before {
            self.trace.note(self.now, format_args!("xen: domain {domid} has a cap of {cap} %"));
        }
        Ok(0)
    }

    /// Under the real-time scheduler: of a domain, or of single vCPUs.
    fn budgets(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        const GETINFO: u32 = 1;
        const PUTVCPUINFO: u32 = 2;
        const GETVCPUINFO: u32 = 3;
        let cmd = u32_at(call, HEADER + 4);
        let domain = self.live(domid)?;
        if cmd == GETINFO {
            for (at, word) in BUDGET.into_iter().enumerate() {
                put_u32(call, HEADER + 8 + 4 * at, word);
            }
            return Ok(0);
        }
        if !matches!(cmd, PUTVCPUINFO | GETVCPUINFO) {
            return Err(Errno::EINVAL);
        }
        let count = index(u32_at(call, HEADER + 16).into());
        let entries = arena.get_mut(u64_at(call, HEADER + 8), count * 16)?;
        for entry in entries.chunks_exact_mut(16) {
            let vcpu = domain.vcpus.get_mut(index(u32_at(entry, 12).into()));
            let vcpu = vcpu.ok_or(Errno::EINVAL)?;
            if cmd == GETVCPUINFO {
                for (at, word) in vcpu.budget.unwrap_or(BUDGET).into_iter().enumerate() {
                    put_u32(entry, 4 * at, word);
                }
                continue;
            }
            let [period, budget, flags] = [0, 4, 8].map(|at| u32_at(entry, at));
            // In microseconds.
            if budget < 10 || period < budget || flags > 1 {
                return Err(Errno::EINVAL);
            }
            vcpu.budget = Some([period, budget, flags]);
        }
        Ok(0)
    }

    fn allow_frames(&mut self, domid: DomId, call: &[u8]) -> Result<u64, Errno> {
        let (first, frames) = (u64_at(call, HEADER), u64_at(call, HEADER + 8));
        let last = first.checked_add(frames.wrapping_sub(1)).ok_or(Errno::EINVAL)?;
        if last < first || last >> 40 != 0 {
            return Err(Errno::EINVAL);
        }
        let allow = call[HEADER + 16] != 0;
        self.set(domid, |domain| change(&mut domain.settings.frames_allowed, (first, last), allow))
    }

    fn allow_ports(&mut self, domid: DomId, call: &[u8]) -> Result<u64, Errno> {
        /// The serial port that Xen's console is on.
        const CONSOLE: std::ops::RangeInclusive<u64> = 0x3f8..=0x3ff;
        let (first, ports) = (u64::from(u32_at(call, HEADER)), u64::from(u32_at(call, HEADER + 4)));
        let end = first + ports;
        if end > 0x1_0000 {
            return Err(Errno::EINVAL);
        }
        if ports == 0 {
            return Ok(0);
        }
        if first <= *CONSOLE.end() && end > *CONSOLE.start() {
            return Err(Errno::EPERM);
        }
        let (range, allow) = ((first, end - 1), call[HEADER + 8] != 0);
        self.set(domid, |domain| change(&mut domain.settings.ports_allowed, range, allow))
    }

    fn map_machine_frames(&mut self, domid: DomId, call: &[u8]) -> Result<u64, Errno> {
        let (gfn, mfn, frames) =
            (u64_at(call, HEADER), u64_at(call, HEADER + 8), u64_at(call, HEADER + 16));
        let last = mfn.checked_add(frames.wrapping_sub(1)).ok_or(Errno::EINVAL)?;
        if last < mfn || gfn.checked_add(frames).is_none() {
            return Err(Errno::EINVAL);
        }
        let allowed = &self.live(domid)?.settings.frames_allowed;
        let covered = allowed.iter().any(|(from, to)| *from <= mfn && last <= *to);
        if covered { Ok(0) } else { Err(Errno::EPERM) }
    }

    fn map_machine_ports(&mut self, domid: DomId, call: &[u8]) -> Result<u64, Errno> {
        let (guest, machine, ports) =
            (u32_at(call, HEADER), u32_at(call, HEADER + 4), u32_at(call, HEADER + 8));
        let beyond = |first: u32| u64::from(first) + u64::from(ports) > 0x1_0000;
        if ports == 0 || beyond(guest) || beyond(machine) {
            return Err(Errno::EINVAL);
        }
        let (first, last) = (u64::from(machine), u64::from(machine + ports - 1));
        let domain = self.live(domid)?;
        if !domain.is_translated() {
            return Err(Errno::EOPNOTSUPP);
        }
        let allowed = &domain.settings.ports_allowed;
        let covered = allowed.iter().any(|(from, to)| *from <= first && last <= *to);
        if covered { Ok(0) } else { Err(Errno::EPERM) }
    }

    /// A device model holds a reference to its target, whose domid is not free before the model is
    /// gone.
    fn set_target(&mut self, domid: DomId, target: DomId) -> Result<u64, Errno> {
        if domid == target {
            return Err(Errno::EINVAL);
        }
        if !self.live(target)?.is_translated() {
            return Err(Errno::EOPNOTSUPP);
        }
        let settings = &mut self.live(domid)?.settings;
        if settings.target.is_some() {
            return Err(Errno::EINVAL);
        }
        settings.target = Some(target);
        self.live(target)?.references += 1;
        Ok(0)
    }

    fn set_tsc_info(&mut self, caller: DomId, domid: DomId, call: &[u8]) -> Result<u64, Errno> {
        if domid == caller {
            return Err(Errno::EINVAL);
        }
        let now = self.now;
        let domain = self.live(domid)?;
        let mode = u32_at(call, HEADER);
        if mode > 2 {
            return Err(Errno::EINVAL);
        }
        domain.tsc_mode = mode;
        let khz = u32_at(call, HEADER + 4);
        domain.settings.tsc_khz = if khz == 0 { 2_400_000 } else { khz };
        domain.settings.tsc_incarnation = u32_at(call, HEADER + 8);
        domain.settings.tsc_elapsed = Some((u64_at(call, HEADER + 16), now));
        Ok(0)
    }

    fn tsc_info(&mut self, domid: DomId, call: &mut [u8]) -> Result<u64, Errno> {
        let now = self.now;
        let domain = self.live(domid)?;
        let elapsed =
            domain.settings.tsc_elapsed.map_or(0, |(elapsed, at)| elapsed + (now.0 - at.0));
        put_u32(call, HEADER, domain.tsc_mode);
        put_u32(call, HEADER + 4, domain.settings.tsc_khz);
        put_u32(call, HEADER + 8, domain.settings.tsc_incarnation);
        put_u64(call, HEADER + 16, elapsed);
        Ok(0)
    }

    fn log_dirty(
        &mut self,
        caller: DomId,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        const OFF: u32 = 0;
        const ENABLE_LOGDIRTY: u32 = 2;
        const CLEAN: u32 = 11;
        const PEEK: u32 = 12;
        let op = u32_at(call, HEADER);
        let goes_on = self.goes_on;
        let has_shadow = self.config.has_shadow;
        let domain = self.live(domid)?;
        // Another reader must wait until the first is done.
        let is_ours = |look: DirtyScan| goes_on && (look.caller, look.op) == (caller, op);
        if domain.settings.look.map_or(goes_on, |look| !is_ours(look)) {
            return Err(Errno::EBUSY);
        }
        match op {
            OFF => domain.settings.dirty = None,
            ENABLE_LOGDIRTY if !domain.is_translated() && !has_shadow => {
                return Err(Errno::EOPNOTSUPP);
            }
            ENABLE_LOGDIRTY if domain.settings.dirty.is_some() => return Err(Errno::EINVAL),
            ENABLE_LOGDIRTY => domain.settings.dirty = Some(BTreeSet::new()),
            CLEAN | PEEK => {
                let look = domain.settings.look.unwrap_or_else(|| {
                    let dirty = domain.settings.dirty.as_ref().map_or(0, BTreeSet::len);
                    let found = u32::try_from(dirty).unwrap_or(u32::MAX);
                    DirtyScan { caller, op, next: 0, found }
                });
                // CLEAN pauses the domain meanwhile.
                domain.is_held = op == CLEAN;
                let looked = self.read_dirty(domid, look, op == CLEAN, call, arena);
                if looked != Err(ERESTART) {
                    self.let_run(domid)?;
                }
                return looked;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// Writes the bitmap of dirty pages, from the current position.
    fn read_dirty(
        &mut self,
        domid: DomId,
        look: DirtyScan,
        cleans: bool,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        const STEP: u64 = 512;
        // A final read adds frames that Xen itself has mapped to write to; it has none here. What others
        // write through mappings of their own is never logged, but for grants, when they are unmapped.
        let (buffer, asked) = (u64_at(call, HEADER + 16), u64_at(call, HEADER + 24));
        let mut next = look.next;
        let pages = loop {
            let domain = self.live(domid)?;
            let pages = asked.min(domain.pfn_end());
            let end = pages.min(next + STEP);
            let dirty =
                domain.settings.dirty.iter().flatten().filter(|pfn| (next..end).contains(pfn));
            let dirty: BTreeSet<u64> = dirty.copied().collect();
            let bytes = (end.max(next) - next).div_ceil(8);
            let out = arena.get_mut(buffer + next / 8, index(bytes))?;
            out.fill(0);
            for pfn in &dirty {
                out[index((pfn - next) / 8)] |= 1 << (pfn % 8);
            }
            if cleans && let Some(left) = &mut domain.settings.dirty {
                left.retain(|pfn| !(next..end).contains(pfn));
            }
            next = end;
            if next >= pages {
                break pages;
            }
            if self.is_preempted() {
                self.live(domid)?.settings.look = Some(DirtyScan { next, ..look });
                return Err(ERESTART);
            }
        };
        let settings = &mut self.live(domid)?.settings;
        if cleans && let Some(dirty) = &mut settings.dirty {
            dirty.clear();
        }
        put_u64(call, HEADER + 24, pages);
        put_u32(call, HEADER + 32, look.found);
        put_u32(call, HEADER + 36, look.found);
        Ok(0)
    }

    fn send_trigger(&mut self, domid: DomId, trigger: u32, vcpu: u32) -> Result<u64, Errno> {
        let domain = self.live(domid).map_err(|_| Errno::ESRCH)?;
        if vcpu >= domain.vcpus_max {
            return Err(Errno::ESRCH);
        }
        match trigger {
            0 => Ok(0),
            3 | 4 if !domain.is_translated() => Err(Errno::EINVAL),
            3 => {
                domain.settings.power_button = true;
                self.occur(super::Occurrence::Runnable(domid));
                Ok(0)
            }
            4 => Ok(0),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// The read is complete: the domain may run again.
    fn let_run(&mut self, domid: DomId) -> Result<(), Errno> {
        let domain = self.live(domid)?;
        domain.settings.look = None;
        if std::mem::take(&mut domain.is_held) && domain.is_running() {
            self.occur(super::Occurrence::Runnable(domid));
        }
        Ok(())
    }

    fn frame_uses(
        &mut self,
        domid: DomId,
        call: &[u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        const INVALID: u64 = 0xf << 28;
        const PINNED: u64 = 1 << 31;
        let (count, list) = (u64_at(call, HEADER), u64_at(call, HEADER + 8));
        if count > 1024 {
            return Err(Errno::E2BIG);
        }
        for entry in 0..count {
            let frame = u64_at(arena.get(list + entry * 8, 8)?, 0);
            // Xen's own pages are not the domain's memory, wherever it has mapped them.
            let owned = self.mfn_to_use(domid, frame).filter(|mfn| !self.frames.is_xens(*mfn));
            let domain = self.live(domid)?;
            let kind = match owned {
                None => INVALID,
                Some(mfn) => {
                    let level = domain.tables.get(&mfn).map_or(0, |level| u64::from(*level) << 28);
                    level | if domain.pinned.contains(&mfn) { PINNED } else { 0 }
                }
            };
            put_u64(arena.get_mut(list + entry * 8, 8)?, 0, kind);
        }
        Ok(0)
    }

    fn set_virq_handler(&mut self, domid: DomId, virq: u32) -> Result<u64, Errno> {
        /// TIMER, DEBUG, XENOPROF, XENPMU, and all architecture-specific ones.
        const OF_A_VCPU: [u32; 4] = [0, 1, 7, 13];
        if virq >= 16 || OF_A_VCPU.contains(&virq) {
            return Err(Errno::EINVAL);
        }
        self.live(domid)?;
        if self.release() >= super::Release::Xen4_21
            && virq == super::VIRQ_DOM_EXC
            && self.dom_exc_port().is_some()
        {
            return Err(Errno::EBUSY);
        }
        self.virq_handlers.insert(virq, domid);
        Ok(0)
    }

    fn set_vnuma(&mut self, domid: DomId, call: &[u8], arena: &Arena<'_>) -> Result<u64, Errno> {
        let word = |at: usize| u32_at(call, HEADER + at);
        let (nodes, ranges, vcpus) = (word(0), word(4), word(8));
        let vcpus_max = self.live(domid)?.vcpus_max;
        if nodes == 0 || ranges == 0 || vcpus != vcpus_max || word(12) != 0 {
            return Err(Errno::EINVAL);
        }
        let list = u64_at(call, HEADER + 24);
        for vcpu in 0..u64::from(vcpus) {
            if u32_at(arena.get(list + vcpu * 4, 4)?, 0) >= nodes {
                return Err(Errno::EINVAL);
            }
        }
        Ok(0)
    }

    fn soft_reset(&mut self, domid: DomId) -> Result<u64, Errno> {
        const SOFT_RESET: u8 = 5;
        if self.live(domid)?.shutdown != Some(SOFT_RESET) {
            return Err(Errno::EINVAL);
        }
        self.close_all_ports(domid);
        if !self.goes_on && self.is_preempted() {
            return Err(ERESTART);
        }
        let domain = self.live(domid)?;
        domain.shared_info_gfn = None;
        domain.settings.suspend_port = None;
        self.resume(domid)?;
        Ok(0)
    }

    /// `PHYSDEVOP_*`: mapping of physical interrupts.
    pub(super) fn physdev_op(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const MAP_PIRQ: u64 = 13;
        const UNMAP_PIRQ: u64 = 14;
        const TYPE_GSI: u32 = 1;
        if caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        match args[0] {
            MAP_PIRQ => {
                let argument = arena.get(args[1], 40)?;
                let (domid, kind) = (DomId(u16_at(argument, 0)), u32_at(argument, 4));
                let (gsi, wanted) = (u32_at(argument, 8), u32_at(argument, 12).cast_signed());
                let pirqs = &mut self.live(domid)?.settings.pirqs;
                if kind != TYPE_GSI || gsi >= IRQS {
                    return Err(Errno::EINVAL);
                }
                let pirq = u32::try_from(wanted).unwrap_or(gsi);
                if pirq >= IRQS {
                    return Err(Errno::EINVAL);
                }
                pirqs.insert(pirq);
                put_u32(arena.get_mut(args[1], 40)?, 12, pirq);
                Ok(0)
            }
            UNMAP_PIRQ => {
                let argument = arena.get(args[1], 8)?;
                let (domid, pirq) = (DomId(u16_at(argument, 0)), u32_at(argument, 4));
                let was_there = self.live(domid)?.settings.pirqs.remove(&pirq);
                if was_there { Ok(0) } else { Err(Errno::EINVAL) }
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::test_support::{create_with_memory, host};

    fn dirty_pages(xen: &mut SimXen, domid: DomId, op: u32, mode: u32) -> Vec<u64> {
        const ADDRESS: u64 = 0x1000;
        let mut bytes = [0; 8];
        let mut arena = Arena { address: ADDRESS, bytes: &mut bytes };
        let mut call = [0; super::super::hypercall::DOMCTL_BYTES];
        put_u32(&mut call, HEADER, op);
        put_u32(&mut call, HEADER + 4, mode);
        put_u64(&mut call, HEADER + 16, ADDRESS);
        put_u64(&mut call, HEADER + 24, 64);
        xen.log_dirty(DomId::DOM0, domid, &mut call, &mut arena).unwrap();
        (0..64).filter(|pfn| bytes[index(pfn / 8)] & 1 << (pfn % 8) != 0).collect()
    }

    #[test]
    fn a_written_page_is_dirty_until_cleaned() {
        const OFF: u32 = 0;
        const ENABLE: u32 = 2;
        const CLEAN: u32 = 11;
        const PEEK: u32 = 12;
        let mut xen = host();
        let guest = create_with_memory(&mut xen, 16);
        xen.domains.get_mut(&guest).unwrap().flags |= Domain::HVM;
        assert!(xen.guest_write(guest, 3, 0, b"before"));
        assert_eq!(dirty_pages(&mut xen, guest, ENABLE, 0), Vec::<u64>::new());
        assert!(xen.guest_write(guest, 5, 100, b"after") && xen.guest_write(guest, 9, 0, b"x"));
        assert_eq!(dirty_pages(&mut xen, guest, PEEK, 0), [5, 9]);
        assert_eq!(dirty_pages(&mut xen, guest, CLEAN, 0), [5, 9]);
        assert_eq!(dirty_pages(&mut xen, guest, CLEAN, 0), Vec::<u64>::new());
        // What dom0 writes is logged only through a grant, when it is unmapped.
        let mapping = xen.map_foreign(DomId::DOM0, guest, 7).unwrap();
        xen.mapped_page(mapping)[0] = 1;
        xen.unmap(mapping);
        assert!(xen.grant_access(guest, xen::GrantRef(8), DomId::DOM0, 6));
        let mapping = xen.map_grant(DomId::DOM0, guest, xen::GrantRef(8)).unwrap();
        xen.mapped_page(mapping)[0] = 1;
        assert_eq!(dirty_pages(&mut xen, guest, CLEAN, 1), Vec::<u64>::new());
        xen.unmap(mapping);
        assert_eq!(dirty_pages(&mut xen, guest, CLEAN, 1), [6]);
        assert_eq!(dirty_pages(&mut xen, guest, OFF, 0), Vec::<u64>::new());
    }
}
