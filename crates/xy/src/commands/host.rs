//! Commands for the host and the daemon.

use std::collections::BTreeMap;

use api::Request;

use super::expect_reply;
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn info(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.has("numa") {
        return Err(Failure::usage("info: NUMA topology (-n) is not supported yet"));
    }
    let info = expect_reply!(session.call(&Request::Info)?, Info);
    match options.operands.first() {
        Some(key) => {
            let value = info.0.iter().find(|(name, _)| name == key).map(|(_, value)| value);
            let value = value.ok_or_else(|| Failure::failed(format!("info has no {key:?}")))?;
            session.print(&format!("{value}\n"));
        }
        None if options.has("json") => {
            let by_key: BTreeMap<_, _> = info.0.into_iter().collect();
            session.print_json(&by_key);
        }
        None => session.print(&columns::info(&info)),
    }
    Ok(())
}

pub(crate) fn counters(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let counters = expect_reply!(session.call(&Request::Counters)?, Counters);
    if options.has("json") {
        session.print_json(&counters);
        return Ok(());
    }
    let counts = counters.counts.iter().map(|(name, &count)| (name.as_str(), count));
    session.print(&columns::cost(&counters.cost));
    session.print(&columns::counts(counts));
    Ok(())
}
