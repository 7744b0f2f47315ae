//! The protocol between `xylemd` and its clients, such as `xy`: one JSON object per line.
//!
//! A client writes a request line, `{"version":1,"op":"list"}`, and reads lines until the final
//! one: any number of `{"progress":..}`, `{"event":..}`, `{"warning":..}` and `{"changed":..}`, then one `{"ok":..}`
//! or `{"error":".."}`. A connection carries one request after another. This crate makes no
//! decisions about VMs; only [`client`] uses a socket.

mod activity;
mod answer;
mod checkpoints;
pub mod client;
mod config;
mod host;
mod moves;
mod objects;
mod peers;
mod pieces;
mod psr;
mod relays;
mod request;
mod rights;
mod sched;
mod storage;
mod store;
mod traffic;
mod tuning;
mod vms;
mod wire;

pub use activity::{Activity, HypercallRow, Latency, OperationRow, QueueRow};
pub use answer::{
    Answer, BlockRow, ChannelRow, Checked, Console, Cost, Counters, CreateReport, DomainEvent,
    DomainRow, EventKind, Info, KeyboardRow, Limits, NetworkRow, Operations, Pong, Progress, Reply,
    Stage, Trace, TraceRow, TraceStep, VcpuRow,
};
pub use checkpoints::{
    CheckpointDisk, CheckpointRequest, CheckpointRow, MakeCheckpoint, MakeCopies, Revert,
};
pub use config::{BuildInfo, CreateInfo, Disk, DomainConfig, Fields, ListedConfig, Nic};
pub use host::{BootRow, CpuRow, HostRequest, NodeRow, PciRequest, PciRow, PoolRow, Topology};
pub use moves::{Arrival, Migrate, Pace, Reach, Runs, Speaks};
pub use objects::{
    DeviceObject, DomainObject, HostObject, NetworkObject, Object, ObjectChange, Objects,
    OperationObject, VmObject, VmSizes,
};
pub use peers::{PeerCheck, PeerKey, PeerRequest, PeerRow};
pub use pieces::{PIECE_BYTES_MAX, PIECE_HEADER_BYTES, PieceHeader};
pub use psr::{
    CachePart, PsrCache, PsrCmt, PsrCounter, PsrHardware, PsrLimits, PsrRequest, PsrSample,
    PsrSamples, PsrShare, PsrShares, PsrSocket, PsrUse,
};
pub use relays::{RelayRequest, Report};
pub use request::{
    Adopt, AfterSave, ConsoleKind, Create, DumpCore, LimitChanges, Planned, Request, Restore, Save,
    SavedFormat, Target, Targets, Wait, name_of,
};
pub use rights::Role;
pub use sched::{SchedPool, SchedRequest, SchedRow, Scheduler, VcpuBudget};
pub use storage::{ImageRow, SrRow, StorageRequest, VdiList, VdiRow, VdiUser};
pub use store::{StoreNode, StoreQuotaRow, StoreRequest, StoreTree, StoreValue};
pub use traffic::{DiskTraffic, Traffic, VifTraffic};
pub use tuning::{ConfigUpdate, Trigger, TuneRequest};
pub use vms::{
    Define, REPLACED, StartFailure, StartedAll, StateChange, StateChanges, VmRow, VmStatus,
};
pub use wire::{
    Asked, LINE_BYTES_MAX, WireError, decode_answer, decode_asked, decode_request, encode_answer,
    encode_asked, encode_request,
};

/// The protocol's version. Raised by changes that an older peer would misread; not by new optional
/// fields.
pub const VERSION: u32 = 1;

/// Default socket of `xylemd`.
pub const SOCKET_PATH: &str = "/run/xylem/xylemd.sock";

/// The environment variable that names another socket, for daemon and clients.
pub const SOCKET_VARIABLE: &str = "XYLEMD_SOCKET";
