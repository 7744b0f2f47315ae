//! A saved VM in our own format is read as it was written, in order or by its index; whatever is
//! damaged, cut or impossible is refused.

use std::collections::BTreeMap;

use migrate::image::{
    Arrivals, Codec, Fact, FileReader, Head, ImageError, Item, Lane, Lanes, Limits, Pages,
    StreamReader, Weight, Writer, is_image,
};
use migrate::libxc::{
    DomainType, Headers, P2mFrames, PAGE_BYTES, PageData, PageType, Record, Tsc, VcpuBlob,
    VcpuState,
};
use migrate::{Fault, Input, StreamError, libxl};
use proptest::prelude::*;

const LIMITS: Limits = Limits { pfn_max: 0x10_0000, known_facts: &["known"] };
const TOKEN: [u8; 16] = [7; 16];

fn head(domain: DomainType) -> Head {
    Head {
        name: "one".to_owned(),
        uuid: [3; 16],
        config: "name = \"one\"".to_owned(),
        headers: Headers::new(domain, (4, 17)),
        pages_max: 32768,
        vcpus: 2,
        created: 1_800_000_000,
        facts: vec![Fact { key: "new".to_owned(), value: vec![1], weight: Weight::Optional }],
    }
}

/// What a domain's memory is: the type of each page and its content.
type Memory = BTreeMap<u64, (PageType, Option<Vec<u8>>)>;

fn apply(memory: &mut Memory, data: &PageData) {
    for (pfn, kind, content) in data.iter() {
        memory.insert(pfn, (kind, content.map(<[u8]>::to_vec)));
    }
}

fn page_data(pages: &[(u64, PageType, u8)]) -> PageData {
    let mut data = PageData::default();
    for &(pfn, kind, fill) in pages {
        data.pages.push((pfn, kind));
        if kind.has_data() {
            data.data.extend(content(fill));
        }
    }
    data
}

/// Zeros, compressible bytes, or bytes that are not.
fn content(fill: u8) -> Vec<u8> {
    let mut state = u32::from(fill).wrapping_mul(0x9e37_79b9) | 1;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    match fill {
        0 => vec![0; PAGE_BYTES],
        200.. => (0..PAGE_BYTES).map(|_| noise()).collect(),
        fill => vec![fill; PAGE_BYTES],
    }
}

fn before_pages(domain: DomainType) -> Vec<Record> {
    match domain {
        DomainType::Hvm => vec![Record::StaticDataEnd],
        DomainType::Pv => vec![
            Record::PvInfo { width: 8, levels: 4 },
            Record::StaticDataEnd,
            Record::P2mFrames(P2mFrames { start: 0, end: 511, frames: vec![1] }),
        ],
    }
}

fn after_pages(domain: DomainType, number: u8) -> Vec<Record> {
    let tsc = Record::Tsc(Tsc { mode: 2, khz: number.into(), elapsed_ns: 7, incarnation: 1 });
    let vcpu = |vcpu| VcpuBlob { state: VcpuState::Basic, vcpu, bytes: vec![number; 50] };
    match domain {
        DomainType::Hvm => vec![tsc, Record::HvmContext(vec![number; 100])],
        DomainType::Pv => vec![tsc, Record::Vcpu(vcpu(0)), Record::Vcpu(vcpu(1))],
    }
}

fn emulator(number: u8) -> libxl::Record {
    let emulator = libxl::Emulator::Qemu;
    libxl::Record::EmulatorContext { emulator, index: 0, bytes: vec![number; 30] }
}

/// A domain, its rounds, each a list of batches.
#[derive(Clone, Debug)]
struct Story {
    domain: DomainType,
    codec: Codec,
    rounds: Vec<Vec<PageData>>,
    /// A checkpoint after each round, instead of one state at the end.
    checkpoints: bool,
}

impl Story {
    fn file(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let writer = Writer::file(&head(self.domain), self.codec, &mut out);
        self.write(writer, &mut out);
        out
    }

    fn connection(&self, lane: Lane) -> Vec<u8> {
        let mut out = Vec::new();
        let writer = match lane.number {
            0 => Writer::connection(&head(self.domain), lane, &TOKEN, self.codec, &mut out),
            _ => Writer::further(lane, &TOKEN, self.codec, &mut out),
        };
        self.write(writer, &mut out);
        out
    }

