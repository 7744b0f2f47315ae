//! Builds domains: a kernel image, a ramdisk and a command line become the memory, tables and
//! registers of a new PV or PVH domain.
//!
//! All work goes through [`xen::Xen`], so the same code builds on a real Xen and on the simulator.
//! Nothing here creates or destroys domains, writes to the store or knows about devices.
//!
//! Who does what. The caller, before [`build`]: [`xen::Xen::create_domain`],
//! [`xen::Xen::set_vcpus_max`] and one [`xen::Xen::alloc_unbound`] each for store and console.
//! [`build`]: memory limit, time stamp counter mode, address size or paging pool, memory, loading,
//! tables, parameters, vCPU contexts, grant entries. The caller, afterwards: the store's nodes and
//! introduction from [`Built`], then unpause. If [`build`] fails, the caller destroys the domain.
#![no_std]

extern crate alloc;

mod config;
mod error;
mod image;

pub use config::{BuildConfig, Built, Channel, Channels, Needs, TscMode};
pub use error::BuildError;
pub use image::{Compression, ImageError, KernelImage};

use xen::{DomId, Hypervisor, Xen};

/// Whether a domain can be built so, before there is one.
///
/// # Errors
/// [`BuildError`] for whatever the configuration itself makes impossible.
pub fn check(config: &BuildConfig<'_>) -> Result<Needs, BuildError> {
    let _ = config;
    Err(BuildError::Kind(config.kind))
}

/// Builds the domain, which stays paused.
///
/// # Errors
/// What [`check`] says, and whatever the hypervisor refuses.
pub fn build<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    channels: &Channels,
) -> Result<Built, BuildError> {
    let _ = (xen, domid, channels);
    Err(BuildError::Kind(config.kind))
}
