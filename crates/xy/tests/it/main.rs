//! The `xy` binary with a scripted daemon.

mod commands;
mod completion;
mod console;
mod daemon;
mod host;
mod progress;
mod psr;
mod remote;
mod remote_disks;
mod remote_reports;
mod remote_screen;
mod remote_store;
mod sched;
mod storage;
mod store;
mod trace;
mod tuning;
mod vms;
mod xl;
