//! Objects of the live model, as they are now. None of this asks the daemon.

use std::collections::BTreeSet;
use std::future::{Ready, ready};
use std::sync::Arc;

use api::Object;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use live::Revision;

use crate::admit::Caller;
use crate::limited::no_vm;
use crate::mirror::{Class, Kept, Key, Mirror};
use crate::problem::Problem;
use crate::shared::Shared;

/// Objects in one answer.
const PAGE_MAX: usize = 10_000;

/// The values of a key in a query.
pub(crate) fn values_of(query: &str, key: &str) -> Vec<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == key).map(|(_, value)| decode(value)).collect()
}

pub(crate) fn value_of(query: &str, key: &str) -> Option<String> {
    values_of(query, key).pop()
}

/// `%41` and `+` as they are meant.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (*first, tail) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = str::from_utf8(&digits).ok();
                match digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
                    Some(byte) => {
                        bytes.push(byte);
                        rest = after;
                    }
                    None => bytes.push(b'%'),
                }
            }
            (byte, _) => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn classes_of(query: &str) -> Result<BTreeSet<Class>, Problem> {
    let words = values_of(query, "class");
    let words = words.iter().flat_map(|it| it.split(',')).filter(|it| !it.is_empty());
    let class = |word: &str| {
        Class::of(word).ok_or_else(|| {
            let all = Class::ALL.map(Class::as_str).join(", ");
            Problem::bad_request(format!("{word:?} is no class of objects; there are {all}"))
        })
    };
    words.map(class).collect()
}

