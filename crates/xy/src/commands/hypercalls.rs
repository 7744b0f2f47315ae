//! `hypercalls`: hypercalls of the daemon, their purpose and duration.

use api::Request;

use super::expect_reply;
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn hypercalls(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let activity = expect_reply!(session.call(&Request::Activity)?, Activity);
    if options.has("json") {
        session.print_json(&activity);
    } else if options.has("operations") {
        session.print(&columns::activity::operations(&activity));
    } else if options.has("queues") {
        session.print(&columns::activity::queues(&activity));
    } else {
        session.print(&columns::activity::hypercalls(&activity));
    }
    Ok(())
}
