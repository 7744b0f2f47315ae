//! Tasks, messages and events.

use api::Role;
use xen::Uuid;

use super::Ctx;
use crate::events::{Following, Wanted, parse_token, token_at};
use crate::facade::{Facade, Step};
use crate::failure::Failure;
use crate::model::Class;
use crate::refs::{derived, opaque};
use crate::tasks::{Doer, Status, Task};
use crate::value::Value;

/// A client is answered after this time at the latest.
const WAIT_MAX_S: f64 = 3600.0;

/// Messages that are kept; more take the place of the oldest.
const MESSAGES_MAX: usize = 1000;

/// Bytes of a client's own words on a task or in a message.
const WORDS_MAX: usize = 16 << 10;

fn short(text: &str, what: &str) -> Result<String, Failure> {
    if text.len() > WORDS_MAX {
        return Err(Failure::new("VALUE_NOT_SUPPORTED", [what, "", "too long"]));
    }
    Ok(text.to_owned())
}

pub(super) fn create(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let id = derived(ctx.moment.fresh, "task", "");
    facade.tasks.begin(Task {
        id,
        name: short(ctx.text(0)?, "label")?,
        description: short(ctx.text(1)?, "description")?,
        who: ctx.session.who.clone(),
        doer: Doer::Client,
        works_on: None,
        status: Status::Pending,
        progress: 0.0,
        created_unix_ms: ctx.moment.unix_ms,
        ended_unix_ms: None,
        result: String::new(),
        error_info: Vec::new(),
    })?;
    facade.tasks_changed(None);
    Ok(Step::Value(opaque(id).into()))
}

/// A task of the client's own, or of anybody's for an admin; none that stands for an operation of the daemon.
fn own<'a>(facade: &'a mut Facade, ctx: &Ctx<'_>) -> Result<&'a mut Task, Failure> {
    let id = ctx.handle(facade, Class::Task, 0)?;
    let Some(task) = facade.tasks.get_mut(id) else {
        return Err(Failure::not_allowed("the task is an operation of xylemd's"));
    };
    if task.who == ctx.session.who || ctx.session.role == Role::Admin {
        Ok(task)
    } else {
        Err(Failure::permission(ctx.method))
    }
}

pub(super) fn destroy(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let task = own(facade, ctx)?;
    if task.doer != Doer::Client && task.is_under_way() {
        return Err(Failure::not_allowed("the task has not ended"));
    }
    let id = task.id;
    facade.tasks.destroy(id);
    facade.tasks_changed(None);
    Step::void()
}

/// A task that its client moves on.
fn moved(
    facade: &mut Facade,
    ctx: &Ctx<'_>,
    change: impl FnOnce(&mut Task) -> Result<(), Failure>,
) -> Result<Step, Failure> {
    let task = own(facade, ctx)?;
    if task.doer != Doer::Client {
        return Err(Failure::not_allowed("the task is a call's"));
    }
    change(task)?;
    facade.tasks_changed(None);
    Step::void()
}

pub(super) fn cancel(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let now = ctx.moment.unix_ms;
    let task = own(facade, ctx)?;
    match task.doer {
        Doer::Call => return Err(Failure::not_allowed("what the task does has to be done")),
        _ if !task.is_under_way() => {}
        Doer::Patient => task.status = Status::Cancelling,
        Doer::Client => {
            task.status = Status::Cancelled;
            task.ended_unix_ms = Some(now);
        }
    }
    facade.tasks_changed(None);
    Step::void()
}

pub(super) fn set_status(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let status = Status::named(ctx.text(1)?).ok_or_else(|| Failure::wrong_type("value"))?;
    let now = ctx.moment.unix_ms;
    moved(facade, ctx, |task| {
        task.status = status;
        task.ended_unix_ms = (status != Status::Pending).then_some(now);
        Ok(())
    })
}

pub(super) fn set_progress(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let progress = ctx.float(1)?.clamp(0.0, 1.0);
    moved(facade, ctx, |task| {
        task.progress = progress;
        Ok(())
    })
}

pub(super) fn set_result(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let result = short(ctx.text(1)?, "value")?;
    moved(facade, ctx, |task| {
        task.result = result;
        Ok(())
    })
}

pub(super) fn set_error_info(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let parts = ctx.args.get(1).and_then(Value::as_array);
    let parts = parts.ok_or_else(|| Failure::wrong_type("value"))?;
    let parts = parts.iter().filter_map(Value::as_str).take(16);
    let parts = parts.map(|it| short(it, "value")).collect::<Result<Vec<_>, _>>()?;
    moved(facade, ctx, |task| {
        task.error_info = parts;
        Ok(())
    })
}

