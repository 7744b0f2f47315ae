//! The protocol as bytes, and the client against a peer on a socket pair's other side.

mod client;
mod lines;
