//! Xen as this daemon's threads use it.

use anyhow::Result;
use xen::Xen;
use xen_linux::LinuxHypervisor;

/// Opens the hypervisor and probes its interface.
pub(crate) fn open_xen(arena_bytes: usize) -> Result<Xen<LinuxHypervisor>> {
    Ok(Xen::probe(LinuxHypervisor::open(arena_bytes)?)?)
}
