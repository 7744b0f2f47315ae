//! Streams are read as they were written, in any pieces; whatever else comes is refused in a line.

use migrate::libxc::{
    self, CpuidLeaf, DomainType, Headers, MsrEntry, P2mFrames, PAGE_BYTES, PageData, PageType,
    Record, Tsc, VcpuBlob, VcpuState,
};
use migrate::libxl::{self, Emulator};
use migrate::{Fault, Input, StreamError, save_file};
use proptest::prelude::*;

const PFN_MAX: u64 = 0x10_0000;

/// Everything in a stream of libxl's, fed in pieces of this many bytes.
fn read(bytes: &[u8], piece: usize) -> Result<Vec<libxl::Item>, StreamError> {
    let (mut input, mut parser) = (Input::new(), libxl::Parser::new(PFN_MAX));
    let mut items = Vec::new();
    for bytes in bytes.chunks(piece.max(1)) {
        input.feed(bytes);
        while let Some(item) = parser.next(&mut input)? {
            items.push(item);
        }
    }
    input.end();
    while let Some(item) = parser.next(&mut input)? {
        items.push(item);
    }
    Ok(items)
}

fn refused(bytes: &[u8]) -> StreamError {
    let error = read(bytes, bytes.len()).expect_err("refused");
    assert_eq!(read(bytes, 1).as_ref(), Err(&error), "in small pieces");
    error
}

/// A page with this byte everywhere.
fn page(pfn: u64, byte: u8) -> Record {
    let (pages, data) = (vec![(pfn, PageType::Normal)], vec![byte; PAGE_BYTES]);
    Record::PageData(PageData { pages, data })
}

fn tsc() -> Record {
    Record::Tsc(Tsc { mode: 2, khz: 2_000_000, elapsed_ns: 7_000_000_000, incarnation: 1 })
}

fn pvh() -> Vec<Record> {
    vec![
        Record::CpuidPolicy(vec![CpuidLeaf { leaf: 1, subleaf: 0, registers: [1, 2, 3, 4] }]),
        Record::MsrPolicy(vec![MsrEntry { index: 0xce, flags: 0, value: 1 }]),
        Record::StaticDataEnd,
        page(0, 1),
        Record::PageData(PageData {
            pages: vec![
                (5, PageType::Invalid),
                (6, PageType::Normal),
                (7, PageType::AllocateOnly),
                (8, PageType::Broken),
            ],
            data: vec![9; PAGE_BYTES],
        }),
        tsc(),
        Record::HvmContext(vec![3; 1000]),
        Record::HvmParams(vec![(1, 0xfeff_c000), (5, 3)]),
        Record::End,
    ]
}

fn pv() -> Vec<Record> {
    let vcpu = |state, length| Record::Vcpu(VcpuBlob { state, vcpu: 0, bytes: vec![1; length] });
    vec![
        Record::PvInfo { width: 8, levels: 4 },
        Record::CpuidPolicy(vec![CpuidLeaf::default()]),
        Record::StaticDataEnd,
        Record::P2mFrames(P2mFrames { start: 0, end: 1023, frames: vec![40, 41] }),
        Record::PageData(PageData {
            pages: vec![
                (40, PageType::Normal),
                (3, PageType::Table { level: 4, is_pinned: true }),
                (4, PageType::Table { level: 1, is_pinned: false }),
            ],
            data: vec![0; 3 * PAGE_BYTES],
        }),
        tsc(),
        Record::SharedInfo(vec![0; PAGE_BYTES].into()),
        vcpu(VcpuState::Basic, 5168),
        vcpu(VcpuState::Extended, 128),
        vcpu(VcpuState::Xsave, 832),
        vcpu(VcpuState::Msrs, 16),
        Record::End,
    ]
}

fn libxc(headers: Headers, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    headers.encode(&mut bytes);
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}

fn headers(domain: DomainType) -> Headers {
    Headers::new(domain, (4, 17))
}

