//! Linux's interfaces to Xen (`/dev/xen/*`), and the few other kernel interfaces that a Xen host
//! needs (loop and network block devices, bridge ports).
//!
//! This is the only crate of the workspace with unsafe code. It offers safe types, named after the
//! devices, and makes no decisions.

mod append_file;
mod block;
mod clock;
mod error;
mod evtchn;
mod foreign;
mod gntdev;
mod inherited;
mod ioctl;
mod links;
mod lock;
mod loopdev;
mod mapping;
mod namespaces;
mod nbd;
mod netlink;
mod page;
mod peer;
mod privcmd;
mod rtnetlink;
mod signals;
mod xsd;

pub use append_file::{AppendFile, Flag, RetiredFile};
pub use block::{DeviceNumber, block_device, is_unclaimed};
pub use clock::local_offset_seconds;
pub use error::HostError;
pub use evtchn::{EventChannels, VIRQ_DOM_EXC};
pub use foreign::ForeignMemory;
pub use gntdev::GrantDevice;
pub use inherited::Inherited;
pub use links::{Link, Links, Route};
pub use loopdev::{Backing, FileIdentity, FileLock, LoopDevice, identify};
pub use mapping::Access;
pub use namespaces::{Namespaces, unshare};
pub use nbd::{NetworkBlockDevices, Served};
pub use page::SharedPage;
pub use peer::peer_groups;
pub use privcmd::LinuxHypervisor;
pub use signals::{HangupSignals, StopSignals};
pub use xsd::OwnStoreRing;
