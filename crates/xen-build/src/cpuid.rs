//! A guest's CPU policy: the default policy of its kind, adjusted to this guest.
//!
//! Xen's default policy shows the host's topology, which is not the guest's. The adjustments are
//! those of libxc, so that a guest sees the same CPU under either toolstack: the APIC id of a
//! translated domain's vCPU is twice its number, as if each core had one thread, and core and
//! thread counts match that.
//!
//! Sources: Intel's and AMD's manuals for the leaves, `xen/include/public/arch-x86/cpufeatureset.h`.

use alloc::vec::Vec;

use xen::{CpuFacts, CpuPolicy, CpuPolicyKind, DomId, DomainKind, Errno, Hypervisor, Xen};

use crate::BuildError;

/// Stands for "no subleaf".
pub const NO_SUBLEAF: u32 = u32::MAX;

/// Leaf, subleaf, eax, ebx, ecx, edx.
type Leaf = [u32; 6];

/// A register of a leaf, by its index in [`Leaf`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CpuidRegister {
    Eax = 2,
    Ebx = 3,
    Ecx = 4,
    Edx = 5,
}

/// The value of each bit of a register: one where set in `ones`, the host's or the default policy's
/// where set in those, otherwise zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BitPolicy<T> {
    pub ones: T,
    pub host: T,
    pub default: T,
}

impl BitPolicy<u32> {
    fn apply(self, host: u32, default: u32) -> u32 {
        self.ones | self.host & host | self.default & default
    }
}

impl BitPolicy<u64> {
    fn apply(self, host: u64, default: u64) -> u64 {
        self.ones | self.host & host | self.default & default
    }
}

/// A register that the VM's configuration sets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CpuidOverride {
    pub leaf: u32,
    /// Or [`NO_SUBLEAF`].
    pub subleaf: u32,
    pub register: CpuidRegister,
    pub bits: BitPolicy<u32>,
}

/// A model specific register that the VM's configuration sets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MsrOverride {
    pub index: u32,
    pub bits: BitPolicy<u64>,
}

/// Guest settings that its CPU policy depends on.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig<'a> {
    pub kind: DomainKind,
    /// The time stamp counter is invariant.
    pub invariant_tsc: bool,
    /// Nested virtualisation.
    pub nested_virt: bool,
    pub registers: &'a [CpuidOverride],
    pub msrs: &'a [MsrOverride],
}

/// Sets a new domain's CPU policy, before it first runs.
///
/// # Errors
/// [`BuildError::CpuidLeaf`] or [`BuildError::Msr`] for one that the configuration sets and this
/// host does not have, or the error of a hypercall.
pub fn apply_cpu_policy<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &CpuConfig<'_>,
) -> Result<(), BuildError> {
    let unreadable = refused(domid, "read the CPU policy");
    let facts = xen.cpu_facts(config.kind).map_err(&unreadable)?;
    let fitted = CpuPolicy { leaves: fitted(&facts, config), msrs: Vec::new() };
    xen.set_cpu_policy(domid, &fitted).map_err(refused(domid, "set the CPU policy"))?;
    if config.registers.is_empty() && config.msrs.is_empty() {
        return Ok(());
    }
    // On top of the policy that Xen merged.
    let mut policy = xen.cpu_policy(domid).map_err(&unreadable)?;
    let host = xen.host_cpu_policy(CpuPolicyKind::Host).map_err(&unreadable)?;
    override_leaves(&mut policy.leaves, &host.leaves, &facts.default.leaves, config.registers)?;
    override_msrs(&mut policy, &host, &facts.default, config.msrs)?;
    xen.set_cpu_policy(domid, &policy).map_err(refused(domid, "set the CPUID bits of cpuid="))
}

fn refused(domid: DomId, action: &'static str) -> impl Fn(Errno) -> BuildError {
    move |errno| BuildError::Hypercall { action, domid, errno }
}

/// Bits and fields of leaves, as masks.
mod bit {
    /// Leaf 1, ecx.
    pub(super) const VMX: u32 = 1 << 5;
    /// Leaf 1, edx.
    pub(super) const PAE: u32 = 1 << 6;
    pub(super) const HTT: u32 = 1 << 28;
    /// Leaf 0x8000_0001, ecx.
    pub(super) const CMP_LEGACY: u32 = 1 << 1;
    pub(super) const SVM: u32 = 1 << 2;
    /// Leaf 0x8000_0007, edx.
    pub(super) const INVARIANT_TSC: u32 = 1 << 8;
}