fn within_libxl(stream: &[u8], emulator: &[libxl::Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    libxl::encode_header(&mut bytes);
    libxl::Record::LibxcContext.encode(&mut bytes);
    bytes.extend_from_slice(stream);
    emulator.iter().for_each(|record| record.encode(&mut bytes));
    libxl::Record::End.encode(&mut bytes);
    bytes
}

fn emulator() -> Vec<libxl::Record> {
    let (emulator, index) = (Emulator::Qemu, 0);
    let nodes = vec![("/physmap/a0000/start_addr".to_owned(), "f0000000".to_owned())];
    vec![
        libxl::Record::EmulatorNodes { emulator, index, nodes },
        libxl::Record::EmulatorContext { emulator, index, bytes: vec![0x51; 333] },
    ]
}

/// The items that such a stream has.
fn items(headers: Headers, records: &[Record], emulator: &[libxl::Record]) -> Vec<libxl::Item> {
    let mut items = vec![libxl::Item::Record(libxl::Record::LibxcContext)];
    items.push(libxl::Item::Libxc(libxc::Item::Headers(headers)));
    items.extend(records.iter().cloned().map(|it| libxl::Item::Libxc(libxc::Item::Record(it))));
    items.extend(emulator.iter().cloned().map(libxl::Item::Record));
    items.push(libxl::Item::Record(libxl::Record::End));
    items
}

#[test]
fn streams_of_every_kind_are_read_as_written() {
    for (domain, records, emulator) in [
        (DomainType::Pv, pv(), Vec::new()),
        (DomainType::Hvm, pvh(), Vec::new()),
        (DomainType::Hvm, pvh(), emulator()),
    ] {
        let headers = headers(domain);
        let bytes = within_libxl(&libxc(headers, &records), &emulator);
        for piece in [bytes.len(), 1, 7, 4096] {
            assert_eq!(read(&bytes, piece), Ok(items(headers, &records, &emulator)));
        }
    }
}

#[test]
fn a_stream_of_version_2_says_by_itself_where_static_data_ends() {
    for (domain, records) in [(DomainType::Pv, pv()), (DomainType::Hvm, pvh())] {
        let without = |record: &&Record| {
            !matches!(record, Record::StaticDataEnd | Record::CpuidPolicy(_) | Record::MsrPolicy(_))
        };
        let records: Vec<Record> = records.iter().filter(without).cloned().collect();
        let old = Headers { version: 2, ..headers(domain) };
        let bytes = within_libxl(&libxc(old, &records), &[]);
        assert_eq!(read(&bytes, 100), Ok(items(old, &records, &[])));
        let new = within_libxl(&libxc(headers(domain), &records), &[]);
        assert_eq!(refused(&new).fault, Fault::Before("STATIC_DATA_END"));
    }
}

#[test]
fn a_cut_is_told_from_the_end_at_every_byte() {
    let bytes = within_libxl(&libxc(headers(DomainType::Hvm), &pvh()), &emulator());
    for length in (0..bytes.len()).step_by(31).chain(bytes.len() - 9..bytes.len()) {
        assert_eq!(refused(&bytes[..length]).fault, Fault::Truncated, "after {length} bytes");
    }
}

/// A stream in which one record was replaced or left out.
fn with(change: impl Fn(usize, &Record) -> Vec<Record>, domain: DomainType) -> StreamError {
    let records = if domain == DomainType::Pv { pv() } else { pvh() };
    let records: Vec<Record> =
        records.iter().enumerate().flat_map(|(at, record)| change(at, record)).collect();
    refused(&within_libxl(&libxc(headers(domain), &records), &[]))
}

#[test]
fn what_does_not_belong_or_is_out_of_order_is_named() {
    use DomainType::{Hvm, Pv};
    let twice = |domain, wanted: fn(&Record) -> bool| {
        with(
            |_, it| if wanted(it) { vec![it.clone(), it.clone()] } else { vec![it.clone()] },
            domain,
        )
        .fault
    };
    assert_eq!(twice(Hvm, |it| *it == Record::StaticDataEnd), Fault::Twice);
    assert_eq!(twice(Pv, |it| matches!(it, Record::PvInfo { .. })), Fault::Twice);
    let instead = |domain, at, record: Record| {
        with(|i, it| vec![if i == at { record.clone() } else { it.clone() }], domain)
    };
    let error = instead(Hvm, 3, Record::SharedInfo(vec![0; PAGE_BYTES].into()));
    assert_eq!(error.fault, Fault::WrongKind("HVM or PVH"));
    assert!(error.to_string().starts_with("record 3 (SHARED_INFO) at byte "), "{error}");
    assert_eq!(instead(Pv, 5, Record::HvmParams(vec![(1, 1)])).fault, Fault::WrongKind("PV"));
    let beyond = instead(Hvm, 3, page(1 << 51, 0));
    assert_eq!(
        beyond.to_string(),
        format!("{}: page 0x8000000000000 is beyond what this domain may have", beyond.place)
    );
    let p2m = |start, end, frames| {
        let frames = vec![0; frames];
        instead(Pv, 3, Record::P2mFrames(P2mFrames { start, end, frames })).fault
    };
    assert_eq!(p2m(0, u32::MAX, 2), Fault::PageBeyond(u32::MAX.into()));
    assert_eq!(p2m(0, 1023, 3), Fault::Length(32));
    assert_eq!(p2m(1023, 0, 2), Fault::Unknown("the first page", 1023));
    assert_eq!(
        with(|at, it| if at == 3 { vec![] } else { vec![it.clone()] }, Pv).fault,
        Fault::Before("X86_PV_P2M_FRAMES")
    );
    let table = PageData {
        pages: vec![(1, PageType::Table { level: 1, is_pinned: false })],
        data: vec![0; PAGE_BYTES],
    };
    assert_eq!(instead(Hvm, 3, Record::PageData(table)).fault, Fault::WrongKind("HVM or PVH"));
}

/// A record with these bytes, in a PVH stream after its static data.
fn raw(kind: u32, length: u32, body: &[u8]) -> Vec<u8> {
    let mut stream = libxc(headers(DomainType::Hvm), &[Record::StaticDataEnd]);
    stream.extend(kind.to_le_bytes());
    stream.extend(length.to_le_bytes());
    stream.extend(body);
    Record::End.encode(&mut stream);
    within_libxl(&stream, &[])
}

#[test]
fn records_that_claim_what_cannot_be_are_refused_before_anything_is_allocated() {
    let pages = |count: u32, word: u64, data: usize| {
        let mut body = [count.to_le_bytes(), [0; 4]].concat();
        body.extend(word.to_le_bytes());
        body.resize(16 + data, 0);
        let length = u32::try_from(body.len()).unwrap();
        refused(&raw(1, length, &body)).fault
    };
    assert_eq!(pages(0, 0, 0), Fault::Length(16));
    assert_eq!(pages(u32::MAX, 0, 0), Fault::Length(16));
    assert_eq!(pages(1, 0, 4095), Fault::Length(16 + 4095));
    assert_eq!(pages(1, 0xf << 60, PAGE_BYTES), Fault::Length(16 + 4096));
    assert_eq!(pages(1, 5 << 60, PAGE_BYTES), Fault::Unknown("the type of a page", 5));
    assert!(matches!(pages(1, 1 << 55, PAGE_BYTES), Fault::Unknown("the number of a page", _)));
    assert_eq!(refused(&raw(1, u32::MAX, &[])).fault, Fault::TooLong(u32::MAX.into()));
    // Nobody sends such a batch. A list of frames may be that long.
    let long = (16 << 20) + 8;
    assert_eq!(refused(&raw(1, long, &[])).fault, Fault::TooLong(long.into()));
    assert_eq!(refused(&raw(3, long, &[])).fault, Fault::Truncated);
    assert_eq!(refused(&raw(9, 3, &[1, 1, 1, 0, 0, 0, 0, 1])).fault, Fault::Padding);
    assert_eq!(refused(&raw(0x13, 0, &[])).fault, Fault::UnknownRecord);
    assert_eq!(refused(&raw(0xf, 8, &[0; 8])).fault, Fault::UnknownRecord);
    assert_eq!(refused(&raw(0xd, 8, &[0; 8])).fault, Fault::Length(8));
    // What may be skipped is.
    assert!(read(&raw(0x8000_0013, 8, &[7; 8]), 10).is_ok());
    // Parameters of which there are none: written by Xen 4.6 to 4.8.
    assert!(read(&raw(0xa, 8, &[0; 8]), 10).is_ok());
}

#[test]
fn foreign_streams_are_told_apart() {
    let good = within_libxl(&libxc(headers(DomainType::Hvm), &pvh()), &[]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        refused(&bytes).fault
    };
    assert_eq!(changed(0, b'X'), Fault::NotOne("a stream of libxl from Xen 4.6 or newer"));
    assert_eq!(changed(11, 1), Fault::Version(1));
    assert_eq!(changed(15, 1), Fault::BigEndian);
    assert_eq!(changed(15, 4), Fault::Unknown("the option word", 4));
    // libxc's headers begin after libxl's and one record.
    let inner = 24;
    assert_eq!(changed(inner, 0), Fault::NotOne("a migration stream of Xen 4.6 or newer"));
    assert_eq!(changed(inner + 15, 4), Fault::Version(4));
    assert_eq!(changed(inner + 15, 1), Fault::Version(1));
    assert_eq!(changed(inner + 17, 1), Fault::BigEndian);
    assert_eq!(changed(inner + 24, 3), Fault::Unknown("the type of the domain", 3));
    assert_eq!(changed(inner + 28, 13), Fault::Unknown("the page size", 13));
    let mut twice = Vec::new();
    libxl::encode_header(&mut twice);
    libxl::Record::End.encode(&mut twice);
    assert_eq!(refused(&twice).fault, Fault::Before("LIBXC_CONTEXT"));
}

#[test]
fn nodes_of_a_device_model_are_pairs() {
    let stream = libxc(headers(DomainType::Hvm), &pvh());
    for (bytes, is_good) in [
        (&b"a\0b\0"[..], true),
        (b"", true),
        (b"a\0", false),
        (b"a\0b", false),
        (b"\xff\0b\0", false),
    ] {
        let mut outer = Vec::new();
        libxl::encode_header(&mut outer);
        libxl::Record::LibxcContext.encode(&mut outer);
        outer.extend_from_slice(&stream);
        outer.extend(2_u32.to_le_bytes());
        outer.extend(u32::try_from(8 + bytes.len()).unwrap().to_le_bytes());
        outer.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        outer.extend(bytes);
        outer.resize(outer.len().next_multiple_of(8), 0);
        libxl::Record::End.encode(&mut outer);
        match is_good {
            true => assert!(read(&outer, 5).is_ok(), "{bytes:?}"),
            false => assert_eq!(refused(&outer).fault, Fault::Pairs, "{bytes:?}"),
        }
    }
}

#[test]
fn a_file_of_xl_has_its_configuration_first() {
    let config = "{\"c_info\": {\"name\": \"one\"}}";
    let mut file = Vec::new();
    save_file::encode(config, &mut file);
    let start = file.len();
    file.extend(within_libxl(&libxc(headers(DomainType::Hvm), &pvh()), &[]));
    for piece in [1, 50, file.len()] {
        let mut input = Input::new();
        let mut found = None;
        for bytes in file.chunks(piece) {
            input.feed(bytes);
            if found.is_none() {
                found = save_file::parse(&mut input).unwrap();
            }
        }
        assert_eq!(found.as_deref(), Some(config));
        assert_eq!(input.offset(), start as u64);
    }
    let changed = |at: usize, byte: u8| {
        let mut input = Input::new();
        let mut bytes = file.clone();
        bytes[at] = byte;
        input.feed(&bytes);
        save_file::parse(&mut input).unwrap_err().fault
    };
    assert_eq!(changed(0, b'Y'), Fault::NotOne("a file of `xl save`"));
    assert_eq!(changed(32, 9), Fault::Unknown("the byte order", 0x0102_0309));
    assert_eq!(changed(36, 1), Fault::NotOne("a file of `xl save` from Xen 4.6 or newer"));
    assert_eq!(changed(36, 7), Fault::Unknown("the mandatory flags", 7));
    assert_eq!(changed(47, 0xff), Fault::TooLong(0xff00_001f));
    assert_eq!(changed(51, 1), Fault::Length(config.len() as u64 + 4));
}

proptest! {
    /// Whatever comes, a parser ends with items or an error, and holds no more than has come.
    #[test]
    fn damaged_streams_never_panic(
        changes in prop::collection::vec((0_usize..9000, any::<u8>()), 0..6),
        piece in 1_usize..600,
        domain in prop::bool::ANY,
    ) {
        let (domain, records) =
            if domain { (DomainType::Pv, pv()) } else { (DomainType::Hvm, pvh()) };
        let mut bytes = within_libxl(&libxc(headers(domain), &records), &emulator());
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        let whole = read(&bytes, bytes.len());
        prop_assert_eq!(read(&bytes, piece), whole);
    }
}
