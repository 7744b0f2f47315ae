//! What a client may ask for that is limited to some VMs, and what it is shown of the answers.
//!
//! [`decide`] is given what the client may see ([`Sight`]) and nothing else, so that its answer tells nothing of other VMs: one
//! of these is as one that is not there. Whatever is to be asked names VMs by UUIDs of that sight, never by what the client
//! said: a name or domid may be another VM's a moment later. What is not known to concern such VMs alone is refused.
//! [`show`] leaves out of a reply what it has of others.

mod concern;
#[cfg(test)]
mod model;
mod shown;

use std::collections::BTreeSet;

use api::{OperationObject, Operations, Reply, Request, Role, Target, Targets, VmObject, VmRow};

use concern::{Concern, concern};
pub use shown::{show, without_others};

/// What a client may see of the live model.
#[derive(Clone, Debug, Default)]
pub struct Sight<'a> {
    pub vms: Vec<&'a VmObject>,
    pub operations: Vec<&'a OperationObject>,
}

impl Sight<'_> {
    /// The VM of this name, domid or UUID.
    fn find(&self, said: &str) -> Option<&VmObject> {
        let domid = said.parse::<u16>().ok();
        let by_uuid = |it: &&&VmObject| it.uuid.eq_ignore_ascii_case(said);
        let by_domid = |it: &&&VmObject| domid.is_some() && it.domid == domid;
        let all = || self.vms.iter();
        let found = all().find(by_uuid).or_else(|| all().find(|it| it.name == said));
        found.or_else(|| all().find(by_domid)).copied()
    }

    fn running(&self) -> impl Iterator<Item = &VmObject> {
        self.vms.iter().copied().filter(|it| it.domid.is_some())
    }
}

/// What comes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The daemon may be asked.
    Ask(Asked),
    /// This is the answer.
    Answer(Reply),
    /// No VM that the client may see is called this.
    Unknown(String),
    /// It may not ask for this, and why.
    Refused(String),
}

/// A request as it may be asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub request: Request,
    /// The UUIDs of the VMs that it is about. If they are none, what the reply says of others is left out.
    pub of: BTreeSet<String>,
}

/// What comes of a request of a client with this role that may see so much.
#[must_use]
pub fn decide(role: Role, mut request: Request, sight: &Sight<'_>) -> Verdict {
    if let Some(why) = role.refusal(&request) {
        return Verdict::Refused(why);
    }
    let of = match concern(&mut request) {
        Concern::Nothing => Ok(BTreeSet::new()),
        Concern::Vm(target) => pin([target], sight),
        Concern::Rows(targets) => pin(targets, sight),
        Concern::Vms(targets, nothing) => {
            if targets.is_empty() {
                targets.extend(sight.running().map(|it| Target(it.uuid.clone())));
            }
            if targets.is_empty() {
                return Verdict::Answer(nothing());
            }
            pin(targets, sight)
        }
        Concern::Ends(targets) => match ends(targets, sight) {
            None => return Verdict::Answer(Reply::Done),
            Some(these) => pin(these, sight),
        },
        Concern::Trace(said) => trace(said, sight),
        Concern::Domid(name) => {
            let domid = sight.find(name).and_then(|it| it.domid);
            return answer(name, domid.map(Reply::Domid));
        }
        Concern::Domname(domid) => {
            let vm = sight.running().find(|it| it.domid == Some(domid));
            return answer(&domid.to_string(), vm.map(|it| Reply::Domname(it.name.clone())));
        }
        Concern::States => {
            return Verdict::Answer(Reply::Vms(sight.vms.iter().map(|it| row(it)).collect()));
        }
        Concern::Host(what) => {
            return Verdict::Refused(not_for_limited(what));
        }
    };
    match of {
        Ok(of) => Verdict::Ask(Asked { request, of }),
        Err(said) => Verdict::Unknown(said),
    }
}

/// What a client is told that is limited to VMs with a tag and asks for what is not of these: `this is ..`.
#[must_use]
pub fn not_for_limited(what: &str) -> String {
    format!("not permitted: {what}, and you are limited to VMs with a tag")
}

/// Names VMs by their UUIDs. Returns these, or which is not known.
fn pin<'a>(
    targets: impl IntoIterator<Item = &'a mut Target>,
    sight: &Sight<'_>,
) -> Result<BTreeSet<String>, String> {
    let uuid_of = |Target(said): &mut Target| {
        let vm = sight.find(said).ok_or_else(|| said.clone())?;
        said.clone_from(&vm.uuid);
        Ok(vm.uuid.clone())
    };
    targets.into_iter().map(uuid_of).collect()
}

fn answer(said: &str, reply: Option<Reply>) -> Verdict {
    reply.map_or_else(|| Verdict::Unknown(said.to_owned()), Verdict::Answer)
}

/// Those that are to be ended; `None` if there are none.
fn ends<'a>(targets: &'a mut Targets, sight: &Sight<'_>) -> Option<&'a mut Vec<Target>> {
    if *targets == Targets::All {
        *targets = Targets::These(sight.running().map(|it| Target(it.uuid.clone())).collect());
    }
    match targets {
        Targets::These(these) if !these.is_empty() => Some(these),
        Targets::These(_) | Targets::All => None,
    }
}

/// Whose operation it is, by its number or its VM, whose last one is meant then.
fn trace(said: &mut String, sight: &Sight<'_>) -> Result<BTreeSet<String>, String> {
    let number = said.parse::<u64>().ok();
    if let Some(operation) = sight.operations.iter().find(|it| number == Some(it.row.id)) {
        *said = operation.row.id.to_string();
        return Ok([operation.uuid.clone()].into());
    }
    let vm = sight.find(said).ok_or_else(|| said.clone())?;
    said.clone_from(&vm.uuid);
    Ok([vm.uuid.clone()].into())
}

fn row(vm: &VmObject) -> VmRow {
    VmRow {
        name: vm.name.clone(),
        uuid: vm.uuid.clone(),
        state: vm.state.clone(),
        reason: vm.reason.clone(),
        domid: vm.domid,
        defined: vm.defined,
        autostart: vm.autostart,
    }
}

/// Operations of the sight, in place of all of the host's.
#[must_use]
pub fn operations(now_ns: u64, sight: &Sight<'_>) -> Operations {
    let mut rows: Vec<_> = sight.operations.iter().map(|it| it.row.clone()).collect();
    rows.sort_by_key(|it| it.id);
    Operations { now_ns, rows }
}
