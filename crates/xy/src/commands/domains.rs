//! Commands that list domains, name them, or stop and start them.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use api::{DomainRow, HostRequest, Request, Target};

use super::{expect_done, expect_reply, pools};
use crate::columns::{self, ListColumns};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let targets = options.targets();
    if options.has("long") {
        let configs = expect_reply!(session.call(&Request::Configs { targets })?, Configs);
        session.print_json(&configs);
        return Ok(());
    }
    let rows = expect_reply!(session.call(&Request::List { targets })?, Domains);
    if options.has("json") {
        session.print_json(&rows);
        return Ok(());
    }
    let pools = match options.has("cpupool") {
        true => Some(pool_names(session)?),
        false => None,
    };
    let nodes = match options.has("numa") {
        true => Some(nodes_of(session, &rows)?),
        false => None,
    };
    let columns = ListColumns {
        verbose: options.has("verbose"),
        context: options.has("context"),
        claims: false,
        pools: pools.as_ref(),
        nodes: nodes.as_ref(),
    };
    session.print(&columns::list(&rows, columns));
    Ok(())
}

fn pool_names(session: &mut Session) -> Result<BTreeMap<u32, String>, Failure> {
    Ok(pools::rows(session)?.into_iter().filter_map(|pool| Some((pool.id, pool.name?))).collect())
}

fn nodes_of(session: &mut Session, rows: &[DomainRow]) -> Result<BTreeMap<u16, String>, Failure> {
    let domids = rows.iter().map(|row| row.domid).collect();
    let request = Request::Host(HostRequest::NodeAffinity { domids });
    Ok(expect_reply!(session.call(&request)?, NodeAffinity))
}

pub(crate) fn claims(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let list = Request::List { targets: Vec::new() };
    let rows = expect_reply!(session.call(&list)?, Domains);
    if options.has("json") {
        session.print_json(&rows);
        return Ok(());
    }
    session.print(&columns::list(&rows, ListColumns { claims: true, ..ListColumns::default() }));
    Ok(())
}

pub(crate) fn sharing(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::List { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Domains);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::sharing(&rows));
    }
    Ok(())
}

pub(crate) fn dominfo(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mut blocks = Vec::new();
    for target in options.targets() {
        let targets = vec![target];
        let list = Request::List { targets: targets.clone() };
        let rows = expect_reply!(session.call(&list)?, Domains);
        if options.has("json") {
            blocks.push((rows, Vec::new()));
            continue;
        }
        let configs = expect_reply!(session.call(&Request::Configs { targets })?, Configs);
        blocks.push((rows, configs));
    }
    if options.has("json") {
        let rows: Vec<_> = blocks.into_iter().flat_map(|(rows, _)| rows).collect();
        session.print_json(&rows);
        return Ok(());
    }
    let texts: Vec<String> = blocks
        .iter()
        .flat_map(|(rows, configs)| rows.iter().zip(configs))
        .map(|(row, listed)| columns::dominfo(row, listed.config.b_info.kernel.as_deref()))
        .collect();
    session.print(&texts.join("\n"));
    Ok(())
}

pub(crate) fn vcpu_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::VcpuList { targets: options.targets() };
    let rows = expect_reply!(session.call(&request)?, Vcpus);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::vcpu_list(&rows));
    }
    Ok(())
}

pub(crate) fn uptime(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = Request::Uptime { targets: options.targets() };
    let mut rows = expect_reply!(session.call(&request)?, Domains);
    let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for row in rows.iter_mut().filter(|row| row.domid == 0) {
        set_start_of_this_host(row, now_unix_s);
    }
    if options.has("json") {
        session.print_json(&rows);
        return Ok(());
    }
    let text = match options.has("s") {
        true => columns::uptime_short(&rows, now_unix_s),
        false => columns::uptime(&rows, now_unix_s),
    };
    session.print(&text);
    Ok(())
}

/// The start of domain 0 is not recorded; its kernel's uptime is used.
fn set_start_of_this_host(row: &mut DomainRow, now_unix_s: u64) {
    let uptime = std::fs::read_to_string("/proc/uptime").ok();
    let seconds = uptime.as_deref().and_then(|text| text.split('.').next()?.parse().ok());
    if let Some(seconds) = seconds {
        row.started_unix_s = Some(now_unix_s.saturating_sub(seconds));
    }
}

/// xl's `vm-list`: domains, where `xy vm-list` has VMs.
pub(crate) fn vm_list_of_xl(session: &mut Session) -> Result<(), Failure> {
    let list = Request::List { targets: Vec::new() };
    let rows = expect_reply!(session.call(&list)?, Domains);
    session.print(&columns::vm_list_of_xl(&rows));
    Ok(())
}

pub(crate) fn domid(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let name = options.operands[0].clone();
    let domid = expect_reply!(session.call(&Request::Domid { name })?, Domid);
    // A number is JSON already.
    session.print(&format!("{domid}\n"));
    Ok(())
}

pub(crate) fn domname(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let text = &options.operands[0];
    let domid = text
        .parse()
        .map_err(|_| Failure::usage(format!("domname: {text:?} is not a domain ID")))?;
    let name = expect_reply!(session.call(&Request::Domname { domid })?, Domname);
    match options.has("json") {
        true => session.print_json(&name),
        false => session.print(&format!("{name}\n")),
    }
    Ok(())
}

pub(crate) fn destroy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for_each(session, options, destroy_request)
}

pub(crate) fn pause(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for_each(session, options, |target| Request::Pause { target })
}

pub(crate) fn unpause(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for_each(session, options, |target| Request::Unpause { target })
}

pub(crate) fn suspend(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for_each(session, options, |target| Request::Suspend { target })
}

pub(crate) fn resume(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for_each(session, options, |target| Request::Resume { target })
}

/// Makes the request for every named domain, also after a failure.
fn for_each(
    session: &mut Session,
    options: &Options,
    request: impl Fn(Target) -> Request,
) -> Result<(), Failure> {
    each(session, options.targets(), request)
}

fn destroy_request(target: Target) -> Request {
    Request::Destroy { target }
}

/// Destroys all of these.
pub(super) fn destroy_all(session: &mut Session, targets: Vec<Target>) -> Result<(), Failure> {
    each(session, targets, destroy_request)
}

fn each(
    session: &mut Session,
    targets: Vec<Target>,
    request: impl Fn(Target) -> Request,
) -> Result<(), Failure> {
    let mut messages = Vec::new();
    for target in targets {
        match session.call(&request(target)).and_then(|reply| expect_done(&reply)) {
            Ok(()) => {}
            Err(Failure::Failed(more)) => messages.extend(more),
            Err(usage) => return Err(usage),
        }
    }
    if messages.is_empty() { Ok(()) } else { Err(Failure::Failed(messages)) }
}