/// One change as clients get it.
pub(crate) fn change_json(revision: Revision, (class, key): &Key, kept: Option<&Kept>) -> String {
    let key = serde_json::Value::from(key.as_str());
    let (class, object) = (class.as_str(), kept.map_or("null", |it| &*it.json));
    let revision = revision.0;
    format!(r#"{{"revision":{revision},"key":{key},"class":"{class}","object":{object}}}"#)
}

/// `GET /v1/objects`: what has changed since a cursor.
pub(crate) async fn changes(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = query.unwrap_or_default();
    let classes = classes_of(&query)?;
    let mirror = shared.mirror_of(&caller.who.scope);
    let cursor = value_of(&query, "since").and_then(|it| mirror.cursor(&it));
    let max = number(&query, "limit")?.unwrap_or(1000).clamp(1, PAGE_MAX);
    let changes = mirror.changes(cursor, &classes, max);
    let items = changes.items.iter();
    let items: Vec<_> =
        items.map(|(at, key, kept)| change_json(*at, key, kept.as_deref())).collect();
    Ok(json(format!(
        r#"{{"cursor":"{}","is_last":{},"starts_again":{},"changes":[{}]}}"#,
        changes.cursor,
        changes.is_last,
        changes.starts_again,
        items.join(",")
    )))
}

fn number(query: &str, key: &str) -> Result<Option<usize>, Problem> {
    let number = |text: String| {
        text.parse().map_err(|_| Problem::bad_request(format!("{key}: {text:?} is no number")))
    };
    value_of(query, key).map(number).transpose()
}

fn json(text: String) -> Response {
    let kind = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// An answer with its `ETag`; a client that has it already is told so.
fn tagged(text: String, tag: &str, headers: &HeaderMap) -> Response {
    let tag = format!("\"{tag}\"");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|it| it.to_str().ok());
    let is_known =
        known.is_some_and(|it| it.split(',').any(|it| it.trim() == tag || it.trim() == "*"));
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { json(text) };
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Objects of a class: those after a key, so many, with some of their fields.
fn list(
    mirror: &Mirror,
    class: Class,
    query: &str,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let after = value_of(query, "after");
    let max = number(query, "limit")?.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    let fields = fields_of(query);
    mirror.read(|table| {
        let first = after.clone().unwrap_or_default();
        let keys = table.keys_from((class, first)).take_while(|(of, _)| *of == class);
        let keys = keys.filter(|(_, key)| after.as_ref() != Some(key));
        let mut texts = Vec::new();
        let mut next = None;
        for key in keys {
            if texts.len() == max {
                break;
            }
            next = Some(&key.1);
            texts.extend(table.get(key).map(|kept| selected(&kept.json, &fields)));
        }
        let has_more = texts.len() == max;
        let mut response =
            tagged(format!("[{}]", texts.join(",")), &mirror.tag(table.revision()), headers);
        if let Some(next) = next.filter(|_| has_more)
            && let Ok(next) = HeaderValue::from_str(next)
        {
            // A list goes on with `after=` this.
            response.headers_mut().insert("xylem-next", next);
        }
        Ok(response)
    })
}

fn fields_of(query: &str) -> Vec<String> {
    let all = values_of(query, "fields");
    all.iter().flat_map(|it| it.split(',')).filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

fn selected(json: &str, fields: &[String]) -> String {
    if fields.is_empty() {
        return json.to_owned();
    }
    let Ok(serde_json::Value::Object(mut all)) = serde_json::from_str(json) else {
        return json.to_owned();
    };
    all.retain(|name, _| fields.contains(name));
    serde_json::Value::Object(all).to_string()
}

type Answered = Ready<Result<Response, Problem>>;

/// What answers for all objects of a class.
pub(crate) fn all(
    class: Class,
) -> impl Fn(State<Arc<Shared>>, Extension<Caller>, RawQuery, HeaderMap) -> Answered + Clone {
    move |State(shared), Extension(caller), RawQuery(query), headers| {
        let mirror = shared.mirror_of(&caller.who.scope);
        ready(list(&mirror, class, &query.unwrap_or_default(), &headers))
    }
}

/// The UUID of a VM by UUID, name or domid.
pub(crate) fn uuid_of(mirror: &Mirror, vm: &str) -> Result<String, Problem> {
    mirror.read(|table| {
        if table.get(&(Class::Vm, vm.to_owned())).is_some() {
            return Ok(vm.to_owned());
        }
        let all =
            table.keys_from((Class::Vm, String::new())).take_while(|(of, _)| *of == Class::Vm);
        let is_it = |key: &&Key| match table.get(key).map(|it| &it.object) {
            Some(Object::Vm(Some(it))) => {
                it.name == vm || it.domid.is_some_and(|domid| domid.to_string() == vm)
            }
            _ => false,
        };
        let found = all.into_iter().find(is_it).map(|(_, uuid)| uuid.clone());
        found.ok_or_else(|| Problem::not_found(no_vm(vm)))
    })
}

pub(crate) async fn vm(
    State(shared): State<Arc<Shared>>,
    Path(vm): Path<String>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mirror = shared.mirror_of(&caller.who.scope);
    let key = (Class::Vm, uuid_of(&mirror, &vm)?);
    let fields = fields_of(&query.unwrap_or_default());
    one(&mirror, &key, &fields, &headers).ok_or_else(|| Problem::not_found(no_vm(&vm)))
}

/// The host, of which there is one.
pub(crate) async fn host(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fields = fields_of(&query.unwrap_or_default());
    one(&shared.mirror_of(&caller.who.scope), &(Class::Host, "host".to_owned()), &fields, &headers)
        .ok_or_else(|| Problem::not_found("nothing is known of the host here".to_owned()))
}

pub(crate) fn no_vdi(name: &str) -> String {
    format!("{name} is not a VDI here; it is written SR:VDI")
}

pub(crate) fn no_network(name: &str) -> String {
    format!("{name} is not a network here")
}

/// One object by its key; `missing` says that there is none.
pub(crate) fn one_of(
    class: Class,
    missing: fn(&str) -> String,
) -> impl Fn(State<Arc<Shared>>, Path<String>, Extension<Caller>, RawQuery, HeaderMap) -> Answered + Clone
{
    move |State(shared), Path(key), Extension(caller), RawQuery(query), headers| {
        let fields = fields_of(&query.unwrap_or_default());
        let mirror = shared.mirror_of(&caller.who.scope);
        let key = (class, key);
        let found = one(&mirror, &key, &fields, &headers);
        ready(found.ok_or_else(|| Problem::not_found(missing(&key.1))))
    }
}

/// An object with its `ETag`; `None` if there is none.
fn one(mirror: &Mirror, key: &Key, fields: &[String], headers: &HeaderMap) -> Option<Response> {
    mirror.read(|table| {
        let tag = mirror.tag(table.revision_of(key)?);
        Some(tagged(selected(&table.get(key)?.json, fields), &tag, headers))
    })
}

/// The interfaces of VMs that are to be on a network.
pub(crate) async fn interfaces(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    shared.mirror_of(&caller.who.scope).read(|table| {
        if table.get(&(Class::Network, name.clone())).is_none() {
            return Err(Problem::not_found(no_network(&name)));
        }
        let keys = table.keys_from((Class::Device, String::new()));
        let kept = keys.take_while(|(of, _)| *of == Class::Device).filter_map(|key| table.get(key));
        let is_on = |kept: &&Arc<Kept>| match &kept.object {
            Object::Device(Some(it)) => it.network.as_ref() == Some(&name),
            _ => false,
        };
        let texts: Vec<&str> = kept.filter(is_on).map(|it| &*it.json).collect();
        Ok(json(format!("[{}]", texts.join(","))))
    })
}

pub(crate) async fn devices(
    State(shared): State<Arc<Shared>>,
    Path(vm): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let mirror = shared.mirror_of(&caller.who.scope);
    let uuid = uuid_of(&mirror, &vm)?;
    let prefix = format!("{uuid}/");
    mirror.read(|table| {
        let keys = table.keys_from((Class::Device, prefix.clone()));
        let keys = keys.take_while(|(of, key)| *of == Class::Device && key.starts_with(&prefix));
        let texts: Vec<_> =
            keys.filter_map(|key| table.get(key).map(|it| it.json.clone())).collect();
        Ok(json(format!("[{}]", texts.join(","))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = "class=vm&class=device%2Csr&since=1-2&x=a%20b+c%zz%4&y";
        assert_eq!(
            classes_of(query).unwrap(),
            BTreeSet::from([Class::Vm, Class::Device, Class::Sr])
        );
        assert_eq!(value_of(query, "x").as_deref(), Some("a b c%zz%4"));
        assert_eq!(value_of(query, "y"), None);
        let error = classes_of("class=cow").unwrap_err();
        assert_eq!(
            error.detail,
            "\"cow\" is no class of objects; there are domain, vm, device, operation, sr, vdi, network, host"
        );
        assert_eq!(decode("%ff%"), "\u{fffd}%");
    }

    #[test]
    fn fields_are_selected() {
        let json = r#"{"name":"a","state":"running"}"#;
        assert_eq!(selected(json, &[]), json);
        assert_eq!(selected(json, &["name".to_owned(), "x".to_owned()]), r#"{"name":"a"}"#);
    }
}
