//! CPU policies: the CPUID leaves and model specific registers that guests may see.
//!
//! Sources: `xen/include/public/sysctl.h`, `domctl.h`, `arch-x86/xen.h` (`xen_cpuid_leaf_t`,
//! `xen_msr_entry_t`).

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::abi::{Layout, domctl, sysctl, u32_at, u64_at};
use crate::{DomId, DomainKind, Errno, Hypervisor, Msr, Xen};

const LEAF_BYTES: usize = 24;
const MSR_BYTES: usize = 16;

/// One of the machine's feature sets or policies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum CpuPolicyKind {
    Raw = 0,
    Host = 1,
    /// As a feature set: PV default.
    PvMax = 2,
    HvmMax = 3,
    /// As a feature set: PV maximum.
    PvDefault = 4,
    HvmDefault = 5,
}

/// CPUID leaves (leaf, subleaf, eax, ebx, ecx, edx) and model specific registers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CpuPolicy {
    pub leaves: Vec<[u32; 6]>,
    pub msrs: Vec<Msr>,
}

impl CpuPolicy {
    fn decode(leaves: &[u8], msrs: &[u8]) -> Self {
        let leaf = |bytes: &[u8]| core::array::from_fn(|i| u32_at(bytes, i * 4));
        let msr = |bytes: &[u8]| Msr { index: u32_at(bytes, 0), value: u64_at(bytes, 8) };
        Self {
            leaves: leaves.chunks_exact(LEAF_BYTES).map(leaf).collect(),
            msrs: msrs.chunks_exact(MSR_BYTES).map(msr).collect(),
        }
    }
}

/// What a new domain's policy is made from. Read once: it does not change while Xen runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuFacts {
    /// The default policy of this kind of domain.
    pub default: CpuPolicy,
    /// The host's feature words, in the order of `cpufeatureset.h`.
    pub host_features: Vec<u32>,
}

impl<H: Hypervisor> Xen<H> {
    /// A feature set: a bit for each CPU feature, in words. Two hypercalls; the first queries the
    /// size.
    ///
    /// # Errors
    /// EOPNOTSUPP for a kind of domain that is not built in, EINVAL for one that this Xen does not
    /// report.
    pub fn cpu_features(&mut self, kind: CpuPolicyKind) -> Result<Vec<u32>, Errno> {
        let ask = Layout::<16>::new().u32(0, kind as u32).done();
        self.sysctl("get_cpu_featureset", sysctl::GET_CPU_FEATURESET, &ask)?;
        let words = u32_at(self.sysctl_payload(), 4);
        let address = self.put_data(&vec![0; words as usize * 4])?;
        let fill = Layout::<16>::new().u32(0, kind as u32).u32(4, words).u64(8, address).done();
        self.sysctl("get_cpu_featureset", sysctl::GET_CPU_FEATURESET, &fill)?;
        let found = u32_at(self.sysctl_payload(), 4).min(words) as usize;
        let (_, area) = self.data();
        Ok(area[..found * 4].chunks_exact(4).map(|word| u32_at(word, 0)).collect())
    }

    /// A policy of the machine. Two hypercalls; the first queries the sizes.
    ///
    /// # Errors
    /// EOPNOTSUPP for a kind of domain that is not built in, E2BIG if it does not fit into the arena.
    pub fn host_cpu_policy(&mut self, kind: CpuPolicyKind) -> Result<CpuPolicy, Errno> {
        let ask = Layout::<32>::new().u32(0, kind as u32).done();
        self.sysctl("get_cpu_policy_host", sysctl::GET_CPU_POLICY, &ask)?;
        let payload = self.sysctl_payload();
        let (leaves, msrs) = (u32_at(payload, 4), u32_at(payload, 8));
        let msrs_at = leaves as usize * LEAF_BYTES;
        let address = self.put_data(&vec![0; msrs_at + msrs as usize * MSR_BYTES])?;
        let fill = Layout::<32>::new()
            .u32(0, kind as u32)
            .u32(4, leaves)
            .u32(8, msrs)
            .u64(16, address)
            .u64(24, address + msrs_at as u64)
            .done();
        self.sysctl("get_cpu_policy_host", sysctl::GET_CPU_POLICY, &fill)?;
        let payload = self.sysctl_payload();
        let leaves = u32_at(payload, 4).min(leaves) as usize;
        let msrs = u32_at(payload, 8).min(msrs) as usize;
        let (_, area) = self.data();
        Ok(CpuPolicy::decode(&area[..leaves * LEAF_BYTES], &area[msrs_at..][..msrs * MSR_BYTES]))
    }

