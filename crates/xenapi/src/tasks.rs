//! Tasks: calls that go on after their answer, and what clients count their own work with.

use std::collections::BTreeMap;

use xen::Uuid;

use crate::failure::Failure;
use crate::model::Class;
use crate::value::{Answer, Record, Value};
use crate::xmlrpc;

/// Tasks that have ended and that nobody has destroyed are kept so long,
const KEPT_MS: u64 = 24 * 3600 * 1000;
/// and no more than so many.
const ENDED_MAX: usize = 1000;
/// Tasks that have not ended, of all users and of one.
const PENDING_MAX: usize = 5000;
const PENDING_PER_USER_MAX: usize = 2000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Status {
    Pending,
    /// It is to be given up.
    Cancelling,
    Success,
    Failure,
    Cancelled,
}

impl Status {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Cancelling => "cancelling",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Pending, Self::Cancelling, Self::Success, Self::Failure, Self::Cancelled]
            .into_iter()
            .find(|it| it.as_str() == name)
    }
}

/// Who moves a task on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Doer {
    /// A call of the façade.
    Call,
    /// One that the daemon gives up when its client hangs up.
    Patient,
    /// The client that made it.
    Client,
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub id: Uuid,
    pub name: String,
    pub description: String,
    /// The user.
    pub who: String,
    pub doer: Doer,
    /// The VM that it works on, and what it does there in the words of XenAPI.
    pub works_on: Option<(Uuid, &'static str)>,
    pub status: Status,
    pub progress: f64,
    pub created_unix_ms: u64,
    pub ended_unix_ms: Option<u64>,
    pub result: String,
    pub error_info: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Tasks(BTreeMap<Uuid, Task>);

impl Tasks {
    pub(crate) fn get(&self, id: Uuid) -> Option<&Task> {
        self.0.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: Uuid) -> Option<&mut Task> {
        self.0.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.0.values()
    }

    /// Those in progress on a VM.
    pub(crate) fn on(&self, vm: Uuid) -> impl Iterator<Item = (&Task, &'static str)> {
        self.0.values().filter(|it| it.is_under_way()).filter_map(move |it| {
            it.works_on.filter(|(on, _)| *on == vm).map(|(_, operation)| (it, operation))
        })
    }

    pub(crate) fn begin(&mut self, task: Task) -> Result<(), Failure> {
        let pending = self.0.values().filter(|it| it.is_under_way());
        let own = pending.clone().filter(|it| it.who == task.who).count();
        if pending.count() >= PENDING_MAX || own >= PENDING_PER_USER_MAX {
            return Err(Failure::new("TOO_BUSY", [""; 0]));
        }
        self.expire(task.created_unix_ms);
        self.0.insert(task.id, task);
        Ok(())
    }

    pub(crate) fn end(&mut self, id: Uuid, answer: &Answer, now_unix_ms: u64) {
        let Some(task) = self.0.get_mut(&id).filter(|it| it.is_under_way()) else { return };
        task.ended_unix_ms = Some(now_unix_ms);
        task.progress = 1.0;
        match answer {
            // Nothing is a result for calls that have none, not an empty text.
            Ok(value) if *value == Value::void() => task.status = Status::Success,
            Ok(value) => {
                task.status = Status::Success;
                task.result = xmlrpc::encode_value(value);
            }
            Err(failure) => {
                let is_given_up = task.status == Status::Cancelling;
                task.status = if is_given_up { Status::Cancelled } else { Status::Failure };
                task.error_info = failure.parts().to_vec();
            }
        }
    }

    pub(crate) fn destroy(&mut self, id: Uuid) {
        self.0.remove(&id);
    }

    /// Forgets what has ended long ago.
    pub(crate) fn expire(&mut self, now_unix_ms: u64) {
        let is_old = |ended: u64| now_unix_ms.saturating_sub(ended) > KEPT_MS;
        self.0.retain(|_, it| !it.ended_unix_ms.is_some_and(is_old));
        let ended = self.0.values().filter_map(|it| Some((it.ended_unix_ms?, it.id)));
        let mut ended: Vec<_> = ended.collect();
        if ended.len() > ENDED_MAX {
            ended.sort_unstable();
            for (_, id) in &ended[..ended.len() - ENDED_MAX] {
                self.0.remove(id);
            }
        }
    }
}

fn seconds(unix_ms: u64) -> Value {
    Value::Date(i64::try_from(unix_ms / 1000).unwrap_or_default())
}

impl Task {
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.status, Status::Pending | Status::Cancelling)
    }

    pub(crate) fn record(&self, host: &str) -> Record {
        let mut record = Class::Task.blank();
        let mut set = |field, value: Value| record.insert(field, value);
        set("uuid", self.id.to_string().into());
        set("name_label", self.name.as_str().into());
        set("name_description", self.description.as_str().into());
        set("status", self.status.as_str().into());
        set("progress", Value::Float(self.progress));
        set("created", seconds(self.created_unix_ms));
        set("finished", seconds(self.ended_unix_ms.unwrap_or_default()));
        set("type", "<none/>".into());
        set("result", self.result.as_str().into());
        set("error_info", self.error_info.iter().map(String::as_str).collect());
        set("resident_on", host.into());
        set("subtask_of", Value::null());
        set("backtrace", "()".into());
        let allowed: &[&str] = match (self.status, self.doer) {
            (Status::Pending, Doer::Client) => &["cancel", "destroy"],
            (Status::Pending, Doer::Patient) => &["cancel"],
            (Status::Pending | Status::Cancelling, _) => &[],
            _ => &["destroy"],
        };
        set("allowed_operations", allowed.iter().copied().collect());
        record
    }
}

