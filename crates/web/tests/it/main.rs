//! Clients of `xylem-web`, in front of a daemon on a simulated host.

mod browsers;
mod calls;
mod consoles;
mod contents;
mod events;
mod first_copy;
mod hostile;
mod limited;
mod log_ins;
mod metrics;
mod oidc;
mod restarts;
mod served;
mod tasks;
mod tls;
mod traces;
mod xenapi;
