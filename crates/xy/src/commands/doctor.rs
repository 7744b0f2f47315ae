//! `doctor`: what of this host is not as it should be, and what to do about it.
//!
//! `facts` looks at the host and asks the daemons; `findings` decides, and looks at nothing.

mod facts;
mod findings;

use std::fmt::Write as _;

use crate::columns::shown;
use crate::options::Options;
use crate::session::{Failure, Session};
use findings::{Finding, Level, findings};

pub(crate) fn doctor(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let found = findings(&facts::read(session));
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
