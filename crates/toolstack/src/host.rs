//! The toolstack's interface to the operating system, implemented by Linux and the simulator.

use std::sync::Arc;

use storage::{HostError, System};
use xen::{DomId, Uuid};
use xen_build::{HvmLoader, ImageError, KernelImage};

use crate::balloon::Dom0Policy;
use crate::bootloader::BootloaderRun;
use crate::channel::{Channel, ChannelId};
use crate::device_model::{Launch, OwnModel, Process};
use crate::hotplug::{ScriptEnd, ScriptRun};
use crate::lanes::{LaneCall, LaneIn, LaneOut};
use crate::moves::Reach;
use crate::network::Networks;
use crate::pci::PciBus;
use crate::qmp::ModelSocket;

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

/// A file of a saved VM that is being written. It has its name once it is committed; dropped before
/// that, nothing is left of it.
pub trait ImageSink {
    /// Appends these bytes.
    ///
    /// # Errors
    /// [`HostError::Refused`], also if the disk is full; the caller names the file.
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError>;

    /// Makes the file durable and gives it its name, replacing a file that has it. This is one
    /// step: until then nobody sees it, from then on it is whole.
    ///
    /// # Errors
    /// As for `write`; nothing is left.
    fn commit(self: Box<Self>) -> Result<(), HostError>;
}

/// A file of a saved VM that is being read. Its bytes may be anybody's.
pub trait ImageSource {
    /// Its length when it was opened.
    fn bytes(&self) -> u64;

    /// Fills `buffer` from this offset on, as far as the file goes. Returns how much that is.
    ///
    /// # Errors
    /// An errno of the kernel; the caller names the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, HostError>;
}

/// What a bootloader left: bytes that are as untrusted as its disk. Dropped, nothing is left of it.
pub trait BootFolder {
    /// Its answer, at most this many bytes.
    ///
    /// # Errors
    /// It cannot be read, or is something other than a file.
    fn answer(&mut self, bytes_max: usize) -> Result<Vec<u8>, HostError>;

    /// The parsed kernel that it put there.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none; refused if it is something other than a file, or no kernel.
    fn kernel(&mut self, name: &str) -> Result<Arc<KernelImage>, KernelError>;

    /// The ramdisk that it put there.
    ///
    /// # Errors
    /// As for a kernel.
    fn ramdisk(&mut self, name: &str) -> Result<Arc<[u8]>, HostError>;
}

/// What a file at `path` is called until it is committed: hidden, in the same folder. There is one
/// such name for each file, so that whatever a killed daemon left is found again.
#[must_use]
pub fn unfinished_name(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    format!("{folder}/.{name}.xylem-unfinished")
}

/// A turn that others wait for until it is dropped.
pub trait Turn {}

/// Files, bridges and the block layer.
pub trait Host {
    /// The part of it that storage needs.
    fn system(&mut self) -> &mut dyn System;

    /// What domain 0 may give of its memory now.
    fn dom0_policy(&mut self) -> Dom0Policy;

    /// The turn of whoever takes memory; `None` while another performer of this daemon has it.
    fn take_turn(&mut self) -> Option<Box<dyn Turn>>;

    /// Numbers that nobody can guess.
    ///
    /// # Errors
    /// The kernel has none.
    fn random(&mut self) -> Result<[u8; 16], HostError>;

    /// The time of day, in milliseconds since 1970.
    fn unix_ms(&mut self) -> u64;

    /// When this host has booted, in milliseconds since 1970; 0 if it does not say.
    fn booted_unix_ms(&mut self) -> u64;

    /// How far the host's time zone is ahead of UTC now.
    fn local_offset_seconds(&mut self) -> i32;

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

    /// The part of it that devices need.
    fn pci(&mut self) -> &mut dyn PciBus;

    /// The part of it that networks need.
    fn networks(&mut self) -> &mut dyn Networks;

    /// Checks that `bridge` is a bridge of this host.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such interface; refused if it is not a bridge.
    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError>;

    /// Checks that there is a program at the absolute `path`.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such file; refused if it cannot be executed.
    fn check_script(&mut self, path: &str) -> Result<(), HostError>;

    /// Runs a hotplug script to its end, or until its time is over. It ends with this daemon; what it has put into the
    /// background goes on once it has succeeded.
    ///
    /// # Errors
    /// It cannot be started.
    fn run_script(&mut self, run: &ScriptRun) -> Result<ScriptEnd, HostError>;

