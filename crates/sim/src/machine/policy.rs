//! CPUID policies of domains.
//!
//! A new domain has the default policy; leaves are merged onto it until it first runs. Source:
//! `xen/arch/x86/domctl.c`, `xen/include/public/arch-x86/xen.h` (`xen_cpuid_leaf_t`).

use std::collections::BTreeMap;

use xen::{DomId, Errno};

use super::SimXen;
use super::domctl::HEADER;
use super::hypercall::Arena;
use crate::bytes::{index, put_u32, u32_at, u64_at};

const LEAF_BYTES: usize = 24;
/// Stands for "no subleaf".
const NO_SUBLEAF: u32 = u32::MAX;

/// The default policy of a new domain.
pub(super) fn default(translated: bool) -> BTreeMap<(u32, u32), [u32; 4]> {
    let features = if translated { 0x178b_fbff } else { 0x1fc9_cbf5 };
    let mut leaves = BTreeMap::from([
        ((0, NO_SUBLEAF), [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
        ((1, NO_SUBLEAF), [0x306a9, 0x0010_0800, 0x9fba_2203, features]),
        ((0x8000_0000, NO_SUBLEAF), [0x8000_0008, 0, 0, 0]),
        ((0x8000_0001, NO_SUBLEAF), [0, 0, 1, 0x2810_0800]),
        ((0x8000_0008, NO_SUBLEAF), [0x3027, 0, 0, 0]),
    ]);
    for (leaf, subleaves) in [(4, 4), (7, 1), (0xb, 2), (0xd, 2)] {
        for subleaf in 0..subleaves {
            leaves.insert((leaf, subleaf), [0; 4]);
        }
    }
    leaves
}

impl SimXen {
    pub(super) fn get_cpu_policy(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &mut Arena<'_>,
    ) -> Result<(), Errno> {
        const ENOBUFS: Errno = Errno(105);
        let (capacity, address) = (u32_at(call, HEADER), u64_at(call, HEADER + 8));
        let domain = self.live(domid)?;
        let mut bytes = Vec::with_capacity(domain.policy.len() * LEAF_BYTES);
        for ((leaf, subleaf), words) in &domain.policy {
            for word in [leaf, subleaf].into_iter().chain(words) {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        if bytes.len() > index(capacity.into()) * LEAF_BYTES {
            return Err(ENOBUFS);
        }
        arena.get_mut(address, bytes.len())?.copy_from_slice(&bytes);
        let leaves = u32::try_from(bytes.len() / LEAF_BYTES).unwrap_or(u32::MAX);
        put_u32(call, HEADER, leaves);
        put_u32(call, HEADER + 4, 0);
        Ok(())
    }

    pub(super) fn set_cpu_policy(
        &mut self,
        domid: DomId,
        call: &mut [u8],
        arena: &Arena<'_>,
    ) -> Result<(), Errno> {
        const ERANGE: Errno = Errno(34);
        for (offset, none) in [(24, u32::MAX), (28, u32::MAX), (32, u32::MAX)] {
            put_u32(call, HEADER + offset, none);
        }
        let (count, address) = (u32_at(call, HEADER), u64_at(call, HEADER + 8));
        let bytes = index(count.into()).checked_mul(LEAF_BYTES).ok_or(Errno::E2BIG)?;
        let leaves = arena.get(address, bytes)?.to_vec();
        let domain = self.live(domid)?;
        if domain.creation_finished {
            return Err(Errno::EEXIST);
        }
        let mut merged = domain.policy.clone();
        for entry in leaves.chunks_exact(LEAF_BYTES) {
            let key = (u32_at(entry, 0), u32_at(entry, 4));
            let words = core::array::from_fn(|i| u32_at(entry, 8 + 4 * i));
            if merged.insert(key, words).is_none() {
                put_u32(call, HEADER + 24, key.0);
                put_u32(call, HEADER + 28, key.1);
                return Err(ERANGE);
            }
        }
        domain.policy = merged;
        Ok(())
    }
}
