//! HVM parameters and the save records of translated domains.
//!
//! Sources: `xen/arch/x86/hvm/{hvm,save,mtrr}.c`, `xen/include/public/arch-x86/hvm/save.h`.

use xen::{DomId, Errno};

use super::SimXen;
use super::domctl::HEADER;
use super::hypercall::Arena;
use crate::bytes::{index, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

const PARAMS: u32 = 39;
/// Deprecated parameters, refused.
const DEPRECATED: [u32; 10] = [4, 13, 20, 21, 22, 23, 24, 25, 26, 30];
/// May be changed from zero only: VIRIDIAN, the IOREQ pages, ALTP2M, MCA_CAP.
const SET_ONCE: [u32; 7] = [5, 6, 9, 32, 33, 35, 38];
const VIRIDIAN: u32 = 9;
const VIRIDIAN_BASE: u64 = 1;
const VIRIDIAN_KNOWN: u64 = 0x1fff;
const TIMER_MODE: u32 = 10;
pub(super) const ALTP2M: u32 = 35;
/// Parameters that a domain may set for itself, and that it may read.
const SET_BY_GUESTS: [u32; 8] = [0, 2, 15, 18, 19, 34, 36, 37];
const READ_BY_GUESTS: [u32; 8] = [0, 1, 2, 15, 17, 18, 36, 37];

const CODE_END: u16 = 0;
const CODE_HEADER: u16 = 1;
const CODE_CPU: u16 = 2;
const CODE_MTRR: u16 = 14;
const HEADER_BYTES: usize = 24;
const MTRR_BYTES: usize = 240;
/// `struct hvm_hw_cpu`. Fewer bytes are extended with zeroes.
pub(crate) const CPU_BYTES: usize = 1032;
const MAGIC: u32 = 0x5438_1286;

fn record(out: &mut Vec<u8>, code: u16, instance: u16, body: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&instance.to_le_bytes());
    out.extend_from_slice(&u32::try_from(body.len()).expect("records are short").to_le_bytes());
    out.extend_from_slice(body);
}

impl SimXen {
    /// A guest sets how events are delivered.
    pub(crate) fn set_callback_irq(&mut self, domid: DomId) {
        if let Ok(domain) = self.live(domid)
            && domain.is_translated()
        {
            domain.params.insert(0, 2 << 56 | 0xf3);
        }
    }

    /// Whether a guest's power button was pressed since the last call.
    pub(crate) fn take_power_button(&mut self, domid: DomId) -> bool {
        self.live(domid).is_ok_and(|domain| std::mem::take(&mut domain.settings.power_button))
    }

    pub(super) fn hvm_op(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const SET_PARAM: u64 = 0;
        const GET_PARAM: u64 = 1;
        if !matches!(args[0], SET_PARAM | GET_PARAM) {
            return Err(Errno::ENOSYS);
        }
        let argument = arena.get(args[1], 16)?;
        let (domid, param, value) =
            (DomId(u16_at(argument, 0)), u32_at(argument, 4), u64_at(argument, 8));
        if param >= PARAMS {
            return Err(Errno::EINVAL);
        }
        if caller != DomId::DOM0 && caller != domid {
            return Err(Errno::EPERM);
        }
        let fixed_at_creation = self.config.release >= super::Release::Xen4_19;
        let domain = self.live(domid)?;
        if !domain.is_translated() || DEPRECATED.contains(&param) {
            return Err(Errno::EINVAL);
        }
        let current = domain.param(param);
        let open: &[u32] = if args[0] == GET_PARAM { &READ_BY_GUESTS } else { &SET_BY_GUESTS };
        if caller == domid && !open.contains(&param) {
            return Err(Errno::EPERM);
        }
        if args[0] == GET_PARAM {
            put_u64(arena.get_mut(args[1], 16)?, 8, current);
            return Ok(0);
        }
        if fixed_at_creation && param == ALTP2M {
            return Err(Errno::EEXIST);
        }
        if SET_ONCE.contains(&param) && current != 0 && current != value {
            return Err(Errno::EEXIST);
        }
        let enlightened = value & VIRIDIAN_BASE != 0 && value & !VIRIDIAN_KNOWN == 0;
        if param == VIRIDIAN && !enlightened {
            return Err(Errno::EINVAL);
        }
        if param == TIMER_MODE && value > 3 {
            return Err(Errno::EINVAL);
        }
        domain.params.insert(param, value);
        Ok(0)
    }

