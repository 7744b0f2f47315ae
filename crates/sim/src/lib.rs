//! A simulated Xen host with its guests and backends, determined by one seed.
//!
//! The product's own code runs on it unchanged: the typed hypercalls and the builder on
//! [`SimHypervisor`], the store's server on simulated rings, the toolstack on a simulated dom0. The
//! seam is the lowest possible: hypercalls, event channels, grants and ring bytes. The crate does
//! not use the operating system, and a run is determined by its seed.

mod agenda;
mod backend;
mod bootloaders;
mod bytes;
mod channel;
mod check;
mod consoled;
mod daemon;
mod faults;
mod guest;
mod history;
mod host;
mod images;
mod iscsi;
mod lvm;
mod machine;
mod models;
mod monitor;
mod nbd;
mod network;
mod networks;
mod os;
mod pci;
mod prng;
mod qemu;
mod scripts;
mod shared;
mod storage;
mod store;
mod trace;
mod world;

pub use agenda::Time;
pub use backend::{BackendKind, Counts};
pub use bootloaders::BootloaderFate;
pub use channel::{Dial, Line, SimChannel};
pub use check::Snapshot;
pub use daemon::{AttachTimes, Daemon, DaemonError, Letter, LetterId, Post, Started};
pub use faults::{Calls, Faults, Preemption, VirqFate};
pub use guest::kernel_image;
pub use history::{DiskUse, Span};
pub use host::{DeviceCounts, HostConfig, SimHost};
pub use machine::{
    Channel, Doing, Domain, Dying, GrantStatus, Machine, MachineConfig, Mapping, MappingId,
    Occurrence, Release, Schedule, SimHypervisor, SimXen, UNREST_HANDLE, VIRQ_DOM_EXC, Vcpu,
    Yielding,
};
pub use models::{ModelFate, add_hvm_files};
pub use monitor::MonitorFate;
pub use network::{CableId, End, NEVER, Network, NetworkConfig, PacketFate, Want};
pub use os::{Giving, LoopDevice, OsState, SimOs};
pub use pci::{INTERRUPT as PCI_INTERRUPT, regions as pci_regions};
pub use prng::Prng;
pub use scripts::ScriptFate;
pub use shared::SharedFiles;
pub use store::{Pins, SocketTransport};
pub use trace::Trace;
