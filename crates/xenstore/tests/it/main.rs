//! Behaviour of the store through its public API: bytes in, bytes out, domains that come and go.

mod batch;
mod changes;
mod client;
mod control;
mod damage;
mod hidden;
mod hostile;
mod journal;
mod limits;
mod model;
mod noise;
mod page;
mod rings;
mod scripts;
mod security;
mod server;
mod state;
mod time;
mod twins;
mod world;
