//! Methods that each class has: listing, reading fields, setting labels.

use std::collections::BTreeMap;

use api::Role;

use super::Ctx;
use crate::facade::{Facade, Step};
use crate::failure::Failure;
use crate::labels::checked;
use crate::model::{Class, Kind};
use crate::objects::Key;
use crate::refs::opaque;
use crate::value::Value;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    GetAll,
    GetAllRecords,
    GetAllRecordsWhere,
    GetRecord,
    GetByUuid,
    GetByNameLabel,
    Get(&'static str),
    Set(&'static str, Kind),
    AddTo(&'static str),
    RemoveFrom(&'static str),
    Add(&'static str),
    Remove(&'static str),
}

impl Verb {
    pub(crate) fn parse(class: Class, name: &str) -> Option<Self> {
        let def = class.def();
        if !class.is_listed() {
            return None;
        }
        let verb = match name {
            "get_all" => Self::GetAll,
            "get_all_records" => Self::GetAllRecords,
            "get_all_records_where" => Self::GetAllRecordsWhere,
            "get_record" => Self::GetRecord,
            "get_by_uuid" => Self::GetByUuid,
            "get_by_name_label" if def.field("name_label").is_some() => Self::GetByNameLabel,
            _ => return Self::of_field(class, name),
        };
        Some(verb)
    }

    fn of_field(class: Class, name: &str) -> Option<Self> {
        let def = class.def();
        let label = |prefix: &str, kind: Kind| {
            let field = name.strip_prefix(prefix)?;
            def.label(field).filter(|(_, it)| *it == kind).map(|(field, _)| field)
        };
        if let Some((field, _)) = name.strip_prefix("get_").and_then(|field| def.field(field)) {
            return Some(Self::Get(field));
        }
        if let Some((field, kind)) = name.strip_prefix("set_").and_then(|it| def.label(it)) {
            return Some(Self::Set(field, kind));
        }
        // The longer words first: one may begin with the other.
        let map = Kind::Map;
        let set = Kind::Set;
        label("add_to_", map)
            .map(Self::AddTo)
            .or_else(|| label("remove_from_", map).map(Self::RemoveFrom))
            .or_else(|| label("add_", set).map(Self::Add))
            .or_else(|| label("remove_", set).map(Self::Remove))
    }

    /// How many parameters follow the session.
    pub(crate) fn params(self) -> usize {
        match self {
            Self::GetAll | Self::GetAllRecords => 0,
            Self::GetAllRecordsWhere
            | Self::GetRecord
            | Self::GetByUuid
            | Self::GetByNameLabel
            | Self::Get(_) => 1,
            Self::Set(..) | Self::RemoveFrom(_) | Self::Add(_) | Self::Remove(_) => 2,
            Self::AddTo(_) => 3,
        }
    }

    /// Labels do nothing to the host, but others see them.
    pub(crate) fn role(self) -> Role {
        match self {
            Self::Set(..)
            | Self::AddTo(_)
            | Self::RemoveFrom(_)
            | Self::Add(_)
            | Self::Remove(_) => Role::Operator,
            _ => Role::Viewer,
        }
    }
}

/// Whether XenAPI could have such a method for one of its fields, which are not all for clients to set here.
pub(crate) fn changes_a_field(class: Class, name: &str) -> bool {
    let words = ["set_", "add_to_", "remove_from_", "add_", "remove_"];
    let mut fields = words.iter().filter_map(|word| name.strip_prefix(word));
    class.is_listed() && fields.any(|field| class.def().field(field).is_some())
}

/// The names of all of these.
pub(crate) fn names() -> Vec<String> {
    let mut names = Vec::new();
    for class in Class::ALL.iter().filter(|class| class.is_listed()) {
        let def = class.def();
        let mut put = |verb: &str| names.push(format!("{}.{verb}", def.name));
        ["get_all", "get_all_records", "get_all_records_where", "get_record", "get_by_uuid"]
            .into_iter()
            .for_each(&mut put);
        if def.field("name_label").is_some() {
            put("get_by_name_label");
        }
        def.fields().for_each(|(field, _)| put(&format!("get_{field}")));
        for (field, kind) in def.labels().filter_map(|label| def.label(label)) {
            put(&format!("set_{field}"));
            match kind {
                Kind::Map => {
                    put(&format!("add_to_{field}"));
                    put(&format!("remove_from_{field}"));
                }
                Kind::Set => {
                    put(&format!("add_{field}"));
                    put(&format!("remove_{field}"));
                }
                _ => {}
            }
        }
    }
    names
}

pub(crate) fn run(
    facade: &mut Facade,
    ctx: &Ctx<'_>,
    class: Class,
    verb: Verb,
) -> Result<Step, Failure> {
    let value = match verb {
        Verb::GetAll => facade.objects.of(class).map(|(uuid, _)| opaque(uuid)).collect(),
        Verb::GetAllRecords => records(facade, class, None),
        Verb::GetAllRecordsWhere => {
            let condition = Condition::parse(class, ctx.text(0)?)?;
            records(facade, class, condition.as_ref())
        }
        Verb::GetByUuid => {
            let uuid = ctx.text(0)?;
            let known = uuid.parse().ok().filter(|it| facade.objects.has((class, *it)));
            opaque(known.ok_or_else(|| Failure::no_uuid(class, uuid))?).into()
        }
        Verb::GetByNameLabel => {
            let name = Value::from(ctx.text(0)?);
            let all = facade.objects.of(class);
            let named = all.filter(|(_, record)| record.get("name_label") == Some(&name));
            named.map(|(uuid, _)| opaque(uuid)).collect()
        }
        Verb::GetRecord => {
            let key = (class, ctx.handle(facade, class, 0)?);
            facade.objects.get(key).map_or_else(Value::map, |it| Value::Record(it.clone()))
        }
        Verb::Get(field) => {
            let key = (class, ctx.handle(facade, class, 0)?);
            facade.objects.field(key, field).cloned().unwrap_or_else(Value::void)
        }
        _ => return set(facade, ctx, class, verb),
    };
    Ok(Step::Value(value))
}

fn records(facade: &Facade, class: Class, condition: Option<&Condition>) -> Value {
    let is_wanted =
        |record: &crate::Record| condition.is_none_or(|it| record.get(it.field) == Some(&it.value));
    let all = facade.objects.of(class).filter(|(_, record)| is_wanted(record));
    let records = all.map(|(uuid, record)| (opaque(uuid), Value::Record(record.clone())));
    Value::Map(records.collect::<BTreeMap<_, _>>())
}

/// `field "name" = "value"`.
struct Condition {
    field: &'static str,
    value: Value,
}

impl Condition {
    /// `None` if it is `true`.
    fn parse(class: Class, text: &str) -> Result<Option<Self>, Failure> {
        let text = text.trim();
        if text == "true" {
            return Ok(None);
        }
        let parts = || {
            let (field, value) = text.strip_prefix("field")?.split_once('=')?;
            let unquote = |it: &str| {
                let it = it.trim();
                let inner = |quote| it.strip_prefix(quote)?.strip_suffix(quote);
                inner('"').or_else(|| inner('\'')).map(str::to_owned)
            };
            let (field, value) = (unquote(field)?, unquote(value)?);
            // Names of names have two dashes in XAPI's own database.
            let (field, kind) = class.def().field(&field.replace("__", "_"))?;
            let value = match kind {
                Kind::Bool => Value::Bool(value.parse().ok()?),
                Kind::Int => Value::Int(value.parse().ok()?),
                _ => value.into(),
            };
            Some(Self { field, value })
        };
        let parsed = parts();
        parsed.map(Some).ok_or_else(|| {
            Failure::internal("only \"true\" and field \"name\" = \"value\" are understood here")
        })
    }
}

fn set(facade: &mut Facade, ctx: &Ctx<'_>, class: Class, verb: Verb) -> Result<Step, Failure> {
    let key = (class, ctx.handle(facade, class, 0)?);
    let current = |field| facade.objects.field(key, field).cloned();
    let (field, value) = match verb {
        Verb::Set(field, kind) => {
            let value = ctx.args.get(1).unwrap_or(&Value::Bool(false));
            (field, checked(field, kind, value)?)
        }
        Verb::AddTo(field) => {
            let (name, text) = (ctx.text(1)?.to_owned(), ctx.text(2)?);
            let mut map = map_of(current(field));
            if let Some(present) = map.get(&name) {
                let present = present.as_str().unwrap_or_default();
                let about = [class.name(), field, &opaque(key.1), &name, present, text];
                return Err(Failure::new("MAP_DUPLICATE_KEY", about));
            }
            map.insert(name, text.into());
            (field, Value::Map(map))
        }
        Verb::RemoveFrom(field) => {
            let mut map = map_of(current(field));
            if map.remove(ctx.text(1)?).is_none() {
                return Step::void();
            }
            (field, Value::Map(map))
        }
        Verb::Add(field) | Verb::Remove(field) => {
            let text = Value::from(ctx.text(1)?);
            let mut items = match current(field) {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            };
            items.retain(|it| *it != text);
            if matches!(verb, Verb::Add(_)) {
                items.push(text);
            }
            (field, Value::Array(items))
        }
        _ => return Err(Failure::unknown_method(ctx.method)),
    };
    put_label(facade, key, field, value)
}

/// Sets a label, and shows it.
pub(crate) fn put_label(
    facade: &mut Facade,
    key: Key,
    field: &'static str,
    value: Value,
) -> Result<Step, Failure> {
    facade.labels.set(key, field, value)?;
    facade.relabel(key);
    Step::void()
}

fn map_of(value: Option<Value>) -> BTreeMap<String, Value> {
    match value {
        Some(Value::Map(map)) => map,
        _ => BTreeMap::new(),
    }
}
