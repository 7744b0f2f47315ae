//! What the daemon's live model says, here: so that any number of readers cost the daemon one.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use api::{Object, Objects, Reply, Request};
use live::{Cursor, Revision, Table};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::daemon::{CallError, Daemon};

/// Removed objects that are remembered for readers that are behind.
const REMOVALS_MAX: usize = 16384;
/// Between attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Class {
    Domain,
    Vm,
    Device,
    Operation,
    Sr,
    Vdi,
    Network,
    Host,
}

impl Class {
    pub(crate) const ALL: [Self; 8] = [
        Self::Domain,
        Self::Vm,
        Self::Device,
        Self::Operation,
        Self::Sr,
        Self::Vdi,
        Self::Network,
        Self::Host,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Vm => "vm",
            Self::Device => "device",
            Self::Operation => "operation",
            Self::Sr => "sr",
            Self::Vdi => "vdi",
            Self::Network => "network",
            Self::Host => "host",
        }
    }

    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }

    fn of_object(object: &Object) -> Self {
        match object {
            Object::Vm(_) => Self::Vm,
            Object::Device(_) => Self::Device,
            Object::Domain(_) => Self::Domain,
            Object::Operation(_) => Self::Operation,
            Object::Sr(_) => Self::Sr,
            Object::Vdi(_) => Self::Vdi,
            Object::Network(_) => Self::Network,
            Object::Host(_) => Self::Host,
        }
    }
}

/// An object's class, and its key there.
pub(crate) type Key = (Class, String);

/// An object, and its text as JSON.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) object: Object,
    pub(crate) json: String,
}

impl Kept {
    /// `None` of one that is there no more.
    pub(crate) fn of(object: Object) -> Option<Self> {
        let json = json_of(&object)?;
        Some(Self { object, json })
    }
}

/// How things are, for whoever waits for a change.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct News {
    pub(crate) revision: Revision,
    /// Why what is known may be old; `None` if it is not.
    pub(crate) offline: Option<String>,
}

/// A cursor names the mirror that gave it: another one counts anew.
#[derive(Debug)]
pub(crate) struct Mirror {
    table: RwLock<Table<Key, Arc<Kept>>>,
    news: watch::Sender<News>,
    /// The daemon's cursor, up to which all is here.
    told: watch::Sender<Option<String>>,
    /// Of this process.
    instance: String,
}

/// Some changes for a reader.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) items: Vec<(Revision, Key, Option<Arc<Kept>>)>,
    pub(crate) cursor: String,
    pub(crate) at: Cursor,
    pub(crate) is_last: bool,
    pub(crate) starts_again: bool,
}

