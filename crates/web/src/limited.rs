//! Requests of clients, of which some are limited to VMs with a tag: what is asked of the daemon for them, and what they are shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{Answer, Object, Reply, Request, Role};
use gate::{Asked, Scope, Sight, Verdict, Who};

use crate::admit::Caller;
use crate::daemon::CallError;
use crate::mirror::Mirror;
use crate::problem::Problem;
use crate::shared::Shared;

/// What comes of a request that a client may make.
#[derive(Debug)]
pub(crate) enum Leave {
    Ask(Permitted),
    /// This is the answer.
    Answer(Reply),
}

/// A request that may be asked for, as it may be.
#[derive(Clone, Debug)]
pub(crate) struct Permitted {
    pub(crate) request: Request,
    who: Who,
    /// The VMs that it is about, of a client that is limited.
    limit: Option<BTreeSet<String>>,
}

/// Whether a client may make a request. What is refused is noted in the log.
pub(crate) fn permit(shared: &Shared, caller: &Caller, request: Request) -> Result<Leave, Problem> {
    let who = &caller.who;
    let note = |request: &Request, why: &str| {
        crate::routes::note(shared, caller, request, why);
    };
    if let Some(why) = who.role.refusal(&request) {
        note(&request, &why);
        return Err(Problem::forbidden(why));
    }
    if who.scope == Scope::Host {
        return Ok(Leave::Ask(Permitted { request, who: who.clone(), limit: None }));
    }
    let said = request.clone();
    let mirror = shared.mirror_of(&who.scope);
    match with_sight(&mirror, |sight| gate::decide(who.role, request, sight)) {
        Verdict::Ask(Asked { request, of }) => {
            Ok(Leave::Ask(Permitted { request, who: who.clone(), limit: Some(of) }))
        }
        Verdict::Answer(reply) => Ok(Leave::Answer(reply)),
        Verdict::Unknown(vm) => {
            let why = no_vm(&vm);
            if Role::needed(&said) > Role::Viewer {
                note(&said, &why);
            }
            Err(Problem::not_found(why))
        }
        Verdict::Refused(why) => {
            note(&said, &why);
            Err(Problem::forbidden(why))
        }
    }
}

/// Of a VM that is not there, or not for this client.
pub(crate) fn no_vm(vm: &str) -> String {
    format!("{vm} is not a VM here")
}

fn with_sight<T>(mirror: &Mirror, look: impl FnOnce(&Sight<'_>) -> T) -> T {
    mirror.read(|table| {
        let mut sight = Sight::default();
        for (_, _, kept) in table.iter() {
            match &kept.object {
                Object::Vm(Some(vm)) => sight.vms.push(vm),
                Object::Operation(Some(operation)) => sight.operations.push(operation),
                _ => {}
            }
        }
        look(&sight)
    })
}

impl Permitted {
    /// The VMs that it is about, of a client that is limited.
    pub(crate) fn of(&self) -> Option<BTreeSet<String>> {
        self.limit.clone()
    }

    /// What tells this client's request from another one, or from one that it made with other rights.
    pub(crate) fn fingerprint(&self) -> (String, &Scope) {
        (api::encode_request(&self.request), &self.who.scope)
    }

    /// Whether its answer may be kept for a request that is sent again: what a limited client may look at may be less then.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.limit.is_none() || Role::needed(&self.request) > Role::Viewer
    }

    /// Whether it would still be permitted: its client is let in as it was, and the VMs have their tags.
    pub(crate) fn holds(&self, shared: &Shared) -> bool {
        let tags = shared.tags();
        let mut of = self.limit.iter().flatten();
        shared.knows(&self.who) && of.all(|vm| tags.permit(&self.who.scope, vm))
    }

    /// What its client is shown of how it ended.
    pub(crate) fn show(
        &self,
        shared: &Shared,
        ended: Result<Reply, CallError>,
    ) -> Result<Reply, CallError> {
        let (who, Some(of)) = (&self.who, &self.limit) else { return ended };
        if !self.holds(shared) {
            return Err(CallError::Unknown(no_vm(of.first().map_or("this", String::as_str))));
        }
        let tags = shared.tags();
        let permits = |uuid: &str| tags.permit(&who.scope, uuid);
        let reply = ended.map_err(|error| match error {
            CallError::Refused(why) => CallError::Refused(gate::without_others(&why, &permits)),
            other => other,
        })?;
        match gate::show(reply, &permits) {
            Some(Reply::Operations(all)) => {
                let mirror = shared.mirror_of(&who.scope);
                let of_view = with_sight(&mirror, |sight| gate::operations(all.now_ns, sight));
                Ok(Reply::Operations(of_view))
            }
            Some(reply) => Ok(reply),
            None => Err(CallError::Unknown("nothing of this is for you".to_owned())),
        }
    }

    /// What its client is shown of an answer.
    pub(crate) fn answer(&self, shared: &Shared, answer: Answer) -> Answer {
        if self.limit.is_none() {
            return answer;
        }
        let ended = match answer {
            Answer::Ok(reply) => Ok(reply),
            Answer::Error(why) => Err(CallError::Refused(why)),
            Answer::Progress(_) | Answer::Event(_) | Answer::Warning(_) if self.holds(shared) => {
                return answer;
            }
            Answer::Progress(_) | Answer::Event(_) | Answer::Warning(_) | Answer::Changed(_) => {
                Err(CallError::Refused(no_vm("this")))
            }
        };
        match self.show(shared, ended) {
            Ok(reply) => Answer::Ok(reply),
            Err(error) => Answer::Error(error.to_string()),
        }
    }
}

/// What a client is shown of a task's result: rows of VMs that it does not see any more are left out.
pub(crate) fn task_of(shared: &Arc<Shared>, who: &Who, mut task: gate::Task) -> gate::Task {
    if who.scope != Scope::Host {
        let tags = shared.tags();
        let permits = |uuid: &str| tags.permit(&who.scope, uuid);
        task.result = task.result.and_then(|reply| gate::show(reply, &permits));
    }
    task
}
