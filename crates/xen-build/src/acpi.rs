//! ACPI tables of a PVH domain: they describe its vCPUs and the absence of other hardware.
//!
//! Source: ACPI Specification 6.5, chapter 5 (table layouts), section 4.1 (hardware-reduced).

use alloc::vec::Vec;

use crate::record::Record;

const HEADER_BYTES: usize = 36;
const RSDP_BYTES: usize = 36;

/// The tables in a row, the RSDP first, for an area that begins at `address`.
pub(crate) fn tables(address: u64, vcpus: u32) -> Vec<u8> {
    let mut area = Record::new(RSDP_BYTES).done();
    let mut place = |table: Vec<u8>| {
        area.resize(area.len().next_multiple_of(8), 0);
        let at = address + area.len() as u64;
        area.extend(table);
        at
    };
    // An empty DSDT: the processors are in the MADT, and nothing else exists.
    let dsdt = place(Table::new(b"DSDT", 2, HEADER_BYTES).done());
    let fadt = place(fadt(dsdt));
    let madt = place(madt(vcpus));
    let xsdt = place(Table::new(b"XSDT", 1, HEADER_BYTES + 16).u64(36, fadt).u64(44, madt).done());
    area[..RSDP_BYTES].copy_from_slice(&rsdp(xsdt));
    area
}

/// A table with the header that all but the RSDP share.
struct Table(Record);

impl Table {
    fn new(signature: &[u8; 4], revision: u8, bytes: usize) -> Self {
        let length = u32::try_from(bytes).expect("tables are short");
        Self(
            Record::new(bytes)
                .bytes(0, signature)
                .u32(4, length)
                .u8(8, revision)
                .bytes(10, b"Xylem ")
                .bytes(16, b"Guest   ")
                .u32(24, 1)
                .bytes(28, b"XYLM")
                .u32(32, 1),
        )
    }

    fn u8(self, offset: usize, value: u8) -> Self {
        Self(self.0.u8(offset, value))
    }

    fn u16(self, offset: usize, value: u16) -> Self {
        Self(self.0.u16(offset, value))
    }

    fn u32(self, offset: usize, value: u32) -> Self {
        Self(self.0.u32(offset, value))
    }

    fn u64(self, offset: usize, value: u64) -> Self {
        Self(self.0.u64(offset, value))
    }

    fn done(self) -> Vec<u8> {
        let mut bytes = self.0.done();
        bytes[9] = checksum(&bytes);
        bytes
    }
}

/// The byte that makes the sum of all bytes zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_sub(*byte))
}

fn rsdp(xsdt: u64) -> Vec<u8> {
    /// Length of the first revision, which has its own checksum.
    const OLD_BYTES: usize = 20;
    let mut bytes = Record::new(RSDP_BYTES)
        .bytes(0, b"RSD PTR ")
        .bytes(9, b"Xylem ")
        .u8(15, 2)
        .u32(20, 36)
        .u64(24, xsdt)
        .done();
    bytes[8] = checksum(&bytes[..OLD_BYTES]);
    bytes[32] = checksum(&bytes);
    bytes
}

fn fadt(dsdt: u64) -> Vec<u8> {
    /// Length of revision 5.
    const BYTES: usize = 268;
    const BOOT_NO_VGA: u16 = 1 << 2;
    const BOOT_NO_CMOS_RTC: u16 = 1 << 5;
    const HW_REDUCED_ACPI: u32 = 1 << 20;
    let low = u32::try_from(dsdt).unwrap_or(0);
    Table::new(b"FACP", 5, BYTES)
        .u32(40, low)
        .u16(109, BOOT_NO_VGA | BOOT_NO_CMOS_RTC)
        .u32(112, HW_REDUCED_ACPI)
        .u64(140, dsdt)
        .done()
}

/// The interrupt controllers: one local APIC for each vCPU.
fn madt(vcpus: u32) -> Vec<u8> {
    const LOCAL_APIC_ADDRESS: u32 = 0xfee0_0000;
    const FIXED_BYTES: usize = HEADER_BYTES + 8;
    const ENTRY_BYTES: usize = 8;
    const KIND_LOCAL_APIC: u8 = 0;
    const ENABLED: u32 = 1;
    let vcpus = u8::try_from(vcpus).expect("checked: PVH domains have few vCPUs");
    let bytes = FIXED_BYTES + usize::from(vcpus) * ENTRY_BYTES;
    let mut table = Table::new(b"APIC", 4, bytes).u32(36, LOCAL_APIC_ADDRESS);
    for vcpu in 0..vcpus {
        let at = FIXED_BYTES + usize::from(vcpu) * ENTRY_BYTES;
        // Xen gives vCPU n the APIC identifier 2n.
        table = table
            .u8(at, KIND_LOCAL_APIC)
            .u8(at + 1, 8)
            .u8(at + 2, vcpu)
            .u8(at + 3, vcpu * 2)
            .u32(at + 4, ENABLED);
    }
    table.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    #[test]
    fn every_table_is_reached_from_the_rsdp_and_sums_to_zero() {
        const ADDRESS: u64 = 0xfc00_0000;
        let area = tables(ADDRESS, 128);
        assert!(area.len() <= 4096, "{}", area.len());
        assert_eq!((sum(&area[..20]), sum(&area[..36])), (0, 0));
        let word = |at: usize| u64::from_le_bytes(area[at..at + 8].try_into().unwrap());
        let table = |address: u64| {
            let at = usize::try_from(address - ADDRESS).unwrap();
            let length = u32::from_le_bytes(area[at + 4..at + 8].try_into().unwrap());
            let bytes = &area[at..at + usize::try_from(length).unwrap()];
            assert_eq!(sum(bytes), 0);
            (at, &bytes[..4])
        };
        let (xsdt, signature) = table(word(24));
        assert_eq!(signature, b"XSDT");
        let (fadt, signature) = table(word(xsdt + 36));
        assert_eq!(signature, b"FACP");
        assert_eq!(table(word(fadt + 140)).1, b"DSDT");
        let (madt, signature) = table(word(xsdt + 44));
        assert_eq!(signature, b"APIC");
        assert_eq!(area[madt + 44 + 127 * 8..madt + 44 + 128 * 8], [0, 8, 127, 254, 1, 0, 0, 0]);
    }
}
