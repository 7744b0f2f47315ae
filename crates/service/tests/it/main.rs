//! Requests as clients make them, to the shipped machine on a simulated host.

mod door;
mod host;
mod pci;
mod psr;
mod requests;
mod rights;
