//! Requests on SRs and VDIs.
//!
//! Each is performed by its client's own thread, with a permit of the scheduler: a slow SR delays
//! its own requests only. Requests answered from our files need no permit.

use std::collections::BTreeMap;

use ::storage::{
    Image, ImageFormat, InUse, Kind, Mode, Repositories, Repository, Stage, StorageError, System,
    Vdi, VdiName, Wanted,
};
use api::{ImageRow, Reply, SrRow, StorageRequest, VdiList, VdiRow, VdiUser};
use toolstack::channel::ChannelId;
use toolstack::scheduler::{SrRequest, Ticket};
use toolstack::work::loop_tag;
use toolstack::{Deed, PermitRequest, SrChange};

use crate::{Daemon, Failed, Passing, Progress, Service};

type Result<T> = std::result::Result<T, StorageError>;

/// Given back when it is dropped, with what came of the work.
struct Permit<'a> {
    daemon: &'a dyn Daemon,
    ticket: Ticket,
    outcome: std::result::Result<(), String>,
    /// What it has changed, if it was done.
    change: Option<SrChange>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        let change = self.change.take();
        let request = PermitRequest::GiveBack { permit: self.ticket, outcome, change };
        self.daemon.put(toolstack::Request::Permit(request));
    }
}

/// The SR that a request changes, and what the log says of it; `None` if it only reads.
fn change(request: &StorageRequest) -> Result<Option<(String, Deed)>> {
    use StorageRequest as R;
    let (sr, verb, subject) = match request {
        R::SrList
        | R::SrInfo { .. }
        | R::VdiList { .. }
        | R::ImageList
        | R::VdiLend { .. }
        | R::VdiPass { .. } => {
            return Ok(None);
        }
        R::SrCreate { name, .. } => (name.clone(), "sr-create", name),
        R::SrIntroduce { name, .. } => (name.clone(), "sr-introduce", name),
        R::SrForget { name } => (name.clone(), "sr-forget", name),
        R::SrDestroy { name } => (name.clone(), "sr-destroy", name),
        R::VdiCreate { vdi, .. } => (sr_of(vdi)?, "vdi-create", vdi),
        R::VdiDestroy { vdi } => (sr_of(vdi)?, "vdi-destroy", vdi),
        R::VdiResize { vdi, .. } => (sr_of(vdi)?, "vdi-resize", vdi),
        R::VdiSnapshot { vdi, .. } => (sr_of(vdi)?, "vdi-snapshot", vdi),
        R::VdiClone { vdi, .. } => (sr_of(vdi)?, "vdi-clone", vdi),
        R::ImageAdd(image) => (image.sr.clone(), "image-import", &image.name),
        // Its SR is found under a lock of its own.
        R::ImageRemove { name } => (name.clone(), "image-remove", name),
    };
    Ok(Some((sr, Deed { verb, subject: subject.clone() })))
}

fn sr_of(vdi: &str) -> Result<String> {
    Ok(parse(vdi)?.sr().to_owned())
}

type Users = BTreeMap<VdiName, Vec<InUse>>;

/// SRs and VDIs as they are listed. Who uses VDIs is read once for all that are asked for together.
pub(crate) struct Listed {
    system: Box<dyn System>,
    users: Option<Users>,
}

impl Listed {
    fn users(&mut self) -> Result<&Users> {
        let users = match self.users.take() {
            Some(users) => users,
            None => Repositories::new(&mut *self.system).users()?,
        };
        Ok(self.users.insert(users))
    }

    /// An SR; `None` if it is there no more. Why its VDIs cannot be read is known.
    pub(crate) fn sr(&mut self, name: &str, problem: Option<&str>) -> Option<SrRow> {
        let sr = Repositories::new(&mut *self.system).get(name);
        match sr.and_then(|sr| Ok(sr_row(sr, self.users()?))) {
            Ok(row) => Some(SrRow { problem: problem.map(str::to_owned), ..row }),
            Err(StorageError::Missing(_)) => None,
            Err(error) => {
                let (name, problem) = (name.to_owned(), Some(error.to_string()));
                Some(SrRow { name, problem, ..SrRow::default() })
            }
        }
    }

    /// A VDI. If it cannot be read who uses it, its SR says so.
    pub(crate) fn vdi(&mut self, name: &VdiName, vdi: &Vdi) -> VdiRow {
        let users = self.users().ok().and_then(|users| users.get(name)).cloned();
        vdi_row(name.sr(), vdi.clone(), users.unwrap_or_default())
    }
}

