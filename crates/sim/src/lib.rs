//! The embedded host: a Xen machine with its guests and backends, simulated from one seed.
//!
//! The product's own code runs on it unchanged: the typed hypercalls and the builder on
//! [`SimHypervisor`], the store's server on simulated rings, the toolstack on a simulated dom0. The
//! seam is the lowest there is: hypercalls, event channels, grants and ring bytes. Nothing here
//! touches the operating system, and nothing happens that the seed does not determine.

mod agenda;
mod bytes;
mod faults;
mod machine;
mod prng;
mod trace;

pub use agenda::Time;
pub use faults::{Calls, Faults, VirqFate};
pub use machine::{
    Channel, Domain, Dying, GrantStatus, Machine, MachineConfig, Mapping, MappingId, Occurrence,
    Release, SimHypervisor, SimXen, VIRQ_DOM_EXC, Vcpu,
};
pub use prng::Prng;
pub use trace::Trace;
