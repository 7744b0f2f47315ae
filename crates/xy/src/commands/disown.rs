//! `disown`: the daemon gives VMs to xl while they run.
//!
//! The process that `xl create` leaves behind cannot be started for a domain that exists, so what it does is nobody's work
//! then. That is said.

use api::{DomainRow, Request, Target};

use super::adopt::each;
use super::{expect_done, expect_reply};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn disown(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let targets = options.targets();
    let all = options.has("all");
    if all != targets.is_empty() {
        return Err(Failure::usage("disown: requires --all or the names of VMs"));
    }
    let rows = expect_reply!(session.call(&Request::List { targets })?, Domains);
    let ours = |row: &&DomainRow| !all || row.managed;
    let mut given = 0_usize;
    let result = each(rows.iter().filter(ours), |row| {
        let name = row.name.as_deref().unwrap_or(&row.uuid);
        if !row.managed {
            return Err(Failure::failed(format!(
                "{name}: is not managed by Xylem; xl has it already"
            )));
        }
        // Not the domid, which may belong to another domain by now.
        let target = Target(row.uuid.clone());
        expect_done(&session.call(&Request::Disown { target })?)?;
        given += 1;
        Ok(())
    });
    if given > 0 {
        session.tell(
            "nobody watches what was given to xl: a guest that stops, crashes or reboots leaves its domain, which \
             `xl destroy` ends and `xl create` starts again; `xy adopt` takes it back while it runs",
        );
    }
    result
}
