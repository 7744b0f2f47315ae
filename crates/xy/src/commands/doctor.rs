//! `doctor`: what of this host is not as it should be, and what to do about it.
//!
//! `facts` looks at the host and asks the daemons; `findings` decides, and looks at nothing.

mod facts;
mod findings;

use std::fmt::Write as _;
use std::io::Read as _;

use crate::columns::shown;
use crate::options::Options;
use crate::remote::Remote;
use crate::session::{Failure, Session, one_line};
use findings::{Finding, Level, findings};

/// Of what another host says.
const FINDINGS_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn doctor(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let found = match &session.remote {
        Some(remote) => far(remote)?,
        None => findings(&facts::read(session)),
    };
    if options.has("json") {
        session.print_json(&found);
    } else {
        session.print(&lines(&found));
    }
    match found.iter().any(|finding| finding.level == Level::Problem) {
        // All was said.
        true => Err(Failure::Failed(Vec::new())),
        false => Ok(()),
    }
}

/// What the `xy` of another host finds there.
fn far(remote: &Remote) -> Result<Vec<Finding>, Failure> {
    let said = remote.get("/v1/doctor").map_err(|why| Failure::failed(one_line(&why)))?;
    serde_json::from_reader(said.take(FINDINGS_BYTES_MAX))
        .map_err(|error| Failure::failed(format!("bad answer from the host: {error}")))
}

fn lines(found: &[Finding]) -> String {
    found.iter().fold(String::new(), |mut out, Finding { level, about, text, advice }| {
        let level = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        };
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{level:<8} {about}: {}", shown(&format!("{text}{advice}")));
        out
    })
}
