//! Events: what has changed since a token, each object once, as it is now.

use std::collections::{BTreeMap, BTreeSet};

use live::{Cursor, Revision};
use xen::Uuid;

use crate::facade::Facade;
use crate::failure::Failure;
use crate::model::Class;
use crate::objects::Key;
use crate::refs::{opaque, uuid_in};
use crate::value::{Answer, Value};

/// What a client wants to hear of.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Wanted {
    is_all: bool,
    classes: BTreeSet<Class>,
    objects: BTreeSet<Key>,
}

/// A client that follows events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Following {
    pub wanted: Wanted,
    pub cursor: Option<Cursor>,
    pub session: Uuid,
}

impl Wanted {
    /// `*`, a class in any case of letters, or a class and a reference with `/` between them. What is not known
    /// matches nothing.
    pub(crate) fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut wanted = Self::default();
        for word in words {
            match word.split_once('/') {
                _ if word == "*" => wanted.is_all = true,
                None => wanted.classes.extend(Class::named(word)),
                Some((class, reference)) => {
                    let key = Class::named(class).zip(uuid_in(reference));
                    wanted.objects.extend(key);
                }
            }
        }
        wanted
    }

    fn has(&self, key: &Key) -> bool {
        self.is_all || self.classes.contains(&key.0) || self.objects.contains(key)
    }

    /// Classes of which all objects are wanted.
    fn whole_classes(&self) -> impl Iterator<Item = Class> {
        let all = Class::ALL.iter().copied().filter(|class| class.is_listed());
        all.filter(|class| self.is_all || self.classes.contains(class))
    }
}

/// Both have a fixed width, so that later tokens are larger as texts.
fn token(cursor: Cursor) -> String {
    format!("{:020},{:020}", cursor.at.0, cursor.began.0)
}

/// The point in a token; nothing in an empty one.
pub(crate) fn parse_token(text: &str) -> Result<Option<Cursor>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let parse = || {
        let (at, began) = text.split_once(',')?;
        let revision = |text: &str| text.parse().ok().map(Revision);
        Some(Cursor { at: revision(at)?, began: revision(began)? })
    };
    parse().map(Some).ok_or_else(|| Failure::new("EVENT_FROM_TOKEN_PARSE_FAILURE", [text]))
}

/// The token of a reader that knows everything up to here.
pub(crate) fn token_at(revision: Revision) -> String {
    token(Cursor { at: revision, began: Revision(0) })
}

impl Facade {
    /// What has changed; nothing if there is nothing, and the client waits for something.
    pub(crate) fn events(&self, following: &Following, is_late: bool) -> Option<Answer> {
        let page = self.objects.read(following.cursor, |key| following.wanted.has(key));
        if following.cursor.is_some() && page.starts_again {
            return Some(Err(Failure::new("EVENTS_LOST", [""; 0])));
        }
        if page.items.is_empty() && !is_late {
            return None;
        }
        let since = following.cursor.map_or(Revision(0), |it| it.at);
        let events = page.items.iter().map(|item| {
            let (class, uuid) = *item.key;
            let operation = match item.value {
                None => "del",
                Some(entry) if entry.created > since => "add",
                Some(_) => "mod",
            };
            let mut event = BTreeMap::from([
                ("id".to_owned(), item.revision.0.to_string().into()),
                ("timestamp".to_owned(), "0.0".into()),
                ("class".to_owned(), class.name().to_lowercase().into()),
                ("operation".to_owned(), operation.into()),
                ("ref".to_owned(), opaque(uuid).into()),
            ]);
            if let Some(entry) = item.value {
                event.insert("snapshot".to_owned(), Value::Record(entry.record.clone()));
            }
            Value::Map(event)
        });
        let counts = following
            .wanted
            .whole_classes()
            .map(|class| (class.name().to_lowercase(), Value::Count(self.objects.count(class))));
        let answer = BTreeMap::from([
            ("events".to_owned(), events.collect::<Value>()),
            ("valid_ref_counts".to_owned(), Value::Map(counts.collect())),
            ("token".to_owned(), token(page.next).into()),
        ]);
        Some(Ok(Value::Map(answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_are_ordered_as_texts() {
        let cursor = |at, began| Cursor { at: Revision(at), began: Revision(began) };
        for it in [cursor(0, 0), cursor(9, 8), cursor(u64::MAX, u64::MAX)] {
            assert_eq!(parse_token(&token(it)), Ok(Some(it)));
        }
        assert!(token(cursor(9, 0)) < token(cursor(10, 0)));
        assert_eq!(parse_token(""), Ok(None));
        for bad in ["x", "1", "1,x", ",", "1,2,3", "-1,0"] {
            assert!(parse_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn clients_choose_classes_and_objects() {
        let vm = Uuid([1; 16]);
        let wanted = Wanted::of(["vm/OpaqueRef:01010101-0101-0101-0101-010101010101", "VBD", "no"]);
        assert!(wanted.has(&(Class::Vm, vm)) && wanted.has(&(Class::Vbd, Uuid([9; 16]))));
        assert!(!wanted.has(&(Class::Vm, Uuid([2; 16]))) && !wanted.has(&(Class::Vif, vm)));
        assert_eq!(wanted.whole_classes().collect::<Vec<_>>(), [Class::Vbd]);
        assert!(Wanted::of(["*"]).has(&(Class::Task, vm)));
    }
}
