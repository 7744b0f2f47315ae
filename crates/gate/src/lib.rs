//! What decides whether a remote client is let in, to which VMs, and what is kept of what it did: credentials, tags, sessions,
//! lock-out, pace, repeated requests, tasks, and the audit log's chain.
//!
//! All tables are bounded. Time is an argument (seconds since 1970, or nanoseconds of a clock that only goes forward), and so
//! are random bytes.

mod access;
mod audit;
mod limited;
mod lockout;
mod oidc;
mod pace;
mod repeats;
mod sessions;
mod tags;
mod tasks;

pub use access::{Access, AccessError, Entry, Secret, Who, entry_line, hash_password, without};
pub use audit::{AuditError, Chain, Record, check_chain};
pub use limited::{
    Asked, Sight, Verdict, decide, not_for_limited, operations, show, without_others,
};
pub use lockout::Lockout;
pub use oidc::{Audience, Begun, Claims, Expected, LogIns, Returned};
pub use pace::{Pace, Rate};
pub use repeats::{Repeat, Repeats, Stored};
pub use sessions::Sessions;
pub use tags::{Scope, Tags, tag_line, without_tag};
pub use tasks::{Task, TaskState, Tasks};