impl Mirror {
    pub(crate) fn new(instance: String) -> Self {
        let offline = Some("xylemd has not been reached yet".to_owned());
        let (news, _) = watch::channel(News { offline, ..News::default() });
        let table = RwLock::new(Table::after(Revision(0), REMOVALS_MAX));
        let (told, _) = watch::channel(None);
        Self { table, news, told, instance }
    }

    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// What tells an answer's state from that of another one at the same address, here or in another process.
    pub(crate) fn tag(&self, revision: Revision) -> String {
        format!("{}-{}", revision.0, self.instance)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Whether all was here once.
    pub(crate) fn is_whole(&self) -> bool {
        self.told.borrow().is_some()
    }

    pub(crate) fn told(&self) -> watch::Receiver<Option<String>> {
        self.told.subscribe()
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Table<Key, Arc<Kept>>) -> T) -> T {
        read(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The cursor of this text, if it is one of ours.
    pub(crate) fn cursor(&self, text: &str) -> Option<Cursor> {
        let mut fields = text.splitn(3, '-');
        let mut revision = || fields.next()?.parse().ok().map(Revision);
        let (at, began) = (revision()?, revision()?);
        (fields.next()? == self.instance).then_some(Cursor { at, began })
    }

    pub(crate) fn changes(
        &self,
        cursor: Option<Cursor>,
        classes: &BTreeSet<Class>,
        max: usize,
    ) -> Changes {
        self.read(|table| {
            let wanted = |(class, _): &Key| classes.is_empty() || classes.contains(class);
            let page = table.read(cursor, max, wanted);
            let item = |it: &live::Item<'_, Key, Arc<Kept>>| {
                (it.revision, it.key.clone(), it.value.cloned())
            };
            let Cursor { at, began } = page.next;
            Changes {
                items: page.items.iter().map(item).collect(),
                cursor: format!("{}-{}-{}", at.0, began.0, self.instance),
                at: page.next,
                is_last: page.is_last,
                starts_again: page.starts_again,
            }
        })
    }

    /// Takes what is shown of another mirror's changes after this cursor, or of all of it without one. Returns where to go on.
    pub(crate) fn take_from(
        &self,
        whole: &Self,
        cursor: Option<Cursor>,
        show: &dyn Fn(Arc<Kept>) -> Option<Arc<Kept>>,
    ) -> Cursor {
        let changes = whole.changes(cursor, &BTreeSet::new(), usize::MAX);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut untold = BTreeSet::new();
        if changes.starts_again {
            untold.extend(table.iter().map(|(key, ..)| key.clone()));
        }
        for (_, key, kept) in changes.items {
            let kept = kept.and_then(show);
            if kept.is_some() {
                untold.remove(&key);
            }
            put(&mut table, key, kept);
        }
        for key in untold {
            table.remove(&key);
        }
        let offline = whole.news.borrow().offline.clone();
        let now = News { revision: table.revision(), offline };
        drop(table);
        self.news.send_if_modified(|news| std::mem::replace(news, now.clone()) != now);
        changes.at
    }

    /// Follows the daemon for as long as this process lives.
    pub(crate) async fn follow(&self, daemon: &Arc<Daemon>) {
        let mut follower = Follower::default();
        loop {
            let request = Request::Objects {
                cursor: follower.cursor.clone(),
                classes: Vec::new(),
                // The first answer says that the daemon is there.
                wait: follower.is_online,
            };
            match daemon.follow(&request).await {
                Ok(Reply::Objects(objects)) => {
                    follower.is_online = true;
                    self.take(&mut follower, objects);
                }
                Ok(_) => {
                    self.is_offline(&mut follower, "xylemd gives no objects".to_owned());
                    sleep(RETRY).await;
                }
                Err(error) => {
                    let why = match error {
                        CallError::Refused(why) => format!("xylemd refuses: {why}"),
                        other => other.to_string(),
                    };
                    self.is_offline(&mut follower, why);
                    sleep(RETRY).await;
                }
            }
        }
    }

    fn is_offline(&self, follower: &mut Follower, why: String) {
        follower.is_online = false;
        self.news.send_if_modified(|news| {
            let why = Some(why);
            let is_new = news.offline != why;
            news.offline = why;
            is_new
        });
    }

    fn take(&self, follower: &mut Follower, objects: Objects) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if objects.starts_again {
            // What is not told again is there no more.
            follower.untold = Some(table.iter().map(|(key, ..)| key.clone()).collect());
        }
        for change in objects.changes {
            let key = (Class::of_object(&change.object), change.key.clone());
            if let Some(untold) = &mut follower.untold {
                untold.remove(&key);
            }
            put(&mut table, key, Kept::of(change.object).map(Arc::new));
        }
        if objects.is_last {
            for key in follower.untold.take().unwrap_or_default() {
                table.remove(&key);
            }
        }
        follower.cursor = Some(objects.cursor);
        let now = News { revision: table.revision(), offline: None };
        drop(table);
        // What is told while a newcomer is told all is told as a whole.
        if objects.is_last {
            self.told.send_replace(follower.cursor.clone());
            self.news.send_if_modified(|news| std::mem::replace(news, now.clone()) != now);
        }
    }
}

