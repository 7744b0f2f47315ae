//! The lifecycle of VMs: wanted state, observed state, and the steps in between.
//!
//! [`Toolstack`] is a state machine: events in, actions out, time as an argument. It does not know
//! whether it runs on Linux or in the simulator. Its effects on Xen, the store and the host are in
//! [`perform`], over traits that are passed in.

pub mod around;
pub mod balloon;
pub mod bootloader;
pub mod channel;
pub mod checkpoint;
pub mod config;
pub mod device_model;
pub mod domains;
pub mod foreign;
pub mod generation;
pub mod host;
pub mod hotplug;
pub mod lanes;
pub mod layout;
pub mod libxl_json;
pub mod listing;
mod machine;
pub mod moves;
pub mod network;
pub mod pci;
pub mod perform;
pub mod plan;
pub mod psr;
pub mod qmp;
pub mod record;
pub mod saved;
pub mod scheduler;
pub mod steps;
pub mod tuning;
pub mod userdata;
pub mod work;
pub mod xen_host;
pub mod xlcfg;

pub use machine::{
    Action, Asker, Begin, Boot, Census, Classes, ClientId, ConsoleKind, Copy, Created, Deed,
    DefinitionFile, Device, DeviceObject, DeviceState, DomainRow, Event, Fallback, Instant, Level,
    LogRecord, MediumChange, NetworkObject, Object, ObjectChange, ObjectClass, ObjectKey, Objects,
    OpenStep, OperationObject, PermitRequest, PlanOf, Progress, Reply, ReplyWhen, Request,
    ShutdownRequest, SrChange, StartedAll, StateChange, StateChanges, StepTime, Summary, Targets,
    Told, Toolstack, Trace, VmObject, VmRow, VmState, VmStatus, Wanted, WorkId,
};