    fn write(&self, mut writer: Writer, out: &mut Vec<u8>) {
        let is_first = writer.lane().number == 0;
        let mut number = 0;
        let mut state = |writer: &mut Writer, out: &mut Vec<u8>| {
            number += 1;
            let records = after_pages(self.domain, number);
            records.iter().for_each(|record| writer.record(record, out));
            writer.emulator(&emulator(number), out);
            writer.checkpoint(out);
        };
        if is_first {
            before_pages(self.domain).iter().for_each(|record| writer.record(record, out));
        }
        for round in &self.rounds {
            round.iter().for_each(|batch| writer.pages(batch, out));
            writer.end_round(out);
            if self.checkpoints && is_first {
                state(&mut writer, out);
            }
        }
        if !self.checkpoints && is_first {
            state(&mut writer, out);
        }
        assert_eq!(writer.offset(), out.len() as u64);
        writer.finish(out);
    }

    fn states(&self) -> u8 {
        if self.checkpoints { u8::try_from(self.rounds.len()).unwrap() } else { 1 }
    }

    fn memory(&self) -> Memory {
        let mut memory = Memory::new();
        self.rounds.iter().flatten().for_each(|batch| apply(&mut memory, batch));
        memory
    }
}

fn read(bytes: &[u8], piece: usize) -> Result<Vec<Item>, StreamError> {
    let (mut input, mut reader) = (Input::new(), StreamReader::new(LIMITS));
    let mut items = Vec::new();
    for bytes in bytes.chunks(piece.max(1)) {
        input.feed(bytes);
        while let Some(item) = reader.next(&mut input)? {
            items.push(item);
        }
    }
    input.end();
    while let Some(item) = reader.next(&mut input)? {
        items.push(item);
    }
    assert!(reader.has_ended() && items.last() == Some(&Item::End));
    assert_eq!(input.unparsed(), 0);
    Ok(items)
}

fn memory_of(items: &[Item]) -> Memory {
    let mut memory = Memory::new();
    for item in items {
        if let Item::Pages(pages) = item {
            apply(&mut memory, &pages.clone().into_page_data());
        }
    }
    memory
}

/// Everything that a file has, read by its index.
#[derive(Debug, Eq, PartialEq)]
struct Whole {
    head: Head,
    before: Vec<Record>,
    memory: Memory,
    after: (Vec<Record>, Vec<libxl::Record>),
}

fn read_file(bytes: &[u8]) -> Result<Whole, ImageError> {
    let file = FileReader::open(bytes, LIMITS)?;
    let mut memory = Memory::new();
    // Any order: here, the last first.
    for part in (0..file.parts()).rev() {
        let pages: Pages = file.part(bytes, part)?;
        for (pfn, _, _) in pages.clone().into_page_data().iter() {
            assert!(!memory.contains_key(&pfn), "page {pfn:#x} comes twice");
            assert_eq!(file.part_of(pfn), Some(part));
        }
        apply(&mut memory, &pages.into_page_data());
    }
    let (before, after) = (file.before_pages(bytes)?, file.after_pages(bytes)?);
    Ok(Whole { head: file.head().clone(), before, memory, after })
}

fn small(codec: Codec) -> Story {
    use PageType::{AllocateOnly, Invalid, Normal};
    let first = page_data(&[
        (0, Normal, 1),
        (1, Normal, 0),
        (2, Normal, 2),
        (3, AllocateOnly, 0),
        (600, Normal, 3),
        (601, Normal, 0),
    ]);
    let second = page_data(&[(1, Normal, 9), (600, Invalid, 0)]);
    let rounds = vec![vec![first], vec![second]];
    Story { domain: DomainType::Hvm, codec, rounds, checkpoints: false }
}

