//! Inputs to begin with, made by the code that is tested.

use std::path::PathBuf;

use xen::DomId;
use xenstore::Quota;
use xenstore::server::{Endpoints, Progress, Server};
use xenstore::state::Form;
use xenstore::wire;

use crate::machine::{Machine, message};

/// Writes this target's first inputs into the folder that the variable `FUZZ_SEEDS` names, if it does.
///
/// # Panics
/// If the folder cannot be written.
pub fn write(target: &str) {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS").map(PathBuf::from) else { return };
    for (_, name, bytes) in seeds().into_iter().filter(|(of, _, _)| *of == target) {
        let path = folder.join(name);
        let written = std::fs::write(&path, bytes);
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (server, recorded, replies) = store();
    let mut seeds = crate::streams::seeds();
    seeds.extend(crate::image::seeds());
    for (name, form) in
        [("version-1", Form::Version1), ("version-2", Form::Version2), ("own", Form::Own)]
    {
        let mut stream = vec![255];
        server.save(form, &Endpoints::default()).fill_all(&mut stream);
        seeds.push(("state", name, stream));
    }
    let mut checkpoint = vec![0; 8];
    let mut writer = server.checkpoint();
    while writer.write(&mut checkpoint, 4096) == Progress::More {}
    seeds.push(("journal", "checkpoint", checkpoint));
    let mut records = vec![0; 8];
    records.extend(recorded);
    seeds.push(("journal", "records", records));
    for (name, question) in (0..16u8).map(|question| (NAMES[usize::from(question)], question)) {
        let mut bytes = vec![200, 0, question % 2, question, 0, 0, 0, 0];
        bytes.extend(&replies);
        seeds.push(("client", name, bytes));
    }
    // Mkdir, set_perms, watch, transactions of a guest and of a socket, then death, restart, hand-over.
    let socket = [
        0, 0, 11, 0, 2, 2, 26, 0, 0, 14, 0, 3, 1, 18, 19, 0, 2, 4, 0, 2, 1, 13, 0, 2, 6, 0, 1, 27,
        0, 2, 11, 1, 2, 4, 26, 0, 2, 6, 1, 1, 15, 11, 12, 13, 10, 0, 9, 1, 8, 30,
    ];
    seeds.push(("socket", "everything", socket.to_vec()));
    let mut ring = vec![1, 1, 0, 4, 0, 0];
    for _ in 0..4 {
        ring.extend([3, 11, 0, 7]);
        ring.extend(b"a\0value");
        ring.extend([0, 5, 6, 0, 7, 1, 7, 0, 0]);
    }
    seeds.push(("ring", "writes", ring));
    let mut quiet = vec![0];
    quiet.extend([3, 4, 0, 8]);
    quiet.extend(b"a\0token\0");
    quiet.extend([0, 6, 0, 5, 7, 2, 0, 7, 1, 0]);
    seeds.push(("ring", "quiet", quiet));
    seeds
}

const NAMES: [&str; 16] = [
    "read",
    "directory",
    "get-perms",
    "set-perms",
    "watch",
    "event",
    "receive",
    "introduce",
    "introduced",
    "control",
    "optional",
    "transaction",
    "commit",
    "batch",
    "pipeline",
    "path",
];

/// A store in which everything occurs, what it recorded, and what it answered.
fn store() -> (Server, Vec<u8>, Vec<u8>) {
    let mut server = Server::new(Quota::default());
    let mut machine = Machine::default();
    server.start_recording();
    let mut records = Vec::new();
    let mut checkpoint = server.checkpoint();
    while checkpoint.write(&mut records, 4096) == Progress::More {}
    let mut replies = Vec::new();
    let socket = server.connect_socket();
    for domid in [1u16, 2] {
        machine.domains.insert(DomId(domid), domid.into());
        let home = format!("/local/domain/{domid}");
        for (code, payload) in [
            (8, format!("{domid}\01\0{}\0", domid + 4)),
            (11, format!("{home}/a\0value")),
            (14, format!("{home}\0n{domid}\0r2\0")),
            (14, format!("{home}/a\0n{domid}\0r2\0")),
            (4, format!("{home}\0token\0")),
            (2, format!("{home}/a\0")),
            (1, format!("{home}\0")),
        ] {
            let bytes = message(code, 0, payload.as_bytes());
            server.receive(&mut machine, socket, &bytes).expect("a valid message");
        }
        let guest = machine.rings[&DomId(domid)];
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, 4, 1, 0, &[b"a\0token\0"]);
        wire::encode(&mut bytes, 6, 1, 0, &[b"\0"]);
        wire::encode(&mut bytes, 11, 1, 1, &[b"a/new\0value"]);
        wire::encode(&mut bytes, 2, 1, 1, &[b"a\0"]);
        wire::encode(&mut bytes, 11, 1, 0, &[b"a/b\0value"]);
        wire::encode(&mut bytes, 2, 1, 0, &[b"half a message"]);
        bytes.truncate(bytes.len() - 3);
        server.receive(&mut machine, guest, &bytes).expect("valid messages");
    }
    server.receive(&mut machine, socket, &message(10, 0, b"1\x002\0")).expect("a valid message");
    loop {
        let bytes = server.output(socket).to_vec();
        if bytes.is_empty() {
            break;
        }
        server.consume(socket, bytes.len());
        replies.extend(bytes);
    }
    records.extend_from_slice(server.recorded());
    server.clear_recorded();
    (server, records, replies)
}
