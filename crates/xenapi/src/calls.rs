//! Calls: finding the method, the session and the right, and what follows.

mod copy;
mod define;
mod device;
mod generic;
mod host;
mod power;
mod storage;
mod table;
mod task;
mod vm;

use api::{Request, Role, Target, Targets};
use xen::Uuid;

use crate::facade::{Asking, Awaited, Facade, Moment, Outcome, Step, Waiting};
use crate::failure::Failure;
use crate::model::Class;
use crate::objects::Key;
use crate::refs::{derived, opaque, uuid_in};
use crate::rpc::Call;
use crate::session::Session;
use crate::tasks::{Doer, Status, Task};
use crate::value::Value;

pub(crate) use define::{Change, text_of};
pub(crate) use device::Chosen;
pub(crate) use table::TABLE;
use table::{Does, Row};

/// Methods that do not begin with a session.
const WITHOUT_SESSION: [&str; 3] = [
    "session.login_with_password",
    "session.slave_local_login_with_password",
    "system.listMethods",
];

/// A call that is being carried out.
pub(crate) struct Ctx<'a> {
    pub method: &'a str,
    pub session: &'a Session,
    pub args: &'a [Value],
    pub moment: &'a Moment,
}

type Handler = fn(&mut Facade, &Ctx<'_>) -> Result<Step, Failure>;

/// What a call has turned out to be.
#[derive(Clone, Copy)]
enum Found {
    Row(&'static Row),
    Generic(Class, generic::Verb),
}

impl Found {
    fn role(self) -> Role {
        match self {
            Self::Row(row) => row.role,
            Self::Generic(_, verb) => verb.role(),
        }
    }

    fn works(self) -> Option<&'static str> {
        match self {
            Self::Row(row) => row.works,
            Self::Generic(..) => None,
        }
    }

    /// How many parameters follow the session: as many as must, as many as may.
    fn params(self) -> (usize, usize) {
        match self {
            Self::Row(row) => {
                let words = row.params.split_ascii_whitespace();
                (words.clone().filter(|it| !it.ends_with('?')).count(), words.count())
            }
            Self::Generic(_, verb) => (verb.params(), verb.params()),
        }
    }

    fn run(self, facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
        match self {
            Self::Row(row) => match row.does {
                Does::Call(handler) => handler(facade, ctx),
                Does::Refused => Err(Failure::not_implemented(ctx.method)),
            },
            Self::Generic(class, verb) => generic::run(facade, ctx, class, verb),
        }
    }
}

pub(crate) fn call(facade: &mut Facade, call: &Call, moment: &Moment) -> Result<Outcome, Failure> {
    let (method, is_async) = match call.method.strip_prefix("Async.") {
        Some(method) => (method, true),
        None => (call.method.as_str(), false),
    };
    if WITHOUT_SESSION.contains(&method) && !is_async {
        return without_session(method, &call.params, moment);
    }
    let Some((reference, args)) = call.params.split_first() else {
        let (least, _) = find(method)?.params();
        return Err(Failure::parameter_count(method, least + 1, 0));
    };
    let reference = reference.as_str().unwrap_or_default();
    let session = facade.sessions.used(reference, moment.unix_ms)?;
    let found = find(method)?;
    let (least, most) = found.params();
    if !(least..=most).contains(&args.len()) {
        return Err(Failure::parameter_count(method, most + 1, args.len() + 1));
    }
    if session.role < found.role() {
        return Err(Failure::permission(method));
    }
    if is_async && (method.starts_with("event.") || method.starts_with("session.")) {
        return Err(Failure::unknown_method(&call.method));
    }
    if !facade.mirror.is_whole && !method.starts_with("session.") {
        return Err(Failure::new("HOST_STILL_BOOTING", [""; 0]));
    }
    let ctx = Ctx { method, session: &session, args, moment };
    let step = found.run(facade, &ctx)?;
    if is_async {
        return start(facade, &ctx, found.works(), step);
    }
    Ok(outcome(facade, &ctx, step, None))
}

fn outcome(facade: &mut Facade, ctx: &Ctx<'_>, step: Step, task: Option<Uuid>) -> Outcome {
    match step {
        Step::Value(value) => facade.end(task, Ok(value), ctx.moment.unix_ms),
        Step::Ask(requests, then) => Outcome::Ask(Asking {
            requests,
            who: ctx.session.who.clone(),
            role: ctx.session.role,
            about: about(ctx),
            then,
            task,
            made: Vec::new(),
        }),
        Step::Events(following, deadline_unix_ms) => {
            let what = Awaited::Events(following);
            let waiting = Waiting { deadline_unix_ms, what, task: None };
            facade.woken(waiting, ctx.moment.unix_ms)
        }
    }
}

/// The call goes on as a task.
fn start(
    facade: &mut Facade,
    ctx: &Ctx<'_>,
    works: Option<&'static str>,
    step: Step,
) -> Result<Outcome, Failure> {
    let id = derived(ctx.moment.fresh, "task", ctx.method);
    let vm = ctx.args.first().and_then(Value::as_str).and_then(uuid_in);
    let works_on = works.zip(vm).map(|(what, vm)| (facade.vm_of_snapshot(vm), what));
    facade.tasks.begin(Task {
        id,
        name: format!("Async.{}", ctx.method),
        description: String::new(),
        who: ctx.session.who.clone(),
        doer: match ctx.method {
            "VM.checkpoint" | "VM.snapshot" => Doer::Patient,
            _ => Doer::Call,
        },
        works_on,
        status: Status::Pending,
        progress: 0.0,
        created_unix_ms: ctx.moment.unix_ms,
        ended_unix_ms: None,
        result: String::new(),
        error_info: Vec::new(),
    })?;
    facade.tasks_changed(works_on.map(|(vm, _)| vm));
    let work = Box::new(outcome(facade, ctx, step, Some(id)));
    Ok(Outcome::Started { task: opaque(id).into(), work })
}

fn without_session(method: &str, args: &[Value], moment: &Moment) -> Result<Outcome, Failure> {
    if method == "system.listMethods" {
        return Ok(Outcome::Reply(Ok(methods().into_iter().collect())));
    }
    let text = |at: usize| args.get(at).and_then(Value::as_str);
    match (text(0), text(1)) {
        (Some(name), Some(password)) if args.len() <= 4 => {
            let originator = text(3).unwrap_or_default();
            Ok(Outcome::Authenticate(Facade::login(name, password, originator, moment)))
        }
        (Some(_), Some(_)) | (None, _) | (_, None) if !(2..=4).contains(&args.len()) => {
            Err(Failure::parameter_count(method, 2, args.len()))
        }
        _ => Err(Failure::wrong_type("uname")),
    }
}

/// All methods by name.
#[must_use]
pub fn methods() -> Vec<String> {
    let mut all: Vec<String> = TABLE.iter().map(|row| row.name.to_owned()).collect();
    all.extend(generic::names());
    all.sort_unstable();
    all.dedup();
    all
}

fn find(method: &str) -> Result<Found, Failure> {
    if let Some(row) = TABLE.iter().find(|row| row.name == method) {
        return Ok(Found::Row(row));
    }
    let unknown = || Failure::unknown_method(method);
    let (class, name) = method.split_once('.').ok_or_else(unknown)?;
    let class = *Class::ALL.iter().find(|it| it.name() == class).ok_or_else(unknown)?;
    match generic::Verb::parse(class, name) {
        Some(verb) => Ok(Found::Generic(class, verb)),
        None if generic::changes_a_field(class, name) => Err(Failure::not_implemented(method)),
        None => Err(unknown()),
    }
}

/// The object of a call: the class of its method, with the reference that comes first.
fn about(ctx: &Ctx<'_>) -> Option<Key> {
    let (class, _) = ctx.method.split_once('.')?;
    let class = Class::named(class)?;
    Some((class, ctx.args.first().and_then(Value::as_str).and_then(uuid_in)?))
}

/// An error of the daemon in XenAPI's words. Where those have none, they are the daemon's.
pub(crate) fn refused(text: &str, about: Option<Key>) -> Failure {
    if text.contains("not permitted") {
        return Failure::new("RBAC_PERMISSION_DENIED", ["", text]);
    }
    if let Some(numbers) = memory(text) {
        return Failure::new("HOST_NOT_ENOUGH_FREE_MEMORY", numbers);
    }
    let Some((class, uuid)) = about else { return Failure::internal(text) };
    let of_device = |code| Failure::new(code, [class.name(), &opaque(uuid), text]);
    match class {
        Class::Vbd | Class::Vif if text.contains("refused to release") => {
            of_device("DEVICE_DETACH_REJECTED")
        }
        Class::Vbd | Class::Vif if text.contains("did not release") => {
            Failure::new("DEVICE_DETACH_TIMEOUT", [class.name(), &opaque(uuid)])
        }
        Class::Vdi if text.contains("in use by") => {
            Failure::new("VDI_IN_USE", [opaque(uuid), text.to_owned()])
        }
        _ => Failure::internal(text),
    }
}

/// What is needed and what is free, in bytes, in the daemon's words for too little of it.
fn memory(text: &str) -> Option<[String; 2]> {
    let (needed, rest) = text.split_once(" needs ")?.1.split_once(" MiB, ")?;
    let (free, _) = rest.split_once(" MiB are free")?;
    let bytes = |mib: &str| mib.parse::<u64>().ok()?.checked_mul(1 << 20);
    Some([bytes(needed)?.to_string(), bytes(free)?.to_string()])
}

impl Ctx<'_> {
    pub(crate) fn text(&self, at: usize) -> Result<&str, Failure> {
        let text = self.args.get(at).and_then(Value::as_str);
        text.ok_or_else(|| Failure::wrong_type(self.parameter(at)))
    }

    pub(crate) fn int(&self, at: usize) -> Result<i64, Failure> {
        let int = self.args.get(at).and_then(Value::as_int);
        int.ok_or_else(|| Failure::wrong_type(self.parameter(at)))
    }

    /// A number that is not negative.
    pub(crate) fn size(&self, at: usize) -> Result<u64, Failure> {
        u64::try_from(self.int(at)?).map_err(|_| Failure::wrong_type(self.parameter(at)))
    }

    pub(crate) fn float(&self, at: usize) -> Result<f64, Failure> {
        let float = self.args.get(at).and_then(Value::as_float);
        float.ok_or_else(|| Failure::wrong_type(self.parameter(at)))
    }

    /// False if it is left out.
    pub(crate) fn flag(&self, at: usize) -> Result<bool, Failure> {
        let Some(value) = self.args.get(at) else { return Ok(false) };
        value.as_bool().ok_or_else(|| Failure::wrong_type(self.parameter(at)))
    }

    pub(crate) fn handle(&self, facade: &Facade, class: Class, at: usize) -> Result<Uuid, Failure> {
        facade.find(class, self.text(at)?)
    }

    fn parameter(&self, at: usize) -> &str {
        let row = TABLE.iter().find(|row| row.name == self.method);
        let name = row.and_then(|row| row.params.split_ascii_whitespace().nth(at));
        name.map_or("value", |name| name.trim_end_matches('?'))
    }
}

/// A VM as the daemon is told of it.
pub(crate) fn target(vm: Uuid) -> Target {
    Target(vm.to_string())
}

pub(crate) fn targets(vm: Uuid) -> Targets {
    Targets::These(vec![target(vm)])
}

/// A request alone, and what follows.
pub(crate) fn ask(request: Request, then: crate::facade::Then) -> Result<Step, Failure> {
    Ok(Step::Ask(vec![request], then))
}

#[cfg(test)]
mod page;
