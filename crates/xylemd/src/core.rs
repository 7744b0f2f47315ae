//! The thread that owns the machine: every event enters here, every action leaves here.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Result, bail};
use toolstack::work::{Cost, Failure, Output};
use toolstack::{Action, ClientId, Event, Instant, Reply, Request, Toolstack, WorkId};

use crate::pool::Pool;
use crate::watch::Watcher;

/// Everything that can wake the daemon.
pub(crate) enum Input {
    Ask {
        request: Request,
        answers: Sender<Answered>,
    },
    Worked {
        work: WorkId,
        result: Result<Output, Failure>,
        cost: Cost,
    },
    Node {
        path: String,
        value: Option<Vec<u8>>,
    },
    Introduced {
        domid: Option<xen::DomId>,
    },
    DomainsChanged,
    /// Totals since the start.
    AskCounters {
        answers: Sender<Cost>,
    },
    /// A thread that the daemon cannot do without has ended.
    Lost {
        what: String,
    },
}

/// What a client hears.
pub(crate) enum Answered {
    Progress { done: usize, total: usize, step: String },
    Reply(Reply),
}

/// Time since the daemon began.
fn now(begin: std::time::Instant) -> Instant {
    Instant(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Runs the machine until something it needs is lost.
pub(crate) fn run(incoming: &Receiver<Input>, pool: &Pool, watcher: &Watcher) -> Result<()> {
    let begin = std::time::Instant::now();
    let mut machine = Toolstack::new();
    let mut clients: BTreeMap<ClientId, Sender<Answered>> = BTreeMap::new();
    let mut next_client = 0;
    let mut totals = Cost::default();
    let mut event = Some(Event::Started);
    let mut actions = Vec::new();
    loop {
        if let Some(event) = event.take() {
            machine.handle(now(begin), event, &mut actions);
        }
        for action in actions.drain(..) {
            match action {
                Action::Work { id, work } => pool.submit(id, work),
                Action::Watch { path } => watcher.watch(path),
                Action::Unwatch { path } => watcher.unwatch(path),
                Action::Reply { client, reply } => {
                    if let Some(answers) = clients.remove(&client) {
                        // A client that has hung up no longer wants to know.
                        let _gone = answers.send(Answered::Reply(reply));
                    }
                }
                Action::Note { message } => crate::log(message),
                Action::Progress { client, done, total, step } => {
                    if let Some(answers) = clients.get(&client) {
                        let step = step.to_string();
                        let _gone = answers.send(Answered::Progress { done, total, step });
                    }
                }
            }
        }
        let input = match machine.next_wakeup() {
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => {
                let wait = due.0.saturating_sub(now(begin).0);
                incoming.recv_timeout(Duration::from_nanos(wait))
            }
        };
        event = match input {
            Ok(Input::Ask { request, answers }) => {
                let client = ClientId(next_client);
                next_client += 1;
                clients.insert(client, answers);
                Some(Event::Request { client, request })
            }
            Ok(Input::Worked { work, result, cost }) => {
                totals.add(&cost);
                if let Err(failure) = &result {
                    crate::log(failure);
                }
                Some(Event::Worked { work, result, cost })
            }
            Ok(Input::Node { path, value }) => Some(Event::Node { path, value }),
            Ok(Input::Introduced { domid }) => Some(Event::Introduced { domid }),
            Ok(Input::DomainsChanged) => Some(Event::DomainsChanged),
            Ok(Input::AskCounters { answers }) => {
                let _gone = answers.send(totals.clone());
                None
            }
            Ok(Input::Lost { what }) => bail!("{what}"),
            Err(RecvTimeoutError::Timeout) => Some(Event::Tick),
            Err(RecvTimeoutError::Disconnected) => bail!("all clients and workers are gone"),
        };
    }
}
