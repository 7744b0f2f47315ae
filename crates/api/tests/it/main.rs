//! The protocol's bytes, and the client with a peer on a socket pair.

mod client;
mod lines;
