//! The toolstack's interface to the operating system, implemented by Linux and the simulator.

use std::sync::Arc;

use storage::{HostError, System};
use xen_build::{HvmLoader, ImageError, KernelImage};

use crate::device_model::{Launch, OwnModel, Process};

/// A kernel cannot be loaded.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KernelError {
    #[error("{0}")]
    Host(#[from] HostError),
    #[error("{0}")]
    Image(#[from] ImageError),
}

/// A network interface, by its original name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    pub name: String,
    /// Its new name.
    pub rename: Option<String>,
}

/// Files, bridges and the block layer.
pub trait Host {
    /// The part of it that storage needs.
    fn system(&mut self) -> &mut dyn System;

    /// The time of day, in milliseconds since 1970.
    fn unix_ms(&mut self) -> u64;

    /// The parsed kernel at `path`; parsed again only when the file has changed.
    ///
    /// # Errors
    /// [`KernelError`]; the caller names the file.
    fn kernel(&mut self, path: &str) -> Result<Arc<KernelImage>, KernelError>;

    /// The parsed loader of HVM domains at `path`; parsed again only when the file has changed.
    ///
    /// # Errors
    /// The caller names the file.
    fn loader(&mut self, path: &str) -> Result<Arc<HvmLoader>, HostError>;

    /// The bytes of the file at `path`, a ramdisk or a BIOS; read again only when the file has changed.
    ///
    /// # Errors
    /// The caller names the file.
    fn ramdisk(&mut self, path: &str) -> Result<Arc<[u8]>, HostError>;

    /// Checks that `bridge` is a bridge of this host.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such interface; refused if it is not a bridge.
    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError>;

    /// Whether this host has a network interface of that name.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn has_link(&mut self, name: &str) -> Result<bool, HostError>;

    /// Saves the definition of a VM, replacing an earlier one. Returns when it is durable.
    ///
    /// # Errors
    /// An errno of the kernel; the earlier definition is intact.
    fn write_definition(&mut self, name: &str, text: &str) -> Result<(), HostError>;

    /// Removes the definition of a VM, if there is one.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove_definition(&mut self, name: &str) -> Result<(), HostError>;

    /// Records, until the host reboots, that autostart VMs were started.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn finish_boot(&mut self) -> Result<(), HostError>;

    /// Renames the interface if requested, adds it to `bridge`, with the given MTU or the bridge's,
    /// and brings it up. Returns its MTU. Idempotent.
    ///
    /// # Errors
    /// [`HostError::Busy`] if another interface has the name; otherwise an errno of the kernel.
    fn join_bridge(
        &mut self,
        bridge: &str,
        link: &Link,
        mtu: Option<u32>,
    ) -> Result<u32, HostError>;

    /// Starts `program` as a device model, which outlives this daemon.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such program; otherwise an errno of the kernel. Then
    /// no process is left.
    fn start_model(&mut self, program: &str, launch: &Launch) -> Result<Process, HostError>;

    /// Kills a device model and waits for its exit. Idempotent.
    ///
    /// # Errors
    /// [`HostError::Busy`] if it does not exit.
    fn end_model(&mut self, process: Process) -> Result<(), HostError>;

    /// All device models of ours.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn models(&mut self) -> Result<Vec<OwnModel>, HostError>;
}
