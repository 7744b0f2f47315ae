//! The journal through a daemon's eyes: made anew, damaged, old, and in a file system that is full.

use super::*;
use crate::guard;
use crate::rings::Rings;
use xenstore::server::ConnId;
use xenstore::wire::MessageType;

const BOOT: [u8; BOOT_BYTES] = [b'b'; BOOT_BYTES];

/// Sends requests of one kind and takes the replies.
fn ask(
    server: &mut Server,
    rings: &mut Rings,
    id: ConnId,
    kind: MessageType,
    payloads: impl Iterator<Item = String>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for payload in payloads {
        xenstore::wire::encode(&mut bytes, kind.code(), 0, 0, &[payload.as_bytes()]);
    }
    server.receive(rings, id, &bytes).expect("whole messages");
    rings.commit(server);
    let mut replies = Vec::new();
    while !server.output(id).is_empty() {
        let piece = server.output(id).to_vec();
        server.consume(id, piece.len());
        replies.extend(piece);
    }
    replies
}

fn values(server: &mut Server, rings: &mut Rings, id: ConnId) -> Vec<u8> {
    let paths = (0..NODES).map(|i| format!("/values/{i}\0"));
    ask(server, rings, id, MessageType::Read, paths)
}

const NODES: usize = 700;

#[test]
fn a_journal_that_is_made_anew_between_turns_has_every_change() {
    let folder = std::env::temp_dir().join(format!("journal-anew-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("journal");
    let mut log = Log::open(None, None).unwrap();
    let (journal, none) =
        Journal::open(&path, Start::Continue, Damage::Continue, &mut log).unwrap();
    assert!(none.is_none());
    let mut rings = Rings::new(None, journal, log);
    let mut server = Server::new(xenstore::Quota::default());
    rings.begin_journal(&mut server);
    let id = server.connect_socket();
    let (mut was_behind, mut was_made) = (false, false);
    let first_bytes = rings.journal.checkpoint_bytes;
    let mut turn = 0;
    // Until one was made while the store was written to.
    while !was_made {
        let nodes = (16 * turn..16 * turn + 16).map(|i| i % NODES);
        let writes = nodes.map(|i| format!("/values/{i}\0{turn:04000}"));
        ask(&mut server, &mut rings, id, MessageType::Write, writes);
        rings.work_on_journal(&mut server);
        let next = rings.journal.next.as_ref();
        was_behind |= next.is_some_and(|next| next.checkpoint.is_none());
        was_made = rings.journal.checkpoint_bytes > first_bytes;
        turn += 1;
    }
    // The one before it keeps space.
    while rings.work_on_journal(&mut server).is_some() {}
    assert!(rings.journal.old.is_none());
    assert!(was_behind, "the changes meanwhile fitted into one piece");
    let before = values(&mut server, &mut rings, id);
    assert!(before.len() > 2_000_000);
    drop(rings);
    guard::forget_file();
    let mut log = Log::open(None, None).unwrap();
    let (journal, server) =
        Journal::open(&path, Start::Continue, Damage::Continue, &mut log).unwrap();
    let mut server = server.expect("a store");
    let mut rings = Rings::new(None, journal, log);
    let id = server.connect_socket();
    assert!(before == values(&mut server, &mut rings, id));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A file system of its own, if this test may mount one.
struct Small(PathBuf);

impl Small {
    fn mount(name: &str, bytes: u64) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let size = format!("size={bytes}");
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder).output();
        mount.is_ok_and(|it| it.status.success()).then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ended = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Fills what is left of a file system of `size` bytes. False if more than that could be written: some sandboxes mount a
/// tmpfs and ignore its size, and the file would grow until the machine's disk is full.
fn fill(path: &Path, size: u64) -> bool {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    let mut written = 0;
    while file.write_all(&[1; 4096]).is_ok() {
        written += 4096;
        if written > size {
            return false;
        }
    }
    true
}

/// Everything else in its file system is full: the store goes on, loses nothing that was answered, and refuses what it
/// would have no room for.
#[test]
fn a_store_survives_in_a_full_file_system() {
    const SIZE: u64 = 24 << 20;
    let Some(small) = Small::mount("journal-full", SIZE) else {
        println!("skipped: it needs root");
        return;
    };
    let path = small.0.join("journal");
    let open = || {
        let mut log = Log::open(None, None).unwrap();
        let (journal, server) =
            Journal::open(&path, Start::Continue, Damage::Refuse, &mut log).unwrap();
        (Rings::new(None, journal, log), server)
    };
    let (mut rings, none) = open();
    assert!(none.is_none());
    let mut server = Server::new(xenstore::Quota::default());
    rings.begin_journal(&mut server);
    let id = server.connect_socket();
    while rings.work_on_journal(&mut server).is_some() {}
    if !fill(&small.0.join("filler"), SIZE) {
        println!("skipped: this machine's tmpfs has no limit of its size");
        return;
    }
    let write = |server: &mut Server, rings: &mut Rings, node: String, value: &str| {
        let payload = [format!("/values/{node}\0{value}")].into_iter();
        let reply = ask(server, rings, id, MessageType::Write, payload);
        rings.work_on_journal(server);
        String::from_utf8_lossy(&reply).contains("OK")
    };
    // Many times the space that is kept.
    for turn in 0..20_000 {
        let node = (turn % NODES).to_string();
        assert!(write(&mut server, &mut rings, node, &format!("{turn:01000}")), "{turn}");
    }
    assert!(rings.journal.is_whole() && rings.journal.reserve.is_needed());
    // A store that grows is stopped before there is no room for the rest.
    let grown = (0..20_000)
        .take_while(|new| write(&mut server, &mut rings, format!("new{new}"), &"x".repeat(1000)))
        .count();
    assert!((500..15_000).contains(&grown), "{grown}");
    assert!(rings.journal.is_whole());
    let last = |server: &mut Server, rings: &mut Rings, id| {
        let path = [format!("/values/new{}\0", grown - 1)].into_iter();
        let found = ask(server, rings, id, MessageType::Read, path);
        assert!(found.ends_with(&[b'x'; 1000]));
    };
    last(&mut server, &mut rings, id);
    let before = values(&mut server, &mut rings, id);
    // Killed, it goes on.
    drop(rings);
    guard::forget_file();
    let (mut rings, found) = open();
    let mut server = found.expect("a store");
    server.start_recording();
    let id = server.connect_socket();
    last(&mut server, &mut rings, id);
    assert!(before == values(&mut server, &mut rings, id));
    // Room that is made, by whomever, is used.
    while rings.work_on_journal(&mut server).is_some_and(|wait| wait.is_zero()) {}
    let gone = ["/values\0".to_owned()].into_iter();
    ask(&mut server, &mut rings, id, MessageType::Rm, gone);
    std::fs::remove_file(small.0.join("filler")).unwrap();
    rings.journal.reserve.try_now();
    while rings.work_on_journal(&mut server).is_some_and(|wait| wait.is_zero()) {}
    assert!(!rings.journal.reserve.is_needed());
    let payload = ["/values/again\0x".to_owned()].into_iter();
    let reply = ask(&mut server, &mut rings, id, MessageType::Write, payload);
    assert!(String::from_utf8_lossy(&reply).contains("OK"));
    drop(rings);
    guard::forget_file();
}

#[test]
fn a_journal_without_checksums_is_read_and_made_anew_with_them() {
    let folder = std::env::temp_dir().join(format!("journal-bare-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("journal");
    let mut log = Log::open(None, None).unwrap();
    // As the first release wrote it.
    let mut rings = Rings::new(None, Journal::none(), Log::open(None, None).unwrap());
    let mut server = Server::new(xenstore::Quota::default());
    let id = server.connect_socket();
    ask(&mut server, &mut rings, id, MessageType::Write, ["/kept\0here".to_owned()].into_iter());
    let (mut checkpoint, mut piece) = (server.checkpoint(), Vec::new());
    while checkpoint.write(&mut piece, PIECE_BYTES) == Progress::More {}
    let boot = Journal::without_file(&path).boot;
    let mut file = AppendFile::create(&path).unwrap();
    file.append(&piece).unwrap();
    let mut bare = header(&boot, Validity::Whole, file.length());
    bare[8..12].copy_from_slice(&RECORD_VERSION.to_le_bytes());
    bare[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    file.set_header(&bare);
    drop(file);

    for is_framed in [false, true] {
        let opened = Journal::open(&path, Start::Continue, Damage::Refuse, &mut log).unwrap();
        let (journal, server) = opened;
        assert_eq!(journal.is_framed, is_framed);
        let mut server = server.expect("a store");
        server.start_recording();
        let mut rings = Rings::new(None, journal, Log::open(None, None).unwrap());
        let id = server.connect_socket();
        let read = |server: &mut Server, rings: &mut Rings, path: &str| {
            let paths = [format!("{path}\0")].into_iter();
            String::from_utf8_lossy(&ask(server, rings, id, MessageType::Read, paths)).into_owned()
        };
        assert!(read(&mut server, &mut rings, "/kept").ends_with("here"));
        // A change before it is made anew, and one after.
        let change = |text: &str| [format!("/change{is_framed}\0{text}")].into_iter();
        ask(&mut server, &mut rings, id, MessageType::Write, change("before"));
        while rings.work_on_journal(&mut server).is_some() {}
        assert!(rings.journal.is_framed);
        ask(&mut server, &mut rings, id, MessageType::Write, change("after"));
        if is_framed {
            assert!(read(&mut server, &mut rings, "/changefalse").ends_with("after"));
        }
        drop(rings);
        guard::forget_file();
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn only_a_whole_journal_of_this_boot_and_version_is_continued() {
    let whole = header(&BOOT, Validity::Whole, 77);
    assert_eq!(judge(&whole, &BOOT), Judgement::Continue);
    assert_eq!(checkpoint_bytes(&whole), 77);
    assert!(matches!(judge(&whole, &[b'c'; BOOT_BYTES]), Judgement::Ignore(_)));
    let lost = header(&BOOT, Validity::Lost, 0);
    assert!(matches!(judge(&lost, &BOOT), Judgement::Ignore(_)));
    for at in [0, 8] {
        let mut other = whole;
        other[at] ^= 0x40;
        assert!(matches!(judge(&other, &BOOT), Judgement::Refuse(_)), "byte {at}");
    }
}
