//! `XEN_DOMCTL_createdomain`: checks of a new domain's configuration.
//!
//! Sources: `sanitise_domain_config` and `arch_sanitise_domain_config` of the releases, `domctl.h`.

use xen::{DomId, Errno, Uuid};

use super::domain::{Creation, Domain};
use super::{Release, SimXen};
use crate::bytes::u32_at;

/// `XEN_DOMCTL_CDF_*` that a host without TXT grants.
const FLAGS_KNOWN: u32 = 1 | 2 | 8 | 16 | IOMMU | NESTED | VPMU;
const IOMMU: u32 = 32;
const VPMU: u32 = 128;
/// `XEN_DOMCTL_IOMMU_no_sharept`.
const IOMMU_OWN_TABLES: u32 = 1;
const TRACE_BYTES: std::ops::RangeInclusive<u32> = 1 << 12..=64 << 20;
const ALTP2M_MODE: u32 = 3;
const NESTED: u32 = 64;
const VCPUS_PV_MAX: u32 = 8192;
const VCPUS_HVM_MAX: u32 = 128;
const LAPIC: u32 = 1;
const ALL_BUT_VPCI: u32 = 0x3ff;
const USE_PIRQ: u32 = 1 << 9;
/// The meaning of `-1`.
const GRANT_FRAMES_DEFAULT: u32 = 64;

impl SimXen {
    pub(super) fn create_domain(&mut self, asked: DomId, payload: &[u8]) -> Result<DomId, Errno> {
        let creation = self.check_creation(payload)?;
        let domid = self.choose_domid(asked)?;
        let kind = if creation.flags & Domain::HVM == 0 { "pv" } else { "pvh" };
        self.insert_domain(domid, &creation)?;
        self.spend(25_000);
        self.trace.note(self.now, format_args!("xen: domain {domid} ({kind}) is created"));
        Ok(domid)
    }

    fn check_creation(&self, payload: &[u8]) -> Result<Creation, Errno> {
        let altp2m = self.config.release >= Release::Xen4_19;
        let tail = if altp2m { 4 } else { 0 };
        let mut handle = [0; 16];
        handle.copy_from_slice(&payload[4..20]);
        let flags = u32_at(payload, 20);
        let (hvm, hap) = (flags & Domain::HVM != 0, flags & Domain::HAP != 0);
        let vcpus_max = u32_at(payload, 28);
        let grant_frames = u32_at(payload, 36).cast_signed();
        let grant_version = u32_at(payload, 44);
        let emulation = u32_at(payload, 56 + tail);
        let emulation_ok = match (hvm, emulation) {
            (false, 0) | (true, LAPIC | ALL_BUT_VPCI) => true,
            (true, flags) => {
                self.config.release >= Release::Xen4_19 && flags == ALL_BUT_VPCI & !USE_PIRQ
            }
            (false, _) => false,
        };
        // No shadow paging is built in: a translated domain needs hardware-assisted paging.
        let paging_ok = hvm == hap && (flags & NESTED == 0 || hap);
        let views = if altp2m { u32_at(payload, 48) } else { 0 };
        let vcpus_limit = if hvm { VCPUS_HVM_MAX } else { VCPUS_PV_MAX };
        let sane = flags & !FLAGS_KNOWN == 0
            && self.iommu_ok(flags, u32_at(payload, 24))
            && (flags & VPMU == 0 || self.config.has_vpmu)
            && (1..=vcpus_limit).contains(&vcpus_max)
            && paging_ok
            && emulation_ok
            && (1..=2).contains(&grant_version)
            && self.altp2m_ok(flags, views)
            && self.trace_ok(hvm, u32_at(payload, 48 + tail))
            // Relaxed access to model specific registers.
            && u32_at(payload, 60 + tail) <= 1;
        if !sane {
            return Err(Errno::EINVAL);
        }
        Ok(Creation {
            handle: Uuid(handle),
            flags,
            emulation,
            vcpus_max,
            evtchn_port_max: u32_at(payload, 32),
            grant_frames_max: u32::try_from(grant_frames).unwrap_or(GRANT_FRAMES_DEFAULT),
            altp2m: views & ALTP2M_MODE,
        })
    }

    fn iommu_ok(&self, flags: u32, options: u32) -> bool {
        match flags & IOMMU {
            0 => options == 0,
            _ => self.config.has_iommu && options & !IOMMU_OWN_TABLES == 0,
        }
    }

    fn trace_ok(&self, hvm: bool, bytes: u32) -> bool {
        let is_size = TRACE_BYTES.contains(&bytes) && bytes.is_power_of_two();
        bytes == 0 || (self.config.has_vmtrace && hvm && is_size)
    }

    /// A mode and, from 4.21 on, a number of views in the upper half.
    fn altp2m_ok(&self, flags: u32, views: u32) -> bool {
        let (mode, count) = (views & 0xffff, views >> 16);
        let count_ok = match self.config.release >= Release::Xen4_21 {
            true => (mode == 0) == (count == 0),
            false => count == 0,
        };
        let may_have = flags & Domain::HAP != 0 && flags & NESTED == 0;
        mode & !ALTP2M_MODE == 0 && count_ok && (mode == 0 || may_have)
    }
}
