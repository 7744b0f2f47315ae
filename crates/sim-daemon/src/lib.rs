//! A daemon on a simulated host, in real time, behind the socket that `xylemd` serves.
//!
//! The toolstack's machine, its performers, the store's server and the service of requests are those of the product; Xen,
//! the guests, the backends and domain 0 below them are [`sim`]'s. The simulation lives on one thread, whose clock follows
//! the real one. Clients' threads send it what is to be done there: requests to the machine, and calls to the simulated
//! operating system.

mod consoles;
mod daemon;
mod population;
mod store;
mod system;
mod world;

pub use daemon::SimDaemon;
pub use population::Population;
pub use world::WorldConfig;
