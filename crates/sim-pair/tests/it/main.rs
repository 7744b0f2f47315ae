//! Two hosts, seen from outside.

mod busy;
mod file;
mod hostile;
mod hvm;
mod moves;
mod network;
mod storage;
mod support;
mod turns;