/// How far we are with the daemon.
#[derive(Debug, Default)]
struct Follower {
    cursor: Option<String>,
    is_online: bool,
    /// While it tells all from the beginning: what it has not told again yet.
    untold: Option<BTreeSet<Key>>,
}

/// How an object is now; what looks as before is no change.
fn put(table: &mut Table<Key, Arc<Kept>>, key: Key, kept: Option<Arc<Kept>>) {
    let Some(kept) = kept else { return drop(table.remove(&key)) };
    if table.get(&key).is_none_or(|before| before.json != kept.json) {
        table.put(key, kept);
    }
}

/// `None` of an object that is there no more.
fn json_of(object: &Object) -> Option<String> {
    let text = |it: &dyn Fn() -> serde_json::Result<String>| it().ok();
    match object {
        Object::Vm(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Device(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Domain(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Operation(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Sr(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Vdi(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Network(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
        Object::Host(it) => it.as_ref().and_then(|it| text(&|| serde_json::to_string(it))),
    }
}

#[cfg(test)]
mod tests {
    use api::{DomainObject, ObjectChange, SrRow};

    use super::*;

    fn domain(domid: u16, name: Option<&str>) -> ObjectChange {
        let object = name.map(|name| DomainObject {
            domid,
            name: Some(name.to_owned()),
            ..DomainObject::default()
        });
        ObjectChange { revision: 1, key: domid.to_string(), object: Object::Domain(object) }
    }

    fn told(starts_again: bool, is_last: bool, changes: Vec<ObjectChange>) -> Objects {
        Objects { cursor: "c".to_owned(), is_last, starts_again, changes }
    }

    fn names(changes: &Changes) -> Vec<(String, bool)> {
        changes.items.iter().map(|(_, (_, key), it)| (key.clone(), it.is_some())).collect()
    }

    #[test]
    fn readers_are_told_of_changes_and_not_of_what_is_as_it_was() {
        let mirror = Mirror::new("i".to_owned());
        let mut follower = Follower::default();
        let all = BTreeSet::new();
        let mut watch = mirror.watch();
        mirror.take(
            &mut follower,
            told(true, false, vec![domain(0, Some("Domain-0")), domain(1, Some("one"))]),
        );
        assert!(!watch.has_changed().unwrap());
        mirror.take(&mut follower, told(false, true, vec![domain(2, Some("two"))]));
        assert!(watch.has_changed().unwrap());
        assert_eq!(watch.borrow_and_update().offline, None);
        let first = mirror.changes(None, &all, 10);
        assert_eq!(names(&first).len(), 3);
        assert_eq!(mirror.cursor(&first.cursor), Some(first.at));
        assert_eq!(mirror.cursor(&first.cursor.replace("-i", "-j")), None);
        // The daemon was started anew: it tells all, of which one is gone and one new.
        mirror.is_offline(&mut follower, "gone".to_owned());
        assert_eq!(watch.borrow_and_update().offline.as_deref(), Some("gone"));
        let sr = ObjectChange {
            revision: 9,
            key: "sr".to_owned(),
            object: Object::Sr(Some(SrRow::default())),
        };
        mirror.take(&mut follower, told(true, false, vec![domain(0, Some("Domain-0"))]));
        mirror.take(&mut follower, told(false, true, vec![domain(2, Some("two")), sr]));
        let then = mirror.changes(Some(first.at), &all, 10);
        let expected = [("sr".to_owned(), true), ("1".to_owned(), false)];
        assert_eq!(names(&then), expected);
        assert!(!then.starts_again && then.is_last);
        let srs = mirror.changes(None, &BTreeSet::from([Class::Sr]), 10);
        assert_eq!(names(&srs), [("sr".to_owned(), true)]);
        mirror.take(&mut follower, told(false, true, vec![domain(2, None)]));
        assert_eq!(names(&mirror.changes(Some(then.at), &all, 10)), [("2".to_owned(), false)]);
    }
}
