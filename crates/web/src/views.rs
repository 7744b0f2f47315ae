//! What is seen by clients that are limited to VMs with a tag: a mirror for each set of tags, with revisions of its own, so that
//! nothing in it tells of other VMs, not even that there are any.
//!
//! A view takes what has changed when it is read, and when its readers are to be woken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use api::Object;
use gate::{Scope, Tags, without_others};
use live::Cursor;

use crate::mirror::{Kept, Mirror};
use crate::shared::{Shared, lock};

#[derive(Debug)]
struct View {
    mirror: Arc<Mirror>,
    taken: Mutex<Taken>,
}

/// What a view was made of.
#[derive(Debug, Default)]
struct Taken {
    cursor: Option<Cursor>,
    tags: Option<Arc<Tags>>,
}

/// Views by what may be seen.
#[derive(Debug, Default)]
pub(crate) struct Views {
    all: Mutex<BTreeMap<Scope, Arc<View>>>,
    made: Mutex<u64>,
}

impl Views {
    /// The view of this scope, as the host is now.
    pub(crate) fn of(&self, scope: &Scope, whole: &Mirror, tags: &Arc<Tags>) -> Arc<Mirror> {
        let known = lock(&self.all).get(scope).cloned();
        let view = known.unwrap_or_else(|| {
            // A cursor names its view: the whole's and those of views that were before are no others'.
            let mut made = lock(&self.made);
            *made += 1;
            let mirror = Arc::new(Mirror::new(format!("{}.{made}", whole.instance())));
            let view = Arc::new(View { mirror, taken: Mutex::default() });
            Arc::clone(lock(&self.all).entry(scope.clone()).or_insert(view))
        });
        view.refresh(scope, whole, tags);
        Arc::clone(&view.mirror)
    }
}

impl View {
    fn refresh(&self, scope: &Scope, whole: &Mirror, tags: &Arc<Tags>) {
        let mut taken = lock(&self.taken);
        let is_same = taken.tags.as_ref().is_some_and(|it| Arc::ptr_eq(it, tags));
        let cursor = taken.cursor.filter(|_| is_same);
        let show = |kept| shown(kept, scope, tags);
        taken.cursor = Some(self.mirror.take_from(whole, cursor, &show));
        taken.tags = Some(Arc::clone(tags));
    }
}

/// An object as a limited client sees it.
fn shown(kept: Arc<Kept>, scope: &Scope, tags: &Tags) -> Option<Arc<Kept>> {
    if !tags.permit_object(scope, &kept.object) {
        return None;
    }
    // Why an operation has failed may name another VM.
    let Object::Operation(Some(operation)) = &kept.object else { return Some(kept) };
    let permits = |uuid: &str| tags.permit(scope, uuid);
    let mut operation = operation.clone();
    let words = operation.row.failure.iter_mut().chain(&mut operation.waits_for);
    words.for_each(|text| *text = without_others(text, &permits));
    let object = Object::Operation(Some(operation));
    Some(Arc::new(Kept::of(object)?))
}

/// Wakes the readers of views, for as long as this process lives.
pub(crate) async fn follow(shared: &Arc<Shared>) {
    let (mut news, mut tags) = (shared.mirror.watch(), shared.tags.subscribe());
    loop {
        news.borrow_and_update();
        let now = Arc::clone(&tags.borrow_and_update());
        let is_known = |scope: &Scope| {
            shared.with_access(|it| it.entries().iter().any(|it| it.who.scope == *scope))
        };
        let views = {
            let mut all = lock(&shared.views.all);
            all.retain(|scope, _| is_known(scope));
            all.clone()
        };
        for (scope, view) in views {
            view.refresh(&scope, &shared.mirror, &now);
        }
        let ended = tokio::select! {
            changed = news.changed() => changed.is_err(),
            changed = tags.changed() => changed.is_err(),
        };
        if ended {
            return;
        }
    }
}
