//! The HVM save records that start vCPU 0 of a PVH or HVM domain.
//!
//! Sources: `xen/include/public/hvm/save.h` (the stream), `arch-x86/hvm/save.h` (CPU and MTRR),
//! `docs/misc/pvh.pandoc` of Xen (the registers a kernel starts with).

use alloc::vec::Vec;

use crate::record::Record;

const END: u16 = 0;
const HEADER: u16 = 1;
const CPU: u16 = 2;
const MTRR: u16 = 14;

/// Who sets the memory types (MTRRs) of the domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MemoryTypes {
    /// The records: all memory is write-back.
    WriteBack,
    /// The firmware.
    Firmware,
}

/// The records to load: the header and, where the firmware sets none, the memory types of Xen's own `saved`
/// stream, and the registers of vCPU 0, which comes last because loading stops every vCPU loaded before.
///
/// `None` if `saved` lacks a record that every Xen writes.
pub(crate) fn records(
    saved: &[u8],
    types: MemoryTypes,
    entry: u32,
    start_info: u64,
) -> Option<Vec<u8>> {
    let mut stream = Vec::new();
    let (_, header) = saved_records(saved).find(|(kind, _)| kind.code == HEADER)?;
    append(&mut stream, Kind { code: HEADER, instance: 0 }, header);
    let mut mtrrs = saved_records(saved).filter(|(kind, _)| kind.code == MTRR).peekable();
    mtrrs.peek()?;
    if types == MemoryTypes::WriteBack {
        for (kind, mtrr) in mtrrs {
            append(&mut stream, kind, &write_back(mtrr)?);
        }
    }
    append(&mut stream, Kind { code: CPU, instance: 0 }, &registers(entry, start_info));
    append(&mut stream, Kind { code: END, instance: 0 }, &[]);
    Some(stream)
}

/// A record's type and instance.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Kind {
    code: u16,
    /// Usually the vCPU.
    instance: u16,
}

/// The records of a stream, up to its end or the first truncated one.
fn saved_records(mut rest: &[u8]) -> impl Iterator<Item = (Kind, &[u8])> {
    core::iter::from_fn(move || {
        let (descriptor, behind) = rest.split_first_chunk::<8>()?;
        let [c0, c1, i0, i1, length @ ..] = *descriptor;
        let kind =
            Kind { code: u16::from_le_bytes([c0, c1]), instance: u16::from_le_bytes([i0, i1]) };
        let (record, behind) =
            behind.split_at_checked(usize::try_from(u32::from_le_bytes(length)).ok()?)?;
        rest = behind;
        (kind.code != END).then_some((kind, record))
    })
}

fn append(stream: &mut Vec<u8>, kind: Kind, record: &[u8]) {
    let length = u32::try_from(record.len()).expect("records are short");
    stream.extend_from_slice(&kind.code.to_le_bytes());
    stream.extend_from_slice(&kind.instance.to_le_bytes());
    stream.extend_from_slice(&length.to_le_bytes());
    stream.extend_from_slice(record);
}

/// MTRRs enabled, all memory write-back: a PVH domain has no firmware to set them.
fn write_back(mtrr: &[u8]) -> Option<Vec<u8>> {
    const DEF_TYPE: usize = 232;
    const ENABLED: u64 = 1 << 11;
    const WRITE_BACK: u64 = 6;
    let mut record = mtrr.to_vec();
    let def_type = record.get_mut(DEF_TYPE..DEF_TYPE + 8)?;
    def_type.copy_from_slice(&(ENABLED | WRITE_BACK).to_le_bytes());
    Some(record)
}

/// `struct hvm_hw_cpu`: 32-bit protected mode without paging, flat segments.
///
/// Later Xen versions may append fields; they zero-extend a shorter record.
fn registers(entry: u32, start_info: u64) -> Vec<u8> {
    const BYTES: usize = 1032;
    const CR0_PE_ET: u64 = 1 | 1 << 4;
    const DR6: u64 = 0xffff_0ff0;
    const DR7: u64 = 0x400;
    const CODE: u32 = 0xc9b;
    const DATA: u32 = 0xc93;
    const TASK: u32 = 0x8b;
    const TASK_LIMIT: u32 = 0x67;
    Record::new(BYTES)
        .u64(520, start_info)
        .u64(640, entry.into())
        .u64(656, CR0_PE_ET)
        .u64(720, DR6)
        .u64(728, DR7)
        .u32(768, u32::MAX) // limits: cs, ds, es, ss, tr
        .u32(772, u32::MAX)
        .u32(776, u32::MAX)
        .u32(788, u32::MAX)
        .u32(792, TASK_LIMIT)
        .u32(888, CODE) // attributes in the same order
        .u32(892, DATA)
        .u32(896, DATA)
        .u32(908, DATA)
        .u32(912, TASK)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn saved() -> Vec<u8> {
        let mut stream = Vec::new();
        append(&mut stream, Kind { code: HEADER, instance: 0 }, &[7; 24]);
        append(&mut stream, Kind { code: 5, instance: 0 }, &[1; 24]);
        append(&mut stream, Kind { code: MTRR, instance: 0 }, &[2; 240]);
        append(&mut stream, Kind { code: MTRR, instance: 1 }, &[2; 240]);
        append(&mut stream, Kind { code: END, instance: 0 }, &[]);
        stream
    }

    #[test]
    fn the_registers_of_vcpu_0_come_last() {
        let stream = records(&saved(), MemoryTypes::WriteBack, 0x10_0000, 0x20_0000).unwrap();
        let kinds: Vec<(u16, u16)> =
            saved_records(&stream).map(|(kind, _)| (kind.code, kind.instance)).collect();
        assert_eq!(kinds, [(HEADER, 0), (MTRR, 0), (MTRR, 1), (CPU, 0)]);
        let (_, mtrr) = saved_records(&stream).nth(2).unwrap();
        assert_eq!((&mtrr[..232], &mtrr[232..]), (&[2; 232][..], &[6, 8, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(stream[stream.len() - 8..], [0; 8]);
    }

    #[test]
    fn with_firmware_only_the_registers_are_loaded() {
        let stream = records(&saved(), MemoryTypes::Firmware, 0x10_0000, 0x20_0000).unwrap();
        let kinds: Vec<u16> = saved_records(&stream).map(|(kind, _)| kind.code).collect();
        assert_eq!(kinds, [HEADER, CPU]);
    }

    #[test]
    fn a_stream_without_the_expected_records_is_refused() {
        assert_eq!(records(&[], MemoryTypes::WriteBack, 0, 0), None);
        let whole = saved();
        for cut in [10, 40, 72] {
            assert_eq!(records(&whole[..cut], MemoryTypes::WriteBack, 0, 0), None, "{cut}");
        }
        let mut short = vec![];
        append(&mut short, Kind { code: HEADER, instance: 0 }, &[7; 24]);
        append(&mut short, Kind { code: MTRR, instance: 0 }, &[2; 239]);
        assert_eq!(records(&short, MemoryTypes::WriteBack, 0, 0), None);
    }
}
