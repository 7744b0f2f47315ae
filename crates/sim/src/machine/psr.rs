//! Caches and memory bandwidth that CPUs share.
//!
//! Source: `xen/arch/x86/psr.c`, `xen/arch/x86/platform_hypercall.c`.

use std::collections::BTreeMap;

use xen::{DomId, Errno};

use super::SimXen;
use super::domctl::HEADER;
use super::host::HEADER as SYSCTL_HEADER;
use super::hypercall::Arena;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

/// How many domains can be monitored.
const RMIDS: u32 = 2;
/// Bits in a mask of the L3 cache.
const MASK_BITS: u32 = 11;
const CLASSES_MAX: u32 = 15;
const THROTTLE_MAX: u32 = 90;
/// How a count is to be multiplied.
const FACTOR: u64 = 64;
/// The only one.
const SOCKET: u32 = 0;

/// What the machine remembers.
#[derive(Debug, Default)]
pub(super) struct Rdt {
    rmids: BTreeMap<DomId, u32>,
    /// By the command that reads it.
    shares: BTreeMap<(DomId, u32), u64>,
}

impl SimXen {
    fn check_rdt(&self) -> Result<(), Errno> {
        if self.config.has_rdt { Ok(()) } else { Err(Errno::ENODEV) }
    }

    /// `psr_cmt_op` of the machine.
    pub(super) fn monitoring(&self, call: &mut [u8]) -> Result<(), Errno> {
        self.check_rdt()?;
        let data = match u32_at(call, SYSCTL_HEADER) {
            0 => RMIDS.into(),
            1 => FACTOR,
            2 if u32_at(call, SYSCTL_HEADER + 8) < self.config.cpus => 20_480,
            3 => 1,
            // No memory bandwidth of the own node.
            4 => 0b011,
            _ => return Err(Errno::EINVAL),
        };
        put_u64(call, SYSCTL_HEADER + 8, data);
        Ok(())
    }

    /// `psr_alloc` of the machine. There is no L2 cache to be shared.
    pub(super) fn allocation_info(&self, call: &mut [u8]) -> Result<(), Errno> {
        self.check_rdt()?;
        if u32_at(call, SYSCTL_HEADER + 4) != SOCKET {
            return Err(Errno::ERANGE);
        }
        let limit = match u32_at(call, SYSCTL_HEADER) {
            0 => MASK_BITS,
            2 => THROTTLE_MAX,
            _ => return Err(Errno::ENOENT),
        };
        let is_linear = u32_at(call, SYSCTL_HEADER) == 2;
        for (at, number) in [(8, limit), (12, CLASSES_MAX), (16, is_linear.into())] {
            put_u32(call, SYSCTL_HEADER + at, number);
        }
        Ok(())
    }

    /// `psr_cmt_op` of a domain.
    pub(super) fn monitor_domain(&mut self, domid: DomId, call: &mut [u8]) -> Result<(), Errno> {
        self.check_rdt()?;
        let rmids = &mut self.rdt.rmids;
        match u32_at(call, HEADER) {
            0 => rmids.remove(&domid).map(drop).ok_or(Errno::ENOENT),
            1 if rmids.contains_key(&domid) => Err(Errno::EEXIST),
            1 => {
                let free = (1..=RMIDS).find(|rmid| rmids.values().all(|used| used != rmid));
                rmids.insert(domid, free.ok_or(Errno::EOVERFLOW)?);
                Ok(())
            }
            2 => {
                put_u32(call, HEADER + 4, rmids.get(&domid).copied().unwrap_or_default());
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// `psr_alloc` of a domain.
    pub(super) fn allocation(&mut self, domid: DomId, call: &mut [u8]) -> Result<(), Errno> {
        self.check_rdt()?;
        let (command, value) = (u32_at(call, HEADER), u64_at(call, HEADER + 8));
        if u32_at(call, HEADER + 4) != SOCKET {
            return Err(Errno::ERANGE);
        }
        match command {
            0 if value == 0 || value >> MASK_BITS != 0 => return Err(Errno::EINVAL),
            8 if value > THROTTLE_MAX.into() => return Err(Errno::EINVAL),
            0 | 8 => drop(self.rdt.shares.insert((domid, command + 1), value)),
            1 | 9 => {
                let usual = if command == 1 { (1 << MASK_BITS) - 1 } else { 0 };
                let share = self.rdt.shares.get(&(domid, command)).copied();
                put_u64(call, HEADER + 8, share.unwrap_or(usual));
            }
            2..=5 => return Err(Errno::ENXIO),
            _ => return Err(Errno::ENOENT),
        }
        Ok(())
    }

    /// Counters of a domain: the cache has as many units as the RMID times a thousand, and a unit of bandwidth is
    /// used in each microsecond.
    pub(super) fn platform_op(
        &mut self,
        arena: &mut Arena<'_>,
        address: u64,
    ) -> Result<u64, Errno> {
        const RESOURCE_OP: u32 = 61;
        const ENTRY_BYTES: u16 = 24;
        let op = arena.get(address, 24)?;
        if u32_at(op, 0) != RESOURCE_OP {
            return Err(Errno::ENOSYS);
        }
        let (entries, list) = (u32_at(op, 8), u64_at(op, 16));
        let mut selected = 0;
        for entry in 0..u64::from(entries) {
            let place = list + entry * u64::from(ENTRY_BYTES);
            let entry = arena.get_mut(place, ENTRY_BYTES.into())?;
            match (u32_at(entry, 0), u64_at(entry, 8)) {
                (1, 0xc8d) => selected = u64_at(entry, 16),
                (0, 0xc8e) => {
                    let (rmid, event) = (selected >> 32, selected & 0xff);
                    let count = if event == 1 { rmid * 1000 } else { self.now.0 / 1000 };
                    put_u64(entry, 16, count);
                }
                (0, 0x10) => put_u64(entry, 16, self.now.0),
                _ => return Err(Errno::EPERM),
            }
        }
        Ok(entries.into())
    }
}