pub(super) fn create_message(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let uuid = derived(ctx.moment.fresh, "message", "");
    let mut record = Class::Message.blank();
    let mut set = |field, value: Value| record.insert(field, value);
    set("uuid", uuid.to_string().into());
    set("name", short(ctx.text(0)?, "name")?.into());
    set("priority", ctx.int(1)?.into());
    set("cls", short(ctx.text(2)?, "cls")?.into());
    set("obj_uuid", short(ctx.text(3)?, "obj_uuid")?.into());
    set("body", short(ctx.text(4)?, "body")?.into());
    let now = i64::try_from(ctx.moment.unix_ms / 1000).unwrap_or_default();
    set("timestamp", Value::Date(now));
    let all = facade.objects.of(Class::Message);
    let when = |record: &crate::Record| record.get("timestamp").and_then(Value::as_date);
    let oldest = all.min_by_key(|(_, record)| when(record)).map(|(uuid, _)| uuid);
    if facade.objects.of(Class::Message).count() >= MESSAGES_MAX
        && let Some(oldest) = oldest
    {
        facade.objects.remove((Class::Message, oldest));
    }
    facade.objects.put((Class::Message, uuid), record);
    Ok(Step::Value(opaque(uuid).into()))
}

pub(super) fn destroy_message(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let uuid = ctx.handle(facade, Class::Message, 0)?;
    facade.objects.remove((Class::Message, uuid));
    Step::void()
}

pub(super) fn destroy_messages(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let references = ctx.args.first().and_then(Value::as_array);
    let references = references.ok_or_else(|| Failure::wrong_type("messages"))?;
    let uuid = |it: &Value| facade.find(Class::Message, it.as_str().unwrap_or_default());
    let uuids: Vec<Uuid> = references.iter().map(uuid).collect::<Result<_, _>>()?;
    uuids.into_iter().for_each(|uuid| facade.objects.remove((Class::Message, uuid)));
    Step::void()
}

fn messages(
    facade: &Facade,
    since: Option<i64>,
    is_wanted: impl Fn(&crate::Record) -> bool,
) -> Step {
    let is_later =
        |record: &crate::Record| record.get("timestamp").and_then(Value::as_date) >= since;
    let all = facade.objects.of(Class::Message);
    let wanted = all.filter(|(_, record)| is_later(record) && is_wanted(record));
    let records = wanted.map(|(uuid, it)| (opaque(uuid), Value::Record(it.clone())));
    Step::Value(Value::Map(records.collect()))
}

pub(super) fn messages_since(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let since = ctx.args.first().and_then(Value::as_date);
    Ok(messages(facade, Some(since.ok_or_else(|| Failure::wrong_type("since"))?), |_| true))
}

pub(super) fn messages_of(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (class, uuid) = (Value::from(ctx.text(0)?), Value::from(ctx.text(1)?));
    let since = ctx.args.get(2).and_then(Value::as_date);
    let since = since.ok_or_else(|| Failure::wrong_type("since"))?;
    Ok(messages(facade, Some(since), |record| {
        record.get("cls") == Some(&class) && record.get("obj_uuid") == Some(&uuid)
    }))
}

pub(super) fn events_from(_: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let classes = ctx.args.first().and_then(Value::as_array);
    let classes = classes.ok_or_else(|| Failure::wrong_type("classes"))?;
    let wanted = Wanted::of(classes.iter().filter_map(Value::as_str));
    let cursor = parse_token(ctx.text(1)?)?;
    let wait_s = ctx.float(2)?.clamp(0.0, WAIT_MAX_S);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is clamped to less than 2^32"
    )]
    let wait_ms = (wait_s * 1000.0) as u64;
    let following = Following { wanted, cursor, session: ctx.session.id };
    Ok(Step::Events(following, ctx.moment.unix_ms + wait_ms))
}

pub(super) fn inject(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let name = ctx.text(0)?;
    let unknown = || Failure::no_handle(Class::Event, name);
    let class = Class::named(name).filter(|it| it.is_listed()).ok_or_else(unknown)?;
    let uuid = ctx.handle(facade, class, 1)?;
    let before = facade.objects.touch((class, uuid)).unwrap_or(facade.objects.revision());
    Ok(Step::Value(token_at(before).into()))
}

pub(super) fn current_id(facade: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(facade.revision().into()))
}