fn vdi_row(sr: &str, vdi: Vdi, users: Vec<InUse>) -> VdiRow {
    VdiRow {
        sr: sr.to_owned(),
        name: vdi.name,
        bytes: vdi.bytes,
        used_bytes: vdi.used_bytes,
        snapshot_of: vdi.snapshot_of,
        users: users.into_iter().map(user).collect(),
    }
}

impl Service<'_> {
    pub(crate) fn listed(&self) -> Listed {
        Listed { system: self.daemon.storage(), users: None }
    }

    pub(crate) fn storage(&self, request: StorageRequest) -> Result<Reply> {
        let mut system = self.daemon.storage();
        let mut srs = Repositories::new(&mut *system);
        let Some((sr, deed)) = change(&request)? else {
            return match request {
                StorageRequest::SrInfo { name } => self.sr_info(&mut srs, &name),
                StorageRequest::VdiList { srs: names } => self.vdi_list(&mut srs, names),
                StorageRequest::ImageList => image_list(&mut srs),
                _ => sr_list(&mut srs),
            };
        };
        let sr = match &request {
            StorageRequest::ImageRemove { name } => srs.image(name)?.sr,
            _ => sr,
        };
        let verb = deed.verb;
        let mut permit = self.permit(&sr, SrRequest::Change, Some(deed))?;
        let result = make_change(&mut srs, request);
        permit.change = Some(match (verb, &result) {
            ("sr-create" | "sr-introduce", Ok(())) => SrChange::Come(sr),
            ("sr-forget" | "sr-destroy", Ok(())) => SrChange::Gone(sr),
            _ => SrChange::Changed(sr),
        });
        permit.outcome = result.as_ref().copied().map_err(ToString::to_string);
        result.map(|()| Reply::Done)
    }

    /// A VDI as a device of dom0, for as long as the client keeps its connection.
    pub(crate) fn lend_vdi(&self, vdi: &str, write: bool) -> std::result::Result<Reply, Failed> {
        self.with_vdi(vdi, write, |channel, device| self.daemon.lend(channel, device))
    }

    /// The bytes of a VDI, to the client or from it.
    pub(crate) fn pass_vdi(&self, vdi: &str, write: bool) -> std::result::Result<Reply, Failed> {
        let how = if write { Passing::In } else { Passing::Out };
        self.with_vdi(vdi, write, |channel, device| self.daemon.pass(channel, vdi, device, how))
    }

    fn with_vdi(
        &self,
        vdi: &str,
        write: bool,
        work: impl FnOnce(ChannelId, &str) -> std::result::Result<(), String>,
    ) -> std::result::Result<Reply, Failed> {
        let told = |error: &dyn std::fmt::Display| Failed::Told(error.to_string());
        let name = parse(vdi).map_err(|error| told(&error))?.to_string();
        // As a disk of a VM that nobody knows: a new daemon takes it back.
        let owner = loop_tag(self.fresh_uuid()?, 0);
        let mode = if write { Mode::ReadWrite } else { Mode::ReadOnly };
        let wanted = Wanted { target: &name, mode, owner: &owner, who: "dom0, by xy", others: &[] };
        let mut system = self.daemon.storage();
        let attached = ::storage::attach(&mut *system, &wanted, ImageFormat::Raw)
            .map_err(|error| told(&error))?;
        // Taken when it is needed: one that is not closes with the client's own, which waits for that.
        let lent = self
            .channel()
            .and_then(|channel| work(channel, &attached.device().path).map_err(Failed::Told));
        ::storage::detach(&mut *system, &attached, &owner).map_err(|error| told(&error))?;
        lent.map(|()| Reply::Done)
    }

    fn permit(&self, sr: &str, what: SrRequest, deed: Option<Deed>) -> Result<Permit<'_>> {
        let request = PermitRequest::Sr { sr: sr.to_owned(), what, deed };
        let ask = self.request(toolstack::Request::Permit(request), Progress::Unwanted);
        match self.daemon.ask(ask, &mut |_| Ok(())) {
            Ok(toolstack::Reply::Permit(ticket)) => {
                Ok(Permit { daemon: self.daemon, ticket, outcome: Ok(()), change: None })
            }
            _ => Err(StorageError::Refused(format!("{sr}: xylemd ends"))),
        }
    }

    fn sr_info(&self, srs: &mut Repositories<'_>, name: &str) -> Result<Reply> {
        let _permit = self.permit(name, SrRequest::Scan, None)?;
        let row = sr_row(srs.get(name)?, &srs.users()?);
        let space = srs.space(name)?;
        let row = SrRow {
            vdis: Some(srs.scan(name)?.len() as u64),
            bytes: Some(space.bytes),
            free_bytes: Some(space.free_bytes),
            ..row
        };
        Ok(Reply::Srs(vec![row]))
    }

    fn vdi_list(&self, srs: &mut Repositories<'_>, names: Vec<String>) -> Result<Reply> {
        let names = if names.is_empty() {
            srs.list()?.into_iter().map(|sr| sr.name).collect()
        } else {
            names
        };
        let mut users = srs.users()?;
        let mut list = VdiList::default();
        for sr in names {
            // A missing SR is reported by the scan.
            list.problems.extend(srs.troubles(&sr).unwrap_or_default());
            let _permit = self.permit(&sr, SrRequest::Scan, None)?;
            match srs.scan(&sr) {
                Err(error) => list.problems.push(error.to_string()),
                Ok(vdis) => list.vdis.extend(vdis.into_iter().map(|vdi| {
                    let name = VdiName::new(&sr, &vdi.name);
                    let users = name.ok().and_then(|name| users.remove(&name)).unwrap_or_default();
                    vdi_row(&sr, vdi, users)
                })),
            }
        }
        Ok(Reply::Vdis(list))
    }
}

