//! Requests that clients do not wait for.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use gate::Task;

use crate::admit::Caller;
use crate::limited::task_of;
use crate::problem::Problem;
use crate::shared::{Shared, lock};

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Task>> {
    let tasks = lock(&shared.tasks.tasks);
    let all = tasks.list(&caller.who, &shared.tags()).cloned().collect::<Vec<_>>();
    drop(tasks);
    Json(all.into_iter().map(|task| task_of(&shared, &caller.who, task)).collect())
}

fn find(shared: &Arc<Shared>, caller: &Caller, id: &str) -> Result<(u64, Task), Problem> {
    let number = id.parse::<u64>().ok();
    let tasks = lock(&shared.tasks.tasks);
    let found = number.and_then(|number| {
        tasks.get(number, &caller.who, &shared.tags()).map(|task| (number, task.clone()))
    });
    let found = found.map(|(number, task)| (number, task_of(shared, &caller.who, task)));
    found.ok_or_else(|| Problem::not_found(format!("there is no task {id}, or not of yours")))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Task>, Problem> {
    find(&shared, &caller, &id).map(|(_, task)| Json(task))
}

pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<StatusCode, Problem> {
    let (number, task) = find(&shared, &caller, &id)?;
    if !shared.tasks.cancel(number) {
        return Err(Problem::new(StatusCode::CONFLICT, format!("task {id} has ended")));
    }
    let asks = caller.asks();
    shared.audit.note(&asks.who, &asks.from, "cancel", &task.what, "ok");
    Ok(StatusCode::NO_CONTENT)
}
