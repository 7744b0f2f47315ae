//! Requests that clients do not wait for, and what became of them.

use std::collections::{BTreeMap, BTreeSet};

use api::{Progress, Reply, Role};
use serde::Serialize;

use crate::access::Who;
use crate::tags::{Scope, Tags};

/// Tasks that are kept, of one client and of all.
const OF_A_CLIENT_MAX: usize = 256;
const ALL_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    Pending,
    Success,
    Failure,
    Cancelled,
}

/// A task, as clients get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Task {
    pub id: String,
    /// What was asked for, such as `create`.
    pub what: String,
    /// Who asked.
    pub who: String,
    pub started_unix_ms: u64,
    pub ended_unix_ms: Option<u64>,
    pub status: TaskState,
    /// How far it is, once the daemon has said so.
    pub progress: Option<Progress>,
    pub result: Option<Reply>,
    /// Why it failed.
    pub detail: Option<String>,
    /// The UUIDs of the VMs that it is about, if these alone.
    #[serde(skip)]
    pub of: Option<BTreeSet<String>>,
}

/// Tasks by number.
#[derive(Debug, Default)]
pub struct Tasks {
    tasks: BTreeMap<u64, Task>,
    last: u64,
}

impl Tasks {
    /// A task begins. Returns its number; `None` if the client, or all of them, have too many in progress.
    pub fn begin(
        &mut self,
        what: &str,
        who: &str,
        of: Option<BTreeSet<String>>,
        now_ms: u64,
    ) -> Option<u64> {
        let of_client = self.tasks.values().filter(|it| it.who == who).count();
        let has_room = (of_client < OF_A_CLIENT_MAX || self.forget(|it| it.who == who))
            && (self.tasks.len() < ALL_MAX || self.forget(|_| true));
        if !has_room {
            return None;
        }
        self.last += 1;
        let task = Task {
            id: self.last.to_string(),
            what: what.to_owned(),
            who: who.to_owned(),
            started_unix_ms: now_ms,
            ended_unix_ms: None,
            status: TaskState::Pending,
            progress: None,
            result: None,
            detail: None,
            of,
        };
        self.tasks.insert(self.last, task);
        Some(self.last)
    }

    /// Forgets the oldest that has ended.
    fn forget(&mut self, of: impl Fn(&Task) -> bool) -> bool {
        let ended = |it: &Task| it.status != TaskState::Pending && of(it);
        let oldest = self.tasks.iter().find(|(_, it)| ended(it)).map(|(number, _)| *number);
        oldest.is_some_and(|number| self.tasks.remove(&number).is_some())
    }

    pub fn went_on(&mut self, number: u64, progress: Progress) {
        if let Some(task) = self.pending(number) {
            task.progress = Some(progress);
        }
    }

    /// It has ended; if it was cancelled before, that is how.
    pub fn end(&mut self, number: u64, result: Result<Reply, String>, now_ms: u64) {
        if let Some(task) = self.pending(number) {
            task.ended_unix_ms = Some(now_ms);
            match result {
                Ok(reply) => {
                    task.status = TaskState::Success;
                    task.result = Some(reply);
                }
                Err(why) => {
                    task.status = TaskState::Failure;
                    task.detail = Some(why);
                }
            }
        }
    }

    /// Returns whether it was in progress.
    pub fn cancel(&mut self, number: u64, now_ms: u64) -> bool {
        let task = self.pending(number);
        let found = task.is_some();
        if let Some(task) = task {
            task.status = TaskState::Cancelled;
            task.ended_unix_ms = Some(now_ms);
        }
        found
    }

    fn pending(&mut self, number: u64) -> Option<&mut Task> {
        self.tasks.get_mut(&number).filter(|it| it.status == TaskState::Pending)
    }

    /// A task that this client may see.
    #[must_use]
    pub fn get(&self, number: u64, who: &Who, tags: &Tags) -> Option<&Task> {
        self.tasks.get(&number).filter(|it| may_see(it, who, tags))
    }

