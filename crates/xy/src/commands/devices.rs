//! Commands that list a domain's devices.

use api::Request;

use super::expect_reply;
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn block_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::BlockList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Blocks);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::block_list(&rows));
    }
    Ok(())
}

pub(crate) fn network_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::NetworkList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Networks);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::network_list(&rows));
    }
    Ok(())
}
