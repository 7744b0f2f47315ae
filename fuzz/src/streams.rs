//! Streams of saved domains, from files and hosts that may be anybody's.

use migrate::libxl::{self, Item, Parser};
use migrate::{Input as Stream, libxc, save_file};

use crate::input::Input;

const PFN_MAX: u64 = 0x1000;

/// Parses a stream in pieces, from `xl save` or from libxl on, and encodes what it found again.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = 1 + usize::from(input.byte()) * 8;
    let is_file = input.byte() & 1 == 0;
    let rest = input.rest();
    let mut stream = Stream::new();
    let mut has_config = !is_file;
    let mut parser = Parser::new(PFN_MAX);
    let mut items = Vec::new();
    for bytes in rest.chunks(piece) {
        stream.feed(bytes);
        if !has_config {
            match save_file::parse(&mut stream) {
                Ok(config) => has_config = config.is_some(),
                Err(_) => return,
            }
        }
        if !has_config {
            continue;
        }
        loop {
            match parser.next(&mut stream) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(stream.unparsed() <= rest.len(), "it holds more than has come");
    }
    if parser.has_ended() {
        assert!(read(&write(&items)) == items, "it is another stream when it is encoded again");
    }
}

/// The same stream again. What was skipped is missing.
fn write(items: &[Item]) -> Vec<u8> {
    let mut bytes = Vec::new();
    libxl::encode_header(&mut bytes);
    for item in items {
        match item {
            Item::Record(record) => record.encode(&mut bytes),
            Item::Libxc(libxc::Item::Headers(headers)) => headers.encode(&mut bytes),
            Item::Libxc(libxc::Item::Record(record)) => record.encode(&mut bytes),
        }
    }
    bytes
}

fn read(bytes: &[u8]) -> Vec<Item> {
    let (mut stream, mut parser) = (Stream::new(), Parser::new(PFN_MAX));
    stream.feed(bytes);
    let mut items = Vec::new();
    while let Some(item) = parser.next(&mut stream).expect("it was encoded by us") {
        items.push(item);
    }
    items
}

/// A small stream of each kind of domain, and a file of one.
pub(crate) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    use libxc::{DomainType, Headers, P2mFrames, PageData, PageType, Record, Tsc};
    let page = || {
        let data = vec![7; libxc::PAGE_BYTES];
        Record::PageData(PageData {
            pages: vec![(1, PageType::Normal), (2, PageType::Invalid)],
            data,
        })
    };
    let pv = [
        Record::PvInfo { width: 8, levels: 4 },
        Record::StaticDataEnd,
        Record::P2mFrames(P2mFrames { start: 0, end: 511, frames: vec![1] }),
        page(),
        Record::End,
    ];
    let hvm = [
        Record::StaticDataEnd,
        page(),
        Record::Tsc(Tsc::default()),
        Record::HvmContext(vec![1; 64]),
        Record::HvmParams(vec![(1, 2)]),
        Record::End,
    ];
    let (emulator, index) = (libxl::Emulator::Qemu, 0);
    let model = libxl::Record::EmulatorNodes {
        emulator,
        index,
        nodes: vec![("a".to_owned(), "b".to_owned())],
    };
    let stream = |domain, records: &[Record]| {
        let mut items = vec![Item::Record(libxl::Record::LibxcContext)];
        items.push(Item::Libxc(libxc::Item::Headers(Headers::new(domain, (4, 17)))));
        items.extend(records.iter().cloned().map(|it| Item::Libxc(libxc::Item::Record(it))));
        items.push(Item::Record(model.clone()));
        items.push(Item::Record(libxl::Record::End));
        write(&items)
    };
    let bare = |stream: Vec<u8>| [vec![255, 1], stream].concat();
    let hvm = stream(DomainType::Hvm, &hvm);
    let mut file = vec![16, 0];
    save_file::encode("{}", &mut file);
    file.extend(&hvm);
    vec![
        ("streams", "pv", bare(stream(DomainType::Pv, &pv))),
        ("streams", "hvm", bare(hvm)),
        ("streams", "file", file),
    ]
}
