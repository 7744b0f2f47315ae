//! `adopt`: the daemon adopts the domain; the previous toolstack's process and files are removed
//! here.
//!
//! xl's process acts when the domain stops, as the daemon will. It is stopped before the request to
//! the daemon and killed when the domain is ours, so that never both act; if the daemon refuses, it
//! is resumed.

mod kept;
pub(super) mod monitor;

use std::path::Path;

use api::{Adopt, DomainRow, Request};

use super::{create, expect_done, expect_reply};
use crate::options::Options;
use crate::session::{Failure, Session};
use kept::Kept;
use monitor::Monitor;

/// libxl's folder of domain data.
const KEPT: &str = "/var/lib/xen";

pub(crate) fn adopt(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let targets = options.targets();
    let file = options.value("config");
    match (options.has("all"), targets.is_empty(), file) {
        (true, true, None) => {}
        (true, false, _) => return Err(Failure::usage("adopt: either --all or a domain")),
        (true, true, Some(_)) => {
            return Err(Failure::usage("adopt: --config names the file of one domain"));
        }
        (false, true, _) => {
            return Err(Failure::usage("adopt: requires --all or a domain; see 'xy help adopt'"));
        }
        (false, false, _) => {}
    }
    let rows = expect_reply!(session.call(&Request::List { targets })?, Domains);
    if options.has("all") {
        let others = rows.iter().filter(|row| !row.managed && row.domid != 0 && !row.dying);
        return each(others, |row| adopt_one(session, row, None));
    }
    let [row] = rows.as_slice() else {
        return Err(Failure::failed("xylemd answered with several domains where one was meant"));
    };
    adopt_one(session, row, file)
}

/// All of them, also after a failure.
pub(super) fn each<'a>(
    rows: impl Iterator<Item = &'a DomainRow>,
    mut one: impl FnMut(&DomainRow) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut messages = Vec::new();
    for row in rows {
        match one(row) {
            Ok(()) => {}
            Err(Failure::Failed(more)) => messages.extend(more),
            Err(usage) => return Err(usage),
        }
    }
    if messages.is_empty() { Ok(()) } else { Err(Failure::Failed(messages)) }
}

fn adopt_one(session: &mut Session, row: &DomainRow, file: Option<&str>) -> Result<(), Failure> {
    let name = row.name.clone().unwrap_or_default();
    let kept = Kept::of(Path::new(KEPT), row.domid, &row.uuid);
    let monitors = Monitor::find(Path::new("/proc"), "xl", &name);
    if row.managed {
        session.tell(&format!("{name} is managed by Xylem already"));
    } else {
        let others = libvirt(&kept, &name);
        others.map_or(Ok(()), |message| Err(Failure::failed(message)))?;
        let request = request(row, &kept, file)?;
        monitors.iter().for_each(Monitor::stop);
        let answer = session.call(&request).and_then(|reply| expect_done(&reply));
        if answer.is_err() {
            monitors.iter().for_each(Monitor::go_on);
            return answer;
        }
    }
    monitors.iter().for_each(Monitor::end);
    kept.forget().map_err(|error| Failure::failed(error.to_string()))
}

/// Why a domain cannot be adopted from libvirt now.
fn libvirt(kept: &Kept, name: &str) -> Option<String> {
    let daemon = ["libvirtd", "virtxend"].into_iter().find(|it| monitor::runs(it))?;
    kept.is_libvirts.then(|| {
        format!("{name} belongs to libvirt, and {daemon} would act too when it stops; stop {daemon} first")
    })
}

fn request(row: &DomainRow, kept: &Kept, file: Option<&str>) -> Result<Request, Failure> {
    // Not the domid, which may belong to another domain by now.
    let target = api::Target(row.uuid.clone());
    let kept = kept.json.clone();
    Ok(Request::Adopt(match (file, kept) {
        (Some(file), _) => {
            let (text, cwd) = create::read(file)?;
            let (file, config_text) = (file.to_owned(), Some(text));
            Adopt { target, file, config_text, libxl_json: None, cwd }
        }
        (None, kept) => {
            let (file, libxl_json) = kept.unzip();
            let (file, cwd) = (file.unwrap_or_default(), "/".to_owned());
            Adopt { target, file, config_text: None, libxl_json, cwd }
        }
    }))
}
