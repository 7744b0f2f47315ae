//! Work done, in steps that are independent of the machine's speed.
//!
//! A step is a node or watch that is visited, about a tenth of a microsecond. What a request costs
//! follows from what the client asked and may see, never from what is hidden from it. The shell uses it to
//! end a client's turn, and tests to compare.

use crate::server::Server;

/// What any request costs, and one for each so many bytes of its payload.
const STEPS_OF_REQUEST: u64 = 10;
const BYTES_IN_STEP: usize = 16;

/// After so many a ring's turn is over: some tenths of a millisecond.
pub(super) const STEPS_OF_TURN: u64 = 2_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    steps: u64,
}

impl Work {
    pub(super) fn add(&mut self, steps: u64) {
        self.steps += steps;
    }
}

pub(super) fn of_request(payload_bytes: usize) -> u64 {
    STEPS_OF_REQUEST + steps(payload_bytes / BYTES_IN_STEP)
}

/// To visit children whose names have so many bytes.
pub(super) fn of_names(bytes: usize) -> u64 {
    steps(bytes / 2)
}

/// A number of visits as steps.
pub(super) fn steps(count: usize) -> u64 {
    count as u64
}

impl Server {
    /// Steps of work since the beginning.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.work.steps
    }
}
