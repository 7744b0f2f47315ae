//! The commands: requests to the daemon and output of the answers.

pub(crate) mod adopt;
pub(crate) mod bugreport;
pub(crate) mod checkpoints;
pub(crate) mod console;
pub(crate) mod create;
pub(crate) mod devices;
pub(crate) mod disown;
pub(crate) mod doctor;
pub(crate) mod domains;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod host;
pub(crate) mod hypercalls;
pub(crate) mod image;
pub(crate) mod inside;
mod lend;
pub(crate) mod migrate;
pub(crate) mod objects;
pub(crate) mod pci;
pub(crate) mod peer;
pub(crate) mod plan;
pub(crate) mod pools;
pub(crate) mod psr;
pub(crate) mod save;
pub(crate) mod sched;
pub(crate) mod shutdown;
pub(crate) mod storage;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod tuning;
pub(crate) mod vm_create;
pub(crate) mod vms;
pub(crate) mod vnc;

/// Extracts the payload of the expected reply.
macro_rules! expect_reply {
    ($reply:expr, $kind:ident) => {
        match $reply {
            api::Reply::$kind(payload) => payload,
            other => return Err($crate::session::unexpected(&other)),
        }
    };
}
pub(crate) use expect_reply;

/// Checks the reply of a request without a result.
pub(crate) fn expect_done(reply: &api::Reply) -> Result<(), crate::session::Failure> {
    match reply {
        api::Reply::Done => Ok(()),
        other => Err(crate::session::unexpected(other)),
    }
}
