//! How many requests a client may have in progress, and how many consoles open, so that none takes the places of all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::problem::Problem;
use crate::shared::lock;

/// Requests of one client.
pub(crate) const REQUESTS_MAX: usize = 10;
/// Consoles and screens of one client.
pub(crate) const CONSOLES_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Turns {
    taken: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Of one client.
    max: usize,
    /// What a client has too many of.
    what: &'static str,
}

/// A request in progress, or an open console.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    client: String,
}

impl Turns {
    pub(crate) fn new(max: usize, what: &'static str) -> Self {
        Self { taken: Arc::default(), max, what }
    }

    pub(crate) fn take(&self, client: &str) -> Result<Turn, Problem> {
        let mut all = lock(&self.taken);
        let count = all.entry(client.to_owned()).or_default();
        if *count >= self.max {
            let why = format!("{client} has {} {}", self.max, self.what);
            return Err(Problem::too_many(why, 1));
        }
        *count += 1;
        Ok(Turn { turns: self.clone(), client: client.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = lock(&self.turns.taken);
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
        let turns = Turns::new(REQUESTS_MAX, "requests");
        let mut taken: Vec<_> = (0..REQUESTS_MAX).map(|_| turns.take("a").unwrap()).collect();
        turns.take("a").unwrap_err();
        turns.take("b").unwrap();
        taken.pop();
        turns.take("a").unwrap();
        drop(taken);
        assert!(lock(&turns.taken).is_empty());
    }
}
