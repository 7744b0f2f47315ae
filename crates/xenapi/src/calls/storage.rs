//! Storage repositories and their images.

use std::collections::BTreeMap;

use api::{Request, StorageRequest};
use xen::Uuid;

use super::Ctx;
use super::define::without_vdi;
use super::vm::plain_name;
use crate::facade::{Facade, Step, Then};
use crate::failure::Failure;
use crate::labels::checked;
use crate::model::Class;
use crate::refs::{opaque, uuid_in};
use crate::settle::Settled;
use crate::value::Value;

/// Longest names of VDIs and SRs.
const VDI_NAME_MAX: usize = 40;
const SR_NAME_MAX: usize = 16;
/// Digits of a fresh UUID behind a name that is not free.
const MARK_LEN: usize = 8;

fn list(sr: &str) -> Request {
    Request::Storage(StorageRequest::VdiList { srs: vec![sr.to_owned()] })
}

fn value(value: Value) -> Then {
    Then::Settle(Settled::Now, value)
}

impl Facade {
    /// The SR and the name of a VDI.
    fn vdi(&self, ctx: &Ctx<'_>) -> Result<(Uuid, String, String), Failure> {
        let uuid = ctx.handle(self, Class::Vdi, 0)?;
        let name = self.view().vdi_name(uuid);
        let (sr, name) = name.ok_or_else(|| Failure::no_handle(Class::Vdi, &opaque(uuid)))?;
        Ok((uuid, sr, name))
    }

    fn sr(&self, ctx: &Ctx<'_>) -> Result<(Uuid, String), Failure> {
        let uuid = ctx.handle(self, Class::Sr, 0)?;
        let name = self.view().sr_name(uuid);
        Ok((uuid, name.ok_or_else(|| Failure::no_handle(Class::Sr, &opaque(uuid)))?))
    }

    /// A name in an SR that is free, like this one.
    pub(super) fn free_name(&self, sr: &str, wanted: &str, ctx: &Ctx<'_>) -> String {
        let name = plain_name(wanted, VDI_NAME_MAX);
        if !name.is_empty() && self.mirror.vdi(sr, &name).is_none() {
            return name;
        }
        let mark: String = ctx.moment.fresh.to_string().chars().take(MARK_LEN).collect();
        let start = plain_name(wanted, VDI_NAME_MAX - MARK_LEN - 1);
        if start.is_empty() { format!("vdi-{mark}") } else { format!("{start}-{mark}") }
    }

    fn vdi_uuid(&self, sr: &str, name: &str) -> Uuid {
        self.view().vdi(sr, name)
    }
}

pub(super) fn create_vdi(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let wrong = || Failure::wrong_type("record");
    let given = ctx.args.first().and_then(Value::as_map).ok_or_else(wrong)?;
    let text = |field: &str| given.get(field).and_then(Value::as_str).unwrap_or_default();
    let uuid = facade.find(Class::Sr, text("SR"))?;
    let Some(sr) = facade.view().sr_name(uuid) else {
        return Err(Failure::no_handle(Class::Sr, text("SR")));
    };
    let bytes = given.get("virtual_size").and_then(Value::as_int);
    let bytes = bytes.and_then(|it| u64::try_from(it).ok()).filter(|it| *it > 0);
    let bytes = bytes.ok_or_else(|| Failure::wrong_type("virtual_size"))?;
    let label = text("name_label");
    let name = facade.free_name(&sr, label, ctx);
    let vdi = facade.vdi_uuid(&sr, &name);
    keep_labels(facade, given, vdi, label != name)?;
    let create = StorageRequest::VdiCreate { vdi: format!("{sr}:{name}"), bytes };
    Ok(Step::Ask(vec![Request::Storage(create), list(&sr)], value(opaque(vdi).into())))
}

/// The labels of a VDI that is about to be there.
fn keep_labels(
    facade: &mut Facade,
    given: &BTreeMap<String, Value>,
    vdi: Uuid,
    is_named: bool,
) -> Result<(), Failure> {
    for (field, kind) in Class::Vdi.def().labels().filter_map(|it| Class::Vdi.def().label(it)) {
        if field == "name_label" && !is_named {
            continue;
        }
        if let Some(value) = given.get(field) {
            let value = checked(field, kind, value)?;
            if value != Value::void() && value != Value::map() && value != Value::Array(Vec::new())
            {
                facade.labels.set((Class::Vdi, vdi), field, value)?;
            }
        }
    }
    Ok(())
}

