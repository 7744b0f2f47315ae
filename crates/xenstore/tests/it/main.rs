//! Behaviour of the store through its public API: bytes in, bytes out, domains that come and go.

mod model;
mod scripts;
mod server;
mod world;
