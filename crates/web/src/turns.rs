//! How many requests a client may have in progress, so that none takes all the turns with the daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::problem::Problem;
use crate::shared::lock;

/// Of one client.
const OF_A_CLIENT_MAX: usize = 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<BTreeMap<String, usize>>>);

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    client: String,
}

impl Turns {
    pub(crate) fn take(&self, client: &str) -> Result<Turn, Problem> {
        let mut all = lock(&self.0);
        let count = all.entry(client.to_owned()).or_default();
        if *count >= OF_A_CLIENT_MAX {
            let why = format!("{client} has {OF_A_CLIENT_MAX} requests in progress; wait for one");
            return Err(Problem::too_many(why, 1));
        }
        *count += 1;
        Ok(Turn { turns: self.clone(), client: client.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = lock(&self.turns.0);
        if let Some(count) = all.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_turns_and_others_have_theirs() {
        let turns = Turns::default();
        let mut taken: Vec<_> = (0..OF_A_CLIENT_MAX).map(|_| turns.take("a").unwrap()).collect();
        turns.take("a").unwrap_err();
        turns.take("b").unwrap();
        taken.pop();
        turns.take("a").unwrap();
        drop(taken);
        assert!(lock(&turns.0).is_empty());
    }
}
