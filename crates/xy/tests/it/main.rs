//! The `xy` binary against a daemon that says what the test wants.

mod commands;
mod console;
mod daemon;
mod progress;
mod storage;
mod store;
mod trace;
mod vms;
