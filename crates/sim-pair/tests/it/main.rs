//! Two hosts, seen from outside.

mod busy;
mod file;
mod moves;
mod network;
mod storage;
mod support;
mod turns;