const EAX: usize = CpuidRegister::Eax as usize;
const EBX: usize = CpuidRegister::Ebx as usize;
const ECX: usize = CpuidRegister::Ecx as usize;
const EDX: usize = CpuidRegister::Edx as usize;

/// The default policy's leaves, adjusted to the guest.
fn fitted(facts: &CpuFacts, config: &CpuConfig<'_>) -> Vec<Leaf> {
    let mut leaves = facts.default.leaves.clone();
    let host_word = |index| facts.host_features.get(index).copied().unwrap_or_default();
    let vendor = Vendor::of(&leaves);
    for leaf in &mut leaves {
        match (leaf[0], config.kind) {
            (1, DomainKind::Pv) => {
                // PV guests see the real topology where the CPU cannot hide it.
                set(&mut leaf[EDX], bit::HTT, host_word(0) & bit::HTT != 0);
            }
            (0x8000_0001, DomainKind::Pv) => {
                let is_host = host_word(3) & bit::CMP_LEGACY != 0;
                set(&mut leaf[ECX], bit::CMP_LEGACY, is_host);
            }
            (1, _) => {
                set(&mut leaf[EDX], bit::HTT | bit::PAE, true);
                set(&mut leaf[ECX], bit::VMX, config.nested_virt);
                leaf[EBX] =
                    with_field(leaf[EBX], 16, 8, logical_processors(leaf[EBX] >> 16 & 0xff));
            }
            (0x8000_0001, _) => {
                set(&mut leaf[ECX], bit::CMP_LEGACY, false);
                set(&mut leaf[ECX], bit::SVM, config.nested_virt);
            }
            (4, DomainKind::Pvh | DomainKind::Hvm) if vendor == Vendor::Intel => {
                share_cache_by_core(leaf);
            }
            (0x8000_0008, DomainKind::Pvh | DomainKind::Hvm) if vendor == Vendor::Amd => {
                leaf[ECX] = core_count(leaf[ECX]);
            }
            (0x8000_0007, _) => set(&mut leaf[EDX], bit::INVARIANT_TSC, config.invariant_tsc),
            _ => {}
        }
    }
    leaves
}

fn set(word: &mut u32, mask: u32, on: bool) {
    *word = if on { *word | mask } else { *word & !mask };
}

/// `word` with `value` in the field of `bits` bits from `shift` on.
fn with_field(word: u32, shift: u32, bits: u32, value: u32) -> u32 {
    let mask = ((1 << bits) - 1) << shift;
    word & !mask | value << shift & mask
}

/// Maximum logical processors of a package (leaf 1): doubled, unless that overflows the field.
fn logical_processors(host: u32) -> u32 {
    match host {
        0 => 2,
        1..0x80 => host * 2,
        _ => host,
    }
}

/// A cache of leaf 4: twice as many cores in a package, and no cache shared between threads.
fn share_cache_by_core(leaf: &mut Leaf) {
    const TYPE: u32 = 0x1f;
    if leaf[EAX] & TYPE != 0 {
        let cores = (leaf[EAX] >> 26) << 1 | 1;
        leaf[EAX] = with_field(with_field(leaf[EAX], 26, 6, cores), 14, 12, 0);
    }
}

/// Core count and APIC id size of leaf 0x8000_0008: doubled, unless that overflows the field. An id
/// size of 0 means that the count decides; some systems fail with a size above 7.
fn core_count(ecx: u32) -> u32 {
    let (cores, id_bits) = (ecx & 0xff, ecx >> 12 & 0xf);
    if cores >= 0x7f {
        return ecx;
    }
    let id_bits = if (1..7).contains(&id_bits) { id_bits + 1 } else { id_bits };
    with_field(with_field(ecx, 0, 8, cores << 1 | 1), 12, 4, id_bits)
}

/// The CPU vendor, as far as topology leaves depend on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Vendor {
    Intel,
    /// Or Hygon.
    Amd,
    Other,
}

impl Vendor {
    fn of(leaves: &[Leaf]) -> Self {
        let Some(first) = leaves.iter().find(|leaf| leaf[0] == 0) else { return Self::Other };
        let mut name = [0; 12];
        for (bytes, register) in name.chunks_exact_mut(4).zip([EBX, EDX, ECX]) {
            bytes.copy_from_slice(&first[register].to_le_bytes());
        }
        match &name {
            b"GenuineIntel" => Self::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Self::Amd,
            _ => Self::Other,
        }
    }
}

