//! Commands for PCI devices of the host.

use api::{HostRequest, PciRequest, PciRow, Request, Target};

use super::{expect_reply, pools};
use crate::columns::host as columns;
use crate::options::Options;
use crate::session::{Failure, Session};

fn rows(session: &mut Session, request: PciRequest) -> Result<Vec<PciRow>, Failure> {
    Ok(expect_reply!(session.call(&Request::Host(HostRequest::Pci(request)))?, Pci))
}

fn change(session: &mut Session, request: PciRequest) -> Result<(), Failure> {
    pools::ask(session, HostRequest::Pci(request))
}

pub(crate) fn assignable_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = rows(session, PciRequest::Assignable)?;
    match options.has("json") {
        true => session.print_json(&rows),
        false => session.print(&columns::assignable(&rows, options.has("show-names"))),
    }
    Ok(())
}

pub(crate) fn assignable_add(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let device = options.operands[0].clone();
    let name = options.value("name").map(str::to_owned);
    change(session, PciRequest::AssignableAdd { device, name })
}

pub(crate) fn assignable_remove(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (device, rebind) = (options.operands[0].clone(), options.has("rebind"));
    change(session, PciRequest::AssignableRemove { device, rebind })
}

pub(crate) fn attach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, mut device) = (Target(options.operands[0].clone()), options.operands[1].clone());
    if let Some(slot) = options.operands.get(2) {
        device = format!("{device},vslot={slot}");
    }
    change(session, PciRequest::Attach { target, device })
}

pub(crate) fn detach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, device) = (Target(options.operands[0].clone()), options.operands[1].clone());
    change(session, PciRequest::Detach { target, device, force: options.has("force") })
}

pub(crate) fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let target = Target(options.operands[0].clone());
    let rows = rows(session, PciRequest::List { target })?;
    match options.has("json") {
        true => session.print_json(&rows),
        false => session.print(&columns::pci_devices(&rows)),
    }
    Ok(())
}
