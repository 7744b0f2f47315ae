//! A memory map for a PV guest that has devices of the host.
//!
//! Such a guest finds its devices' memory where the host has it, so that its own must leave these places free: what does not fit
//! below them comes after all of them. What is memory on the host, and not the guest's, is unusable: gaps are taken for places of
//! devices.

use alloc::vec::Vec;

use xen::{E820Entry, E820Kind, PAGE_SHIFT};

/// The BIOS's first MiB says nothing of devices.
const LOW_END: u64 = 1 << 20;
const FOUR_GIB: u64 = 1 << 32;

/// The map of a guest with so many pages, and room to grow up to more, on a host with this map.
#[must_use]
pub fn host_map(host: &[E820Entry], pages: u64, pages_max: u64) -> Vec<E820Entry> {
    let end = |it: &E820Entry| it.address.saturating_add(it.bytes);
    let mut host: Vec<E820Entry> =
        host.iter().filter(|it| it.address >= LOW_END && it.bytes != 0).copied().collect();
    host.sort_unstable_by_key(|it| it.address);
    let is_of_devices = |it: &&E820Entry| !matches!(it.kind, E820Kind::Ram | E820Kind::Unusable);
    let wanted = pages << PAGE_SHIFT;
    let first = host.iter().find(is_of_devices).map_or(wanted, |it| it.address);
    let ram_end = wanted.min(first);
    let last = host.iter().filter(is_of_devices).map(end).max().unwrap_or_default();

    let mut map = alloc::vec![E820Entry { address: 0, bytes: ram_end, kind: E820Kind::Ram }];
    let unusable =
        |address, end| E820Entry { address, bytes: end - address, kind: E820Kind::Unusable };
    if ram_end < first {
        map.push(unusable(ram_end, first));
    }
    for it in host {
        match it.kind {
            E820Kind::Ram | E820Kind::Unusable => {
                // All that is before the first is told above.
                let (from, to) = (it.address.max(first), end(&it).min(FOUR_GIB));
                map.extend((from < to).then(|| unusable(from, to)));
            }
            E820Kind::Reserved | E820Kind::Acpi | E820Kind::AcpiNvs => map.push(it),
        }
    }
    let bytes = (pages_max << PAGE_SHIFT).saturating_sub(ram_end);
    if bytes != 0 {
        map.push(E820Entry { address: last.max(FOUR_GIB), bytes, kind: E820Kind::Ram });
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(from: u64, to: u64, kind: E820Kind) -> E820Entry {
        E820Entry { address: from * MIB, bytes: (to - from) * MIB, kind }
    }

    /// As QEMU's q35 with 8 GiB has it, with memory between what is reserved.
    fn host() -> Vec<E820Entry> {
        use E820Kind::{Acpi, AcpiNvs, Ram, Reserved, Unusable};
        alloc::vec![
            entry(4096, 8192, Ram),
            E820Entry { address: 0, bytes: 0x9_fc00, kind: Ram },
            E820Entry { address: 0xf_0000, bytes: 0x1_0000, kind: Reserved },
            entry(1, 2000, Ram),
            entry(2000, 2010, Reserved),
            entry(2010, 2020, Ram),
            entry(2020, 2024, Acpi),
            entry(2024, 2026, AcpiNvs),
            entry(2026, 2030, Unusable),
            entry(2816, 3072, Reserved),
            entry(8192, 8192, Reserved),
        ]
    }

    fn map(mib: u64, mib_max: u64) -> Vec<(u64, u64, E820Kind)> {
        let map = host_map(&host(), mib << 8, mib_max << 8);
        map.iter().map(|it| (it.address / MIB, (it.address + it.bytes) / MIB, it.kind)).collect()
    }

    #[test]
    fn a_small_guest_is_below_the_devices_and_grows_above_them() {
        use E820Kind::{Acpi, AcpiNvs, Ram, Reserved, Unusable};
        let above = [
            (2000, 2010, Reserved),
            (2010, 2020, Unusable),
            (2020, 2024, Acpi),
            (2024, 2026, AcpiNvs),
            (2026, 2030, Unusable),
            (2816, 3072, Reserved),
        ];
        let below = [(0, 64, Ram), (64, 2000, Unusable)];
        assert_eq!(map(64, 64), [&below[..], &above].concat());
        assert_eq!(map(64, 80), [&below[..], &above, &[(4096, 4112, Ram)]].concat());
        let full = [(0, 2000, Ram)];
        assert_eq!(map(2000, 2000), [&full[..], &above].concat());
        assert_eq!(map(3000, 3500), [&full[..], &above, &[(4096, 5596, Ram)]].concat());
    }

    #[test]
    fn memory_comes_after_what_is_reserved_high_up() {
        let mut host = host();
        host.push(entry(8192, 9000, E820Kind::Reserved));
        let map = host_map(&host, 3000 << 8, 3000 << 8);
        assert_eq!(map.last(), Some(&entry(9000, 10_000, E820Kind::Ram)));
    }

    #[test]
    fn a_host_without_a_map_hides_nothing() {
        let ram = |from, to| entry(from, to, E820Kind::Ram);
        assert_eq!(host_map(&[], 64 << 8, 64 << 8), [ram(0, 64)]);
        assert_eq!(host_map(&[], 64 << 8, 65 << 8), [ram(0, 64), ram(4096, 4097)]);
    }
}
