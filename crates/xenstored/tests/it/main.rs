//! The daemon itself, on sockets and with fake guests: no Xen is needed for any of this.

mod clients;
mod confinement;
mod crash;
mod daemon;
mod errors;
mod guests;
mod live_update;
mod memory;
mod process;
mod status;
