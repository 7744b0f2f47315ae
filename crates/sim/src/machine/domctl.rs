//! `domctl`: the control domain's calls on one domain.
//!
//! The interface version is checked first, then the caller's privilege, then the domain. Source:
//! `xen/common/domctl.c`, `xen/arch/x86/domctl.c`.

use xen::{DomId, Errno};

use super::domain::{Preemptible, Vcpu};
use super::hypercall::{Arena, DOMCTL_BYTES, ERESTART};
use super::listing::domain_info;
use super::{Dying, Release, SimXen};
use crate::bytes::{index, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

const CREATEDOMAIN: u32 = 1;
const GETDOMAININFO: u32 = 5;
const GET_DOMAIN_STATE: u32 = 90;
const DOMID_INVALID: DomId = DomId(0x7FF4);

pub(super) const HEADER: usize = 16;
pub(super) const VCPU_CONTEXT_BYTES: usize = 5168;
/// `VGCF_online` in a PV vCPU's context.
pub(super) const VGCF_ONLINE: u64 = 1 << 5;

impl SimXen {
    pub(super) fn domctl(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        address: u64,
    ) -> Result<u64, Errno> {
        let mut call = [0; DOMCTL_BYTES];
        call.copy_from_slice(arena.get(address, DOMCTL_BYTES)?);
        let (cmd, version) = (u32_at(&call, 0), u32_at(&call, 4));
        let domid = DomId(u16_at(&call, 8));
        let stable = cmd == GET_DOMAIN_STATE && self.config.release >= Release::Xen4_21;
        let expected = if stable { 0 } else { self.config.release.domctl() };
        if version != expected {
            return Err(Errno::EACCES);
        }
        if caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        let answer = match cmd {
            CREATEDOMAIN => {
                let created = self.create_domain(domid, &call[HEADER..])?;
                put_u16(&mut call, 8, created.0);
                Ok(0)
            }
            GETDOMAININFO => {
                let found = self.find_for_info(domid)?;
                if self.hidden.contains(&found) {
                    return Err(Errno::EACCES);
                }
                put_u16(&mut call, 8, found.0);
                let info = domain_info(&self.domains[&found]);
                call[HEADER..HEADER + info.len()].copy_from_slice(&info);
                Ok(0)
            }
            37 | 45 | 47 => self.assignment(domid, cmd, &call),
            GET_DOMAIN_STATE => self.get_domain_state(caller, domid, &mut call).map(|()| 0),
            _ => {
                self.live(domid)?;
                self.domctl_on(caller, domid, cmd, &mut call, arena)
            }
        };
        arena.get_mut(address, DOMCTL_BYTES)?.copy_from_slice(&call);
        answer
    }

    /// Calls on an existing domain.
    fn domctl_on(
        &mut self,
        caller: DomId,
        domid: DomId,
        cmd: u32,
        call: &mut [u8; DOMCTL_BYTES],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        // Calls that would stop the caller itself.
        if domid == caller && matches!(cmd, 2 | 3 | 12 | 13 | 15 | 18 | 27 | 33 | 34 | 55 | 60) {
            return Err(Errno::EINVAL);
        }
        if let Some(answer) = self.settings_call(caller, domid, cmd, call, arena) {
            return answer;
        }
        let payload = &call[HEADER..];
        match cmd {
            2 => self.tear_down(domid, Preemptible::Yes)?,
            3 => self.pause(domid)?,
            4 => self.unpause(domid)?,
            // Xen counts a domain's pages in 32 bits.
            11 => self.live(domid)?.pages_max = (u64_at(payload, 0) >> 2).min(u32::MAX.into()),
            12 => self.set_vcpu_context(domid, u32_at(payload, 0), u64_at(payload, 8), arena)?,
            14 => self.vcpu_info(domid, call)?,
            15 => self.set_vcpus(domid, u32_at(payload, 0))?,
            17 => {
                let mut handle = [0; 16];
                handle.copy_from_slice(&payload[..16]);
                self.live(domid)?.handle = xen::Uuid(handle);
            }
            22 => self.hypercall_init(domid, u64_at(payload, 0))?,
            27 => self.resume(domid)?,
            33 => self.get_hvm_context(domid, call, arena)?,
            34 => self.set_hvm_context(domid, u32_at(payload, 0), u64_at(payload, 8), arena)?,
            35 => match (self.live(domid)?.is_translated(), u32_at(payload, 0)) {
                (true, _) => return Err(Errno::EOPNOTSUPP),
                (false, 64) => {}
                (false, _) => return Err(Errno::EINVAL),
            },
            75 => self.monitor_domain(domid, call)?,
            78 => self.allocation(domid, call)?,
            82 => self.get_cpu_policy(domid, call, arena)?,
            83 => self.set_cpu_policy(domid, call, arena)?,
            85 => {
                let domain = self.live(domid)?;
                if !domain.is_translated() {
                    return Err(Errno::EOPNOTSUPP);
                }
                let bytes = domain.paging_pool_bytes;
                put_u64(call, HEADER, bytes);
            }
            86 => self.set_paging_pool(domid, u64_at(payload, 0))?,
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }

    fn set_vcpus(&mut self, domid: DomId, vcpus: u32) -> Result<(), Errno> {
        let domain = self.live(domid)?;
        if vcpus != domain.vcpus_max {
            return Err(Errno::EINVAL);
        }
        domain.vcpus.resize_with(index(vcpus.into()), Vcpu::default);
        Ok(())
    }

    fn vcpu(&mut self, domid: DomId, vcpu: u32) -> Result<&mut Vcpu, Errno> {
        self.live(domid)?.vcpus.get_mut(index(vcpu.into())).ok_or(Errno::EINVAL)
    }

    fn set_vcpu_context(
        &mut self,
        domid: DomId,
        vcpu: u32,
        address: u64,
        arena: &Arena<'_>,
    ) -> Result<(), Errno> {
        self.vcpu(domid, vcpu)?;
        if address == 0 {
            *self.vcpu(domid, vcpu)? = Vcpu::default();
            return Ok(());
        }
        let context: Box<[u8]> = arena.get(address, VCPU_CONTEXT_BYTES)?.into();
        let online = u64_at(&context, 512) & VGCF_ONLINE != 0;
        if !self.live(domid)?.is_translated() {
            // cr3 must be a valid page table; Xen validates it if it is not pinned yet.
            let cr3 = u64_at(&context, 5008);
            if cr3 & 0xfff != 0 {
                return Err(Errno::EINVAL);
            }
            self.check_base_table(domid, cr3 >> xen::PAGE_SHIFT)?;
        }
        let vcpu = self.vcpu(domid, vcpu)?;
        vcpu.online = online;
        vcpu.context = Some(context);
        Ok(())
    }

    fn vcpu_info(&mut self, domid: DomId, call: &mut [u8]) -> Result<(), Errno> {
        let wanted = u32_at(call, HEADER);
        let domain = self.live(domid)?;
        if wanted >= domain.vcpus_max {
            return Err(Errno::EINVAL);
        }
        let running = domain.is_running();
        let vcpu = domain.vcpus.get(index(wanted.into())).ok_or(Errno::ESRCH)?;
        call[HEADER + 4] = u8::from(vcpu.online);
        call[HEADER + 5] = u8::from(vcpu.blocked);
        call[HEADER + 6] = u8::from(vcpu.running && running);
        put_u64(call, HEADER + 8, vcpu.cpu_time_ns);
        put_u32(call, HEADER + 16, wanted % self.config.cpus);
        Ok(())
    }

    /// Fills a hypercall page with its 128 stubs of 32 bytes.
    fn hypercall_init(&mut self, domid: DomId, gmfn: u64) -> Result<(), Errno> {
        let mfn = self.mfn_of_gfn(domid, gmfn).ok_or(Errno::EINVAL)?;
        if self.is_table(domid, mfn) {
            return Err(Errno::EPERM);
        }
        let page = self.frames.page_mut(mfn);
        page.fill(0xcc);
        for (number, stub) in (0_u32..).zip(page.chunks_exact_mut(32)) {
            // mov $number, %eax; syscall; ret.
            stub[0] = 0xb8;
            stub[1..5].copy_from_slice(&number.to_le_bytes());
            stub[5..8].copy_from_slice(&[0x0f, 0x05, 0xc3]);
        }
        Ok(())
    }

    /// Grows or shrinks the pool in steps, and may be preempted with an intermediate size.
    fn set_paging_pool(&mut self, domid: DomId, bytes: u64) -> Result<(), Errno> {
        const STEP_PAGES: u64 = 64;
        let free = self.frames.pages_free().saturating_sub(self.pages_claimed);
        let domain = self.live(domid)?;
        if !domain.is_translated() {
            return Err(Errno::EOPNOTSUPP);
        }
        if !bytes.is_multiple_of(xen::PAGE_BYTES as u64) {
            return Err(Errno::EINVAL);
        }
        let wanted = bytes >> xen::PAGE_SHIFT;
        if wanted < domain.paging_tables.len() as u64 || wanted > free {
            return Err(Errno::ENOMEM);
        }
        loop {
            let domain = self.live(domid)?;
            let now = domain.paging_pool_bytes >> xen::PAGE_SHIFT;
            let next = wanted.clamp(now.saturating_sub(STEP_PAGES), now + STEP_PAGES);
            domain.paging_pool_bytes = next << xen::PAGE_SHIFT;
            if next == wanted {
                return Ok(());
            }
            if self.is_preempted() {
                return Err(ERESTART);
            }
        }
    }

    /// The domain that getdomaininfo returns.
    fn find_for_info(&self, asked: DomId) -> Result<DomId, Errno> {
        if self.domains.contains_key(&asked) {
            return Ok(asked);
        }
        if self.config.release > Release::Xen4_17 {
            return Err(Errno::ESRCH);
        }
        if !asked.is_ordinary() {
            return Err(Errno::EINVAL);
        }
        self.domains.range(asked..).next().map(|(domid, _)| *domid).ok_or(Errno::ESRCH)
    }

    /// `XEN_DOMCTL_get_domain_state`: of one domain, or of the next one that changed.
    fn get_domain_state(
        &mut self,
        caller: DomId,
        asked: DomId,
        call: &mut [u8],
    ) -> Result<(), Errno> {
        const EXIST: u16 = 1;
        const SHUTDOWN: u16 = 2;
        const DYING: u16 = 4;
        const DEAD: u16 = 8;
        let domid = if asked == DOMID_INVALID {
            if self.dom_exc_port().is_none_or(|(owner, _)| owner != caller) {
                return Err(Errno::EACCES);
            }
            self.changed.pop_first().ok_or(Errno::ENOENT)?
        } else {
            asked
        };
        let (mut state, mut unique_id) = (0, 0);
        if let Some(domain) = self.domains.get(&domid) {
            state = EXIST;
            if domain.shutdown.is_some() {
                state |= SHUTDOWN;
            }
            if domain.dying != Dying::Alive {
                state |= DYING;
            }
            if domain.dying == Dying::Dead {
                state |= DEAD;
            }
            unique_id = domain.unique_id;
        } else if asked != DOMID_INVALID {
            return Err(Errno::ESRCH);
        }
        put_u16(call, 8, domid.0);
        put_u16(call, HEADER, state);
        put_u16(call, HEADER + 2, u16::from(domid == DomId::DOM0) * 3);
        put_u64(call, HEADER + 8, unique_id);
        Ok(())
    }
}
