//! `sysctl`: the machine's console, CPUs, nodes, pools, heap and features.
//!
//! Source: `xen/common/sysctl.c`, `xen/arch/x86/sysctl.c`, `xen/common/sched/`.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, Errno, Scheduler};

use super::SimXen;
use super::hypercall::Arena;
use super::settings::put_bitmap;
use crate::bytes::{index, put, put_u32, put_u64, u32_at, u64_at};

pub(super) const HEADER: usize = 8;
/// Boot messages.
const CONSOLE: &[u8] = b"(XEN) a simulated machine\n(XEN) *** LOADING DOMAIN 0 ***\n";
/// CPU features, in 4.17's number of words.
const FEATURES: [u32; 20] = [
    0x1fc9_cbf5,
    0xf6d8_3203,
    0x2191_abfd,
    0x121,
    0xf,
    0x2394_0000,
    0,
    0x100,
    0,
    0x1800_0000,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
];

/// CPUs that are scheduled together.
#[derive(Debug)]
pub(super) struct Pool {
    cpus: BTreeSet<u32>,
    pub(super) scheduler: Scheduler,
    timeslice_ms: u32,
    ratelimit_us: u32,
    migration_delay_us: u32,
}

impl Pool {
    fn new(scheduler: Scheduler, cpus: BTreeSet<u32>) -> Self {
        Self { cpus, scheduler, timeslice_ms: 30, ratelimit_us: 1000, migration_delay_us: 0 }
    }
}

/// Settings of the machine as a whole.
#[derive(Debug)]
pub(super) struct HostSettings {
    pub(super) pools: BTreeMap<u32, Pool>,
    /// Bytes of the console that a reader has removed.
    console_cleared: usize,
}

/// Stands for any free number.
const ANY: u32 = u32::MAX;

impl HostSettings {
    pub(super) fn new(cpus: u32, scheduler: Scheduler) -> Self {
        let pools = BTreeMap::from([(0, Pool::new(scheduler, (0..cpus).collect()))]);
        Self { pools, console_cleared: 0 }
    }
}

impl SimXen {
    /// The sysctls of this file; `None` for any other.
    pub(super) fn host_call(
        &mut self,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Option<Result<(), Errno>> {
        Some(match u32_at(call, 0) {
            1 => read_console(&mut self.host.console_cleared, call, arena),
            7 => {
                let keys = u32_at(call, HEADER + 8);
                arena.get(u64_at(call, HEADER), index(keys.into())).map(drop)
            }
            8 => self.cpu_idle(call, arena),
            9 => {
                let width = u32_at(call, HEADER + 4);
                // All memory of the machine is above 4 GiB.
                let pages = if (1..=32).contains(&width) { 0 } else { self.frames.pages_free() };
                put_u64(call, HEADER + 16, pages << xen::PAGE_SHIFT);
                Ok(())
            }
            // The hypervisor manages neither idle states nor frequencies here.
            10 | 12 => Err(Errno::ENODEV),
            16 => self.cpu_places(call, arena),
            17 => self.numa(call, arena),
            18 => self.cpupool(call, arena),
            19 => self.tune(call),
            21 => self.monitoring(call),
            22 => pci_nodes(call, arena),
            23 => self.allocation_info(call),
            26 => features(call, arena),
            29 => host_policy(call, arena),
            _ => return None,
        })
    }

    fn cpu_idle(&self, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let cpus = self.config.cpus.min(u32_at(call, HEADER));
        let list = u64_at(call, HEADER + 8);
        for cpu in 0..cpus {
            put_u64(arena.get_mut(list + u64::from(cpu) * 8, 8)?, 0, self.now.0 / 2);
        }
        put_u32(call, HEADER + 16, cpus);
        Ok(())
    }

    fn cpu_places(&self, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let (room, list) = (u32_at(call, HEADER), u64_at(call, HEADER + 8));
        let cpus = self.config.cpus;
        if list != 0 {
            for cpu in 0..cpus.min(room) {
                let place = arena.get_mut(list + u64::from(cpu) * 12, 12)?;
                place.fill(0);
                put_u32(place, 0, cpu);
                put_u32(place, 8, cpu * self.config.nodes / cpus);
            }
        }
        put_u32(call, HEADER, cpus);
        Ok(())
    }

    fn numa(&self, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let (room, memory, distances) =
            (u32_at(call, HEADER), u64_at(call, HEADER + 8), u64_at(call, HEADER + 16));
        let nodes = self.config.nodes;
        let part = |pages: u64| (pages << xen::PAGE_SHIFT) / u64::from(nodes);
        for at in (0..u64::from(nodes.min(room)) * 16).step_by(16).filter(|_| memory != 0) {
            let node = arena.get_mut(memory + at, 16)?;
            put_u64(node, 0, part(self.frames.pages_total()));
            put_u64(node, 8, part(self.frames.pages_free()));
        }
        if nodes <= room && distances != 0 {
            for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
                let at = u64::from(from * nodes + to) * 4;
                put_u32(arena.get_mut(distances + at, 4)?, 0, if from == to { 10 } else { 21 });
            }
        }
        put_u32(call, HEADER, nodes);
        Ok(())
    }

