//! `XEN_DOMCTL_createdomain`: checks of a new domain's configuration.
//!
//! Sources: `sanitise_domain_config` and `arch_sanitise_domain_config` of the releases, `domctl.h`.

use xen::{DomId, Errno, Uuid};

use super::domain::{Creation, Domain};
use super::{Release, SimXen};
use crate::bytes::{u16_at, u32_at};

/// `XEN_DOMCTL_CDF_*` that a host without IOMMU, virtual PMU and TXT grants.
const FLAGS_KNOWN: u32 = 1 | 2 | 8 | 16 | 64;
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
        let vcpus_limit = if hvm { VCPUS_HVM_MAX } else { VCPUS_PV_MAX };
        let sane = flags & !FLAGS_KNOWN == 0
            && u32_at(payload, 24) == 0
            && (1..=vcpus_limit).contains(&vcpus_max)
            && paging_ok
            && emulation_ok
            && (1..=2).contains(&grant_version)
            && !(altp2m && u16_at(payload, 48) != 0)
            && u32_at(payload, 48 + tail) == 0
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
        })
    }
}
