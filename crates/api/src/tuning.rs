//! Changes of running domains.

use serde::{Deserialize, Serialize};

use crate::Target;

/// A change of a running domain, also of domain 0. Each is answered by [`Reply::Done`](crate::Reply::Done).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum TuneRequest {
    /// The most memory that it may be given.
    MemMax { target: Target, kib: u64 },
    /// The memory that it is to have.
    MemSet { target: Target, kib: u64 },
}