    fn cpupool(&mut self, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let word = |at: usize| u32_at(call, HEADER + at);
        let (op, id, scheduler, domid, cpu) = (word(0), word(4), word(8), word(12), word(16));
        match op {
            1 => {
                let number = self.create_pool(id, scheduler)?;
                put_u32(call, HEADER + 4, number);
                Ok(())
            }
            2 => self.destroy_pool(id),
            3 => self.pool_info(id, call, arena),
            4 => self.add_cpu(id, cpu),
            5 => self.remove_cpu(id, cpu),
            6 => self.move_domain(id, domid),
            7 => put_bitmap(arena, call, HEADER + 24, &self.free_cpus()),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn free_cpus(&self) -> BTreeSet<u32> {
        let taken: BTreeSet<u32> =
            self.host.pools.values().flat_map(|pool| &pool.cpus).copied().collect();
        (0..self.config.cpus).filter(|cpu| !taken.contains(cpu)).collect()
    }

    fn domains_in(&self, pool: u32) -> usize {
        self.domains.values().filter(|domain| domain.settings.pool == pool).count()
    }

    /// The number of the new pool.
    fn create_pool(&mut self, id: u32, scheduler: u32) -> Result<u32, Errno> {
        let number = if id == ANY {
            (0..).find(|number| !self.host.pools.contains_key(number)).unwrap_or_default()
        } else {
            id
        };
        if self.host.pools.contains_key(&number) {
            return Err(Errno::EEXIST);
        }
        // The others are not built in.
        let built_in = [Scheduler::Credit, Scheduler::Credit2, Scheduler::Rtds];
        let known = Scheduler::from_id(scheduler).filter(|it| built_in.contains(it));
        let pool = Pool::new(known.ok_or(Errno::EINVAL)?, BTreeSet::new());
        self.host.pools.insert(number, pool);
        Ok(number)
    }

    fn destroy_pool(&mut self, id: u32) -> Result<(), Errno> {
        let pool = self.host.pools.get(&id).ok_or(Errno::ENOENT)?;
        if !pool.cpus.is_empty() || self.domains_in(id) > 0 {
            return Err(Errno::EBUSY);
        }
        self.host.pools.remove(&id);
        Ok(())
    }

    /// The first pool from `id` on.
    fn pool_info(&self, id: u32, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let (id, pool) = self.host.pools.range(id..).next().ok_or(Errno::ENOENT)?;
        put_u32(call, HEADER + 4, *id);
        put_u32(call, HEADER + 8, pool.scheduler as u32);
        put_u32(call, HEADER + 20, u32::try_from(self.domains_in(*id)).unwrap_or(u32::MAX));
        put_bitmap(arena, call, HEADER + 24, &pool.cpus)
    }

    fn add_cpu(&mut self, id: u32, cpu: u32) -> Result<(), Errno> {
        let (cpus, free) = (self.config.cpus, self.free_cpus());
        let pool = self.host.pools.get_mut(&id).ok_or(Errno::ENOENT)?;
        let cpu = if cpu == ANY { *free.first().ok_or(Errno::ENODEV)? } else { cpu };
        if cpu >= cpus {
            return Err(Errno::EINVAL);
        }
        if !free.contains(&cpu) {
            return Err(Errno::ENODEV);
        }
        pool.cpus.insert(cpu);
        Ok(())
    }

    fn remove_cpu(&mut self, id: u32, cpu: u32) -> Result<(), Errno> {
        let (cpus, domains) = (self.config.cpus, self.domains_in(id));
        let pool = self.host.pools.get_mut(&id).ok_or(Errno::ENOENT)?;
        if cpu >= cpus {
            return Err(Errno::EINVAL);
        }
        if !pool.cpus.contains(&cpu) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if pool.cpus.len() == 1 && domains > 0 {
            return Err(Errno::EBUSY);
        }
        pool.cpus.remove(&cpu);
        Ok(())
    }

    fn move_domain(&mut self, id: u32, domid: u32) -> Result<(), Errno> {
        let domid = u16::try_from(domid).map(DomId).map_err(|_| Errno::ESRCH)?;
        if domid == DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        let domain = self.domains.get_mut(&domid).ok_or(Errno::ESRCH)?;
        let pool = self.host.pools.get(&id).ok_or(Errno::ENOENT)?;
        if pool.cpus.is_empty() {
            return Err(Errno::ENOENT);
        }
        domain.settings.pool = id;
        Ok(())
    }

    fn tune(&mut self, call: &mut [u8]) -> Result<(), Errno> {
        const PUTINFO: u32 = 0;
        let (pool, scheduler, cmd) =
            (u32_at(call, HEADER), u32_at(call, HEADER + 4), u32_at(call, HEADER + 8));
        let pool = self.host.pools.get_mut(&pool).ok_or(Errno::ESRCH)?;
        if scheduler != pool.scheduler as u32 {
            return Err(Errno::EINVAL);
        }
        let word = |at: usize| u32_at(call, HEADER + 16 + 4 * at);
        let is_rate = |us: u32| us == 0 || (100..=500_000).contains(&us);
        match (pool.scheduler, cmd) {
            (Scheduler::Credit, PUTINFO) => {
                let (timeslice_ms, ratelimit_us, delay_us) = (word(0), word(1), word(2));
                let is_slice = (1..=1000).contains(&timeslice_ms);
                let fits = ratelimit_us <= timeslice_ms.saturating_mul(1000);
                if !is_slice || !is_rate(ratelimit_us) || !fits || delay_us > 100_000 {
                    return Err(Errno::EINVAL);
                }
                (pool.timeslice_ms, pool.ratelimit_us) = (timeslice_ms, ratelimit_us);
                pool.migration_delay_us = delay_us;
            }
            (Scheduler::Credit2, PUTINFO) => {
                let ratelimit_us = word(0);
                if !is_rate(ratelimit_us) {
                    return Err(Errno::EINVAL);
                }
                pool.ratelimit_us = ratelimit_us;
            }
            (Scheduler::Credit, _) => {
                put_u32(call, HEADER + 16, pool.timeslice_ms);
                put_u32(call, HEADER + 20, pool.ratelimit_us);
                put_u32(call, HEADER + 24, pool.migration_delay_us);
            }
            (Scheduler::Credit2, _) => put_u32(call, HEADER + 16, pool.ratelimit_us),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

fn read_console(cleared: &mut usize, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
    let (is_incremental, from) = (call[HEADER + 1] != 0, index(u32_at(call, HEADER + 4).into()));
    let (address, room) = (u64_at(call, HEADER + 8), index(u32_at(call, HEADER + 16).into()));
    let from = if is_incremental { from.clamp(*cleared, CONSOLE.len()) } else { *cleared };
    let text = &CONSOLE[from..];
    let text = &text[..text.len().min(room)];
    arena.get_mut(address, text.len())?.copy_from_slice(text);
    let next = from + text.len();
    if call[HEADER] != 0 {
        *cleared = next;
    }
    put_u32(call, HEADER + 4, u32::try_from(next).unwrap_or(u32::MAX));
    put_u32(call, HEADER + 16, u32::try_from(text.len()).unwrap_or(u32::MAX));
    Ok(())
}

/// The hypervisor knows no PCI devices.
fn pci_nodes(call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
    const INVALID_DEVICE: u32 = u32::MAX - 1;
    let (count, nodes) = (u32_at(call, HEADER), u64_at(call, HEADER + 16));
    for device in 0..u64::from(count) {
        put_u32(arena.get_mut(nodes + device * 4, 4)?, 0, INVALID_DEVICE);
    }
    Ok(())
}

fn features(call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
    let words = u32::try_from(FEATURES.len()).unwrap_or(u32::MAX);
    let (kind, room, list) =
        (u32_at(call, HEADER), u32_at(call, HEADER + 4), u64_at(call, HEADER + 8));
    if kind > 5 {
        return Err(Errno::EINVAL);
    }
    if list != 0 {
        if room < words {
            return Err(Errno::ENOBUFS);
        }
        for (word, at) in FEATURES.iter().zip((0_u64..).step_by(4)) {
            put_u32(arena.get_mut(list + at, 4)?, 0, *word);
        }
    }
    put_u32(call, HEADER + 4, words);
    Ok(())
}

fn host_policy(call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
    const LEAF_BYTES: usize = 24;
    const MSRS: u32 = 1;
    /// `MSR_INTEL_PLATFORM_INFO`.
    const PLATFORM_INFO: u32 = 0xce;
    let kind = u32_at(call, HEADER);
    if kind > 5 || u32_at(call, HEADER + 12) != 0 {
        return Err(Errno::EINVAL);
    }
    // Odd kinds are HVM's, except the machine's own.
    let policy = super::policy::default(kind == 3 || kind == 5);
    let leaves = u32::try_from(policy.len()).unwrap_or(u32::MAX);
    let (room, msrs_room) = (u32_at(call, HEADER + 4), u32_at(call, HEADER + 8));
    let (list, msrs) = (u64_at(call, HEADER + 16), u64_at(call, HEADER + 24));
    put_u32(call, HEADER + 4, leaves);
    put_u32(call, HEADER + 8, MSRS);
    if list == 0 && msrs == 0 {
        return Ok(());
    }
    if room < leaves || msrs_room < MSRS {
        return Err(Errno::ENOBUFS);
    }
    let mut bytes = Vec::with_capacity(policy.len() * LEAF_BYTES);
    for ((leaf, subleaf), words) in &policy {
        for word in [leaf, subleaf].into_iter().chain(words) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    put(arena.get_mut(list, bytes.len())?, 0, &bytes);
    let msr = arena.get_mut(msrs, 16)?;
    msr.fill(0);
    put_u32(msr, 0, PLATFORM_INFO);
    Ok(())
}