fn override_leaves(
    leaves: &mut [Leaf],
    host: &[Leaf],
    default: &[Leaf],
    overrides: &[CpuidOverride],
) -> Result<(), BuildError> {
    for wanted in overrides {
        let key = [wanted.leaf, wanted.subleaf];
        let missing = BuildError::CpuidLeaf { leaf: wanted.leaf, subleaf: wanted.subleaf };
        let register = wanted.register as usize;
        let at = |leaves: &[Leaf]| leaves.iter().position(|leaf| leaf[..2] == key);
        let (Some(own), Some(in_host), Some(in_default)) = (at(leaves), at(host), at(default))
        else {
            return Err(missing);
        };
        leaves[own][register] =
            wanted.bits.apply(host[in_host][register], default[in_default][register]);
    }
    Ok(())
}

fn override_msrs(
    policy: &mut CpuPolicy,
    host: &CpuPolicy,
    default: &CpuPolicy,
    overrides: &[MsrOverride],
) -> Result<(), BuildError> {
    for wanted in overrides {
        let value = |policy: &CpuPolicy| {
            policy.msrs.iter().find(|msr| msr.index == wanted.index).map(|msr| msr.value)
        };
        let own = policy.msrs.iter().position(|msr| msr.index == wanted.index);
        let (Some(own), Some(host), Some(default)) = (own, value(host), value(default)) else {
            return Err(BuildError::Msr(wanted.index));
        };
        policy.msrs[own].value = wanted.bits.apply(host, default);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    const GUEST: CpuConfig<'_> = CpuConfig {
        kind: DomainKind::Pvh,
        invariant_tsc: false,
        nested_virt: false,
        registers: &[],
        msrs: &[],
    };

    fn vendor(name: &[u8; 12]) -> Leaf {
        let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
        [0, NO_SUBLEAF, 0xd, word(0), word(8), word(4)]
    }

    /// Some leaves of a machine with four cores of two threads.
    fn facts(name: &[u8; 12]) -> CpuFacts {
        let leaf =
            |leaf, words: [u32; 4]| [leaf, NO_SUBLEAF, words[0], words[1], words[2], words[3]];
        CpuFacts {
            default: CpuPolicy {
                leaves: vec![
                    vendor(name),
                    leaf(1, [0x906ea, 0x0008_0800, bit::VMX | 1, 0x0789_3bff]),
                    [4, 0, 0x1c00_4121, 0x01c0_003f, 0x3f, 0],
                    [4, 1, 0x1c03_c163, 0x03c0_003f, 0x3ff, 6],
                    [4, 2, 0, 0, 0, 0],
                    leaf(0x8000_0001, [0x906ea, 0, bit::CMP_LEGACY | bit::SVM | 1, 0x2810_0800]),
                    leaf(0x8000_0007, [0, 0, 0, bit::INVARIANT_TSC]),
                    leaf(0x8000_0008, [0x3027, 0, 0x3007, 0]),
                ],
                msrs: Vec::new(),
            },
            host_features: vec![bit::HTT, 0, 0, bit::CMP_LEGACY],
        }
    }

    fn leaf_of(leaves: &[Leaf], leaf: u32, subleaf: u32) -> [u32; 4] {
        let found = leaves.iter().find(|it| it[..2] == [leaf, subleaf]).unwrap();
        found[2..].try_into().unwrap()
    }

    #[test]
    fn a_translated_guest_sees_single_threaded_cores_with_even_apic_ids() {
        let leaves = fitted(&facts(b"GenuineIntel"), &GUEST);
        assert_eq!(leaf_of(&leaves, 1, NO_SUBLEAF), [0x906ea, 0x0010_0800, 1, 0x1789_3bff]);
        assert_eq!(leaf_of(&leaves, 4, 0)[0], 0x3c00_0121);
        assert_eq!(leaf_of(&leaves, 4, 1)[0], 0x3c00_0163);
        assert_eq!(leaf_of(&leaves, 4, 2), [0; 4]);
        assert_eq!(leaf_of(&leaves, 0x8000_0001, NO_SUBLEAF), [0x906ea, 0, 1, 0x2810_0800]);
        assert_eq!(leaf_of(&leaves, 0x8000_0008, NO_SUBLEAF), [0x3027, 0, 0x3007, 0]);
        for name in [b"AuthenticAMD", b"HygonGenuine"] {
            let leaves = fitted(&facts(name), &GUEST);
            assert_eq!(leaf_of(&leaves, 4, 0)[0], 0x1c00_4121);
            assert_eq!(leaf_of(&leaves, 0x8000_0008, NO_SUBLEAF), [0x3027, 0, 0x400f, 0]);
        }
        let leaves = fitted(&facts(b"CentaurHauls"), &GUEST);
        assert_eq!(leaf_of(&leaves, 4, 0)[0], 0x1c00_4121);
        assert_eq!(leaf_of(&leaves, 0x8000_0008, NO_SUBLEAF), [0x3027, 0, 0x3007, 0]);
    }

    #[test]
    fn of_the_topology_only_the_htt_flag_is_set_for_a_pv_guest() {
        let pv = CpuConfig { kind: DomainKind::Pv, ..GUEST };
        let mut facts = facts(b"GenuineIntel");
        let leaves = fitted(&facts, &pv);
        assert_eq!(
            leaf_of(&leaves, 1, NO_SUBLEAF),
            [0x906ea, 0x0008_0800, bit::VMX | 1, 0x1789_3bff]
        );
        assert_eq!(leaf_of(&leaves, 4, 0)[0], 0x1c00_4121);
        assert_eq!(leaf_of(&leaves, 0x8000_0001, NO_SUBLEAF)[2], bit::CMP_LEGACY | bit::SVM | 1);
        facts.host_features = Vec::new();
        let leaves = fitted(&facts, &pv);
        assert_eq!(leaf_of(&leaves, 1, NO_SUBLEAF)[3], 0x0789_3bff);
        assert_eq!(leaf_of(&leaves, 0x8000_0001, NO_SUBLEAF)[2], bit::SVM | 1);
    }

    #[test]
    fn nested_virt_and_invariant_tsc_are_shown_if_configured() {
        let facts = facts(b"GenuineIntel");
        let plain = fitted(&facts, &GUEST);
        assert_eq!(leaf_of(&plain, 0x8000_0007, NO_SUBLEAF)[3], 0);
        let config = CpuConfig { nested_virt: true, invariant_tsc: true, ..GUEST };
        let leaves = fitted(&facts, &config);
        assert_eq!(leaf_of(&leaves, 1, NO_SUBLEAF)[2], bit::VMX | 1);
        assert_eq!(leaf_of(&leaves, 0x8000_0001, NO_SUBLEAF)[2], bit::SVM | 1);
        assert_eq!(leaf_of(&leaves, 0x8000_0007, NO_SUBLEAF)[3], bit::INVARIANT_TSC);
    }

    #[test]
    fn counts_that_would_overflow_are_not_doubled() {
        assert_eq!(
            [0, 1, 8, 0x7f, 0x80, 0xff].map(logical_processors),
            [2, 2, 16, 0xfe, 0x80, 0xff]
        );
        for (ecx, expected) in [
            (0x0003, 0x0007),
            (0x7003, 0x7007),
            (0x607e, 0x70fd),
            (0x607f, 0x607f),
            (0x60ff, 0x60ff),
            (0xabcd_1001, 0xabcd_2003),
        ] {
            assert_eq!(core_count(ecx), expected, "{ecx:#x}");
        }
        let mut leaf = [4, 0, 0xfc00_0001, 0, 0, 0];
        share_cache_by_core(&mut leaf);
        assert_eq!(leaf[EAX], 0xfc00_0001, "six bits are full");
    }

    #[test]
    fn bits_come_from_the_configuration_the_host_or_the_default() {
        let mut leaves = vec![[1, NO_SUBLEAF, 0, 0, 0xff, 0]];
        let host = vec![[1, NO_SUBLEAF, 0, 0, 0b0110, 0]];
        let default = vec![[1, NO_SUBLEAF, 0, 0, 0b1010, 0]];
        let bits = BitPolicy { ones: 1, host: 0b0100, default: 0b1000 };
        let register = CpuidRegister::Ecx;
        let wanted = CpuidOverride { leaf: 1, subleaf: NO_SUBLEAF, register, bits };
        override_leaves(&mut leaves, &host, &default, &[wanted]).unwrap();
        assert_eq!(leaves[0][ECX], 0b1101);
        let missing = CpuidOverride { leaf: 7, subleaf: 1, ..wanted };
        let error = override_leaves(&mut leaves, &host, &default, &[missing]).unwrap_err();
        assert_eq!(error.to_string(), "this host has no CPUID leaf 0x7, subleaf 0x1");
    }
}