    /// All that this client may see, the earliest first.
    pub fn list(&self, who: &Who, tags: &Tags) -> impl Iterator<Item = &Task> {
        self.tasks.values().filter(move |it| may_see(it, who, tags))
    }
}

/// Its own, and for an admin all. One that is limited to some VMs sees its own about those.
fn may_see(task: &Task, who: &Who, tags: &Tags) -> bool {
    let is_own = task.who == who.name;
    match &who.scope {
        Scope::Host => who.role == Role::Admin || is_own,
        scope @ Scope::Tagged(_) => {
            let of = task.of.as_ref();
            is_own && of.is_some_and(|of| of.iter().all(|vm| tags.permit(scope, vm)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, role: Role) -> Who {
        Who { name: name.to_owned(), role, expires: None, scope: Scope::Host }
    }

    #[test]
    fn a_task_ends_once_and_is_seen_by_its_client_and_admins() {
        let mut tasks = Tasks::default();
        let one = tasks.begin("create", "ann", None, 1).unwrap();
        let two = tasks.begin("save", "bob", None, 2).unwrap();
        tasks.end(one, Ok(Reply::Done), 3);
        assert!(!tasks.cancel(one, 4), "it has ended");
        assert!(tasks.cancel(two, 5));
        tasks.end(two, Err("hung up".to_owned()), 6);
        let tags = Tags::default();
        let status = |name, role| {
            tasks.list(&who(name, role), &tags).map(|it| it.status).collect::<Vec<_>>()
        };
        assert_eq!(status("ann", Role::Operator), [TaskState::Success]);
        assert_eq!(status("bob", Role::Viewer), [TaskState::Cancelled]);
        assert_eq!(status("eve", Role::Admin).len(), 2);
        assert_eq!(tasks.get(one, &who("bob", Role::Operator), &tags), None);
        let bobs = tasks.get(two, &who("bob", Role::Viewer), &tags);
        assert_eq!(bobs.unwrap().ended_unix_ms, Some(5));
    }

    #[test]
    fn a_limited_client_sees_its_tasks_about_vms_that_it_may_see() {
        const VM: &str = "00000000-0000-0000-0000-00000000000a";
        let mut tasks = Tasks::default();
        let scope = Scope::Tagged(["a".to_owned()].into());
        let ann = Who { scope, ..who("ann", Role::Admin) };
        tasks.begin("start", "ann", Some([VM.to_owned()].into()), 0).unwrap();
        tasks.begin("start", "bob", Some([VM.to_owned()].into()), 0).unwrap();
        // From when it was not limited.
        tasks.begin("host", "ann", None, 0).unwrap();
        let seen = |tags: &Tags| tasks.list(&ann, tags).map(|it| it.id.clone()).collect::<Vec<_>>();
        assert_eq!(seen(&Tags::parse(&format!("{VM} a")).unwrap()), ["1"]);
        assert_eq!(seen(&Tags::default()), [""; 0]);
    }

    #[test]
    fn of_a_client_so_many_are_kept_and_none_in_progress_is_forgotten() {
        let mut tasks = Tasks::default();
        let bobs = tasks.begin("x", "bob", None, 0).unwrap();
        let first = tasks.begin("x", "ann", None, 0).unwrap();
        for _ in 1..OF_A_CLIENT_MAX {
            tasks.begin("x", "ann", None, 0).unwrap();
        }
        assert_eq!(tasks.begin("x", "ann", None, 0), None);
        tasks.end(first + 5, Ok(Reply::Done), 1);
        let last = tasks.begin("x", "ann", None, 0).unwrap();
        assert!(tasks.get(first + 5, &who("ann", Role::Viewer), &Tags::default()).is_none());
        for kept in [bobs, first, last] {
            assert!(tasks.get(kept, &who("", Role::Admin), &Tags::default()).is_some());
        }
    }
}
