//! What the toolstack asks of the operating system it runs on. Linux and the simulator answer.

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

/// A network interface as the kernel made it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    pub name: String,
    /// What it is to be called instead.
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

    /// Sees that `bridge` is a bridge of this host.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such interface; refused if it is no bridge.
    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError>;

    /// Whether this host has a network interface of that name.
    ///
    /// # Errors
    /// What the kernel says.
    fn has_link(&mut self, name: &str) -> Result<bool, HostError>;

    /// Keeps the definition of a VM, in the place of an earlier one. Returns when it outlives a failure of
    /// power.
    ///
    /// # Errors
    /// What the kernel says; the earlier one is still whole.
    fn write_definition(&mut self, name: &str, text: &str) -> Result<(), HostError>;

    /// Removes the definition of a VM, if there is one.
    ///
    /// # Errors
    /// What the kernel says.
    fn remove_definition(&mut self, name: &str) -> Result<(), HostError>;

    /// Notes, until the host goes down, that the VMs which start with it were started.
    ///
    /// # Errors
    /// What the kernel says.
    fn finish_boot(&mut self) -> Result<(), HostError>;

    /// Renames the interface if it is to have another name, makes it a port of `bridge`, with the given MTU or
    /// else the bridge's, and brings it up. Returns its MTU. Once more is no error.
    ///
    /// # Errors
    /// [`HostError::Busy`] if another interface has the name; else what the kernel says.
    fn join_bridge(
        &mut self,
        bridge: &str,
        link: &Link,
        mtu: Option<u32>,
    ) -> Result<u32, HostError>;

    /// Starts `program` as a device model, which goes on whatever becomes of this daemon.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such program; else what the kernel says. No process is left then.
    fn start_model(&mut self, program: &str, launch: &Launch) -> Result<Process, HostError>;

    /// Kills a device model and returns when it has ended. One that has ended already is no error.
    ///
    /// # Errors
    /// [`HostError::Busy`] if it does not end.
    fn end_model(&mut self, process: Process) -> Result<(), HostError>;

    /// All device models of ours.
    ///
    /// # Errors
    /// What the kernel says.
    fn models(&mut self) -> Result<Vec<OwnModel>, HostError>;
}
