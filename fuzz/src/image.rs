//! Saved VMs in our own format, from files and hosts that may be anybody's.

use std::collections::BTreeMap;

use migrate::Input as Stream;
use migrate::image::{Codec, FileReader, Head, Item, Lane, Limits, Pages, StreamReader, Writer};
use migrate::libxc::{DomainType, Headers, PAGE_BYTES, PageData, PageType, Record, Tsc};
use twox_hash::XxHash64;

use crate::input::Input;

const LIMITS: Limits = Limits { pfn_max: 0x1000, known_facts: &[] };
const PREAMBLE_BYTES: usize = 24;
const HEADER_BYTES: usize = 48;
const TRAILER_BYTES: usize = 40;

/// Each page, with a checksum of its content.
type Memory = BTreeMap<u64, (PageType, Option<u64>)>;

/// Reads bytes in order and by the index. What can be read is written again, and is still the same.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = 1 + usize::from(input.byte()) * 8;
    let must_repair = input.byte() & 1 == 1;
    let mut bytes = input.rest().to_vec();
    if must_repair {
        repair(&mut bytes);
    }
    // Either reader may accept what the other refuses: an index is not compared with the frames.
    by_index(&bytes);
    let Some(items) = in_order(&bytes, piece) else { return };
    let Some(Item::Head(head)) = items.first() else { return };
    let again = write(head, &items);
    let memory = by_index(&again).expect("it was written by us");
    let mut expected = Memory::new();
    items.iter().for_each(|item| {
        if let Item::Pages(pages) = item {
            apply(&mut expected, pages);
        }
    });
    assert!(memory == expected, "the newest copies are others");
}

fn in_order(bytes: &[u8], piece: usize) -> Option<Vec<Item>> {
    let (mut stream, mut reader) = (Stream::new(), StreamReader::new(LIMITS));
    let mut items = Vec::new();
    for some in bytes.chunks(piece) {
        stream.feed(some);
        while let Some(item) = reader.next(&mut stream).ok()? {
            items.push(item);
        }
        assert!(stream.unparsed() <= bytes.len(), "it holds more than has come");
    }
    reader.has_ended().then_some(items)
}

fn by_index(bytes: &[u8]) -> Option<Memory> {
    let file = FileReader::open(bytes, LIMITS).ok()?;
    let mut memory = Memory::new();
    for part in 0..file.parts() {
        apply(&mut memory, &file.part(bytes, part).ok()?);
    }
    file.before_pages(bytes).ok()?;
    file.after_pages(bytes).ok()?;
    Some(memory)
}

fn apply(memory: &mut Memory, pages: &Pages) {
    assert!(pages.count() <= 256, "a frame has more pages than a block");
    let sum = |content: &[u8]| XxHash64::oneshot(0, content);
    for (pfn, kind, content) in pages.data.iter() {
        memory.insert(pfn, (kind, content.map(sum)));
    }
    let zero = Some(sum(&[0; PAGE_BYTES]));
    for run in &pages.zero {
        (run.first..run.first + run.count).for_each(|pfn| {
            memory.insert(pfn, (PageType::Normal, zero));
        });
    }
}

fn write(head: &Head, items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::file(head, Codec::Lz4, &mut out);
    for item in items {
        match item {
            Item::Head(_) | Item::Lane(..) | Item::End => {}
            Item::Record(record) => writer.record(record, &mut out),
            Item::Pages(pages) => writer.pages(&pages.clone().into_page_data(), &mut out),
            Item::Emulator(record) => writer.emulator(record, &mut out),
            Item::EndOfRound(_) => writer.end_round(&mut out),
            Item::Checkpoint => writer.checkpoint(&mut out),
        }
    }
    writer.finish(&mut out);
    out
}

/// Makes the checksums match, which no change of a fuzzer does.
fn repair(bytes: &mut [u8]) {
    let seal = |bytes: &mut [u8], covered: std::ops::Range<usize>, at: usize| {
        let sum = XxHash64::oneshot(0, &bytes[covered]).to_le_bytes();
        bytes[at..at + 8].copy_from_slice(&sum);
    };
    let length = bytes.len();
    if length < PREAMBLE_BYTES {
        return;
    }
    seal(bytes, 0..PREAMBLE_BYTES - 8, PREAMBLE_BYTES - 8);
    let mut at = PREAMBLE_BYTES;
    while at + HEADER_BYTES <= length {
        let stored = u32::from_le_bytes(*bytes[at + 24..].first_chunk().expect("it is there"));
        let body = at + HEADER_BYTES;
        let Some(end) = body.checked_add(stored as usize).filter(|end| *end <= length) else {
            break;
        };
        seal(bytes, body..end, at + 32);
        seal(bytes, at..at + 40, at + 40);
        at = end;
    }
    if length - at == TRAILER_BYTES {
        seal(bytes, at..length - 8, length - 8);
    }
}

/// A small file, and what two connections carry.
pub(crate) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let head = Head {
        name: "a".to_owned(),
        uuid: [1; 16],
        config: "b".to_owned(),
        headers: Headers::new(DomainType::Hvm, (4, 17)),
        pages_max: 100,
        vcpus: 1,
        created: 1,
        facts: Vec::new(),
    };
    let page = |pfn, fill| {
        let pages = vec![(pfn, PageType::Normal), (pfn + 1, PageType::Invalid)];
        PageData { pages, data: vec![fill; PAGE_BYTES] }
    };
    let fill = |mut writer: Writer, out: &mut Vec<u8>| {
        if writer.lane().number == 0 {
            writer.record(&Record::StaticDataEnd, out);
        }
        for round in 0..2 {
            [page(1, round), page(600, 5)].iter().for_each(|data| writer.pages(data, out));
            writer.set_codec(Codec::Zstd);
            writer.end_round(out);
        }
        if writer.lane().number == 0 {
            writer.record(&Record::Tsc(Tsc::default()), out);
            writer.checkpoint(out);
        }
        writer.finish(out);
    };
    let (mut file, mut connection) = (vec![16, 1], vec![255, 1]);
    // The two bytes in front are no part of it.
    let mut out = Vec::new();
    fill(Writer::file(&head, Codec::Lz4, &mut out), &mut out);
    file.append(&mut out);
    fill(Writer::connection(&head, Lane::ONLY, &[2; 16], Codec::None, &mut out), &mut out);
    connection.append(&mut out);
    vec![("image", "file", file), ("image", "connection", connection)]
}