/// An operation of the daemon that no task of ours stands for.
pub(crate) fn of_operation(id: Uuid, it: &api::OperationObject, host: &str) -> Record {
    let task = Task {
        id,
        name: format!("{} {}", it.row.what, it.row.vm),
        description: it.waits_for.join(", "),
        who: String::new(),
        doer: Doer::Call,
        works_on: None,
        status: Status::Pending,
        progress: share(it),
        created_unix_ms: it.started_unix_ms,
        ended_unix_ms: None,
        result: String::new(),
        error_info: Vec::new(),
    };
    task.record(host)
}

/// How much of an operation is done.
pub(crate) fn share(it: &api::OperationObject) -> f64 {
    let number = |it: u64| f64::from(u32::try_from(it).unwrap_or(u32::MAX));
    if it.row.steps == 0 { 0.0 } else { (number(it.row.done) / number(it.row.steps)).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(number: u64) -> Task {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Task {
            id: Uuid(id),
            name: "Async.VM.start".to_owned(),
            description: String::new(),
            who: "ann".to_owned(),
            doer: Doer::Call,
            works_on: None,
            status: Status::Pending,
            progress: 0.0,
            created_unix_ms: number,
            ended_unix_ms: None,
            result: String::new(),
            error_info: Vec::new(),
        }
    }

    #[test]
    fn results_are_xml_and_failures_their_parts() {
        let mut tasks = Tasks::default();
        let answers = [
            (Ok(Value::void()), Status::Success, ""),
            (Ok(Value::null()), Status::Success, "<value>OpaqueRef:NULL</value>"),
            (Err(Failure::internal("x")), Status::Failure, ""),
        ];
        for (number, (answer, status, result)) in (0..).zip(answers) {
            let task = task(number);
            let id = task.id;
            assert!(tasks.begin(task).is_ok());
            tasks.end(id, &answer, 5);
            let task = tasks.get(id).expect("it is kept");
            assert_eq!((task.status, task.result.as_str()), (status, result));
            assert_eq!(task.error_info.is_empty(), answer.is_ok());
        }
    }

    #[test]
    fn a_user_has_so_many_tasks() {
        let mut tasks = Tasks::default();
        let begun = (0..3000).filter(|number| tasks.begin(task(*number)).is_ok()).count();
        assert_eq!(begun, PENDING_PER_USER_MAX);
        let of_bob = Task { who: "bob".to_owned(), ..task(5000) };
        assert!(tasks.begin(of_bob).is_ok());
    }

    #[test]
    fn ended_tasks_are_kept_for_a_while() {
        let mut tasks = Tasks::default();
        for number in 0..=ENDED_MAX as u64 + 10 {
            let task = task(number);
            let id = task.id;
            assert!(tasks.begin(task).is_ok());
            tasks.end(id, &Ok(Value::void()), number);
        }
        tasks.expire(5000);
        assert_eq!(tasks.0.len(), ENDED_MAX);
        tasks.expire(KEPT_MS * 2);
        assert_eq!(tasks.0.len(), 0);
    }
}
