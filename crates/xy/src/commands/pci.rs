//! Commands for PCI devices of the host.

use api::{HostRequest, PciRow, Request, Target};

use super::{expect_reply, pools};
use crate::columns::host as columns;
use crate::options::Options;
use crate::session::{Failure, Session};

fn rows(session: &mut Session, request: HostRequest) -> Result<Vec<PciRow>, Failure> {
    Ok(expect_reply!(session.call(&Request::Host(request))?, Pci))
}

pub(crate) fn assignable_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = rows(session, HostRequest::PciAssignable)?;
    match options.has("json") {
        true => session.print_json(&rows),
        false => session.print(&columns::assignable(&rows, options.has("show-names"))),
    }
    Ok(())
}

pub(crate) fn assignable_add(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let device = options.operands[0].clone();
    let name = options.value("name").map(str::to_owned);
    pools::ask(session, HostRequest::PciAssignableAdd { device, name })
}

pub(crate) fn assignable_remove(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (device, rebind) = (options.operands[0].clone(), options.has("rebind"));
    pools::ask(session, HostRequest::PciAssignableRemove { device, rebind })
}

pub(crate) fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let target = Target(options.operands[0].clone());
    let rows = rows(session, HostRequest::PciList { target })?;
    match options.has("json") {
        true => session.print_json(&rows),
        false => session.print(&columns::pci_devices(&rows)),
    }
    Ok(())
}