fn make_change(srs: &mut Repositories<'_>, request: StorageRequest) -> Result<()> {
    match request {
        StorageRequest::SrCreate { name, kind, config } => {
            srs.create(&name, Kind::parse(&kind)?, config)
        }
        StorageRequest::SrIntroduce { name, kind, config } => {
            srs.introduce(&name, Kind::parse(&kind)?, config)
        }
        StorageRequest::SrForget { name } => srs.forget(&name),
        StorageRequest::SrDestroy { name } => srs.destroy(&name),
        StorageRequest::VdiCreate { vdi, bytes } => srs.create_vdi(&parse(&vdi)?, bytes),
        StorageRequest::VdiDestroy { vdi } => srs.destroy_vdi(&parse(&vdi)?),
        StorageRequest::VdiResize { vdi, bytes } => srs.resize_vdi(&parse(&vdi)?, bytes),
        StorageRequest::VdiSnapshot { vdi, to } => srs.snapshot_vdi(&parse(&vdi)?, &to),
        StorageRequest::VdiClone { vdi, to } => srs.clone_vdi(&parse(&vdi)?, &to),
        StorageRequest::ImageAdd(row) => srs.add_image(&image(row)),
        StorageRequest::ImageRemove { name } => srs.remove_image(&name),
        StorageRequest::SrList
        | StorageRequest::SrInfo { .. }
        | StorageRequest::VdiList { .. }
        | StorageRequest::VdiLend { .. }
        | StorageRequest::VdiPass { .. }
        | StorageRequest::ImageList => Ok(()),
    }
}

fn parse(text: &str) -> Result<VdiName> {
    let (sr, vdi) = text.split_once(':').ok_or_else(|| {
        StorageError::Refused(format!("{text}: names no VDI; it is written SR:VDI"))
    })?;
    VdiName::new(sr, vdi)
}

fn image(row: ImageRow) -> Image {
    let ImageRow { name, sr, bytes, format, origin, checksum } = row;
    Image { name, sr, bytes, format, origin, checksum }
}

fn image_list(srs: &mut Repositories<'_>) -> Result<Reply> {
    let row = |it: Image| {
        let Image { name, sr, bytes, format, origin, checksum } = it;
        ImageRow { name, sr, bytes, format, origin, checksum }
    };
    Ok(Reply::Images(srs.images()?.into_iter().map(row).collect()))
}

fn sr_row(sr: Repository, users: &Users) -> SrRow {
    let in_use = users.keys().filter(|vdi| vdi.sr() == sr.name).count() as u64;
    let Repository { name, kind, config } = sr;
    SrRow { name, kind: kind.to_string(), config, in_use, ..SrRow::default() }
}

fn sr_list(srs: &mut Repositories<'_>) -> Result<Reply> {
    let users = srs.users()?;
    Ok(Reply::Srs(srs.list()?.into_iter().map(|sr| sr_row(sr, &users)).collect()))
}

fn user(it: InUse) -> VdiUser {
    VdiUser {
        owner: it.owner,
        access: it.access.as_str().to_owned(),
        active: it.stage == Stage::Activated,
        device: it.device.map(|device| device.path),
    }
}
