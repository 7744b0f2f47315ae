//! Combines concurrent runs of one program that would be serialised anyway.
//!
//! LVM takes a volume group's lock for each command and reads all of its metadata, so ten commands
//! for one volume each take ten times as long as one for ten. The first caller waits briefly for
//! concurrent ones, such as a VM's other disks; callers that arrive during a run are combined in
//! the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use storage::{Command, HostError};

/// Most callers in one run: a failure's message is about all of them.
const TOGETHER_MAX: usize = 64;

/// How long the first waits for others. A run takes more than ten times as long.
const GATHER_TIME: Duration = Duration::from_millis(3);

/// Waits for concurrent callers.
pub(crate) fn gather() {
    thread::sleep(GATHER_TIME);
}

type Outcome = Result<String, HostError>;

/// The group, the program, and the common arguments.
type Key = (String, String, Vec<String>);

#[derive(Debug, Default)]
pub(crate) struct Joined(Mutex<BTreeMap<Key, Arc<Gate>>>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    next: u64,
    waiting: Vec<(u64, String)>,
    /// `None` if the combined run failed: then run alone.
    ended: BTreeMap<u64, Option<Outcome>>,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn with(command: &Command, arguments: impl Iterator<Item = String>) -> Command {
    let mut command = command.clone();
    command.arguments.extend(arguments);
    command
}

impl Joined {
    fn gate(&self, among: &str, command: &Command) -> Arc<Gate> {
        let key = (among.to_owned(), command.program.clone(), command.arguments.clone());
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(gates.entry(key).or_default())
    }

    /// Runs the command with `argument` and with those of other callers with the same `among` that
    /// arrive until `gather` ends.
    pub(crate) fn run(
        &self,
        among: &str,
        command: &Command,
        argument: &str,
        gather: impl Fn(),
        run: impl Fn(&Command) -> Outcome,
    ) -> Outcome {
        let gate = self.gate(among, command);
        let mut state = gate.state();
        let id = state.next;
        state.next += 1;
        state.waiting.push((id, argument.to_owned()));
        loop {
            match state.ended.remove(&id) {
                Some(Some(outcome)) => return outcome,
                Some(None) => {
                    drop(state);
                    return run(&with(command, [argument.to_owned()].into_iter()));
                }
                None => {}
            }
            if state.running {
                // The run has a deadline, so this wait is bounded.
                state = gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.running = true;
            drop(state);
            gather();
            state = gate.state();
            let count = state.waiting.len().min(TOGETHER_MAX);
            let batch: Vec<(u64, String)> = state.waiting.drain(..count).collect();
            drop(state);
            let outcome = run(&with(command, batch.iter().map(|(_, argument)| argument.clone())));
            let told = (outcome.is_ok() || count == 1).then_some(outcome);
            state = gate.state();
            state.running = false;
            state.ended.extend(batch.into_iter().map(|(id, _)| (id, told.clone())));
            gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four at once, the first of them held until the others wait, as it gathers or as it runs: what each was told, and
    /// all runs.
    fn four(
        while_gathering: bool,
        run: impl Fn(&Command) -> Outcome + Sync,
    ) -> (Vec<Outcome>, Vec<Vec<String>>) {
        let joined = Joined::default();
        let command = Command::new("lvm", &["lvchange"], 600);
        let runs = Mutex::new(Vec::new());
        let gate = joined.gate("group", &command);
        let until_all_came = || {
            while gate.state().next < 4 {
                thread::yield_now();
            }
        };
        let gather = || {
            if while_gathering {
                until_all_came();
            }
        };
        let held = |command: &Command| {
            runs.lock().unwrap().push(command.arguments[1..].to_vec());
            until_all_came();
            run(command)
        };
        let told = thread::scope(|scope| {
            let (joined, command, gather, held) = (&joined, &command, &gather, &held);
            let one = |word: &'static str| {
                scope.spawn(move || joined.run("group", command, word, gather, held))
            };
            let first = one("a");
            // While gathering it accepts others.
            while !while_gathering && runs.lock().unwrap().is_empty() {
                thread::yield_now();
            }
            let all = [first, one("b"), one("c"), one("d")];
            all.into_iter().map(|it| it.join().unwrap()).collect()
        });
        (told, runs.into_inner().unwrap())
    }

    #[test]
    fn those_that_come_during_a_run_go_together() {
        let (told, runs) = four(false, |command| Ok(command.arguments.join(" ")));
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [1, 3]);
        let mut all: Vec<String> = runs.concat();
        all.sort();
        assert_eq!(all, ["a", "b", "c", "d"]);
        assert!(told.iter().all(Result::is_ok));
    }

    #[test]
    fn those_that_come_at_the_same_time_go_together() {
        let (told, runs) = four(true, |command| Ok(command.arguments.join(" ")));
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [4]);
        assert!(told.iter().all(Result::is_ok));
    }

    #[test]
    fn one_that_fails_fails_alone() {
        let refused = || Err(HostError::Refused("b is in use".to_owned()));
        let fails = |command: &Command| {
            if command.arguments.contains(&"b".to_owned()) { refused() } else { Ok(String::new()) }
        };
        for while_gathering in [false, true] {
            let (told, _) = four(while_gathering, fails);
            let ok = Ok(String::new());
            assert_eq!(told, [ok.clone(), refused(), ok.clone(), ok]);
        }
    }
}
