//! `sysctl`: the machine's size, its scheduler, and the list of all domains.
//!
//! Sources: `xen/common/sysctl.c`, `getdomaininfo()` in `xen/common/domctl.c`.

use xen::{DomId, Errno};

use super::hypercall::{Arena, SYSCTL_BYTES};
use super::{Domain, Dying, SimXen};
use crate::bytes::{index, put, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

const INFO_BYTES: usize = 112;
const HEADER: usize = 8;

impl SimXen {
    pub(super) fn sysctl(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        address: u64,
    ) -> Result<u64, Errno> {
        let mut call = [0; SYSCTL_BYTES];
        call.copy_from_slice(arena.get(address, SYSCTL_BYTES)?);
        if u32_at(&call, 4) != self.config.release.sysctl() {
            return Err(Errno::EACCES);
        }
        if caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        match u32_at(&call, 0) {
            3 => self.phys_info(&mut call[HEADER..]),
            4 => put_u32(&mut call, HEADER, self.config.scheduler as u32),
            6 => self.list(&mut call, arena)?,
            _ => self.host_call(&mut call, arena).unwrap_or(Err(Errno::ENOSYS))?,
        }
        arena.get_mut(address, SYSCTL_BYTES)?.copy_from_slice(&call);
        Ok(0)
    }

    fn phys_info(&self, payload: &mut [u8]) {
        let cpus = self.config.cpus;
        put_u32(payload, 0, 1);
        put_u32(payload, 4, cpus);
        put_u32(payload, 8, cpus);
        put_u32(payload, 12, cpus - 1);
        put_u32(payload, 16, self.config.nodes);
        put_u32(payload, 20, 0);
        put_u32(payload, 24, 2_400_000);
        // hvm, pv, hap, gnttab_v1, gnttab_v2
        let always = 1 | 2 | 8 | 0x100 | 0x200;
        let config = &self.config;
        let capabilities = [
            // directio and iommu_hap_pt_share
            (4 | 0x20, config.has_iommu),
            (0x10, config.has_shadow),
            (0x40, config.has_vmtrace),
            (0x80, config.has_vpmu),
        ];
        let has = capabilities.into_iter().filter(|(_, has)| *has);
        put_u32(payload, 28, has.fold(always, |bits, (bit, _)| bits | bit));
        put_u64(payload, 40, self.frames.pages_total());
        put_u64(payload, 48, self.frames.pages_free());
        put_u64(payload, 56, 0);
        put_u64(payload, 64, self.pages_claimed);
    }

    fn list(&mut self, call: &mut [u8], arena: &mut Arena<'_>) -> Result<(), Errno> {
        let first = DomId(u16_at(call, HEADER));
        let capacity = index(u32_at(call, HEADER + 4).into());
        let buffer = u64_at(call, HEADER + 8);
        let (mut next, mut found) = (first, 0);
        while found < capacity {
            // Others create and destroy domains during the walk, which sees each domain when it
            // reaches it.
            self.unrest(next);
            let Some((domid, domain)) = self.domains.range(next..).next() else { break };
            if self.hidden.contains(domid) {
                next = DomId(domid.0 + 1);
                continue;
            }
            let at = buffer.checked_add((found * INFO_BYTES) as u64).ok_or(Errno::EFAULT)?;
            arena.get_mut(at, INFO_BYTES)?.copy_from_slice(&domain_info(domain));
            next = DomId(domid.0 + 1);
            found += 1;
        }
        self.entries_listed += found as u64;
        self.spend(found as u64 * 400);
        put_u32(call, HEADER + 16, u32::try_from(found).unwrap_or(u32::MAX));
        Ok(())
    }
}

/// `struct xen_domctl_getdomaininfo` of a domain.
pub(super) fn domain_info(domain: &Domain) -> [u8; INFO_BYTES] {
    let mut info = [0; INFO_BYTES];
    let online = domain.vcpus.iter().filter(|vcpu| vcpu.online).count();
    put_u16(&mut info, 0, domain.domid.0);
    put_u32(&mut info, 4, flags(domain));
    put_u64(&mut info, 8, domain.pages);
    put_u64(&mut info, 16, domain.pages_max);
    put_u64(&mut info, 24, domain.pages_claimed);
    let shared_info = if domain.is_translated() {
        // It has no guest frame until it is mapped.
        domain.shared_info_gfn.unwrap_or(u64::MAX)
    } else {
        domain.shared_info
    };
    put_u64(&mut info, 48, shared_info);
    put_u64(&mut info, 56, domain.vcpus.iter().map(|vcpu| vcpu.cpu_time_ns).sum());
    put_u32(&mut info, 64, u32::try_from(online).unwrap_or(u32::MAX));
    let vcpus = u32::try_from(domain.vcpus.len()).unwrap_or(u32::MAX);
    put_u32(&mut info, 68, vcpus.wrapping_sub(1));
    put(&mut info, 76, &domain.handle.0);
    put_u32(&mut info, 92, domain.settings.pool);
    info[96] = if domain.is_translated() { 48 } else { 46 };
    put_u32(&mut info, 104, domain.emulation);
    info
}

fn flags(domain: &Domain) -> u32 {
    const BLOCKED: u32 = 1 << 4;
    const RUNNING: u32 = 1 << 5;
    let online: Vec<_> = domain.vcpus.iter().filter(|vcpu| vcpu.online).collect();
    let mut flags = 0;
    if !online.is_empty() && online.iter().all(|vcpu| vcpu.blocked) {
        flags |= BLOCKED;
    }
    if domain.is_running() && online.iter().any(|vcpu| vcpu.running) {
        flags |= RUNNING;
    }
    let bit = |set: bool, bit: u32| u32::from(set) << bit;
    // The code field is all ones until there is a code.
    let code = domain.shutdown_code.map_or(0xffff, u32::from);
    flags
        | bit(domain.dying == Dying::Dead, 0)
        | bit(domain.is_translated(), 1)
        | bit(domain.shutdown.is_some(), 2)
        | bit(domain.is_paused(), 3)
        | bit(domain.settings.debugged, 6)
        | bit(domain.flags & Domain::XS_DOMAIN != 0, 7)
        | bit(domain.flags & Domain::HAP != 0, 8)
        | code << 16
}