    /// Whether this host has a network interface of that name.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn has_link(&mut self, name: &str) -> Result<bool, HostError>;

    /// The connection that a client has handed over, for one work.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it was closed.
    fn channel(&mut self, id: ChannelId) -> Result<Box<dyn Channel>, HostError>;

    /// A new connection to a host that a VM went to. It is closed when it is dropped.
    ///
    /// # Errors
    /// Why a peer cannot be reached. Of a command only that it cannot be run; that nobody answers is noticed later.
    fn connect(&mut self, peer: &Reach) -> Result<Box<dyn Channel>, HostError>;

    /// How many connections a move to a peer has unless it is told.
    fn lanes_usual(&mut self) -> u8;

    /// Opens a further connection of a move to a peer.
    ///
    /// # Errors
    /// Why it cannot be reached.
    fn open_lane(&mut self, peer: &Reach, call: &LaneCall) -> Result<Box<dyn LaneOut>, HostError>;

    /// Lets the peer at the other end of a connection open others for a transfer, if it knows the token. Returns how many
    /// of them are taken.
    fn expect_lanes(&mut self, channel: ChannelId, transfer: Uuid, token: [u8; 16]) -> u8;

    /// One that has come.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it has not.
    fn take_lane(&mut self, transfer: Uuid, number: u8) -> Result<Box<dyn LaneIn>, HostError>;

    /// No more of them are taken.
    fn forget_lanes(&mut self, transfer: Uuid);

    /// Saves a small file about a VM that moves, replacing an earlier one. Returns when it is durable.
    ///
    /// # Errors
    /// An errno of the kernel; an earlier file is intact.
    fn write_transfer(&mut self, name: &str, text: &str) -> Result<(), HostError>;

    /// Removes such a file, if there is one. Returns when that is durable.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove_transfer(&mut self, name: &str) -> Result<(), HostError>;

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

    /// Writes libxl's configuration of a domain to where libxl has it, replacing what is there.
    ///
    /// # Errors
    /// [`HostError::Missing`] if libxl has no folder on this host; otherwise an errno of the kernel.
    fn write_userdata(&mut self, domid: DomId, uuid: Uuid, json: &str) -> Result<(), HostError>;

    /// The domains of which libxl keeps a configuration, without domain 0.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn userdata(&mut self) -> Result<Vec<(DomId, Uuid)>, HostError>;

    /// Removes all that libxl keeps of a domain in files. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove_userdata(&mut self, domid: DomId, uuid: Uuid) -> Result<(), HostError>;

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

    /// Runs a bootloader to its end, confined: it reads its disk and writes into a folder of its own. The disk is read
    /// anew, not from what this host remembers of it.
    ///
    /// # Errors
    /// It cannot be started, fails (the error has its own words) or does not end in time; nothing is left of it.
    fn run_bootloader(&mut self, run: &BootloaderRun) -> Result<Box<dyn BootFolder>, HostError>;

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

    /// A connection to the monitor of a domain's device model, which may take this long until it listens.
    ///
    /// # Errors
    /// It has ended, or does not listen in time.
    fn model_socket(
        &mut self,
        domid: DomId,
        process: Process,
        timeout_ns: u64,
    ) -> Result<Box<dyn ModelSocket>, HostError>;

    /// Removes the socket of the monitor of a device model that has ended, if there is one.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove_model_socket(&mut self, domid: DomId) -> Result<(), HostError>;

    /// All device models of ours.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn models(&mut self) -> Result<Vec<OwnModel>, HostError>;

    /// Begins a file at the absolute `path`, for root only. It has a temporary name in the same
    /// folder until it is committed. What a killed daemon left under that name is overwritten.
    ///
    /// # Errors
    /// Refused if there is something other than a regular file; [`HostError::Missing`] without the
    /// folder; [`HostError::Busy`] if such a file is being written.
    fn create_image(&mut self, path: &str) -> Result<Box<dyn ImageSink>, HostError>;

    /// Opens the file at the absolute `path`.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none; refused if it is not a regular file.
    fn open_image(&mut self, path: &str) -> Result<Box<dyn ImageSource>, HostError>;

    /// Removes what a killed daemon left of a file that was begun at `path` and not committed, if
    /// there is such.
    ///
    /// # Errors
    /// [`HostError::Busy`] if it is being written; otherwise an errno of the kernel.
    fn remove_unfinished_image(&mut self, path: &str) -> Result<(), HostError>;
}
