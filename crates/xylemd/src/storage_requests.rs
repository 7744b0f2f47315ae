//! Requests about SRs and VDIs.
//!
//! Each is carried out by its client's own thread, with a permit of the scheduler: a slow SR keeps those who ask for it,
//! and no VM. What is answered from files of ours needs none.

use std::collections::BTreeMap;

use api::{Reply, SrRow, StorageRequest, VdiList, VdiRow, VdiUser};
use storage::{InUse, Kind, Repositories, Repository, Stage, StorageError, VdiName};
use storage_host::LinuxSystem;
use toolstack::PermitRequest;
use toolstack::scheduler::{SrRequest, Ticket};

use crate::core::{Core, Progress};

type Result<T> = std::result::Result<T, StorageError>;

/// Given back when it is dropped.
struct Permit<'a> {
    core: &'a Core,
    ticket: Ticket,
}

impl<'a> Permit<'a> {
    fn wait(core: &'a Core, sr: &str, what: SrRequest) -> Result<Self> {
        let request = toolstack::Request::Permit(PermitRequest::Sr { sr: sr.to_owned(), what });
        match core.ask(None, request, Progress::Unwanted, |_| Ok(())) {
            Ok(toolstack::Reply::Permit(ticket)) => Ok(Self { core, ticket }),
            _ => Err(StorageError::Refused(format!("{sr}: xylemd ends"))),
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let request = toolstack::Request::Permit(PermitRequest::GiveBack(self.ticket));
        // The answer says nothing.
        let _done = self.core.begin(None, request, Progress::Unwanted);
    }
}

/// The SR that a request changes; `None` if it only looks.
fn changed(request: &StorageRequest) -> Result<Option<String>> {
    Ok(match request {
        StorageRequest::SrList | StorageRequest::SrInfo { .. } | StorageRequest::VdiList { .. } => {
            None
        }
        StorageRequest::SrCreate { name, .. }
        | StorageRequest::SrIntroduce { name, .. }
        | StorageRequest::SrForget { name }
        | StorageRequest::SrDestroy { name } => Some(name.clone()),
        StorageRequest::VdiCreate { vdi, .. }
        | StorageRequest::VdiDestroy { vdi }
        | StorageRequest::VdiResize { vdi, .. }
        | StorageRequest::VdiSnapshot { vdi, .. }
        | StorageRequest::VdiClone { vdi, .. } => Some(parse(vdi)?.sr().to_owned()),
    })
}

pub(crate) fn answer(core: &Core, system: &LinuxSystem, request: StorageRequest) -> Result<Reply> {
    let mut system = system.clone();
    let mut srs = Repositories::new(&mut system);
    let sr = changed(&request)?;
    let _permit = sr.map(|sr| Permit::wait(core, &sr, SrRequest::Change)).transpose()?;
    match request {
        StorageRequest::SrCreate { name, kind, config } => {
            srs.create(&name, Kind::parse(&kind)?, config)?;
        }
        StorageRequest::SrIntroduce { name, kind, config } => {
            srs.introduce(&name, Kind::parse(&kind)?, config)?;
        }
        StorageRequest::SrForget { name } => srs.forget(&name)?,
        StorageRequest::SrDestroy { name } => srs.destroy(&name)?,
        StorageRequest::SrList => return sr_list(&mut srs),
        StorageRequest::SrInfo { name } => return sr_info(core, &mut srs, &name),
        StorageRequest::VdiList { srs: names } => return vdi_list(core, &mut srs, names),
        StorageRequest::VdiCreate { vdi, bytes } => srs.create_vdi(&parse(&vdi)?, bytes)?,
        StorageRequest::VdiDestroy { vdi } => srs.destroy_vdi(&parse(&vdi)?)?,
        StorageRequest::VdiResize { vdi, bytes } => srs.resize_vdi(&parse(&vdi)?, bytes)?,
        StorageRequest::VdiSnapshot { vdi, to } => srs.snapshot_vdi(&parse(&vdi)?, &to)?,
        StorageRequest::VdiClone { vdi, to } => srs.clone_vdi(&parse(&vdi)?, &to)?,
    }
    Ok(Reply::Done)
}

fn parse(text: &str) -> Result<VdiName> {
    let (sr, vdi) = text.split_once(':').ok_or_else(|| {
        StorageError::Refused(format!("{text}: names no VDI; it is written SR:VDI"))
    })?;
    VdiName::new(sr, vdi)
}

fn users(srs: &mut Repositories<'_>) -> Result<BTreeMap<VdiName, Vec<InUse>>> {
    let mut users: BTreeMap<VdiName, Vec<InUse>> = BTreeMap::new();
    for it in srs.in_use()? {
        users.entry(it.name.clone()).or_default().push(it);
    }
    Ok(users)
}

fn sr_row(sr: Repository, users: &BTreeMap<VdiName, Vec<InUse>>) -> SrRow {
    let in_use = users.keys().filter(|vdi| vdi.sr() == sr.name).count() as u64;
    let Repository { name, kind, config } = sr;
    SrRow { name, kind: kind.to_string(), config, in_use, ..SrRow::default() }
}

fn sr_list(srs: &mut Repositories<'_>) -> Result<Reply> {
    let users = users(srs)?;
    Ok(Reply::Srs(srs.list()?.into_iter().map(|sr| sr_row(sr, &users)).collect()))
}

fn sr_info(core: &Core, srs: &mut Repositories<'_>, name: &str) -> Result<Reply> {
    let _permit = Permit::wait(core, name, SrRequest::Scan)?;
    let row = sr_row(srs.get(name)?, &users(srs)?);
    let space = srs.space(name)?;
    let row = SrRow {
        vdis: Some(srs.scan(name)?.len() as u64),
        bytes: Some(space.bytes),
        free_bytes: Some(space.free_bytes),
        ..row
    };
    Ok(Reply::Srs(vec![row]))
}

fn vdi_list(core: &Core, srs: &mut Repositories<'_>, names: Vec<String>) -> Result<Reply> {
    let names =
        if names.is_empty() { srs.list()?.into_iter().map(|sr| sr.name).collect() } else { names };
    let mut users = users(srs)?;
    let mut list = VdiList::default();
    for sr in names {
        // An SR that there is not says so when it is scanned.
        list.problems.extend(srs.troubles(&sr).unwrap_or_default());
        let _permit = Permit::wait(core, &sr, SrRequest::Scan)?;
        match srs.scan(&sr) {
            Err(error) => list.problems.push(error.to_string()),
            Ok(vdis) => list.vdis.extend(vdis.into_iter().map(|vdi| {
                let name = VdiName::new(&sr, &vdi.name);
                let users = name.ok().and_then(|name| users.remove(&name)).unwrap_or_default();
                VdiRow {
                    sr: sr.clone(),
                    name: vdi.name,
                    bytes: vdi.bytes,
                    used_bytes: vdi.used_bytes,
                    snapshot_of: vdi.snapshot_of,
                    users: users.into_iter().map(user).collect(),
                }
            })),
        }
    }
    Ok(Reply::Vdis(list))
}

fn user(it: InUse) -> VdiUser {
    VdiUser {
        owner: it.owner,
        access: it.access.as_str().to_owned(),
        active: it.stage == Stage::Activated,
        device: it.device.map(|device| device.path),
    }
}