    pub(super) fn get_hvm_context(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<(), Errno> {
        let (capacity, address) = (u32_at(call, HEADER), u64_at(call, HEADER + 8));
        let records = self.hvm_records(domid)?;
        let size = u32::try_from(records.len()).map_err(|_| Errno::EINVAL)?;
        put_u32(call, HEADER, size);
        if address == 0 {
            return Ok(());
        }
        if capacity < size {
            return Err(Errno::ENOSPC);
        }
        arena.get_mut(address, records.len())?.copy_from_slice(&records);
        Ok(())
    }

    /// The records of a translated domain. An offline vCPU has no CPU record.
    fn hvm_records(&mut self, domid: DomId) -> Result<Vec<u8>, Errno> {
        let domain = self.live(domid)?;
        if !domain.is_translated() || domain.dying != super::Dying::Alive {
            return Err(Errno::EINVAL);
        }
        let mut header = [0; HEADER_BYTES];
        put_u32(&mut header, 0, MAGIC);
        put_u32(&mut header, 4, 2);
        put_u64(&mut header, 8, u64::MAX);
        put_u32(&mut header, 20, 2_400_000);
        let mut out = Vec::new();
        record(&mut out, CODE_HEADER, 0, &header);
        for (instance, vcpu) in (0..).zip(&domain.vcpus) {
            if let (true, Some(cpu)) = (vcpu.online, &vcpu.hvm_context) {
                record(&mut out, CODE_CPU, instance, cpu);
            }
        }
        let mut reset = [0; MTRR_BYTES];
        put_u64(&mut reset, 0, 0x0007_0406_0007_0406);
        put_u16(&mut reset, 224, 0x508);
        for (instance, vcpu) in (0..).zip(&domain.vcpus) {
            record(&mut out, CODE_MTRR, instance, vcpu.mtrr.as_deref().unwrap_or(&reset));
        }
        record(&mut out, CODE_END, 0, &[]);
        Ok(out)
    }

    /// `gethvmcontext_partial`: one record, without its header.
    pub(super) fn hvm_record(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<u64, Errno> {
        /// The highest record type of x86.
        const CODE_MAX: u32 = 20;
        let (kind, instance) = (u32_at(call, HEADER), u32_at(call, HEADER + 4));
        let (room, address) = (u64_at(call, HEADER + 8), u64_at(call, HEADER + 16));
        let records = self.hvm_records(domid)?;
        if kind > CODE_MAX {
            return Err(Errno::EINVAL);
        }
        let mut rest = records.as_slice();
        loop {
            let (code, number, body) = next_record(&mut rest)?;
            if code == CODE_END {
                return Err(Errno::ENOENT);
            }
            if u32::from(code) == kind && u32::from(number) == instance {
                put_u64(call, HEADER + 8, body.len() as u64);
                if address != 0 {
                    if index(room) < body.len() {
                        return Err(Errno::ENOSPC);
                    }
                    arena.get_mut(address, body.len())?.copy_from_slice(body);
                }
                return Ok(0);
            }
        }
    }

    /// Loads records: all vCPUs go offline first, those with a CPU record come online.
    pub(super) fn set_hvm_context(
        &mut self,
        domid: DomId,
        bytes: u32,
        address: u64,
        arena: &Arena<'_>,
    ) -> Result<(), Errno> {
        if !self.live(domid)?.is_translated() {
            return Err(Errno::EINVAL);
        }
        let records = arena.get(address, index(bytes.into()))?.to_vec();
        let mut rest = records.as_slice();
        let (code, _, header) = next_record(&mut rest)?;
        if code != CODE_HEADER || header.len() != HEADER_BYTES || u32_at(header, 0) != MAGIC {
            return Err(Errno::EINVAL);
        }
        for vcpu in &mut self.live(domid)?.vcpus {
            vcpu.online = false;
        }
        loop {
            let (code, instance, body) = next_record(&mut rest)?;
            if code == CODE_END {
                return Ok(());
            }
            let vcpu = self.live(domid)?.vcpus.get_mut(usize::from(instance));
            let vcpu = vcpu.ok_or(Errno::EINVAL)?;
            match code {
                CODE_CPU => {
                    let cpu = checked_cpu(body)?;
                    vcpu.hvm_context = Some(cpu);
                    vcpu.online = true;
                }
                CODE_MTRR if body.len() == MTRR_BYTES => vcpu.mtrr = Some(body.into()),
                _ => return Err(Errno::EINVAL),
            }
        }
    }
}

fn next_record<'a>(rest: &mut &'a [u8]) -> Result<(u16, u16, &'a [u8]), Errno> {
    let (head, tail) = rest.split_at_checked(8).ok_or(Errno::ENODATA)?;
    let (code, instance) = (u16_at(head, 0), u16_at(head, 2));
    let bytes = index(u32_at(head, 4).into());
    let (body, tail) = tail.split_at_checked(bytes).ok_or(Errno::EINVAL)?;
    *rest = tail;
    Ok((code, instance, body))
}

/// The checks of `hvm_load_cpu_ctxt` on control registers.
fn checked_cpu(body: &[u8]) -> Result<Box<[u8]>, Errno> {
    const CR0_ET: u64 = 1 << 4;
    const CR0_PE: u64 = 1;
    const CR0_PG: u64 = 1 << 31;
    if body.len() > CPU_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut cpu = vec![0; CPU_BYTES];
    cpu[..body.len()].copy_from_slice(body);
    let (cr0, flags) = (u64_at(&cpu, 656), u32_at(&cpu, 1024));
    let sane = cr0 & CR0_ET != 0
        && cr0 & (CR0_PE | CR0_PG) != CR0_PG
        && flags & !1 == 0
        && u32_at(&cpu, 1028) == 0;
    if sane { Ok(cpu.into()) } else { Err(Errno::EINVAL) }
}