#[test]
fn a_file_and_a_connection_have_everything_in_order() {
    for codec in Codec::ALL {
        let story = small(codec);
        for (bytes, lane) in [(story.file(), None), (story.connection(Lane::ONLY), Some(()))] {
            assert!(is_image(&bytes));
            let items = read(&bytes, bytes.len()).unwrap();
            for piece in [1, 7, 4096] {
                assert_eq!(read(&bytes, piece).as_ref(), Ok(&items));
            }
            assert_eq!(memory_of(&items), story.memory());
            let rest: Vec<Item> =
                items.into_iter().filter(|item| !matches!(item, Item::Pages(_))).collect();
            let mut expected = vec![Item::Head(Box::new(head(DomainType::Hvm)))];
            expected.extend(lane.map(|()| Item::Lane(Lane::ONLY, TOKEN)));
            expected.push(Item::Record(Record::StaticDataEnd));
            expected.extend([Item::EndOfRound(0), Item::EndOfRound(1)]);
            expected.extend(after_pages(DomainType::Hvm, 1).into_iter().map(Item::Record));
            expected.extend([Item::Emulator(emulator(1)), Item::Checkpoint, Item::End]);
            assert_eq!(rest, expected);
        }
    }
}

#[test]
fn a_file_read_by_its_index_has_the_newest_of_everything() {
    let mut story = small(Codec::Lz4);
    story.checkpoints = true;
    let bytes = story.file();
    let whole = read_file(&bytes).unwrap();
    assert_eq!(whole.head, head(DomainType::Hvm));
    assert_eq!(whole.before, before_pages(DomainType::Hvm));
    assert_eq!(whole.memory, story.memory());
    assert_eq!(whole.after, (after_pages(DomainType::Hvm, 2), vec![emulator(2)]));
    let file = FileReader::open(&bytes[..], LIMITS).unwrap();
    assert_eq!(file.part_of(5), None);
    assert_eq!(file.part_of(1 << 60), None);
}

#[test]
fn zeros_and_holes_cost_next_to_nothing() {
    let zeros: Vec<_> = (0..4096).map(|pfn| (pfn, PageType::Normal, 0)).collect();
    let rounds = vec![vec![page_data(&zeros)]];
    let story = Story { domain: DomainType::Hvm, codec: Codec::None, rounds, checkpoints: false };
    let empty = Story { rounds: vec![vec![]], ..story.clone() };
    let cost = story.file().len() - empty.file().len();
    assert!(cost < 16 * 120, "{cost} bytes for 16 MiB of zeros");
    let items = read(&story.file(), 1000).unwrap();
    let listed = |item: &Item| matches!(item, Item::Pages(pages) if !pages.data.pages.is_empty());
    assert!(!items.iter().any(listed), "zeros are runs");
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is() {
    let pages: Vec<_> = (0..16).map(|pfn| (pfn, PageType::Normal, 200)).collect();
    let mut sizes = Codec::ALL.map(|codec| {
        let mut out = Vec::new();
        let mut writer = Writer::file(&head(DomainType::Hvm), codec, &mut out);
        let start = out.len();
        writer.record(&Record::StaticDataEnd, &mut out);
        // One at a time: together, the same bytes again would be found.
        for (pfn, kind, fill) in &pages {
            writer.pages(&page_data(&[(*pfn, *kind, *fill)]), &mut out);
        }
        assert_eq!(writer.counts().pages, 16);
        assert_eq!(writer.counts().raw_bytes, 16 * 4096);
        assert_eq!(writer.counts().stored_bytes, 16 * 4096);
        out.len() - start
    });
    sizes.sort_unstable();
    assert_eq!(sizes[0], sizes[2]);
}

#[test]
fn a_cut_is_told_at_every_byte() {
    let story = small(Codec::Zstd);
    for (bytes, is_file) in [(story.file(), true), (story.connection(Lane::ONLY), false)] {
        for length in 0..bytes.len() {
            let error = read(&bytes[..length], 512).unwrap_err();
            assert_eq!(error.fault, Fault::Truncated, "after {length} bytes");
            if !is_file {
                continue;
            }
            match FileReader::open(&bytes[..length], LIMITS).unwrap_err() {
                ImageError::Stream(StreamError { fault: Fault::Unfinished, .. }) => {}
                ImageError::Stream(StreamError { fault: Fault::NotOne(_), .. }) if length < 8 => {}
                ImageError::Stream(StreamError { fault: Fault::Truncated, .. }) if length < 24 => {}
                other => panic!("after {length} bytes: {other}"),
            }
        }
    }
    let cut = &story.file()[..1000];
    let error = FileReader::open(cut, LIMITS).unwrap_err();
    assert_eq!(error.to_string(), "the trailer: it was not finished: its end is missing");
}

#[test]
fn every_changed_bit_is_found() {
    for codec in Codec::ALL {
        let mut story = small(codec);
        story.rounds[0][0] = page_data(&[(1, PageType::Normal, 3), (600, PageType::Normal, 0)]);
        let (file, stream) = (story.file(), story.connection(Lane::ONLY));
        let whole = read_file(&file).unwrap();
        // They differ in the contents of pages only.
        let step = if codec == Codec::Lz4 { 1 } else { 13 };
        for bit in (0..8 * file.len()).step_by(step) {
            let mut bytes = file.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes, bytes.len()).is_err(), "bit {bit}");
            // What was replaced by newer copies is not read by the index.
            if let Ok(found) = read_file(&bytes) {
                assert_eq!(found, whole, "bit {bit}");
            }
        }
        for bit in (0..8 * stream.len()).step_by(step) {
            let mut bytes = stream.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (mut input, mut reader) = (Input::new(), StreamReader::new(LIMITS));
            input.feed(&bytes);
            input.end();
            let mut result = reader.next(&mut input);
            while let Ok(Some(_)) = result {
                result = reader.next(&mut input);
            }
            assert!(result.is_err(), "bit {bit}");
        }
    }
}

