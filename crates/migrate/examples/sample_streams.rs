//! Writes a small stream of each kind into a folder, for Xen's own `verify-stream-v2`.

#![expect(clippy::disallowed_methods, reason = "a program beside the crate, not part of it")]

use std::path::Path;

use migrate::libxc::{
    CpuidLeaf, DomainType, Headers, MsrEntry, P2mFrames, PAGE_BYTES, PageData, PageType, Record,
    Tsc, VcpuBlob, VcpuState,
};
use migrate::libxl::{self, Emulator};
use migrate::save_file;

fn common() -> Vec<Record> {
    vec![
        Record::CpuidPolicy(vec![CpuidLeaf { leaf: 1, ..CpuidLeaf::default() }]),
        Record::MsrPolicy(vec![MsrEntry { index: 0xce, ..MsrEntry::default() }]),
        Record::StaticDataEnd,
    ]
}

fn pages(pages: &[(u64, PageType)]) -> Record {
    let with_data = pages.iter().filter(|(_, kind)| kind.has_data()).count();
    let data = vec![0x5a; with_data * PAGE_BYTES];
    Record::PageData(PageData { pages: pages.to_vec(), data })
}

fn pv() -> Vec<Record> {
    let vcpu = |state, length| Record::Vcpu(VcpuBlob { state, vcpu: 0, bytes: vec![1; length] });
    let mut records = vec![Record::PvInfo { width: 8, levels: 4 }];
    records.extend(common());
    records.push(Record::P2mFrames(P2mFrames { start: 0, end: 1023, frames: vec![40, 41] }));
    let table = PageType::Table { level: 4, is_pinned: true };
    records.push(pages(&[(40, PageType::Normal), (3, table), (9, PageType::Invalid)]));
    records.push(Record::Tsc(Tsc { mode: 2, khz: 2_000_000, ..Tsc::default() }));
    records.push(Record::SharedInfo(vec![0; PAGE_BYTES].into()));
    records.push(vcpu(VcpuState::Basic, 5168));
    records.push(vcpu(VcpuState::Extended, 128));
    records.push(vcpu(VcpuState::Xsave, 832));
    records.push(vcpu(VcpuState::Msrs, 16));
    records.push(Record::End);
    records
}

fn hvm() -> Vec<Record> {
    let mut records = common();
    records.push(pages(&[(0, PageType::Normal), (1, PageType::AllocateOnly)]));
    records.push(Record::Tsc(Tsc::default()));
    records.push(Record::HvmContext(vec![3; 1000]));
    records.push(Record::HvmParams(vec![(1, 0xfeff_c000)]));
    records.push(Record::End);
    records
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let (emulator, index) = (Emulator::Qemu, 0);
    let nodes = vec![("/physmap/a0000/start_addr".to_owned(), "f0000000".to_owned())];
    let model = vec![
        libxl::Record::EmulatorNodes { emulator, index, nodes },
        libxl::Record::EmulatorContext { emulator, index, bytes: vec![0x51; 333] },
    ];
    for (name, domain, records, model) in [
        ("pv", DomainType::Pv, pv(), Vec::new()),
        ("pvh", DomainType::Hvm, hvm(), Vec::new()),
        ("hvm", DomainType::Hvm, hvm(), model),
    ] {
        let mut stream = Vec::new();
        Headers::new(domain, (4, 17)).encode(&mut stream);
        records.iter().for_each(|record| record.encode(&mut stream));
        std::fs::write(Path::new(&folder).join(format!("{name}.libxc")), &stream)?;
        let mut outer = Vec::new();
        libxl::encode_header(&mut outer);
        libxl::Record::LibxcContext.encode(&mut outer);
        outer.extend(stream);
        model.iter().for_each(|record| record.encode(&mut outer));
        libxl::Record::End.encode(&mut outer);
        std::fs::write(Path::new(&folder).join(format!("{name}.libxl")), &outer)?;
        let mut file = Vec::new();
        save_file::encode("{\"c_info\": {}}", &mut file);
        file.extend(outer);
        std::fs::write(Path::new(&folder).join(format!("{name}.save")), &file)?;
    }
    Ok(())
}
