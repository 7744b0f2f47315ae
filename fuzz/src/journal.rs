//! The journal of a killed daemon.

use xen::DomId;
use xenstore::ring::RingIndexes;
use xenstore::server::Replay;

use crate::input::Input;
use crate::machine::{Machine, check, check_saved, kill_everybody};

/// Reads the journal, and continues with the store that it describes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (requests_taken, replies_put) = (input.word(), input.word());
    let mut replay = Replay::new();
    if replay.apply(input.rest()).is_err() {
        return;
    }
    let mut server = replay.finish();
    check(&server);
    check_saved(&mut server);

    let mut machine = Machine::default();
    server.start_recording();
    for known in server.known_rings() {
        machine.domains.insert(known.domid, u64::from(known.domid.0));
        machine.rings.insert(known.domid, known.connection);
        let page = RingIndexes { requests_taken, replies_put };
        if server.resume_ring(known.connection, page).is_err() {
            server.stop_serving(known.connection);
        }
        check(&server);
        let _broken = server.receive(&mut machine, known.connection, &[]);
    }
    machine.domains.insert(DomId(1), 1);
    let listing = machine.listing(true);
    server.handle_domain_states(&mut machine, &listing);
    check(&server);
    check_saved(&mut server);
    kill_everybody(&mut server);
}
