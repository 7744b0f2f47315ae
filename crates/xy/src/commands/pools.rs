//! CPU pools.

use api::{HostRequest, PoolRow, Request, Target};

use super::{create, expect_done, expect_reply};
use crate::columns::host as columns;
use crate::options::Options;
use crate::session::{Failure, Session};

/// A request that is answered by `Done`.
pub(super) fn ask(session: &mut Session, request: HostRequest) -> Result<(), Failure> {
    session.call(&Request::Host(request)).and_then(|reply| expect_done(&reply))
}

pub(crate) fn rows(session: &mut Session) -> Result<Vec<PoolRow>, Failure> {
    Ok(expect_reply!(session.call(&Request::Host(HostRequest::Pools))?, Pools))
}

pub(crate) fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mut pools = rows(session)?;
    if let Some(wanted) = options.operands.first() {
        // By name only, as in xl.
        pools.retain(|pool| pool.name.as_ref() == Some(wanted));
        if pools.is_empty() {
            return Err(Failure::failed(format!("{wanted}: there is no CPU pool of this name")));
        }
    }
    if options.has("json") {
        session.print_json(&pools);
        return Ok(());
    }
    session.print(&match options.has("cpus") {
        true => columns::cpus_of_pools(pools.iter()),
        false => columns::pools(pools.iter()),
    });
    Ok(())
}

pub(crate) fn create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (file, overrides) = create::operands(options).map_err(|operand| {
        let problem = format!("cpupool-create: {operand:?} is one argument too many");
        Failure::usage(format!("{problem}; see 'xy help cpupool-create'"))
    })?;
    let text = file.as_deref().map_or(Ok(String::new()), create::text)?;
    let source = file.clone().unwrap_or_else(|| "command line".to_owned());
    let dry_run = session.dry_run || options.has("dryrun");
    let file = file.unwrap_or_default();
    let request = HostRequest::PoolCreate { file, text, overrides, dry_run };
    let made = expect_reply!(session.call(&Request::Host(request))?, Pools);
    made.iter().for_each(|pool| session.print(&columns::new_pool(&source, pool)));
    Ok(())
}

fn operand(options: &Options, index: usize) -> String {
    options.operands[index].clone()
}

pub(crate) fn destroy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    ask(session, HostRequest::PoolDestroy { pool: operand(options, 0) })
}

pub(crate) fn rename(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (pool, name) = (operand(options, 0), operand(options, 1));
    ask(session, HostRequest::PoolRename { pool, name })
}

pub(crate) fn add(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (pool, cpus) = (operand(options, 0), operand(options, 1));
    ask(session, HostRequest::PoolAdd { pool, cpus })
}

pub(crate) fn remove(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (pool, cpus) = (operand(options, 0), operand(options, 1));
    ask(session, HostRequest::PoolRemove { pool, cpus })
}

pub(crate) fn migrate(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, pool) = (Target(operand(options, 0)), operand(options, 1));
    ask(session, HostRequest::PoolMigrate { target, pool })
}

pub(crate) fn split(session: &mut Session, _options: &Options) -> Result<(), Failure> {
    ask(session, HostRequest::PoolSplit)
}