#[test]
fn facts_of_the_future_are_skipped_unless_they_are_essential() {
    let with = |key: &str, weight| {
        let mut head = head(DomainType::Hvm);
        head.facts = vec![Fact { key: key.to_owned(), value: b"x".to_vec(), weight }];
        let mut out = Vec::new();
        Writer::file(&head, Codec::None, &mut out).finish(&mut out);
        out
    };
    let new = with("new", Weight::Optional);
    assert_eq!(FileReader::open(&new[..], LIMITS).unwrap().head().fact("new"), Some(&b"x"[..]));
    assert!(FileReader::open(&with("known", Weight::Essential)[..], LIMITS).is_ok());
    let refused = with("new", Weight::Essential);
    let error = FileReader::open(&refused[..], LIMITS).unwrap_err().to_string();
    assert_eq!(error, "the frame at byte 24: it needs `new`, which this version does not know");
    assert_eq!(read(&refused, 10).unwrap_err().fault, Fault::Essential("new".to_owned()));
    assert_eq!(read(&with("name", Weight::Optional), 10).unwrap_err().fault, Fault::Twice);
}

/// A frame with these fields, and checksums that match.
fn frame(kind: u16, codec: u8, words: (u32, u64, [u32; 4]), body: &[u8]) -> Vec<u8> {
    let (epoch, first, [count, directory, stored, raw]) = words;
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([codec, 0]);
    bytes.extend(epoch.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    for word in [count, directory, stored, raw] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(twox_hash::XxHash64::oneshot(0, body).to_le_bytes());
    bytes.extend(twox_hash::XxHash64::oneshot(0, &bytes).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn frames_that_claim_what_cannot_be_are_refused() {
    let mut start = Vec::new();
    let mut writer = Writer::file(&head(DomainType::Hvm), Codec::None, &mut start);
    writer.record(&Record::StaticDataEnd, &mut start);
    let fault = |kind, codec, words, body: &[u8]| {
        let bytes = [start.clone(), frame(kind, codec, words, body)].concat();
        read(&bytes, bytes.len()).unwrap_err().fault
    };
    let max = u32::MAX;
    // Lengths that nobody would send.
    assert_eq!(fault(4, 0, (0, 0, [1, 4, max, 4096]), &[]), Fault::TooLong(max.into()));
    assert_eq!(fault(3, 0, (0, 0, [0, 0, max, 0]), &[]), Fault::TooLong(max.into()));
    assert_eq!(fault(4, 0, (0, 0, [1, max, 4, 4096]), &[0; 4]), Fault::Length(max.into()));
    assert_eq!(fault(4, 0, (0, 0, [0, 0, 0, 0]), &[]), Fault::Length(0));
    // 2^60 pages, and a page beyond 2^60.
    let zeros = (255_u32 << 8 | 1 << 20).to_le_bytes();
    assert_eq!(fault(4, 0, (0, 0, [max, 4, 4, 0]), &zeros), Fault::Mismatch("the directory"));
    let beyond = fault(4, 0, (0, 1 << 60, [256, 4, 4, 0]), &zeros);
    assert_eq!(beyond, Fault::PageBeyond((1 << 60) + 255));
    let last = u64::MAX - 255;
    assert_eq!(fault(4, 0, (0, last, [256, 4, 4, 0]), &zeros), Fault::PageBeyond(u64::MAX));
    assert_eq!(fault(4, 0, (0, 1, [256, 4, 4, 0]), &zeros), Fault::Unknown("the first page", 1));
    // A page that would become more than it says, and less.
    let page = 0_u32.to_le_bytes();
    let packed =
        |length| [page.to_vec(), zstd::bulk::compress(&vec![0; length], 1).unwrap()].concat();
    for length in [0, 4095, 4097, 64 << 20] {
        let body = packed(length);
        let stored = u32::try_from(body.len()).unwrap();
        let words = (0, 0, [1, 4, stored, 4096]);
        assert_eq!(fault(4, 2, words, &body), Fault::Decompress, "{length}");
    }
    assert_eq!(fault(4, 0, (0, 0, [1, 4, 4, 4096]), &page), Fault::Decompress);
    assert_eq!(fault(4, 3, (0, 0, [1, 4, 4, 4096]), &page), Fault::Unknown("the codec", 3));
    // Runs that overlap, that are beyond the block, that are not known.
    let twice = [page, page].concat();
    assert_eq!(fault(4, 0, (0, 0, [2, 8, 8, 8192]), &twice), Fault::Unknown("a run of pages", 0));
    let wide = (1_u32 | 255 << 8 | 1 << 20).to_le_bytes();
    assert!(matches!(
        fault(4, 0, (0, 0, [256, 4, 4, 0]), &wide),
        Fault::Unknown("a run of pages", _)
    ));
    let strange = (5_u32 << 16).to_le_bytes();
    assert_eq!(
        fault(4, 0, (0, 0, [1, 4, 4, 4096]), &strange),
        Fault::Unknown("the type of a page", 5)
    );
    // What does not come now.
    assert_eq!(fault(4, 0, (1, 0, [256, 4, 4, 0]), &zeros), Fault::Unknown("the round", 1));
    assert_eq!(
        fault(6, 0, (0, 0, [0, 0, 8, 0]), &[1, 0, 0, 0, 0, 0, 0, 0]),
        Fault::Mismatch("the number of pages")
    );
    assert_eq!(fault(10, 0, (0, 0, [0; 4]), &[]), Fault::Before("END"));
    assert_eq!(fault(77, 0, (0, 0, [0; 4]), &[]), Fault::UnknownRecord);
    assert_eq!(fault(1, 0, (0, 0, [0; 4]), &[]), Fault::Twice);
    let end = [[9_u8, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0; 8]].concat();
    assert_eq!(fault(8, 0, (0, 0, [0, 0, 24, 0]), &end), Fault::Mismatch("the number of frames"));
    // What may be skipped is.
    assert_eq!(fault(0x8123, 0, (0, 0, [0, 0, 1, 0]), &[1]), Fault::Truncated);
    // Page tables in a domain that has none of its own.
    let table = (1_u32 << 16).to_le_bytes();
    let body = [table.to_vec(), vec![1; 4096]].concat();
    assert_eq!(fault(4, 0, (0, 0, [1, 4, 4100, 4096]), &body), Fault::WrongKind("HVM or PVH"));
}

/// A file with another index: the bodies of its frames of state and of pages.
fn with_index(file: &[u8], bodies: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let trailer = file.len() - 40;
    let (end, index) = (word(trailer + 8), word(trailer + 16));
    let mut out = file[..usize::try_from(index).unwrap()].to_vec();
    for (kind, body) in bodies {
        let stored = u32::try_from(body.len()).unwrap();
        out.extend(frame(*kind, 0, (2, 0, [0, 0, stored, 0]), body));
    }
    let length = out.len() as u64 + 40;
    let at = out.len();
    out.extend(b"XYLEMEND");
    [end, index, length].into_iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend(twox_hash::XxHash64::oneshot(0, &out[at..]).to_le_bytes());
    out
}

#[test]
fn an_index_that_names_a_frame_again_and_again_is_refused() {
    const STATE: u16 = 9;
    const PAGES: u16 = 10;
    let mut file = Vec::new();
    let mut writer = Writer::file(&head(DomainType::Hvm), Codec::None, &mut file);
    let mut ends = Vec::new();
    for record in [Record::StaticDataEnd, Record::HvmContext(vec![7; 1000])] {
        let start = writer.offset();
        writer.record(&record, &mut file);
        ends.push((start, writer.offset() - start));
    }
    let start = writer.offset();
    writer.pages(&page_data(&[(0, PageType::Normal, 1), (1, PageType::Normal, 2)]), &mut file);
    let pages = (start, writer.offset() - start);
    writer.finish(&mut file);
    let entry = |(offset, length): (u64, u64), phase: u32| {
        let length = u32::try_from(length).unwrap();
        [&offset.to_le_bytes()[..], &length.to_le_bytes(), &phase.to_le_bytes()].concat()
    };
    let part = |(offset, length): (u64, u64), newest: u64| {
        let length = u32::try_from(length).unwrap();
        let (block, rest) = (0_u64.to_le_bytes(), [0; 24]);
        let place = [&offset.to_le_bytes()[..], &length.to_le_bytes(), &[0; 4]].concat();
        [&block[..], &place, &newest.to_le_bytes(), &rest].concat()
    };
    let opened = |bodies: &[(u16, Vec<u8>)]| {
        let bytes = with_index(&file, bodies);
        FileReader::open(&bytes[..], LIMITS).map(|file| file.parts()).map_err(|it| it.to_string())
    };
    let (before, after) = (entry(ends[0], 0), entry(ends[1], 1));
    let whole = [(STATE, [before.clone(), after.clone()].concat()), (PAGES, part(pages, 3))];
    assert_eq!(opened(&whole), Ok(1));
    let refused = |bodies: &[(u16, Vec<u8>)]| {
        let told = opened(bodies).unwrap_err();
        assert!(told.ends_with("an entry of the index does not match the rest"), "{told}");
    };
    refused(&[(STATE, [before.clone(), after.clone(), after.clone()].concat())]);
    refused(&[(STATE, [before.clone(), after.clone()].concat()), (STATE, after.clone())]);
    refused(&[(STATE, [after, before].concat())]);
    refused(&[(PAGES, [part(pages, 1), part(pages, 2)].concat())]);
}

#[test]
fn a_head_that_is_longer_than_any_is_refused() {
    let long = Head { config: "x".repeat(4 << 20), ..head(DomainType::Hvm) };
    let mut file = Vec::new();
    Writer::file(&long, Codec::None, &mut file).finish(&mut file);
    assert!(matches!(read(&file, file.len()).unwrap_err().fault, Fault::TooLong(_)));
}

#[test]
fn a_foreign_file_is_told() {
    let mut bytes = small(Codec::None).file();
    bytes[0] ^= 1;
    assert!(!is_image(&bytes));
    let error = FileReader::open(&bytes[..], LIMITS).unwrap_err();
    assert_eq!(error.to_string(), "the beginning: this is not a VM saved by Xylem");
    assert!(matches!(read(&bytes, 3).unwrap_err().fault, Fault::NotOne(_)));
}

/// Pages of one batch: ascending, in three blocks that are near and one that is far.
fn batch(domain: DomainType) -> impl Strategy<Value = PageData> {
    let kinds = match domain {
        DomainType::Pv => vec![
            PageType::Normal,
            PageType::Table { level: 1, is_pinned: false },
            PageType::Table { level: 4, is_pinned: true },
            PageType::Broken,
            PageType::AllocateOnly,
            PageType::Invalid,
        ],
        DomainType::Hvm => vec![PageType::Normal, PageType::Normal, PageType::Invalid],
    };
    let fill = prop_oneof![3 => Just(0_u8), 2 => 1..6_u8, 1 => 200..203_u8];
    let pfn = prop_oneof![0..40_u64, 240..270_u64, 500..530_u64, 0xf_ff00..0xf_ff10_u64];
    let pages = prop::collection::btree_map(pfn, (prop::sample::select(kinds), fill), 0..40);
    pages.prop_map(|pages| {
        let pages: Vec<_> =
            pages.into_iter().map(|(pfn, (kind, fill))| (pfn, kind, fill)).collect();
        page_data(&pages)
    })
}

fn stories() -> impl Strategy<Value = Story> {
    let domain = prop_oneof![Just(DomainType::Pv), Just(DomainType::Hvm)];
    let codec = prop::sample::select(Codec::ALL.to_vec());
    (domain, codec, any::<bool>()).prop_flat_map(|(domain, codec, checkpoints)| {
        let rounds = prop::collection::vec(prop::collection::vec(batch(domain), 0..4), 1..5);
        rounds.prop_map(move |rounds| Story { domain, codec, rounds, checkpoints })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Both readers have what a map of pages has to which every batch was applied.
    #[test]
    fn the_newest_copy_of_every_page_is_read(story in stories(), piece in 1_usize..5000) {
        let bytes = story.file();
        let items = read(&bytes, piece).unwrap();
        prop_assert_eq!(memory_of(&items), story.memory());
        let whole = read_file(&bytes).unwrap();
        prop_assert_eq!(whole.memory, story.memory());
        prop_assert_eq!(whole.before, before_pages(story.domain));
        let states = story.states();
        prop_assert_eq!(whole.after, (after_pages(story.domain, states), vec![emulator(states)]));
    }

    /// However connections are delayed, the memory is the same, and a round that is complete has all
    /// of its pages.
    #[test]
    fn no_connection_makes_a_page_older(
        story in stories(),
        count in 1_u8..6,
        order in prop::collection::vec((any::<u8>(), 1_usize..3000), 1..300),
    ) {
        let lanes = Lanes::new(count).unwrap();
        let streams: Vec<Vec<u8>> = lanes.iter().map(|lane| story.connection(lane)).collect();
        let mut readers: Vec<_> = streams
            .iter()
            .map(|bytes| (Input::new(), StreamReader::new(LIMITS), &bytes[..]))
            .collect();
        let (mut arrivals, mut memory) = (Arrivals::new(lanes), Memory::new());
        let rest = lanes.iter().map(|lane| (lane.number, usize::MAX));
        for (number, length) in order.into_iter().chain(rest) {
            let (input, reader, bytes) = &mut readers[usize::from(number % count)];
            let (now, later) = bytes.split_at(length.min(bytes.len()));
            *bytes = later;
            input.feed(now);
            while let Some(item) = reader.next(input).unwrap() {
                match item {
                    Item::Pages(pages) => apply(&mut memory, &pages.into_page_data()),
                    Item::EndOfRound(epoch) => arrivals.end_round(reader.lane(), epoch),
                    Item::End => arrivals.end(reader.lane()),
                    _ => {}
                }
            }
            let complete: Vec<u64> = story.rounds[..arrivals.rounds() as usize]
                .iter()
                .flatten()
                .flat_map(|batch| batch.pages.iter().map(|(pfn, _)| *pfn))
                .collect();
            prop_assert!(complete.iter().all(|pfn| memory.contains_key(pfn)));
        }
        prop_assert!(arrivals.is_complete());
        prop_assert_eq!(memory, story.memory());
    }

    /// Whatever is changed, the readers end with an error or with the same.
    #[test]
    fn damaged_files_never_panic(
        story in stories(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = story.file();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if bytes != story.file() {
            prop_assert!(read(&bytes, 1000).is_err());
            if let Ok(whole) = read_file(&bytes) {
                prop_assert_eq!(whole.memory, story.memory());
            }
        }
    }

    #[test]
    fn pages_are_spread_over_the_lanes(count in 1_u8..17, shift in 9_u32..13) {
        let lanes = Lanes::new(count).unwrap();
        let mut regions = vec![0; usize::from(count)];
        for region in 0..4096_u64 {
            regions[usize::from(lanes.lane_of(region << shift))] += 1;
        }
        let fair = 4096 / i32::from(count);
        prop_assert!(regions.iter().all(|it| (fair * 3 / 4..=fair * 5 / 4 + 1).contains(it)), "{regions:?}");
    }
}
