//! The interface of XAPI, XenAPI, in front of Xylem: for clients that speak it already.

mod failure;
pub mod jsonrpc;
pub mod model;
mod refs;
pub mod rpc;
mod value;
pub mod xmlrpc;

pub use failure::Failure;
pub use refs::{derived, opaque};
pub use value::{Answer, Record, Value};