/// Who uses a VDI is only listed from time to time; what is plugged is known at once.
fn check_unused(facade: &Facade, vdi: Uuid) -> Result<(), Failure> {
    let vbds = facade.objects.field((Class::Vdi, vdi), "VBDs").and_then(Value::as_array);
    let is_plugged = |vbd: &Value| {
        let vbd = vbd.as_str().and_then(uuid_in).unwrap_or_default();
        let plugged = facade.objects.field((Class::Vbd, vbd), "currently_attached");
        plugged == Some(&Value::Bool(true))
    };
    if vbds.is_some_and(|vbds| vbds.iter().any(is_plugged)) {
        return Err(Failure::new("VDI_IN_USE", [opaque(vdi), "destroy".to_owned()]));
    }
    Ok(())
}

pub(super) fn destroy_vdi(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (uuid, sr, name) = facade.vdi(ctx)?;
    check_unused(facade, uuid)?;
    let vdi = format!("{sr}:{name}");
    let destroy = StorageRequest::VdiDestroy { vdi: vdi.clone() };
    without_vdi(facade, &vdi, vec![Request::Storage(destroy), list(&sr)])
}

pub(super) fn resize_vdi(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (_, sr, name) = facade.vdi(ctx)?;
    let resize = StorageRequest::VdiResize { vdi: format!("{sr}:{name}"), bytes: ctx.size(1)? };
    Ok(Step::Ask(vec![Request::Storage(resize), list(&sr)], value(Value::void())))
}

/// A snapshot or a clone, with a name after the VDI's.
fn derive(facade: &Facade, ctx: &Ctx<'_>, what: &str) -> Result<(String, String, String), Failure> {
    let (_, sr, name) = facade.vdi(ctx)?;
    let start: String = name.chars().take(VDI_NAME_MAX - what.len() - MARK_LEN - 2).collect();
    let mark: String = ctx.moment.fresh.to_string().chars().take(MARK_LEN).collect();
    Ok((sr, name, format!("{start}-{what}-{mark}")))
}

pub(super) fn snapshot_vdi(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (sr, name, to) = derive(facade, ctx, "snap")?;
    let uuid = facade.vdi_uuid(&sr, &to);
    let snapshot = StorageRequest::VdiSnapshot { vdi: format!("{sr}:{name}"), to };
    Ok(Step::Ask(vec![Request::Storage(snapshot), list(&sr)], value(opaque(uuid).into())))
}

pub(super) fn clone_vdi(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (sr, name, to) = derive(facade, ctx, "clone")?;
    let uuid = facade.vdi_uuid(&sr, &to);
    let clone = StorageRequest::VdiClone { vdi: format!("{sr}:{name}"), to };
    Ok(Step::Ask(vec![Request::Storage(clone), list(&sr)], value(opaque(uuid).into())))
}

pub(super) fn create_sr(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Host, 0)?;
    let config = ctx.args.get(1).and_then(Value::as_map);
    let config = config.ok_or_else(|| Failure::wrong_type("device_config"))?;
    let config = config.iter().filter_map(|(key, it)| Some((key.clone(), it.as_str()?.to_owned())));
    let name = plain_name(ctx.text(3)?, SR_NAME_MAX);
    if name.is_empty() || facade.mirror.live.srs.contains_key(&name) {
        return Err(Failure::not_allowed(
            "an SR needs a name of its own, of at most 16 characters",
        ));
    }
    let kind = ctx.text(5)?.to_owned();
    let key = (Class::Sr, facade.view().sr(&name));
    let create = StorageRequest::SrCreate { name, kind, config: config.collect() };
    let then = Then::Settle(Settled::There(key), opaque(key.1).into());
    Ok(Step::Ask(vec![Request::Storage(create)], then))
}

pub(super) fn scan(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (_, name) = facade.sr(ctx)?;
    let info = Request::Storage(StorageRequest::SrInfo { name: name.clone() });
    Ok(Step::Ask(vec![info, list(&name)], value(Value::void())))
}

pub(super) fn forget_sr(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (uuid, name) = facade.sr(ctx)?;
    let forget = Request::Storage(StorageRequest::SrForget { name });
    let then = Then::Settle(Settled::Gone((Class::Sr, uuid)), Value::void());
    Ok(Step::Ask(vec![forget], then))
}

pub(super) fn destroy_sr(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    let (uuid, name) = facade.sr(ctx)?;
    let destroy = Request::Storage(StorageRequest::SrDestroy { name });
    let then = Then::Settle(Settled::Gone((Class::Sr, uuid)), Value::void());
    Ok(Step::Ask(vec![destroy], then))
}

pub(super) fn kinds(facade: &mut Facade, _: &Ctx<'_>) -> Result<Step, Failure> {
    let kinds = facade.objects.of(Class::Sm).filter_map(|(_, record)| record.get("type").cloned());
    Ok(Step::Value(kinds.collect()))
}

pub(super) fn plug_pbd(facade: &mut Facade, ctx: &Ctx<'_>) -> Result<Step, Failure> {
    ctx.handle(facade, Class::Pbd, 0)?;
    Step::void()
}