    /// What the policy of a new domain of this kind is made from; read once, then cached.
    ///
    /// # Errors
    /// As [`Xen::host_cpu_policy`].
    pub fn cpu_facts(&mut self, kind: DomainKind) -> Result<Arc<CpuFacts>, Errno> {
        let is_pv = kind == DomainKind::Pv;
        if let Some(facts) = &self.cpu_facts[usize::from(is_pv)] {
            return Ok(Arc::clone(facts));
        }
        let default = if is_pv { CpuPolicyKind::PvDefault } else { CpuPolicyKind::HvmDefault };
        let facts = Arc::new(CpuFacts {
            default: self.host_cpu_policy(default)?,
            host_features: self.cpu_features(CpuPolicyKind::Host)?,
        });
        self.cpu_facts[usize::from(is_pv)] = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// Reads a domain's policy.
    ///
    /// # Errors
    /// ESRCH, or E2BIG if the policy does not fit into the arena.
    pub fn cpu_policy(&mut self, domid: DomId) -> Result<CpuPolicy, Errno> {
        const MSRS: usize = 16;
        let msrs_at = Self::DATA_BYTES - MSRS * MSR_BYTES;
        let leaves = msrs_at / LEAF_BYTES;
        let (address, _) = self.data();
        let as_u32 = |n: usize| u32::try_from(n).map_err(|_| Errno::E2BIG);
        let payload = Layout::<40>::new()
            .u32(0, as_u32(leaves)?)
            .u32(4, as_u32(MSRS)?)
            .u64(8, address)
            .u64(16, address + msrs_at as u64)
            .done();
        self.domctl("get_cpu_policy", domctl::GET_CPU_POLICY, domid, &payload)?;
        let payload = self.domctl_payload();
        let (leaves, msrs) = (u32_at(payload, 0) as usize, u32_at(payload, 4) as usize);
        let (_, area) = self.data();
        let leaves = area.get(..leaves * LEAF_BYTES).ok_or(Errno::E2BIG)?;
        let msrs = area.get(msrs_at..msrs_at + msrs * MSR_BYTES).ok_or(Errno::E2BIG)?;
        Ok(CpuPolicy::decode(leaves, msrs))
    }

    /// Merges leaves and registers onto a domain's policy, before it first runs.
    ///
    /// # Errors
    /// EINVAL if the policy is incompatible, ERANGE for unknown leaves or registers, EEXIST once
    /// the domain has run.
    pub fn set_cpu_policy(&mut self, domid: DomId, policy: &CpuPolicy) -> Result<(), Errno> {
        let mut bytes: Vec<u8> =
            policy.leaves.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
        let msrs_at = bytes.len();
        for msr in &policy.msrs {
            bytes.extend(msr.index.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(msr.value.to_ne_bytes());
        }
        let address = self.put_data(&bytes)?;
        let count = |n: usize| u32::try_from(n).map_err(|_| Errno::E2BIG);
        let payload = Layout::<40>::new()
            .u32(0, count(policy.leaves.len())?)
            .u32(4, count(policy.msrs.len())?)
            .u64(8, address)
            .u64(16, address + msrs_at as u64)
            .done();
        self.domctl("set_cpu_policy", domctl::SET_CPU_POLICY, domid, &payload).map(drop)
    }
}
