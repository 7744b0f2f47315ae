//! Sessions, the host and its pool.

use api::{HostRequest, Request, Role};

use super::{Ctx, TABLE, ask, generic, methods};
use crate::facade::{Facade, Step, Then};
use crate::failure::Failure;
use crate::mirror::Dirty;
use crate::model::Class;
use crate::records::ROLES;
use crate::refs::{opaque, uuid_in};
use crate::value::Value;

fn seconds(unix_ms: u64) -> Value {
    Value::Date(i64::try_from(unix_ms / 1000).unwrap_or_default())
}

pub(super) fn void(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Step::void()
}

pub(super) fn no(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(Value::Bool(false)))
}

pub(super) fn null(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(Value::null()))
}

pub(super) fn zero(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(Value::Int(0)))
}

pub(super) fn empty(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(Value::Array(Vec::new())))
}

pub(super) fn logout(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    facade.sessions.end(ctx.session.id);
    Step::void()
}

/// Clients see no session but their own: its reference is all that a stranger would need.
fn own(ctx: &Ctx<'_>) -> Result<(), Failure> {
    let reference = ctx.text(0)?;
    if uuid_in(reference) == Some(ctx.session.id) {
        Ok(())
    } else {
        Err(Failure::no_handle(Class::Session, reference))
    }
}

pub(super) fn this_host(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    own(ctx)?;
    Ok(Step::Value(opaque(facade.identity.host).into()))
}

pub(super) fn this_user(_: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    own(ctx)?;
    Ok(Step::Value(Value::null()))
}

pub(super) fn is_superuser(_: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    own(ctx)?;
    Ok(Step::Value(Value::Bool(ctx.session.role == Role::Admin)))
}

pub(super) fn session_uuid(_: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    own(ctx)?;
    Ok(Step::Value(ctx.session.id.to_string().into()))
}

pub(super) fn session_record(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    own(ctx)?;
    let session = ctx.session;
    let mut record = Class::Session.blank();
    let mut set = |field, value: Value| record.insert(field, value);
    set("uuid", session.id.to_string().into());
    set("this_host", opaque(facade.identity.host).into());
    set("last_active", seconds(session.last_active_unix_ms));
    set("auth_user_sid", session.who.as_str().into());
    set("auth_user_name", session.who.as_str().into());
    set("is_local_superuser", Value::Bool(session.role == Role::Admin));
    set("originator", session.originator.as_str().into());
    let permitted = TABLE.iter().filter(|row| row.role <= session.role);
    set("rbac_permissions", permitted.map(|row| row.name.to_lowercase()).collect());
    Ok(Step::Value(Value::Record(record.into())))
}

pub(super) fn subjects(_: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value([ctx.session.who.as_str()].into_iter().collect()))
}

/// The pool has the host's name until it is given one.
pub(super) fn set_pool_name(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let key = (Class::Pool, ctx.handle(facade, Class::Pool, 0)?);
    generic::put_label(facade, key, "name_label", ctx.text(1)?.into())
}

pub(super) fn licence(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Pool, 0)?;
    Ok(Step::Value(Value::texts([("edition", "xylem"), ("expiry", "never")])))
}

pub(super) fn time(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    Ok(Step::Value(seconds(ctx.moment.unix_ms)))
}

pub(super) fn software(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let host = ctx.handle(facade, Class::Host, 0)?;
    let versions = facade.objects.field((Class::Host, host), "software_version");
    Ok(Step::Value(versions.cloned().unwrap_or_else(Value::map)))
}

pub(super) fn free_memory(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    Ok(Step::Value((facade.mirror.number("free_memory") << 20).into()))
}

pub(super) fn list_methods(_: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    Ok(Step::Value(methods().into_iter().collect()))
}

fn set_enabled(facade: &mut Facade, ctx: &Ctx<'_>, is_enabled: bool) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    facade.is_enabled = is_enabled;
    facade.refresh(Dirty { host: true, ..Dirty::default() });
    Step::void()
}

pub(super) fn enable(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    set_enabled(facade, ctx, true)
}

pub(super) fn disable(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    set_enabled(facade, ctx, false)
}

pub(super) fn dmesg(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    ask(Request::Host(HostRequest::Console { clear: false }), Then::Text)
}

pub(super) fn no_plugin(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    Err(Failure::new("XENAPI_MISSING_PLUGIN", [ctx.text(1)?]))
}

pub(super) fn permissions(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let uuid = ctx.handle(facade, Class::Role, 0)?;
    let view = facade.view();
    let Some(role) = ROLES.into_iter().find(|role| view.role(*role) == uuid) else {
        return Err(Failure::no_handle(Class::Role, ctx.text(0)?));
    };
    let permitted = TABLE.iter().filter(|row| row.role <= role);
    Ok(Step::Value(permitted.map(|row| row.name.to_lowercase()).collect()))
}
