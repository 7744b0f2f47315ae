//! `dump-core`.

use api::{DumpCore, Request, Target};

use super::expect_done;
use super::save::cwd;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn dump_core(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::DumpCore(DumpCore {
        target: Target(options.operands[0].clone()),
        path: options.operands[1].clone(),
        cwd: cwd()?,
        live: options.has("live"),
        progress: session.draws_progress(),
    });
    expect_done(&session.call(&request)?)
}
