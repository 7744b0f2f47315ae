//! A state stream, of our own kind or another daemon's.

use std::time::Duration;

use xen::DomId;
use xenstore::Quota;
use xenstore::server::Restore;

use crate::input::Input;
use crate::machine::{Machine, check, check_saved, kill_everybody, message};

/// Loads the stream in pieces, and continues with that store.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = 1 + usize::from(input.byte()) * 16;
    let mut restore = Restore::new(Quota::default());
    for bytes in input.rest().chunks(piece) {
        if restore.feed(bytes).is_err() {
            return;
        }
    }
    let Ok(restored) = restore.finish(Duration::ZERO) else { return };
    let mut server = restored.server;
    check(&server);
    check_saved(&mut server);

    let mut machine = Machine::default();
    for known in server.known_rings() {
        machine.domains.insert(known.domid, u64::from(known.domid.0));
        machine.rings.insert(known.domid, known.connection);
    }
    machine.domains.insert(DomId(1), 1);
    server.start_recording();
    for (id, _) in restored.peers {
        let mut requests = Vec::new();
        for (code, transaction, payload) in [
            (2, 0, &b"/a\0"[..]),
            (11, 0, b"/a/new\0value"),
            (14, 0, b"/a\0n1\0r2\0"),
            (1, 1, b"/\0"),
            (13, 0, b"/a\0"),
            (6, 1, b"T\0"),
        ] {
            requests.extend(message(code, transaction, payload));
        }
        if server.receive(&mut machine, id, &requests).is_ok() {
            while !server.output(id).is_empty() {
                let length = server.output(id).len();
                server.consume(id, length);
            }
        }
        check(&server);
    }
    server.advance(&mut machine, Duration::from_secs(60));
    check(&server);
    check_saved(&mut server);
    kill_everybody(&mut server);
}
